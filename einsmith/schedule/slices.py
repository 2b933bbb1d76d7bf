"""Narrow kernel buffers to the slice of a tensor that the kernel touches.

before: L = sum[b, k]((h[127, b, k] - y[b, k])**2)      of a tensor h of 128 steps
after:  L = sum[b, k]((g[0, b, k] - y[b, k])**2)        of a tensor of one, which lies in h from h[127] on

The last state of a sequence is then read by the same kernel at every length, and kernels that read different parts of a
tensor are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Const, Expr, Piece, Read, Template, postorder, reads
from einsmith.ir.rebuild import map_reads, whole_piece
from einsmith.schedule.kernel import Kernel, KernelBuffer, Member, Rows, Stage
from einsmith.schedule.plan import KernelCall

_Range = tuple[int, int] | None
"""The positions of a dimension that are touched, as (first, stop); None: all of them, or not known."""
_Slice = Sequence[_Range]
"""The positions of a buffer that are touched, by dimension."""


def slice_kernel(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    """Return (the kernel of slices, the byte of its tensor at which each buffer begins)."""
    kernels = [m.kernel for m in kernel.members] if isinstance(kernel, Rows) else [kernel]
    if not any(s.template.memo("touches part", _touches_part) for k in kernels for s in k.stages):
        return kernel, (0,) * len(kernel.buffers)
    if not isinstance(kernel, Rows):
        slices = [_slice(b.shape, [positions]) for b, positions in zip(kernel.buffers, _positions(kernel), strict=True)]
    else:
        every = (*kernel.buffers, *kernel.local)
        by_member: list[list[list[_Slice]]] = [[] for _ in every]
        for m in kernel.members:
            for place, b, row, positions in zip(
                m.places, m.kernel.buffers, m.by_row, _positions(m.kernel), strict=True
            ):
                by_member[place].append(
                    [_drop_row(x, row) for x in positions] if b.shape == every[place].shape else [()]
                )
        slices = [_slice(b.shape, touched) for b, touched in zip(kernel.buffers, by_member, strict=False)]
    if not any(any(x) for x in slices):
        return kernel, (0,) * len(kernel.buffers)
    offsets = tuple(
        sum(n * r[0] for n, r in zip(b.strides, x, strict=False) if r) * b.dtype.itemsize
        for b, x in zip(kernel.buffers, slices, strict=True)
    )
    if not isinstance(kernel, Rows):
        return _slice_buffers(kernel, slices), offsets
    of: dict[int, _Slice] = dict(enumerate(slices))
    members = tuple(
        Member(_slice_buffers(m.kernel, [of.get(p, ()) for p in m.places]), m.places, m.by_row, m.reduces, m.axis)
        for m in kernel.members
    )
    return Rows(
        kernel.rows, members, _narrow_all(kernel.buffers, slices), kernel.local, None, kernel.takes_sums
    ), offsets


def _touches_part(t: Template) -> bool:
    """Return whether a template reads at a fixed position of a dimension, or may write only a part of its result."""
    part = whole_piece(t)
    return part is None or any(not linear(i).terms for b in part.bodies for e in reads(b) for i in e.index)


def _positions(kernel: Kernel) -> list[list[_Slice]]:
    """Return, for each buffer, the positions that each read and write of the kernel touches."""
    positions: list[list[_Slice]] = [[] for _ in kernel.buffers]
    for stage in kernel.stages:
        t = stage.template
        for n in dict.fromkeys(n for n in stage.outputs if n is not None):
            if t.is_scatter:
                positions[n].append((None,) * len(t.shape))
                continue
            for p in t.parts:
                assert isinstance(p, Piece)
                places = zip(p.offset, p.step, p.extents, strict=True)
                positions[n].append([(o, o + s * (e - 1) + 1) for o, s, e in places])
        places_of = {s: a[1] for s, a in enumerate(stage.args) if a[0] == "buffer"}
        for e in postorder(b for p in t.parts for b in p.bodies) if places_of else ():
            if isinstance(e, Read) and e.slot in places_of:
                at = [linear(i) for i in e.index]
                positions[places_of[e.slot]].append([None if x.terms else (x.const, x.const + 1) for x in at])
    return positions


def _slice(shape: tuple[int, ...], touched: Iterable[list[_Slice]]) -> _Slice:
    """Return the part of a buffer that holds all given positions; positions without dimensions mean the whole
    buffer."""
    every = [x for positions in touched for x in positions]
    return tuple(_range(n, [x[d] for x in every]) for d, n in enumerate(shape)) if all(every) else ()


def _drop_row(touched: _Slice, row: int) -> _Slice:
    """Return the positions without those of the row dimension (see `schedule.kernel.Member.by_row`), in which a kernel
    may be at any row."""
    return [None if row and d == row - 1 else r for d, r in enumerate(touched)]


def _range(n: int, touched: Sequence[_Range]) -> _Range:
    """Return the smallest range of a dimension of extent n that holds all given ranges; None if that is all of it."""
    known = [r for r in touched if r is not None]
    if not known or len(known) < len(touched):
        return None
    first, stop = min(a for a, _ in known), max(b for _, b in known)
    return (first, stop) if stop - first < n else None


def _narrow(b: KernelBuffer, ranges: _Slice) -> KernelBuffer:
    for d, r in enumerate(ranges):
        b = b.part(d, r[1] - r[0]) if r else b
    return b


def _narrow_all(buffers: Sequence[KernelBuffer], slices: Sequence[_Slice]) -> tuple[KernelBuffer, ...]:
    return tuple(_narrow(b, x) if any(x) else b for b, x in zip(buffers, slices, strict=True))


def _slice_buffers(kernel: Kernel, slices: Sequence[_Slice]) -> Kernel:
    buffers = _narrow_all(kernel.buffers, slices)
    return Kernel(tuple(_slice_stage(s, slices, buffers) for s in kernel.stages), buffers, kernel.loop_invariant)


def _slice_stage(stage: Stage, slices: Sequence[_Slice], buffers: Sequence[KernelBuffer]) -> Stage:
    t = stage.template
    of = {s: x for s, a in enumerate(stage.args) if a[0] == "buffer" and any(x := slices[a[1]])}
    params = (
        (d, buffers[a[1]].shape if a[0] == "buffer" else shape)
        for (d, shape), a in zip(t.params, stage.args, strict=True)
    )

    def rule(e: Read) -> Read | None:
        return Read(e.slot, tuple(map(_shift, e.index, of[e.slot])), e.dtype) if e.slot in of else None

    t = map_reads(t, rule, params)
    for n in stage.outputs:
        if n is not None and any(ranges := slices[n]):
            first = [r[0] if r else 0 for r in ranges]
            parts = []
            for p in t.parts:
                assert isinstance(p, Piece)
                offset = tuple(o - f for o, f in zip(p.offset, first, strict=True))
                parts.append(Piece(offset, p.step, p.extents, p.body))
            t = Template(buffers[n].shape, t.params, tuple(parts))
            break
    return Stage(t, stage.args, stage.outputs)


def _shift(i: Expr, r: _Range) -> Expr:
    """Return a constant index counted from the beginning of the slice."""
    return Const(linear(i).const - r[0], dt.i32) if r else i


def slice_call(call: KernelCall) -> KernelCall:
    """Return the call with each buffer narrowed to the part of its tensor that the kernel touches."""
    kernel, offsets = slice_kernel(call.kernel)
    return replace(call, kernel=kernel, offsets=offsets)
