"""Kernels that use axes under quotients and remainders, as kernels in which these are axes (`plan.split_axes`)."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.kernels.composite.parts import Composite, CompositeConfig
from einsmith.kernels.contraction.pattern import CONTRACTION
from einsmith.plan.kernel import Kernel
from einsmith.plan.split_axes import split_kernels
from einsmith.target.facts import Target


class SplitAxes(Composite):
    """A reduction some of whose axes stand under quotients and remainders: a kernel in which these are axes."""

    name = "by digits"

    def match(self, kernel: Kernel) -> bool:
        return bool(split_kernels(kernel))

    def ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        return [[split] for split in split_kernels(kernel)]

    def settled(self, kernel: Kernel, config: CompositeConfig) -> bool:
        """Where pieces are products of matrices, further ones are as many in smaller parts."""
        (part,) = config.parts
        split = split_kernels(kernel)[config.way]
        return part.pattern == CONTRACTION.name and bool(CONTRACTION.dominates(split, part.config))

    def dominates(self, kernel: Kernel, config: CompositeConfig) -> Sequence[str]:
        """Digits leave a kernel as it is but for simpler indices: what others do they do better there. Pieces make a
        product of matrices of what other products would read one element at a time."""
        split = split_kernels(kernel)[config.way]
        if len(split.root.parts) == len(kernel.root.parts):
            return "contraction", "by kind", "reduction", "col2im"
        (part,) = config.parts
        if part.pattern != CONTRACTION.name:
            return ()
        return "contraction", "by kind", *CONTRACTION.dominates(split, part.config)
