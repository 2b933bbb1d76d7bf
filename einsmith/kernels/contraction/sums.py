"""Decide how a contraction's tiles take the sums of its epilogue (`schedule.kernel.EpilogueSum`).

Where the rows of M are elements of the sum, a slot is a row, and the lanes of its vectors are terms. Where the points
of N are, a slot is a vector of them, and the rows are its terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from einsmith.schedule.contraction_problem import Problem
from einsmith.schedule.kernel import Kernel

SumSide = Literal["m", "n", ""]
"""The side whose points are the elements of the sums; "" if the sums are over both sides."""


@lru_cache(maxsize=4096)
def sum_side(kernel: Kernel, p: Problem, m_axes: tuple[int, ...], n_axes: tuple[int, ...]) -> SumSide | None:
    """Return the side whose points are the elements of the sums; None if tiles do not take them."""
    kept = set(kernel.sums[0].kept)
    centred = any(s.centred for s in kernel.sums)

    def split(axes: Sequence[int]) -> tuple[bool, bool]:
        """Return whether some of the axes, of more than one point, are kept, and whether some are summed."""
        wide = [a for a in axes if p.extents[a] > 1]
        return any(a in kept for a in wide), any(a not in kept for a in wide)

    (m_kept, m_summed), (n_kept, n_summed) = split(m_axes), split(n_axes)
    if not n_kept and not (m_kept and m_summed):
        return "m" if m_kept or centred and not m_summed else None if centred else ""
    inner = [a for a in sorted(kept) if p.extents[a] > 1]
    own = [a for a in n_axes if p.extents[a] > 1]
    if n_kept and not n_summed and not m_kept and not centred and inner[len(inner) - len(own) :] == own:
        return "n"
    return None


def can_take(kernel: Kernel, pieces: Sequence[Problem]) -> bool:
    """Return whether tiles take the sums, with M and N as they are or exchanged."""
    if len(pieces) != 1 or pieces[0].constant_pieces:
        return False
    p = pieces[0]
    return any(sum_side(kernel, p, *sides) is not None for sides in ((p.left, p.right), (p.right, p.left)))


def parts_of(g: Any) -> int:
    """Return the number of parts of each sum: tasks that share its elements. g: the `Geometry`."""
    side = sum_side(g.kernel, g.p, g.m_side.axes, g.n_side.axes)
    return g.p.count(summed_batch(g)) * (1 if side == "n" else g.c.tn) * (1 if side == "m" else g.c.tm)


def summed_batch(g: Any) -> tuple[int, ...]:
    """Return the axes of the batch that the sums are over."""
    kept = g.kernel.sums[0].kept
    return tuple(a for a in g.p.batch if a not in kept)
