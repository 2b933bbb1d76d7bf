"""Compile graphs to relocatable data: programs whose addresses are offsets in named regions of memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from einsmith.base.errors import VerifyError
from einsmith.base.numerics import PLAIN, Numerics
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend, Exporter
from einsmith.driver.binding import Binding
from einsmith.driver.compile import compile_graph
from einsmith.driver.constant_values import use_constants
from einsmith.ir.nodes import Graph, Leaf, Tensor
from einsmith.ir.origins import Origins
from einsmith.runtime import buffers
from einsmith.runtime.arena import Arena
from einsmith.schedule.pipeline import MemoryLimit
from einsmith.schedule.row_clusters import MAX_STORED_BYTES

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
    memory; stride: bytes of one thread's scratch; checks: message of each check, by the word that holds its code;
    seconds: predicted seconds of a run."""

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
    seconds: float


class Portable:
    """A graph compiled for a library; it is never run in this process. backend: shared by the library's programs."""

    def __init__(
        self,
        graph: Graph,
        bind: Mapping[Leaf, np.ndarray],
        threads: int,
        backend: Any,
        target: Target | None = None,
        numerics: Numerics = PLAIN,
        finite: Tensor | None = None,
        memory: int | None = None,
        max_stored: int = MAX_STORED_BYTES,
    ):
        assert isinstance(backend, Backend) and isinstance(backend, Exporter)
        self._ahead: Exporter = backend
        graph, finite, bind, _ = use_constants(graph, finite, bind, threads, target, numerics, Origins())
        self._bound = dict(bind)
        limit = None if memory is None else MemoryLimit(memory, sum(a.nbytes for a in bind.values()))
        self._compiled = compile_graph(graph, bind, threads, finite, target, numerics, backend, limit, max_stored)
        self._binding = Binding(self._compiled, self._bound, Arena(), limit)

    @property
    def target(self) -> Target:
        """Return the machine that the program is compiled for."""
        return self._compiled.target

    def data(self) -> Data:
        """Return the program as data. Raises VerifyError for an address outside all known memory."""
        compiled, binding = self._compiled, self._binding
        table = self._ahead.table(binding.program)
        words = np.array(table.words, np.uint64)
        n_inputs = len(compiled.inputs)
        places: dict[int, WordTarget] = {}
        for n, slots in enumerate(binding.slots):
            owner: tuple = ("argument", n) if n < n_inputs else ("result", n - n_inputs)
            places |= {word: WordTarget(owner, offset) for word, offset in slots}
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
            tuple(map(int, words)),
            places,
            table.steps,
            tuple(compiled.inputs),
            compiled.graph.outputs,
            self._results(),
            tuple(size for _, _, size in binding.allocated),
            binding.arena_bytes,
            compiled.backend.scratch_area(compiled.scratch, 1),
            {n: binding.messages[c] for n, c in table.codes.items()},
            table.seconds,
        )

    def _owners(self) -> dict[int, tuple[Any, int]]:
        """Return {first address: (owner, bytes)} of all memory that the table points to; bound arrays are disjoint."""
        binding, ahead = self._binding, self._ahead
        table, spare = binding.program.table, binding.spare
        owners = {buffers.address(array): (x, max(array.nbytes, 1)) for x, array in self._bound.items()}
        return owners | {
            buffers.address(table): (TABLE, table.nbytes),
            buffers.address(spare): (SPARE, spare.nbytes),
            ahead.functions: (FUNCTIONS, ahead.arena - ahead.functions),
            ahead.arena: (ARENA, binding.reserved),
        }

    def _results(self) -> tuple[WordTarget, ...]:
        compiled, binding = self._compiled, self._binding
        written = ((i, k) for i, k in enumerate(binding.written) if k >= 0)
        targets: dict[int, WordTarget] = {k: WordTarget(("result", i), 0) for i, k in written}
        for k, source, _ in binding.copies:
            if source in self._bound:
                targets[k] = WordTarget(source, 0)
            elif isinstance(source, Leaf):
                targets[k] = WordTarget(("argument", compiled.inputs.index(source)), 0)
            else:
                targets[k] = WordTarget(("result", compiled.outputs.index(source)), 0)
        return tuple(targets[k] for k in range(len(compiled.graph.outputs)))
