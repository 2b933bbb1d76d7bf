"""Sums over the same points become one sum of several results, where none needs another."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Reduce, postorder
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra import horizontal_fusion
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.context import PassContext


class Gates(es.nn.Module):
    """y = a*u + b*u*v + c with a factor and a bias for every column."""

    def __init__(self, n: int, rng: np.random.Generator):
        self.a, self.b, self.c = (es.nn.Parameter(rng.standard_normal(n).astype(np.float32)) for _ in range(3))

    def forward(self, u, v):
        f = es.op("y[i,n] = tanh(a[n]*u[i,n] + b[n]*u[i,n]*v[i,n] + c[n])\nreturn y")
        return f(a=self.a, u=u, b=self.b, v=v, c=self.c)


def sums(run) -> list[int]:
    """How many results each reduction of a program over both axes of the batch or more has."""
    nodes = {n for c in run.plan.calls for n in c.nodes if isinstance(n, Compute)}
    bodies = [n.template.parts[0].body for n in nodes if len(n.template.parts) == 1 and n.shape != ()]
    return sorted(len(b.bodies) for b in bodies if isinstance(b, Reduce))


@pytest.mark.parametrize("shape", [(301, 131), (5, 7)])
@pytest.mark.parametrize("rule", ["sgd", "momentum"])
def test_the_gradients_of_factors_and_biases_are_one_sweep(shape, rule, rng):
    model = Gates(shape[1], rng)
    a, b, c = (p.numpy().astype(np.float64) for p in (model.a, model.b, model.c))
    u, v, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    rate = es.optim.SGD(lr=0.1, momentum=0.9 if rule == "momentum" else 0.0)
    step = es.TrainStep(model, es.functional.mse_loss, rate)
    state = [np.zeros_like(x) for x in (a, b, c)]
    for _ in range(3):
        step(u, v, y)
        h = np.tanh(a * u + b * u * v + c)
        g = 2 / y.size * (h - y) * (1 - h * h)
        grads = [(g * u).sum(0), (g * u * v).sum(0), g.sum(0)]
        state = [0.9 * s + d if rule == "momentum" else d for s, d in zip(state, grads, strict=True)]
        a, b, c = (x - 0.1 * s for x, s in zip((a, b, c), state, strict=True))
    for p, want in zip((model.a, model.b, model.c), (a, b, c), strict=True):
        np.testing.assert_allclose(p.numpy(), want, rtol=1e-4, atol=1e-5)
    (run,) = step.compiler.programs.values()
    if rule == "sgd":
        assert sums(run) == [3]


ALIKE = PassContext(cost=lambda kernel, target: 1.0)
DEAR = PassContext(cost=lambda kernel, target: float(len(kernel.root.parts[0].bodies)))
"""Machines on which every kernel takes the same time, and on which every sum does."""
CASES = {
    "two of one": ("A[j] = sum[i](x[i,j])\nB[j] = sum[i](x[i,j]*z[i,j])\nC[j] = A[j]/B[j]\nreturn C", [2]),
    "one needs the other": ("A[j] = sum[i](x[i,j])\nB[j] = sum[i](x[i,j]*A[j])\nC[j] = A[j]/B[j]\nreturn C", [1, 1]),
    "crossed": (  # of two pairs that share what they read, each would need the other
        "A[j] = sum[i](x[i,j])\nB[j] = sum[i](z[i,j])\nC[j] = sum[i](x[i,j]*sin(B[j]))\n"
        "D[j] = sum[i](z[i,j]*cos(A[j]))\nE[j] = A[j]*B[j]*C[j]*D[j]\nreturn E", [1, 1, 1, 1]),
    "two levels": (
        "A[j] = sum[i](x[i,j])\nB[j] = sum[i](x[i,j]*z[i,j])\nC[j] = sum[i](x[i,j]*A[j])\n"
        "D[j] = sum[i](x[i,j]*B[j]*z[i,j])\nE[j] = A[j]*B[j]*C[j]*D[j]\nreturn E", [2, 2]),
    "other points": ("A[j] = sum[i](x[i,j])\nB[i] = sum[j](x[i,j])\nC[i,j] = A[j] + B[i]\nreturn C", [1, 1]),
    "a result": ("A[j] = sum[i](x[i,j])\nB[j] = sum[i](x[i,j]*z[i,j])\nC[j] = A[j]/B[j]\nreturn A, C", [1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_sums_of_equal_depth_are_joined(case, rng):
    """Where one kernel takes less time than all; not where it takes as long."""
    text, want = CASES[case]
    op = es.op(text)
    shape = (7, 13)
    graph = inline(
        simplify(
            trace_call(
                lambda x, z: op(x=x, z=z) if "z[" in text else op(x=x), (np.zeros(shape), np.zeros(shape)), {}
            ).graph
        )
    )
    assert horizontal_fusion.horizontal_fusion(graph, DEAR) is graph
    joined = horizontal_fusion.horizontal_fusion(graph, ALIKE)
    verify_graph(joined)
    bodies = [n.template.parts[0].body for n in postorder(joined.roots) if isinstance(n, Compute)]
    assert sorted(len(b.bodies) for b in bodies if isinstance(b, Reduce)) == want
    arrays = [rng.standard_normal(x.shape) for x in graph.inputs]
    for got, right in zip(evaluate(joined, arrays)[0], evaluate(graph, arrays)[0], strict=True):
        np.testing.assert_array_equal(got, right)


def test_the_backward_pass_of_a_batch_norm_has_one_sweep(rng):
    model = es.nn.Sequential(es.nn.Conv2d(3, 5, 3), es.nn.BatchNorm2d(5), es.nn.ReLU(), es.nn.Conv2d(5, 2, 1))
    step = es.TrainStep(model, es.functional.mse_loss, es.optim.SGD(lr=0.1))
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((7, 3, 49, 49), (7, 2, 47, 47)))
    step(x, y)
    (run,) = step.compiler.programs.values()
    assert 2 in sums(run)
