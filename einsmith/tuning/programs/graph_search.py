"""Tune the graph of a program: find the passes without which it is faster.

Every pass that can be left out and that changes the program is a gene, on or off: what is recomputed, shared, folded or
stored, and whether tensors get other layouts. Genes are switched one after the other, in order of the time of the
resulting kernels, measured where tuning has measured them and predicted where not. The two forms of the program race in
whole steps by turns. A form that is significantly faster and computes equal results becomes the current program, in
which the next gene is switched. Kernels are tuned afterwards, since the graph decides which kernels there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError, CompileError
from einsmith.driver.backend import RaceResult
from einsmith.driver.executable import FINITE, Executable
from einsmith.passes.pipeline import EPILOGUE_SUMS, LAYOUTS, TOGETHER, optional
from einsmith.schedule.kernel import Rows
from einsmith.schedule.plan import Plan
from einsmith.schedule.printer import layouts

MAX_PRICE_RATIO = 1.5
"""Largest price of a form that is raced, as a multiple of the present program's price."""
MAX_KEPT_RATIO = 0.98
"""Largest time of a form that is kept, as a fraction of the present program's; smaller gains are lost in noise."""


@dataclass(frozen=True)
class ProgramForm:
    """A program compiled without some passes, with the seconds of its kernels by measurements and predictions."""

    run: Executable
    price: float


@dataclass
class GraphReport:
    """The result of a search over forms of the graph.

    before, after: median seconds of a step, by the last decisive race; tried: forms that raced; log: the outcome of
    each gene, in words; run: the resulting program.
    """

    run: Executable
    before: float = 0.0
    after: float = 0.0
    tried: int = 0
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)

    @property
    def without(self) -> frozenset[str]:
        """Return the names of the passes that the program is compiled without."""
        return self.run.without

    def __str__(self) -> str:
        passes = f"without {', '.join(sorted(self.without))}" if self.without else "all passes are kept"
        return "\n".join([f"{self.tried} variants of the graph tried in {self.seconds:.0f} s: {passes}", *self.log])


def planned(plan: Plan) -> list[str]:
    """Return the parts of planning that changed a plan (`pipeline.PLAN_PASSES`)."""
    takes_sums = any(isinstance(c.kernel, Rows) and c.kernel.takes_sums for _, c, _ in plan.kernel_calls())
    used = (EPILOGUE_SUMS, takes_sums), (LAYOUTS, bool(layouts(plan))), (TOGETHER, bool(plan.together))
    return [name for name, is_used in used if is_used]


def genes(run: Executable) -> list[str]:
    """Return the passes that may be switched: those that change the program, and those that it is compiled without."""
    changing = {*run.changes.tensors, *run.without, *planned(run.plan)}
    return [name for name in dict.fromkeys(optional()) if name in changing]


def price(run: Executable) -> float:
    """Return the seconds of a run as the sum over its kernels, measured or predicted."""
    total = 0.0
    for call, kernel, turns in zip(run.calls, run.kernels, run.turns, strict=True):
        seconds = None if kernel.unfollowed else run.backend.find_measured_seconds(call.kernel, run.target)
        total += turns * (kernel.seconds if seconds is None else seconds)
    return total


