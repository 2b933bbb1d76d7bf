"""What functions of all patterns have in common: the points of a piece that a program has, what follows its root, and
the stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from einsmith.expr.nodes import Piece
from einsmith.plan.kernel import Buffer, Kernel, Rows, Stage
from einsmith.tiles.ir import Builder, Function, Value
from einsmith.tiles.points import NARROW, Memory, Points, Slot, numbers, unravel

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

    done: list[Function] = field(default_factory=list)
    workspace: int = 0

    def begin(self, kind: str) -> Builder:
        """The next function, under construction."""
        return Builder(f"{kind}_{len(self.done)}")

    def add(self, b: Builder, programs: int) -> None:
        """The function is complete; one of no programs, whose result is empty, is not launched."""
        if programs:
            self.done.append(b.finish(programs))

    def room(self, layout: Buffer) -> Memory:
        """A part of the workspace for a buffer."""
        at = self.workspace
        self.workspace += -(-layout.nbytes // ALIGNED) * ALIGNED
        return Memory(layout, None, at)


def own(kernel: Kernel | Rows) -> list[Memory]:
    """The kernel's buffers where it is given them."""
    return [Memory(layout, n) for n, layout in enumerate(kernel.buffers)]


def slots(stage: Stage, places: Sequence[Memory], made: Sequence[Sequence[Value]] = ()) -> list[Slot]:
    """What the arguments of a stage are: places of the kernel's buffers, results of stages before it."""
    return [places[where[0]] if kind == "buffer" else made[where[0]][where[1]] for kind, *where in stage.args]


def blocks(points: int, block: int) -> int:
    """How many blocks of points there are; none where there are no points."""
    return -(-points // block)


def least_power(points: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << max(0, points - 1).bit_length()


def below(b: Builder, number: Value, count: int, block: int) -> list[Value]:
    """The condition that a number is below a count, where blocks that begin at multiples of `block` may go past it."""
    return [b.op("lt", number, b.const(count, number.elem))] if count % block else []


def some_points(b: Builder, first: Value, block: int, extents: Sequence[int]) -> tuple[list[Value], list[Value]]:
    """(axes, what holds at points) of `block` points of a box from number `first` on."""
    count = prod(extents)
    number = numbers(b, b.arange(block), first, count)
    return list(unravel(b, number, extents)), below(b, number, count, block)


def finish(
    b: Builder,
    kernel: Kernel,
    piece: Piece,
    axes: Sequence[Value],
    live: Sequence[Value],
    root: Sequence[Value],
    places: Sequence[Memory],
) -> None:
    """The stages after the root at points of one of its pieces, and all stores. axes: of the piece; root: the root's
    results there. What is stored may lie where something was read, so that stores come last."""
    at = [b.op("add", b.op("mul", x, s), o) for o, s, x in zip(piece.offset, piece.step, axes, strict=True)]
    made: list[Sequence[Value]] = [root]
    for stage in kernel.stages[1:]:
        t = stage.template
        points = Points(b, t.shape, dict(enumerate(at)), live, slots(stage, places, made))
        made.append(points.values(t.parts[0].bodies))
    for stage, values in zip(kernel.stages, made, strict=True):
        for n, value in zip(stage.outputs, values, strict=True):
            if n is not None:
                places[n].store(b, at, value, live)


def pointwise(to: Functions, kernel: Kernel, piece: Piece, places: Sequence[Memory], tiling: Tiling) -> None:
    """A piece without a reduction: a program has `m` of its points."""
    count = prod(piece.extents)
    block = min(tiling.m, least_power(count))
    b = to.begin("pointwise")
    first = b.op("mul", b.cast(b.program(), "i64") if count > NARROW else b.program(), block)
    axes, live = some_points(b, first, block, piece.extents)
    points = Points(b, piece.domain, dict(enumerate(axes)), live, slots(kernel.stages[0], places))
    finish(b, kernel, piece, axes, live, points.values(piece.bodies), places)
    to.add(b, blocks(count, block))
