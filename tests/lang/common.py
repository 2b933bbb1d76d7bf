"""Applying formulas in tests: trace with leaves, evaluate with the reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Graph, leaf
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import Trace, tracing


def run(f: Any, *arrays: np.ndarray, **kwargs: Any) -> Any:
    """The value(s) of `f(*arrays)` by the reference evaluator."""
    arrays = tuple(np.asarray(a) for a in arrays)
    leaves = [leaf(a.shape, dt.dtype_of(a.dtype)) for a in arrays]
    trace = Trace()
    with tracing(trace):
        out = f(*(Value(x) for x in leaves), **kwargs)
    outs = out if isinstance(out, tuple) else (out,)
    captured = list(trace.captured.values())
    graph = Graph((*leaves, *(x for _, x in captured)), tuple(v.tensor for v in outs), (), ())
    results = evaluate(graph, [*arrays, *(np.asarray(o) for o, _ in captured)])[0]
    for v, r in zip(outs, results, strict=True):
        assert v.shape == r.shape and v.dtype.numpy.kind == r.dtype.kind
    return tuple(results) if isinstance(out, tuple) else results[0]


def value(*shape: int, dtype: str = "float32", weak: bool = False) -> Value:
    """A traced tensor over a fresh leaf."""
    return Value(leaf(shape, dt.dtype_of(dtype)), weak)
