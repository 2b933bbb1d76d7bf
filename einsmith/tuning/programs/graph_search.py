"""Tune the graph of a program: measure the decisions of its passes, of fusion and of the layout choice.

A gene is a decision that may be switched (`schedule.graph_decisions`): whether a pass that changes the program is left
out, whether a tensor that a kernel passes on goes through memory instead, and the order of a tensor's dimensions. Genes
are switched one after the other, in order of the time of the resulting kernels. For a pass it is that of the compiled
form's kernels, measured where tuning has measured them and predicted where not; for a tensor, the prediction that
decided. The two forms of the program race in whole steps by turns. A form that is significantly faster in two races and
computes equal results becomes the current program, in which the next gene is switched. Kernels are tuned afterwards,
since the graph decides which kernels there are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf, sqrt
from typing import Generic

import numpy as np

from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError, CompileError
from einsmith.cost.facts import Target
from einsmith.ir.interned import Node
from einsmith.ir.nodes import Compute, Leaf, Tensor
from einsmith.ir.views import producer, storage
from einsmith.kernels.autoconfig import predicted
from einsmith.passes.pipeline import optional
from einsmith.runtime.steps import FINITE
from einsmith.schedule.decision_report import report_decisions
from einsmith.schedule.fusion import passes_on
from einsmith.schedule.graph_decisions import CUT, ORDER, WITHOUT, TensorNames, show_order, toggle
from einsmith.schedule.kernel import Rows
from einsmith.schedule.layout.apply import UnplacedError, find_held, reorder_call
from einsmith.schedule.layout.dimension_orders import permutations
from einsmith.schedule.options import EPILOGUE_SUMS
from einsmith.schedule.pipeline import JOINED, LAYOUTS, TOGETHER
from einsmith.schedule.plan import KernelCall, LayoutChoice, LoopCall, Plan
from einsmith.schedule.printer import layouts
from einsmith.schedule.split_kernel import split_stages
from einsmith.tuning.kernels.tuner import RaceResult
from einsmith.tuning.kernels.verdict import MAX_KEPT_RATIO
from einsmith.tuning.programs.tunable_program import Program, TunableProgram

MAX_PRICE_RATIO = 1.5
"""Largest price of a form that is raced, as a multiple of the present program's price."""
MIN_SHARE = 0.02
"""Smallest part of a program's time that the kernels which compute or read a tensor take for decisions on it to be
tried: from a smaller part a form cannot gain what it has to gain (`MAX_KEPT_RATIO`)."""
MAX_TENSOR_GENES = 24
"""Most decisions on tensors that are tried, those of the smallest predicted loss."""


@dataclass(frozen=True)
class ProgramForm(Generic[Program]):
    """A program compiled by other decisions, with the seconds of its kernels by measurements and predictions."""

    run: Program
    price: float


@dataclass
class GraphReport(Generic[Program]):
    """The result of a search over forms of the graph.

    after: median seconds of a step in the last race that a form has won; before: these seconds, divided by the ratios
    of all races that were won; tried: forms that raced; log: the outcome of each gene, in words; run: the resulting
    program.
    """

    run: Program
    before: float = 0.0
    after: float = 0.0
    tried: int = 0
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)

    @property
    def decisions(self) -> frozenset[str]:
        """Return what is decided otherwise than by the cost model."""
        return self.run.decisions

    def __str__(self) -> str:
        decisions = ", ".join(sorted(self.decisions)) or "the cost model decides"
        return "\n".join([f"{self.tried} variants of the graph tried in {self.seconds:.0f} s: {decisions}", *self.log])


def planned(plan: Plan) -> list[str]:
    """Return the parts of planning that changed a plan (`schedule.pipeline`)."""
    rows = [c.kernel for _, c, _ in plan.kernel_calls() if isinstance(c.kernel, Rows)]
    fused = (EPILOGUE_SUMS, any(k.takes_sums for k in rows)), (JOINED, any(k.is_joined for k in rows))
    used = *fused, (LAYOUTS, bool(layouts(plan))), (TOGETHER, bool(plan.together))
    return [name for name, is_used in used if is_used]


def pass_genes(run: TunableProgram) -> list[str]:
    """Return the decisions on optional passes that a search may switch: passes that change the program, and passes that
    are left out now."""
    changing = {*run.changes.tensors, *planned(run.plan)}
    decisions = dict.fromkeys(f"{WITHOUT} {name}" for name in optional())
    return [x for x in decisions if x in run.decisions or x.removeprefix(f"{WITHOUT} ") in changing]


