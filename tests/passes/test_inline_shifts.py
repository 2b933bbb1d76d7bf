"""Integers of 8 bits less their zero points stay in 8 bits in memory, and products read them so."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_call
from einsmith.base.dtypes import i32, i64
from einsmith.driver.executable import Executable
from einsmith.ir.analysis.pointwise import is_shift
from einsmith.ir.nodes import Compute


def quantized(x):
    """Of float32 in bytes, as ONNX's DynamicQuantizeLinear: the bytes, their scale and zero point."""
    high, low = es.maximum(x.max(), 0.0), es.minimum(x.min(), 0.0)
    scale = (high - low) / 255.0
    zero = es.minimum(es.maximum(F.round(0.0 - low / scale), 0.0), 255.0)
    q = es.minimum(es.maximum(F.round(x / scale) + zero, 0.0), 255.0)
    return q.astype("i32").astype("u8"), scale, zero.astype("i32").astype("u8")


def in_numpy(x: np.ndarray) -> tuple[np.ndarray, int]:
    high, low = max(x.max(), np.float32(0)), min(x.min(), np.float32(0))
    scale = (high - low) / np.float32(255)
    zero = np.clip(np.round(np.float32(0) - low / scale), 0, 255)
    return np.clip(np.round(x / scale) + zero, 0, 255).astype(np.int64), int(zero)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("m,k,n", ((1, 1, 1), (5, 7, 9), (16, 33, 15), (20, 64, 31)))
@pytest.mark.parametrize("kind", (np.uint8, np.int8))
def test_a_product_of_run_time_zero_points(rng, m, k, n, kind) -> None:
    x = rng.standard_normal((m, k), np.float32)
    ends = np.iinfo(kind)
    w = rng.integers(ends.min, ends.max + 1, (k, n)).astype(kind)
    w0 = np.array(rng.integers(ends.min, ends.max + 1), kind)

    def f(x, w, w0):
        q, _, zero = quantized(x)
        return (q.astype("i32") - zero.astype("i32")) @ (w.astype("i32") - w0.astype("i32"))

    traced = trace_call(f, (x, w, w0), {})
    run = Executable(traced.graph, traced.bind, 2)
    (got,) = run((x, w, w0))[1]
    q, zero = in_numpy(x)
    np.testing.assert_array_equal(got, (q - zero) @ (w.astype(np.int64) - int(w0)))
    wide = [t for t in run.plan.stored if t.dtype in (i32, i64) and t.shape in (x.shape, w.shape) and t.shape != (m, n)]
    assert not wide


def test_a_padded_convolution_of_run_time_zero_points(rng) -> None:
    x = rng.standard_normal((2, 5, 7, 9), np.float32)
    w = rng.integers(0, 256, (6, 5, 3, 3)).astype(np.uint8)

    def f(x, w):
        q, _, zero = quantized(x)
        return F.conv2d(q.astype("i32") - zero.astype("i32"), w.astype("i32") - 119, padding=1)

    traced = trace_call(f, (x, w), {})
    run = Executable(traced.graph, traced.bind, 2)
    (got,) = run((x, w))[1]
    q, zero = in_numpy(x)
    padded = np.pad(q - zero, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_array_equal(got, np.einsum("bchwij,ocij->bohw", windows, w.astype(np.int64) - 119))
    assert not [t for t in run.plan.stored if t.dtype in (i32, i64) and t.shape in (x.shape, w.shape)]


def test_what_is_no_shift() -> None:
    a, b = np.zeros((3, 4), np.uint8), np.zeros((3, 4), np.int8)

    def shift(f, *x: np.ndarray) -> bool:
        (out,) = trace_call(f, x, {}).graph.outputs
        assert isinstance(out, Compute)
        return is_shift(out.template)

    op = es.op("Y[i,j] = i32(X[i,j]) - i32(Z[i,j])")
    assert shift(op, a, b) and shift(es.op("Y[i,j] = i32(X[i,j]) + 3"), a)
    assert not shift(es.op("Y[i,j] = i32(X[i,j])*i32(Z[i,j])"), a, b)
    assert not shift(op, a.astype(np.int32), b)
    assert not shift(es.op("Y[i,j] = f32(X[i,j]) - 1"), a)
    assert not shift(es.op("Y[j] = sum[i](i32(X[i,j]))"), a)


@pytest.mark.parametrize("keep", ["bf16", "int8"])
def test_weights_of_fewer_bits_are_widened_by_each_reader(rng, keep) -> None:
    """Rows of a table and a product by it: neither has the table as float32."""
    table = es.nn.freeze(es.nn.Embedding(37, 19), keep=keep)
    x = rng.standard_normal((3, 19), np.float32)

    def f(ids, x):
        return table(ids), F.linear(x, table.weight)

    ids = np.array([5, 36, 5])
    traced = trace_call(f, (ids, x), {})
    run = Executable(traced.graph, traced.bind, 1)
    stored = [t for c in run.calls for t in c.results]
    assert stored and all(t.shape != (37, 19) for t in stored)
    rows, y = run([ids, x])[1]
    wide = table.weight.numpy()
    np.testing.assert_array_equal(rows, wide[ids])
    np.testing.assert_allclose(y, x.astype(np.float64) @ wide.T.astype(np.float64), rtol=1e-5, atol=1e-5)
