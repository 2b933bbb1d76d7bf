"""Create runtime checks for indices that are computed from integer tensors, or that guards compare with them.

before: Y[b] = X[b, ids[b]]
after:  the same, and a check: sum[b](0 where 0 <= ids[b] < X.shape[1], else 1), which must be 0

before: Y[e] = where(e > row[e], X[e-1], 0)
after:  the same, and a check: sum[e](where(e > row[e], 0 where 0 <= e-1 < X.shape[0], else 1), 0)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.errors import mark
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.in_bounds import proven
from einsmith.ir.analysis.predicates import guarded_reads
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Item,
    Leaf,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Tensor,
    apply,
    axes_of,
    cast,
    has_read,
    outermost,
    postorder,
    rank,
    reads,
    template,
)
from einsmith.ir.origins import SCATTERED, Origins
from einsmith.ir.printer import show
from einsmith.ir.rebuild import guarded, operands, prune_args, substitute
from einsmith.ir.rewrite.simplify import simplify_template
from einsmith.passes.occurrences import kinds_of


def index_checks(roots: Iterable[Tensor]) -> tuple[tuple[Tensor, str], ...]:
    """Return (count of violations, message) for every data-dependent index below `roots`, in evaluation order."""
    checks: dict[Tensor, str] = {}
    for node in postorder(roots):
        for reader in _expand_node(node):
            for count, message in _build_checks(reader, node):
                checks.setdefault(count, message)
    return tuple(checks.items())


def violation(roots: Iterable[Tensor], arrays: Mapping[Leaf, np.ndarray], origins: Origins) -> str | None:
    """Describe the first element, in evaluation order, that makes an index leave its tensor, with the names and source
    line that `origins` has; None if there is none. This is for messages, after a check has failed."""
    for node in postorder([*origins.differentiated, *roots]):
        for reader in _expand_node(node):
            for condition in _find_conditions(reader, node):
                message = _describe_violation(reader, condition, arrays, origins)
                if message is not None:
                    return message
    return None


def _expand_node(node: Compute | Recurrence) -> list[Compute]:
    """Return the tensors that a node evaluates, as nodes that read others. Indices that read a member need no check:
    they are proven when the recurrence is created (`ir.recurrence.component`)."""
    if isinstance(node, Compute):
        return [node]
    if not isinstance(node, Recurrence):
        return []
    args = (*node.args, *(Item(node, j) for j in range(len(node.members))))
    return [Compute(t, args) for t in node.members]


@dataclass(frozen=True)
class _IndexCondition:
    """An index that is read from tensors, over a box of axes where the guards hold. It indexes dimension `dimension`,
    of extent `extent`, of the argument in `slot`, or of the result if that is SCATTERED."""

    domain: tuple[int, ...]
    guards: tuple[Expr, ...]
    index: Expr
    extent: int
    slot: int
    dimension: int


def _describe_violation(
    node: Compute, c: _IndexCondition, arrays: Mapping[Leaf, np.ndarray], origins: Origins
) -> str | None:
    uncast = c.index
    while isinstance(uncast, Apply) and uncast.fn == "cast":
        uncast = uncast.args[0]
    own_reads = [uncast] if isinstance(uncast, Read) else reads(c.index)
    bound = next((r for r in outermost(c.guards, Read) if r.dtype.is_int), None)
    source = own_reads[0] if own_reads else bound
    assert isinstance(source, Read)
    violates = _count_violation(c.guards, c.index, c.extent)
    evaluated = [violates, c.index, source, *source.index]
    evaluated[1:] = [guarded(c.guards, e) for e in evaluated[1:]]
    tensors = [prune_args(template(c.domain, node.template.params, e), node.args) for e in evaluated]
    leaves = [x for x in postorder(tensors) if isinstance(x, Leaf)]
    if any(x not in arrays for x in leaves):  # operand of a differentiated tensor that is stored in another layout
        return None
    (wrong, value, element, *at), _ = evaluate(
        Graph(tuple(leaves), tuple(tensors), (), ()), [arrays[x] for x in leaves]
    )
    if not wrong.any():
        return None
    first = np.unravel_index(np.argmax(wrong != 0), wrong.shape)
    place = ", ".join(str(int(a[first])) for a in at)
    read, shape = (None, node.shape) if c.slot == SCATTERED else (node.args[c.slot], node.args[c.slot].shape)
    source_tensor = node.args[source.slot]
    origin = origins.find(node.template, c.slot, source.slot, shape, c.dimension, source_tensor.shape)
    inner = origin.source if origin is not None and origin.text is not None else None
    outer = origin.tensor if origin is not None and origin.text is not None else None
    name, into = _name_of(source_tensor, origins, inner), _name_of(read, origins, outer)
    dimension, is_named = c.dimension, isinstance(read, Leaf) and read in origins.names
    if origin is not None and origin.text is not None and not is_named:
        shape, dimension = origin.shape, origin.dimension  # a recurrence or a batch moves the formula's dimensions
    exist = f"only 0 to {c.extent - 1} exist" if c.extent else "it is empty"
    index, bound_value = int(value[first]), int(element[first])
    verb, number = ("is", bound_value) if source is uncast or not own_reads else ("gives", index)
    fault = "is no index into" if own_reads else f"admits index {index} of"
    text = (
        f"element [{place}] of {name}, {source.dtype.name} of shape {source_tensor.shape}, {verb} {number}, "
        f"which {fault} dimension {dimension} of {into}, of shape {shape}: {exist}"
    )
    if origin is not None and origin.text is not None:
        text += "\n" + mark(origin.text, origin.offset)
    elif origin is not None and origin.function and origin.function not in name:
        text += f", in {origin.function}"
    return text


def _name_of(t: Tensor | None, origins: Origins, formula: str | None) -> str:
    """Return a tensor's name for messages: as the user passed it, and as the formula has it."""
    function, _, argument = origins.names.get(t, "").rpartition(": ") if isinstance(t, Leaf) else ("", "", "")
    if argument:
        name = f"{argument} of {function}" if function else argument
        return name if formula in (None, argument) else f"{name} ({formula} in the formula)"
    if formula is not None:
        return formula
    source_names = [origins.names[x] for x in postorder([t]) if isinstance(x, Leaf) and x in origins.names] if t else []
    return f"a tensor that is computed from {', '.join(source_names)}" if source_names else "a tensor"


