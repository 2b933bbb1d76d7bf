"""Describe windows that slide over dimensions, which convolutions, pooling and unfolding read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith.autodiff.reverse import gradients
from einsmith.base.errors import ShapeError
from einsmith.ir.nodes import leaf
from einsmith.ops.common import all_of
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

Ints = int | Sequence[int]


class Window:
    """One dimension of a sliding window: output position p, window position r read stride*p + dilation*r - before.

    count: the number of positions, by default as many as fit; with `ceil` one more that overhangs, as long as it begins
    inside. Raises ShapeError, which names `where`, for a window that does not fit.
    """

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
        count: int | None = None,
    ):
        self.extent, self.kernel, self.stride, self.dilation = extent, kernel, stride, dilation
        self.before, self.after = before, after
        room = extent + before + after - dilation * (kernel - 1) - 1
        if room < 0:
            raise ShapeError(
                f"{where}: a window of {kernel} (dilation {dilation}) does not fit an extent of {extent} padded by "
                f"{before} and {after}"
            )
        self.count = room // stride + 1 if count is None else count
        if ceil and room % stride and self.count * stride < extent + before:
            self.count += 1

    @property
    def last(self) -> int:
        """Return the largest position that is read."""
        return self.stride * (self.count - 1) + self.dilation * (self.kernel - 1) - self.before

    def position(self, p: Any, r: Any) -> Any:
        """Return the input position that window position r reads at output position p."""
        return self.stride * p + self.dilation * r - self.before

    def guards(self, h: Any, p: Any) -> list[Any]:
        """Return conditions under which position `h` of the window at `p` lies inside, without those that always
        hold."""
        return ([0 <= h] if self.before else []) + ([h < self.extent] if self.last >= self.extent else [])

    def covered(self, p: Any, clip: bool) -> Any:
        """Count the positions of the window at `p` inside the extent (`clip`), or the padded extent."""
        start, gap = self.stride * p - self.before, self.dilation
        most = (self.extent + (0 if clip else self.after) - start + gap - 1) // gap
        return builder.minimum(most, self.kernel) - (builder.maximum((gap - 1 - start) // gap, 0) if clip else 0)

    def first(self, p: Any) -> Any:
        """Return the first position of the window at `p` that lies inside."""
        start = self.stride * p - self.before
        return builder.where(start < 0, start + (self.dilation - 1 - start) // self.dilation * self.dilation, start)


def read(x: Value, lead: Sequence[Any], windows: Sequence[Any], p: Sequence[Any], r: Sequence[Any], other: float):
    """Return x[lead, positions], or `other` outside."""
    h = [w.position(a, b) for w, a, b in zip(windows, p, r, strict=True)]
    guards = [g for w, at, a in zip(windows, h, p, strict=True) for g in w.guards(at, a)]
    element = x[(*lead, *h)]
    return builder.where(all_of(guards), element, other) if guards else element


def apply_transpose(function: Callable[[Value], Value], shape: Sequence[int], x: Value) -> Value:
    """Apply the transpose of a linear `function` of tensors of `shape` to x.

    It is derived as the function's gradient, so that every residue of a stride becomes a piece that reads only what
    contributes to it.
    """
    argument = leaf(tuple(shape), x.dtype)
    y = function(Value(argument))
    _, (result,) = gradients([y.tensor], [x.astype(y.dtype).tensor], [argument])
    return Value(result)
