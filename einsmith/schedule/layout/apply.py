"""Apply the chosen dimension orders to a plan: give its kernels the strides that follow from them.

before: call 0 makes t0[n, c, y, x], call 1 reads it, c*y*x, y*x, x, 1 elements from one position to the next
after:  the same, 1 element from one channel to the next and c from one pixel to the next

before: as above, with channels in blocks of 16
after:  call 0 makes t0[n, c, y, x, b] with b < 16, which has strides again; call 1 reads t0[n, k // 16, y, x, k % 16],
        and its axis k becomes two
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from einsmith.base.errors import VerifyError
from einsmith.ir.nodes import Apply, Compute, Graph, Leaf, Tensor, read_whole, template
from einsmith.ir.views import storage
from einsmith.schedule.graph_decisions import ORDER, TensorNames, orders_of
from einsmith.schedule.kernel import Kernel, KernelBuffer, Member, Rows, Stage
from einsmith.schedule.layout.dimension_orders import Placement, find_crossing, permutations, placement_of, relocate
from einsmith.schedule.plan import KernelCall, LayoutChoice, LoopCall, Order, Plan
from einsmith.schedule.split_axes import split_buffer

Orders = Mapping[Tensor, Order]
"""Order of a tensor's dimensions, by storage; tensors that are missing have row-major order."""
Places = Mapping[Tensor, Placement]
"""Where a tensor is stored, by storage; tensors that are missing stay."""


@dataclass(frozen=True)
class LayoutCopy:
    """A copy of a tensor in another order, which some calls read in its place; `call` computes it (`converter`)."""

    call: KernelCall
    choice: LayoutChoice
    readers: tuple[KernelCall, ...]


@dataclass(frozen=True)
class LayoutDecision:
    """The tensors of a plan whose order is not row-major, copies, and tensors that stay in row-major order although the
    cost of another one is known (`unchanged`)."""

    orders: Mapping[Tensor, LayoutChoice] = field(default_factory=dict)
    copies: tuple[LayoutCopy, ...] = ()
    unchanged: Mapping[Tensor, LayoutChoice] = field(default_factory=dict)


class LeavesMovedError(Exception):
    """Decisions give leaves other orders in memory than they have; `orders` are those that are not row-major."""

    def __init__(self, orders: Mapping[Leaf, Order]):
        super().__init__("leaves are to be stored in other orders")
        self.orders = orders


class UnplacedError(Exception):
    """A kernel cannot follow the order in which a leaf is stored."""


def leaf_orders(graph: Graph, owners: Mapping[Leaf, Leaf], decisions: Collection[str]) -> dict[Leaf, Order]:
    """Return the dimension orders that `decisions` name for leaves of a graph, as far as they fit the leaf's shape.

    owners: each leaf that may change its order -> the leaf whose order it follows (its parameter, or itself)."""
    if not owners or not any(x.startswith(f"{ORDER} ") for x in decisions):
        return {}
    wanted = orders_of(TensorNames(graph), dict.fromkeys(owners.values()), decisions)
    return {x: o for x, owner in owners.items() if (o := wanted.get(owner)) in permutations(x.shape)[1:]}


def find_held(plan: Plan, owners: Mapping[Leaf, Leaf]) -> dict[Tensor, Leaf]:
    """Return the tensors whose dimension order may change with a leaf's, each with the leaf whose order it follows.

    They are leaves and the new values stored into them, if only kernels of the plan access both.

    owners: each leaf that may change its order -> the leaf whose order it follows (its parameter, or itself)."""
    used = {storage(t) for call in plan.calls for t in call.tensors}
    graph = plan.graph
    new = {x: t for t, x in plan.home.items()}
    seen = {storage(t) for t in (*graph.outputs, *(t for t, _ in graph.checks), *graph.gradients)}
    for call in plan.calls:
        if isinstance(call, LoopCall):
            seen.update(storage(t) for tensors in (call.tensors, *(c.tensors for c in call.before)) for t in tensors)
    held: dict[Leaf, list[Tensor]] = {}  # by the leaf that gives the order
    fixed: set[Leaf] = set()
    for x, owner in owners.items():
        tensors = [t for t in (x, new.get(x)) if t is not None and t in used]
        held.setdefault(owner, []).extend(tensors)
        if x.shape != owner.shape or any(t in seen or storage(t) is not t or t.shape != x.shape for t in tensors):
            fixed.add(owner)
    return {t: owner for owner, tensors in held.items() if owner not in fixed for t in tensors}


