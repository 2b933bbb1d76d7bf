"""Place intermediates in one arena by liveness: tensors that are never live together share bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from einsmith.ir.nodes import Compute, Graph, Recurrence, Tensor, nbytes, postorder
from einsmith.ir.views import storage
from einsmith.schedule.in_place import find_overwrites
from einsmith.schedule.plan import Plan

ALIGNMENT = 64
"""Bytes of a cache line, on which every tensor of the arena begins."""


def lifetimes(plan: Plan, outside: Iterable[Tensor]) -> dict[Tensor, tuple[int, int]]:
    """Return storage -> (first call, last call) that touches it, for every storage that is not in `outside`. A tensor
    that a call of a group touches is live during the whole group (`Plan.together`)."""
    skip = set(outside)
    out: dict[Tensor, tuple[int, int]] = {}
    for i, call in enumerate(plan.calls):
        for t in call.tensors:
            s = storage(t)
            if s not in skip and s not in plan.home:
                out[s] = (out.get(s, (i, i))[0], i)
    firsts, lasts = _group_ends(plan)
    return {t: (firsts[first], lasts[last]) for t, (first, last) in out.items()}


def _group_ends(plan: Plan) -> tuple[list[int], list[int]]:
    """Return the first and the last call of each call's group."""
    firsts, lasts = list(range(len(plan.calls))), list(range(len(plan.calls)))
    for first, last in plan.together:
        firsts[first : last + 1] = [first] * (last + 1 - first)
        lasts[first : last + 1] = [last] * (last + 1 - first)
    return firsts, lasts


class Life(NamedTuple):
    """The live range of a tensor or of a call's workspace.

    Attributes:
        key: the tensor, or the number of the call.
        nbytes: its bytes.
        first: the first call that touches it.
        last: the last call that touches it.
        overwrites: the tensor, live until the previous call, whose place it takes; None if it has a place of its own.
    """

    key: Tensor | int
    nbytes: int
    first: int
    last: int
    overwrites: Tensor | None = None


def lives(plan: Plan, outside: Iterable[Tensor], extra: Mapping[int, int], kept: Collection[int] = ()) -> list[Life]:
    """Return the live ranges of the tensors and workspaces in the arena; the arguments are those of `arena`."""
    spans = lifetimes(plan, outside)
    operand_of = find_overwrites(plan.calls, spans)
    spans |= {s: (spans[s][0], spans[s][1] - 1) for s in operand_of.values()}
    out = [Life(t, nbytes(t), first, last, operand_of.get(t)) for t, (first, last) in spans.items()]
    end = len(plan.calls)
    firsts, lasts = _group_ends(plan)
    return out + [
        Life(call, n, *((0, end) if call in kept else (firsts[call], lasts[call]))) for call, n in extra.items() if n
    ]


