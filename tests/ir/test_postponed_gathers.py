"""Sums that are computed once per row of what they gather: which, by price, and what becomes of indices and guards."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.autodiff.reverse import gradients
from einsmith.base import environment
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, Piece, Reduce, postorder
from einsmith.ir.rewrite import postponed_gathers as rewrite
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.postponed_gathers import postponed_gathers

EDGES = {"x": "nd", "z": "nd", "W": "dk", "A": "dk", "src": "e", "dst": "e", "g": "e", "c": "n", "s": "d"}
FORMULAS = {
    "one": ("y[e,k] = sum[d](x[src[e],d]*W[d,k])", EDGES),
    "edge convolution": (
        "y[i,k] = max[r](relu(sum[d](x[i,d]*W[d,k]) + sum[d]((x[near[i,r],d] - x[i,d])*A[d,k])))",
        {"x": "nd", "W": "dk", "A": "dk", "near": "nr"},
    ),
    "difference": ("y[e,k] = sum[d]((x[dst[e],d] - x[src[e],d])*W[d,k])", EDGES),
    "negated": ("y[e,k] = -sum[d]((-x[dst[e],d] - z[src[e],d])*W[d,k])", EDGES),
    "named": ("m[e,d] = x[dst[e],d] - x[src[e],d]\ny[e,k] = sum[d](m[e,d]*W[d,k])", EDGES),
    "named twice": ("p[e,d] = x[dst[e],d]\nm[e,d] = p[e,d]*g[e] - z[src[e],d]\ny[e,k] = sum[d](m[e,d]*W[d,k])", EDGES),
    "products": ("y[e,k] = sum[d](x[dst[e],d]*W[d,k] - 2*x[src[e],d]*A[d,k])", EDGES),
    "one table of two": ("y[e,k] = sum[d]((x[src[e],d] - z[src[e],d])*W[d,k])", EDGES),
    "free factors": ("y[e,k] = sum[d](g[e]*x[src[e],d]*W[d,k]*c[dst[e]])", EDGES),
    "divisors": ("y[e] = sum[d]((x[dst[e],d] - x[src[e],d])/(s[d]**2 + 1))", EDGES),
    "function": ("y[e,k] = sum[d](relu(x[src[e],d] - c[src[e]])*W[d,k])", EDGES),
    "alone": ("y[e] = sum[d](x[src[e],d]**2)", EDGES),
    "an axis that a term lacks": ("y[e,k] = sum[d]((x[src[e],d] + s[d])*W[d,k])", EDGES),
    "a summed axis that a term lacks": ("y[e] = sum[d,k](x[src[e],d]*W[d,k] + z[dst[e],d])", EDGES),
    "guarded operand": ("y[e,k] = sum[d](where(g[e] > 0, x[src[e],d], 0)*W[d,k])", EDGES),
    "guarded terms": ("y[e,k] = sum[d]((x[dst[e],d] - where(g[e] > 0, x[src[e],d], 0))*W[d,k])", EDGES),
    "guarded sum": ("y[e,k] = sum[d](where(src[e] != dst[e], x[src[e],d]*W[d,k], 0))", EDGES),
    "summed guard": ("y[e,k] = sum[d](where(d > 0, x[src[e],d], 0)*W[d,k])", EDGES),
    "guard of the row": ("y[e,k] = sum[d](where(c[src[e]] > s[d], x[src[e],d], 0)*W[d,k])", EDGES),
    "clamped index": ("y[e,k] = sum[d](x[min(src[e] + 1, x.shape[0] - 1),d]*W[d,k])", EDGES),
    "two edge lists": ("y[e,k] = sum[d](x[dst[src[e]],d]*W[d,k])", EDGES | {"dst": "n"}),
    "matrices of rows": ("y[e,k] = sum[d](x[src[e],d]*V[src[e],d,k])", EDGES | {"V": "ndk"}),
    "matrices of relations": ("y[e,k] = sum[d](x[src[e],d]*V[rel[e],d,k])", EDGES | {"V": "rdk", "rel": "e"}),
    "batches": ("y[b,e,k] = sum[d](u[b,id[b,e],d]*V[b,d,k])", {"u": "bnd", "id": "be", "V": "bdk"}),
    "turned": ("y[k,e] = sum[d](u[d,src[e]]*W[d,k])", EDGES | {"u": "dn"}),
    "pairs": ("y[i,j,k] = sum[d]((x[i,d] - z[j,d])*W[d,k])", EDGES),
    "concatenation": (
        "j[e,a] = where(a < x.shape[1], x[src[e],min(a, x.shape[1] - 1)], z[dst[e],max(a - x.shape[1], 0)])\n"
        "y[e,k] = sum[a](where(a < 2*x.shape[1], j[e,a], 0)*U[a,k])",
        EDGES | {"U": "ak"},
    ),
}  # fmt: skip
SLOWER = {
    "both in one function": ("y[e,k] = sum[d](relu(x[src[e],d] - x[dst[e],d])*W[d,k])", EDGES),
    "edges": ("y[e,k] = sum[d]((x[src[e],d] + u[e,d])*W[d,k])", EDGES | {"u": "ed"}),
    "scores of neighbours": ("y[i,r] = sum[d](x[i,d]*z[near[i,r],d])", EDGES | {"near": "nr"}),
}
REFUSED = {
    "permuted": ("y[e,k] = sum[d](x[src[e],perm[d]]*W[d,k])", EDGES | {"perm": "d"}),
    "index of a row": ("y[e,k] = sum[d](x[to[src[e],d],d]*W[d,k])", EDGES | {"to": "nd"}),
    "shifted": ("y[e,k] = sum[d](where(e > 0, u[e-1,d], 0)*x[src[e],d]*W[d,k])", EDGES | {"u": "ed"}),
}
SIZES = [
    {"n": 7, "e": 71, "d": 5, "k": 17, "r": 3, "b": 2, "a": 10, "i": 7, "j": 3},
    {"n": 1, "e": 1, "d": 1, "k": 1, "r": 1, "b": 1, "a": 2, "i": 1, "j": 1},
    {"n": 3, "e": 17, "d": 8, "k": 16, "r": 5, "b": 3, "a": 16, "i": 17, "j": 15},
]
LARGE = {"n": 128, "e": 2048, "d": 64, "k": 64, "r": 4, "b": 2, "a": 128, "i": 128, "j": 128}
BILINEAR = "y[e] = sum[d,k](x[src[e],d]*W[d,k]*q[dst[e],k])", EDGES | {"q": "nk"}
FEW = {"n": 12, "e": 10, "d": 8, "k": 8, "r": 1, "b": 2, "a": 16}


@pytest.fixture
def dear(monkeypatch):
    """Sums so dear that all are computed for rows which can."""
    monkeypatch.setattr(rewrite, "_work", lambda table, products: 0.0)
    monkeypatch.setattr(rewrite, "LOAD_COST", 0)
    monkeypatch.setattr(rewrite, "KERNEL_COST", 0)


def drawn(text, axes, sizes, rng, dtype=np.float64):
    """An operator, and random arrays for its inputs, by name."""
    f = es.op(text if "return" in text else text + "\nreturn y")
    shapes = {name: [sizes[a] for a in axes[name]] for name in f.inputs}
    indexed = {"perm": sizes["d"], "rel": sizes["r"]}
    arrays = {
        name: rng.integers(0, indexed.get(name, sizes["n"]), shape)
        if name in ("src", "dst", "near", "rel", "id", "perm", "to")
        else rng.standard_normal(shape).astype(dtype)
        for name, shape in shapes.items()
    }
    return f, arrays


def all_orders(f, arrays):
    """A function of values, gradients, and gradients of a product with the gradients, by each argument of floats."""
    every = tuple(n for n, a in enumerate(arrays.values()) if a.dtype.kind == "f")
    weights = [
        np.cos(np.arange(a.size)).reshape(a.shape).astype(a.dtype) for a in arrays.values() if a.dtype.kind == "f"
    ]

    def of(*xs):
        return f(**dict(zip(arrays, xs, strict=True)))

    def loss(*xs):
        y = of(*xs)
        return (y * es.sin(y)).sum()

    def product(*xs):
        return sum((g * w).sum() for g, w in zip(es.grad(loss, argnums=every)(*xs), weights, strict=True))

    return lambda *xs: (of(*xs), *es.grad(loss, argnums=every)(*xs), *es.grad(product, argnums=every)(*xs))


def compared(some, others, tolerance=1e-11):
    for x, y in zip(some, others, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(1.0, np.abs(y).max(initial=0.0)))


def evaluated(f, arrays):
    """What the reference evaluator gives for the differentiated graph after the pass."""
    traced = trace_call(all_orders(f, arrays), tuple(arrays.values()), {})
    graph = postponed_gathers(traced.graph)
    verify_graph(graph)
    values = [*arrays.values(), *(traced.bind[x] for x in graph.inputs[len(arrays) :])]
    return evaluate(graph, values)[0]


def sums_of(text, axes, sizes):
    """The domains of the sums after the pass."""
    f, arrays = drawn(text, axes, sizes, np.random.default_rng(0))
    graph = postponed_gathers(
        trace_call(lambda *xs: f(**dict(zip(arrays, xs, strict=True))), tuple(arrays.values()), {}).graph
    )
    nodes = [n for n in postorder(graph.outputs) if isinstance(n, Compute)]
    parts = [p for n in nodes for p in n.template.parts if isinstance(p, Piece) and isinstance(p.body, Reduce)]
    return [p.domain for p in parts if p.body.combiner == "sum"]


@pytest.mark.parametrize("sizes", SIZES, ids=["odd", "ones", "few nodes"])
@pytest.mark.parametrize("case", FORMULAS)
def test_derivatives(case, sizes, dear, rng, monkeypatch):
    f, arrays = drawn(*FORMULAS[case], sizes, rng)
    got, sums = evaluated(f, arrays), sums_of(*FORMULAS[case], sizes)
    monkeypatch.setenv(environment.WITHOUT.name, rewrite.POSTPONED_GATHERS)
    compared(got, evaluated(f, arrays))
    assert sums != sums_of(*FORMULAS[case], sizes) or sizes["n"] == 1


@pytest.mark.parametrize(
    "case", ["edge convolution", "named twice", "guarded terms", "batches", "turned", "concatenation"]
)
def test_programs(case, dear, rng, monkeypatch):
    f, arrays = drawn(*FORMULAS[case], SIZES[0], rng)
    got = es.jit(all_orders(f, arrays))(*arrays.values())
    monkeypatch.setenv(environment.WITHOUT.name, rewrite.POSTPONED_GATHERS)
    compared(got, evaluated(f, arrays))


@pytest.mark.parametrize("case", FORMULAS)
def test_choice(case, monkeypatch):
    """Where edges are many, sums have fewer points; where they are few, all are as they were."""
    text, axes = FORMULAS[case]
    many, few = sums_of(text, axes, LARGE), sums_of(text, axes, FEW)
    monkeypatch.setenv(environment.WITHOUT.name, rewrite.POSTPONED_GATHERS)
    assert sum(map(prod, many)) < 0.6 * sum(map(prod, sums_of(text, axes, LARGE)))
    assert few == sums_of(text, axes, FEW)


@pytest.mark.parametrize("case", SLOWER)
def test_slower(case, monkeypatch):
    got = sums_of(*SLOWER[case], LARGE)
    monkeypatch.setenv(environment.WITHOUT.name, rewrite.POSTPONED_GATHERS)
    assert got == sums_of(*SLOWER[case], LARGE)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, dear, monkeypatch):
    """A table would read at indices, or where conditions fail, that the formula does not read."""
    got = sums_of(*REFUSED[case], SIZES[0])
    monkeypatch.setenv(environment.WITHOUT.name, rewrite.POSTPONED_GATHERS)
    assert got == sums_of(*REFUSED[case], SIZES[0])


def test_steps(rng, monkeypatch):
    """A step of a sum of three factors, in programs of values and of gradients."""
    f, arrays = drawn(*BILINEAR, LARGE, rng)
    for differentiates in (False, True):
        run = es.jit(all_orders(f, arrays) if differentiates else lambda *xs: f(**dict(zip(arrays, xs, strict=True))))
        got = run(*arrays.values())
        assert "sum[64] -> 2048x64" not in str(run.plan)
        with monkeypatch.context() as patch:
            patch.setenv(environment.WITHOUT.name, rewrite.POSTPONED_GATHERS)
            compared(got if differentiates else [got], evaluated(f, arrays)[: None if differentiates else 1])
            run = es.jit(lambda *xs: f(**dict(zip(arrays, xs, strict=True))))
            run(*arrays.values())
            assert "sum[64] -> 2048x64" in str(run.plan)


@pytest.mark.parametrize("differentiates", [False, True])
@pytest.mark.parametrize("case, guard", [("one", False), ("difference", False), ("guarded terms", True)])
def test_indices_are_checked(case, guard, differentiates, dear, rng):
    """An index that is no row is refused in the formula's names, unless its guard fails."""
    f, arrays = drawn(*FORMULAS[case], SIZES[0], rng)

    def of(*xs):
        return f(**dict(zip(arrays, xs, strict=True)))

    n = list(arrays).index("x")
    run = es.jit(es.grad(lambda *xs: (of(*xs) ** 2).sum(), argnums=n) if differentiates else of)
    arrays["src"][3] = 7
    if guard:
        arrays["g"][3] = -1.0
        assert np.isfinite(run(*arrays.values())).all()
        arrays["g"][3] = 1.0
    with pytest.raises(
        es.IndexOutOfRange,
        match=r"element \[3\] .*src in the formula.*is 7, which is no index into dimension 0 .*x in the formula",
    ):
        run(*arrays.values())


