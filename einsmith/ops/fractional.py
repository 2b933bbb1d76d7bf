"""Fractional max pooling: windows at random distances. Source: Graham 2015, arXiv 1412.6071."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ops.common import ints, tensor
from einsmith.ops.pooling import row_major
from einsmith.ops.random import rand
from einsmith.ops.rank import by_rank
from einsmith.ops.window import Ints
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _output_extents(
    name: str, n: int, x: Value, size: Ints | None, ratio: float | Sequence[float] | None
) -> tuple[int, ...]:
    """Return the extents of the result. Raises ArgumentError unless one of size and ratio is given."""
    if (size is None) == (ratio is None):
        raise ArgumentError(f"{name}: give one of output_size={size!r} and output_ratio={ratio!r}")
    if size is not None:
        return ints(size, n, name, "output_size")
    shares: list[Any] = list(ratio) if isinstance(ratio, (tuple, list)) else [ratio] * n
    if len(shares) != n or not all(isinstance(r, (int, float)) and 0 < r < 1 for r in shares):
        raise ArgumentError(f"{name}: output_ratio={ratio!r} must be a number between 0 and 1, or {n} of them")
    return tuple(int(e * r) for e, r in zip(x.shape[-n:], shares, strict=True))


def _starts(sample: Value, extent: int, count: int, kernel: int) -> Value:
    """Return where the `count` windows of each channel begin: sample [b, c] -> [b, c, count].

    They are about (extent - kernel)/(count - 1) apart, from 0; the last one ends at the end.
    """
    last = extent - kernel
    if count == 1:
        return builder.full((*sample.shape, 1), last, dt.i64)
    step = last / (count - 1)

    def body(b: Any, c: Any, i: Any) -> Any:
        u = sample[b, c]
        start = builder.floor((builder.cast(i, sample.dtype) + u) * step) - builder.floor(u * step)
        start = builder.minimum(builder.maximum(start, 0.0), float(last))
        return builder.where(i == count - 1, last, builder.cast(start, dt.i64))

    return builder.compute((*sample.shape, count), body).astype(dt.i64)


def _fractional_max_pool(
    name: str,
    n: int,
    input: Any,
    kernel_size: Ints,
    output_size: Ints | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Any:
    """Return the maxima of windows at random distances, as many as fill `output_size`: [B, C, {space}] or [C, {space}].

    output_ratio: the result's extents as parts of the input's, instead. return_indices: also return the row-major
    places of the maxima. _random_samples: numbers from 0 to 1 that choose the distances, one for each dimension of
    space, [B, C, n]; drawn at each call if None.
    """
    whole = tensor(input, name, "input", rank=(n + 1, n + 2), kind="float")
    x = whole if whole.ndim == n + 2 else whole.reshape((1, *whole.shape))
    kernel, count = ints(kernel_size, n, name, "kernel_size"), _output_extents(name, n, x, output_size, output_ratio)
    for e, k, c in zip(x.shape[2:], kernel, count, strict=True):
        if not 1 <= c <= e - k + 1:
            raise ShapeError(
                f"{name}: {c} windows of {k} elements do not fit into an extent of {e}: output extents go from 1 to "
                f"{max(0, e - k + 1)}"
            )
    shape = (*x.shape[:2], n)
    samples = _random_samples
    u = rand(*shape, dtype=x.dtype) if samples is None else tensor(samples, name, "_random_samples", kind="float")
    u = u[:1] if whole.ndim == n + 1 and u.ndim == 3 and u.shape[0] else u  # without a batch, the first ones
    if u.shape != shape:
        raise ShapeError(f"{name}: '_random_samples' has shape {u.shape}, needs {shape}")
    # PyTorch's samples of images are for columns, then rows; those of volumes are in the order of the dimensions.
    order = (1, 0) if n == 2 else (0, 1, 2)
    starts = [
        _starts(builder.stop_gradient(u[:, :, o]), e, c, k)
        for o, e, c, k in zip(order, x.shape[2:], count, kernel, strict=True)
    ]
    over = builder.axes(*kernel)

    def element(i: tuple, offsets: Sequence[Any]) -> Any:
        places = [s[i[0], i[1], p] + r for s, p, r in zip(starts, i[2:], offsets, strict=True)]
        return x[(i[0], i[1], *places)]

    out = (*x.shape[:2], *count)
    y = builder.compute(out, lambda *i: builder.max(element(i, over), over=over))
    result = y.reshape((*whole.shape[:-n], *count))
    if not return_indices:
        return result
    chosen = builder.compute(out, lambda *i: builder.argmax(element(i, over), over=over))

    def place(*i: Any) -> Any:
        rest, at = chosen[i], []
        for s, p, k in zip(reversed(starts), reversed(i[2:]), reversed(kernel), strict=True):
            at.append(s[i[0], i[1], p] + rest % k)
            rest = rest // k
        return builder.cast(row_major(at[::-1], x.shape[2:]), dt.i64)

    return result, builder.compute(out, place).reshape(result.shape)


fractional_max_pool2d, fractional_max_pool3d = by_rank(_fractional_max_pool, ranks=(2, 3))
