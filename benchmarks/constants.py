"""Which constants of the cost model decide anything? python -m benchmarks.constants --json FILE

Each constant is set, one at a time, to the value at which its term vanishes, and a configuration is chosen again for
kernels of random shapes and for those of training steps. A choice that is made without a constant is priced by the
whole model: its loss is that price over the price of the choice that the whole model makes, less 1. Nothing is measured
by the clock. A constant none of whose losses exceeds `--limit` decides nothing that the model itself can tell. With
`--steps` whole training steps are planned without a constant instead, as fusion, layouts and joint calls are chosen by
the same prices.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import autoconfig, plans, random_cases
from einsmith.cost.overheads import INSTRUCTIONS, Instructions, Overheads

FACTORS = (
    "rotate", "launched", "read_twice", "far_twice", "held", "panel", "long_row", "unaligned_loads", "serial",
    "peak_fraction",
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
    """The machines that choices are made for: this one's facts, and a server with other vectors."""
    from einsmith.codegen.cache.native import host_target
    from einsmith.cost.facts import Target

    host = replace(host_target(), cores=2)
    other = Target(vector_bytes=32 if host.vector_bytes != 32 else 64, vector_registers=16, cores=8)
    return {f"{8 * t.vector_bytes} bits, {t.cores} cores": t for t in (host, other)}


def kernels(seed: int, count: int, networks: Sequence[str]) -> list[Any]:
    """Distinct kernels of random cases and of training steps."""
    from benchmarks.models import TRAINING

    found = {k: None for n in range(count) for k in autoconfig.kernels_of(random_cases.draw(seed, n))}
    for name in networks:
        found |= {call.kernel: None for call in plans.planned(TRAINING[name], 2).calls}
    return list(found)


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


def step_losses(networks: Sequence[str], target: Any, name: str) -> list[float]:
    """What planning without a constant loses for each training step."""
    from einsmith.driver.compile import predicted

    def prices(steps: Sequence[Sequence[tuple[Any, int]]]) -> list[float]:
        return [sum(predicted(k, target) * n for k, n in step) for step in steps]

    clear()
    best = prices(planned(networks, target))
    with changed(target, name) as other:
        steps = planned(networks, other)
    return [max(0.0, price / least - 1) for price, least in zip(prices(steps), best, strict=True)]


def losses(every: Sequence[Any], target: Any, name: str) -> list[float]:
    """What choosing without a constant loses for each kernel."""
    from einsmith.kernels import autoconfig as choice

    clear()
    best = [choice.choose(k, target).cost.seconds for k in every]
    with changed(target, name) as other:
        chosen = [choice.choose(k, other) for k in every]
    prices = [choice.cost_of(c.pattern, k, c.config, target).seconds for k, c in zip(every, chosen, strict=True)]
    return [max(0.0, price / least - 1) for price, least in zip(prices, best, strict=True)]


def table(cells: dict[str, dict[str, list[float]]], limit: float) -> Table:
    """The constants, those that lose least last."""
    out = Table(title=f"loss of choices without a constant: the largest, and kernels above {limit:.0%}")
    out.add_column("constant")
    for machine in next(iter(cells.values()), {}):
        out.add_column(machine, justify="right")
    for name, by_machine in sorted(cells.items(), key=lambda x: -max(map(max, x[1].values()))):
        row = [f"{max(x):.1%} {sum(v > limit for v in x)}" for x in by_machine.values()]
        out.add_row(name, *row)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="random cases")
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--limit", type=float, default=0.02)
    parser.add_argument("--only", nargs="*", help="constants by name")
    parser.add_argument("--json", type=Path, help="losses are kept here; what it holds already is not computed again")
    parser.add_argument("--steps", action="store_true", help="plan the networks' training steps")
    args = parser.parse_args()
    every = [] if args.steps else kernels(args.seed, args.count, args.networks)
    cells = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    for name in args.only or neutral():
        for machine, target in targets().items():
            if machine not in cells.setdefault(name, {}):
                found = step_losses(args.networks, target, name) if args.steps else losses(every, target, name)
                cells[name][machine] = found
                print(name, machine, f"{max(found):.3f}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(cells))
    Console(width=140).print(table(cells, args.limit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
