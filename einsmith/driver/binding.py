"""Bind a compiled program to memory: its table of steps points into an arena and at arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import environment
from einsmith.base.errors import MemoryLimitError
from einsmith.base.locks import cached_property
from einsmith.base.sizes import show_size
from einsmith.driver.backend import ProgramInfo, Runnable
from einsmith.driver.compile import Compiled
from einsmith.ir.nodes import Leaf, Role, Tensor, received, size
from einsmith.ir.views import producer, storage
from einsmith.runtime import buffers
from einsmith.runtime.arena import Arena, Block
from einsmith.runtime.assemble import Assembler, At, PointerTarget, show_steps
from einsmith.runtime.comparison import Comparison, scratch_bytes
from einsmith.runtime.memory import Memory
from einsmith.runtime.steps import FINITE, AllReduce, Await, CheckFinite, CheckZero, Notify
from einsmith.schedule.arena import whole_lines
from einsmith.schedule.pipeline import MemoryLimit
from einsmith.schedule.plan import Plan
from einsmith.schedule.printer import label, namer, show_arena, show_plan
from einsmith.schedule.roles import kernel_roles


class Notice(NamedTuple):
    """A byte that a run writes to a pipe when it has stored all of the given leaves.

    leaves: leaves that the program updates; pipe: descriptor of the pipe's end for writing; message: address of the
    byte, which outlives the program."""

    leaves: frozenset[Leaf]
    pipe: int
    message: int


class Reply(NamedTuple):
    """A byte that a run reads from a pipe before it reads a leaf that another thread stores (`Leaf.after`).

    leaf: the leaf; pipe: descriptor of the pipe's end for reading."""

    leaf: Leaf
    pipe: int


class LeafSum(NamedTuple):
    """Leaves that a run on a device overwrites by their sums over a group of devices, once it has stored all of them
    and has made the sums before (`runtime.steps.AllReduce`).

    leaves: leaves of one element type; communicator: what joins the devices."""

    leaves: tuple[Leaf, ...]
    communicator: Any


class _Pointers:
    """The addresses that the steps of a program begin with, and those that each run sets.

    inputs, outputs: of each input and each allocated output, the positions of the pointers into it, with the offsets
    (bytes). base: address of the arena. spare: address that pointers lead to until a run sets them.
    """

    def __init__(
        self, compiled: Compiled, arrays: Mapping[Leaf, np.ndarray], base: int, spare: int, assembler: Assembler
    ):
        self._home, self._offsets = compiled.plan.home, compiled.places.offsets
        self._arrays, self._base, self._spare, self._assembler = arrays, base, spare, assembler
        self.inputs: dict[Tensor, list[tuple[At, int]]] = {t: [] for t in compiled.inputs}
        self.outputs: dict[Tensor, list[tuple[At, int]]] = {t: [] for t in compiled.outputs}

    def point(self, t: Tensor, at: At, offset: int) -> int:
        """Return the address that many bytes into a tensor, for the pointer at a position, and note the pointer."""
        stored_in = storage(t)
        owner = self._home.get(stored_in, stored_in)
        self._assembler.places[at] = PointerTarget(owner, offset, size(owner.shape) * owner.dtype.itemsize)
        if owner is not stored_in:
            self._assembler.values[at] = stored_in
        if owner in self._arrays:
            return buffers.address(self._arrays[owner]) + offset  # type: ignore[index]
        for slots in (self.inputs, self.outputs):
            if owner in slots:
                slots[owner].append((at, offset))
                return self._spare
        return self._base + self._offsets[owner] + offset


