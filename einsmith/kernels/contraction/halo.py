"""Halo copies: a copy of the part of an operand that a task touches, with its guards and activations already applied.

A padded convolution reads each element of its input many times, every time under a guard. Where the operand depends on
its axes only through a few coordinates (image, channel, row, column), the task evaluates it once per coordinate into
scratch, zeros where the guards fail, and reads the copy without guards.

    where(0 <= p+r-2 < 28 and 0 <= q+s-2 < 28, X[b, c, p+r-2, q+s-2], 0)
    -> copy[c, y, x] = where(0 <= y-2 < 28 and 0 <= x-2 < 28, X[b, c, y-2, x-2], 0);  read as copy[c, p+r, q+s]

A convolution of single pixels at a stride reads few of them, in rows that end between vectors: its halo copy has these.

    X[b, c, 2*p, 2*q]  ->  copy[c, y, x] = X[b, c, 2*y, 2*x];  read as copy[c, p, q]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, inf, prod
from typing import Any, NamedTuple

from einsmith.dtypes import i32
from einsmith.expr.analysis.linear import Linear, linear
from einsmith.expr.nodes import Apply, Axis, Const, Expr, Read, apply
from einsmith.expr.rewrite.rebuild import rebuild
from einsmith.kernels.contraction.problem import Operand, Problem
from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.address import Affine, Memory, affine_of, compared
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.loops.nest import Builder, Value
from einsmith.loops.walk import strips
from einsmith.plan.kernel import Buffer

SLOT = 1 << 20
"""Slots from here on are windows: of the left operand, then of the right."""

CUT = -1
"""Stands among a halo copy's axes for the block of the axis that it is cut along."""

SLACK = 16
"""Vectors of elements behind a halo copy: past the end of an axis lanes read no further if so far apart at most."""

UNROLLED = 8
"""Vectors of a row up to which filling it is unrolled."""


@dataclass(frozen=True, eq=False)
class HaloCopy:
    """Coordinates, outer first. `fixed[j]` is the axis that coordinate j equals and that has one value at a time, or
    None. `extents[j]`: number of values (of a fixed one: the axis's extent). copied: makes what is copied, and its
    guards, with Axis(j) for coordinate j minus its least value; `operand` reads the halo copy at the problem's axes. A
    halo copy that is cut holds one block of an axis at a time, whose number is the fixed coordinate CUT; what is read
    of it lies `block` elements further on in a halo copy of all blocks for each block before it."""

    fixed: tuple[int | None, ...]
    extents: tuple[int, ...]
    copied: Callable[[], tuple[Expr, tuple[Expr, ...]]]
    operand: Operand
    buffer: Buffer
    block: int = 0

    @property
    def blocks(self) -> int:
        """Of the axis that it is cut along."""
        return self.extents[self.fixed.index(CUT)]