def _build_checks(node: Compute, within: Compute | Recurrence) -> list[tuple[Tensor, str]]:
    return [_build_check(node, condition) for condition in _find_conditions(node, within)]


def _find_conditions(node: Compute, within: Compute | Recurrence) -> Iterator[_IndexCondition]:
    """Yield the conditions of every index of the node that reads a tensor, or that guards compare with elements of a
    tensor, reads no member of `within`, and is not proven by its range.

    A guard that reads a member is left out for an index that reads nothing (`ir.recurrence.component` proves that the
    others suffice).
    """
    kinds = kinds_of(node.template)
    if kinds.isdisjoint(("data index", "data bound")):
        return
    bounded = "data bound" in kinds
    members = {s for s, a in enumerate(node.args) if isinstance(a, Item) and a.node is within}

    def is_known(e: Expr) -> bool:
        return members.isdisjoint(r.slot for r in reads(e))

    for part in node.template.parts:
        conditions: list[_IndexCondition] = []
        for body in part.bodies:
            for read, guards in guarded_reads(body, lambda r: bounded or any(map(has_read, r.index))):
                extents = node.template.params[read.slot][1]
                known = tuple(g for g in guards if is_known(g))
                conditions += [
                    _IndexCondition(part.domain, guards if has_read(i) else known, i, n, read.slot, d)
                    for d, (i, n) in enumerate(zip(read.index, extents, strict=True))
                    if has_read(i) or (bounded and not isinstance(i, Axis | Const) and any(map(has_read, known)))
                ]
        if isinstance(part, Scatter):
            unguarded = [_split_guard(i, n) for i, n in zip(part.index, node.shape, strict=True)]
            conditions += [
                _IndexCondition(part.domain, guards, i, n, SCATTERED, d)
                for d, ((guards, i), n) in enumerate(zip(unguarded, node.shape, strict=True))
                if has_read(i)
            ]
        for c in conditions:
            facts = Facts.of(part.domain, c.guards)
            is_inside = not facts.feasible or proven(c.index, c.extent, facts)
            if not is_inside and is_known(c.index):
                yield c


def _split_guard(index: Expr, extent: int) -> tuple[tuple[Expr, ...], Expr]:
    """Return (conditions, index): the index has its value under the conditions, and is a constant within the extent
    elsewhere."""
    guards: list[Expr] = []
    while isinstance(index, Apply) and index.fn == "where":
        condition, inner, other = index.args
        if not (isinstance(other, Const) and 0 <= other.value < extent):
            break
        guards.append(condition)
        index = inner
    return tuple(guards), index


def _count_violation(guards: Sequence[Expr], index: Expr, extent: int) -> Expr:
    """Return an expression that is 1 if the guards hold and the index is out of its range, else 0."""
    zero, top = Const(0, index.dtype), Const(extent, index.dtype)
    inside = apply("and", apply("le", zero, index), apply("lt", index, top))
    return guarded(guards, cast(apply("not", inside), dt.i32))  # a guard's reads may rely on outer guards


def _build_check(node: Compute, condition: _IndexCondition) -> tuple[Tensor, str]:
    """Return (the number of points at which a condition is violated, message)."""
    domain, guards, index, extent = condition.domain, condition.guards, condition.index, condition.extent
    used = sorted(axes_of(index, *guards))
    new_axes = {a: Axis(i) for i, a in enumerate(used)}
    conjuncts = list(dict.fromkeys(substitute(c, new_axes) for g in guards for c in operands(g, "and")))
    facts = Facts.of([domain[a] for a in used])
    guard_reads = dict.fromkeys(r for c in conjuncts for r in reads(c))
    places = [x for r in guard_reads for x in zip(r.index, node.template.params[r.slot][1], strict=True)]
    if all(not has_read(i) and proven(i, n, facts) for i, n in places):
        conjuncts.sort(key=rank)
    violates = _count_violation(conjuncts, substitute(index, new_axes), extent)
    body: Expr | Reduce = violates
    if used:
        body = Reduce("sum", tuple(domain[a] for a in used), (body,))
    t = prune_args(template((), node.template.params, body), node.args)
    t = Compute(simplify_template(t.template), t.args)
    return t, f"index {show(index)} leaves its range 0 <= index < {extent}"
