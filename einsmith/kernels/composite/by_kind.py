"""A kernel some of whose pieces are reduced and some are not, as a kernel of each kind."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from einsmith.expr.nodes import Reduce, Template
from einsmith.kernels.contraction.pattern import PATTERN as CONTRACTION
from einsmith.kernels.footprint import touched
from einsmith.kernels.pattern import Chooser, Cost, Lowered, Pattern
from einsmith.plan.kernel import Kernel, Stage
from einsmith.target.facts import Target


class PartConfig(NamedTuple):
    """A pattern's name and its configuration for one of the kernels."""

    pattern: str
    config: Any

    def __str__(self) -> str:
        return f"{self.pattern} {self.config}"


class ByKind(Pattern):
    """A root some of whose pieces have a reduction and some not (the border of a strided backward pass, where nothing
    arrives): each kind is a kernel of its own, with its own pattern, into the same output. Not where a contraction
    stores the others along with its sums, which goes through the output once."""

    name = "by kind"

    def __init__(self, chooser: Chooser):
        self.chooser = chooser

    def match(self, kernel: Kernel) -> bool:
        return len(_kinds(kernel)) > 1 and not CONTRACTION.match(kernel)

    def bound(self, kernel: Kernel, target: Target) -> float:
        """What no configurations' rank is below: every kind goes through its buffers."""
        sizes = [sum(touched(k)) for k in _kinds(kernel)]
        return sum(target.seconds_for_bytes(n, n, target.cores) for n in sizes)

    def best(
        self, kernel: Kernel, target: Target, limit: float = float("inf")
    ) -> tuple[PartConfig, ...] | None:
        chosen = []
        for k in _kinds(kernel):
            found = self.chooser.choose_below(k, target, limit)
            if found is None:  # nor is that of them all
                return None
            chosen.append(PartConfig(found.pattern.name, found.config))
        return tuple(chosen)

    def configs(self, kernel: Kernel, target: Target) -> list[tuple[PartConfig, ...]]:
        found = self.best(kernel, target)
        return [] if found is None else [found]

    def cost(self, kernel: Kernel, config: tuple[PartConfig, ...], target: Target) -> Cost:
        parts = zip(_kinds(kernel), config, strict=True)
        costs = [self.chooser.pattern_of(name).cost(k, c, target) for k, (name, c) in parts]
        return Cost(
            sum(c.arithmetic for c in costs), sum(c.memory for c in costs), sum(c.special for c in costs),
            sum(c.launch for c in costs),
        )

    def lower(self, kernel: Kernel, config: tuple[PartConfig, ...], target: Target) -> Lowered:
        out = Lowered()
        for k, (name, c) in zip(_kinds(kernel), config, strict=True):
            part = self.chooser.pattern_of(name).lower(k, c, target)
            out.launches += part.launches
            out.workspace = max(out.workspace, part.workspace)
        return out


@lru_cache(maxsize=1024)
def _kinds(kernel: Kernel) -> list[Kernel]:
    """The kernel's pieces with a reduction, and those without, as kernels."""
    root = kernel.root
    if root.is_scatter:
        return [kernel]
    parts = [[p for p in root.parts if isinstance(p.body, Reduce) is kind] for kind in (True, False)]
    if not all(parts):
        return [kernel]
    first = kernel.stages[0]
    stages = [Stage(Template(root.shape, root.params, tuple(p)), first.args, first.outputs) for p in parts]
    return [Kernel((stage, *kernel.stages[1:]), kernel.buffers, kernel.fixed) for stage in stages]