def _key(form: Affine) -> tuple[tuple[tuple[int, int], ...], int]:
    """The coordinate of which a form (without its constant) is a multiple, and which one."""
    scale = gcd(*form.coef.values())
    return tuple(sorted((a, c // scale) for a, c in form.coef.items())), scale


_Coordinates = dict[tuple[tuple[int, int], ...], int]


@lru_cache(maxsize=1024)
def _coordinates(operand: Operand) -> tuple[_Coordinates, list[tuple[str, int, int, int, bool]]] | None:
    """The forms (without constants) of whose multiples an operand depends, numbered, and its guards as (function,
    number, multiple, constant, whether that is compared with zero, or zero with its negative); None where there are
    others, or nothing but a read that leaves nothing out."""
    keys: _Coordinates = {}
    strided = False
    stack: list[Expr] = [operand.expr]
    seen: set[Expr] = set()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if isinstance(e, Axis):
            return None
        if isinstance(e, Read):
            for index in e.index:
                form = affine_of(linear(index))
                if form is None:
                    return None
                if form.coef:
                    key, scale = _key(form)
                    keys.setdefault(key, len(keys))
                    strided |= scale > 1
        else:
            stack.extend(reversed(e.args))
    guards = []
    for g in operand.guards:
        form = compared(g)
        if form is None or not form.coef:
            return None
        assert isinstance(g, Apply)
        key, scale = _key(form)
        minus = tuple((a, -c) for a, c in key)
        if key in keys:
            guards.append((g.fn, keys[key], scale, form.const, True))
        elif minus in keys:
            guards.append((g.fn, keys[minus], scale, -form.const, False))
        else:
            return None
    return (keys, guards) if keys and (strided or not operand.plain) else None


class _Box(NamedTuple):
    """Of each coordinate the axis that it equals, the least value, how many there are, and what the next value of the
    axis that is cut adds."""

    fixed: list[int | None]
    lows: list[int]
    extents: list[int]
    steps: list[int]

    @property
    def elements(self) -> int:
        return prod(n for n, f in zip(self.extents, self.fixed, strict=True) if f is None)


def _box(p: Problem, which: int, outer: frozenset[int], cut: tuple[int, int] | None) -> _Box | None:
    points = {cut[0]: cut[1]} if cut else {}
    found = _coordinates(p.operands[which])
    if found is None:
        return None
    keys, _ = found
    out = _Box([], [], [], [sum(c * points[a] for a, c in key if a in points) for key in keys])
    for key in keys:
        if len(key) == 1 and key[0][1] == 1 and key[0][0] in outer:
            out.fixed.append(key[0][0])
            out.lows.append(0)
            out.extents.append(p.extents[key[0][0]])
            continue
        if any(a in outer for a, _ in key):
            return None
        ends = [c * (points.get(a, p.extents[a]) - 1) for a, c in key]
        out.fixed.append(None)
        out.lows.append(sum(x for x in ends if x < 0))
        out.extents.append(sum(map(abs, ends)) + 1)
    if cut:
        if not any(out.steps):
            return None
        out.fixed.append(CUT)
        out.extents.append(p.extents[cut[0]] // cut[1])
    return out


def elements(p: Problem, which: int, outer: frozenset[int], cut: tuple[int, int] | None = None) -> int | None:
    """Those of `halo copy`'s copy; None where there is no halo copy."""
    box = _box(p, which, outer, cut)
    return None if box is None else box.elements


def halo_copy(
    p: Problem, which: int, outer: frozenset[int], cut: tuple[int, int] | None = None, most: float = inf
) -> HaloCopy | None:
    """The halo copy of an operand when the axes `outer` have one value at a time, and the axis cut[0] cut[1] values
    that begin at a multiple of that; None where it has none, or none of at most `most` elements."""
    operand, box = p.operands[which], _box(p, which, outer, cut)
    found = _coordinates(operand)
    if found is None or box is None or box.elements > most:
        return None
    (keys, comparisons), (fixed, lows, extents, steps) = found, box

    def coordinate(j: int, scale: int, const: int) -> Expr:
        const += lows[j] * scale
        x: Expr = Axis(j)
        if scale > 1:
            x = apply("mul", x, Const(scale, i32))
        if steps[j]:
            x = apply("add", x, apply("mul", Axis(len(keys)), Const(steps[j] * scale, i32)))
        return x if const == 0 else apply("add" if const > 0 else "sub", x, Const(abs(const), i32))

    def rule(e):
        if isinstance(e, Read):
            index = []
            for x in e.index:
                form = affine_of(linear(x))
                assert form is not None
                if form.coef:
                    key, scale = _key(form)
                    index.append(coordinate(keys[key], scale, form.const))
                else:
                    index.append(Const(form.const, i32))
            return Read(e.slot, tuple(index), e.dtype)
        return None

    def copied() -> tuple[Expr, tuple[Expr, ...]]:
        zero, guards = Const(0, i32), []
        for fn, j, scale, const, before in comparisons:
            x = coordinate(j, scale, const)
            guards.append(apply(fn, x, zero) if before else apply(fn, zero, x))
        (expr,) = rebuild([operand.expr], rule)
        return expr, tuple(guards)

    place = []
    for key, j in keys.items():
        if fixed[j] is None:
            terms = Linear(-lows[j], {Axis(a): c for a, c in key})
            place.append(terms.expr())
    axes = frozenset(a for key, j in keys.items() if fixed[j] is None for a, _ in key)
    copy = Operand(Read(SLOT + which, tuple(place), p.dtype), (), axes)
    free = [j for j in range(len(keys)) if fixed[j] is None]
    buffer = Buffer(p.dtype, tuple(extents[j] for j in free))
    block = sum(steps[j] * s for j, s in zip(free, buffer.strides, strict=True))
    return HaloCopy(tuple(fixed), tuple(extents), copied, copy, buffer, block)


def covers(s: OperandAccess, axis: int) -> bool:
    """Whether all that lanes past the end of an axis read lies in windows or in the slack behind them: what reads
    backwards reaches before the first element, where another's memory lies or none."""
    return bool(s.reads) and all(r.slot >= SLOT and 0 <= s.forms[f].coef.get(axis, 0) <= SLACK
                                 for r, f in s.reads.items())


def fill(b: Builder, w: HaloCopy, memories: Mapping[int, Memory], to: Value, lanes: int, values: Mapping[int, Value]):
    """Writes the halo copy for the given values of the fixed axes; `to` has room for `lanes` elements more."""
    free = [j for j, f in enumerate(w.fixed) if f is None]
    # Vectors run over the last coordinates as far as they are one stretch of memory.
    expr, guards = w.copied()
    groups = OperandAccess(None, [expr], guards, w.extents, memories).groups(free)
    last = groups[-1].axes if groups else ()
    s = OperandAccess(b, [expr], guards, w.extents, memories, last, lanes)
    rows = [j for j in free if j not in last]
    width = prod(w.extents[j] for j in last)
    fixed = [s.part_of((j,), values[f]) for j, f in enumerate(w.fixed) if f is not None]

    def fill_row(row: Sequence[PartialAddress], at: Value) -> None:
        def vector(x: Value, count: int, _: Any = None) -> None:
            state = LaneCursor(s, x, None if count == lanes else width, lanes).bind(*row)
            b.store(state.product(), to, b.add(at, x))  # lanes past a row are overwritten by the next one

        if width < (UNROLLED + 1) * lanes:
            for x in range(0, width, lanes):  # masks of known columns are constants
                vector(b.const(x), min(lanes, width - x))
        else:
            strips(b, 0, width, lanes, vector)

    # The last of the axes has a loop of its own, so that no row's place is found by a division.
    outer, inner = rows[:-1], rows[-1:]
    turns = prod(w.extents[j] for j in inner)
    with b.loop(0, prod(w.extents[j] for j in outer)) as planes:
        plane, base = s.part_of(outer, planes.var), b.mul(planes.var, turns * width)
        with b.loop(0, turns) as loop:
            fill_row([plane, s.part_of(inner, loop.var), *fixed], b.add(base, b.mul(loop.var, width)))
