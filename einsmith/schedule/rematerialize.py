"""Rematerialize results: they are computed again where they are read, so that less memory is needed.

before: a = f(x); b = g(a); c = h(b) ... the most memory is needed here ... dB = h'(b, dC); dA = g'(a, dB)
after:  a = f(x); b = g(a); c = h(b) ... less is needed here ... b' = g(a); dB = h'(b', dC); dA = g'(a, dB)

Unchanged kernels run again on the same values, so that results are bitwise equal to those without a limit; of a kernel
that stores an operand of its later stages, those stages alone may run again. At the point of highest memory use, the
results are dropped whose recomputation takes the fewest seconds per byte freed, as many as the next target of memory
takes; this is repeated as long as it pays. Repeated layers have equal prices, so that the number of repetitions does
not grow with the number of layers.
Operands of a recomputation may be recomputed too, so that whole layers are (Chen et al. 2016, "Training deep nets with
sublinear memory cost"; Jain et al. 2020, "Checkmate").

The search does not depend on the limit. It visits a fixed sequence of plans of decreasing memory, and the limit selects
one of them. A larger limit is therefore met whenever a smaller one is, and the least memory of any visited plan is a
limit that can be met.

This is no minimum cut as in `schedule.recomputation`: a hard limit of bytes at every call asks when a tensor is alive,
not only whether it is kept, and the least sum of costs does not answer that. It runs on a finished plan, whose kernels
stay as they are. Its seconds are those of the plan's kernels; which operands are too small to be recomputed is the
same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeGuard

import numpy as np

from einsmith.ir.nodes import Leaf, Tensor, nbytes
from einsmith.ir.views import storage
from einsmith.schedule.in_place import Known, find_overwrites
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.kernel_calls import copy_of
from einsmith.schedule.plan import KernelCall, LoopCall, Plan
from einsmith.schedule.recomputation import is_small
from einsmith.schedule.recomputing_calls import calls_computing

_MAX_CHAIN = 24
"""Most kernels in a chain that run again for one result."""
_TARGET_RATIOS = (0.95, 0.75)
"""Ratio of each memory target to the previous one, one walk per ratio (see `_Timeline.walk`): small strides lead to
less memory, long ones sometimes to fewer seconds (measured on ten networks at 14 limits each: up to 5 % either way)."""
_MAX_SHRINK = 16
"""A walk ends at a target smaller than the original plan's memory by this factor."""
_STRIDE = 0.98
"""Ratio of the peak of each plan that a walk yields to the previous one, at most. Without it, 59 plans instead of 16
are placed in arenas where a limit cannot be met (4 layers of a Llama); the least memory is then lower by 1 %."""
_MAX_TRIED = 8
"""Most recomputations tried alone where several at once bring calls no nearer to the target. With all of them, the
least memory is the same (ResNet-18, 4 layers of a Llama)."""
_MAX_CALLS = 1000
"""A walk ends at a plan of this many calls that is twice as long as the original one. Without it, the search takes five
times as long for 12 layers of a Llama, whose least memory is 0.42 instead of 0.46 of the memory without a limit."""


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