class _Checks:
    """The steps that follow calls of a plan: checks, what a run tells other threads or waits for, and sums over
    devices. The arguments are those of `Binding`."""

    def __init__(
        self,
        compiled: Compiled,
        notices: Sequence[Notice | Reply | LeafSum],
        pointers: _Pointers,
        assembler: Assembler,
    ):
        plan = compiled.plan
        self._pointers, self._assembler, self._finite = pointers, assembler, compiled.finite
        self._finite_call = _call_of(plan, compiled.finite)
        self._checks: dict[int, list[tuple[Tensor, int]]] = {}
        for status, (at, t, _) in enumerate(plan.checks, start=FINITE + 1):
            self._checks.setdefault(at, []).append((t, status))
        self._notices: dict[int, list[Notify | Await]] = {}
        self._sums: dict[int, list[LeafSum]] = {}
        if notices:
            self._place(notices, plan)

    def _place(self, notices: Sequence[Notice | Reply | LeafSum], plan: Plan) -> None:
        """Enter notices, replies and sums after the calls that they follow."""
        for notice in [x for x in notices if isinstance(x, Notice)]:
            last = last_store(plan, notice.leaves)
            self._notices.setdefault(last, []).append(Notify(notice.pipe, notice.message))
        replies = sorted((x for x in notices if isinstance(x, Reply)), key=lambda x: x.leaf.id)
        for reply, place in zip(replies, place_in_order([_first_read(plan, x.leaf) for x in replies]), strict=True):
            self._notices.setdefault(place - 1, []).append(Await(reply.pipe))
        summed = -1
        for s in [x for x in notices if isinstance(x, LeafSum)]:
            summed = max(summed, last_store(plan, s.leaves))  # plans differ between processes, the order must not
            self._sums.setdefault(summed, []).append(s)

    def add(self, i: int) -> None:
        """Add the steps that follow the call of a number."""
        steps, point = self._assembler.steps, self._pointers.point
        for t, status in self._checks.get(i, ()):
            steps.append(CheckZero(point(t, (len(steps), 0), 0), status))
        finite = self._finite
        if self._finite_call == i and finite is not None:
            steps.append(CheckFinite(point(finite, (len(steps), 0), 0), finite.dtype.name, FINITE))
        steps += self._notices.get(i, ())
        for s in self._sums.get(i, ()):
            n = len(steps)
            addresses = [point(x, (n, k), 0) for k, x in enumerate(s.leaves)]
            counts = [size(x.shape) for x in s.leaves]
            steps.append(AllReduce(s.communicator, addresses, counts, s.leaves[0].dtype.name))


