"""Walks and rebuilding: what is known is not walked again."""

from __future__ import annotations

from einsmith.base import dtypes as dt
from einsmith.ir import rebuild
from einsmith.ir.nodes import Apply, Axis, Read, postorder


def chain(n: int) -> list:
    """x, exp(x), exp(exp(x)), ..."""
    nodes = [Read(0, (Axis(0),), dt.f32)]
    for _ in range(n):
        nodes.append(Apply("exp", (nodes[-1],), dt.f32))
    return nodes


def test_a_walk_leaves_out_what_is_known_and_below() -> None:
    nodes = chain(4)
    assert list(postorder([nodes[4]], {nodes[2]})) == nodes[3:]
    assert list(postorder([nodes[2], nodes[4]], {nodes[2]})) == nodes[3:]
    assert list(postorder([nodes[4]])) == [nodes[0].index[0], *nodes]


def test_rebuilding_one_after_the_other_with_one_memo_looks_at_each_node_once(monkeypatch) -> None:
    """Else a pass over n tensors takes time quadratic in n."""
    seen: list = []

    def watched(roots, known=()):
        for node in postorder(roots, known):
            seen.append(node)
            yield node

    monkeypatch.setattr(rebuild, "postorder", watched)
    nodes, memo = chain(50), {}
    for node in nodes:
        (new,) = rebuild.rebuild([node], lambda e: Apply("log", e.args, dt.f32) if isinstance(e, Apply) else None, memo)
    assert len(seen) == len(set(seen)) == len(nodes) + 1
    assert {e.fn for e in postorder([new]) if isinstance(e, Apply)} == {"log"}
