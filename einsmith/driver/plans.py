"""Cache the plans of programs on disk, like the code of their kernels, so that a second process neither runs passes nor
plans.

An entry is found by the digest of the traced graph and of everything else that a plan depends on, and is trusted as
object code is (`codegen.cache.objects`): it lies in a folder that only this user can write, and is checked as a whole
before any of it is read. It is a pickle, in which the graph's own leaves are numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from einsmith.base import environment
from einsmith.base.numerics import Numerics
from einsmith.codegen.cache import objects
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend
from einsmith.ir.graph_digest import graph_digest, number_leaves
from einsmith.ir.interned import Node, nodes_in
from einsmith.ir.nodes import Graph, Leaf
from einsmith.kernels.pattern_keys import key_of
from einsmith.runtime.assemble import ArenaLayout
from einsmith.schedule.layout import forced
from einsmith.schedule.limited_positions import RowLimit
from einsmith.schedule.plan import Order, Plan
from einsmith.tuning.kernels import override


class StoredPlan(NamedTuple):
    """A plan with the data by which to check that planning anew would give the same plan.

    places: the layout of the arena; requirements: (decision, bytes of workspace, whether operands are packed once) of
    each kernel as it was compiled; tensors: by how many tensors each pass changed the graph (`Changes.tensors`).
    """

    plan: Plan
    places: ArenaLayout
    requirements: tuple[tuple[str, int, bool], ...]
    tensors: dict[str, int]


class PlanStore:
    """The place of one program's plan.

    Args:
        graph: the graph before the passes.
        bound: leaves that are bound to memory; constants: those of them whose values stay from run to run.
        limits: limits of rows beyond which results do not matter.
        placed: orders in which leaves are stored that are not row-major.
        target, numerics, backend: the machine, how the program may round, and what compiles it.
        settings: all else that the plan depends on, which has a text.
    """

    def __init__(
        self,
        graph: Graph,
        bound: Collection[Leaf],
        constants: Collection[Leaf],
        limits: Sequence[RowLimit],
        placed: Mapping[Leaf, Order],
        target: Target,
        numerics: Numerics,
        backend: Backend,
        *settings: Any,
    ):
        self._leaves = leaves = number_leaves(graph, bound)
        numbers = [sorted(leaves[x] for x in some) for some in (bound, constants)]
        rounding = sorted(numerics.by_name().items())
        rows = [
            (
                leaves[x.leaf],
                x.extent,
                sorted(x.outputs),
                [leaves[b] for b in (x.base,) if isinstance(b, Leaf)],
                x.offset,
                x.times,
                [leaves[f] for f in x.factors if isinstance(f, Leaf)],
            )
            for x in limits
            if isinstance(x.leaf, Leaf)
        ]
        orders = sorted((leaves[x], order) for x, order in placed.items())
        texts = sys.version, repr(target), repr((numbers, rows, orders, type(backend).__qualname__, rounding, settings))
        patterns = [p.name.encode() + key_of(p) for p in backend.patterns]
        self._key = objects.name_of(b"plan", graph_digest(graph, leaves), *(x.encode() for x in texts), *patterns)

    def read(self) -> StoredPlan | str | None:
        """Return the stored plan; a text that says why no plan can skip rows beyond the limits; None if neither is
        stored."""
        return objects.read_pickled(self._key, list(self._leaves))

    def write(self, stored: StoredPlan) -> None:
        """Store the plan; it replaces an earlier one."""
        objects.write_pickled(self._key, stored, _nodes_of(stored.plan), self._leaves)

    def refuse(self, why: str) -> None:
        """Store a text that says why no plan can skip rows beyond the limits."""
        objects.write_pickled(self._key, why, [], self._leaves)


def is_kept() -> bool:
    """Return whether plans are read from disk and kept there: not while an experiment decides on layouts or
    configurations."""
    return bool(environment.PLANS.get()) and not forced.is_active() and not override.is_active()


def _nodes_of(plan: Plan) -> list[Node]:
    """Return the roots of all nodes of a plan whose nesting has no bound."""
    nodes: list[Node] = [plan.graph, *(c.kernel for _, c, _ in plan.kernel_calls())]
    for call in plan.calls:
        nodes += nodes_in((*call.tensors, *call.nodes))
    return [*nodes, *nodes_in((*plan.originals, *plan.originals.values()))]
