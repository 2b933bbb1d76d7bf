"""Run short loops as one kernel: its code contains the steps, and numbers that a step hands to the next stay in
registers.

before: loop of 1000 steps, two launches each: a = x[t]*w; h[t+1] = a + h[t]
after:  one launch: for t = 0 .. 999: a = x[t]*w; h[t+1] = a + h[t]

A launch takes longer than such a step (`Overheads.call_seconds`). The steps run on one thread, so a loop stays as it is
where its kernels gain more by several threads than the launches cost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from einsmith.cost.facts import CPU, Target
from einsmith.ir.interned import Node
from einsmith.ir.loop import LoopSegment, LoweredLoop
from einsmith.ir.nodes import Item, Reduce, Tensor, size
from einsmith.ir.views import storage
from einsmith.schedule.kernel import Kernel, KernelBuffer, LimitedKernel, MemberKernel
from einsmith.schedule.plan import Cost, KernelCall, LoopCall, Plan

MAX_KERNELS = 8
"""Most kernels of a step whose code is joined; the launches of more are short beside them, and code grows."""
MIN_GAIN = 0.1
"""Least part of a loop's predicted time that one launch must gain: less is lost in the errors of the prediction, and
the joined code is compiled again for each number of steps (20 ms)."""


class StepPlace(NamedTuple):
    """The part of a buffer that a step's kernel accesses: in step t it begins at element offset + first + move*t, or,
    where `ring` is not 0, at element offset + (first + move*t) modulo `ring`."""

    buffer: int
    offset: int = 0
    first: int = 0
    move: int = 0
    ring: int = 0

    def at(self, t: int) -> int:
        """Return the number of the first element in step t."""
        along = self.first + self.move * t
        return self.offset + (along % self.ring if self.ring else along)


class StepMember(Node):
    """A kernel of a step. `places[n]` is the buffer of the `StepLoop` that its buffer n is a part of; the numbers
    continue in the `local` ones. `parts[n]`: the other numbers of the `StepPlace`."""

    __slots__ = ("kernel", "places", "parts")
    fields = ("kernel", "places", "parts")
    exact = True
    kernel: Kernel
    places: tuple[int, ...]
    parts: tuple[tuple[int, int, int, int], ...]

    @property
    def step_places(self) -> list[StepPlace]:
        """List the part of a buffer that each of the kernel's buffers is."""
        return [StepPlace(n, *part) for n, part in zip(self.places, self.parts, strict=True)]


class StepLoop(MemberKernel):
    """A kernel that runs the kernels of all steps of a loop on one thread, the last step first if `reverse`.

    Each of its buffers is a whole tensor, of which a step may read what earlier steps have stored. Results that only
    kernels of the same step read are `local`.
    """

    __slots__ = ("steps", "reverse")
    fields = ("steps", "reverse", "members", "buffers", "local")  # type: ignore[assignment]
    exact = True
    steps: int
    reverse: bool
    members: tuple[StepMember, ...]

    def __new__(
        cls,
        steps: int,
        reverse: bool,
        members: tuple[StepMember, ...],
        buffers: tuple[KernelBuffer, ...],
        local: tuple[KernelBuffer, ...],
    ) -> StepLoop:
        return Node.__new__(cls, steps, bool(reverse), members, buffers, local)

    @property
    def order(self) -> range:
        """The numbers of the steps, in the order in which they run."""
        return range(self.steps)[:: -1 if self.reverse else 1]


def join_steps(plan: Plan, cost: Cost, target: Target) -> Plan:
    """Return the plan with short loops as kernels, also those in the steps of other loops.

    cost: predicts kernels. target: the machine.
    """
    if target.backend != CPU or not any(isinstance(c, LoopCall) for c in plan.calls):
        return plan
    return plan.with_calls([_join_loop(c, cost, target) if isinstance(c, LoopCall) else [c] for c in plan.calls])


