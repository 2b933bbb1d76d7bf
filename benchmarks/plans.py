"""Plans of networks' training steps, for which no machine code is made."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from einsmith.base import environment


@contextmanager
def uncompiled() -> Iterator[None]:
    """Programs of the processor are planned and priced inside the `with` block, and no kernel is compiled. No plan is
    read from disk or kept there: without code it fits no program that runs."""
    from einsmith.driver.cpu import CPU
    from einsmith.kernels.autoconfig import predicted
    from einsmith.schedule.compiled_kernel import CompiledKernel

    def compile_nothing(kernels: Sequence[Any], target: Any) -> list[CompiledKernel]:
        return [CompiledKernel(((0, 1, False),), 0, 0, "", "", predicted(k, target), 0) for k in kernels]

    held, CPU.compile = CPU.compile, compile_nothing  # type: ignore[method-assign]
    try:
        with mock.patch.dict(os.environ, {environment.PLANS.name: "0"}):
            yield
    finally:
        CPU.compile = held  # type: ignore[method-assign]


@contextmanager
def without_packing(of_leaves: bool = False) -> Iterator[None]:
    """Programs that are compiled inside the `with` block never pack an operand into a buffer, and packing costs nothing
    by the model: their results are wrong, and their time bounds what any layout of all tensors can gain. of_leaves:
    only operands that are parameters are not packed."""
    from einsmith.schedule import pipeline
    from einsmith.schedule.kernel_calls import mark_invariant

    def mark_all(plan: Any, context: Any) -> Any:
        tensors = {x for x, _ in plan.graph.updates} if of_leaves else {t for c in plan.calls for t in c.operands}
        return mark_invariant(plan, tensors)

    passes = tuple(replace(p, run=mark_all) if p.name == "constants" else p for p in pipeline.PLAN_PASSES)
    with mock.patch.object(pipeline, "PLAN_PASSES", passes), mock.patch.dict(os.environ, {environment.PLANS.name: "0"}):
        yield


def touch(run: Any) -> None:
    """Write ones into a program's memory of intermediate results: packed operands that nothing packs lie in pages that
    were never written, which are all one page in the caches."""
    block = run.binding.arena.block
    np.frombuffer((ctypes.c_char * block.nbytes).from_address(block.address), np.uint8).view(np.float32)[:] = 1.0


def begun(problem: Any, threads: int) -> tuple[Any, tuple[Any, ...]]:
    """A problem's training step, which has no program yet, and a batch."""
    from benchmarks import worker

    session = worker.build(problem, problem.arrays(), threads, "einsmith")
    return session.trainer, session.batch


def program_of(step: Any) -> Any:
    """The only program of a training step."""
    (run,) = step.compiler.programs.values()
    return run


def function_program(function: Any) -> Any:
    """The only program of a function of `es.jit`."""
    ((run, _),) = function._cache.values()
    return run


def planned(problem: Any, threads: int) -> Any:
    """The program of a problem's training step; it has a plan and a target, and cannot be run."""
    step, batch = begun(problem, threads)
    with uncompiled():
        step.compile(*batch)
    return program_of(step)


def seconds_of(run: Any) -> float:
    """Return the predicted seconds of a planned program, by what its tensors find in the caches."""
    from einsmith.kernels.autoconfig import predicted
    from einsmith.schedule.residency import plan_seconds

    return plan_seconds(run.plan, predicted, run.target)


def moves(run: Any) -> dict[str, int]:
    """Return a program's calls of kernels, the "copies" among them, which only move elements, and the operands of
    products that every run packs into the order of register tiles ("packed"), loops over rows left out."""
    from einsmith.ir.nodes import Piece
    from einsmith.kernels.contraction.config import Tiled
    from einsmith.kernels.contraction.emission.launches import invariant_sides
    from einsmith.schedule.contraction_problem import problems
    from einsmith.schedule.kernel import Rows
    from einsmith.tuning.kernels.decisions import choice_of

    copies = packed = 0
    for call, compiled in zip(run.calls, run.kernels, strict=True):
        k = call.kernel
        copies += all(
            _is_read(e) for s in k.stages for p in s.template.parts if isinstance(p, Piece) for e in p.bodies
        )  # fmt: skip
        if isinstance(k, Rows) or compiled.pattern != "contraction":
            continue
        configs = choice_of(k, run.target, compiled.decision).config.pieces
        for p, c in zip(problems(k.root) or (), configs, strict=True):
            if isinstance(c, Tiled):
                once = invariant_sides(k, p, c.swap)
                packed += sum(
                    how == "panel" or (how == "buffer" and s not in once) for s, how in (("a", c.a), ("b", c.b))
                )
    return {"calls": len(run.calls), "copies": copies, "packed": packed}


def _is_read(e: Any) -> bool:
    """Return whether an expression is an element of a tensor, converted or not."""
    from einsmith.ir.nodes import Apply, Read

    while isinstance(e, Apply) and e.fn == "cast":
        e = e.args[0]
    return isinstance(e, Read)
