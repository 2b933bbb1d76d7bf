"""Pooling over windows of one, two or three dimensions, under torch.nn.functional's names and argument orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, inf, isfinite, prod
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError
from einsmith.lang.op import op
from einsmith.ops.common import ints, tensor
from einsmith.ops.rank import by_rank
from einsmith.ops.window import Ints, Window, read
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

Sizes = int | Sequence[int | None] | None


class _Adaptive:
    """A dimension cut into `count` windows, of which number p goes from floor(p*extent/count) to
    ceil((p + 1)*extent/count); r counts from its begin. It has the interface of `Window`."""

    def __init__(self, extent: int, count: int):
        self.extent, self.count = extent, count
        self.even = extent % count == 0
        # (p*extent) % count takes every multiple of gcd(extent, count), which delays a window's end past its begin.
        self.kernel = extent // count if self.even else -(-(extent + count - gcd(extent, count)) // count)

    def begin(self, p: Any) -> Any:
        return p * (self.extent // self.count) if self.even else p * self.extent // self.count

    def end(self, p: Any) -> Any:
        return ((p + 1) * self.extent + self.count - 1) // self.count

    def first(self, p: Any) -> Any:
        return self.begin(p)

    def position(self, p: Any, r: Any) -> Any:
        return self.begin(p) + r

    def guards(self, h: Any, p: Any) -> list[Any]:
        return [] if self.even else [h < self.end(p)]

    def length(self, p: Any) -> Any:
        return self.kernel if self.even else self.end(p) - self.begin(p)


def _windows(
    name: str,
    n: int,
    x: Value,
    kernel_size: Ints,
    stride: Ints | None,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
) -> list[Window]:
    kernel = ints(kernel_size, n, name, "kernel_size")
    steps = kernel if stride is None else ints(stride, n, name, "stride")
    pads = ints(padding, n, name, "padding", least=0)
    gaps = ints(dilation, n, name, "dilation")
    if any(2 * p > g * (k - 1) + 1 for p, k, g in zip(pads, kernel, gaps, strict=True)):
        raise ShapeError(f"{name}: padding={padding!r} is more than half of kernel_size={kernel_size!r}")
    return [
        Window(e, k, s, p, p, g, name, ceil_mode)
        for e, k, s, p, g in zip(x.shape[-n:], kernel, steps, pads, gaps, strict=True)
    ]


def row_major(positions: Sequence[Any], extents: Sequence[int]) -> Any:
    """Return the row-major position in a box."""
    flat: Any = 0
    for at, n in zip(positions, extents, strict=True):
        flat = flat * n + at
    return flat


def _max(x: Value, windows: Sequence[Any], indices: bool) -> Any:
    """Return the largest element of each window over the last dimensions, and with `indices` its row-major place in
    them."""
    n = len(windows)
    lead, extents = x.ndim - n, x.shape[-n:]
    least = -inf if x.dtype.is_float else x.dtype.range[0]
    r = builder.axes(*(w.kernel for w in windows))
    shape = (*x.shape[:lead], *(w.count for w in windows))
    y = builder.compute(shape, lambda *i: builder.max(read(x, i[:lead], windows, i[lead:], r, least), over=r)).astype(
        x.dtype
    )
    if not indices:
        return y
    chosen = builder.compute(shape, lambda *i: builder.argmax(read(x, i[:lead], windows, i[lead:], r, least), over=r))

    def place(*i: Any) -> Any:
        p, rest, at = i[lead:], chosen[i], []
        for w, q in zip(reversed(windows), reversed(p), strict=True):
            at.append(w.position(q, rest % w.kernel))
            rest = rest // w.kernel
        # If all elements are the type's least number, padding compares equal to them.
        first = row_major([w.first(q) for w, q in zip(windows, p, strict=True)], extents)
        return builder.cast(builder.where(y[i] == least, first, row_major(at[::-1], extents)), dt.i64)

    return y, builder.compute(shape, place)


def _max_pool(
    name: str,
    n: int,
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest element of each window of input [B, C, {space}] or [C, {space}]; `stride` is the window's size
    where not given.

    The gradient goes to the first of equal elements, in row-major order of the window. Padding is minus infinity.
    ceil_mode: a last window may overhang. return_indices: (values, int64 row-major places in [{space}]).
    """
    x = tensor(input, name, "input", rank=(n + 1, n + 2))
    if x.dtype.is_bool:
        raise DtypeError(f"{name}: 'input' needs numbers, got {x.dtype.name}")
    return _max(x, _windows(name, n, x, kernel_size, stride, padding, dilation, ceil_mode), return_indices)


