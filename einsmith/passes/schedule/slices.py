"""Kernels that read or write some positions of dimension 0 of a tensor alone are given the slice of these.

before: L = sum[b, k]((h[127, b, k] - y[b, k])**2)      of a tensor h of 128 steps
after:  L = sum[b, k]((g[0, b, k] - y[b, k])**2)        of a tensor of one, which lies in h from h[127] on

So the last state of a sequence is read by the same kernel at every length.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith import dtypes as dt
from einsmith.expr.analysis.linear import linear
from einsmith.expr.nodes import Const, Piece, Read, Template, postorder
from einsmith.expr.rewrite.rebuild import map_bodies, rebuild
from einsmith.plan.kernel import Buffer, Kernel, Member, Rows, Stage

_Range = tuple[int, int] | None
"""The positions of dimension 0 that are touched, as (first, stop); None: all of them, or nobody knows."""


def sliced(kernel: Kernel | Rows) -> tuple[Kernel | Rows, tuple[int, ...]]:
    """(the kernel of slices, how many bytes into its tensor each buffer begins)."""
    count = len(kernel.buffers)
    if isinstance(kernel, Kernel):
        ranges = [_range(b.shape, [found]) for b, found in zip(kernel.buffers, _touched(kernel), strict=True)]
    else:
        by_member: list[list[list[tuple[int, int]] | None]] = [[] for _ in (*kernel.buffers, *kernel.local)]
        for m in kernel.members:
            for place, found in zip(m.places, _touched(m.kernel), strict=True):
                by_member[place].append(found)
        ranges = [_range(b.shape, touched) for b, touched in zip(kernel.buffers, by_member, strict=False)]
    if not any(ranges):
        return kernel, (0,) * count
    offsets = tuple(
        b.strides[0] * b.dtype.itemsize * r[0] if r else 0 for b, r in zip(kernel.buffers, ranges, strict=True)
    )
    if isinstance(kernel, Kernel):
        return _of_slices(kernel, ranges), offsets
    of = dict(enumerate(ranges))
    members = tuple(
        Member(_of_slices(m.kernel, [of.get(p) for p in m.places]), m.places, m.by_row, m.reduces, m.axis)
        for m in kernel.members
    )
    return Rows(kernel.rows, members, _buffers(kernel.buffers, ranges), kernel.local), offsets


def _touched(kernel: Kernel) -> list[list[tuple[int, int]] | None]:
    """For each buffer the ranges of positions that its reads and writes take; None where one is not known."""
    found: list[list[tuple[int, int]] | None] = [[] for _ in kernel.buffers]

    def touch(n: int, touched: list[tuple[int, int]] | None) -> None:
        known = found[n]
        if known is None or touched is None:
            found[n] = None
        else:
            known += touched

    for stage in kernel.stages:
        t = stage.template
        for n in dict.fromkeys(n for n in stage.outputs if n is not None):
            if t.is_scatter or not t.shape:
                touch(n, None)
                continue
            pieces = [p for p in t.parts if isinstance(p, Piece)]
            touch(n, [(p.offset[0], p.offset[0] + p.step[0] * (p.extents[0] - 1) + 1) for p in pieces])
        places = {s: a[1] for s, a in enumerate(stage.args) if a[0] == "buffer"}
        for e in postorder(b for p in t.parts for b in p.bodies) if places else ():
            if isinstance(e, Read) and e.slot in places:
                at = linear(e.index[0]) if e.index else None
                touch(places[e.slot], None if at is None or at.terms else [(at.const, at.const + 1)])
    return found


def _range(shape: tuple[int, ...], touched: Sequence[list[tuple[int, int]] | None]) -> _Range:
    """The slice of a buffer that holds all of these."""
    if any(x is None for x in touched):
        return None
    all_of = [r for x in touched if x for r in x]
    first, stop = min((a for a, _ in all_of), default=0), max((b for _, b in all_of), default=0)
    return (first, stop) if all_of and shape and stop - first < shape[0] else None


def _buffers(buffers: Sequence[Buffer], ranges: Sequence[_Range]) -> tuple[Buffer, ...]:
    return tuple(b.part(0, r[1] - r[0]) if r else b for b, r in zip(buffers, ranges, strict=True))


def _of_slices(kernel: Kernel, ranges: Sequence[_Range]) -> Kernel:
    buffers = _buffers(kernel.buffers, ranges)
    return Kernel(tuple(_stage(s, ranges, buffers) for s in kernel.stages), buffers, kernel.fixed)


def _stage(stage: Stage, ranges: Sequence[_Range], buffers: Sequence[Buffer]) -> Stage:
    t = stage.template
    first = {s: r[0] for s, a in enumerate(stage.args) if a[0] == "buffer" and (r := ranges[a[1]]) is not None}
    params = (
        (d, buffers[a[1]].shape if a[0] == "buffer" else shape)
        for (d, shape), a in zip(t.params, stage.args, strict=True)
    )

    def rule(e):
        if isinstance(e, Read) and e.slot in first:
            at = linear(e.index[0]).const - first[e.slot]
            return Read(e.slot, (Const(at, dt.i32), *e.index[1:]), e.dtype)
        return None

    t = map_bodies(t, lambda b: rebuild([b], rule)[0], params)
    for n in stage.outputs:
        r = None if n is None else ranges[n]
        if r is not None:
            parts = []
            for p in t.parts:
                assert isinstance(p, Piece)
                parts.append(Piece((p.offset[0] - r[0], *p.offset[1:]), p.step, p.extents, p.body))
            t = Template((r[1] - r[0], *t.shape[1:]), t.params, tuple(parts))
            break
    return Stage(t, stage.args, stage.outputs)
