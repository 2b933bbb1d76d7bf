"""Traced tensors against NumPy, and index formulas in Python."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.base.errors import BoundsError, DtypeError, FormulaError, IndexOutOfRange, ShapeError, TraceError
from einsmith.ir.nodes import Compute, Item, Reduce
from einsmith.tracing import builder
from tests.lang.common import run, value

UNARY = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "sin": np.sin,
    "cos": np.cos,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "relu": lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name, rng):
    x = rng.uniform(0.1, 2, (3, 5))
    np.testing.assert_allclose(run(getattr(builder, name), x), UNARY[name](x), rtol=1e-14)
    assert isinstance(getattr(builder, name)(0.5), (float, builder.Value))


@pytest.mark.parametrize("shapes", [((3, 4), (4,)), ((1, 4), (3, 1)), ((), (2, 3)), ((5, 1, 3), (2, 1))])
def test_broadcasting_arithmetic(shapes, rng):
    a, b = (rng.uniform(0.5, 2, s) for s in shapes)
    for f in (
        lambda x, y: x + y * 2 - 1,
        lambda x, y: 3 / x - y // 0.5 + x % y,
        lambda x, y: -(x**3) + abs(y) ** 0.5 + x**y,
        lambda x, y: x**-2 + y**0,
    ):
        np.testing.assert_allclose(run(f, a, b), f(a, b), rtol=1e-12)
    for f in (lambda x, y: x < y, lambda x, y: (x >= y) | ~(x > 1), lambda x, y: (x == y) & (x != 1)):
        np.testing.assert_array_equal(run(f, a, b), f(a, b))


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ShapeError, match=r"\(2, 3\).*\(2,\)"):
        value(2, 3) + value(2)


@st.composite
def _slices(draw):
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    keys: list = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.booleans()):
            keys.append(draw(st.integers(-n, n - 1)))
        else:
            ends = st.none() | st.integers(-n - 1, n + 1)
            keys.append(slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2, 3, -1, -2]))))
        if draw(st.integers(0, 4)) == 0:
            keys.append(None)
    if draw(st.booleans()):
        keys.insert(draw(st.integers(0, len(keys))), Ellipsis)
    return tuple(shape), tuple(keys)


@given(_slices())
def test_slicing(case):
    shape, key = case
    x = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    want = x[key]
    got = run(lambda v: v[key], x)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "old,new",
    [
        ((6,), (2, 3)),
        ((2, 3, 4), (4, -1)),
        ((4, 6), (3, 8)),
        ((2, 15, 2), (3, 20)),
        ((3, 1, 5), (1, 15, 1)),
        ((7, 1), (7,)),
        ((12, 10), (2, 6, 5, 2)),
        ((1,), ()),
        ((17, 16), (16, 17)),
    ],
)
def test_reshape(old, new):
    x = np.arange(np.prod(old), dtype=np.int64).reshape(old)
    np.testing.assert_array_equal(run(lambda v: v.reshape(*new), x), x.reshape(new))
    np.testing.assert_array_equal(run(lambda v: v.reshape(new), x), x.reshape(new))


def test_reshape_keeps_untouched_dimensions_plain():
    from einsmith.ir.nodes import Axis

    t = value(3, 4, 5, 7).reshape(3, 20, 7).tensor.template
    (part,) = t.parts
    assert isinstance(part.body.index[0], Axis) and isinstance(part.body.index[3], Axis)


def test_reshape_errors():
    for new in ((4, 2), (-1, -1), (-1, 4), (7,)):
        with pytest.raises(ShapeError):
            value(2, 3).reshape(new)


@pytest.mark.parametrize("order", [(), (None,), (1, 0, 2), ([2, 0, 1],), (np.array([2, 0, 1]),), (-1, 0, 1)])
def test_transpose(order, rng):
    x = rng.integers(0, 99, (2, 3, 5))
    np.testing.assert_array_equal(run(lambda v: v.transpose(*order), x), x.transpose(*order))
    np.testing.assert_array_equal(run(lambda v: v.T, x), x.T)
    with pytest.raises(ShapeError):
        value(2, 3).transpose(0, 0)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name, axis, keepdims, rng):
    x = rng.normal(size=(3, 1, 5))
    if name.startswith("arg"):
        if isinstance(axis, tuple):
            axis = 2
    elif axis == () and name == "mean":
        axis = (1,)
    got = run(lambda v: getattr(v, name)(axis=axis, keepdims=keepdims), x)
    np.testing.assert_allclose(got, getattr(x, name)(axis=axis, keepdims=keepdims), rtol=1e-12)


def test_reduction_types():
    assert value(3, dtype="int32").sum().dtype is dt.i64
    assert value(3, dtype="bool").sum().dtype is dt.i64
    assert value(3, dtype="int32").mean().dtype is dt.f32
    assert value(3, dtype="bool").mean().dtype is dt.f32
    assert value(3).argmax().dtype is dt.i32
    assert value(3, dtype="int32").max().dtype is dt.i32
    with pytest.raises(FormulaError, match="no elements"):
        value(0, 3).max(axis=0)


@pytest.mark.parametrize(
    "p,q",
    [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((5, 1, 2, 3), (2, 3, 4)), ((2, 3), (6, 3, 1))],
)
def test_matmul(p, q, rng):
    a, b = rng.normal(size=p), rng.normal(size=q)
    np.testing.assert_allclose(run(lambda x, y: x @ y, a, b), a @ b, rtol=1e-12)
    with pytest.raises(ShapeError, match="7"):
        value(3, 7) @ value(4, 3)


def test_types():
    f, d, i, n = value(3), value(3, dtype="float64"), value(3, dtype="int32"), value(3, dtype="int64")
    lr, k = value(dtype="float64", weak=True), value(dtype="int64", weak=True)
    assert (f + i).dtype is dt.f32 and (f + d).dtype is dt.f64 and (i + n).dtype is dt.i64
    assert (f * 2.5).dtype is dt.f32 and (d * 2).dtype is dt.f64 and (i * 2).dtype is dt.i32
    assert (i / 2).dtype is dt.f32 and (i * 0.5).dtype is dt.f32 and (n // 2).dtype is dt.i64
    assert (f * lr).dtype is dt.f32 and not (f * lr).weak
    assert (lr * 2).weak and (lr * 2).dtype is dt.f64 and (1 - lr).weak
    assert (k + 1).weak and (k + 1).dtype is dt.i64 and (k / 2).dtype is dt.f64 and (i * k).dtype is dt.i32
    assert (lr < 3).dtype is dt.bool_ and not (lr < 3).weak
    assert builder.where(f > 0, 1, 0).dtype is dt.f32 and builder.where(d > 0, f, 0).dtype is dt.f32
    assert f.astype("float64").dtype is dt.f64 and builder.cast(f, "int32").dtype is dt.i32
    assert ((f > 0) * f).dtype is dt.f32
    with pytest.raises(DtypeError):
        (f > 0) + (f > 0)


def test_weak_scalars_are_computed_in_double():
    lr = np.float64(0.1)
    got = run(lambda x, y: y * (1 - builder.Value(x.tensor, weak=True)), lr, np.ones(3, np.float32))
    np.testing.assert_array_equal(got, np.full(3, 0.9))


def test_numpy_on_either_side(rng):
    a, b = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    np.testing.assert_allclose(run(lambda v: b - v, a), b - a)
    np.testing.assert_allclose(run(lambda v: (b < v) & (v != b), a), (b < a))
    np.testing.assert_allclose(run(lambda v: b.T @ v, a), b.T @ a)
    np.testing.assert_allclose(run(lambda v: np.float32(2) * v, a), 2 * a)


def test_constants_are_copied():
    c = np.ones(3)

    def f(v):
        out = v + c
        c[:] = 5
        return out

    np.testing.assert_array_equal(run(f, np.zeros(3)), np.ones(3))


@pytest.mark.parametrize(
    "use,remedy",
    [
        (lambda x: bool(x), "es.where"),
        (lambda x: float(x), "return the tensor"),
        (lambda x: int(x), "return the tensor"),
        (lambda x: [1, 2][x], "static"),
        (lambda x: np.exp(x), "es.exp"),
        (lambda x: np.sum(x), "functional.sum"),
        (lambda x: np.asarray(x), "es"),
        (lambda x: x.item(), "return"),
        (lambda x: x[value(3, dtype="bool")], "where"),
        (lambda x: x[value(3)], "indices are integers"),
        (lambda x: x[value()], "one integer"),
        (lambda x: x[value(dtype="int32") :], "static"),
    ],
)
def test_values_that_do_not_exist_yet(use, remedy):
    with pytest.raises(TraceError, match=remedy):
        use(value(3))


def test_static_index_out_of_range():
    for key in ((3,), (-4,), (0, 0, 0)):
        with pytest.raises(IndexOutOfRange):
            value(3, 2)[key]


def test_equal_operations_share_one_template():
    a, b = value(3, 4), value(3, 4)
    assert (a * 2 + 1).tensor.template is (b * 2 + 1).tensor.template
    x = (a + a).tensor
    assert isinstance(x, Compute) and len(x.args) == 1
    assert (a + b).tensor.template is not x.template


def test_capsule_conv(rng):
    def capsule_conv(A, W, stride=2):
        (B, C, H, Wd, U, M), (K, _, R, S, _, J) = A.shape, W.shape
        c, r, s, m = builder.axes(C, R, S, M)
        return builder.compute(
            (B, K, (H - R) // stride + 1, (Wd - S) // stride + 1, U, J),
            lambda b, k, p, q, i, j: builder.sum(
                A[b, c, stride * p + r, stride * q + s, i, m] * W[k, c, r, s, m, j], over=(c, r, s, m)
            ),
        )

    A, W = rng.integers(-9, 9, (2, 3, 7, 6, 2, 3)), rng.integers(-9, 9, (4, 3, 3, 2, 3, 2))
    got = run(capsule_conv, A, W)
    want = np.zeros_like(got)
    for p in range(got.shape[2]):
        for q in range(got.shape[3]):
            window = A[:, :, 2 * p : 2 * p + 3, 2 * q : 2 * q + 2]
            want[:, :, p, q] = np.einsum("bcrsim,kcrsmj->bkij", window, W)
    np.testing.assert_array_equal(got, want)


def test_gather_and_guards(rng):
    E, ids = rng.normal(size=(7, 3)), rng.integers(0, 7, (2, 5))
    embed = lambda E, ids: builder.compute((2, 5, 3), lambda t, b, k: E[ids[t, b], k])  # noqa: E731
    np.testing.assert_array_equal(run(embed, E, ids), E[ids])
    shift = lambda x: builder.compute((8,), lambda i: builder.where((i > 0) & (i < 8), x[i - 1], 0))  # noqa: E731
    x = rng.normal(size=7)
    np.testing.assert_array_equal(run(shift, x), np.concatenate([[0], x]))


def test_guard_around_a_nested_reduction(rng):
    M = rng.normal(size=(3, 4))

    def f(m):
        j = builder.axes(4)[0]
        return builder.compute((4,), lambda i: builder.where(i > 0, builder.max(m[i - 1, j], over=j) * 2, -1))

    np.testing.assert_allclose(run(f, M), np.concatenate([[-1], 2 * M.max(1)]))


def test_nested_reductions_become_tensors(rng):
    X = rng.normal(size=(3, 4))

    def softmax(x):
        k, m = builder.axes(4, 4)
        return builder.compute(
            (3, 4),
            lambda i, j: (
                builder.exp(x[i, j] - builder.max(x[i, k], over=k))
                / builder.sum(builder.exp(x[i, m] - builder.max(x[i, k], over=k)), over=m)
            ),
        )

    e = np.exp(X - X.max(1, keepdims=True))
    np.testing.assert_allclose(run(softmax, X), e / e.sum(1, keepdims=True), rtol=1e-13)
    t = softmax(value(3, 4)).tensor
    assert len(t.args) == 3 and sum(isinstance(a, Compute) for a in t.args) == 2


def test_argmax_takes_an_item():
    i = builder.axes(5)[0]
    t = builder.compute((2,), lambda b: builder.argmax(value(2, 5)[b, i], over=i)).tensor
    assert isinstance(t, Item) and t.member == 1 and isinstance(t.node.template.parts[0].body, Reduce)


def test_formula_errors():
    x, m = value(5), value(3, 4)
    (j,) = builder.axes(4)
    with pytest.raises(FormulaError, match="neither an axis of the result"):
        builder.compute((3,), lambda i: m[i, j])
    with pytest.raises(BoundsError, match="1 to 5.*shape \\(5,\\)"):
        builder.compute((5,), lambda i: x[i + 1])
    with pytest.raises(ShapeError, match="2 dimensions"):
        builder.compute((3,), lambda i: m[i])
    with pytest.raises(FormulaError, match="without indices"):
        builder.compute((3,), lambda i: m * i)
    with pytest.raises(FormulaError, match="not an integer"):
        builder.compute((3,), lambda i: x[i / 2])
    with pytest.raises(TraceError, match="chained"):
        builder.compute((3,), lambda i: x[i] if i > 2 else 0)
    with pytest.raises(FormulaError, match="axes to reduce"):
        builder.compute((3,), lambda i: builder.sum(m[i, j]))
    with pytest.raises(BoundsError, match="unknown bound"):
        builder.compute((5,), lambda i: x[builder.cast(x[i], "int32")])
    builder.compute((5,), lambda i: x[builder.minimum(builder.maximum(builder.cast(x[i], "int32"), 0), 4)])


def test_deep_formulas_need_no_recursion():
    x = value(3)

    def f(i):
        acc = x[i]
        for k in range(3000):
            acc = acc + k * 0.5
        return acc

    assert builder.compute((3,), f).shape == (3,)


def test_numpy_takes_the_types_of_traced_tensors():
    for dtype in dt.ALL:
        kind = value(3, dtype="float32").astype(dtype).dtype
        wanted = np.dtype(ml_dtypes.bfloat16) if dtype is dt.bf16 else dtype.numpy
        assert np.zeros(3, kind).dtype == np.arange(3).astype(kind).dtype == np.dtype(kind) == wanted
        assert np.issubdtype(kind, np.floating) == (dtype.is_float and dtype is not dt.bf16)


def test_types_of_traced_tensors_equal_those_of_numpy_and_pytorch():
    for dtype in dt.ALL:
        name = "bfloat16" if dtype is dt.bf16 else str(dtype.numpy)
        same = [name, dtype.name, getattr(torch, name), np.dtype(getattr(ml_dtypes, name, name))]
        same += [] if dtype is dt.bf16 else [dtype.numpy, dtype.numpy.type]
        assert all(dtype == x and x == dtype and not (dtype != x) for x in same)
        others = [x for x in dt.ALL if x is not dtype] + ["nonsense", "complex64", np.dtype("c8"), None, 3]
        assert not any(dtype == x or x == dtype for x in others)
    assert dt.f64 in (int, float) and dt.bool_ in (bool,) and dt.f32 in (np.float64, np.float32)


def test_arrays_of_the_type_of_a_traced_tensor_have_their_values():
    for dtype in ("float32", "float64", "float16", ml_dtypes.bfloat16):
        x = np.array([1, 2, 3]).astype(dtype)
        got = es.jit(lambda a: (a * np.arange(3).astype(a.dtype) + es.full((3,), 1, dtype=a.dtype)).astype("float64"))(
            x
        )
        assert got.tolist() == [1, 3, 7]


def test_numpy_without_bfloat16_says_how_to_make_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(es.DtypeError, match=r"es.tensor\(array\).astype\(x.dtype\)"):
        np.zeros(3, dt.bf16)
    got = es.jit(lambda a: es.tensor(np.arange(3.0, dtype=np.float32)).astype(dt.bf16).astype("float32") * a)(
        np.ones(3, np.float32)
    )
    assert got.tolist() == [0, 1, 2]
