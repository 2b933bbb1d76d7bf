"""Print plans: their kernels, with the tensor names of the graph printer, and their arena."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from einsmith.ir.nodes import Item, Reduce, Template, Tensor, nbytes, size
from einsmith.ir.printer import tensor_names
from einsmith.ir.views import storage
from einsmith.schedule.arena import lifetimes
from einsmith.schedule.kernel import Rows
from einsmith.schedule.kernel_printer import show_kernel
from einsmith.schedule.layout.dimension_orders import name_of, row_major_order
from einsmith.schedule.plan import KernelCall, LoopCall, Plan
from einsmith.schedule.step_loops import StepLoop


def show_plan(plan: Plan) -> str:
    """Return the calls in order, each with its kernel; the calls of a loop's steps are below the loop, with the step's
    tensors.

    A result in a parameter's memory is called `t3 in in0`, a tensor from byte 512 on `t3@512`. The layouts that are not
    row-major follow.
    """
    return "\n".join([*show_calls(plan), *map(str, layouts(plan))])


def label(call: KernelCall) -> str:
    """Return a kernel's root in the words of the formula language, with the shapes it computes."""
    if isinstance(call.kernel, StepLoop):
        return f"{call.kernel.steps} steps: {' -> '.join(_kind(m.kernel.root) for m in call.kernel.members)}"
    if isinstance(call.kernel, Rows):
        members = " -> ".join(_kind(m.kernel.root) for m in call.kernel.members)
        if call.kernel.is_joined:
            return f"{len(call.kernel.members)} kernels side by side"
        return f"{call.kernel.rows} rows: {members}"
    t = call.kernel.root
    more = f" +{len(call.nodes) - 1}" if len(call.nodes) > 1 else ""
    pieces = f" {len(t.parts)} pieces" if len(t.parts) > 1 and not t.is_scatter else ""
    return f"{_kind(t)} -> {'x'.join(map(str, t.shape)) or 'scalar'}{pieces}{more} ({size(t.shape)} elements)"


def _kind(t: Template) -> str:
    body = getattr(t.parts[0], "body", None)
    if isinstance(body, Reduce):
        return f"{body.combiner}{list(body.extents)}"
    return "scatter" if t.is_scatter else "pointwise"


class PrintedLayout(NamedTuple):
    """Tensors of one type and layout, by name, that are not in row-major order.

    Attributes:
        names: the tensors' names.
        type: their type, as text.
        shape: their shape.
        order: their dimensions in memory, outermost first.
        runner_up: the next best order, if the model chose; else None.
        more: predicted seconds that the program would take more with `runner_up`.
        copies: whether these are copies of tensors that have another order too.
    """

    names: tuple[str, ...]
    type: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    runner_up: tuple[int, ...] | None
    more: float
    copies: bool

    @property
    def order_name(self) -> str:
        """The name of the layout."""
        return name_of(self.shape, self.order)

    @property
    def next_best(self) -> str:
        """Return the next best order and its cost, as text; empty if the model did not choose."""
        if self.runner_up is None:
            return ""
        is_copy = self.copies and self.runner_up == row_major_order(self.shape)
        name = "no copy" if is_copy else name_of(self.shape, self.runner_up)
        return f"{name}, {self.more * 1e6:.1f} us more"

    def __str__(self) -> str:
        copies = "copies " if self.copies else ""
        beside = f" (next best: {self.next_best})" if self.next_best else ""
        return f"layout of {copies}{', '.join(self.names)}: {self.type}, {self.order_name}{beside}"


def layouts(plan: Plan) -> list[PrintedLayout]:
    """Return the layouts that are not row-major; tensors that were decided together form one entry. Those of loops'
    steps follow, with the steps' names."""
    name, groups = namer(plan), dict[Any, list[Tensor]]()
    for t, laid in plan.orders.items():
        groups.setdefault((t.dtype, t.shape, laid, t in plan.originals), []).append(t)
    out = [
        PrintedLayout(tuple(map(name, ts)), f"{dtype.name}{list(shape)}", shape, x.order, x.runner_up, x.more, copies)
        for (dtype, shape, x, copies), ts in groups.items()
    ]
    return out + [x for c in plan.calls if isinstance(c, LoopCall) for step in c.plans for x in layouts(step)]


