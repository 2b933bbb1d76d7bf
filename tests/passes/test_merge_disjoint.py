"""Sums of tensors that are zero in each other's pieces."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Const, Graph, Reduce, is_zero, postorder
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.merge_disjoint import merge_disjoint
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.context import PassContext
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
    return simplify(call.graph), list(named.values())


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_a_stacked_weight_is_one_tensor(name, rng):
    text, zeros = LOSSES[name]
    before, arrays = graph_of(text, rng)
    after = merge_disjoint(before, PassContext())
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


READS = {
    "literals": (
        "a[e,u] = sin(w[e,0,u])*x[p[e],0,u] + w[e,2,u]*x[p[e],1,u]*y[e,1]\n"
        "b[e,u] = w[e,2,u]*x[p[e],0,u]*y[e,0] - w[e,3,u]*w[e,3,u]*y[e,1]\n"
        "c[e,u] = exp(w[e,3,u]*0.1)*x[p[e],1,u] + w[e,0,u]*y[e,0]\n"
        "s[q[e],0,u] += a[e,u]\ns[q[e],1,u] += b[e,u]\ns[q[e],2,u] += c[e,u]",
        lambda t, w, x, y, p, q: t.stack([t.zeros_like(x[:, 0]).index_add(0, q, m) for m in (
            t.sin(w[:, 0])*x[p, 0] + w[:, 2]*x[p, 1]*y[:, 1:2],
            w[:, 2]*x[p, 0]*y[:, :1] - w[:, 3]**2*y[:, 1:2],
            t.exp(w[:, 3]*0.1)*x[p, 1] + w[:, 0]*y[:, :1])], 1),
    ),
    "the same literal": (
        "a[e,u] = w[e,1,u]*x[p[e],1,u]\nb[e,u] = w[e,1,u]*w[e,2,u]\n"
        "s[q[e],1,u] += a[e,u]\ns[q[e],1,u] += b[e,u]\ns[q[e],0,u] += a[e,u]*b[e,u]",
        lambda t, w, x, y, p, q: t.stack([t.zeros_like(x[:, 0]).index_add(0, q, m) for m in (
            w[:, 1]*x[p, 1]*w[:, 1]*w[:, 2], w[:, 1]*x[p, 1] + w[:, 1]*w[:, 2], w[:, 1]*0)], 1),
    ),
    "slices that overlap": (
        "a[i] = sum[u,e](w[e,i,u]*w[e,i+1,u]*y[e,0])\nb[j] = sum[u,e](sin(w[e,j+2,u]))\n"
        "s[k] = where(k < 3, a[k]*b[k % 2], b[k-3])",
        lambda t, w, x, y, p, q: t.cat([
            (w[:, :3]*w[:, 1:]*y[:, :1, None]).sum((0, 2))*t.sin(w[:, 2:]).sum((0, 2))[t.tensor([0, 1, 0])],
            t.sin(w[:, 2:]).sum((0, 2))]),
    ),
    "steps": (
        "a[e,i] = sin(y[e,2*i])\nb[e,i] = y[e,2*i+1]*y[e,2*i+1]\nc[e,i] = exp(y[e,3*i])\nd[e,i] = y[e,6-i]*y[e,0]\n"
        "s[e,i] = a[e,i]*b[e,i] + c[e,i % 2] + d[e,i]*d[e,(i+1) % 3]",
        lambda t, w, x, y, p, q: t.sin(y[:, 0:6:2])*y[:, 1:6:2]**2 + t.exp(y[:, :6:3])[:, [0, 1, 0]]
        + y[:, [6, 5, 4]]*y[:, :1]*y[:, [5, 4, 6]]*y[:, :1],
    ),
    "pairs": (
        "a[e,k] = w[e,k,0]*w[e,k,1] - w[e,k,3]\nb[e,k] = tanh(w[e,k,0])*w[e,k,3]\ns[e,k] = a[e,k]*b[e,k]",
        lambda t, w, x, y, p, q: (w[:, :, 0]*w[:, :, 1] - w[:, :, 3])*t.tanh(w[:, :, 0])*w[:, :, 3],
    ),
}  # fmt: skip
"""Formulas that read a tensor at literal positions and in boxes in several statements, and the same in PyTorch."""

ALWAYS = PassContext(cost=lambda kernel, target: 3.0 if kernel.root.is_scatter else 1.0)
"""A machine on which fewer kernels are faster, and scatters take the longest."""


def _operands(rng: np.random.Generator, edges: int, width: int) -> dict[str, np.ndarray]:
    out = {"w": rng.standard_normal((edges, 4, width)), "x": rng.standard_normal((5, 2, width))}
    out["y"] = rng.standard_normal((edges, 7))
    return out | {k: rng.integers(0, 5, edges).astype(np.int32) for k in "pq"}


@pytest.mark.parametrize("edges, width", [(1, 4), (7, 5), (13, 17)])
@pytest.mark.parametrize("name", READS)
def test_reads_at_literal_positions_have_gradients_in_pieces(name, edges, width, rng):
    """Values, gradients and second derivatives, of the graph before and after the pass, and compiled."""
    torch = pytest.importorskip("torch")
    text, reference = READS[name]
    arrays = _operands(rng, edges, width)
    used = {k: v for k, v in arrays.items() if f"{k}[" in text.replace("exp[", "")}
    extents = {"s.shape[0]": "x.shape[0]", "s.shape[1]": 3} if "+=" in text else {}
    extents |= {"slices that overlap": {"i": 3, "j": 2, "k": 5}, "steps": {"i": 3}}.get(name, {})
    f = es.op(text + "\nreturn s", extents=extents)
    wrt = [k for k in "wxy" if k in used]
    want_value = reference(torch, *(torch.tensor(v) for v in arrays.values()))
    cotangent = rng.standard_normal(want_value.shape)
    directions = [rng.standard_normal(used[k].shape) for k in wrt]

    def derivatives(g, along, **named):
        def value(*v):
            return f(**(named | dict(zip(wrt, v, strict=True))))

        def first(*v):
            return es.grad(lambda *v: (value(*v) * g).sum(), argnums=tuple(range(len(wrt))))(*v)

        def second(*v):
            return sum((d * a).sum() for d, a in zip(first(*v), along, strict=True))

        at = [named[k] for k in wrt]
        return value(*at), *first(*at), *es.grad(second, argnums=tuple(range(len(wrt))))(*at)

    leaves = {k: torch.tensor(v, requires_grad=k in wrt) for k, v in arrays.items()}
    inputs = [leaves[k] for k in wrt]
    value = reference(torch, *leaves.values())
    grads = torch.autograd.grad((value * torch.tensor(cotangent)).sum(), inputs, create_graph=True)
    total = sum((g * torch.tensor(d)).sum() for g, d in zip(grads, directions, strict=True))
    seconds = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    want = [t.detach().numpy() for t in (value, *grads, *seconds)]

    named = {"g": cotangent, "along": directions} | used
    before = simplify(trace_call(derivatives, (), named).graph)
    after = merge_disjoint(before, ALWAYS)
    assert after is not before or edges < 13  # vectors of a short axis select its positions
    verify_graph(after)
    for graph in (before, after):
        for a, b in zip(want, evaluate(graph, [cotangent, *directions, *used.values()])[0], strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-11)
    for a, b in zip(want, es.jit(derivatives)(**named), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-11)


def test_no_padded_gradient_is_added(rng):
    """Each gradient is one tensor in pieces or one scatter of one, whose pieces alone add."""
    text, _ = READS["literals"]
    arrays = _operands(rng, 11, 8)
    f = es.op(text + "\nreturn s", extents={"s.shape[0]": "x.shape[0]", "s.shape[1]": 3})

    def gradients(w, x, y, p, q):
        return es.grad(lambda w, x, y: f(w=w, x=x, y=y, p=p, q=q).sum(), argnums=(0, 1, 2))(w, x, y)

    graph = merge_disjoint(simplify(trace_call(gradients, (), arrays).graph), ALWAYS)
    dw, dx, dy = graph.outputs
    assert [len(t.template.parts) for t in (dw, dx)] == [4, 1] and dx.template.is_scatter
    assert sum(is_zero(p.body) for p in dw.template.parts) == 1  # w[e,1,u], which no statement reads
    (values,) = (a for a in dx.args if a.dtype.is_float)
    assert [len(t.template.parts) for t in (values,)] == [2]
    assert all(isinstance(p.body, Reduce) or is_zero(p.body) for p in dy.template.parts)
    assert sum(isinstance(n, Compute) and n.template.is_scatter for n in postorder(graph.outputs)) == 1


@pytest.mark.parametrize("positions, scatters", [((4, 0, 2), 1), ((1, 2, 5), 2), ((5, 3, 1, 0), 2), ((3, 3, 3), 1)])
def test_scatters_at_equal_distances_are_one(positions, scatters, rng):
    text = "\n".join(f"s[q[e],{k},u] += {n + 1}*w[e,{n},u]*sin(y[e,{n}])" for n, k in enumerate(positions))
    f = es.op(text + "\nreturn s", extents={"s.shape[0]": 5, "s.shape[1]": 6})
    arrays = {k: v for k, v in _operands(rng, 9, 8).items() if k in "wyq"}
    graph = merge_disjoint(simplify(trace_call(lambda **a: f(**a), (), arrays).graph), ALWAYS)
    verify_graph(graph)
    assert sum(isinstance(n, Compute) and n.template.is_scatter for n in postorder(graph.outputs)) == scatters
    want = np.zeros((5, 6, 8))
    for n, k in enumerate(positions):
        np.add.at(want[:, k], arrays["q"], (n + 1) * arrays["w"][:, n] * np.sin(arrays["y"][:, n : n + 1]))
    np.testing.assert_allclose(evaluate(graph, list(arrays.values()))[0][0], want, rtol=1e-12, atol=1e-12)


def test_sums_of_many_reads_are_several_tensors(rng):
    """A tensor has at most 16 pieces, and reads at most 24 tensors."""
    count = 40
    lines = [f"m{k}[e] = sin(w[e,{k}])*z[e]" for k in range(count)]
    f = es.op("\n".join([*lines, "s[] = sum[e](" + "*".join(f"m{k}[e]" for k in range(count)) + ")", "return s"]))
    w, z = 1 + rng.random((7, count)), 1 + rng.random(7) / 10

    def gradient(w, z):
        return es.grad(lambda w: f(w=w, z=z))(w)

    graph = merge_disjoint(simplify(trace_call(gradient, (w, z), {}).graph), ALWAYS)
    verify_graph(graph)
    want = np.prod(np.sin(w) * z[:, None], 1, keepdims=True) / np.tan(w)
    np.testing.assert_allclose(evaluate(graph, [w, z])[0][0], want, rtol=1e-10)
    np.testing.assert_allclose(es.jit(gradient)(w, z), want, rtol=1e-10)
