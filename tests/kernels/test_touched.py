"""The bytes of buffers that a kernel touches, and what their accesses cost."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.cost.overheads import INSTRUCTIONS
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Axis, Const, apply
from einsmith.kernels.emit import boxes
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.planner import fuse
from einsmith.tracing import builder


def kernels(f, *arrays: np.ndarray):
    f = es.op(f) if isinstance(f, str) else f
    return [c.kernel for c in fuse(run_passes(trace_call(f, arrays, {}).graph)).calls]


def test_a_slice_of_a_long_tensor_counts_as_a_slice():
    h, w = np.zeros((50, 8, 16), np.float32), np.zeros((16, 4), np.float32)
    (kernel,) = kernels("y[b,n] = sum[k](h[49,b,k]*w[k,n])\nreturn y", h, w)
    bytes_by_shape = {b.shape: n for b, n in zip(kernel.buffers, bytes_by_buffer(kernel), strict=True)}
    assert bytes_by_shape == {(1, 8, 16): 8 * 16 * 4, (16, 4): 16 * 4 * 4, (8, 4): 8 * 4 * 4}
    (kernel,) = kernels("y[b,k] = h[49,b,k] + exp(h[3,b,k]) + h[49,7-b,k]\nreturn y", h)
    assert max(bytes_by_buffer(kernel)) == 2 * 8 * 16 * 4
    (kernel,) = kernels("y[t,b] = sum[k](exp(h[t,b,k]))\nreturn y", h)
    assert max(bytes_by_buffer(kernel)) == h.nbytes
    (kernel,) = kernels(lambda h: builder.compute((7, 8, 16), lambda t, b, k: builder.exp(h[t, b, k])), h)
    assert max(bytes_by_buffer(kernel)) == h[:7].nbytes
    (kernel,) = kernels(
        lambda h: builder.compute((7, 8, 16), lambda t, b, k: builder.exp(h[t, b, k]) * h[49 - t, b, k]), h
    )
    assert max(bytes_by_buffer(kernel)) == h.nbytes


def test_gathered_tensors_count_what_is_read():
    """A row or a cache line for each index, all of a small tensor, and a row for each of two indices."""
    table, at, other = np.zeros((100, 8), np.float32), np.zeros((3,), np.int32), np.zeros((3,), np.int32)

    def most(text: str, *arrays: np.ndarray) -> int:
        return max(bytes_by_buffer(kernels(text, *arrays)[-1]))

    assert most("y[i,k] = exp(table[at[i],k])\nreturn y", table, at) == 3 * 8 * 4
    assert most("y[k,i] = exp(table[k,at[i]%8])\nreturn y", table, at) == table.nbytes
    assert most("y[i,k] = exp(table[at[i],k])\nreturn y", table[:2], at) == 3 * 8 * 4  # the results
    assert most("y[i,k] = exp(table[at[i],k])*table[other[i],k]\nreturn y", table, at, other) == 6 * 8 * 4
    assert most("y[i,j] = exp(long[at[i]])*v[j]\nreturn y", np.zeros(1000, np.float32), at, other) == 3 * 16 * 4


@pytest.mark.parametrize("fn, by, factor, gathered", [
    ("mod", 12, 1, False), ("mod", 12, 36, True), ("floordiv", 12, 48, False), ("floordiv", 2, 1, False),
    ("floordiv", 2, 48, True),
])  # fmt: skip
def test_quotients_along_lanes_are_priced_by_where_they_lead(fn, by, factor, gathered):
    """Remainders that are multiplied lead every lane elsewhere; quotients by much do so for few runs of lanes."""
    index = apply("mul", apply(fn, Axis(0), Const(by, dt.i32)), Const(factor, dt.i32))
    cost = boxes.access_cost([linear(index)], 0, 16)
    assert (cost >= 16 * INSTRUCTIONS.gathered_lane) == gathered and (gathered or cost < 5)