def place_leaves(plan: Plan, orders: Mapping[Leaf, Order]) -> Plan:
    """Return the plan whose kernels follow the orders in which leaves are stored. Raises UnplacedError where one
    cannot, or where anything but a kernel accesses such a leaf."""
    tensors = find_held(plan, {x: x for x in orders})
    used = {storage(t) for call in plan.calls for t in call.tensors}
    if any(x not in tensors for x in orders if x in used or x in plan.graph.outputs):
        raise UnplacedError
    decision = LayoutDecision({t: LayoutChoice(orders[x]) for t, x in tensors.items()})
    try:
        return apply_layouts(plan, lambda p: decision if p is plan else LayoutDecision())
    except VerifyError as e:
        raise UnplacedError from e


def fixed_tensors(plan: Plan) -> set[Tensor]:
    """Return the tensors whose order is fixed: inputs, results, tensors that are stored into leaves, and operands of
    checks and loops."""
    fixed = {storage(t) for t in (*plan.graph.inputs, *plan.graph.roots)} | set(plan.home)
    for call in plan.calls:
        if isinstance(call, LoopCall):
            fixed.update(storage(t) for tensors in (call.tensors, *(c.tensors for c in call.before)) for t in tensors)
    return fixed


def free_tensors(plan: Plan) -> list[Tensor]:
    """Return the tensors that may have any order, in the order in which they are computed: only kernels of the plan
    write and read them."""
    calls = [c for c in plan.calls if isinstance(c, KernelCall)]
    results = dict.fromkeys(storage(t) for c in calls for t, w in zip(c.tensors, c.written, strict=True) if w)
    fixed = fixed_tensors(plan)
    return [t for t in results if t not in fixed]


def apply_layouts(plan: Plan, decide: Callable[[Plan], LayoutDecision]) -> Plan:
    """Return the plan, and the plans of its loops' steps, with the orders that `decide` gives for each. Return the plan
    itself if nothing changes. Raises VerifyError if a kernel has no strides for an order."""
    decision = decide(plan)
    changes = decision.orders or decision.copies or decision.unchanged
    if not changes and all(isinstance(call, KernelCall) for call in plan.calls):
        return plan
    if decision.unchanged:
        plan = replace(plan, unchanged_orders=dict(decision.unchanged))
    choices = {**decision.orders, **{c.call.tensors[1]: c.choice for c in decision.copies}}
    orders = {t: x.order for t, x in choices.items()}
    pending = list(decision.copies)
    lists: list[list[KernelCall | LoopCall]] = []
    for call in plan.calls:
        if isinstance(call, LoopCall):
            steps = [apply_layouts(p, decide) for p in call.plans]
            same = all(p is q for p, q in zip(steps, call.plans, strict=True))
            lists.append([call if same else replace(call, plans=steps)])
            continue
        new: dict[Tensor, Tensor] = {}
        lists.append([])
        for c in decision.copies:
            if any(call is r for r in c.readers):
                t, copy = c.call.tensors
                new[t] = copy
                if c in pending:  # its first reader
                    pending.remove(c)
                    lists[-1].append(_require_order(c.call, orders))
        if not loop_invariant_operands(call).isdisjoint(new):
            raise VerifyError(
                "a loop's step reads the copy of an operand that is packed before the loop, when no copy exists yet"
            )
        lists[-1].append(_require_order(call.exchange(new), orders))
    if all(len(x) == 1 and x[0] is c for x, c in zip(lists, plan.calls, strict=True)):
        return plan
    originals = {c.call.tensors[1]: storage(c.call.tensors[0]) for c in decision.copies}
    return replace(plan.with_calls(lists), orders=plan.orders | choices, originals=plan.originals | originals)


def loop_invariant_operands(call: KernelCall) -> set[Tensor]:
    """Return the loop-invariant operands of a call. A kernel may have packed them before the loop begins, when a copy
    of them does not exist yet."""
    if not isinstance(call.kernel, Rows):
        return {storage(call.tensors[n]) for n in call.kernel.loop_invariant or ()}
    places = (m.places[n] for m in call.kernel.members for n in m.kernel.loop_invariant or ())
    return {storage(call.tensors[n]) for n in places if n < len(call.tensors)}


def _require_order(call: KernelCall, orders: Orders) -> KernelCall:
    reordered = reorder_call(call, orders)
    if reordered is None:
        raise VerifyError(
            "a kernel reads a tensor through a view that has no strides in the requested order of dimensions"
        )
    return reordered


def reorder_call(call: KernelCall, orders: Orders) -> KernelCall | None:
    """Return the call with its tensors in these orders; None if a buffer has no strides for one."""
    return move_call(call, {s: placement_of(s.shape, orders[s]) for s in map(storage, call.tensors) if s in orders})


