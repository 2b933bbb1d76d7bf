"""Choose what a forward graph saves for its backward: hand the joint graph to the policy of `schedule.recomputation`.

A pointwise operator is recomputed where that moves fewer bytes: a kernel that needs its result computes it from the
operands it loads, and the result is not stored. Reductions, matrix products and operators that PyTorch runs are
computed once. (Chen et al. 2016, Training deep nets with sublinear memory cost; the cut as in Zheng et
al. 2023, "PyTorch 2", min-cut rematerialization.)

Inputs may change before the backward runs: the forward updates buffers in place, and so may eager code in between.
`copy_inputs` has copies of them read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf, prod
from typing import Any

import torch
from torch._functorch import partitioners
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx import Node as FxNode
from torch.utils.checkpoint import CheckpointPolicy

from einsmith.cost.facts import host
from einsmith.frontends.aten import TABLE
from einsmith.frontends.torch_compile.options import Options
from einsmith.frontends.torch_compile.reasons import COPY, is_number, is_view, reason
from einsmith.frontends.torch_compile.reused import inputs_of
from einsmith.frontends.torch_nodes import operator_name
from einsmith.schedule.recomputation import POINTWISE_SECONDS, Option, kept_tensors, saved_set, seconds_to_keep

_ONCE = CheckpointPolicy.MUST_SAVE
"""Value of a node's meta["recompute"] that bars partitioners from computing it again."""
_CHEAP = {"pointwise", "views", "factories", "numbers"}
_CONVERSIONS = {torch.ops.prims.convert_element_type.default, torch.ops.aten._to_copy.default}
"""Operators that convert a tensor to another type."""
ROOTS = 2
"""Most large tensors that a recomputed result may depend on; without a limit a chain of residual sums is recomputed
from its beginning."""
LARGE = 4
"""A tensor counts as large if it has more than 1/LARGE of a result's elements. A result is not recomputed from a tensor
with LARGE times its elements or more."""


