"""Inline pointwise producers into their readers, where that repeats no arithmetic.

before: T[i] = exp(X[i]);  Y[i, j] = T[i] + Z[i, j]      (T read elsewhere too: stays)
before: P[i, j] = where(0 <= i-1, X[i-1, j], 0);  Y[i] = sum[j](P[i, j]*W[j])
after:  Y[i] = sum[j](where(0 <= i-1, X[i-1, j], 0)*W[j])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from einsmith.ir.analysis.widths import placed
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Template,
    Tensor,
    postorder,
    size,
)
from einsmith.ir.rebuild import exchanged, map_bodies, prune_args, rebuild, replace, substitute
from einsmith.ir.rewrite.simplify import simplify_template
from einsmith.passes.schedule.views import is_view

_FREE = {"where", "cast", "stop_gradient", "lt", "le", "eq", "ne", "and", "or", "not"}
_LIMIT = 60  # operations of a merged body: beyond it a kernel is better cut


def is_copy(t: Template) -> bool:
    """Return whether the result equals the only argument, element by element."""

    def find(t: Template) -> bool:
        body = pointwise_body(t)
        return (
            isinstance(body, Read)
            and t.params == ((body.dtype, t.shape),)
            and all(
                i is Axis(d) or (n == 1 and isinstance(i, Const))
                for d, (i, n) in enumerate(zip(body.index, t.shape, strict=True))
            )
        )

    return t.memo("is_copy", find)


def is_identity(e: Read, shape: Sequence[int]) -> bool:
    """Return whether a read in a body over `shape` accesses the body's own position in a tensor of that shape."""
    places = enumerate(zip(e.index, shape, strict=True)) if len(e.index) == len(shape) else ()
    found = [i is Axis(d) or (n == 1 and isinstance(i, Const)) for d, (i, n) in places]
    return len(found) == len(shape) and all(found)


def pointwise_body(t: Template) -> Expr | None:
    """Return the body of a template that is one reduction-free piece over its whole output, else None."""
    part = t.parts[0]
    if len(t.parts) != 1 or not isinstance(part, Piece) or isinstance(part.body, Reduce) or part.extents != t.shape:
        return None
    return part.body


def is_movement(t: Template) -> bool:
    """Return whether a template only moves, pads or fills: no arithmetic, at most one read, no condition on data."""
    return total_operations(t) == 0 and sum(map(len, _reads_by_slot(t).values())) <= 1


def total_operations(t: Template) -> int:
    """Return the number of floating-point operations in all bodies."""
    return t.memo("operations", lambda t: sum(operations(b) for p in t.parts for b in p.bodies))


def _reads_by_slot(t: Template) -> dict[int, set[Read]]:
    def find(t: Template) -> dict[int, set[Read]]:
        out: dict[int, set[Read]] = {}
        for part in t.parts:
            for e in postorder(part.bodies):
                if isinstance(e, Read):
                    out.setdefault(e.slot, set()).add(e)
        return out

    return t.memo("reads_by_slot", find)


def operations(body: Expr) -> int:
    """Return the number of floating-point operations of one evaluation; conditions, selection and index arithmetic are
    not counted."""
    return sum(isinstance(e, Apply) and e.dtype.is_float and e.fn not in _FREE for e in postorder([body]))


def _inlined(t: Template, made: Sequence[Template | None]) -> Template:
    """Return the template with the reads of some slots replaced by the pointwise bodies of their producers. The
    producers' arguments follow the template's own, in order of the slots."""
    params = list(t.params)
    bodies: dict[int, Expr] = {}
    for slot, producer in enumerate(made):
        if producer is not None:
            body = pointwise_body(producer)
            assert body is not None
            bodies[slot] = substitute(body, {}, {i: len(params) + i for i in range(len(producer.params))})
            params += producer.params

    def rule(e):
        if isinstance(e, Read) and e.slot in bodies:
            return placed(bodies[e.slot], dict(enumerate(e.index)))
        return None

    return map_bodies(t, lambda b: rebuild([b], rule)[0], params)


def inlined(node: Compute, taken: Collection[Tensor]) -> Compute:
    """Return the tensor with the bodies of the given pointwise arguments inlined."""
    made = tuple(a.template if a in taken and isinstance(a, Compute) else None for a in node.args)
    args = (*node.args, *(x for a, t in zip(node.args, made, strict=True) if t is not None for x in a.args))
    t = node.template.memo(("inlined", made), lambda t: _inlined(t, made))
    out = prune_args(t, args)
    return prune_args(simplify_template(out.template), out.args)


def points(t: Template) -> int:
    """Return how many times a template's bodies are evaluated in all."""
    return sum(size(p.domain) for p in t.parts)


def inline(graph: Graph) -> Graph:
    """Return the graph with producers merged into readers: pure movement always; arithmetic if the only reader
    evaluates each element at most once."""
    users: Counter = Counter()
    for node in postorder(graph.roots):
        users.update(set(node.args))
    keep = set(graph.roots)
    origin: dict[Tensor, Tensor] = {}

    def wanted(consumer: Compute, arg: Tensor) -> bool:
        if not isinstance(arg, Compute) or is_view(arg.template) or pointwise_body(arg.template) is None:
            return False
        if is_movement(arg.template):
            return True
        first = origin.get(arg, arg)
        if users[first] != 1 or first in keep or arg.shape == ():
            return False
        known = _reads_by_slot(consumer.template)
        found = {e for s, a in enumerate(consumer.args) if a is arg for e in known.get(s, ())}
        return (
            len(found) * points(consumer.template) <= size(arg.shape)
            and total_operations(consumer.template) + total_operations(arg.template) <= _LIMIT
        )

    def merge(node: Compute) -> Compute:
        taken = {a for a in node.args if wanted(node, a)}
        return inlined(node, taken) if taken and not is_view(node.template) else node

    def rule(node):
        return merge(node) if isinstance(node, Compute) else None

    memo: dict = {}
    for node in list(postorder(graph.roots)):
        new = rebuild([node], rule, memo)[0]
        if not isinstance(node, (Leaf, Item, Recurrence)):
            origin.setdefault(new, node)
    return replace(graph, lambda n: None) if not memo else exchanged(graph, memo)
