"""Split a kernel of reduced and other pieces into a kernel for each kind."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.cost.facts import Target
from einsmith.kernels.composite.parts import Composite
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.kinds import inner, kinds


class ByKind(Composite):
    """A composite for roots that have pieces with a reduction and pieces without.

    Pieces without one are, for instance, the border of a strided backward pass, where no gradient arrives.
    Each kind is a kernel with its own pattern, into the same output. If the points that all pieces share form a
    contraction, which stores constant pieces along with its sums, it goes through their output once; the points that
    only some pieces have, along the edges, follow as a kernel for each kind. Kernels that match the contraction pattern
    as a whole are left to it.
    """

    name = "by kind"

    def match(self, kernel: Kernel) -> bool:
        return len(kinds(kernel)) > 1 and not CONTRACTION.match(kernel)

    def bound(self, kernel: Kernel, target: Target) -> float:
        """Return a lower bound of the rank of every configuration: each kind moves its buffers once."""
        (kernels,) = self.ways(kernel, target)
        return sum(target.seconds_for_bytes(n, n, target.cores) for n in (sum(bytes_by_buffer(k)) for k in kernels))

    def ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        inner_kernels = inner(kernel)
        return [inner_kernels if inner_kernels and CONTRACTION.match(inner_kernels[0]) else kinds(kernel)]
