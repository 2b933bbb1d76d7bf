"""Choose programs for calls that differ in sizes: one for each size, or one for all sizes up to a capacity.

The first size gets a program of its own. At the second one, the function is traced for a capacity and for a probe, and
one program is compiled for all sizes up to the capacity (`passes.capacity`). Each further size is traced and compared
with them, which proves that the program computes what the function means at this size; then the program runs, on arrays
that are padded to the capacity. A size that does not fit has a program of its own, as has a function that cannot be
compiled for a capacity.

`sizes="auto"` does this for the batch sizes of functions that store nothing, where no kernel takes time for rows beyond
the size, and for graphs and operators of PyTorch, whose sizes are known to vary. A size that is used often finally gets
a program of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from einsmith.base import environment
from einsmith.base.caches import Bound
from einsmith.base.environment import AUTO, EACH, SHARED, SIZE_CHOICES
from einsmith.base.errors import ArgumentError, MemoryLimitError
from einsmith.base.symbolic import SIZES_VARY, Scope, is_same
from einsmith.driver.bound_program import BoundProgram
from einsmith.driver.fitting import Explain, SizeFit
from einsmith.ir.nodes import Graph, Leaf, Recurrence, postorder
from einsmith.ir.origins import Origins
from einsmith.passes.analysis.index_checks import violation
from einsmith.passes.capacity import SizedGraph, SymbolicShapes, SymbolicSizes, size_graph
from einsmith.passes.size_traces import SizeDependentError, TracedSize
from einsmith.runtime.memory import Memory
from einsmith.schedule.limits import UnlimitedError

_MOST = 2
"""Programs of one function that are kept for further sizes, the largest ones."""
_SEEN = 16
"""Sizes that are kept, of which some were compiled as they are."""
_MOST_MORE = 8
"""Most elements by which one extent is taken to be another one and some more, as by tokens at an end."""
SHARED_FUNCTIONS = Bound("sizes", 256)
"""Bound of the functions, with arrays of one structure each, whose sizes are kept."""

Shapes = tuple[tuple[int, ...], ...]


class TracedFunction(Protocol):
    """A trace: its graph, the arrays that hold the values of captured leaves, and (object, memory) of captured objects
    whose values may change, and origins for messages."""

    graph: Graph
    bind: dict[Leaf, np.ndarray]
    live: list[tuple[Any, Memory]]
    origins: Origins


T = TypeVar("T", bound=TracedFunction)


def check_sizes(sizes: Any) -> str | None:
    """Return the argument `sizes`, or EINSMITH_SIZES for None. Raises ArgumentError for an unknown value."""
    if sizes is not None and (not isinstance(sizes, str) or sizes not in SIZE_CHOICES):
        raise ArgumentError(f"sizes={sizes!r} is not available; use {EACH!r}, {SHARED!r} or {AUTO!r}")
    return sizes


def choose_sizes(sizes: str | None, graph: Graph | None = None, default: str = EACH) -> str:
    """Return EACH, SHARED or AUTO for a checked argument `sizes`; EACH for a graph to which AUTO does not apply. graph:
    None for one that stores nothing, or may; default: the choice where none is made."""
    if sizes is None:
        sizes = environment.SIZES.get() if environment.SIZES.is_set() else default
    # Checked runs compute all rows of every kernel.
    return EACH if sizes == AUTO and (graph is not None and graph.updates or environment.check_level()) else sizes


def drop_outgrown(run: BoundProgram, drop: Callable[[], object]) -> None:
    """Have `drop` called, which releases a shared program, as soon as its size gets a program of its own."""
    note = run.runs.outgrown

    def note_and_drop() -> None:
        assert note is not None
        note()
        drop()

    if note is not None:
        run.runs.outgrown = note_and_drop


class _Symbolic(NamedTuple):
    """A program's numbers as functions of sizes. scope: the symbols of the sizes; shapes: the shapes of the program's
    arrays in these symbols; places: (array, dimension) whose extent each symbol is."""

    sizes: SymbolicSizes
    scope: Scope
    shapes: SymbolicShapes
    places: list[tuple[int, int]]


class _Here(Generic[T]):
    """The trace of a call. retrace: gives it without what is chosen by its sizes."""

    def __init__(self, traced: T, retrace: Callable[[], T]):
        self._traced, self._retrace = traced, retrace
        self._known: dict[bool, tuple[TracedSize, T]] = {}

    def of(self, graph: Graph) -> tuple[TracedSize, T]:
        """Return the trace that is to be compared with a graph of several sizes: chunks of recurrences are chosen."""
        has_choices = bool(_chunks(graph))
        if has_choices not in self._known:
            traced = self._retrace() if has_choices else self._traced
            self._known[has_choices] = _sized(traced), traced
        return self._known[has_choices]


@dataclass
class _Shared(Generic[T]):
    """A program for all sizes up to a capacity. shapes: those of its arrays; traced: the trace for the capacity;
    symbolic: None where each size is traced; state: that of the modules in the trace."""

    shapes: Shapes
    traced: T
    graph: SizedGraph
    run: BoundProgram
    symbolic: _Symbolic | None = None
    state: Any = None

    def predict(self, shapes: Shapes, explain: Explain) -> SizeFit | None:
        """Return how the program runs for arrays of these shapes, without a trace; None where that is not known."""
        if self.symbolic is None:
            return None
        known = self.symbolic
        at = known.scope.at([shapes[n][d] for n, d in known.places])
        if at is None or known.shapes.at(at) != shapes:
            return None
        fit = known.sizes.fit(at)
        return None if fit is None else SizeFit(*fit, explain)


@dataclass
class Sizes(Generic[T]):
    """The sizes in which one function was called, with arrays of one structure.

    trace: traces the function for shapes of its arrays; compile: compiles a graph for the inputs of a trace, with the
    options `limits` and `all_limited` of an Executable; is_free: sizes share a program only where no kernel takes time
    for rows beyond the size; state: what a trace depends on besides shapes, so that one on symbolic extents proves what
    holds for other sizes in this state; None where the trace runs Python code of users; is_outgrown: a size that is
    used often gets a program of its own; other: shapes of another size, which tell before the first call what varies
    """

    trace: Callable[[Shapes], T]
    compile: Callable[..., BoundProgram]
    is_free: bool
    state: Any = None
    is_outgrown: bool = False
    other: Shapes | None = None
    seen: list[Shapes] = field(default_factory=list)
    programs: list[_Shared[T]] = field(default_factory=list)
    reasons: dict[tuple, str] = field(default_factory=dict)
    """Why dimensions that vary cannot share a program, by their positions."""
    outgrown: list[Shapes] = field(default_factory=list)
    """Sizes that need programs of their own, as they are used often; the last ones that became so."""

    def __post_init__(self) -> None:
        if self.other is not None:
            self.seen.append(self.other)

    def predict(self, shapes: Shapes) -> BoundProgram | None:
        """Return a shared program that is right for the shapes of a call without tracing the call; None if there is
        none."""
        known = self.predict_traced(shapes)
        return None if known is None else known[0]

    def predict_traced(self, shapes: Shapes) -> tuple[BoundProgram, T] | None:
        """Return what `predict` returns, with the trace for the program's capacity."""
        if shapes in self.outgrown or environment.check_level():
            return None
        for known in reversed(self.programs if self.state is not None else ()):
            if known.state != self.state:
                continue
            fit = known.predict(shapes, lambda arrays: _explain_index(self.trace(shapes), arrays))
            if fit is not None:
                return self._fitted(known.run, fit, shapes), known.traced
        return None

    def find(self, shapes: Shapes, traced: T) -> BoundProgram | None:
        """Return a program that other sizes share for the arrays of a call; None where it needs its own.

        traced: the trace for these shapes.
        """
        if not self.seen:
            self.seen = [shapes]
            return None
        if shapes in self.outgrown:
            return None
        here = _Here(traced, lambda: self._trace(shapes))
        for known in reversed(self.programs):
            fit = _fit(known.shapes, known.graph, shapes, here)
            if fit is not None:
                return self._fitted(known.run, fit, shapes)
        earlier = self.seen
        self.seen = [*earlier[-_SEEN:], shapes]
        # Where the dimensions that have varied share no program, those that differ from one earlier call alone may.
        for seen in (earlier, *([x] for x in reversed(earlier))):
            places = _find_varying(seen, shapes)
            if not places or places in self.reasons or any(shapes[n][d] < 2 for n, d in places):
                continue  # a trace leaves an axis of one point out
            if self.is_free and any(d for _, d in places):
                continue
            try:
                program = self._share(places, [*seen, shapes], here)
            except SizeDependentError as e:
                self.reasons[places] = str(e)
                continue
            if program is not None:
                shared, fit = program
                self.programs = [*self.programs, shared][-_MOST:]
                return self._fitted(shared.run, fit, shapes)
        return None

    def _trace(self, shapes: Shapes) -> T:
        """Return the trace for shapes, without what is chosen by their sizes."""
        token = SIZES_VARY.set(True)
        try:
            return self.trace(shapes)
        finally:
            SIZES_VARY.reset(token)

    def _fitted(self, run: BoundProgram, fit: SizeFit, shapes: Shapes) -> BoundProgram:
        program = run.fitted(fit)
        if self.is_outgrown:
            program.runs.outgrown = partial(self._outgrow, shapes)
        return program

    def _outgrow(self, shapes: Shapes) -> None:
        self.outgrown = [*self.outgrown[-_SEEN:], shapes]

    def _share(
        self, varying: Sequence[tuple[int, int]], seen: Sequence[Shapes], here: _Here[T]
    ) -> tuple[_Shared[T], SizeFit] | None:
        """Return a program for a capacity of the dimensions that vary among `seen`, given as (array, dimension), and
        how it runs for the last of them, whose trace is `here`; None where this size alone does not fit."""
        shapes = seen[-1]
        histories: dict[tuple[int, ...], list[tuple[int, int]]] = {}  # dimensions of equal extents are one
        for n, d in varying:
            histories.setdefault(tuple(x[n][d] for x in seen), []).append((n, d))
        relations = _relate(list(histories))
        own = [k for k, x in enumerate(relations) if x.bases == (k,)]
        called = [n for n, x in enumerate(seen) if x is not self.other]
        largest = [max(list(histories)[k][n] for n in called) for k in own]

        def extents_at(sizes: Sequence[int]) -> list[int]:
            """Return the extents of all histories for a size of each one that is its own base."""
            of_base = dict(zip(own, sizes, strict=True))
            return [relation.value(of_base) for relation in relations]

        def shapes_of(extents: Sequence[int]) -> Shapes:
            """Return the shapes for an extent of each history."""
            out = [list(s) for s in shapes]
            for extent, places in zip(extents, histories.values(), strict=True):
                for n, d in places:
                    out[n][d] = extent
            return tuple(map(tuple, out))

        def shapes_at(sizes: Sequence[int]) -> Shapes:
            return shapes_of(extents_at(sizes))

        why = "it is too small"
        for grow in (_grow_again if self.programs else _grow, _power, int):
            grown = list(map(grow, largest))
            if len(grown) > 1:  # where several vary, as a batch and a length, their capacities multiply
                least = largest.index(min(largest))
                grown[least] = _LITTLE if 3 * largest[least] <= _LITTLE else grown[least]
            most = shapes_at(grown)
            try:
                at_capacity = self._trace(most)
                probe = _probe_of(grown, _chunks(at_capacity.graph))
                if probe is None:
                    continue
                at_probe = self._trace(shapes_at(probe))
            except Exception as e:  # of the function, which may have a largest size
                why = f"it cannot be traced for shapes {most} ({e})"
                continue
            graph = size_graph(_sized(at_capacity), _sized(at_probe))
            fit = _fit(most, graph, shapes, here)
            if fit is None:
                return None
            if self.is_free and not graph.is_by_rows:
                raise SizeDependentError("tensors have the size in another dimension than the first")
            symbolic = None
            if self.state is not None and len(own) < len(relations):
                # What has varied together so far need not do so later.
                graph, symbolic = self._part(graph, extents_at(grown), extents_at(probe), shapes_of)
            if self.state is not None and symbolic is None:
                symbolic = self._prove(graph, grown, probe, shapes_at)
            limits = {"limits": graph.limits, "all_limited": self.is_free}
            try:
                run = self.compile(graph.graph, at_capacity, **limits)
                return _Shared(most, at_capacity, graph, run, symbolic, self.state), fit
            except UnlimitedError as e:
                raise SizeDependentError(str(e)) from None
            except (MemoryLimitError, MemoryError) as e:
                why = f"shapes {most} need too much memory ({e})"
        raise SizeDependentError(why)

    def _part(
        self, graph: SizedGraph, capacity: Sequence[int], probe: Sequence[int], shapes_of: Callable[..., Shapes]
    ) -> tuple[SizedGraph, _Symbolic | None]:
        """Make extents vary independently that were equal in both traces. Return (sized graph, its numbers as functions
        of the sizes); the given graph, if its extents depend on each other."""
        symbolic = self._prove(graph, capacity, probe, shapes_of)
        apart = _probe_of(capacity, _chunks(graph.graph))
        if symbolic is None or apart is None:
            return graph, symbolic
        try:
            parted = size_graph(graph.capacity, _sized(self._trace(shapes_of(apart))))
        except Exception:  # of shapes that do not match
            return graph, symbolic
        proof = self._prove(parted, capacity, apart, shapes_of)
        return (graph, symbolic) if proof is None else (parted, proof)

    def _prove(
        self, graph: SizedGraph, capacity: Sequence[int], probe: Sequence[int], shapes_at: Callable[..., Shapes]
    ) -> _Symbolic | None:
        """Return a graph's numbers as functions of sizes; None where a trace with symbolic extents fails."""
        scope = Scope(capacity)
        shapes = shapes_at(scope.symbols)
        try:
            sizes = SymbolicSizes(graph, _sized(self._trace(shapes)), scope, probe)
        except Exception:  # of code that takes no symbolic numbers, too: each size is traced then
            return None
        extents = [(x, (n, d)) for n, shape in enumerate(shapes) for d, x in enumerate(shape)]
        places = [next(place for x, place in extents if is_same(x, s)) for s in scope.symbols]
        return _Symbolic(sizes, scope, SymbolicShapes(shapes), places)


