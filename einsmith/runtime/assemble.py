"""Assemble the steps of a program from a plan: decide where every tensor of every kernel lies, inside loops too.

A kernel in a loop reads and writes slices. The pointer of a slice starts from a base, the address of the whole tensor,
and the loop moves it. A slice of a slice (a loop in a loop) has a base that the outer loop moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from einsmith.ir.loop import LoopSegment
from einsmith.ir.nodes import ROLES, Item, Leaf, Tensor, nbytes, size
from einsmith.ir.views import storage
from einsmith.runtime.memory import Memory
from einsmith.runtime.steps import (
    AllReduce,
    Apart,
    Await,
    BeginLoop,
    CheckZero,
    EndLoop,
    Move,
    Notify,
    RunLaunch,
    Step,
    Together,
)
from einsmith.schedule.arena import Life, arena, lives, whole_lines
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.plan import KernelCall, LoopCall, Plan
from einsmith.schedule.printer import label

At = tuple[int, int | str]
"""A pointer's position in a program: number of the step, number of the pointer (see Program.slots)."""
Pointer = Callable[[Tensor, At, int], int]
"""Function of (tensor, position, bytes) that returns the address that many bytes into the tensor. It may note the
position and set the pointer later."""


CompiledKernels = Mapping[Kernel, CompiledKernel]
"""Compiled kernel of each kernel of a plan."""


class SideRun(NamedTuple):
    """A kernel that runs in another configuration just before the program's own kernel. outputs: addresses where it
    stores, by the numbers of its buffers; it reads its other buffers where the program's own kernel does. workspace:
    address of its workspace."""

    compiled: CompiledKernel
    outputs: Mapping[int, int]
    workspace: int


class PointerTarget(NamedTuple):
    """The memory that a pointer points into: byte `offset` of the memory of `owner`, which has `nbytes`. An owner is a
    tensor, (loop, tensor) for a tensor of a loop's step, or ("workspace", call)."""

    owner: Any
    offset: int
    nbytes: int


@dataclass
class ArenaLayout:
    """Offsets in the arena of a plan, by storage, and by call number for a kernel's workspace and for a loop's steps.
    The layouts of a loop's steps are `inner`, by (call number, segment). `lives()` returns the live ranges that are
    laid out. `kept`: offsets, by call number, of workspaces that last from run to run, in memory of their own, which
    loops and their steps share; `kept_end`: where these workspaces end there, those of the steps included."""

    offsets: dict[object, int]
    nbytes: int
    inner: dict[tuple[int, int], ArenaLayout]
    lives: Callable[[], list[Life]]
    kept: dict[int, int] = field(default_factory=dict)
    kept_end: int = 0


def layout(
    plan: Plan,
    outside: Iterable[Tensor],
    compiled: CompiledKernels,
    constants: Collection[Tensor] = (),
    kept_end: int = 0,
) -> ArenaLayout:
    """Lay out the arena of a plan: every tensor that is neither in `outside` nor stored in a leaf's memory, and the
    workspaces.

    Args:
        plan: the plan.
        outside: tensors that are not placed in the arena.
        compiled: the compiled kernels.
        constants: leaves whose values stay from run to run; data that kernels derive from them alone stays in their
            workspaces.
        kept_end: end of the workspaces that are laid out already in the memory of those that stay (bytes).
    """
    inner: dict[tuple[int, int], ArenaLayout] = {}
    kept: dict[int, int] = {}
    extra: dict[int, int] = {}
    exclusive: set[int] = set()
    shared: dict[Any, int] = {}
    at_once = {i for first, last in plan.together for i in range(first, last + 1)}
    for i, call in enumerate(plan.calls):
        if isinstance(call, KernelCall):
            kernel = compiled[call.kernel]
            packs_once = any(once for _, _, once in kernel.launches)
            packed = call.packed_once if packs_once and constants else None
            if packed and packed.issubset(constants):
                packing = (call.kernel, *call.invariant_operands, i if i in at_once else None)
                kept[i] = shared.setdefault(packing, kept_end)
                if kept[i] == kept_end:
                    kept_end += whole_lines(kernel.workspace)
                continue
            extra[i] = kernel.workspace
            if packs_once:
                exclusive.add(i)
            continue
        needs = [compiled[c.kernel].workspace for c in call.before]
        for k, (segment, step) in enumerate(zip(call.loop.segments, call.plans, strict=True)):
            same = {x for x, a in call.loop.invariant_inputs(segment).items() if storage(a) in constants}
            inner[i, k] = layout(step, {*segment.body.inputs, *step.graph.outputs}, compiled, same, kept_end)
            needs.append(segment.part[1] * whole_lines(inner[i, k].nbytes))
            kept_end = inner[i, k].kept_end
        extra[i] = max(needs, default=0)
    return ArenaLayout(
        *arena(plan, outside, extra, exclusive),
        inner,
        partial(lives, plan, outside, extra, exclusive),
        kept,
        kept_end,
    )