def partition(
    joint: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    num_fwd_outputs: int,
    options: Options,
    constant: Collection[int] = (),
    parameters: Collection[int] = (),
    **more: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Return the forward and backward graphs. PyTorch partitions graphs that constrain the choice (checkpointing).

    constant: the positions of inputs that nothing overwrites; parameters: those of parameters.
    """
    known: dict[str, Any] = {"num_fwd_outputs": num_fwd_outputs, **more}
    plain = _plain(joint)
    if plain:
        joint.graph.eliminate_dead_code()
        joint.graph = fx_graph_cse(joint.graph)
    copy_inputs(joint.graph, num_fwd_outputs, options, constant, parameters)
    joint.recompile()
    if not plain:
        return partitioners.min_cut_rematerialization_partition(joint, inputs, **known)
    try:
        saved = choose(joint.graph, num_fwd_outputs, options)
    except Exception as e:  # an unforeseen graph must not fail
        options.say("the choice of what is saved", f"{type(e).__name__}: {e}", "")
        return partitioners.min_cut_rematerialization_partition(joint, inputs, **known)
    tensors, numbers = [n for n in saved if not is_number(n)], [n for n in saved if is_number(n)]
    return partitioners._extract_fwd_bwd_modules(joint, tensors, numbers, num_fwd_outputs=num_fwd_outputs)


def _plain(joint: torch.fx.GraphModule) -> bool:
    """Return whether data flow alone decides which operators are in the forward: no tags, no higher-order operators."""
    for n in joint.graph.nodes:
        if n.op == "get_attr" and not isinstance(getattr(joint, str(n.target), None), torch.Tensor):
            return False
        if n.op == "call_function" and not isinstance(n.target, torch._ops.OpOverload) and "val" not in n.meta:
            return False
        if n.meta.get("partitioner_tag") == "must_be_in_backward" or n.meta.get("recompute") is not None:
            return False
        if isinstance(n.target, torch._ops.HigherOrderOperator):
            return False
    return True


def copy_inputs(
    graph: torch.fx.Graph,
    forward_outputs: int,
    options: Options,
    constant: Collection[int] = (),
    parameters: Collection[int] = (),
) -> None:
    """Let copies of inputs be read that may be overwritten before the backward runs, where it could read them.

    A copy, made in the forward, is saved where results to save instead would be larger. Inputs that the forward leaves
    alone and that the backward reads itself need none: eager execution saves them, too, and both notice changes. So do
    parameters that the backward reads in another type (autocast): their changes in place are errors, too.
    """
    late, needed, _ = _sides(graph, forward_outputs)
    written = overwritten(graph)

    def is_backward(n: FxNode) -> bool:
        return n in late or n not in needed

    inputs = {n: k in parameters for k, n in enumerate(inputs_of(graph)) if k not in constant}
    for n, is_parameter in inputs.items():
        if n in late or is_number(n):
            continue
        if n not in written and any(map(is_backward, _readers(n, is_parameter))):
            continue
        users = {u: _readers(u) if is_view(u) else [u] for u in n.users if u.target is not COPY or u.args[0] is not n}
        again = [u for u, readers in users.items() if any(is_backward(r) or _cheap(r, options) for r in readers)]
        if again:
            with graph.inserting_before(next(u for u in graph.nodes if u.op != "placeholder")):
                copy = graph.call_function(torch.ops.aten.clone.default, (n,))
            copy.meta = {"val": n.meta["val"].detach().clone(), "recompute": _ONCE}
            for u in again:
                u.replace_input_with(n, copy)


def _readers(n: FxNode, converted: bool = False) -> list[FxNode]:
    """Return the operators that read a node's elements, from it or from a view of it. converted: or from a view in
    another type."""
    calls = [u for u in n.users if u.op == "call_function" and not is_number(u)]
    through = {u for u in calls if is_view(u) or (converted and u.target in _CONVERSIONS)}
    return [r for u in calls for r in (_readers(u, converted) if u in through else [u])]


def overwritten(graph: torch.fx.Graph) -> set[FxNode]:
    """Return the inputs into which the forward, or AOTAutograd after it, writes."""
    written = {n.args[0] for n in graph.nodes if n.target is COPY and isinstance(n.args[0], FxNode)}
    outputs = next(reversed(graph.nodes)).meta.get("desc") or ()  # PyTorch has descriptions from 2.9 on
    after = [m for d in outputs if (m := getattr(d, "mutated_input", None)) is not None]
    return written | {n for n in graph.nodes if n.op == "placeholder" and n.meta.get("desc") in after}


def _sides(graph: torch.fx.Graph, forward_outputs: int) -> tuple[set[FxNode], set[FxNode], tuple[set, set]]:
    """Return the nodes that depend on an incoming gradient, those that the forward computes, and the results of each
    pass."""
    *nodes, output = graph.nodes
    results = torch.fx.map_arg(output.args[0], lambda n: n)
    forward, backward = set(results[:forward_outputs]), set(results[forward_outputs:])
    late: set[FxNode] = set()
    for n in nodes:
        tangent = n.op == "placeholder" and "tangents" in str(n.target)
        if tangent or any(a in late for a in n.all_input_nodes):
            late.add(n)
    needed = set(forward)
    for n in reversed(nodes):
        if n in needed or (n.target is COPY and n not in late):
            needed.update([n, *n.all_input_nodes])
    return late, needed, (forward, backward)


def choose(graph: torch.fx.Graph, forward_outputs: int, options: Options) -> list[FxNode]:
    """Return the nodes whose values the forward saves for the backward."""
    late, needed, (forward, backward) = _sides(graph, forward_outputs)
    nodes = list(graph.nodes)[:-1]
    early = [n for n in nodes if n not in late]
    number = {n: i for i, n in enumerate(early)}
    cheap = _computed_again(early, options)
    target, total = host(), int(sum(s for s in map(_bytes, early) if s < inf))
    choices = []
    for n in early:
        stored = n.op != "call_function" or n in forward or is_number(n)
        stored = stored or (n not in cheap and not _is_fused(n, needed, cheap))
        held = seconds_to_keep(_bytes(n), target, total, stored=stored, view=is_view(n))
        # A node that only the backward needs can be computed there from its operands.
        once = n not in cheap and (n in needed or n.op != "call_function")
        read = n in backward or any(u in late for u in n.users)
        choices.append(
            Option(tuple(number[a] for a in n.all_input_nodes), read, held, inf if once else POINTWISE_SECONDS)
        )
    again, _ = saved_set(choices)
    return [early[i] for i in kept_tensors(choices, again)]


def _is_fused(n: FxNode, needed: set[FxNode], cheap: set[FxNode]) -> bool:
    """Return whether a product's readers in the forward pass are pointwise functions, which its kernel computes."""
    entry = TABLE.get(operator_name(n.target)) if n.op == "call_function" else None
    readers = [r for r in _readers(n) if r in needed]
    return entry is not None and entry.family == "contractions" and bool(readers) and cheap.issuperset(readers)


def _computed_again(nodes: Sequence[FxNode], options: Options) -> set[FxNode]:
    """Return the nodes that may be recomputed: pointwise functions of at most `ROOTS` large tensors."""
    chosen: set[FxNode] = set()
    roots: dict[FxNode, frozenset[FxNode]] = {}
    for n in nodes:
        mine = frozenset([n])
        if _cheap(n, options):
            of = frozenset().union(*(roots[a] for a in n.all_input_nodes)) if n.all_input_nodes else frozenset()
            most = LARGE * max(_elements(n), 1)
            if sum(_elements(r) * LARGE > _elements(n) for r in of) <= ROOTS and all(_elements(r) < most for r in of):
                chosen.add(n)
                mine = of
        roots[n] = mine
    return chosen


def _cheap(n: FxNode, options: Options) -> bool:
    if n.op != "call_function" or n.meta.get("recompute") is _ONCE:
        return False
    if is_view(n) or is_number(n):
        return True
    if reason(n, options):
        return False
    entry = TABLE.get(operator_name(n.target))
    return entry is not None and entry.family in _CHEAP and isinstance(n.meta.get("val"), torch.Tensor)


def _elements(n: FxNode) -> int:
    value = n.meta.get("val")
    return prod(map(_size, value.shape)) if isinstance(value, torch.Tensor) else 1


def _size(n: Any) -> int:
    if isinstance(n, int):
        return n
    hint = getattr(n.node, "hint", None)
    return int(hint) if hint is not None else 4096


def _bytes(n: FxNode) -> float:
    """Return the bytes of a node's value; inf if it cannot be saved."""
    value = n.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0 if is_number(n) else inf
    return inf if value.device.type == "meta" else _elements(n) * value.dtype.itemsize