_LITTLE = 12
"""Capacity of the least of several extents that is at most a third of it, as a batch is: no power of two, and above
what a probe differs by."""
PRIMES = 2, 3, 5, 7, 11, 13, 17, 19
"""By how much several sizes that vary are made to differ, each by another number, so that none is a multiple of another
one before and after if it is none at others. The probe's are smaller by as many fours: halves and quarters are numbers
of both."""


FURTHER = 68, 36, 4, 69, 37, 5
"""By how much a probe is smaller where recurrences are run in chunks, the first that leaves a size and is no multiple
of a chunk: most are more than the 64 steps of one, so that the number of chunks is another one, and what the last one
lacks too."""


def _probe_of(capacity: Sequence[int], chunks: Collection[int]) -> list[int] | None:
    """Return sizes smaller than those of a capacity, equal only where these are; None where there are none. chunks: the
    lengths of chunks of steps."""
    count = len(capacity)
    for less in itertools.permutations(PRIMES[: count + 1], count) if count > 1 else ((1,),):
        out = [_smaller(c, x, chunks) for c, x in zip(capacity, less, strict=True)]
        if min(out) >= 2 and len(set(out)) >= len(set(capacity)):
            return out
    return None


def _smaller(capacity: int, times: int, chunks: Collection[int]) -> int:
    """Return a size that is smaller than a capacity by a multiple of `times`; below 2 if there is none.

    chunks: lengths of chunks of steps; the difference is a multiple of none of them, if it can be so.
    """
    sizes = [capacity - times * x for x in (FURTHER if chunks else ()) if all(times * x % c for c in chunks)]
    return next((x for x in sizes if x >= 2), capacity - 4 * times)


