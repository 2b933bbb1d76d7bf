"""Scale the loss of a float16 step, so that small cotangents do not vanish and large ones do not overflow.

Source: Micikevicius et al., "Mixed precision training" (2018), section 3.2; the rule is that of torch.amp.GradScaler,
but for a batch whose gradients overflow, which is computed again with a smaller scale instead of being left out.
"""

from __future__ import annotations

from dataclasses import dataclass

INITIAL_SCALE = 65536.0
"""First scale, as in torch.amp.GradScaler."""
GROWTH_INTERVAL = 2000
"""Updates without an overflow after which the scale is doubled, as in torch.amp.GradScaler."""
MAX_SCALE = 2.0**24
"""Largest scale: that of a float16's least positive number, 2**-24."""


@dataclass
class LossScaling:
    """The scale of the loss, a power of two. steady: runs without an overflow since it changed."""

    scale: float = INITIAL_SCALE
    steady: int = 0

    def shrink(self) -> bool:
        """Halve the scale after an overflow; return whether there is a smaller one."""
        if self.scale <= 1:
            return False
        self.scale, self.steady = self.scale / 2, 0
        return True

    def count(self) -> None:
        """Count a run without an overflow, and double the scale after GROWTH_INTERVAL of them."""
        self.steady += 1
        if self.steady >= GROWTH_INTERVAL and self.scale < MAX_SCALE:
            self.scale, self.steady = 2 * self.scale, 0
