"""Run one kernel on guarded memory in several ways that must agree, and compare it with the evaluator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

from einsmith.base.errors import IndexOutOfRange
from einsmith.checking import trap
from einsmith.checking.expected import (
    Difference,
    expected_content,
    find_difference,
    read_buffers,
    written_buffers,
)
from einsmith.checking.guarded import Guarded, GuardedBlock
from einsmith.cost.facts import Target
from einsmith.ir.nodes import size
from einsmith.runtime.program import Program
from einsmith.runtime.steps import RunLaunch
from einsmith.schedule.kernel import Kernel, KernelBuffer

FILLS = 0xFF, 0x2B
"""Bytes that fill memory to which nothing has been stored: the first makes NaN and -1, the second numbers that are no
NaN, so that results which depend on them differ."""


Written = Mapping[int, np.ndarray | None]
"""The buffers that are stored to, by number, each with a mask of the elements stored (None: all)."""


class KernelSource(NamedTuple):
    """A kernel's LLVM text, (function, tasks) of each launch, bytes of a thread's scratch, and bytes of the
    workspace."""

    text: str
    launches: tuple[tuple[str, int], ...]
    scratch: int
    workspace: int


Execute = Callable[["CheckedKernel", Guarded, list[int], "RunMode"], int]
"""Function that runs all launches of a kernel in a mode on guarded memory, given the addresses of its buffers and
workspace; it returns the first forbidden address that was accessed, as far as that can be noticed, else 0."""


@dataclass(frozen=True)
class CheckedKernel:
    """A kernel as machine code: (code, tasks) of each launch, bytes of a thread's scratch and of the workspace.

    Attributes:
        execute: what runs it; by default this process does, and code is the address of a function
        is_aligned: whether the code assumes that each buffer begins on a cache line
        rounding: factor by which it rounds more than arithmetic of its types
    """

    kernel: Kernel
    target: Target
    launches: tuple[tuple[Any, int], ...]
    scratch: int
    workspace: int
    pattern: str
    config: str
    source: Callable[[], KernelSource]
    threads: int = 1
    execute: Execute | None = None
    is_aligned: bool = False
    rounding: float = 1.0


class BufferState(NamedTuple):
    """A buffer before the kernel runs: its address, its bytes, and a mask of the bytes that hold a value (None: all).
    Buffers whose memory overlaps at these addresses overlap in the check too."""

    address: int
    values: np.ndarray
    known: np.ndarray | None = None

    def array(self, buffer: KernelBuffer) -> np.ndarray:
        """Return a view of the values as the elements of `buffer`."""
        return elements(self.values.view(buffer.dtype.numpy), buffer)


def elements(spanned: np.ndarray, buffer: KernelBuffer) -> np.ndarray:
    """Return a view of a buffer's elements within all the memory that it spans (`Buffer.size`)."""
    strides = [spanned.itemsize * n for n in buffer.strides]
    return np.lib.stride_tricks.as_strided(spanned, buffer.shape, strides)


def stored_bytes(buffer: KernelBuffer, mask: np.ndarray | None) -> np.ndarray | None:
    """Return a mask of the bytes stored to a buffer within all the memory that it spans; None for all of them.

    mask: the elements stored (None: all)."""
    if mask is None and buffer.size == size(buffer.shape):
        return None
    spanned = np.zeros(buffer.size, bool)
    elements(spanned, buffer)[...] = True if mask is None else mask
    return np.repeat(spanned, buffer.dtype.itemsize)


class KernelFault(Exception):
    """A kernel is wrong: a sentence that says how, and the number of the buffer concerned (None: scratch or
    workspace)."""

    def __init__(self, text: str, buffer: int | None = None):
        super().__init__(text)
        self.text, self.buffer = text, buffer


class Outcome(NamedTuple):
    """The buffers' bytes after a run, and the workspace's."""

    values: list[np.ndarray]
    workspace: np.ndarray


class RunMode(NamedTuple):
    """The conditions of a run: `before` places blocks right behind forbidden pages, `fill` is the byte of unwritten
    memory, `threads` 0 runs task by task with poisoned scratch."""

    before: bool
    fill: int
    threads: int = 0


