"""A contraction's operands as tiles meet them: in halo copies or not, one of them as the M side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from einsmith.kernels.contraction.config import Halos, Side, padded_row, row_offsets, sampler, sides, with_halos
from einsmith.kernels.contraction.halo import SLOT
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.emit.access import OperandAccess
from einsmith.kernels.emit.address import Memory, arguments_of, memories_of
from einsmith.plan.kernel import Kernel


@lru_cache(maxsize=1024)
def operand_memories(kernel: Kernel) -> Mapping[int, Memory]:
    """The root's arguments by slot, without values."""
    return arguments_of(kernel, memories_of(kernel))


class Setting:
    """What configurations with the same halo copies and sides have in common.

    `p` is the problem that reads the halo copies; `original` is it without them. halos: (operand, copy); heads: blocks
    that they cut K into, 0 for none. B, M, N, K: points of the batch, the sides and K; `columns`: of N, whose rows,
    where vectors keep to them (`rows`), N counts as filled up to `row` points. known: accesses that settings of the
    same operands share.
    """

    def __init__(
        self, kernel: Kernel, problem: Problem, windows: Halos, swap: bool, rows: bool, target: Any,
        known: dict[tuple, OperandAccess] | None = None,
    ):  # fmt: skip
        changed = with_halos(problem, windows)
        assert changed is not None
        self.kernel, self.target, self.windows, self.swap, self.rows = kernel, target, windows, swap, rows
        self.original, self.p, self.heads = problem, changed.problem, changed.heads
        self.item, self.lanes = problem.dtype.itemsize, target.lanes(problem.dtype.itemsize)
        self.slots = dict(operand_memories(kernel))
        self.halos = changed.windows
        self.slots |= {SLOT + i: Memory(None, w.buffer) for i, w in self.halos}
        p = self.p
        self.m_side, self.n_side = sides(p, swap)
        self.B, self.M, self.columns, self.K = map(p.count, (p.batch, self.m_side.axes, self.n_side.axes, p.k))
        self.row, self.N = 0, self.columns
        if rows:
            self.row = padded_row(p, self.n_side, self.lanes)
            self.N = self.columns // p.extents[self.n_side.axes[-1]] * self.row
        self._known = {} if known is None else known

    def access(self, side: Side, axes: Sequence[int] = (), lanes: int = 0) -> OperandAccess:
        """An operand, analysed along these axes."""
        key = side.operand, tuple(axes), lanes
        found = self._known.get(key)
        if found is None:
            plain = not axes and not lanes
            made = sampler(None, self.p, side, self.slots, (), 0) if plain else self.access(side).along(axes, lanes)
            found = self._known[key] = made
        return found

    def lies_along_k(self, side: Side, align: int) -> bool:
        """Whether a side is packed with lanes along K rather than along its own axes: where that takes fewer loads a
        vector, and one more to turn it."""
        if not (side.axes and self.p.k):
            return False
        along_k, along = (self.access(side, axes, self.lanes) for axes in (self.p.k, side.axes))
        return along_k.load_cost(self.lanes) + 1.0 < along.load_cost(align)

    def reads_in_place(self, mr: int) -> bool:
        """Whether tiles of `mr` rows of M read that side without a copy."""
        plain = self.m_side.operand.plain
        return plain and row_offsets(self.access(self.m_side), self.m_side.axes, mr) is not None
