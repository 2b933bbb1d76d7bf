"""Split axes that a kernel uses under `//V` and `% V` into mixed-radix digits; results keep their place in memory.

before: Y[b, c] = sum[k](W[8*(c//4) + k, c%4] * X[b, c//4, k])            c < 12 (both factors depend on c, no product)
after:  Y[b, g, c] = sum[k](W[8*g + k, c] * X[b, g, k])                   g < 3, c < 4 (three products of matrices)

Gradients of grouped convolutions, pixel shuffles and other rearrangements around a reduction have this form. An output
written as [B, 3, 4] has the memory layout of one of [B, 12]. Divisors that chain make further digits.

An axis of the output may become V pieces instead, each of every V-th point:

before: dX[c, i] = sum[o, u](W[o, c, 2*u + (i+1)%2] * dY[o, (i+1)//2 - u])      i < 17
after:  dX[c, 2*i] = sum[o, u](W[o, c, 2*u + 1] * dY[o, i - u])                 i < 9
        dX[c, 2*i + 1] = sum[o, u](W[o, c, 2*u] * dY[o, i + 1 - u])             i < 8

Gradients of strided convolutions have this form; they need pieces where the extent is odd, or 1 is added as here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Template,
    apply,
    cached_postorder,
    postorder,
)
from einsmith.ir.rebuild import map_reads, substitute
from einsmith.ir.rewrite.simplify import simplify_template
from einsmith.schedule.kernel import EpilogueSum, Kernel, Stage

MAX_PIECES = 16
"""Most pieces of a kernel whose axes are split into pieces; each piece is configured and compiled."""

T = TypeVar("T")
_Cut = Callable[[Kernel, int | None, int, int], Kernel | None]


@lru_cache(maxsize=4096)
def split_kernels(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the kernel with all splittable axes split, once preferring digits and once preferring pieces.

    Empty where no axis can be split, or nothing is reduced."""
    if kernel.root.is_scatter or not any(isinstance(p.body, Reduce) for p in kernel.root.parts):
        return ()
    if next(_candidates(kernel), None) is None:
        return ()
    splits = (
        _split_by(kernel, cuts)
        for cuts in ((_split_into_digits, _split_into_pieces), (_split_into_pieces, _split_into_digits))
    )
    return tuple(dict.fromkeys(k for k in splits if k is not kernel))


@lru_cache(maxsize=4096)
def split_buffer(kernel: Kernel, n: int, dimension: int, low: int) -> Kernel | None:
    """Return the kernel with a dimension of buffer `n` replaced by two, the second of `low` points.

    The axes along which the dimension is written or read are split. None where one cannot be split.

    before: Y[n, o, y] = sum[k](X[n, k, y] * W[o, k])
    after:  Y[n, o, y] = sum[k, b](X[n, k, b, y] * W[o, 16*k + b])       dimension 1 of X, low 16; k < 4, b < 16
    """
    if kernel.root.is_scatter:
        return None
    divisions = _divisions(kernel)
    if any(n in stage.outputs for stage in kernel.stages):
        # The kernel's results share its axes, and so do the values that it reads at the element that it computes.
        split = _split_into_digits(kernel, None, dimension, low)
    else:
        split = _read_in_digits(kernel, n, dimension, low)
        while split is not None and _divisions(split) > divisions:
            cuts = (_split_into_digits(split, *c) for c in _candidates(split))
            split = next((k for k in cuts if k is not None and _divisions(k) < _divisions(split)), None)
    return split if split is not None and _divisions(split) <= divisions else None


def _read_in_digits(kernel: Kernel, n: int, dimension: int, low: int) -> Kernel:
    """Return the kernel with a dimension of a buffer that is only read split in two: x[i] -> x[i // low, i % low]."""
    stages = []
    for stage in kernel.stages:
        slots = {slot for slot, ref in enumerate(stage.args) if ref == ("buffer", n)}
        stages.append(Stage(_slots_in_digits(stage.template, slots, dimension, low), stage.args, stage.outputs))
    buffers = tuple(b.split(dimension, low) if k == n else b for k, b in enumerate(kernel.buffers))
    return Kernel(tuple(stages), buffers, kernel.loop_invariant, kernel.sums)


