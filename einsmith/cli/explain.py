"""Explain a program's kernels for `einsmith explain`: what they compute, why they were chosen, how long they take."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import numpy as np

from einsmith.base import environment, files, recording
from einsmith.base.errors import DeviceError
from einsmith.base.system import processors
from einsmith.cli.kernel_report import seconds_of, summary, terms, text_of
from einsmith.cli.programs import program, to_be_written
from einsmith.cost.facts import Target, of_instruction_set
from einsmith.driver import registry
from einsmith.driver.bound_program import BoundProgram
from einsmith.driver.live import kinds_of, live_bytes
from einsmith.driver.other_cpu import OtherCpu
from einsmith.driver.streaming import results_of
from einsmith.gpu.cards import CARDS
from einsmith.ir.nodes import ROLES, Tensor, nbytes, size
from einsmith.kernels import autoconfig
from einsmith.kernels.autoconfig import predicted
from einsmith.kernels.pattern import Cost
from einsmith.passes.algebra.join_products import refused_joins
from einsmith.passes.context import PassContext
from einsmith.schedule.decision_report import report_decisions
from einsmith.schedule.kernel import MemberKernel, Rows
from einsmith.schedule.plan import JoinPrices, KernelCall, Plan
from einsmith.schedule.printer import copies, label, layouts, namer, show_calls
from einsmith.schedule.split_kernel import split_stages
from einsmith.tuning.kernels import override
from einsmith.tuning.kernels.decisions import choice_of, name_of


def explain(
    what: str,
    *,
    batch: int | None,
    shapes: Sequence[str],
    settings: Sequence[str],
    candidates: int,
    measure: bool,
    threads: int | None,
    device: str | None,
    target: str | None = None,
    counts: bool = False,
    memory_limit: int | None,
    max_stored: int | None,
    overrides: Sequence[str],
    as_json: bool,
    html: Path | None,
    dump: Path | None = None,
    trace: Path | None = None,
) -> None:
    """Compile a model's training step, a Python file's `step` or a formula, and print its kernels.

    target: an instruction set of another CPU (`cost.microarchitectures.VECTORS`), for which kernels are chosen, and
    priced by the rates of a common processor; counts: count the instructions of each candidate;
    overrides: each a kernel's digest, a pattern and genes (`tuning.kernels.override`); html: file for a page
    instead; dump: folder for the graph after every pass, the plan, the arena and the program
    (`passes.listings.FileListing`); trace: file for the phases of compilation and a run as Chrome trace events."""
    decisions = [x.partition(" ") for x in overrides]
    if len({name for name, _, _ in decisions}) < len(decisions):
        raise click.UsageError("--override is given twice for one kernel")
    if html is not None and files.exists(html) and files.exists(what) and os.path.samefile(html, what):
        raise click.UsageError(f"--html {html} is the file that is explained; name another one")
    if target is not None and (device is not None or measure or trace is not None):
        raise click.UsageError(
            "--target names a CPU that programs do not run on; leave out --device, --measure, --trace"
        )
    if trace is not None and trace == html:
        raise click.UsageError(f"--trace and --html both name {trace}")
    with (
        to_be_written(html, "--html") if html is not None else nullcontext(),
        to_be_written(trace, "--trace") if trace is not None else nullcontext(),
    ):
        dumping = environment.setting(environment.DUMP, None if dump is None else str(dump))
        with (
            override.overriding({name: text.strip() for name, _, text in decisions}),
            dumping,
            environment.setting(environment.DEVICE, device and available(device)),
            registry.compiling_for(OtherCpu(of_instruction_set(target))) if target else nullcontext(),
            recording.recording() if trace is not None else nullcontext() as recorder,
        ):
            run, inputs, batch = program(what, batch, shapes, settings, threads, memory_limit, max_stored)
            if recorder is not None and trace is not None:
                run.record(recorder, inputs)
                recorder.write(trace)
            report = {"what": what, "batch": batch} | gather(run, inputs, candidates, measure, counts)
        if html is not None:
            from einsmith.cli.report_page import page  # imported late: few reports are pages

            files.write(html, page(report))
    if as_json:
        click.echo(json.dumps(report))
    elif html is not None:
        click.echo(f"{html}: {summary(report)}")
    else:
        click.echo(text_of(report))


def available(device: str) -> str:
    """Return a device as `registry.check_device` does; where it is a card that is not there, the name of the first kind
    of card, for which programs are compiled all the same, after a message."""
    name = registry.check_device(device)
    try:
        registry.target_of(name, 1)
    except DeviceError as e:
        kind = next(iter(CARDS))
        click.echo(f"compiled for an {CARDS[kind].card}: {e}", err=True)
        return kind
    return name or device


# ------------------------------------------------------------------------------------------------------ the report


def gather(
    run: BoundProgram, inputs: Sequence[np.ndarray], candidates: int, measure: bool, counts: bool = False
) -> dict[str, Any]:
    """Return the report on a program, ready for JSON; times are in seconds.

    measure: also the median time of each kernel inside whole runs, for all turns of its loop together (a prediction is
    for one of the `turns`), and of each shown candidate alone, with warm caches. `fusion`, per turn: the number of
    kernels that were joined, their predicted seconds, `fused` and `apart`, and the `reward`, the difference; None where
    no price decided. `call`: number of the kernel's call in the plan, or
    of the loop that contains it. `bytes`: size of the tensors that one turn reads and writes, each counted once.
    `tuned`: whether the configuration was found by measuring
    (`einsmith tune --list`); `unfollowed`: why a tuned configuration is not compiled, else "". `share`: fraction of the
    time of all kernels, measured or else predicted. `again`: whether the kernel recomputes an earlier kernel's result.
    `refused_joins`: products that might be one (`passes.algebra.join_products`), and both prices.
    `layouts`: tensors stored in another order (`order`: dimensions, outermost first), and the additional cost of the
    next best order (`more`). `copies`: tensors that lie inside others, or are copied, and both prices. `results`: those
    that are never stored, and those that need not be (`driver.streaming.results_of`). `decisions`: what was decided
    otherwise than by the cost model, because the program was measured to be faster (`schedule.graph_decisions`), and
    why a decision is ignored. `code`: what the machine code of each function of the kernel takes (registers, shared
    memory), where the back end tells it. `scalar`: predicted seconds of the kernel, or of those that are joined in it,
    in scalar code on one core (`kernels.scalar`); None where that takes one of them not. `counts` of a candidate:
    instructions that it executes, if `counts` (`loopnest.count`).
    """
    times = run.time_calls(inputs) if measure else [None] * len(run.kernels)
    places = (n for n, _, _ in run.plan.kernel_calls())
    results = results_of(run.plan, run.target, [k.decision for k in run.kernels])
    kernels = [
        _kernel(run, n, candidates, measure, counts) | {"call": place, "measured": seconds, "results": own_results}
        for n, (place, seconds, own_results) in enumerate(zip(places, times, results, strict=True))
    ]
    total = _part("in all", kernels)
    for k in kernels:
        k["share"] = seconds_of(k, measure) / (total["measured" if measure else "predicted"] or 1.0)
    roles = [r for r in ROLES if any(k["role"] == r for k in kernels)]
    return {
        "threads": run.threads,
        "machine": {"processor": processors.model(), "shares": _describe_shares(run)}
        | {name: getattr(run.target, name) for name in ("backend", "cpu", "cores", "vector_bytes", "l1", "l2", "l3")},
        "inputs": [_type(x) for x in inputs],
        "arena_bytes": run.arena_bytes,
        "compile_seconds": run.compile_seconds,
        "decisions": [x._asdict() for x in report_decisions(run.plan, run.decisions)],
        "distinct_kernels": len({k["kernel"] for k in kernels}),
        "fusion": {
            "apart": sum(k["turns"] * len(k["fused"]) for k in kernels),
            "launched": sum(k["turns"] for k in kernels),
            "reward": sum(k["turns"] * k["fusion"]["reward"] for k in kernels if k["fusion"]),
        },
        "parts": [_part(r, [k for k in kernels if k["role"] == r]) for r in roles] + [total],
        "again": _part("again", [k for k in kernels if k["again"]]),
        "kernels": kernels,
        "memory": _memory(run, kernels),
        "layouts": [
            {
                "tensors": list(x.names),
                "type": x.type,
                "order": list(x.order),
                "layout": x.order_name,
                "copies": x.copies,
                "next": x.next_best,
                "more": x.more,
            }
            for x in layouts(run.plan)
        ],
        "refused_joins": _refused_joins(run),
        "copies": [{**x._asdict(), "text": str(x)} for x in copies(run.plan)],
        "plan": show_calls(run.plan),
        "edges": _edges(run.plan),
    }


def _describe_shares(run: BoundProgram) -> str:
    """Describe what executes a program, with the processor where it is another one than this machine's."""
    shares = run.target.describe_shares(run.threads)
    return f"{shares} of a common processor with {run.target.cpu}" if isinstance(run.backend, OtherCpu) else shares