class Binding:
    """A compiled program with its table of steps, bound to an arena and to the arrays of leaves.

    Args:
        compiled: the program.
        arrays: the arrays of the leaves that live as long as the program.
        arena: memory for intermediate results.
        limit: most bytes that a run may hold; None: any number.
        more_bytes: bytes needed beyond those of a single program, while another binding of it lives.
        notices: messages to other threads, replies awaited from them, and sums over devices, all during a run.
        memories: the Memory object of an array, by the array's id, for the arrays that have one.
        origin: a program that runs alternate with, and from which this one differs only in some kernels.
    Raises:
        MemoryLimitError: the program needs more bytes than the limit.
    """

    def __init__(
        self,
        compiled: Compiled,
        arrays: Mapping[Leaf, np.ndarray],
        arena: Arena,
        limit: MemoryLimit | None,
        more_bytes: int = 0,
        notices: Sequence[Notice | Reply | LeafSum] = (),
        memories: Mapping[int, Memory] = MappingProxyType({}),
        origin: Runnable | None = None,
    ):
        self.compiled, self.arena = compiled, arena
        backend, plan, places = compiled.backend, compiled.plan, compiled.places
        self.lives = places.lives
        """Live ranges in the arena: first and last call of the plan for each tensor."""
        self.arena_bytes = whole_lines(places.nbytes)
        """Bytes of intermediate results."""
        self.reserved = self.arena_bytes + backend.scratch_area(compiled.scratch, compiled.threads)
        """Bytes of intermediate results and of the kernels' scratch memory."""
        self._check_limit(limit, more_bytes)
        self.comparisons = {
            k: Comparison(k, compiled.code[k], x, backend.allocate) for k, x in compiled.alternatives.items()
        }
        """Kernels that run in a second configuration too."""
        block = arena.reserve(self.reserved, backend.allocate)
        self.spare = buffers.empty((64,), np.uint8)
        """Memory that pointers lead to until a run sets them."""
        self.kept = buffers.empty((places.kept_end,), np.uint8)
        """Memory of workspaces that last from run to run."""
        self.messages = {FINITE + 1 + n: message for n, (_, _, message) in enumerate(plan.checks)}
        """Message of each status above FINITE."""
        assembler = self._assembler()
        assembler.arrays, assembler.memories = arrays, memories
        assembler.sent = set(received(compiled.graph.inputs).values())
        pointers = _Pointers(compiled, arrays, block.address, self.spare.ctypes.data, assembler)
        add_checks = _Checks(compiled, notices, pointers, assembler).add
        assembler.add_plan(plan, places, block.address, pointers.point, add_checks)
        for listing in compiled.listings:
            listing.text("plan", show_plan(plan))
            listing.text("arena", show_arena(plan, compiled.outside, places.offsets, places.nbytes))
            listing.text("program", show_steps(assembler, namer(plan)))
        self.steps = assembler.steps
        """The steps of the program, in order."""
        self.calls = [call for call, _ in assembler.kernels]
        """The call of each kernel, those in loops included."""
        self.turns = [turns for _, _, turns in plan.kernel_calls()]
        """How often a run executes each kernel."""
        self.call_of_step = assembler.map_steps_to_calls()
        settings = compiled.threads, compiled.scratch
        scratch = block.address + self.arena_bytes
        self.program: Runnable
        if environment.check_level():
            self.program = backend.checked(assembler, self._describe_to_check(arrays, block), *settings)
        elif origin is None:
            self.program = backend.program(assembler, *settings, scratch)
        else:
            self.program = backend.derive(origin, assembler, *settings, scratch)
        self.preparation: Runnable | None = None
        """What makes of constants what kernels keep in their workspaces; None where there is nothing of that kind."""
        self.prepared = -1
        """The time (`runtime.memory.ChangeWatch`) of the constants for which the preparation has run."""
        if places.kept_end:
            self.preparation = backend.program(self._assemble_preparation(arrays), *settings, scratch)
        slots = self.program.slots
        self._find_arena_pointers(block)
        self.slots = [
            [(slots[s], offset) for s, offset in at] for at in (*pointers.inputs.values(), *pointers.outputs.values())
        ]
        """Words of the table that a run sets, and offsets (bytes), by the number of the input or output."""
        self.places: Sequence[int] = ()
        """What the words were last set to."""
        self.padding: dict[tuple, list[list[tuple[np.ndarray, int]]]] = {}
        """Memory for arrays of the capacity that no run uses, by the shapes, types and bytes of the arrays."""
        self.numbers = buffers.empty((len(compiled.inputs),), np.uint64)
        """Memory of the numbers that a program of a capacity reads, each at the beginning of a word."""
        self.words = memoryview(self.program.table)  # type: ignore[arg-type]
        self._find_outputs()

    @cached_property
    def roles(self) -> list[Role]:
        """Return the role of each kernel."""
        return kernel_roles(self.compiled.plan)

    def _assembler(self) -> Assembler:
        side_runs = {k: x.ways for k, x in self.comparisons.items()}
        return Assembler(self.compiled.code, self.spare.ctypes.data, side_runs, self.kept.ctypes.data)

    def _assemble_preparation(self, arrays: Mapping[Leaf, np.ndarray]) -> Assembler:
        """Return the steps that make of constants what kernels keep in their workspaces."""
        compiled, spare, assembler = self.compiled, self.spare.ctypes.data, self._assembler()

        def constant(t: Tensor, at: At, offset: int) -> int:
            owner = compiled.plan.home.get(storage(t), storage(t))
            known = owner in compiled.constants
            return buffers.address(arrays[owner]) + offset if known else spare  # type: ignore[index]

        assembler.add_preparation(compiled.plan, compiled.places, constant)
        return assembler

    def _describe_to_check(self, arrays: Mapping[Leaf, np.ndarray], block: Block) -> ProgramInfo:
        """Return what a checked run of the program needs to know."""
        compiled, home = self.compiled, self.compiled.plan.home
        return ProgramInfo(
            compiled.source_graph,
            arrays,
            compiled.inputs,
            [home.get(s, s) for s in map(storage, compiled.graph.outputs)],
            self.calls,
            [label(call) for call in self.calls],
            compiled.kernels,
            compiled.target,
            compiled.numerics,
            block,
            self.arena_bytes,
        )

    def _find_arena_pointers(self, block: Block) -> None:
        """Find the words of the table that point into the arena, whose block may change."""
        pointers = np.fromiter(self.program.slots.values(), np.intp)
        addresses, base = self.program.table[pointers], block.address
        self._inside = pointers[(addresses >= base) & (addresses < base + self.arena_bytes)]
        """Positions in the table of pointers into the arena."""
        self._offsets = self.program.table[self._inside] - np.uint64(base)
        self.block_number = block.number
        """Number of the arena's block that the table points into."""

    def _check_limit(self, limit: MemoryLimit | None, more_bytes: int) -> None:
        compiled = self.compiled
        more_bytes += sum(scratch_bytes(k, compiled.code[k], x) for k, x in compiled.alternatives.items())
        if more_bytes and self.arena.block.nbytes < self.reserved:
            more_bytes += self.arena.block.nbytes  # a run may hold it until it ends
        if limit is not None:
            needed = limit.leaves + compiled.batch_bytes + self.reserved + compiled.places.kept_end + more_bytes
            if needed > limit.bytes:
                raise MemoryLimitError(
                    f"the program needs {show_size(needed, ROUND_CEILING)}, more than "
                    f"memory_limit={show_size(limit.bytes, ROUND_FLOOR)}",
                    needed,
                )

    def _find_outputs(self) -> None:
        """Determine which outputs the program writes itself and which are copied."""
        graph, plan = self.compiled.graph, self.compiled.plan
        fresh = {t: i for i, t in enumerate(self.compiled.outputs)}
        self.written: list[int] = [-1] * len(fresh)
        """The graph's output that each allocated tensor is, or -1."""
        self.copies: list[tuple[int, Tensor, int]] = []
        """Outputs that are copied: number, the tensor that has the elements, bytes."""
        for k, t in enumerate(graph.outputs):
            s = storage(t)
            if s in fresh and self.written[fresh[s]] < 0:
                self.written[fresh[s]] = k
            else:
                self.copies.append((k, plan.home.get(s, s), size(t.shape) * t.dtype.itemsize))
        allocated = {k: i for i, k in enumerate(self.written)}
        self.order = [allocated[k] for k in range(len(graph.outputs)) if k in allocated]
        """Number of the allocated tensor that is each output that is not copied."""
        self.allocated: list[tuple[tuple[int, ...], np.dtype, int]] = []
        """Shape, type and bytes of the arrays that each run allocates."""
        for t, k in zip(self.compiled.outputs, self.written, strict=True):
            shape = graph.outputs[k].shape if k >= 0 else t.shape
            self.allocated.append((shape, np.dtype(t.dtype.numpy), size(shape) * t.dtype.itemsize))
        self.results = [buffers.ResultMemory(*kind) for kind in self.allocated]
        """The memory of these arrays."""
        self.is_in_order = not self.copies and self.order == list(range(len(self.allocated)))
        """Whether the allocated arrays are the graph's outputs as they are."""

    def point(self, places: Sequence[int]) -> None:
        """Point the program at inputs and outputs, given by their addresses."""
        known, words = self.places, self.words
        self.places = ()  # until all words are set: a signal may come in between
        for n, slots in enumerate(self.slots):
            at = places[n]
            if not known or at != known[n]:
                for i, offset in slots:
                    words[i] = at + offset
        self.places = places

    def move(self) -> Block:
        """Point the program at the arena's current block and return the block, which the caller must keep alive during
        the run."""
        block = self.arena.reserve(self.reserved, self.compiled.backend.allocate)
        # The number is stored last: a signal or a fork in between makes the next run repeat the move.
        self.program.table[self._inside] = self._offsets + np.uint64(block.address)
        for program in (self.program, self.preparation):
            if program is not None:
                program.move_scratch(block.address + self.arena_bytes)
        self.block_number = block.number
        return block


