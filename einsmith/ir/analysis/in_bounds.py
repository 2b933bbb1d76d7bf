"""Prove that reads, and indices of scatters, lie in their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.enumeration import holds_everywhere
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.intervals import Interval
from einsmith.ir.analysis.lines import COMPARISONS, lines_of
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Scatter,
    Template,
    apply,
    axes_of,
    has_read,
    postorder,
    reads,
)
from einsmith.ir.printer import show


@dataclass(frozen=True)
class OutOfBounds:
    """A read (or the index of a scatter, `read` being None) that is not proven inside its tensor."""

    part: Piece | Scatter
    read: Read | None
    dim: int
    index: Expr
    interval: Interval
    extent: int

    def message(self, axes: Sequence[str] | None = None, slots: Sequence[str] | None = None) -> str:
        """Describe the failed proof in one sentence; `axes` and `slots` name axis positions and arguments."""
        rank = len(self.part.extents)
        if axes is None:
            axes = [f"i{d}" if d < rank else f"r{d - rank}" for d in range(len(self.part.domain))]
        lo, hi = ("?" if v is None else str(v) for v in self.interval)
        used = sorted(a.position for a in postorder([self.index]) if isinstance(a, Axis))
        box = ", ".join(f"{axes[p]} in 0 .. {self.part.domain[p] - 1}" for p in used if p < len(axes))
        what = "the scatter" if self.read is None else f"the read {show(self.read, axes, slots)}"
        return (
            f"{what} is not proven in bounds: its index {show(self.index, axes, slots)} of dimension {self.dim} has "
            f"the range {lo} .. {hi}, the extent is {self.extent} (positions 0 .. {self.extent - 1})"
            + (f"; {box}" if box else "")
        )


def out_of_bounds(t: Template) -> Iterator[OutOfBounds]:
    """Yield reads, and indices of a scatter, that are not proven in bounds under the `where`s around them.

    An index that itself reads a tensor is exempt, and so is one that a guard compares with elements of a tensor: they
    are checked when the program runs.
    """
    for part in t.parts:
        facts = Facts(part.domain)
        if not facts.feasible:
            continue
        if isinstance(part, Scatter):
            for d, (i, n) in enumerate(zip(part.index, t.shape, strict=True)):
                if not inside(i, n, facts):
                    yield OutOfBounds(part, None, d, i, facts.bounds(i), n)
        if all(_is_along_axes(read, t, part.domain) for body in part.bodies for read in reads(body)):
            continue
        for read, known in reads_under(part):
            for d, (i, n) in enumerate(zip(read.index, t.params[read.slot][1], strict=True)):
                if not inside(i, n, known):
                    yield OutOfBounds(part, read, d, i, known.bounds(i), n)


def _is_along_axes(read: Read, t: Template, extents: Sequence[int]) -> bool:
    """Return whether a read is in bounds wherever it is evaluated, since each index is an axis of at most the extent of
    its dimension; False for most other reads."""
    shape = t.params[read.slot][1]
    return all(isinstance(i, Axis) and extents[i.position] <= n for i, n in zip(read.index, shape, strict=True))


def inside(index: Expr, extent: int, facts: Facts) -> bool:
    """Return whether an index is proven to lie in [0, extent), or is exempt because it reads a tensor, or because it is
    compared with elements of a tensor."""
    if isinstance(index, Axis):  # by far the most common
        if facts.extents[index.position] <= extent:
            return True
    elif any(isinstance(e, Read) for e in postorder([index])):
        return True
    return proven(index, extent, facts) or is_compared_with_data(index, facts)


def is_compared_with_data(index: Expr, facts: Facts) -> bool:
    """Return whether a guard bounds an axis of an index by elements of integer tensors, as in `where(e > row[s[e]],
    x[e-1], 0)`: the index is checked when the program runs, wherever the guard holds."""
    axes = axes_of(index)
    for c, truth in facts.known:
        if isinstance(c, Apply) and c.fn in COMPARISONS and c.args[0].dtype.is_int and has_read(c):
            lines, _ = lines_of(c, truth)
            if any(not axes.isdisjoint(line.coef) and any(map(has_read, line.atoms)) for line in lines):
                return True
    return False


def proven(index: Expr, extent: int, facts: Facts) -> bool:
    """Return whether an index is proven to lie in [0, extent)."""
    if isinstance(index, Apply) and index.fn == "where":
        condition, a, b = index.args
        sides = ((a, facts.assume(condition)), (b, facts.assume(condition, False)))
        if all(not under.feasible or proven(e, extent, under) for e, under in sides):
            return True
    lo, hi = facts.bounds(index)
    if lo is not None and hi is not None and 0 <= lo and hi < extent:
        return True
    low, high = apply("le", Const(0, index.dtype), index), apply("lt", index, Const(extent, index.dtype))
    return (facts.prove(low) and facts.prove(high)) or holds_everywhere(apply("and", low, high), facts)
