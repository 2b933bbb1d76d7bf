"""Choose and lower kernels for a CPU that need not be there. Nothing is compiled to machine code, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from einsmith.base.errors import DeviceError
from einsmith.cost.facts import Target
from einsmith.driver.backend import Runnable
from einsmith.driver.cpu import Cpu
from einsmith.driver.cpu_kernels import compiled_kernel, lower
from einsmith.driver.tuned import Decision
from einsmith.runtime.assemble import Assembler
from einsmith.runtime.program import Program
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel


class OtherCpu(Cpu):
    """The back end of a CPU that need not be there. described: its target on one core."""

    def __init__(self, described: Target):
        self._target = described

    @property
    def make(self) -> Callable[[], Cpu]:
        return partial(OtherCpu, self._target)

    def target(self, threads: int) -> Target:
        return replace(self._target, cores=threads)

    def static_target(self, cores: int) -> Target:
        return self.target(cores)

    def compile_decided(
        self, kernels: Sequence[Kernel], decided: Mapping[Kernel, Decision], target: Target
    ) -> list[CompiledKernel]:
        return [self._lower(k, decided[k], target) for k in kernels]

    def _lower(self, kernel: Kernel, decision: Decision, target: Target) -> CompiledKernel:
        _, meta = lower(kernel, target, decision)
        return compiled_kernel(tuple((0, tasks, once) for _, tasks, once in meta["launches"]), meta, 0)

    def program(self, assembler: Assembler, threads: int, scratch_bytes: int, scratch: int) -> Runnable:
        program = super().program(assembler, threads, scratch_bytes, scratch)
        assert isinstance(program, Program)
        program.run = program.run_timed = program.run_recorded = self._refuse  # type: ignore[method-assign]
        return program

    def _refuse(self, *_: object) -> NoReturn:
        raise DeviceError(
            f"programs are compiled for a CPU with {self._target.cpu}, not for this one, and cannot run; leave out the "
            "target to run them"
        )
