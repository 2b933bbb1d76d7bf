"""Turn a kernel into canonical boxes, which the pointwise, reduction and scatter patterns lower (`kernels.emit.loops`).

A Box is one piece of the root with the epilogue written for that piece: axes of extent 1 are gone, adjacent axes that
every access runs through contiguously are merged, and every Read is one flat offset into its buffer.

Before: y[b,c,h,w] = max(x[b,c,h,w], 0) over [256,6,28,28]. After: y[i0] = max(x[i0], 0) over [1204224].
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.locks import cached_property
from einsmith.codegen.loopnest.address import FusedAxes, address, fuse_axes
from einsmith.cost.facts import Target
from einsmith.cost.overheads import INSTRUCTIONS
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.analysis.obvious import leaves
from einsmith.ir.analysis.reads import Uses, item_sizes, outer_reads, uses
from einsmith.ir.functions import identity
from einsmith.ir.interned import Node
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Piece, Read, Reduce, apply, axes_of, cached_postorder, size
from einsmith.ir.random import OPERATIONS
from einsmith.ir.rebuild import rebuild
from einsmith.ir.rewrite.simplify import simplify
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage, limits_of


@dataclass(frozen=True, eq=False)
class Box:
    """One piece of a kernel: output axes 0 .. rank-1 of `extents`, then reduction axes of `reduce`.

    bodies: the root's. combiner: None where the bodies are the results. stages: the epilogue's bodies in order.
    results: the slot of each result, the root's members first; a Read of it has no index. stores: (slot, buffer,
    offset in elements). Slot n below len(buffers) is the kernel's buffer n; `workspace` is the slot after them.
    sizes: elements that each buffer spans. limits: (axis, buffer, first, factor) of axes of which only points count
    that are below what the buffer says, less their first position, times the factor.
    """

    extents: tuple[int, ...]
    reduce: tuple[int, ...]
    combiner: str | None
    bodies: tuple[Expr, ...]
    stages: tuple[Expr, ...]
    results: tuple[int, ...]
    stores: tuple[tuple[int, int, LinearForm], ...]
    sizes: tuple[int, ...]
    limits: tuple[tuple[int, int, int, int], ...] = ()

    @cached_property
    def rank(self) -> int:
        """Return the number of output axes."""
        return len(self.extents)

    @cached_property
    def points(self) -> int:
        """Return the number of points of the output."""
        return size(self.extents)

    @cached_property
    def reduced(self) -> int:
        """Return the number of terms of each result."""
        return size(self.reduce)

    @property
    def members(self) -> int:
        """The number of results of the root."""
        return len(self.results) - len(self.stages)

    @cached_property
    def exprs(self) -> tuple[Expr, ...]:
        """Return all expressions: the root's bodies, then the epilogue's."""
        return self.bodies + self.stages

    @cached_property
    def epilogue_flats(self) -> list[LinearForm]:
        """Return the offsets (elements) of the epilogue's reads and of the stores."""
        return [*uses(self.stages)[0], *(index for _, _, index in self.stores)]

    @cached_property
    def flats(self) -> tuple[LinearForm, ...]:
        """Return the offsets (elements) of the bodies' reads."""
        return uses(self.bodies)[0]

    @cached_property
    def sized_flats(self) -> tuple[tuple[LinearForm, int], ...]:
        """Return the offsets (elements) of the bodies' reads, each with its element size (bytes)."""
        return tuple(zip(self.flats, item_sizes(self.bodies), strict=True))

    @cached_property
    def elements(self) -> Mapping[Any, int]:
        """Return the elements of the buffer that the bodies read at each offset, by the offset's key."""
        all_reads = [e for e in cached_postorder(self.bodies) if isinstance(e, Read) and e.index]
        return {linear(r.index[0]).key: self.sizes[r.slot] for r in all_reads if r.slot < len(self.sizes)}

    @cached_property
    def guarded(self) -> frozenset:
        """Keys of the offsets of reads that are in bounds only because of a guard around them."""
        domain, out = self.extents + self.reduce, set()
        for e in cached_postorder(self.exprs):
            if isinstance(e, Read) and e.index and e.slot < len(self.sizes):
                flat = linear(e.index[0])
                outside = leaves(flat, domain, self.sizes[e.slot])
                if outside is None:
                    low, high = Facts(domain).interval(flat)
                    outside = low is None or high is None or low < 0 or high >= self.sizes[e.slot]
                if outside:
                    out.add(flat.key)
        return frozenset(out)

    @cached_property
    def replacing(self) -> frozenset[int]:
        """Return the buffers that may be stored over an operand, which is read at the same elements."""
        read = {f.key for f in uses(self.exprs)[0]}
        return frozenset(buffer for _, buffer, index in self.stores if index.key in read)

    @cached_property
    def every_flat(self) -> list[LinearForm]:
        """Return the offsets of all reads and stores."""
        return [*uses(self.exprs)[0], *(index for _, _, index in self.stores)]


