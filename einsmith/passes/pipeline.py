"""Run the passes from graph to graph in order; each declares what it needs and provides, and all share one context.

The passes from plan to plan follow (`schedule.pipeline`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial

from einsmith.base import environment
from einsmith.base.errors import KnobError
from einsmith.ir.nodes import Graph
from einsmith.ir.recurrence.chunks.readers import CHUNK_FORM
from einsmith.ir.rewrite.narrow import WINDOWS
from einsmith.ir.rewrite.postponed_gathers import POSTPONED_GATHERS
from einsmith.ir.rewrite.sampled import SAMPLES
from einsmith.ir.rewrite.separate_exponentials import SEPARATE_EXPONENTIALS
from einsmith.passes.algebra.available_expressions import available_expressions
from einsmith.passes.algebra.common_subexpressions import common_subexpressions
from einsmith.passes.algebra.compare_pairs import compare_pairs
from einsmith.passes.algebra.contraction_order import contraction_order
from einsmith.passes.algebra.factor_hoisting import factor_hoisting
from einsmith.passes.algebra.fold_into_scatter import fold_into_scatter
from einsmith.passes.algebra.gather_layouts import gather_layouts
from einsmith.passes.algebra.horizontal_fusion import horizontal_fusion
from einsmith.passes.algebra.implied_checks import implied_checks
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.join_products import join_products
from einsmith.passes.algebra.length_limits import length_limits
from einsmith.passes.algebra.merge_disjoint import merge_disjoint
from einsmith.passes.algebra.merge_scatters import merge_scatters
from einsmith.passes.algebra.multi_output_reduction import multi_output_reduction
from einsmith.passes.algebra.narrow_argmax import narrow_argmax
from einsmith.passes.algebra.narrow_sums import narrow_sums
from einsmith.passes.algebra.parallel_fusion import parallel_fusion
from einsmith.passes.algebra.postponed_gathers import postponed_gathers
from einsmith.passes.algebra.precision import precision
from einsmith.passes.algebra.prefix_sums import prefix_sums
from einsmith.passes.algebra.read_forwarding import read_forwarding
from einsmith.passes.algebra.recompute import recompute
from einsmith.passes.algebra.reduction_basis import reduction_basis
from einsmith.passes.algebra.samples import samples
from einsmith.passes.algebra.segments import segments
from einsmith.passes.algebra.separate_exponentials import separate_exponentials
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.algebra.split_index_set import split_index_set
from einsmith.passes.algebra.store_post_activation import store_post_activation
from einsmith.passes.algebra.windows import windows
from einsmith.passes.context import PassContext
from einsmith.passes.occurrences import occurrences
from einsmith.passes.recurrence.chunk_form import chunk_form
from einsmith.passes.recurrence.limit_loops import limit_loops
from einsmith.passes.recurrence.lower_loops import lower_loops
from einsmith.passes.recurrence.merge_loops import merge_loops
from einsmith.passes.recurrence.skew import skew
from einsmith.passes.recurrence.split_loops import split_loops
from einsmith.passes.recurrence.strip_mine import strip_mine
from einsmith.schedule.graph_decisions import WITHOUT, is_of_tensor
from einsmith.schedule.pipeline import PLAN_PASSES, Pass, check_order, optional_names

GraphPass = Pass[Graph, PassContext]

ALL = "graph passes"
"""Name by which decisions leave out all passes over graphs, of a graph that has gone through them."""

CIRCULAR_BUFFERS = "circular buffers"
"""Name by which circular buffers of loops can be left out."""

CONSTANTS = "constants"
"""Name by which the values of constants can be left out: they are read as those of other arrays."""


def graph_pass(name: str, f: Callable[[Graph], Graph], needs: str = "", provides: str = "", on: str = "") -> GraphPass:
    """Return a pass that does not use its context. needs, provides: words separated by spaces; on: kinds separated by
    commas."""
    return priced_pass(name, lambda graph, _: f(graph), needs, provides, on)


def priced_pass(
    name: str, f: Callable[[Graph, PassContext], Graph], needs: str = "", provides: str = "", on: str = ""
) -> GraphPass:
    """Return a pass that uses its context; the other arguments are those of `graph_pass`."""
    kinds = frozenset(on.split(", ")) if on else frozenset[str]()
    return Pass(name, f, frozenset(needs.split()), frozenset(provides.split()), on=kinds)


def run_passes(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph after every pass except those that EINSMITH_WITHOUT names, and those that have nothing to
    rewrite in it (`Pass.on`). Raises KnobError if it names a pass that cannot be left out."""
    context = context or PassContext()
    without = left_out()
    if ALL in without:
        return graph
    kinds = occurrences(graph)
    for p in PASSES:
        start = time.perf_counter()
        before = graph
        if p.name not in without and (not p.on or p.on & kinds):
            graph = p.run(graph, context)
            if graph is not before:
                kinds = occurrences(graph)
        if context.observe is not None:
            context.observe(p.name, before, graph, time.perf_counter() - start)
    return graph