def move_call(call: KernelCall, places: Places) -> KernelCall | None:
    """Return the call with the tensors that are keys of `places` stored there; None if a buffer has no strides for
    it."""
    if not any(storage(t) in places for t in call.tensors):
        return call
    offsets = call.offsets or (0,) * len(call.tensors)
    if isinstance(call.kernel, Rows):
        return _move_rows(call, call.kernel, offsets, places)
    moved = move_kernel(
        call.kernel,
        {
            n: BufferMove(at // storage(t).dtype.itemsize, places[storage(t)])
            for n, (t, at) in enumerate(zip(call.tensors, offsets, strict=True))
            if storage(t) in places
        },
    )
    if moved is None:
        return None
    kernel, first = moved
    begins = tuple(
        first[n] * storage(t).dtype.itemsize if n in first else at
        for n, (t, at) in enumerate(zip(call.tensors, offsets, strict=True))
    )
    return replace(call, kernel=kernel, offsets=begins if any(begins) else call.offsets and begins)


class BufferMove(NamedTuple):
    """The elements of a tensor that a kernel's buffer holds. first: the one where it begins, in row-major order. to:
    where the tensor is to be stored."""

    first: int
    to: Placement


def move_kernel(kernel: Kernel, moves: Mapping[int, BufferMove]) -> tuple[Kernel, dict[int, int]] | None:
    """Return the kernel with the buffers that are keys of `moves` elsewhere, and where they begin (elements).

    Axes along which a buffer passes from one run of its tensor to the next are split. None if one cannot be split, or
    if a buffer has no strides there."""
    for n, (first, to) in moves.items():
        # The results of a kernel are split together, and are found split when their turn comes.
        while (crossing := find_crossing(kernel.buffers[n], first, to)) is not None:
            split = split_buffer(kernel, n, *crossing)
            if split is None:
                return None
            kernel = split
    buffers, begins = list(kernel.buffers), {}
    for n, (first, to) in moves.items():
        moved = relocate(buffers[n], first, to)
        if moved is None:
            return None
        buffers[n], begins[n] = moved
    return Kernel(kernel.stages, tuple(buffers), kernel.loop_invariant), begins


def _move_rows(call: KernelCall, kernel: Rows, offsets: tuple[int, ...], places: Places) -> KernelCall | None:
    """Return the call of a row-fused kernel with its tensors elsewhere; None if a buffer has no strides there, as if it
    passes from block to block."""
    own = [_move_buffer(t, b, at, places) for t, b, at in zip(call.tensors, kernel.buffers, offsets, strict=True)]
    parts = [move_call(p, places) for p in call.parts]
    members = [_move_member(m, call, offsets, places) for m in kernel.members]
    if None in own or None in parts or None in members:
        return None
    begins = tuple(x[1] for x in own if x is not None)
    rows = Rows(
        kernel.rows,
        tuple(m for m in members if m is not None),
        tuple(x[0] for x in own if x is not None),
        kernel.local,
        None,
        kernel.takes_sums,
    )
    moved_parts = tuple(p for p in parts if p is not None)
    return replace(call, kernel=rows, offsets=begins if any(begins) else call.offsets and begins, parts=moved_parts)


def _move_buffer(t: Tensor, buffer: KernelBuffer, at: int, places: Places) -> tuple[KernelBuffer, int] | None:
    """Return (the buffer of a tensor that is stored elsewhere, the byte where it begins then); `at` is the byte where
    it begins now. None if no strides describe it."""
    s = storage(t)
    if s not in places:
        return buffer, at
    moved = relocate(buffer, at // s.dtype.itemsize, places[s])
    return None if moved is None else (moved[0], moved[1] * s.dtype.itemsize)


def _move_member(m: Member, call: KernelCall, offsets: tuple[int, ...], places: Places) -> Member | None:
    """Return a member of a row-fused kernel with buffers elsewhere; buffers that are local to a row have no tensor and
    stay."""
    buffers: list[KernelBuffer] = []
    for place, b in zip(m.places, m.kernel.buffers, strict=True):
        moved = _move_buffer(call.tensors[place], b, offsets[place], places) if place < len(call.tensors) else (b, 0)
        if moved is None:
            return None
        buffers.append(moved[0])
    kernel = Kernel(m.kernel.stages, tuple(buffers), m.kernel.loop_invariant)
    return Member(kernel, m.places, m.by_row, m.reduces, m.axis)


def converter(t: Tensor) -> KernelCall:
    """Return the call that copies a tensor into separate memory, which may have another order. The copy is cast twice,
    which distinguishes it from other copies in a program."""
    whole = read_whole(0, t.shape, t.dtype)
    body = Apply("cast", (Apply("cast", (whole,), t.dtype),), t.dtype)
    copy = Compute(template(t.shape, [(t.dtype, t.shape)], body), (t,))
    plain = template(t.shape, [(t.dtype, t.shape)], whole)
    stage = Stage(plain, (("buffer", 0),), (1,))
    kernel = Kernel((stage,), (KernelBuffer(t.dtype, t.shape), KernelBuffer(t.dtype, t.shape)))
    return KernelCall(kernel, (t, copy), (False, True), ())