def _scalar_seconds(call: KernelCall, target: Target) -> float | None:
    """Return the predicted seconds of a call's kernels in scalar code; None where one of them has none."""
    parts = call.parts if isinstance(call.kernel, Rows) else (call,)
    costs = [autoconfig.price_scalar(p.kernel, target) for p in parts]
    known = [c.seconds for c in costs if c is not None]
    return sum(known) if known and len(known) == len(costs) else None


def _kernel(run: BoundProgram, n: int, candidates: int, measure: bool, counts: bool) -> dict[str, Any]:
    """Return what the report tells of kernel n that depends on the kernel alone; see `gather`."""
    call, compiled = run.calls[n], run.kernels[n]
    kernel, choice = call.kernel, choice_of(call.kernel, run.target, compiled.decision)
    return {
        "kernel": name_of(kernel)[:8],
        "role": run.roles[n],
        "again": call.is_recomputation,
        "root": label(call),
        "fused": [_stage(s.template.shape, s) for s in kernel.stages],
        "shape": [kernel.rows] if isinstance(kernel, Rows) else list(kernel.shape),
        "buffers": [_type(b) for b in kernel.buffers],
        "bytes": sum(size(b.shape) * b.dtype.itemsize for b in kernel.buffers),
        "pattern": compiled.pattern,
        "config": compiled.config,
        "tuned": compiled.tuned,
        "unfollowed": compiled.unfollowed,
        "tasks": [tasks for _, tasks, _ in compiled.launches],
        "code": run.describe_code(n),
        "predicted": terms(choice.cost),
        "fusion": _fusion(call, run.target),
        "turns": run.turns[n],
        "considered": len(choice.alternatives),
        "scalar": _scalar_seconds(call, run.target),
        "candidates": _candidates(run, choice, candidates, measure, counts),
    }


