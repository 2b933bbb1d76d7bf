"""Configurations of the patterns of cards: they lower, verify and agree with the evaluator; their decision texts, and
their predicted costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.base.environment import CHECK, PLANS
from einsmith.base.errors import ArgumentError, CompileError
from einsmith.base.numerics import Numerics
from einsmith.cost.facts import Target
from einsmith.driver import registry
from einsmith.gpu.cards import GpuTarget, card
from einsmith.gpu.tiles.patterns import TILE_PATTERNS, TilePattern
from einsmith.gpu.tiles.pieces import TileConfig
from einsmith.gpu.tiles.price import price, programs_of
from einsmith.gpu.tiles.times import TileProgram, Times, cost_of_launches, launch_times
from einsmith.ir.views import storage
from einsmith.kernels import autoconfig
from einsmith.kernels.autoconfig import predicted
from einsmith.kernels.pattern import cost_of
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel, KernelBuffer
from einsmith.schedule.layout.dimension_orders import innermost
from einsmith.tuning.kernels import decisions
from tests.driver.evaluated import Evaluated
from tests.kernels import samples as s
from tests.kernels.layouts import LAYOUTS, laid_out
from tests.tiles.running import check
from tests.tiles.test_kernels import SAMPLES, cases, points

CHANNELS_LAST = LAYOUTS[0]
H100, H200 = card("h100"), card("H200")
TF32 = H100.for_numerics(Numerics(precision="tf32"))
MOST = 4000
"""Points of a kernel that is run."""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoconfig, "OTHERS", {**autoconfig.OTHERS, GpuTarget().backend: TILE_PATTERNS})


def matching(kernel: Kernel) -> list[TilePattern]:
    return [p for p in TILE_PATTERNS if isinstance(p, TilePattern) and p.match(kernel)]


def drawn(pattern: TilePattern, kernel: Kernel, rng: np.random.Generator) -> TileConfig:
    """A legal configuration of the space, which need not be one that is worth pricing."""
    space = pattern.space(kernel, H100)
    while True:
        config = TileConfig(**{gene: int(rng.choice(values)) for gene, values in space.items()})
        if not pattern.legal(kernel, config, H100):
            return config


def conv(channels: int, batch: int = 64, extent: int = 28) -> Kernel:
    return s.conv(batch, channels, extent, extent, channels, 3, 3, 1)


def seconds(kernel: Kernel, target: GpuTarget = H100) -> float:
    return autoconfig.choose(kernel, target).cost.seconds


# ------------------------------------------------------------------------------------------------------ what they make


@pytest.mark.thinned(2)
@pytest.mark.parametrize("sample", SAMPLES)
def test_configurations_agree_with_the_evaluator(sample: str, rng: np.random.Generator) -> None:
    """Of a case of each sample, with each pattern: a configuration that is worth pricing, and another legal one."""
    chosen = [c for c in cases(sample) if c.kernel is not None and 0 < points(c.kernel) < MOST]
    if not chosen:
        chosen = [c for c in cases(sample) if c.kernel is not None][:1]
    case = chosen[int(rng.integers(len(chosen)))]
    kernel = case.kernel
    assert kernel is not None
    for pattern in matching(kernel):
        configs = pattern.configs(kernel, H100)
        for config in (configs[int(rng.integers(len(configs)))], drawn(pattern, kernel, rng)):
            tiling = config.tiling(H100.precision)
            check(kernel, rng, tiling, pattern.kind, ("interpreter",), case.limits)


# ----------------------------------------------------------------------------------------------------------- decisions


@pytest.mark.parametrize("sample", ["product", "softmax", "embedding", "depthwise", "bias relu"])
def test_decision_texts(sample: str, rng: np.random.Generator) -> None:
    for case in list(cases(sample))[:3]:
        kernel = case.kernel
        assert kernel is not None
        for pattern in matching(kernel):
            for config in (*pattern.configs(kernel, H100)[:3], drawn(pattern, kernel, rng)):
                text = decisions.format_choice(pattern, config)
                choice = decisions.parse_choice(kernel, H100, text)
                assert (choice.pattern, choice.config) == (pattern, config)


def test_a_decision_may_leave_genes_out() -> None:
    choice = decisions.parse_choice(s.product(512, 512, 512), H100, "tiled contraction m=128 n=128 k=32")
    assert (choice.config.m, choice.config.n, choice.config.k) == (128, 128, 32)


@pytest.mark.parametrize(
    "text, message",
    [
        ("tiled contraction m=100", "'m=100' is no gene of tiled contraction"),
        ("tiled contraction m=256 n=256 k=256 stages=4", r"bytes of shared memory, of 232448"),
        ("tiled reduction m=4096 k=4096", "has more than the 16384 of registers"),
        ("tiled rows m=64", "must begin with a pattern that takes"),
    ],
)
def test_decisions_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        decisions.parse_choice(s.product(512, 512, 512), H100, text)


def test_configurations_are_legal() -> None:
    for sample in SAMPLES:
        case = next(iter(cases(sample)))
        assert case.kernel is not None
        for pattern in matching(case.kernel):
            for config in pattern.configs(case.kernel, H100):
                assert not pattern.legal(case.kernel, config, H100), f"{case}: {config}"


# --------------------------------------------------------------------------------------------------------------- costs


def test_costs_are_finite_and_above_their_bounds() -> None:
    for sample in SAMPLES:
        for case in cases(sample):
            kernel = case.kernel
            assert kernel is not None
            for pattern in matching(kernel):
                floor = pattern.floor(kernel, H100)
                assert 0 <= floor < inf and bool(floor) is (0 not in kernel.shape)
                for config in pattern.configs(kernel, H100):
                    cost = cost_of(pattern, kernel, config, H100)
                    assert cost.seconds >= floor * (1 - 1e-9), f"{case}: {pattern.name} {config}"


LARGER = {
    "points": (lambda n: s.bias_relu(n, 1 << 10), 1 << 8),
    "sums of rows": (lambda n: s.rows("sum", n), 1 << 14),
    "sums of columns": (lambda n: s.columns("sum", n, 1 << 12), 1 << 6),
    "a product's rows": (lambda n: s.product(n, 512, 512), 128),
    "a product's terms": (lambda n: s.product(512, 512, n), 128),
    "a convolution": (lambda n: conv(64, n, 14), 4),
    "a stencil": (lambda n: s.depthwise(n, 32, 28, 28, 3, 1), 4),
    "an embedding": (lambda n: s.embedding(1 << 10, n, 64), 64),
    "softmax": (lambda n: SAMPLES["softmax"].make(m=n, n=256), 64),
}


@pytest.mark.parametrize("name", LARGER)
def test_more_work_is_never_cheaper(name: str) -> None:
    make, least = LARGER[name]
    costs = [seconds(make(least << n)) for n in range(0, 8, 2)]
    assert costs == sorted(costs) and costs[-1] > costs[0]


def test_more_bytes_are_never_cheaper() -> None:
    work = price(s.bias_relu(64, 64), "pointwise", TileConfig(), H100)[0]
    assert isinstance(work, Times)
    kernel = s.bias_relu(1 << 12, 1 << 10)
    apart = Kernel(kernel.stages, tuple(_apart(b) for b in kernel.buffers))
    assert seconds(apart) > 2 * seconds(kernel)


def _apart(b: KernelBuffer) -> KernelBuffer:
    """The buffer with 8 elements from one to the next."""
    return KernelBuffer(b.dtype, b.shape, b.non_temporal, tuple(8 * x for x in b.strides))


@pytest.mark.parametrize("target", [H100, TF32], ids=["fp32", "tf32"])
@pytest.mark.parametrize("make", [s.conv, s.conv_dx], ids=["forward", "dx"])
def test_channels_last_is_cheaper(make: Any, target: GpuTarget) -> None:
    kernel = make(64, 128, 28, 28, 128, 3, 3, 1)
    last = laid_out(kernel, CHANNELS_LAST)
    assert seconds(last, target) < 0.75 * seconds(kernel, target)


def test_precisions_are_cheaper_the_less_they_are() -> None:
    kernel = laid_out(conv(128), CHANNELS_LAST)
    i, j, k = s.axes(3)
    halves = [s.cast(s.read(n, *at, dtype=dt.bf16), dt.f32) for n, at in enumerate(((i, k), (j, k)))]
    sizes = [(dt.bf16, (4096, 4096))] * 2
    bf16 = s.sum_of((4096, 4096), sizes, (4096,), s.times(*halves))
    assert seconds(kernel, TF32) < 0.6 * seconds(kernel, H100)
    assert seconds(bf16) < 0.7 * seconds(s.product(4096, 4096, 4096, "NT"), TF32)


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_h200_is_not_slower(sample: str) -> None:
    case = next(iter(cases(sample)))
    assert case.kernel is not None
    assert seconds(case.kernel, H200) <= seconds(case.kernel, H100)


def test_terms_are_shared_where_tiles_are_few() -> None:
    few = autoconfig.choose(s.product(64, 64, 1 << 16), H100).config
    many = autoconfig.choose(s.product(4096, 4096, 1 << 10), H100).config
    assert few.split > 8 and many.split == 1
    assert len(price(s.product(64, 64, 1 << 16), "contraction", few, H100)) == 2


ISSUED = {
    ("NCHW", "forward"): 1668, ("NCHW", "dx"): 1444, ("NCHW", "dw"): 834,
    ("channels last", "forward"): 332, ("channels last", "dx"): 420, ("channels last", "dw"): 792,
}  # fmt: skip
"""Issue cycles of a turn of a 3x3 convolution of 128 channels in tf32, tiles of 128 by 128 by 32, 8 warps: instructions
of a warp in the loop of Triton 3.6's machine code for sm_90, times 8 warps, over 4 schedulers."""