@lru_cache(maxsize=512)
def boxes(kernel: Kernel) -> tuple[Box, ...]:
    """Return the canonical boxes of a kernel whose root has pieces; empty pieces are left out."""
    first, *later = kernel.stages
    pieces = [p for p in kernel.root.parts if isinstance(p, Piece) and size(p.extents)]
    limits = tuple(sorted(limits_of(kernel).items()))
    return tuple(_box(p, first.args, first.outputs, tuple(later), kernel.buffers, limits) for p in pieces)


def _result_slots(stages: Sequence[tuple[int | None, ...]], buffers: int) -> list[list[int]]:
    """Return the slots of the results, by stage and member; stages: `outputs` of each stage."""
    slot, out = buffers + 1, []
    for outputs in stages:
        out.append(list(range(slot, slot + len(outputs))))
        slot += len(outputs)
    return out


_Slot = tuple[int, tuple[int, ...] | None, dt.DType]
"""A slot's number, its strides if it lies in memory (else None), and the type of offsets."""
_Axes = tuple[tuple[int, Expr], ...]
_RewriteArguments = tuple[tuple[Expr, ...], tuple[_Slot, ...] | None, _Axes]
"""Arguments of `_rewrite`: expressions, slots and replaced axes."""


def _slots(
    args: Sequence[tuple], results: Sequence[Sequence[int]], buffers: Sequence[KernelBuffer]
) -> tuple[_Slot, ...]:
    """Return the kernel-wide slot of each of a stage's arguments."""
    to: list[_Slot] = []
    for kind, *where in args:
        if kind == "stage":
            to.append((results[where[0]][where[1]], None, dt.i32))
        else:
            x = buffers[where[0]]
            first = next((d for d, n in enumerate(x.shape) if n != 1), 0)  # the indices of earlier dimensions are 0
            strides = (*x.strides[first : first + 1] * first, *x.strides[first:])
            to.append((where[0], strides, dt.i32 if x.size < 2**31 else dt.i64))
    return tuple(to)


def renumber(kernel: Kernel, stage: Stage, exprs: Sequence[Expr], axes: dict[int, Expr]) -> list[Expr]:
    """Rewrite expressions of a stage: replace axes, number slots for the whole kernel, and flatten reads."""
    results = _result_slots([s.outputs for s in kernel.stages], len(kernel.buffers))
    return list(_rewrite(tuple(exprs), _slots(stage.args, results, kernel.buffers), tuple(axes.items())))


@lru_cache(maxsize=8192)
def _rewrite(
    exprs: tuple[Expr, ...], slots: tuple[_Slot, ...] | None, axes: _Axes, replaced_later: _Axes = ()
) -> tuple[Expr, ...]:
    """Replace the axes, slots and indices of expressions; kernels that differ in their number of rows share the result.

    Args:
        exprs: The expressions.
        slots: New slot of each slot; None: slots stay, and reads are flat already.
        axes: Replacement of each axis.
        replaced_later: Replacements of the axes of the result, applied where offsets consist of axes alone.
    """
    first_axes, later_axes = dict(axes), dict(replaced_later)

    def slot_of(r: Read) -> _Slot:
        if slots is not None:
            return slots[r.slot]
        return r.slot, (1,) if r.index else None, r.index[0].dtype if r.index else dt.i32

    def rule(e):
        if isinstance(e, Axis):
            e = first_axes.get(e.position, e)
            return later_axes.get(e.position, e) if isinstance(e, Axis) else e
        if isinstance(e, Read):
            slot, strides, dtype = slot_of(e)
            return Read(slot, () if strides is None else (address(e.index, strides).expr(dtype),), e.dtype)
        return None

    rewritten_reads: dict[Expr, Expr] = {}
    for r in outer_reads(exprs):  # their indices hold no reads and need no rebuilding
        slot, strides, dtype = slot_of(r)
        flat = None if strides is None else address(r.index, strides).at(first_axes)
        flat = flat and flat.at(later_axes) if later_axes else flat
        if strides is None or flat is not None:
            rewritten_reads[r] = Read(slot, () if flat is None else (flat.expr(dtype),), r.dtype)
    return tuple(rebuild(exprs, rule, rewritten_reads))


