"""Provide the parts that functions of all patterns share: the points of a piece that a program computes, the stages
after the root, and the stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from einsmith.codegen.ssa import SSAValue
from einsmith.gpu.tiles.ir import TileBuilder, TileFunction
from einsmith.gpu.tiles.points import MOST_I32_POINTS, Points, Slot, TileMemory, number_lanes, unravel
from einsmith.ir.nodes import Piece
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage

ALIGNED = 64
"""Alignment (bytes) of each part of the workspace."""


@dataclass(frozen=True)
class Tiling:
    """Tile sizes, powers of two.

    Attributes:
        m: points of the output in a tile
        n: points along the tile's second dimension (of a contraction)
        k: terms of a sum at once
        split: number of programs among which the terms are divided
        precision: of a dot of float32 (`operations.PRECISIONS`)
    """

    m: int = 256
    n: int = 64
    k: int = 64
    split: int = 1
    precision: str = "tf32x3"


@dataclass(frozen=True)
class TileConfig:
    """Tile sizes, the warps of a program, and the turns of a loop that are loaded ahead (1: none is).

    m, n, k, split: as in `Tiling`."""

    m: int = 256
    n: int = 1
    k: int = 1
    split: int = 1
    warps: int = 4
    stages: int = 1

    def tiling(self, precision: str) -> Tiling:
        """Return the tile sizes, with the precision of dots."""
        return Tiling(self.m, self.n, self.k, self.split, precision)

    def __str__(self) -> str:
        return " ".join(f"{name}={getattr(self, name)}" for name in ("m", "n", "k", "split", "warps", "stages"))


@dataclass
class Functions:
    """The finished functions of a kernel, in the order in which they run, and the bytes of workspace that they
    share."""

    done: list[TileFunction] = field(default_factory=list)
    workspace: int = 0

    def begin(self, kind: str) -> TileBuilder:
        """Return a builder of the next function, which is named `kind` and its number in the kernel."""
        return TileBuilder(f"{kind}_{len(self.done)}")

    def add(self, b: TileBuilder, programs: int) -> None:
        """Finish a function; a function of no programs, whose result is empty, is not launched."""
        if programs:
            self.done.append(b.finish(programs))

    def reserve(self, layout: KernelBuffer) -> TileMemory:
        """Reserve a part of the workspace for a buffer."""
        at = self.workspace
        self.workspace += -(-layout.nbytes // ALIGNED) * ALIGNED
        return TileMemory(layout, None, at)


def own_memory(kernel: Kernel) -> list[TileMemory]:
    """Return the memory of a kernel's own buffers."""
    return [TileMemory(layout, n) for n, layout in enumerate(kernel.buffers)]


def stage_arguments(
    stage: Stage, places: Sequence[TileMemory], results: Sequence[Sequence[SSAValue]] = ()
) -> list[Slot]:
    """Return the arguments of a stage: memory of the kernel's buffers, or results of earlier stages."""
    return [places[where[0]] if kind == "buffer" else results[where[0]][where[1]] for kind, *where in stage.args]


def member_tiling(t: Tiling, pattern: str) -> Tiling:
    """Return the tile sizes of a member that has functions of its own, of a fusion whose tile sizes are those of its
    products: where there are no terms, as many points as a quarter of a tile of results."""
    return replace(t, m=max(t.m, t.m * t.n // 4)) if pattern in ("pointwise", "stencil") else t


def blocks(points: int, block: int) -> int:
    """Return the number of blocks that cover the points; 0 where there are no points."""
    return -(-points // block)


def least_power(points: int) -> int:
    """Return the least power of two that is at least `points`."""
    return 1 << max(0, points - 1).bit_length()


def bound_masks(b: TileBuilder, number: SSAValue, count: int, block: int) -> list[SSAValue]:
    """Return the condition that a number is below a count; nothing where blocks at multiples of `block` do not go past
    it."""
    return [b.op("lt", number, b.const(count, number.elem))] if count % block else []


def memory_order(kernel: Kernel, piece: Piece) -> tuple[int, ...]:
    """Return the axes of a piece in the order in which its results lie in memory, that of neighbouring elements last,
    so that neighbouring lanes access neighbouring elements."""
    layouts = [kernel.buffers[n].strides for n in kernel.outputs]
    return tuple(sorted(range(len(piece.extents)), key=lambda a: -min((s[a] for s in layouts), default=0)))


def find_axes(b: TileBuilder, number: SSAValue, extents: Sequence[int], order: Sequence[int]) -> list[SSAValue]:
    """Return the axes of a box at points that are numbered in an order of its axes, the last one fastest."""
    values = dict(zip(order, unravel(b, number, [extents[a] for a in order]), strict=True))
    return [values[a] for a in range(len(extents))]


def number_points(
    b: TileBuilder, first: SSAValue, block: int, kernel: Kernel, piece: Piece
) -> tuple[list[SSAValue], list[SSAValue]]:
    """Return the axes at `block` points of a piece from number `first` on, which are numbered in the order of memory,
    and the conditions that hold at points."""
    count = prod(piece.extents)
    number = number_lanes(b, b.arange(block), first, count)
    axes = find_axes(b, number, piece.extents, memory_order(kernel, piece))
    return axes, bound_masks(b, number, count, block)


def emit_epilogue(
    b: TileBuilder,
    kernel: Kernel,
    piece: Piece,
    axes: Sequence[SSAValue],
    live: Sequence[SSAValue],
    root: Sequence[SSAValue],
    places: Sequence[TileMemory],
) -> None:
    """Emit the stages after the root at points of one of its pieces, and all stores. axes: the piece's axes; root: the
    root's results at the points. Stores come last, as their memory may be the memory that was read."""
    at = [b.op("add", b.op("mul", x, s), o) for o, s, x in zip(piece.offset, piece.step, axes, strict=True)]
    results: list[Sequence[SSAValue]] = [root]
    for stage in kernel.stages[1:]:
        t = stage.template
        points = Points(b, t.shape, dict(enumerate(at)), live, stage_arguments(stage, places, results))
        results.append(points.values(t.parts[0].bodies))
    for stage, values in zip(kernel.stages, results, strict=True):
        for n, value in zip(stage.outputs, values, strict=True):
            if n is not None:
                places[n].store(b, at, value, live)


def lower_pointwise(
    functions: Functions, kernel: Kernel, piece: Piece, places: Sequence[TileMemory], tiling: Tiling
) -> None:
    """Lower a piece without a reduction: a program computes `m` of its points."""
    count = prod(piece.extents)
    block = min(tiling.m, least_power(count))
    b = functions.begin("pointwise")
    first = b.op("mul", b.cast(b.program(), "i64") if count > MOST_I32_POINTS else b.program(), block)
    axes, live = number_points(b, first, block, kernel, piece)
    points = Points(b, piece.domain, dict(enumerate(axes)), live, stage_arguments(kernel.stages[0], places))
    emit_epilogue(b, kernel, piece, axes, live, points.values(piece.bodies), places)
    functions.add(b, blocks(count, block))
