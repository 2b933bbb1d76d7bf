"""Choose a pattern and its configuration for a kernel by predicted cost, without measuring.

A pattern answers match, configs, cost and lower (see `kernels.pattern.Pattern`); `register` adds a user's own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, cast

from einsmith.base.caches import Bound, Cache
from einsmith.base.errors import CompileError
from einsmith.base.locks import cached_property
from einsmith.cost.facts import CPU, Target
from einsmith.kernels.composite.by_kind import ByKind
from einsmith.kernels.composite.col2im import Col2im
from einsmith.kernels.composite.joined import Joined
from einsmith.kernels.composite.parts import Composite
from einsmith.kernels.composite.split_axes_pattern import SplitAxes
from einsmith.kernels.composite.step_loops_pattern import StepLoops
from einsmith.kernels.composite.summed_pattern import Summed
from einsmith.kernels.composite.winograd import Winograd
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION
from einsmith.kernels.pattern import Chooser, Cost, Pattern, cost_of, describe
from einsmith.kernels.pointwise import Pointwise
from einsmith.kernels.reduction.reduction_pattern import Reduction
from einsmith.kernels.rows.rows_pattern import RowBlocks
from einsmith.kernels.scalar import Scalar
from einsmith.kernels.scan import Scan
from einsmith.kernels.scatter.scatter_pattern import ScatterAdd
from einsmith.kernels.selection import RankSelection
from einsmith.kernels.stencil.stencil_pattern import StencilPattern
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.step_loops import StepLoop


def pattern_of(name: str) -> Pattern:
    """Return the registered pattern of this name."""
    every = (ROWS, SUMMED, JOINED, STEPS, SCALAR, *PATTERNS, *(p for patterns in OTHERS.values() for p in patterns))
    return next(p for p in every if p.name == name)


_SELF = cast(Chooser, sys.modules[__name__])
PATTERNS: list[Pattern] = [
    Pointwise(),
    StencilPattern(),
    Winograd(_SELF),
    SplitAxes(_SELF),
    CONTRACTION,
    ByKind(_SELF),
    Scan(),
    Reduction(),
    ScatterAdd(),
    RankSelection(),
    Col2im(_SELF),
]
"""The CPU's patterns in the order in which they are priced, the most often chosen first, so that later ones are pruned.
Of equal costs the earlier pattern wins."""

OTHERS: dict[str, Sequence[Pattern]] = {}
"""The patterns of back ends other than the CPU's, by back end name (`driver.registry.register`)."""


@dataclass(frozen=True)
class Choice:
    """The cheapest pattern and configuration of a kernel.

    took: seconds of this thread's CPU time for the choice, garbage collections included."""

    pattern: Pattern
    config: Any
    cost: Cost
    kernel: Kernel
    target: Target
    took: float

    @cached_property
    def alternatives(self) -> list[tuple[str, Any, Cost]]:
        """Every (pattern name, configuration, cost) worth measuring, cheapest first, the chosen one included.

        Patterns in `ruled_out` come last. Computed on demand, because choosing prunes candidates that cannot win."""
        candidates = [(self.pattern, self.config, self.cost)]
        for pattern in eligible_patterns(self.kernel, self.target):
            if pattern.match(self.kernel):
                priced = [
                    (pattern, c, cost_of(pattern, self.kernel, c, self.target))
                    for c in pattern.configs(self.kernel, self.target)
                ]
                candidates += [x for x in priced if x[:2] != candidates[0][:2]]
        candidates.sort(key=lambda f: (f[0].name in self.ruled_out, f[2].rank))
        return [(p.name, c, k) for p, c, k in candidates]

    @cached_property
    def ruled_out(self) -> Sequence[str]:
        """Return the names of the patterns that the chosen one dominates, whatever their predicted cost."""
        return self.pattern.dominates(self.kernel, self.config)


_CHOSEN: Cache[tuple, Choice] = Cache(Bound("choices of kernels", 4096))
ROWS, SUMMED, JOINED, STEPS = RowBlocks(_SELF), Summed(_SELF), Joined(_SELF), StepLoops(_SELF)
"""The patterns of a Rows, and of a StepLoop; the other patterns lower their members."""
SCALAR = Scalar()
"""The pattern of the baseline, which is never chosen; an override may name it."""


