"""Find the bounds that conditions around a read put on an axis, from their text alone: `limits`.

    where(i < n, A[i], B[i-n])      around A[i], i stays below n;  around B[i-n] nothing bounds it
    where(s <= t, K[s], 0)          s is compared with another axis, which gives no bound on s

These bounds decide whether a read determines the extent of an axis, so that the decision is equal for every shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from einsmith.lang.syntax import (
    Ast,
    Cast,
    Name,
    Number,
    ParsedApply,
    ParsedRead,
    ParsedReduction,
    ShapeOf,
    SizeOf,
    walk,
)

Comparison = tuple[Ast, Ast, bool]  # a < b where true, else a <= b


def limits(guards: Iterable[tuple[Ast, bool]], axis: str, axes: Iterable[str]) -> list[Comparison]:
    """Return the comparisons under `guards` that keep `axis` below a bound of literals, parameters and shapes; `axes`:
    all of the statement's."""
    others = {a for a in axes if a != axis}

    def is_constant(e: Ast) -> bool:
        return not any(
            isinstance(n, (ParsedRead, ParsedReduction))
            or (isinstance(n, Name) and n.id in others)
            or (isinstance(n, SizeOf) and n.axis == axis)
            for n in walk(e)
        )

    return [
        (a, b, strict)
        for c, chosen in guards
        for a, b, strict in _find_certain(c, chosen)
        if is_constant(a) and is_constant(b) and (rises(a, axis) or falls(b, axis))
    ]


def is_dimension_bound(comparison: Comparison, axis: str, tensor: str, dimension: int, rank: int) -> bool:
    """Return whether a comparison says `axis < tensor.shape[dimension]` and no more: a guard that lets the axis run
    past the dimension."""
    a, b, strict = comparison
    left, right = _linear(a), _linear(b)
    if left is None or right is None:
        return False
    room: dict = {}
    for form, sign in ((right, 1), (left, -1)):
        for atom, c in form.items():
            if isinstance(atom, tuple):
                atom = (atom[0], atom[1] % rank if rank else atom[1])
            room[atom] = room.get(atom, 0) + sign * c
    room[None] = room.get(None, 0) - strict
    return {x: c for x, c in room.items() if c} == {(tensor, dimension): 1, axis: -1, None: -1}


def _find_certain(c: Ast, chosen: bool) -> Iterator[Comparison]:
    """Yield the comparisons that hold where a condition is true (`chosen`) or false."""
    stack = [(c, chosen)]
    while stack:
        c, chosen = stack.pop()
        if not isinstance(c, ParsedApply):
            continue
        if c.fn == "not":
            stack.append((c.operands[0], not chosen))
        elif c.fn == ("and" if chosen else "or"):
            stack += [(a, chosen) for a in c.operands]
        elif c.fn in ("lt", "le"):
            a, b = c.operands
            yield (a, b, c.fn == "lt") if chosen else (b, a, c.fn == "le")
        elif c.fn == ("eq" if chosen else "ne"):
            a, b = c.operands
            yield a, b, False
            yield b, a, False


def rises(e: Ast, axis: str) -> bool:
    """Return whether an upper bound on `e` implies an upper bound on the axis. Parameters count as positive."""
    return _implies_bound(e, axis, True)


def falls(e: Ast, axis: str) -> bool:
    """Return whether a lower bound on `e` implies an upper bound on the axis."""
    return _implies_bound(e, axis, False)


def _implies_bound(e: Ast, axis: str, above: bool) -> bool:
    """Return whether an upper (`above`) or lower bound on `e` implies an upper bound on the axis.

    One operand that implies it is enough, but an upper bound on a `min` and a lower bound on a `max` need all operands
    to.
    """
    stack = [(e, above)]
    while stack:
        e, above = stack.pop()
        if isinstance(e, Name) and e.id == axis and above:
            return True
        if isinstance(e, Cast):
            stack.append((e.operand, above))
        if not isinstance(e, ParsedApply):
            continue
        a, *rest = e.operands
        if e.fn == ("min" if above else "max"):
            if all(_implies_bound(x, axis, above) for x in e.operands):
                return True
        elif e.fn in ("add", "min", "max"):
            stack += [(x, above) for x in e.operands]
        elif e.fn == "sub":
            stack += [(a, above), (rest[0], not above)]
        elif e.fn == "mul":
            negative = any(isinstance(x, Number) and x.value < 0 for x in e.operands)
            stack += [(x, above != negative) for x in e.operands]
        elif e.fn == "neg":
            stack.append((a, not above))
        elif e.fn == "abs" and above:
            stack += [(a, True), (a, False)]
        elif e.fn == "floordiv":
            stack.append((a, above != (isinstance(rest[0], Number) and rest[0].value < 0)))
    return False


def _linear(e: Ast) -> dict | None:
    """Return the coefficients of an expression linear in names, (tensor, dimension) of shapes, and None for 1; None for
    other expressions."""
    if isinstance(e, Number):
        return {None: e.value} if isinstance(e.value, int) else None
    if isinstance(e, Name):
        return {e.id: 1}
    if isinstance(e, ShapeOf):
        return {(e.name, e.dim.value): 1} if isinstance(e.dim, Number) and isinstance(e.dim.value, int) else None
    out: dict = {}
    stack = [(e, 1)]
    while stack:
        e, sign = stack.pop()
        if isinstance(e, ParsedApply) and e.fn in ("add", "sub"):
            stack += [(e.operands[0], sign), (e.operands[1], sign if e.fn == "add" else -sign)]
            continue
        form = None if isinstance(e, ParsedApply) else _linear(e)
        if form is None:
            return None
        for atom, c in form.items():
            out[atom] = out.get(atom, 0) + sign * c
    return out
