"""The boxes of the direct form (direct): which axis has the lanes, what is unrolled, what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from einsmith.expr.nodes import Read, postorder
from einsmith.kernels.contraction.config import HALO_BYTES, Direct, HaloProblem, Halos, reading
from einsmith.kernels.contraction.halo import SLOT, HaloCopy, halo_copy
from einsmith.kernels.contraction.problem import Problem, affine
from einsmith.kernels.contraction.setting import operand_memories
from einsmith.kernels.emit.access import PAIR_COST, OperandAccess
from einsmith.kernels.emit.address import Memory
from einsmith.kernels.emit.boxes import outer_reads
from einsmith.plan.kernel import Kernel

MAX_AXES = 5
"""Axes that a box may extend along, the innermost."""
MAX_PRODUCTS = 256
"""Multiply-adds of a vector in the unrolled body."""
MAX_WAITING = 1 << 18
"""Bytes of sums that wait in scratch while the windows of an outer axis of K change."""
MAX_COUNT = 16
"""Points of one axis that are unrolled."""
MIN_PRODUCTS = 1 << 14
"""Products of a problem below which the other forms are as good."""
FEW = 4
"""Points of a side with which a product of matrices has tiles of so few rows that loads outweigh arithmetic."""


def shaped(p: Problem, d: Direct) -> HaloProblem | None:
    """The problem with windows; None where one cannot be or is too large."""
    found: list[tuple[int, HaloCopy]] = []
    for i, _ in d.windows:
        w = halo_copy(p, i, frozenset((*d.outer, *d.k_outer)), None, HALO_BYTES // p.dtype.itemsize)
        if w is None:
            return None
        found.append((i, w))
    return HaloProblem(reading(p, found), tuple(found), 0)


def _in_pairs(p: Problem) -> set[int]:
    """Axes that stand together with another one in an index or in a guard: h and r of X[h + r]."""
    out: set[int] = set()
    for o in p.operands:
        for e in outer_reads((o.expr,)):
            for _, terms in affine(e) or ():
                terms = {a: c for a, c in terms.items() if p.extents[a] > 1}
                if len(terms) > 1:
                    out |= set(terms)
    return out


class _Loads:
    """Numbers of distinct loads of an operand in a box of points; weight: cycles of one with lanes along axis v, in
    vectors of `width` bytes; moves: whether another vector is another load."""

    def __init__(self, s: OperandAccess, v: int, width: int):
        step = max((s.forms[i].coef.get(v, 0) for i in s.reads.values()), default=0)
        self.moves = any(s.forms[i].coef.get(v, 0) for i in s.reads.values())
        self.weight = (1.0 if width >= 64 else 0.6) * (PAIR_COST if step == 2 else 1.0) if step else 0.5
        forms = [s.forms[i].coef for i in (*s.reads.values(), *(c for c, _, _ in s.conds))]
        forms += [{a: 1} for a in sorted(s.opaque)]
        # What a step along an axis adds to every form, as the digits of one number.
        self.coefs: dict[int, int] = {}
        for i, form in enumerate(forms):
            for a, c in form.items():
                self.coefs[a] = self.coefs.get(a, 0) + (c << (48 * i))
        self.memo: dict[tuple, int] = {}

    def count(self, counts: Sequence[tuple[int, int]]) -> int:
        key = tuple((a, n) for a, n in counts if n > 1 and a in self.coefs)
        if key not in self.memo:
            seen = {0}
            for a, n in key:
                steps = [self.coefs[a] * i for i in range(n)]
                seen = {x + y for x in seen for y in steps}
            self.memo[key] = len(seen)
        return self.memo[key]


def _options(extent: int) -> list[int]:
    """Counts worth trying: all, or parts that divide the axis, a few apart."""
    if extent <= MAX_COUNT // 2 + 1:
        return sorted({1, extent, *([extent // 2] if extent % 2 == 0 else [])})
    out = {1}
    for limit in (4, 8, 16):
        out.add(max(n for n in range(1, min(limit, extent) + 1) if extent % n == 0))
    for even in (4, 8):
        if max(out) < even:
            out.add(-(-extent // -(-extent // even)))
    return sorted(out)


def _vector_axes(p: Problem, samplers: Sequence[OperandAccess], lanes: int) -> list[int]:
    """Axes that lanes may run along: contiguous in an operand and contiguous or absent in the other."""
    out = []
    for a, n in enumerate(p.extents):
        if n < max(2, lanes // 4):
            continue
        strides = [[s.forms[i].coef.get(a, 0) for i in s.reads.values()] for s in samplers]
        flat = [c for x in strides for c in x]
        if any(a in s.opaque for s in samplers) or not all(c in (0, 1, 2) for c in flat) or not any(flat):
            continue
        if a in p.k and not all(any(x) for x in strides):
            continue
        if n / (-(-n // lanes) * lanes) >= 0.4:
            out.append(a)
    return out


def configs(kernel: Kernel, p: Problem, memories: Mapping[int, Memory], target: Any) -> list[Direct]:
    """Configurations of this form for a problem that is no matrix product, or one of few rows: vectors along a batch
    axis, or along what the rows share."""
    batch, left, right, k = p.sizes
    if batch * left * right * k < MIN_PRODUCTS or not p.k:
        return []
    pairs = _in_pairs(p)
    if batch == 1 and (min(left, right) > FEW or not pairs):
        return []
    lanes = target.lanes(p.dtype.itemsize)
    scalar = [OperandAccess(None, [o.expr], o.guards, p.extents, memories) for o in p.operands]
    if any(len(s.reads) != sum(isinstance(e, Read) for e in postorder(s.exprs)) or s.generic for s in scalar):
        return []
    rank = len(p.piece.extents)
    out: list[Direct] = []
    few = min(p.left, p.right, key=p.count)
    ways = [((*p.left, *p.right), False), *[(few, True)] * (0 < len(few) and p.count(few) <= FEW), ((), False)]
    searches = [
        (v, _search(p, scalar, v, lanes, target, lone, whole))
        for v in _vector_axes(p, scalar, lanes)
        if v in p.batch or min(left, right) <= FEW or (v in p.k and v in pairs)
        for lone, whole in ways
    ]
    for v, best in dict.fromkeys(searches):
        if best is None:
            continue
        tile, unroll, vectors = best
        tiled = {a for a, _ in tile}
        outer = tuple(a for a in range(rank) if a != v and a not in tiled and a not in pairs and p.extents[a] > 1)
        heads: list[tuple[int, ...]] = [()]
        if len(p.k) > 1 and p.k[0] != v and p.k[0] not in pairs and p.k[0] not in dict(unroll):
            d = Direct(v, vectors, tile, unroll, outer)
            if waiting(p, d, lanes) * p.dtype.itemsize <= MAX_WAITING:
                heads.append((p.k[0],))
        for head in heads:
            for which in ((0,), (1,), (0, 1), ()):
                windows: Halos = tuple((i, "all") for i in which)
                if any(p.operands[i].plain for i in which) or (head and not which):
                    continue
                points = prod(p.extents[a] for a in outer)
                tasks = 1 if target.cores == 1 else min(points, 8 * target.cores)
                d = Direct(v, vectors, tile, unroll, outer, head, tasks, windows)
                if shaped(p, d) is None:
                    continue
                out.append(d)
                most = max((tiles_along(p, d, a) for a in inner_axes(p, d)), default=1)
                if points < 4 * target.cores > 4 and most > 1:  # some of the cores would wait
                    out.append(replace(d, tasks=points, parts=min(most, -(-4 * target.cores // points))))
    return out


def inner_axes(p: Problem, d: Direct) -> list[int]:
    """The output axes whose tiles a point of the outer axes goes through."""
    return [a for a in range(len(p.piece.extents)) if a not in (*d.outer, d.vector) and p.extents[a] > 1]


def tiles_along(p: Problem, d: Direct, axis: int) -> int:
    return -(-p.extents[axis] // dict(d.tile).get(axis, 1))


def waiting(p: Problem, d: Direct, lanes: int) -> int:
    """Elements of the sums of a point of the outer axes."""
    rest = [a for a in range(len(p.piece.extents)) if a not in (*d.outer, d.vector)]
    vectors = -(-p.extents[d.vector] // lanes) if d.vector < len(p.piece.extents) else 1
    return prod(p.extents[a] for a in rest) * vectors * lanes


def _search(p: Problem, samplers: Sequence[OperandAccess], v: int, lanes: int, target: Any,
            lone: Sequence[int], whole: bool):
    """The box of the fewest cycles a product: (tile, unrolled K, vectors); `lone`: axes of one operand that it may
    extend along, of which that then needs a halo copy of more; whole: of all their points."""
    rank = len(p.piece.extents)
    pairs = _in_pairs(p)
    loads = [_Loads(s, v, lanes * p.dtype.itemsize) for s in samplers]
    axes = [a for a in range(len(p.extents)) if a != v and p.extents[a] > 1 and (a in lone or a in pairs)][-MAX_AXES:]
    many = -(-p.extents[v] // lanes) if v < rank else 1
    best = None
    for vectors in {1, min(2, many), min(4, many)}:
        if -(-many // vectors) * vectors > many * 1.3:
            continue
        for counts in product(*((p.extents[a],) if whole and a in lone else _options(p.extents[a]) for a in axes)):
            pairs_of = list(zip(axes, counts, strict=True))
            sums = vectors * prod(n for a, n in pairs_of if a < rank)
            points = prod(n for a, n in pairs_of if a >= rank)
            if sums > target.vector_registers - 4 or sums * points > MAX_PRODUCTS:
                continue
            if sum(1 for a, n in pairs_of if p.extents[a] % n) > 1:
                continue
            each = [x.count(pairs_of) * (vectors if x.moves else 1) for x in loads]
            if sums + min(each) + 2 > target.vector_registers:
                continue
            loaded = sum(x.weight * n for x, n in zip(loads, each, strict=True))
            cycles = max(sums * points / target.multiplies, loaded, target.overheads.latency * points)
            uneven = 1.0
            for a, n in pairs_of:
                uneven *= 1 + 0.1 * bool(p.extents[a] % n)
            score = (cycles + 3 + sums * 0.1) * uneven / (sums * points)
            if best is None or score < best[0]:
                best = (score, pairs_of, vectors)
    if best is None:
        return None
    _, found, vectors = best
    tile = tuple((a, n) for a, n in found if a < rank and n > 1)
    unroll = tuple((a, n) for a, n in found if a >= rank and n > 1)
    return tile, unroll, vectors


@lru_cache(maxsize=4096)
def cycles(kernel: Kernel, original: Problem, d: Direct, lanes: int, finish: float, target: Any) -> float:
    """Cycles of the whole problem on one core; `finish`: those of what follows the sum, a vector."""
    l1, w = target.l1, target.overheads
    shape = shaped(original, d)
    assert shape is not None
    p = shape.problem
    memories = {**operand_memories(kernel), **{SLOT + i: Memory(None, w.buffer) for i, w in shape.windows}}
    scalar = [OperandAccess(None, [o.expr], o.guards, p.extents, memories) for o in p.operands]
    rank = len(p.piece.extents)
    box = [*d.tile, *d.unroll]
    sums = d.vectors * prod(n for _, n in d.tile)
    points = prod(n for _, n in d.unroll)
    load, many = 0.0, -(-p.extents[d.vector] // lanes)
    # What a guard leaves of a box is known before where all its axes are unrolled.
    moving = {a for a, n in enumerate(p.extents) if (many > d.vectors if a == d.vector else dict(box).get(a, 1) < n)}
    sizes = {i: x.buffer.size * p.dtype.itemsize for i, x in shape.windows}
    for which, s in enumerate(scalar):
        x = _Loads(s, d.vector, lanes * p.dtype.itemsize)
        weight = x.weight
        masks = w.mask * sum(any(a in moving for a in s.forms[c].coef) for c, _, _ in s.conds)
        size = sizes.get(which)
        if size is None:  # what a point of the outer axes reads of it
            size = prod(p.extents[a] for a in p.operands[which].axes if a not in d.outer) * p.dtype.itemsize
            if size > l1 * 0.75:
                weight *= 2.0
        elif size > l1 * 0.75:
            weight *= 1.25
        load += x.count(box) * (d.vectors if x.moves else 1) * (weight * max(1, len(s.reads)) + masks)
    body = max(sums * points / target.multiplies, load, w.latency * points) + 2
    rows = prod(-(-p.extents[a] // dict(box).get(a, 1)) for a in range(len(p.extents)) if a != d.vector)
    turns = rows * -(-many // d.vectors)
    total = turns * body
    outputs = prod(p.piece.extents)
    stored = outputs / p.extents[d.vector] * many if d.vector < rank else outputs  # vectors of sums
    total += stored * (finish + 1.5 if d.vector < rank else w.lane_sum)
    if d.k_outer:
        near = waiting(p, d, lanes) * p.dtype.itemsize <= l1 * 0.75
        total += stored * p.extents[d.k_outer[0]] * (2 if near else w.far_sum)
    fixed = prod(p.extents[a] for a in (*d.outer, *d.k_outer))
    for _, window in shape.windows:
        total += d.parts * fixed * (window.buffer.size / lanes * w.halo + w.tile)
    return total