def _candidates(
    run: BoundProgram, choice: autoconfig.Choice, count: int, measure: bool, counts: bool
) -> list[dict[str, Any]]:
    """Return the candidates of a kernel that the report shows, with their seconds alone if `measure`, with scalar code
    and the numbers of instructions if `counts`."""
    taken = (choice.pattern.name, choice.config)
    shown = _select(choice.alternatives, count, taken)
    scalar = autoconfig.price_scalar(choice.kernel, run.target) if counts and count > 0 else None
    if scalar is not None:
        shown.append((autoconfig.SCALAR.name, autoconfig.SCALAR.configs(choice.kernel, run.target)[0], scalar))
    pairs = [(autoconfig.pattern_of(name), c) for name, c, _ in shown]
    alone: Sequence[float | None] = [None] * len(shown)
    if measure and count > 0:
        alone = run.backend.seconds_of(choice.kernel, pairs, run.target, run.threads)
    executed = [run.backend.count_instructions(choice.kernel, *p, run.target) if counts else None for p in pairs]
    return [
        {
            "pattern": name,
            "config": str(config),
            "predicted": terms(cost),
            "alone": seconds,
            "taken": (name, config) == taken,
            "ruled_out": name in choice.ruled_out,
            "counts": numbers,
        }
        for (name, config, cost), seconds, numbers in zip(shown, alone, executed, strict=True)
    ]


def _edges(plan: Plan) -> list[dict[str, Any]]:
    """Return the tensors that pass from call to call: from and to, numbers of calls; tensor, type, bytes; layout, the
    order of the dimensions where it is not row-major, else "".
    """
    name, maker = namer(plan), dict[Tensor, int]()
    orders = {n: x.order_name for x in layouts(plan) for n in x.names}
    out = []
    for n, call in enumerate(plan.calls):
        for t in call.operands:
            if t in maker:
                shown = name(t)
                out.append(
                    {
                        "from": maker[t],
                        "to": n,
                        "tensor": shown,
                        "type": _type(t),
                        "bytes": nbytes(t),
                        "layout": orders.get(shown, ""),
                    }
                )
        maker |= dict.fromkeys(call.results, n)
    return out


