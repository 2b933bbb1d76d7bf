"""Tune a program: search each of its kernels alone, and keep a faster configuration where it is faster in the program
too."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Annotated, Generic

import numpy as np

from einsmith.base import environment
from einsmith.base.errors import ArgumentError, EinsmithWarning
from einsmith.base.system.processes import can_wait_for_pipes
from einsmith.runtime.steps import FINITE
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.kernels.tuner import CHEAPEST, Effort, Part, SearchResult, Tell
from einsmith.tuning.programs.trial import PairedTimes, sum_by_kernel
from einsmith.tuning.programs.tunable_program import Program, TunableProgram

MAX_ROUNDS = 25
"""Most runs of a program in each of the two forms that are run in turns."""
CONFIRM_SHARE = 0.15
"""Fraction of the tuning time that is reserved for runs of the whole program."""
Seconds = Annotated[float, 0, 7 * 86400]
"""Duration of a search; more than a week is rejected as a mistaken unit."""
GRAPH = "graph"
GRAPH_SECONDS = 60.0
"""Seconds to tune the graph, and again as many to tune its kernels, with tune="graph"."""
FIRST_CALL = "first-call"
LEAST_RACE_SECONDS = 2.0
"""Fewest seconds that a program's kernels are raced for with tune="first-call", of which starting the process that
measures takes about one."""


def parse_tune(tune: float | str) -> tuple[float, float]:
    """Return the seconds for kernels and for the graph that an option `tune` requests; infinity for kernels that are
    raced once. Raises ArgumentError for unknown words."""
    if tune == GRAPH:
        return GRAPH_SECONDS, GRAPH_SECONDS
    if tune == FIRST_CALL:
        return math.inf, 0.0
    if isinstance(tune, str):
        raise ArgumentError(f"tune={tune!r} is neither seconds nor {GRAPH!r} nor {FIRST_CALL!r}")
    return tune, 0.0


def can_measure(stack: int = 3) -> bool:
    """Return whether kernels can be measured. Warns where EINSMITH_CHECK or the system forbids it.

    stack: the frame that the warning names."""
    if environment.check_level():
        warnings.warn("programs are not tuned while EINSMITH_CHECK is set; unset it to tune", EinsmithWarning, stack)
        return False
    if not can_wait_for_pipes():
        warnings.warn("programs are not tuned on Windows: no other process can measure kernels", EinsmithWarning, stack)
        return False
    return True


def plan_search(option: float | str, run: TunableProgram, seconds: float) -> tuple[float, Effort | None]:
    """Return the seconds for the kernels of a program, and how much is measured (None: all that the time allows).

    option: what `tune` requests. With "first-call" it is as long as the compilation took, else `seconds`."""
    if option == FIRST_CALL:
        return max(run.compile_seconds, LEAST_RACE_SECONDS), CHEAPEST
    return seconds, None


def improve(run: Program, inputs: Sequence[np.ndarray], option: float | str) -> Program:
    """Return the program with faster kernels as the option `tune` of a function requests."""
    seconds, effort = plan_search(option, run, parse_tune(option)[0])
    return tune(run, inputs, seconds, effort=effort).run


@dataclass(frozen=True)
class Report(Generic[Program]):
    """The result of a search over the kernels of a program.

    results: the result of every kernel; kept: results whose configurations are used from now on; before, after: median
    seconds of a run of the program; seconds: duration of the search; run: the resulting program.
    """

    results: list[SearchResult]
    kept: list[SearchResult]
    before: float
    after: float
    seconds: float
    run: Program

    @property
    def tried(self) -> int:
        """Return the number of candidates tried, over all kernels."""
        return sum(f.tried for f in self.results)

    @property
    def busy(self) -> str:
        """Describe other load on the machine, where it kept measurements from being significantly different; else
        empty."""
        return next((f.busy for f in self.results if f.busy), "")

    def __str__(self) -> str:
        lines = [
            f"{self.tried} candidates of {sum(1 for f in self.results if f.tried)} kernels tried in {self.seconds:.0f} "
            f"s: {len(self.kept)} kept, a run takes {self.after * 1e3:.3f} ms, {self.before * 1e3:.3f} ms before"
        ]
        for f in sorted(self.kept, key=lambda f: f.turns * (f.seconds - f.prior)):
            times = f"{f.prior * 1e6:.1f} -> {f.seconds * 1e6:.1f} us"
            lines.append(f"  {name_of(f.kernel)[:8]}  {times}  {f.best}  (was {f.choice})")
        for f in self.results:
            lines += [f"  {name_of(f.kernel)[:8]}  rejected: {c}: {why}" for c, why in f.faults]
        if self.busy:
            lines.append(f"  the machine was too busy to compare some candidates with the model's choices: {self.busy}")
        return "\n".join(lines)


def parts_of(run: TunableProgram) -> list[Part]:
    """Return the kernels that a search may tune: all whose configuration is not fixed by a user's decision."""
    kernels = zip(run.calls, run.kernels, run.turns, strict=True)
    return [Part(call.kernel, turns) for call, kernel, turns in kernels if kernel.tuned or not kernel.decision]


