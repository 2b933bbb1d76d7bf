"""Kernels whose buffers are not row-major: permuted dimensions, and gaps between rows, planes and elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from einsmith.schedule.kernel import Kernel, KernelBuffer, Member, Rows

Order = Callable[[int], Sequence[int]]
"""The dimensions of a tensor of so many, outer first, as they lie in memory."""


def in_order(rank: int) -> Sequence[int]:
    return range(rank)


def channels_last(rank: int) -> Sequence[int]:
    """Of images [batch, channels, rows, columns]; a matrix is transposed."""
    return (1, 0) if rank == 2 else (0, *range(2, rank), 1) if rank > 2 else range(rank)


def batch_inside(rank: int) -> Sequence[int]:
    """The first dimension after the second one, rows and columns as they were."""
    return (1, 0, *range(2, rank)) if rank > 2 else range(rank)


@dataclass(frozen=True)
class Layout:
    """`gap`: elements left free behind a row, a plane and so on; `apart`: from one element to the next."""

    name: str
    order: Order
    gap: int = 0
    apart: int = 1

    def buffer(self, x: KernelBuffer) -> KernelBuffer:
        strides, at = [0] * len(x.shape), self.apart
        for d in reversed(self.order(len(x.shape))):
            strides[d], at = at, at * x.shape[d] + self.gap
        return KernelBuffer(x.dtype, x.shape, x.non_temporal, tuple(strides))


LAYOUTS = (
    Layout("channels last", channels_last), Layout("batch inside", batch_inside), Layout("padded", in_order, 3),
    Layout("channels last, padded", channels_last, 5), Layout("apart", in_order, 0, 2),
)  # fmt: skip


def laid_out(kernel: Kernel, *layouts: Layout) -> Kernel:
    """The kernel with its buffers laid out so, in turn where there are several layouts. Of a Rows, buffers that all
    members see in one shape."""
    if not isinstance(kernel, Rows):
        found = (layouts[n % len(layouts)].buffer(x) for n, x in enumerate(kernel.buffers))
        return Kernel(kernel.stages, tuple(found), kernel.loop_invariant)
    shapes: dict[int, set[tuple[int, ...]]] = {n: {x.shape} for n, x in enumerate(kernel.buffers)}
    for m in kernel.members:
        for place, x in zip(m.places, m.kernel.buffers, strict=True):
            shapes.setdefault(place, set()).add(x.shape)

    def change(n: int, x: KernelBuffer) -> KernelBuffer:
        return layouts[n % len(layouts)].buffer(x) if n < len(kernel.buffers) and len(shapes[n]) == 1 else x

    members = []
    for m in kernel.members:
        buffers = tuple(change(place, x) for place, x in zip(m.places, m.kernel.buffers, strict=True))
        laid_kernel = Kernel(m.kernel.stages, buffers, m.kernel.loop_invariant)
        members.append(Member(laid_kernel, m.places, m.by_row, m.reduces, m.axis))
    own = tuple(change(n, x) for n, x in enumerate(kernel.buffers))
    return Rows(kernel.rows, tuple(members), own, kernel.local)
