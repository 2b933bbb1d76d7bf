"""Predict the seconds of a launch from the resources of a multiprocessor that one program uses.

Programs run in waves, as many at once as registers and shared memory allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from einsmith.cost.roofline import Cost, in_turn
from einsmith.gpu.cards import GpuTarget
from einsmith.gpu.tiles.pieces import blocks

WARP = 32
MOST_REGISTERS = 255
"""Registers of a thread."""


class Times(NamedTuple):
    """Predicted seconds of a launch.

    turns: of the turns of its programs' loops, wave after wave
    ends: of their first loads, epilogues and stores
    memory: of the bytes from memory and from the shared cache, which are moved at the same time
    launch: between it and the launch before it
    tensor, issue, copies: what the turns would take at least for their dots, their instructions, and their copies to
        shared memory, each alone
    """

    turns: float
    ends: float
    memory: float
    launch: float
    tensor: float = 0.0
    issue: float = 0.0
    copies: float = 0.0

    @property
    def cost(self) -> Cost:
        """The launch's cost."""
        return Cost(self.turns + self.ends, self.memory, 0.0, self.launch)


class TileProgram(NamedTuple):
    """A program of a launch.

    warps, registers, shared: the resources of a multiprocessor that it uses: warps, registers of a thread, bytes of
        shared memory
    turns: turns of its loop
    tensor, issue, copies: cycles of a turn for its dots, for its instructions, and for its copies to shared memory,
        each alone on a multiprocessor
    latency: cycles of a turn that other programs hide
    ends: cycles before and after the loop
    is_in_order: whether a turn's dots wait for its instructions
    """

    warps: int
    registers: int
    shared: int
    turns: float
    tensor: float
    issue: float
    copies: float
    latency: float
    ends: float
    is_in_order: bool = False

    @property
    def busy(self) -> float:
        """Cycles in which a turn keeps a multiprocessor busy."""
        if self.is_in_order:
            return max(self.tensor + self.issue, self.copies)
        return max(self.tensor, self.issue, self.copies)

    def resident(self, target: GpuTarget) -> int:
        """Return how many such programs a multiprocessor runs at once; 0 where it cannot run one."""
        threads = self.warps * WARP
        of_registers = target.registers // (min(MOST_REGISTERS, self.registers) * threads)
        return min(of_registers, target.resident // threads, target.shared // max(1, self.shared), 32)


def launch_times(p: TileProgram, programs: int, memory: float, target: GpuTarget) -> Times:
    """Return the predicted seconds of a launch of programs. memory: seconds of the bytes that they move."""
    resident = max(1, p.resident(target))
    waves, rest = divmod(programs, target.cores * resident)
    turns = ends = 0.0
    for count, at_once in ((waves, resident), (1 if rest else 0, blocks(rest, target.cores))):
        turns += count * p.turns * max(at_once * p.busy, p.busy + p.latency)
        ends += count * (p.ends if at_once < 2 else p.ends * (1 + 0.25 * (at_once - 1)))
    all_turns = programs * p.turns / target.cycles
    return Times(
        turns / target.clock,
        ends / target.clock,
        memory,
        target.launch_gap,
        p.tensor * all_turns,
        p.issue * all_turns,
        p.copies * all_turns,
    )


def cost_of_launches(times: Sequence[Times]) -> Cost:
    """Return the cost of launches that run one after the other."""
    return in_turn([t.cost for t in times] or [Cost(0.0, 0.0)])