def test_left_out(monkeypatch, rng):
    """The plan names the pass; the gradient of a program without it has the sums over edges."""
    f, arrays = drawn(*FORMULAS["difference"], LARGE, rng, np.float32)
    run = es.jit(lambda *xs: f(**dict(zip(arrays, xs, strict=True))))
    run(*arrays.values())
    assert rewrite.POSTPONED_GATHERS in str(run.plan)
    assert "scatter" not in str(run.plan)  # values need no marks of rows
    monkeypatch.setenv(environment.WITHOUT.name, rewrite.POSTPONED_GATHERS)
    run = es.jit(lambda *xs: f(**dict(zip(arrays, xs, strict=True))))
    run(*arrays.values())
    assert rewrite.POSTPONED_GATHERS not in str(run.plan)


def test_gradient_by_a_named_operand(dear, rng):
    """A tensor by which a gradient is asked for stays an operand of the sum."""
    text, axes = FORMULAS["named"]
    f, arrays = drawn(text + "\nreturn m, y", axes, SIZES[0], rng)
    graph = trace_call(lambda *xs: f(**dict(zip(arrays, xs, strict=True))), tuple(arrays.values()), {}).graph
    m, y = graph.outputs
    _, (gradient,) = gradients([y], [y], [m])
    (got, y, w), _ = evaluate(
        Graph(graph.inputs, (gradient, y, graph.inputs[list(arrays).index("W")]), (), ()), [*arrays.values()]
    )
    np.testing.assert_allclose(got, y @ w.T, rtol=1e-11)


