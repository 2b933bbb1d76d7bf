"""Choose the scale and the zero point that quantize a tensor to 8 bits.

An integer q represents (q - zero)*scale. Activations have unsigned integers and any zero point, weights and right-hand
factors of products signed ones and the zero point 0 (Jacob et al. 2018, section 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from einsmith.base.errors import ArgumentError

METHODS = ("minmax", "percentile", "mse")
"""Ways to choose a range: all numbers; without the PERCENTILE_TAIL most extreme ones at either end; with the least
squared error."""
PERCENTILE_TAIL = 1e-4
"""Fraction of numbers at either end that the method "percentile" leaves outside of the range."""
BINS = 2048
"""Bins of the histogram of a tensor's numbers."""
SHRINKS = np.linspace(0.3, 1.0, 71)
"""Fractions of the whole range that the method "mse" tries."""
LEVELS = {"u8": (0, 255), "i8": (-127, 127)}
"""Least and greatest integer by type. -128 is left out, so that signed integers are symmetric."""


class AffineScale(NamedTuple):
    """A scale and a zero point."""

    scale: float
    zero: int


@dataclass
class Observed:
    """Statistics of a tensor from calibration: its least and greatest number, and, once these are known, the histogram
    of its numbers between them."""

    low: float = np.inf
    high: float = -np.inf
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def widen(self, low: float, high: float) -> None:
        """Take a batch's least and greatest number into account."""
        self.low, self.high = float(np.minimum(self.low, low)), float(np.maximum(self.high, high))  # NaN stays

    def count(self, values: np.ndarray) -> None:
        """Count a batch's numbers."""
        width = max(self.high - self.low, float(np.finfo(np.float32).tiny))
        self.counts += np.histogram(values, BINS, (self.low, self.low + width))[0]

    def check(self, name: str) -> None:
        """Raise ArgumentError, which names the tensor, where its numbers give no range."""
        if self.low > self.high:
            raise ArgumentError(f"calibration saw no numbers of {name}; give batches that are not empty")
        if not np.isfinite([self.low, self.high]).all():
            raise ArgumentError(
                f"calibration saw numbers of {name} that are not finite, from {self.low} to {self.high}; give batches "
                "on which the network computes finite numbers"
            )

    def choose(self, method: str, kind: str) -> AffineScale:
        """Return the scale of a tensor of this integer type ("u8", "i8") by one of METHODS."""
        if method == "minmax":
            return scale_of(self.low, self.high, kind)
        edges = np.linspace(self.low, self.high, BINS + 1)
        if method == "percentile":
            share = np.cumsum(self.counts) / max(1, self.counts.sum())
            low = edges[np.searchsorted(share, PERCENTILE_TAIL)]
            high = edges[1 + np.searchsorted(share, 1 - PERCENTILE_TAIL)]
            return scale_of(low, high, kind)
        middles = (edges[:-1] + edges[1:]) / 2
        candidates = [scale_of(self.low * s, self.high * s, kind) for s in SHRINKS]
        errors = [(self.counts * (dequantized(middles, c, kind) - middles) ** 2).sum() for c in candidates]
        return candidates[int(np.argmin(errors))]


def scale_of(low: float, high: float, kind: str) -> AffineScale:
    """Return the scale by which integers of a type cover the numbers from `low` to `high`, and zero exactly."""
    least, most = LEVELS[kind]
    if kind == "i8":
        bound = max(abs(low), abs(high))
        return AffineScale(float(np.float32(bound / most)) or 1.0, 0)
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / (most - least))) or 1.0
    return AffineScale(scale, int(np.clip(np.rint(least - low / scale), least, most)))


def dequantized(x: np.ndarray, s: AffineScale, kind: str) -> np.ndarray:
    """Return numbers quantized to integers of a type and dequantized again."""
    return (np.clip(np.rint(x / s.scale) + s.zero, *LEVELS[kind]) - s.zero) * s.scale


def quantize_weight(weight: np.ndarray, per_channel: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return a weight as int8, and its scales: one for each index of its first dimension, or one for all, [1]."""
    flat = np.abs(weight.reshape(len(weight), -1) if per_channel else weight.reshape(1, -1))
    bound = flat.max(1, initial=0.0).astype(np.float64)
    scale = np.where(bound > 0, bound / LEVELS["i8"][1], 1.0).astype(np.float32)
    shaped = scale.reshape(-1, *(1,) * (weight.ndim - 1))
    return np.clip(np.rint(weight / shaped), *LEVELS["i8"]).astype(np.int8), scale
