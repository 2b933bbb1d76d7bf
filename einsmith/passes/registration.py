"""Add passes over graphs from outside of the package: `einsmith.passes.register`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from einsmith.base import caches, locks
from einsmith.base.errors import ArgumentError, EinsmithError, VerifyError
from einsmith.base.identity import identify
from einsmith.base.registration import Registration
from einsmith.ir.nodes import Graph, Tensor
from einsmith.ir.verify import verify_graph
from einsmith.passes import pipeline
from einsmith.passes.context import PassContext
from einsmith.schedule.pipeline import PLAN_PASSES, Pass, check_order

_LOCK = locks.lock()


def register(
    name: str,
    function: Callable[..., Graph],
    needs: str | Iterable[str] = (),
    provides: str | Iterable[str] = (),
    after: str | None = None,
    *,
    version: str = "",
) -> Registration:
    """Add a pass over graphs to the pipeline, for programs that are compiled from now on.

    The pass runs on every graph, and on that of each loop's step. What it returns is verified. EINSMITH_WITHOUT leaves
    it out by its name. Compiled programs are dropped from memory; plans on disk are found only with the same passes.

    Args:
        name: the name of the pass, unlike those of other passes.
        function: from a graph (`einsmith.ir.nodes.Graph`) to a graph with equal inputs, and roots of equal types; it
            returns the graph itself where it changes nothing. With a second parameter, it is given the `PassContext`:
            the machine and predicted costs.
        needs: words, such as "inlined", that passes before it must provide.
        provides: words that it provides to passes behind it.
        after: the pass that it follows directly; by default the last one.
        version: identifies the function in the keys of plans on disk, instead of its code.

    Raises:
        ArgumentError: the name is taken, there is no pass `after`, a need is not provided, or the function reads an
            object by which plans on disk cannot be told apart.
    """
    needed, provided = (frozenset(x.split() if isinstance(x, str) else x) for x in (needs, provides))
    positional = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    run = partial(_run_verified, name, function, len(positional) > 1)
    own = Pass(name, run, needed, provided, identity=identify(function, version))
    with _LOCK:
        passes = list(pipeline.PASSES)
        names = [p.name for p in passes]
        known: list[Any] = [*passes, *PLAN_PASSES]
        if any(name in (p.name, *p.parts) for p in known):
            raise ArgumentError(f"there is a pass {name!r} already; choose another name, or unregister it first")
        if after is not None and after not in names:
            raise ArgumentError(f"there is no pass {after!r}; after= names one of {', '.join(dict.fromkeys(names))}")
        at = len(names) if after is None else len(names) - names[::-1].index(after)
        _set_passes([*passes[:at], own, *passes[at:]])
    return Registration(name, partial(_remove, own))


def _remove(own: Pass) -> None:
    with _LOCK:
        if any(p is own for p in pipeline.PASSES):
            _set_passes([p for p in pipeline.PASSES if p is not own])


def _set_passes(passes: list[pipeline.GraphPass]) -> None:
    try:
        pipeline.PASSES = check_order(passes)
    except ValueError as e:
        known = sorted({word for p in passes for word in p.provides})
        raise ArgumentError(f"{e}; passes provide {', '.join(known)}: name the last of them by after=") from e
    caches.cache_clear()


def _run_verified(
    name: str, function: Callable[..., Any], is_priced: bool, graph: Graph, context: PassContext
) -> Graph:
    """Return what a pass makes of a graph. Raises VerifyError, which names the pass, for what is no graph of the same
    inputs and roots."""
    new = function(graph, context) if is_priced else function(graph)
    if new is graph:
        return graph
    if not isinstance(new, Graph):
        raise VerifyError(f"the pass {name!r} returns a {type(new).__name__}, not a Graph")
    for what, before, after in (
        ("inputs", graph.inputs, new.inputs),
        ("outputs", _types(graph.outputs), _types(new.outputs)),
        ("updated leaves", [x for x, _ in graph.updates], [x for x, _ in new.updates]),
        ("updates", _types([t for _, t in graph.updates]), _types([t for _, t in new.updates])),
        ("checks", [m for _, m in graph.checks], [m for _, m in new.checks]),
    ):
        if before != after:
            raise VerifyError(f"the pass {name!r} changes the graph's {what} from {before} to {after}")
    try:
        verify_graph(new)
    except EinsmithError as e:
        raise VerifyError(f"the pass {name!r} returns a graph that is not valid: {e}") from e
    return new


def _types(tensors: Iterable[Tensor]) -> list[tuple[str, tuple[int, ...]]]:
    return [(t.dtype.name, t.shape) for t in tensors]
