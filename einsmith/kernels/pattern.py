"""What a pattern answers about a kernel: its cost, and its launches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from einsmith.loops.nest import Function
from einsmith.plan.kernel import Buffer, Kernel, Stage

__all__ = ["Buffer", "Cost", "Kernel", "Launch", "Lowered", "Pattern", "Stage"]


@dataclass(frozen=True, init=False)
class Cost:
    """Predicted seconds, by what binds: the kernel takes max(arithmetic, memory) + special + launch."""

    arithmetic: float
    memory: float
    special: float
    launch: float

    def __init__(self, arithmetic: float, memory: float, special: float = 0.0, launch: float = 0.0):
        own = self.__dict__  # several times as fast as a frozen class sets its fields
        own["arithmetic"], own["memory"], own["special"], own["launch"] = arithmetic, memory, special, launch

    @property
    def seconds(self) -> float:
        return max(self.arithmetic, self.memory) + self.special + self.launch

    @property
    def rank(self) -> float:
        """What candidates for the same work are ordered by: `seconds`, and a little of what hides behind the term that
        binds, which tells apart those that memory makes equal."""
        return self.seconds + 0.05 * min(self.arithmetic, self.memory)


@dataclass
class Launch:
    """One parallel sweep: `function` is run for each task in 0 .. tasks-1, in any order, on any thread. `once`: in a
    loop it need run but once, before the kernel's first run: it reads only `fixed` buffers, and what it leaves in the
    workspace stays."""

    function: Function
    tasks: int
    once: bool = False


@dataclass
class Lowered:
    """The launches of a kernel, in order. Each function has len(kernel.buffers) + 1 buffers: the kernel's own, then a
    workspace of `workspace` bytes that all threads and launches of the kernel share (partial sums)."""

    launches: list[Launch] = field(default_factory=list)
    workspace: int = 0


class Pattern(Protocol):
    """The four questions that a pattern answers (docs/patterns.md). A configuration is a hashable, printable value.

    A pattern may also have `allowed(target)`, whether it is asked at all on a target; `bound(kernel, target)`, seconds
    that no configuration's cost is below: where another pattern is known to be cheaper, this one is not asked further;
    `instead(kernel, config)`, the names of patterns that cost no less than this one in its best configuration, and are
    not asked; `best(kernel, target, limit)`, the configuration of the lowest cost, found faster than by asking for the
    cost of all, or None if its rank is not below `limit`; and `probes(target)`, an iterable of `tune.probes.Probe`:
    measuring programs for what its cost asks the target for by `target.coefficient`.
    """

    name: str

    def match(self, kernel: Kernel) -> bool: ...
    def configs(self, kernel: Kernel, target: Any) -> list[Any]: ...
    def cost(self, kernel: Kernel, config: Any, target: Any) -> Cost: ...
    def lower(self, kernel: Kernel, config: Any, target: Any) -> Lowered: ...
