"""Define tensors by expressions over labelled axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Expr,
    Leaf,
    Read,
    Reduce,
    StepOptions,
    Tensor,
    apply,
    leaf,
    postorder,
    template,
)
from einsmith.ir.rebuild import substitute
from einsmith.ir.recurrence.chunks.affine import FIRST
from einsmith.ir.recurrence.define import recurrence
from einsmith.ir.rewrite.simplify import canonical

DECIDED = StepOptions(chunk=1)
"""How the recurrences are run that chunk forms and blocks of triangular systems consist of."""
PLACES = 1000
"""The least label that is no axis of a formula."""


class Labelled(NamedTuple):
    """A tensor with a label for each of its axes."""

    tensor: Tensor
    labels: tuple[int, ...]


class Sheet:
    """Tensors by expressions whose axes are labels, of `extents`, and whose slots are those of this sheet."""

    def __init__(self, extents: dict[int, int]):
        self.extents = extents
        self.args: dict[Tensor, int] = {}

    def slot(self, tensor: Tensor) -> int:
        """Return the slot of a tensor."""
        return self.args.setdefault(tensor, len(self.args))

    def taken(self, x: Expr, args: Sequence[Tensor]) -> Expr:
        """Return an expression that reads `args` with the slots of this sheet. An axis of one element has no index."""
        read = {e.slot for e in postorder([x]) if isinstance(e, Read)}
        single = {d: FIRST for d in self.extents if self._is_single(d)}
        return substitute(x, single, {s: self.slot(args[s]) for s in read})

    def _is_single(self, label: int) -> bool:
        """Return whether an axis of a formula has one element. Time, 0, and what numbers chunks and their steps keep
        their indices."""
        return 0 < label < PLACES and self.extents[label] == 1

    def read(self, x: Labelled, at: Mapping[int, Expr] | None = None) -> Read:
        """Return the element of a tensor at its labels, some of them replaced by positions."""
        at = at or {}
        own = (at.get(d, FIRST if self._is_single(d) else Axis(d)) for d in x.labels)
        return Read(self.slot(x.tensor), tuple(own), x.tensor.dtype)

    def define(self, labels: Sequence[int], body: Expr, over: Sequence[int] = ()) -> Labelled:
        """Return the tensor of an expression, summed over some labels."""
        order = [*labels, *over]
        known = {d: n for n, d in enumerate(order)}
        e = substitute(body, {d: Axis(n) for d, n in known.items()})
        params = [(a.dtype, a.shape) for a in self.args]
        shape = tuple(self.extents[d] for d in labels)
        reduced = Reduce("sum", tuple(self.extents[d] for d in over), (e,)) if over else e
        return Labelled(canonical(template(shape, params, reduced), tuple(self.args)), tuple(labels))

    def placeholder(self, labels: Sequence[int], dtype: DType) -> Labelled:
        """Return a tensor that a recurrence is to define."""
        x: Leaf = leaf(tuple(self.extents[d] for d in labels), dtype)
        return Labelled(x, tuple(labels))

    def solve(self, x: Labelled, step: Expr) -> Labelled:
        """Return the tensor that a placeholder denotes, from the equation that defines it by itself."""
        assert isinstance(x.tensor, Leaf)
        step_of_it = self.define(x.labels, step).tensor
        return Labelled(recurrence({x.tensor: step_of_it}, options=DECIDED)[x.tensor], x.labels)


def integer(n: int) -> Const:
    """Return an index."""
    return Const(n, dt.i32)


def plus(x: Expr, n: int) -> Expr:
    """Return an index and a number."""
    return apply("add", x, integer(n)) if n else x


def choose(condition: Expr, x: Expr, y: float | Expr) -> Expr:
    """Return x where a condition holds, else y."""
    return apply("where", condition, x, y if isinstance(y, (Const, Axis, Read, Apply)) else Const(y, x.dtype))


def labels_of(*parts: Labelled | Expr) -> frozenset[int]:
    """Return the labels that tensors or expressions depend on."""
    out: set[int] = set()
    for p in parts:
        if isinstance(p, Labelled):
            out |= {*p.labels}
        else:
            out |= {e.position for e in postorder([p]) if isinstance(e, Axis)}
    return frozenset(out)
