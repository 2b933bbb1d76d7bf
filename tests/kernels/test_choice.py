"""A choice leaves out what cannot win, and is the same as over every pattern and configuration."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_shapes
from einsmith.base import dtypes as dt
from einsmith.codegen import ssa
from einsmith.codegen.loopnest import nest
from einsmith.cost.facts import Target
from einsmith.cost.roofline import launch_overhead
from einsmith.kernels import autoconfig
from einsmith.kernels.contraction import contraction_cost as contraction_cost
from einsmith.kernels.contraction import features
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION
from einsmith.kernels.pattern import Pattern
from einsmith.kernels.reduction import reduction_cost as reduction_plan
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.planner import fuse
from einsmith.tuning.kernels.decisions import lower_choice
from tests.kernels.samples import (
    conv,
    conv_dw,
    conv_dx,
    depthwise,
    depthwise_dw,
    depthwise_dx,
    product,
    statistics,
    strided_conv_dx,
    transpose,
)

SERVER = Target(
    vector_bytes=64,
    vector_registers=32,
    l1=48 << 10,
    l2=1 << 20,
    l3=32 << 20,
    cores=2,
    fma_per_second=1.2e11,
    bytes_per_second=(5e11, 2e11, 8e10),
    l3_bandwidth=1.5e11,
)
KERNELS = {
    "matrices": product(64, 300, 257), "transposed": product(33, 1000, 64, "NT"), "row": product(1, 4096, 512),
    "few": product(3, 5, 7), "convolution": conv(4, 16, 14, 14, 32, 3, 3, 1), "first": conv(16, 1, 28, 28, 6, 5, 5, 2),
    "backward": conv_dx(2, 8, 14, 14, 16, 3, 3, 1), "weights": conv_dw(2, 8, 15, 15, 16, 3, 3, 1),
    "borders": conv(2, 256, 3, 3, 256, 3, 3, 1),
}  # fmt: skip


SHORT = {
    "few": product(3, 5, 7), "rows": product(24, 16, 20), "row": product(1, 40, 9),
    "window": conv(1, 2, 9, 9, 3, 3, 3, 1), "pieces": strided_conv_dx(1, 2, 3, 4, 2),
    "stencil": depthwise(1, 2, 9, 9, 3, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("cores", [1, 2, 8])
def test_short_work_wakes_no_other_thread(name: str, cores: int) -> None:
    """Its launches, which are priced by their tasks, have one each."""
    kernel, target = SHORT[name], replace(SERVER, cores=cores)
    chosen = autoconfig.choose(kernel, target)
    tasks = [x.tasks for x in chosen.pattern.lower(kernel, chosen.config, target).launches]
    assert max(tasks) == 1 or cores == 1
    assert chosen.cost.launch == pytest.approx(sum(launch_overhead(1, target) for _ in tasks), rel=0.2)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", [SERVER, Target(), replace(SERVER, cores=1)], ids=["server", "small", "one"])
def test_the_choice_is_the_least_of_all(name: str, target: Target) -> None:
    kernel = KERNELS[name]
    chosen = autoconfig.choose(kernel, target)
    pattern, config, cost = chosen.alternatives[0]
    assert (pattern, config) == (chosen.pattern.name, chosen.config) and cost.rank == chosen.cost.rank
    assert len(chosen.alternatives) == len({(p, c) for p, c, _ in chosen.alternatives})
    best = CONTRACTION.best(kernel, target)
    first = CONTRACTION.configs(kernel, target)[0]
    assert (
        best == first
        and CONTRACTION.best(kernel, target, 0.999999 * CONTRACTION.cost(kernel, first, target).rank) is None
    )


@pytest.mark.parametrize("name", KERNELS)
def test_bounds_are_below_every_cost(name: str) -> None:
    kernel = KERNELS[name]
    for pattern in autoconfig.PATTERNS:
        if type(pattern).bound is not Pattern.bound and pattern.allowed(SERVER) and pattern.match(kernel):
            costs = [pattern.cost(kernel, c, SERVER).rank for c in pattern.configs(kernel, SERVER)]
            assert 0 < pattern.bound(kernel, SERVER) <= min(costs)


PIECES = {
    "strided": lambda: conv_gradient(2, 64, 28, 96, 3, 1, 0), "depthwise": lambda: depthwise_dx(4, 96, 28, 28, 5, 2),
    "two kinds": lambda: conv_gradient(8, 96, 28, 96, 3, 96, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("target", [SERVER, replace(SERVER, cores=1)], ids=["two", "one"])
def test_bounds_of_several_pieces_are_below_every_cost(name: str, target: Target) -> None:
    kernel = PIECES[name]()
    for pattern in autoconfig.PATTERNS:
        if type(pattern).bound is not Pattern.bound and pattern.match(kernel):
            costs = [pattern.cost(kernel, c, target).rank for c in pattern.configs(kernel, target)]
            assert 0 < pattern.bound(kernel, target) <= min(costs)


@pytest.mark.parametrize("name", PIECES)
def test_the_choice_for_several_pieces(name: str) -> None:
    """What a contraction's first piece costs, and the bytes that each of them goes through, rule it out soon; a kernel
    each for pieces with a reduction and without is ruled out by one of them."""
    kernel = PIECES[name]()
    chosen = autoconfig.choose(kernel, SERVER)
    assert chosen.cost.rank <= 1.02 * min(cost.rank for _, _, cost in chosen.alternatives)  # pieces one by one
    assert autoconfig.choose_below(kernel, SERVER, chosen.cost.rank) is None
    assert autoconfig.choose_below(kernel, SERVER, 1.001 * chosen.cost.rank) is chosen
    if CONTRACTION.match(kernel):
        costs = [CONTRACTION.cost(kernel, c, SERVER).rank for c in CONTRACTION.configs(kernel, SERVER)]
        assert 0 < CONTRACTION.bound(kernel, SERVER) <= min(costs)
        assert CONTRACTION.best(kernel, SERVER, 0.2 * min(costs)) is None
        assert CONTRACTION.best(kernel, SERVER, 1.02 * min(costs)) == CONTRACTION.best(kernel, SERVER)


class Looks:
    """Counts what choosing looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.predicted: list[int] = []
        self.settings = 0
        self.reductions = set[Kernel]()

        def predict(table, target, old=contraction_cost.predict):
            self.predicted.append(len(table.mr))
            return old(table, target)

        def numbers(old=features.Features, **values):
            self.settings += 1
            return old(**values)

        def boxes_of(kernel, old=reduction_plan.boxes_of):
            self.reductions.add(kernel)
            return old(kernel)

        monkeypatch.setattr(contraction_cost, "predict", predict)
        monkeypatch.setattr(features, "Features", numbers)
        monkeypatch.setattr(reduction_plan, "boxes_of", boxes_of)

    @property
    def found(self) -> tuple[int, int, int, int]:
        """Calls of the prediction, configurations predicted, settings, kernels seen as reductions."""
        return len(self.predicted), sum(self.predicted), self.settings, len(self.reductions)


