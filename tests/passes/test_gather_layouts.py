"""Tensors read at places that come from data are turned, so that what the places do not depend on lies side by side."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, has_read, postorder, reads
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.gather_layouts import gather_layouts
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.context import PassContext


def picks(parts) -> int:
    """How many numbers data picks from the last dimension of something."""
    every = [r for p in parts for b in p.bodies for r in reads(b) if r.dtype.is_float]
    places = [r.index for r in every] + [getattr(p, "index", ()) for p in parts]
    return sum(has_read(i[-1]) for i in places if i)


TURNS = PassContext(cost=lambda kernel, target: float(picks([p for s in kernel.stages for p in s.template.parts])))
"""A machine where nothing but that takes time."""
STAYS = PassContext(cost=lambda kernel, target: 1.0)
"""A machine where all kernels take the same time, so that one more never pays."""

FORMULAS = {
    "picked": ("y[c,k] = x[c,i[k]]", {"x": "c4"}),
    "two places": ("y[n,c,k] = x[n,c,i[n,k],j[n,k]]*f[n,k]", {"x": "nc44", "f": "nk"}),
    "between": ("y[n,c,k] = x[i[n,k],c,j[n,k]]*x[j[n,k],c,i[n,k]]", {"x": "4c4"}),
    "guarded": ("y[n,c,k] = where(0 <= i[n,k]-1, x[n,c,i[n,k]-1,j[n,k]], 0) + g[n,c,k]", {"x": "nc44", "g": "nck"}),
    "summed": ("y[n,k] = sum[c](x[n,c,i[n,k],j[n,k]]*g[n,c,k])", {"x": "nc44", "g": "nck"}),
    "in all": ("y[] = sum[n,c,k](x[n,c,i[n,k],j[n,k]]*g[n,c,k])", {"x": "nc44", "g": "nck"}),
    "position": ("y[n] = argmax[c,k](x[n,c,i[n,k],j[n,k]]*g[n,c,k])", {"x": "nc44", "g": "nck"}),
    "largest": ("y[n,k] = max[c](x[n,c,i[n,k],j[n,k]]*g[n,c,k])", {"x": "nc44", "g": "nck"}),
    "largest there": ("y[n,c,k] = 2*g[n,c,k]\ny[n,c,i[n,k]] max= g[n,c,k]*f[n,k]", {"g": "nck", "f": "nk"}),
    "added to": ("y[n,c,k] = 2*g[n,c,k]\ny[n,c,i[n,k]] += g[n,c,k]*f[n,k]", {"g": "nck", "f": "nk"}),
    "in turn": ("u[n,c,k] = x[n,c,i[n,k],j[n,k]]\ny[n,c,k] = u[n,c,j[n,k]]*f[n,k]\nreturn y", {"x": "nc44", "f": "nk"}),
    "others read": ("u[n,c,k] = x[n,c,i[n,k],j[n,k]]\nv[n,k] = sum[c](u[n,c,i[n,k]]*g[n,c,k])\nreturn u, v",
                    {"x": "nc44", "g": "nck"}),
    "pieces": ("y[n,c,0] = x[i[n,0],c,j[n,1]]*g[n,c,1]\ny[n,c,1] = x[j[n,0],c,i[n,2]] + g[n,c,0]",
               {"x": "4c4", "g": "nck"}),
    "sums in pieces": ("y[n,0] = sum[c](x[i[n,0],c,j[n,1]]*g[n,c,1])\ny[n,1] = sum[c](x[j[n,0],c,i[n,2]])",
                       {"x": "4c4", "g": "nck"}),
    "different sums in pieces": ("y[n,0] = g[n,0,0]*f[n,1]\ny[n,1] = sum[c](x[j[n,0],c,i[n,2]])",
                                 {"x": "4c4", "g": "nck", "f": "nk"}),
    "made of pieces": ("u[n,c,0] = 2*g[n,c,0]\nu[n,c,1] = g[n,c,1]*f[n,0]\ny[n,c,k] = 2*g[n,c,k]\n"
                       "y[n,c,i[n,q+1]] += u[n,c,q]\nreturn y", {"g": "nck", "f": "nk"}),
    "convolved": ("u[n,c,k] = x[n,c,i[n,k],j[n,k]]\ny[n,m,k] = sum[c](w[m,c]*u[n,c,k])\nreturn y",
                  {"x": "nc44", "w": "4c"}),
}  # fmt: skip


def arrays_of(text: str, shapes: dict[str, str], rng, c: int, k: int = 5) -> dict[str, np.ndarray]:
    extents = {"n": 2, "c": c, "k": k, "4": 4}
    places = "k" if "i[k]" in text else "nk"
    whole = {a: places for a in "ij" if f"{a}[" in text}
    out = {a: rng.integers(0, 4, [extents[d] for d in s]).astype(np.int32) for a, s in whole.items()}
    return out | {a: rng.standard_normal([extents[d] for d in s]) for a, s in shapes.items()}


def graph_of(name: str, rng, c: int, gradient: bool) -> tuple[Graph, list[np.ndarray]]:
    text, shapes = FORMULAS[name]
    arrays, f = arrays_of(text, shapes, rng, c), es.op(text)

    def pulled(**given):
        rest = {a: t for a, t in given.items() if a not in shapes}

        def loss(floats):
            y = f(**floats, **rest)
            return sum((es.sum(t * t) for t in (y if isinstance(y, tuple) else (y,))), 0)

        return es.grad(loss)({a: given[a] for a in shapes})

    t = trace_call(pulled if gradient else f, (), arrays)
    return inline(simplify(t.graph)), list(arrays.values())


def total(graph: Graph) -> int:
    return sum(picks(n.template.parts) for n in postorder(graph.roots) if isinstance(n, Compute))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("name", FORMULAS)
def test_transposed_graphs_compute_the_same(name, gradient, rng):
    """Nothing is picked from rows any more, but what a maximum picks by itself, and every element is what it was."""
    if gradient and name == "position":
        name = "in all"  # which is a sum over all, too: positions have no gradient
    graph, values = graph_of(name, rng, 3, gradient)
    assert gather_layouts(graph, STAYS) is graph
    new = gather_layouts(graph, TURNS)
    verify_graph(new)
    assert total(new) == (gradient and name == "largest") < total(graph)
    for got, want in zip(evaluate(new, values)[0], evaluate(graph, values)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_gathers_without_an_own_axis_stay(rng):
    k, m = rng.integers(0, 3, 6).astype(np.int32), rng.integers(0, 3, (3, 6)).astype(np.int32)
    for text, arrays in [
        ("y[k,c] = x[i[k],c]", {"i": k, "x": rng.standard_normal((3, 4))}),  # lies side by side already
        ("y[c,k] = x[c,i[c,k]]", {"i": m, "x": rng.standard_normal((3, 4))}),
        ("y[c,k] = x[c,c,i[k]]", {"i": k, "x": rng.standard_normal((3, 3, 4))}),
        ("y[c,k] = x[c,i[k]]", {"i": k, "x": rng.standard_normal((1, 4))}),
    ]:
        graph = simplify(trace_call(es.op(text), (), arrays).graph)
        assert gather_layouts(graph, TURNS) is graph


SAMPLE = """
    l[n,h,w] = i32(floor(p[n,h,w,0]))
    t[n,h,w] = i32(floor(p[n,h,w,1]))
    fx[n,h,w] = p[n,h,w,0] - floor(p[n,h,w,0])
    fy[n,h,w] = p[n,h,w,1] - floor(p[n,h,w,1])
    y[n,c,h,w] = (1 - fy[n,h,w])*((1 - fx[n,h,w])*{} + fx[n,h,w]*{}) + fy[n,h,w]*((1 - fx[n,h,w])*{} + fx[n,h,w]*{})
    return y
