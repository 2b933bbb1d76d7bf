"""Count the loads and masks of an unrolled box of the direct form, and find the strips of a row that need no masks."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from einsmith.codegen.loopnest.address import comparison_form
from einsmith.cost.overheads import INSTRUCTIONS
from einsmith.ir.analysis.linear import values_in_box
from einsmith.ir.nodes import Apply, Expr
from einsmith.kernels.contraction.config import Direct
from einsmith.kernels.emit.access import OperandAccess
from einsmith.schedule.contraction_problem import Problem

MIN_INNER_STRIPS = 2
"""Fewest strips of a row that have code of their own because they need fewer guards."""


def combine_limits(a: Any, b: Any, order: float) -> Any:
    """Return the combination of two limits (numbers or arrays): where they are near each other, instructions wait for
    either in turn."""
    return (a**order + b**order) ** (1 / order)


class BoxLoads:
    """Numbers of distinct loads and masks of an operand in a box of points.

    weight: cycles of a load with lanes along axis v
    moves: whether each vector along v needs a load of its own
    vectors: vectors of memory that a load touches
    """

    def __init__(self, s: OperandAccess, v: int, lanes: int, target: Any):
        read_forms = [s.forms[i] for i in s.reads.values()]
        step = max((x.coef.get(v, 0) for x in read_forms), default=0)
        self.moves = any(x.coef.get(v, 0) for x in read_forms)
        aligned = all(
            x.const % lanes == 0 and all(c % lanes == 0 for a, c in x.coef.items() if a != v) for x in read_forms
        )
        load_cycles = (target.load_seconds if aligned else target.unaligned_seconds) / target.cycle_seconds
        self.mask_registers = target.overheads.mask_registers
        self.vectors = step  # vectors of memory that a load touches
        self.weight = load_cycles * step + INSTRUCTIONS.pair - 2 if step > 1 else load_cycles if step else 0.5
        self.conds = [s.forms[c].coef for c, _, _ in s.conds]
        forms = [*(s.forms[i].coef for i in s.reads.values()), *self.conds, *({a: 1} for a in sorted(s.opaque))]
        self.coefs = _join_forms(forms)
        self.count_cache: dict[tuple, int] = {}

    def count(self, counts: Sequence[tuple[int, int]]) -> int:
        """Return the number of distinct loads in a box, given as (axis, points)."""
        key = tuple((a, n) for a, n in counts if n > 1 and a in self.coefs)
        if key not in self.count_cache:
            self.count_cache[key] = values_in_box(self.coefs, key)
        return self.count_cache[key]

    def masks(
        self,
        counts: Sequence[tuple[int, int]],
        v: int,
        vectors: int,
        moving: Container[int],
        loops: Mapping[int, int],
    ) -> float:
        """Return the number of operations on masks in a body, for conditions that depend on an axis in `moving`.

        Without loops over K, the body computes every mask, once for loads with equal conditions. Masks that find no
        register are written and read again. With loops over K (`loops`: iterations by axis), the body computes only
        the masks of conditions on these axes. Every load takes one operation for each kind of condition, of rows or of
        columns, which are computed in the loops or before them.
        """
        moving_conds = [c for c in self.conds if any(a in moving for a in c)]
        in_loops = [c for c in moving_conds if any(a in loops for a in c)]
        fixed = [c for c in moving_conds if c not in in_loops]
        live = _count_values(fixed, counts) * (vectors if any(v in c for c in fixed) else 1)
        computed = len(fixed) * live
        if not loops:
            return computed + max(0, computed - self.mask_registers)
        changing = sum(_count_values([c], counts) * (vectors if v in c else 1) for c in in_loops)
        kinds = len({frozenset(c) for c in moving_conds})  # rows, columns: each has a mask, and loads one of all
        loads = self.count(counts) * (vectors if self.moves else 1)
        return changing + kinds * loads + max(0, live - self.mask_registers) + computed / prod(loops.values())


def _count_values(forms: Sequence[Mapping[int, int]], counts: Sequence[tuple[int, int]]) -> int:
    """Return the number of distinct values of several forms together in a box of points."""
    return values_in_box(_join_forms(forms), counts)


def _join_forms(forms: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return what a step along each axis adds to every form, as the digits of one number."""
    out: dict[int, int] = {}
    for i, form in enumerate(forms):
        for a, n in form.items():
            out[a] = out.get(a, 0) + (n << (48 * i))
    return out


