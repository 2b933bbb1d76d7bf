"""Identify a graph in every process: a digest in which its leaves are numbered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from einsmith.ir.interned import Node, encode
from einsmith.ir.nodes import Graph, Leaf, postorder


def number_leaves(graph: Graph, more: Iterable[Leaf] = ()) -> dict[Leaf, int]:
    """Return the number of every leaf of a graph, and of further ones: in the order of its inputs, then of its updates,
    then of its nodes, then of `more`."""
    read = (t for t in postorder((*graph.roots, *graph.gradients)) if isinstance(t, Leaf))
    known = dict.fromkeys((*graph.inputs, *(x for x, _ in graph.updates), *read, *more))
    known |= dict.fromkeys(x.after for x in list(known) if x.after is not None)
    return {x: n for n, x in enumerate(known)}


def graph_digest(graph: Graph, leaves: dict[Leaf, int]) -> bytes:
    """Return a digest (16 bytes) of a graph's structure that is the same in every process, although the ids of leaves
    are not. `leaves`: the leaves by number (`number_leaves`)."""
    known: dict[Node, bytes] = {x: b"leaf %d" % n for x, n in leaves.items()}
    code = hashlib.blake2b(digest_size=16)
    for x in leaves:
        code.update(encode((x.shape, x.dtype, () if x.after is None else x.after), known) + b"\n")
    for n, node in enumerate(postorder((*graph.roots, *graph.gradients), leaves)):
        code.update(type(node).__name__.encode() + encode(tuple(getattr(node, f) for f in node.fields), known) + b"\n")
        known[node] = b"node %d" % n
    code.update(encode(tuple(getattr(graph, f) for f in graph.fields), known))
    return code.digest()
