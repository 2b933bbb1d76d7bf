"""Describe which intermediate results of a program are never stored, and why others are that need not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any

from einsmith.base.sizes import show_size
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Tensor, nbytes
from einsmith.kernels import autoconfig
from einsmith.kernels.rows.rows_cost import RowsConfig, Traversal, traversal
from einsmith.schedule.kernel import Rows
from einsmith.schedule.plan import KernelCall, LoopCall, Plan
from einsmith.schedule.printer import namer
from einsmith.tuning.kernels.decisions import choice_of


def results_of(plan: Plan, target: Target, decisions: list[str]) -> list[dict[str, Any]]:
    """Return, for each kernel of a plan, its results that are never stored and those that need not be.

    Args:
        plan: the plan.
        target: the machine.
        decisions: decision text of each kernel ("": the cost model's choice).

    Returns:
        A dictionary for each kernel. `unstored`: type and bytes of the results of a row-block fusion that are never
        stored. `seconds`: predicted seconds of the fusion. `apart`: those of the separate `kernels` that it was
        compared with; None if it was with none. `more`: bytes that it holds more at once than they do.
        `order`: the order in which it runs (`kernels.rows.rows_cost.Traversal`), as a dictionary; None if the back end
        chooses another one. `stored`: name, type and bytes of each large result that a fused kernel might use up, the
        reason for which it is stored, and the predicted seconds of both ways, if they were compared.
    """
    calls = list(_calls(plan))
    return [_results(call, own, name, target, text) for (call, own, name), text in zip(calls, decisions, strict=True)]


def _calls(plan: Plan) -> Iterator[tuple[KernelCall, Plan, Callable[[Tensor], str]]]:
    """Yield each kernel call in the order of `Plan.kernel_calls`, with the plan that contains it and the function that
    names its tensors."""
    name = namer(plan)
    for call in plan.calls:
        if isinstance(call, LoopCall):
            yield from ((c, plan, name) for c in call.before)
            for step in call.plans:
                yield from _calls(step)
        else:
            yield call, plan, name


def _results(
    call: KernelCall, plan: Plan, name: Callable[[Tensor], str], target: Target, decision: str
) -> dict[str, Any]:
    kernel = call.kernel
    out: dict[str, Any] = {"unstored": [], "stored": []}
    if isinstance(kernel, Rows) and kernel.local:
        choice = choice_of(kernel, target, decision)
        config = choice.config
        out |= {
            "unstored": [{"type": f"{b.dtype.name}{list(b.shape)}", "bytes": b.nbytes} for b in kernel.local],
            "seconds": choice.cost.seconds,
            "kernels": len(call.parts),
            "apart": None if call.prices is None else call.prices.apart,
            "more": 0 if call.prices is None else call.prices.more_bytes,
            "order": _as_dict(traversal(kernel, config, target, autoconfig))
            if isinstance(config, RowsConfig)
            else None,
        }
    for t, written in zip(call.tensors, call.written, strict=True):
        refusal = plan.refusals.get(t) if written else None
        if refusal is not None:
            facts = {"name": name(t), "type": f"{t.dtype.name}{list(t.shape)}", "bytes": nbytes(t)}
            out["stored"].append(facts | refusal._asdict())
    return out


def _as_dict(x: Traversal) -> dict[str, Any]:
    return x._asdict() | {"sweeps": [_as_dict(s) for s in x.sweeps]}


def lines_of(results: Mapping[str, Any]) -> list[str]:
    """Return a kernel's entry of `results_of` as text: two lines on what is never stored, one on each other result."""
    lines = []
    if results["unstored"]:
        counts = Counter((x["type"], x["bytes"]) for x in results["unstored"])
        types = ", ".join(
            f"{f'{count} times ' if count > 1 else ''}{type_} {show_size(n)}" for (type_, n), count in counts.items()
        )
        alone = f"; {results['kernels']} separate kernels {us(results['apart'])}" if results["apart"] else ""
        alone += f"; holds {show_size(results['more'])} more at once" if results["more"] else ""
        lines.append(f"never stored: {types} (predicted {us(results['seconds'])}{alone})")
        if results["order"]:
            lines.append(f"order: {_show_order(results['order'])}")
    for x in results["stored"]:
        times = "" if x["streamed"] is None else f" ({us(x['streamed'])}, with it {us(x['stored'])})"
        lines.append(f"stored: {x['name']} {x['type']} {show_size(x['bytes'])}: {x['reason']}{times}")
    return lines


def _show_order(order: Mapping[str, Any]) -> str:
    """Describe a traversal, equal sweeps in a row together."""
    inner = []
    for head, group in groupby(order["sweeps"], _show_blocks):
        sweeps = list(group)
        if any(s["sweeps"] for s in sweeps):
            inner += [_show_order(s) for s in sweeps]
        else:
            counts = ", ".join(str(s["kernels"]) for s in sweeps)
            inner.append(f"{len(sweeps)} sweep{'s' * (len(sweeps) > 1)} over {head} ({counts} kernels)")
    if order["kernels"]:
        inner.append(f"{order['kernels']} kernel{'s' * (order['kernels'] > 1)}")
    return f"{_show_blocks(order)}: {' and '.join(inner)}"


def _show_blocks(order: Mapping[str, Any]) -> str:
    active = "" if order["active"] is None else f", {order['active']:.0%} of these blocks active"
    return f"{order['rows']} rows, {order['block']} at a time{active}"


def us(seconds: float) -> str:
    """Format seconds in microseconds."""
    return f"{seconds * 1e6:.1f} us"
