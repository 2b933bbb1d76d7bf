"""Lower groups of nodes to kernel calls, and change the calls of plans that run many times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from einsmith.cost.facts import Target
from einsmith.ir.nodes import Apply, Compute, Const, Item, Leaf, Piece, Reduce, Tensor, nbytes, read_whole, template
from einsmith.ir.views import producer, storage
from einsmith.schedule.fusion import maker
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows, Stage
from einsmith.schedule.plan import KernelCall, LoopCall, Plan


def copy_of(t: Tensor) -> Compute:
    """Return a tensor with the same elements in separate memory (the cast keeps it from being a view)."""
    body = Apply("cast", (read_whole(0, t.shape, t.dtype),), t.dtype)
    return Compute(template(t.shape, [(t.dtype, t.shape)], body), (t,))


def kernel_call(
    nodes: Sequence[Compute], needed: Collection[Tensor], home: Mapping[Tensor, Leaf], non_temporal: Collection[Tensor]
) -> KernelCall:
    """Return the kernel of a group. Its buffers are the arguments in order of first use, then the stored results; those
    in `non_temporal` are too large for the caches. A scatter that starts from the old value of the parameter that it is
    stored to has one buffer for both."""
    place: dict[Compute, int] = {n: i for i, n in enumerate(nodes)}
    tensors: list[Tensor] = []
    written: list[bool] = []

    numbers: dict[tuple[Tensor, bool], int] = {}

    def buffer(t: Tensor, write: bool) -> int:
        if (t, write) not in numbers:
            numbers[t, write] = len(tensors)
            tensors.append(t)
            written.append(write)
        return numbers[t, write]

    stages = []
    for n in nodes:
        args: list[tuple] = []
        for a in n.args:
            p, member = producer(a)
            if n.template.is_scatter and n in home and storage(a) is home[n]:
                args.append(("buffer", buffer(n, True)))
            else:
                args.append(("stage", place[p], member) if p in place else ("buffer", buffer(a, False)))
        count = len(n.template.dtypes)
        results: list[Tensor] = [n] if count == 1 else [Item(n, m) for m in range(count)]
        outputs = tuple(buffer(r, True) if r in needed else None for r in results)
        stages.append(Stage(n.template, tuple(args), outputs))
    if nodes[0].template.is_scatter:
        non_temporal = set()  # it reads its own stores
    buffers = tuple(
        KernelBuffer(t.dtype, t.shape, w and t in non_temporal) for t, w in zip(tensors, written, strict=True)
    )
    return KernelCall(Kernel(tuple(stages), buffers), tuple(tensors), tuple(written), tuple(nodes))


def is_non_temporal(t: Tensor, unread: bool, target: Target) -> bool:
    """Return whether a result is stored with non-temporal stores, because no later kernel would find it in a cache, or
    because the store is faster. The limit is half of L3; a quarter for sums with constant pieces between them, which
    take longer to store than to compute; `smallest_non_temporal` if the result is `unread`: no kernel reads it, and its
    own kernel moves more bytes than L3 holds, so that L3 keeps operands instead."""
    node = maker(t)
    bodies = [p.body for p in node.template.parts if isinstance(p, Piece)] if isinstance(node, Compute) else []
    sparse = any(isinstance(x, Const) for x in bodies) and any(isinstance(x, Reduce) for x in bodies)
    return nbytes(t) >= (smallest_non_temporal(target) if unread else target.last_level // (4 if sparse else 2))


def smallest_non_temporal(target: Target) -> int:
    """Return the bytes of the smallest results that are stored with non-temporal stores: an eighth of L3."""
    return target.last_level // 8


def mark_invariant(
    plan: Plan, same: Collection[Tensor], pays: Callable[[KernelCall, Kernel], bool] | None = None
) -> Plan:
    """Mark loop-invariant buffers in the kernels of a plan that is run many times.

    Args:
        plan: the plan, for instance of a loop's step
        same: tensors whose values are the same in every run; buffers that hold them are marked
        pays: (call, its marked kernel) -> whether to mark; None: mark in all calls
    """
    calls = list(plan.calls)
    for i, call in enumerate(calls):
        if isinstance(call, KernelCall) and not isinstance(call.kernel, Rows):
            fixed = tuple(n for n, t in enumerate(call.tensors) if storage(t) in same)
            marked = Kernel(call.kernel.stages, call.kernel.buffers, fixed)
            if pays is None or fixed and pays(call, marked):
                calls[i] = replace(call, kernel=marked)
    return replace(plan, calls=calls)


def unmark_invariant(plan: Plan) -> Plan:
    """Return a plan none of whose kernels marks buffers whose values stay."""
    calls = [
        replace(call, kernel=Kernel(call.kernel.stages, call.kernel.buffers))
        if isinstance(call, KernelCall) and not isinstance(call.kernel, Rows)
        else call
        for call in plan.calls
    ]
    return replace(plan, calls=calls)


def drop_idle(plan: Plan, idle: tuple[int, ...]) -> list[KernelCall | LoopCall]:
    """Return the calls of a plan without those that only idle outputs need."""
    needed = {storage(t) for n, t in enumerate(plan.graph.outputs) if n not in idle} | set(plan.home)
    kept: list[KernelCall | LoopCall] = []
    for call in reversed(plan.calls):
        if not needed.isdisjoint(call.results):
            kept.append(call)
            needed.update(call.operands)
    return kept[::-1]
