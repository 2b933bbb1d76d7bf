"""Measure the time of each kernel of a training step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einsmith.driver.executable import Executable
from einsmith.ir.nodes import ROLES, Role
from einsmith.schedule.printer import label


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


def measure(run: Executable, arrays: Sequence[np.ndarray], repeats: int) -> Profile:
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