class _Candidate(NamedTuple):
    """A recomputation of a result that is live at the peak.

    Attributes:
        recomputation: the calls.
        before: the call before which they run.
        freed: the bytes that are free at the peak.
    """

    recomputation: _Recomputation
    before: int
    freed: int


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
        life: the calls that touch each tensor's memory, in order.
        first_writer: the first call that computes each tensor.
        stored: the call that overwrites each parameter.
        live: bytes live at each call.
        originals: copy -> original of recomputed tensors.
    """

    calls: list[KernelCall | LoopCall]
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
        self.candidates: list[_Candidate] | None = None  # of the present state
        self.examined: list[tuple[np.ndarray, _Candidate]] = []
        """The first of them, with the bytes live at each call in the state that each leads to."""
        self.state = self._make_state([*plan.calls], plan.originals)

    def _make_state(self, calls: list[KernelCall | LoopCall], originals: Mapping[Tensor, Tensor]) -> _State:
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
        return _State(calls, life, first_writer, stored, np.cumsum(change)[:-1] + work, dict(originals))

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
        return sum(self.cost.seconds(c.kernel) for c in self.state.calls if _is_recomputation(c))

    def walk(self, ratio: float) -> Iterator[int]:
        """Recompute results toward the least memory; yield each peak that is lower than the one before by a stride
        (bytes).

        Each target is `ratio` times the previous one. Calls are brought nearer to the target until all meet it or no
        recomputation brings them nearer. The walk depends on no limit.
        """
        first = target = least = self.peak()
        most = max(_MAX_CALLS, 2 * len(self.original.calls))
        while target * _MAX_SHRINK > first:
            target = int(target * ratio)
            while len(self.state.calls) < most and self._step(target):
                if self.peak() < _STRIDE * least:
                    least = self.peak()
                    yield least

    def _step(self, target: int) -> bool:
        """Recompute results if that brings the calls nearer to the target; return whether any was recomputed."""
        excess = _excess(self.state.live, target)
        state = next(self._options(excess, target), None) if excess else None
        if state is None:
            return False
        self.state, self.candidates, self.examined = state, None, []
        return True

    def _options(self, excess: int, target: int) -> Iterator[_State]:
        """Yield the states with more recomputations and less excess: first that with all which the target takes, then
        those with a single one, the cheapest first.

        States are large: of those examined for an earlier target only the live bytes are kept.
        """
        if self.candidates is None:
            self.candidates = self._candidates()
        several = self._independent(self.candidates, self.peak() - target)
        if len(several) > 1 and _excess((state := self._insert(several)).live, target) < excess:
            yield state
        for live, candidate in self.examined:
            if _excess(live, target) < excess:
                yield self._insert([candidate])
        for candidate in self.candidates[len(self.examined) : _MAX_TRIED]:
            state = self._insert([candidate])
            self.examined.append((state.live, candidate))
            if _excess(state.live, target) < excess:
                yield state

    def _independent(self, candidates: Sequence[_Candidate], count: int) -> list[_Candidate]:
        """Return candidates that together free `count` bytes, in order, and whose prices do not affect each other.

        A candidate is left out if it shares computed tensors with an earlier one, or if one reads what the other
        computes.
        """
        out: list[_Candidate] = []
        results: set[Tensor] = set()
        operands: set[Tensor] = set()
        for c in candidates:
            if count <= 0:
                break
            own = {s for call in c.recomputation.calls for s in call.results}
            read = {s for call in c.recomputation.calls for s in call.operands} - own
            if results.isdisjoint(own | read) and operands.isdisjoint(own):
                out.append(c)
                results |= own
                operands |= read
                count -= c.freed
        return out

    def _candidates(self) -> list[_Candidate]:
        """Return the recomputations of results that are live at the peak, the fewest seconds per byte first."""
        state = self.state
        at = int(state.live.argmax())
        out: list[_Candidate] = []
        for s, uses in state.life.items():
            n = bisect_left(uses, at)
            if not uses[0] < at < uses[-1] or s in self.pinned or uses[n] == at:
                continue
            recomputation = self._cheapest_recomputation(s, uses[n], at, _MAX_CHAIN, {})
            if recomputation is not None and not any(isinstance(state.calls[k], LoopCall) for k in uses[n:]):
                freed = nbytes(s) - sum(nbytes(h) for h in recomputation.kept_longer if not self._is_live(h, at))
                if freed > 0:
                    out.append(_Candidate(recomputation, uses[n], freed))
        return sorted(out, key=lambda c: (c.recomputation.seconds / c.freed, -c.freed))

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
            calls = [c for c in calls_computing(call, s) if self._writes_only_results(c)]
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

    def _insert(self, candidates: Iterable[_Candidate]) -> _State:
        """Return the state in which independent recomputations run; all later calls read the recomputed tensors."""
        state = self.state
        new: dict[Tensor, Tensor] = {}
        calls: list[KernelCall | LoopCall] = []
        originals = dict(state.originals)
        start = 0

        def keep(stop: int) -> None:
            calls.extend(c.exchange(new) if new and isinstance(c, KernelCall) else c for c in state.calls[start:stop])

        for candidate in sorted(candidates, key=lambda c: c.before):
            keep(candidate.before)
            start = candidate.before
            for call in candidate.recomputation.calls:
                copies = {s: self._new_copy(s) for s in call.results}
                new |= copies
                originals |= {c: s for s, c in copies.items()}
                calls.append(replace(call.exchange(new), is_recomputation=True))
        keep(len(state.calls))
        return self._make_state(calls, originals)

    def _new_copy(self, s: Tensor) -> Tensor:
        """Return a tensor for a result that is computed again; equal nodes are one object, so that each time of several
        has a node of its own."""
        copy = copy_of(s)
        while copy in self.state.originals:
            copy = copy_of(copy)
        return copy

    def plan(self) -> Plan:
        """Return the plan of the present state."""
        lists: list[list[KernelCall | LoopCall]] = [[]]
        for c in self.state.calls:
            lists[-1].append(c)
            if not _is_recomputation(c):
                lists.append([])
        return replace(self.original.with_calls(lists[:-1]), originals=self.state.originals)


def _is_recomputation(call: KernelCall | LoopCall) -> TypeGuard[KernelCall]:
    return isinstance(call, KernelCall) and call.is_recomputation


def _excess(live: np.ndarray, target: int) -> int:
    """Return the bytes beyond the target, summed over all calls."""
    return int(np.maximum(live - target, 0).sum())
