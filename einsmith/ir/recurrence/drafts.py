"""Draft a recurrence's members: how far back their reads lie in time, and the values ahead of the first step.

    before   u[t,b,k] = sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * U[j,k])
    after    H[0,b,k] = h0[b,k];  u[t,b,k] = sum[j](H[t,b,j] * U[j,k])

Time is dimension 0. `sign` is 1, or -1 where time runs downward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.linear import LinearForm, linear, moved
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    apply,
    postorder,
)
from einsmith.ir.rebuild import substitute, with_args
from einsmith.ir.recurrence.assembly import ARGS
from einsmith.ir.recurrence.pieces import clipped, dense_piece, map_piece, shifted
from einsmith.ir.rewrite.simplify import simplify


@dataclass(frozen=True)
class Draft:
    """A node of the component, as a draft of its member."""

    shape: tuple[int, ...]
    dtype: DType
    parts: tuple[Piece, ...]


@dataclass(frozen=True)
class Edge:
    """A read of node `source` by node `reader`: the reader's position less the position read lies in `low` ..
    `high`."""

    reader: int
    source: int
    part: Piece
    read: Read
    low: int | None
    high: int | None


def node_reads(part: Piece) -> list[Read]:
    """Return the reads of the component's nodes."""
    return [e for e in postorder(part.bodies) if isinstance(e, Read) and e.slot < ARGS]


def find_edges(drafts: Sequence[Draft]) -> list[Edge]:
    """Return every read of one node by another, once for each of the conditions that it is under."""
    out = []
    for n, draft in enumerate(drafts):
        for part in draft.parts:
            for read, facts in reads_under(part):
                if read.slot < ARGS:
                    position = LinearForm(part.offset[0], {Axis(0): part.step[0]})
                    low, high = facts.bounds((position - linear(read.index[0])).expr(dt.i64))
                    out.append(Edge(n, read.slot, part, read, low, high))
    return out


def _weights(edges: Sequence[Edge], sign: int) -> dict[tuple[int, int], int] | None:
    """Return, for each pair (reader, source) of nodes, the distance back of the nearest read; None if some read may lie
    anywhere."""
    out: dict[tuple[int, int], int] = {}
    for e in edges:
        nearest = e.low if sign > 0 else e.high
        if nearest is None:
            return None
        key = e.reader, e.source
        out[key] = min(out.get(key, sign * nearest), sign * nearest)
    return out


def potentials(edges: Sequence[Edge], start: Sequence[int], sign: int) -> list[int] | None:
    """Return the least shifts, at least `start`, with which no node reads a later step than its own: step = position -
    shift.

    None if there are none.
    """
    weights = _weights(edges, sign)
    if weights is None:
        return None
    shift = list(start)
    for _ in range(len(shift) + 1):
        changed = False
        for (reader, source), w in weights.items():
            if shift[source] < shift[reader] - w:
                shift[source], changed = shift[reader] - w, True
        if not changed:
            return shift
    return None


def find_offending_edge(edges: Sequence[Edge]) -> Edge:
    """Return a read that rules out both directions: one that may lie anywhere, or both before and after."""
    for e in edges:
        if e.low is None or e.high is None:
            return e
    ahead = [e for e in edges if e.low is not None and e.low < 0]
    return next((e for e in ahead if e.high is not None and e.high > 0), (ahead or list(edges))[0])


# ---------------------------------------------------------------------------------------------------- initial values


def split_free_ends(d: Draft) -> Draft:
    """Return the draft with pieces divided where conditions on time alone leave positions at either end that read no
    node."""
    parts: list[Piece] = []
    for p in d.parts:
        n = p.extents[0]
        at = [0, *_changes(p), n] if node_reads(p) else [0, n]
        spans = [(a, b) for a, b in pairwise(at)]
        simplified = [_simplify(q) for a, b in spans for q in _span(p, a, b)]
        free = [not node_reads(q) for q in simplified]
        if len(simplified) < 2 or not (free[0] or free[-1]) or all(free):
            parts.append(p)
            continue
        first = free.index(False)
        last = len(free) - free[::-1].index(False)
        middle = [_simplify(q) for q in _span(p, spans[first][0], spans[last - 1][1])]
        parts += [*simplified[:first], *middle, *simplified[last:]]
    return replace(d, parts=tuple(parts))


def _span(p: Piece, first: int, stop: int) -> list[Piece]:
    """Return the piece where its first axis is in first .. stop-1."""
    o, s = p.offset[0], p.step[0]
    return clipped(p, o + s * first, o + s * (stop - 1) + 1)


def _simplify(p: Piece) -> Piece:
    return map_piece(p, lambda b: simplify(b, p.domain))


def _changes(p: Piece) -> list[int]:
    """Return values of the first axis, a few at most, at which a comparison of it alone changes."""
    out: set[int] = set()
    for e in postorder(p.bodies):
        if isinstance(e, Apply) and e.fn in ("lt", "le", "eq", "ne") and e.args[0].dtype.is_int:
            form = linear(e.args[0]) - linear(e.args[1])
            if len(form.terms) == 1 and (c := form.coefficient(Axis(0))):
                at = -form.const // c
                out.update(t for t in (at, at + 1) if 0 < t < p.extents[0])
    return sorted(out) if len(out) <= _MAX_CHANGES else []


