"""Copy the part of an operand that a task touches, with guards and activations applied (a halo copy).

A padded convolution reads each element of its input many times, every time under a guard. Where the operand depends on
its axes only through a few coordinates (image, channel, row, column), the task evaluates it once per coordinate into
scratch, zeros where the guards fail, and reads the copy without guards.

    where(0 <= p+r-2 < 28 and 0 <= q+s-2 < 28, X[b, c, p+r-2, q+s-2], 0)
    -> copy[c, y, x] = where(0 <= y-2 < 28 and 0 <= x-2 < 28, X[b, c, y-2, x-2], 0);  read as copy[c, p+r, q+s]

A strided convolution of single pixels reads few pixels, in rows that are not whole vectors; its halo copy holds only
these pixels.

    X[b, c, 2*p, 2*q]  ->  copy[c, y, x] = X[b, c, 2*y, 2*x];  read as copy[c, p, q]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, inf, prod
from typing import Any, NamedTuple

from einsmith.base.dtypes import i32
from einsmith.codegen.loopnest.address import BufferMemory
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import strips, sweep
from einsmith.codegen.ssa import SSAValue
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.analysis.lines import COMPARISONS
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, apply, axes_of, outermost
from einsmith.ir.rebuild import rebuild
from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.schedule.contraction_problem import Operand, Problem, affine
from einsmith.schedule.kernel import KernelBuffer

SLOT = 1 << 20
"""First slot of halo copies: the left operand's, then the right's."""

BLOCK_AXIS = -1
"""Number that stands among a halo copy's fixed axes for the block of the axis that it is cut along."""

SLACK_VECTORS = 16
"""Vectors of slack behind a halo copy, which is also the largest stride (elements) of lanes that may read past an
axis."""

MAX_UNROLLED_VECTORS = 8
"""Most vectors of a row of a halo copy whose filling is unrolled."""


@dataclass(frozen=True, eq=False)
class HaloCopy:
    """A copy of an operand over its coordinates, outer first.

    fixed: for each coordinate, the axis that it equals and that has one value at a time, or None
    extents: for each coordinate, the number of values (for a fixed one, the axis's extent)
    contents: returns the copied expression and its guards, with Axis(j) for coordinate j minus its least value
    operand: the operand that reads the halo copy at the problem's axes
    buffer: the copy's shape and type
    block: elements from one block to the next, in a copy of all blocks

    A halo copy that is cut holds one block of an axis at a time; the block's number is the fixed coordinate BLOCK_AXIS.
    """

    fixed: tuple[int | None, ...]
    extents: tuple[int, ...]
    contents: Callable[[], tuple[Expr, tuple[Expr, ...]]]
    operand: Operand
    buffer: KernelBuffer
    block: int = 0

    @property
    def blocks(self) -> int:
        """Return the number of blocks of the axis that the copy is cut along."""
        return self.extents[self.fixed.index(BLOCK_AXIS)]


_Coordinate = tuple[tuple[int, int], ...]
"""Axes and their coefficients, without a common divisor."""


