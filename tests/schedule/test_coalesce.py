"""Copies whose source and result share memory: values, gradients, and the kernels that are left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
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


class Shuffled(es.nn.Module):
    """A unit of ShuffleNet without its last norm."""

    def __init__(self, channels: int = 24, groups: int = 3):
        self.conv1, self.norm = es.nn.Conv2d(channels, channels, 1, groups=groups), es.nn.BatchNorm2d(channels)
        self.shuffle = es.nn.ChannelShuffle(groups)
        self.depthwise = es.nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.conv2 = es.nn.Conv2d(channels, channels, 1, groups=groups)

    def forward(self, x):
        return self.conv2(self.depthwise(self.shuffle(F.relu(self.norm(self.conv1(x))))))


def trained(module: type, x: np.ndarray, steps: int = 2) -> tuple[list[np.ndarray], es.TrainStep]:
    """What a network has learned in a few steps, and the step."""
    es.manual_seed(5)
    step = es.TrainStep(module(), lambda y, t: ((y - t) ** 2).mean(), es.optim.SGD(lr=0.05), threads=1)
    target = np.zeros(step.model(x).shape, np.float32)
    for _ in range(steps):
        step(x, target)
    return [np.array(v) for v in step.model.state_dict().values()], step


def plan_of(step: es.TrainStep):
    (run,) = step.compiler.programs.values()
    return run.plan


@pytest.mark.parametrize("images", [1, 3])
def test_a_training_step_has_no_kernel_for_a_shuffle(images, rng, monkeypatch):
    monkeypatch.setenv("EINSMITH_PLANS", "0")
    x = rng.standard_normal((images, 24, 17, 15)).astype(np.float32)
    with coalescing(1):
        forced, step = trained(Shuffled, x)
    assert copies(plan_of(step)) == 0
    assert len(plan_of(step).copies) == 2 and all(p.is_inside for p in plan_of(step).copies.values())
    plain, priced = trained(Shuffled, x)
    assert copies(plan_of(priced)) == 0
    assert "lies in" in priced.plan and "with a copy" in priced.plan
    monkeypatch.setenv("EINSMITH_WITHOUT", "copy coalescing")
    without, apart = trained(Shuffled, x)
    assert copies(plan_of(apart)) == 2 and not plan_of(apart).copies
    for some in (forced, plain):
        for a, b in zip(some, without, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_depth_to_space_and_concatenation(rng, monkeypatch):
    """They take no kernels of their own where all that is copied is computed."""
    monkeypatch.setenv("EINSMITH_PLANS", "0")
    x = rng.standard_normal((2, 4, 10, 9)).astype(np.float32)
    f = lambda x, w, v: F.conv2d(  # noqa: E731
        F.cat([F.pixel_shuffle(F.relu(F.conv2d(x, w, dilation=2, padding=2)), 2), F.relu(F.conv2d(x, v, padding=1))
               .reshape(2, 4, 20, 18)], 1), v[:1, :, :1, :1].tile((1, 2, 1, 1)))  # fmt: skip
    w, v = (rng.standard_normal((16, 4, 3, 3)).astype(np.float32) for _ in range(2))
    graph, given, inputs = with_gradients(f, [a.shape for a in (x, w, v)], rng)
    with coalescing(0):
        run = Executable(graph.graph, graph.bind, 1)
    agree(run(given)[1], graph.graph, inputs, "depth to space and concatenation")
    kernels = [c for _, c, _ in run.plan.kernel_calls() if coalesce._copies(c)]
    assert all(max(b.size for b in c.kernel.buffers) <= w.size for c in kernels), "an image is copied"


@pytest.mark.parametrize("seed", [1, 6])
def test_rows_do_not_keep_what_another_kernel_stores_in_part(seed, rng):
    """A concatenation that a pool reads is joined with it by rows, until a convolution stores a part of it."""
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 2, 4, 17), (3, 2, 1, 1)))

    def run(x, w):
        return F.max_pool2d(F.cat([x, F.relu(F.conv2d(x, w, None))], 1), 2, 2)

    traced = trace_call(run, (x, w), {})
    with coalescing(seed):
        made = Executable(traced.graph, traced.bind, 2)
    agree(made([x, w])[1], traced.graph, [x, w], f"seed {seed}")
