"""What functions of all patterns have in common: the points of a piece that a program has, what follows its root, and
the stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from einsmith.expr.nodes import Piece
from einsmith.plan.kernel import Kernel, KernelBuffer, Rows, Stage
from einsmith.tiles.ir import TileBuilder, TileFunction, TileValue
from einsmith.tiles.points import NARROW, Points, Slot, TileMemory, numbers, unravel

ALIGNED = 64
"""Bytes: each part of the workspace begins at a multiple of it."""


@dataclass(frozen=True)
class Tiling:
    """How the work is divided, by powers of two. m: points of the output in a tile, n: those along its second dimension
    (of a contraction), k: terms of a sum at once; split: among how many programs the terms are divided; precision: of
    a dot of float32 (`ir.PRECISIONS`)."""

    m: int = 256
    n: int = 64
    k: int = 64
    split: int = 1
    precision: str = "tf32x3"


@dataclass
class Functions:
    """The functions of a kernel so far, in the order in which they run, and the bytes of workspace that they share."""

    done: list[TileFunction] = field(default_factory=list)
    workspace: int = 0

    def begin(self, kind: str) -> TileBuilder:
        """The next function, under construction."""
        return TileBuilder(f"{kind}_{len(self.done)}")

    def add(self, b: TileBuilder, programs: int) -> None:
        """The function is complete; one of no programs, whose result is empty, is not launched."""
        if programs:
            self.done.append(b.finish(programs))

    def room(self, layout: KernelBuffer) -> TileMemory:
        """A part of the workspace for a buffer."""
        at = self.workspace
        self.workspace += -(-layout.nbytes // ALIGNED) * ALIGNED
        return TileMemory(layout, None, at)


def own(kernel: Kernel | Rows) -> list[TileMemory]:
    """The kernel's buffers where it is given them."""
    return [TileMemory(layout, n) for n, layout in enumerate(kernel.buffers)]


def slots(stage: Stage, places: Sequence[TileMemory], made: Sequence[Sequence[TileValue]] = ()) -> list[Slot]:
    """What the arguments of a stage are: places of the kernel's buffers, results of stages before it."""
    return [places[where[0]] if kind == "buffer" else made[where[0]][where[1]] for kind, *where in stage.args]


def blocks(points: int, block: int) -> int:
    """How many blocks of points there are; none where there are no points."""
    return -(-points // block)


def least_power(points: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << max(0, points - 1).bit_length()


def below(b: TileBuilder, number: TileValue, count: int, block: int) -> list[TileValue]:
    """The condition that a number is below a count, where blocks that begin at multiples of `block` may go past it."""
    return [b.op("lt", number, b.const(count, number.elem))] if count % block else []


def some_points(
    b: TileBuilder, first: TileValue, block: int, extents: Sequence[int]
) -> tuple[list[TileValue], list[TileValue]]:
    """(axes, what holds at points) of `block` points of a box from number `first` on."""
    count = prod(extents)
    number = numbers(b, b.arange(block), first, count)
    return list(unravel(b, number, extents)), below(b, number, count, block)


def finish(
    b: TileBuilder,
    kernel: Kernel,
    piece: Piece,
    axes: Sequence[TileValue],
    live: Sequence[TileValue],
    root: Sequence[TileValue],
    places: Sequence[TileMemory],
) -> None:
    """The stages after the root at points of one of its pieces, and all stores. axes: of the piece; root: the root's
    results there. What is stored may lie where something was read, so that stores come last."""
    at = [b.op("add", b.op("mul", x, s), o) for o, s, x in zip(piece.offset, piece.step, axes, strict=True)]
    made: list[Sequence[TileValue]] = [root]
    for stage in kernel.stages[1:]:
        t = stage.template
        points = Points(b, t.shape, dict(enumerate(at)), live, slots(stage, places, made))
        made.append(points.values(t.parts[0].bodies))
    for stage, values in zip(kernel.stages, made, strict=True):
        for n, value in zip(stage.outputs, values, strict=True):
            if n is not None:
                places[n].store(b, at, value, live)


def pointwise(to: Functions, kernel: Kernel, piece: Piece, places: Sequence[TileMemory], tiling: Tiling) -> None:
    """A piece without a reduction: a program has `m` of its points."""
    count = prod(piece.extents)
    block = min(tiling.m, least_power(count))
    b = to.begin("pointwise")
    first = b.op("mul", b.cast(b.program(), "i64") if count > NARROW else b.program(), block)
    axes, live = some_points(b, first, block, piece.extents)
    points = Points(b, piece.domain, dict(enumerate(axes)), live, slots(kernel.stages[0], places))
    finish(b, kernel, piece, axes, live, points.values(piece.bodies), places)
    to.add(b, blocks(count, block))