def _chunks(graph: Graph) -> set[int]:
    """Return the lengths of chunks of a graph's recurrences."""
    nodes = postorder([*graph.roots, *graph.gradients])
    return {n.options.chunk for n in nodes if isinstance(n, Recurrence) and n.options.chunk > 1}


def _sized(traced: TracedFunction) -> TracedSize:
    return TracedSize(traced.graph, traced.bind, [memory.physical for _, memory in traced.live])


def _find_varying(seen: Sequence[Shapes], shapes: Shapes) -> tuple[tuple[int, int], ...]:
    """Return (array, dimension) of each extent of `shapes` that is another one in some of the shapes `seen`."""
    places = [(n, d) for n, shape in enumerate(shapes) for d in range(len(shape))]
    return tuple((n, d) for n, d in places if any(x[n][d] != shapes[n][d] for x in seen))


def _fit(most: Shapes, graph: SizedGraph, shapes: Shapes, here: _Here[Any]) -> SizeFit | None:
    """Return how a program for shapes up to `most` runs for a call, whose trace is `here`; None where the call needs
    another one."""
    pairs = [x for s, c in zip(shapes, most, strict=True) for x in zip(s, c, strict=True)]
    if any(not 0 < a <= b for a, b in pairs):
        return None
    try:
        sized, traced = here.of(graph.graph)
        numbers = graph.fit(sized)
    except SizeDependentError:
        return None
    inputs = tuple(x.shape for x in traced.graph.inputs if x not in traced.bind)
    outputs = tuple(t.shape for t in traced.graph.outputs)
    return SizeFit(inputs, tuple(numbers), outputs, partial(_explain_index, traced))


