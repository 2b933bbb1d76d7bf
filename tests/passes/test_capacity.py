"""One graph for all sizes up to a capacity: below the limits, results are those of the graph of each size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
from einsmith import functional as F
from einsmith import nn
from einsmith.api.tracing import trace_shapes
from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import linear
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Axis, Leaf, Read, Scatter, has_read, postorder, reads
from einsmith.passes.capacity import SizedGraph, size_graph
from einsmith.passes.size_traces import SizeDependentError, TracedSize
from einsmith.schedule.limited_positions import find_limited

CAPACITY, PROBE = 24, 22
SIZES = 2, 3, 8, 23, 24
n = "n"  # the extent that varies


def trace(f, kinds, size: int) -> TracedSize:
    t = trace_shapes(f, [(tuple(size if x == n else x for x in shape), dtype) for shape, dtype in kinds])
    return TracedSize(t.graph, t.bind)


def sized(f, kinds) -> SizedGraph:
    return size_graph(trace(f, kinds, CAPACITY), trace(f, kinds, PROBE))


def pad(a: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What a run may find beyond a limit: NaN, and numbers that are no index."""
    out = np.full(shape, np.nan if a.dtype.kind == "f" else 10**6, a.dtype)
    out[tuple(map(slice, a.shape))] = a
    return out


def check(f, kinds, sizes=SIZES) -> None:
    general, rng = sized(f, kinds), default_rng(0)
    for size in sizes:
        t = trace(f, kinds, size)
        numbers = general.fit(t)
        inputs = [x for x in t.graph.inputs if x not in t.bind]
        arrays = [
            rng.normal(size=x.shape)
            if x.dtype.is_float
            else rng.integers(0, min(5, size), x.shape).astype(x.dtype.numpy)
            for x in inputs
        ]
        padded = [pad(a, x.shape) for a, x in zip(arrays, general.capacity.graph.inputs, strict=False)]
        captured = [general.capacity.bind[x] for x in general.graph.inputs if x in general.capacity.bind]
        with np.errstate(all="ignore"):
            want, _ = evaluate(t.graph, [*arrays, *(t.bind[x] for x in t.graph.inputs if x in t.bind)])
            got, _ = evaluate(general.graph, [*padded, *captured, *numbers])
        for a, b in zip(want, got, strict=True):
            np.testing.assert_allclose(b[tuple(map(slice, a.shape))], a, rtol=1e-9, atol=1e-12)


def gradients(x, w):
    return es.grad(lambda x, w: (F.relu(x @ w) ** 2).mean(), argnums=(0, 1))(x, w)