def conv_gradient(b: int, c: int, size: int, o: int, taps: int, groups: int, of: int) -> Kernel:
    """Of a convolution at stride 2: by its input (0) or its weights (1)."""
    shapes = [(b, c, size, size), (o, c // groups, taps, taps), (b, o, size // 2, size // 2)]

    def f(x, w, g):
        both = [x, w]

        def forward(a):
            return F.conv2d(*both[:of], a, *both[of + 1 :], None, 2, taps // 2, 1, groups)

        return es.vjp(forward, both[of])[1](g)

    (call,) = fuse(run_passes(trace_shapes(f, [(s, dt.f32) for s in shapes]).graph), None).calls
    return call.kernel


@pytest.mark.parametrize(
    ("kernel", "most"),
    [
        (product(512, 520, 500), (1, 160, 2, 0)),
        (conv(4, 64, 28, 28, 128, 3, 3, 1), (1, 280, 4, 0)),
        (conv_gradient(2, 64, 28, 96, 3, 1, 0), (4, 460, 16, 0)),
        (conv_gradient(16, 256, 14, 512, 3, 1, 0), (3, 430, 10, 0)),
        (conv_gradient(2, 64, 28, 96, 3, 1, 1), (1, 200, 6, 0)),
        (conv_gradient(8, 96, 28, 96, 3, 96, 0), (0, 0, 0, 0)),
        (depthwise(4, 96, 28, 28, 3, 1, 2), (0, 0, 0, 0)),
        (depthwise_dx(4, 96, 28, 28, 5, 2), (0, 0, 0, 0)),
        (depthwise_dw(4, 96, 28, 28, 5, 2), (0, 0, 0, 0)),
    ],
    ids=["product", "3x3", "strided dX", "strided dX in pairs", "strided dW", "depthwise strided dX", "depthwise",
         "depthwise dX", "depthwise dW"],
)  # fmt: skip
def test_a_choice_looks_at_little(kernel, most, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds spare reductions and contractions of many pieces; the pieces of a contraction are
    predicted at once, in a few hundred configurations, with windows that may pay and, after the first piece, in few
    settings; pieces that are made with others are not searched; and what was found is not predicted again."""
    looks = Looks(monkeypatch)
    target = replace(SERVER, l2=SERVER.l2 + 64)  # nobody has asked for this one
    autoconfig.choose(kernel, target)
    assert all(x <= n for x, n in zip(looks.found, most, strict=True)), looks.found


@pytest.mark.thinned(2)
@pytest.mark.parametrize("taps", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("target", [SERVER, replace(SERVER, cores=1), Target()], ids=["server", "one", "small"])
def test_dominated_patterns_cost_no_less(taps: int, stride: int, target: Target) -> None:
    sizes = (4, 48, 28, 28, taps, taps // 2)
    for kernel in (depthwise(*sizes, stride), depthwise_dw(*sizes, stride), depthwise_dx(*sizes)):
        chosen = autoconfig.choose(kernel, target)
        if chosen.pattern.name == "stencil":
            others = chosen.pattern.dominates(kernel, chosen.config)
            assert others or target.vector_registers == 16
            assert all(0.97 * chosen.cost.rank <= cost.rank for name, _, cost in chosen.alternatives if name in others)


def test_a_product_is_no_stencil_alone() -> None:
    """Each element of a matrix is read once, so that a stencil keeps nothing which others read again."""
    stencil = autoconfig.pattern_of("stencil")
    kernels = [k for k in (product(1, 64, 9), product(9, 64, 1), product(64, 1, 9)) if stencil.match(k)]
    configs = [(k, c) for k in kernels for c in stencil.configs(k, SERVER)]
    assert configs and not any(stencil.dominates(*x) for x in configs)


def test_emitted_instructions_are_released(new_objects) -> None:
    """Choosing and lowering keep analyses of kernels, but no instructions: those are many small objects, of which every
    collection of garbage in the process would go through all."""

    def instructions() -> int:
        gc.collect()
        return sum(issubclass(type(x), (ssa.Op, nest.Builder)) for x in gc.get_objects())

    before = instructions()
    for kernel in (*KERNELS.values(), *(make() for make in PIECES.values()), statistics(40, 50), transpose(40, 50)):
        lower_choice(autoconfig.choose(kernel, SERVER))
    assert instructions() <= before


def test_winograd_rules_the_direct_contraction_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer products at less than the peak are known to be faster than all of them at the peak."""
    looks = Looks(monkeypatch)
    target = replace(SERVER, winograd=True, l2=SERVER.l2 + 64)
    kernel = conv(4, 256, 28, 28, 256, 3, 3, 1)
    chosen = autoconfig.choose(kernel, target)
    assert chosen.pattern.name == "winograd" and looks.settings <= 4, looks.found
    assert chosen.cost.rank <= CONTRACTION.bound(kernel, target)


def test_winograd_that_cannot_win_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few results at many channels: the transforms of the filters take longer than the products."""
    looks = Looks(monkeypatch)
    target = replace(SERVER, winograd=True, l2=SERVER.l2 + 64)
    found = autoconfig.pattern_of("winograd").best(conv(1, 512, 7, 7, 512, 3, 3, 1), target)
    assert found is None and not looks.predicted


DOMINATED = {
    "convolution": lambda: conv(1, 3, 224, 224, 96, 7, 7, 0, 2),
    "product": lambda: product(384, 1536, 3152, "TN"),
    "small": lambda: product(64, 10, 256, "NT"),
}


@pytest.mark.parametrize("name", DOMINATED)
def test_a_choice_below_a_limit_is_the_choice(name):
    """A limit that excludes a product does not let a pattern win that it dominates, nor keep it as the choice."""
    kernel = DOMINATED[name]()
    chosen = autoconfig.choose(kernel, SERVER)
    for factor in (0.5, 0.9, 0.97, 0.999, 1.001, 1.5):
        autoconfig._CHOSEN.clear()
        below = autoconfig.choose_below(kernel, SERVER, factor * chosen.cost.rank)
        assert (below is None) == (factor < 1)
        assert below is None or (below.pattern, below.config) == (chosen.pattern, chosen.config)