def arena(
    plan: Plan, outside: Iterable[Tensor], extra: Mapping[int, int], kept: Collection[int] = ()
) -> tuple[dict[object, int], int]:
    """Return (offsets by storage and by call number for `extra`, size of the arena in bytes).

    Live ranges are placed largest first, each at the lowest offset that is free during its life (best-fit decreasing:
    within a few per cent of the peak of live bytes on training graphs).

    Args:
        plan: the plan.
        outside: tensors that are not placed in the arena.
        extra: workspace bytes by call number.
        kept: calls whose workspace is exclusive through the whole plan.
    """
    ranges = lives(plan, outside, extra, kept)
    if not ranges:
        return {}, 0
    places: dict[Tensor | int, list[Life]] = {}  # live ranges that share a place, in order
    for x in sorted(ranges, key=lambda x: x.first):
        chain = places[x.key] = [] if x.overwrites is None else places[x.overwrites]
        chain.append(x)
    order = sorted({id(p): p for p in places.values()}.values(), key=lambda p: -p[0].nbytes)
    occupancy = _Occupancy(len(plan.calls) + 1)
    offsets: dict[object, int] = {}
    total = 0
    for p in order:
        n = (p[0].nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        at = occupancy.place(n, p[0].first, p[-1].last)
        offsets |= dict.fromkeys([x.key for x in p], at)
        total = max(total, at + n)
    return offsets, total


class _Ranges:
    """A set of bytes, as disjoint ranges in ascending order."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        i, j = bisect_left(self.stops, start), bisect_right(self.starts, stop)
        if i < j:
            start, stop = min(start, self.starts[i]), max(stop, self.stops[j - 1])
        self.starts[i:j], self.stops[i:j] = [start], [stop]

    def next_free(self, at: int, n: int) -> int:
        """Return `at` if the n bytes from there on are free, else the end of a range that they overlap."""
        i = bisect_right(self.stops, at)
        return self.stops[i] if i < len(self.starts) and self.starts[i] < at + n else at


class _Occupancy:
    """The occupied bytes at each of `times`, as a segment tree over time: a node is a part of time, its children are
    that part's halves. Adjacent bytes are one range, so that the many tensors that wait for a backward pass are few
    ranges, and placing one takes about the logarithm of their number."""

    def __init__(self, times: int):
        self.leaves = 1 << (times - 1).bit_length()
        self.floor = _Floor(self.leaves)
        self.whole: dict[int, _Ranges] = defaultdict(_Ranges)  # node: bytes occupied during all of its time
        self.some: dict[int, _Ranges] = defaultdict(_Ranges)  # node: bytes occupied at some of its time

    def place(self, n: int, first: int, last: int) -> int:
        """Return the lowest offset at which n bytes are free from `first` to `last`, and occupy them."""
        if not n:
            return 0
        nodes = self._nodes(first, last)
        above = {k >> d for k in nodes for d in range(1, k.bit_length())}
        occupied = [self.some[k] for k in nodes if k in self.some] + [self.whole[k] for k in above if k in self.whole]
        at, clear = self.floor.highest(first, last), 0
        while clear < len(occupied):
            new = occupied[0].next_free(at, n)
            clear = clear + 1 if new == at else 0
            at = new
            occupied.append(occupied.pop(0))
        for k in nodes:
            self.whole[k].add(at, at + n)
        for k in above.union(nodes):
            self.some[k].add(at, at + n)
        self.floor.lift(first, last, at, at + n)
        return at

    def _nodes(self, first: int, last: int) -> list[int]:
        """Return the fewest nodes that make up a range of times."""
        out: list[int] = []
        a, b = first + self.leaves, last + self.leaves + 1
        while a < b:
            if a & 1:
                out.append(a)
                a += 1
            if b & 1:
                b -= 1
                out.append(b)
            a, b = a >> 1, b >> 1
        return out


class _Floor:
    """For each time, an offset below which every byte is occupied: the search for a place begins there.

    It is a segment tree of the highest offset in each part of time. A placed tensor begins at or above all offsets that
    it meets, and raises those equal to its start. These are the highest of their parts, so a part is raised as a whole,
    and its halves when they are next visited.
    """

    def __init__(self, leaves: int):
        self.leaves = leaves
        self.top = [0] * (2 * leaves)

    def highest(self, first: int, last: int) -> int:
        """Return the highest offset from `first` to `last`."""
        return max((self.top[k] for k in self._parts(first, last)), default=0)

    def lift(self, first: int, last: int, old: int, new: int) -> None:
        """Raise the offsets equal to `old` between times `first` and `last` to `new`; none there exceeds `old`."""
        changed = [k for k in self._parts(first, last) if self.top[k] == old]
        for k in changed:
            self.top[k] = new
        for k in sorted({c >> d for c in changed for d in range(1, c.bit_length())}, reverse=True):
            self.top[k] = max(self.top[2 * k], self.top[2 * k + 1])

    def _parts(self, first: int, last: int) -> list[int]:
        """Return the nodes that make up a range of times, after handing down the values of their ancestors."""
        out: list[int] = []
        stack = [(1, 0, self.leaves)]
        while stack:
            k, start, n = stack.pop()
            if first <= start and start + n - 1 <= last:
                out.append(k)
            elif start <= last and first < start + n:
                self._hand_down(k)
                stack += [(2 * k, start, n // 2), (2 * k + 1, start + n // 2, n // 2)]
        return out

    def _hand_down(self, k: int) -> None:
        a, b = 2 * k, 2 * k + 1
        high = max(self.top[a], self.top[b])
        if high < self.top[k]:
            for half in [x for x in (a, b) if self.top[x] == high]:
                self.top[half] = self.top[k]


def passing_bytes(graph: Graph) -> int:
    """Return the bytes of all tensors of a graph (of nodes with several results, their items); 0 if there are
    recurrences, whose steps touch the same few tensors whatever their number."""
    nodes = postorder(graph.roots)
    if any(isinstance(t, Recurrence) for t in nodes):
        return 0
    several = {t for t in nodes if isinstance(t, Compute) and len(t.template.dtypes) > 1}
    return sum(nbytes(t) for t in nodes if isinstance(t, Tensor) and t not in several)


def whole_lines(arena: int) -> int:
    """Return the bytes of an arena, rounded up to whole cache lines."""
    return -(-max(arena, 1) // ALIGNMENT) * ALIGNMENT
