"""Analyse how vector lanes read operands: an OperandAccess classifies every read; a LaneCursor emits the loads.

Every address and every linear guard is one affine form. Its scalar part is a `PartialAddress`, computed where the
scalars are known and added later; its lane part is computed once for a vector. Lanes that fall into a few stretches of
contiguous memory (rows of an image) are read by one masked load each, whose address is chosen so that the elements land
in their lanes. Every other element of a stretch is read by two loads and a shuffle."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from einsmith.base.locks import cached_property
from einsmith.codegen.loopnest.address import BufferMemory, FusedAxes, address, comparison_form, fuse_axes
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import digits
from einsmith.codegen.ssa import SSAValue
from einsmith.cost.overheads import INSTRUCTIONS, Overheads
from einsmith.ir.analysis.linear import LinearForm, affine_of, linear, without_points
from einsmith.ir.analysis.obvious import leaves
from einsmith.ir.nodes import Apply, Axis, Expr, Read, postorder

MAX_MASKED_RUNS = 5
"""Most rows of the innermost lane group that a vector touches if masked loads read it; beyond it, it is gathered."""
NO_AXIS = -1
"""The innermost lane axis of scalar code."""


def neighbours_of(args: Sequence[Expr], reads: Container[Read]) -> list[tuple[Read, ...]]:
    """Return the reads that stand at the same place in each of these expressions, where they differ; nothing where the
    expressions differ in more than the affine indices of reads."""
    out: list[tuple[Read, ...]] = []
    stack = [tuple(args)]
    while stack:
        level = stack.pop()
        first = level[0]
        if all(e is first for e in level):
            if any(isinstance(e, Axis) for e in postorder([first])):
                return []
            continue
        if all(isinstance(e, Read) and e in reads for e in level):
            out.append(level)  # type: ignore[arg-type]
        elif all(isinstance(e, Apply) and (e.fn, e.dtype) == (first.fn, first.dtype) for e in level):  # type: ignore[union-attr]
            stack += zip(*(e.args for e in level), strict=True)
        else:
            return []
    return out


@dataclass
class PartialAddress:
    """The contribution of bound axes of more than one point to each address form.

    sums: by form. axes: the bound axes. opaque: values of the axes that expressions use outside of addresses."""

    sums: dict[int, SSAValue]
    axes: frozenset[int]
    opaque: dict[int, SSAValue]


class OperandAccess:
    """The accesses of expressions evaluated at consecutive points of flattened lane axes.

    Args:
        builder: Builder to emit to; None: analysis only.
        exprs: Expressions that are evaluated where all `guards` hold.
        extents: Points of each axis.
        memories: Memory of each slot.
        lane_axes: Axes, outer first, whose flattened points the lanes are.
        lanes: Lanes of a vector; 0: scalars.
        extra: Further address forms, which a caller stores to.
        supplied_slots: Slots whose values the caller supplies.
        row: Points that the innermost lane axis is padded to, a multiple of `lanes` (0: not padded). Lanes past its
            extent are inactive.
        loose: Lanes in the padding of a row hold any value instead (memory there can be read).
        tile: Points of the tiles that vectors lie in, side by side; tiles begin at multiples of it (0: vectors lie
            anywhere).
    """

    def __init__(
        self,
        builder: Builder | None,
        exprs: Sequence[Expr],
        guards: Sequence[Expr],
        extents: Sequence[int],
        memories: Mapping[int, BufferMemory],
        lane_axes: Sequence[int] = (),
        lanes: int = 0,
        extra: Sequence[LinearForm] = (),
        supplied_slots: Iterable[int] = (),
        row: int = 0,
        loose: bool = False,
        tile: int = 0,
    ):
        self.b: Any = builder
        self.exprs, self.guards = tuple(exprs), tuple(guards)
        self.extents, self.memories = tuple(extents), memories
        self.supplied_slots = set(supplied_slots)
        self.forms: list[LinearForm] = []
        self.reads: dict[Read, int] = {}
        self.conds: list[tuple[int, str, frozenset[int]]] = []
        self.generic: list[Expr] = []
        self.opaque: set[int] = set()
        self._gathered_reads = 0  # reads whose address is not affine
        for g in self.guards:
            self._add_guard(g)
        self._scan([*self.exprs, *self.generic])
        self.masks = len([axes for _, _, axes in self.conds if axes])
        self.extra = []
        for form in extra:
            self.forms.append(without_points(form, self.extents))
            self.extra.append(len(self.forms) - 1)
        self.loose = loose
        self._grouped: dict[tuple[int, ...], list[FusedAxes]] = {}
        self._by_lane_axes: dict[tuple[tuple[int, ...], int, int], OperandAccess] = {}
        self._set_lanes(lane_axes, lanes, row, tile)

    def _set_lanes(self, lane_axes: Sequence[int], lanes: int, row: int, tile: int) -> None:
        """Set the axes of the lanes, their number, and the padding and tiling of their rows."""
        extents = self.extents
        self.lanes, self.row, self.tile = lanes, row, tile
        self.lane_axes = tuple([a for a in lane_axes if extents[a] > 1])
        if row:
            last = lane_axes[-1]
            self.lane_groups = [*self.groups(self.lane_axes[:-1]), FusedAxes((last,), extents[last])]
        else:
            self.lane_groups = self.groups(self.lane_axes)
        self.inner = self.lane_groups[-1].inner if self.lane_groups else NO_AXIS
        self.lane_extents = [g.extent for g in self.lane_groups]
        if row:
            self.lane_extents[-1] = row

    def along(self, lane_axes: Sequence[int], lanes: int, tile: int = 0) -> OperandAccess:
        """Return the accesses of these expressions with the lanes along other axes (cached)."""
        key = tuple(lane_axes), lanes, tile
        out = self._by_lane_axes.get(key)
        if out is None:
            out = self._by_lane_axes[key] = object.__new__(OperandAccess)
            out.__dict__.update(self.__dict__)
            out._set_lanes(lane_axes, lanes, 0, tile)
        return out

    # -- analysis

    @cached_property
    def widest(self) -> list[tuple[Read, int]]:
        """Return the reads, with their forms, that touch the most points; they are the memory traffic."""
        points = {r: prod([self.extents[a] for a in self.forms[form].coef]) for r, form in self.reads.items()}
        most = max(points.values(), default=0)
        return [(r, form) for r, form in self.reads.items() if points[r] == most]

    def _add_guard(self, g: Expr) -> None:
        form = comparison_form(g, self.extents)
        if form is None:
            self.generic.append(g)
            return
        assert isinstance(g, Apply)
        ends = [c * (self.extents[a] - 1) for a, c in form.coef.items()]
        low, high = (form.const + sum(x for x in ends if sign * x > 0) for sign in (-1, 1))
        if not {"lt": high < 0, "le": high <= 0, "ne": low > 0 or high < 0, "eq": low == high == 0}[g.fn]:
            self.forms.append(form)
            self.conds.append((len(self.forms) - 1, g.fn, frozenset(form.coef)))

    def _scan(self, exprs: Sequence[Expr]) -> None:
        stack = list(exprs)
        seen: set[Expr] = set()
        while stack:
            e = stack.pop()
            if e in seen:
                continue
            seen.add(e)
            if isinstance(e, Read):
                if e.slot in self.supplied_slots:
                    continue
                form = affine_of(address(e.index, self.memories[e.slot].buffer.strides), self.extents)
                if form is not None:
                    self.forms.append(form)
                    self.reads[e] = len(self.forms) - 1
                    continue
                self._gathered_reads += 1
            if isinstance(e, Axis):
                self.opaque.add(e.position)
            stack.extend(e.args)

    @cached_property
    def word_reads(self) -> dict[Read, int]:
        """Return the reads that `pack` joins to words of neighbours in memory, with the number of points of a word."""
        out: dict[Read, int] = {}
        for word in postorder(self.exprs):
            if not isinstance(word, Apply) or word.fn != "pack":
                continue
            for together in neighbours_of(word.args, self.reads):
                forms = [self.forms[self.reads[r]] for r in together]
                if all(f.const == forms[0].const + n and f.coef == forms[0].coef for n, f in enumerate(forms)):
                    out |= dict.fromkeys(together, len(together))
        return out

    def is_contiguous_word(self, r: Read, align: int) -> bool:
        """Return whether lanes read words of neighbouring points that follow each other in memory."""
        points = self.word_reads.get(r)
        return points is not None and self.step(self.reads[r]) == points and self.has_aligned_rows(align)

    def is_safe(self, e: Read) -> bool:
        """Return whether the address of a read is affine, and in bounds at every point of the axes, guards aside."""
        if e not in self.reads:
            return False
        sizes = zip(e.index, self.memories[e.slot].buffer.shape, strict=True)
        return all(leaves(linear(i), self.extents, n) is False for i, n in sizes)

    def groups(self, axes: Sequence[int]) -> list[FusedAxes]:
        """Return the axes (outer first) fused as far as every form allows; axes of one point are dropped."""
        key = tuple(axes)
        if key not in self._grouped:
            self._grouped[key] = fuse_axes(key, self.extents, self.evenly)
        return self._grouped[key]

    def evenly(self, axis: int, inner: FusedAxes) -> bool:
        """Return whether an axis fuses with `inner`: every form has the outer stride inner stride * inner extent."""
        if axis in self.opaque or inner.inner in self.opaque:
            return False
        return all(f.coef.get(axis, 0) == f.coef.get(inner.inner, 0) * inner.extent for f in self.forms)

    def has_aligned_rows(self, align: int) -> bool:
        """Return whether each vector that starts at a multiple of align lies in one row of the innermost lane group."""
        if self.row or len(self.lane_groups) <= 1 or (self.tile and self.lane_extents[-1] % self.tile == 0):
            return True
        return self.lane_extents[-1] % self.lanes == 0 and align % self.lanes == 0

    def runs(self, align: int) -> int:
        """Return the most rows of the innermost lane group that one vector touches."""
        if self.has_aligned_rows(align):
            return 1
        e = self.lane_extents[-1]
        step = gcd(self.tile, self.lanes) if self.tile > self.lanes else self.tile or align
        start = e - gcd(step, e)
        return min(prod(self.lane_extents[:-1]), -(-(start + min(self.tile or self.lanes, self.lanes)) // e))

    def step(self, form: int) -> int:
        """Return the stride (elements) of a form between neighbouring lanes of one row."""
        return self.forms[form].coef.get(self.inner, 0)

    def kind(self, form: int, align: int) -> str:
        """Return how lanes read a form.

        "uniform": all lanes read one element. "unit": one row, at stride 1 or 2. "runs": several rows, at stride 1 or
        2. "gather": anything else."""
        coef, aligned = self.forms[form].coef, self.has_aligned_rows(align)
        varies = coef.get(self.inner) or not aligned and any([coef.get(g.inner) for g in self.lane_groups])
        if not varies:
            return "uniform"  # a vector within a row has one position in all other groups
        if self.step(form) in (1, 2):
            if aligned:
                return "unit"
            if self.runs(align) <= MAX_MASKED_RUNS:
                return "runs"
        return "gather"

    def load_cost(self, align: int) -> float:
        """Return the cost of reading one vector, masks included, in units of one vector load."""
        cost, cost_by_kind = INSTRUCTIONS.gather * self._gathered_reads, {"uniform": 1.0, "gather": INSTRUCTIONS.gather}
        for r, form in self.reads.items():
            kind = self.kind(form, align)
            if self.is_contiguous_word(r, align):
                cost += 1.0 / self.word_reads[r]
            else:
                cost += cost_by_kind[kind] if kind in cost_by_kind else self.runs(align) * self.row_cost(form)
        return cost + 1.5 * self.masks * max(1.0, cost * 0.5)

    def read_cycles(self, align: int, w: Overheads) -> float:
        """Return the cycles that reading one vector takes from arithmetic beyond one load, masks aside."""
        cycles, rows = w.gather * self._gathered_reads, self.runs(align)
        for r, form in self.reads.items():
            kind = "uniform" if self.is_contiguous_word(r, align) else self.kind(form, align)
            if kind == "gather":
                cycles += w.gather
            elif kind != "uniform":
                is_strided = self.step(form) == 2
                cycles += w.touched_row * rows * self.row_cost(form) if rows > 1 else w.every_other * is_strided
        return cycles

    def is_vector_aligned(self, form: int) -> bool:
        """Return whether a form has unit stride and its vectors are aligned to the vector length within the buffer,
        provided that lane 0 stands at a multiple of the lanes in its row."""
        f, row_axes = self.forms[form], self.lane_groups[-1].axes
        return (
            self.step(form) == 1
            and f.const % self.lanes == 0
            and all(c % self.lanes == 0 for a, c in f.coef.items() if a not in row_axes)
        )

    def row_cost(self, form: int) -> float:
        """Return the cost of a vector within one row, in loads: at stride 2 it is two loads and a shuffle."""
        return INSTRUCTIONS.pair if self.step(form) == 2 else 1.0

    # -- scalars

    def part(self, groups: Sequence[FusedAxes], values: Sequence[SSAValue]) -> PartialAddress:
        """Return the contribution of axis groups at these scalar values to every form."""
        b, bound_groups = self.b, list(zip(groups, values, strict=False))  # no groups have one point
        sums: dict[int, SSAValue] = {}
        for g, value in bound_groups:
            for i, f in enumerate(self.forms):
                c = f.coef.get(g.inner, 0)
                if c:
                    sums[i] = b.add(sums.get(i, 0), b.mul(value, c))
        opaque = {g.inner: v for g, v in bound_groups if g.inner in self.opaque}
        return PartialAddress(sums, frozenset(a for g, _ in bound_groups for a in g.axes), opaque)

    def at(self, values: Mapping[int, SSAValue], steps: Mapping[int, int | SSAValue] | None = None) -> PartialAddress:
        """Return the contribution of axes at `values`, moved by `steps` (points, by axis); fold constant steps."""
        b, steps = self.b, steps or {}
        literal_steps = {a: n for a, x in steps.items() if (n := b.known(x)) is not None}
        moved = {**values, **{a: b.add(values[a], x) for a, x in steps.items() if a not in literal_steps}}
        out = self.part([FusedAxes((a,), self.extents[a]) for a in moved], list(moved.values()))
        for i, f in enumerate(self.forms if literal_steps else ()):
            delta = sum(f.coef.get(a, 0) * x for a, x in literal_steps.items())
            if delta:
                out.sums[i] = b.add(out.sums.get(i, 0), delta)
        out.opaque |= {a: b.add(out.opaque[a], x) for a, x in literal_steps.items() if a in out.opaque}
        return out

    def place(self, form: int, *parts: PartialAddress) -> SSAValue:
        """Return the value of a form: its constant plus the contributions of `parts`."""
        total: SSAValue | int = 0
        for part in parts:
            total = self.b.add(total, part.sums.get(form, 0))
        return self.b.add(total, self.forms[form].const)

    def part_of(self, axes: Sequence[int], flat: SSAValue) -> PartialAddress:
        """Return the contribution of the flattened `axes` at point `flat`."""
        groups = self.groups(axes)
        return self.part(groups, digits(self.b, flat, [g.extent for g in groups]))
