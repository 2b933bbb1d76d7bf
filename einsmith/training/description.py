"""Describe a training step and its programs for people, and measure the time of each kernel."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from einsmith.base import html
from einsmith.base.caches import Cache
from einsmith.driver.bound_program import BoundProgram
from einsmith.ir.nodes import ROLES, Role
from einsmith.schedule.printer import label
from einsmith.training.definition import StepDefinition
from einsmith.training.settings import UpdateSettings


def describe_programs(programs: Cache[tuple, BoundProgram]) -> html.PlanText:
    """Describe the programs of `StepCompiler.programs`: each kernel's pattern, configuration and seconds."""
    parts = []
    for (shapes, threads, _, gather), run in programs.items():
        head = ", ".join(f"{d}{list(s)}" for s, d in shapes)
        what = "gradients" if gather else "training step"
        parts.append((f"{what} for {head} on {threads} threads", run.describe(), run.bars))
    return html.PlanText(parts, "nothing is compiled yet; call step.compile(x, y)")


def describe_explorations(programs: Cache[tuple, BoundProgram]) -> str:
    """Return the logs of the programs' explorations, a line for each finding, and the state of explorations that have
    not ended."""
    explorations = [run.note.exploration for _, run in programs.items() if run.note.exploration is not None]
    lines = [line for x in explorations for line in (*x.log, x.status) if line]
    return html.Text("\n".join(lines))


def describe_definition(definition: StepDefinition) -> str:
    """Return model, loss, optimizer, and the settings that differ from the defaults, as arguments of TrainStep."""
    loss = getattr(definition.loss, "__name__", type(definition.loss).__name__)
    plain, settings = UpdateSettings(), definition.updates
    chosen = {f.name: getattr(settings, f.name) for f in fields(UpdateSettings)}
    extra = "".join(f", {n}={v!r}" for n, v in chosen.items() if v != getattr(plain, n))
    return f"{type(definition.model).__name__}, {loss}, {definition.optimizer!r}{extra}"


@dataclass
class Profile:
    """Measured seconds of a step's kernels, in all turns of loops: (part, label, pattern, measured, predicted) each;
    `part` is the kernel's role: forward, backward or update."""

    rows: list[tuple[Role, str, str, float, float]]
    step_seconds: float

    def part(self, name: str) -> float:
        """Return the measured seconds of all kernels of one role: "forward", "backward" or "update"."""
        return sum(r[3] for r in self.rows if r[0] == name)

    def __str__(self) -> str:
        lines = [f"one step {self.step_seconds * 1e3:.3f} ms; kernels one by one:"]
        for i, (part, text, pattern, measured, predicted) in enumerate(self.rows):
            times = f"{measured * 1e6:9.1f} us  predicted {predicted * 1e6:9.1f}"
            lines.append(f"{i:3d}  {part:<8} {times}  {pattern:<12} {text}")
        for name in ROLES:
            lines.append(f"     {name:<8} {self.part(name) * 1e6:9.1f} us")
        return "\n".join(lines)


def measure(run: BoundProgram, arrays: Sequence[np.ndarray], repeats: int) -> Profile:
    """Time a step and each of its kernels, `repeats` times each. Parameters and state are restored afterwards.

    The step's time is the median."""
    with run.preserve():
        run(arrays)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run(arrays)
            times.append(time.perf_counter() - start)
    rows = [
        (part, label(call), kernel.pattern, seconds, kernel.seconds * turns)
        for part, call, kernel, turns, seconds in zip(
            run.roles, run.calls, run.kernels, run.turns, run.time_calls(arrays, repeats), strict=True
        )
    ]
    return Profile(rows, sorted(times)[len(times) // 2])
