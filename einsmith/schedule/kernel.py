"""Define kernels, which fusion makes and patterns lower: stages that share one output box, or a loop over rows."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from math import prod
from typing import Any

from einsmith.base.dtypes import DType
from einsmith.base.errors import VerifyError
from einsmith.ir.interned import Node
from einsmith.ir.nodes import Apply, Axis, Expr, Reduce, Template, axes_of, size
from einsmith.ir.rebuild import operands

_MAX_REUSE = {"sum": 1.5}
"""Largest ratio of a kernel's points to the elements of its largest tensor, by combiner (16 for combiners that are not
listed). A kernel above it reuses its operands and is tiled alone: a product, even of width 2 (points in a plane), a
convolution."""


@lru_cache(maxsize=4096)
def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides (elements) of a dense tensor whose last dimension is contiguous."""
    return tuple([prod(shape[d + 1 :]) for d in range(len(shape))])


def _strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides in normal form.

    No address depends on the stride of a dimension of one point; it becomes the extent times the stride of the
    dimension after it.

    Raises:
        VerifyError: their number is wrong, or elements would share an address."""
    if len(strides) != len(shape):
        raise VerifyError(f"a buffer of {len(shape)} dimensions has {len(shape)} strides, not {len(strides)}")
    if 0 in shape:
        return row_major(shape)
    out: list[int] = []
    after = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        out.append(after if n == 1 else s)
        after = out[-1] * n
    out.reverse()
    reach = 0
    for s, n in sorted((s, n) for s, n in zip(out, shape, strict=True) if n > 1):
        if s <= reach:
            raise VerifyError(f"elements of a buffer of shape {shape} share addresses at the strides {strides}")
        reach += s * (n - 1)
    return tuple(out)


class KernelBuffer(Node):
    """An argument of a kernel: a tensor of `dtype` and `shape` with `strides` (elements; None: row-major).

    Dimensions may be permuted and padded. A stride is positive and larger than the reach of all smaller strides
    together; else KernelBuffer(...) raises VerifyError.

    non_temporal: the buffer is only written, begins on a cache line, and is too large to stay in a cache, so that its
    stores may be non-temporal. size: elements that it spans in memory, from its first one to its last.
    """

    __slots__ = ("dtype", "shape", "non_temporal", "strides", "size")
    fields = ("dtype", "shape", "non_temporal", "strides")
    exact = True
    dtype: DType
    shape: tuple[int, ...]
    non_temporal: bool
    strides: tuple[int, ...]
    size: int

    def __new__(
        cls, dtype: DType, shape: tuple[int, ...], non_temporal: bool = False, strides: tuple[int, ...] | None = None
    ) -> KernelBuffer:
        where = row_major(shape) if strides is None else _strides(shape, strides)
        return super().__new__(cls, dtype, shape, bool(non_temporal), where)

    def _derive(self) -> None:
        last = sum([(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)])
        self._set("size", 0 if 0 in self.shape else last + 1)

    @property
    def nbytes(self) -> int:
        """Bytes that the buffer spans in memory."""
        return self.size * self.dtype.itemsize

    @property
    def row_major(self) -> bool:
        """True if the buffer is dense and its last dimension contiguous."""
        return self.strides == row_major(self.shape)

    @property
    def flat(self) -> KernelBuffer:
        """The buffer's whole span as a tensor of one dimension."""
        return KernelBuffer(self.dtype, (self.size,), self.non_temporal)

    def part(self, axis: int, count: int, non_temporal: bool | None = None) -> KernelBuffer:
        """Return a view of `count` positions along a dimension, at the same strides; non_temporal: None keeps
        the buffer's."""
        shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        return KernelBuffer(
            self.dtype, shape, self.non_temporal if non_temporal is None else non_temporal, self.strides
        )

    def split(self, axis: int, low: int) -> KernelBuffer:
        """Return a view with dimension `axis` split in two, the second of which has `low` points."""
        (n, s), shape, strides = (self.shape[axis], self.strides[axis]), self.shape, self.strides
        shape = (*shape[:axis], n // low, low, *shape[axis + 1 :])
        return KernelBuffer(self.dtype, shape, self.non_temporal, (*strides[:axis], low * s, s, *strides[axis + 1 :]))


class Stage(Node):
    """One template of a kernel, with its arguments and outputs.

    `args[slot]` is ("buffer", n) for the kernel's buffer n, or ("stage", i, member) for a result of an earlier stage,
    which is read at the identity index only; the root, as the first stage, has buffers alone.
    `outputs[member]` is the buffer that the result is stored to, or None.
    """

    __slots__ = ("template", "args", "outputs")
    fields = ("template", "args", "outputs")
    exact = True
    template: Template
    args: tuple[tuple, ...]
    outputs: tuple[int | None, ...]


class EpilogueSum(Node):
    """A sum over output axes of a kernel, of values that its epilogue has at hand (`schedule.summed`).

    stage: the pointwise stage whose result is summed. kept: the output axes of the sum, which goes over all others.
    centred: the mean and the sum of squared deviations from it are computed instead, from those of parts (Chan, Golub
    and LeVeque 1983).
    """

    __slots__ = ("stage", "kept", "centred")
    fields = ("stage", "kept", "centred")
    exact = True
    stage: int
    kept: tuple[int, ...]
    centred: bool

    def __new__(cls, stage: int, kept: tuple[int, ...], centred: bool) -> EpilogueSum:
        return super().__new__(cls, stage, kept, bool(centred))


class Kernel(Node):
    """A fused kernel: a root stage and an epilogue of pointwise stages, over buffers.

    Stage 0, the root, is any template. The later stages (the epilogue) are pointwise templates of one piece over the
    root's output shape; they read the root and each other at the identity index, and buffers at any index.

    A written buffer may be the same memory as a read one only where every read of the latter is at the identity index;
    an element is read before it is written. Where they are one buffer, the root is a scatter whose initial value reads
    the buffer at the identity index.

    loop_invariant: the kernel is a step of a loop, and these buffers are loop-invariant, so that values computed from
    them alone can be computed once. None: the kernel is no step of a loop.

    sums: sums of values of the epilogue, of which each part of the kernel leaves its own in the workspace
    (`kernels.emit.epilogue_sums`). Only the main kernel of a `Rows` of one row has any, while it is lowered.

    A kernel whose body is a loop over rows is a `Rows`. It has the stages of its members, and no `loop_invariant` and
    no `sums` of its own.
    """

    __slots__ = ("stages", "buffers", "loop_invariant", "sums")
    fields = ("stages", "buffers", "loop_invariant", "sums")
    exact = True
    stages: tuple[Stage, ...]
    buffers: tuple[KernelBuffer, ...]
    loop_invariant: tuple[int, ...] | None
    sums: tuple[EpilogueSum, ...]

    def __new__(
        cls,
        stages: tuple[Stage, ...],
        buffers: tuple[KernelBuffer, ...],
        loop_invariant: tuple[int, ...] | None = None,
        sums: tuple[EpilogueSum, ...] = (),
    ) -> Kernel:
        return super().__new__(cls, stages, buffers, loop_invariant, sums)

    @property
    def root(self) -> Template:
        """The template of the root stage."""
        return self.stages[0].template

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the root's results."""
        return self.root.shape

    @property
    def outputs(self) -> list[int]:
        """The numbers of the buffers that the stages write, in order."""
        return [n for s in self.stages for n in s.outputs if n is not None]

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """The kernels whose bodies are stages: the kernel itself, or those of a loop's members."""
        return (self,)

    @property
    def non_temporal(self) -> set[int]:
        """The numbers of the buffers that are stored past the caches, which begin on a cache line."""
        return {n for n, b in enumerate(self.buffers) if b.non_temporal}

    @property
    def reuses(self) -> bool:
        """True if the root uses an element of its operands many times, as a product or a convolution does."""
        return reuses_in_row(self, (0,) * len(self.buffers), 1)


class Beyond(IntEnum):
    """What the code of a kernel with a limit does in rows beyond it: all are COMPUTED; some are TOUCHED, which share a
    tile or a vector with the last one below it; all are UNTOUCHED."""

    COMPUTED = 0
    TOUCHED = 1
    UNTOUCHED = 2


class LimitedKernel(Kernel):
    """A kernel that need only compute the first points of some output axes: results at other points are never read.

    limits: (axis, buffer) pairs; the buffer is a scalar i32 that holds the number of points when the kernel runs.
    is_short: whether some buffer should need no memory beyond the limit of axis 0, which costs more code.
    """

    __slots__ = ("limits", "is_short")
    fields = (*Kernel.fields, "limits", "is_short")  # type: ignore[assignment]
    exact = True
    limits: tuple[tuple[int, int], ...]
    is_short: bool

    def __new__(
        cls,
        stages: tuple[Stage, ...],
        buffers: tuple[KernelBuffer, ...],
        loop_invariant: tuple[int, ...] | None = None,
        sums: tuple[EpilogueSum, ...] = (),
        limits: tuple[tuple[int, int], ...] = (),
        is_short: bool = True,
    ) -> LimitedKernel:
        return Node.__new__(cls, stages, buffers, loop_invariant, sums, limits, is_short)


def limits_of(kernel: Kernel) -> dict[int, int]:
    """Return, by output axis, the buffer that holds the number of its points that count; axes without one are left
    out."""
    return dict(kernel.limits) if isinstance(kernel, LimitedKernel) else {}


def has_row_limit(kernel: Kernel) -> bool:
    """Return whether only the first points of output axis 0 of a kernel count."""
    return 0 in limits_of(kernel)


@lru_cache(maxsize=4096)
def reuses_in_row(kernel: Kernel, by_row: tuple[int, ...], rows: int) -> bool:
    """Return whether the root uses an element of its operands many times in one of `rows` rows, of which the buffers
    whose `by_row` is not 0 have a part each."""
    sizes = [size(b.shape) // (rows if code else 1) for b, code in zip(kernel.buffers, by_row, strict=True)]
    largest = max(sizes, default=1)
    for piece in kernel.root.parts:
        combiner = piece.body.combiner if isinstance(piece.body, Reduce) else ""
        if size(piece.domain) // rows > _MAX_REUSE.get(combiner, 16) * largest:
            return True
    return False


class Follow(Node):
    """How a sum over rows follows the running result of an earlier member (`schedule.online`).

    Before a block is added, the sum so far is corrected for each point of the running result, which a member before it
    has changed: it is multiplied by a factor, or, if the member is a sum, whose running result is the mean, increased.

    reducer: the number of that member. place: the buffer of the Rows that holds its running result. index: the
    coordinates, in the result, of a point of the sum. buffer: the result, as the member stores it. is_mean: whether it
    is a mean.
    """

    __slots__ = ("reducer", "place", "index", "buffer", "is_mean")
    fields = ("reducer", "place", "index", "buffer", "is_mean")
    exact = True
    reducer: int
    place: int
    index: tuple[Expr, ...]
    buffer: KernelBuffer
    is_mean: bool

    @property
    def correction(self) -> KernelBuffer:
        """A dense tensor with an element for each point of the result."""
        return KernelBuffer(self.buffer.dtype, self.buffer.shape)


class Member(Node):
    """A kernel of a row-block fusion (`Rows`): one axis of some of its buffers is the row.

    Those buffers are read and written only in the row that the kernel computes.

    `places[n]` is the buffer of the Rows that buffer n of the kernel is; the numbers after those of `Rows.buffers` are
    the `local` ones. `by_row[n]`: 1 + the axis of buffer n that is the row, 0 where none is. The row is axis `axis` of
    the output, or, if `reduces`, the root's first reduction axis; then the stages after the root see all rows, and so
    do those of later such members. Another member that reads the result sees that of the rows so far: `follows` says
    how a sum that depends on it is corrected.
    """

    __slots__ = ("kernel", "places", "by_row", "reduces", "axis", "follows")
    fields = ("kernel", "places", "by_row", "reduces", "axis", "follows")
    exact = True
    kernel: Kernel
    places: tuple[int, ...]
    by_row: tuple[int, ...]
    reduces: bool
    axis: int
    follows: Follow | None

    def __new__(
        cls,
        kernel: Kernel,
        places: tuple[int, ...],
        by_row: tuple[int, ...],
        reduces: bool,
        axis: int = 0,
        follows: Follow | None = None,
    ) -> Member:
        return super().__new__(cls, kernel, places, by_row, bool(reduces), axis, follows)

    @property
    def results(self) -> list[int]:
        """The places of the buffers that the member writes, in order."""
        return [self.places[n] for n in self.kernel.outputs]


class Activity(Node):
    """The condition under which the kernels of a row-block fusion must process a row: rows without any point that meets
    it may be skipped.

    condition: the condition on a point; its axis 0 is the row, its slots are buffers of the Rows. extents: the extents
    of its further axes. block: number of rows that are skipped together, equal for all kernels that share results; 0:
    any number, where the condition is a limit of the rows (`is_limit`).
    some: whether the first block runs even if all blocks could be skipped. It must where every s may be minus infinity
    in a sum of exp(s - m) with m = max(s): its terms are NaN then, so skipping all of them would change the sum.
    """

    __slots__ = ("condition", "extents", "block", "some")
    fields = ("condition", "extents", "block", "some")
    exact = True
    condition: Expr
    extents: tuple[int, ...]
    block: int
    some: bool

    @property
    def is_limit(self) -> bool:
        """True if rows beyond the limit may hold any values."""
        return not self.some

    @property
    def ends(self) -> list[Expr]:
        """The scalars that each bound the active rows: rows from such a number on are inactive."""
        parts = [c.args for c in operands(self.condition, "and") if isinstance(c, Apply) and c.fn == "lt"]
        return [end for row, end in parts if row is Axis(0) and not axes_of(end)]


class MemberKernel(Kernel):
    """A kernel whose body is a loop over the kernels of `members`, each of which has `places`, the numbers of its
    buffers; those after the numbers of `buffers` are the `local` ones, which only members use. stages: those of all
    members, in order."""

    __slots__ = ("members", "local")
    members: tuple[Any, ...]
    local: tuple[KernelBuffer, ...]

    def _derive(self) -> None:
        self._set("stages", tuple(s for k in self.parts for s in k.stages))
        self._set("loop_invariant", None)
        self._set("sums", ())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the last member's results."""
        return self.members[-1].kernel.shape

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """The kernels of the members whose bodies are stages."""
        return tuple(k for m in self.members for k in m.kernel.parts)

    @property
    def reuses(self) -> bool:
        """True if a member uses an element of its operands many times, as a product does."""
        return any(m.kernel.reuses for m in self.members)


class Rows(MemberKernel):
    """A row-block fusion: a loop over rows whose members share them; within a row, each reads results of earlier ones.

    Run block by block of rows, they make one pass over memory; `local` buffers are never stored beyond their block.
    Blocks in which nothing is `active` (None: all rows are) may be left out.

    before: m[i] = max[k](x[i,k]);  s[i] = sum[k](exp(x[i,k] - m[i]));  y[i,k] = exp(x[i,k] - m[i])/s[i]
    after:  for each block of i: these three

    takes_sums: there is one row without axes, and the first member may take the sums of the others while it has their
    terms (`schedule.summed`). A single row whose members take no sums has independent ones (`is_joined`).
    """

    __slots__ = ("rows", "active", "takes_sums")
    fields = ("rows", "members", "buffers", "local", "active", "takes_sums")  # type: ignore[assignment]
    exact = True
    rows: int
    members: tuple[Member, ...]
    active: Activity | None
    takes_sums: bool

    def __new__(
        cls,
        rows: int,
        members: tuple[Member, ...],
        buffers: tuple[KernelBuffer, ...],
        local: tuple[KernelBuffer, ...],
        active: Activity | None = None,
        takes_sums: bool = False,
    ) -> Rows:
        return Node.__new__(cls, rows, members, buffers, local, active, bool(takes_sums))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of all buffers that have rows; at least 1."""
        buffers: dict[int, KernelBuffer] = {}
        for m in self.members:
            buffers |= {
                place: b for place, b, by_row in zip(m.places, m.kernel.buffers, m.by_row, strict=True) if by_row
            }
        return max(1, sum(b.nbytes // self.rows for b in buffers.values()))

    @property
    def is_joined(self) -> bool:
        """True if the members are independent and only share a launch (`schedule.join_updates`)."""
        return self.rows == 1 and not self.takes_sums

    @property
    def non_temporal(self) -> set[int]:
        """The numbers of the buffers, local ones included, that a member stores past the caches; they begin on a
        cache line."""
        uses = (x for m in self.members for x in zip(m.places, m.kernel.buffers, strict=True))
        return {place for place, b in uses if b.non_temporal}

    @property
    def is_online(self) -> bool:
        """True if members read running results of others, which each task carries from block to block."""
        return any(m.follows is not None for m in self.members)

    @property
    def has_running_mean(self) -> bool:
        """True if members read another member's mean over the rows so far, so that all rows run in one task."""
        return any(m.follows is not None and m.follows.is_mean for m in self.members)
