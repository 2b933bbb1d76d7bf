"""Measure the time of single kernels in given configurations, on data of their own."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.random import default_rng

from einsmith.base import locks
from einsmith.codegen.cache import native
from einsmith.codegen.cache.native import host_target
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Expr, Read, Scatter, cached_postorder
from einsmith.runtime import buffers
from einsmith.runtime.program import Program
from einsmith.runtime.steps import RunLaunch
from einsmith.schedule.kernel import Kernel, MemberKernel, Stage
from einsmith.tuning.calibration import load

if TYPE_CHECKING:
    from einsmith.checking.kernel_check import CheckedKernel

MIN_ROUNDS = 5
"""Fewest rounds in which `shortest` runs its candidates."""
CANDIDATES_SECONDS = 0.05
"""Seconds in which the candidates of a kernel are measured, without compilation."""
MAX_RATIO = 4.0
"""Largest ratio of a candidate's time to the fastest one's with which the candidate runs in more than two rounds."""
INTEGER_BOUND = 8
"""Bound below which random integers lie, as classes, positions in a window and counts do."""


def example_buffers(kernel: Kernel, seed: int = 0) -> list[np.ndarray]:
    """Return random data for every buffer of a kernel: normal floats, truth values and small whole numbers; indices
    lie within the extent that they index."""
    rng = default_rng(seed)
    limits = _limits(kernel)
    out = []
    for n, b in enumerate(kernel.buffers):
        array = buffers.zeros((max(1, b.size),), b.dtype.numpy)
        if b.dtype.is_float:
            array[...] = b.dtype.narrow(rng.standard_normal(array.size, np.float32))
        else:
            array[...] = rng.integers(
                0, min(2 if b.dtype.is_bool else INTEGER_BOUND, limits.get(n, INTEGER_BOUND)), array.size
            )
        out.append(array)
    return out


def _limits(kernel: Kernel) -> dict[int, int]:
    """Return, by buffer number, the smallest extent that a buffer of indices addresses. The limit is 1, so that all
    elements are zeros, where an index is computed from the elements first."""
    out: dict[int, int] = {}
    if isinstance(kernel, MemberKernel):
        for member in kernel.members:
            for n, limit in _limits(member.kernel).items():
                out[member.places[n]] = min(limit, out.get(member.places[n], limit))
        return out
    for stage in kernel.stages:

        def note(index: Sequence[Expr], shape: Sequence[int], stage: Stage = stage) -> None:
            for i, extent in zip(index, shape, strict=True):
                for e in cached_postorder((i,)):
                    kind, *where = stage.args[e.slot] if isinstance(e, Read) else ("",)
                    if kind == "buffer":
                        out[where[0]] = min(extent if e is i else 1, out.get(where[0], extent))

        for part in stage.template.parts:
            for e in cached_postorder(part.bodies):
                if isinstance(e, Read):
                    note(e.index, stage.template.params[e.slot][1])
            if isinstance(part, Scatter):
                note(part.index, stage.template.shape)
    return out


class MachineCode(NamedTuple):
    """A kernel's machine code in one configuration: (address, tasks, once) of each launch (`kernels.pattern.Launch`),
    bytes of a thread's scratch, and bytes of the workspace."""

    launches: list[tuple[Any, int, bool]]
    scratch: int
    workspace: int


def compile_kernel(kernel: Kernel, pattern: Any, config: Any, target: Target) -> MachineCode:
    """Compile a kernel in one configuration. Raises CompileError where it cannot be lowered."""
    lowered = pattern.lower(kernel, config, target)
    functions = lowered.functions
    addresses = native.compile_functions(functions, target)
    launches = [(addresses[x.function.name], x.tasks, x.loop_invariant) for x in lowered.launches]
    return MachineCode(launches, max((f.scratch_bytes for f in functions), default=0), max(64, lowered.workspace))


TimedRun = Callable[[], float]
"""Function that runs a kernel, and returns the seconds that a run takes."""


@dataclass(frozen=True)
class Prepared:
    """A kernel in one configuration, ready to run; `memory` holds the arrays that it runs on."""

    program: Program
    memory: list[np.ndarray]

    def __call__(self) -> float:
        """Run the kernel twice; return the shorter time (seconds)."""
        return _shorter_of_two(repeat(self.program))


def prepare_code(code: MachineCode, arrays: Sequence[np.ndarray], workspace: np.ndarray, threads: int) -> Prepared:
    """Prepare machine code to run on `arrays`, one for each of the kernel's buffers (`example_buffers`), and run it
    once."""
    pointers = [a.ctypes.data for a in (*arrays, workspace)]
    steps = [RunLaunch(address, tasks, pointers) for address, tasks, _ in code.launches]
    Program(steps, threads, code.scratch).run()
    steps = [x for x, (_, _, once) in zip(steps, code.launches, strict=True) if not once]
    return Prepared(Program(steps, threads, code.scratch), [*arrays, workspace])