class PrintedCopy(NamedTuple):
    """A tensor that lies inside another one, or is copied into it or out of it, by name.

    Attributes:
        name: the tensor's name, and its type.
        owner: the other tensor's name, and its type.
        inside: predicted seconds of all kernels concerned where the tensor lies in the other one.
        copied: those where it is copied.
        is_inside: whether it lies in it.
    """

    name: str
    owner: str
    inside: float
    copied: float
    is_inside: bool

    def __str__(self) -> str:
        prices = f"{self.inside * 1e6:.1f} us, with a copy {self.copied * 1e6:.1f} us"
        if self.is_inside:
            return f"{self.name} lies in {self.owner}, predicted {prices}"
        why = " but more bytes live at once" if self.inside < self.copied else ""
        return f"{self.name} is copied and does not lie in {self.owner}, predicted {prices}{why}"


def copies(plan: Plan) -> list[PrintedCopy]:
    """Return the copies of a plan that were left out or weighed, those of loops' steps last."""
    name = namer(plan)
    out = [
        PrintedCopy(f"{name(t)} {t.dtype.name}{list(t.shape)}", f"{name(x.owner)} {list(x.owner.shape)}", *x[1:])
        for t, x in plan.copies.items()
    ]
    return out + [x for c in plan.calls if isinstance(c, LoopCall) for step in c.plans for x in copies(step)]


def namer(plan: Plan) -> Callable[[Tensor], str]:
    """Return the function that names the tensors of a plan."""
    names = tensor_names(plan.graph)

    def name(t: Tensor) -> str:
        if t in plan.originals:  # recomputed, once or more often
            return f"{name(plan.originals[t])}'"
        if t not in names and isinstance(t, Item):  # a member of a loop that no node of the graph reads
            return f"{names[t.node]}.{t.member}"
        if t not in names and storage(t) is not t:  # a view of a recomputed tensor
            return name(storage(t))
        return f"{names[t]} in {names[plan.home[t]]}" if t in plan.home else names[t]

    return name


def show_calls(plan: Plan, pad: str = "") -> list[str]:
    """Return the text of each call of a plan, with `pad` before every line."""
    name = namer(plan)

    def kernel(head: str, c: KernelCall) -> list[str]:
        offsets = c.offsets or (0,) * len(c.tensors)
        shown = [name(t) + (f"@{n}" if n else "") for t, n in zip(c.tensors, offsets, strict=True)]
        first, *rest = show_kernel(c.kernel, shown).splitlines()
        return [f"{pad}{head}: {first}", *(f"{pad}  {line}" for line in rest)]

    def loop(i: int, c: LoopCall) -> list[str]:
        lines = [line for before in c.before for line in kernel(f"call {i}, before its loop", before)]
        for segment, step in zip(c.loop.segments, c.plans, strict=True):
            backward = ", the last one first" if c.loop.reverse else ""
            lines.append(f"{pad}call {i}: loop of {segment.steps} steps{backward}")
            lines += show_calls(step, pad + "  ")
        return lines

    return [
        "\n".join(kernel(f"call {i}", c) if isinstance(c, KernelCall) else loop(i, c)) for i, c in enumerate(plan.calls)
    ]


def show_arena(plan: Plan, outside: Iterable[Tensor], offsets: Mapping[object, int], nbytes_in_all: int) -> str:
    """Return, as text, the bytes that each tensor has in the arena, and its first and last call. `offsets` and
    `nbytes_in_all` are the result of `arena.arena`."""
    name = namer(plan)
    lines = [f"arena of {nbytes_in_all} bytes"]
    for t, (first, last) in lifetimes(plan, outside).items():
        at = offsets[storage(t)]
        lines.append(f"  {name(t)}: bytes {at} .. {at + nbytes(t) - 1}, calls {first} .. {last}")
    lines += [f"  workspace of call {n}: from byte {at} on" for n, at in offsets.items() if isinstance(n, int)]
    return "\n".join(lines)