_MAX_CHANGES = 8
"""Most values of the first axis at which a piece is divided; a piece with more of them stays whole."""


def insert_carries(drafts: list[Draft], sign: int) -> tuple[list[Draft], list[int]]:
    """Replace every `where(index in the tensor, M[index], X)` by a plain read of M, which holds X in slots ahead of its
    first step.

    Returns the drafts, and the number of slots that each node has gained in front of position 0.
    """
    front = [0] * len(drafts)
    plain: dict[tuple[int, int, Expr], Read] = {}
    values: dict[int, tuple[int, Expr]] = {}
    carries = [
        (n, k, e, *carry)
        for n, draft in enumerate(drafts)
        for k, part in enumerate(draft.parts)
        for e in postorder(part.bodies)
        if isinstance(e, Apply) and e.fn == "where" and (carry := _carry(e, part, drafts, sign)) is not None
    ]
    for n, k, e, read, slots, value in sorted(carries, key=lambda f: -f[4]):
        most, widest = values.setdefault(read.slot, (slots, value))
        if _has_same_initial_values(widest, most, value, slots, drafts[read.slot].shape, sign):
            plain[n, k, e] = read
    for n, (slots, value) in values.items():
        d = drafts[n]
        front[n] = slots if sign > 0 else 0
        at = 0 if sign > 0 else d.shape[0]
        shape = (d.shape[0] + slots, *d.shape[1:])
        piece = dense_piece((slots, *shape[1:]), value, at)
        parts = [shifted(p, front[n]) for p in d.parts]
        drafts = [*drafts[:n], Draft(shape, d.dtype, (*parts, piece)), *drafts[n + 1 :]]
    out = []
    for n, d in enumerate(drafts):
        pieces = []
        for k, p in enumerate(d.parts):
            memo: dict[Expr, Expr] = {}
            for e in postorder(p.bodies):
                args = tuple(memo[a] for a in e.args)
                if (n, k, e) in plain:
                    memo[e] = memo[plain[n, k, e]]
                elif isinstance(e, Read) and e.slot < ARGS:
                    memo[e] = Read(e.slot, (moved(args[0], front[e.slot]), *args[1:]), e.dtype)
                else:
                    memo[e] = with_args(e, args) if args else e
            pieces.append(map_piece(p, memo.__getitem__))
        out.append(replace(d, parts=tuple(pieces)))
    return out, front


def _carry(e: Apply, part: Piece, drafts: Sequence[Draft], sign: int) -> tuple[Read, int, Expr] | None:
    """Return (M[index], slots, X) of a `where` that chooses the read exactly where M has the position; else None.

    X is over M's axes, the first counting the slots.
    """
    c, *sides = e.args
    for truth, (read, other) in ((True, sides), (False, sides[::-1])):
        if not isinstance(read, Read) or read.slot >= ARGS or part.step[0] != 1:
            continue
        extent, *rest = drafts[read.slot].shape
        back = linear(read.index[0]) - LinearForm(0, {Axis(0): 1})
        if back.terms or any(isinstance(x, Read) and x.slot < ARGS for x in postorder([other, *read.index])):
            continue
        places: dict[int, Expr] = {}
        for d, (i, n) in enumerate(zip(read.index[1:], rest, strict=True), start=1):
            if isinstance(i, Axis) and i.position and part.domain[i.position] == n and i.position not in places:
                places[i.position] = Axis(d)
            elif not (n == 1 and isinstance(i, Const)):
                break
        else:
            first, last = back.const, part.extents[0] - 1 + back.const
            slots = -first if sign > 0 else last - extent + 1
            if not 0 < slots <= last - first + 1:
                continue
            inside = (
                apply("le", Const(0, dt.i32), read.index[0])
                if sign > 0
                else apply("lt", read.index[0], Const(extent, dt.i32))
            )
            facts = Facts(part.domain)
            if not facts.assume(inside).prove(c, truth) or not facts.assume(inside, False).prove(c, not truth):
                continue
            # Slot s holds index s - slots (s + extent where time runs downward), at the position read.
            places[0] = moved(Axis(0), -slots - first if sign > 0 else extent - first)
            if not {x.position for x in postorder([other]) if isinstance(x, Axis)} <= set(places):
                continue
            return read, slots, simplify(substitute(other, places), (slots, *rest))
    return None


def _has_same_initial_values(
    widest: Expr, most: int, value: Expr, slots: int, shape: tuple[int, ...], sign: int
) -> bool:
    """Return whether the initial values in the slots next to the first step equal those that another read expects."""
    widest = substitute(widest, {0: moved(Axis(0), most - slots if sign > 0 else 0)})
    return simplify(widest, (slots, *shape[1:])) is simplify(value, (slots, *shape[1:]))
