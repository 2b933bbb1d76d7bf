"""Axes and indices are exact integers, elements of tensors wrap in their types: kernels, evaluator and Python agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.base.errors import FormulaError, IndexOutOfRange
from tests.lang.common import run

TOP = 2**31 - 1


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


READS = {
    "x[i*i//100000]": (60_000, 36_000, lambda i, n: i * i // 100_000),
    "x[(i*65537) % x.shape[0]]": (60_000, 60_000, lambda i, n: i * 65537 % n),
    "x[i*x.shape[0]//70001]": (70_001, 60_000, lambda i, n: i * n // 70_001),
    "x[(2*i + 1)*x.shape[0]//(2*480001)]": (480_001, 441_007, lambda i, n: (2 * i + 1) * n // 960_002),
    "x[x.shape[0] - 1 - i*40009 % x.shape[0]]": (60_001, 59_999, lambda i, n: n - 1 - i * 40_009 % n),
    "x[max(i*50000 - 3000000000, 0)//99991]": (
        61_000, 1_000, lambda i, n: np.maximum(i * 50_000 - 3 * 10**9, 0) // 99_991,
    ),
    "where(i < 40000, x[i*i//100000], 0.0)": (60_000, 16_000, lambda i, n: np.where(i < 40_000, i * i // 10**5, -1)),
    "where(i*i < 3000000000, x[i], 0.0)": (60_001, 60_001, lambda i, n: np.where(i * i < 3 * 10**9, i, -1)),
}  # fmt: skip


@pytest.mark.thinned(2)
@pytest.mark.parametrize("read", READS)
def test_indices_past_int32_are_exact_and_so_are_their_gradients(read, rng):
    extent, size, index = READS[read]
    op = es.op(f"y[i] = {read}", extents={"i": extent})
    x = rng.standard_normal(size).astype(np.float32)
    at = index(np.arange(extent), size)
    want = np.where(at < 0, 0, x[at])
    np.testing.assert_array_equal(op(x), want)
    np.testing.assert_array_equal(run(op, x), want)
    c = rng.integers(-3, 4, extent).astype(np.float32)
    gradient = np.zeros(size, np.float32)
    np.add.at(gradient, at[at >= 0], c[at >= 0])
    np.testing.assert_array_equal(es.vjp(op, x)[1](c)[0], gradient)


@pytest.mark.parametrize(("text", "want"), [
    ("f64(i*i)", lambda i: (i * i).astype(float)),
    ("i*i", lambda i: i * i),
    ("f64((i - 30000)*(i + 70000) % 1000003)", lambda i: ((i - 30000) * (i + 70000) % 1000003).astype(float)),
    ("min(i*i, 3000000000) - max(i*100000, 5)", lambda i: np.minimum(i * i, 3 * 10**9) - np.maximum(i * 10**5, 5)),
    ("where(i*i == 3599880001, 2.0, 1.0)", lambda i: np.where(i * i == 3599880001, 2.0, 1.0)),
    ("sum[j](i*j)", lambda i: i * 99 * 50),
])  # fmt: skip
def test_values_of_axes_past_int32(text, want):
    i = np.arange(60_000)
    op = es.op(f"y[i] = {text}", extents={"i": 60_000} | ({"j": 100} if "j" in text else {}))
    np.testing.assert_array_equal(op(), want(i))
    np.testing.assert_array_equal(run(op), want(i))


def test_scatters_at_indices_past_int32(rng):
    x = rng.integers(-3, 4, 60_000).astype(np.float32)
    want = np.zeros(1009, np.float32)
    np.add.at(want, np.arange(60_000) ** 2 % 1009, x)
    op = es.op("y[i*i % 1009] += x[i]", extents={"y.shape[0]": 1009})
    np.testing.assert_array_equal(op(x), want)


def test_small_indices_stay_int32():
    for extent, dtype in ((46_341, dt.i32), (46_342, dt.i64)):
        op = es.op("y[i] = i*i", extents={"i": extent})
        assert op().dtype == dtype.numpy


@pytest.mark.parametrize(("text", "extents", "words"), [
    ("y[i] = f64(i*i*i*i*i)", {"i": 60_000}, ("exceeds int64", "i < 60000", "line 1")),
    ("y[i] = x[i*9223372036854775807 % 5]", {"i": 7}, ("exceeds int64", "line 1")),
    ("y[] = argmax[i,j](f32(i) + j)", {"i": 65_536, "j": 65_536}, ("4294967296", "exceed int32", "line 1")),
    ("y[i] = a[i]*3000000000", {}, ("3000000000", "int32", "i64(x)", "line 1")),
    ("y[i] = where(a[i] > 0, a[i], -3000000000)", {}, ("-3000000000", "int32")),
])  # fmt: skip
def test_integers_beyond_all_types_are_rejected(text, extents, words):
    inputs = {"x": np.zeros(5), "a": i32(1, 2)}
    with pytest.raises(FormulaError) as e:
        op = es.op(text, extents=extents)
        op(**{n: x for n, x in inputs.items() if n in op.inputs})
    assert all(w in str(e.value) for w in words), str(e.value)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("text", "want"), [
    ("a[i] + b[i]", lambda a, b: a + b),
    ("a[i]*a[i]*b[i] - a[i]", lambda a, b: a * a * b - a),
    ("-a[i]", lambda a, b: -a),
    ("abs(a[i])", lambda a, b: np.abs(a)),
    ("(a[i]*1103515245 + 12345) % 1000", lambda a, b: (a * a.dtype.type(1103515245) + a.dtype.type(12345)) % 1000),
    ("where(a[i] + 1 > a[i], 1, 0)", lambda a, b: (a + a.dtype.type(1) > a) * 1),
    ("where(a[i]*2 == b[i]*2, 1, 0)", lambda a, b: (a * a.dtype.type(2) == b * b.dtype.type(2)) * np.float32(1)),
    ("f64(a[i]*b[i])", lambda a, b: (a * b).astype(float)),
    ("i64(a[i])*b[i]", lambda a, b: a.astype(np.int64) * b),
    ("(a[i]//4 + 536870912)//8", lambda a, b: (a // 4 + a.dtype.type(536870912)) // 8),
    ("max(a[i] - b[i], 3)", lambda a, b: np.maximum(a - b, 3)),
])  # fmt: skip
@pytest.mark.parametrize("count", [1, 7, 17])
def test_arithmetic_on_elements_wraps_as_in_numpy(text, want, count, rng):
    a, b = (rng.integers(-TOP - 1, TOP, count, np.int32, True) for _ in range(2))
    a[0], b[-1] = TOP, -TOP - 1
    b[: count // 2] = a[: count // 2] ^ np.int32(-TOP - 1)
    op = es.op(f"y[i] = {text} + 0*b[i]" if "b[" not in text else f"y[i] = {text}")
    with np.errstate(all="ignore"):
        expected = want(a, b)
    got = op(**{"a": a, "b": b})
    np.testing.assert_array_equal(got, expected)
    assert got.dtype.kind == expected.dtype.kind
    np.testing.assert_array_equal(run(lambda a, b: op(a=a, b=b), a, b), expected)


def test_bytes_wrap():
    a = np.array([127, -128, 5], np.int8)
    np.testing.assert_array_equal(es.op("y[i] = a[i] + a[i]*3")(a), a + a * np.int8(3))


def test_division_of_the_least_integer_by_minus_one():
    for dtype in (np.int32, np.int64):
        a = np.array([np.iinfo(dtype).min, 7], dtype)
        np.testing.assert_array_equal(es.op("y[i] = a[i]//b[i]")(a, np.array([-1, 2], dtype)), [a[0], 3])


@pytest.mark.parametrize("index", ["a[i]*65536", "a[i]*65536 + b[i]", "b[i] - a[i]*65536*2 + a[i]*65536"])
def test_an_index_made_of_elements_never_wraps_into_bounds(index):
    x, op = np.arange(10.0), es.op(f"y[i] = x[{index}]" + (" + 0*b[i]" if "b[" not in index else ""))
    with pytest.raises(IndexOutOfRange):
        op(**{"x": x, "a": i32(0, 65536), "b": i32(3, 0)})
    got = op(**{"x": x, "a": i32(0, 0), "b": i32(3, 9)})
    np.testing.assert_array_equal(got, [3, 9] if "b[i]" in index and "a[i]*65536 " != index else [0, 0])


def test_an_index_of_elements_is_computed_exactly(rng):
    a = rng.integers(0, TOP, 37, np.int32, True)
    x = rng.standard_normal(1009).astype(np.float32)
    np.testing.assert_array_equal(es.op("y[i] = x[a[i]*65537 % 1009]")(x, a), x[a.astype(np.int64) * 65537 % 1009])


def test_run_time_numbers_past_int32_make_int64():
    op = es.op("y[i] = a[i]*k")
    np.testing.assert_array_equal(op(i32(2, -3), k=3 * 10**9), [6 * 10**9, -9 * 10**9])
    assert op(i32(2, -3), k=5).dtype == np.int32
    np.testing.assert_array_equal(es.op("y[i] = a[i]*(k*2)")(i32(2, -3), k=2 * 10**9), [8 * 10**9, -12 * 10**9])
    np.testing.assert_array_equal(es.op("y[i] = where(a[i] < k*2, 1, 0)")(i32(2, TOP), k=2 * 10**9), [1, 1])
    assert es.op("y[i] = x[i]*k")(np.ones(3, np.float32), k=3 * 10**9).dtype == np.float32


@st.composite
def quasi_affine(draw, depth: int = 3) -> str:
    """An index expression over i and j, in words that Python understands as well."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(["i", "j", f"{draw(st.integers(1, 10**5))}*i", f"{draw(st.integers(1, 10**9))}"]))
    a = draw(quasi_affine(depth - 1))
    k = draw(st.sampled_from([2, 3, 7, 60_000, 65_537, 2**31 - 1, 2**31, 2**31 + 11, 3 * 10**9]))
    if draw(st.booleans()):
        return f"({a})" + draw(st.sampled_from([f"//{k}", f" % {k}", f"*{draw(st.integers(-(10**5), 10**5))}"]))
    return f"(({a}) {draw(st.sampled_from('+-'))} ({draw(quasi_affine(depth - 1))}))"


