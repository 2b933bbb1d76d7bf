"""Move, clip and rewrite the pieces of a recurrence's members along time, dimension 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from einsmith.ir.analysis.linear import moved
from einsmith.ir.nodes import Axis, Expr, Piece, Read, Reduce, postorder
from einsmith.ir.rebuild import substitute, with_args


def dims_first(dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the order of `rank` dimensions that moves the dimensions `dims` to the front."""
    return tuple(dict.fromkeys((*dims, *range(rank))))


def moved_read(e: Read, by: int) -> Read:
    """Return a read whose position in dimension 0 is increased by a constant."""
    return Read(e.slot, (moved(e.index[0], by), *e.index[1:]), e.dtype)


def map_piece(p: Piece, rule: Callable[[Expr], Expr]) -> Piece:
    """Return the piece with its bodies passed through `rule`."""
    body = p.body
    if isinstance(body, Reduce):
        return Piece(p.offset, p.step, p.extents, Reduce(body.combiner, body.extents, tuple(map(rule, body.bodies))))
    return Piece(p.offset, p.step, p.extents, rule(body))


def dense_piece(extents: tuple[int, ...], body: Expr | Reduce, first: int = 0) -> Piece:
    """Return a piece of neighbouring positions, from the position `first` of dimension 0 on."""
    zeros = (0,) * len(extents)
    return Piece((first, *zeros[1:]) if first else zeros, (1,) * len(extents), extents, body)


def restated(p: Piece, axes: Mapping[Expr, Expr], read: Callable[[Read, Read], Expr]) -> Piece:
    """Return the piece with other expressions for some of its axes and for its reads.

    read: gets a read, and the same read with its index restated."""
    memo = dict(axes)
    for e in postorder(p.bodies, memo):
        new = with_args(e, tuple(memo[a] for a in e.args)) if e.args else e
        memo[e] = read(e, new) if isinstance(e, Read) and isinstance(new, Read) else new
    return map_piece(p, memo.__getitem__)


def clipped(p: Piece, first: int, stop: int) -> list[Piece]:
    """Return the part of a piece at positions first .. stop-1."""
    o, s, n = p.offset[0], p.step[0], p.extents[0]
    low, high = max(0, -(-(first - o) // s)), min(n, -(-(stop - o) // s))
    if low >= high:
        return []
    if (low, high) == (0, n):
        return [p]
    p = map_piece(p, lambda b: substitute(b, {0: moved(Axis(0), low)}))
    return [Piece((o + s * low, *p.offset[1:]), p.step, (high - low, *p.extents[1:]), p.body)]


def shifted(p: Piece, by: int) -> Piece:
    """Return a piece moved by `by` positions along its first dimension."""
    return Piece((p.offset[0] + by, *p.offset[1:]), p.step, p.extents, p.body)


def parts_at(parts: Iterable[object], first: int, n: int) -> list[Piece]:
    """Return the pieces at positions first .. first+n-1 of dimension 0, counted from there."""
    return [shifted(q, -first) for p in parts if isinstance(p, Piece) for q in clipped(p, first, first + n)]
