"""Signal processing: discrete Fourier transforms as products with sines and cosines, and mel filters."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ShapeError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.axes import axis, move_back, move_to_end
from einsmith.frontends.onnx.table import onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value


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


def _transform(re: Value, im: Value | None, cosine: Value, sine: Value) -> tuple[Value, Value]:
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


@onnx("DFT", static=(1, 2))
def dft(n: NodeCall, x: Value, given: Value | None = None, along: Value | None = None) -> Value:
    """sum[t](x[t]*exp(-2*pi*i*k*t/n)), its inverse, or its first half"""
    place = n.attr("axis", 1) if n.version < 20 else -2 if along is None else n.integer(along, "axis of DFT")
    d = axis(place, x.ndim)
    inverse, onesided = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    re, im = (None if v is None else move_to_end(v, d) for v in _parts(x))
    assert re is not None
    extent = re.shape[-1]
    if inverse and onesided:
        length = 2 * (extent - 1) if given is None else n.integer(given, "the length of DFT", 1)
        half = length // 2 + 1
        re, im = _resize(re, half), None if im is None else _resize(im, half)
        # The other half is the conjugate of this one.
        mirror = [length - k for k in range(half, length)]
        k = n.constant(list(range(half)) + mirror, dt.i64)
        re = F.index_select(re, re.ndim - 1, k)
        if im is not None:
            sign = n.constant([1.0] * half + [-1.0] * len(mirror), x.dtype)
            im = F.index_select(im, im.ndim - 1, k) * sign
    else:
        length = extent if given is None else n.integer(given, "the length of DFT", 1)
        re, im = _resize(re, length), None if im is None else _resize(im, length)
    bins = length // 2 + 1 if onesided and not inverse else length
    scale = 1 / length if inverse else 1.0
    cosine, sine = _waves(n, length, bins, 1 if inverse else -1, x.dtype, scale)
    real, imaginary = _transform(re, im, cosine, sine)
    if inverse and onesided:
        return move_back(real, d).reshape((*move_back(real, d).shape, 1)).astype(x.dtype)
    return F.stack([move_back(real, d), move_back(imaginary, d)], x.ndim - 1).astype(x.dtype)


@onnx("STFT", static=(1, 3))
def stft(n: NodeCall, x: Value, step: Value, window: Value | None = None, length: Value | None = None) -> Value:
    """DFTs of windows of the signal at a distance of frame_step"""
    if length is not None:
        frame = n.integer(length, "frame_length of STFT", 1)
    else:
        frame = x.shape[1] if window is None else window.shape[0]
    by = n.integer(step, "frame_step of STFT", 1)
    re, im = _parts(x) if x.ndim == 3 else (x, None)
    count = 1 + (re.shape[1] - frame) // by
    bins = frame // 2 + 1 if n.attr("onesided", 1) else frame

    def framed(v: Value | None) -> Value | None:
        if v is None:
            return None
        return builder.compute(
            (v.shape[0], count, frame),
            lambda b, f, t: v[b, f * by + t] if window is None else v[b, f * by + t] * window[t],
        )

    cosine, sine = _waves(n, frame, bins, -1, x.dtype)
    first = framed(re)
    assert first is not None
    return F.stack(list(_transform(first, framed(im), cosine, sine)), 3).astype(x.dtype)


@onnx("MelWeightMatrix", static=(0, 1, 2, 3, 4))
def mel_weights(n: NodeCall, bands: Value, size: Value, rate: Value, low: Value, high: Value) -> Value:
    """triangular filters whose corners are equidistant on the mel scale, [size/2 + 1, bands]"""
    count, length, sampling = (n.integer(v, "an input of MelWeightMatrix", 1) for v in (bands, size, rate))
    edges = [n.number(v, "an input of MelWeightMatrix") for v in (low, high)]
    bins = length // 2 + 1
    n.table((bins, count), "MelWeightMatrix")
    mels = [2595 * np.log10(1 + e / 700) for e in edges]
    at = mels[0] + np.arange(count + 2) * ((mels[1] - mels[0]) / (count + 2))
    places = (700 * (10 ** (at / 2595) - 1) * (length + 1) // sampling).astype(np.int64)
    out = np.zeros((bins, count))
    for b in range(count):
        left, middle, right = places[b : b + 3]
        if middle == left:
            out[middle, b] = 1
        else:
            out[left : middle + 1, b] = (np.arange(left, middle + 1) - left) / (middle - left)
        if right > middle:
            out[middle:right, b] = (right - np.arange(middle, right)) / (right - middle)
    return n.constant(out, n.dtype)
