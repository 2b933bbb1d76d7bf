"""What a forward graph saves for its backward: a minimum cut of the joint graph, by bytes.

An operator whose elements are made of single elements is computed again where that moves fewer bytes: a kernel that
needs its result makes it as it loads what it is made of, and nobody stores it. Sums, products of matrices and what
PyTorch runs are computed once. (Chen et al. 2016, Training deep nets with sublinear memory cost; the cut as in Zheng et
al. 2023, "PyTorch 2", min-cut rematerialization.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch._functorch import partitioners
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx import Node as FxNode

from einsmith.frontends.aten import TABLE
from einsmith.frontends.torch_compile.split import Options, is_number, is_view, reason
from einsmith.frontends.torch_nodes import operator_name

_CHEAP = {"pointwise", "views", "factories", "numbers"}
_MANY = 1 << 60
ROOTS = 2
"""Of how many large tensors a result may be computed again: a chain of residual sums would else be walked back to its
beginning."""
LARGE = 4
"""A tensor counts as large that has more than this part of a result's elements."""


def partition(
    joint: torch.fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, options: Options, **more: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The graphs of forward and backward. What asks for a choice of its own (checkpointing) gets PyTorch's."""
    known: dict[str, Any] = {"num_fwd_outputs": num_fwd_outputs, **more}
    if not _plain(joint):
        return partitioners.min_cut_rematerialization_partition(joint, inputs, **known)
    joint.graph.eliminate_dead_code()
    joint.graph = fx_graph_cse(joint.graph)
    joint.recompile()
    try:
        saved = choose(joint.graph, num_fwd_outputs, options)
    except Exception as e:  # for a graph that is like none before
        options.say("the choice of what is saved", f"{type(e).__name__}: {e}", "")
        return partitioners.min_cut_rematerialization_partition(joint, inputs, **known)
    tensors, numbers = [n for n in saved if not is_number(n)], [n for n in saved if is_number(n)]
    return partitioners._extract_fwd_bwd_modules(joint, tensors, numbers, num_fwd_outputs=num_fwd_outputs)


def _plain(joint: torch.fx.GraphModule) -> bool:
    """Whether nothing but values decides where an operator stands."""
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
    """The nodes whose values go from the forward to the backward."""
    nodes = list(graph.nodes)
    late: set[FxNode] = set()  # what needs a gradient that comes in
    for n in nodes:
        tangent = n.op == "placeholder" and "tangents" in str(n.target)
        if tangent or any(a in late for a in n.all_input_nodes):
            late.add(n)
    late.discard(nodes[-1])
    outputs = torch.fx.map_arg(nodes[-1].args[0], lambda n: n)
    forward = {n for n in outputs[:forward_outputs] if isinstance(n, FxNode)}
    backward = {n for n in outputs[forward_outputs:] if isinstance(n, FxNode)}
    early = [n for n in nodes[:-1] if n not in late]
    number = {n: k for k, n in enumerate(early)}
    again = _computed_again(early, options)
    needed = _ancestors(forward, late)
    flow = _Flow(2 * len(early) + 2)
    source, sink = 2 * len(early), 2 * len(early) + 1
    for n, k in number.items():
        flow.edge(2 * k, 2 * k + 1, _bytes(n, stored=n.op != "call_function" or n in forward or n not in again))
        # What the backward alone needs can be computed there, of what it is made of.
        if n not in again and (n in needed or n.op != "call_function"):
            flow.edge(source, 2 * k, _MANY)
        elif not n.all_input_nodes:
            continue  # numbers alone make it
        for user in n.users:
            if user in late:
                flow.edge(2 * k + 1, sink, _MANY)
            elif user in number:
                flow.edge(2 * k + 1, 2 * number[user], _MANY)
        if n in backward:
            flow.edge(2 * k + 1, sink, _MANY)
    reached = flow.cut(source, sink)
    return [n for n, k in number.items() if reached[2 * k] and not reached[2 * k + 1]]


def _ancestors(roots: set[FxNode], without: set[FxNode]) -> set[FxNode]:
    found, todo = set(roots), list(roots)
    while todo:
        for a in todo.pop().all_input_nodes:
            if a not in found and a not in without:
                found.add(a)
                todo.append(a)
    return found


def _computed_again(nodes: Sequence[FxNode], options: Options) -> set[FxNode]:
    """The nodes that may be computed again: of few large tensors, element by element."""
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


def _bytes(n: FxNode, stored: bool) -> int:
    """What saving a node moves: it is read, and written where it is not in memory in any case. Views weigh a little
    more than what they are of."""
    value = n.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 1 if is_number(n) else _MANY
    if value.device.type == "meta":
        return _MANY
    count = _elements(n) * value.dtype.itemsize * 4 + 1
    return count * (1 if stored else 2) + (count // 4 + 1 if is_view(n) else 0)


class _Flow:
    """A network of edges with capacities (Dinic 1970)."""

    def __init__(self, nodes: int):
        self.out: list[list[int]] = [[] for _ in range(nodes)]
        self.to: list[int] = []
        self.room: list[int] = []

    def edge(self, a: int, b: int, capacity: int) -> None:
        for start, end, room in ((a, b, capacity), (b, a, 0)):
            self.out[start].append(len(self.to))
            self.to.append(end)
            self.room.append(room)

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self.out)
        level[source] = 0
        todo = deque([source])
        while todo:
            a = todo.popleft()
            for e in self.out[a]:
                if self.room[e] and level[self.to[e]] < 0:
                    level[self.to[e]] = level[a] + 1
                    todo.append(self.to[e])
        return level

    def cut(self, source: int, sink: int) -> list[bool]:
        """Which nodes are on the source's side of a minimum cut."""
        while (level := self._levels(source))[sink] >= 0:
            place = [0] * len(self.out)
            path: list[int] = []
            at = source
            while True:
                if at == sink:
                    room = min(self.room[e] for e in path)
                    for e in path:
                        self.room[e] -= room
                        self.room[e ^ 1] += room
                    full = next(k for k, e in enumerate(path) if not self.room[e])
                    at = self.to[path[full] ^ 1]
                    del path[full:]
                    continue
                edges = self.out[at]
                while place[at] < len(edges):
                    e = edges[place[at]]
                    if self.room[e] and level[self.to[e]] == level[at] + 1:
                        break
                    place[at] += 1
                else:
                    if not path:
                        break
                    last = path.pop()
                    at = self.to[last ^ 1]
                    place[at] += 1
                    continue
                path.append(e)
                at = self.to[e]
        return [n >= 0 for n in self._levels(source)]