def _join_loop(call: LoopCall, cost: Cost, target: Target) -> list[KernelCall | LoopCall]:
    """Return the calls of a loop: its initial values and a kernel for each segment, or the loop."""
    call = replace(call, plans=[join_steps(p, cost, target) for p in call.plans])
    segments = list(zip(call.loop.segments, call.plans, strict=True))
    kernels = [_StepJoining(call.loop, segment, plan).join() for segment, plan in segments]
    joined = [k for k in kernels if k is not None]
    if len(joined) < len(kernels):
        return [call]
    apart = sum(s.steps * sum(turns * cost(c.kernel, target) for _, c, turns in p.kernel_calls()) for s, p in segments)
    if sum(cost(k.kernel, target) for k in joined) > (1 - MIN_GAIN) * apart:
        return [call]
    return [*(replace(c, nodes=call.nodes) for c in call.before), *joined]


def _packs(call: KernelCall) -> bool:
    """Return whether a kernel is a product that may pack an operand once for all steps, or even for all runs."""
    (body, *_) = (getattr(p, "body", None) for p in call.kernel.root.parts)
    return bool(call.packed_once) and isinstance(body, Reduce) and body.combiner == "sum"


class _StepJoining:
    """The joining of the kernels of one segment of a loop into a kernel."""

    def __init__(self, loop: LoweredLoop, segment: LoopSegment, plan: Plan):
        self.loop, self.segment, self.plan = loop, segment, plan
        self.inputs = dict(zip(segment.body.inputs, segment.places, strict=True))
        self.outputs = dict(zip(plan.graph.outputs, segment.targets, strict=True))
        self.tensors: dict[Tensor, Tensor] = {}  # by their storage, in the order of the buffers
        self.written: set[Tensor] = set()
        self.local: dict[Tensor, int] = {}

    def join(self) -> KernelCall | None:
        """Return the call of the joined kernel; None where a step is not a sequence of few plain kernels."""
        s, calls = self.segment, [c for c in self.plan.calls if isinstance(c, KernelCall)]
        is_plain = s.first is None and s.stop is None and not s.rows and s.part == (0, 1)
        if not is_plain or not 0 < len(calls) == len(self.plan.calls) <= MAX_KERNELS:
            return None
        if any(isinstance(c.kernel, LimitedKernel) or _packs(c) for c in calls) or self.plan.checks:
            return None
        places = [[self._place(c, n) for n in range(len(c.tensors))] for c in calls]
        shift = len(self.tensors)
        members = tuple(
            StepMember(
                c.kernel,
                tuple(shift - p.buffer - 1 if p.buffer < 0 else p.buffer for p in of),
                tuple((p.offset, p.first, p.move, p.ring) for p in of),
            )
            for c, of in zip(calls, places, strict=True)
        )
        buffers = tuple(KernelBuffer(t.dtype, t.shape) for t in self.tensors.values())
        local = tuple(KernelBuffer(t.dtype, t.shape) for t in self.local)
        kernel = StepLoop(s.steps, self.loop.reverse, members, buffers, local)
        written = tuple(t in self.written for t in self.tensors)
        return KernelCall(kernel, tuple(self.tensors.values()), written, (self.loop,))

    def _place(self, call: KernelCall, n: int) -> StepPlace:
        """Return the place of a kernel's buffer; the local ones have the numbers -1, -2, ..."""
        stored_in = storage(call.tensors[n])
        t = self.plan.home.get(stored_in, stored_in)
        offset = call.offsets[n] // t.dtype.itemsize if call.offsets else 0
        source, first, stride = self._source(t)
        if source is None:
            return StepPlace(-1 - self.local.setdefault(t, len(self.local)), offset)
        key = storage(source)
        self.tensors.setdefault(key, source)
        if call.written[n]:
            self.written.add(key)
        number, row, ring = list(self.tensors).index(key), size(source.shape[1:]), 0
        if isinstance(source, Item) and source.node is self.loop and source.member in self.loop.circular:
            ring, first = source.shape[0] * row if stride else 0, first % source.shape[0]
        return StepPlace(number, offset, first * row, stride * row, ring)

    def _source(self, t: Tensor) -> tuple[Tensor | None, int, int]:
        """Return (the tensor outside of the step that a step's tensor is a part of, its first row, rows from step to
        step); no tensor for one that only the step has."""
        if t in self.outputs:
            member, position = self.outputs[t]
            return Item(self.loop, member), position, 1
        if t not in self.inputs:
            return None, 0, 0
        place = self.inputs[t]
        source = self.loop.args[place.number] if place.kind == "argument" else Item(self.loop, place.number)
        return source, place.first or 0, place.stride if place.first is not None else 0
