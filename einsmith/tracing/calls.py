"""Tell calls on arrays from calls that extend a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from einsmith.base.trees import flatten
from einsmith.tracing import trace
from einsmith.tracing.builder import Value

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def is_traced(tree: Any) -> bool:
    """Return whether a leaf of nested tuples, lists and dicts is a traced tensor."""
    return any(isinstance(x, Value) for x in flatten(tree)[0])


def in_trace(args: Sequence[Any], kwargs: Mapping[str, Any] = _NOTHING) -> bool:
    """Return whether a call extends a trace: tracing is in progress, or a leaf of its arguments, nested containers, is
    a traced tensor."""
    if trace.current_trace() is not None:
        return True
    for x in args:
        if type(x) is not np.ndarray:
            break
    else:
        if not kwargs:
            return False
    return is_traced((list(args), dict(kwargs)))
