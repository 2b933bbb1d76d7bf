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
from einsmith.schedule.in_place import Known, overwritten
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows, Stage
from einsmith.schedule.plan import KernelCall, LoopCall, Plan, copy_of
from einsmith.schedule.schedule import Copy

DEPTH = 24
"""Most kernels in a chain that run again for one result."""

RATIOS = (0.95, 0.75)
"""Ratio of each memory target to the previous one, one walk per ratio (see `_Timeline.walk`): small strides lead to
less memory, long ones sometimes to fewer seconds (measured on ten networks at 14 limits each: up to 5 % either way)."""
LAST = 16
"""A walk ends at a target smaller than the given plan's memory by this factor."""


class KernelCost(NamedTuple):
    """Functions that give a kernel's predicted seconds and its workspace (bytes)."""

    seconds: Callable[[Kernel | Rows], float]
    workspace: Callable[[Kernel | Rows], int]


class _Again(NamedTuple):
    """Calls that recompute a result, in order, and their seconds. `held`: operands that have to be kept longer for
    them."""

    calls: tuple[KernelCall, ...]
    seconds: float
    held: frozenset[Tensor]


class Fitted(NamedTuple):
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
) -> Fitted:
    """Return the fastest plan of those that take at most `allowed` bytes.

    Args:
        plan: a plan without recomputation.
        outside: tensors that are not intermediate results.
        allowed: the limit (bytes).
        cost: predicts kernels; its answers must not depend on which plans were measured.
        measure: the bytes that a plan takes, gaps in the arena and scratch included: at least the peak of its results.
    """
    without = least = measure(plan)
    if without <= allowed:
        return Fitted(plan, without, without)
    fits: list[tuple[float, int, Plan]] = []
    others: list[tuple[int, int, Plan]] = []  # plans whose peak alone exceeds the limit
    for number, ratio in enumerate(RATIOS):
        timeline = _Timeline(plan, outside, cost)
        for most in timeline.walk(ratio):
            seconds, found = timeline.seconds_again(), timeline.plan()
            if fits and seconds >= fits[0][0]:
                break
            if most > allowed:
                others.append((most, len(others), found))
                continue
            taken = measure(found)
            least = min(least, taken)
            if taken <= allowed:
                fits.append((seconds, number, found))
                break
    if fits:
        return Fitted(min(fits, key=lambda f: f[:2])[2], least, without)
    for most, _, found in sorted(others, key=lambda o: o[:2]):
        if most >= least:
            break
        least = min(least, measure(found))
    return Fitted(None, least, without)


def peak(plan: Plan, outside: Collection[Tensor], cost: KernelCost) -> int:
    """Return the most bytes that intermediate results and the workspace of a call take at once."""
    return _Timeline(plan, outside, cost).peak()


@dataclass
class _State:
    """A sequence of calls and its memory use.

    Attributes:
        calls: the calls.
        origin: index of each call in the given plan; None if it is a recomputation.
        life: the calls that touch each tensor's memory, in order.
        made: the first call that computes each tensor.
        stored: the call that overwrites each parameter.
        live: bytes live at each call.
        again: copy -> original of recomputed tensors.
    """

    calls: list[KernelCall | LoopCall]
    origin: list[int | None]
    life: dict[Tensor, list[int]]
    made: dict[Tensor, int]
    stored: dict[Leaf, int]
    live: np.ndarray
    again: dict[Tensor, Tensor]


