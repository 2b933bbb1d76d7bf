"""Compile graphs to relocatable data: programs whose addresses are offsets in named regions of memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from einsmith.base.errors import VerifyError
from einsmith.cost.facts import Target
from einsmith.driver.backend import AheadOfTime, Backend
from einsmith.driver.compile import Executable
from einsmith.ir.nodes import Graph, Leaf, Tensor
from einsmith.runtime import buffers

TABLE, FUNCTIONS, SPARE, ARENA = "table", "functions", "spare", "arena"


class WordTarget(NamedTuple):
    """The target of an address in a program's table.

    owner: one of the names above, a leaf whose memory lasts, ("argument", number) or ("result", number); offset: bytes
    from the owner's start, or a function's number."""

    owner: Any
    offset: int


@dataclass(frozen=True)
class Data:
    """A program as data.

    words: the program's table, 0 where `places` has the target; steps: number of steps of the table; results: place of
    each of the graph's outputs; fresh: bytes of each ("result", number); scratch: bytes of the arena before scratch
    memory; stride: bytes of one thread's scratch; checks: message of each check, by the word that holds its code."""

    words: tuple[int, ...]
    places: Mapping[int, WordTarget]
    steps: int
    inputs: tuple[Leaf, ...]
    outputs: tuple[Tensor, ...]
    results: tuple[WordTarget, ...]
    fresh: tuple[int, ...]
    scratch: int
    stride: int
    checks: Mapping[int, str]


class Portable(Executable):
    """A graph compiled for a library; it is never run in this process. backend: shared by the library's programs."""

    def __init__(
        self, graph: Graph, bind: Mapping[Leaf, np.ndarray], threads: int, backend: Any, target: Target | None = None,
        winograd: bool = False, finite: Tensor | None = None, memory: int | None = None,
    ):  # fmt: skip
        assert isinstance(backend, Backend) and isinstance(backend, AheadOfTime)
        self._ahead: AheadOfTime = backend
        super().__init__(graph, bind, threads, finite, target, winograd, None, memory, backend)

    def data(self) -> Data:
        """Return the program as data. Raises VerifyError for an address outside all known memory."""
        table = self._ahead.table(self.program)
        words = np.array(table.words, np.uint64)
        given = len(self._inputs)
        places: dict[int, WordTarget] = {}
        for word, n, offset in self._slots:
            places[word] = WordTarget(("argument", n) if n < given else ("result", n - given), offset)
        owners = self._owners()
        starts = sorted(owners)
        for word in table.addresses:
            at = int(words[word])
            if at == 0 or word in places:
                continue
            start = starts[max(bisect_right(starts, at) - 1, 0)]
            owner, nbytes = owners[start]
            if not start <= at < start + nbytes:
                raise VerifyError(f"word {word} of a program's table points to unknown memory, {at:#x}")
            places[word] = WordTarget(owner, at - start)
        words[list(places)] = 0
        return Data(
            tuple(map(int, words)), places, table.steps, tuple(self._inputs), self.graph.outputs,
            self._results(), tuple(size for _, _, size in self._made), self._own,
            self.backend.scratch_area(self._scratch, 1), {n: self._messages[c] for n, c in table.codes.items()},
        )  # fmt: skip

    def _owners(self) -> dict[int, tuple[Any, int]]:
        """Return {first address: (owner, bytes)} of all memory that the table points to; bound arrays are disjoint."""
        table, ahead = self.program.table, self._ahead
        found = {buffers.address(array): (x, max(array.nbytes, 1)) for x, array in self.bound.items()}
        return found | {
            buffers.address(table): (TABLE, table.nbytes), buffers.address(self._keep): (SPARE, self._keep.nbytes),
            ahead.functions: (FUNCTIONS, ahead.arena - ahead.functions), ahead.arena: (ARENA, self._reserved),
        }  # fmt: skip

    def _results(self) -> tuple[WordTarget, ...]:
        found: dict[int, WordTarget] = {k: WordTarget(("result", i), 0) for i, k in enumerate(self._written) if k >= 0}
        for k, source, _ in self._copies:
            if source in self.bound:
                found[k] = WordTarget(source, 0)
            elif isinstance(source, Leaf):
                found[k] = WordTarget(("argument", self._inputs.index(source)), 0)
            else:
                found[k] = WordTarget(("result", self._fresh.index(source)), 0)
        return tuple(found[k] for k in range(len(self.graph.outputs)))