def _slots_in_digits(t: Template, slots: set[int], dimension: int, low: int) -> Template:
    """Return a template with a dimension of some arguments split in two."""
    if not slots:
        return t

    def rule(e: Read) -> Read | None:
        if e.slot not in slots:
            return None
        i = e.index[dimension]
        by = Const(low, i.dtype)
        return Read(e.slot, _with(e.index, dimension, apply("floordiv", i, by), apply("mod", i, by)), e.dtype)

    params = tuple(
        (d, _with(s, dimension, s[dimension] // low, low) if slot in slots else s)
        for slot, (d, s) in enumerate(t.params)
    )
    return simplify_template(map_reads(t, rule, params))


def _split_by(kernel: Kernel, cuts: Sequence[_Cut]) -> Kernel:
    while True:
        splits = (cut(kernel, *c) for cut in cuts for c in _candidates(kernel))
        fewer = next((k for k in splits if k is not None and _divisions(k) < _divisions(kernel)), None)
        if fewer is None:
            return kernel
        kernel = fewer


def _divisions(kernel: Kernel) -> int:
    """Return the number of quotients and remainders in all bodies."""
    every = [b for s in kernel.stages for p in s.template.parts for b in p.bodies]
    return sum(isinstance(e, Apply) and e.fn in ("floordiv", "mod") for e in postorder(every))


def _candidates(kernel: Kernel) -> Iterator[tuple[int | None, int, int]]:
    """Yield each candidate split once: (piece of the root, None for an output axis; axis; extent of its low digit)."""
    rank, seen = len(kernel.shape), set()
    for s, stage in enumerate(kernel.stages):
        for n, part in enumerate(stage.template.parts):
            for e in cached_postorder(part.bodies):
                for axis, low in _digit_splits(e, part.domain):
                    key = (None if axis < rank else n, axis, low)
                    if key not in seen and (s == 0 or axis < rank):
                        seen.add(key)
                        yield key


def _digit_splits(e: Any, extents: Sequence[int]) -> list[tuple[int, int]]:
    """Return the splits (axis, extent of its low digit) that may turn a quotient or remainder into a sum of digits."""
    if not (isinstance(e, Apply) and e.fn in ("floordiv", "mod") and isinstance(e.args[1], Const)):
        return []
    if not e.dtype.is_int:
        return []
    form, c = linear(e.args[0]), int(e.args[1].value)
    if c <= 0:  # integer elements may be divided by 0 or a negative number, for which no rule splits axes
        return []
    out = []
    for atom, k in form.terms.items():
        if k % c == 0:
            continue
        if not isinstance(atom, Axis):
            return []
        if k > 0 and c % k == 0 and extents[atom.position] > c // k:
            out.append((atom.position, c // k))
    return out


def _split_into_digits(kernel: Kernel, piece: int | None, axis: int, low: int) -> Kernel | None:
    """Return the kernel with an axis replaced by `low*axis + axis'`; None where extents or pieces end within a digit.

    piece: number of the piece whose reduction axis is split; None: an output axis."""
    if (kernel.shape if piece is None else kernel.root.parts[piece].domain)[axis] % low:
        return None
    stages: list[Stage] = []
    shape = kernel.shape if piece is not None else _with(kernel.shape, axis, kernel.shape[axis] // low, low)
    for s, stage in enumerate(kernel.stages):
        t = stage.template
        parts: list[Piece] = []
        for n, part in enumerate(t.parts):
            assert isinstance(part, Piece)
            new = _split(part, axis, low) if piece is None or (s, n) == (0, piece) else part
            if new is None:
                return None
            parts.append(new)
        stage_slots = {slot for slot, ref in enumerate(stage.args) if ref[0] == "stage"}
        params = tuple((d, shape if slot in stage_slots else old) for slot, (d, old) in enumerate(t.params))
        t = _at_identity(Template(shape, params, tuple(parts)), stage_slots)
        stages.append(Stage(simplify_template(t), stage.args, stage.outputs))
    written = {n for stage in stages for n in stage.outputs}
    buffers = kernel.buffers
    if piece is None:
        buffers = tuple(b.split(axis, low) if n in written else b for n, b in enumerate(buffers))
    sums = kernel.sums if piece is not None else tuple(_split_sum(x, axis) for x in kernel.sums)
    return Kernel(tuple(stages), buffers, kernel.loop_invariant, sums)


def _split_sum(x: EpilogueSum, axis: int) -> EpilogueSum:
    """Return a sum of a kernel whose output axis is split in two."""
    kept = [(a, a + 1) if a == axis else (a + (a > axis),) for a in x.kept]
    return EpilogueSum(x.stage, tuple(a for axes in kept for a in axes), x.centred)


def _split_into_pieces(kernel: Kernel, piece: int | None, axis: int, low: int) -> Kernel | None:
    """Return the kernel with each piece split into `low` pieces of every `low`-th point along an output axis.

    None for a reduction axis, where the pieces are too many or too short, or where they are strided already."""
    root = kernel.stages[0]
    parts = root.template.parts
    if piece is not None or len(parts) * low > MAX_PIECES:
        return None
    out: list[Piece] = []
    for part in parts:
        assert isinstance(part, Piece)
        if part.step[axis] != 1 or part.extents[axis] < low:
            return None
        for first in range(low):
            at = apply("add", apply("mul", Const(low, Axis.dtype), Axis(axis)), Const(first, Axis.dtype))
            bodies = tuple(substitute(b, {axis: at}) for b in part.bodies)
            out.append(
                Piece(
                    _with(part.offset, axis, part.offset[axis] + first),
                    _with(part.step, axis, low),
                    _with(part.extents, axis, -(-(part.extents[axis] - first) // low)),
                    _with_bodies(part.body, bodies),
                )
            )
    t = simplify_template(Template(root.template.shape, root.template.params, tuple(out)))
    stages = Stage(t, root.args, root.outputs), *kernel.stages[1:]
    return Kernel(stages, kernel.buffers, kernel.loop_invariant, kernel.sums)


def _with(values: tuple[T, ...], at: int, *new: T) -> tuple[T, ...]:
    return (*values[:at], *new, *values[at + 1 :])


def _at_identity(t: Template, slots: set[int]) -> Template:
    """Return the template with every read of these slots at the identity index."""
    identity = tuple(Axis(d) for d in range(t.rank))
    return map_reads(t, lambda e: Read(e.slot, identity, e.dtype) if e.slot in slots else None) if slots else t


def _split_axis(bodies: Sequence[Expr], rank: int, axis: int, low: int) -> tuple[Expr, ...]:
    """Return bodies with `low*Axis(axis) + Axis(axis + 1)` in place of an axis, and later axes renumbered by one.

    rank: number of all axes."""
    inner = apply("add", apply("mul", Const(low, Axis.dtype), Axis(axis)), Axis(axis + 1))
    axes: dict[int, Expr] = {axis: inner, **{a: Axis(a + 1) for a in range(axis + 1, rank)}}
    return tuple(substitute(b, axes) for b in bodies)


def _with_bodies(body: Expr | Reduce, bodies: tuple[Expr, ...], extents: tuple[int, ...] = ()) -> Expr | Reduce:
    return Reduce(body.combiner, extents or body.extents, bodies) if isinstance(body, Reduce) else bodies[0]


def _split(part: Piece, axis: int, low: int) -> Piece | None:
    """Return the piece with an output or reduction axis split in two; None where it begins or ends within a digit."""
    rank, extent = len(part.extents), part.domain[axis]
    if axis < rank and (part.step[axis] != 1 or part.offset[axis] % low or extent % low):
        return None
    bodies = _split_axis(part.bodies, len(part.domain), axis, low)
    if axis >= rank:
        assert isinstance(part.body, Reduce)
        extents = _with(part.body.extents, axis - rank, extent // low, low)
        return Piece(part.offset, part.step, part.extents, _with_bodies(part.body, bodies, extents))
    return Piece(
        _with(part.offset, axis, part.offset[axis] // low, 0),
        _with(part.step, axis, 1, 1),
        _with(part.extents, axis, extent // low, low),
        _with_bodies(part.body, bodies),
    )
