"""Copies whose source and result share memory: values, gradients, and the kernels that are left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest

import einsmith as es
from einsmith.driver.executable import Executable
from einsmith.schedule import coalesce
from tests.fuzz.check import agree
from tests.fuzz.variants import coalescing
from tests.schedule.test_layout import with_gradients

F = es.functional


def copies(plan) -> int:
    """Kernels of a plan that copy elements in one of their pieces, those inside of joined kernels included."""
    return sum(coalesce._copies(call) for _, call, _ in plan.kernel_calls())


def shuffle(x, groups: int):
    n, c, h, w = x.shape
    return x.reshape(n, groups, c // groups, h, w).transpose(0, 2, 1, 3, 4).reshape(n, c, h, w)


CASES: dict[str, tuple[Callable, list[tuple[int, ...]]]] = {
    "channel shuffle": (
        lambda x, w, v: F.conv2d(shuffle(F.relu(F.conv2d(x, w, groups=3)), 3), v, padding=1, groups=12),
        [(2, 9, 7, 5), (12, 3, 1, 1), (12, 1, 3, 3)],
    ),
    "channel shuffle of one group": (
        lambda x, w, v: F.conv2d(shuffle(F.relu(F.conv2d(x, w)), 1), v, padding=1, groups=7),
        [(2, 5, 7, 5), (7, 5, 1, 1), (7, 1, 3, 3)],
    ),
    "channel shuffle of groups of one": (
        lambda x, w, v: F.conv2d(shuffle(F.relu(F.conv2d(x, w)), 7), v, padding=1, groups=7),
        [(2, 5, 17, 1), (7, 5, 1, 1), (7, 1, 3, 1)],
    ),
    "two shuffles": (
        lambda x, w, v: F.conv2d(shuffle(F.tanh(shuffle(F.conv2d(x, w, groups=2), 2)), 5), v, padding=1),
        [(1, 4, 15, 17), (10, 2, 1, 1), (3, 10, 3, 3)],
    ),
    "pad, dilated convolution, depth to space, concatenation": (
        lambda x, w, v: F.cat([F.pixel_shuffle(F.conv2d(x, w, padding=2, dilation=2), 2), v], 1),
        [(2, 3, 7, 5), (8, 3, 3, 3), (2, 3, 14, 10)],
    ),
    "depth to space that a convolution reads": (
        lambda x, w, v: F.conv2d(F.pixel_shuffle(F.relu(F.conv2d(x, w, padding=1)), 3), v, padding=1),
        [(1, 2, 5, 16), (9, 2, 3, 3), (4, 1, 3, 3)],
    ),
    "space to depth": (
        lambda x, w, v: F.conv2d(F.pixel_unshuffle(F.relu(F.conv2d(x, w, padding=1)), 2), v),
        [(2, 2, 6, 34), (3, 2, 3, 3), (5, 12, 1, 1)],
    ),
    "fire": (
        lambda x, w, v: F.conv2d(F.cat([F.relu(F.conv2d(x, w)), F.relu(F.conv2d(x, v, padding=1))], 1), v, padding=1),
        [(2, 8, 7, 9), (3, 8, 1, 1), (5, 8, 3, 3)],
    ),
    "dense": (
        lambda x, w, v: F.cat([y := F.relu(F.conv2d(x, w)), F.relu(F.conv2d(F.cat([x, y], 1), v)), x], 1).mean((2, 3)),
        [(2, 5, 7, 3), (4, 5, 1, 1), (3, 9, 1, 1)],
    ),
    "dense block": (
        lambda x, w, v: F.conv2d(
            z := F.cat([y := F.cat([a := F.tanh(x), F.relu(F.conv2d(a, w, padding=1))], 1), F.tanh(F.conv2d(y, v))], 1),
            F.cat([v, v[:, :3]], 1),
        ).mean((2, 3)) + z.mean(),
        [(2, 5, 7, 3), (4, 5, 3, 3), (3, 9, 1, 1)],
    ),
    "space to depth in a row": (
        lambda x, w, v: F.pixel_unshuffle(F.relu(x * w + v), 2) + 1,
        [(3, 1, 4, 10), (1, 1, 1, 1), (1, 1, 1, 1)],
    ),
    "transposed": (
        lambda x, w, v: F.softmax(x @ w, 1).transpose(1, 0) @ v,
        [(17, 5), (5, 13), (17, 3)],
    ),
    "split": (
        lambda x, w, v: F.conv2d(F.cat([(y := F.relu(F.conv2d(x, w)))[:, 1:4], F.tanh(y[:, 4:])], 1), v, padding=1),
        [(2, 3, 6, 7), (9, 3, 1, 1), (2, 8, 3, 3)],
    ),
    "every other": (
        lambda x, w, v: F.conv2d(F.relu(F.conv2d(x, w, padding=1))[:, ::2, ::2, 1::2], v),
        [(2, 3, 7, 33), (6, 3, 3, 3), (4, 3, 1, 1)],
    ),
    "turned": (
        lambda x, w, v: F.conv2d(F.flip(F.relu(F.conv2d(x, w)), 3), v, padding=1),
        [(2, 3, 7, 17), (6, 3, 1, 1), (4, 6, 3, 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_programs_without_copies(case, seed, rng, monkeypatch):
    """A function and its gradients, against the evaluator, on both numbers of threads; twice, bit by bit."""
    graph, given, inputs = with_gradients(*CASES[case], rng)
    monkeypatch.setenv("EINSMITH_PLANS", "0")
    for threads in (1, 2):
        with nullcontext() if seed is None else coalescing(seed):
            run = Executable(graph.graph, graph.bind, threads)
        result, again = run(given)[1], run(given)[1]
        agree(result, graph.graph, inputs, f"{case}, {threads} threads")
        assert all(a.tobytes() == b.tobytes() for a, b in zip(result, again, strict=True))


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_checked_runs(case, is_forced, rng, monkeypatch):
    """Every kernel in guarded memory, against the evaluator."""
    monkeypatch.setenv("EINSMITH_CHECK", "2")
    monkeypatch.setenv("EINSMITH_PLANS", "0")
    f, shapes = CASES[case]
    arrays = [rng.standard_normal(s).astype(np.float32) * 0.3 for s in shapes]
    g = es.grad(lambda *xs: (f(*xs) * f(*xs)).sum(), (0, 1, 2))
    with coalescing(0) if is_forced else nullcontext():
        result = g(*arrays)
    for got, want in zip(result, es.interpret(g)(*arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
