"""Classify templates and bodies by what they compute: pointwise pieces, copies, movement of data, arithmetic and
points."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Expr,
    Read,
    Reduce,
    Template,
    postorder,
    size,
)
from einsmith.ir.rebuild import whole_piece

_FREE_FUNCTIONS = {"where", "cast", "stop_gradient", "full_precision", "lt", "le", "eq", "ne", "and", "or", "not"}


def is_copy(t: Template) -> bool:
    """Return whether the result equals the only argument, element by element."""

    def check(t: Template) -> bool:
        body = pointwise_body(t)
        return (
            isinstance(body, Read)
            and t.params == ((body.dtype, t.shape),)
            and all(
                i is Axis(d) or (n == 1 and isinstance(i, Const))
                for d, (i, n) in enumerate(zip(body.index, t.shape, strict=True))
            )
        )

    return t.memo("is_copy", check)


def is_identity(e: Read, shape: Sequence[int], tensor: Sequence[int]) -> bool:
    """Return whether a read in a body over `shape` is of a tensor of that shape at the body's own position. tensor: the
    shape of what is read; an axis of extent 1 may have any element of a longer dimension as its constant index."""
    return tuple(shape) == tuple(tensor) and all(
        i is Axis(d) or (n == 1 and isinstance(i, Const)) for d, (i, n) in enumerate(zip(e.index, shape, strict=True))
    )


def pointwise_body(t: Template) -> Expr | None:
    """Return the body of a template that is one reduction-free piece over its whole output, else None."""
    part = whole_piece(t)
    return None if part is None or isinstance(part.body, Reduce) else part.body


def float_body(t: Template) -> Expr | None:
    """Return the pointwise body of a template that computes floats in the type that is stored, else None."""
    body = pointwise_body(t)
    return None if body is None or not body.dtype.is_float or body.dtype.in_memory_only else body


def is_movement(t: Template) -> bool:
    """Return whether a template only moves, pads or fills: no arithmetic, at most one read, no condition on data."""
    return total_operations(t) == 0 and sum(map(len, reads_by_slot(t).values())) <= 1


def is_shift(t: Template) -> bool:
    """Return whether a template only widens integers of 8 bits and adds or subtracts others, as zero points are: what
    it reads takes a quarter of the memory of its result, and is read as quickly."""

    def check(t: Template) -> bool:
        body = pointwise_body(t)
        if body is None or not body.dtype.is_int or body.dtype.itemsize < 4:
            return False
        inner = [e for e in postorder([body]) if isinstance(e, Apply)]
        reads = [e for e in postorder([body]) if isinstance(e, Read)]
        return (
            bool(reads)
            and len(reads) <= 2
            and all(e.dtype.is_int and e.dtype.itemsize == 1 for e in reads)
            and all(
                e.fn in ("cast", "add", "sub", "neg")
                or (e.fn == "mul" and any(isinstance(a, Const) and a.value == -1 for a in e.args))
                for e in inner
            )
        )

    return t.memo("is_shift", check)


def total_operations(t: Template) -> int:
    """Return the number of floating-point operations in all bodies."""
    return t.memo("operations", lambda t: sum(operations(b) for p in t.parts for b in p.bodies))


def reads_by_slot(t: Template) -> dict[int, set[Read]]:
    """Return the different reads of each slot that is read. Computed once per template."""

    def collect(t: Template) -> dict[int, set[Read]]:
        out: dict[int, set[Read]] = {}
        for part in t.parts:
            for e in postorder(part.bodies):
                if isinstance(e, Read):
                    out.setdefault(e.slot, set()).add(e)
        return out

    return t.memo("reads_by_slot", collect)


def operations(body: Expr) -> int:
    """Return the number of floating-point operations of one evaluation; conditions, selection and index arithmetic are
    not counted."""
    return sum(isinstance(e, Apply) and e.dtype.is_float and e.fn not in _FREE_FUNCTIONS for e in postorder([body]))


def points(t: Template) -> int:
    """Return how many times a template's bodies are evaluated in all."""
    return sum(size(p.domain) for p in t.parts)
