"""Launch a program's nodes by an executable graph, which is built again where they do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.gpu.cuda.device import CudaDevice, LaunchNode, Node


class ExecutableGraph:
    """An executable graph on which programs with the same edges take turns: the nodes in which they differ are swapped
    before a launch.

    Args:
        device: the device.
        nodes, edges, events: as for `CudaDevice.graph`.
    """

    def __init__(
        self,
        device: CudaDevice,
        nodes: Sequence[Node],
        edges: Sequence[tuple[int, int]],
        events: Sequence[Any] = (),
    ):
        self._device, self._edges, self.events = device, list(edges), events
        self._nodes, self._last = list(nodes), nodes
        self._handle = device.graph(nodes, edges, events)

    def fits(self, nodes: Sequence[Node], edges: Sequence[tuple[int, int]]) -> bool:
        """Return whether the graph can have these nodes and edges."""
        return self._edges == edges and list(map(_fixed, self._nodes)) == list(map(_fixed, nodes))

    def launch(self, nodes: Sequence[Node], stream: Any) -> None:
        """Launch the graph with these nodes, for which it `fits`, in a stream."""
        if nodes is not self._last:
            for n, (old, new) in enumerate(zip(self._nodes, nodes, strict=True)):
                if new != old:
                    assert isinstance(new, LaunchNode)
                    self._device.swap(self._handle, n, new)
                    self._nodes[n] = new
            self._last = nodes
        self._device.launch(self._handle, stream)


def _fixed(node: Node) -> Any:
    """Return the parts of a node that stay fixed in an executable graph."""
    return node.cooperative if isinstance(node, LaunchNode) else node