def _call_of(plan: Plan, t: Tensor | None) -> int | None:
    node = None if t is None else producer(t)[0]
    return next((i for i, call in enumerate(plan.calls) if node in call.own), None)


def place_in_order(first_reads: Sequence[int]) -> list[int]:
    """Return the number of the call before which each reply is awaited, of replies that come in this order: no later
    than its first read, nor than the replies after it, which bytes in a pipe do not tell from it."""
    places = list(first_reads)
    for n in reversed(range(len(places) - 1)):
        places[n] = min(places[n], places[n + 1])
    return places


def _first_read(plan: Plan, leaf: Leaf) -> int:
    """Return the number of the first call that reads a leaf, or of those that run together with it; the number of calls
    where none does."""
    first = next((i for i, call in enumerate(plan.calls) if leaf in call.operands), len(plan.calls))
    return next((start for start, end in plan.together if start <= first <= end), first)


def last_store(plan: Plan, leaves: Collection[Leaf]) -> int:
    """Return the number of the call after which a run has stored all of these leaves: the last of the calls that store
    one, or of those that run together with it."""
    stored = [
        i
        for i, call in enumerate(plan.calls)
        if any(plan.home.get(t) in leaves for t in call.results) or any(t in leaves for t in call.results)
    ]
    last = max(stored, default=len(plan.calls) - 1)
    return next((end for first, end in plan.together if first <= last <= end), last)