def tensor_genes(run: TunableProgram) -> dict[str, float]:
    """Return the decisions on tensors that a search may switch, each with its predicted loss (seconds), least first.

    They concern tensors that kernels pass on in registers, and tensors with another dimension order of known cost, as
    far as the kernels concerned take at least MIN_SHARE of the time.
    """
    losses = {x: 0.0 for x in run.decisions if not x.startswith(f"{WITHOUT} ")}
    shares = _shares(run)
    seconds = iter(k.seconds for k in run.kernels)
    for decision, nodes, more in chain(_tensor_losses(run.plan, seconds, run.target), _leaf_losses(run)):
        if sum(shares.get(x, 0.0) for x in nodes) >= MIN_SHARE:
            losses[decision] = min(losses.get(decision, inf), more)
    ranked = sorted(losses, key=lambda x: losses[x])[:MAX_TENSOR_GENES]
    return {x: losses[x] for x in ranked}


def _shares(run: TunableProgram) -> dict[Node, float]:
    """Return, for each tensor and node, the fraction of a run's time spent in kernels that compute or read it."""
    shares: dict[Node, float] = {}
    seconds = [kernel.seconds * turns for kernel, turns in zip(run.kernels, run.turns, strict=True)]
    for call, part in zip(run.calls, seconds, strict=True):
        storages = set(map(storage, call.tensors))
        nodes: set[Node] = {*call.nodes, *storages, *(producer(t)[0] for t in storages)}
        for t in nodes:
            shares[t] = shares.get(t, 0.0) + part / sum(seconds)
    return shares


def _tensor_losses(
    plan: Plan, seconds: Iterator[float], target: Target, turns: int = 1
) -> Iterator[tuple[str, Sequence[Node], float]]:
    """Yield (decision on a tensor, tensors it concerns, seconds by which a run is predicted to be slower) for a plan
    and the plans of its loops' steps.

    seconds: the predicted seconds of each kernel, in the order of `Plan.kernel_calls`; turns: how often a run executes
    the plan.
    """
    names = TensorNames(plan.graph)
    for call in plan.calls:
        for c in call.before if isinstance(call, LoopCall) else [call]:
            for node, more in _cut_losses(c, next(seconds), target):
                yield f"{CUT} {names.of(node)}", [node], turns * more
        if isinstance(call, LoopCall):
            for segment, step in zip(call.loop.segments, call.plans, strict=True):
                yield from _tensor_losses(step, seconds, target, turns * segment.steps)
    together: dict[LayoutChoice, list[Tensor]] = {}  # tensors that were decided together have one choice
    for t, choice in (*plan.orders.items(), *plan.unchanged_orders.items()):
        together.setdefault(choice, []).append(t)
    for choice, tensors in together.items():
        if choice.runner_up is not None:
            yield f"{ORDER} {names.of(tensors[0])} {show_order(choice.runner_up)}", tensors, turns * choice.more


def _leaf_losses(run: TunableProgram) -> Iterator[tuple[str, Sequence[Leaf], float]]:
    """Yield (decision on the order of a parameter in memory, the parameter, seconds by which a run is predicted to be
    slower), for the orders that all kernels of the parameter can follow.

    Predictions only rank these decisions: they do not tell a parameter that is in a cache from one in memory."""
    held = find_held(run.plan, run.memory.owners)
    names = TensorNames(run.source_graph)
    for x in dict.fromkeys(owner for t, owner in held.items() if owner not in run.memory.placed):
        tensors = [t for t, owner in held.items() if owner is x]
        calls = [(c, n) for _, c, n in run.plan.kernel_calls() if not {*map(storage, c.tensors)}.isdisjoint(tensors)]
        for order in permutations(x.shape)[1:]:
            more = 0.0
            for call, turns in calls:
                moved = reorder_call(call, dict.fromkeys(tensors, order))
                if moved is None:
                    break
                more += turns * (predicted(moved.kernel, run.target) - predicted(call.kernel, run.target))
            else:
                yield f"{ORDER} {names.of(x)} {show_order(order)}", [x], more


