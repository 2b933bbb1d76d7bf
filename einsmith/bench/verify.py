"""Verify, before anything is timed, that peers compute the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

LOSS_TOLERANCE = 1e-4
RESULT_TOLERANCE = 2e-3
"""Relative; in float32 peers agree to about 1e-6 and 1e-5, a wrong gradient is off by far more than this."""


def disagreements(losses: dict[str, list[float]], changes: dict[str, dict[str, np.ndarray]]) -> dict[str, str]:
    """Return what each peer gets wrong against the median of all peers, by peer; empty where they agree.

    losses: of the first steps; changes: of every result array since the start (its update or gradient), so that a small
    wrong update does not hide behind a large weight. With two peers that differ, both are named.
    """
    wrong: dict[str, str] = {}
    if len(losses) < 2:
        return wrong
    middle = np.median(np.array(list(losses.values())), axis=0)
    for peer, values in losses.items():
        off = float(np.max(np.abs(np.array(values) - middle) / np.maximum(np.abs(middle), 1e-12)))
        if not off <= LOSS_TOLERANCE:
            wrong[peer] = f"losses differ by {off:.1e} relative"
    names = next(iter(changes.values())).keys()
    for name in names:
        stack = {peer: c[name].astype(np.float64) for peer, c in changes.items()}
        shapes = {a.shape for a in stack.values()}
        if len(shapes) > 1:
            raise ValueError(f"{name} has the shapes {shapes}")
        reference = np.median(np.array(list(stack.values())), axis=0)
        scale = max(float(np.linalg.norm(reference)), 1e-30)
        for peer, a in stack.items():
            off = float(np.linalg.norm(a - reference)) / scale
            if not off <= RESULT_TOLERANCE:
                wrong.setdefault(peer, f"{name} differs by {off:.1e} relative")
    return wrong


def error(results: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> str:
    """Return what is wrong with the results against a more precise reference; empty where nothing is. The largest
    difference of any element counts, so that a wrong corner does not hide behind a large middle."""
    for name, expected in reference.items():
        got = results[name].astype(np.float64)
        if got.shape != expected.shape:
            return f"{name} has the shape {list(got.shape)}, not {list(expected.shape)}"
        scale = max(float(np.sqrt(np.mean(np.square(expected)))), 1e-30)
        off = float(np.max(np.abs(got - expected), initial=0.0)) / scale
        if not off <= RESULT_TOLERANCE:
            return f"{name} differs by {off:.1e} of its root mean square"
    return ""


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


def medians(
    losses: Sequence[Sequence[float]], changes: Sequence[Mapping[str, np.ndarray]]
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the medians of the losses and of the changes of several runs, for want of a more precise one. An array
    that some run does not have, or has in another shape, is that of the first run."""
    out = dict(changes[0])
    for name, x in out.items():
        same = [c[name] for c in changes if name in c and c[name].shape == x.shape]
        if len(same) == len(changes):
            out[name] = np.median(np.array(same, np.float64), axis=0)
    return np.median(np.array(losses, np.float64), axis=0).tolist(), out


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
    """How far losses are off relatively, as many as the exact run has."""
    losses = losses[: len(exact.losses)]
    return np.abs(np.array(losses) - exact.losses) / np.maximum(np.abs(exact.losses), 1e-12)