max_pool1d, max_pool2d, max_pool3d = by_rank(
    _max_pool,
    layer="MaxPool{n}d",
    aten="max_pool{n}d.default max_pool{n}d_with_indices.default:return_indices",
    settings="kernel_size stride padding dilation return_indices ceil_mode",
)


_PLACED = op("Y[n,i[n,p]] += x[n,p]", extents={"Y.shape[1]": "places"})


def _max_unpool(
    name: str,
    n: int,
    input: Any,
    indices: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> Value:
    """Undo max pooling with `return_indices=True`: put the elements of input [B, C, {space}] or [C, {space}] at the
    row-major places `indices` of the result's dimensions of space, zero elsewhere.

    Their extents are (extent - 1)*stride - 2*padding + kernel_size where `output_size` does not give them. Several
    elements at one place are averaged. An index outside the result is an IndexError at the call.
    """
    x = tensor(input, name, "input", rank=(n + 1, n + 2), kind="float")
    i = tensor(indices, name, "indices", kind="int")
    if i.shape != x.shape:
        raise ShapeError(f"{name}: 'indices' has shape {i.shape}, and needs that of 'input', {x.shape}")
    kernel = ints(kernel_size, n, name, "kernel_size")
    steps = kernel if stride is None else ints(stride, n, name, "stride")
    pads = ints(padding, n, name, "padding", least=0)
    lead, space = x.shape[:-n], x.shape[-n:]
    smallest = [(e - 1) * s - 2 * p + k for e, s, p, k in zip(space, steps, pads, kernel, strict=True)]
    if output_size is None:
        extents = tuple(smallest)
    else:
        wanted = tuple(output_size)
        extents = wanted[-n:]
        if len(wanted) not in (n, x.ndim) or any(
            abs(e - d) >= s for e, d, s in zip(extents, smallest, steps, strict=True)
        ):
            raise ShapeError(
                f"{name}: output_size={wanted} must differ from {tuple(smallest)} by less than stride={steps}"
            )
    if any(e < 1 for e in extents):
        raise ShapeError(f"{name}: 'input' {x.shape} with padding={padding!r} would give extents {extents}")
    flat, places = (v.reshape((prod(lead), prod(space))) for v in (x, i))
    total = _PLACED(places, flat, places=prod(extents))
    hits = _PLACED(places, builder.full(flat.shape, 1.0, x.dtype), places=prod(extents))
    # Overlapping windows name a place several times, with equal elements: it counts once, and its gradient goes to
    # all of them.
    once = builder.compute(
        total.shape, lambda n, z: builder.where(hits[n, z] > 1, total[n, z] / hits[n, z], total[n, z])
    )
    return builder.differentiate_as(once, total).reshape((*lead, *extents))


max_unpool1d, max_unpool2d, max_unpool3d = by_rank(_max_unpool)


def _avg_pool(
    name: str,
    n: int,
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """Return the mean of each window of input [B, C, {space}] or [C, {space}]; `stride` is the window's size where not
    given.

    Padding is zeros, which count as elements where `count_include_pad`; `divisor_override` replaces the count.
    """
    x = tensor(input, name, "input", rank=(n + 1, n + 2), kind="float")
    windows = _windows(name, n, x, kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override == 0:
        raise ShapeError(f"{name}: divisor_override={divisor_override!r} must be an int other than 0")
    overhang = any(w.last >= w.extent + w.after for w in windows)
    whole = not overhang and (count_include_pad or not any(w.before for w in windows))
    divisor = divisor_override or (prod(w.kernel for w in windows) if whole else None)
    return _mean(x, windows, divisor, lambda w, p: w.covered(p, not count_include_pad))


def _mean(x: Value, windows: Sequence[Any], divisor: int | None, count: Callable[[Any, Any], Any]) -> Value:
    """Return the sum of each window over the last dimensions, divided by `divisor`, or by the product of the counts."""
    lead = x.ndim - len(windows)
    r = builder.axes(*(w.kernel for w in windows))

    def body(*i: Any) -> Any:
        total = builder.sum(read(x, i[:lead], windows, i[lead:], r, 0), over=r)
        if divisor is not None:
            return total * (1 / divisor)
        elements: Any = 1
        for w, p in zip(windows, i[lead:], strict=True):
            elements = elements * count(w, p)
        return total / builder.cast(elements, x.dtype)

    return builder.compute((*x.shape[:lead], *(w.count for w in windows)), body)


avg_pool1d, avg_pool2d, avg_pool3d = by_rank(
    _avg_pool, {1: ["divisor_override"]}, layer="AvgPool{n}d", aten="avg_pool{n}d.default"
)


# ------------------------------------------------------------------------------------------------------------ adaptive


def _adaptive(name: str, n: int, input: Any, output_size: Sizes) -> tuple[Value, list[_Adaptive]]:
    x = tensor(input, name, "input", rank=(n + 1, n + 2), kind="float")
    sizes = (output_size,) * n if output_size is None or isinstance(output_size, int) else tuple(output_size)
    sizes = sizes * n if len(sizes) == 1 else sizes
    if len(sizes) != n or any(
        s is not None and (isinstance(s, bool) or not isinstance(s, int) or s < 1) for s in sizes
    ):
        raise ShapeError(f"{name}: output_size={output_size!r} must be an int of at least 1 or None, or {n} of them")
    if any(e < 1 for e in x.shape[-n:]):
        raise ShapeError(f"{name}: 'input' {x.shape} has no elements to pool")
    return x, [_Adaptive(e, e if s is None else s) for e, s in zip(x.shape[-n:], sizes, strict=True)]


def _adaptive_avg_pool(name: str, n: int, input: Any, output_size: Sizes) -> Value:
    """Return the means of windows over input [B, C, {space}] or [C, {space}], as many as `output_size` says: an int, or
    an int or None (the input's extent) for each dimension of space. Window p of P goes from floor(p*H/P) to
    ceil((p + 1)*H/P) along an extent H."""
    x, windows = _adaptive(name, n, input, output_size)
    divisor = prod(w.kernel for w in windows) if all(w.even for w in windows) else None
    return _mean(x, windows, divisor, _Adaptive.length)


def _adaptive_max_pool(name: str, n: int, input: Any, output_size: Sizes, return_indices: bool = False) -> Any:
    """Return the largest elements of the windows of adaptive average pooling; with `return_indices` also their int64
    row-major places in [{space}]. The gradient goes to the first of equal elements."""
    return _max(*_adaptive(name, n, input, output_size), return_indices)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = by_rank(_adaptive_avg_pool, layer="AdaptiveAvgPool{n}d")
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = by_rank(
    _adaptive_max_pool, layer="AdaptiveMaxPool{n}d", aten="adaptive_max_pool{n}d.default:return_indices"
)


# ---------------------------------------------------------------------------------------------------------- power means


def _lp_pool(
    name: str,
    n: int,
    input: Any,
    norm_type: float,
    kernel_size: Ints,
    stride: Ints | None = None,
    ceil_mode: bool = False,
) -> Value:
    """Return the sum of x**norm_type over each window of input [B, C, {space}] or [C, {space}], to the power
    1/norm_type; the largest magnitude where norm_type is infinite, the smallest where it is minus infinity.

    A window that overhangs (`ceil_mode`) is filled up with its mean. The derivative at a window of zeros is zero.
    """
    x = tensor(input, name, "input", rank=(n + 1, n + 2), kind="float")
    if norm_type == 0:
        raise ArgumentError(f"{name}: norm_type={norm_type!r} must be a number other than 0")
    windows = _windows(name, n, x, kernel_size, stride, 0, 1, ceil_mode)
    if not isfinite(norm_type):
        sign = 1.0 if norm_type > 0 else -1.0
        return _max(abs(x) * sign, windows, False) * sign
    total = _avg_pool(name, n, x ** float(norm_type), kernel_size, stride, 0, ceil_mode, True, None)
    total = total * prod(w.kernel for w in windows)

    def root(*i: Any) -> Any:
        y = total[i] ** (1 / norm_type)
        return builder.where(total[i] == 0, builder.stop_gradient(y), y)

    return builder.compute(total.shape, root)


lp_pool1d, lp_pool2d, lp_pool3d = by_rank(_lp_pool, layer="LPPool{n}d")
