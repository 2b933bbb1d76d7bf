"""Narrow argmax storage: store the position of a small window's extreme in a byte.

before: M, K = argmax[r, s](X[2*i+r, 2*j+s]);  dX[2*i+r, 2*j+s] = where(K[i, j] == 2*r+s, dM[i, j], 0)
after:  B[i, j] = i8(K[i, j]);  dX[2*i+r, 2*j+s] = where(i32(B[i, j]) == 2*r+s, dM[i, j], 0), K being stored nowhere

The positions that the backward pass of a pooling reads then take a quarter of the memory. A position is less than the
size of the window, so windows of up to 256 elements fit: above 128, B holds K - 128.
"""

from __future__ import annotations

from functools import partial

from einsmith.base import dtypes as dt
from einsmith.ir.interned import Node
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Const,
    Expr,
    Graph,
    Item,
    Piece,
    Read,
    Reduce,
    Tensor,
    apply,
    postorder,
    read_whole,
    reads,
    size,
    template,
)
from einsmith.ir.rebuild import exchanged, map_bodies, readers_of, rebuild, types_of, with_args

BYTE_VALUES = 256
"""Most positions of a reduction that a byte distinguishes."""


def narrow_argmax(graph: Graph) -> Graph:
    """Return the graph with positions stored in bytes if all their readers are tensors that do not use them as an
    index."""
    users = readers_of(postorder(graph.roots))
    roots = set(graph.roots)
    position_counts = {
        t: n
        for t in users
        if t not in roots and (n := _count_positions(t)) and all(_reads_outside_indices(u, t) for u in users[t])
    }
    if not position_counts:
        return graph
    new: dict = {}
    bytes_of: dict[Tensor, Compute] = {}
    for node in postorder(graph.roots):
        args = tuple(new[a] for a in node.args)
        slots = (
            {s: position_counts[a] for s, a in enumerate(node.args) if a in position_counts}
            if isinstance(node, Compute)
            else {}
        )
        if not slots:
            new[node] = with_args(node, args) if args else node
            continue
        assert isinstance(node, Compute)
        for s in slots:
            bytes_of.setdefault(node.args[s], _store_as_bytes(args[s], slots[s]))
        args = tuple(bytes_of[node.args[s]] if s in slots else a for s, a in enumerate(args))
        new[node] = Compute(map_bodies(node.template, partial(_read_bytes, slots=slots), types_of(args)), args)
    return exchanged(graph, new)


def _count_positions(t: Tensor) -> int:
    """Return the number of possible positions of a tensor of positions; 0 for other tensors, or above BYTE_VALUES."""
    if not isinstance(t, Item) or t.member != 1 or not isinstance(t.node, Compute):
        return 0
    max_positions = 0
    for p in t.node.template.parts:
        if not isinstance(p, Piece) or not isinstance(p.body, Reduce) or not p.body.combiner.startswith("arg"):
            return 0
        max_positions = max(max_positions, size(p.body.extents))
    return max_positions if max_positions <= BYTE_VALUES else 0


def _reads_outside_indices(user: Node, t: Tensor) -> bool:
    """Return whether a node reads a tensor only outside of indices."""
    if not isinstance(user, Compute) or user.template.is_scatter:
        return False
    slots = {s for s, a in enumerate(user.args) if a is t}
    return not any(
        isinstance(e, Read) and e.slot in slots
        for p in user.template.parts
        for b in p.bodies
        for r in reads(b)
        for e in postorder(r.index)
    )


def _store_as_bytes(t: Tensor, position_count: int) -> Compute:
    """Return the positions as bytes."""
    read: Expr = read_whole(0, t.shape, t.dtype)
    if position_count > BYTE_VALUES // 2:
        read = apply("sub", read, Const(BYTE_VALUES // 2, t.dtype))
    return Compute(template(t.shape, types_of((t,)), Apply("cast", (read,), dt.i8)), (t,))


def _read_bytes(body: Expr, slots: dict[int, int]) -> Expr:
    """Return the body with reads of positions taken from bytes."""

    def rule(e):
        if isinstance(e, Read) and e.slot in slots:
            wide = Apply("cast", (Read(e.slot, e.index, dt.i8),), dt.i32)
            return apply("add", wide, Const(BYTE_VALUES // 2, dt.i32)) if slots[e.slot] > BYTE_VALUES // 2 else wide
        return None

    return rebuild([body], rule)[0]
