"""Run and time kernels on a card by the driver's interface alone, without a program around them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from einsmith.base.errors import CompileError
from einsmith.codegen.ssa import operations
from einsmith.driver.cuda import Cuda
from einsmith.gpu.cuda.device import LaunchNode
from einsmith.gpu.cuda.launches import TileCode
from einsmith.gpu.tiles.ir import TileFunction
from einsmith.gpu.tiles.triton_text import ALIGNED
from einsmith.kernels.pattern import Lowered
from einsmith.runtime.arena import Block

ROUNDS = 7
"""Timed runs, of which the median counts."""


class Ready(NamedTuple):
    """A lowered kernel whose launches have addresses: its launches, and the memory of its buffers and workspace."""

    nodes: list[LaunchNode]
    blocks: list[Block]


class CardBench:
    """Kernels on one card."""

    def __init__(self, backend: Cuda):
        self.backend, self.card, self.device = backend, backend.card, backend.card.device

    def compile(self, wanted: Sequence[tuple[Lowered, int, int]]) -> None:
        """Compile all (lowered, warps, stages) side by side and ahead, whose code is kept on disk. Kernels that do not
        compile are left out: they tell why when they are used."""
        codes = [
            (TileCode(x.function, warps, stages), (True,) * len(x.function.parameters))
            for lowered, warps, stages in wanted
            for x in lowered.launches
        ]
        self._compile(codes)

    def _compile(self, codes: Sequence[tuple[TileCode, tuple[bool, ...]]]) -> None:
        if not codes:
            return
        try:
            self.card.codes(codes)
        except CompileError:
            if len(codes) > 1:
                half = len(codes) // 2
                self._compile(codes[:half])
                self._compile(codes[half:])

    def place(
        self, lowered: Lowered, warps: int, stages: int, raws: Sequence[np.ndarray], workspace: np.ndarray | None = None
    ) -> Ready:
        """Upload the bytes of a kernel's buffers, and give its launches their addresses.

        workspace: what is in the workspace before; None to leave it as it is allocated."""
        blocks = [self.card.memory.block(max(r.nbytes, 1)) for r in raws]
        blocks.append(self.card.memory.block(max(lowered.workspace, 1)))
        for block, raw in zip(blocks, [*raws, *([] if workspace is None else [workspace])], strict=False):
            if raw.nbytes:
                self.device.upload(block.address, np.ascontiguousarray(raw), self.device.stream)
        return Ready(self.nodes(lowered, warps, stages, blocks), blocks)

    def nodes(self, lowered: Lowered, warps: int, stages: int, blocks: Sequence[Block]) -> list[LaunchNode]:
        """Return the launches of a kernel on memory that is there. Raises CompileError."""
        addresses = [b.address for b in blocks]
        codes, pointers = [], []
        for x in lowered.launches:
            pointers.append(tuple(p.address(addresses) for p in x.function.parameters))
            codes.append((TileCode(x.function, warps, stages), tuple(at % ALIGNED == 0 for at in pointers[-1])))
        return [
            LaunchNode(self.device.load(code), code, code.function.programs, at)
            for code, at in zip(self.card.codes(codes), pointers, strict=True)
        ]

    def run(self, nodes: Sequence[LaunchNode]) -> None:
        """Run launches one after the other, and wait for their end."""
        for node in nodes:
            self.device.run(node, self.device.stream)
        self.device.synchronize(self.device.stream)

    def read(self, block: Block, raw: np.ndarray) -> None:
        """Download memory into bytes of this process."""
        if raw.nbytes:
            self.device.download(raw, block.address, self.device.stream)
            self.device.synchronize(self.device.stream)

    def seconds(self, nodes: Sequence[LaunchNode], repeats: int) -> float:
        """Return the median seconds of a graph in which launches, so often one after the other, wait for each other."""
        every = list(nodes) * repeats
        graph = self.device.graph(every, list(pairwise(range(len(every)))))
        return self.time(lambda: self.device.launch(graph, self.device.stream))

    def time(self, start: Any) -> float:
        """Return the median seconds of what a function starts in the card's stream, by events."""
        device, times = self.device, []
        for n in range(ROUNDS + 1):
            first, last = device.event(), device.event()
            device.record(first, device.stream)
            start()
            device.record(last, device.stream)
            device.await_event(last)
            if n:  # the first one loads code and wakes the card up
                times.append(device.elapsed(first, last))
        return median(times)


def uses_dots(functions: Sequence[TileFunction]) -> bool:
    """Return whether functions have matrix products, whose precision matters."""

    return any(x.name == "dot" for f in functions for x in operations(f.body))
