"""Choose what a forward graph saves for its backward: hand the joint graph to the policy of `cost.recomputation`.

A pointwise operator is recomputed where that moves fewer bytes: a kernel that needs its result computes it from the
operands it loads, and the result is not stored. Reductions, matrix products and operators that PyTorch runs are
computed once. (Chen et al. 2016, Training deep nets with sublinear memory cost; the cut as in Zheng et
al. 2023, "PyTorch 2", min-cut rematerialization.)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import torch
from torch._functorch import partitioners
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx import Node as FxNode

from einsmith.cost.facts import host
from einsmith.cost.recomputation import POINTWISE_SECONDS, Option, kept_tensors, saved_set, seconds_to_keep
from einsmith.frontends.aten import TABLE
from einsmith.frontends.torch_compile.split import Options, is_number, is_view, reason
from einsmith.frontends.torch_nodes import operator_name

_CHEAP = {"pointwise", "views", "factories", "numbers"}
ROOTS = 2
"""Most large tensors that a recomputed result may depend on; without a limit a chain of residual sums is recomputed
from its beginning."""
LARGE = 4
"""A tensor counts as large if it has more than 1/LARGE of a result's elements. A result is not recomputed from a tensor
with LARGE times its elements or more."""


def partition(
    joint: torch.fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, options: Options, **more: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Return the forward and backward graphs. PyTorch partitions graphs that constrain the choice (checkpointing)."""
    known: dict[str, Any] = {"num_fwd_outputs": num_fwd_outputs, **more}
    if not _plain(joint):
        return partitioners.min_cut_rematerialization_partition(joint, inputs, **known)
    joint.graph.eliminate_dead_code()
    joint.graph = fx_graph_cse(joint.graph)
    joint.recompile()
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


def choose(graph: torch.fx.Graph, forward_outputs: int, options: Options) -> list[FxNode]:
    """Return the nodes whose values the forward saves for the backward."""
    *nodes, output = graph.nodes
    results = torch.fx.map_arg(output.args[0], lambda n: n)
    forward, backward = set(results[:forward_outputs]), set(results[forward_outputs:])
    late: set[FxNode] = set()  # nodes that depend on an incoming gradient
    for n in nodes:
        tangent = n.op == "placeholder" and "tangents" in str(n.target)
        if tangent or any(a in late for a in n.all_input_nodes):
            late.add(n)
    needed = set(forward)  # nodes that the forward computes
    for n in reversed(nodes):
        if n in needed:
            needed.update(n.all_input_nodes)
    early = [n for n in nodes if n not in late]
    number = {n: i for i, n in enumerate(early)}
    cheap = _computed_again(early, options)
    target, total = host(), int(sum(s for s in map(_bytes, early) if s < inf))
    choices = []
    for n in early:
        stored = n.op != "call_function" or n in forward or n not in cheap or is_number(n)
        held = seconds_to_keep(_bytes(n), target, total, stored=stored, view=is_view(n))
        # A node that only the backward needs can be computed there from its operands.
        once = n not in cheap and (n in needed or n.op != "call_function")
        read = n in backward or any(u in late for u in n.users)
        choices.append(
            Option(tuple(number[a] for a in n.all_input_nodes), read, held, inf if once else POINTWISE_SECONDS)
        )
    again, _ = saved_set(choices)
    return [early[i] for i in kept_tensors(choices, again)]


def _computed_again(nodes: Sequence[FxNode], options: Options) -> set[FxNode]:
    """Return the nodes that may be recomputed: pointwise functions of at most `ROOTS` large tensors."""
    found: set[FxNode] = set()
    roots: dict[FxNode, frozenset[FxNode]] = {}
    for n in nodes:
        mine = frozenset([n])
        if _cheap(n, options):
            of = frozenset().union(*(roots[a] for a in n.all_input_nodes)) if n.all_input_nodes else frozenset()
            most = LARGE * max(_elements(n), 1)
            if sum(_elements(r) * LARGE > _elements(n) for r in of) <= ROOTS and all(_elements(r) < most for r in of):
                found.add(n)
                mine = of
        roots[n] = mine
    return found


def _cheap(n: FxNode, options: Options) -> bool:
    if n.op != "call_function":
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
