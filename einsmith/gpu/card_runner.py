"""Compile, time and check single kernels on a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np

from einsmith.base.errors import EinsmithError
from einsmith.base.threads import submit
from einsmith.checking.guarded import Guarded
from einsmith.checking.kernel_check import CheckedKernel, RunMode
from einsmith.cost.facts import Target
from einsmith.gpu.cards import GpuTarget
from einsmith.gpu.cuda.card import Card
from einsmith.gpu.cuda.device import LaunchNode
from einsmith.gpu.cuda.launches import TileCode
from einsmith.gpu.tiles.ir import rounding_of
from einsmith.gpu.tiles.triton_text import ALIGNED
from einsmith.runtime.arena import Block
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.decisions import format_choice
from einsmith.tuning.kernels.measure import KernelRunner, MachineCode, TimedRun

MIN_RUNS = 16
"""Fewest runs of a kernel in the graph that is timed, so that the start of a graph, a few microseconds, counts little.
Kernels follow each other as in a program."""
CompileAs = Callable[[Mapping[Kernel, str], Target], dict[Kernel, CompiledKernel]]
"""`driver.backend.Backend.compile_as`."""


class CardRunner(KernelRunner):
    """The runner of kernels on a card, which times them by events.

    Args:
        card: the card.
        described: what the card is to the cost model.
        compile_as: compiles kernels by their decisions' texts.
    """

    def __init__(self, card: Card, described: GpuTarget, compile_as: CompileAs):
        self._card, self._described, self._compile_as = card, described, compile_as

    def target(self) -> Target:
        return self._described

    def compile(self, kernel: Kernel, pattern: Any, config: Any, target: Target) -> MachineCode:
        compiled = self._compile_as({kernel: format_choice(pattern, config)}, target)[kernel]
        self._card.codes(  # as the runs need it: memory of its own begins at multiples of more bytes
            [
                (code, tuple(p.offset % ALIGNED == 0 for p in code.function.parameters))
                for code, _, _ in compiled.launches
            ]
        )
        return MachineCode(list(compiled.launches), 0, compiled.workspace)

    def compile_ahead(self, kernel: Kernel, candidates: Sequence[tuple[Any, Any]], target: Target) -> None:
        def compile_one(pattern: Any, config: Any) -> None:
            with suppress(EinsmithError):  # `compile` reports it
                self.compile(kernel, pattern, config, target)

        if len(candidates) > 1:  # each thread waits for a process in which Triton compiles
            with ThreadPoolExecutor(len(candidates)) as pool:
                for pattern, config in candidates:
                    submit(pool, compile_one, pattern, config)

    def place(self, arrays: Sequence[np.ndarray]) -> list[Block]:
        blocks = [self._card.memory.block(a.nbytes) for a in arrays]
        for block, a in zip(blocks, arrays, strict=True):
            block.write(a.reshape(-1).view(np.uint8))
        return blocks

    def prepare(self, code: MachineCode, data: Sequence[Sequence[Block]], threads: int) -> TimedRun:
        device, workspace = self._card.device, self._card.memory.block(code.workspace)
        count = max(MIN_RUNS, len(data))
        nodes = [
            node
            for blocks in islice(cycle(data), count)
            for node in self._nodes(code.launches, [b.address for b in (*blocks, workspace)])
        ]
        graph = device.graph(nodes, [(n, n + 1) for n in range(len(nodes) - 1)])
        first, last = device.event(), device.event()
        kept = data, workspace

        def run() -> float:
            with self._card.lock:
                device.record(first, device.stream)
                device.launch(graph, device.stream)
                device.record(last, device.stream)
                device.await_event(last)
                return device.elapsed(first, last) / count if kept else 0.0

        run()
        return run

    def _nodes(self, launches: Sequence[tuple[TileCode, int, bool]], pointers: Sequence[int]) -> list[LaunchNode]:
        """Return the launches of a kernel. pointers: addresses of its buffers and of its workspace."""
        places = [tuple(p.address(pointers) for p in code.function.parameters) for code, _, _ in launches]
        kinds = [
            (code, tuple(at % ALIGNED == 0 for at in addresses))
            for (code, _, _), addresses in zip(launches, places, strict=True)
        ]
        return [
            LaunchNode(self._card.device.load(code), code, code.function.programs, addresses)
            for code, addresses in zip(self._card.codes(kinds), places, strict=True)
        ]

    def subject(
        self, kernel: Kernel, target: Target, threads: int, code: MachineCode, pattern: str, config: str
    ) -> CheckedKernel:
        plain = super().subject(kernel, target, 1, code, pattern, config)
        rounding = rounding_of([code.function for code, _, _ in code.launches])
        return replace(plain, execute=self._execute, is_aligned=True, rounding=rounding)

    def _execute(self, subject: CheckedKernel, memory: Guarded, pointers: list[int], mode: RunMode) -> int:
        """Run all launches on a copy of guarded memory (`checking.kernel_check.Execute`). Stores outside of a block are
        detected there; loads outside of it only by different results."""
        device = self._card.device
        blocks = self.place(memory.pages)
        starts = [pages.ctypes.data for pages in memory.pages]

        def place(address: int) -> int:
            n = next(n for n, pages in enumerate(memory.pages) if 0 <= address - starts[n] <= pages.nbytes)
            return blocks[n].address + address - starts[n]

        launches = [(code, tasks, False) for code, tasks in subject.launches]
        with self._card.lock:
            for node in self._nodes(launches, list(map(place, pointers))):
                device.run(node, device.stream)
            device.synchronize(device.stream)
        for pages, block in zip(memory.pages, blocks, strict=True):
            pages[:] = block.read()
        return 0

    def watch(self) -> Callable[[], str]:
        # Events are the card's: what processors do meanwhile does not change them.
        return str
