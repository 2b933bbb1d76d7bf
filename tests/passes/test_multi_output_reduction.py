"""Values and positions of extremes, and the parts of a product's derivative, come out of one sweep."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import Compute, Piece, Reduce, postorder
from einsmith.passes.pipeline import run_passes
from tests.fuzz.check import agree

F = es.functional


def combiners(graph) -> list[str]:
    return sorted(
        p.body.combiner for n in postorder(graph.roots) if isinstance(n, Compute)
        for p in n.template.parts if isinstance(p, Piece) and isinstance(p.body, Reduce)
    )  # fmt: skip


def with_gradient(f):
    """The value, and the gradient of half the sum of its squares."""

    def both(x):
        y, pull = es.vjp(f, x)
        return y, pull(y)

    return both


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "f, shape, expected",
    [(lambda x: F.max_pool2d(F.relu(x), 2), (3, 5, 9, 13), ["argmax"]),
     (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 7, 18), ["argmax"]),
     (lambda x: x.max(1), (5, 17), ["argmax"]),
     (lambda x: x.min(0), (17, 33), ["argmin"]),
     (lambda x: x.max(0) + x.min(0), (9, 7), ["argmax", "argmin"])],
)  # fmt: skip
@pytest.mark.parametrize("ties", [False, True])
def test_values_with_positions(f, shape, expected, ties, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    if ties:
        x = np.round(x)
    traced = trace_call(with_gradient(f), (x,), {})
    found = combiners(run_passes(traced.graph))
    assert [c for c in found if c != "sum"] == expected
    run = Executable(traced.graph, traced.bind, 2)
    agree(run([x])[1], traced.graph, [x], "values and positions")


def test_nan_is_the_greatest(rng):
    x = rng.standard_normal((6, 19)).astype(np.float32)
    x[0, 3] = x[0, 7] = x[4, 18] = np.nan
    y, (g,) = es.jit(with_gradient(lambda x: x.max(1)))(x)
    np.testing.assert_array_equal(y, x.max(1))
    np.testing.assert_array_equal(np.argwhere(g[[0, 4]] != 0), [[0, 3], [1, 18]])


def test_a_value_alone_is_no_position(rng):
    x = rng.standard_normal((4, 9)).astype(np.float32)
    traced = trace_call(lambda x: (x.max(1), x.min(1)), (x,), {})
    assert combiners(run_passes(traced.graph)) == ["max", "min"]
