"""Define the interface of a pattern: which kernels it matches, their configurations, costs and launches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from einsmith.base.errors import CompileError
from einsmith.cost.facts import Target
from einsmith.cost.roofline import Cost
from einsmith.kernels.emit.epilogue_sums import SumPlaces
from einsmith.kernels.genes import Space, space_of
from einsmith.schedule.kernel import Beyond, Kernel, KernelBuffer, Stage

__all__ = ["KernelBuffer", "Chooser", "Cost", "Kernel", "Launch", "Lowered", "Pattern", "Stage", "cost_of", "describe"]


@dataclass
class Launch:
    """A parallel launch: `function` is run for each task in 0 .. tasks-1, in any order, on any thread.

    function: on the CPU, a function of `codegen.loopnest.nest`; other back ends define their own. loop_invariant: in a
    loop the launch runs only once, before the kernel's first run, as it reads only loop-invariant buffers and its
    results stay in the workspace."""

    function: Any
    tasks: int
    loop_invariant: bool = False


@dataclass
class Lowered:
    """The launches of a kernel, in order. Each is given len(kernel.buffers) + 1 buffers: the kernel's own, then a
    workspace of `workspace` bytes that all threads and launches of the kernel share (partial sums). sums: where the
    parts of the kernel's sums lie in it, if it has any (`schedule.kernel.EpilogueSum`). beyond: of a
    `schedule.kernel.LimitedKernel`, or a `Rows` that is active below a limit, what the code does beyond the limit."""

    launches: list[Launch] = field(default_factory=list)
    workspace: int = 0
    sums: SumPlaces | None = None
    beyond: Beyond = Beyond.COMPUTED

    @property
    def functions(self) -> list[Any]:
        """The functions of the launches, each once."""
        return [*{launch.function.name: launch.function for launch in self.launches}.values()]


class Pattern(ABC):
    """A way to lower a family of kernels (docs/patterns.md).

    A configuration is a hashable, printable value: a NamedTuple, a frozen dataclass, or several of them. A subclass
    defines match, configs, cost and lower. version: part of the keys of compiled code; change it whenever the answers
    change. None: code is cached for this process only."""

    name: str
    version: str | int | None = None

    @abstractmethod
    def match(self, kernel: Any) -> bool:
        """Return whether the pattern can lower this kernel, with all its stages."""

    @abstractmethod
    def configs(self, kernel: Any, target: Target) -> Sequence[Any]:
        """Return the configurations worth measuring, the first candidates of a search."""

    @abstractmethod
    def cost(self, kernel: Any, config: Any, target: Target) -> Cost:
        """Return the predicted seconds on all cores of the target."""

    @abstractmethod
    def lower(self, kernel: Any, config: Any, target: Target) -> Lowered:
        """Return the kernel's launches."""

    def takes_sums(self, kernel: Kernel, target: Target) -> bool:
        """Return whether the pattern can take the sums of a kernel that it matches."""
        return False

    def space(self, kernel: Any, target: Target) -> Space:
        """Return the search space: the values of each gene (`kernels.genes`). By default the values that occur in
        `configs`. Not all combinations need be legal (`legal`)."""
        return space_of(self.configs(kernel, target))

    def legal(self, kernel: Any, config: Any, target: Target) -> str:
        """Return why a configuration of the space cannot be lowered; an empty string if it can be."""
        return "" if config in self.configs(kernel, target) else "these genes cannot be combined for this kernel"

    def allowed(self, target: Target) -> bool:
        """Return whether the pattern may be chosen on a target at all."""
        return True

    def bound(self, kernel: Any, target: Target) -> float:
        """Return a lower bound (seconds) of all configurations' costs; a cheaper configuration of another pattern
        ends the search of this one."""
        return 0.0

    def floor(self, kernel: Any, target: Target) -> float:
        """Return a lower bound (seconds) of all configurations' costs under any order of the buffers' dimensions."""
        return 0.0

    def best(self, kernel: Any, target: Target, limit: float = inf) -> Any | None:
        """Return the configuration of the lowest cost rank; None where no rank is below `limit`.

        A pattern overrides this where it finds the configuration without pricing all of them."""
        best = None
        for config in self.configs(kernel, target):
            rank = cost_of(self, kernel, config, target).rank
            if rank < limit:
                best, limit = config, rank
        return best

    def dominates(self, kernel: Any, config: Any) -> Sequence[str]:
        """Return the names of patterns that cost no less than this one in `config`, its best; they are not priced."""
        return ()

    def probes(self, target: Target) -> Iterable[Any]:
        """Return the programs (`tuning.calibration.probes.Probe`) that measure the coefficients its cost reads by
        `target.coefficient`."""
        return ()


class Chooser(Protocol):
    """The chooser of composite patterns, by which other patterns lower the parts of their kernels."""

    def choose(self, kernel: Any, target: Target) -> Any:
        """Return the cheapest choice of pattern and configuration; raise CompileError if no pattern matches."""

    def choose_below(self, kernel: Any, target: Target, limit: float) -> Any | None:
        """Return the cheapest choice for a kernel if its cost rank is below `limit`; else, or without match, None."""

    def pattern_of(self, name: str) -> Pattern:
        """Return the pattern of a name."""


def cost_of(pattern: Pattern, kernel: Any, config: Any, target: Target) -> Cost:
    """Return a pattern's cost of a configuration.

    Raises:
        CompileError: the answer is not a Cost of finite seconds, none below 0."""
    cost = pattern.cost(kernel, config, target)
    if not (isinstance(cost, Cost) and 0.0 <= cost.rank < inf):
        raise CompileError(
            f"pattern {pattern.name!r} answers {cost!r} for the cost of {config} on the kernel {describe(kernel)}; a"
            " Cost of finite seconds, none below 0, is needed"
        )
    return cost


def describe(kernel: Any) -> str:
    """Return one line of text about a kernel: the kind of each stage, its shape, and the buffers."""
    kinds = []
    for stage in kernel.stages:
        part = stage.template.parts[0]
        body = getattr(part, "body", None)
        kinds.append("scatter" if stage.template.is_scatter else getattr(body, "combiner", "pointwise"))
    sizes = ", ".join(f"{b.dtype.name}{list(b.shape)}" for b in kernel.buffers)
    return f"{' + '.join(kinds)} over {list(kernel.shape)} of {sizes}"
