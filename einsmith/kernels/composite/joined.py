"""Lower independent kernels that run in one launch of one task, one after the other (`schedule.join_updates`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.splice import splice
from einsmith.cost.facts import Target
from einsmith.cost.roofline import in_turn, launch_overhead
from einsmith.kernels.pattern import Chooser, Cost, Launch, Lowered, Pattern
from einsmith.schedule.kernel import Rows

IN_TURN = "in turn"
"""The only configuration: each kernel is lowered as it is chosen for one core."""


class Joined(Pattern):
    """The pattern of a `Rows` that `is_joined`. Its chooser selects the pattern and configuration of each member."""

    name = "joined"

    def __init__(self, chooser: Chooser):
        self.chooser = chooser

    def match(self, kernel: Any) -> bool:
        return isinstance(kernel, Rows) and kernel.is_joined

    def configs(self, kernel: Rows, target: Target) -> Sequence[str]:
        return [IN_TURN]

    def cost(self, kernel: Rows, config: str, target: Target) -> Cost:
        """Return the cost of the members on one core, and of a single launch."""
        costs = [x.cost._replace(launch=0.0) for x in self._choices(kernel, target)]
        return in_turn([*costs, Cost(0.0, 0.0, 0.0, launch_overhead(1, target))])

    def lower(self, kernel: Rows, config: str, target: Target) -> Lowered:
        b = Builder(f"joined_{kernel.digest.hex()[:12]}", len(kernel.buffers) + 1)
        for member, choice in zip(kernel.members, self._choices(kernel, target), strict=True):
            lowered = choice.pattern.lower(choice.kernel, choice.config, choice.target)
            assert not lowered.workspace and not kernel.local
            for launch in lowered.launches:
                scratch = b.alloc("i8", launch.function.scratch_bytes)
                pointers = [*(b.buffers[n] for n in member.places), b.buffers[-1]]
                for task in range(launch.tasks):
                    splice(b, launch.function, pointers, scratch, b.const(task))
        return Lowered([Launch(b.finish(), 1)])

    def _choices(self, kernel: Rows, target: Target) -> list[Any]:
        return [self.chooser.choose(m.kernel, replace(target, cores=1)) for m in kernel.members]