def check(
    subject: CheckedKernel,
    states: Sequence[BufferState],
    work: np.ndarray | None = None,
    compare: bool = True,
    turn: int = 0,
    written: Written | None = None,
) -> Outcome:
    """Run a kernel on buffers with the given content and return their content afterwards.

    Args:
        subject: the kernel
        states: the buffers before the run
        work: the workspace before the run (None: it holds nothing yet)
        compare: run in all modes, which must agree; otherwise run in one mode, which changes from one `turn` to the
            next
        turn: number of the run, which chooses its mode unless `compare`
        written: the buffers that the kernel writes, with the elements of each (None: what its formula says)

    Raises:
        KernelFault: the kernel is wrong
    """
    written = written_buffers(subject.kernel) if written is None else written
    modes = [RunMode(False, FILLS[0]), RunMode(True, FILLS[1])]
    if not compare:
        return run(subject, states, work, modes[turn % 2], written)
    if subject.threads > 1 and max((n for _, n in subject.launches), default=0) > 1:
        modes.append(RunMode(False, FILLS[0], subject.threads))
    result = run(subject, states, work, modes[0], written)
    for mode in modes[1:]:
        other = run(subject, states, work, mode, written)
        for n, mask in written.items():
            _check_agreement(subject, n, result.values[n], other.values[n], mask, mode)
        differs = result.workspace != other.workspace
        if not written and (differs & ~((result.workspace == FILLS[0]) & (other.workspace == mode.fill))).any():
            raise KernelFault("the workspace after its first launches differs from run to run")
    return result


def _check_agreement(
    subject: CheckedKernel, n: int, a: np.ndarray, b: np.ndarray, mask: np.ndarray | None, mode: RunMode
) -> None:
    buffer = subject.kernel.buffers[n]
    x, y = (elements(v.view(buffer.dtype.numpy), buffer) for v in (a, b))
    wrong = elements((a != b).reshape(-1, buffer.dtype.itemsize).any(1), buffer)
    if mask is not None:
        wrong = wrong & mask
    if wrong.any():
        at = tuple(map(int, np.unravel_index(int(np.argmax(wrong)), wrong.shape)))
        other = (
            f"on {mode.threads} threads"
            if mode.threads
            else "with other values in unwritten memory, at another address, and with its tasks in another order"
        )
        raise KernelFault(
            f"{int(wrong.sum())} of {wrong.size} elements differ from run to run: {list(at)} is {x[at].item()!r}, and "
            f"{y[at].item()!r} {other}; it depends on memory that is read before it is written, or on the order of "
            "tasks",
            n,
        )


def evaluate(subject: CheckedKernel, states: Sequence[BufferState], got: Outcome, seed: int = 0) -> bool:
    """Compare results with the evaluator's; return whether the evaluation was affordable. Raises KernelFault."""
    kernel = subject.kernel
    arrays = []
    for h, b in zip(states, kernel.buffers, strict=True):
        values = h.values
        if h.known is not None:
            values = np.where(h.known, values, 0).astype(np.uint8)
        arrays.append(elements(values.view(b.dtype.numpy), b))
    try:
        expected = expected_content(kernel, arrays, default_rng(seed), subject.pattern, subject.rounding)
    except (IndexError, IndexOutOfRange) as e:
        raise KernelFault(f"its formula reads or writes outside of a tensor: {e}") from None
    for results in expected or ():
        for n, expected_buffer in results.items():
            b = kernel.buffers[n]
            array = elements(got.values[n].view(b.dtype.numpy), b)
            wrong = find_difference(array, expected_buffer, b.dtype, written_buffers(kernel)[n])
            if wrong is not None:
                raise KernelFault(describe_difference(wrong, array.size, "the evaluator"), n)
    return expected is not None


def describe_difference(d: Difference, count: int, whose: str) -> str:
    """Return a difference in words."""
    return (
        f"{d.elements} of {count} elements are not {whose}'s, the first at {list(d.at)}: got {d.got!r}, want "
        f"{d.want!r} within {d.error:.3g}"
    )


def run(
    subject: CheckedKernel, states: Sequence[BufferState], work: np.ndarray | None, mode: RunMode, written: Written
) -> Outcome:
    """Run the kernel once in one mode. Raises KernelFault where it accesses memory that it must not, or changes a
    buffer that it only reads."""
    kernel = subject.kernel
    read = read_buffers(kernel)
    groups = _groups(states, written)
    on_lines = kernel.non_temporal
    blocks = [
        GuardedBlock(
            "",
            max(states[n].address + states[n].values.size for n in g) - min(states[n].address for n in g),
            subject.is_aligned or not on_lines.isdisjoint(g),
        )
        for g in groups
    ]
    blocks += [GuardedBlock("workspace", subject.workspace, True), GuardedBlock("scratch", subject.scratch, True)]
    memory = Guarded(blocks, mode.before)
    places = {n: (i, states[n].address - min(states[m].address for m in g)) for i, g in enumerate(groups) for n in g}
    for b in memory.bytes[: len(groups)]:
        b[:] = mode.fill
    for n in sorted(places, key=lambda n: n in written):
        if n in read or n not in written:
            content = _bytes(memory, places[n], states[n])
            known = states[n].known
            content[:] = states[n].values if known is None else np.where(known, states[n].values, mode.fill)
        elif written[n] is not None:  # elements that the kernel must not change
            _bytes(memory, places[n], states[n])[:] = states[n].values
            _fill(_bytes(memory, places[n], states[n]), written[n], kernel.buffers[n], mode.fill)
    space = memory.bytes[len(groups)]
    space[:] = mode.fill if work is None else work
    before = [_bytes(memory, places[n], states[n]).copy() for n in range(len(states))]
    pointers = [memory.addresses[places[n][0]] + places[n][1] for n in range(len(states))]
    pointers.append(memory.addresses[len(groups)])
    _run_launches(subject, memory, pointers, mode, groups)
    after = [_bytes(memory, places[n], states[n]).copy() for n in range(len(states))]
    shared = {n for g in groups if len(g) > 1 for n in g}
    for n in range(len(states)):
        if n in written:
            if written[n] is not None:
                _check_untouched(kernel, n, before[n], after[n], ~written[n])  # type: ignore[operator]
        elif n not in shared:
            _check_untouched(kernel, n, before[n], after[n], None)
    return Outcome(after, space.copy())


