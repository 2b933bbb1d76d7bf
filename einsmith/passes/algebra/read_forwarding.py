"""Forward reads of one piece of an assembled tensor to the tensor that the piece copies.

before: C[k] = A[k];  C[8+k] = B[k];  Y[k] = exp(C[8+k])
after:  Y[k] = exp(B[k])
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Compute, Const, Expr, Graph, Piece, Read, Template, Tensor, reads
from einsmith.ir.rebuild import map_bodies, rebuild, replace, substitute
from einsmith.ir.rewrite.simplify import simplified


def read_forwarding(graph: Graph) -> Graph:
    """Return the graph with reads of assembled tensors forwarded, if each read of the tensor is within one piece."""

    def rule(node):
        return _forward_reads(node) if isinstance(node, Compute) else None

    return replace(graph, rule)


def _forward_reads(node: Compute) -> Compute | None:
    """Return the node with its reads of assembled tensors forwarded; None if it has none."""
    args: list[Tensor] = list(node.args)
    new: dict[Read, Expr] = {}
    for slot, a in enumerate(node.args):
        pieces = _find_copy_pieces(a)
        piece_of = _find_pieces_read(node.template, slot, pieces) if pieces else None
        if piece_of is None or not isinstance(a, Compute):
            continue
        slots = {s: len(args) + s for s in range(len(a.args))}
        args += a.args
        for e, p in piece_of.items():
            at = {d: (linear(i) - o).expr() for d, (i, o) in enumerate(zip(e.index, p.offset, strict=True))}
            new[e] = substitute(p.bodies[0], at, slots)
    if not new:
        return None
    params = tuple((a.dtype, a.shape) for a in args)
    return simplified(map_bodies(node.template, lambda b: rebuild([b], new.get)[0], params), args)


def _find_copy_pieces(a: Tensor) -> list[Piece]:
    """Return the pieces of a tensor if there are several and all are copies; an empty list for other tensors."""
    if not isinstance(a, Compute) or len(a.template.parts) < 2:
        return []
    pieces = [p for p in a.template.parts if isinstance(p, Piece) and isinstance(p.body, Read | Const)]
    only_copies = len(pieces) == len(a.template.parts) and all(s == 1 for p in pieces for s in p.step)
    return (
        pieces if only_copies and not any(reads(i) for p in pieces for e in reads(p.bodies[0]) for i in e.index) else []
    )


def _find_pieces_read(t: Template, slot: int, pieces: Sequence[Piece]) -> dict[Read, Piece] | None:
    """Return the piece that each read of a slot is within; None if a read may touch several."""
    piece_of: dict[Read, Piece] = {}
    for part in t.parts:
        for e, facts in reads_under(part):
            if e.slot != slot:
                continue
            p = next((p for p in pieces if _is_inside(e, p, facts)), None)
            if p is None or piece_of.setdefault(e, p) is not p or any(reads(i) for i in e.index):
                return None
    return piece_of


def _is_inside(e: Read, p: Piece, facts: Facts) -> bool:
    for i, o, n in zip(e.index, p.offset, p.extents, strict=True):
        low, high = facts.bounds(i)
        if low is None or low < o or high is None or high >= o + n:
            return False
    return True
