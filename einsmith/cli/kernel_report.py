"""Format what `einsmith explain` knows of a program and its kernels, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einsmith.driver.streaming import lines_of, us
from einsmith.kernels.autoconfig import SCALAR
from einsmith.kernels.pattern import Cost
from einsmith.schedule.decision_report import ReportedDecision, decision_lines


def seconds_of(kernel: Mapping[str, Any], measured: bool) -> float:
    """Return a kernel's measured or predicted seconds in all turns of its loop."""
    return kernel["measured"] if measured else kernel["predicted"]["seconds"] * kernel["turns"]


def terms(cost: Cost) -> dict[str, float]:
    """Return a predicted cost and its terms in seconds: max(arithmetic, memory) plus special functions and launches."""
    return {name: getattr(cost, name) for name in ("seconds", "arithmetic", "memory", "special", "launch")}


def text_of(report: dict[str, Any]) -> str:
    """Format the report as text: one block per kernel, in microseconds, and the sums by role."""
    kernels = report["kernels"]
    several = len(report["parts"]) > 2
    lines = [
        f"{len(kernels)} kernels, {report['machine']['shares']}, arena {report['arena_bytes'] / 2**20:.2f} MiB, "
        f"compiled in {report['compile_seconds']:.2f} s"
    ]
    lines += decision_lines([ReportedDecision(**x) for x in report["decisions"]])
    for n, k in enumerate(kernels):
        measured = "" if k["measured"] is None else f", measured {us(k['measured'])}"
        measured += ", tuned" if k["tuned"] else ""
        times = f" {k['turns']} times" if k["turns"] > 1 else ""
        role = f"{k['role']}  " if several else ""
        lines += ["", f"{n:3d}  {k['kernel']}  {role}{k['root']}"]
        lines.append(f"     predicted {us(k['predicted']['seconds'])}{times}{measured}{_beside_scalar(k)}")
        if k["unfollowed"]:
            lines.append(f"     {k['unfollowed']}")
        if len(k["fused"]) > 1:
            lines.append(f"     {describe_fusion(k)}")
        lines += [f"     {line}" for line in (*k["code"], *lines_of(k["results"]), *candidate_lines(k))]
    lines.append("")
    for x in report["layouts"]:
        lines.append(f"layout: {describe_layout(x)}: {', '.join(x['tensors'])}")
    lines += map(describe_refused_join, report["refused_joins"])
    lines += [f"copy: {x['text']}" for x in report["copies"]]
    parts = report["parts"] if several else report["parts"][-1:]
    return "\n".join([*lines, f"fusion: {fused_in_all(report)}", *map(_times, parts)])


def _beside_scalar(kernel: Mapping[str, Any]) -> str:
    """Compare a kernel's prediction with that of scalar code on one core."""
    if not kernel["scalar"]:
        return ""
    return f", scalar code {us(kernel['scalar'])} ({kernel['scalar'] / kernel['predicted']['seconds']:.1f} times)"


def describe_layout(layout: Mapping[str, Any]) -> str:
    """Describe the layout of tensors that are stored in another order, and the next best order."""
    second = f" (next best: {layout['next']})" if layout["next"] else ""
    return f"{'copies of ' if layout['copies'] else ''}{layout['type']}, {layout['layout']}{second}"


def describe_refused_join(join: Mapping[str, Any]) -> str:
    """Describe products that are not joined, with both prices."""
    numbers, types = ", ".join(map(str, join["kernels"])), ", ".join(dict.fromkeys(join["types"]))
    return (
        f"apart: products {types} of kernels {numbers}: predicted {us(join['apart'])} with what reads them, "
        f"as one product {us(join['joined'])}"
    )


def describe_fusion(kernel: Mapping[str, Any]) -> str:
    """Describe the stages of a fused kernel, and the predicted gain of joining them."""
    f = kernel["fusion"]
    gain = ""
    if f:
        reward = f"gain {us(f['reward'])}" if f["reward"] > 0 else f"{us(-f['reward'])} more for less memory"
        gain = f" ({us(f['fused'])}, {f['kernels']} separate kernels {us(f['apart'])}, {reward})"
    return f"fused: {' -> '.join(kernel['fused'])}{gain}"


def fused_in_all(report: Mapping[str, Any]) -> str:
    """Describe fusion in the whole program: the number of kernels with and without it, and its predicted gain."""
    f = report["fusion"]
    return f"{f['launched']} kernels instead of {f['apart']}, which gains {us(f['reward'])}"


def candidate_lines(kernel: Mapping[str, Any]) -> list[str]:
    """List the chosen candidate of a kernel and the alternatives, each with the terms of its prediction."""
    lines = []
    for c in kernel["candidates"]:
        p = c["predicted"]
        parts = ", ".join(f"{x} {p[x] * 1e6:.1f}" for x in ("arithmetic", "memory", "special", "launch") if p[x])
        alone = "" if c["alone"] is None else f"  alone {us(c['alone'])}"
        mark = "*" if c["taken"] else " "
        lines.append(f"{mark} {us(p['seconds']):>11}{alone}  {c['pattern']} {c['config']}")
        if c["counts"]:
            parts += "; " + ", ".join(f"{c['counts'][x]:,} {x}" for x in ("floats", "moves", "special"))
        if c["ruled_out"]:
            parts += f"; not considered, as {kernel['pattern']} is known to be at least as fast"
        lines.append(f"    {parts}")
    more = kernel["considered"] - sum(c["pattern"] != SCALAR.name for c in kernel["candidates"])
    return [*lines, f"  and {more} more"] if more > 0 else lines


def summary(report: Mapping[str, Any]) -> str:
    """Summarize the report in one line."""
    return f"{len(report['kernels'])} kernels, {_times(report['parts'][-1])}"


def _times(part: Mapping[str, Any]) -> str:
    measured = "" if part["measured"] is None else f", measured {us(part['measured'])}"
    return f"{part['part']}: predicted {us(part['predicted'])}{measured}"