def _explain_index(traced: TracedFunction, arrays: Sequence[np.ndarray]) -> str | None:
    """Describe which index leaves its tensor in a call of a traced function; None where none is found."""
    inputs = [x for x in traced.graph.inputs if x not in traced.bind]
    known = traced.bind | dict(zip(inputs, arrays, strict=True))
    return violation(traced.graph.roots, known, traced.origins)


class _Relation(NamedTuple):
    """An extent as factor*product(bases) + offset. bases: numbers of the extents of which it is one."""

    bases: tuple[int, ...]
    factor: int = 1
    offset: int = 0

    def value(self, extents: Mapping[int, int]) -> int:
        """Return the extent, given those that are bases."""
        return self.factor * prod(extents[k] for k in self.bases) + self.offset


def _relate(histories: Sequence[tuple[int, ...]]) -> list[_Relation]:
    """Return each of several histories of extents as a multiple of another one or of the product of two, or as another
    one and a little more or less; by itself where it is none of these."""
    out: dict[int, _Relation] = {}
    for k in sorted(range(len(histories)), key=lambda k: histories[k]):
        own = [b for b, x in out.items() if x.bases == (b,)]
        groups = [*((b,) for b in own), *itertools.combinations(own, 2)]
        relations = (
            *(_Relation(g, histories[k][0] // max(1, prod(histories[b][0] for b in g))) for g in groups),
            *(_Relation((b,), 1, histories[k][0] - histories[b][0]) for b in own),
        )
        out[k] = next((r for r in relations if _holds(r, k, histories)), _Relation((k,)))
    return [out[k] for k in range(len(histories))]


def _holds(relation: _Relation, k: int, histories: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a history of extents follows a relation everywhere."""
    if relation.factor < 1 or abs(relation.offset) > _MOST_MORE:
        return False
    return all(x == relation.value({b: histories[b][n] for b in relation.bases}) for n, x in enumerate(histories[k]))


def _grow(n: int) -> int:
    """Return a capacity for a size: twice as large or a little more, at least 40, a multiple of 8, and no power of two,
    by which a trace would multiply instead of dividing."""
    for capacity in (40, 48, 56):
        if capacity >= 2 * n:
            return capacity
    unit = 8
    while 15 * unit < 2 * n:
        unit *= 2
    return max(9, -(-2 * n // unit)) * unit


def _grow_again(n: int) -> int:
    """Return a capacity for a size that exceeds an earlier capacity.

    The factor of growth is larger for smaller sizes: 200 increasing lengths take three compilations.
    """
    return _grow(n * (4 if n < 64 else 2 if n < 256 else 1))


def _power(n: int) -> int:
    """Return the least power of two that is no smaller than n, and no smaller than 8."""
    return max(8, 1 << (n - 1).bit_length())
