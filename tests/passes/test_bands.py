"""Sums and maxima over bands: they and their gradients take as many steps as the band has elements."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.cost.facts import Target
from einsmith.ir.evaluator import evaluate
from tests.passes.counting import run_counted

FORMULAS = {
    "between places": "y[i] = sum[j](where(i - 3 <= j and j <= i + 2, a[i]*b[j], 0))",
    "at a distance": "y[i] = sum[j](where(abs(i-j) <= 3, a[i]*b[j], 0))",
    "rows": "y[i,d] = sum[j](where(2*abs(i-j) < 9, a[i]*z[j,d], 0))",
    "many": "y[i] = sum[j](where(abs(i-j) <= 40, exp(a[i]*b[j]), 0))",
    "largest": "y[i] = max[j](where(abs(i-j) <= 3, a[j], -inf))",
    "products": "y[i] = prod[j](where(abs(i-j) <= 2, a[j], 1))",
}


def gradient(op):
    return lambda **own: es.grad(lambda own: (op(**own) * op(**own)).sum())(own)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] * (c in ("rows", "many"))) for c in FORMULAS]
)
def test_steps_grow_as_the_band_does(case, rng):
    op = es.op(FORMULAS[case], extents={"i": "a.shape[0]"})
    for f in (lambda **own: op(**own), gradient(op)):
        counts = []
        for n in (300, 600):
            arrays = {"a": rng.uniform(0.5, 2, n), "b": rng.uniform(0.5, 2, n), "z": rng.uniform(0.5, 2, (n, 5))}
            own = {k: x.astype(np.float32) for k, x in arrays.items() if f"{k}[" in FORMULAS[case]}
            graph = trace_call(f, (), own).graph
            got, count = run_counted(graph, list(own.values()), Target(vector_bytes=32, cores=2))
            for a, b in zip(evaluate(graph, list(own.values()))[0], got, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
            counts.append(count)
        assert counts[1] < 2.4 * counts[0], counts
