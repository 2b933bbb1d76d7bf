"""Make keys of traces from a module's attributes: parts are compared by identity, settings by value."""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import Any

import numpy as np


class Same(weakref.ref):
    """A weak reference in a key, compared by identity, so that a cache does not keep alive the object that owns it."""

    __slots__ = ("_hash",)

    _hash: int

    def __new__(cls, value: Any) -> Same:
        same = super().__new__(cls, value)
        same._hash = object.__hash__(value)
        return same

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        value = self()
        return self is other if value is None else isinstance(other, Same) and other() is value


SIMPLE = frozenset((type(None), bool, int, float, str, bytes))
DEPTH = 8
"""Most nested containers in a setting; an attribute that contains itself is no setting."""


def key_of(value: Any, depth: int = DEPTH) -> Any:
    """Return the key of an attribute, or None where a trace does not depend on it.

    Numbers, strings, and containers of keyed values are compared by value; functions and NumPy arrays by identity."""
    kind = type(value)
    if kind in SIMPLE or isinstance(value, (bool, int, float, str, np.generic)):
        return repr(value)
    if isinstance(value, (FunctionType, np.ndarray)):
        return Same(value)
    if not isinstance(value, (tuple, list, dict, set, frozenset)) or not depth:
        return None
    if isinstance(value, (set, frozenset)):
        return (kind, frozenset(map(repr, value))) if SIMPLE.issuperset(map(type, value)) else None
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    if SIMPLE.issuperset(map(type, parts)):
        return repr(value)
    keys: list[Any] = [kind]
    for part in parts:
        key = key_of(part, depth - 1)
        if key is None:
            return None
        keys.append(key)
    return tuple(keys)