@settings(max_examples=30, deadline=None)
@given(quasi_affine(), st.integers(1, 997), st.sampled_from([1, 5, 40_009]), st.sampled_from([1, 3, 17]))
def test_random_indices_with_large_constants_against_python(index, size, rows, columns):
    try:
        op = es.op(f"y[i,j] = x[({index}) % {size}]", extents={"i": rows, "j": columns})
        y = op(np.arange(size, dtype=np.float64))
    except FormulaError as e:
        assert "exceeds int64" in str(e)
        return
    picks = range(0, rows, max(1, rows // 50))
    want = [[eval(index, {"i": i, "j": j}) % size for j in range(columns)] for i in picks]
    np.testing.assert_array_equal(y[list(picks)], want)
    values = es.op(f"y[i,j] = f64({index})", extents={"i": rows, "j": columns})()
    want = [[float(eval(index, {"i": i, "j": j})) for j in range(columns)] for i in picks]
    np.testing.assert_array_equal(values[list(picks)], want)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("to", ["i8", "i32", "i64", "f32", "f64", "bool"])
@pytest.mark.parametrize("of", ["float32", "float64", "int8", "int32", "int64"])
def test_a_cast_sees_the_whole_value(of, to, rng):
    """A sum or product that is cast: floats are rounded towards zero after it; integers may wrap before or after."""
    x, z = ((rng.standard_normal(19) * 7).astype(of) for _ in range(2))
    half = "0.5" if of.startswith("f") else "5"
    with_number = (f"{half} + x[i]", f"x[i] - {half}", f"-(x[i]*{half})")
    for value in (*with_number, "x[i] + z[i]", "x[i] - z[i]", "x[i]*z[i] - x[i]"):
        f = es.op(f"y[i] = {to}({value})")
        arguments = (x, z) if "z" in value else (x,)
        got = f(*arguments)
        assert got.dtype == dt.dtype_of(to).numpy
        np.testing.assert_allclose(got, es.interpret(f)(*arguments), rtol=1e-6, atol=1e-5 if to[0] == "f" else 0)


@pytest.mark.parametrize("combiner", ["sum", "prod", "max"])
@pytest.mark.parametrize("literal", ["2", "-2", "max(-2, min(2, 1))", "3000000000"])
def test_reductions_of_literals_meet_elements(combiner, literal):
    """They are int64 where int32 might not hold them, as reductions of elements are; a literal alone is refused."""
    x = np.array([1, 2], np.int32)
    f = es.op(f"y[i] = {combiner}[k]({literal}) + x[i]", extents={"k": 2})
    value = eval(literal)
    want = {"sum": 2 * value, "prod": value * value, "max": value}[combiner]
    assert f(x).astype(object).tolist() == [want + 1, want + 2]