@pytest.mark.parametrize("layout, make", ISSUED, ids=" ".join)
def test_instructions_are_those_of_the_machine_code(layout: str, make: str) -> None:
    from einsmith.gpu.tiles.price import ISSUED as part

    kernel = {"forward": s.conv, "dx": s.conv_dx, "dw": s.conv_dw}[make](64, 128, 28, 28, 128, 3, 3, 1)
    if layout == "channels last":
        kernel = laid_out(kernel, CHANNELS_LAST)
    (program,) = programs_of(kernel, TileConfig(128, 128, 32, 1, 8, 3), TF32)
    assert program.issue * part == pytest.approx(ISSUED[layout, make], rel=0.3)


def test_waves() -> None:
    """A program more than fit at once takes a second wave; a launch of none takes none."""
    (t,) = price(s.product(128 * 132, 128, 512), "contraction", TileConfig(128, 128, 32, 1, 8, 3), H100)
    (more,) = price(s.product(128 * 132 * 8, 128, 512), "contraction", TileConfig(128, 128, 32, 1, 8, 3), H100)
    assert more.turns > 3 * t.turns
    assert cost_of_launches([]).seconds == 0
    p = TileProgram(8, 128, 0, 1.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert p.resident(H100) == 2 and launch_times(p, 264, 0.0, H100).ends < launch_times(p, 265, 0.0, H100).ends


# ---------------------------------------------------------------------------------------------------------- precisions


def test_cards_compute_in_all_precisions() -> None:
    rates = {p: H100.for_numerics(Numerics(precision=p)) for p in GpuTarget.precisions}
    assert {p: t.precision for p, t in rates.items()} == {
        "fp32": "tf32x3", "tf32": "tf32", "bf16": "tf32x3", "fp16": "tf32x3",
    }  # fmt: skip
    assert rates["fp32"].fma_per_second < rates["tf32"].fma_per_second < rates["bf16"].fma_per_second
    assert replace(rates["fp32"], precision="ieee").precision == "ieee"


def test_a_processor_has_no_tf32() -> None:
    with pytest.raises(ArgumentError, match="'tf32' is one of graphics cards alone .* 'fp32' is at least as accurate"):
        Target().for_numerics(Numerics(precision="tf32"))


def test_steps_in_tf32_are_refused_before_anything_runs() -> None:
    model = es.nn.Linear(4, 3)
    before = model.state_dict()
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1), precision="tf32")
    batch = np.ones((2, 4), np.float32), np.array([0, 1])
    for run in (partial(step, *batch), partial(es.jit(model, precision="tf32"), batch[0])):
        with pytest.raises(ArgumentError, match="precision='tf32' is one of graphics cards alone"):
            run()
    assert all((before[n] == x).all() for n, x in model.state_dict().items())