def output_index(axis: int, offset: int, step: int, extent: int) -> Expr:
    """Return the expression of the output position `offset + step*axis`; the offset for an axis of one point."""
    if extent == 1:
        return Const(offset, dt.i32)
    out: Expr = Axis(axis)
    if step != 1:
        out = apply("mul", Const(step, dt.i32), out)
    return apply("add", out, Const(offset, dt.i32)) if offset else out


@lru_cache(maxsize=2048)
def _box(
    piece: Piece,
    args: tuple[tuple, ...],
    outputs: tuple[int | None, ...],
    later: tuple[Stage, ...],
    buffers: tuple[KernelBuffer, ...],
    limits: tuple[tuple[int, int], ...],
) -> Box:
    """Return the box of a piece of a root; kernels that differ in their other pieces share it.

    args, outputs: of the root's stage. later: the stages after it. buffers: of the kernel. limits: (axis, buffer) of
    axes that end at limits: axis 0 stays an axis of its own, others may be fused with axes inside of them."""
    rank, domain, bodies = len(piece.extents), piece.domain, piece.bodies
    combiner = piece.body.combiner if isinstance(piece.body, Reduce) else None
    if combiner is not None and not prod(domain[rank:]):
        bodies = tuple(Const(identity(combiner, e.dtype), e.dtype) for e in bodies)
        domain, combiner = piece.extents, None
    outputs_by_stage = [outputs, *(s.outputs for s in later)]
    results = _result_slots(outputs_by_stage, len(buffers))
    ones: dict[int, Expr] = {a: Const(0, dt.i32) for a, n in enumerate(domain) if n == 1}
    place = {d: output_index(d, piece.offset[d], piece.step[d], piece.extents[d]) for d in range(rank)}
    stage_exprs = [(bodies, args, ones), *((s.template.parts[0].bodies, s.args, place) for s in later)]
    stage_accesses = [
        _accesses(exprs, _slots(stage_args, results, buffers), axes, domain) for exprs, stage_args, axes in stage_exprs
    ]
    to_buffers = zip([s for members in results for s in members], [n for x in outputs_by_stage for n in x], strict=True)
    stores = [(slot, n, address(list(place.values()), buffers[n].strides)) for slot, n in to_buffers if n is not None]
    groups, replacements = _group_axes(
        domain, rank, [used for _, used in stage_accesses], [index for _, _, index in stores], dict(limits)
    )
    flat_stores = [
        (slot, n, at) for slot, n, index in stores if (at := index.at(replacements)) is not None
    ]  # all are sums of axes
    first, *stages = (_rewrite(*arguments, tuple(replacements.items())) for arguments, _ in stage_accesses)
    sizes = [(prod(domain[a] for a in g), g[0] < rank) for g in groups]
    return Box(
        tuple(n for n, out in sizes if out),
        tuple(n for n, out in sizes if not out),
        combiner,
        first,
        tuple(e for exprs in stages for e in exprs),
        tuple(slot for members in results for slot in members),
        tuple(flat_stores),
        tuple(b.size for b in buffers),
        tuple(
            (n, buffer, piece.offset[axis], prod(domain[a] for a in g[1:]))
            for n, g in enumerate(groups)
            for axis, buffer in limits
            if g[0] == axis
        ),
    )


