"""Sums that are others but for factors which leave them: the same values, fewer sums, and what stays as it is."""

from __future__ import annotations

import re

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, Reduce, postorder
from einsmith.ir.printer import show
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.factor_hoisting import factor_hoisting
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.simplify import simplify


def prepared(f, *shapes: tuple[int, ...]) -> Graph:
    return inline(simplify(trace_call(f, tuple(np.zeros(s) for s in shapes), {}).graph))


def sums(graph: Graph) -> int:
    nodes = [n for n in postorder(graph.roots) if isinstance(n, Compute)]
    return sum(isinstance(p.body, Reduce) for n in nodes for p in n.template.parts if hasattr(p.body, "combiner"))


def compared(graph: Graph, rng: np.random.Generator, fewer: int) -> None:
    short = factor_hoisting(graph)
    verify_graph(short)
    arrays = [rng.standard_normal(x.shape) for x in graph.inputs]
    for got, want in zip(evaluate(short, arrays)[0], evaluate(graph, arrays)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-11)
    assert sums(graph) - sums(short) == fewer


B = "B[i] = sum[k](g[i,k])\n"
MEAN = "S[i] = sum[k](x[i,k])\nm[i] = S[i]/x.shape[1]\nv[i] = sum[k]((x[i,k] - m[i])*(x[i,k] - m[i]))\n"
CASES = {
    "a factor": (B + "R[i] = sum[k](-(c[i]*g[i,k]))\nreturn B, R", 1),
    "a divisor": (B + "R[i] = sum[k](g[i,k]/c[i])\nreturn B, R", 1),
    "two terms": (B + "R[i] = sum[k](c[i]*g[i,k] - g[i,k]*c[i]*2)\nreturn B, R", 1),
    "of a product": ("B[i] = sum[k](g[i,k]*x[i,k])\nR[i] = sum[k](x[i,k]*c[i]*g[i,k])\nreturn R, B", 1),
    "from a mean": (MEAN + "R[i] = sum[k](c[i]*(x[i,k] - m[i]) + c[i]*(x[i,k] - m[i]))\nreturn v, R", 1),
    "a mean and a sum": (B + MEAN + "R[i] = sum[k](c[i]*(x[i,k] - m[i]) + c[i]*g[i,k])\nreturn v, B, R", 1),
    "one term unknown": (B + "R[i] = sum[k](c[i]*g[i,k] + x[i,k])\nreturn B, R", 0),
    "over another axis": ("B[k] = sum[i](g[i,k])\nR[i] = sum[k](c[i]*g[i,k])\nreturn B, R", 0),
    "of half of the elements": (B + "R[i] = sum[l](c[i]*g[i,2*l])\nreturn B, R", 0),
    "under a condition": (B + "R[i] = sum[k](where(k < 3, c[i]*g[i,k], 0))\nreturn B, R", 0),
    "the sum itself": (B + "return B", 0),
    "a mean of more": ("S[i] = sum[k](x[i,k])\nm[i] = S[i]/7\nR[i] = sum[k](c[i]*(x[i,k] - m[i]))\nreturn R", 0),
    "a mean elsewhere": (
        "S[i] = sum[k](x[i,k])\nm[i] = S[i]/x.shape[1]\nR[i] = sum[k](c[i]*(x[i,k] - m[4-i]))\nreturn R", 0),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values(case, rng):
    text, fewer = CASES[case]
    op = es.op(text, extents={"l": 6} if "[l]" in text else None)
    shapes = {"g": (5, 13), "x": (5, 13), "c": (5,)}
    names = [n for n in shapes if f"{n}[" in text]
    compared(prepared(lambda *a: op(**dict(zip(names, a, strict=True))), *(shapes[n] for n in names)), rng, fewer)


def test_a_batch_norm_has_two_sums_backward(rng):
    """By x, gamma and beta, in which those by gamma and beta are all that is summed."""

    def f(x, gamma, beta, g):
        def loss(x, gamma, beta):
            m, v = np.zeros(3), np.ones(3)
            return es.functional.sum(g * es.functional.batch_norm(x, m, v, gamma, beta, training=True))

        return es.value_and_grad(loss, argnums=(0, 1, 2))(x, gamma, beta)

    graph = prepared(f, (4, 3, 5, 5), (3,), (3,), (4, 3, 5, 5))
    compared(graph, rng, 2)
    assert sums(factor_hoisting(graph)) == 5  # mean, variance, loss, and those by gamma and beta


def test_nan_is_kept():
    op = es.op(CASES["from a mean"][0])
    graph = prepared(lambda x, c: op(x=x, c=c), (5, 13), (5,))
    x = np.ones((5, 13))
    x[1, 3], x[2, 7] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        _, r = evaluate(factor_hoisting(graph), [x, np.ones(5)])[0]
    np.testing.assert_array_equal(np.isnan(r), [False, True, True, False, False])


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 1e30])
def test_a_norms_gradients_are_finite_for_the_same_numbers(special, rng):
    """m - m stands for a sum of differences from m, once for each factor."""
    f = es.grad(lambda x, w, y: ((es.functional.batch_norm(x, None, None, w, None, True) - y) ** 2).sum(), (0, 1))
    x, y = (rng.standard_normal((6, 4, 3)) for _ in range(2))
    x[2, 1, 0], w = special, rng.standard_normal(4)
    graph = inline(simplify(trace_call(f, (x, w, y), {}).graph))
    short = factor_hoisting(graph)
    assert sums(short) < sums(graph)
    assert len(re.findall(r"(t\d+\[i0\]) - \1", show(short))) == 1
    for got, want in zip(evaluate(short, [x, w, y])[0], evaluate(graph, [x, w, y])[0], strict=True):
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
        assert np.isfinite(want).any() and (special == 1e30 or not np.isfinite(want).all())


def test_updates_leave_sums_to_their_other_readers(rng):
    """The gradient by a batch norm's result is not read again for its sums, which its own kernel takes."""
    es.manual_seed(0)
    model = es.nn.Sequential(es.nn.Conv2d(3, 32, 3, padding=1), es.nn.BatchNorm2d(32), es.nn.ReLU(),
                             es.nn.Conv2d(32, 4, 3))  # fmt: skip
    step = es.TrainStep(model, es.functional.mse_loss, es.optim.SGD(lr=0.1), threads=2)
    step.compile(np.zeros((2, 3, 24, 24), np.float32), np.zeros((2, 4, 22, 22), np.float32))
    (run,) = step.compiler.programs.values()
    rows = [c.kernel for c, role in zip(run.calls, run.roles, strict=True) if hasattr(c.kernel, "members") and
            role == "backward"]  # fmt: skip
    bodies = [[m.kernel.root.parts[0].body for m in k.members] for k in rows if k.takes_sums]
    assert 3 in [sum(len(b.bodies) for b in own if hasattr(b, "combiner")) for own in bodies]
