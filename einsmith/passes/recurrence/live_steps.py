"""Find the step beyond all lengths of a batch: comparisons of t with a number from memory are constant from there on.

before: h[t, b] = where(t < lengths[b], f(h[t-1, b]), h[t-1, b])
after:  n = max[b](lengths[b]);  for t < n as before;  for t >= n: h[t, b] = h[t-1, b]

A member is not computed at steps from n on if all reads of it, including the backward pass's, are under a
condition `t < lengths[b]` too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.linear import LinearForm, linear
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
    Tensor,
    apply,
    axes_of,
    postorder,
    reads,
    template,
)
from einsmith.ir.rebuild import substitute
from einsmith.ir.recurrence.define import outside_steps, step_parts
from einsmith.ir.rewrite.simplify import canonical

_TIME = Axis(0)


@dataclass(frozen=True)
class Limit:
    """The step from which on conditions of a recurrence are constant.

    Attributes:
        known: the conditions, and their values from the step on.
        before: those of which the value before the step is known, too, as the limit is one of all points.
        step: the step, a 0-d i64 tensor: the largest element of `form`.
        form: the limit of each point, over the recurrence's axes and arguments.
        reads_all_elements: whether `step` is the maximum over all elements of the tensors that `form` reads.
    """

    known: Mapping[Expr, Const]
    before: Mapping[Expr, Const]
    step: Compute
    form: LinearForm
    reads_all_elements: bool


def find_limit(node: Recurrence, args: int) -> Limit | None:
    """Return the limit of comparisons of t with one tensor among the first `args` slots; None if there are none."""
    known_values: dict[Expr, Const] = {}
    distances: dict[Expr, int] = {}
    limit_terms: frozenset | None = None
    latest: tuple[LinearForm, Piece] | None = None
    for j in range(len(node.members)):
        for piece in step_parts(node, j):
            for e in postorder(piece.bodies):
                at = _limit_of(e, piece, node, args)
                if at is None:
                    continue
                terms = frozenset((a, c) for a, c in at.terms.items())
                if limit_terms is None:
                    limit_terms = terms
                if terms != limit_terms:
                    continue
                falls = linear(e.args[0]).coefficient(_TIME) - linear(e.args[1]).coefficient(_TIME) > 0
                known_values[e] = Const(not falls, dt.bool_)
                distances[e] = at.const
                if latest is None or at.const > latest[0].const:
                    latest = at, piece
    if latest is None:
        return None
    form, piece = latest
    body = form.expr(dt.i64)
    used = sorted(axes_of(body))
    inside = [(i, node.members[0].params[r.slot][1][d]) for r in reads(body) for d, i in enumerate(r.index)]
    reads_all_elements = all(isinstance(i, Axis) and piece.domain[i.position] == n for i, n in inside)
    body = substitute(body, {a: Axis(n) for n, a in enumerate(used)})
    top: Expr | Reduce = Reduce("max", tuple(piece.domain[a] for a in used), (body,)) if used else body
    step = canonical(template((), node.members[0].params[:args], top), node.args)
    before = {
        e: Const(not x.value, dt.bool_) for e, x in known_values.items() if distances[e] == form.const and not used
    }
    return Limit(known_values, before, step, form, reads_all_elements)


class _UnlimitedRead(NamedTuple):
    """A read of member `member` of `node` that no condition restricts to steps before its limit.

    Attributes:
        reader: the member that reads it in its steps, if its recurrence has a limit as well; else None.
        node: the recurrence that is read.
        member: the member that is read.
        early: whether the read is before the limit of `node` while the reader is before its own.
    """

    reader: tuple[Recurrence, int] | None
    node: Recurrence
    member: int
    early: bool


def find_members_read_beyond(nodes: Sequence[Any], roots: Iterable[Tensor]) -> dict[Recurrence, set[int]]:
    """Return, for each recurrence with a limit among `nodes`, the members whose values from the limit on may be read.
    These are members among `roots`, and members that are read neither under comparisons with the limit's tensor nor in
    steps that are themselves before it."""
    limits = {n: x for n in nodes if isinstance(n, Recurrence) and (x := find_limit(n, len(n.args))) is not None}
    members: dict[Recurrence, set[int]] = {n: set() for n in limits}
    for r in roots:
        if isinstance(r, Item) and isinstance(r.node, Recurrence) and r.node in limits:
            members[r.node].add(r.member)
    uses = [u for n in nodes if isinstance(n, (Compute, Recurrence)) for u in _find_uses(n, limits)] if limits else []
    size = -1
    while size != (size := sum(map(len, members.values()))):
        for u in uses:
            if u.reader is None or not u.early or u.reader[1] in members[u.reader[0]]:
                members[u.node].add(u.member)
    return members


def _find_uses(n: Compute | Recurrence, limits: Mapping[Recurrence, Limit]) -> Iterator[_UnlimitedRead]:
    """Yield the reads in a node of members of the recurrences in `limits` that may be at steps from the limit on."""
    args: tuple[Tensor, ...] = n.args
    if isinstance(n, Recurrence):
        args += tuple(Item(n, j) for j in range(len(n.members)))
    slots = {s: (a.node, a.member) for s, a in enumerate(args) if isinstance(a, Item) and a.node in limits}
    for m, t in enumerate(n.members if isinstance(n, Recurrence) else (n.template,)) if slots else ():
        steps = step_parts(n, m) if isinstance(n, Recurrence) and n in limits else []
        for part in t.parts:
            reader = (n, m) if isinstance(n, Recurrence) and part in steps else None
            for read, facts in reads_under(part):
                if read.slot not in slots:
                    continue
                node, j = slots[read.slot]
                assert isinstance(node, Recurrence)
                at = linear(read.index[0]) - node.origins[j]
                if facts.prove(outside_steps(at, node.steps)) or _is_before(at, facts, args, node, limits[node]):
                    continue
                distance = at - LinearForm(0, {_TIME: 1})
                early = reader is not None and not distance.terms
                if reader is not None and early:
                    early = _is_below(limits[reader[0]], reader[0].args, distance.const, limits[node], node.args)
                yield _UnlimitedRead(reader, node, j, early)


def _is_below(a: Limit, a_args: Sequence[Tensor], distance: int, b: Limit, b_args: Sequence[Tensor]) -> bool:
    """Return whether a step that is `distance` steps after one before the limit `a` is before the limit `b`."""
    ((x, c),), ((y, d),) = a.form.terms.items(), b.form.terms.items()
    return (
        b.reads_all_elements
        and c == d
        and is_equal_up_to_axes(x, a_args, y, b_args)
        and a.form.const + distance <= b.form.const
    )


def _is_before(at: LinearForm, facts: Facts, args: Sequence[Tensor], node: Recurrence, limit: Limit) -> bool:
    """Return whether a condition that holds proves that a step is before the limit."""
    ((atom, c),) = limit.form.terms.items()
    candidates = dict.fromkeys(postorder([e for e, _ in facts.known]) if limit.reads_all_elements else ())
    return any(
        facts.prove(apply("lt", at.expr(dt.i64), LinearForm(limit.form.const, {e: c}).expr(dt.i64)))
        for e in candidates
        if isinstance(e, Expr) and e.dtype.is_int and is_equal_up_to_axes(e, args, atom, node.args)
    )


def is_equal_up_to_axes(a: Expr, a_args: Sequence[Tensor], b: Expr, b_args: Sequence[Tensor]) -> bool:
    """Return whether expressions are equal up to their axes; `a_args` and `b_args` are the tensors in their slots."""
    if isinstance(a, Axis) or isinstance(b, Axis):
        return isinstance(a, Axis) and isinstance(b, Axis)
    if isinstance(a, Read) and isinstance(b, Read):
        return a_args[a.slot] is b_args[b.slot]
    if isinstance(a, Apply) and isinstance(b, Apply):
        alike = a.fn == b.fn and a.dtype is b.dtype and len(a.args) == len(b.args)
        return alike and all(is_equal_up_to_axes(x, a_args, y, b_args) for x, y in zip(a.args, b.args, strict=True))
    return a is b


def _limit_of(e: Expr, piece: Piece, node: Recurrence, args: int) -> LinearForm | None:
    """Return the step from which on a comparison with t is constant, at each point; None for other expressions."""
    if not isinstance(e, Apply) or e.fn not in ("lt", "le") or not e.args[0].dtype.is_int:
        return None
    form = linear(e.args[0]) - linear(e.args[1])
    c, rest = form.coefficient(_TIME), form.without(_TIME)
    if abs(c) != 1 or len(rest.terms) != 1 or 0 in piece.domain:
        return None
    (atom,) = rest.terms
    inside = reads(atom)
    if not inside or 0 in axes_of(atom) or any(not _is_in_bounds(r, piece, node, args) for r in inside):
        return None
    if c > 0:  # t + rest < 0, or <= 0
        return rest * -1 + (0 if e.fn == "lt" else 1)
    return rest + (1 if e.fn == "lt" else 0)  # rest < t, or <= t


def _is_in_bounds(r: Read, piece: Piece, node: Recurrence, args: int) -> bool:
    """Return whether a read of an argument is in bounds whatever the conditions around it."""
    if r.slot >= args:
        return False
    shape = node.members[0].params[r.slot][1]
    return all(isinstance(i, Axis) and piece.domain[i.position] <= n for i, n in zip(r.index, shape, strict=True))
