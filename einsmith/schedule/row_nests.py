"""Nest row-block fusions: run the kernels of a block of rows in sweeps over another axis that they share.

before: for each block of rows i:  t[i,j] for all j;  then o[i] = sum[j](f(t[i,j]))
after:  for each block of rows i:  for each block of j:  t[i,j];  o[i] += f(t[i,j])

The kernels of a block are plain kernels, so that the rows of a nest are found as those of the graph are (`row_fusion`),
and a nest may itself be nested. A block of one row has no row axis: the rows of a batch of matrices are whole matrices,
inside of which the nest runs row by row (attention: batch and heads, then queries, then keys).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Axis, Const, Piece, Read, Reduce, Template, Tensor, leaf, nbytes
from einsmith.ir.rebuild import rebuild
from einsmith.schedule.kernel import Kernel, KernelBuffer, Member, Rows, Stage
from einsmith.schedule.row_blocks import block_kernel, inputs, partials, uses_number
from einsmith.schedule.row_fusion import RowPart, consistent_forms, join_forms, nested_forms

MIN_SWEEP_ROWS = 512
"""Fewest rows of a sweep inside of a block; fewer are a block themselves. More than the rows of any block, so
that nests end."""


class BlockKernel(NamedTuple):
    """A kernel that runs on each block of a row-block fusion.

    Attributes:
        kernel: the kernel, on the rows of a block.
        places: the memory of each of its buffers (`BlockPlaces`).
    """

    kernel: Kernel | Rows
    places: tuple[int, ...]


class BlockPlaces(NamedTuple):
    """Numbers of the memory that the kernels of a block use: the buffers of the Rows, its local buffers, from
    `accumulators[n]` on the results so far of reducing member n, one per result of its root, and at `number` the number
    of the block's first row."""

    accumulators: dict[int, int]
    number: int


@lru_cache(maxsize=1024)
def block_places(rows: Rows) -> BlockPlaces:
    """Return the numbers of the memory that the kernels of a block use."""
    accumulators: dict[int, int] = {}
    count = len(rows.buffers) + len(rows.local)
    for n, member in enumerate(rows.members):
        if member.reduces:
            accumulators[n] = count
            count += len(partials(member))
    return BlockPlaces(accumulators, count)


@lru_cache(maxsize=1024)
def block_kernels(rows: Rows, count: int, block: int, nested: bool) -> tuple[BlockKernel, ...]:
    """Return the kernels that run on `count` rows from a multiple of `block` on, in order: one for each member, or, if
    `nested`, joined into sweeps over another axis."""
    places = block_places(rows)
    out = []
    for n, member in enumerate(rows.members):
        kernel = block_kernel(member, count, block, len(rows.buffers))
        used = [*inputs(member)] if member.reduces else [*range(len(member.places))]
        at = [member.places[i] for i in used]
        if n in places.accumulators:
            own = range(places.accumulators[n], places.accumulators[n] + len(partials(member)))
            at += [*own, *own]
        if uses_number(member):
            at.append(places.number)
        if nested and block == 1:
            kernel = _drop_row(kernel, [member.by_row[i] for i in used], member)
        out.append(BlockKernel(kernel, tuple(at)))
    return _sweeps(out, len(rows.buffers), places) if nested else tuple(out)


def _drop_row(kernel: Kernel, by_row: Sequence[int], member: Member) -> Kernel:
    """Return a kernel on one row without its row axis, which is dimension `by_row[n]` - 1 of buffer n (0: it has none)
    and the member's axis of the output or of the reduction."""
    codes = [*by_row, *(0 for _ in kernel.buffers[len(by_row) :])]
    buffers = tuple(
        KernelBuffer(b.dtype, _drop(b.shape, c - 1), b.non_temporal, _drop(b.strides, c - 1)) if c else b
        for b, c in zip(kernel.buffers, codes, strict=True)
    )
    stages = []
    for n, stage in enumerate(kernel.stages):
        dims = [codes[where[0]] - 1 if kind == "buffer" else -1 for kind, *where in stage.args]
        if member.reduces:
            t = stage.template if n else _drop_reduction(stage.template, dims)
        else:
            dims = [member.axis if kind == "stage" else d for d, (kind, *_) in zip(dims, stage.args, strict=True)]
            t = _drop_output_axis(stage.template, member.axis, dims)
        stages.append(Stage(t, stage.args, stage.outputs))
    return Kernel(tuple(stages), buffers)


def _drop(values: tuple, n: int) -> tuple:
    return (*values[:n], *values[n + 1 :])


def _without_axis(bodies: Sequence, axis: int, dims: Sequence[int]) -> tuple:
    """Return expressions without axis `axis`, whose only coordinate is 0, and without dimension `dims[slot]` of each
    slot (-1: it keeps all)."""

    def rule(e):
        if isinstance(e, Axis) and e.position >= axis:
            return Const(0, dt.i32) if e.position == axis else Axis(e.position - 1)
        if isinstance(e, Read) and dims[e.slot] >= 0:
            return Read(e.slot, _drop(e.index, dims[e.slot]), e.dtype)
        return None

    return tuple(rebuild(bodies, rule))


