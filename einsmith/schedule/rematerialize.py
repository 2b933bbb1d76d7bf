"""Rematerialize results: they are computed again where they are read, so that less memory is needed.

before: a = f(x); b = g(a); c = h(b) ... the most memory is needed here ... dB = h'(b, dC); dA = g'(a, dB)
after:  a = f(x); b = g(a); c = h(b) ... less is needed here ... b' = g(a); dB = h'(b', dC); dA = g'(a, dB)

Unchanged kernels run again on the same values, so that results are bitwise equal to those without a limit; of a kernel
that stores an operand of its later stages, those stages alone may run again. At the point of highest memory use, the
result is dropped whose recomputation takes the fewest seconds per byte freed; this is repeated as long as it pays.
Operands of a recomputation may be recomputed too, so that whole layers are (Chen et al. 2016, "Training deep nets with
sublinear memory cost"; Jain et al. 2020, "Checkmate").

The search does not depend on the limit. It visits a fixed sequence of plans of decreasing memory, and the limit selects
one of them. A larger limit is therefore met whenever a smaller one is, and the least memory of any visited plan is a
limit that can be met.

This is no minimum cut as in `cost.recomputation`: a hard limit of bytes at every call asks when a tensor is alive, not
only whether it is kept, and the least sum of costs does not answer that. It runs on a finished plan, whose kernels stay
as they are. Its seconds are those of the plan's kernels; which operands are too small to be recomputed is the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from einsmith.cost.recomputation import is_small
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import Leaf, Tensor, nbytes
from einsmith.ir.views import storage
from einsmith.schedule.in_place import Known, find_overwrites
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows, Stage
from einsmith.schedule.kernel_calls import copy_of
from einsmith.schedule.plan import KernelCall, LoopCall, Plan

_MAX_CHAIN = 24
"""Most kernels in a chain that run again for one result."""
_TARGET_RATIOS = (0.95, 0.75)
"""Ratio of each memory target to the previous one, one walk per ratio (see `_Timeline.walk`): small strides lead to
less memory, long ones sometimes to fewer seconds (measured on ten networks at 14 limits each: up to 5 % either way)."""
_MAX_SHRINK = 16
"""A walk ends at a target smaller than the original plan's memory by this factor."""


class KernelCost(NamedTuple):
    """Functions that give a kernel's predicted seconds and its workspace (bytes)."""

    seconds: Callable[[Kernel], float]
    workspace: Callable[[Kernel], int]


class _Recomputation(NamedTuple):
    """Calls that recompute a result.

    Attributes:
        calls: the calls in order.
        seconds: their predicted seconds.
        kept_longer: operands of theirs that have to be kept longer.
    """

    calls: tuple[KernelCall, ...]
    seconds: float
    kept_longer: frozenset[Tensor]


class FitResult(NamedTuple):
    """The plan that meets a memory limit, or the least limit that can be met.

    Attributes:
        plan: the plan; None if no visited plan meets the limit.
        least: the fewest bytes of a visited plan, if none meets the limit.
        without: the bytes of the plan without recomputation.
    """

    plan: Plan | None
    least: int
    without: int


