"""Inline pointwise producers into their readers, where that repeats no arithmetic.

before: T[i] = exp(X[i]);  Y[i, j] = T[i] + Z[i, j]      (T read elsewhere too: stays)
before: P[i, j] = where(0 <= i-1, X[i-1, j], 0);  Y[i] = sum[j](P[i, j]*W[j])
after:  Y[i] = sum[j](where(0 <= i-1, X[i-1, j], 0)*W[j])

before: Q[i] = u8(round(X[i]/s));  D[i] = i32(Q[i]) - i32(z);  Y[] = sum[i](D[i]*W[i])
after:  Q[i] = u8(round(X[i]/s));  Y[] = sum[i]((i32(Q[i]) - i32(z))*W[i])

before: W[i, j] = f32(Q[i, j])*s[i];  Y[i] = sum[j](W[i, j]*X[j]);  Z[j] = W[k[], j]      (Q: i8, an input)
after:  Y[i] = sum[j](f32(Q[i, j])*s[i]*X[j]);  Z[j] = f32(Q[k[], j])*s[k[]]
"""

from __future__ import annotations

from collections import Counter

from einsmith.ir.analysis.pointwise import (
    is_movement,
    is_shift,
    points,
    pointwise_body,
    reads_by_slot,
    total_operations,
)
from einsmith.ir.nodes import (
    Compute,
    Graph,
    Item,
    Leaf,
    Recurrence,
    Tensor,
    nbytes,
    postorder,
    size,
)
from einsmith.ir.rebuild import exchanged, rebuild, replace
from einsmith.ir.rewrite.inlining import inline_arguments
from einsmith.ir.views import is_view, storage

_MAX_OPERATIONS = 60
"""Most operations per point of a merged body; above, two kernels are better than one."""


_WIDENING = 2
"""Most operations per point of what widens an input: a conversion, of which the factor is another one. Storing takes
twice the bytes of the input to write, and then to read, in which a core does dozens."""


def inline(graph: Graph) -> Graph:
    """Return the graph with producers merged into readers: pure movement, integers of 8 bits less their zero point, and
    inputs times a scale in a wider type, always; arithmetic if the only reader evaluates each element at most once."""
    user_counts: Counter = Counter()
    for node in postorder(graph.roots):
        user_counts.update(set(node.args))
    roots = set(graph.roots)
    origin: dict[Tensor, Tensor] = {}

    def can_inline(consumer: Compute, arg: Tensor) -> bool:
        """Return whether a pointwise argument is merged: pure movement always; arithmetic if this only reader evaluates
        each element at most once and the merged body is short."""
        if not isinstance(arg, Compute) or is_view(arg.template) or pointwise_body(arg.template) is None:
            return False
        if is_shift(consumer.template):  # its arguments stay narrow in memory
            return is_movement(arg.template) and all(d is arg.dtype for d, _ in arg.template.params)
        if is_movement(arg.template) or is_shift(arg.template) or _is_widening(arg):
            return True
        original = origin.get(arg, arg)
        if user_counts[original] != 1 or original in roots or arg.shape == ():
            return False
        slots = reads_by_slot(consumer.template)
        arg_reads = {e for s, a in enumerate(consumer.args) if a is arg for e in slots.get(s, ())}
        return (
            len(arg_reads) * points(consumer.template) <= size(arg.shape)
            and total_operations(consumer.template) + total_operations(arg.template) <= _MAX_OPERATIONS
        )

    def merge(node: Compute) -> Compute:
        inlined = {a for a in node.args if can_inline(node, a)}
        return inline_arguments(node, inlined) if inlined and not is_view(node.template) else node

    def rule(node):
        return merge(node) if isinstance(node, Compute) else None

    memo: dict = {}
    for node in list(postorder(graph.roots)):
        new = rebuild([node], rule, memo)[0]
        if not isinstance(node, (Leaf, Item, Recurrence)):
            origin.setdefault(new, node)
    return replace(graph, lambda n: None) if not memo else exchanged(graph, memo)


def _is_widening(t: Compute) -> bool:
    """Return whether a pointwise tensor is an input in a type of at least twice the bytes, times another input."""
    if not all(isinstance(storage(a), Leaf) for a in t.args) or total_operations(t.template) > _WIDENING:
        return False
    return any(size(a.shape) == size(t.shape) and 2 * nbytes(a) <= nbytes(t) for a in t.args)
