"""A kernel some of whose pieces are reduced and some are not, as a kernel of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from einsmith.expr.nodes import Reduce, Template
from einsmith.kernels.composite.parts import Composite
from einsmith.kernels.contraction.pattern import PATTERN as CONTRACTION
from einsmith.plan.footprint import touched
from einsmith.plan.kernel import Kernel, Stage
from einsmith.target.facts import Target


class ByKind(Composite):
    """A root some of whose pieces have a reduction and some not (the border of a strided backward pass, where nothing
    arrives): each kind is a kernel of its own, with its own pattern, into the same output. Not where a contraction
    stores the others along with its sums, which goes through the output once."""

    name = "by kind"

    def match(self, kernel: Kernel) -> bool:
        return len(_kinds(kernel)) > 1 and not CONTRACTION.match(kernel)

    def bound(self, kernel: Kernel, target: Target) -> float:
        """What no configurations' rank is below: every kind goes through its buffers."""
        sizes = [sum(touched(k)) for k in _kinds(kernel)]
        return sum(target.seconds_for_bytes(n, n, target.cores) for n in sizes)

    def ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        return [_kinds(kernel)]


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
