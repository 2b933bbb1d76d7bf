"""Enumerate the configurations of the direct form worth pricing: the axis of the lanes, and what is unrolled."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

from einsmith.codegen.loopnest.address import fuse_axes
from einsmith.cost.memory_traffic import PAGE
from einsmith.cost.roofline import may_be_one_task
from einsmith.ir.analysis.linear import without_points
from einsmith.ir.analysis.reads import outer_reads
from einsmith.ir.nodes import Read, postorder
from einsmith.kernels.contraction.config import MAX_HALO_BYTES, Direct, HaloProblem, Halos, read_halos
from einsmith.kernels.contraction.direct_loads import (
    BoxLoads,
    combine_limits,
    loads_of_strips,
    loops_over_k,
    moving_axes,
)
from einsmith.kernels.contraction.halo import HaloCopy, halo_copy
from einsmith.kernels.contraction.traffic import sum_over_tiles
from einsmith.kernels.contraction.words import operand_memories
from einsmith.kernels.emit.access import OperandAccess
from einsmith.kernels.emit.loops import is_limited
from einsmith.schedule.contraction_problem import Operand, Problem, affine, k_limit
from einsmith.schedule.kernel import Kernel, has_row_limit

MAX_AXES = 5
"""Most axes that a box extends along, the innermost ones."""
MAX_PRODUCTS = 256
"""Most multiply-adds of vectors in the unrolled body."""
MAX_SCRATCH_SUM_BYTES = 1 << 18
"""Most bytes of sums that stay in scratch while the halo copies of an outer axis of K change."""
MAX_UNROLLED_POINTS = 16
"""Most points of one axis that are unrolled."""
MIN_PRODUCTS = 1 << 14
"""Fewest products of a problem for which the direct form is tried; below, the other forms are as good."""
MAX_NARROW_POINTS = 4
"""Most points of a side for which a matrix product has tiles of so few rows that loads outweigh arithmetic."""
MAX_FILTERS = 24
"""Most points of a side of a convolution for which boxes of its filters and rows are tried: their sums, and the vectors
that they share, fill the registers (28 filters of 3x3: 22 ms where packed tiles take 16)."""
MAX_K_VECTOR_RESULTS, MIN_K_VECTOR_POINTS = 4096, 4096
"""Most results whose vectors of sums fit a private L2, and fewest points of K that are worth a vector of sums for
each."""
MIN_LONG_ROW_VECTORS = 8
"""Vectors of a row below which its last, possibly partial vector matters."""


def add_halo_copies(p: Problem, d: Direct) -> HaloProblem | None:
    """Return the problem with the configuration's halo copies; None where one is impossible or too large."""
    halos: list[tuple[int, HaloCopy]] = []
    for i, _ in d.windows:
        halo = halo_copy(p, i, frozenset((*d.outer, *d.k_outer)), None, MAX_HALO_BYTES // p.dtype.itemsize)
        if halo is None:
            return None
        halos.append((i, halo))
    return HaloProblem(read_halos(p, halos), tuple(halos), 0)


def _find_paired_axes(p: Problem) -> set[int]:
    """Return the axes that share an index with another axis: h and r of X[h + r]."""
    out: set[int] = set()
    for o in p.operands:
        for e in outer_reads((o.expr,)):
            for form in affine(e) or ():
                axes = without_points(form, p.extents).coef.keys()
                if len(axes) > 1:
                    out |= axes
    return out


def count_elements_of(p: Problem, o: Operand, axes: Container[int]) -> int:
    """Return the elements that an operand reads while `axes` move; overlapping elements of a convolution count once."""
    most = 1
    for e in outer_reads((o.expr,)):
        forms = affine(e)
        if forms is None:
            return prod(p.extents[a] for a in o.axes if a in axes)
        most = max(
            most,
            prod(1 + sum(abs(c) * (p.extents[a] - 1) for a, c in f.coef.items() if a in axes) for f in forms),
        )
    return most


def _enumerate_counts(extent: int) -> list[int]:
    """Return the counts of an axis worth trying: all points, or a few parts that divide the axis."""
    if extent <= MAX_UNROLLED_POINTS // 2 + 1:
        return sorted({1, extent, *([extent // 2] if extent % 2 == 0 else [])})
    out = {1}
    for limit in (2, 4, 8, 16):
        out.add(max(n for n in range(1, min(limit, extent) + 1) if extent % n == 0))
    for even in (4, 8):
        if max(out) < even:
            out.add(-(-extent // -(-extent // even)))
    return sorted(out)


def _find_vector_axes(p: Problem, samplers: Sequence[OperandAccess], lanes: int) -> list[int]:
    """Return the axes that lanes may run along: contiguous in an operand and contiguous or absent in the other."""
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


def _enumerate_boxes(p: Problem, samplers: Sequence[OperandAccess], lanes: int, target: Any) -> list[Direct]:
    """Return boxes that may be worth it, with their outermost axes.

    Vectors run along a batch axis, or along an axis of a problem with few rows; for few results of a long K, vectors
    run along K and every result has a vector of sums.
    """
    batch, left, right, k = p.sizes
    pairs, axes = _find_paired_axes(p), _find_vector_axes(p, samplers, lanes)
    out: dict[Direct, None] = {}

    def add(v: int, box: Any, outer_axes: Sequence[int], fused: tuple[int, ...] = ()) -> None:
        if box:
            tile, unroll, vectors = box
            outer = tuple(a for a in outer_axes if a != v and a not in dict(tile) and p.extents[a] > 1)
            out[Direct(v, vectors, tile, unroll, outer, fused=fused)] = None

    has_few_filters = bool(pairs) and min(left, right) <= MAX_FILTERS
    if batch > 1 or has_few_filters:
        few = min(p.left, p.right, key=p.count)
        ways = [
            ((*p.left, *p.right), False),
            *[(few, True)] * (0 < len(few) and p.count(few) <= MAX_FILTERS),
            ((), False),
        ]
        outer_axes = [a for a in range(len(p.piece.extents)) if a not in pairs]
        for v in axes:
            is_row = v in pairs and v not in p.k and p.extents[v] >= lanes
            is_narrow = min(left, right) <= MAX_NARROW_POINTS or (has_few_filters and is_row)
            if v in p.batch or is_narrow or (batch > 1 and v in p.k and v in pairs):
                for lone, whole in ways:
                    for box in _search_box(p, samplers, v, lanes, target, lone, whole):
                        add(v, box, outer_axes)
    if left * right <= MAX_K_VECTOR_RESULTS and k >= MIN_K_VECTOR_POINTS:
        row_groups = fuse_axes(p.k[1:], p.extents, lambda a, x: all(s.evenly(a, x) for s in samplers))
        merged_axes = {g.inner: g.axes[:-1] for g in row_groups}
        for v in axes:
            if v in p.k[1:]:
                fused = merged_axes.get(v, ())
                add(v, _search_tile_of_sides(p, p.count((*fused, v)), lanes, target), p.batch, fused)
    return list(out)


def configs(kernel: Kernel, p: Problem, target: Any) -> list[Direct]:
    """Return the direct configurations of a problem; none for a single product with many rows and columns."""
    if prod(p.sizes) < MIN_PRODUCTS or not p.k:
        return []
    batch, left, right, _ = p.sizes
    if batch == 1 and min(left, right) > MAX_FILTERS and left * right > MAX_K_VECTOR_RESULTS:
        return []
    lanes, memories = target.lanes(p.dtype.itemsize), operand_memories(kernel)
    scalar = [OperandAccess(None, [o.expr], o.guards, p.extents, memories) for o in p.operands]
    if any(len(s.reads) != sum(isinstance(e, Read) for e in postorder(s.exprs)) or s.generic for s in scalar):
        return []
    out: list[Direct] = []
    for box in _enumerate_boxes(p, scalar, lanes, target):
        if has_row_limit(kernel) and not is_limited(box.outer):
            continue  # it would compute all rows
        if k_limit(p) is not None and p.k[0] in (box.vector, *box.fused):
            continue  # vectors would reach over the end of K
        points, of_k = p.count(box.outer), box.vector in p.k
        tasks = 1 if target.cores == 1 else min(points, 8 * target.cores)
        k_outer_options: list[tuple[int, ...]] = [()]
        if len(p.k) > 1 and p.k[0] not in (box.vector, *_find_paired_axes(p), *dict(box.unroll)):
            if sum_elements(p, box, lanes) * p.dtype.itemsize <= MAX_SCRATCH_SUM_BYTES:
                k_outer_options.append(p.k[:1])
        for k_outer, halo_operands in product(k_outer_options, ((0,), (1,), ())):
            if any(p.operands[i].plain for i in halo_operands) or (k_outer and not halo_operands and not of_k):
                continue
            windows: Halos = tuple((i, "all") for i in halo_operands)
            d = replace(box, tasks=tasks, k_outer=k_outer, windows=windows, fused=() if halo_operands else box.fused)
            if add_halo_copies(p, d) is None:
                continue
            split = _choose_parts_of_k(p, d, points, target.cores) if k_outer and of_k else 1
            out.append(replace(d, split=split))
            if may_be_one_task(prod(p.extents), target):
                out.append(replace(d, tasks=1))
            most = max((tiles_along(p, d, a) for a in inner_axes(p, d)), default=1)
            if points < 4 * target.cores > 4 and most > 1 and split == 1:  # without parts, some of the cores would idle
                out.append(replace(d, tasks=points, parts=min(most, -(-4 * target.cores // points))))
    return out


def _choose_parts_of_k(p: Problem, d: Direct, points: int, cores: int) -> int:
    """Return the number of ranges of the outer axis of K that gives every core an equal amount of work."""
    if cores == 1 or points >= 4 * cores:
        return 1
    parts = -(-4 * cores // points)
    parts += next(i for i in range(cores) if points * (parts + i) % cores == 0)
    return min(p.extents[d.k_outer[0]], parts)


def inner_axes(p: Problem, d: Direct) -> list[int]:
    """Return the output axes whose tiles are walked at each point of the outer axes."""
    return [a for a in range(len(p.piece.extents)) if a not in (*d.outer, d.vector) and p.extents[a] > 1]


def prefetched_operands(p: Problem, d: Direct, samplers: Sequence[OperandAccess], target: Any) -> list[int]:
    """Return the operands beyond L2 that a tile prefetches for the next one along the last inner axis.

    Their rows lie in more pages than hardware prefetchers follow, and L2 keeps what a row of tiles reads.
    """
    inner, item = inner_axes(p, d), p.dtype.itemsize
    if d.vector in p.k or not inner or d.parts > 1 and max(inner, key=lambda a: tiles_along(p, d, a)) == inner[-1]:
        return []
    axis, out = inner[-1], []
    for which, s in enumerate(samplers):
        forms = [s.forms[i].coef for i in s.reads.values()]
        sizes = [s.memories[read.slot].buffer.nbytes for read in s.reads]
        fixed = {*d.outer, *d.k_outer, *inner} if all(x.get(axis) and x.get(d.vector) for x in forms) else None
        if fixed is None or which in dict(d.windows) or max(sizes, default=0) <= target.l2:
            continue
        rows = count_elements_of(p, p.operands[which], {*range(len(p.extents))} - fixed) * dict(d.tile).get(axis, 1)
        if 2 * rows * item <= target.l2 * target.overheads.held:
            out.append(which)
    return out


def tiles_along(p: Problem, d: Direct, axis: int) -> int:
    """Return the number of tiles along an output axis."""
    return -(-p.extents[axis] // dict(d.tile).get(axis, 1))


def sum_elements(p: Problem, d: Direct, lanes: int) -> int:
    """Return the elements of the sums at one point of the outer axes."""
    rest = [a for a in range(len(p.piece.extents)) if a not in (*d.outer, d.vector)]
    vectors = -(-p.extents[d.vector] // lanes) if d.vector < len(p.piece.extents) else 1
    return prod(p.extents[a] for a in rest) * vectors * lanes


class _SizedBox(NamedTuple):
    """A box with its sums (vectors), its points of K, and the axes that its points do not divide."""

    box: list[tuple[int, int]]
    vectors: int
    sums: int
    points: int
    uneven: int

    def score(self, load_cycles: float, target: Any) -> float:
        """Return the cycles of a product of vectors, for these cycles of loads and masks."""
        w, products = target.overheads, self.sums * self.points
        cycles = max(combine_limits(products / target.multiplies, load_cycles, w.overlap), w.latency * self.points)
        return (cycles + w.iteration + self.sums * 0.1) * (1 + 0.1 * self.uneven) / products


def strip_bytes_of(p: Problem, samplers: Sequence[OperandAccess], d: Direct, target: Any) -> float:
    """Return the bytes beyond L2 that a box waits for because it reads operands, by `samplers`, in narrow strips.

    A box with lanes along results reads a few vectors of them at every point of K, a page or more apart
    (`Overheads.strip`).
    """
    item, box, out = p.dtype.itemsize, dict([*d.tile, *d.unroll]), 0.0
    if d.vector >= len(p.piece.extents):
        return 0.0
    walked = [a for a in p.k if a not in (*box, *d.k_outer) and p.extents[a] > 1]
    for s in samplers:
        for read, form in s.reads.items():
            steps = {a: abs(c) * item for a, c in s.forms[form].coef.items() if c}
            stride, size = min((steps[a] for a in walked if a in steps), default=0), s.memories[read.slot].buffer.nbytes
            if d.vector in steps and stride >= PAGE and size > target.l2:
                width = target.vector_bytes * d.vectors
                for step, n in sorted((steps[a], n) for a, n in box.items() if a in steps):
                    width = max(width, step * n * (step <= width))  # adjacent rows
                out += size * target.overheads.strip / min(width, stride)
    return out


def _search_box(
    p: Problem, samplers: Sequence[OperandAccess], v: int, lanes: int, target: Any, lone: Sequence[int], whole: bool
):
    """Return the boxes with the fewest cycles a product, as (tile, unrolled K, vectors): where operands are read in
    place, under masks, and where they are read from halo copies.

    lone: axes of one operand that the box may extend along, which enlarges this operand's halo copy
    whole: the box has all points of the axes `lone`
    """
    rank = len(p.piece.extents)
    pairs = _find_paired_axes(p)
    loads, known = [BoxLoads(s, v, lanes, target) for s in samplers], dict[Any, BoxLoads]()
    axes = [a for a in range(len(p.extents)) if a != v and p.extents[a] > 1 and (a in lone or a in pairs)][-MAX_AXES:]
    row_vectors, results = -(-p.extents[v] // lanes) if v < rank else 1, sum(a < rank for a in axes)
    counts = [(p.extents[a],) if whole and a in lone else _enumerate_counts(p.extents[a]) for a in axes]
    size = sum(m.buffer.nbytes for s in samplers for m in {s.memories[r.slot] for r in s.reads})
    cycles_per_byte = target.seconds_for_bytes(lanes, size, 1) / target.cycle_seconds  # for each of a vector's lanes
    boxes: list[_SizedBox] = []
    for vectors in {1, min(2, row_vectors), min(4, row_vectors)}:
        if -(-row_vectors // vectors) * vectors > row_vectors * 1.3:
            continue
        for x in product(*counts):
            sums, points = vectors * prod(x[:results]), prod(x[results:])
            if sums > target.vector_registers - 4 or sums * points > MAX_PRODUCTS:
                continue
            uneven = sum(1 for a, n in zip(axes, x, strict=True) if p.extents[a] % n)
            if uneven <= 1:
                boxes.append(_SizedBox(list(zip(axes, x, strict=True)), vectors, sums, points, uneven))
    # Loads are counted only where arithmetic alone is fast enough, masks where loads are, too.
    bounds = [box.score(0.0, target) for box in boxes]
    best: tuple[float, Any] = (inf, None)
    best_in_copy = best
    for i in sorted(range(len(boxes)), key=bounds.__getitem__):
        box_points, vectors, sums, *_ = box = boxes[i]
        if bounds[i] >= max(best[0], best_in_copy[0]):
            break
        each = [x.count(box_points) * (vectors if x.moves else 1) for x in loads]
        if sums + min(each) + 2 > target.vector_registers:
            continue
        load_cycles = sum(x.weight * n for x, n in zip(loads, each, strict=True))
        bare = box.score(load_cycles, target)
        tile, unroll = (tuple((a, n) for a, n in box_points if n > 1 and (a < rank) == x) for x in (True, False))
        if bare < best_in_copy[0]:
            best_in_copy = bare, (tile, unroll, vectors)
        if bare >= best[0]:
            continue
        moving, loops = moving_axes(p, v, vectors, row_vectors, box_points), loops_over_k(p, v, box_points)
        outer = tuple(a for a in range(rank) if a not in (v, *pairs, *dict(tile)))
        d = Direct(v, vectors, tile, unroll, outer)
        total = strip_bytes_of(p, samplers, d, target) * cycles_per_byte / prod(p.extents)
        for part, loads_there in loads_of_strips(p, samplers, d, lanes, target, known):
            masks = sum(x.masks(box_points, v, vectors, moving, loops) for x in loads_there)
            total += part * box.score(load_cycles + target.overheads.mask * masks, target)
        if total < best[0]:
            best = total, (tile, unroll, vectors)
    return list(dict.fromkeys(x for cycles, x in (best, best_in_copy) if cycles < inf))


def _search_tile_of_sides(p: Problem, row: int, lanes: int, target: Any):
    """Return the box (tile, (), 1), along one axis of either side, with the fewest cycles where lanes run along K.

    Every sum is a vector over rows of `row` points of K. Masked loads go to registers before they are multiplied, for
    two vectors at once: that is so under guards, and where the last vectors of rows are many.
    """
    registers_per_row = 1 + (
        any(o.guards for o in p.operands) or row % lanes > 0 and row < MIN_LONG_ROW_VECTORS * lanes
    )
    best = None

    def step_cycles(m: int, n: int) -> float:
        load_cycles = (m + n) * target.overheads.line
        cycles = max(m * n / target.multiplies, load_cycles, target.overheads.latency)
        return cycles + target.overheads.iteration if m and n else 0.0

    for a, b in product(p.left or (None,), p.right or (None,)):
        rows, columns = (1 if x is None else p.extents[x] for x in (a, b))
        for m in range(1, min(rows, MAX_UNROLLED_POINTS // 2) + 1):
            max_columns = (target.vector_registers - 2 - m * registers_per_row) // m
            if max_columns < 1:
                break
            n = -(-columns // -(-columns // max_columns))
            score = sum_over_tiles(rows, columns, m, n, step_cycles) / (rows * columns)
            if best is None or score < best[0]:
                best = score, [(axis, count) for axis, count in ((a, m), (b, n)) if count > 1]
    return best and (tuple(sorted(best[1])), (), 1)
