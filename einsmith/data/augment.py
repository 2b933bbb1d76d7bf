"""Augment batches by functions (rng, *arrays) -> arrays for `es.data.batches(..., transform=...)`.

Images are the first array, float [B, channels, height, width]; the target is the last. All randomness comes from rng, a
numpy Generator that depends on the seed, the epoch and the batch, so that a resumed run draws equal numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from einsmith.base.arguments import Count, Share, Size, check_arguments
from einsmith.base.errors import ArgumentError, ShapeError

Transform = Callable[..., tuple[np.ndarray, ...]]


def _images(x: np.ndarray, what: str) -> None:
    if x.ndim != 4 or x.dtype.kind != "f":
        raise ShapeError(f"{what} takes float images [B, channels, height, width]; given {x.dtype}{list(x.shape)}")


def compose(*transforms: Transform) -> Transform:
    """Return the transform that applies `transforms` in order."""
    return partial(_all, transforms)


def _all(transforms: Sequence[Transform], rng: np.random.Generator, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    for t in transforms:
        arrays = tuple(t(rng, *arrays))
    return arrays


@check_arguments
def random_crop(padding: Size) -> Transform:
    """Return a transform that shifts every image by up to `padding` pixels along each axis and fills with 0."""
    return partial(_crop, padding)


def _crop(padding: int, rng: np.random.Generator, x: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
    _images(x, "random_crop")
    n, _, height, width = x.shape
    wide = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    tops, lefts = rng.integers(0, 2 * padding + 1, (2, n))
    out = np.empty_like(x)
    for k, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        out[k] = wide[k, :, top : top + height, left : left + width]
    return out, *rest


@check_arguments
def random_flip(p: Share = 0.5) -> Transform:
    """Return a transform that mirrors images, left to right, with probability p."""
    return partial(_flip, p)


def _flip(p: float, rng: np.random.Generator, x: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
    _images(x, "random_flip")
    chosen = rng.random(len(x)) < p
    return np.where(chosen[:, None, None, None], x[..., ::-1], x), *rest


@check_arguments
def color_jitter(brightness: Share = 0.0, contrast: Share = 0.0, saturation: Share = 0.0) -> Transform:
    """Return a transform that scales brightness, contrast (about the image's mean) and saturation (about its gray).

    Each factor is drawn from [1 - b, 1 + b], where b is the argument; the result is clipped to 0..1."""
    return partial(_jitter, brightness, contrast, saturation)


def _jitter(
    brightness: float, contrast: float, saturation: float, rng: np.random.Generator, x: np.ndarray, *rest: np.ndarray
) -> tuple[np.ndarray, ...]:
    _images(x, "color_jitter")

    def factor(most: float) -> np.ndarray:
        return rng.uniform(1 - most, 1 + most, (len(x), 1, 1, 1)).astype(x.dtype)

    out = x * factor(brightness)
    if contrast:
        mean = out.mean((1, 2, 3), keepdims=True)
        out = mean + (out - mean) * factor(contrast)
    if saturation:
        gray = out.mean(1, keepdims=True)
        out = gray + (out - gray) * factor(saturation)
    return np.clip(out, 0, 1), *rest


@check_arguments
def normalize(mean: Sequence[float], std: Sequence[float]) -> Transform:
    """Return a transform that computes (x - mean)/std of each channel. Raises ArgumentError."""
    if len(mean) != len(std) or not all(s > 0 for s in std):
        raise ArgumentError(f"mean={mean!r} and std={std!r} must have the same length, and std must be positive")
    return partial(_scale, mean, std)


def _scale(
    mean: Sequence[float], std: Sequence[float], rng: np.random.Generator, x: np.ndarray, *rest: np.ndarray
) -> tuple[np.ndarray, ...]:
    _images(x, "normalize")
    if x.shape[1] != len(mean):
        raise ShapeError(f"normalize has {len(mean)} channels, the images have {x.shape[1]}")
    m, s = (np.asarray(a, x.dtype)[:, None, None] for a in (mean, std))
    return (x - m) / s, *rest


@check_arguments
def mixup(alpha: float, classes: Count) -> Transform:
    """Return a transform that mixes every sample with another one of its batch.

    The share is drawn from Beta(alpha, alpha). The target becomes float32 [B, classes], probabilities, as
    `cross_entropy` takes them. Source: arXiv 1710.09412."""
    if not alpha > 0:
        raise ArgumentError(f"alpha={alpha!r} must be positive")
    return partial(_mix, alpha, classes)


def _mix(alpha: float, classes: int, rng: np.random.Generator, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    *inputs, y = arrays
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ShapeError(f"mixup takes integer targets [B]; given {y.dtype}{list(y.shape)}")
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise ArgumentError(f"mixup has {classes} classes, but a target is {y.max() if y.min() >= 0 else y.min()}")
    share, other = rng.beta(alpha, alpha), rng.permutation(len(y))
    target = np.eye(classes, dtype=np.float32)[y]

    def of(a: Any) -> np.ndarray:
        return (share * a + (1 - share) * a[other]).astype(a.dtype)

    return *(of(a) for a in inputs), of(target)
