"""Runs functions of tensors through the reference evaluator, so that these tests need no code generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from einsmith.base.dtypes import dtype_of
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Graph, leaf
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import Trace, tracing


def evaluated(f: Callable[..., Any], *arrays: Any) -> Any:
    """f(*arrays) by the evaluator: arrays become traced tensors, captured parameters have their present values."""
    inputs = [np.asarray(a) for a in arrays]
    leaves = [leaf(a.shape, dtype_of(a.dtype)) for a in inputs]
    trace = Trace()
    with tracing(trace):
        result = f(*(Value(x) for x in leaves))
    outputs = result if isinstance(result, tuple) else (result,)
    captured = list(trace.captured.values())
    graph = Graph((*leaves, *(x for _, x in captured)), tuple(v.tensor for v in outputs), (), ())
    live = [o if isinstance(o, np.ndarray) else o.data for o, _ in captured]
    values, _ = evaluate(graph, [*inputs, *live])
    return tuple(values) if isinstance(result, tuple) else values[0]


@pytest.fixture
def run() -> Callable[..., Any]:
    return evaluated