def test_stored_types(dear, rng):
    """Sums of 16 bits stay as they are: a table would be rounded once more."""
    f, arrays = drawn(*FORMULAS["difference"], SIZES[0], rng, np.float16)
    got = es.jit(lambda *xs: f(**dict(zip(arrays, xs, strict=True))))(*arrays.values())
    np.testing.assert_allclose(np.float64(got), np.float64(es.interpret(f)(**arrays)), rtol=1e-3, atol=1e-3)


def test_shared_sizes(dear, rng):
    """One program for several numbers of edges and nodes, of values and of gradients."""
    f = es.op(FORMULAS["difference"][0] + "\nreturn y")

    def both(x, w, *ends):
        def loss(x, w):
            return (f(**dict(zip(f.inputs, merged(x, w, ends), strict=True))) ** 2).sum()

        return loss(x, w), es.grad(loss, argnums=(0, 1))(x, w)

    def merged(x, w, ends):
        rest = iter(ends)
        return [{"x": x, "W": w}[name] if name in ("x", "W") else next(rest) for name in f.inputs]

    run, plain = es.jit(both, sizes="shared"), es.jit(both)
    for n in (9, 12, 7, 11, 5):
        _, arrays = drawn(*FORMULAS["difference"], SIZES[0] | {"n": n, "e": 3 * n + 1}, rng)
        ends = [arrays[name] for name in f.inputs if name not in ("x", "W")]
        (value, got), (other, want) = run(arrays["x"], arrays["W"], *ends), plain(arrays["x"], arrays["W"], *ends)
        y = es.interpret(f)(**{name: arrays[name] for name in f.inputs})
        np.testing.assert_allclose([value, other], (y**2).sum(), rtol=1e-11)
        compared(got, want)


