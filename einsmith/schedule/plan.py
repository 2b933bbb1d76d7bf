"""Hold the kernels of a graph in order, with the tensors that they read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

from einsmith.base.locks import cached_property
from einsmith.cost.facts import Target
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import Compute, Graph, Leaf, Tensor
from einsmith.ir.rebuild import with_args
from einsmith.ir.views import is_view, storage
from einsmith.schedule.kernel import Kernel

Cost = Callable[[Kernel, Target], float]
"""Predicts the seconds of a kernel on a target."""
StagesCost = Callable[[Kernel, Kernel, Target], float]
"""Expects the least seconds of the first stages of a kernel: of them as a kernel of their own, and the whole one."""


Order = tuple[int | tuple[int, int], ...]
"""The dimensions of a tensor as they are in memory, the outermost first. A pair (d, n) stands for the points within a
block of n points of dimension d; d alone then stands for the blocks. NC/16HW16 is (0, 1, 2, 3, (1, 16))."""


class LayoutChoice(NamedTuple):
    """The order of a tensor's dimensions in memory.

    Attributes:
        order: the order.
        runner_up: the next best order, if the model chose; else None.
        more: predicted seconds that the program would take more with `runner_up`.
    """

    order: Order
    runner_up: Order | None = None
    more: float = 0.0


class CopyPrices(NamedTuple):
    """Predicted seconds of a tensor stored inside another tensor's memory, and of a copy into that tensor.

    Attributes:
        owner: the other tensor.
        inside: seconds of all affected kernels if the tensor is stored inside `owner`.
        copied: seconds of the same kernels, and of the copy, if it is copied.
        is_inside: whether it is stored inside. It may be copied although that is slower, to limit the live bytes.
    """

    owner: Tensor
    inside: float
    copied: float
    is_inside: bool


class Refusal(NamedTuple):
    """The reason for which a result is stored that a fused kernel might use up.

    Attributes:
        reason: the reason, in words.
        streamed: predicted seconds where the result is not stored, if they were compared.
        stored: predicted seconds where it is stored, if they were compared.
    """

    reason: str
    streamed: float | None = None
    stored: float | None = None


class JoinPrices(NamedTuple):
    """The predicted seconds by which kernels were joined by rows: of the fused kernel, and of separate ones; and the
    bytes that the fused kernel holds more at once."""

    fused: float
    apart: float
    more_bytes: int = 0


class _Accesses:
    """What a call reads and writes; see `KernelCall`."""

    tensors: tuple[Tensor, ...]
    written: tuple[bool, ...]

    @cached_property
    def operands(self) -> list[Tensor]:
        """Return the storages that the call reads, each once."""
        return list(dict.fromkeys(storage(t) for t, w in zip(self.tensors, self.written, strict=True) if not w))

    @cached_property
    def results(self) -> list[Tensor]:
        """Return the storages that the call writes, each once."""
        return list(dict.fromkeys(storage(t) for t, w in zip(self.tensors, self.written, strict=True) if w))


@dataclass
class KernelCall(_Accesses):
    """A kernel and the tensors in its buffers.

    Attributes:
        kernel: the kernel.
        tensors: the tensor in each buffer.
        written: whether each buffer is stored to.
        nodes: what the kernel computes, stage by stage; empty if it only stores a tensor in another order, or runs
            inside of another kernel.
        offsets: bytes into its tensor at which each buffer begins; empty if all are 0.
        parts: the calls that row fusion joined into this one, each of which can run separately.
        is_recomputation: whether the call only computes again what an earlier call has computed.
        is_late: whether only the backward pass or an update needs the kernel, where it may repeat what the forward pass
            computes (`repeat_products`); such a kernel is not joined with those of the forward pass.
        prices: the prices by which `parts` were joined; None where none decided.
    """

    kernel: Kernel
    tensors: tuple[Tensor, ...]
    written: tuple[bool, ...]
    nodes: tuple[Compute | LoweredLoop, ...] = ()
    offsets: tuple[int, ...] = ()
    parts: tuple[KernelCall, ...] = ()
    is_recomputation: bool = False
    is_late: bool = False
    prices: JoinPrices | None = None

    @property
    def own(self) -> tuple[Compute | LoweredLoop, ...]:
        """Return the nodes that other kernels read from this call."""
        return () if self.is_recomputation else self.nodes

    @property
    def packed_once(self) -> set[Tensor]:
        """Return the storages of the operands that the kernel may pack once for all steps of its loop: those of its
        root that it marks as loop-invariant."""
        return {storage(t) for t, _ in self.invariant_operands}

    @property
    def invariant_operands(self) -> list[tuple[Tensor, int]]:
        """Return the operands of its root that the kernel marks as loop-invariant, and the bytes into each at which its
        buffer begins. None are known of a Rows, whose members pack for themselves."""
        marked, offsets = self.kernel.loop_invariant or (), self.offsets or (0,) * len(self.tensors)
        return [(self.tensors[n], offsets[n]) for _, n in self.kernel.stages[0].args if n in marked] if marked else []

    def exchange(self, new: Mapping[Tensor, Tensor]) -> KernelCall:
        """Return the call with each storage that is a key of `new` replaced by its value there."""
        if not any(storage(t) in new for part in (self, *self.parts) for t in part.tensors):
            return self
        tensors = tuple(_exchange(t, new) for t in self.tensors)
        return replace(self, tensors=tensors, parts=tuple(p.exchange(new) for p in self.parts))


@dataclass
class LoopCall(_Accesses):
    """A loop: the calls that fill its members' initial pieces, then the plan of a step for each segment. `tensors`,
    `written` and `nodes` are those of a `KernelCall`, for the loop as a whole. It has no kernel of its own."""

    kernel: ClassVar[Any] = None
    is_late: ClassVar[bool] = False
    loop: LoweredLoop
    before: list[KernelCall]
    plans: list[Plan]
    tensors: tuple[Tensor, ...]
    written: tuple[bool, ...]
    nodes: tuple[LoweredLoop]

    @property
    def own(self) -> tuple[LoweredLoop]:
        """Return the loop, as the node that this call computes."""
        return self.nodes


AnyCall = KernelCall | LoopCall


@dataclass
class Plan:
    """Kernels in order.

    Attributes:
        graph: the graph that the plan computes.
        calls: kernels and loops in order.
        home: the leaf into whose memory each update's tensor is written.
        checks: (call number, tensor, message): the check can be evaluated after that call.
        first_write: number of the first call that writes into a leaf.
        originals: copy -> original, for tensors that are recomputed (`schedule.rematerialize`) or also stored in
            another order.
        orders: order of each tensor whose dimensions are not in row-major order (`schedule.layout`).
        unchanged_orders: row-major order of each tensor for which the model weighed another one, its runner-up.
        copies: the prices of copies that were weighed, by the tensor that they might spare (`schedule.coalesce`).
        apart: sums that are fused with an update. With kernels of their own, results that they read may need no memory.
        refusals: the reason for which each result is stored that a fused kernel might use up.
        decisions: what was decided otherwise than by the cost model (`schedule.graph_decisions`).
        together: (first, last) call of each group of calls that do not depend on each other and run in one launch.
    """

    graph: Graph
    calls: list[KernelCall | LoopCall]
    home: dict[Tensor, Leaf]
    checks: list[tuple[int, Tensor, str]]
    first_write: int
    originals: dict[Tensor, Tensor] = field(default_factory=dict)
    orders: dict[Tensor, LayoutChoice] = field(default_factory=dict)
    unchanged_orders: dict[Tensor, LayoutChoice] = field(default_factory=dict)
    copies: dict[Tensor, CopyPrices] = field(default_factory=dict)
    apart: frozenset[Compute] = frozenset()
    refusals: dict[Tensor, Refusal] = field(default_factory=dict)
    decisions: frozenset[str] = frozenset()
    together: tuple[tuple[int, int], ...] = ()

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels, each once, in the order of the calls."""
        return list(dict.fromkeys(c.kernel for _, c, _ in self.kernel_calls()))

    @property
    def stored(self) -> set[Tensor]:
        """The tensors that kernels read from memory or write to it."""
        return {storage(t) for _, call, _ in self.kernel_calls() for t in call.tensors}

    def with_calls(self, lists: Sequence[Sequence[KernelCall | LoopCall]]) -> Plan:
        """Return the plan with the calls `lists[n]` in the place of call n; its check follows the last of them."""
        ends = [0, *accumulate(map(len, lists))]
        checks = [(ends[n + 1] - 1, t, message) for n, t, message in self.checks]
        first = ends[min(self.first_write, len(lists))]
        return replace(self, calls=[c for some in lists for c in some], checks=checks, first_write=first)

    def kernel_calls(self) -> Iterator[tuple[int, KernelCall, int]]:
        """Yield (number in `calls`, call, most times that it runs) of every kernel; those of loops in the order in
        which a program holds them."""
        for i, call in enumerate(self.calls):
            if isinstance(call, KernelCall):
                yield i, call, 1
                continue
            yield from ((i, c, 1) for c in call.before)
            for segment, plan in zip(call.loop.segments, call.plans, strict=True):
                yield from ((i, c, turns * segment.steps) for _, c, turns in plan.kernel_calls())


def output_tensors(plan: Plan) -> list[Tensor]:
    """Return the tensors of a plan whose memory a run allocates for the graph's outputs."""
    storages = dict.fromkeys(storage(t) for t in plan.graph.outputs)
    return [t for t in storages if not isinstance(t, Leaf) and t not in plan.home]


def find_outside(plan: Plan, bound: Iterable[Leaf]) -> set[Tensor]:
    """Return the tensors of a plan that do not lie in the arena; bound: leaves whose memory lives as long as the
    program."""
    return {*plan.graph.inputs, *bound, *output_tensors(plan)}


def _exchange(t: Tensor, new: Mapping[Tensor, Tensor]) -> Tensor:
    """Return a tensor, or a view of one, with its storage replaced by its value in `new`, if it is a key there."""
    if t in new:
        return new[t]
    if isinstance(t, Compute) and is_view(t.template):
        return with_args(t, (_exchange(t.args[0], new),))
    return t
