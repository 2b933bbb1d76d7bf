"""Gradients of sums over segments: the same values, whatever says where these begin, in as many steps as elements."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith.api.tracing import trace_call
from einsmith.cost.facts import Target
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, postorder
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra import segments as passes
from einsmith.passes.algebra.segments import MIN_SEGMENTS, segments
from einsmith.passes.algebra.simplify import simplify
from tests.passes.counting import run_counted

ROW = "row[r] <= n and n < row[r+1]"
FORMULAS = {
    "elements": (f"y[r] = sum[n](where({ROW}, z[n]*z[n], 0))", {"z": ("n",)}),
    "rows of elements": (f"y[r,d] = sum[n](where({ROW}, z[n,d]*z[n,d], 0))", {"z": ("n", 3)}),
    "without values": (f"y[r,d] = sum[n](where({ROW}, x[col[n],d], 0))", {"x": (5, 3)}),
    "sparse product": (f"y[r,d] = sum[n](where({ROW}, v[n]*x[col[n],d], 0))", {"v": ("n",), "x": (5, 3)}),
    "a vector": (f"y[r] = sum[n](where({ROW}, v[n]*x[col[n]], 0))", {"v": ("n",), "x": (4,)}),
    "of rows too": (f"y[r,d] = w[r]*sum[n](where({ROW}, exp(v[n]*u[r,d]), 0))",
                    {"v": ("n",), "u": ("r", 2), "w": ("r",)}),
    "means": (f"y[r,d] = sum[n](where({ROW}, z[n,d], 0))/max(1, row[r+1] - row[r])", {"z": ("n", 3)}),
    "products": (f"y[r,d] = prod[n](where({ROW}, z[n,d], 1))", {"z": ("n", 2)}),
    "largest": (f"y[r,d] = max[n](where({ROW}, z[n,d], -inf))", {"z": ("n", 2)}),
    "windows": ("y[r,d] = sum[n](where(start[r] <= n and n < stop[r], z[n,d]*z[n,d], 0))", {"z": ("n", 2)}),
    "lengths": ("y[r] = sum[n](where(start[r] <= n and n < start[r] + length[r], z[n]*z[n], 0))", {"z": ("n",)}),
    "shifted": ("y[r] = sum[n](where(row[r] <= n + 2 and n + 2 < row[r+1], z[n]*z[n], 0))", {"z": ("n",)}),
    "of a batch": ("y[b,r] = sum[n](where(rows[b,r] <= n and n < rows[b,r+1], z[b,n]*z[b,n], 0))", {"z": (2, "n")}),
}  # fmt: skip
BORDERS = {
    "sorted": lambda rng, r, n: np.sort(np.concatenate([[0], rng.integers(0, n + 1, r - 1), [n]])),
    "all in one": lambda rng, r, n: np.where(np.arange(r + 1) > r // 2, n, 0),
    "all empty": lambda rng, r, n: np.full(r + 1, n // 2),
    "anywhere": lambda rng, r, n: rng.integers(-3, n + 4, r + 1),
    "int64": lambda rng, r, n: np.sort(rng.integers(-3, n + 4, r + 1)) + 2**40 * (np.arange(r + 1) == r),
}


def arrays_of(text, shapes, borders, rng, r, n, dtype=np.float64):
    """By name, what a formula reads: `borders` from BORDERS, small whole numbers."""

    def row():
        out = BORDERS[borders](rng, r, n)
        return out.astype(np.int64 if borders == "int64" else np.int32)

    given = {
        "row": row(), "rows": np.stack([row(), row()]), "col": rng.integers(0, 4, n).astype(np.int32),
        "start": row()[:-1], "stop": row()[1:], "length": rng.integers(-1, 5, r).astype(row().dtype),
    }  # fmt: skip
    own = {k: tuple({"n": n, "r": r}.get(x, x) for x in s) for k, s in shapes.items()}
    return {k: x for k, x in given.items() if f"{k}[" in text} | {
        k: rng.integers(1, 4, s).astype(dtype) * rng.choice([-1, 1], s).astype(dtype) for k, s in own.items()
    }


def gradients(text, wrt, order=1):
    """A function of arrays by name: the gradients of a weighted sum of the result; of the second order, of a sum of
    these that has others in it."""
    extents = {"r": "row.shape[0]-1"} if "row[" in text else {"r": "rows.shape[1]-1"} if "rows[" in text else None
    op = es.op(text, extents=extents)

    def value(own, others):
        y = op(**own, **others)
        return (y * y).sum()

    def first(own, others):
        return es.grad(value)(own, others)

    def second(own, others):
        return es.grad(lambda own: sum((k + 1) * (g * g).sum() for k, g in enumerate(first(own, others).values())))(own)

    f = second if order == 2 else first

    def of(**arrays):
        return f({k: arrays[k] for k in wrt}, {k: a for k, a in arrays.items() if k not in wrt})

    return of


def traced(f, arrays) -> tuple[Graph, list[np.ndarray]]:
    t = trace_call(f, (), arrays)
    return simplify(t.graph), list(arrays.values())


def looked_up(graph: Graph) -> int:
    """How many tables of segments a graph has."""
    tables = {x for x in postorder(graph.roots) if isinstance(x, Compute) and x.template.is_scatter}
    return sum(x.dtype.is_int for x in tables)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("borders", BORDERS)
@pytest.mark.parametrize("case", FORMULAS)
def test_every_term_stays_what_it_is(case, borders, monkeypatch, rng):
    monkeypatch.setattr(passes, "MIN_SEGMENTS", 2)
    monkeypatch.setattr(passes, "MIN_GAIN", 0)
    text, shapes = FORMULAS[case]
    for r, n in ((2, 1), (7, 13)):
        arrays = arrays_of(text, shapes, borders, rng, r, n)
        for order in (1, 2) if n == 13 else (1,):
            graph, inputs = traced(gradients(text, shapes, order), arrays)
            after = segments(graph)
            verify_graph(after)
            assert n == 1 or looked_up(after) or case in ("without values", "largest")
            with np.errstate(all="ignore"):
                want, got = evaluate(graph, inputs)[0], evaluate(after, inputs)[0]
            for a, b in zip(want, got, strict=True):
                np.testing.assert_array_equal(b, a)


COMPILED = [
    ("sparse product", "anywhere", 1),
    ("sparse product", "int64", 2),
    ("of rows too", "sorted", 1),
    ("means", "sorted", 1),
    ("largest", "anywhere", 1),
    ("windows", "anywhere", 2),
    ("of a batch", "sorted", 1),
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case, borders, order", COMPILED)
def test_compiled_gradients(case, borders, order, rng):
    text, shapes = FORMULAS[case]
    arrays = arrays_of(text, shapes, borders, rng, MIN_SEGMENTS + 3, 401)
    for k in ("v", "u") if case == "of rows too" else ():
        arrays[k] *= 0.1
    f = gradients(text, shapes, order)
    graph, inputs = traced(f, arrays)
    assert case == "largest" or looked_up(segments(graph))
    want, got = evaluate(graph, inputs)[0], es.jit(f)(**arrays)
    for a, k in zip(want, shapes, strict=True):
        np.testing.assert_allclose(got[k], a, rtol=1e-9, atol=1e-9 * np.abs(a).max())


@pytest.mark.thinned(8)
@pytest.mark.parametrize("case", ["elements", "rows of elements", "without values", "sparse product", "a vector",
                                  "means", "products", "largest", "of a batch"])  # fmt: skip
def test_steps_grow_as_elements_do(case, rng):
    """The whole of what is compiled, checks of indices included, for twice as many rows and elements."""
    text, shapes = FORMULAS[case]
    counts = []
    for times in (1, 2):
        r, n = times * 2 * MIN_SEGMENTS, times * 500
        arrays = arrays_of(text, shapes, "sorted", rng, r, n, np.float32)
        if "row" in arrays:
            arrays["row"] = np.linspace(0, n, r + 1).astype(np.int32)
        graph, inputs = traced(gradients(text, shapes), arrays)
        got, count = run_counted(graph, inputs, Target(vector_bytes=32, cores=2))
        for a, b in zip(evaluate(graph, inputs)[0], got, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5)
        counts.append(count)
    assert counts[1] < 2.4 * counts[0], counts


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_steps_of_bags(mode, rng):
    def f(weight, ids, offsets):
        return es.grad(lambda w: (F.embedding_bag(ids, w, offsets, mode=mode) ** 2).sum())(weight)

    counts = []
    for times in (1, 2):
        ids = rng.integers(0, 9, times * 400).astype(np.int32)
        offsets = np.arange(0, times * 400, 4).astype(np.int32)
        arrays = {"weight": rng.standard_normal((9, 8)).astype(np.float32), "ids": ids, "offsets": offsets}
        graph, inputs = traced(f, arrays)
        got, count = run_counted(graph, inputs, Target(vector_bytes=32, cores=2))
        np.testing.assert_allclose(got[0], evaluate(graph, inputs)[0][0], rtol=1e-4, atol=1e-4)
        counts.append(count)
    assert counts[1] < 2.4 * counts[0], counts


@pytest.mark.parametrize("text", [
    "y[n,d] = sum[r](where(row[r] <= n, g[r,d], 0))",
    "y[n,d] = sum[r](where(row[r] <= n and n < row[r+1] + row2[n], g[r,d], 0))",
    "y[n,d] = sum[r](where(row[r] <= 2*n and 2*n < row[r+1], g[r,d], 0))",
    "y[n,d] = sum[r](where(r <= n and n < r + 9, g[r,d], 0))",
])  # fmt: skip
def test_sums_that_are_no_segments_stay(text, rng):
    """Ends on one side alone, of the place, of every other place, and that are no data."""
    r, n = 2 * MIN_SEGMENTS, 900
    given = {"row": np.arange(r + 1, dtype=np.int32), "row2": np.zeros(n, np.int32), "g": np.ones((r, 3))}
    arrays = {k: a for k, a in given.items() if f"{k}[" in text}
    op = es.op(text, extents={"r": r, "n": n})
    graph, _ = traced(lambda **a: op(**a), arrays)
    assert segments(graph) is graph
