"""Turn axes under quotients and remainders into axes of their own (`schedule.split_axes`)."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.cost.facts import Target
from einsmith.kernels.composite.parts import Composite, CompositeConfig
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.split_axes import split_kernels


class SplitAxes(Composite):
    """A composite for reductions with axes under quotients and remainders, which become axes of the new kernel."""

    name = "by digits"

    def match(self, kernel: Kernel) -> bool:
        return bool(split_kernels(kernel))

    def takes_sums(self, kernel: Kernel, target: Target) -> bool:
        """Return whether the split kernel may take the sums; the patterns for it decide."""
        return True

    def ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        return [[split] for split in split_kernels(kernel)]

    def is_settled(self, kernel: Kernel, config: CompositeConfig) -> bool:
        """Return whether the pieces are matrix products; further decompositions have as many, in smaller parts."""
        (part,) = config.parts
        split = split_kernels(kernel)[config.way]
        return part.pattern == CONTRACTION.name and bool(CONTRACTION.dominates(split, part.config))

    def dominates(self, kernel: Kernel, config: CompositeConfig) -> Sequence[str]:
        """Return the patterns that this one makes needless.

        Without more pieces, splitting only simplifies indices, so other patterns do better on the split kernel. With
        more pieces, they are matrix products, whose operands other patterns would read one element at a time.
        """
        split = split_kernels(kernel)[config.way]
        if len(split.root.parts) == len(kernel.root.parts):
            return "contraction", "by kind", "reduction", "col2im"
        (part,) = config.parts
        if part.pattern != CONTRACTION.name:
            return ()
        return "contraction", "by kind", *CONTRACTION.dominates(split, part.config)
