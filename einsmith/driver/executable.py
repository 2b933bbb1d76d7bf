"""Compile a graph, and bind it to the memory of its leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np

from einsmith.base import environment, locks, messages, recording
from einsmith.base.numerics import PLAIN, Numerics
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend
from einsmith.driver.binding import Binding, LeafSum, Notice, Reply
from einsmith.driver.bound_memory import BoundMemory
from einsmith.driver.bound_program import BoundProgram
from einsmith.driver.compile import compile_graph
from einsmith.driver.constant_values import use_constants
from einsmith.driver.constants import Constants
from einsmith.driver.runs import Runs
from einsmith.ir.nodes import Graph, Leaf, Tensor
from einsmith.ir.origins import Origins
from einsmith.passes.pipeline import present_decisions
from einsmith.runtime import buffers
from einsmith.runtime.arena import Arena
from einsmith.runtime.memory import DimensionOrder, Memory
from einsmith.schedule.layout.apply import leaf_orders
from einsmith.schedule.limited_positions import RowLimit
from einsmith.schedule.plan import Order
from einsmith.schedule.row_clusters import MAX_STORED_BYTES


@dataclass(frozen=True, eq=False)
class _CompiledFrom:
    """What a program was compiled from, apart from what its memory and its code tell.

    graph: the whole graph; finite, origins, max_stored, limits, is_sparing: the arguments of an `Executable`.
    """

    graph: Graph
    finite: Tensor | None
    origins: Origins
    max_stored: int
    limits: Sequence[RowLimit]
    is_sparing: bool

    def compile(self, program: BoundProgram, memories: Collection[Memory]) -> Executable:
        """Return the graph of a program compiled anew, for the same memory. memories: those of it whose changes are
        followed. Leaves that present decisions give another order are copied into memory of their own."""
        compiled, memory = program.compiled, program.memory
        arrays = {x: a for x, a in memory.arrays.items() if x not in memory.computed}
        decisions, placed = present_decisions(), memory.placed
        if decisions is not None:
            before, after = (leaf_orders(self.graph, memory.owners, d) for d in (program.decisions, decisions))
            placed = {x: order for x, order in placed.items() if x not in before} | after
            moved = [x for x in memory.owners if memory.placed.get(x) != placed.get(x)]
            arrays |= {x: _copy_in_order(memory.read(x), placed.get(x)) for x in moved}
        return Executable(
            self.graph,
            arrays,
            compiled.threads,
            self.finite,
            compiled.target,
            compiled.numerics,
            memory.arena,
            memory.most,
            compiled.backend,
            memory.other_bytes,
            memory.guard,
            self.origins,
            self.max_stored,
            memory.notices,
            memories,
            self.limits,
            owners=memory.owners,
            placed=placed,
            moves=False,
            is_sparing=self.is_sparing,
        )


def _copy_in_order(array: np.ndarray, order: Order | None) -> np.ndarray:
    """Return a copy of an array in memory with its dimensions in an order; None: row-major."""
    x = array if order is None else DimensionOrder(order).physical(array)
    out = buffers.empty(x.shape, x.dtype)
    out[...] = x
    return out


class Executable(BoundProgram):
    """A compiled graph with the memory of its leaves, ready to run. Its program may be replaced between two runs.

    Args:
        graph: the graph.
        bind: arrays that live as long as the executable and hold leaves' values (parameters, state, constants); updates
            are stored into them. The other inputs are passed to each call, in the graph's order, as C-contiguous arrays
            of the leaf's shape and type.
        threads: threads that share the work.
        finite: a tensor whose first element must be finite for a run to store into leaves.
        target: the machine, if it is not this one.
        numerics: how the program may round.
        shared: memory for intermediate results that other executables also use, in other runs.
        memory: most bytes that a run may hold in all, including what is bound to leaves, inputs and outputs.
        backend: the back end that compiles, if it is not the target's own.
        other_bytes: bytes held elsewhere that count towards `memory`.
        guard: the lock of the parameters and the state in `bind`, held by every run.
        origins: origins of the graph's leaves and indices, for messages.
        max_stored: most bytes of a result that is stored where it need not be (`compile_graph`).
        notices: what every run tells other threads, waits for, and sums over devices, while it goes on.
        memories: the memory behind arrays in `bind`, as far as it is known. A run notes what it changes of it. Where
            the graph stores nothing and runs are not checked, what depends on it alone is computed again only after it
            may have changed.
        limits: limits of rows beyond which results do not matter (`schedule.limits`).
        frozen: memories, of a graph that stores something, of which the same holds: weights that do not train.
        all_limited: whether each kernel must leave out rows beyond the limits.
        owners: leaves whose memory may have another order of dimensions, each with the one whose order it has: a
            parameter with itself, its state with the parameter.
        placed: orders of the dimensions in the memory of leaves that are not row-major.
        moves: whether the caller can move leaves of `owners` to memory of other orders.
        is_sparing: whether what depends on `memories` alone is kept only where that saves much, as it always is of
            `frozen`.
    Raises:
        LeavesMovedError: recorded decisions give leaves other orders, and the caller moves them.
        UnplacedError: a kernel cannot follow the order of a placed leaf.
        MemoryLimitError: a run needs more than `memory` bytes.
        UnlimitedError: a kernel that must leave out rows beyond the limits does not.
    """

    def __init__(
        self,
        graph: Graph,
        bind: Mapping[Leaf, np.ndarray],
        threads: int,
        finite: Tensor | None = None,
        target: Target | None = None,
        numerics: Numerics = PLAIN,
        shared: Arena | None = None,
        memory: int | None = None,
        backend: Backend | None = None,
        other_bytes: int = 0,
        guard: locks.Guard | None = None,
        origins: Origins | None = None,
        max_stored: int = MAX_STORED_BYTES,
        notices: Sequence[Notice | Reply | LeafSum] = (),
        memories: Collection[Memory] = (),
        limits: Sequence[RowLimit] = (),
        all_limited: bool = False,
        owners: Mapping[Leaf, Leaf] = MappingProxyType({}),
        placed: Mapping[Leaf, Order] = MappingProxyType({}),
        moves: bool = True,
        frozen: Collection[Memory] = (),
        is_sparing: bool = False,
    ):
        start, checked = perf_counter(), bool(environment.check_level())
        # A checked run compares all rows of a kernel's results.
        own = origins or Origins()
        graph, finite, bind, origins = use_constants(graph, finite, bind, threads, target, numerics, own)
        source = _CompiledFrom(graph, finite, origins, max_stored, () if checked else tuple(limits), is_sparing)
        bound = BoundMemory(bind, shared, memories, memory, other_bytes, guard, notices)
        bound.owners, bound.placed = owners, placed
        constants: Constants | None = None
        fixed: Sequence[Leaf] = ()
        names = dict(source.origins.names)
        stable = memories if not graph.updates and finite is None else frozen
        if stable and not checked:

            def compile_first(first: Graph, arrays: Mapping[Leaf, np.ndarray]) -> Runs:
                names.update((x, f"computed_{n}") for n, (x, _) in enumerate(first.updates))
                settings: dict[str, Any] = dict(backend=backend, origins=Origins(names))
                return Executable(first, arrays, threads, None, target, numerics, shared, **settings).runs

            constants = Constants(graph, bind, stable, compile_first, is_sparing or bool(graph.updates))
            if finite is not None:
                finite = constants.graph.outputs[graph.outputs.index(finite)]
            graph, fixed = constants.graph, constants.leaves
            bound.arrays |= constants.arrays
            bound.computed = constants.arrays.keys()
        settings = threads, finite, target, numerics, backend, bound.limit, max_stored
        limited = source.limits, all_limited, names
        orders = owners if moves else {}, placed
        compiled = compile_graph(graph, bound.arrays, *settings, fixed, *limited, *orders, is_sparing)
        bound.attach(compiled.graph)
        with recording.phase("binding to memory"):
            binding = Binding(
                compiled, bound.arrays, bound.arena, bound.limit, notices=bound.notices, memories=bound.known
            )
        is_idle = constants is not None and constants.first is None and binding.preparation is None
        if is_idle and (graph.updates or is_sparing):
            constants = None  # nothing is kept of them
        super().__init__(bound, Runs(bound, {0: binding}, constants, source.origins), constants, source)
        self.compile_seconds = perf_counter() - start
        if environment.debug() >= 1:
            messages.say(
                f"einsmith: {len(self.kernels)} kernels, passes {compiled.seconds * 1e3:.0f} ms, code "
                f"{(self.compile_seconds - compiled.seconds) * 1e3:.0f} ms, arena {self.arena_bytes / 2**20:.2f} MiB"
            )
        if environment.debug() >= 2:
            messages.say(self.describe())