def fit(
    plan: Plan, outside: Collection[Tensor], allowed: int, cost: KernelCost, measure: Callable[[Plan], int]
) -> FitResult:
    """Return the fastest plan of those that take at most `allowed` bytes.

    Args:
        plan: a plan without recomputation and without calls that run together.
        outside: tensors that are not intermediate results.
        allowed: the limit (bytes).
        cost: predicts kernels; its answers must not depend on which plans were measured.
        measure: the bytes that a plan takes, gaps in the arena and scratch included: at least the peak of its results.
    """
    assert not plan.together
    without = least = measure(plan)
    if without <= allowed:
        return FitResult(plan, without, without)
    fits: list[tuple[float, int, Plan]] = []
    others: list[tuple[int, int, Plan]] = []  # plans whose peak alone exceeds the limit
    for number, ratio in enumerate(_TARGET_RATIOS):
        timeline = _Timeline(plan, outside, cost)
        for peak_bytes in timeline.walk(ratio):
            seconds, candidate = timeline.recomputation_seconds(), timeline.plan()
            if fits and seconds >= fits[0][0]:
                break
            if peak_bytes > allowed:
                others.append((peak_bytes, len(others), candidate))
                continue
            used = measure(candidate)
            least = min(least, used)
            if used <= allowed:
                fits.append((seconds, number, candidate))
                break
    if fits:
        return FitResult(min(fits, key=lambda f: f[:2])[2], least, without)
    for peak_bytes, _, candidate in sorted(others, key=lambda o: o[:2]):
        if peak_bytes >= least:
            break
        least = min(least, measure(candidate))
    return FitResult(None, least, without)


def peak(plan: Plan, outside: Collection[Tensor], cost: KernelCost) -> int:
    """Return the most bytes that intermediate results and the workspace of a call take at once."""
    return _Timeline(plan, outside, cost).peak()


@dataclass
class _State:
    """A sequence of calls and its memory use.

    Attributes:
        calls: the calls.
        origin: index of each call in the original plan; None if it is a recomputation.
        life: the calls that touch each tensor's memory, in order.
        first_writer: the first call that computes each tensor.
        stored: the call that overwrites each parameter.
        live: bytes live at each call.
        originals: copy -> original of recomputed tensors.
    """

    calls: list[KernelCall | LoopCall]
    origin: list[int | None]
    life: dict[Tensor, list[int]]
    first_writer: dict[Tensor, int]
    stored: dict[Leaf, int]
    live: np.ndarray
    originals: dict[Tensor, Tensor]


