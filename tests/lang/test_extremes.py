"""What keeps the largest or smallest at positions that are read: `y[index[e]] max= x[e]`."""

import numpy as np
import pytest
import torch

import einsmith as es
from einsmith import op
from einsmith.base.errors import DtypeError, FormulaError, IndexOutOfRange

NUMPY = {"max": np.maximum, "min": np.minimum}
BOTH = pytest.mark.parametrize("combiner", ["max", "min"])


def extreme(combiner: str, index: np.ndarray, x: np.ndarray, start: np.ndarray) -> np.ndarray:
    out = start.copy()
    with np.errstate(invalid="ignore"):
        NUMPY[combiner].at(out, index, x)
    return out


def least(combiner: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    info = np.finfo if np.dtype(dtype).kind == "f" else np.iinfo
    ends = (-np.inf, np.inf) if info is np.finfo else (info(dtype).min, info(dtype).max)
    return np.full(shape, ends[combiner == "min"], dtype)


@pytest.mark.thinned(10)
@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("rows, points, width", [(1, 1, 1), (7, 40, 3), (9, 33, 17), (5, 130, 1), (40, 6, 8)])
@pytest.mark.parametrize("threads", [1, 2])
def test_from_nothing_and_from_a_start(rng, combiner, dtype, rows, points, width, threads):
    index = rng.integers(0, max(1, rows - 1), points).astype("int32")  # the last row has no points
    x = (rng.standard_normal((points, width)) * 10).astype(dtype)
    start = (rng.standard_normal((rows, width)) * 10).astype(dtype)
    free = op(f"y[index[e],c] {combiner}= x[e,c]", extents={"y.shape[0]": rows})
    onto = op(f"y[n,c] = s[n,c]\ny[index[e],c] {combiner}= x[e,c]")
    es.set_threads(threads)
    try:
        made, added = free(index=index, x=x), onto(s=start, x=x, index=index)
    finally:
        es.set_threads(None)
    np.testing.assert_array_equal(made, extreme(combiner, index, x, least(combiner, made.shape, dtype)))
    np.testing.assert_array_equal(added, extreme(combiner, index, x, start))
    assert made.dtype == added.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(es.interpret(lambda i, v: free(index=i, x=v))(index, x), made)


@BOTH
def test_no_numbers_and_zeros(combiner):
    """NaN stays, as numpy.maximum has it, wherever it comes; of the two zeros either may."""
    f = op(f"y[index[e]] {combiner}= x[e]", extents={"y.shape[0]": 4})
    index = np.array([0, 0, 0, 1, 1, 2, 2], "int32")
    x = np.array([1, np.nan, 2, np.nan, np.inf, -0.0, 0.0], "float32")
    np.testing.assert_array_equal(f(index=index, x=x), extreme(combiner, index, x, least(combiner, (4,), "float32")))
    np.testing.assert_array_equal(f(index=index, x=-x), extreme(combiner, index, -x, least(combiner, (4,), "float32")))


def test_narrow_types(rng):
    f = op("y[n] = s[n]\ny[index[e]] max= x[e]")
    index = rng.integers(0, 5, 30)
    for dtype in ("float16", "uint8", "int8", "int16"):
        s, x = (rng.integers(0, 90, n).astype(dtype) for n in (6, 30))
        made = f(s=s, x=x, index=index)
        assert made.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(made, extreme("max", index, x, s))


def test_combiners_of_one_tensor_go_in_order(rng):
    f = op("y[n] = s[n]\ny[a[e]] max= x[e]\ny[a[e]] += x[e]\ny[b[e]] min= 3*x[e]")
    s, x = rng.standard_normal(9), rng.standard_normal(20)
    a, b = rng.integers(0, 9, (2, 20))
    want = extreme("max", a, x, s)
    np.add.at(want, a, x)
    np.testing.assert_allclose(f(s=s, a=a, x=x, b=b), extreme("min", b, 3 * x, want), rtol=1e-15)


def test_out_of_range_and_wrong_types():
    f = op("y[n] = s[n]\ny[index[e]] max= x[e]")
    with pytest.raises(IndexOutOfRange):
        f(s=np.ones(3), index=np.array([0, 3]), x=np.ones(2))
    with pytest.raises(DtypeError, match="max= or min= of a bool"):
        op("y[index[e]] max= x[e] < 1", extents={"y.shape[0]": 2})(index=np.array([0, 1]), x=np.ones(2))
    with pytest.raises(FormulaError, match="expected = or"):
        op("y[index[e]] prod= x[e]")
    with pytest.raises(FormulaError, match="accumulates with max="):
        op("y[ids[t]] max= x[t] + where(t > 0, y[t-1], 0)", extents={"y.shape[0]": 5})(np.zeros(5, int), np.zeros(5))


def reduced(how: str):
    f = op(f"y[n,c] = s[n,c]\ny[index[e],c] {how}= x[e,c]")
    return lambda s, x, index: f(s=s, x=x, index=index)


@BOTH
def test_gradients_off_ties(rng, combiner):
    index = rng.integers(0, 4, 12)
    s, x = rng.permutation(63)[:15].reshape(5, 3) / 9.0, rng.permutation(64)[:36].reshape(12, 3) / 9.1
    es.check_gradients(lambda s, x: reduced(combiner)(s, x, index), s, x, order=2)
    es.check_gradients(lambda s, x: (reduced(combiner)(s, x * x, index) ** 3).sum(), s, x, order=2)


@BOTH
def test_ties_share_the_gradient_as_in_torch(rng, combiner):
    index = rng.integers(0, 4, 24)
    s, x = rng.integers(0, 3, (5, 2)).astype(float), rng.integers(0, 3, (24, 2)).astype(float)
    g, h = rng.standard_normal((5, 2)), rng.standard_normal((24, 2))

    y, pullback = es.vjp(lambda s, x: reduced(combiner)(s, x, index), s, x)
    ds, dx = pullback(g)
    ts, tx = torch.tensor(s, requires_grad=True), torch.tensor(x, requires_grad=True)
    places = torch.tensor(index)[:, None].expand(24, 2)
    ty = ts.scatter_reduce(0, places, tx, "a" + combiner)
    ty.backward(torch.tensor(g))
    np.testing.assert_array_equal(y, ty.detach().numpy())
    np.testing.assert_allclose(ds, ts.grad.numpy(), rtol=1e-14)
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-14)

    _, moved = es.jvp(lambda x: reduced(combiner)(s, x, index), (x,), (h,))
    assert np.isclose((moved * g).sum(), (dx * h).sum())


@pytest.mark.parametrize("text, shape", [
    ("y[index[e],c] min= x[e,c]*x[e,c]", (12, 3)),
    ("y[index[e],c] max= where(c > 0, x[e,c-1], x[e,c])", (12, 3)),
])  # fmt: skip
def test_the_printed_gradient_means_the_gradient(rng, text, shape):
    f = op(text, extents={"y.shape[0]": 5})
    index, x = rng.integers(0, 5, 12), rng.standard_normal(shape)
    index[:5] = range(5)
    printed = f.gradient("x", index=index, x=x)
    y, pullback = es.vjp(lambda x: f(index=index, x=x), x)
    g = rng.standard_normal(y.shape)
    made = op(printed)(index=index, x=x, dy=g)
    np.testing.assert_allclose(made, pullback(g)[0], rtol=1e-14)


def test_a_batch(rng):
    f = op("y[index[e]] max= x[e]", extents={"y.shape[0]": 4})
    index, x = rng.integers(0, 4, 15), rng.standard_normal((6, 15))
    each = es.vmap(lambda v: f(index=index, x=v))(x)
    np.testing.assert_array_equal(each, np.stack([extreme("max", index, v, least("max", (4,), "float64")) for v in x]))
