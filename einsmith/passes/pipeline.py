"""The passes from graph to graph, in order: what each needs to be done before, and what all of them are handed.

Fusion, memory and code generation follow (`compile.Executable`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

from einsmith import knobs
from einsmith.errors import KnobError
from einsmith.expr.nodes import Compute, Graph
from einsmith.expr.rewrite.contraction_order import ordered as ordered_products
from einsmith.passes.algebra.fold_into_scatter import accumulate
from einsmith.passes.algebra.free_factors import free_factors
from einsmith.passes.algebra.horizontal_fusion import together
from einsmith.passes.algebra.inline import inline, simplify_graph
from einsmith.passes.algebra.joined_scatters import joined_scatters
from einsmith.passes.algebra.merge_disjoint import disjoint
from einsmith.passes.algebra.multi_reduce import sweeps
from einsmith.passes.algebra.narrow_argmax import narrow
from einsmith.passes.algebra.prefix_sums import prefix_sums
from einsmith.passes.algebra.recompute import recompute
from einsmith.passes.algebra.reduction_basis import coordinates
from einsmith.passes.algebra.segments import segments
from einsmith.passes.algebra.shared_functions import shared_functions
from einsmith.passes.algebra.split_index_set import pieces, read_parts
from einsmith.passes.algebra.stored_clamps import stored_clamps
from einsmith.passes.algebra.stored_products import stored_products
from einsmith.passes.algebra.turned_gathers import turned_gathers
from einsmith.passes.recurrence.lower_loops import lower_loops
from einsmith.passes.recurrence.strip_mine import chunks
from einsmith.passes.schedule.plan import Cost, kernel_call
from einsmith.passes.schedule.schedule import Copy
from einsmith.plan.kernel import Kernel, Rows
from einsmith.target.facts import Target


def no_cost(kernel: Kernel | Rows, target: Target) -> float:
    """For passes that are run where no kernels are chosen."""
    raise NotImplementedError("a pass asks what a kernel costs where nobody predicts it; PassContext.cost is missing")


@dataclass(frozen=True)
class PassContext:
    """What passes are handed. target: the machine; cost: predicted seconds of a kernel on it; observe(name, before,
    after, seconds): called after each pass."""

    target: Target = Target()
    cost: Cost = no_cost
    observe: Callable[[str, Graph, Graph, float], None] | None = None

    @property
    def prices(self) -> bool:
        """Whether `cost` can be asked."""
        return self.cost is not no_cost

    def price(self, *nodes: Compute) -> float:
        """Predicted seconds of a kernel that makes these tensors, each from what is stored or made before it there."""
        return self.cost(kernel_call([Copy(n) for n in nodes], nodes, {}, ()).kernel, self.target)


@dataclass(frozen=True)
class Pass:
    """A function from graph to graph. needs: what passes before it have provided; provides: what holds from it on."""

    name: str
    run: Callable[[Graph, PassContext], Graph]
    needs: frozenset[str] = frozenset()
    provides: frozenset[str] = frozenset()


def graph_pass(name: str, f: Callable[[Graph], Graph], needs: str = "", provides: str = "") -> Pass:
    """A pass that asks nothing of its context. needs, provides: words."""
    return Pass(name, lambda graph, _: f(graph), frozenset(needs.split()), frozenset(provides.split()))


def ordered(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """The passes. Raises ValueError where one needs what none before it provides."""
    known: set[str] = set()
    for p in passes:
        missing = p.needs - known
        if missing:
            names = ", ".join(sorted(missing))
            raise ValueError(f"the pass {p.name!r} needs {names}, which no pass before it provides")
        known |= p.provides
    return tuple(passes)


def run_passes(graph: Graph, context: PassContext = PassContext()) -> Graph:
    """The graph after every pass but those that EINSMITH_WITHOUT names. Raises KnobError where it names others."""
    without = _left_out()
    for p in PASSES:
        start = time.perf_counter()
        before, graph = graph, graph if p.name in without else p.run(graph, context)
        if context.observe is not None:
            context.observe(p.name, before, graph, time.perf_counter() - start)
    return graph


def optional() -> list[str]:
    """The passes that can be left out, of graphs and of plans: no other one needs what they provide."""
    needed = frozenset[str]().union(*(p.needs for p in PASSES))
    bound = {p.name for p in PASSES if p.provides & needed}
    return [*(p.name for p in PASSES if p.name not in bound), *PLAN_PASSES]


def left_out(name: str) -> bool:
    """Whether a pass of plans is left out."""
    return name in _left_out()


_WITHOUT: ContextVar[frozenset[str] | None] = ContextVar("passes that are left out", default=None)


def decided_out() -> frozenset[str] | None:
    """The passes that are left out by a decision (`leaving_out`); None where there is none."""
    return _WITHOUT.get()


@contextmanager
def leaving_out(names: frozenset[str]) -> Iterator[None]:
    """What is compiled inside is compiled without these passes, of those that can be left out; whatever else is decided
    about that, EINSMITH_WITHOUT holds too."""
    token = _WITHOUT.set(names)
    try:
        yield
    finally:
        _WITHOUT.reset(token)


def _left_out() -> tuple[str, ...]:
    without = knobs.WITHOUT.get()
    for name in without:
        if name not in optional():
            raise KnobError(
                f"the environment variable {knobs.WITHOUT.name} names {name!r}, which is no pass that can be left out; "
                f"these can: {', '.join(optional())}"
            )
    return (*without, *(_WITHOUT.get() or ()))


PASSES = ordered(
    (
        graph_pass("simplify", simplify_graph, provides="simplified"),
        graph_pass("parts", read_parts, needs="simplified"),
        graph_pass("inline", inline, needs="simplified", provides="inlined"),
        graph_pass("stored clamps", stored_clamps, needs="inlined"),
        graph_pass("stored products", stored_products, needs="inlined"),
        graph_pass("free factors", free_factors, needs="inlined"),
        graph_pass("order", ordered_products, needs="inlined"),
        graph_pass("prefix sums", prefix_sums, needs="inlined"),
        graph_pass("segments", segments, needs="inlined"),
        graph_pass("disjoint", disjoint, needs="inlined"),
        graph_pass("coordinates", coordinates, needs="inlined"),
        graph_pass("accumulate", accumulate, needs="inlined"),
        graph_pass("simplify", simplify_graph, needs="inlined"),
        graph_pass("sweeps", sweeps, needs="inlined", provides="swept"),
        graph_pass("narrow", narrow, needs="swept"),
        graph_pass("pieces", pieces, needs="inlined"),
        # The steps of a loop are graphs of their own, which have all passes behind them when their loop is made.
        Pass("loops", lambda graph, c: lower_loops(graph, partial(run_passes, context=c)), frozenset({"inlined"}),
             frozenset({"loops"})),
        Pass("chunks", lambda graph, c: chunks(graph, partial(run_passes, context=c)), frozenset({"loops"})),
        graph_pass("together", together, needs="loops"),
        Pass("recompute", recompute, frozenset({"loops"})),
        Pass("shared functions", shared_functions, frozenset({"loops"})),
        Pass("joined scatters", joined_scatters, frozenset({"loops"})),
        Pass("turned gathers", turned_gathers, frozenset({"loops"})),
    )
)  # fmt: skip
"""What makes fewer points or fewer tensors comes before what divides them; all of it before loops fix an order."""
PLAN_PASSES = ("layouts",)
"""What follows the fusion into kernels, and can be left out (`compile.Executable`)."""
