"""Measure the time of single kernels in given configurations, on data of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

from einsmith.codegen.cache import native
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Expr, Read, Scatter, cached_postorder
from einsmith.runtime import buffers
from einsmith.runtime.program import Program
from einsmith.runtime.steps import RunLaunch
from einsmith.schedule.kernel import Kernel, Rows, Stage

MIN_ROUNDS = 5
"""Fewest rounds in which `shortest` runs its candidates."""
MAX_RATIO = 4.0
"""Largest ratio of a candidate's time to the fastest one's with which the candidate runs in more than two rounds."""
INTEGER_BOUND = 8
"""Bound below which random integers lie, as classes, positions in a window and counts do."""


def example_buffers(kernel: Kernel | Rows, seed: int = 0) -> list[np.ndarray]:
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


def _limits(kernel: Kernel | Rows) -> dict[int, int]:
    """Return, by buffer number, the smallest extent that a buffer of indices addresses. The limit is 1, so that all
    elements are zeros, where an index is computed from the elements first."""
    out: dict[int, int] = {}
    if isinstance(kernel, Rows):
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


def compile_kernel(kernel: Kernel | Rows, pattern: Any, config: Any, target: Target) -> MachineCode:
    """Compile a kernel in one configuration. Raises CompileError where it cannot be lowered."""
    lowered = pattern.lower(kernel, config, target)
    functions = lowered.functions
    addresses = native.compile_functions(functions, target)
    launches = [(addresses[x.function.name], x.tasks, x.loop_invariant) for x in lowered.launches]
    return MachineCode(launches, max((f.scratch_bytes for f in functions), default=0), max(64, lowered.workspace))


class Prepared(NamedTuple):
    """A kernel in one configuration, ready to run; `memory` holds the arrays that it runs on."""

    program: Program
    memory: list[np.ndarray]


def prepare_code(code: MachineCode, arrays: Sequence[np.ndarray], workspace: np.ndarray, threads: int) -> Prepared:
    """Prepare machine code to run on `arrays`, one for each of the kernel's buffers (`example_buffers`), and run it
    once."""
    pointers = [a.ctypes.data for a in (*arrays, workspace)]
    steps = [RunLaunch(address, tasks, pointers) for address, tasks, _ in code.launches]
    Program(steps, threads, code.scratch).run()
    steps = [x for x, (_, _, once) in zip(steps, code.launches, strict=True) if not once]
    return Prepared(Program(steps, threads, code.scratch), [*arrays, workspace])


def prepare(
    kernel: Kernel | Rows, pattern: Any, config: Any, target: Target, threads: int, arrays: Sequence[np.ndarray]
) -> Prepared:
    """Compile a kernel in one configuration and prepare it for `arrays`, one for each of its buffers
    (`example_buffers`).

    Raises CompileError where it cannot be lowered.
    """
    code = compile_kernel(kernel, pattern, config, target)
    return prepare_code(code, arrays, buffers.empty((code.workspace,), np.uint8), threads)


def shortest(candidates: Sequence[Prepared], budget: float = 0.05) -> list[float]:
    """Return the seconds of each candidate: the shortest of interleaved runs, with warm caches.

    budget: seconds to spend in all, though each candidate has MIN_ROUNDS turns; one that takes MAX_RATIO times as
    long as the quickest stops after two. A turn is two runs: the workers may sleep when a candidate follows one that
    needs no worker.
    """
    best = [float("inf")] * len(candidates)
    end, rounds = time.perf_counter() + budget, 0
    while rounds < MIN_ROUNDS or time.perf_counter() < end:
        for i, candidate in enumerate(candidates):
            if rounds < 2 or best[i] <= MAX_RATIO * min(best):
                best[i] = min(best[i], *(float(candidate.program.run_timed()[1].sum()) for _ in range(2)))
        rounds += 1
    return best


def seconds_of(
    kernel: Kernel | Rows, candidates: Sequence[tuple[Any, Any]], target: Target, threads: int, budget: float = 0.05
) -> list[float]:
    """Measure a kernel in each (pattern, configuration) by `shortest`, on data of its own; return the seconds of each.

    budget: seconds to spend in all, without compilation. Raises CompileError where a candidate cannot be lowered.
    """
    arrays = example_buffers(kernel)
    return shortest([prepare(kernel, p, c, target, threads, arrays) for p, c in candidates], budget)
