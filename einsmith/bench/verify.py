"""Verify training steps against a more precise run before anything is timed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LOSS_TOLERANCE = 1e-4
"""Relative; in float32 libraries agree to about 1e-6."""
STEP_TOLERANCE, LATER_LOSS_TOLERANCE = 5e-2, 5e-3
"""Relative, of a whole network's arrays and of its losses after the first. A ReLU whose input is zero but for rounding
passes its gradient or not: PyTorch's own steps in float32 are off by 2e-2 where a map has few places."""
NOTHING = 1e-4
"""A change whose root mean square is this part of the whole network's or less is that of a gradient that is zero but
for rounding, as of a bias before a batch norm or of a key's bias: it is compared on the scale of this."""
TIMES, MOST = 5.0, 0.9
"""How many times as far as PyTorch's float32 run others may be from the exact one, and how far at most: deep networks
of batch norms over few images lose many digits of their first layers' gradients in any library, and a gradient that is
missing is off by 1. (ResNet-50, one image, first step: PyTorch 2e-2, XLA 6e-2.)"""


class Tolerances(NamedTuple):
    """Relative tolerances of the first loss, of later losses, and of the change of an array."""

    loss: float = LOSS_TOLERANCE
    later: float = LATER_LOSS_TOLERANCE
    change: float = STEP_TOLERANCE


class Exact(NamedTuple):
    """A more precise run: losses of the first steps, the change of every array in the first of them, the arrays at the
    start; losses and changes of PyTorch in the precision of the others, where it has run; and the tolerances of that
    precision."""

    losses: list[float]
    changes: dict[str, np.ndarray]
    start: dict[str, np.ndarray]
    float32: tuple[list[float], dict[str, np.ndarray]] | None = None
    tolerances: Tolerances = Tolerances()


def step_error(losses: list[float], changes: dict[str, np.ndarray], exact: Exact) -> str:
    """Return what is wrong with the losses of training steps and with the change of every array in the first, against
    those of a more precise run; empty where nothing is. What float32 rounds off the array itself is allowed, and some
    times what PyTorch is off by in float32."""
    off, usual = _losses_off(losses, exact), 0.0
    if exact.float32 is not None:
        usual = min(TIMES * float(np.max(_losses_off(exact.float32[0], exact))), MOST)
    allowed = exact.tolerances
    if not (off[0] <= allowed.loss and np.max(off) <= max(allowed.later, usual)):
        return f"losses differ by {np.max(off):.1e} relative"
    missing = exact.changes.keys() ^ changes.keys()
    if missing:
        return f"the results differ in what they are: {', '.join(sorted(missing))}"
    size = sum(e.size for e in exact.changes.values())
    whole = np.sqrt(sum(float(np.sum(np.square(e))) for e in exact.changes.values()) / max(size, 1))
    for name, e in exact.changes.items():
        if changes[name].shape != e.shape:
            return f"{name} has the shape {list(changes[name].shape)}, not {list(e.shape)}"
        scale = max(float(np.linalg.norm(e)), NOTHING * whole * np.sqrt(e.size), 1e-30)
        apart = float(np.linalg.norm(changes[name].astype(np.float64) - e)) / scale
        rounded = np.finfo(np.float32).eps * float(np.linalg.norm(exact.start[name])) / scale
        usual = 0.0
        if exact.float32 is not None:
            theirs = float(np.linalg.norm(exact.float32[1][name].astype(np.float64) - e)) / scale
            usual = min(TIMES * theirs, MOST)
        if not apart <= max(allowed.change, usual) + rounded:
            return f"{name} differs by {apart:.1e} relative"
    return ""


def _losses_off(losses: list[float], exact: Exact) -> np.ndarray:
    """Return the relative error of each loss, for as many steps as the exact run has."""
    losses = losses[: len(exact.losses)]
    return np.abs(np.array(losses) - exact.losses) / np.maximum(np.abs(exact.losses), 1e-12)
