"""What a plan's kernels move from memory and to it, by a cache of whole tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import einsmith as es
from einsmith.schedule.residency import memory_seconds, memory_traffic, plan_seconds
from einsmith.tuning.calibration import calibrate
from tests.kernels.test_rows import compiled

KIB = 1 << 10


def traffic(f, args, cache: int) -> list[list[int]]:
    """Return the bytes that each call moves, by tensor, with a cache of so many bytes."""
    run, _, _ = compiled(f, args, 1)
    target = replace(calibrate.target(1), l3=cache, kept=1.0)
    return [sorted(moved.values()) for moved in memory_traffic(run.plan.calls, target)]


def arrays(*sizes: int) -> list[np.ndarray]:
    """Return arrays of so many KiB each."""
    return [np.ones((n, KIB // 4), np.float32) for n in sizes]


def test_an_operand_that_the_cache_holds_is_read_once() -> None:
    def f(x, w):
        y = x @ w
        return es.op("m[i] = max[j](y[i,j])")(y=y)

    x, w = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)
    (product, largest) = traffic(f, [x, w], 1 << 20)
    assert product == [16 * KIB, 16 * KIB] and largest == []


def test_a_result_that_has_left_the_cache_is_read_again() -> None:
    """The second product's operands push the first one's result out, which is written back and fetched."""

    def f(x, w, u, v):
        y, z = x @ w, u @ v
        return es.op("m[i] = max[j](z[i,j])")(z=z), es.op("m[i] = max[j](y[i,j])")(y=y)

    args = [np.ones((64, 64), np.float32) for _ in range(4)]
    run, _, _ = compiled(f, args, 1)
    calls = sorted(run.plan.calls, key=lambda c: len(c.kernel.shape), reverse=True)  # the products first
    (first,) = (t for t, w in zip(calls[0].tensors, calls[0].written, strict=True) if w)
    calls[2:] = sorted(calls[2:], key=lambda c: first in c.tensors)  # the first product's reader last
    assert first in calls[-1].tensors

    def total(cache: int) -> int:
        target = replace(calibrate.target(1), l3=cache, kept=1.0)
        return sum(sum(m.values()) for m in memory_traffic(calls, target))

    assert total(1 << 20) == 4 * 16 * KIB
    assert total(40 * KIB) > total(1 << 20)


def test_a_result_larger_than_the_cache_is_fetched_and_written() -> None:
    def f(x, y):
        return x @ y

    ((first, *_, largest),) = traffic(f, [np.ones((64, 4), np.float32), np.ones((4, 64), np.float32)], 8 * KIB)
    assert first == KIB and largest == 2 * 16 * KIB


def test_a_plan_takes_no_less_than_its_traffic() -> None:
    def f(x, y):
        return x + y

    (x, y) = arrays(4096, 4096)
    run, _, _ = compiled(f, [x, y], 1)
    target = calibrate.target(1)
    moved = sum(sum(m.values()) for m in memory_traffic(run.plan.calls, target))
    assert plan_seconds(run.plan, lambda kernel, target: 0.0, target) == memory_seconds(moved, target) > 0
    assert plan_seconds(run.plan, lambda kernel, target: 1.0, target) == 1.0
