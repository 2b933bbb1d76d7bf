"""Add tensors in pieces: the sum has a piece for each box in which the same pieces of the terms meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from math import lcm

from einsmith.ir.analysis.pointwise import is_identity, operations, pointwise_body
from einsmith.ir.analysis.widths import placed
from einsmith.ir.nodes import Axis, Compute, Expr, Piece, Reduce, Scatter, Template, Tensor, apply, is_zero, reads, size
from einsmith.ir.rebuild import map_bodies, prune_args, rebuild, substitute, types_of, whole_sum
from einsmith.ir.rewrite.simplify import restricted, simplify_template

_MAX_PIECES = 16
"""Most pieces of a sum that are not zero; each is compiled by itself."""
_MAX_OPERANDS = 24
"""Most tensors that a sum reads, which are the buffers of a kernel (`schedule.fusion`)."""
_MAX_OPERATIONS = 120
"""Most operations of a piece into which a producer is moved. The pieces of a tensor product with l <= 2, which have up
to 76, are as fast with 250, and slower with 60: 26.8 instead of 20.7 ms."""


class PieceSum:
    """A sum of tensors of one shape as pieces. count: number of terms."""

    def __init__(self, first: Compute):
        self.shape, self.count = first.shape, 1
        self._args = {a: slot for slot, a in enumerate(first.args)}
        self._pieces = [p for p in first.template.parts if isinstance(p, Piece)]

    @property
    def is_pointwise(self) -> bool:
        """Return whether no piece is a reduction."""
        return not any(isinstance(p.body, Reduce) for p in self._pieces)

    def tensor(self) -> Compute:
        """Return the sum."""
        return _simplified(self.shape, self._pieces, [*self._args])

    def add(self, term: Compute) -> bool:
        """Add a tensor and return True; return False, with the sum as it was, if there would be too many pieces, or
        if reductions meet that are not faster as one."""
        args = dict(self._args)
        slots = {s: args.setdefault(a, len(args)) for s, a in enumerate(term.args)}
        t = map_bodies(term.template, lambda b: substitute(b, {}, slots))
        pieces: list[Piece] = []
        for p in self._pieces:
            for q in t.parts:
                assert isinstance(q, Piece)
                if (box := _intersect(p, q)) is None:
                    continue
                one, two = _restrict(p, box), _restrict(q, box)
                body = _add_bodies(one, two)
                if body is None:
                    return False
                pieces.append(Piece(one.offset, one.step, one.extents, body))
        if sum(not is_zero(p.body) for p in pieces) > _MAX_PIECES or len(args) > _MAX_OPERANDS:
            return False
        self._pieces, self._args, self.count = pieces, args, self.count + 1
        return True


def _simplified(shape: tuple[int, ...], pieces: Sequence[Piece], args: Sequence[Tensor]) -> Compute:
    whole = Template(shape, types_of(args), tuple(pieces))
    return prune_args(simplify_template(whole), tuple(args))


def _add_bodies(p: Piece, q: Piece) -> Expr | Reduce | None:
    """Return the sum of the bodies of two pieces over one box; None if it is no body, or not faster."""
    a, b = p.body, q.body
    if is_zero(a) or is_zero(b):
        return b if is_zero(a) else a
    if not isinstance(a, Reduce) and not isinstance(b, Reduce):
        return apply("add", a, b)
    if not isinstance(a, Reduce) or not isinstance(b, Reduce) or not (_is_sweep(p) and _is_sweep(q)):
        return None
    return Reduce("sum", a.extents, (apply("add", a.bodies[0], b.bodies[0]),)) if a.extents == b.extents else None


def _is_sweep(p: Piece) -> bool:
    """Return whether a piece is a sum that reads some operand's elements once each. A matrix product is none, and two
    of them are faster than the sum of all their terms."""
    axes = {Axis(a) for a, n in enumerate(p.domain) if n > 1}
    is_sum = isinstance(p.body, Reduce) and p.body.combiner == "sum" and len(p.bodies) == 1
    return is_sum and any(axes <= {*r.index} for r in reads(p.bodies[0]))


def turn_operand(tensors: Iterable[Compute]) -> bool:
    """Return whether products of matrices among the pieces of tensors read one operand at several positions, as the
    gradients by query and key read the weights of an attention. As one kernel they would need it stored, where rows of
    kernels keep it in tiles."""
    positions: dict[Tensor, tuple[Expr, ...]] = {}
    products = [(t, p.bodies[0]) for t in tensors for p in t.template.parts if _is_product(p)]
    return any(positions.setdefault(t.args[r.slot], r.index) != r.index for t, b in products for r in reads(b))


def _is_product(p: Piece | Scatter) -> bool:
    return isinstance(p, Piece) and isinstance(p.body, Reduce) and not _is_sweep(p)


_Line = tuple[int, int, int]
"""(first, step, number) of the positions of a piece along an axis."""


def _intersect(p: Piece, q: Piece) -> list[_Line] | None:
    """Return the positions that two pieces share along each axis; None if there are none."""
    lines: list[_Line] = []
    for (a, s, n), (b, t, m) in zip(_lines_of(p), _lines_of(q), strict=True):
        step, first = lcm(s, t), max(a, b)
        last = min(a + s * (n - 1), b + t * (m - 1))
        first = next(
            (x for x in range(first, min(last + 1, first + step)) if not ((x - a) % s or (x - b) % t)), last + 1
        )
        if first > last:
            return None
        lines.append((first, step, (last - first) // step + 1))
    return lines


def _lines_of(p: Piece) -> list[_Line]:
    return [(o, s if n > 1 else 1, n) for o, s, n in zip(p.offset, p.step, p.extents, strict=True)]


def _restrict(p: Piece, lines: Sequence[_Line]) -> Piece:
    """Return the part of a piece at some of its positions."""
    own = _lines_of(p)
    first = [(a - o) // s for (a, _, _), (o, s, _) in zip(lines, own, strict=True)]
    stride = [t // s if n > 1 else 1 for (_, t, n), (_, s, _) in zip(lines, own, strict=True)]
    return restricted(p, first, tuple(n for _, _, n in lines), stride)


def absorb_producers(node: Compute, private: Collection[Tensor]) -> Compute:
    """Return a tensor in pieces with what one piece alone reads, of tensors that nothing else reads, computed there:
    pointwise tensors, and reductions that a piece copies."""
    parts = list(node.template.parts)
    args = list(node.args)
    done = 0
    while done < len(args):
        slot, a = done, args[done]
        done += 1
        if a not in private or not isinstance(a, Compute) or len(a.template.dtypes) > 1:
            continue
        uses = Counter((n, e) for n, p in enumerate(parts) for b in p.bodies for e in {*reads(b)} if e.slot == slot)
        if len(uses) != 1 or args.count(a) > 1:
            continue
        ((n, read),) = uses
        piece = parts[n]
        assert isinstance(piece, Piece)
        slots = {s: len(args) + s for s in range(len(a.args))}
        body, summed = pointwise_body(a.template), whole_sum(a.template)
        if body is not None and size(piece.domain) <= size(a.shape):
            if sum(map(operations, piece.bodies)) + operations(body) > _MAX_OPERATIONS:
                continue
            inner = placed(substitute(body, {}, slots), dict(enumerate(read.index)))
            bodies = rebuild(piece.bodies, {read: inner}.get)
            whole: Expr | Reduce = bodies[0]
            if isinstance(piece.body, Reduce):
                whole = Reduce(piece.body.combiner, piece.body.extents, tuple(bodies))
        elif summed is not None and piece.body is read and is_identity(read, piece.extents, a.shape):
            r = summed.body
            assert isinstance(r, Reduce)
            whole = Reduce(r.combiner, r.extents, (substitute(r.bodies[0], {}, slots),))
        else:
            continue
        parts[n] = Piece(piece.offset, piece.step, piece.extents, whole)
        args += a.args
    return node if len(args) == len(node.args) else _simplified(node.shape, parts, args)  # type: ignore[arg-type]