class _Timeline:
    """The calls of a plan, the tensors that each touches, and the bytes live at each."""

    def __init__(self, plan: Plan, outside: Collection[Tensor], cost: KernelCost):
        self.original, self.outside, self.cost = plan, set(outside), cost
        self.pinned = {storage(t) for _, t, _ in plan.checks}
        self.accesses: dict[int, tuple[KernelCall | LoopCall, list[tuple[Tensor, bool, int]]]] = {}
        self.calls_by_result: dict[tuple[int, Tensor], tuple[KernelCall, list[KernelCall]]] = {}
        self.known_overwrites: Known = {}
        self.examined: list[tuple[np.ndarray, _Recomputation, int]] = []
        """Options of the present state that were examined: (bytes live at each call, recomputation, call before which
        it runs)."""
        self.unexamined: Iterator[tuple[_Recomputation, int]] | None = None
        self.state = self._make_state([*plan.calls], [*range(len(plan.calls))], plan.originals)

    def _make_state(
        self, calls: list[KernelCall | LoopCall], origin: list[int | None], originals: Mapping[Tensor, Tensor]
    ) -> _State:
        life: dict[Tensor, list[int]] = {}
        first_writer: dict[Tensor, int] = {}
        stored: dict[Leaf, int] = {}
        change = np.zeros(len(calls) + 1, np.int64)
        work = np.zeros(len(calls), np.int64)
        sizes: dict[Tensor, int] = {}
        for i, call in enumerate(calls):
            if isinstance(call, KernelCall):
                work[i] = self.cost.workspace(call.kernel)
            for s, written, n in self._accesses(call):
                if written:
                    first_writer.setdefault(s, i)
                    if s in self.original.home:
                        stored[self.original.home[s]] = i
                if n >= 0:
                    sizes[s] = n
                    uses = life.setdefault(s, [])
                    if not uses or uses[-1] != i:
                        uses.append(i)
        for s, uses in life.items():
            change[uses[0]] += sizes[s]
            change[uses[-1] + 1] -= sizes[s]
        for s in find_overwrites(
            calls, {s: (uses[0], uses[-1]) for s, uses in life.items()}, self.known_overwrites
        ).values():
            change[life[s][-1] : life[s][-1] + 2] += (-sizes[s], sizes[s])
        return _State(calls, origin, life, first_writer, stored, np.cumsum(change)[:-1] + work, dict(originals))

    def _accesses(self, call: KernelCall | LoopCall) -> list[tuple[Tensor, bool, int]]:
        """Return (storage, whether it is written, bytes) of the tensors of a call; the bytes are -1 for a tensor that
        is not an intermediate result."""
        known = self.accesses.get(id(call))
        if known is None:
            tensors = [(storage(t), w) for t, w in zip(call.tensors, call.written, strict=True)]
            known = call, [(s, w, nbytes(s) if self._is_inside(s) else -1) for s, w in tensors]
            self.accesses[id(call)] = known  # holding the call keeps its id unique
        return known[1]

    def _is_inside(self, s: Tensor) -> bool:
        return s not in self.outside and s not in self.original.home

    def peak(self) -> int:
        """Return the most bytes that are live at once."""
        return int(self.state.live.max(initial=0))

    def recomputation_seconds(self) -> float:
        """Return the seconds of all calls that run again."""
        rerun = [
            c
            for c, n in zip(self.state.calls, self.state.origin, strict=True)
            if n is None and isinstance(c, KernelCall)
        ]
        return sum(self.cost.seconds(c.kernel) for c in rerun)

    def walk(self, ratio: float) -> Iterator[int]:
        """Recompute one result after the other toward the least memory; yield the peak after each (bytes).

        Each target is `ratio` times the previous one. Calls are brought nearer to the target until all meet it or no
        recomputation brings them nearer. The walk depends on no limit.
        """
        first = target = self.peak()
        while target * _MAX_SHRINK > first:
            target = int(target * ratio)
            while self._step(target):
                yield self.peak()

    def _step(self, target: int) -> bool:
        """Recompute one result if that brings the calls nearer to the target; return whether one was recomputed."""
        excess = _excess(self.state.live, target)
        state = next(self._options(excess, target), None) if excess else None
        if state is None:
            return False
        self.state, self.examined, self.unexamined = state, [], None
        return True

    def _options(self, excess: int, target: int) -> Iterator[_State]:
        """Yield the states with one more recomputation and less excess, the cheapest first.

        States are large: of those examined for an earlier target only the live bytes are kept.
        """
        for live, recomputation, use in self.examined:
            if _excess(live, target) < excess:
                yield self._insert(recomputation, use)
        if self.unexamined is None:
            self.unexamined = iter(self._candidates())
        for recomputation, use in self.unexamined:
            state = self._insert(recomputation, use)
            self.examined.append((state.live, recomputation, use))
            if _excess(state.live, target) < excess:
                yield state

    def _candidates(self) -> list[tuple[_Recomputation, int]]:
        """Return (recomputation, call before which it runs) for results that are live at the peak, the fewest seconds
        per byte first."""
        state = self.state
        at = int(state.live.argmax())
        ranked: list[tuple[float, int, int, int, _Recomputation]] = []
        for s, uses in state.life.items():
            n = bisect_left(uses, at)
            if not uses[0] < at < uses[-1] or s in self.pinned or uses[n] == at:
                continue
            recomputation = self._cheapest_recomputation(s, uses[n], at, _MAX_CHAIN, {})
            if recomputation is not None and not any(isinstance(state.calls[k], LoopCall) for k in uses[n:]):
                freed = nbytes(s) - sum(nbytes(h) for h in recomputation.kept_longer if not self._is_live(h, at))
                if freed > 0:
                    ranked.append((recomputation.seconds / freed, -freed, len(ranked), uses[n], recomputation))
        return [(recomputation, use) for *_, use, recomputation in sorted(ranked, key=lambda f: f[:3])]

    def _is_live(self, s: Tensor, at: int) -> bool:
        life = self.state.life
        return s in life and life[s][0] <= at <= life[s][-1]

    def _cheapest_recomputation(
        self, s: Tensor, before: int, at: int, depth: int, known: dict[Tensor, _Recomputation | None]
    ) -> _Recomputation | None:
        """Return the fastest way to recompute a result before a call; None if there is none. `known` caches the results
        examined for that call."""
        if s not in known:
            known[s] = None
            call = self.state.calls[self.state.first_writer[s]]
            if depth and isinstance(call, KernelCall):
                options = [self._recompute_by(c, s, before, at, depth, known) for c in self._recomputing_calls(call, s)]
                known[s] = min((a for a in options if a is not None), key=lambda a: a.seconds, default=None)
        return known[s]

    def _recomputing_calls(self, call: KernelCall, s: Tensor) -> Sequence[KernelCall]:
        """Return the calls that compute a result and write only intermediate results."""
        key = id(call), s
        if key not in self.calls_by_result:
            calls = [c for c in _calls_computing(call, s) if self._writes_only_results(c)]
            self.calls_by_result[key] = call, calls  # holding the call keeps its id unique
        return self.calls_by_result[key][1]

    def _writes_only_results(self, call: KernelCall) -> bool:
        """Return whether a call writes only intermediate results."""
        return all(map(self._is_inside, call.results))

    def _recompute_by(
        self, call: KernelCall, s: Tensor, before: int, at: int, depth: int, known: dict[Tensor, _Recomputation | None]
    ) -> _Recomputation | None:
        """Return the recomputation of a result by one of the calls that compute it, with the recomputation of its
        operands; None if an operand is not available."""
        calls: list[KernelCall] = []
        seconds = self.cost.seconds(call.kernel)
        kept_longer: set[Tensor] = set()
        for r in call.operands:
            if self._is_available(r, before):
                continue
            if r not in self.state.life:
                return None  # an overwritten parameter, or a tensor local to a fused kernel
            if self._is_live(r, at) or is_small(nbytes(r), nbytes(s)):
                kept_longer.add(r)
                continue
            more = self._cheapest_recomputation(r, before, at, depth - 1, known)
            if more is not None:
                calls += [c for c in more.calls if not any(c is d for d in calls)]
                seconds += more.seconds
                kept_longer |= more.kept_longer
            elif nbytes(r) < nbytes(s):
                kept_longer.add(r)
            else:
                return None
        return _Recomputation((*calls, call), seconds, frozenset(kept_longer))

    def _is_available(self, r: Tensor, before: int) -> bool:
        """Return whether tensor `r` has its present value before call number `before` too."""
        life = self.state.life
        if r in life:
            return life[r][0] < before <= life[r][-1]
        if isinstance(r, Leaf):
            return self.state.stored.get(r, before) >= before
        return r in self.outside

    def _insert(self, recomputation: _Recomputation, before: int) -> _State:
        """Return the state in which calls run again before a call; all later calls read the recomputed tensors."""
        state = self.state
        new: dict[Tensor, Tensor] = {}
        calls: list[KernelCall | LoopCall] = []
        for call in recomputation.calls:
            new |= {s: self._new_copy(s) for s in call.results}
            calls.append(replace(call.exchange(new), is_recomputation=True))
        rest = [c.exchange(new) if isinstance(c, KernelCall) else c for c in state.calls[before:]]
        origin = [*state.origin[:before], *[None] * len(calls), *state.origin[before:]]
        originals = state.originals | {c: s for s, c in new.items()}
        return self._make_state([*state.calls[:before], *calls, *rest], origin, originals)

    def _new_copy(self, s: Tensor) -> Tensor:
        """Return a tensor for a result that is computed again; equal nodes are one object, so that each time of several
        has a node of its own."""
        copy = copy_of(s)
        while copy in self.state.originals:
            copy = copy_of(copy)
        return copy

    def plan(self) -> Plan:
        state = self.state
        place = {n: i for i, n in enumerate(state.origin) if n is not None} | {
            len(self.original.calls): len(state.calls)
        }
        checks = [(place[i], t, m) for i, t, m in self.original.checks]
        first = place[self.original.first_write]
        return replace(self.original, calls=state.calls, checks=checks, first_write=first, originals=state.originals)


