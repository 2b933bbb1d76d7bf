"""Inverting a read: all points u of a box with `index(u) = z`, written as loops over z (ALGORITHMS section C).

The box of the axes is taken into account throughout, so that the loops that remain are the short ones: for
`z = 2*p + r` with 3 positions of r, it is r that is left to loop over, in one phase of z two of them, in the other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from einsmith import dtypes as dt
from einsmith.autodiff.equations import MAX_PHASES, System
from einsmith.expr.nodes import Const, Expr

FALSE = Const(False, dt.bool_)


@dataclass(frozen=True)
class Fibre:
    """The solutions for the part `z = offset + step*i`, i in the box `extents`, of z-space.

    The points are `axes` (one expression per axis of the domain) for every value of the `free` axes at which all
    `guards` hold. Positions 0..n-1 in these expressions are i, n.. the free axes. Guards that read tensors come last,
    and their reads are in bounds where the guards before them hold. An empty part has the one guard False.
    """

    offset: tuple[int, ...]
    step: tuple[int, ...]
    extents: tuple[int, ...]
    free: tuple[int, ...]
    axes: tuple[Expr, ...]
    guards: tuple[Expr, ...]

    @property
    def is_empty(self) -> bool:
        return FALSE in self.guards

    @property
    def points(self) -> int:
        """Points that loops over this part visit."""
        return 0 if self.is_empty else prod(self.extents) * prod(self.free)


def invert(
    index: Sequence[Expr], extents: Sequence[int], shape: Sequence[int], guards: Sequence[Expr] = ()
) -> list[Fibre]:
    """All fibres of the map u -> index(u) from the box `extents` into the box `shape`, as parts that cover it.

    `guards` are conditions on u that restrict the domain. Every u of the domain at which they hold, and whose image
    lies in `shape`, is in the fibre of its image, exactly once. An index that is not affine in its axes (it reads a
    tensor or multiplies axes) is left as the guard `z == index`.
    """
    if any(n == 0 for n in extents):
        return [Fibre((0,) * len(shape), (1,) * len(shape), tuple(shape), (), (), (FALSE,))]
    n = len(shape)
    return _parts(tuple(index), tuple(extents), tuple(guards), (0,) * n, (1,) * n, tuple(shape), MAX_PHASES)


def _parts(index, extents, guards, offset, step, box, budget) -> list[Fibre]:
    """The fibres of one strided part of z-space, split further into phases and intervals where that saves work."""
    if any(n <= 0 for n in box):
        return []
    system = System(index, extents, guards, offset, step, box)
    if system.feasible and system.free():
        moduli = system.moduli(budget)
        if prod(moduli) > 1:
            out = []
            for residue in product(*map(range, moduli)):
                first = tuple(o + s * r for o, s, r in zip(offset, step, residue, strict=True))
                steps = tuple(s * m for s, m in zip(step, moduli, strict=True))
                part = tuple(-(-(e - r) // m) for e, r, m in zip(box, residue, moduli, strict=True))
                out += _parts(index, extents, guards, first, steps, part, budget // prod(moduli))
            return out
        system.tighten()
    if not system.feasible:
        return [Fibre(offset, step, box, (), (), (FALSE,))]
    if system.free():
        window = system.window()
        if window is None:
            return [Fibre(offset, step, box, (), (), (FALSE,))]
        if any(w != (0, e) for w, e in zip(window, box, strict=True)):
            return _split(index, extents, guards, offset, step, box, budget, window)
    return [Fibre(offset, step, box, *system.solution())]


def _split(index, extents, guards, offset, step, box, budget, window) -> list[Fibre]:
    """The part inside `window`, where the fibres are, and empty parts around it: a guard on z alone leaves the sum."""
    out = []
    ranges = [(0, e) for e in box]

    def shifted(axes: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        first = tuple(o + s * lo for o, s, (lo, _) in zip(offset, step, axes, strict=True))
        return first, tuple(hi - lo for lo, hi in axes)

    for k, (lo, hi) in enumerate(window):
        for side in ((0, lo), (hi, box[k])):
            if side[0] < side[1]:
                first, part = shifted([*ranges[:k], side, *ranges[k + 1 :]])
                if all(part):
                    out.append(Fibre(first, step, part, (), (), (FALSE,)))
        ranges[k] = (lo, hi)
    first, part = shifted(ranges)
    return out + _parts(index, extents, guards, first, step, part, budget)
