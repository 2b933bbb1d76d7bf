"""Invert a read: express all points u of a box with `index(u) = z` as loops over z.

The extents of the axes are taken into account throughout, so that the shorter loops remain: for `z = 2*p + r` with 3
positions of r, the remaining loop is over r, with two iterations in one phase of z and one in the other.

0. Digits: an axis under `//V` and `%V` is split where the divisors chain and divide its extent; else the quotient and
   the remainder are new unknowns, with the equation between them.
1. Rows: one equation `index_k(u) = z_k` per dimension, and those of step 0, in integer row echelon form where rows
   share two unknowns or more.
2. Until no row is left: a row without unknowns is a guard on z; one with a single unknown gives it as a quotient, under
   the guards that it divides and is within its extent; else the smaller loop is chosen of one over an unknown and one
   over the carry t in `c*u + L = g`, L = lo + (g - lo) % c + c*t.
3. Unknowns in no row are loops.
4. Tighten: a loop whose bounds `l(z) <= t <= u(z)` are closer than its extent is shifted to begin at l(z).
5. Phases: where z % m is left, each residue is a separate part, in which a congruence fixes or shortens a loop.
6. Guards on z alone leave the sum: the part is split into the bounding box of its points, and empty parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from einsmith.autodiff.inversion.equations import MAX_PHASES
from einsmith.autodiff.inversion.tighten import SolvedPart
from einsmith.base import dtypes as dt
from einsmith.base.symbolic import hint
from einsmith.ir.analysis.predicates import negate
from einsmith.ir.interned import Node
from einsmith.ir.nodes import Apply, Const, Expr, apply, postorder, reads
from einsmith.ir.rebuild import rebuild

MAX_CASES = 16
"""Most affine branches of one index."""

Branch = tuple[tuple[Expr, ...], tuple[Expr, ...]]
"""An index and the conditions under which it holds."""

FALSE = Const(False, dt.bool_)

MAX_WASTE = 1.25
"""Ratio of visited points to the points of the larger box, above which other loops are tried."""


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
        """Return whether the guards contain a false condition, so that the fibre has no points."""
        return FALSE in self.guards

    @property
    def points(self) -> int:
        """Return the number of points that loops over this part visit."""
        return 0 if self.is_empty else prod(self.extents) * prod(self.free)


def invert(
    index: Sequence[Expr], extents: Sequence[int], shape: Sequence[int], guards: Sequence[Expr] = ()
) -> list[Fibre]:
    """Return all fibres of the map u -> index(u) from the box `extents` into the box `shape`, as parts that cover
    `shape`.

    `guards` are conditions on u that restrict the domain. Every u of the domain at which they hold, and whose image is
    in `shape`, is in the fibre of its image, exactly once. An index that is not affine in its axes (it reads a tensor
    or multiplies axes) is left as the guard `z == index`.
    """
    if any(n == 0 for n in extents):
        return [Fibre((0,) * len(shape), (1,) * len(shape), tuple(shape), (), (), (FALSE,))]
    n = len(shape)
    problem = tuple(index), tuple(extents), tuple(guards)
    parts = _parts(*problem, (0,) * n, (1,) * n, tuple(shape), MAX_PHASES, False)
    visited = sum(p.points for p in parts)
    if hint(visited) > MAX_WASTE * max(hint(prod(shape)), hint(prod(extents))):
        others = _parts(*problem, (0,) * n, (1,) * n, tuple(shape), MAX_PHASES, True)
        if sum(p.points for p in others) < visited:
            return others
    return parts


def _parts(index, extents, guards, offset, step, box, budget, outer_first) -> list[Fibre]:
    """Return the fibres of one strided part of z-space, split further into phases and intervals where that saves
    work."""
    if any(n <= 0 for n in box):
        return []
    system = SolvedPart(index, extents, guards, offset, step, box, outer_first)
    if system.feasible and system.find_loops():
        moduli = system.choose_moduli(budget)
        if prod(moduli) > 1:
            out = []
            for residue in product(*map(range, moduli)):
                first = tuple(o + s * r for o, s, r in zip(offset, step, residue, strict=True))
                steps = tuple(s * m for s, m in zip(step, moduli, strict=True))
                part = tuple(-(-(e - r) // m) for e, r, m in zip(box, residue, moduli, strict=True))
                out += _parts(index, extents, guards, first, steps, part, budget // prod(moduli), outer_first)
            return out
        system.tighten()
    if not system.feasible:
        return [Fibre(offset, step, box, (), (), (FALSE,))]
    if system.find_loops():
        bounding_box = system.find_bounding_box()
        if bounding_box is None:
            return [Fibre(offset, step, box, (), (), (FALSE,))]
        if any(w != (0, e) for w, e in zip(bounding_box, box, strict=True)):
            return _split(index, extents, guards, offset, step, box, budget, outer_first, bounding_box)
    return [Fibre(offset, step, box, *system.build_solution())]


def _split(index, extents, guards, offset, step, box, budget, outer_first, bounding_box) -> list[Fibre]:
    """Return the fibres of the part inside `bounding_box`, and empty parts around it: a guard on z alone leaves the
    sum."""
    out = []
    ranges = [(0, e) for e in box]

    def locate(axes: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        first = tuple(o + s * lo for o, s, (lo, _) in zip(offset, step, axes, strict=True))
        return first, tuple(hi - lo for lo, hi in axes)

    for k, (lo, hi) in enumerate(bounding_box):
        for side in ((0, lo), (hi, box[k])):
            if side[0] < side[1]:
                first, part = locate([*ranges[:k], side, *ranges[k + 1 :]])
                if all(part):
                    out.append(Fibre(first, step, part, (), (), (FALSE,)))
        ranges[k] = (lo, hi)
    first, part = locate(ranges)
    return out + _parts(index, extents, guards, first, step, part, budget, outer_first)


def affine_cases(index: tuple[Expr, ...]) -> list[Branch]:
    """Split an index with abs, min, max and where into branches without them, each with the conditions under which it
    equals the index: `abs(i-3)` is `i-3` where `3 <= i` and `3-i` where `i < 3`. A function of an expression that reads
    a tensor is kept, and so are the functions that are left when there are MAX_CASES branches."""
    done: list[Branch] = []
    todo: list[Branch] = [(index, ())]
    while todo:
        branch, chosen = todo.pop(0)
        e = next((e for e in postorder(branch) if _is_piecewise(e)), None)
        if e is None or len(done) + len(todo) + 2 > MAX_CASES:
            done.append((branch, chosen))
            continue
        for condition, piece in _branches(e):
            new = tuple(rebuild(branch, {e: piece}.get))
            guards = tuple(rebuild([*chosen, condition], {e: piece}.get))
            todo.append((new, guards))
    return done


def _is_piecewise(e: Node) -> bool:
    return isinstance(e, Apply) and e.dtype.is_int and e.fn in ("abs", "min", "max", "where") and not reads(e)


def _branches(e: Apply) -> list[tuple[Expr, Expr]]:
    if e.fn == "where":
        return [(e.args[0], e.args[1]), (negate(e.args[0]), e.args[2])]
    if e.fn == "abs":
        (x,) = e.args
        zero = Const(0, x.dtype)
        return [(apply("le", zero, x), x), (apply("lt", x, zero), apply("neg", x))]
    a, b = e.args
    first, second = (a, b) if e.fn == "min" else (b, a)  # a <= b: min takes a, max takes b
    return [(apply("le", a, b), first), (apply("lt", b, a), second)]
