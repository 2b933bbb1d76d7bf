"""Compile kernels to loop nests, then to machine code by LLVM, and run them on a pool of threads: the CPU back end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from einsmith.base import environment, locks
from einsmith.driver.backend import Exporter, ProgramInfo, Runnable
from einsmith.driver.cpu_kernels import CpuBackend
from einsmith.ir.nodes import Graph
from einsmith.runtime.arena import Block, host
from einsmith.runtime.assemble import Assembler
from einsmith.tuning.kernels import decisions


class Cpu(CpuBackend):
    """The CPU back end: see the module's docstring."""

    @property
    def make(self) -> Callable[[], Cpu]:
        return find_cpu

    def allocate(self, nbytes: int) -> Block:
        return host(nbytes)

    def checked(self, assembler: Assembler, info: ProgramInfo, threads: int, scratch_bytes: int) -> Runnable:
        with locks.IMPORTING:
            from einsmith.checking import others  # imported late: only checked runs need them
            from einsmith.checking.checked_program import CheckedProgram, ReportContext
            from einsmith.checking.kernel_check import CheckedKernel

        source_graph, bind, target = info.graph, info.bind, info.target
        graph = Graph(
            (*bind, *info.inputs),
            source_graph.outputs,
            source_graph.updates,
            source_graph.checks,
        )
        subjects = [
            CheckedKernel(
                call.kernel,
                target,
                (),
                k.scratch,
                k.workspace,
                k.pattern,
                k.config,
                partial(others.source_of, partial(decisions.choice_of, call.kernel, target, k.decision)),
            )
            for call, k in zip(info.calls, info.kernels, strict=True)
        ]
        context = ReportContext(graph, len(bind), bind, info.numerics, tuple(info.outputs))
        return CheckedProgram(
            assembler,
            subjects,
            info.labels,
            info.block.array[: info.own_bytes],
            context,
            threads,
            scratch_bytes,
            environment.check_level(),
        )

    def exporter(self) -> Exporter:
        with locks.IMPORTING:
            from einsmith.driver.object_code import ObjectCode  # imported late: few programs are exported

        return ObjectCode()


def find_cpu() -> Cpu:
    """Return the CPU back end, in any process."""
    return CPU


CPU = Cpu()
