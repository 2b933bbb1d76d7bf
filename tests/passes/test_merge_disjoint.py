"""Sums of tensors that are zero in each other's pieces."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Const, Graph, postorder
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.merge_disjoint import merge_disjoint
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.pipeline import run_passes

LOSSES = {
    "two columns": ("s[] = sum[b,n](g[b,n] * (sum[i](x[b,i]*W[n,0*9+i]) * sum[j](h[b,j]*W[n,9+j])))", 0),
    "three columns": ("a[b,n] = sum[i](x[b,i]*W[n,0*9+i])\n"
                      "s[] = sum[b,n](a[b,n] * sum[j](h[b,j]*W[n,9+j]) * sum[m](g[b,m]*W[n,14+m]))", 0),
    "a gap": ("s[] = sum[b,n](sum[j](h[b,j]*W[n,3+j]) * sum[m](g[b,m]*W[n,14+m]))", 2),
}  # fmt: skip
"""The last number: pieces of the gradient that stay zero."""


def graph_of(text: str, rng: np.random.Generator) -> tuple[Graph, list[np.ndarray]]:
    """W and its step down the gradient."""
    f = es.op(text + "\nreturn s")
    columns, n = (21, 7) if "14" in text else (14, 7)
    arrays = [rng.standard_normal((6, k)) for k in (7, 9, 5)]
    named = dict(zip("gxh", arrays, strict=True)) | {"W": rng.standard_normal((n, columns))}
    named = {k: v for k, v in named.items() if k in text.replace("sum", "")}

    def step(**named):
        return named["W"] - 0.1 * es.grad(lambda W: f(**(named | {"W": W})))(named["W"])

    call = trace_call(step, (), named)
    return simplify(inline(simplify(call.graph))), list(named.values())


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_a_stacked_weight_is_one_tensor(name, rng):
    text, zeros = LOSSES[name]
    before, arrays = graph_of(text, rng)
    after = merge_disjoint(before)
    verify_graph(after)
    kinds = [[isinstance(p.body, Const) for p in n.template.parts] for n in postorder(after.roots)
             if isinstance(n, Compute) and len(n.template.parts) > 1]  # fmt: skip
    assert len(kinds) == 1 and sum(kinds[0]) == zeros
    want, got = (evaluate(g, arrays)[0] for g in (before, after))
    np.testing.assert_array_equal(got, want)
    verify_graph(run_passes(before))


def test_an_update_in_pieces_is_in_place(rng):
    """Every element of a weight is read for itself alone: no copy, one kernel."""

    class Stacked(es.nn.Module):
        def __init__(self):
            self.weight = es.nn.Parameter(rng.standard_normal((4, 14)).astype(np.float32))

        def forward(self, x, h):
            f = es.op("y[b,n] = sum[i](x[b,i]*W[n,0*9+i]) + sum[j](h[b,j]*W[n,9+j])\nreturn y")
            return f(x=x, h=h, W=self.weight)

    model = Stacked()
    start, x, h = model.weight.numpy().copy(), *(rng.standard_normal((1, k)).astype(np.float32) for k in (9, 5))
    y = rng.standard_normal((1, 4)).astype(np.float32)
    step = es.TrainStep(model, es.functional.mse_loss, es.optim.SGD(lr=0.1), threads=1)
    step(x, h, y)
    both = np.concatenate([x, h], 1)
    want = start - 0.1 * (2 / y.size * (both @ start.T - y)).T @ both
    np.testing.assert_allclose(model.weight.numpy(), want, rtol=1e-5, atol=1e-6)
    (run,) = step.compiler.programs.values()
    assert not any(len(n.args) == 1 and n.shape == (4, 14) for c in run.plan.calls for n in c.nodes)