def _coordinate(form: LinearForm, sign: int = 1) -> tuple[_Coordinate, int]:
    """Split the axes' part of an affine form into (coordinate, factor): its terms over their gcd, and the gcd.

    The form's constant is ignored. With `sign` -1 the factor is negative and the coordinate's coefficients are negated.
    """
    scale = gcd(*form.coef.values()) * sign
    return tuple(sorted((a, c // scale) for a, c in form.coef.items())), scale


def _compared_forms(g: Expr) -> tuple[LinearForm, LinearForm] | None:
    """Split an integer comparison of x and y: return (the part of x - y linear in axes, the rest), which is read from
    memory. None for other expressions, and where the rest depends on axes."""
    if not (isinstance(g, Apply) and g.fn in COMPARISONS and g.args[0].dtype.is_int):
        return None
    form = linear(g.args[0]) - linear(g.args[1])
    of_axes = LinearForm.of_axes(form.const, form.coef)
    return (of_axes, form - of_axes) if not any(axes_of(x) for x in form.atoms) else None


@lru_cache(maxsize=1024)
def _coordinates(operand: Operand) -> dict[_Coordinate, int] | None:
    """Return the coordinates, numbered, whose multiples an operand reads or compares (a comparison may be negated).

    Returns None where the operand depends on its axes otherwise, or is a plain read without strides; and where a guard
    compares one of several coordinates of an axis: it would hold where no point has the others, and they are outside.
    """
    coordinates: dict[_Coordinate, int] = {}
    strided = False
    for e in outermost([operand.expr], (Axis, Read)):
        forms = affine(e) if isinstance(e, Read) else None
        if forms is None:
            return None
        for form in (x for x in forms if x.coef):
            key, scale = _coordinate(form)
            coordinates.setdefault(key, len(coordinates))
            strided |= scale > 1
    for g in operand.guards:
        sides = _compared_forms(g)
        x = None if sides is None else sides[0]
        if x is None or not x.coef or all(_coordinate(x, sign)[0] not in coordinates for sign in (1, -1)):
            return None
        if sum(any(a in x.coef for a, _ in key) for key in coordinates) > 1:
            return None
    return coordinates if coordinates and (strided or not operand.plain) else None


class _CoordinateBox(NamedTuple):
    """The coordinates of a halo copy.

    fixed: the axis that each coordinate equals, or None
    lows, extents: least value and number of values
    steps: what the next block of the axis that is cut adds
    """

    fixed: list[int | None]
    lows: list[int]
    extents: list[int]
    steps: list[int]

    @property
    def elements(self) -> int:
        return prod(n for n, f in zip(self.extents, self.fixed, strict=True) if f is None)


@lru_cache(maxsize=4096)
def _coordinate_box(
    operand: Operand, extents: tuple[int, ...], outer: frozenset[int], cut: tuple[int, int] | None
) -> _CoordinateBox | None:
    """Return the coordinates of a halo copy, or None; arguments are those of `halo_copy`."""
    block_points, keys = {cut[0]: cut[1]} if cut else {}, _coordinates(operand)
    if keys is None:
        return None
    out = _CoordinateBox([], [], [], [sum(c * block_points[a] for a, c in key if a in block_points) for key in keys])
    for key in keys:
        if len(key) == 1 and key[0][1] == 1 and key[0][0] in outer:
            out.fixed.append(key[0][0])
            out.lows.append(0)
            out.extents.append(extents[key[0][0]])
            continue
        if any(a in outer for a, _ in key):
            return None
        ends = [c * (block_points.get(a, extents[a]) - 1) for a, c in key]
        out.fixed.append(None)
        out.lows.append(sum(x for x in ends if x < 0))
        out.extents.append(sum(map(abs, ends)) + 1)
    if cut:
        if not any(out.steps):
            return None
        out.fixed.append(BLOCK_AXIS)
        out.extents.append(extents[cut[0]] // cut[1])
    return out


def count_elements(p: Problem, which: int, outer: frozenset[int], cut: tuple[int, int] | None = None) -> int | None:
    """Return the elements of an operand's halo copy, or None; arguments are those of `halo_copy`."""
    box = _coordinate_box(p.operands[which], p.extents, outer, cut)
    return None if box is None else box.elements


def halo_copy(
    p: Problem, which: int, outer: frozenset[int], cut: tuple[int, int] | None = None, max_elements: float = inf
) -> HaloCopy | None:
    """Return the halo copy of operand `which`, or None if there is none of at most `max_elements` elements.

    Args:
        p: the problem
        which: the operand, 0 left, 1 right
        outer: axes that have one value at a time
        cut: (axis, points): the axis has a block of `points` values at a time, which begins at a multiple of `points`
        max_elements: most elements of the copy
    """
    operand = p.operands[which]
    keys, box = _coordinates(operand), _coordinate_box(operand, p.extents, outer, cut)
    if keys is None or box is None or box.elements > max_elements:
        return None
    fixed, lows, extents, steps = box

    def in_coordinates(form: LinearForm, sign: int = 1) -> Expr | None:
        """Return a form with this sign in terms of coordinates; None where it is not a multiple of any."""
        if not form.coef:
            return Const(form.const, i32)
        key, scale = _coordinate(form, sign)
        if key not in keys:
            return None
        j, scale = keys[key], abs(scale)
        x: Expr = apply("mul", Axis(j), Const(scale, i32)) if scale > 1 else Axis(j)
        const = sign * form.const + lows[j] * scale
        if steps[j]:
            x = apply("add", x, apply("mul", Axis(len(keys)), Const(steps[j] * scale, i32)))
        return x if const == 0 else apply("add" if const > 0 else "sub", x, Const(abs(const), i32))

    def move_read(e):
        forms = affine(e) if isinstance(e, Read) else None
        return None if forms is None else Read(e.slot, tuple(map(in_coordinates, forms)), e.dtype)

    def contents() -> tuple[Expr, tuple[Expr, ...]]:
        guards = []
        for g in operand.guards:
            sides = _compared_forms(g)
            assert isinstance(g, Apply) and sides is not None
            form, numbers = sides
            left, right = in_coordinates(form), in_coordinates(form, -1)
            left, right = (numbers.expr(), right) if left is None else (left, (numbers * -1).expr())
            assert left is not None and right is not None
            guards.append(apply(g.fn, left, right))
        (expr,) = rebuild([operand.expr], move_read)
        return expr, tuple(guards)

    free = [(key, j) for key, j in keys.items() if fixed[j] is None]
    indices = tuple(LinearForm(-lows[j], {Axis(a): c for a, c in key}).expr() for key, j in free)
    axes = frozenset(a for key, _ in free for a, _ in key)
    operand_of_copy = Operand(Read(SLOT + which, indices, p.operand_type), (), axes)
    buffer = KernelBuffer(p.operand_type, tuple(extents[j] for _, j in free))
    block = sum(steps[j] * s for (_, j), s in zip(free, buffer.strides, strict=True))
    return HaloCopy(tuple(fixed), tuple(extents), contents, operand_of_copy, buffer, block)


def can_read_past(s: OperandAccess, axis: int) -> bool:
    """Return whether all that lanes past the end of an axis read lies in halo copies or the slack behind them.

    Operands with a negative stride do not qualify: their lanes would read before the first element, which may be
    unmapped or another buffer's.
    """
    return bool(s.reads) and all(
        r.slot >= SLOT and 0 <= s.forms[f].coef.get(axis, 0) <= SLACK_VECTORS for r, f in s.reads.items()
    )


def fill(
    b: Builder,
    w: HaloCopy,
    memories: Mapping[int, BufferMemory],
    to: SSAValue,
    lanes: int,
    values: Mapping[int, SSAValue],
):
    """Write the halo copy for these values of the fixed axes; `to` has at least `lanes` elements after the copy."""
    free = [j for j, f in enumerate(w.fixed) if f is None]
    expr, guards = w.contents()
    scalar_access = OperandAccess(b, [expr], guards, w.extents, memories)
    # Vectors run over the last coordinates as far as they are one stretch of memory.
    *_, last = [(), *(g.axes for g in scalar_access.groups(free))]
    access, width = scalar_access.along(last, lanes), prod(w.extents[j] for j in last)
    rows = [j for j in free if j not in last]
    outer, inner = rows[:-1], rows[-1:]
    fixed = [access.part_of((j,), values[f]) for j, f in enumerate(w.fixed) if f is not None]

    def fill_row(plane: PartialAddress, number: SSAValue, flat: SSAValue, _: Any) -> Sequence[SSAValue]:
        row = [plane, access.part_of(inner, number), *fixed]
        place = b.mul(flat, width)

        def store_vector(x: SSAValue, count: int, _: Any = None) -> None:
            state = LaneCursor(access, x, None if count == lanes else width, lanes).bind(*row)
            b.store(state.product(), to, b.add(place, x))  # lanes past a row are overwritten by the next one

        if width < (MAX_UNROLLED_VECTORS + 1) * lanes:
            for x in range(0, width, lanes):  # masks of known columns are constants
                store_vector(b.const(x), min(lanes, width - x))
        else:
            strips(b, 0, width, lanes, store_vector)
        return ()

    # The last of the axes has a loop of its own, so that no row's place needs a division.
    planes, rows_per_plane = (prod(w.extents[j] for j in axes) for axes in (outer, inner))
    sweep(
        b,
        [planes, rows_per_plane],
        0,
        planes * rows_per_plane,
        (),
        lambda position: access.part_of(outer, position[0]),
        fill_row,
    )
