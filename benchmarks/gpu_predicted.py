"""What training steps are predicted to take on graphics cards; nothing runs on one, and nothing is measured:
python -m benchmarks.gpu_predicted [network ...] [--batch 1 16 64] [--precision fp32] [--json FILE]

For each network and batch size the plan that the first card is given, and for each card: the sum of its kernels'
predicted seconds, and those of the longest chain of kernels that need each other. What the JSON file holds is not
planned again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest import mock

from rich.table import Table

from benchmarks import driver, models
from benchmarks.driver import KEPT, Parser, Results
from benchmarks.models import NetworkCase
from benchmarks.recurrent_steps import CELLS, Recurrent, language_model, recurrent
from benchmarks.worker import module_of
from einsmith.base import environment
from einsmith.base.numerics import Numerics
from einsmith.driver import executable, registry
from einsmith.driver.backend import Backend
from einsmith.driver.compile import Compiled, compile_graph
from einsmith.gpu.cards import CARDS, GpuTarget
from einsmith.gpu.tiles.patterns import TILE_PATTERNS
from einsmith.kernels import autoconfig
from einsmith.kernels.autoconfig import predicted
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.together import find_dependences

STEPS = 28
"""Steps of a sequence."""
NETWORKS: dict[str, Callable[[int], NetworkCase | Recurrent]] = {
    **models.NETWORKS,
    **{cell: partial(recurrent, cell, steps=STEPS) for cell in CELLS},
    "lstm_lm": partial(language_model, STEPS),
}


class _Planned(Exception):  # noqa: N818
    """Ends the compilation of a program, whose plan is known. program: the compiled program, without code."""

    def __init__(self, program: Compiled):
        super().__init__()
        self.program = program


class Planner(Backend):
    """A back end that is asked for plans for a card, and makes no code."""

    patterns = TILE_PATTERNS

    def __init__(self, target: GpuTarget):
        self.name, self.card = target.backend, target

    def target(self, threads: int) -> GpuTarget:
        return self.card

    def compile(self, kernels: Sequence[Any], target: Any) -> list[CompiledKernel]:
        return [CompiledKernel(((0, 1, False),), 0, 0, "", "", predicted(k, target), 0) for k in kernels]

    def allocate(self, nbytes: int) -> Any:
        raise NotImplementedError("nothing runs on this back end")

    def program(self, *_: Any) -> Any:
        raise NotImplementedError("nothing runs on this back end")

    def seconds_of(self, *_: Any) -> Any:
        raise NotImplementedError("nothing is measured on this back end")


def planned(problem: NetworkCase | Recurrent, target: GpuTarget, precision: str = "fp32") -> Compiled:
    """The program of a network's training step on a card, which cannot be run."""

    def stop(*args: Any, **options: Any) -> Any:
        raise _Planned(compile_graph(*args, **options))

    planner = Planner(target)
    session = module_of(problem, "einsmith").build(problem, problem.arrays(), 1, "einsmith", precision=precision)
    with (
        mock.patch.dict("os.environ", {environment.PLANS.name: "0"}),
        mock.patch.object(registry, "BACKENDS", {**registry.BACKENDS, planner.name: planner}),
        mock.patch.object(registry, "DEFAULT", planner),
        mock.patch.dict(autoconfig.OTHERS, {target.backend: TILE_PATTERNS}),
        mock.patch.object(executable, "compile_graph", stop),
    ):
        try:
            session.trainer.compile(*session.batch)
        except _Planned as e:
            return e.program
    raise AssertionError("the step compiled no graph")


def figures(program: Compiled, target: GpuTarget) -> dict[str, float]:
    """Predicted seconds of a plan on a card: the sum of its kernels, and the longest chain that waits for each other;
    kernels of loops count as often as they may run."""
    own = [0.0] * len(program.plan.calls)
    count = 0
    with mock.patch.dict(autoconfig.OTHERS, {target.backend: TILE_PATTERNS}):
        for i, call, times in program.plan.kernel_calls():
            own[i] += times * predicted(call.kernel, target)
            count += times
    ends: list[float] = []
    for seconds, needs in zip(own, find_dependences(program.plan), strict=True):
        ends.append(seconds + max((ends[j] for j in needs), default=0.0))
    return {"seconds": sum(own), "chain": max(ends, default=0.0), "kernels": count}


def cells_of(problem: NetworkCase | Recurrent, precision: str, cards: Sequence[str]) -> dict[str, dict[str, float]]:
    """The figures of a network's step on each card, by the plan that the first is given."""
    program = planned(problem, CARDS[cards[0]], precision)
    numerics = Numerics(precision=precision)
    return {c: figures(program, CARDS[c].for_numerics(numerics)) for c in cards}


def table(cells: Mapping[str, Mapping[str, Mapping[str, float]]], cards: Sequence[str], precision: str) -> Table:
    rows = (
        (name, f"{of[cards[0]]['kernels']:.0f}",
         *(f"{of[c]['seconds'] * 1e3:.3f} ({of[c]['chain'] * 1e3:.3f})" for c in cards))
        for name, of in cells.items()
    )  # fmt: skip
    title = f"training steps in {precision}: PREDICTED milliseconds, not measured (longest chain)"
    return driver.table(title, ("", "kernels", *cards), rows)


def main() -> int:
    """Plan the networks' steps; return the exit status."""
    parser = Parser(
        __doc__, NETWORKS, batch=((1, 16, 64), ""), precision=("fp32", f"of {', '.join(GpuTarget.precisions)}"),
        json=KEPT,
    )  # fmt: skip
    args = parser.read()
    if args.precision not in GpuTarget.precisions:
        parser.error(f"--precision is one of {', '.join(GpuTarget.precisions)}")
    cards, results = list(CARDS), Results(args.json, 120, timing=False)
    cells = results.fill(
        (f"{n}-b{b}-{args.precision}", partial(cells_of, NETWORKS[n](b), args.precision, cards))
        for n in args.names or NETWORKS
        for b in args.batch
    )
    results.console.print(table(cells, cards, args.precision))
    return 0


if __name__ == "__main__":
    sys.exit(main())