class Assembler:
    """Collector of the steps of a program.

    kernels: (call, its steps) of every kernel, as in Plan.kernel_calls
    extra: other configurations in which kernels run too
    kept: address of the memory of workspaces that last from run to run
    """

    def __init__(
        self,
        compiled: CompiledKernels,
        spare: int,
        extra: Mapping[Kernel, Sequence[SideRun]] = MappingProxyType({}),
        kept: int = 0,
    ):
        self.compiled, self.spare, self.extra, self.kept = compiled, spare, extra, kept
        self.steps: list[Step] = []
        self.kernels: list[tuple[KernelCall, list[int]]] = []
        self.sent: Collection[Leaf] = ()
        self.arrays: Mapping[Leaf, np.ndarray] = {}
        """The arrays of the leaves that live as long as the program."""
        self.memories: Mapping[int, Memory] = {}
        """The `Memory` of bound arrays, if known, by the array's id."""
        self.headers: dict[int, int] = {}
        """The call with most tasks of the launches that each header lets run together, by the header's step."""
        self.places: dict[At, PointerTarget] = {}
        """Targets of the pointers that no loop moves."""
        self.values: dict[At, Any] = {}
        """The tensor stored to, or read from, memory whose owner had another value before (an update), by pointer."""

    def seconds(self) -> float:
        """Return the predicted seconds of a run, over all turns of its loops."""
        return sum(seconds for seconds, _ in self._timed_kernels())

    def shared_seconds(self, threads: int) -> float:
        """Return the most predicted seconds that a run on one thread takes longer than on this number of threads."""
        together = any(isinstance(s, Together | Apart) for s in self.steps)
        sharing = ((t, threads if together else min(threads, tasks)) for t, tasks in self._timed_kernels())
        return sum(seconds * (count - 1) for seconds, count in sharing)

    def _timed_kernels(self) -> Iterator[tuple[float, int]]:
        """Yield the predicted seconds in a run and the most tasks of a launch, of every kernel."""
        turns, around = [], [1]
        for step in self.steps:
            if isinstance(step, BeginLoop):
                around.append(around[-1] * step.most)
            elif isinstance(step, EndLoop):
                around.pop()
            turns.append(around[-1])
        for call, steps in self.kernels:
            if steps:
                kernel = self.compiled[call.kernel]
                yield kernel.seconds * turns[steps[-1]], max(tasks for _, tasks, _ in kernel.launches)

    def commit(self) -> int | None:
        """Return the number of the first step that stores into a leaf, of the beginning of its loop, or of the header
        of the launches with which it runs together; None where no step does. Leaves that other threads take from there
        (`sent`) do not count."""
        owners = [(at[0], self.places[at].owner) for at in self.values if at in self.places]
        stored = [n for n, owner in owners if isinstance(owner, Leaf) and owner not in self.sent]
        first = min(stored, default=None)
        for n in self.headers:
            step = self.steps[n]
            if first is not None and isinstance(step, Together | Apart) and n < first <= n + step.count:
                return n
        return first

    def map_steps_to_calls(self) -> np.ndarray:
        """Return the number of the call that each step belongs to; the number of calls for a step that belongs to
        none. The time of launches that run together counts as that of the call with most tasks."""
        calls = np.full(len(self.steps), len(self.kernels))
        for n, (_, steps) in enumerate(self.kernels):
            calls[steps] = n
        for step, n in self.headers.items():
            calls[step] = n
        return calls

    def add_plan(
        self,
        plan: Plan,
        places: ArenaLayout,
        base: int,
        pointer: Pointer,
        after: Callable[[int], None] = lambda i: None,
        already: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        """Add the steps of a plan.

        Args:
            plan: the plan
            places: offsets of its tensors and workspaces in the arena (bytes)
            base: where the plan's arena begins
            pointer: returns the address of bytes of a tensor
            after: called with the number of each call once its steps are added
            already: by call number, the steps that were added before the loop
        """
        groups = dict(plan.together)
        for i, call in enumerate(plan.calls):
            if i in groups:
                self._add_header(plan.calls[i : groups[i] + 1])
            work = base + places.offsets[i] if i in places.offsets else self.spare
            work = self.kept + places.kept[i] if i in places.kept else work
            if isinstance(call, LoopCall):
                for c in call.before:
                    self._add_kernel(c, work, pointer)
                self._add_segments(call, places, i, work, pointer)
            else:
                self._add_kernel(call, work, pointer, already.get(i, ()))
            after(i)

    def _add_header(self, calls: Sequence[KernelCall | LoopCall]) -> None:
        """Add the header of calls that run together, unless one of them has several launches."""
        kernels = [call.kernel for call in calls if isinstance(call, KernelCall)]
        launches = [[x for x in self.compiled[k].launches if not x[2]] for k in kernels]
        if all(len(x) == 1 for x in launches) and not any(k in self.extra for k in kernels):
            widest = max(range(len(calls)), key=lambda n: launches[n][0][1])
            self.headers[len(self.steps)] = len(self.kernels) + widest
            self.steps.append(Together(len(calls)))

    def add_preparation(self, plan: Plan, places: ArenaLayout, pointer: Pointer) -> None:
        """Add the launches that need to run only once as long as constants stay, those of loops' steps included; the
        arguments are those of `add_plan`."""
        first = {at: i for i, at in reversed(places.kept.items())}  # calls that share a workspace pack alike
        self._add_once(plan, {i: at for at, i in first.items()}, self.kept, pointer)
        for i, k in places.inner:
            call = plan.calls[i]
            assert isinstance(call, LoopCall)
            before = self._point_before_loop(call, call.loop.segments[k], pointer)
            self.add_preparation(call.plans[k], places.inner[i, k], before)

    def _add_once(self, plan: Plan, workspaces: Mapping[int, int], base: int, pointer: Pointer) -> dict[int, list[int]]:
        """Add the launches of calls that need to run only once; return the numbers of their steps by call number.
        workspaces: offsets of their workspaces from `base`, by call number."""
        calls = {i: c for i, c in enumerate(plan.calls) if isinstance(c, KernelCall) and i in workspaces}
        return {i: self._add_launches(c, base + workspaces[i], pointer, True) for i, c in calls.items()}

    def _add_kernel(self, call: KernelCall, work: int, pointer: Pointer, already: Sequence[int] = ()) -> None:
        steps = [*already, *self._add_launches(call, work, pointer, False)]
        self.kernels.append((call, steps))

    def _add_launches(self, call: KernelCall, work: int, pointer: Pointer, once: bool) -> list[int]:
        """Add the launches of a kernel that a loop repeats, or those that run only once; return the numbers of their
        steps."""
        for side_run in self.extra.get(call.kernel, ()):
            self._add_side_run(call, side_run, pointer, once)
        return self._add_side_run(call, SideRun(self.compiled[call.kernel], {}, work), pointer, once)

    def _add_side_run(self, call: KernelCall, side_run: SideRun, pointer: Pointer, once: bool) -> list[int]:
        """Add the launches of a kernel in one configuration; return the numbers of their steps."""
        first = len(self.steps)
        offsets = call.offsets or (0,) * len(call.tensors)
        for code, tasks, kind in side_run.compiled.launches:
            if kind is once:
                n = len(self.steps)
                pointers = [
                    side_run.outputs[b] if b in side_run.outputs else pointer(t, (n, b), offsets[b])
                    for b, t in enumerate(call.tensors)
                ]
                self.places[n, len(pointers)] = PointerTarget(("workspace", id(call)), 0, side_run.compiled.workspace)
                self.steps.append(RunLaunch(code, tasks, [*pointers, side_run.workspace]))
        return list(range(first, len(self.steps)))

    def _point_before_loop(self, call: LoopCall, segment: LoopSegment, outer: Pointer) -> Pointer:
        """Return the function that gives addresses of a step's loop-invariant inputs before the loop begins; its other
        tensors are not touched there. outer: the function for the tensors outside of the loop."""
        arguments = call.loop.invariant_inputs(segment)

        def pointer(t: Tensor, at: At, offset: int) -> int:
            argument = arguments.get(storage(t))
            if argument is None:
                return self.spare
            return outer(argument, at, offset + segment.find_part(nbytes(storage(t)), nbytes(argument)))

        return pointer

    def _add_segments(self, call: LoopCall, places: ArenaLayout, i: int, base: int, outer: Pointer) -> None:
        """Add the loops of the segments of call i; parts of a segment, each with memory of its own, follow a header."""
        segments = call.loop.segments
        first = 0
        while first < len(segments):
            count = segments[first].part[1]
            numbers = range(first, first + count)
            inner = [places.inner[i, k] for k in numbers]
            bases = [base + n * whole_lines(x.nbytes) for n, x in enumerate(inner)]
            already = [
                self._add_once_before(call, segments[k], call.plans[k], x, b, outer)
                for k, x, b in zip(numbers, inner, bases, strict=True)
            ]
            begin, kernel = len(self.steps), len(self.kernels)
            # Kernels of several parts would store the results of other configurations in one place.
            is_apart = count > 1 and not any(c.kernel in self.extra for _, c, _ in call.plans[first].kernel_calls())
            if is_apart:
                self.steps.append(Apart(0, count))
            for k, x, b, once in zip(numbers, inner, bases, already, strict=True):
                self._add_loop(call, segments[k], call.plans[k], x, b, outer, once)
            if is_apart:
                self.steps[begin] = Apart(len(self.steps) - begin - 1, count)
                of_part = range(kernel, kernel + (len(self.kernels) - kernel) // count)
                self.headers[begin] = max(of_part, key=lambda n: self.compiled[self.kernels[n][0].kernel].seconds)
            first += count

    def _add_once_before(
        self, call: LoopCall, segment: LoopSegment, plan: Plan, places: ArenaLayout, base: int, outer: Pointer
    ) -> dict[int, list[int]]:
        """Add the launches of a segment's step that run once before its loop; see `_add_once`."""
        workspaces = {i: places.offsets.get(i, 0) for i in range(len(plan.calls)) if i not in places.kept}
        return self._add_once(plan, workspaces, base, self._point_before_loop(call, segment, outer))

    def _add_loop(
        self,
        call: LoopCall,
        segment: LoopSegment,
        plan: Plan,
        places: ArenaLayout,
        base: int,
        outer: Pointer,
        already: Mapping[int, Sequence[int]],
    ) -> None:
        inputs = dict(zip(segment.body.inputs, segment.places, strict=True))
        outputs = dict(zip(plan.graph.outputs, segment.targets, strict=True))

        begin = len(self.steps)
        moves: list[Move] = []
        bases: list[int] = []
        bounds = [
            0 if n is None else outer(call.loop.args[n], (begin, name), 0)
            for name, n in (("stop", segment.stop), ("first", segment.first))
        ]
        self.steps.append(BeginLoop(segment.steps, call.loop.reverse, moves, bases, *bounds))

        def slice_of(t: Tensor, first: int, stride: int, at: At, offset: int, part: Tensor) -> int:
            row = size(t.shape[1:]) * t.dtype.itemsize
            offset += 0 if segment.rows else segment.find_part(nbytes(part), row)
            if isinstance(t, Item) and t.node is call.loop and t.member in call.loop.circular:
                moves.append(Move(*at, offset, stride * row, t.shape[0] * row, first % t.shape[0] * row))
            else:
                moves.append(Move(*at, first * row + offset, stride * row))
            bases.append(0)
            k = len(bases) - 1
            bases[k] = outer(t, (begin, k), 0)
            return 0

        def pointer(t: Tensor, at: At, offset: int) -> int:
            stored_in = storage(t)
            t = plan.home.get(stored_in, stored_in)
            if t is not stored_in:
                self.values[at] = begin, stored_in
            if t in outputs:
                member, position = outputs[t]
                return slice_of(Item(call.loop, member), position, segment.rows or 1, at, offset, t)
            if t not in inputs:
                self.places[at] = PointerTarget((begin, t), offset, nbytes(t))
                return base + places.offsets[t] + offset
            place = inputs[t]
            source = call.loop.args[place.number] if place.kind == "argument" else Item(call.loop, place.number)
            if place.first is None:
                return outer(source, at, offset + segment.find_part(nbytes(t), nbytes(source)))
            return slice_of(source, place.first, place.stride, at, offset, t)

        self.add_plan(plan, places, base, pointer, already=already)
        self.steps.append(EndLoop())


def show_kernels(
    roles: Sequence[str],
    calls: Sequence[KernelCall],
    kernels: Sequence[CompiledKernel],
    turns: Sequence[int],
    notes: Sequence[Sequence[str]],
) -> list[str]:
    """Return a line for each kernel: role, pattern, configuration, tasks, predicted time (of one turn of its loop) and
    formula, and the lines of its `notes`; then the predicted time of each role, where there are several."""
    several, lines = len(set(roles)) > 1, []
    parts: dict[str, float] = dict.fromkeys(ROLES, 0.0)
    for i, (role, call, kernel, n, more) in enumerate(zip(roles, calls, kernels, turns, notes, strict=True)):
        tasks = "+".join(str(count) for _, count, _ in kernel.launches)
        parts[role] += kernel.seconds * n
        part = f"{'again' if call.is_recomputation else role:<8}  " if several else ""
        lines.append(
            f"{i:3d}  {part}{kernel.pattern:<12} {kernel.seconds * 1e6:9.1f} us predicted  {tasks:>5} tasks  "
            f"{f'{n} times ' if n > 1 else ''}{label(call)}  [{kernel.config}]{'  tuned' if kernel.tuned else ''}"
        )
        if kernel.unfollowed:
            lines.append(f"     {kernel.unfollowed}")
        lines += [f"     {line}" for line in more]
    if several:
        lines += [f"     {role:<8} {seconds * 1e6:9.1f} us predicted" for role, seconds in parts.items()]
    return lines


def show_steps(assembler: Assembler, name: Callable[[Tensor], str]) -> str:
    """Return the program's table as text, one step a line; a launch shows its tasks and the targets of its
    pointers."""
    kernels = {n: k for k, (_, steps) in enumerate(assembler.kernels) for n in steps}
    lines, depth = [], 0
    for n, step in enumerate(assembler.steps):
        if isinstance(step, EndLoop):
            depth -= 1
        pad = "  " * depth
        if isinstance(step, RunLaunch):
            places = ", ".join(_place(assembler.places.get((n, i)), name) for i in range(len(step.pointers)))
            lines.append(f"{pad}step {n}: kernel {kernels[n]}, {step.tasks} tasks, of {places}")
        elif isinstance(step, BeginLoop):
            order = ", the last one first" if step.reverse else ""
            lines.append(f"{pad}step {n}: loop of {step.most} turns{order}, {len(step.moves)} pointers move")
            depth += 1
        elif isinstance(step, Together):
            lines.append(f"{pad}step {n}: the next {step.count} kernels run together")
        elif isinstance(step, Apart):
            lines.append(f"{pad}step {n}: the next {step.parts} loops run at the same time")
        elif isinstance(step, EndLoop):
            lines.append(f"{pad}step {n}: end of the loop")
        elif isinstance(step, Notify):
            lines.append(f"{pad}step {n}: tells another thread")
        elif isinstance(step, Await):
            lines.append(f"{pad}step {n}: waits for another thread")
        elif isinstance(step, AllReduce):
            places = ", ".join(_place(assembler.places.get((n, i)), name) for i in range(len(step.pointers)))
            lines.append(f"{pad}step {n}: sums over all devices {places}")
        else:
            place, what = (
                _place(assembler.places.get((n, 0)), name),
                "zero" if isinstance(step, CheckZero) else "finite",
            )
            lines.append(f"{pad}step {n}: ends with status {step.code} unless {place} is {what}")
    return "\n".join(lines)


def _place(place: PointerTarget | None, name: Callable[[Tensor], str]) -> str:
    if place is None:
        return "what the loop moves"
    if not isinstance(place.owner, tuple):
        return name(place.owner) + (f"@{place.offset}" if place.offset else "")
    return "workspace" if place.owner[0] == "workspace" else "a tensor of the loop's step"