# -------------------------------------------------------------------------------------------------------------- layouts


class Residual(es.nn.Module):
    """Two convolutions between sums of images, so that no image can change its order alone."""

    def __init__(self) -> None:
        self.stem = es.nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.convs = es.nn.ModuleList([es.nn.Conv2d(64, 64, 3, padding=1) for _ in range(4)])
        self.head = es.nn.Linear(64, 10)

    def forward(self, x):
        x = es.functional.relu(self.stem(x))
        for conv in self.convs:
            x = es.functional.relu(conv(x) + x)
        return self.head(x.mean((2, 3)))


class Unbuilt(Evaluated):
    """Plans programs for a card, and compiles nothing."""

    name, patterns = GpuTarget().backend, TILE_PATTERNS

    def __init__(self, target: Target):
        super().__init__()
        self.of = target

    def target(self, threads: int) -> Target:
        return self.of

    def compile(self, kernels: Sequence[Kernel], target: Target) -> list[CompiledKernel]:
        return [CompiledKernel(((0, 1, False),), 0, 0, "", "", predicted(k, target), 0) for k in kernels]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_images_of_a_step_lie_channels_last(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Unbuilt(H100)
    monkeypatch.setenv(CHECK.name, "0")
    monkeypatch.setenv(PLANS.name, "0")
    monkeypatch.setattr(registry, "BACKENDS", {**registry.BACKENDS, made.name: made})
    monkeypatch.setattr(registry, "DEFAULT", made)
    step = es.TrainStep(Residual(), es.functional.cross_entropy, es.optim.SGD(lr=0.1), precision=precision)
    step.compile(np.ones((16, 3, 112, 112), np.float32), np.zeros(16, np.int64))
    (program,) = step.compiler.programs.values()
    orders = program.plan.orders
    images = [t for _, c, _ in program.plan.kernel_calls() for t in map(storage, c.tensors) if t.shape[1:2] == (64,)]
    images = [t for t in dict.fromkeys(images) if len(t.shape) == 4 and t.shape[2] > 3]
    last = [t for t in images if t in orders and orders[t].order == innermost(t.shape, 1)]
    assert len(images) > 8 and len(last) == len(images)
