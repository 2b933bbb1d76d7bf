"""Which constants of the cost model decide anything? python -m benchmarks.constants --json FILE

Each constant is set, one at a time, to the value at which its term vanishes, and a configuration is chosen again for
kernels of random shapes and for those of training steps. A choice that is made without a constant is priced by the
whole model: its loss is that price over the price of the choice that the whole model makes, less 1. Nothing is measured
by the clock. A constant none of whose losses exceeds `--limit` decides nothing that the model itself can tell. With
`--steps` whole training steps are planned without a constant instead, as fusion, layouts and joint calls are chosen by
the same prices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.random import default_rng
from rich.table import Table

import einsmith as es
from benchmarks import choices, driver, plans, random_cases
from benchmarks.driver import KEPT, Parser, Results
from einsmith.cost.overheads import INSTRUCTIONS, Instructions, Overheads

FACTORS = (
    "rotate", "launched", "read_twice", "far_twice", "held", "panel", "long_row", "unaligned_loads",
)  # fmt: skip
"""Overheads that are factors or divisors: 1 takes them away."""
UNLIMITED = (
    "streams", "stencil_streams", "near_pages", "most_pages", "in_registers", "mask_registers", "most_begun", "strip",
)  # fmt: skip
"""Overheads that are limits: without them there is no limit."""
NORM = 64
"""The order of a norm that is all but the maximum."""
COUNTED_ONCE = ("gather", "pair", "gathered_lane", "uniform", "shift", "chain")
"""Instructions that are counted as one without their constant; others as none."""
NETWORKS = (
    "lenet5-b16", "capsulenet-b16", "shufflenet_v1-b16", "mobilenet_v2-b1", "resnet18-b16", "unet-b1", "gpt_small-b1",
    "vit_small-b16", "lstm_lm-b16-t35",
)  # fmt: skip


def neutral() -> dict[str, Any]:
    """The value of each constant that takes it away: of `Overheads` by its name, of `Instructions` with that before."""
    every: dict[str, Any] = {
        f.name: 1.0 if f.name in FACTORS else 1e9 if f.name in UNLIMITED else NORM if f.name == "overlap" else 0.0
        for f in fields(Overheads)
    }
    for f in fields(Instructions):
        if isinstance(getattr(INSTRUCTIONS, f.name), float):
            every[f"instructions.{f.name}"] = float(f.name in COUNTED_ONCE)
    return every


def targets() -> dict[str, Any]:
    """The machines that choices are made for: this one's facts, and a server with other vectors, where convolutions may
    be computed in Winograd's form."""
    from einsmith.codegen.cache.native import host_target
    from einsmith.cost.facts import Target

    host = replace(host_target(), cores=2)
    width = 32 if host.vector_bytes != 32 else 64
    other = Target(vector_bytes=width, vector_registers=16, cores=8, winograd=True)
    return {f"{8 * t.vector_bytes} bits, {t.cores} cores": t for t in (host, other)}


