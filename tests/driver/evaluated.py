"""A back end in which the evaluator is the machine: kernels are launched as they are, and a program is a loop of Python
over its steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from einsmith.checking.expected import written_buffers
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend
from einsmith.ir.template_evaluator import evaluate_template
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.runtime.arena import Block
from einsmith.runtime.assemble import Assembler
from einsmith.runtime.buffers import bytes_at
from einsmith.runtime.steps import BeginLoop, CheckFinite, CheckZero, RunLaunch, StepTimes, end_of_loop
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows
from einsmith.tuning.kernels import decisions

NAME = "evaluated"


@dataclass(frozen=True)
class Machine(Target):
    """It has caches, so that kernels are joined as on any machine."""

    backend = NAME
    __hash__ = Target.__hash__


class Evaluate(Pattern):
    """Takes every kernel; the launch is the kernel itself."""

    name = "evaluate"

    def match(self, kernel: Any) -> bool:
        return True

    def configs(self, kernel: Any, target: Target) -> Sequence[Any]:
        return ("whole",)

    def cost(self, kernel: Any, config: Any, target: Target) -> Cost:
        return Cost(1e-9 * sum(prod(p.domain) for s in kernel.stages for p in s.template.parts), 0.0)

    def lower(self, kernel: Any, config: Any, target: Target) -> Lowered:
        return Lowered([Launch(kernel, 1)])


def read(b: KernelBuffer, address: int) -> np.ndarray:
    """What lies there; of a buffer that ends before its shape does, zeros behind."""
    out = np.zeros(prod(b.shape), b.dtype.numpy)
    out[: b.size] = bytes_at(address, b.size * b.dtype.itemsize).view(b.dtype.numpy)
    return out.reshape(b.shape)


def results(kernel: Kernel, arrays: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """What a kernel leaves in the buffers that it writes."""
    made: list[tuple[np.ndarray, ...]] = []
    out: dict[int, np.ndarray] = {}
    for stage in kernel.stages:
        args = [arrays[w[0]] if kind == "buffer" else made[w[0]][w[1]] for kind, *w in stage.args]
        made.append(evaluate_template(stage.template, args))
        for value, n in zip(made[-1], stage.outputs, strict=True):
            if n is not None:
                b, mask = kernel.buffers[n], written_buffers(kernel)[n]
                with np.errstate(all="ignore"):
                    value = value.astype(b.dtype.numpy)
                out[n] = value if mask is None else np.where(mask, value, arrays[n])
    return out


def run(kernel: Kernel, pointers: Sequence[int]) -> None:
    arrays = [read(b, p) for b, p in zip(kernel.buffers, pointers, strict=False)]
    if isinstance(kernel, Rows):
        held = [*arrays, *(np.zeros(b.shape, b.dtype.numpy) for b in kernel.local)]
        written = {}
        for m in kernel.members:
            args = [held[k].reshape(b.shape) for k, b in zip(m.places, m.kernel.buffers, strict=True)]
            for n, value in results(m.kernel, args).items():
                held[m.places[n]] = value.reshape(held[m.places[n]].shape)
                if m.places[n] < len(arrays):
                    written[m.places[n]] = held[m.places[n]]
    else:
        written = results(kernel, arrays)
    for n, value in written.items():
        b = kernel.buffers[n]
        bytes_at(pointers[n], b.size * b.dtype.itemsize)[:] = value.reshape(-1)[: b.size].view(np.uint8)


class Steps:
    """A program; the table has a word for each pointer."""

    def __init__(self, made: Assembler):
        self.steps = made.steps
        self.slots: dict[tuple[int, int | str], int] = {}
        words: list[int] = []
        for n, step in enumerate(self.steps):
            named: dict[int | str, int] = {}
            if isinstance(step, RunLaunch):
                named = dict(enumerate(step.pointers))
            elif isinstance(step, BeginLoop):
                named = {**dict(enumerate(step.bases)), "stop": step.stop, "first": step.first}
            elif isinstance(step, CheckZero | CheckFinite):
                named = {0: step.pointer}
            for key, word in named.items():
                self.slots[n, key] = len(words)
                words.append(word)
        self.table = np.array([*words, 0], np.uint64)
        self.times = np.zeros(len(self.steps))

    def at(self, n: int, key: int | str = 0) -> int:
        return int(self.table[self.slots[n, key]])

    def run(self) -> int:
        self.times[:] = 0
        return self.part(0, len(self.steps))

    def run_timed(self) -> tuple[int, np.ndarray]:
        return self.run(), self.times.copy()

    def run_recorded(self) -> tuple[int, StepTimes]:
        begun, status = time.perf_counter_ns(), self.run()
        seen = np.round(self.times * 1e9).astype(np.int64)
        return status, StepTimes(seen, (begun + np.cumsum(seen) - seen)[:, None], np.zeros((len(seen), 1), np.int64))

    def move_scratch(self, address: int) -> None:
        pass  # there is none

    def part(self, n: int, end: int) -> int:
        """Steps n .. end-1."""
        while n < end:
            step = self.steps[n]
            if isinstance(step, RunLaunch):
                start = time.perf_counter()
                for _ in range(step.tasks):
                    self.launch(step.code, [self.at(n, i) for i in range(len(step.pointers))])
                self.times[n] += time.perf_counter() - start
            elif isinstance(step, BeginLoop):
                last = end_of_loop(self.steps, n)
                self.loop(n, step, last)
                n = last
            elif isinstance(step, CheckZero):
                if bytes_at(self.at(n), 4).view(np.int32)[0]:
                    return step.code
            elif isinstance(step, CheckFinite):
                elem = np.dtype("float32" if step.elem == "f32" else "float64")
                if not np.isfinite(bytes_at(self.at(n), elem.itemsize).view(elem)[0]):
                    return step.code
            n += 1
        return 0

    def launch(self, code: Any, pointers: Sequence[int]) -> None:
        run(code, pointers)

    def loop(self, n: int, step: BeginLoop, last: int) -> None:
        first, stop = (
            (int(bytes_at(p, 8).view(np.int64)[0]) if (p := self.at(n, k)) else None) for k in ("first", "stop")
        )
        turns = range(max(first or 0, 0), step.most if stop is None else min(stop, step.most))
        for t in reversed(turns) if step.reverse else turns:
            for k, m in enumerate(step.moves):
                self.table[self.slots[m.step, m.pointer]] = (self.at(n, k) + m.bytes_in_turn(t)) % 2**64
            self.part(n + 1, last)


class Evaluated(Backend):
    """Counts what it is asked for."""

    name = NAME
    patterns = (Evaluate(),)

    def __init__(self) -> None:
        self.compiled: list[Kernel] = []
        self.blocks: list[Block] = []
        self.programs = 0

    def target(self, threads: int) -> Target:
        return Machine(cores=threads)

    def compile(self, kernels: Sequence[Kernel], target: Target) -> list[CompiledKernel]:
        self.compiled += kernels
        out = []
        for kernel in kernels:
            choice = autoconfig.choose(kernel, target)
            lowered = decisions.lower_choice(choice)
            launches = tuple((x.function, x.tasks, x.loop_invariant) for x in lowered.launches)
            out.append(CompiledKernel(launches, 0, 0, choice.pattern.name, choice.config, choice.cost.seconds, 0))
        return out

    def allocate(self, nbytes: int) -> Block:
        memory = np.full(nbytes + 64, 0xFF, np.uint8)
        at = -memory.ctypes.data % 64
        self.blocks.append(Block(memory[at:], memory.ctypes.data + at, nbytes))
        return self.blocks[-1]

    def program(self, made: Assembler, threads: int, scratch_bytes: int, scratch: int) -> Steps:
        self.programs += 1
        return Steps(made)

    def seconds_of(self, kernel: Any, candidates: Sequence[tuple[Pattern, Any]], target: Target, threads: int) -> Any:
        return [pattern.cost(kernel, config, target).seconds for pattern, config in candidates]
