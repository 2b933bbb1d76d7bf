"""A back end whose machine is the interpreter of the tile IR, or the stand-in for Triton: whole programs run on it,
with loops, checks and updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einsmith.cost.facts import Target
from einsmith.gpu.tiles.ir import TileFunction, TileParameter
from einsmith.gpu.tiles.lower import lower, patterns
from einsmith.gpu.tiles.pieces import Tiling
from einsmith.gpu.tiles.triton_text import signature, triton_text
from einsmith.kernels.pattern import Lowered
from einsmith.runtime.assemble import Assembler
from einsmith.runtime.buffers import bytes_at
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from tests.driver.evaluated import Evaluated, Steps
from tests.tiles import card, interp, stand_in
from tests.tiles.memory import Memory
from tests.tiles.running import SMALL, functions_of

NAME = "tiles"


@dataclass(frozen=True)
class Machine(Target):
    backend = NAME
    __hash__ = Target.__hash__


@dataclass
class Code:
    """The functions of a kernel, and the way in which they run. `launches`: the pointers so far."""

    functions: list[TileFunction]
    way: str
    launches: list[tuple[int, ...]] = field(default_factory=list)

    def run(self, pointers: Sequence[int]) -> None:
        """On the memory at the pointers to the buffers and, last, the workspace."""
        memories: dict[Any, Memory] = {}

        def find(p: TileParameter) -> Memory:
            at, nbytes = p.address(pointers), p.nbytes
            key = at, p.elem, nbytes
            if key not in memories:
                what = "the workspace" if p.buffer is None else f"buffer {p.buffer}"
                raw = bytes_at(at, nbytes) if nbytes else np.zeros(0, np.uint8)
                memories[key] = Memory(raw, p.elem, what, p.buffer is not None)
            return memories[key]

        self.launches.append(tuple(pointers))
        if self.way == "interpreter":
            interp.run(self.functions, find)
        elif self.way == "card":
            card.run(self.functions, find)
        else:
            promised = {f.name: signature(f, [pointers]) for f in self.functions}
            stand_in.run(triton_text(self.functions), self.functions, find, signatures=promised)


class TileSteps(Steps):
    def launch(self, code: Code, pointers: Sequence[int]) -> None:
        code.run(pointers)


class Tiles(Evaluated):
    """What kernels cost, which passes ask, is the evaluator's answer. tiling: of all kernels; way: one of
    `running.WAYS`. `used` counts the kernels by pattern, `made` holds what they became."""

    name = NAME

    def __init__(self, tiling: Tiling = SMALL, way: str = "interpreter") -> None:
        super().__init__()
        self.tiling, self.way = tiling, way
        self.used: Counter[str] = Counter()
        self.made: list[Code] = []

    def target(self, threads: int) -> Target:
        return Machine(cores=threads)

    def compile(self, kernels: Sequence[Kernel], target: Target) -> list[CompiledKernel]:
        return [self._compiled(k) for k in kernels]

    def _compiled(self, kernel: Kernel) -> CompiledKernel:
        lowered: Lowered = lower(kernel, self.tiling)
        functions = functions_of(lowered)
        name = patterns(kernel)[0]
        self.used[name] += 1
        code = Code(functions, self.way)
        self.made.append(code)
        return CompiledKernel(((code, 1, False),), 0, lowered.workspace, name, self.tiling, 0.0, 0)

    def program(self, made: Assembler, threads: int, scratch_bytes: int, scratch: int) -> Steps:
        self.programs += 1
        return TileSteps(made)