def _params(t: Template, dims: Sequence[int]) -> tuple:
    return tuple((d, _drop(s, n) if n >= 0 else s) for (d, s), n in zip(t.params, dims, strict=True))


def _drop_output_axis(t: Template, axis: int, dims: Sequence[int]) -> Template:
    parts = []
    for p in t.parts:
        assert isinstance(p, Piece)
        bodies = _without_axis(p.bodies, axis, dims)
        body = Reduce(p.body.combiner, p.body.extents, bodies) if isinstance(p.body, Reduce) else bodies[0]
        parts.append(Piece(_drop(p.offset, axis), _drop(p.step, axis), _drop(p.extents, axis), body))
    return Template(_drop(t.shape, axis), _params(t, dims), tuple(parts))


def _drop_reduction(t: Template, dims: Sequence[int]) -> Template:
    p = t.parts[0]
    assert isinstance(p, Piece) and isinstance(p.body, Reduce)
    bodies = _without_axis(p.body.bodies, t.rank, dims)
    extents = p.body.extents[1:]
    body = Reduce(p.body.combiner, extents, bodies) if extents else bodies[0]
    return Template(t.shape, _params(t, dims), (Piece(p.offset, p.step, p.extents, body),))


# ---------------------------------------------------------------------------------------------------------- sweeps


def _sweeps(kernels: Sequence[BlockKernel], local: int, places: BlockPlaces) -> tuple[BlockKernel, ...]:
    """Return the kernels joined into sweeps over the number of rows that leaves the fewest bytes of local buffers
    between them.

    local: the places from this number on that are no accumulators are local to a block."""
    tensors: dict[int, Tensor] = {}
    results: dict[int, Tensor] = {}
    parts = []
    for kernel, at in kernels:
        assert isinstance(kernel, Kernel)
        written = {n for s in kernel.stages for n in s.outputs if n is not None}
        own = []
        for n, (place, b) in enumerate(zip(at, kernel.buffers, strict=True)):
            # An accumulator is read and written by one kernel, as two buffers.
            known = (
                results if n in written and place >= min(places.accumulators.values(), default=place + 1) else tensors
            )
            own.append(known.setdefault(place, leaf(b.shape, b.dtype)))
        parts.append(RowPart(kernel, tuple(own), tuple(n in written for n in range(len(at)))))
    place_of = {t: p for known in (tensors, results) for p, t in known.items()}
    candidates = {r for p in parts for r in nested_forms(p.kernel) if r >= MIN_SWEEP_ROWS}
    every = [(_crossing_bytes(groups, parts), -r, groups) for r in candidates for groups in [_groups(parts, r)]]
    if not every:
        return tuple(kernels)
    _, rows, groups = min(every, key=lambda x: x[:2])
    out = []
    for members in groups:
        if len(members) == 1:
            out.append(kernels[members[0]])
            continue
        own_parts = [parts[n] for n in members]
        forms = consistent_forms(own_parts, -rows, nested_forms)
        assert forms is not None
        elsewhere = {t for n, p in enumerate(parts) if n not in members for t in p.tensors}
        outside = {
            t for p in own_parts for t in p.results if t in elsewhere or not local <= place_of[t] < _end(local, places)
        }
        fused = join_forms(own_parts, -rows, forms, outside)
        out.append(BlockKernel(fused.kernel, tuple(place_of[t] for t in fused.tensors)))
    return tuple(out)


def _end(local: int, places: BlockPlaces) -> int:
    """Return the number after the last local place."""
    return min(places.accumulators.values(), default=places.number)


def _groups(parts: Sequence[RowPart], rows: int) -> list[list[int]]:
    """Return the parts in sweeps over `rows` rows, each as early as its operands permit, in a valid order."""
    groups: list[list[int]] = []
    group_of: dict[Tensor, int] = {}
    for n, part in enumerate(parts):
        needed = [group_of[t] for t in part.tensors if t in group_of]
        first = max(needed, default=0)
        for g in range(first, len(groups)):
            if consistent_forms([parts[m] for m in (*groups[g], n)], rows, nested_forms) is not None:
                break
        else:
            g = len(groups)
            groups.append([])
        groups[g].append(n)
        for t in part.results:
            group_of[t] = g
    return groups


def _crossing_bytes(groups: Sequence[Sequence[int]], parts: Sequence[RowPart]) -> int:
    """Return the bytes of the results that one sweep hands to another."""
    made = {t: g for g, members in enumerate(groups) for n in members for t in parts[n].results}
    crossing = {
        t for g, members in enumerate(groups) for n in members for t in parts[n].tensors if t in made and (made[t] != g)
    }
    return sum(map(nbytes, crossing))
