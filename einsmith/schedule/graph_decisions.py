"""Define decisions that override single choices of the cost model: a graph search tries them, and keeps the fast ones.

without PASS             an optional pass is left out
cut TENSOR               no kernel that computes the tensor also reads it: it passes through memory
order TENSOR DIMENSIONS  the order of its dimensions in memory, as 0,2,3,1, outermost first; 1:16 stands for the points
                         within a block of 16 points of dimension 1

A tensor is called by digits of a digest of how it is computed from the graph's inputs (`TensorNames`). The name is
equal in every process, and under every decision that does not change how the tensor is computed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable

from einsmith.ir.graph_digest import number_leaves
from einsmith.ir.interned import Node, encode
from einsmith.ir.loop import LoopSegment, LoweredLoop
from einsmith.ir.nodes import Graph, Leaf, Tensor, postorder
from einsmith.schedule.plan import Order

WITHOUT, CUT, ORDER = "without", "cut", "order"
"""The first words of decisions."""
_NAME_DIGITS = 8
_NAME = f"[0-9a-f]{{{_NAME_DIGITS}}}"
_DIMENSION = "[0-9]{1,3}(?::[0-9]{1,4})?"
_OF_TENSOR = re.compile(f"(?:{CUT} {_NAME}|{ORDER} {_NAME} {_DIMENSION}(?:,{_DIMENSION})*)")


class TensorNames:
    """The names of a graph's tensors and of tensors computed from them."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._known: dict[Node, bytes] = {x: b"leaf %d" % n for x, n in number_leaves(graph).items()}

    def of(self, t: Node) -> str:
        """Return the name of a tensor, or of a node that computes several."""
        code = self._encode(t)
        return (_digest(code) if isinstance(t, Leaf) else code).hex()[:_NAME_DIGITS]

    def nodes(self) -> list[Node]:
        """Return the tensors that the graph computes, and the nodes that compute them, arguments before users."""
        return [x for x in postorder(self._graph.roots) if not isinstance(x, Leaf)]

    def _encode(self, t: Node) -> bytes:
        for node in [t] if t in self._known else list(postorder((t,), self._known)):
            if node in self._known:
                continue
            if isinstance(node, LoweredLoop):
                self._known |= {s: _encode_segment(s) for s in node.segments}
            code = encode(tuple(getattr(node, f) for f in node.fields), self._known)
            self._known[node] = _digest(type(node).__name__.encode() + code)
        return self._known[t]


def _encode_segment(segment: LoopSegment) -> bytes:
    """Return the digest of a loop's segment, in which the leaves of its step are numbers."""
    body, names = segment.body, TensorNames(segment.body)
    leaves = (*body.inputs, *(x for x, _ in body.updates))
    known: dict[Node, bytes] = {t: names._encode(t) for t in (*leaves, *body.roots, *body.gradients)}
    code = encode(tuple(getattr(body, f) for f in body.fields), known)
    return _digest(code + encode(tuple(getattr(segment, f) for f in segment.fields if f != "body")))


def _digest(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=16).digest()


def cut_nodes(graph: Graph, decisions: Collection[str]) -> frozenset[Node]:
    """Return the nodes of a graph whose results pass through memory by decision."""
    wanted = {x.split()[1] for x in decisions if x.startswith(f"{CUT} ")}
    if not wanted:
        return frozenset()
    names = TensorNames(graph)
    return frozenset(node for node in names.nodes() if names.of(node) in wanted)


def orders_of(names: TensorNames, tensors: Iterable[Tensor], decisions: Collection[str]) -> dict[Tensor, Order]:
    """Return the orders that are decided for some of these tensors."""
    wanted = {words[1]: words[2] for x in decisions if (words := x.split())[0] == ORDER}
    if not wanted:
        return {}
    return {t: parse_order(wanted[name]) for t in tensors if (name := names.of(t)) in wanted}


def show_order(order: Order) -> str:
    """Return an order as a decision states it."""
    return ",".join(f"{d[0]}:{d[1]}" if isinstance(d, tuple) else str(d) for d in order)


def parse_order(text: str) -> Order:
    """Return the order that a decision states."""
    parts = [[int(n) for n in d.split(":")] for d in text.split(",")]
    return tuple((d[0], d[1]) if len(d) > 1 else d[0] for d in parts)


def is_of_tensor(decision: str) -> bool:
    """Return whether a text is a decision on a tensor's kernels or order."""
    return _OF_TENSOR.fullmatch(decision) is not None


def subject(decision: str) -> str:
    """Return what a decision is about: of two decisions about one subject, a program follows one."""
    word, _, rest = decision.partition(" ")
    return rest if word == WITHOUT else f"{word} {rest.split()[0]}"


def toggle(decisions: frozenset[str], decision: str) -> frozenset[str]:
    """Remove a decision if it is among the decisions; otherwise add it, replacing any other decision about the same
    subject."""
    if decision in decisions:
        return decisions - {decision}
    return frozenset(x for x in decisions if subject(x) != subject(decision)) | {decision}