class _Timeline:
    """The calls of a plan, the tensors that each touches, and the bytes live at each."""

    def __init__(self, plan: Plan, outside: Collection[Tensor], cost: KernelCost):
        self.given, self.outside, self.cost = plan, set(outside), cost
        self.pinned = {storage(t) for _, t, _ in plan.checks}
        self.touched: dict[int, tuple[KernelCall | LoopCall, list[tuple[Tensor, bool, int]]]] = {}
        self.ways: dict[tuple[int, Tensor], tuple[KernelCall, list[KernelCall]]] = {}
        self.places: Known = {}
        self.tried: list[tuple[np.ndarray, _Again, int]] = []
        """Options of the present state that were examined: (bytes live, what runs again, before which call)."""
        self.untried: Iterator[tuple[_Again, int]] | None = None
        self.now = self._state([*plan.calls], [*range(len(plan.calls))], plan.again)

    def _state(
        self, calls: list[KernelCall | LoopCall], origin: list[int | None], again: Mapping[Tensor, Tensor]
    ) -> _State:
        life: dict[Tensor, list[int]] = {}
        made: dict[Tensor, int] = {}
        stored: dict[Leaf, int] = {}
        change = np.zeros(len(calls) + 1, np.int64)
        work = np.zeros(len(calls), np.int64)
        sizes: dict[Tensor, int] = {}
        for i, call in enumerate(calls):
            if isinstance(call, KernelCall):
                work[i] = self.cost.workspace(call.kernel)
            for s, written, n in self._touches(call):
                if written:
                    made.setdefault(s, i)
                    if s in self.given.home:
                        stored[self.given.home[s]] = i
                if n >= 0:
                    sizes[s] = n
                    uses = life.setdefault(s, [])
                    if not uses or uses[-1] != i:
                        uses.append(i)
        for s, uses in life.items():
            change[uses[0]] += sizes[s]
            change[uses[-1] + 1] -= sizes[s]
        for s in overwritten(calls, {s: (uses[0], uses[-1]) for s, uses in life.items()}, self.places).values():
            change[life[s][-1] : life[s][-1] + 2] += (-sizes[s], sizes[s])
        return _State(calls, origin, life, made, stored, np.cumsum(change)[:-1] + work, dict(again))

    def _touches(self, call: KernelCall | LoopCall) -> list[tuple[Tensor, bool, int]]:
        """Return (storage, whether it is written, bytes) of the tensors of a call; the bytes are -1 for a tensor that
        is not an intermediate result."""
        known = self.touched.get(id(call))
        if known is None:
            found = [(storage(t), w) for t, w in zip(call.tensors, call.written, strict=True)]
            known = call, [(s, w, nbytes(s) if self._is_inside(s) else -1) for s, w in found]
            self.touched[id(call)] = known  # the call stays, and its number with it
        return known[1]

    def _is_inside(self, s: Tensor) -> bool:
        return s not in self.outside and s not in self.given.home

    def peak(self) -> int:
        """Return the most bytes that are live at once."""
        return int(self.now.live.max(initial=0))

    def seconds_again(self) -> float:
        """Return the seconds of all calls that run again."""
        again = [
            c for c, n in zip(self.now.calls, self.now.origin, strict=True) if n is None and isinstance(c, KernelCall)
        ]
        return sum(self.cost.seconds(c.kernel) for c in again)

    def walk(self, ratio: float) -> Iterator[int]:
        """Recompute one result after the other toward the least memory; yield the peak after each (bytes).

        Each target is `ratio` times the previous one. Calls are brought nearer to the target until all meet it or no
        recomputation brings them nearer. The walk depends on no limit.
        """
        first = target = self.peak()
        while target * LAST > first:
            target = int(target * ratio)
            while self._step(target):
                yield self.peak()

    def _step(self, target: int) -> bool:
        """Recompute one result if that brings the calls nearer to the target; return whether one was found."""
        excess = _excess(self.now.live, target)
        state = next(self._options(excess, target), None) if excess else None
        if state is None:
            return False
        self.now, self.tried, self.untried = state, [], None
        return True

    def _options(self, excess: int, target: int) -> Iterator[_State]:
        """Yield the states with one more recomputation and less excess, the cheapest first.

        States are large: of those examined for an earlier target only the live bytes are kept.
        """
        for live, again, use in self.tried:
            if _excess(live, target) < excess:
                yield self._insert(again, use)
        if self.untried is None:
            self.untried = iter(self._candidates())
        for again, use in self.untried:
            state = self._insert(again, use)
            self.tried.append((state.live, again, use))
            if _excess(state.live, target) < excess:
                yield state

    def _candidates(self) -> list[tuple[_Again, int]]:
        """Return (recomputation, call before which it runs) for results that are live at the peak, the fewest seconds
        per byte first."""
        now = self.now
        at = int(now.live.argmax())
        found: list[tuple[float, int, int, int, _Again]] = []
        for s, uses in now.life.items():
            n = bisect_left(uses, at)
            if not uses[0] < at < uses[-1] or s in self.pinned or uses[n] == at:
                continue
            again = self._recipe(s, uses[n], at, DEPTH, {})
            if again is not None and not any(isinstance(now.calls[k], LoopCall) for k in uses[n:]):
                freed = nbytes(s) - sum(nbytes(h) for h in again.held if not self._is_live(h, at))
                if freed > 0:
                    found.append((again.seconds / freed, -freed, len(found), uses[n], again))
        return [(again, use) for *_, use, again in sorted(found, key=lambda f: f[:3])]

    def _is_live(self, s: Tensor, at: int) -> bool:
        life = self.now.life
        return s in life and life[s][0] <= at <= life[s][-1]

    def _recipe(self, s: Tensor, before: int, at: int, depth: int, known: dict[Tensor, _Again | None]) -> _Again | None:
        """Return the fastest way to recompute a result before a call; None if there is none. `known` caches the results
        examined for that call."""
        if s not in known:
            known[s] = None
            call = self.now.calls[self.now.made[s]]
            if depth and isinstance(call, KernelCall):
                found = [self._from(c, s, before, at, depth, known) for c in self._ways(call, s)]
                known[s] = min((a for a in found if a is not None), key=lambda a: a.seconds, default=None)
        return known[s]

    def _ways(self, call: KernelCall, s: Tensor) -> Sequence[KernelCall]:
        """Return the calls that compute a result and write only intermediate results."""
        key = id(call), s
        if key not in self.ways:
            ways = [c for c in _ways(call, s) if self._may_run_again(c)]
            self.ways[key] = call, ways  # the call stays, and its number with it
        return self.ways[key][1]

    def _may_run_again(self, call: KernelCall) -> bool:
        """Return whether a call writes only intermediate results."""
        return all(self._is_inside(storage(t)) for t, w in zip(call.tensors, call.written, strict=True) if w)

    def _from(
        self, call: KernelCall, s: Tensor, before: int, at: int, depth: int, known: dict[Tensor, _Again | None]
    ) -> _Again | None:
        """Return the recomputation of a result by a given call, with the recomputation of its operands; None if an
        operand is not available."""
        calls: list[KernelCall] = []
        seconds = self.cost.seconds(call.kernel)
        held: set[Tensor] = set()
        for r in _read(call):
            if self._is_there(r, before):
                continue
            if r not in self.now.life:
                return None  # an overwritten parameter, or a tensor local to a fused kernel
            if self._is_live(r, at) or is_small(nbytes(r), nbytes(s)):
                held.add(r)
                continue
            more = self._recipe(r, before, at, depth - 1, known)
            if more is not None:
                calls += [c for c in more.calls if not any(c is d for d in calls)]
                seconds += more.seconds
                held |= more.held
            elif nbytes(r) < nbytes(s):
                held.add(r)
            else:
                return None
        return _Again((*calls, call), seconds, frozenset(held))

    def _is_there(self, r: Tensor, before: int) -> bool:
        """Return whether tensor `r` has its present value before call number `before` too."""
        life = self.now.life
        if r in life:
            return life[r][0] < before <= life[r][-1]
        if isinstance(r, Leaf):
            return self.now.stored.get(r, before) >= before
        return r in self.outside

    def _insert(self, again: _Again, before: int) -> _State:
        """Return the state in which calls run again before a call; all later calls read the recomputed tensors."""
        now = self.now
        new: dict[Tensor, Tensor] = {}
        calls: list[KernelCall | LoopCall] = []
        for call in again.calls:
            made = {storage(t) for t, w in zip(call.tensors, call.written, strict=True) if w}
            new |= {s: copy_of(s) for s in made}
            calls.append(replace(call.exchanged(new), copies=tuple(Copy(c.node, c.number + 1) for c in call.copies)))
        rest = [c.exchanged(new) if isinstance(c, KernelCall) else c for c in now.calls[before:]]
        origin = [*now.origin[:before], *[None] * len(calls), *now.origin[before:]]
        copies = now.again | {c: s for s, c in new.items()}
        return self._state([*now.calls[:before], *calls, *rest], origin, copies)

    def plan(self) -> Plan:
        now = self.now
        place = {n: i for i, n in enumerate(now.origin) if n is not None} | {len(self.given.calls): len(now.calls)}
        checks = [(place[i], t, m) for i, t, m in self.given.checks]
        first = place[self.given.first_write]
        return replace(self.given, calls=now.calls, checks=checks, first_write=first, again=now.again)