def _excess(live: np.ndarray, target: int) -> int:
    """Return the bytes beyond the target, summed over all calls."""
    return int(np.maximum(live - target, 0).sum())


def _calls_computing(call: KernelCall, s: Tensor) -> Iterator[KernelCall]:
    """Yield calls that compute a result: the call itself; of a row-fused call, the part that computes it, if that part
    is pointwise (a sum's rounding depends on its kernel's order); and the stages that compute it from other stored
    results of the kernel."""
    yield call
    for c in call.parts or (call,):
        if isinstance(c.kernel, Rows) or any(c.offsets):
            continue
        for n, (t, written) in enumerate(zip(c.tensors, c.written, strict=True)):
            if not written or storage(t) is not s:
                continue
            if c is not call and pointwise_body(c.kernel.root) is not None:
                yield c
            stages = _stages_from_stored(c.kernel, n)
            if stages is not None:
                yield _call_of_stages(c, stages, n)


def _call_of_stages(call: KernelCall, stages: Sequence[Stage], b: int) -> KernelCall:
    """Return the call of some stages of a kernel, which store to buffer b and read the others."""
    numbers = sorted({n for st in stages for kind, n, *_ in st.args if kind == "buffer"} | {b})
    place = {n: k for k, n in enumerate(numbers)}
    sources = [(n, call.kernel.buffers[n]) for n in numbers]
    buffers = tuple(x if n == b else KernelBuffer(x.dtype, x.shape, False, x.strides) for n, x in sources)
    kernel = Kernel(tuple(_renumber_buffers(st, place) for st in stages), buffers)
    nodes = tuple(n for n, st in zip(call.nodes, call.kernel.stages, strict=True) if b in st.outputs)
    offsets = tuple(call.offsets[n] for n in numbers) if call.offsets else ()
    tensors, written = tuple(call.tensors[n] for n in numbers), tuple(n == b for n in numbers)
    return KernelCall(kernel, tensors, written, nodes, offsets, is_recomputation=call.is_recomputation)


