"""Axes that a kernel uses under `//V` and `% V` become two: the digits. What the kernel computes stays where it is.

before: Y[b, c] = sum[k](W[8*(c//4) + k, c%4] * X[b, c//4, k])            c < 12 (both factors depend on c, no product)
after:  Y[b, g, c] = sum[k](W[8*g + k, c] * X[b, g, k])                   g < 3, c < 4 (three products of matrices)

Gradients of grouped convolutions, pixel shuffles and other rearrangements around a reduction read so. An output that
is written as [B, 3, 4] lies in memory as one of [B, 12] does. Divisors that chain make further digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from einsmith.expr.analysis.linear import linear
from einsmith.expr.nodes import Apply, Axis, Const, Expr, Piece, Read, Reduce, Template, apply, below, postorder
from einsmith.expr.rewrite.rebuild import map_bodies, rebuild, substitute
from einsmith.expr.rewrite.simplify import simplify_template
from einsmith.plan.kernel import Buffer, Kernel, Stage


@lru_cache(maxsize=4096)
def with_split_axes(kernel: Kernel) -> Kernel:
    """The kernel with every axis split that can be; itself where none can, or where nothing is reduced."""
    if kernel.root.is_scatter or not any(isinstance(p.body, Reduce) for p in kernel.root.parts):
        return kernel
    while True:
        found = (_split(kernel, *c) for c in _candidates(kernel))
        fewer = next((k for k in found if k is not None and _divisions(k) < _divisions(kernel)), None)
        if fewer is None:
            return kernel
        kernel = fewer


def _divisions(kernel: Kernel) -> int:
    """Quotients and remainders in all bodies."""
    every = [b for s in kernel.stages for p in s.template.parts for b in p.bodies]
    return sum(isinstance(e, Apply) and e.fn in ("floordiv", "mod") for e in postorder(every))


def _candidates(kernel: Kernel) -> Iterator[tuple[int | None, int, int]]:
    """(piece of the root, None for an output axis; axis; extent of its low digit), each once."""
    rank, seen = len(kernel.shape), set()
    for s, stage in enumerate(kernel.stages):
        for n, part in enumerate(stage.template.parts):
            for e in below(part.bodies):
                for axis, low in _places(e, part.domain):
                    key = (None if axis < rank else n, axis, low)
                    if key not in seen and (s == 0 or axis < rank):
                        seen.add(key)
                        yield key


def _places(e: Any, extents: Sequence[int]) -> list[tuple[int, int]]:
    """(axis, extent of its low digit) of the splits after which a quotient or remainder is a sum of digits: those of an
    argument whose terms below the divisor stay below it."""
    if not (isinstance(e, Apply) and e.fn in ("floordiv", "mod") and isinstance(e.args[1], Const)):
        return []
    if not e.dtype.is_int:
        return []
    form, c = linear(e.args[0]), int(e.args[1].value)
    rest = {a: k for a, k in form.terms.items() if k % c}
    least = most = form.const % c
    out = []
    for atom, k in rest.items():
        if not isinstance(atom, Axis):
            return []
        extent = extents[atom.position]
        low = c // k if k > 0 and c % k == 0 else 0
        if low and extent > low and extent % low == 0:
            out.append((atom.position, low))
            extent = low
        least, most = least + min(0, k * (extent - 1)), most + max(0, k * (extent - 1))
    return out if least >= 0 and most < c else []


def _split(kernel: Kernel, piece: int | None, axis: int, low: int) -> Kernel | None:
    """The kernel with `low*axis + axis'` for an axis of the output (piece None) or of a piece's reduction; None where
    pieces end within a digit."""
    stages: list[Stage] = []
    shape = kernel.shape if piece is not None else _two(kernel.shape, axis, kernel.shape[axis] // low, low)
    for s, stage in enumerate(kernel.stages):
        t = stage.template
        parts: list[Piece] = []
        for n, part in enumerate(t.parts):
            assert isinstance(part, Piece)
            if piece is None:
                new = _output_split(part, axis, low)
            else:
                new = _reduction_split(part, axis, low) if (s, n) == (0, piece) else part
            if new is None:
                return None
            parts.append(new)
        made = {slot for slot, ref in enumerate(stage.args) if ref[0] == "stage"}
        params = tuple((d, shape if slot in made else old) for slot, (d, old) in enumerate(t.params))
        t = _at_identity(Template(shape, params, tuple(parts)), made)
        stages.append(Stage(simplify_template(t), stage.args, stage.outputs))
    written = {n for stage in stages for n in stage.outputs}
    buffers = tuple(
        Buffer(b.dtype, shape if n in written else b.shape, b.far, b.short) for n, b in enumerate(kernel.buffers)
    )
    return Kernel(tuple(stages), buffers, kernel.fixed)


def _at_identity(t: Template, slots: set[int]) -> Template:
    """The template with every read of these slots at the identity index."""
    identity = tuple(Axis(d) for d in range(t.rank))

    def rule(e: Any) -> Any:
        return Read(e.slot, identity, e.dtype) if isinstance(e, Read) and e.slot in slots else None

    return map_bodies(t, lambda b: rebuild([b], rule)[0]) if slots else t


def _two(values: tuple[int, ...], at: int, high: int, low: int) -> tuple[int, ...]:
    return (*values[:at], high, low, *values[at + 1 :])


def _moved(bodies: Sequence[Expr], rank: int, axis: int, low: int) -> tuple[Expr, ...]:
    """Bodies with `low*Axis(axis) + Axis(axis + 1)` for an axis, and those after it one further; rank: of all axes."""
    inner = apply("add", apply("mul", Const(low, Axis.dtype), Axis(axis)), Axis(axis + 1))
    axes: dict[int, Expr] = {axis: inner, **{a: Axis(a + 1) for a in range(axis + 1, rank)}}
    return tuple(substitute(b, axes) for b in bodies)


def _with_bodies(body: Expr | Reduce, bodies: tuple[Expr, ...], extents: tuple[int, ...] = ()) -> Expr | Reduce:
    return Reduce(body.combiner, extents or body.extents, bodies) if isinstance(body, Reduce) else bodies[0]


def _output_split(part: Piece, axis: int, low: int) -> Piece | None:
    offset, step, extent = part.offset[axis], part.step[axis], part.extents[axis]
    if step != 1 or offset % low or extent % low:
        return None
    bodies = _moved(part.bodies, len(part.domain), axis, low)
    return Piece(
        _two(part.offset, axis, offset // low, 0), _two(part.step, axis, 1, 1),
        _two(part.extents, axis, extent // low, low), _with_bodies(part.body, bodies),
    )  # fmt: skip


def _reduction_split(part: Piece, axis: int, low: int) -> Piece:
    assert isinstance(part.body, Reduce)
    rank = len(part.extents)
    n = part.body.extents[axis - rank]
    bodies = _moved(part.bodies, len(part.domain), axis, low)
    extents = _two(part.body.extents, axis - rank, n // low, low)
    return Piece(part.offset, part.step, part.extents, _with_bodies(part.body, bodies, extents))