def normed(x, w):
    return F.batch_norm(x @ w, None, None, training=True)


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_gradients(q, k, v):
    return es.grad(lambda q, k, v: (attention(q, k, v) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)


f64, i32 = dt.f64, dt.i32
CASES = {
    "gradients of a mean": (gradients, [((n, 8), f64), ((8, 5), f64)]),
    "batch norm": (normed, [((n, 8), f64), ((8, 5), f64)]),
    "attention": (attention, [((2, n, 4), f64)] * 3),
    "gradients of attention": (attention_gradients, [((2, n, 4), f64)] * 3),
    "cross entropy": (
        lambda x, t: es.grad(lambda x: F.cross_entropy(x, t))(x),
        [((n, 7), f64), ((n,), i32)],
    ),
    "embedding": (lambda i, w: F.embedding(i, w).mean(), [((n, 3), i32), ((5, 4), f64)]),
    "gradient of an embedding": (
        lambda i, w: es.grad(lambda w: (F.embedding(i, w) ** 2).mean())(w),
        [((n, 3), i32), ((5, 4), f64)],
    ),
    "softmax along it": (lambda x: F.softmax(x, 1), [((3, n), f64)]),
    "largest position": (lambda x: F.argmax(x, 0), [((n, 3), f64)]),
    "pooling": (lambda x: F.max_pool2d(F.relu(x), 2), [((n, 3, 4, 4), f64)]),
    "convolution along it": (lambda x, w: F.conv1d(x, w, padding=1), [((2, 3, n), f64), ((4, 3, 3), f64)]),
    "reversed": (lambda x: F.flip(x, (0,)), [((n, 3), f64)]),
    "prefix sums": (lambda x: F.cumsum(x, 0), [((n, 3), f64)]),
    "joined": (lambda x, y: F.cat((x[1:], y, x * 2.0), 0), [((n, 3), f64), ((n, 3), f64)]),
    "gradient of what is joined": (
        lambda x, y: es.grad(lambda x, y: (F.cat((x[1:], y, x * 2.0), 0) ** 2).sum(), argnums=(0, 1))(x, y),
        [((n, 3), f64), ((n, 3), f64)],
        SIZES[1:],
    ),
    "padded": (lambda x: F.pad(x, (1, 2)), [((3, n), f64)]),
    "a computed index": (lambda i, x: x[i], [((3,), i32), ((n, 4), f64)]),
    "a gradient at computed indices": (
        lambda i, x: es.grad(lambda x: (x[i] ** 2).sum())(x),
        [((6,), i32), ((n, 4), f64)],
        SIZES[2:],
    ),
    "flattened": (lambda x: x.reshape((-1,)), [((n, 3), f64)]),
    "flattened across it": (lambda x: x.reshape((-1,)), [((3, n), f64)]),
    "a batch of recurrences": (
        lambda x, h, w: es.op("H[b,t,i] = where(t > 0, tanh(X[b,t,i] + sum[j](W[i,j]*H[b,t-1,j])), h[b,i])")(
            X=x, h=h, W=w
        ),
        [((n, 5, 3), f64), ((n, 3), f64), ((3, 3), f64)],
    ),
}  # fmt: skip


TIME = {
    "one state": ("H[t] = where(t > 0, 0.5*H[t-1] + X[t]*H[t-1], 1)", [((n,), f64)]),
    "a cell": (
        """
        h[0,b,i] = g[b,i]
        h[t+1,b,i] = tanh(x[t,b,i] + sum[j](h[t,b,j]*W[j,i]))
        """,
        [((3, 5), f64), ((n, 3, 5), f64), ((5, 5), f64)],
    ),
    "from the end": (
        """
        h[t,b] = where(t < x.shape[0] - 1, tanh(x[t,b] + 0.5*h[t+1,b]), g[b])
        """,
        [((n, 3), f64), ((3,), f64)],
    ),
    "two states": (
        """
        s[0,b] = a[b]
        s[1,b] = 2.0*a[b]
        s[t+2,b] = 0.4*s[t+1,b] + 0.3*s[t,b]*x[t,b]
        """,
        [((3,), f64), ((n, 3), f64)],
    ),
    "rows and columns": (
        """
        r[0,0] = 0.0
        r[i+1,0] = r[i,0] + d[i,0]
        r[0,j+1] = r[0,j] + d[0,j]
        r[i+1,j+1] = d[i,j] - log(exp(-r[i,j]) + exp(-r[i,j+1]) + exp(-r[i+1,j]))
        """,
        [((n, n), f64)],
    ),
    "an outer product in each step": (
        """
        S[0,i,j] = 0.0
        S[t+1,i,j] = S[t,i,j]*g[t,i] + q[t,i]*v[t,j]
        o[t,j] = sum[i](q[t,i]*S[t+1,i,j])
        """,
        [((n, 4), f64), ((n, 4), f64), ((n, 6), f64)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("case", TIME)
def test_steps_of_a_recurrence(case: str, order: int) -> None:
    source, kinds = TIME[case]
    f, position = es.op(source), next(k for k, (shape, _) in enumerate(kinds) if n in shape)
    for _ in range(order):
        f = es.grad(lambda *args, f=f: (f(*args) ** 2).sum(), argnums=position)
    check(f, kinds, SIZES[1:])  # a recurrence of one step is none


@pytest.mark.parametrize("case", CASES)
def test_results_below_the_limits(case: str) -> None:
    check(*CASES[case])


def test_two_sizes_at_once() -> None:
    def f(x):
        return (x * x).mean() + F.softmax(x, 1).sum(0)[0]

    def at(a, b):
        t = trace_shapes(f, [((a, b), f64)])
        return TracedSize(t.graph, t.bind)

    general = size_graph(at(24, 48), at(20, 42))
    for shape in ((2, 3), (24, 48), (7, 30)):
        x, t = default_rng(1).normal(size=shape), at(*shape)
        got, _ = evaluate(general.graph, [pad(x, (24, 48)), *general.fit(t)])
        np.testing.assert_allclose(got[0], evaluate(t.graph, [x])[0][0], rtol=1e-12)


def rows_product(x, w):
    return x.reshape((-1, 4)) @ w


def rows_gradients(x, w):
    return es.grad(lambda x, w: (F.relu(rows_product(x, w)).reshape((3, -1, 5)) ** 2).sum(), (0, 1))(x, w)


W = (4, 5), f64
FLAT = {
    "a product of merged rows": (lambda x, w: rows_product(x, w).reshape((3, -1, 5)), [((3, n, 4), f64), W]),
    "rows merged behind it": (lambda x, w: rows_product(x, w).reshape((-1, 3, 5)), [((n, 3, 4), f64), W]),
    "gradients of merged rows": (rows_gradients, [((3, n, 4), f64), W]),
    "a square": (rows_product, [((n, n, 4), f64), W]),
}


@pytest.mark.parametrize("case", FLAT)
def test_merged_rows_end_at_limits(case: str) -> None:
    """The extent of merged dimensions is known to be a product of the others, so that all tensors end at limits."""
    check(*FLAT[case])
    general = sized(*FLAT[case])
    for limit, limited in zip(general.limits, find_limited(general.graph, general.limits), strict=True):
        whole = [
            t.shape
            for t in postorder(general.graph.outputs)
            if not isinstance(t, Leaf)
            for d, extent in enumerate(t.shape)
            if extent == limit.extent and (t, d) not in limited
        ]
        assert not whole


def test_an_extent_that_is_no_product_any_more_does_not_fit() -> None:
    def at(a, b):
        t = trace_shapes(lambda x, y: (x.sum(), y.sum()), [((a,), f64), ((b,), f64)])
        return TracedSize(t.graph, t.bind)

    general = size_graph(at(24, 48), at(20, 40))
    assert general.fit(at(5, 10))
    with pytest.raises(SizeDependentError, match="product"):
        general.fit(at(5, 11))


def _gradient_of_rows(x: Any) -> Any:
    """A recurrence over rows and columns (soft dynamic time warping), whose reads the number of columns proves."""
    rows = es.op("""
        p[i,j] = where(i > 0, r[i-1,j], 1e10)
        q[i,j] = where(j > 0, r[i,j-1], where(i == 0, 0, 1e10))
        r[i,j] = x[i,j] - log(exp(-p[i,j]) + exp(-q[i,j]))
        y[] = r[x.shape[0]-1,x.shape[1]-1]
        return y""")
    return es.grad(rows)(x)


CASES["gradient of rows and columns"] = (_gradient_of_rows, [((3, n), f64)])
REFUSED = {
    "other formulas": (lambda x: x + 1.0 if x.shape[0] > 23 else x * 3.0, [((n, 3), f64)], "formulas differ"),
    "sums joined": (
        lambda x: es.op("y[0] = 1.0\ny[i+1] = sum[j](x[i,j])")(x=x),
        [((n, 3), f64)],
        "sums, or every other element, are joined",
    ),
    "positions": (lambda x: F.argmax(x), [((3, n), f64)], "counts positions"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_a_program_for_each_size(case: str) -> None:
    f, kinds, why = REFUSED[case]
    with pytest.raises(SizeDependentError, match=why):
        sized(f, kinds)


def test_a_size_of_another_structure_does_not_fit() -> None:
    def f(x):
        return x * 2.0 if x.shape[0] == 7 else x * 3.0

    general = sized(f, [((n, 3), f64)])
    general.fit(trace(f, [((n, 3), f64)], 8))
    for size in (7, 25):
        with pytest.raises(SizeDependentError):
            general.fit(trace(f, [((n, 3), f64)], size))


def test_a_number_above_its_value_at_the_capacity_does_not_fit() -> None:
    """Reads are proven in bounds by numbers that are largest at the capacity."""

    def shifted(x):
        return F.pad(x, (x.shape[0] if x.shape[0] > 20 else 40, 0))

    general = sized(shifted, [((n,), dt.f32)])
    general.fit(trace(shifted, [((n,), dt.f32)], 23))
    with pytest.raises(SizeDependentError, match="above"):
        general.fit(trace(shifted, [((n,), dt.f32)], 8))


def test_padded_reads_are_affine() -> None:
    """A condition on a number of the size proves that a read is in bounds, which is not clamped."""
    graph = sized(lambda x, w: F.conv1d(x, w, padding=2), [((2, 3, n), dt.f32), ((4, 3, 5), dt.f32)]).graph
    (body,) = graph.outputs[0].template.parts[0].body.bodies
    images = [x for x in reads(body) if len(x.index) == 3]
    assert images and all(linear(i).atoms == () for x in images for i in x.index)


def test_a_table_for_each_size_does_not_fit() -> None:
    """An array that the function makes is another one in each trace, and may hold other values."""
    with pytest.raises(SizeDependentError, match="captures an array|formulas"):
        sized(lambda x: x + np.arange(3.0) * x.shape[0], [((n, 3), f64)])


def test_modules_capture_the_same_memory() -> None:
    layer = nn.Linear(3, 2)
    general = sized(layer, [((n, 3), dt.f32)])
    assert len(general.graph.inputs) == 4 and [x.extent for x in general.limits] == [CAPACITY]


def test_scatters_keep_axes_as_indices() -> None:
    """Vectors run along an axis that is an index itself; only an index that is read from memory has a guard."""
    scatter = es.op("Y[rcv[e],k] += X[e,k]", extents={"Y.shape[0]": 5})
    kinds = [((n,), dt.i32), ((n, 6), dt.f32)]
    check(lambda rcv, x: scatter(rcv=rcv, X=x), kinds)
    graph = sized(lambda rcv, x: scatter(rcv=rcv, X=x), kinds).graph
    indices = [p.index for t in graph.outputs for p in t.template.parts if isinstance(p, Scatter)]
    assert [(has_read(i), j) for i, j in indices] == [(True, Axis(1))]


def test_a_size_of_other_distances_does_not_fit() -> None:
    """A number that is one more than the size in both traces is proven to be, and refused where it is not."""

    def f(x):
        end = 3 if x.shape[0] == 8 else x.shape[0] - 1
        return es.op("y[i] = where(i < end, x[i], 0.0)", end=end)(x)

    general, kinds = sized(f, [((n,), f64)]), [((n,), f64)]
    assert len(general.relations) == 1
    general.fit(trace(f, kinds, 7))
    with pytest.raises(SizeDependentError, match="another sum"):
        general.fit(trace(f, kinds, 8))


def test_sums_end_at_their_first_axis() -> None:
    """The size is the first axis of a sum, except where a tensor is contiguous along it."""
    for text, shapes, extents in (
        ("y[i,j] = sum[t,b](x[t,b,i]*z[t,b,j])", [(3, n, 4), (3, n, 5)], (CAPACITY, 3)),
        ("y[i] = sum[t,b](x[t,i,b]*z[t,b])", [(3, 4, n), (3, n)], (3, CAPACITY)),
    ):
        kinds = [(s, f64) for s in shapes]
        check(es.op(text), kinds)
        (y,) = sized(es.op(text), kinds).graph.outputs
        assert y.template.parts[0].body.extents == extents


def test_indices_are_guarded_along_their_own_axes() -> None:
    """Along others, an index that is read is one everywhere, and vectors may run."""
    scatter, kinds = es.op("Y[rcv[e],k] += X[e,k]", extents={"Y.shape[0]": 5}), [((9,), i32), ((9, n), dt.f32)]
    check(lambda rcv, x: scatter(rcv=rcv, X=x), kinds)
    graph = sized(lambda rcv, x: scatter(rcv=rcv, X=x), kinds).graph
    ((i, j),) = [p.index for t in graph.outputs for p in t.template.parts if isinstance(p, Scatter)]
    assert isinstance(i, Read) and i.index == (Axis(0),) and j is Axis(1)
