"""A kernel some of whose pieces are reduced and some are not, as a kernel of each kind."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.kernels.composite.parts import Composite
from einsmith.kernels.contraction.pattern import CONTRACTION
from einsmith.plan.footprint import touched
from einsmith.plan.kernel import Kernel
from einsmith.plan.kinds import inner, kinds
from einsmith.target.facts import Target


class ByKind(Composite):
    """A root some of whose pieces have a reduction and some not (the border of a strided backward pass, where nothing
    arrives): each kind is a kernel of its own, with its own pattern, into the same output. Or what all pieces have,
    where a contraction stores the others along with its sums, which goes through the output once, and after it each
    kind of what some of them have more of, along the edges. Not where it does so with all of them."""

    name = "by kind"

    def match(self, kernel: Kernel) -> bool:
        return len(kinds(kernel)) > 1 and not CONTRACTION.match(kernel)

    def bound(self, kernel: Kernel, target: Target) -> float:
        """What no configurations' rank is below: every kind goes through its buffers."""
        (kernels,) = self.ways(kernel, target)
        return sum(target.seconds_for_bytes(n, n, target.cores) for n in (sum(touched(k)) for k in kernels))

    def ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        found = inner(kernel)
        return [found if found and CONTRACTION.match(found[0]) else kinds(kernel)]
