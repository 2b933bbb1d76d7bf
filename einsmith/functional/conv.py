"""Linear layers, convolutions and pooling as formulas, under torch.nn.functional's names and argument orders."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

from einsmith.errors import ShapeError
from einsmith.functional.call import traced
from einsmith.functional.common import all_of, ints, tensor
from einsmith.lang import builder as fb
from einsmith.lang.builder import Value

Ints = int | Sequence[int]


@traced
def linear(input: Any, weight: Any, bias: Any = None) -> Value:
    """input [..., I] times weight [O, I] transposed, plus bias [O]: [..., O]. A weight [I] gives [...]."""
    x, w = tensor(input, "linear", "input"), tensor(weight, "linear", "weight", rank=(1, 2))
    if x.ndim < 1 or x.shape[-1] != w.shape[-1]:
        raise ShapeError(f"linear: 'input' {x.shape} and 'weight' {w.shape} differ in their last extents")
    out = w.shape[:-1]
    lead = x.ndim - 1
    (k,) = fb.axes(w.shape[-1])
    y = fb.compute((*x.shape[:-1], *out), lambda *i: fb.sum(x[(*i[:lead], k)] * w[(*i[lead:], k)], over=k))
    if bias is None:
        return y
    c = tensor(bias, "linear", "bias")
    if c.shape != out:
        raise ShapeError(f"linear: 'bias' has shape {c.shape}, needs {out}")
    return fb.compute(y.shape, lambda *i: y[i] + c[i[lead:]])


class _Window:
    """One dimension of a sliding window: output position p, window position r read stride*p + dilation*r - before."""

    def __init__(
        self,
        extent: int,
        kernel: int,
        stride: int,
        before: int,
        after: int,
        dilation: int,
        where: str,
        ceil: bool = False,
    ):
        self.extent, self.kernel, self.stride, self.before, self.dilation = extent, kernel, stride, before, dilation
        room = extent + before + after - dilation * (kernel - 1) - 1
        if room < 0:
            raise ShapeError(
                f"{where}: a window of {kernel} (dilation {dilation}) does not fit {extent} + {before} + {after}"
            )
        self.count = room // stride + 1
        if ceil and room % stride and self.count * stride < extent + before:
            self.count += 1  # a last window that overhangs, as long as it begins inside
        self.after = after

    def position(self, p: Any, r: Any) -> Any:
        return self.stride * p + self.dilation * r - self.before

    def guards(self, h: Any) -> list[Any]:
        """Conditions under which position `h` lies inside; those that always hold are left out."""
        last = self.stride * (self.count - 1) + self.dilation * (self.kernel - 1) - self.before
        return ([0 <= h] if self.before else []) + ([h < self.extent] if last >= self.extent else [])

    def covered(self, p: Any, clip: bool) -> Any:
        """How many positions of the window at `p` lie inside (`clip`), or inside the padded extent; dilation is 1."""
        low, high = (0, self.extent) if clip else (-self.before, self.extent + self.after)
        start = self.stride * p - self.before
        return fb.minimum(start + self.kernel, high) - (fb.maximum(start, low) if clip else start)


def _read(
    x: Value, lead: Sequence[Any], windows: Sequence[_Window], p: Sequence[Any], r: Sequence[Any], other: float
) -> Any:
    """x[lead, positions], or `other` outside."""
    h = [w.position(a, b) for w, a, b in zip(windows, p, r, strict=True)]
    guards = [g for w, a in zip(windows, h, strict=True) for g in w.guards(a)]
    read = x[(*lead, *h)]
    return fb.where(all_of(guards), read, other) if guards else read


def _conv(
    name: str,
    n: int,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Ints,
    padding: Ints | str,
    dilation: Ints,
    groups: int,
) -> Value:
    x = tensor(input, name, "input", rank=(n + 1, n + 2))
    w = tensor(weight, name, "weight", rank=n + 2)
    if x.ndim == n + 1:
        y = _conv(name, n, x.reshape((1, *x.shape)), w, bias, stride, padding, dilation, groups)
        return y.reshape(y.shape[1:])
    kernel = w.shape[2:]
    steps = ints(stride, n, name, "stride")
    gaps = ints(dilation, n, name, "dilation")
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ShapeError(f"{name}: padding={padding!r} must be 'same', 'valid' or ints")
        if padding == "same" and any(s != 1 for s in steps):
            raise ShapeError(f"{name}: padding='same' needs stride 1")
        total = [g * (k - 1) if padding == "same" else 0 for g, k in zip(gaps, kernel, strict=True)]
        pads = [(t // 2, t - t // 2) for t in total]
    else:
        pads = [(p, p) for p in ints(padding, n, name, "padding", least=0)]
    batch, channels, out = x.shape[0], x.shape[1], w.shape[0]
    if not isinstance(groups, int) or groups < 1 or out % groups or channels != w.shape[1] * groups:
        raise ShapeError(
            f"{name}: 'input' has {channels} channels and 'weight' {w.shape} takes {w.shape[1]} in each of "
            f"groups={groups} and gives {out}; both must be multiples of groups"
        )
    windows = [
        _Window(e, k, s, lo, hi, g, name)
        for e, k, s, (lo, hi), g in zip(x.shape[2:], kernel, steps, pads, gaps, strict=True)
    ]
    space = tuple(v.count for v in windows)
    c, *r = fb.axes(w.shape[1], *kernel)
    inner, per = w.shape[1], out // groups
    if groups == 1:
        y = fb.compute(
            (batch, out, *space),
            lambda b, k, *p: fb.sum(_read(x, (b, c), windows, p, r, 0) * w[(k, c, *r)], over=(c, *r)),
        )
    else:  # the group as an axis of its own: every index stays a sum of axes
        z = fb.compute(
            (batch, groups, per, *space),
            lambda b, g, k, *p: fb.sum(
                _read(x, (b, inner * g + c), windows, p, r, 0) * w[(per * g + k, c, *r)], over=(c, *r)
            ),
        )
        y = z.reshape((batch, out, *space))
    if bias is None:
        return y
    v = tensor(bias, name, "bias")
    if v.shape != (out,):
        raise ShapeError(f"{name}: 'bias' has shape {v.shape}, needs {(out,)}")
    return fb.compute(y.shape, lambda b, k, *p: y[(b, k, *p)] + v[k])


@traced
def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Value:
    """Cross-correlation of input [B, C, L] (or [C, L]) with weight [O, C/groups, K], plus bias [O]: [B, O, L']."""
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@traced
def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Value:
    """Cross-correlation of input [B, C, H, W] (or [C, H, W]) with weight [O, C/groups, R, S], plus bias [O].

    `padding` is zeros on both sides: an int, two ints, 'valid' (none) or 'same' (the input's extents; stride 1).
    """
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


def _pool_windows(
    name: str, x: Value, kernel_size: Ints, stride: Ints | None, padding: Ints, dilation: Ints, ceil_mode: bool
) -> list[_Window]:
    kernel = ints(kernel_size, 2, name, "kernel_size")
    steps = kernel if stride is None else ints(stride, 2, name, "stride")
    pads = ints(padding, 2, name, "padding", least=0)
    if any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
        raise ShapeError(f"{name}: padding={padding!r} is more than half of kernel_size={kernel_size!r}")
    gaps = ints(dilation, 2, name, "dilation")
    return [
        _Window(e, k, s, p, p, g, name, ceil_mode)
        for e, k, s, p, g in zip(x.shape[-2:], kernel, steps, pads, gaps, strict=True)
    ]


@traced
def max_pool2d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
) -> Value:
    """The largest element of each window of input [..., H, W]; `stride` is the window's size where not given.

    The gradient goes to the first of equal elements, in row-major order of the window. Padding is minus infinity.
    """
    x = tensor(input, "max_pool2d", "input", rank=(3, 4), kind="float")
    windows = _pool_windows("max_pool2d", x, kernel_size, stride, padding, dilation, ceil_mode)
    r = fb.axes(*(w.kernel for w in windows))
    lead = x.ndim - 2
    return fb.compute(
        (*x.shape[:lead], *(w.count for w in windows)),
        lambda *i: fb.max(_read(x, i[:lead], windows, i[lead:], r, -inf), over=tuple(r)),
    )


