"""Derivatives of recurrences, which are recurrences again.

    before    h[t] = tanh(x[t] + u*h[t-1]),  and the cotangent g of h
    adjoint   d[t] = g[t] + u*(1 - h[t+1]**2)*d[t+1];  dx[t] = (1 - h[t]**2)*d[t],  du = sum[t](h[t-1]*dx[t])
    tangent   m[t] = (1 - h[t]**2)*(mx[t] + mu*h[t-1] + u*m[t-1])

A member's cotangent is the sum of what its readers outside give it and of the adjoints of the members' reads of it.
What the arguments get reads members of the recurrence that this is, and so stands outside of it. (ALGORITHMS B)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from einsmith.autodiff.adjoint import plan_adjoint
from einsmith.autodiff.plan import Plan
from einsmith.autodiff.totals import add, zeros
from einsmith.expr.nodes import Item, Leaf, Read, Recurrence, Template, Tensor, leaf, postorder
from einsmith.expr.recurrence import recurrence, solve


def pull_back(
    node: Recurrence, given: Mapping[int, Tensor], needed: Container[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """(argument, contribution to its cotangent) for the float arguments in `needed`; `given` are the cotangents that
    the members have from outside."""
    count = len(node.args)
    items = [Item(node, j) for j in range(len(node.members))]
    wanted = {s for s, a in enumerate(node.args) if a in needed and a.dtype.is_float}
    active = _active(node, wanted)
    reached = _reach(given, lambda j: (i for i in _members_read(node, j) if i in active)) & active
    own = {j: leaf(node.results[j][1], node.results[j][0]) for j in sorted(reached)}
    found: dict[int, list[Tensor]] = {j: [given[j]] if j in given else [] for j in own}
    outside: list[tuple[Tensor, Tensor]] = []
    for j, cotangent in own.items():
        within = frozenset(count + i for i in own)
        slots = frozenset(s for s in _slots(node.members[j]) if s in wanted or s in within)
        plan = plan_adjoint(node.members[j], slots, (None,), within)
        tensors = plan.made([*node.args, *items], [items[j]], [cotangent])
        for slot, numbers in plan.contributions.items():
            for made in (tensors[n] for n in numbers):
                assert made is not None
                if slot >= count:
                    found[slot - count].append(made)
                else:
                    outside.append((node.args[slot], made))
    definitions = {x: add(found[j]) if found[j] else zeros(x.shape, x.dtype) for j, x in own.items()}
    solved = solve(definitions, [g for _, g in outside])
    return [(a, g) for (a, _), g in zip(outside, solved, strict=True)]


def push_forward(
    node: Recurrence, known: Mapping[Tensor, Tensor], plan_of: Callable[[Template, frozenset[int]], tuple[Plan, dict]]
) -> dict[int, Tensor]:
    """The tangents of the members that depend on arguments with tangents. `plan_of(template, slots with tangents)`
    gives the plan of a template's tangents and the number of each result's."""
    items = [Item(node, j) for j in range(len(node.members))]
    active = _active(node, {s for s, a in enumerate(node.args) if a in known})
    own = {j: leaf(node.results[j][1], node.results[j][0]) for j in sorted(active)}
    moved = [known.get(a) for a in node.args] + [own.get(j) for j in range(len(items))]
    definitions: dict[Leaf, Tensor] = {}
    for j, x in own.items():
        slots = frozenset(s for s in _slots(node.members[j]) if moved[s] is not None)
        plan, numbers = plan_of(node.members[j], slots)
        made = plan.made([*node.args, *items], [items[j]], moved)[numbers[0]]
        assert made is not None
        definitions[x] = made
    solved = recurrence(definitions)
    return {j: solved[x] for j, x in own.items()}


def _slots(t: Template) -> set[int]:
    return {e.slot for p in t.parts for e in postorder(p.bodies) if isinstance(e, Read)}


def _members_read(node: Recurrence, j: int) -> list[int]:
    return [s - len(node.args) for s in sorted(_slots(node.members[j])) if s >= len(node.args)]


def _active(node: Recurrence, slots: set[int]) -> set[int]:
    """The float members that depend on arguments of these slots through floats."""
    floats = [j for j in range(len(node.members)) if node.results[j][0].is_float]
    readers: dict[int, list[int]] = {}
    for j in floats:
        for i in _members_read(node, j):
            readers.setdefault(i, []).append(j)
    return _reach((j for j in floats if slots & _slots(node.members[j])), lambda i: readers.get(i, []))


def _reach(roots: Iterable[int], below: Callable[[int], Iterable[int]]) -> set[int]:
    out = set(roots)
    todo = list(out)
    while todo:
        for i in below(todo.pop()):
            if i not in out:
                out.add(i)
                todo.append(i)
    return out
