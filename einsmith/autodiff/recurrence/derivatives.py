"""Differentiate recurrences; the derivatives are recurrences again.

    before    h[t] = tanh(x[t] + u*h[t-1]),  and the cotangent g of h
    adjoint   d[t] = g[t] + u*(1 - h[t+1]**2)*d[t+1];  dx[t] = (1 - h[t]**2)*d[t],  du = sum[t](h[t-1]*dx[t])
    tangent   m[t] = (1 - h[t]**2)*(mx[t] + mu*h[t-1] + u*m[t-1])

A member's cotangent is the sum of its cotangents from readers outside and of the adjoints of the members' reads of it.
Contributions to arguments read members of the adjoint recurrence, and so are outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from einsmith.autodiff.adjoint.node import chooses, plan_adjoint
from einsmith.autodiff.plan import AdjointPlan
from einsmith.autodiff.recurrence.conditions import Condition, common_condition, under
from einsmith.autodiff.totals import zeros
from einsmith.ir.analysis.linear import moved
from einsmith.ir.nodes import (
    Compute,
    Expr,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Scatter,
    StepOptions,
    Template,
    Tensor,
    apply,
    is_zero,
    leaf,
    postorder,
    template,
)
from einsmith.ir.rebuild import slots_read, types_of
from einsmith.ir.recurrence.define import recurrence, solve, step_parts
from einsmith.ir.recurrence.pieces import parts_at, shifted
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.views import own_index, slice_of

IN_STEPS = StepOptions(chunk=1)
"""Recurrences have their chunk form before they are differentiated, or stay."""


def pull_back(
    node: Recurrence, cotangents: Mapping[int, Tensor], needed: Container[Tensor], sums_of_chosen: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """Return (argument, contribution to its cotangent) for the float arguments in `needed`; `cotangents` are those
    that the members have from outside. sums_of_chosen: as in the reverse sweep."""
    count = len(node.args)
    items = [Item(node, j) for j in range(len(node.members))]
    needed_slots = {s for s, a in enumerate(node.args) if a in needed and a.dtype.is_float}
    active = _active(node, needed_slots)
    reached = _reach(cotangents, lambda j: (i for i in _members_read(node, j) if i in active)) & active
    contributions: dict[int, list[Tensor]] = {j: [cotangents[j]] if j in cotangents else [] for j in sorted(reached)}
    # The cotangent of a member's steps is a separate tensor, without the initial values.
    own = {j: leaf((node.steps, *node.results[j][1][1:]), node.results[j][0].arithmetic) for j in contributions}
    outside: list[tuple[Tensor, Tensor]] = []

    def add_contributions(
        j: int,
        parts: Sequence[Piece | Scatter],
        steps: int,
        cotangent: Tensor,
        part: list[Tensor],
        condition: Condition | None = None,
    ) -> None:
        """Add the contributions of the cotangent of pieces of member j to the tensors that these read. `part` holds the
        values of these pieces; the cotangent is zero where `condition` does not hold."""
        t = Template((steps, *node.results[j][1][1:]), node.members[j].params, tuple(parts))
        within = frozenset(count + i for i in own)
        slots = frozenset(s for s in slots_read(t) if s in needed_slots or s in within)
        plan = plan_adjoint(t, slots, (None,), slots if sums_of_chosen and chooses(t) else within)
        tensors = plan.instantiate([*node.args, *items], part, [cotangent])
        for slot, numbers in plan.contributions.items():
            for contribution in (tensors[n] for n in numbers):
                assert contribution is not None
                if condition is not None and isinstance(cotangent, Leaf):
                    contribution = under(contribution, cotangent, condition)
                if slot >= count:
                    contributions[slot - count].append(contribution)
                else:
                    outside.append((node.args[slot], contribution))

    for j, cotangent in reversed(own.items()):
        first = node.origins[j]
        steps = [shifted(p, -first) for p in step_parts(node, j)]
        # Operands of a step are computed before their readers: these contributions are complete, unless an
        # earlier member reads this one.
        complete = not any(j in _members_read(node, i) for i in own if i <= j)
        condition = common_condition(_span(t, first, node.steps) for t in contributions[j]) if complete else None
        add_contributions(j, steps, node.steps, cotangent, [slice_of(items[j], first, node.steps)], condition)
    definitions: dict[Leaf, Tensor] = {}
    for j, x in own.items():
        first, size = node.origins[j], node.results[j][1][0]
        definitions[x] = _total(contributions[j], first, node.steps, x)
        for start, n in ((0, first), (first + node.steps, size - first - node.steps)):
            parts = parts_at(node.members[j].parts, start, n)
            if n and any(s in needed_slots for p in parts for s in _slots_of(p)):
                add_contributions(j, parts, n, _total(contributions[j], start, n, x), [slice_of(items[j], start, n)])
    solved = solve(definitions, [g for _, g in outside], options=IN_STEPS)
    return [(a, g) for (a, _), g in zip(outside, solved, strict=True)]


def _total(tensors: Sequence[Tensor], first: int, n: int, like: Leaf) -> Tensor:
    """Return the sum of tensors at positions first .. first+n-1 of dimension 0. A tensor that is zero everywhere else
    is computed for these positions alone."""
    shape = (n, *like.shape[1:])
    terms: list[Expr] = []
    args: list[Tensor] = []
    for t in tensors:
        here = _span(t, first, n)
        if here is not None and _all_zero(here):
            continue
        others = [_span(t, a, b - a) for a, b in ((0, first), (first + n, t.shape[0])) if b > a]
        alone = here is not None and all(o is not None and _all_zero(o) for o in others)
        at = own_index(shape)
        terms.append(Read(len(args), at if alone else (moved(at[0], first), *at[1:]), like.dtype))
        args.append(here if alone and here is not None else t)
    if not terms:
        return zeros(shape, like.dtype)
    if len(terms) == 1 and args[0].shape == shape:
        return args[0]
    body = terms[0]
    for x in terms[1:]:
        body = apply("add", body, x)
    return canonical(template(shape, types_of(args), body), tuple(args))


def _span(t: Tensor, first: int, n: int) -> Compute | None:
    """Return positions first .. first+n-1 of a tensor, computed by its own pieces; None if it has no pieces."""
    if not isinstance(t, Compute) or t.template.is_scatter:
        return None
    if (first, n) == (0, t.shape[0]):
        return t
    parts = parts_at(t.template.parts, first, n)
    return canonical(Template((n, *t.shape[1:]), t.template.params, tuple(parts)), t.args)


def _all_zero(t: Compute) -> bool:
    return all(is_zero(p.body) for p in t.template.parts)


def push_forward(
    node: Recurrence,
    known: Mapping[Tensor, Tensor],
    plan_of: Callable[[Template, frozenset[int]], tuple[AdjointPlan, dict]],
) -> dict[int, Tensor]:
    """Return the tangents of the members that depend on arguments with tangents.

    `plan_of(template, slots with tangents)` gives (the plan of a template's tangents, the number of each result's
    tangent).
    """
    items = [Item(node, j) for j in range(len(node.members))]
    active = _active(node, {s for s, a in enumerate(node.args) if a in known})
    own = {j: leaf(node.results[j][1], node.results[j][0].arithmetic) for j in sorted(active)}
    tangents = [known.get(a) for a in node.args] + [own.get(j) for j in range(len(items))]
    definitions: dict[Leaf, Tensor] = {}
    for j, x in own.items():
        slots = frozenset(s for s in slots_read(node.members[j]) if tangents[s] is not None)
        plan, numbers = plan_of(node.members[j], slots)
        tangent = plan.instantiate([*node.args, *items], [items[j]], tangents)[numbers[0]]
        assert tangent is not None
        definitions[x] = tangent
    solved = recurrence(definitions, options=IN_STEPS)
    return {j: solved[x] for j, x in own.items()}


def _slots_of(p: Piece | Scatter) -> set[int]:
    return {e.slot for e in postorder(p.bodies) if isinstance(e, Read)}


def _members_read(node: Recurrence, j: int) -> list[int]:
    return [s - len(node.args) for s in sorted(slots_read(node.members[j])) if s >= len(node.args)]


def _active(node: Recurrence, slots: set[int]) -> set[int]:
    """Return the float members that depend on arguments in these slots through floats."""
    floats = [j for j in range(len(node.members)) if node.results[j][0].is_float]
    readers: dict[int, list[int]] = {}
    for j in floats:
        for i in _members_read(node, j):
            readers.setdefault(i, []).append(j)
    return _reach((j for j in floats if slots.intersection(slots_read(node.members[j]))), lambda i: readers.get(i, []))


def _reach(roots: Iterable[int], below: Callable[[int], Iterable[int]]) -> set[int]:
    out = set(roots)
    todo = list(out)
    while todo:
        for i in below(todo.pop()):
            if i not in out:
                out.add(i)
                todo.append(i)
    return out
