"""Run kernels in a second configuration too, into memory of their own, while a program runs unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np

from einsmith.ir.nodes import Reduce
from einsmith.runtime.arena import Allocate, Block, host
from einsmith.runtime.assemble import SideRun
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel, KernelBuffer, MemberKernel

ZONE_BYTE, ZONE_BYTES = 0xA5, 4096
"""Byte that fills the zones before and behind a result, so that a write there is noticed, and bytes of a zone."""
MIN_WORKSPACE_BYTES = 64
"""Fewest bytes that are allocated for a workspace."""
ROUNDINGS = 64.0
"""Most roundings by which two orders of a sum may differ, relative to the largest result, for each square root of the
number of terms. Between two orders of sums of 4,000 random terms they are less than 4. Where all results are the
remainder of terms that cancel, two correct configurations may be taken to differ; the only loss is the second
configuration."""
WINOGRAD_FACTOR = 64.0
"""Factor by which Winograd's form rounds more."""


class Comparison:
    """A kernel in its own and in another configuration, which both run before the program's own kernel. Their results
    on equal inputs are compared after a run; in a loop, or for a kernel that is called several times, after the last
    turn. allocate: the allocator of the program's back end."""

    def __init__(self, kernel: Kernel, own: CompiledKernel, other: CompiledKernel, allocate: Allocate = host):
        self.kernel, self.other = kernel, other
        self.written = list_written_buffers(kernel)
        self.results: list[list[Block]] = []
        self.workspaces: list[Block] = []
        self.ways: list[SideRun] = []
        for compiled in (own, other):
            blocks = [allocate(kernel.buffers[n].nbytes + 2 * ZONE_BYTES) for n in self.written]
            workspace = allocate(max(MIN_WORKSPACE_BYTES, compiled.workspace))
            self.results.append(blocks)
            self.workspaces.append(workspace)
            places = {n: b.address + ZONE_BYTES for n, b in zip(self.written, blocks, strict=True)}
            self.ways.append(SideRun(compiled, places, workspace.address))
        self.clear()

    def clear(self) -> None:
        """Reset the memory of both configurations to equal content."""
        for block in (x for blocks in self.results for x in blocks):
            content = np.full(block.nbytes, ZONE_BYTE, np.uint8)
            content[ZONE_BYTES:-ZONE_BYTES] = 0
            block.write(content)

    def difference(self) -> str:
        """Return in words how the other configuration's results are wrong; empty where they are correct."""
        terms = max((prod(b.extents) for b in _reductions(self.kernel)), default=1)
        for n, *blocks in zip(self.written, *self.results, strict=True):
            buffer, own, other = self.kernel.buffers[n], *(b.read() for b in blocks)
            if (other[:ZONE_BYTES] != ZONE_BYTE).any() or (other[-ZONE_BYTES:] != ZONE_BYTE).any():
                return f"memory beside buffer {n} is written"
            x, y = (a[ZONE_BYTES:-ZONE_BYTES].view(buffer.dtype.numpy) for a in (own, other))
            if fault := self._differ(x, y, buffer, terms):
                return f"buffer {n}: {fault}"
        return ""

    def _differ(self, x: np.ndarray, y: np.ndarray, buffer: KernelBuffer, terms: int) -> str:
        dtype = buffer.dtype
        if not dtype.is_float:
            near_ties = any(b.combiner.startswith("arg") for b in _reductions(self.kernel))  # fall to either side
            wrong = np.zeros(x.shape, bool) if near_ties else x != y
        else:
            with np.errstate(all="ignore"):
                x, y = dtype.wide(x), dtype.wide(y)
                largest = np.abs(np.where(np.isfinite(x), x, 0)).max(initial=dtype.tiny)
                unit = ROUNDINGS * sqrt(terms) * dtype.arithmetic.eps
                unit *= self.other.rounding * (WINOGRAD_FACTOR if self.other.pattern == "winograd" else 1.0)
                unit += 2 * dtype.eps if dtype.in_memory_only else 0.0
                wrong = ~((np.abs(x - y) <= unit * largest) | (x == y) | (np.isnan(x) & np.isnan(y)))
        if not wrong.any():
            return ""
        at = int(np.argmax(wrong))
        got, expected = y[at].item(), x[at].item()
        return f"{int(wrong.sum())} of {wrong.size} elements differ, the first is {got!r}, not {expected!r}"


def scratch_bytes(kernel: Kernel, own: CompiledKernel, other: CompiledKernel) -> int:
    """Return the bytes of memory that a Beside needs."""
    results = sum(kernel.buffers[n].nbytes + 2 * ZONE_BYTES for n in list_written_buffers(kernel))
    return 2 * results + sum(max(MIN_WORKSPACE_BYTES, compiled.workspace) for compiled in (own, other))


def list_written_buffers(kernel: Kernel) -> tuple[int, ...]:
    """Return the numbers of the buffers that a kernel stores to."""
    if isinstance(kernel, MemberKernel):
        places = (m.places[n] for m in kernel.members for n in list_written_buffers(m.kernel))
        return tuple(sorted({n for n in places if n < len(kernel.buffers)}))
    return tuple(sorted({*kernel.outputs}))


def _reductions(kernel: Kernel) -> Sequence[Reduce]:
    bodies = (getattr(p, "body", None) for s in kernel.stages for p in s.template.parts)
    return [b for b in bodies if isinstance(b, Reduce)]
