"""Choose and lower kernels for a CPU that need not be there. Nothing is compiled to machine code, and nothing runs."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from einsmith.base.errors import DeviceError
from einsmith.cost.facts import Target
from einsmith.driver.backend import Runnable
from einsmith.driver.object_code import ObjectCode
from einsmith.runtime.arena import Block, host
from einsmith.runtime.assemble import Assembler


class OtherCpu(ObjectCode):
    """The back end of a CPU that need not be there. described: its target on one core."""

    def __init__(self, described: Target):
        super().__init__()
        self._target = described

    def target(self, threads: int) -> Target:
        return replace(self._target, cores=threads)

    def static_target(self, cores: int) -> Target:
        return self.target(cores)

    def allocate(self, nbytes: int) -> Block:
        return host(nbytes)

    def program(self, assembler: Assembler, threads: int, scratch_bytes: int, scratch: int) -> Runnable:
        program = super().program(assembler, threads, scratch_bytes, scratch)
        program.run = program.run_timed = program.run_recorded = self._refuse  # type: ignore[method-assign]
        return program

    def _refuse(self, *_: object) -> NoReturn:
        raise DeviceError(
            f"programs are compiled for a CPU with {self._target.cpu}, not for this one, and cannot run; leave out the "
            "target to run them"
        )