@traced
def avg_pool2d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """The mean of each window of input [..., H, W]; `stride` is the window's size where not given.

    Padding is zeros, which count as elements where `count_include_pad`; `divisor_override` replaces the count.
    """
    x = tensor(input, "avg_pool2d", "input", rank=(3, 4), kind="float")
    windows = _pool_windows("avg_pool2d", x, kernel_size, stride, padding, 1, ceil_mode)
    r = fb.axes(*(w.kernel for w in windows))
    lead = x.ndim - 2
    if divisor_override == 0:
        raise ShapeError("avg_pool2d: divisor_override must not be 0")
    overhang = any(w.stride * (w.count - 1) + w.kernel > w.extent + w.before + w.after for w in windows)
    fixed = divisor_override is not None or (not overhang and (count_include_pad or not any(w.before for w in windows)))

    def body(*i: Any) -> Any:
        total = fb.sum(_read(x, i[:lead], windows, i[lead:], r, 0), over=tuple(r))
        if fixed:
            return total * (1 / (divisor_override or prod(w.kernel for w in windows)))
        counts = [w.covered(p, not count_include_pad) for w, p in zip(windows, i[lead:], strict=True)]
        return total / fb.cast(counts[0] * counts[1], x.dtype)

    return fb.compute((*x.shape[:lead], *(w.count for w in windows)), body)