PADDED = FORMULAS | {
    "bilinear": BILINEAR,
    "guards of pairs": ("y[i,j,k] = sum[d](where(i + abs(p[j]) < 5, x[i,d]*W[d,k], 0))", EDGES | {"p": "j"}),
    "no pairs": ("y[j,k] = sum[d](where(p[j] > 9, x[d]*W[d,k], 0))", EDGES | {"p": "j", "x": "d"}),
    "flag": ("y[i,j,k] = sum[d](where(p[0] > 9, x[i,d], 0)*W[d,k]) + q[j]", EDGES | {"p": "j", "q": "j"}),
    "neighbours": ("y[i,r,k] = sum[d](x[near[i,r],d]*W[d,k])", EDGES | {"near": "ir"}),
}
del PADDED["edge convolution"], PADDED["pairs"]  # they read all rows
READ_ROWS = {"no pairs": 0, "flag": 0, "clamped index": 6}
"""The number of rows that a case reads, if it is not 5."""


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("case", PADDED)
def test_rows_that_are_not_read(case, value, dear, rng, monkeypatch):
    """Rows that no index names, or only under guards that fail, reach neither values nor gradients."""
    f, arrays = drawn(*PADDED[case], SIZES[0] | {"j": 9}, rng)
    for name in arrays.keys() & {"src", "dst", "near", "id"}:
        arrays[name] %= 5
    if case.startswith("guarded"):  # where the guard fails, the index is of a row that is not read
        fails = arrays["g"] <= 0 if "g" in arrays else arrays["src"] == arrays["dst"]
        for name in {"src"} if "g" in arrays else {"src", "dst"}:
            arrays[name][fails] = 5
    for name in arrays.keys() & {"x", "z", "c", "q", "u", "V"}:
        at = PADDED[case][1][name].find("d" if case == "no pairs" else "n")
        if at >= 0:
            arrays[name][(slice(None),) * at + (slice(READ_ROWS.get(case, 5), None),)] = value
    got, ran = evaluated(f, arrays), es.jit(all_orders(f, arrays))(*arrays.values())
    monkeypatch.setenv(environment.WITHOUT.name, rewrite.POSTPONED_GATHERS)
    want = evaluated(f, arrays)
    assert all(np.isfinite(x).all() for x in want)
    compared(got, want)
    compared(ran, want)
