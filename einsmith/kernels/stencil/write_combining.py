"""Store a stencil's results in whole cache lines where its rows are not whole lines (write combining).

Rows of 28 or 56 numbers begin anywhere in a cache line: stored one by one, a line is read from memory before a part of
it is written. But a plane of these rows is contiguous and may consist of whole lines. The plane is built in scratch,
and the lines that a tile completes are written by non-temporal stores:

    row 0   |aaaaaaaaaaaaaaaa|aaaaaaaaaaaa....|
    row 1   |............bbbb|bbbbbbbbbbbbbbbb|bbbbbbbb........|      after a tile of both rows: three lines leave
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.cost.facts import LINE, Target
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import Axis
from einsmith.kernels.contraction.epilogue import Epilogue
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.vector import VectorEmitter
from einsmith.kernels.stencil.terms import Stencil
from einsmith.schedule.kernel import Kernel

L2_SHARE = 3
"""Planes in scratch take at most this fraction (1 / SHARE) of L2, so that they do not evict data in use."""


def combined_buffers(kernel: Kernel, s: Stencil, target: Target) -> frozenset[int]:
    """Return the buffers whose planes are stored in whole cache lines by way of scratch."""
    shape, combined, size = kernel.root.shape, set(), 0
    if s.along_k or s.row != s.lane - 1:
        return frozenset()
    for n in {*kernel.outputs}:
        x = kernel.buffers[n]
        line = max(target.lanes(x.dtype.itemsize), LINE // x.dtype.itemsize)
        misaligned = shape[-1] % target.lanes(x.dtype.itemsize) and prod(shape[-2:]) % line == 0
        if x.non_temporal and misaligned and x.dtype == s.dtype and x.shape == shape and x.row_major:
            combined.add(n)
            size += prod(shape[-2:]) * x.dtype.itemsize
    return frozenset(combined) if size <= target.l2 // L2_SHARE else frozenset()


class PhasePlanes:
    """The scratch planes of the epilogue's results that go to `buffers` (see `combined_buffers`).

    A plane's place is that of the outer axes bound in `em`."""

    def __init__(self, em: VectorEmitter, kernel: Kernel, s: Stencil, epi: Epilogue, buffers: frozenset[int]):
        self.em, self.b, self.epi, self.lanes = em, em.b, epi, em.lanes
        first = kernel.buffers[min(buffers)]  # all of them are row-major
        self.plane, self.width = LinearForm(0, {Axis(a): first.strides[a] for a in s.outer}), first.shape[-1]
        self.elem, self.line = elem_of(s.dtype), max(em.lanes, LINE // s.dtype.itemsize)
        size = prod(first.shape[-2:])
        self.scratch = {i: em.b.alloc(self.elem, size) for i, n in enumerate(epi.outputs) if n in buffers}

    @property
    def base(self) -> SSAValue:
        """The offset (elements) of the current plane in its buffer."""
        return self.em.emit_uniform(self.plane)

    def put(self, rows: Sequence[tuple[LaneCursor, Sequence[SSAValue]]]) -> None:
        """Store the vectors of a row (from `Epilogue.values`) to scratch, or to their buffer if it is not combined."""
        b, epi = self.b, self.epi
        for at, values in rows:
            for i, value in enumerate(values):
                if i not in self.scratch:
                    at.store(i, b.buffers[epi.outputs[i]], value, epi.non_temporal[i])
                    continue
                place = b.sub(at.offset(epi.sampler.extra[i]), self.base)
                b.store(b.splat(value, self.lanes), self.scratch[i], place, at.vector_mask())

    def flush(self, first: SSAValue, end: SSAValue) -> None:
        """Stream the cache lines that rows first .. end - 1 complete; all lines before them are stored already."""
        b, n = self.b, self.lanes
        width, line = b.const(self.width), b.const(self.line)
        low, high = (b.mul(b.op("floordiv", b.mul(x, width), line), line) for x in (first, end))
        for i, scratch in self.scratch.items():
            pointer = b.buffers[self.epi.outputs[i]]
            with b.loop(low, high, step=self.line) as loop:
                for k in range(0, self.line, n):
                    at = b.add(loop.var, k)
                    b.stream(b.load(scratch, at, self.elem, n), pointer, b.add(self.base, at))
