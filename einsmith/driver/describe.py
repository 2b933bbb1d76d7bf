"""Describe a program as text."""

from __future__ import annotations

from einsmith.base.html import Bar
from einsmith.base.sizes import show_size
from einsmith.driver.binding import Binding
from einsmith.driver.streaming import lines_of, results_of
from einsmith.ir.nodes import nbytes
from einsmith.ir.recurrence.chunks.readers import CHUNK_FORM
from einsmith.ir.recurrence.chunks.report import report_recurrences
from einsmith.ir.rewrite.narrow import report_masks
from einsmith.ir.rewrite.separate_exponentials import report_exponentials
from einsmith.runtime.assemble import label, show_kernels
from einsmith.schedule.decision_report import decision_lines, report_decisions
from einsmith.schedule.printer import copies, layouts
from einsmith.schedule.roles import saved_results


def describe(binding: Binding, held_bytes: int) -> str:
    """Describe a program, line by line.

    The lines name the passes that changed the graph and by how many tensors; how recurrences take their steps, and why;
    how many exponentials would separate by permission; masks without windows; the decisions of a graph search; tensors
    saved for the backward pass; changed layouts; copies; each kernel's role, pattern, configuration, tasks, predicted
    time (of one iteration of its loop) and formula, its results that are never stored and those that need not be; the
    predicted time of each part of a training step.

    Args:
        binding: the program.
        held_bytes: bytes that a run holds in all.
    """
    compiled, calls = binding.compiled, binding.calls
    again = sum(call.is_recomputation for call in calls)
    lines = [
        f"{len(calls)} kernels{f', {again} of them recomputations' if again else ''}, arena "
        f"{binding.arena_bytes / 2**20:.2f} MiB of {show_size(held_bytes)} in all, "
        f"{compiled.target.describe_shares(compiled.threads)}"
    ]
    if compiled.changes.tensors:
        lines.append(f"passes: {compiled.changes}")
    lines += report_recurrences(compiled.source_graph, CHUNK_FORM in compiled.changes.tensors)
    if not compiled.numerics.separate_exponentials:
        lines += report_exponentials(compiled.source_graph)
    lines += report_masks(compiled.source_graph)
    lines += decision_lines(report_decisions(compiled.plan, compiled.decisions))
    if saved := saved_results(compiled.plan):
        lines.append(f"held for the backward pass: {len(saved)} tensors, {sum(map(nbytes, saved)) / 2**20:.2f} MiB")
    lines += map(str, (*layouts(compiled.plan), *copies(compiled.plan)))
    results = results_of(compiled.plan, compiled.target, [k.decision for k in compiled.kernels])
    notes = [lines_of(x) for x in results]
    return "\n".join([*lines, *show_kernels(binding.roles, calls, compiled.kernels, binding.turns, notes)])


def list_bars(binding: Binding) -> list[Bar]:
    """Return what each kernel computes, its role, and its predicted seconds in a run, in order."""
    calls, kernels = binding.calls, binding.compiled.kernels
    return [
        (label(call), "again" if call.is_recomputation else role, kernel.seconds * turns)
        for role, call, kernel, turns in zip(binding.roles, calls, kernels, binding.turns, strict=True)
    ]
