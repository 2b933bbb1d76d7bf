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
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.emit.access import OperandAccess

MIN_INNER_STRIPS = 2
"""Fewest strips of a row that have code of their own because they need fewer guards."""


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
        # What a step along an axis adds to every form, as the digits of one number.
        self.coefs: dict[int, int] = {}
        for i, form in enumerate(forms):
            for a, c in form.items():
                self.coefs[a] = self.coefs.get(a, 0) + (c << (48 * i))
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
        the masks of conditions on these axes, and every load takes the conjunction with those that are computed before
        the loops.
        """
        moving_conds = [c for c in self.conds if any(a in moving for a in c)]
        in_loops = [c for c in moving_conds if any(a in loops for a in c)]
        fixed = [c for c in moving_conds if c not in in_loops]
        live = _count_values(fixed, counts) * (vectors if any(v in c for c in fixed) else 1)
        computed = len(fixed) * live
        if not loops:
            return computed + max(0, computed - self.mask_registers)
        changing = sum(_count_values([c], counts) * (vectors if v in c else 1) for c in in_loops)
        loads = self.count(counts) * (vectors if self.moves else 1) if moving_conds else 0
        return changing + loads + max(0, live - self.mask_registers) + computed / prod(loops.values())


def _count_values(forms: Sequence[Mapping[int, int]], counts: Sequence[tuple[int, int]]) -> int:
    """Return the number of distinct values of several forms together in a box of points."""
    coefs: dict[int, int] = {}
    for i, form in enumerate(forms):
        for a, n in form.items():
            coefs[a] = coefs.get(a, 0) + (n << (48 * i))
    return values_in_box(coefs, counts)


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
    """The strips lo .. hi (points) of a row of results of which all points satisfy guards, at every point of K.

    guards: the guards of either operand that are left for these strips
    """

    lo: int
    hi: int
    guards: tuple[tuple[Expr, ...], ...]


@lru_cache(maxsize=1024)
def find_inner_strips(p: Problem, v: int, size: int) -> InnerStrips | None:
    """Return the strips of `size` points along output axis `v` that need fewer guards, or None.

    A padded convolution's guards of columns hold for all strips of a row but the first and the last.
    """
    lo, hi, rest = 0, p.extents[v] // size * size if v < len(p.piece.extents) else 0, []
    for o in p.operands:
        left = []
        for g in o.guards:
            form = comparison_form(g, p.extents, ("lt", "le"))
            step = form.coef.get(v, 0) if form else 0
            if form is None or not step or any(a not in p.k for a in form.coef if a != v):
                left.append(g)
                continue
            # The guard holds at all points of K where step * x + most <= 0.
            most = form.const + sum(max(0, c * (p.extents[a] - 1)) for a, c in form.coef.items() if a != v)
            most += isinstance(g, Apply) and g.fn == "lt"
            if step > 0:
                hi = min(hi, -most // step + 1)
            else:
                lo = max(lo, -(most // step))
        rest.append(tuple(left))
    lo, hi = -(-lo // size) * size, hi // size * size
    is_less = any(len(x) < len(o.guards) for x, o in zip(rest, p.operands, strict=True))
    return InnerStrips(lo, hi, tuple(rest)) if is_less and hi - lo >= MIN_INNER_STRIPS * size else None


def loads_of_strips(
    p: Problem, samplers: Sequence[OperandAccess], v: int, vectors: int, lanes: int, target: Any
) -> list[tuple[float, list[BoxLoads]]]:
    """Return the fraction of the strips along axis `v` that have all guards, and of inner strips, with the operands'
    loads there."""
    every, inner = [BoxLoads(s, v, lanes, target) for s in samplers], find_inner_strips(p, v, vectors * lanes)
    if inner is None:
        return [(1.0, every)]
    part = (inner.hi - inner.lo) / (-(-p.extents[v] // (vectors * lanes)) * vectors * lanes)
    accesses = (
        OperandAccess(None, s.exprs, guards, s.extents, s.memories)
        for s, guards in zip(samplers, inner.guards, strict=True)
    )
    return [(1 - part, every), (part, [BoxLoads(s, v, lanes, target) for s in accesses])]