def _accesses(
    exprs: tuple[Expr, ...], slots: tuple[_Slot, ...], axes: dict[int, Expr], domain: tuple[int, ...]
) -> tuple[_RewriteArguments, Uses]:
    """Return the arguments of `_rewrite` for expressions of a stage, and their `uses` in the piece's axes.

    axes: replacement of each axis of the stage. Where all offsets consist of axes alone, their uses follow without
    rewriting the expressions."""
    others, place = uses(exprs)[1], tuple(axes.items())
    rewrites_values = any(axes.get(a, Axis(a)) is not Axis(a) for a in others)  # offsets are in normal form
    read = [(r.index, slots[r.slot][1]) for r in outer_reads(exprs)]
    flats = [address(index, strides).at(axes) for index, strides in read if strides is not None]
    if not rewrites_values and None not in flats:
        return (exprs, slots, place), (tuple(f for f in flats if f), others)
    out = _rewrite(exprs, slots, place)
    out = tuple(simplified(e, domain) for e in out) if rewrites_values else out
    return (out, None, ()), uses(out)


simplified = lru_cache(maxsize=2048)(simplify)


def _group_axes(
    domain: Sequence[int], rank: int, used: Sequence[Uses], stores: Sequence[LinearForm], limited: Collection[int]
) -> tuple[list[list[int]], dict[int, Expr]]:
    """Group adjacent axes that every access runs through contiguously; return groups and each axis's replacement."""
    others = set().union(*(x for _, x in used))
    flats = [f for x, _ in used for f in x] + list(stores)

    def can_fuse(a: int, inner: FusedAxes) -> bool:
        fusable = (
            (a < rank) == (inner.inner < rank)
            and not (a == 0 and 0 in limited)
            and inner.axes[0] not in limited
            and a not in others
            and inner.inner not in others
        )
        return fusable and all(f.coefficient(Axis(a)) == f.coefficient(Axis(inner.inner)) * inner.extent for f in flats)

    groups = [list(g.axes) for g in fuse_axes(range(len(domain)), domain, can_fuse)]
    replacements: dict[int, Expr] = {}
    for g, members in enumerate(groups):
        replacements.update((a, Const(0, dt.i32)) for a in members[:-1])
        replacements[members[-1]] = Axis(g)
    return groups, replacements


# ------------------------------------------------------------------------------------------------------- analysis


def access_cost(flats: Sequence[LinearForm], axis: int, lanes: int, guarded: Collection = ()) -> float:
    """Return the estimated instructions per vector of these accesses, with the lanes along `axis`.

    guarded: keys of the offsets that are in bounds only where a guard holds."""
    out = 0.0
    along = Axis(axis)
    for f in flats:
        stride = abs(f.terms.get(along, 0))
        inside = [a for a in f.atoms if axis in axes_of(a)] if f.atoms else ()
        if inside:
            # Elements that may be out of bounds cannot be loaded in whole vectors and shuffled.
            masked = guarded and f.key in guarded
            simple = stride <= 1 and not masked and all(_has_few_runs(a, f.terms[a], lanes) for a in inside)
            repeated = stride == 0 and all(_repeats_per_vector(a, lanes) for a in inside)
            out += 0.6 if simple and repeated else 2.5 if simple else INSTRUCTIONS.gathered_lane * lanes
        elif stride == 0:
            out += INSTRUCTIONS.uniform
        elif stride > 4:
            out += INSTRUCTIONS.gathered_lane * lanes
        elif not guarded or f.key not in guarded:
            out += stride if stride == 1 else 1.5 * stride
        else:
            out += stride + INSTRUCTIONS.mask if stride == 1 else (1.5 + INSTRUCTIONS.strided_mask) * stride
    return out


def _has_few_runs(e: Expr, factor: int, lanes: int) -> bool:
    """Return whether a quotient or remainder, times `factor`, has consecutive or equal values in few runs of lanes."""
    if not (isinstance(e, Apply) and e.fn in ("floordiv", "mod") and isinstance(e.args[1], Const)):
        return False
    return abs(factor) <= 1 or (e.fn == "floordiv" and 4 * abs(int(e.args[1].value)) >= lanes)


def _repeats_per_vector(e: Expr, lanes: int) -> bool:
    """Return whether an expression is a remainder whose values repeat in every vector."""
    return isinstance(e, Apply) and e.fn == "mod" and isinstance(e.args[1], Const) and lanes % int(e.args[1].value) == 0


