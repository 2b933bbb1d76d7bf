"""Kernels that read one part of a tensor are given that part: those of several parts are one kernel."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.checking.kernel_check import KernelFault, _check_untouched, elements
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.kernel import Kernel, KernelBuffer
from einsmith.schedule.planner import fuse
from einsmith.schedule.recomputing_calls import _call_of_stages, _stages_from_stored

F = es.functional


def convolved(s, w, v):
    """Every part through a convolution of its own stride, and the gradients of all of them."""
    return sum((F.conv2d(s[:, n], w, stride=2) ** 2).sum() for n in range(s.shape[1]))


def multiplied(s, w, v):
    return sum(((s[:, n, :, 2] @ v) ** 2).sum() for n in range(s.shape[1]))


def normalized(s, w, v):
    return sum((F.softmax(s[:, n, 1], -1) * s[:, n, 0]).max() for n in range(s.shape[1]))


def added(s, w, v):
    return sum(es.tanh(s[:, n] * s[:, 0, :, 1:2]).sum() for n in range(s.shape[1]))


def distinct(f, arrays) -> int:
    """How many different kernels a function's plan has."""
    plan = fuse(run_passes(trace_call(f, arrays, {}).graph))
    return len({call.kernel for _, call, _ in plan.kernel_calls()})


@pytest.mark.thinned(8)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("loss", [convolved, multiplied, normalized, added])
def test_parts_of_a_tensor_are_read_by_one_kernel(loss, batch, rng):
    counts = set()
    for parts in (5, 7):
        s = rng.standard_normal((batch, parts, 7, 9, 11)).astype(np.float32)
        w, v = (rng.standard_normal(x).astype(np.float32) for x in ((4, 7, 3, 3), (11, 13)))
        f = es.grad(loss, (0, 1) if loss is convolved else (0, 2) if loss is multiplied else (0,))
        for got, want in zip(f(s, w, v), es.interpret(f)(s, w, v), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
        counts.add(distinct(f, (s, w, v)))
    assert max(counts) - min(counts) < 2


def test_slices_of_split_kernels_agree():
    def f(x, w, c):
        h = x @ w
        return h, h * c[2]

    shapes = ((5, 3), (3, 17), (4, 17))
    plan = fuse(run_passes(trace_call(f, [np.zeros(s, np.float32) for s in shapes], {}).graph))
    (call,) = plan.calls
    (b,) = (n for n, t in enumerate(call.tensors) if t is plan.graph.outputs[1])
    part = _call_of_stages(call, _stages_from_stored(call.kernel, b), b)
    at = {t: n for t, n in zip(part.tensors, part.offsets, strict=True)}
    assert at == dict.fromkeys(plan.graph.outputs, 0) | {plan.graph.inputs[2]: 2 * 17 * 4}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_checked_run_sees_parts(batch, rng, monkeypatch):
    monkeypatch.setenv("EINSMITH_CHECK", "2")
    s, w = (rng.standard_normal(x).astype(np.float32) for x in ((batch, 3, 2, 7, 5), (4, 2, 3, 3)))
    f = es.grad(lambda s, w: convolved(s, w, None), (0, 1))
    for got, want in zip(f(s, w), es.interpret(f)(s, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_checked_runs_of_slices():
    part = KernelBuffer(dt.f32, (2, 4, 3)).part(1, 2)
    spanned = np.arange(part.size)
    np.testing.assert_array_equal(elements(spanned, part), np.arange(24).reshape(2, 4, 3)[:, :2])
    kernel = Kernel((), (part,))
    before, after = np.zeros(part.nbytes, np.uint8), np.zeros(part.nbytes, np.uint8)
    _check_untouched(kernel, 0, before, after, None)
    after[4 * 8] = 1  # between the two rows of the part
    with pytest.raises(KernelFault, match="1 elements in the gaps of the buffer"):
        _check_untouched(kernel, 0, before, after, None)
    after[4 * 13] = 1
    with pytest.raises(KernelFault, match=r"element \[1, 0, 1\]"):
        _check_untouched(kernel, 0, before, after, None)