def _bytes(memory: Guarded, place: tuple[int, int], state: BufferState) -> np.ndarray:
    return memory.bytes[place[0]][place[1] : place[1] + state.values.size]


def _fill(content: np.ndarray, mask: np.ndarray | None, buffer: KernelBuffer, fill: int) -> None:
    assert mask is not None
    content.reshape(-1, buffer.dtype.itemsize)[elements(np.arange(buffer.size), buffer)[mask]] = fill


def _check_untouched(kernel: Kernel, n: int, before: np.ndarray, after: np.ndarray, mask: np.ndarray | None) -> None:
    b = kernel.buffers[n]
    changed = (before != after).reshape(-1, b.dtype.itemsize).any(1)
    wrong = elements(changed, b)
    if mask is not None:
        wrong = wrong & mask
    elif changed.any() and not wrong.any():
        raise KernelFault(f"{int(changed.sum())} elements in the gaps of the buffer were overwritten", n)
    if wrong.any():
        at = list(map(int, np.unravel_index(int(np.argmax(wrong)), wrong.shape)))
        raise KernelFault(f"element {at} was overwritten, which the kernel must not write", n)


def _groups(states: Sequence[BufferState], written: Written) -> list[list[int]]:
    """Group buffers that share memory of which some is written; every other buffer is a group of its own."""
    groups: list[list[int]] = []
    for n, h in enumerate(states):
        mine = [n]
        for g in list(groups):
            if any(_overlap(h, states[m]) and (n in written or m in written) for m in g):
                groups.remove(g)
                mine = [*g, *mine]
        groups.append(mine)
    return groups


def _overlap(a: BufferState, b: BufferState) -> bool:
    sizes = a.values.size and b.values.size
    return bool(sizes) and a.address < b.address + b.values.size and b.address < a.address + a.values.size


def _run_launches(
    subject: CheckedKernel, memory: Guarded, pointers: list[int], mode: RunMode, groups: list[list[int]]
) -> None:
    """Run all launches. Raises KernelFault where one of them accesses forbidden memory."""
    at = (subject.execute or _execute)(subject, memory, pointers, mode)
    access = memory.find_nearest(at) if at else memory.find_red_zone_write()
    if access is None:
        return
    block, offset = access
    n = groups[block][0] if block < len(groups) else None
    size = memory.blocks[block].nbytes
    if n is None:
        what, unit = memory.blocks[block].name, 1
    else:
        b = subject.kernel.buffers[n]
        what, unit = f"buffer {n} ({b.dtype.name}{list(b.shape)})", b.dtype.itemsize
    verb = "touched" if at else "written"
    side = f"{offset - size} bytes behind the end" if offset >= size else f"{-offset} bytes before the beginning"
    raise KernelFault(f"memory was {verb} {side} of its {what}, of {size // unit} elements", n)


def _execute(subject: CheckedKernel, memory: Guarded, pointers: list[int], mode: RunMode) -> int:
    """Run all launches of a kernel on the CPU, where no access of forbidden memory is missed (`Execute`)."""
    table = (ctypes.c_uint64 * len(pointers))(*pointers)
    scratch = memory.bytes[-1]
    with trap.trap_accesses(memory.low, memory.high) as first_touched:
        if mode.threads:
            steps = [RunLaunch(address, tasks, pointers) for address, tasks in subject.launches]
            Program(steps, mode.threads, subject.scratch).run()
        else:
            for address, tasks in subject.launches:
                trap.run_each(
                    address, ctypes.addressof(table), memory.addresses[-1], scratch.size, tasks, mode.before, mode.fill
                )
        return first_touched()


def replace_code(subject: CheckedKernel, addresses: Sequence[int], source: KernelSource, name: str) -> CheckedKernel:
    """Return the kernel with other machine code."""
    launches = tuple((a, n) for a, (_, n) in zip(addresses, source.launches, strict=True))
    return replace(
        subject,
        launches=launches,
        scratch=source.scratch,
        workspace=source.workspace,
        config=name,
        source=lambda: source,
    )