def registered() -> list[tuple[int, str, str]]:
    """Return the place, name and identity of each pass that was registered from outside."""
    return [(n, p.name, p.identity) for n, p in enumerate(PASSES) if p.identity]


def optional() -> list[str]:
    """Return the names of the passes over graphs and plans, and of their parts, that can be left out."""
    return [*optional_names(PASSES), *optional_names(PLAN_PASSES)]


_DECISIONS: ContextVar[frozenset[str] | None] = ContextVar("graph decisions", default=None)


def present_decisions() -> frozenset[str] | None:
    """Return the graph decisions that programs compiled now follow, by `deciding`; None outside of it."""
    return _DECISIONS.get()


@contextmanager
def deciding(decisions: frozenset[str]) -> Iterator[None]:
    """Compile programs inside the `with` block by these decisions (`schedule.graph_decisions`); passes that
    EINSMITH_WITHOUT names are left out in addition."""
    token = _DECISIONS.set(decisions)
    try:
        yield
    finally:
        _DECISIONS.reset(token)


def is_graph_decision(text: str) -> bool:
    """Return whether a text is a graph decision; it may name a tensor that a program does not have."""
    word, _, name = text.partition(" ")
    return is_of_tensor(text) or (word == WITHOUT and name in optional())


def left_out() -> tuple[str, ...]:
    """Return the passes that are left out of programs compiled now, with those that EINSMITH_WITHOUT names. Raises
    KnobError if it names a pass that cannot be left out."""
    without = environment.WITHOUT.get()
    for name in without:
        if name not in optional():
            renamed = f"; it is called {RENAMED[name]!r} now" if name in RENAMED else ""
            raise KnobError(
                f"the environment variable {environment.WITHOUT.name} names {name!r}, which is no pass that can be "
                f"left out{renamed}; these can: {', '.join(optional())}"
            )
    decided = sorted(_DECISIONS.get() or ())
    return (*without, *(x.removeprefix(f"{WITHOUT} ") for x in decided if x.startswith(f"{WITHOUT} ")))


def _lower_loops(graph: Graph, context: PassContext) -> Graph:
    circular = _can_change_loops(context) and CIRCULAR_BUFFERS not in left_out()
    return lower_loops(graph, partial(run_passes, context=_of_step(context)), circular)


def _merge_loops(graph: Graph, context: PassContext) -> Graph:
    # Limits are proven of tensors outside of loops.
    return merge_loops(graph, context) if _can_change_loops(context) else graph


def _can_change_loops(context: PassContext) -> bool:
    return context.circular and not context.limits and context.target.changes_loops


def _length_limits(graph: Graph, context: PassContext) -> Graph:
    return length_limits(graph, {x.leaf for x in context.limits})


def _where_known(f: Callable[[Graph], Graph]) -> Callable[[Graph, PassContext], Graph]:
    """Return a pass that leaves graphs with limits as they are: what is behind the last step of a run is neither
    computed nor read, and where extents are those of a run, so are the windows at their ends."""
    return lambda graph, context: graph if context.limits else f(graph)


def _skew(graph: Graph, context: PassContext) -> Graph:
    return skew(graph, partial(run_passes, context=_of_step(context)), context)


def _strip_mine(graph: Graph, context: PassContext) -> Graph:
    return strip_mine(graph, partial(run_passes, context=_of_step(context)))


def _of_step(context: PassContext) -> PassContext:
    """Return the context of passes over the graph of a loop's step, whose results are not those of the limits."""
    return replace(context, limits=(), is_step=True, circular=context.circular and not context.limits)


