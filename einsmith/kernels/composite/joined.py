"""Lower independent kernels that run in one launch of one task, one after the other (`schedule.join_updates`)."""

from __future__ import annotations

from typing import Any

from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.splice import splice
from einsmith.cost.facts import Target
from einsmith.cost.roofline import in_turn, launch_overhead
from einsmith.kernels.composite.parts import InTurn
from einsmith.kernels.pattern import Cost, Launch, Lowered
from einsmith.schedule.kernel import Rows


class Joined(InTurn):
    """The pattern of a `Rows` that `is_joined`."""

    name = "joined"

    def match(self, kernel: Any) -> bool:
        return isinstance(kernel, Rows) and kernel.is_joined

    def cost(self, kernel: Rows, config: str, target: Target) -> Cost:
        """Return the cost of the members on one core, and of a single launch."""
        return in_turn([self.cost_in_turn(kernel, target), Cost(0.0, 0.0, 0.0, launch_overhead(1, target))])

    def lower(self, kernel: Rows, config: str, target: Target) -> Lowered:
        b = Builder(f"joined_{kernel.digest.hex()[:12]}", len(kernel.buffers) + 1)
        for member, lowered in zip(kernel.members, self.lower_members(kernel, target), strict=True):
            assert not lowered.workspace and not kernel.local
            for launch in lowered.launches:
                scratch = b.alloc("i8", launch.function.scratch_bytes)
                pointers = [*(b.buffers[n] for n in member.places), b.buffers[-1]]
                for task in range(launch.tasks):
                    splice(b, launch.function, pointers, scratch, b.const(task))
        return Lowered([Launch(b.finish(), 1)])
