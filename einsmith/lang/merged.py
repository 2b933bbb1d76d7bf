"""Merge copies into the statements that read them, for the text of a gradient of a recurrence.

    before   r[0,k] = 0;  r[t+1,k] = h[t,(k+1)%4];  h[t,k] = tanh(x[t,k] + r[t,k])
    after    h[t,k] = tanh(x[t,k] + where(1 <= t, h[t-1,(k+1)%4], 0))

A recurrence has a tensor for each shifted, transposed or padded read of a state. Programs need them, readers do not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Item,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Template,
    Tensor,
    apply,
    cast,
    postorder,
)
from einsmith.ir.rebuild import map_bodies, map_reads, prune_args, rebuild, substitute, types_of
from einsmith.ir.rewrite.simplify import simplify_template

MAX_MERGED, MAX_STATEMENT = 24, 150
"""Most nodes of an expression that takes the place of a read, and of a statement after that; what is longer stays a
statement of its own, for the reader's sake."""

Definition = tuple[Template, tuple[Tensor, ...]]
"""A template and its arguments."""


def find_definitions(roots: Sequence[Tensor]) -> dict[Any, Definition]:
    """Return the definition of every Compute below `roots`, and of each member of a recurrence, in order."""
    definitions: dict[Any, Definition] = {}
    for node in postorder(roots):
        if isinstance(node, Compute):
            definitions[node] = node.template, node.args
        elif isinstance(node, Recurrence):
            items = [Item(node, j) for j in range(len(node.members))]
            definitions |= {x: (t, (*node.args, *items)) for x, t in zip(items, node.members, strict=True)}
    return definitions


def merge_copies(definitions: dict[Any, Definition], kept: Collection[Any]) -> dict[Any, Definition]:
    """Substitute tensors into the formulas that read them; return the remaining definitions.

    Substituted are copies with other indices, and short formulas that one statement reads once at each of its elements.
    kept: tensors that are not substituted.
    """
    remaining = dict(definitions)
    while (target := _find_mergeable(remaining, kept)) is not None:
        x, element = target
        _, args = remaining.pop(x)
        remaining = {y: _replace_reads(d, x, element, args) for y, d in remaining.items()}
    read = {x: d for x, d in remaining.items() if x in kept or any(True for _ in _reads(x, remaining))}
    return {x: (map_bodies(t, turn_forward), args) for x, (t, args) in read.items()}


def _find_mergeable(definitions: dict[Any, Definition], kept: Collection[Any]) -> tuple[Any, Expr] | None:
    """Return the first tensor that its readers can do without, and its elements; None where there is none."""
    for x, (t, _) in definitions.items():
        element = None if x in kept else _element(t)
        if element is not None and _is_mergeable(x, element, definitions):
            return x, element
    return None


def _element(t: Template) -> Expr | None:
    """Return the elements of a template as an expression over its axes; None if there is no such expression.

    Pieces of one constant around another piece become a condition.
    """
    parts = [p for p in t.parts if isinstance(p, Piece) and not isinstance(p.body, Reduce)]
    if len(t.dtypes) != 1 or len(parts) != len(t.parts):
        return None
    *others, main = sorted(parts, key=lambda p: not isinstance(p.body, Const))
    values = {p.body for p in others}
    if isinstance(main.body, Reduce) or len(values) > 1 or any(s != 1 for s in main.step):
        return None
    places: dict[int, Expr] = {}
    inside: Expr | None = None
    for d, (o, n, whole) in enumerate(zip(main.offset, main.extents, t.shape, strict=True)):
        places[d] = apply("add", Axis(d), Const(-o, dt.i32)) if o else Axis(d)
        low = apply("le", Const(o, dt.i32), Axis(d)) if o else None
        high = apply("lt", Axis(d), Const(o + n, dt.i32)) if o + n < whole else None
        for c in (low, high):
            inside = c if inside is None else inside if c is None else apply("and", inside, c)
    element = substitute(main.body, places)
    if inside is None:
        return element
    outside = next(iter(values), None)
    return apply("where", inside, element, outside) if isinstance(outside, Const) else None


def _is_mergeable(x: Any, element: Expr, definitions: dict[Any, Definition]) -> bool:
    if _size(element) > MAX_MERGED:
        return False
    reads = list(_reads(x, definitions))
    if not reads or any(reader is x for reader, _ in reads):
        return False
    longest = max(sum(map(_size, part.bodies)) + _size(element) * reads.count((y, part)) for y, part in reads)
    if longest > MAX_STATEMENT and not isinstance(element, Read):
        return False
    if all(e.fn == "where" or not e.dtype.is_float for e in postorder([element]) if isinstance(e, Apply)):
        return True
    return len(reads) == 1 and not isinstance(reads[0][1], Scatter) and not isinstance(reads[0][1].body, Reduce)


def _size(e: Expr) -> int:
    """Return the number of nodes of an expression, written as a tree."""
    sizes: dict[Expr, int] = {}
    for n in postorder([e]):
        sizes[n] = 1 + sum(sizes[a] for a in n.args)
    return sizes[e]


def _reads(x: Any, definitions: dict[Any, Definition]) -> Iterator[tuple[Any, Piece | Scatter]]:
    """Yield (reader, its part) for each read of a tensor, or of a result of it."""
    for reader, (t, args) in definitions.items():
        slots = {s for s, a in enumerate(args) if a is x or (isinstance(a, Item) and a.node is x)}
        for part in t.parts if slots else ():
            yield from ((reader, part) for e in postorder(part.bodies) if isinstance(e, Read) and e.slot in slots)


def _replace_reads(d: Definition, x: Any, element: Expr, args: tuple[Tensor, ...]) -> Definition:
    """Return a definition with `element`, of arguments `args`, in place of its reads of x."""
    t, own = d
    slots = {s for s, a in enumerate(own) if a is x}
    if not slots:
        return d
    every = (*own, *args)
    moved = substitute(element, {}, {s: len(own) + s for s in range(len(args))})

    def rule(e: Read) -> Expr | None:
        at = {n: cast(i, dt.i32) for n, i in enumerate(e.index)}
        return substitute(moved, at) if e.slot in slots else None

    params = types_of(every)
    pruned = prune_args(map_reads(t, rule, params), every)
    return simplify_template(pruned.template), pruned.args


def turn_forward(e: Expr) -> Expr:
    """Write n-1 - (-x)%n, the index of a reversed rotation, as (x + n-1)%n."""

    def rule(e: Any) -> Expr | None:
        if not (isinstance(e, Apply) and e.fn == "add" and e.dtype.is_int):
            return None
        factor, last = e.args
        match factor, last:
            case Apply(fn="mul", args=(Const(value=-1), Apply(fn="mod", args=(inner, Const(value=n))))), Const():
                if last.value != n - 1 or not (isinstance(inner, Apply) and inner.fn == "mul"):
                    return None
                sign, x = inner.args
                if isinstance(sign, Const) and sign.value == -1:
                    return apply("mod", apply("add", x, last), Const(n, e.dtype))
        return None

    return rebuild([e], rule)[0]
