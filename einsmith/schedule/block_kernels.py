"""Cut the kernels of members to a block of rows: leave out what is not read, and axes of one point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Axis, Const, Expr, Piece, Read, Reduce, Template
from einsmith.ir.rebuild import map_bodies, rebuild
from einsmith.schedule.kernel import Kernel, KernelBuffer, Member, Stage
from einsmith.schedule.row_blocks import stage_apart
from einsmith.schedule.row_forms import reads_of


class BlockKernel(NamedTuple):
    """A kernel that runs on each block of a row-block fusion.

    Attributes:
        kernel: the kernel, on the rows of a block.
        places: the memory of each of its buffers (`BlockPlaces`).
    """

    kernel: Kernel
    places: tuple[int, ...]


def drop_unread(kernel: Kernel, places: Sequence[int]) -> BlockKernel:
    """Return a kernel without the arguments that it does not read: a subexpression that is shared leaves some behind,
    which would seem to be needed in another way than they are."""
    stages, used = [], set[int]()
    for stage in kernel.stages:
        t = stage.template
        slots = sorted({e.slot for e in reads_of(t)})
        if len(slots) < len(t.params):
            number = {s: n for n, s in enumerate(slots)}
            t = map_bodies(t, partial(_renumber_slots, number), [t.params[s] for s in slots])
        args = tuple(stage.args[s] for s in slots)
        stages.append(Stage(t, args, stage.outputs))
        used.update(where[0] for kind, *where in args if kind == "buffer")
        used.update(n for n in stage.outputs if n is not None)
    kept = sorted(used)
    at = {n: k for k, n in enumerate(kept)}
    stages = [
        Stage(
            s.template,
            tuple((kind, at[where[0]]) if kind == "buffer" else (kind, *where) for kind, *where in s.args),
            tuple(None if n is None else at[n] for n in s.outputs),
        )
        for s in stages
    ]
    return BlockKernel(Kernel(tuple(stages), tuple(kernel.buffers[n] for n in kept)), tuple(places[n] for n in kept))


def _renumber_slots(number: Mapping[int, int], body: Expr) -> Expr:
    return rebuild([body], lambda e: Read(number[e.slot], e.index, e.dtype) if isinstance(e, Read) else None)[0]


def drop_row(kernel: Kernel, by_row: Sequence[int], member: Member) -> Kernel:
    """Return a kernel on one row without its row axis, which is dimension `by_row[n]` - 1 of buffer n (0: it has none)
    and the member's axis of the output or of the reduction."""
    codes = [*by_row, *(0 for _ in kernel.buffers[len(by_row) :])]
    buffers = tuple(
        KernelBuffer(b.dtype, _drop(b.shape, c - 1), b.non_temporal, _drop(b.strides, c - 1)) if c else b
        for b, c in zip(kernel.buffers, codes, strict=True)
    )
    stages = []
    every_dims = [[codes[where[0]] - 1 if kind == "buffer" else -1 for kind, *where in s.args] for s in kernel.stages]
    if member.reduces:
        root, *later = kernel.stages
        parts = _drop_reduction(root.template, every_dims[0])
        apart = len(parts) > 1
        outputs = [(n,) for n in root.outputs] if apart else [root.outputs]
        stages += [Stage(t, root.args, n) for t, n in zip(parts, outputs, strict=True)]
        for stage in later:
            args = tuple(
                stage_apart(len(parts), *at) if apart and kind == "stage" else (kind, *at) for kind, *at in stage.args
            )
            stages.append(Stage(stage.template, args, stage.outputs))
    else:
        for stage, own in zip(kernel.stages, every_dims, strict=True):
            dims = [member.axis if kind == "stage" else d for d, (kind, *_) in zip(own, stage.args, strict=True)]
            stages.append(Stage(_drop_output_axis(stage.template, member.axis, dims), stage.args, stage.outputs))
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


def _drop_reduction(t: Template, dims: Sequence[int]) -> list[Template]:
    """Return a reduction without its first axis, whose extent is 1: one template, or, if no other axis is reduced, one
    for each result."""
    p = t.parts[0]
    assert isinstance(p, Piece) and isinstance(p.body, Reduce)
    bodies = _without_axis(p.body.bodies, t.rank, dims)
    extents = p.body.extents[1:]
    roots: list[Reduce | Expr] = [Reduce(p.body.combiner, extents, bodies)] if extents else [*bodies]
    if not extents and p.body.combiner.startswith("arg"):
        roots.append(Const(0, p.body.dtypes[1]))  # the position of the only value
    return [Template(t.shape, _params(t, dims), (Piece(p.offset, p.step, p.extents, body),)) for body in roots]
