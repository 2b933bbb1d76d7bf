"""Build executable graphs of launches and sums over cards, and exchange launches in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import Array, addressof, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from einsmith.base.errors import DeviceError
from einsmith.gpu.cuda import libcuda
from einsmith.gpu.cuda.context import CardContext, DriverHandle
from einsmith.gpu.cuda.device import CollectiveNode, LaunchNode, Node
from einsmith.gpu.cuda.libcuda import KernelNodeParams, LaunchAttribute

WARP = 32
"""Threads of a warp."""
_SCRATCH = 2
"""Pointers that Triton's kernels take after their own, to memory for global and for profile scratch; kernels here use
neither."""


@dataclass(eq=False)
class DriverGraph:
    """An executable graph, its template (which identifies nodes), the nodes with the machine code and communicators
    that they need, and the events that it records."""

    executable: DriverHandle
    template: DriverHandle
    nodes: list[c_void_p]
    launches: list[Node]
    events: Sequence[Any]


class CardGraphs:
    """The builder of a card's graphs."""

    def __init__(self, context: CardContext):
        self.context, self.library = context, context.library

    def build(self, nodes: Sequence[Node], edges: Sequence[tuple[int, int]], events: Sequence[Any] = ()) -> DriverGraph:
        """Return an executable graph of launches and sums; an edge (a, b) lets node b wait for node a, which comes
        before it. events: one more than nodes, of which the first happens before, and one after each node; the nodes
        then run in their order."""
        before: list[dict[int, None]] = [{} for _ in nodes]
        for a, b in edges:
            if not 0 <= a < b < len(nodes):
                raise DeviceError(f"the edge from node {a} to node {b} of {len(nodes)} leads to no later node")
            before[b][a] = None
        library = self.library
        with self.context.current():
            graph = library.new("cuGraphCreate", 0)
            template = DriverHandle(graph, self.context.give_back, ("cuGraphDestroy", graph))
            handles: list[c_void_p] = []
            last = self._record_in_graph(graph, None, events[0]) if events else None
            for n, (node, numbers) in enumerate(zip(nodes, before, strict=True)):
                handle = c_void_p()
                waited = [last] if last is not None else [handles[m] for m in numbers]
                first = (c_void_p * len(waited))(*(h.value for h in waited))
                self._add_node(graph, node, handle, first)
                handles.append(handle)
                if last is not None:
                    last = self._record_in_graph(graph, handle, events[n + 1])
            executable = library.new("cuGraphInstantiateWithFlags", graph, 0)
            owned = DriverHandle(executable, self.context.give_back, ("cuGraphExecDestroy", executable))
        return DriverGraph(owned, template, handles, list(nodes), tuple(events))

    def _add_node(self, graph: int, node: Node, handle: c_void_p, first: Array[c_void_p]) -> None:
        """Add a node to a graph, after the nodes `first`, and store its handle. The context is current."""
        call = self.library.call
        if isinstance(node, CollectiveNode):
            with self._captured(node) as child:
                call("cuGraphAddChildGraphNode", handle, graph, first, len(first), child, about="of a sum")
            return
        about = describe(node)
        params, _kept = _node_params(node)
        call("cuGraphAddKernelNode_v2", handle, graph, first, len(first), params, about=about)
        if node.cooperative:
            value = LaunchAttribute(value=1)
            place = addressof(value) + LaunchAttribute.value.offset
            call("cuGraphKernelNodeSetAttribute", handle, libcuda.COOPERATIVE, place, about=about)

    def _record_in_graph(self, graph: int, before: c_void_p | None, event: Any) -> c_void_p:
        """Add a node to a graph in which an event happens, after the node `before` if there is one; return its handle.
        The context is current."""
        handle, waited = c_void_p(), [] if before is None else [before.value]
        first = (c_void_p * len(waited))(*waited)
        self.library.call("cuGraphAddEventRecordNode", handle, graph, first, len(waited), event)
        return handle

    @contextmanager
    def _captured(self, node: CollectiveNode) -> Iterator[int]:
        """Return, in the block, the graph of a sum over cards; nodes have copies of it. The context is current."""
        library, graph = self.library, c_void_p()
        stream = library.new("cuStreamCreate", libcuda.NON_BLOCKING)
        try:
            library.call("cuStreamBeginCapture_v2", stream, libcuda.THREAD_LOCAL)
            try:
                node.communicator.all_reduce(node.addresses, node.counts, node.elem, stream)
            except BaseException:
                library.result("cuStreamEndCapture", stream, graph)  # the first error tells more
                raise
            library.call("cuStreamEndCapture", stream, graph)
            yield graph.value or 0
        finally:
            if graph.value:
                library.call("cuGraphDestroy", graph)
            library.call("cuStreamDestroy_v2", stream)

    def swap(self, graph: DriverGraph, number: int, node: LaunchNode) -> None:
        """Replace the launch of a number in an executable graph, from its next launch on."""
        if node.cooperative != getattr(graph.launches[number], "cooperative", None):
            raise DeviceError(
                f"node {number} cannot be replaced by the {describe(node).removeprefix('of the ')}: an executable "
                f"graph keeps which of its nodes are cooperative; build another graph"
            )
        params, _kept = _node_params(node)
        with self.context.current() as call:
            call(
                "cuGraphExecKernelNodeSetParams_v2",
                graph.executable,
                graph.nodes[number],
                params,
                about=describe(node),
            )
        graph.launches[number] = node


def describe(node: LaunchNode) -> str:
    """Return the words of an error about a launch."""
    return f"of the kernel {node.code.binary.name!r}, {node.programs:,} programs of {node.code.binary.warps} warps,"


def kernel_params(node: LaunchNode) -> tuple[Any, Any]:
    """Return the table of addresses of a kernel's parameters, and the parameters; the driver copies them at the
    call."""
    count = len(node.pointers) + _SCRATCH
    values = (c_uint64 * count)(*node.pointers)
    return (c_void_p * count)(*range(addressof(values), addressof(values) + 8 * count, 8)), values


def _node_params(node: LaunchNode) -> tuple[KernelNodeParams, Any]:
    """Return a node's parameters and what they point to."""
    binary = node.code.binary
    kept = kernel_params(node)
    params = KernelNodeParams(node.function.value, node.programs, 1, 1, WARP * binary.warps, 1, 1, binary.shared)
    params.params = addressof(kept[0])
    return params, kept
