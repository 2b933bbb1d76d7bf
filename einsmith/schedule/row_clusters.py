"""Cluster kernels for row fusion (`row_fusion`): kernels that share a tensor and their rows, one after the other.

A cluster absorbs the latest cluster with which it can be joined, as often as possible. Two clusters can be joined if no
kernel outside of them must run between them. A cluster that does not pay is split again, the last union first.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence, Set
from math import inf

from einsmith.cost.facts import CPU, Target
from einsmith.ir.analysis.pointwise import total_operations
from einsmith.ir.nodes import Reduce, Tensor, nbytes
from einsmith.ir.views import storage
from einsmith.schedule.partition import Partition
from einsmith.schedule.plan import AnyCall, Refusal
from einsmith.schedule.row_forms import forms_of, row_buffers
from einsmith.schedule.row_fusion import MAX_MEMBERS, can_share_rows, common_rows, is_batch, rows_of

STREAMED_L3_RATIO = 4
"""A result may be used up without being stored if it is larger than L3 divided by this ratio: L3 holds its operands and
results too, and other programs' data."""
MAX_UNSTORED_TIME = 1.25
"""Largest predicted time, as a fraction of that with stored results, at which results that exceed the bound are not
stored: the time that memory may cost."""
MAX_STORED_BYTES = 1 << 25
"""Most bytes of a result that is stored, where it need not be, because that takes less time, unless users set another
bound."""
MAX_OPERATIONS = 1024
"""Most operations per point of all kernels of a row-block fusion: LLVM's time grows with the square of a function's
length (2000 additions: 0.8 s)."""
_MAX_RECENT = 32
"""Most recent clusters sharing a tensor with a kernel that are considered: a tensor of more readers has left all caches
when the last of them runs."""


def smallest_unstored(target: Target) -> int:
    """Return the bytes beyond which a result may be used up without being stored: a part of the last-level cache, and
    at most the same part of the bytes that are stored by default, as many cores share the largest caches."""
    return min(target.last_level, MAX_STORED_BYTES) // STREAMED_L3_RATIO


def longest_time(unstored: Iterable[int], most: int, otherwise: float) -> float:
    """Return the largest predicted time, as a fraction of another one, at which the results `unstored` (bytes of each)
    are not stored: any time if `most`, the bytes that may be stored, is 0; `otherwise` if all are smaller than
    `most`."""
    return inf if most == 0 else MAX_UNSTORED_TIME if max(unstored, default=0) > most else otherwise


UNJOINED = Refusal("the kernels that compute and read it cannot be joined row by row")
"""The reason where nothing prevents a kernel from using up a result, but no such kernel is considered."""


def clusters(
    parts: Sequence[AnyCall],
    after: Mapping[int, Collection[int]],
    unfused: Collection[int],
    kept: Collection[Tensor],
    target: Target,
    pays: Callable[[Sequence[int]], bool],
    refusals: MutableMapping[Tensor, Refusal],
    cut: Collection[Tensor] = (),
    most: int = MAX_STORED_BYTES,
) -> list[list[int]]:
    """Return the kernels that become one, as lists of numbers in a valid order.

    Args:
        parts: the kernels, in a valid order.
        after: the kernels that each needs.
        unfused: numbers of the kernels that are not fused.
        kept: tensors that are stored in any case.
        target: the machine.
        pays: whether a list of kernels takes less time fused.
        refusals: receives the large results of reductions that other reductions read, each with the reason for which it
            is stored if it is. `pays` may replace `UNJOINED`.
        cut: results that no kernel reads that computes them.
        most: most bytes of a result that is stored, where it need not be.
    """
    large = _streamed(parts, after, unfused, kept, target, refusals, most)
    streamed = {*large} - {*cut}
    for t, members in large.items() if target.backend == CPU else ():
        # A kernel that has to run between those of a large result joins them, however small what it passes on. What
        # passes on larger results is a layer that the result bypasses. On cards a chain is one of sweeps alone.
        between = passed_on(parts[n] for n in members)
        if max(map(nbytes, between)) <= nbytes(t):
            streamed |= between - {*cut}
    while True:
        state = _merge(parts, after, unfused, streamed, target, cut)
        refused = {
            t
            for members in state.members.values()
            if any(parts[n].kernel is not None and parts[n].kernel.reuses for n in members)
            and len(members) > 1
            and state.paying_parts(members, pays) is None
            for n in members
            for t in parts[n].results
            if t in streamed
        }
        if not refused:
            return [part for c in state.order() for part in state.split_unprofitable(c, pays)]
        # Other clusters than the parts of one that does not pay are found without its results.
        streamed = streamed - refused


