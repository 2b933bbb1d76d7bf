"""Find chains of reductions in a row-block fusion, and divide them into sweeps that store no tile.

before: s[i,j] = sum[d](q[i,d]*k[j,d]);  m[i] = max[j](s[i,j]);  l[i] = sum[j](exp(s[i,j] - m[i]))
after:  tiles of s are computed where a sweep needs them:  for each block of i:  for each block of j:  m, l

A tile tensor has axes of two sides, i and j; every reader can compute its tile from smaller tensors. A sum over one
side belongs to a phase, in which each program holds a block of the other side and sweeps over the first one. If a sum
reads the result of another sum of its phase, it is computed in a later sweep, unless it can follow the running result
(`schedule.online`). Members without tile tensors are lowered separately. Axes of members that index the same dimension
of a tensor form a class.

A chain is not the nest that the CPU runs (`schedule.row_nests`). A nest keeps the one row axis of its fusion outside of
all sweeps. Sweeps hand tiles on in memory, unless they are made again, and are placed by the bytes of these. Each phase
of a chain may hold either side, whatever the row axis is, and always makes its tiles again; which sums share a phase
depends on the registers of a program, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from einsmith.ir.nodes import Read, Reduce, Tensor, leaf, reads
from einsmith.schedule.contraction_problem import Operand, Problem, needs_exact_guards, problems
from einsmith.schedule.kernel import Member, Rows, Stage
from einsmith.schedule.row_forms import SweptKernel

LEAST_DOT_POINTS = 8
"""Fewest points of an inner extent of a dot; tiles are padded to 16, and below half of that terms cost less."""
MOST_COLUMNS = 128
"""Most columns of sums that a program accumulates in registers; more of one sum are divided among programs, each of
which makes the tiles, and other sums have a sweep of their own."""
MOST_UNROLLED = 8
"""Most columns of a sum that is not a product, each of which has a reduction of its own."""


@dataclass
class SweepPhase:
    """A function whose programs hold a block of side `held` each, and sweep over the other one. sweeps: the members
    whose results each sweep computes."""

    held: int
    sweeps: list[list[int]]


@dataclass
class Chain:
    """The members of a fusion as a chain.

    Attributes:
        members: the members, whose axes are split where that makes indices axes. Those whose sums follow running
            results say how, as in a nest (`Member.follows`).
        classes: the class of axis (member, axis); axes of one point have none.
        extents: the extent of each class.
        batch: the classes of tile tensors that all operands have.
        sides: the other classes of tile tensors, in two groups.
        makers: the member that makes each tile tensor.
        sinks: for each member that reduces tile tensors over a side, the other side.
        steps: phases, and numbers of members that are lowered apart, in order.
        stored: tile tensors that are stored, as other members or kernels read them.
        impure: (member, place) of results of other members that a member reads elsewhere than at its own points.
    """

    rows: Rows
    members: list[Member]
    classes: dict[tuple[int, int], int] = field(default_factory=dict)
    extents: dict[int, int] = field(default_factory=dict)
    batch: tuple[int, ...] = ()
    sides: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    makers: dict[int, int] = field(default_factory=dict)
    sinks: dict[int, int] = field(default_factory=dict)
    steps: list[SweepPhase | int] = field(default_factory=list)
    impure: set[tuple[int, int]] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.writers: dict[int, int] = {}
        """The member that writes each result."""
        self.shapes: dict[int, tuple[int, ...]] = {}
        """The shapes of results, as their writers have them."""
        for n, m in enumerate(self.members):
            for k in m.kernel.outputs:
                self.writers[m.places[k]], self.shapes[m.places[k]] = n, m.kernel.buffers[k].shape
        self.tensors: dict[int, Tensor] = {}
        """A tensor for each place, as the first member has it."""
        for p, b in (x for m in self.members for x in zip(m.places, m.kernel.buffers, strict=True)):
            if p not in self.tensors:
                self.tensors[p] = leaf(b.shape, b.dtype)

    def count(self, classes: Iterable[int]) -> int:
        """Return the number of points of classes."""
        return prod([self.extents[c] for c in classes])

    def classes_of(self, n: int, axes: Iterable[int]) -> set[int]:
        """Return the classes of axes of a member."""
        return {self.classes[n, a] for a in axes if (n, a) in self.classes}

    def output_classes(self, n: int) -> list[int]:
        """Return the classes of a member's output axes, in order."""
        rank = self.members[n].kernel.root.rank
        return [self.classes[n, a] for a in range(rank) if (n, a) in self.classes]

    def reduced_classes(self, n: int) -> set[int]:
        """Return the classes of the axes over which a member's root reduces."""
        root = self.members[n].kernel.root
        return self.classes_of(n, range(root.rank, len(root.parts[0].domain)))

    def columns(self, n: int) -> list[int]:
        """Return the classes of a sink's output axes that are in neither side nor the batch: its columns."""
        tile = {*self.batch, *self.sides[0], *self.sides[1]}
        return [c for c in self.output_classes(n) if c not in tile]

    def swept(self, n: int) -> SweptKernel:
        """Return a member as part of a sweep over a side."""
        m = self.members[n]
        return SweptKernel(m.kernel, [self.tensors[p] for p in m.places], n in self.sinks)

    def is_swept(self, n: int) -> bool:
        """Return whether a sweep leaves a member's results in memory: sums of a sink, or a stored tile tensor."""
        return n in self.sinks or any(p in self.stored for p in self.members[n].results)

    def closure(self, n: int) -> list[int]:
        """Return the members that make the tile tensors that a member reads, directly or not, in order, and itself."""
        out, todo = {n}, [n]
        while todo:
            for p in read_places(self.members[todo.pop()]):
                if p in self.makers and self.makers[p] not in out:
                    out.add(self.makers[p])
                    todo.append(self.makers[p])
        return sorted(out)

    def columns_of_programs(self, n: int) -> tuple[int, int]:
        """Return (the columns of a sink that a program computes, the number of programs that share them)."""
        count = self.count(self.columns(n))
        most = MOST_COLUMNS if self.product_of(n) is not None else MOST_UNROLLED
        return min(count, most), -(-count // most)

    def product_of(self, n: int) -> Problem | None:
        """Return a member's sum as a product of two operands that `dot` can multiply; None where it is none."""
        kernel = self.members[n].kernel
        products = problems(kernel.root) if isinstance(kernel.root.parts[0].body, Reduce) else None
        if products is None or len(products) != 1:
            return None
        (p,) = products
        if p.companion is not None or needs_exact_guards(p) or not p.dtype.is_float or p.count(p.k) < LEAST_DOT_POINTS:
            return None
        return p if self.operands(n, p) is not None else None

    def operands(self, n: int, p: Problem) -> tuple[int, int] | None:
        """Return the numbers of the left and right operand of a member's product; None where it is not a product of
        matrices. Of a tile, the left one has the axes of side 0, the right one those of side 1; of a sink, the left one
        is the tile."""
        own = [self.classes_of(n, o.axes) for o in p.operands]
        tiles = [{self.slot_place(n, 0, r.slot) for r in _reads_of_operand(o)} & self.makers.keys() for o in p.operands]
        for left, right in ((0, 1), (1, 0)):
            if n in self.sinks:
                held = self.sides[self.sinks[n]]
                fits = not tiles[right] and not own[right] & {*held} and not own[left] & {*self.columns(n)}
                if fits and self.count(self.columns(n)) >= LEAST_DOT_POINTS:
                    return left, right
            elif not any(tiles) and not own[left] & {*self.sides[1]} and not own[right] & {*self.sides[0]}:
                return left, right
        return None

    def slot_place(self, n: int, stage: int, slot: int) -> int | None:
        """Return the place that a slot of a member's stage reads; None for a result of a stage."""
        kind, *where = self.members[n].kernel.stages[stage].args[slot]
        return self.members[n].places[where[0]] if kind == "buffer" else None


def _reads_of_operand(o: Operand) -> Iterator[Read]:
    for e in (o.expr, *o.guards):
        yield from reads(e)


def read_places(m: Member, stages: Sequence[Stage] | None = None) -> set[int]:
    """Return the places that a member's stages read."""
    considered = m.kernel.stages if stages is None else stages
    return {m.places[where[0]] for s in considered for kind, *where in s.args if kind == "buffer"}


def wide(shape: Sequence[int]) -> list[int]:
    """Return the dimensions of more than one point."""
    return [d for d, n in enumerate(shape) if n > 1]
