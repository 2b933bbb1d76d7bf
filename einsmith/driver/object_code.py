"""Compile programs for the CPU to object code and data, for libraries that run without this process.

Kernels are chosen and lowered as for programs that run here, so exported programs compute the same values, bit for
bit. Nothing is loaded: functions and intermediate results get addresses at which no process has memory, and the code
that builds a library replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from einsmith.base.errors import CheckError
from einsmith.codegen.entry import entry_program
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Function
from einsmith.cost.facts import Target
from einsmith.driver.backend import Exporter, ProgramInfo, ProgramTable, Runnable
from einsmith.driver.cpu_kernels import CpuBackend, compiled_kernel, lower
from einsmith.driver.tuned import Decision, decisions_of, warn_unfollowed
from einsmith.runtime.arena import Block
from einsmith.runtime.assemble import Assembler
from einsmith.runtime.program import Program
from einsmith.runtime.steps import CheckZero
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel


class ObjectCode(CpuBackend, Exporter):
    """A compiler of programs to object code. One instance serves all programs of a library, which share their kernels'
    code."""

    functions, arena = 1 << 60, 1 << 61
    pool_bytes = entry_program.STATE_BYTES

    def __init__(self) -> None:
        self._functions: list[Function] = []
        self._compiled: dict[tuple[Kernel, Target, Decision], CompiledKernel] = {}

    def compile(self, kernels: Sequence[Kernel], target: Target) -> list[CompiledKernel]:
        decided = decisions_of(kernels, target)
        return [self._compile(k, target, decided[k]) for k in kernels]

    def _compile(self, kernel: Kernel, target: Target, decision: Decision) -> CompiledKernel:
        key = kernel, target, decision
        if key not in self._compiled:
            functions, meta = lower(*key)
            first = self.functions + len(self._functions)
            self._functions += functions
            launches = tuple((first + n, tasks, once) for n, (_, tasks, once) in enumerate(meta["launches"]))
            self._compiled[key] = compiled_kernel(launches, meta, 0)
            warn_unfollowed(kernel, decision, self._compiled[key])
        return self._compiled[key]

    def allocate(self, nbytes: int) -> Block:
        return Block(None, self.arena, nbytes)

    def checked(self, assembler: Assembler, info: ProgramInfo, threads: int, scratch_bytes: int) -> Runnable:
        raise CheckError("EINSMITH_CHECK checks only programs of this process, no exported ones; unset it")

    def table(self, program: Runnable) -> ProgramTable:
        assert isinstance(program, Program)
        codes = {
            n * entry_program.STEP_WORDS + 4: step.code
            for n, step in enumerate(program.steps)
            if isinstance(step, CheckZero)
        }
        return ProgramTable(
            tuple(map(int, program.table)), len(program.steps), tuple(program.addresses()), codes, program.seconds
        )

    def object_code(self, prefix: str, functions: Sequence[int], constants: bytes, target: Target) -> bytes:
        triple = jit.resolve(target).triple
        named = [
            replace(self._functions[f], name=f"{prefix}_kernel_{n}", checks_signals=False)
            for n, f in enumerate(functions)
        ]
        places = ", ".join(f'ptr @"{f.name}"' for f in named)
        data = "\\" + constants.hex("\\") if constants else ""
        tables = [
            f'target triple = "{triple}"',
            *(f'declare void @"{f.name}"(ptr, ptr, i64)' for f in named),
            f"@{prefix}_functions = constant [{len(named)} x ptr] [{places}]",
            f'@{prefix}_constants = constant [{len(constants)} x i8] c"{data}", align 64',
        ]
        native = entry_program.emit_entry(triple, own=True).replace("@einsmith_", f"@{prefix}_")
        return jit.emit_hidden([emit_module(named, target), native, "\n".join(tables) + "\n"], target)