"""
"""grid_sample of PyTorch, bilinear, at positions in pixels (Jaderberg et al. 2015, "Spatial Transformer Networks")."""
CORNERS = [(row, column) for row in ("t[n,h,w]", "t[n,h,w]+1") for column in ("l[n,h,w]", "l[n,h,w]+1")]
PADDED = {
    "zeros": "where(0 <= {0} < x.shape[2] and 0 <= {1} < x.shape[3], x[n,c,{0},{1}], 0)",
    "border": "x[n,c,min(max({0}, 0), x.shape[2]-1),min(max({1}, 0), x.shape[3]-1)]",
}


def sample(mode: str):
    return es.op(SAMPLE.format(*(PADDED[mode].format(*at) for at in CORNERS)))


def positions(rng, shape, size) -> np.ndarray:
    """Whole and fractional ones, inside and outside of an image, also far."""
    p = (rng.uniform(-2, 1 + size, (*shape, 2)) * rng.choice([1, 1, 1, 100], (*shape, 1))).astype(np.float32)
    return np.where(rng.random(p.shape) < 0.1, np.round(p), p)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("mode", PADDED)
@pytest.mark.parametrize("n, c, size", [(1, 1, 7), (2, 3, 17), (1, 15, 13), (2, 16, 9), (1, 33, 11)])
def test_bilinear_samples(mode, n, c, size, rng):
    x = rng.standard_normal((n, c, size, size)).astype(np.float32)
    p = positions(rng, (n, size + 1, size), size)
    g = rng.standard_normal((n, c, size + 1, size)).astype(np.float32)

    def run(x, p, g):
        y, pullback = es.vjp(lambda x, p: sample(mode)(x=x, p=p), x, p)
        return (y, *pullback(g))

    got = es.jit(run)(x, p, g)
    for a, b in zip(got, es.interpret(run)(x, p, g), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)
    tx, tp = torch.tensor(x, requires_grad=True), torch.tensor(p, requires_grad=True)
    y = torch.nn.functional.grid_sample(tx, (2 * tp + 1) / size - 1, padding_mode=mode, align_corners=False)
    # Positions in pixels lose a few bits in PyTorch's unit: what lies on an edge may fall on its other side.
    near = np.abs(p - np.round(p)).min(-1, keepdims=True).clip(0, 1) > 1e-3
    keep = (near & (np.abs(p).max(-1, keepdims=True) < 1e4))[:, None, :, :, 0]
    np.testing.assert_allclose(np.where(keep, got[0], 0), np.where(keep, y.detach().numpy(), 0), rtol=1e-3, atol=1e-3)
    held = np.where(keep, g, 0).astype(np.float32)
    (y * torch.tensor(held)).sum().backward()
    mine = es.jit(run)(x, p, held)
    np.testing.assert_allclose(mine[1], tx.grad, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(mine[2], tp.grad, rtol=1e-3, atol=1e-2)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("c", [3, 16, 17])
def test_positions_that_are_no_numbers(c, rng):
    """Whatever is far or no number is outside: 0 of the image, times a fraction that is no number."""
    x = rng.standard_normal((2, c, 5, 6)).astype(np.float32)
    p = positions(rng, (2, 4, 8), 5)
    p[rng.random(p.shape) < 0.3] = np.inf
    p[rng.random(p.shape) < 0.2] = -np.inf
    p[rng.random(p.shape) < 0.2] = np.nan
    p[0, 0, 0] = 2.0**31, -(2.0**31)
    p[0, 0, 1] = 2.0**31 - 128, 1e30
    f = sample("zeros")
    np.testing.assert_allclose(f(x=x, p=p), es.interpret(f)(x=x, p=p), rtol=1e-5, atol=1e-5)
    g = rng.standard_normal((2, c, 4, 8)).astype(np.float32)
    dx = lambda x, p, g: es.vjp(lambda x: f(x=x, p=p), x)[1](g)  # noqa: E731
    np.testing.assert_allclose(es.jit(dx)(x, p, g)[0], es.interpret(dx)(x, p, g)[0], rtol=1e-5, atol=1e-5)


def test_a_tensor_that_is_made_of_a_number_is_turned():
    text = """
        t[a,b,c] = -(x[])
        y[n[k],l] += (sum[j](where(0 <= k < 3 and 0 <= k < 3 and 0 <= k < 3, t[k,k,k], 0))
            + where(0 <= l < 3 and 0 <= k < 3 and 0 <= k < 3, t[l,k,k], 0))
    """
    extents = {"a": 3, "b": 3, "c": 3, "k": 2, "l": 2, "j": 2, "y.shape[0]": 2}
    x, n = np.array(1.5, np.float32), np.array([1, 0])
    y = es.op(text, extents=extents)(x=x, n=n)
    np.testing.assert_allclose(y, np.full((2, 2), -4.5))
