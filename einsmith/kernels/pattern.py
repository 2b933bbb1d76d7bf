"""What a pattern answers about a kernel: its cost, and its launches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from einsmith.errors import CompileError
from einsmith.kernels.genes import Space, space_of
from einsmith.plan.kernel import Kernel, KernelBuffer, Stage
from einsmith.target.cost import Cost
from einsmith.target.facts import Target

__all__ = ["KernelBuffer", "Chooser", "Cost", "Kernel", "Launch", "Lowered", "Pattern", "Stage", "cost_of", "describe"]


@dataclass
class Launch:
    """One parallel sweep: `function` is run for each task in 0 .. tasks-1, in any order, on any thread. What it is, its
    back end knows: on the CPU, a function of `loops.nest`. `once`: in a loop it need run but once, before the kernel's
    first run: it reads only `fixed` buffers, and what it leaves in the workspace stays."""

    function: Any
    tasks: int
    once: bool = False


@dataclass
class Lowered:
    """The launches of a kernel, in order. Each is given len(kernel.buffers) + 1 buffers: the kernel's own, then a
    workspace of `workspace` bytes that all threads and launches of the kernel share (partial sums)."""

    launches: list[Launch] = field(default_factory=list)
    workspace: int = 0


class Pattern(ABC):
    """What a pattern answers about a kernel that it takes (docs/patterns.md). A configuration is a hashable, printable
    value: a NamedTuple, a frozen dataclass, or several of them. The first four answers are everybody's own. version:
    what changes with code that Einsmith cannot see, in keys of compiled code; None where there is no such code."""

    name: str
    version: str | int | None = None

    @abstractmethod
    def match(self, kernel: Any) -> bool:
        """Whether it takes this kernel, with all its stages."""

    @abstractmethod
    def configs(self, kernel: Any, target: Target) -> Sequence[Any]:
        """The configurations worth a measurement: the first guesses of a search."""

    @abstractmethod
    def cost(self, kernel: Any, config: Any, target: Target) -> Cost:
        """Predicted seconds on all cores of the target."""

    @abstractmethod
    def lower(self, kernel: Any, config: Any, target: Target) -> Lowered:
        """The kernel's launches."""

    def space(self, kernel: Any, target: Target) -> Space:
        """Every configuration that can be: the values of each gene (`kernels.genes`). Not all of them go together,
        which `legal` tells. By default what the genes are in `configs`."""
        return space_of(self.configs(kernel, target))

    def legal(self, kernel: Any, config: Any, target: Target) -> str:
        """Why a configuration of the space cannot be lowered; empty where it can be."""
        return "" if config in self.configs(kernel, target) else "these genes do not go together here"

    def allowed(self, target: Target) -> bool:
        """Whether it is asked at all on a target."""
        return True

    def bound(self, kernel: Any, target: Target) -> float:
        """Seconds that no configuration's cost is below: where another pattern is known to be cheaper, this one is not
        asked further."""
        return 0.0

    def floor(self, kernel: Any, target: Target) -> float:
        """Seconds that no configuration takes less than, in whatever order the dimensions of its buffers lie."""
        return 0.0

    def best(self, kernel: Any, target: Target, limit: float = inf) -> Any | None:
        """The configuration of the lowest cost; None where its rank is not below `limit`. A pattern that finds it
        faster than by asking for the cost of all says so here."""
        best = None
        for config in self.configs(kernel, target):
            rank = cost_of(self, kernel, config, target).rank
            if rank < limit:
                best, limit = config, rank
        return best

    def dominates(self, kernel: Any, config: Any) -> Sequence[str]:
        """The names of patterns that cost no less than this one in its best configuration, and are not asked."""
        return ()

    def probes(self, target: Target) -> Iterable[Any]:
        """Measuring programs (`tune.probes.Probe`) for what its cost asks the target for by `target.coefficient`."""
        return ()


class Chooser(Protocol):
    """What a pattern is handed that gives parts of its kernels to others."""

    def choose(self, kernel: Any, target: Target) -> Any: ...
    def choose_below(self, kernel: Any, target: Target, limit: float) -> Any | None: ...
    def pattern_of(self, name: str) -> Pattern: ...


def cost_of(pattern: Pattern, kernel: Any, config: Any, target: Target) -> Cost:
    """What a pattern says of a configuration. Raises CompileError where that is no cost."""
    cost = pattern.cost(kernel, config, target)
    if not (isinstance(cost, Cost) and 0.0 <= cost.rank < inf):
        raise CompileError(
            f"pattern {pattern.name!r} answers {cost!r} for the cost of {config} on the kernel {describe(kernel)}; a"
            " Cost of finite seconds, none below 0, is needed"
        )
    return cost


def describe(kernel: Any) -> str:
    """A kernel in a line: what each stage is, its shape, and the buffers."""
    kinds = []
    for stage in kernel.stages:
        part = stage.template.parts[0]
        body = getattr(part, "body", None)
        kinds.append("scatter" if stage.template.is_scatter else getattr(body, "combiner", "pointwise"))
    sizes = ", ".join(f"{b.dtype.name}{list(b.shape)}" for b in kernel.buffers)
    return f"{' + '.join(kinds)} over {list(kernel.shape)} of {sizes}"
