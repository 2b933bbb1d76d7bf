"""Name the operands that sums of products compute.

before: Y[b, o] = sum[i](w[o, i]*x[b, i]*sigmoid(x[b, i]))
after:  Z[b, i] = x[b, i]*sigmoid(x[b, i]);  Y[b, o] = sum[i](w[o, i]*Z[b, i])

The gradients by w and x then share Z, and the gradients by all that Z is made of share its adjoint, a product. A
formula has the gradients of the one that names its operands.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from einsmith.base.symbolic import hint
from einsmith.ir.nodes import Apply, Compute, Item, Recurrence, Template, Tensor, postorder, reads
from einsmith.ir.rebuild import map_bodies, prune_recurrence, substitute, types_of
from einsmith.ir.rewrite.factors import Factor
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.rewrite.sum_steps import SumSteps, apply_steps, may_leave, reading, sums_of, with_body


def name_operands(node: Tensor | Recurrence) -> Tensor | Recurrence | None:
    """Return a sum of products with its computed operands as tensors of their own; None where there are none, or where
    one has more elements than the arguments and the result together. In a recurrence these are the operands that read
    no member."""
    if isinstance(node, Compute):
        named = _name_operands(node.template, len(node.args))
        return None if named is None else apply_steps(named, node)
    count = len(node.args)
    return name_in_steps(node, lambda t: _name_operands(t, count)) if isinstance(node, Recurrence) else None


def name_in_steps(node: Recurrence, name: Callable[[Template], tuple[Template, ...] | None]) -> Recurrence | None:
    """Return a recurrence that reads tensors computed before it; None where there are none.

    Args:
        node: the recurrence
        name: function of a member's template that returns the templates of these tensors, then the template that reads
            them in further slots; None where it has none
    """
    count, first = len(node.args), len(node.args) + len(node.members)
    operands: list[Tensor] = []
    members = list(node.members)
    results = [Item(node, n) for n in range(len(members))]
    places: list[int] = []  # of each member, the number of its first operand
    for n, t in enumerate(node.members):
        named = name(t)
        places.append(len(operands))
        if named is not None:
            operands += (canonical(step, (*node.args, *results)) for step in named[:-1])
            members[n] = named[-1]
    if not operands:
        return None
    params = types_of((*node.args, *operands)) + node.results
    for n, (t, place) in enumerate(zip(members, places, strict=True)):
        slots = {s: s for s in range(count)}
        slots |= {count + k: count + len(operands) + k for k in range(len(members))}
        slots |= {s: count + place + s - first for s in range(first, len(t.params))}
        bodies = {b: substitute(b, {}, slots) for p in t.parts for b in p.bodies}
        members[n] = map_bodies(t, bodies.__getitem__, params)
    args = (*node.args, *operands)
    return prune_recurrence(node.replaced(members=tuple(members), args=args))


def _name_operands(t: Template, count: int) -> tuple[Template, ...] | None:
    """Return the templates of the operands that read the first `count` slots alone, then the template that reads
    them; None where there are none. Computed once per template and count."""

    def compute(t: Template) -> tuple[Template, ...] | None:
        steps: list[Template] = []
        parts = list(t.parts)
        for number, total in sums_of(t):
            own = steps.copy()
            last = _name(total, own, count)
            if len(own) > len(steps) and not any(map(may_leave, own)):
                steps, parts[number] = own, with_body(t.parts[number], last)
        return (*steps, reading(t, steps, parts)) if steps else None

    return t.memo(("name_operands", count), compute)


def _name(total: SumSteps, steps: list[Template], count: int) -> Template:
    """Return the sum at once, after adding the operands that it computes from the first `count` slots as steps."""
    factors: list[Factor] = []
    widest = [x for x in dict.fromkeys(total.axes) if not any(x < other for other in total.axes)]
    groups: dict[frozenset[int], set[int]] = {x: set() for x in widest}
    for n, axes in enumerate(total.axes):
        groups[min((x for x in widest if axes <= x), key=lambda x: hint(prod(total.domain[a] for a in x)))].add(n)
    for axes, group in groups.items():
        own = [total.factors[n] for n in sorted(group)]
        some = frozenset(group)
        is_computed = len(groups) > 1 and axes == total.needed_axes(some) and (len(own) > 1 or _computes(own[0]))
        is_computed &= all(r.slot < count for f, _ in own for r in reads(f))
        if is_computed and hint(prod(c.extent for c in total.coordinates(some))) <= total.room:
            steps.append(total.step(some, own, axes, steps))
            own = [total.read(some, steps)]
        factors += own
    return total.step(total.all, factors + total.free, frozenset(range(len(total.domain))), steps)


def _computes(f: Factor) -> bool:
    """Return whether a factor is more than a read under guards."""
    return any(isinstance(e, Apply) and e.dtype.is_float and e.fn not in ("where", "cast") for e in postorder([f[0]]))
