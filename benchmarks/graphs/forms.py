"""Offer formulations of operations; which is the fastest differs between libraries and between networks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.graphs.graph import NetworkGraph


class Formulation(NamedTuple):
    """A choice of formulations.

    slices: max pooling as the maximum of strided slices, depthwise convolutions as a sum over the taps of shifted
    images, other grouped 1x1 convolutions as a batch of products; without it the library's own operations. products:
    1x1 convolutions as matrix products.
    """

    slices: bool = False
    products: bool = False

    @property
    def name(self) -> str:
        """Return the formulations in words."""
        return ", ".join(n for n, on in zip(self._fields, self, strict=True) if on) or "library"


def applicable(graph: NetworkGraph) -> tuple[Formulation, ...]:
    """Return the formulations that make a difference in a graph, the library's own first."""
    shapes = dict(graph.shapes)
    convolutions = [(n, shapes.get(n.args[1].name, ())) for n in graph.nodes if n.op == "conv2d"]
    slices = any(n.op == "max_pool2d" for n in graph.nodes) or any(n.args[6] > 1 for n, _ in convolutions)
    products = any(w[2:] == (1, 1) and n.args[6] == 1 for n, w in convolutions)
    cut = (False, True) if slices else (False,)
    return tuple(Formulation(s, p) for p in ((False, True) if products else (False,)) for s in cut)


def by_name(name: str) -> Formulation:
    """Return the formulation of a name."""
    return Formulation(*(n in name.split(", ") for n in Formulation._fields))


def windows(x: Any, size: Sequence[int], stride: Sequence[int], dilation: Sequence[int] = (1, 1)) -> list[list[Any]]:
    """Return, for every place in a window [H, W], what all windows have there: slices of images [B, H, W, C]."""

    def cuts(axis: int) -> list[slice]:
        step, apart = stride[axis], dilation[axis]
        count = (int(x.shape[1 + axis]) - apart * (size[axis] - 1) - 1) // step + 1
        return [slice(r * apart, r * apart + step * (count - 1) + 1, step) for r in range(size[axis])]

    return [[x[:, rows, columns] for columns in cuts(1)] for rows in cuts(0)]


def pooled(x: Any, size: Sequence[int], stride: Sequence[int], maximum: Callable[[Any, Any], Any]) -> Any:
    """Return the maxima of windows, rows before columns: the gradient of a slice is cheap, that of a window is not."""
    for one, step in (((size[0], 1), (stride[0], 1)), ((1, size[1]), (1, stride[1]))):
        x = functools.reduce(maximum, [part for row in windows(x, one, step) for part in row])
    return x


def taps(x: Any, w: Any, stride: Sequence[int], dilation: Sequence[int] = (1, 1)) -> Any:
    """Return the depthwise convolution of a padded image: w [H, W, 1, C]."""
    parts = enumerate(windows(x, w.shape[:2], stride, dilation))
    return functools.reduce(operator.add, [part * w[r, c, 0] for r, row in parts for c, part in enumerate(row)])


def product(lib: Any, x: Any, w: Any, stride: Sequence[int], groups: int) -> Any:
    """Return a 1x1 convolution as a matrix product, a batch of them where there are groups."""
    if tuple(stride) != (1, 1):
        x = x[:, :: stride[0], :: stride[1]]
    *images, inner = (int(n) for n in x.shape)
    outer = int(w.shape[3])
    if groups == 1:
        return lib.reshape(lib.dense(lib.reshape(x, [-1, inner]), w[0, 0], False), [*images, outer])
    parts = lib.reshape(x, [-1, groups, inner // groups])
    y = lib.einsum("ngi,igo->ngo", parts, lib.reshape(w[0, 0], [inner // groups, groups, outer // groups]))
    return lib.reshape(y, [*images, outer])