def _merge(
    parts: Sequence[AnyCall],
    after: Mapping[int, Collection[int]],
    unfused: Collection[int],
    streamed: Set[Tensor],
    target: Target,
    cut: Collection[Tensor],
) -> _Clusters:
    """Return the clusters after all joins. The arguments are those of `clusters`; `streamed`: see `_Clusters`."""
    state = _Clusters(parts, after, streamed, cut)
    holders: dict[Tensor, list[int]] = {}  # the latest kernels so far with a buffer in a tensor's memory
    for g, part in enumerate(parts):
        state.add(g, after.get(g, ()))
        for s in {storage(t) for t in part.tensors}:
            holders[s] = [*holders.get(s, ())[1 - _MAX_RECENT :], g]
        c = g if g not in unfused and state.is_candidate(part) else None
        while c is not None:
            last, c = c, None
            near = {state.of[n] for m in state.members[last] for t in parts[m].tensors for n in holders[storage(t)]}
            for other in sorted(near - {last}, reverse=True)[:_MAX_RECENT]:
                if other not in unfused and state.can_join(other, last, target):
                    c = min(other, last)
                    state.merge(c, max(other, last))
                    break
    return state


def _streamed(
    parts: Sequence[AnyCall],
    after: Mapping[int, Collection[int]],
    unfused: Collection[int],
    kept: Collection[Tensor],
    target: Target,
    refusals: MutableMapping[Tensor, Refusal],
    most: int,
) -> dict[Tensor, set[int]]:
    """Return the results that take much of the last-level cache and that one fused kernel may compute and use up, each
    with the kernels that this fuses at least.

    All readers of such a result and every kernel that has to run between them can share rows. Fused, it is never
    stored, which may save more than the tiles of kernels that reuse their operands: a chain of reductions (a kernel
    method, attention) takes memory for its arguments and results alone."""
    smallest = smallest_unstored(target)
    large = {
        t: g
        for g, p in enumerate(parts)
        if g not in unfused
        for t in p.results
        if nbytes(t) > smallest and t not in kept
    }
    if not large:
        return {}
    before: list[int] = []  # bitset of the kernels that each needs, directly or not
    readers: dict[Tensor, list[int]] = {}
    for g, part in enumerate(parts):
        before.append(0)
        for h in after.get(g, ()):
            before[g] |= before[h] | 1 << h
        for s in part.operands:
            readers.setdefault(s, []).append(g)
    out = {}
    for t, g in large.items():
        ends = readers.get(t, [])
        needed = functools.reduce(operator.or_, (before[r] for r in ends), 0)
        members = {g, *ends, *(c for c in range(g + 1, len(parts)) if before[c] >> g & 1 and needed >> c & 1)}
        obstacle = _obstacle(t, g, members, parts, unfused, most)
        if not obstacle:
            out[t] = members
        if _is_chain(t, g, parts, readers):
            refusals[t] = Refusal(obstacle) if obstacle else UNJOINED
    return out


def freed(
    parts: Sequence[AnyCall],
    after: Mapping[int, Collection[int]],
    unfused: Collection[int],
    sums: Collection[int],
    kept: Collection[Tensor],
    target: Target,
    most: int,
) -> set[Tensor]:
    """Return the results that a fused kernel need not store if the kernels `sums` may be fused, too; none if the kernel
    would store more bytes than it saves.

    Args:
        parts: the kernels, in order
        after: the kernels after which each kernel must run
        unfused: kernels that are not fused, `sums` among them
        sums: the kernels that would be fused in addition
        kept: tensors that must be stored
        target: the machine
        most: most bytes of a result that is stored although it need not be
    """
    streamed = _streamed(parts, after, {*unfused} - {*sums}, kept, target, {}, most) if sums else {}
    members = {n for t in streamed for n in streamed[t]}
    if members.isdisjoint(sums):
        return set()
    stored = {storage(t) for n in members for t in parts[n].tensors} - streamed.keys()
    return set(streamed) if sum(map(nbytes, stored)) <= sum(map(nbytes, streamed)) else set()


def _is_chain(t: Tensor, g: int, parts: Sequence[AnyCall], readers: Mapping[Tensor, Sequence[int]]) -> bool:
    """Return whether kernel `g`, a reduction, makes a result from smaller operands, another reduction reads it or what
    pointwise kernels make of it, and one of the two is a product. `readers`: the kernels that read each tensor."""
    maker = parts[g]
    operands = [x for x, w in zip(maker.tensors, maker.written, strict=True) if not w]
    if not _reduces(maker) or any(nbytes(x) >= nbytes(t) for x in operands):
        return False
    reducing: list[AnyCall] = []
    todo = [t]
    for x in todo:
        for part in (parts[r] for r in readers.get(x, ())):
            if part.kernel is not None and _reduces(part):
                reducing.append(part)
            elif part.kernel is not None:
                todo += [y for y in part.results if nbytes(y) >= nbytes(t) and y not in todo]
    return any(p.kernel.reuses for p in (maker, *reducing) if reducing)


def _reduces(part: AnyCall) -> bool:
    return any(isinstance(getattr(p, "body", None), Reduce) for p in part.kernel.root.parts)


