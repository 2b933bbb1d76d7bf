"""Verify, before anything is timed, that peers compute the same: operators, and steps without a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from einsmith.bench.verify import LOSS_TOLERANCE

RESULT_TOLERANCE = 2e-3
"""Relative; in float32 peers agree to about 1e-5, a wrong gradient is off by far more than this."""


def disagreements(losses: dict[str, list[float]], changes: dict[str, dict[str, np.ndarray]]) -> dict[str, str]:
    """Return what each peer gets wrong against the median of all peers, by peer; empty where they agree.

    losses: of the first steps; changes: of every result array since the start (its update or gradient), so that a small
    wrong update does not hide behind a large weight. With two peers that differ, both are named.
    """
    wrong: dict[str, str] = {}
    if len(losses) < 2:
        return wrong
    middle, expected = medians(list(losses.values()), list(changes.values()))
    for peer, values in losses.items():
        off = float(np.max(np.abs(np.subtract(values, middle)) / np.maximum(np.abs(middle), 1e-12)))
        if not off <= LOSS_TOLERANCE:
            wrong[peer] = f"losses differ by {off:.1e} relative"
        for name, e in expected.items():
            a = changes[peer][name]
            if a.shape != e.shape:
                raise ValueError(f"{name} has the shapes {a.shape} and {e.shape}")
            off = float(np.linalg.norm(a - e)) / max(float(np.linalg.norm(e)), 1e-30)
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