PASSES = check_order(
    (
        replace(graph_pass("simplify", simplify, provides="simplified"), is_optional=False, parts=(CONSTANTS,)),
        replace(priced_pass("compare pairs", compare_pairs, "simplified", on="positions"), is_optional=False),
        priced_pass("implied checks", implied_checks, "simplified", on="data index"),
        graph_pass(SAMPLES, samples, "simplified", on="elementwise, recurrence"),
        priced_pass(CHUNK_FORM, _where_known(chunk_form), "simplified", on="recurrence"),
        priced_pass(WINDOWS, _where_known(windows), "simplified", on="condition"),
        graph_pass(POSTPONED_GATHERS, postponed_gathers, "simplified", on="reduction"),
        priced_pass("skew", _skew, "simplified", on="recurrence"),
        graph_pass("read forwarding", read_forwarding, "simplified", on="pieces"),
        priced_pass("merge disjoint", merge_disjoint, "simplified", on="pieces, condition"),
        graph_pass("inline", inline, "simplified", "inlined", on="elementwise"),
        graph_pass(SEPARATE_EXPONENTIALS, separate_exponentials, "inlined", on="reduction, recurrence"),
        graph_pass("store post-activation", store_post_activation, "inlined", on="selection"),
        graph_pass("available expressions", available_expressions, "inlined", on="function"),
        graph_pass("factor hoisting", factor_hoisting, "inlined", on="reductions"),
        graph_pass("contraction order", contraction_order, "inlined", on="reduction"),
        graph_pass(POSTPONED_GATHERS, postponed_gathers, "inlined", on="data index"),  # of the steps
        graph_pass("prefix sums", prefix_sums, "inlined", on="condition"),
        graph_pass("segments", segments, "inlined", on="condition"),
        graph_pass("reduction basis", reduction_basis, "inlined", on="joint index"),
        graph_pass("fold into scatter", fold_into_scatter, "inlined", on="scatter"),
        replace(graph_pass("simplify", simplify, "inlined"), is_optional=False),
        graph_pass("multi-output reduction", multi_output_reduction, "inlined", "multi-output", on="reductions"),
        graph_pass("narrow argmax", narrow_argmax, "multi-output", on="positions"),
        graph_pass("narrow sums", narrow_sums, "inlined", on="i64"),
        priced_pass("join products", join_products, "inlined", on="reductions"),
        priced_pass("parallel fusion", parallel_fusion, "inlined", on="pieces, shifted index"),
        graph_pass("split index set", split_index_set, "inlined", on="condition"),
        priced_pass("merge loops", _merge_loops, "inlined", on="recurrence"),
        # A loop's steps are separate graphs, which go through all passes when the loop is created.
        replace(
            priced_pass("lower loops", _lower_loops, "inlined", "loops", on="recurrence"),
            is_optional=False,
            parts=(CIRCULAR_BUFFERS,),
        ),
        priced_pass("strip mine", _strip_mine, "loops", on="loop"),
        priced_pass("horizontal fusion", horizontal_fusion, "loops", on="reductions"),
        priced_pass("recompute", recompute, "loops", on="elementwise"),
        priced_pass("common subexpressions", common_subexpressions, "loops", on="pieces"),
        priced_pass("merge scatters", merge_scatters, "loops", on="scatter"),
        priced_pass("gather layouts", gather_layouts, "loops", on="data index"),
        priced_pass("length limits", _length_limits, "loops", on="length"),
        replace(priced_pass("precision", precision, "loops"), is_optional=False),
        priced_pass("limit loops", lambda graph, c: limit_loops(graph, c.limits), "loops", on="loop"),
        priced_pass("split loops", split_loops, "loops", on="loop"),
    )
)
"""Passes that reduce points or tensors come before those that divide them; all of these come before loops fix an
order."""
RENAMED = {
    "parts": "read forwarding",
    "stored clamps": "store post-activation",
    "stored products": "available expressions",
    "free factors": "factor hoisting",
    "order": "contraction order",
    "disjoint": "merge disjoint",
    "coordinates": "reduction basis",
    "accumulate": "fold into scatter",
    "narrow": "narrow argmax",
    "pieces": "split index set",
    "chunks": "strip mine",
    "shared functions": "common subexpressions",
    "joined scatters": "merge scatters",
    "turned gathers": "gather layouts",
    "losses of rows": "losses",
}
"""Former names of passes that can be left out, for the error that names the present one."""