def register(pattern: Pattern) -> None:
    """Register a user's pattern; it is chosen wherever it matches and its cost is the lowest.

    Raises:
        CompileError: it is not a Pattern, or its name is taken."""
    if not isinstance(pattern, Pattern) or not isinstance(getattr(pattern, "name", None), str):
        raise CompileError(
            f"{pattern!r} is not a pattern: its class must derive from einsmith.kernels.pattern.Pattern and have a "
            "`name`"
        )
    if pattern.name in (ROWS.name, SUMMED.name, JOINED.name, STEPS.name, SCALAR.name, *(p.name for p in PATTERNS)):
        raise CompileError(f"there is a pattern {pattern.name!r} already; give the new one another name")
    PATTERNS.append(pattern)
    _CHOSEN.clear()


def choose(kernel: Kernel, target: Target) -> Choice:
    """Return the pattern and configuration of the lowest predicted cost.

    Raises:
        CompileError: no pattern matches."""
    choice = choose_below(kernel, target, inf)
    if choice is None:
        names = ", ".join(p.name for p in eligible_patterns(kernel, target))
        raise CompileError(f"no pattern ({names}) takes the kernel {describe(kernel)}")
    return choice


def predicted(kernel: Kernel, target: Target) -> float:
    """Return the predicted seconds of a kernel under the configuration that it would be compiled with."""
    return choose(kernel, target).cost.seconds


def choose_below(kernel: Kernel, target: Target, limit: float) -> Choice | None:
    """Return the cheapest pattern and configuration if its cost rank is below `limit`; else, or without match, None."""
    key = (kernel, target, len(_patterns(target)))
    choice = _CHOSEN.get(key)
    if choice is None:
        choice = _choose(kernel, target, limit)
        if choice is not None:
            _CHOSEN.put(key, choice)
    return choice if choice is not None and choice.cost.rank < limit else None


def least_of_stages(kernel: Kernel, whole: Kernel, target: Target) -> float:
    """Return the least seconds that the first stages of a fused kernel, `whole`, are expected to take as a kernel of
    their own: in the configuration of the whole, which is priced in a fraction of the time of a choice. 0 where they
    have other patterns to choose from."""
    choice = choose(whole, target)
    if isinstance(choice.pattern, Composite):
        return 0.0
    if any(p.match(kernel) and not p.match(whole) for p in eligible_patterns(kernel, target)):
        return 0.0
    return cost_of(choice.pattern, kernel, choice.config, target).seconds


def floor(kernel: Kernel, target: Target) -> float:
    """Return a lower bound (seconds) of every choice's cost under any order of the buffers' dimensions."""
    return min((p.floor(kernel, target) for p in eligible_patterns(kernel, target) if p.match(kernel)), default=0.0)


def price_scalar(kernel: Kernel, target: Target) -> Cost | None:
    """Return the predicted cost of the CPU's scalar code for a kernel; None where the baseline does not take it."""
    if target.backend != CPU or not SCALAR.match(kernel):
        return None
    return SCALAR.cost(kernel, SCALAR.configs(kernel, target)[0], target)


def eligible_patterns(kernel: Kernel, target: Target) -> Sequence[Pattern]:
    """Return the patterns that may lower a kernel on a target: those of its back end that are allowed there."""
    if isinstance(kernel, StepLoop):
        return [STEPS]
    if isinstance(kernel, Rows) and target.backend == CPU:
        return [SUMMED if kernel.takes_sums else JOINED if kernel.is_joined else ROWS]
    allowed = [p for p in _patterns(target) if p.allowed(target)]
    if kernel.sums:
        return [p for p in allowed if p.match(kernel) and p.takes_sums(kernel, target)]
    return allowed


def _patterns(target: Target) -> Sequence[Pattern]:
    return PATTERNS if target.backend == CPU else OTHERS[target.backend]


def _choose(kernel: Kernel, target: Target, limit: float) -> Choice | None:
    start, unbounded = time.thread_time(), limit == inf
    best: tuple[Pattern, Any, Cost] | None = None
    dominated: set[str] = set()
    is_cut_off = False  # whether the limit alone has excluded a pattern, which may dominate the best one
    for pattern in eligible_patterns(kernel, target):
        if pattern.name in dominated or not pattern.match(kernel):
            continue
        config = None if limit < inf and pattern.bound(kernel, target) >= limit else pattern.best(kernel, target, limit)
        if config is None:
            is_cut_off |= best is None and not unbounded
            continue
        cost = cost_of(pattern, kernel, config, target)
        if cost.rank < limit:
            best, limit = (pattern, config, cost), cost.rank
            dominated.update(pattern.dominates(kernel, config))
    if best is not None and is_cut_off:
        return _choose(kernel, target, inf)
    return None if best is None else Choice(*best, kernel, target, time.thread_time() - start)
