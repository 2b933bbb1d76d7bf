"""Hold the values that a training step reports in addition to its loss: named losses, and the norm of the gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Reports:
    """The values that the last step reported in addition to its loss.

    names: names of the programs' outputs after the loss; is_known: whether a program has been traced; losses: the
    losses by name, where there are several; grad_norm: the norm of the gradients before they were clipped, None where
    it is not limited."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.is_known = False
        self.losses: dict[str, float] = {}
        self.grad_norm: float | None = None

    def read(self, outputs: Sequence[np.ndarray], is_norm_limited: bool) -> None:
        """Take over the values from a program's outputs, of which the first is the loss."""
        values = {n: float(a) for n, a in zip(self.names, outputs[1:], strict=False)}
        self.grad_norm = values.pop("grad_norm", self.grad_norm) if is_norm_limited else None
        self.losses = values

    def clear(self) -> None:
        """Forget names and values, after the programs that report them."""
        self.names, self.losses, self.grad_norm, self.is_known = (), {}, None, False