@lru_cache(maxsize=4096)
def square_tiles(box: Box, exprs: tuple[Expr, ...]) -> Mapping[tuple[int, int], Sequence[Read]]:
    """Return the reads that can be loaded as square tiles and transposed in registers, by (axis along, axis across).

    The reads are contiguous along the axis across, have a stride of 2 or more along the other one, and are in bounds at
    every point."""
    written = {buffer for _, buffer, _ in box.stores}
    extents = box.extents + box.reduce
    out: dict[tuple[int, int], list[Read]] = {}
    for e in cached_postorder(exprs):
        if not isinstance(e, Read) or not e.index or e.slot in written or e.dtype.is_bool:
            continue
        flat = linear(e.index[0])
        axes = [(a.position, c) for a, c in flat.terms.items() if isinstance(a, Axis)]
        pairs = [(along, across) for along, c in axes if abs(c) >= 2 for across, d in axes if d == 1]
        if pairs and leaves(flat, extents, box.sizes[e.slot]) is False:
            for pair in pairs:
                out.setdefault(pair, []).append(e)
    return out


def lane_utilization(extent: int, lanes: int) -> float:
    """Return the fraction of lanes that do work over an axis of `extent` points."""
    return extent / (-(-extent // lanes) * lanes)


FREE_FUNCTIONS = {"cast", "stop_gradient"}
"""Functions that are counted as no instruction."""


@lru_cache(maxsize=4096)
def operations(exprs: tuple[Expr, ...], target: Target, along: int | None = None) -> tuple[float, float]:
    """Return (vector instructions, special-function seconds) for one point of `exprs`, index arithmetic left out.

    along: an axis; only what depends on it counts, as LLVM evaluates the rest in front of a loop over it."""
    count, special = 0, 0.0
    values, varying = _values(exprs), None if along is None else _varying(exprs, along)
    for e in cached_postorder(exprs):
        if not isinstance(e, Apply) or e.fn in FREE_FUNCTIONS or (varying is not None and e not in varying):
            continue
        if e.fn == "random_bits":
            count += OPERATIONS
        elif e.dtype.is_int and e.fn != "where":
            count += _count_integer_instructions(e) if e in values else 0
        else:
            seconds = target.special(e.fn)
            special += seconds * e.dtype.arithmetic.itemsize / 4  # measured in f32, of which most fit a vector
            count += 0 if seconds else 1
    return count, special


def _varying(exprs: tuple[Expr, ...], axis: int) -> set[Expr]:
    """Return the expressions that depend on an axis of the outputs. A read without an index, of a stage's result, may
    do so."""
    out: set[Expr] = set()
    for e in cached_postorder(exprs):
        if e == Axis(axis) or (isinstance(e, Read) and not e.index) or not out.isdisjoint(e.args):
            out.add(e)
    return out


def _values(exprs: tuple[Expr, ...]) -> set[Expr]:
    """Return the expressions that depend on elements that are read, outside of indices."""
    reading: set[Expr] = set()
    for e in cached_postorder(exprs):
        if isinstance(e, Read) or not reading.isdisjoint(e.args):
            reading.add(e)
    out: set[Expr] = set()
    stack = [*exprs]
    while stack:
        e = stack.pop()
        if e in reading and e not in out:
            out.add(e)
            stack += () if isinstance(e, Read) else e.args
    return out


def _count_integer_instructions(e: Apply) -> int:
    """Return the vector instructions of a function of integers: a product is two, a word of points is put together by
    a shift and an `or` for each point after the first."""
    return 2 * (len(e.args) - 1) if e.fn == "pack" else 2 if e.fn == "mul" else 1


@lru_cache(maxsize=1024)
def lanes_of(kernel: Kernel, target: Target) -> int:
    """Return the lanes of a vector: of f32 if the kernel computes in 4 bytes, else of its least type above 1 byte."""
    sizes = {b.dtype.arithmetic.itemsize for b in kernel.buffers} - {1}
    return target.lanes(4 if 4 in sizes else min(sizes, default=4))


def vectors_per_second(target: Target) -> float:
    """Return the vector instructions that a core executes per second, for any element type."""
    return target.fma_per_second / target.lanes()


def function_name(pattern: str, kernel: Node, config: Any, launch: int = 0) -> str:
    """Return a function name that identifies the pattern, kernel, configuration and launch."""
    code = hashlib.blake2b(kernel.digest + repr(config).encode(), digest_size=6).hexdigest()
    return f"{pattern}_{code}_{launch}"