def _cut_losses(call: KernelCall, seconds: float, target: Target) -> Iterator[tuple[Compute, float]]:
    """Yield the nodes whose results the kernels of a call pass on, and the predicted seconds that separate kernels take
    more: an equal part of what all kernels apart take more. seconds: of the call."""
    nodes = [n for n in call.own if isinstance(n, Compute)]
    apart: list[float] = []
    if call.parts:
        apart = [predicted(p.kernel, target) for p in call.parts]
        for part, own in zip(call.parts, apart, strict=True):
            yield from _cut_losses(part, own, target)
        within = [n for p in call.parts for n in p.nodes if passes_on(p.nodes, p.nodes, [n])]
        nodes = [n for n in nodes if n not in within]
    elif not isinstance(call.kernel, Rows):
        apart = [predicted(stage.kernel, target) for stage in split_stages(call.kernel)]
    for node in nodes if len(apart) > 1 else ():
        if passes_on(call.nodes, call.nodes, [node]):
            yield node, (sum(apart) - seconds) / (len(apart) - 1)


def price(run: TunableProgram) -> float:
    """Return the seconds of a run as the sum over its kernels, measured or predicted."""
    total = 0.0
    for call, kernel, turns in zip(run.calls, run.kernels, run.turns, strict=True):
        seconds = None if kernel.unfollowed else run.backend.find_measured_seconds(call.kernel, run.target)
        total += turns * (kernel.seconds if seconds is None else seconds)
    return total


def tune(run: Program, inputs: Sequence[np.ndarray], seconds: float) -> GraphReport[Program]:
    """Search the genes of a program by running it on these inputs, for about `seconds`.

    Stores of the runs are undone; no other thread may use the program meanwhile. Programs compiled from then on from an
    equal graph use the result.
    """
    begun = time.monotonic()
    end = begun + seconds
    report = GraphReport(run)

    def say(what: str) -> None:
        report.log.append(f"  {what}")

    present = price(run)
    forms: dict[str, ProgramForm] = {}
    for gene in pass_genes(run):
        form = _switch(run, gene) if time.monotonic() < end else None
        if isinstance(form, ProgramForm):
            forms[gene] = form
        elif form:
            say(f"{gene} cannot be switched: {form}")
    prices = {gene: form.price for gene, form in forms.items()}
    prices |= {gene: present + more for gene, more in tensor_genes(run).items()}
    current, limit, gain = run, MAX_PRICE_RATIO * present, 1.0
    known = run.decisions and run.decisions == run.backend.find_graph_decisions(run.source_graph, run.target)
    earlier = run.backend.find_graph_ratio(run.source_graph, run.target) if known else 1.0  # gained by earlier searches
    for gene in sorted(prices, key=lambda g: prices[g]):
        name = _show_switch(current, gene)
        if time.monotonic() > end:
            say(f"{name}: not tried, as no time is left")
            continue
        candidate = forms[gene] if current is run and gene in forms else _switch(current, gene)
        if not isinstance(candidate, ProgramForm):
            if gene not in forms:
                say(f"{name}: {candidate or 'changes no kernel'}")
            continue
        if candidate.price > limit:
            ratio = candidate.price / present
            say(f"{name}: not tried, as its kernels should take {ratio:.2f} times as long")
            continue
        report.tried += 1
        raced = race(current, candidate.run, inputs, end - time.monotonic())
        if raced is None:
            say(f"{name}: the loss is not finite, so its steps cannot be compared")
            continue
        say(f"{name}: {_show_ratio(raced)}")
        if not _wins(raced):
            continue
        raced = race(current, candidate.run, inputs, end - time.monotonic())
        if raced is None or not _wins(raced):  # of many forms that are as fast, some win a race by chance
            say(f"{name}: in a second race {'not finite' if raced is None else _show_ratio(raced)}")
            continue
        if fault := difference(current, candidate.run, inputs):
            say(f"{name}: rejected: {fault}")
            continue
        gain *= raced.ratio
        report.before, report.after = raced.second / gain, raced.second  # machines are not equally fast in all races
        spread, current = (raced.high - raced.low) / 2, candidate.run
        current.backend.keep_graph_decisions(
            current.source_graph, current.target, current.decisions, report.after, spread, report.before / earlier
        )
    for x in report_decisions(current.plan, current.decisions):
        if x.ignored:
            say(f"{x} is ignored: {x.ignored}")
    report.run, report.seconds = current, time.monotonic() - begun
    return report


def _show_ratio(raced: RaceResult) -> str:
    return f"{raced.ratio:.3f} of the time{f', while {raced.busy}' if raced.busy else ''}"


def _wins(raced: RaceResult) -> bool:
    """Return whether the second program is faster with confidence, and by enough."""
    return raced.decides and not raced.busy and raced.high < 1 and raced.ratio <= MAX_KEPT_RATIO


