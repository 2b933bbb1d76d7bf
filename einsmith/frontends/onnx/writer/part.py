"""Hold the tensors of one part of a formula, each over the axes on which it depends, so that operators broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einsmith.base.errors import FormulaError
from einsmith.frontends.onnx.writer.onnx_graph import GraphWriter


@dataclass(frozen=True)
class FileTensor:
    """A tensor of the file, whose dimension n runs over the formula's axis `axes[n]`."""

    name: str
    axes: tuple[int, ...]


class FormulaPart:
    """A part of a formula. domain: extents of its axes."""

    def __init__(self, graph: GraphWriter, domain: Sequence[int]):
        self.graph, self.domain = graph, domain
        self._aligned: dict[tuple[FileTensor, tuple[int, ...]], str] = {}

    def error(self, message: str, hint: str) -> FormulaError:
        """Return the error for this part's formula."""
        return FormulaError(f"ONNX cannot express {self.graph.subject}: {message}", self.graph.formula, 0, hint)

    def align(self, o: FileTensor, axes: tuple[int, ...]) -> str:
        """Return the tensor with its axes in increasing order, and dimensions of extent 1 for those of `axes` that it
        lacks after its first one."""
        if (o, axes) not in self._aligned:
            self._aligned[o, axes] = self._align(o, axes)
        return self._aligned[o, axes]

    def _align(self, o: FileTensor, axes: tuple[int, ...]) -> str:
        name, order = o.name, sorted(o.axes)
        if list(o.axes) != order:
            name = self.graph.node("Transpose", name, perm=[o.axes.index(a) for a in order])
        if order:
            inner = axes[axes.index(order[0]) :]
            missing = [n for n, a in enumerate(inner) if a not in o.axes]
            if missing:
                name = self.graph.node("Unsqueeze", name, self.graph.ints(missing, "axes"))
        return name

    def full(self, o: FileTensor, axes: tuple[int, ...]) -> str:
        """Return the tensor over all `axes`, in increasing order, with their extents."""
        name = self.align(o, axes)
        missing = [a for a in axes if a not in o.axes]
        if any(self.domain[a] != 1 for a in missing):
            return self.graph.node("Expand", name, self.graph.ints([self.domain[a] for a in axes], "shape"))
        lead = len(axes) if not o.axes else axes.index(min(o.axes))
        return self.graph.node("Unsqueeze", name, self.graph.ints(range(lead), "axes")) if lead else name

    def transpose(self, o: FileTensor, axes: Sequence[int]) -> str:
        """Return the tensor with its axes in the order `axes`."""
        order = [o.axes.index(a) for a in axes]
        return o.name if order == sorted(order) else self.graph.node("Transpose", o.name, perm=order)
