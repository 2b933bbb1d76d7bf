"""Sums of int64 whose terms are of few bits are added in int32, and others are not."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import Compute, Piece, Reduce, postorder
from einsmith.passes.pipeline import run_passes


def types_of_sums(graph) -> list[dt.DType]:
    parts = [p for n in postorder(graph.roots) if isinstance(n, Compute) for p in n.template.parts]
    return [p.body.bodies[0].dtype for p in parts if isinstance(p, Piece) and isinstance(p.body, Reduce)]


PRODUCT = "Y[i,j] = sum[k](i32(A[i,k])*i32(B[k,j]))"
WIDE = "Y[i,j] = sum[k](i64(A[i,k])*i64(B[k,j]))"
SHIFTED = "Y[i,j] = sum[k]((i32(A[i,k]) - i32(Z[]))*i32(B[k,j]))"


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "text, types, count, wanted",
    [
        (PRODUCT, "uint8 int8", 65793, dt.i32),  # 255 * 128 * 65793 is the greatest multiple below 2**31
        (PRODUCT, "uint8 int8", 65794, dt.i64),
        (PRODUCT, "int8 int8", 131071, dt.i32),
        (PRODUCT, "int8 int8", 131072, dt.i64),  # 2**31 itself is too large
        (PRODUCT, "int16 int8", 511, dt.i32),
        (PRODUCT, "int16 int16", 3, dt.i64),
        (PRODUCT, "int32 int8", 2, dt.i64),
        (SHIFTED, "uint8 int8", 65000, dt.i32),
        (WIDE, "uint8 int8", 65793, dt.i32),
        (WIDE, "uint8 int8", 65794, dt.i64),
        (WIDE, "int32 int8", 2, dt.i64),
        ("Y[i] = sum[k](i32(A[i,k]))", "int16", 65536, dt.i32),
        ("Y[i] = sum[k](i32(A[i,k]))", "int16", 65537, dt.i64),
        ("Y[i] = sum[k](where(k < 5, i32(A[i,k]), 0))", "uint8", 100, dt.i32),
        ("Y[i] = sum[k](i32(A[i,k])*k)", "uint8", 100, dt.i64),  # the axis has no bound by its type
    ],
)
def test_sums_that_fit(text, types, count, wanted):
    shapes = ((2, count), (count, 3))
    arrays = {}
    for name, of, shape in zip("AB", types.split(), shapes, strict=False):
        arrays[name] = np.full(shape, np.iinfo(of).min if of != "uint8" else 255, of)
    if "Z" in text:
        arrays["Z"] = np.uint8(255)
    op = es.op(text)
    traced = trace_call(lambda *a: op(**dict(zip(arrays, a, strict=True))), tuple(arrays.values()), {})
    assert types_of_sums(run_passes(traced.graph)) == [wanted]
    if text in (PRODUCT, WIDE):
        (y,) = Executable(traced.graph, traced.bind, 2)(list(arrays.values()))[1]
        with np.errstate(over="ignore"):
            in_type = np.int32 if text == PRODUCT else np.int64
            exact = int(in_type(arrays["A"][0, 0]) * in_type(arrays["B"][0, 0])) * count
        assert y.dtype == np.int64 and (y == exact).all()


def test_products_of_the_library_are_of_int32():
    """Products of int32 tensors wrap, and their sums are of int64: what is known of the bytes bounds both."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (5, 70), np.uint8), rng.integers(-128, 128, (70, 3), np.int8)
    f = es.jit(lambda x, y: x.astype("i32") @ y.astype("i32"))
    graph = run_passes(trace_call(f, (x, y), {}).graph)
    (body,) = (p.body for n in postorder(graph.roots) if isinstance(n, Compute) for p in n.template.parts
               if isinstance(p, Piece) and isinstance(p.body, Reduce))  # fmt: skip
    assert {e.dtype for e in postorder(body.bodies) if e.dtype.bits > 8} == {dt.i32}
    np.testing.assert_array_equal(f(x, y), x.astype(np.int64) @ y.astype(np.int64))


def test_numbers_within_terms_wrap_too():
    x = np.arange(-100, 100, dtype=np.int8).reshape(2, 100)
    op = es.op("Y[i] = sum[k](i64(A[i,k]) + 1099511627781 - 1099511627776)")
    traced = trace_call(op, (x,), {})
    assert types_of_sums(run_passes(traced.graph)) == [dt.i32]
    np.testing.assert_array_equal(es.jit(op)(x), (x.astype(np.int64) + 5).sum(1))


def test_a_conversion_that_wraps_within_a_term_stays():
    """i32(i8(200)) is -56 and not 200."""
    x = np.full((2, 30), 200, np.uint8)
    op = es.op("Y[i] = sum[k](i64(i8(A[i,k]))*i64(i8(A[i,k]))*i64(i8(A[i,k])))")
    np.testing.assert_array_equal(es.jit(op)(x), np.full(2, 30 * (-56) ** 3))