def moving_axes(p: Problem, v: int, vectors: int, row_vectors: int, box: Sequence[tuple[int, int]]) -> set[int]:
    """Return the axes that a loop goes along, where lanes lie along axis `v`, of `row_vectors` vectors."""
    points = dict(box)
    return {a for a, n in enumerate(p.extents) if (row_vectors > vectors if a == v else points.get(a, 1) < n)}


def loops_over_k(p: Problem, v: int, box: Sequence[tuple[int, int]], outer: Sequence[int] = ()) -> dict[int, int]:
    """Return the iterations of the loops over the axes of K, without axis `v` and those in `outer`."""
    points = dict(box)
    iterations = {a: -(-p.extents[a] // points.get(a, 1)) for a in p.k if a != v and a not in outer}
    return {a: n for a, n in iterations.items() if n > 1}


class InnerStrips(NamedTuple):
    """The strips lo .. hi (points) of an axis of which all points satisfy guards, at every point of K.

    guards: the guards that they satisfy
    """

    lo: int
    hi: int
    guards: frozenset[Expr]


def find_inner_strips(p: Problem, d: Direct, lanes: int) -> dict[int, InnerStrips]:
    """Return the inner strips of rows of results and of the axis before it, by axis, where there are any.

    A padded convolution's guards hold for all strips but the first and the last ones.
    """
    rank, tile = len(p.piece.extents), dict(d.tile)
    rows = [a for a in range(rank) if a != d.vector and a not in d.outer and p.extents[a] > 1]
    if d.vector >= rank:
        return {}
    sizes = {a: tile.get(a, 1) for a in rows[-1:]} | {d.vector: d.vectors * lanes}
    strips = {a: _inner_strips_along(p, a, size) for a, size in sizes.items()}
    return {a: x for a, x in strips.items() if x is not None}


@lru_cache(maxsize=4096)
def _inner_strips_along(p: Problem, axis: int, size: int) -> InnerStrips | None:
    """Return the inner strips of `size` points along an output axis, or None."""
    lo, hi, guards = 0, p.extents[axis] // size * size, set()
    for g in (g for o in p.operands for g in o.guards):
        form = comparison_form(g, p.extents, ("lt", "le"))
        step = form.coef.get(axis, 0) if form else 0
        if form is None or not step or any(a not in p.k for a in form.coef if a != axis):
            continue
        # The guard holds at all points of K where step * x + most <= 0.
        most = form.const + sum(max(0, c * (p.extents[a] - 1)) for a, c in form.coef.items() if a != axis)
        most += isinstance(g, Apply) and g.fn == "lt"
        if step > 0:
            hi = min(hi, -most // step + 1)
        else:
            lo = max(lo, -(most // step))
        guards.add(g)
    lo, hi = -(-lo // size) * size, hi // size * size
    return InnerStrips(lo, hi, frozenset(guards)) if guards and hi - lo >= MIN_INNER_STRIPS * size else None


def guards_inside(p: Problem, strips: Sequence[InnerStrips]) -> list[tuple[Expr, ...]]:
    """Return the guards of either operand that strips which are inner ones along some axes need."""
    return [tuple(g for g in o.guards if not any(g in x.guards for x in strips)) for o in p.operands]


def loads_of_strips(
    p: Problem,
    samplers: Sequence[OperandAccess],
    d: Direct,
    lanes: int,
    target: Any,
    known: dict[Any, BoxLoads] | None = None,
) -> list[tuple[float, list[BoxLoads]]]:
    """Return, for every kind of strips, their fraction of all strips and the loads of the operands there.

    known: loads by operand and guards, of boxes whose lanes lie along the same axis, which is filled
    """
    inner, known = find_inner_strips(p, d, lanes), {} if known is None else known

    def loads(which: int, guards: tuple[Expr, ...]) -> BoxLoads:
        if (which, guards) not in known:
            s = samplers[which]
            s = OperandAccess(None, s.exprs, guards, s.extents, s.memories) if len(guards) < len(s.guards) else s
            known[which, guards] = BoxLoads(s, d.vector, lanes, target)
        return known[which, guards]

    out, fraction = [], 1.0
    for n, (axis, x) in enumerate([*inner.items(), (None, None)]):  # inner ones along no axis, the first, and both
        rest = 0.0 if axis is None or x is None else fraction * (x.hi - x.lo) / p.extents[axis]
        guards = guards_inside(p, [*inner.values()][:n])
        out.append((fraction - rest, [loads(i, g) for i, g in enumerate(guards)]))
        fraction = rest
    return out