def _excess(live: np.ndarray, target: int) -> int:
    """Return the bytes beyond the target, summed over all calls."""
    return int(np.maximum(live - target, 0).sum())


def _read(call: KernelCall) -> Iterator[Tensor]:
    """Yield the storages that a call reads."""
    return iter(dict.fromkeys(storage(t) for t, w in zip(call.tensors, call.written, strict=True) if not w))


def _ways(call: KernelCall, s: Tensor) -> Iterator[KernelCall]:
    """Yield calls that compute a result: the call itself; of a row-fused call, the part that computes it, if that is
    pointwise (sums round in the order of their kernel); and the stages that compute it from other stored results of the
    kernel."""
    yield call
    for c in call.parts or (call,):
        if not isinstance(c.kernel, Kernel) or any(c.offsets):
            continue
        for n, (t, written) in enumerate(zip(c.tensors, c.written, strict=True)):
            if not written or storage(t) is not s:
                continue
            if c is not call and pointwise_body(c.kernel.root) is not None:
                yield c
            stages = _after_stored(c.kernel, n)
            if stages is not None:
                yield _of_stages(c, stages, n)


def _of_stages(call: KernelCall, stages: Sequence[Stage], b: int) -> KernelCall:
    """Return the call of some stages of a kernel, which store to buffer b and read the others."""
    numbers = sorted({n for st in stages for kind, n, *_ in st.args if kind == "buffer"} | {b})
    place = {n: k for k, n in enumerate(numbers)}
    found = [(n, call.kernel.buffers[n]) for n in numbers]
    buffers = tuple(x if n == b else KernelBuffer(x.dtype, x.shape, False, x.strides) for n, x in found)
    kernel = Kernel(tuple(_place(st, place) for st in stages), buffers)
    made = tuple(c for c, st in zip(call.copies, call.kernel.stages, strict=True) if b in st.outputs)
    offsets = tuple(call.offsets[n] for n in numbers) if call.offsets else ()
    return KernelCall(kernel, tuple(call.tensors[n] for n in numbers), tuple(n == b for n in numbers), made, offsets)


def _place(stage: Stage, place: Mapping[int, int]) -> Stage:
    args = tuple(("buffer", place[a[1]]) if a[0] == "buffer" else a for a in stage.args)
    return Stage(stage.template, args, tuple(None if o is None else place[o] for o in stage.outputs))


def _after_stored(kernel: Kernel, b: int) -> list[Stage] | None:
    """Return the pointwise stages that compute buffer b from other buffers, including ones that the kernel stores; None
    if these are all stages or one is not pointwise."""
    stages = kernel.stages
    made = {o: i for i, st in enumerate(stages) for o in st.outputs if o is not None}
    needed: set[int] = set()
    todo = [made[b]]
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