def _renumber_buffers(stage: Stage, place: Mapping[int, int]) -> Stage:
    args = tuple(("buffer", place[a[1]]) if a[0] == "buffer" else a for a in stage.args)
    return Stage(stage.template, args, tuple(None if o is None else place[o] for o in stage.outputs))


def _stages_from_stored(kernel: Kernel, b: int) -> list[Stage] | None:
    """Return the pointwise stages that compute buffer b from other buffers, including ones that the kernel stores; None
    if these are all stages or one is not pointwise."""
    stages = kernel.stages
    producer = {o: i for i, st in enumerate(stages) for o in st.outputs if o is not None}
    needed: set[int] = set()
    todo = [producer[b]]
    sources: dict[tuple[int, int], int] = {}
    while todo:
        i = todo.pop()
        if i in needed:
            continue
        needed.add(i)
        if pointwise_body(stages[i].template) is None:
            return None
        for kind, n, *member in stages[i].args:
            stored = stages[n].outputs[member[0]] if kind == "stage" else None
            if stored is not None and not kernel.buffers[stored].dtype.in_memory_only:
                sources[n, member[0]] = stored
            elif kind == "stage":
                todo.append(n)
    if len(needed) == len(stages):
        return None
    number = {i: k for k, i in enumerate(sorted(needed))}

    def arg(a: tuple) -> tuple:
        if a[0] == "buffer":
            return a
        source = sources.get((a[1], a[2]))
        return ("stage", number[a[1]], a[2]) if source is None else ("buffer", source)

    out = []
    for i in sorted(needed):
        outputs = tuple(o if o == b else None for o in stages[i].outputs)
        out.append(Stage(stages[i].template, tuple(map(arg, stages[i].args)), outputs))
    return out