def _fusion(call: KernelCall, target: Target) -> dict[str, Any] | None:
    """Return the number of kernels that a call joins, the predicted seconds of it and of these, and those saved: by
    rows as they decided, by stages (`schedule.losses`) as kernels of one stage each.

    None where nothing is joined, and where no price of the call alone decided: whether a kernel takes sums of its
    results depends on others (`schedule.sum_calls`)."""
    count, prices = len(call.parts), call.prices
    if prices is None and not isinstance(call.kernel, MemberKernel) and len(call.kernel.stages) > 1:
        stages = [predicted(x.kernel, target) for x in split_stages(call.kernel)]
        count, prices = len(stages), JoinPrices(predicted(call.kernel, target), sum(stages))
    return None if prices is None else {"kernels": count} | prices._asdict() | {"reward": prices.apart - prices.fused}


def _part(name: str, kernels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum the seconds of kernels, in all turns of their loops, as the row `name` of the report."""
    known = all(k["measured"] is not None for k in kernels)
    return {
        "part": name,
        "kernels": len(kernels),
        "predicted": sum(seconds_of(k, False) for k in kernels),
        "measured": sum(seconds_of(k, True) for k in kernels) if known else None,
    }


def _memory(run: BoundProgram, kernels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bytes that a program holds, at rest and over time.

    `live`: bytes at each call of the plan of results that the forward pass saves for later calls (`saved`), of other
    results (`rest`) and of kernels' workspaces. `tensors`: tensors live at the peak, largest first, with their first
    and last call and the number of the kernel that makes them."""
    arrays, batch = run.fixed_bytes()
    calls = len(run.plan.calls)
    of_call: list[list[int]] = [[] for _ in range(calls)]  # numbers of the kernels of each call
    for n, k in enumerate(kernels):
        of_call[k["call"]].append(n)
    lives = run.lives()
    kinds, live = kinds_of(lives, run.plan, run.roles), live_bytes(lives, run.plan, run.roles)
    together = sum(live.values())
    at = int(np.argmax(together)) if calls else 0
    name = namer(run.plan)
    tensors = [
        {
            "name": name(x.key),
            "type": _type(x.key),
            "bytes": x.nbytes,
            "first": x.first,
            "last": x.last,
            "saved": kind == "saved",
            "kernel": of_call[x.first][0],
        }
        for x, kind in zip(lives, kinds, strict=True)
        if not isinstance(x.key, int) and x.first <= at <= x.last
    ]
    return {
        "parameters": arrays,
        "batch": batch,
        "results": run.arena_bytes,
        "scratch": run.held_bytes - arrays - batch - run.arena_bytes,
        "held": run.held_bytes,
        "peak": int(np.max(together, initial=0)),
        "peak_call": at,
        "live": {kind: list(map(int, bytes_live)) for kind, bytes_live in live.items()},
        "tensors": sorted(tensors, key=lambda t: -t["bytes"]),
    }


def _refused_joins(run: BoundProgram) -> list[dict[str, Any]]:
    """Return the products that are not joined because that is predicted to take longer: `kernels`, the numbers of those
    that compute them; `types`; predicted seconds of both ways with what reads the products, `joined` and `apart`."""
    maker = {node: n for n, (_, call, _) in enumerate(run.plan.kernel_calls()) for node in call.nodes}
    return [
        {
            "kernels": sorted({maker[m] for m in x.members}),
            "types": [_type(m) for m in x.members],
            "joined": x.joined,
            "apart": x.apart,
        }
        for x in refused_joins(run.plan.graph, PassContext(run.target, predicted))
        if all(m in maker for m in x.members)
    ]


def _type(x: Any) -> str:
    return f"{x.dtype.name}{list(x.shape)}"


def _select(
    alternatives: Sequence[tuple[str, Any, Cost]], count: int, taken: tuple[str, Any]
) -> list[tuple[str, Any, Cost]]:
    """Select the `count` cheapest alternatives, the chosen one, and the cheapest of every other pattern."""
    out = list(alternatives[: max(1, count)])
    out += [x for x in alternatives if x[:2] == taken and x not in out]
    for candidate in alternatives if count > 0 else ():
        if candidate[0] not in {name for name, _, _ in out}:
            out.append(candidate)
    return out


def _stage(shape: Sequence[int], stage: Any) -> str:
    """Describe one stage of a kernel by its kind and shape, as "sum 64x128"."""
    part = stage.template.parts[0]
    kind = getattr(getattr(part, "body", None), "combiner", None) or "pointwise"
    return f"{'scatter' if stage.template.is_scatter else kind} {'x'.join(map(str, shape)) or 'scalar'}"
