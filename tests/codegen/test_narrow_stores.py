"""Bytes beside 32-bit and 64-bit numbers: positions of maxima, flags and comparisons whose rows end in one lane."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_call
from einsmith.codegen.llvm import jit
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Graph
from einsmith.kernels import autoconfig
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.planner import fuse
from einsmith.tuning.kernels.decisions import lower_choice
from tests.kernels.runner import compare, fresh, host, reference

VECTOR = 64 if "+avx512f" in jit.host()[1].split(",") else 32


def _tails(dtype) -> list[int]:
    """Rows of some whole vectors and an element more, or less."""
    lanes = VECTOR // np.dtype(dtype).itemsize
    return [n * lanes + more for n in (1, 2, 3) for more in (1, -1)]


CASES = [(dtype, width) for dtype in (np.float32, np.float64) for width in _tails(dtype)]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype,width", CASES)
def test_gradients_of_maxima_over_windows(rng, dtype, width):
    """The gradient comes from positions that the forward pass stores; beside a NumPy program."""
    op = es.op("y[i,j] = max[u,v](x[i+u,j+v] + k[u,v])")
    height, p, q = 5, 3, 2
    x, k = rng.standard_normal((height + p - 1, width + q - 1)).astype(dtype), rng.standard_normal((p, q)).astype(dtype)
    g = rng.standard_normal((height, width)).astype(dtype)
    got = es.grad(lambda x, k: (op(x, k) * g).sum(), argnums=(0, 1))(x, k)
    windows = np.stack([x[u : u + height, v : v + width] + k[u, v] for u in range(p) for v in range(q)])
    dx, dk = np.zeros(x.shape), np.zeros(k.shape)
    for (i, j), n in np.ndenumerate(windows.argmax(0)):
        u, v = divmod(n, q)
        dx[i + u, j + v] += g[i, j]
        dk[u, v] += g[i, j]
    scale = 50 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.asarray(got[0]), dx, rtol=scale, atol=scale * 10)
    np.testing.assert_allclose(np.asarray(got[1]), dk, rtol=scale * 20, atol=scale * 20 * width)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype,width", CASES)
def test_gradients_of_pooled_rectified_channels(rng, dtype, width):
    """Batch norm's scale and shift, ReLU, pooling."""
    x = rng.standard_normal((2, 3, 6, 2 * width)).astype(dtype)
    s, b = (rng.standard_normal((3, 1, 1)).astype(dtype) for _ in range(2))
    g = rng.standard_normal((2, 3, 3, width)).astype(dtype)
    got = es.grad(lambda x, s, b: (F.max_pool2d(F.relu(x * s + b), 2) * g).sum(), argnums=(0, 1, 2))(x, s, b)
    y = np.maximum(x.astype(np.float64) * s + b, 0)
    blocks = y.reshape(2, 3, 3, 2, width, 2).transpose(0, 1, 2, 4, 3, 5).reshape(2, 3, 3, width, 4)
    at = np.eye(4)[blocks.argmax(-1)] * (g * (blocks.max(-1) > 0))[..., None]
    dy = at.reshape(2, 3, 3, width, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(x.shape)
    scale = 50 * np.finfo(dtype).eps
    for have, want in zip(got, (dy * s, (dy * x).sum((0, 2, 3)), dy.sum((0, 2, 3))), strict=True):
        np.testing.assert_allclose(np.asarray(have).reshape(want.shape), want, rtol=scale * 10, atol=scale * 10 * width)


MAXIMA = es.op("y[i,j] = max[u,v](x[i+u,j+v] + k[u,v])")
FLAGS = es.op("y[i,j] = sum[a](x[i,j]*z[a,j]) > 0.5")
NARROWED = es.op("y[i,j] = i32(n[i,j])")


def _graphs(width: int, dtype):
    """Programs with positions or flags of rows of this width, and their arguments."""
    x, row = np.zeros((3, width), dtype), np.zeros((4, width + 1), dtype)
    image, scale = np.zeros((2, 3, 6, 2 * width), dtype), np.zeros((3, 1, 1), dtype)
    pooled = es.grad(lambda x, s, b: F.max_pool2d(F.relu(x * s + b), 2).sum(), argnums=(0, 1, 2))
    return {
        "flags": (FLAGS, x, x),
        "narrowed": (NARROWED, np.zeros((3, width), np.int64)),
        "maxima": (es.grad(lambda x, k: MAXIMA(x, k).sum(), argnums=(0, 1)), row, np.zeros((2, 2), dtype)),
        "pooled": (pooled, image, scale, scale),
    }


def _kernels(f, *arguments):
    graph = trace_call(f, arguments, {}, frozenset()).graph
    calls = fuse(run_passes(Graph(graph.inputs, graph.outputs, (), ())), target=Target(cores=2)).calls
    return [c.kernel for c in calls]


@pytest.mark.parametrize("name", ["flags", "narrowed", "maxima", "pooled"])
@pytest.mark.parametrize("dtype,width", [(d, _tails(d)[0]) for d in (np.float32, np.float64)])
def test_nothing_behind_a_result_is_written(name, dtype, width):
    """The chosen configurations, tasks in both orders, each buffer beside memory that must not be touched."""
    for kernel in _kernels(*_graphs(width, dtype)[name]):
        base = fresh(kernel, width)
        if any(b.dtype.name == "i8" for b in kernel.buffers):  # positions in a window
            base = [np.abs(a) % 4 if a.dtype == np.int8 else a for a in base]
        want = reference(kernel, base)
        made = lower_choice(autoconfig.choose(kernel, host()))
        for backward in (False, True):
            compare(made, kernel, base, want, name, host(), 1e-5, backward)
