"""Storing a stencil's results in whole lines where its rows are none.

Rows of 28 or 56 numbers begin anywhere in a line: stored one by one, a line of memory is read before a part of it is
written. But a plane of such rows may be whole lines, and is contiguous. It is made in scratch, and the lines that a
tile completes go past the caches:

    row 0   |aaaaaaaaaaaaaaaa|aaaaaaaaaaaa....|
    row 1   |............bbbb|bbbbbbbbbbbbbbbb|bbbbbbbb........|      after a tile of both rows: three lines leave
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from einsmith.expr.analysis.linear import LinearForm
from einsmith.expr.nodes import Axis
from einsmith.kernels.contraction.epilogue import Epilogue
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.vector import VectorEmitter
from einsmith.kernels.stencil.terms import Stencil
from einsmith.loops.nest import SSAValue, elem_of
from einsmith.plan.kernel import Kernel
from einsmith.target.facts import LINE, Target

SHARE = 3
"""Planes that wait take at most one part in so many of the second level: lines that have left push none of use out."""


def gathered(kernel: Kernel, s: Stencil, target: Target) -> frozenset[int]:
    """The buffers whose planes are stored in whole lines by way of scratch."""
    shape, found, size = kernel.root.shape, set(), 0
    if s.along_k or s.row != s.lane - 1:
        return frozenset()
    for n in {n for stage in kernel.stages for n in stage.outputs if n is not None}:
        x = kernel.buffers[n]
        line = max(target.lanes(x.dtype.itemsize), LINE // x.dtype.itemsize)
        parted = shape[-1] % target.lanes(x.dtype.itemsize) and prod(shape[-2:]) % line == 0
        if x.far and parted and x.dtype == s.dtype and x.shape == shape and x.row_major:
            found.add(n)
            size += prod(shape[-2:]) * x.dtype.itemsize
    return frozenset(found) if size <= target.l2 // SHARE else frozenset()


class PhasePlanes:
    """Emission, for the results of an epilogue that go to `buffers` (`gathered`), at the outer axes' places in `em`."""

    def __init__(self, em: VectorEmitter, kernel: Kernel, s: Stencil, epi: Epilogue, buffers: frozenset[int]):
        self.em, self.b, self.epi, self.lanes = em, em.b, epi, em.lanes
        first = kernel.buffers[min(buffers)]  # all of them are row-major
        self.plane, self.width = LinearForm(0, {Axis(a): first.strides[a] for a in s.outer}), first.shape[-1]
        self.elem, self.line = elem_of(s.dtype), max(em.lanes, LINE // s.dtype.itemsize)
        size = prod(first.shape[-2:])
        self.scratch = {i: em.b.alloc(self.elem, size) for i, n in enumerate(epi.outputs) if n in buffers}

    @property
    def base(self) -> SSAValue:
        """Where the plane begins."""
        return self.em.shared(self.plane)

    def put(self, rows: Sequence[tuple[LaneCursor, Sequence[SSAValue]]]) -> None:
        """The vectors of a row (`Epilogue.values`)."""
        b, epi = self.b, self.epi
        for at, values in rows:
            for i, value in enumerate(values):
                if i not in self.scratch:
                    at.store(i, b.buffers[epi.outputs[i]], value, epi.far[i])
                    continue
                place = b.sub(at.offset(epi.sampler.extra[i]), self.base)
                mask = None if at.mask is None else b.splat(at.mask, self.lanes)
                b.store(b.splat(value, self.lanes), self.scratch[i], place, mask)

    def flush(self, first: SSAValue, end: SSAValue) -> None:
        """What rows first .. end - 1 complete of lines, those before being stored."""
        b, n = self.b, self.lanes
        width, line = b.const(self.width), b.const(self.line)
        low, high = (b.mul(b.op("floordiv", b.mul(x, width), line), line) for x in (first, end))
        for i, scratch in self.scratch.items():
            pointer = b.buffers[self.epi.outputs[i]]
            with b.loop(low, high, step=self.line) as loop:
                for k in range(0, self.line, n):
                    at = b.add(loop.var, k)
                    b.stream(b.load(scratch, at, self.elem, n), pointer, b.add(self.base, at))