def predict_seconds(run: TunableProgram) -> dict[Kernel, float]:
    """Return the predicted seconds of each kernel in a run, summed over all iterations of its loop."""
    out: dict[Kernel, float] = {}
    for call, kernel, turns in zip(run.calls, run.kernels, run.turns, strict=True):
        out[call.kernel] = out.get(call.kernel, 0.0) + kernel.seconds * turns
    return out


def tune(
    run: Program,
    inputs: Sequence[np.ndarray],
    seconds: float,
    tell: Tell = lambda *_: None,
    executor: Executor | None = None,
    effort: Effort | None = None,
) -> Report[Program]:
    """Search configurations for the kernels of a program by running it on these inputs, for about `seconds`.

    executor: measures kernels on other hosts of this kind; whole programs run here. effort: how much is measured of
    each kernel.

    Stores of the runs are undone; no other thread may use the program meanwhile. Programs compiled from then on with
    equal kernels get the faster configurations, as does the report's program.
    """
    begun = time.monotonic()
    results = run.backend.tune(
        parts_of(run), run.target, run.threads, seconds * (1 - CONFIRM_SHARE), tell, executor, effort
    )
    texts = {f.kernel: f.best.text for f in results if f.best}
    end = max(begun + seconds, time.monotonic() + seconds * CONFIRM_SHARE / 2)
    tuned = run
    if texts:
        try:
            ratios = alternate(run, run.with_decisions(texts), inputs, end)[2]
        except ArgumentError:  # the faster program takes more memory than it may hold
            ratios = {}
        for f in results:
            if f.best:
                run.backend.settle(f, run.target, ratios.get(f.kernel, math.inf) < 1.0)
        texts = {k: text for k, text in texts.items() if ratios.get(k, math.inf) < 1.0}
        tuned = run.with_decisions(texts)
    before, after, _ = alternate(run, tuned, inputs, end)
    kept = [f for f in results if f.kernel in texts]
    return Report(results, kept, before, after, time.monotonic() - begun, tuned)


def alternate(
    first: TunableProgram, second: TunableProgram, inputs: Sequence[np.ndarray], end: float
) -> tuple[float, float, dict[Kernel, float]]:
    """Run two forms of a program in turns until the time `end` (monotonic clock, seconds), each at least 5 and at most
    MAX_ROUNDS times.

    Returns the median seconds of each, and for each kernel the median of its time in the second form over that in the
    first. A program that ends early because its loss is not finite gives no kernel ratios.
    """
    times, totals = PairedTimes(), tuple[list[float], list[float]](([], []))
    with first.preserve():
        is_finite = FINITE not in (first(inputs)[0], second(inputs)[0])
        for n in range(MAX_ROUNDS):
            pair = {}
            for which in (0, 1) if n % 2 == 0 else (1, 0):
                run = (first, second)[which]
                pair[which] = sum_by_kernel(run, run.run_timed(inputs)[2])
                totals[which].append(sum(pair[which].values()))
            times.add(pair[0], pair[1])
            if time.monotonic() > end and n >= 4:
                break
    ratios = {c.kernel: times.ratio(c.kernel) for c in first.calls} if is_finite else {}
    return float(np.median(totals[0])), float(np.median(totals[1])), ratios