def tune(
    run: Executable, inputs: Sequence[np.ndarray], seconds: float, tell: Callable[[str], None] = lambda _: None
) -> GraphReport:
    """Search the genes of a program by running it on these inputs, for about `seconds`.

    Stores of the runs are undone; no other thread may use the program meanwhile. Programs compiled from then on from an
    equal graph use the result.
    """
    begun = time.monotonic()
    end = begun + seconds
    report = GraphReport(run)

    def say(what: str) -> None:
        report.log.append(f"  {what}")
        tell(what)

    forms: dict[str, ProgramForm] = {}
    for gene in genes(run):
        form = _switch(run, gene, say) if time.monotonic() < end else None
        if form is not None:
            forms[gene] = form
    current, limit = run, MAX_PRICE_RATIO * price(run)
    for gene in sorted(forms, key=lambda g: forms[g].price):
        name = f"{'with' if gene in current.without else 'without'} {gene}"
        if forms[gene].price > limit:
            ratio = forms[gene].price / limit * MAX_PRICE_RATIO
            say(f"{name}: not tried, as its kernels should take {ratio:.2f} times as long")
            continue
        if time.monotonic() > end:
            say(f"{name}: not tried, as no time is left")
            continue
        candidate = forms[gene] if current is run else _switch(current, gene, say)
        if candidate is None:
            continue
        report.tried += 1
        raced = race(current, candidate.run, inputs, end - time.monotonic())
        if raced is None:
            say(f"{name}: the loss is not finite, so its steps cannot be compared")
            continue
        say(f"{name}: {raced.ratio:.3f} of the time{f', while {raced.busy}' if raced.busy else ''}")
        if raced.busy or not raced.decides or raced.high >= 1 or raced.ratio > MAX_KEPT_RATIO:
            continue
        if fault := difference(current, candidate.run, inputs):
            say(f"{name}: rejected: {fault}")
            continue
        report.before, report.after = report.before or raced.first, raced.second
        spread, current = (raced.high - raced.low) / 2, candidate.run
        current.backend.keep_omitted_passes(
            current.source_graph, current.target, current.without, report.after, spread, report.before
        )
    report.run, report.seconds = current, time.monotonic() - begun
    return report


def tune_graph(run: Executable, inputs: Sequence[np.ndarray], seconds: float) -> tuple[Executable, float]:
    """Return the program after a graph search of `seconds`, and the seconds left. A budget below one second skips the
    search."""
    if seconds < 1:
        return run, seconds
    report = tune(run, inputs, seconds)
    return report.run, seconds - report.seconds


def _switch(run: Executable, gene: str, say: Callable[[str], None]) -> ProgramForm | None:
    """Return the program with one gene switched; None where that changes nothing or fails."""
    try:
        switched = run.compile_without(run.without ^ {gene})
    except (ArgumentError, CompileError) as e:  # MemoryLimitError: it needs more memory than allowed
        say(f"{gene} cannot be switched: {e}")
        return None
    kernels = [[(c.kernel, n) for c, n in zip(r.calls, r.turns, strict=True)] for r in (run, switched)]
    return None if kernels[0] == kernels[1] else ProgramForm(switched, price(switched))


def race(first: Executable, second: Executable, inputs: Sequence[np.ndarray], seconds: float) -> RaceResult | None:
    """Run steps of two forms of a program in turns; None where the loss is not finite, so that not all kernels run."""
    with first.preserve():
        if FINITE in (first(inputs)[0], second(inputs)[0]):
            return None
        return first.backend.race(lambda: first(inputs), lambda: second(inputs), seconds)


def difference(first: Executable, second: Executable, inputs: Sequence[np.ndarray]) -> str:
    """Describe how a step of the second program differs from one of the first, beyond rounding; empty if it does not.

    Two results may differ in half of their digits. The digits count from the largest element of an output; for stored
    tensors, from the largest change that the step makes to any tensor of the type, as some gradients are only the
    residue of terms that cancel.
    """
    leaves = [leaf for leaf, _ in first.source_graph.updates if leaf in first.bound]
    outputs: list[list[np.ndarray]] = []
    ends: list[list[np.ndarray]] = []
    with first.preserve():  # no other thread steps between the two runs
        starts = [_wide(leaf.dtype, first.bound[leaf]) for leaf in leaves]
        for run in (first, second):
            with run.preserve():
                outputs.append(
                    [_wide(t.dtype, a) for t, a in zip(first.source_graph.outputs, run(inputs)[1], strict=True)]
                )
                ends.append([_wide(leaf.dtype, run.bound[leaf]) for leaf in leaves])
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
