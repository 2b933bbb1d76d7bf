"""Represent the adjoint or the tangent of a node as tensors to be created, in terms of its template alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from einsmith.base import dtypes as dt
from einsmith.base import symbolic
from einsmith.base.symbolic import is_symbolic
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Item,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    Tensor,
    reads,
)
from einsmith.ir.rebuild import map_bodies, substitute
from einsmith.ir.rewrite.simplify import canonical, canonical_template
from einsmith.ir.views import own_index


@dataclass
class AdjointPlan:
    """Tensors to create, in order.

    Attributes:
        params: type and shape of every tensor, by number: first the node's arguments, results and cotangents, then the
            steps.
        steps: (template, arguments, which result) of each tensor to create; step k has number len(params) - len(steps)
            + k.
        contributions: per slot, the numbers of the tensors to be added up.
        replaced: per result of the node, the number of a tensor of the plan that is equal to it and takes its place.
    """

    params: list[tuple[dt.DType, tuple[int, ...]]]
    steps: list[tuple[Template, tuple[int, ...], int]] = field(default_factory=list)
    contributions: dict[int, list[int]] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)

    def add(self, shape: tuple[int, ...], parts: Sequence[Piece | Scatter], member: int = 0) -> int:
        """Add a tensor whose bodies read the plan's tensors by number; return its number, or that of an equal
        tensor."""
        t, sources = self._template(shape, parts)
        if (same := _find_copied_slot(t)) is not None:
            return sources[same]
        step = (t, sources, member)
        if step in self.steps:
            return len(self.params) - len(self.steps) + self.steps.index(step)
        self.steps.append(step)
        self.params.append((t.dtypes[member], shape))
        return len(self.params) - 1

    def _template(self, shape: tuple[int, ...], parts: Sequence[Piece | Scatter]) -> tuple[Template, tuple[int, ...]]:
        """Return (the template of bodies that read the plan's tensors, the tensors that are its arguments)."""
        slots: dict[int, int] = {}
        for part in parts:
            for body in part.bodies:
                for r in reads(body):
                    slots.setdefault(r.slot, len(slots))
        sources = tuple(slots)
        t = map_bodies(
            Template(shape, tuple(self.params[s] for s in sources), tuple(parts)), lambda b: substitute(b, {}, slots)
        )
        t, order = canonical_template(t)
        return t, tuple(sources[s] for s in order)

    def pieces(self, number: int) -> list[Piece]:
        """Return a tensor as pieces without reductions over the plan's tensors: its own pieces, or a copy."""
        first = len(self.params) - len(self.steps)
        if number >= first:
            t, sources, _ = self.steps[number - first]
            slots = dict(enumerate(sources))
            own = [p for p in map_bodies(t, lambda b: substitute(b, {}, slots)).parts if isinstance(p, Piece)]
            if not t.is_scatter and not any(isinstance(p.body, Reduce) for p in own):
                return own
        shape = self.params[number][1]
        at = tuple(Axis(d) for d in range(len(shape)))
        return [Piece((0,) * len(shape), (1,) * len(shape), shape, self.read(number, at))]

    def read(self, number: int, index: Sequence[Expr]) -> Read:
        """Return a read of the parameter with this number at an index, in the parameter's type."""
        return Read(number, tuple(index), self.params[number][0])

    def tensors(self, node: Compute, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Create the plan's tensors for one node; return all tensors by number."""
        several = len(node.template.dtypes) > 1
        results: list[Tensor] = [Item(node, m) for m in range(len(node.template.dtypes))] if several else [node]
        return self.instantiate(node.args, results, cotangents)

    def instantiate(
        self, args: Sequence[Tensor], results: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Create the plan's tensors for given arguments, results and cotangents; return all tensors by number."""
        out: list[Tensor | None] = [*args, *results, *cotangents]
        for t, sources, member in self.steps:
            args = tuple(a for s in sources if (a := out[s]) is not None)
            tensor = canonical(t, args) if len(set(args)) < len(args) else Compute(t, args)
            out.append(Item(tensor, member) if len(t.dtypes) > 1 else tensor)
        return out


def _find_copied_slot(t: Template) -> int | None:
    """Return the slot of the tensor that a template copies whole; None if it does anything else."""
    part = t.parts[0]
    if len(t.parts) == 1 and isinstance(part, Piece) and isinstance(part.body, Read):
        r = part.body
        at = own_index(t.shape)
        plain = tuple(i if n > 1 else a for i, a, n in zip(r.index, at, t.shape, strict=False))
        if t.params[r.slot][1] == t.shape and plain == at:
            return r.slot
    return None


def constant_value(tensor: Tensor | None) -> float | None:
    """Return the value of a tensor that is the same constant everywhere; None for others."""
    if isinstance(tensor, Compute) and len(tensor.template.parts) == 1 and not tensor.template.is_scatter:
        body = tensor.template.parts[0].body
        if isinstance(body, Const):
            return symbolic.literal(body.value, True) if is_symbolic(body.value) else float(body.value)
    return None
