"""Run a program with its kernels one at a time, each on guarded memory, and check its tensors against copies.

The bytes stored to every tensor are known (a `_Shadow`). Before a kernel reads a tensor, the memory that the program
has given to it must hold these bytes. If it does not, another kernel has overwritten it, because two tensors lie in
the same place, or because kernels run in a wrong order. Bytes never stored to are filled with NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from einsmith.base.errors import CheckError
from einsmith.base.numerics import PLAIN, Numerics
from einsmith.checking import kernel_check, report, trap
from einsmith.checking.expected import (
    MOST_VALUES,
    ExpectedBuffer,
    count_values,
    find_difference,
    read_buffers,
    written_buffers,
)
from einsmith.checking.kernel_check import BufferState, CheckedKernel, KernelFault
from einsmith.checking.tolerance import errors
from einsmith.codegen.entry.entry_program import RUN_WORDS
from einsmith.ir.nodes import Compute, Graph, Leaf, Recurrence, postorder
from einsmith.runtime.assemble import Assembler, At, PointerTarget
from einsmith.runtime.buffers import bytes_at
from einsmith.runtime.program import Program
from einsmith.runtime.steps import Await, BeginLoop, CheckFinite, CheckZero, EndLoop, RunLaunch

_TIMES = RUN_WORDS.index("times")
_ELSEWHERE = 1 << 60
"""Address of buffers to which a launch is given no memory."""


class ReportContext(NamedTuple):
    """Facts of the whole program for the report of a fault.

    Attributes:
        graph: the graph before any pass, its bound leaves first among its inputs
        bound: the number of bound leaves
        bind: arrays of leaves that the program does not read
        numerics: how the program may round
        outputs: the tensors in whose memory the outputs lie
    """

    graph: Graph
    bound: int
    bind: Mapping[Leaf, np.ndarray]
    numerics: Numerics
    outputs: tuple[Any, ...]


class _Shadow:
    """The bytes that a tensor's memory must hold, and a mask of those that are known."""

    def __init__(self, nbytes: int):
        self.values = np.full(nbytes, kernel_check.FILLS[0], np.uint8)
        self.known = np.zeros(nbytes, bool)

    def read(self, offset: int, n: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return `n` bytes from `offset`, and a mask of the known ones (None: all). Bytes outside the tensor are
        unknown."""
        if 0 <= offset and offset + n <= self.values.size:
            known = self.known[offset : offset + n]
            return self.values[offset : offset + n], None if known.all() else known
        values, known = np.full(n, kernel_check.FILLS[0], np.uint8), np.zeros(n, bool)
        lo, hi = max(0, offset), min(self.values.size, offset + n)
        if lo < hi:
            values[lo - offset : hi - offset] = self.values[lo:hi]
            known[lo - offset : hi - offset] = self.known[lo:hi]
        return values, known

    def write(self, offset: int, values: np.ndarray, mask: np.ndarray | None) -> None:
        where = slice(offset, offset + values.size)
        if mask is None:
            self.values[where], self.known[where] = values, True
        else:
            self.values[where][mask] = values[mask]
            self.known[where] |= mask


def is_due(n: int) -> bool:
    """Return whether the n-th of many runs, counted from 1, is compared: runs 1 to 3 and every power of two."""
    return n <= 3 or n & (n - 1) == 0


class CheckedProgram(Program):
    """A `Program` that runs under EINSMITH_CHECK; runs raise CheckError.

    Args:
        assembler: the assembler of the steps
        subjects, labels: its kernels, and their names
        arena: the memory of intermediate tensors
        level: the value of the environment variable
    """

    def __init__(
        self,
        assembler: Assembler,
        subjects: Sequence[CheckedKernel],
        labels: Sequence[str],
        arena: np.ndarray,
        context: ReportContext,
        threads: int,
        scratch_bytes: int,
        level: int,
    ):
        if any(isinstance(step, Await) for step in assembler.steps):
            raise CheckError(
                "EINSMITH_CHECK cannot check a step that waits for sums over a group (SyncBatchNorm); unset it"
            )
        super().__init__(assembler.steps, threads, scratch_bytes)
        self.assembler, self.arena, self.context, self.level = assembler, arena, context, level
        self.subjects, self.labels = [replace(s, threads=self.threads) for s in subjects], labels
        self.number = {step: n for n, (_, steps) in enumerate(assembler.kernels) for step in steps}
        self.ends = self._ends()
        self.moved: dict[At, At] = {}
        for n, step in enumerate(self.steps):
            if isinstance(step, BeginLoop):
                for k, move in enumerate(step.moves):
                    self.moved[move.step, move.pointer] = n, k
        self.calls = 0
        self.rebuilt: set[int] = set()
        if self._stride < scratch_bytes or self.scratch.size < self._stride * self.threads:
            raise CheckError(f"scratch of threads overlaps: {self._stride} bytes apart, {scratch_bytes} are needed")

    def place(self, at: At) -> PointerTarget | None:
        """Return the memory that a pointer points into, without the moves of loops; None where the pointer may not be
        used."""
        while at in self.moved:
            at = self.moved[at]
        return self.assembler.places.get(at)

    def _call(self, record: Any) -> int:
        if record.words[_TIMES]:
            return super()._call(record)
        with trap.LOCK:
            self.calls += 1
            run = _CheckedRun(self)
            status = run.run_steps()
            run.verify_end(status)
            if self.level > 1 or is_due(self.calls):
                run.compare_native(status, lambda: super(CheckedProgram, self)._call(record))
            return status


class _CheckedRun:
    """The state of one checked run."""

    def __init__(self, program: CheckedProgram):
        self.p = program
        self.table = program.table
        self.shadows: dict[Any, _Shadow] = {}
        self.base: dict[Any, tuple[int, int]] = {}
        self.log: list[tuple[int, int, str]] = []
        self.updates: dict[Any, PointerTarget] = {}  # memory to update, by the update's value
        self.loops: list[tuple[int, int, int]] = []  # step of the beginning, turn, turns left
        for at, place in program.assembler.places.items():
            self.base[place.owner] = int(self.table[program.slots[at]]) - place.offset, place.nbytes
        self.before: dict[Leaf, np.ndarray] = {}
        program.arena.fill(kernel_check.FILLS[0])
        low = program.arena.ctypes.data
        for owner, (address, nbytes) in self.base.items():
            if isinstance(owner, Leaf):
                self.before[owner] = bytes_at(address, nbytes).copy()
                self.shadow(owner).write(0, self.before[owner], None)
            elif not low <= address < low + program.arena.size and not isinstance(owner, tuple):
                bytes_at(address, nbytes)[:] = kernel_check.FILLS[0]

    def shadow(self, key: Any, nbytes: int | None = None) -> _Shadow:
        if key not in self.shadows:
            self.shadows[key] = _Shadow(self.base[key][1] if nbytes is None else nbytes)
        return self.shadows[key]

    # -- steps

    def run_steps(self) -> int:
        """Run every step in order; return 0, or the code of the check that ends the run."""
        steps, n = self.p.steps, 0
        while n < len(steps):
            step = steps[n]
            if isinstance(step, RunLaunch):
                end = n + 1
                while end < len(steps) and self.p.number.get(end) == self.p.number[n]:
                    end += 1
                self.run_kernel(self.p.number[n], list(range(n, end)))
                n = end
            elif isinstance(step, BeginLoop):
                n = self.begin_loop(n, step)
            elif isinstance(step, EndLoop):
                n = self.end_turn(n)
            else:  # whoever is told (Notify) waits for the end of a checked run
                if isinstance(step, CheckZero | CheckFinite) and self.is_failing(n, step):
                    return step.code
                n += 1
        return 0

    def begin_loop(self, n: int, step: BeginLoop) -> int:
        stop, start = step.most, 0
        if step.stop:
            stop = min(stop, int(self.read_scalar((n, "stop"), np.int64)))
        if step.first:
            start = max(0, int(self.read_scalar((n, "first"), np.int64)))
        if stop <= start:
            return self.p.ends[n] + 1
        self.loops.append((n, stop - 1 if step.reverse else start, stop - start - 1))
        self.move_pointers()
        return n + 1

    def end_turn(self, n: int) -> int:
        begin, turn, turns_left = self.loops.pop()
        for key, place in list(self.updates.items()):
            if isinstance(key, tuple) and key[0] == begin:
                self.commit_update(key, place)
        for key in list(self.shadows):
            if isinstance(key, tuple) and key[0] == begin:
                del self.shadows[key]  # a step's own tensors hold nothing in the next step
        if not turns_left:
            return n + 1
        step = self.p.steps[begin]
        assert isinstance(step, BeginLoop)
        self.loops.append((begin, turn + (-1 if step.reverse else 1), turns_left - 1))
        self.move_pointers()
        return begin + 1

    def move_pointers(self) -> None:
        begin, turn, _ = self.loops[-1]
        step = self.p.steps[begin]
        assert isinstance(step, BeginLoop)
        for k, m in enumerate(step.moves):
            base = int(self.table[self.p.slots[begin, k]])
            self.table[self.p.slots[m.step, m.pointer]] = np.uint64((base + m.bytes_in_turn(turn)) % 2**64)

    def commit_update(self, key: Any, place: PointerTarget) -> None:
        """Make an update the value of the memory that it was stored to."""
        new = self.shadows.pop(key)
        self.shadow(place.owner).write(0, new.values, None if new.known.all() else new.known)
        del self.updates[key]

    def read_scalar(self, at: At, dtype: Any) -> Any:
        state = self.expected_state(
            at, np.dtype(dtype).itemsize, "the value that decides how the program continues", True
        )
        if state.known is not None:
            raise self.blame(
                "the program reads a loop bound or check before it is stored (kernels run in a wrong order)"
            )
        return state.values.view(dtype)[0]

    def is_failing(self, n: int, step: CheckZero | CheckFinite) -> bool:
        if isinstance(step, CheckZero):
            return bool(self.read_scalar((n, 0), np.int32))
        return not np.isfinite(self.read_scalar((n, 0), np.float32 if step.elem == "f32" else np.float64))

    # -- kernels

    def expected_state(self, at: At, nbytes: int, what: str, read: bool, also_written: bool = False) -> BufferState:
        """Return the expected content of the memory behind a pointer, from its tensor's shadow. Raises CheckError where
        the memory holds other bytes and `read` is set."""
        address, place = int(self.table[self.p.slots[at]]), self.p.place(at)
        if place is None:
            unknown = np.zeros(nbytes, bool)
            at_number = at[1] if isinstance(at[1], int) else 0
            return BufferState(
                _ELSEWHERE + (at_number << 40), np.full(nbytes, kernel_check.FILLS[0], np.uint8), unknown
            )
        offset = address - self.base[place.owner][0]
        key = self.p.assembler.values.get(at)
        if key is not None and key not in self.shadows:
            new = self.shadow(key, place.nbytes)
            if also_written:  # an update that starts from the value before it
                old = self.shadow(place.owner)
                new.values[:], new.known[:] = old.values, old.known
        values, known = self.shadow(place.owner if key is None else key, place.nbytes).read(offset, nbytes)
        if read:
            content = bytes_at(address, nbytes)
            wrong = content != values if known is None else (content != values) & known
            if wrong.any():
                first = int(np.argmax(wrong))
                guilty = [name for lo, hi, name in self.log if lo <= address + first < hi]
                raise self.blame(
                    f"{what} was overwritten at byte {offset + first} before it was read: two tensors lie in the same "
                    f"memory, or kernels run in a wrong order; last written by {guilty[-1] if guilty else 'nobody'}"
                )
        return BufferState(address, values.copy(), None if known is None else known.copy())

    def run_kernel(self, number: int, steps: list[int]) -> None:
        subject, label = self.p.subjects[number], f"{number}: {self.p.labels[number]}"
        kernel, first = subject.kernel, steps[0]
        all_steps = self.p.assembler.kernels[number][1]
        is_prologue = steps != all_steps and steps[0] == all_steps[0]
        launches = tuple((s.code, s.tasks) for n in steps if isinstance(s := self.p.steps[n], RunLaunch))
        subject = replace(subject, launches=launches)
        written = {} if is_prologue else written_buffers(kernel)
        read_numbers = read_buffers(kernel)
        states = []
        for b, buffer in enumerate(kernel.buffers):
            what = f"buffer {b} of kernel {label}"
            states.append(
                self.expected_state(
                    (first, b), buffer.nbytes, what, b in read_numbers, b in read_numbers and b in written
                )
            )
        at = first, len(kernel.buffers)
        keeps = steps != all_steps  # launches before the loop have filled the workspace
        work = self.expected_state(at, subject.workspace, f"the workspace of kernel {label}", True) if keeps else None
        space = work.values if work is not None and not is_prologue else None
        compare = (
            self.p.level > 1
            or is_due(self.p.calls)
            and all(is_due(t + 1) or not turns_left for _, t, turns_left in self.loops)
        )
        try:
            if is_prologue or not compare:
                outcome = kernel_check.check(subject, states, space, compare, self.p.calls, written)
            else:
                compares_builds = not keeps and number not in self.p.rebuilt
                self.p.rebuilt.add(number)
                outcome = report.check_thoroughly(subject, states, space, self.p.calls, compares_builds)
        except KernelFault as e:
            raise report.kernel_fault(subject, states, e, label) from None
        for n, mask in written.items():
            stored = kernel_check.stored_bytes(kernel.buffers[n], mask)
            self.store((first, n), states[n], outcome.values[n], stored, label)
        if keeps and work is not None and subject.workspace:
            self.store(at, work, outcome.workspace, None, label)

    def store(self, at: At, state: BufferState, values: np.ndarray, mask: np.ndarray | None, label: str) -> None:
        place = self.p.place(at)
        assert place is not None
        if values.size == 0:
            return
        content = bytes_at(state.address, values.size)
        if mask is not None:
            content[mask] = values[mask]
        else:
            content[:] = values
        key = self.p.assembler.values.get(at)
        offset = state.address - self.base[place.owner][0]
        self.shadow(place.owner if key is None else key, place.nbytes).write(offset, values, mask)
        if key is not None:
            self.updates[key] = place
        self.log.append((state.address, state.address + values.size, label))

    # -- the end

    def verify_end(self, status: int) -> None:
        """Verify at the end of a run that parameters, state and outputs hold the stored bytes; after a failed check,
        that parameters and state hold what they held before."""
        for key, place in list(self.updates.items()):
            if status:
                raise self.blame("memory was updated before the check that ended the run")
            self.commit_update(key, place)
        low = self.p.arena.ctypes.data
        for owner, (address, nbytes) in self.base.items():
            inner = isinstance(owner, tuple) or low <= address < low + self.p.arena.size
            if inner or status and not isinstance(owner, Leaf):
                continue
            shadow = self.shadow(owner)
            if not shadow.known.all():
                at = int(np.argmin(shadow.known))
                raise self.blame(f"nothing was stored to byte {at} of {nbytes} of the result {_describe(owner)}")
            if not np.array_equal(bytes_at(address, nbytes), shadow.values):
                raise self.blame(f"{_describe(owner)} was overwritten after its last kernel")
        if not status and (self.p.level > 1 or is_due(self.p.calls)):
            self.compare_whole()

    def compare_whole(self) -> None:
        """Compare the results with the evaluator's for the graph before any pass, where its evaluation is
        affordable."""
        graph = self.p.context.graph
        nodes = list(postorder(graph.roots))
        if any(isinstance(n, Recurrence) for n in nodes):
            return
        if (
            sum(count_values(n.template) for n in nodes if isinstance(n, Compute)) > MOST_VALUES
            or self.p.context.numerics != PLAIN
        ):
            return
        pairs, greatest = errors(graph, [self.value(x) for x in graph.inputs])
        roots = [*graph.outputs, *(t for _, t in graph.updates)]
        owners = [*self.p.context.outputs, *(p for p, _ in graph.updates)]
        for n, (t, owner, (v, e)) in enumerate(zip(roots, owners, pairs, strict=True)):
            if owner not in self.base:
                continue
            got = self.shadow(owner).values.view(t.dtype.numpy).reshape(t.shape)
            wrong = find_difference(got, ExpectedBuffer(v, e, greatest, None), t.dtype, None)
            if wrong is not None:
                kind = f"output {n}" if n < len(graph.outputs) else f"update {n - len(graph.outputs)}"
                why = kernel_check.describe_difference(wrong, got.size, "the evaluator")
                raise self.blame(
                    f"{kind} of the whole program: {why}; each kernel "
                    "computes its formula correctly, so a pass over the graph, or the combination of kernels, is wrong"
                )

    def compare_native(self, status: int, run: Callable[[], int]) -> None:
        """Check that the whole program, run natively on all threads, gives the same bits."""
        expected = {
            owner: (*at, self.shadow(owner).values)
            for owner, at in self.base.items()
            if isinstance(owner, Leaf) or owner in self.p.context.outputs
        }
        for owner, old in self.before.items():
            address, _, now = expected[owner]
            if not np.array_equal(now, old):
                bytes_at(address, old.size)[:] = old
        if (native_status := run()) != status:
            raise self.blame(
                f"the program ends with status {native_status}, and with {status} when its kernels run one by one"
            )
        for owner, (address, nbytes, values) in expected.items():
            if status and not isinstance(owner, Leaf):
                continue
            wrong = bytes_at(address, nbytes) != values
            if wrong.any():
                at = int(np.argmax(wrong)) // owner.dtype.itemsize
                raise self.blame(
                    f"element {at} of {_describe(owner)} differs between {self.p.threads} threads and a run of the "
                    "kernels one by one, each on memory of its own"
                )

    def blame(self, message: str) -> CheckError:
        """Return the error of a fault that no single kernel has caused."""
        context = self.p.context
        values = [self.value(x) for x in context.graph.inputs]
        facts = {"threads": self.p.threads, "numerics": context.numerics.by_name()}
        return report.graph_fault(message, context.graph, context.bound, values, facts)

    def value(self, x: Leaf) -> np.ndarray:
        """Return an input's value before the run."""
        if x in self.before:
            return self.before[x].view(x.dtype.numpy).reshape(x.shape)
        if x in self.p.context.bind:
            return np.ascontiguousarray(self.p.context.bind[x]).reshape(x.shape)
        return np.zeros(x.shape, x.dtype.numpy)


def _describe(owner: Any) -> str:
    kind = "input or parameter" if isinstance(owner, Leaf) else "output"
    return f"the {kind} {owner.dtype.name}{list(owner.shape)}"