def _show_switch(run: TunableProgram, gene: str) -> str:
    """Return what switching a gene of a program does, in words."""
    if gene in run.decisions:
        return f"with {gene.removeprefix(f'{WITHOUT} ')}" if gene.startswith(f"{WITHOUT} ") else f"no longer {gene}"
    (reported,) = report_decisions(run.plan, [gene])
    return str(reported)


def tune_graph(run: Program, inputs: Sequence[np.ndarray], seconds: float) -> tuple[Program, float]:
    """Return the program after a graph search of `seconds`, and the seconds left. A budget below one second skips the
    search."""
    if seconds < 1:
        return run, seconds
    report = tune(run, inputs, seconds)
    return report.run, seconds - report.seconds


def _switch(run: Program, gene: str) -> ProgramForm[Program] | str:
    """Return the program with one gene switched; the reason where that fails, empty where it changes nothing."""
    try:
        switched = run.compile_deciding(toggle(run.decisions, gene))
    except (ArgumentError, CompileError) as e:  # MemoryLimitError: it needs more memory than allowed
        return str(e)
    except UnplacedError:
        return "a kernel cannot follow the order"
    kernels = [[(c.kernel, n) for c, n in zip(r.calls, r.turns, strict=True)] for r in (run, switched)]
    return "" if kernels[0] == kernels[1] else ProgramForm(switched, price(switched))


def race(
    first: TunableProgram, second: TunableProgram, inputs: Sequence[np.ndarray], seconds: float
) -> RaceResult | None:
    """Run steps of two forms of a program in turns; None where the loss is not finite, so that not all kernels run."""
    with first.preserve(), second.preserve():
        if FINITE in (first(inputs)[0], second(inputs)[0]):
            return None
        return first.backend.race(lambda: first(inputs), lambda: second(inputs), seconds)


def difference(first: TunableProgram, second: TunableProgram, inputs: Sequence[np.ndarray]) -> str:
    """Describe how a step of the second program differs from one of the first, beyond rounding; empty if it does not.

    Two results may differ in half of their digits. The digits count from the largest element of an output; for stored
    tensors, from the largest change that the step makes to any tensor of the type, as some gradients are only the
    residue of terms that cancel.
    """
    leaves = [leaf for leaf, _ in first.source_graph.updates if leaf in first.bound]
    outputs: list[list[np.ndarray]] = []
    ends: list[list[np.ndarray]] = []
    with first.preserve():  # no other thread steps between the two runs
        starts = [_wide(leaf.dtype, first.memory.read(leaf)) for leaf in leaves]
        for run in (first, second):
            with run.preserve():
                outputs.append(
                    [_wide(t.dtype, a) for t, a in zip(first.source_graph.outputs, run(inputs)[1], strict=True)]
                )
                ends.append([_wide(leaf.dtype, run.memory.read(leaf)) for leaf in leaves])
    for n, (t, x, y) in enumerate(zip(first.source_graph.outputs, *outputs, strict=True)):
        if _differ(t.dtype, x, y, _largest(x)):
            return f"output {n} differs"
    moved: dict[DType, float] = {}
    for leaf, start, x in zip(leaves, starts, ends[0], strict=True):
        moved[leaf.dtype] = max(moved.get(leaf.dtype, 0.0), _largest(x - start))
    for leaf, x, y in zip(leaves, *ends, strict=True):
        if _differ(leaf.dtype, x, y, moved[leaf.dtype]):
            return f"the value stored into {leaf.dtype.name}{list(leaf.shape)} differs"
    return ""


def _wide(dtype: DType, a: np.ndarray) -> np.ndarray:
    """Return a copy, with floats in a type that NumPy computes with."""
    return np.array(dtype.wide(a) if dtype.is_float else a)


def _largest(x: np.ndarray) -> float:
    return float(np.abs(np.where(np.isfinite(x), x, 0)).max(initial=0)) if x.dtype.kind == "f" else 0.0


def _differ(dtype: DType, x: np.ndarray, y: np.ndarray, scale: float) -> bool:
    if not dtype.is_float:
        return not np.array_equal(x, y)
    with np.errstate(all="ignore"):
        allowed = sqrt(dtype.eps) * scale + 4 * dtype.eps * _largest(x)
        return bool((~((np.abs(x - y) <= allowed) | (x == y) | (np.isnan(x) & np.isnan(y)))).any())