def _obstacle(
    t: Tensor, g: int, members: Set[int], parts: Sequence[AnyCall], unfused: Collection[int], most: int
) -> str:
    """Return what prevents a result of kernel `g` from being used up in one kernel of `members`; "" if nothing does."""
    common = frozenset[int]() if most else frozenset.intersection(*(rows_of(parts[c]) for c in members))
    if not _exceeds_operands(t, parts[g], common):
        return "its rows are short, so that it takes less than twice the memory of its operands"
    if len(members) > MAX_MEMBERS:
        return f"{len(members)} kernels would have to be fused, and at most {MAX_MEMBERS} can be"
    if not members.isdisjoint(unfused):
        return "a check, an update or a loop needs it"
    for c in members:
        if not rows_of(parts[c]):
            return f"the kernel over {[*parts[c].kernel.shape]} that needs it cannot run row by row"
    return ""


def _exceeds_operands(t: Tensor, part: AnyCall, rows: Collection[int]) -> bool:
    """Return whether a result takes much more memory than the smaller operands that a product makes it from; a
    projection does not, and is not worth the tiles that it would have to give up.

    rows: where no result may be stored, the numbers of rows that its kernels have in common: operands count that these
    rows index. Others, as the weights of a vocabulary, are read again for every block of rows: 1,024 rows of 576
    channels and 49,152 words in bfloat16 take 1.6 times the time of stored logits (a core of a Sapphire Rapids)."""
    if not part.kernel.reuses:
        return True
    smaller = {s for s in part.operands if nbytes(s) < nbytes(t)}
    forms = [f for r in rows for f in forms_of(part.kernel).get(r, ())]
    ways = [smaller.intersection(storage(part.tensors[n]) for n in row_buffers(f)) for f in forms]
    return any(nbytes(t) >= 2 * sum(map(nbytes, way)) for way in (*ways, smaller))


def passed_on(parts: Iterable[AnyCall]) -> set[Tensor]:
    """Return the results of kernels that kernels among them read."""
    parts = list(parts)
    return {t for p in parts for t in p.results} & {t for p in parts for t in p.operands}


class _Clusters(Partition):
    """A partition of kernels into clusters, each identified by the number of its first kernel."""

    def __init__(
        self,
        parts: Sequence[AnyCall],
        after: Mapping[int, Collection[int]],
        streamed: Set[Tensor],
        cut: Collection[Tensor],
    ):
        super().__init__()
        self.parts, self.streamed, self.cut = parts, streamed, cut
        # kernels of a merged cluster -> those of the two clusters that it was merged from
        self.halves: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        self.after = after  # kernel -> the kernels that it needs

    def is_candidate(self, part: AnyCall) -> bool:
        """Return whether a kernel has rows, and streams or computes or reads a result that is never stored if fused."""
        joins = not part.kernel.reuses or not self.streamed.isdisjoint(map(storage, part.tensors))
        return joins and bool(rows_of(part))

    def can_join(self, a: int, b: int, target: Target) -> bool:
        """Return whether two clusters that share a tensor may become one: together they are not too large, no other
        cluster has to run between them, and common rows pay."""
        if (
            len(self.members[a]) + len(self.members[b]) > MAX_MEMBERS
            or self.has_between(a, b)
            or self.has_between(b, a)
        ):
            return False
        merged = [self.parts[n] for n in sorted(self.members[a] + self.members[b])]
        if sum(total_operations(s.template) for p in merged for s in p.kernel.stages) > MAX_OPERATIONS:
            return False
        if self.cut and not passed_on(merged).isdisjoint(self.cut):
            return False
        if not can_share_rows(merged, self.streamed) or not common_rows(merged, target)[0]:
            return False
        # Products of a batch of matrices are not joined with a kernel that would make them share operands.
        halves = [[self.parts[n] for n in self.members[c]] for c in (a, b)]
        batches = [any(p.kernel.reuses for p in half) and is_batch(half, target, self.streamed) for half in halves]
        return not any(batches) or is_batch(merged, target, self.streamed)

    def merge(self, a: int, b: int) -> None:
        """Merge cluster b into cluster a."""
        halves = self.members[a], self.members[b]
        super().merge(a, b)
        self.halves[tuple(self.members[a])] = halves

    def paying_parts(self, members: list[int], pays: Callable[[Sequence[int]], bool]) -> list[list[int]] | None:
        """Return the cluster, in one part if it pays, in two if it pays without a first product; else None."""
        if len(members) == 1 or pays(members):
            return [members]
        reusing = [n for n in members if self.parts[n].kernel.reuses]
        for n in reusing if len(reusing) > 1 else ():
            rest = [m for m in members if m != n]
            if not set(self.after.get(n, ())) & set(rest) and pays(rest):
                return [[n], rest]
        return None

    def split_unprofitable(self, members: list[int], pays: Callable[[Sequence[int]], bool]) -> Iterator[list[int]]:
        """Yield the cluster if it pays, else the clusters that it was merged from, each split in the same way, in a
        valid order. At most one of the two needed the other when they were merged."""
        paying = self.paying_parts(members, pays)
        if paying is not None:
            yield from paying
            return
        first, second = self.halves[tuple(members)]
        if any(h in second for n in first for h in self.after.get(n, ())):
            first, second = second, first
        yield from self.split_unprofitable(first, pays)
        yield from self.split_unprofitable(second, pays)