def prepare(
    kernel: Kernel, pattern: Any, config: Any, target: Target, threads: int, arrays: Sequence[np.ndarray]
) -> Prepared:
    """Compile a kernel in one configuration and prepare it for `arrays`, one for each of its buffers
    (`example_buffers`).

    Raises CompileError where it cannot be lowered.
    """
    code = compile_kernel(kernel, pattern, config, target)
    return prepare_code(code, arrays, buffers.empty((code.workspace,), np.uint8), threads)


def _shorter_of_two(programs: Iterator[Program]) -> float:
    """Run the next two programs; return the shorter time (seconds), as the workers may sleep when the first one
    begins."""
    return min(float(next(programs).run_timed()[1].sum()) for _ in range(2))


class KernelRunner(ABC):
    """The compiler of single kernels of a back end, with the machine on which they are timed and checked."""

    @abstractmethod
    def target(self) -> Target:
        """Return the machine, by nothing that was measured."""

    @abstractmethod
    def compile(self, kernel: Kernel, pattern: Any, config: Any, target: Target) -> MachineCode:
        """Compile a kernel in one configuration. Raises CompileError where it cannot be compiled."""

    def compile_ahead(self, kernel: Kernel, candidates: Sequence[tuple[Any, Any]], target: Target) -> None:
        """Compile a kernel in each (pattern, configuration), several at once, if that is quicker than `compile`, which
        reports the errors."""
        return

    @abstractmethod
    def place(self, arrays: Sequence[np.ndarray]) -> Any:
        """Return memory with this content, an array for each of a kernel's buffers, where kernels can use it."""

    @abstractmethod
    def prepare(self, code: MachineCode, data: Sequence[Any], threads: int) -> TimedRun:
        """Return a timed run of machine code, after a first run. data: copies of its memory (`place`), which the runs
        use by turns."""

    def subject(
        self, kernel: Kernel, target: Target, threads: int, code: MachineCode, pattern: str, config: str
    ) -> CheckedKernel:
        """Return machine code as a kernel to check."""
        with locks.IMPORTING:
            from einsmith.checking.kernel_check import CheckedKernel, KernelSource  # imported late: few programs check

        launches, nothing = tuple((address, tasks) for address, tasks, _ in code.launches), KernelSource("", (), 0, 0)
        return CheckedKernel(
            kernel, target, launches, code.scratch, code.workspace, pattern, config, lambda: nothing, threads
        )

    @abstractmethod
    def watch(self) -> Callable[[], str]:
        """Return a function that says what has made measurements since now doubtful; it returns an empty text if
        nothing has."""


class HostRunner(KernelRunner):
    """The runner of kernels on the CPU."""

    def target(self) -> Target:
        return host_target()

    def compile(self, kernel: Kernel, pattern: Any, config: Any, target: Target) -> MachineCode:
        return compile_kernel(kernel, pattern, config, target)

    def place(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        out = [buffers.empty(a.shape, a.dtype) for a in arrays]
        for to, a in zip(out, arrays, strict=True):
            to[...] = a
        return out

    def prepare(self, code: MachineCode, data: Sequence[Sequence[np.ndarray]], threads: int) -> TimedRun:
        workspace = buffers.empty((code.workspace,), np.uint8)
        copies = [prepare_code(code, arrays, workspace, threads) for arrays in data]
        return partial(_shorter_of_two, (x.program for x in cycle(copies)))

    def watch(self) -> Callable[[], str]:
        return load.Watch().disturbance


def shortest(candidates: Sequence[TimedRun], budget: float = 0.05) -> list[float]:
    """Return the seconds of each candidate: the shortest of interleaved runs, with warm caches.

    budget: seconds to spend in all, though each candidate has MIN_ROUNDS turns; one that takes MAX_RATIO times as
    long as the quickest stops after two.
    """
    best = [float("inf")] * len(candidates)
    end, rounds = time.perf_counter() + budget, 0
    while rounds < MIN_ROUNDS or time.perf_counter() < end:
        for i, candidate in enumerate(candidates):
            if rounds < 2 or best[i] <= MAX_RATIO * min(best):
                best[i] = min(best[i], candidate())
        rounds += 1
    return best


def seconds_of(
    kernel: Kernel,
    candidates: Sequence[tuple[Any, Any]],
    target: Target,
    threads: int,
    runner: KernelRunner | None = None,
) -> list[float]:
    """Measure a kernel in each (pattern, configuration) by `shortest`, on data of its own; return the seconds of each.

    runner: of the back end, by default the CPU's. Raises CompileError where a candidate cannot be lowered.
    """
    runner = runner or HostRunner()
    data = [runner.place(example_buffers(kernel))]
    runner.compile_ahead(kernel, candidates, target)
    codes = [runner.compile(kernel, p, c, target) for p, c in candidates]
    return shortest([runner.prepare(code, data, threads) for code in codes], CANDIDATES_SECONDS)
