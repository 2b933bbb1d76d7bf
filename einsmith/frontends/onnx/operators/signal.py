"""Signal processing: discrete Fourier transforms as products with sines and cosines, and mel filters."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ShapeError
from einsmith.frontends.onnx.binding import Count, Int, Number, resolve_axis
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import onnx
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _waves(n: NodeCall, length: int, bins: int, sign: int, dtype: Any, scale: float = 1.0) -> tuple[Value, Value]:
    """Return (cosines, sines) [length, bins] of sign*2*pi*k*t/length: the product k*t is reduced first, so that all
    digits stay."""
    n.table((length, bins), "a table of sines")
    turns = np.outer(np.arange(length), np.arange(bins)) % length / length
    angle = 2 * np.pi * turns
    return n.constant(np.cos(angle) * scale, dtype), n.constant(sign * np.sin(angle) * scale, dtype)


def _parts(x: Value) -> tuple[Value, Value | None]:
    """Return the real and the imaginary part of [.., 1] or [.., 2]."""
    if x.shape[-1] not in (1, 2):
        raise ShapeError(f"the last extent of shape {x.shape} must be 1 (real) or 2 (real and imaginary part)")
    return x[..., 0], x[..., 1] if x.shape[-1] == 2 else None


def _transform(re: Any, im: Any, cosine: Value, sine: Value) -> tuple[Value, Value]:
    real, imaginary = builder.matmul(re, cosine), builder.matmul(re, sine)
    if im is None:
        return real, imaginary
    return real - builder.matmul(im, sine), imaginary + builder.matmul(im, cosine)


def _resize(x: Value, length: int) -> Value:
    """Cut or zero-pad the last dimension of x to `length`."""
    extent = x.shape[-1]
    if length == extent:
        return x
    return x[..., :length] if length < extent else F.pad(x, (0, length - extent))


@onnx("DFT")
def dft(n: NodeCall, x: Value, dft_length: Count = None, axis: Int = None, *, inverse: int = 0, onesided: int = 0):
    """sum[t](x[t]*exp(-2*pi*i*k*t/n)), its inverse, or its first half"""
    d = resolve_axis((1 if n.version < 20 else -2) if axis is None else axis, x.ndim)
    whole, extent = inverse and onesided, x.shape[d]
    length = dft_length or (2 * (extent - 1) if whole else extent)
    half = length // 2 + 1
    re, im = (v if v is None else _resize(F.movedim(v, d, -1), half if whole else length) for v in _parts(x))
    if whole:  # the other half is the conjugate of this one
        mirror = [length - k for k in range(half, length)]
        k = n.constant(list(range(half)) + mirror, dt.i64)
        sign = n.constant([1.0] * half + [-1.0] * len(mirror), x.dtype)
        re, im = F.index_select(re, -1, k), None if im is None else F.index_select(im, -1, k) * sign
    bins = half if onesided and not inverse else length
    cosine, sine = _waves(n, length, bins, 1 if inverse else -1, x.dtype, 1 / length if inverse else 1.0)
    parts = [F.movedim(v, -1, d) for v in _transform(re, im, cosine, sine)]
    return F.stack(parts[:1] if whole else parts, x.ndim - 1)


@onnx("STFT")
def stft(
    n: NodeCall, x: Value, step: Count, window: Value | None = None, length: Count = None, *, onesided: int = 1
) -> Value:
    """DFTs of windows of the signal at a distance of frame_step"""
    frame = length or (x.shape[1] if window is None else window.shape[0])
    count = 1 + (x.shape[1] - frame) // step

    def cut(v: Value | None) -> Any:
        if v is None:
            return None
        return builder.compute(
            (v.shape[0], count, frame),
            lambda b, f, t: v[b, f * step + t] if window is None else v[b, f * step + t] * window[t],
        )

    re, im = (cut(v) for v in (_parts(x) if x.ndim == 3 else (x, None)))
    cosine, sine = _waves(n, frame, frame // 2 + 1 if onesided else frame, -1, x.dtype)
    return F.stack(list(_transform(re, im, cosine, sine)), 3)


@onnx("MelWeightMatrix")
def mel_weights(n: NodeCall, bands: Count, size: Count, rate: Count, low: Number, high: Number) -> Value:
    """triangular filters whose corners are equidistant on the mel scale, [size/2 + 1, bands]"""
    bins = size // 2 + 1
    n.table((bins, bands), "MelWeightMatrix")
    first, last = (2595 * np.log10(1 + e / 700) for e in (low, high))
    at = first + np.arange(bands + 2) * ((last - first) / (bands + 2))
    places = (700 * (10 ** (at / 2595) - 1) * (size + 1) // rate).astype(np.int64)
    out = np.zeros((bins, bands))
    for b in range(bands):
        left, middle, right = places[b : b + 3]
        if middle == left:
            out[middle, b] = 1
        else:
            out[left : middle + 1, b] = (np.arange(left, middle + 1) - left) / (middle - left)
        if right > middle:
            out[middle:right, b] = (right - np.arange(middle, right)) / (right - middle)
    return n.constant(out, n.dtype)
