"""Kernels that read or write some positions of dimension 0 of a tensor alone are given the slice of these.

before: L = sum[b, k]((h[127, b, k] - y[b, k])**2)      of a tensor h of 128 steps
after:  L = sum[b, k]((g[0, b, k] - y[b, k])**2)        of a tensor of one, which lies in h from h[127] on

So the last state of a sequence is read by the same kernel at every length.
"""

from __future__ import annotations

from einsmith import dtypes as dt
from einsmith.expr.kernel import Buffer, Kernel, Stage
from einsmith.expr.linear import linear
from einsmith.expr.nodes import Const, Piece, Read, Template, nbytes, postorder
from einsmith.expr.rewrite import map_bodies, rebuild


def sliced(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    """(the kernel of slices, how many bytes into its tensor each buffer begins)."""
    ranges = [_range(kernel, n) for n in range(len(kernel.buffers))]
    if not any(ranges):
        return kernel, (0,) * len(ranges)
    shapes = [(r[1] - r[0], *b.shape[1:]) if r else b.shape for b, r in zip(kernel.buffers, ranges, strict=True)]
    stages = tuple(_stage(s, ranges, shapes) for s in kernel.stages)
    buffers = tuple(Buffer(b.dtype, shape, b.far) for b, shape in zip(kernel.buffers, shapes, strict=True))
    offsets = tuple(nbytes(b) // b.shape[0] * r[0] if r else 0 for b, r in zip(kernel.buffers, ranges, strict=True))
    return Kernel(stages, buffers, kernel.fixed), offsets


def _range(kernel: Kernel, n: int) -> tuple[int, int] | None:
    """The positions of dimension 0 of a buffer that the kernel touches; None where they are all, or not known."""
    lows: list[int] = []
    ends: list[int] = []
    for stage in kernel.stages:
        t = stage.template
        if n in stage.outputs:
            if t.is_scatter or not t.shape:
                return None
            lows += [p.offset[0] for p in t.parts if isinstance(p, Piece)]
            ends += [p.offset[0] + p.step[0] * (p.extents[0] - 1) + 1 for p in t.parts if isinstance(p, Piece)]
        slots = {s for s, a in enumerate(stage.args) if a == ("buffer", n)}
        for e in postorder(b for p in t.parts for b in p.bodies) if slots else ():
            if isinstance(e, Read) and e.slot in slots:
                at = linear(e.index[0]) if e.index else None
                if at is None or at.terms:
                    return None
                lows.append(at.const)
                ends.append(at.const + 1)
    if not lows or max(ends) - min(lows) >= kernel.buffers[n].shape[0]:
        return None
    return min(lows), max(ends)


def _stage(stage: Stage, ranges: list[tuple[int, int] | None], shapes: list[tuple[int, ...]]) -> Stage:
    t = stage.template
    first = {s: r[0] for s, a in enumerate(stage.args) if a[0] == "buffer" and (r := ranges[a[1]]) is not None}
    params = tuple(
        (d, shapes[a[1]] if a[0] == "buffer" else shape)
        for (d, shape), a in zip(t.params, stage.args, strict=True)
    )  # fmt: skip

    def rule(e):
        if isinstance(e, Read) and e.slot in first:
            at = linear(e.index[0]).const - first[e.slot]
            return Read(e.slot, (Const(at, dt.i32), *e.index[1:]), e.dtype)
        return None

    t = map_bodies(t, lambda b: rebuild([b], rule)[0], params)
    written = [r for n in stage.outputs if n is not None and (r := ranges[n]) is not None]
    if written:
        (low, end) = written[0]
        parts = []
        for p in t.parts:
            assert isinstance(p, Piece)
            parts.append(Piece((p.offset[0] - low, *p.offset[1:]), p.step, p.extents, p.body))
        t = Template((end - low, *t.shape[1:]), t.params, tuple(parts))
    return Stage(t, stage.args, stage.outputs)