def operators(rng: np.random.Generator) -> Iterator[tuple[Callable[..., Any], Sequence[tuple[int, ...]]]]:
    """Functions that are neither products nor convolutions alone, and the shapes of their arguments, drawn."""
    f, n = es.functional, partial(random_cases.around, rng)

    def gradients(g: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *xs: es.grad(lambda *ys: g(*ys).sum(), tuple(range(len(xs))))(*xs)

    axis = int(rng.integers(0, 2))
    rows, columns = n(1, 4096), n(1, 4096)
    for scan in (f.cumsum, f.cummax, f.logcumsumexp):
        yield lambda x, scan=scan: scan(x, axis), [(rows, columns)]
    index = rng.integers(0, rows, n(1, 4096)).astype(np.int32)
    yield lambda x: f.index_add(x, 0, index, f.index_select(x, 0, index)), [(rows, columns)]
    yield gradients(lambda x: f.embedding(index, x) ** 2), [(rows, n(1, 512))]
    words, width = n(64, 2048), n(16, 512)
    labels = np.zeros(words, np.int32)
    yield lambda x, y: f.cross_entropy(f.linear(x, y), labels), [(words, width), (n(1000, 60_000), width)]
    for reduce in (f.sum, f.amax, f.argmax, f.logsumexp):
        yield lambda x, reduce=reduce: reduce(x, axis), [(n(1, 4096), n(1, 4096))]
    heads, length, width = n(1, 16), n(8, 2048), n(8, 128)
    yield gradients(f.scaled_dot_product_attention), [(heads, length, width)] * 3
    # Results whose rows lie whole pages apart, along either side.
    m, k, pages = n(8, 2048), n(4, 256), 1024 * n(1, 8)
    yield lambda x, y: (x @ y).T, [(pages, k), (k, m)]
    yield lambda x, y: x @ y, [(m, k), (k, pages)]
    b, c, o, size = n(1, 32), n(1, 256), n(8, 256), n(5, 64)
    taps = int(rng.choice([1, 3]))
    image, weight = (b, c, size, size), (o, c, taps, taps)

    def normed(x: Any, w: Any) -> Any:
        y = f.conv2d(x, w, padding=taps // 2)
        return f.relu(f.batch_norm(y, None, None, training=True))

    yield normed, [image, weight]
    yield gradients(lambda x, w: normed(x, w) ** 2), [image, weight]
    yield gradients(lambda x, w: f.conv2d(x, w, stride=2, padding=taps // 2) ** 2), [image, weight]
    yield lambda x: f.max_pool2d(x, 2), [image]


def drawn_kernels(seed: int, number: int) -> Iterator[Any]:
    """The kernels of the functions that are drawn."""
    from einsmith.base import dtypes as dt

    for f, shapes in operators(default_rng((seed, number))):
        yield from (call.kernel for call in choices.planned_calls(f, [(x, dt.f32) for x in shapes])[0])


def kernels(seed: int, count: int, networks: Sequence[str]) -> list[Any]:
    """Distinct kernels of random cases, of operators that are drawn, and of training steps."""
    from benchmarks.models import TRAINING

    kernels_of = {k: None for n in range(count) for k in choices.kernels_of(random_cases.draw(seed, n))}
    for number in range(count // 10):
        kernels_of |= dict.fromkeys(drawn_kernels(seed, number))
    for name in networks:
        kernels_of |= {call.kernel: None for call in plans.planned(TRAINING[name], 2).calls}
    return list(kernels_of)


def clear() -> None:
    """Drop what has been computed by the constants as they were."""
    from einsmith.base import caches

    caches.cache_clear()
    for module in [m for n, m in list(sys.modules.items()) if n.startswith("einsmith.")]:
        for x in list(vars(module).values()):
            if hasattr(x, "cache_info"):
                x.cache_clear()


@contextmanager
def changed(target: Any, name: str) -> Iterator[Any]:
    """Yield the machine without a constant; nothing remembers what was computed with it, here and afterwards."""
    clear()
    table, _, name = name.rpartition(".")
    if not table:
        yield replace(target, overheads=replace(target.overheads, **{name: neutral()[name]}))
    else:
        before = getattr(INSTRUCTIONS, name)
        setattr(INSTRUCTIONS, name, neutral()[f"{table}.{name}"])
        try:
            yield target
        finally:
            setattr(INSTRUCTIONS, name, before)
    clear()


def planned(networks: Sequence[str], target: Any) -> list[list[tuple[Any, int]]]:
    """The kernels of training steps that are planned for a machine, and how often each is launched."""
    from benchmarks.models import TRAINING
    from einsmith.tuning.calibration import calibrate

    calibrate._target, calibrate._patterns = target, len(calibrate.autoconfig.PATTERNS)
    out = []
    for name in networks:
        run = plans.planned(TRAINING[name], target.cores)
        out.append([(call.kernel, n) for call, n in zip(run.calls, run.turns, strict=True)])
    return out


def prices_of_steps(steps: Sequence[Sequence[tuple[Any, int]]], target: Any) -> list[float]:
    """The seconds of planned steps by the whole model."""
    from einsmith.kernels.autoconfig import predicted

    return [sum(predicted(k, target) * n for k, n in step) for step in steps]


def choose_all(every: Sequence[Any], target: Any) -> list[Any]:
    """What is chosen for kernels on a machine."""
    from einsmith.kernels import autoconfig as choice

    return [choice.choose(k, target) for k in every]


def prices_of_choices(chosen: Sequence[Any], target: Any) -> list[float]:
    """The seconds of chosen configurations by the whole model."""
    from einsmith.kernels.pattern import cost_of

    return [cost_of(c.pattern, c.kernel, c.config, target).seconds for c in chosen]


def table(cells: dict[str, dict[str, list[float]]], limit: float) -> Table:
    """The constants, those that lose least last."""
    rows = (
        (name, *(f"{max(x):.1%} {sum(v > limit for v in x)}" for x in of.values()))
        for name, of in sorted(cells.items(), key=lambda x: -max(map(max, x[1].values())))
    )
    title = f"loss of choices without a constant: the largest, and kernels above {limit:.0%}"
    return driver.table(title, ("constant", *next(iter(cells.values()), {})), rows, text=("constant",))


def main() -> int:
    """Choose without each constant; return the exit status."""
    parser = Parser(
        __doc__, seed=(1, "what the shapes are drawn from"), count=(60, "random cases"), networks=(NETWORKS, ""),
        limit=(0.02, "loss that counts"), only=([str], "constants by name"), json=KEPT,
        steps=(False, "plan the networks' training steps"),
    )  # fmt: skip
    args = parser.read()
    choose: Callable[[Any], list[Any]] = partial(planned, args.networks)
    price: Callable[[list[Any], Any], list[float]] = prices_of_steps
    if not args.steps:
        choose, price = partial(choose_all, kernels(args.seed, args.count, args.networks)), prices_of_choices
    results = Results(args.json, 140, timing=False)
    for machine, target in targets().items():
        clear()
        best = price(choose(target), target)
        for name in args.only or neutral():
            losses = results.cells.setdefault(name, {})
            if machine not in losses:
                with changed(target, name) as other:
                    chosen = choose(other)
                prices = zip(price(chosen, target), best, strict=True)
                results.keep(name, losses | {machine: [max(0.0, x / least - 1) for x, least in prices]})
                results.say(f"{name} {machine} {max(results.cells[name][machine]):.3f}")
    results.console.print(table(results.cells, args.limit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
