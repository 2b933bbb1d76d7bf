"""Compile kernels to loop nests, then to machine code by LLVM, and run them on a pool of threads: the CPU back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

from einsmith.base import environment, locks
from einsmith.cost.facts import Target
from einsmith.driver.backend import AheadOfTime, ProgramInfo, Runnable, Workshop
from einsmith.driver.cpu_kernels import CpuBackend, Decision, compile_decided, decisions_of
from einsmith.ir.nodes import Graph
from einsmith.runtime.arena import Block, host
from einsmith.runtime.assemble import Assembler, CompiledKernel
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.tuning.kernels import decisions, measurements, race, records, session
from einsmith.tuning.kernels.genetic import Candidate, candidate_of
from einsmith.tuning.kernels.race import RaceResult
from einsmith.tuning.kernels.session import Part, SearchResult, Tell


class Cpu(CpuBackend):
    """The CPU back end: see the module's docstring."""

    def compile(self, kernels: Sequence[Kernel | Rows], target: Target) -> list[CompiledKernel]:
        return compile_decided(kernels, decisions_of(kernels, target), target)

    def compile_as(self, texts: Mapping[Kernel | Rows, str], target: Target) -> dict[Kernel | Rows, CompiledKernel]:
        recorded = records.texts_of([k for k, text in texts.items() if text], target) if environment.TUNED.get() else {}
        decided = {k: Decision(text, bool(text) and recorded.get(k) == text) for k, text in texts.items()}
        return dict(zip(decided, compile_decided(list(decided), decided, target), strict=True))

    def keep_graph_decisions(
        self, graph: Graph, target: Target, decisions: frozenset[str], seconds: float, spread: float, prior: float
    ) -> None:
        records.record_graph(graph, target, decisions, seconds, spread, prior)

    def race(self, first: Callable[[], object], second: Callable[[], object], seconds: float) -> RaceResult:
        return race.race_programs(first, second, seconds)

    def workshop(self, target: Target, threads: int) -> Workshop:
        with locks.IMPORTING:
            from einsmith.driver import workshop  # imported late: few programs explore

        return workshop.ProcessWorkshop(target, threads)

    def allocate(self, nbytes: int) -> Block:
        return host(nbytes)

    def checked(self, assembler: Assembler, info: ProgramInfo, threads: int, scratch_bytes: int) -> Runnable:
        with locks.IMPORTING:
            from einsmith.checking import others  # imported late: only checked runs need them
            from einsmith.checking.kernel_check import CheckedKernel
            from einsmith.checking.program import CheckedProgram, ReportContext

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

    def ahead(self) -> AheadOfTime:
        with locks.IMPORTING:
            from einsmith.driver.objects import ObjectCode  # imported late: few programs are exported

        return ObjectCode()

    def tune(
        self,
        parts: Sequence[Part],
        target: Target,
        threads: int,
        seconds: float,
        tell: Tell,
        executor: Executor | None = None,
    ) -> list[SearchResult]:
        return session.tune(
            parts,
            target,
            threads,
            seconds,
            tell,
            partial(_first_guesses, target=target),
            lambda result: self.keep(result, target),
            executor,
            lambda kernel, seconds: measurements.record(kernel, target, seconds),
        )

    def keep(self, result: SearchResult, target: Target) -> None:
        if result.best is None:
            return
        if result.former is None:
            result.former = records.find(result.kernel, target)
        lowest_ratio, highest_ratio = result.spread
        spread = (highest_ratio - lowest_ratio) / 2
        record = records.create(result.kernel, result.best.text, result.seconds, spread, result.prior, confirmed=0)
        records.record_choice(result.kernel, target, record)

    def settle(self, result: SearchResult, target: Target, confirmed: bool) -> None:
        if confirmed:
            records.confirm(result.kernel, target)
        elif result.former is not None:
            records.record_choice(result.kernel, target, result.former)
        else:
            records.remove(result.kernel, target)


def _first_guesses(kernel: Kernel | Rows, target: Target) -> list[Candidate]:
    """Return the candidates recorded for a kernel here or elsewhere, or for kernels that differ in extents alone,
    without those that cannot be used."""
    texts = [
        records.text_of(kernel, target),
        *records.list_guesses(kernel, target),
        *records.list_similar_guesses(kernel, target),
    ]
    return [c for text in texts if (c := candidate_of(kernel, target, text)) is not None]


CPU = Cpu()
