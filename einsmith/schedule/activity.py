"""Find the tiles of a nest that change nothing, so that they can be skipped: those that a mask excludes whole.

before: for each block of j:  s[i,j] = where(j <= i, t[i,j], -inf);  m[i] = max(m[i], s[i,j])   for a block of i
after:  for each block of j in which some j <= some i: the same

A value that equals a constant unless a condition holds (`analysis.constant_unless`) is followed from kernel to kernel.
The sum of a row that a mask excludes whole is no number by one of its terms, so that one tile of each block of rows
runs in any case (`Activity.some`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from einsmith.ir.analysis.constant_unless import ConstantUnless, constant_unless
from einsmith.ir.functions import identity
from einsmith.ir.nodes import Expr, Read, Reduce, Tensor, axes_of, reads
from einsmith.ir.rebuild import rebuild, substitute, whole_piece
from einsmith.schedule.row_forms import SweptKernel, axes_at


class TileValues:
    """What tensors of a sweep equal at a point unless a condition on its axes holds, followed from kernel to kernel.

    name: returns the number that a condition gives a tensor; None if it may not read it.
    """

    def __init__(self, name: Callable[[Tensor], int | None]):
        self.name = name
        self._known: dict[Tensor, tuple[ConstantUnless, tuple[int, ...]]] = {}  # with the extents of the axes

    def add(self, x: SweptKernel) -> None:
        """Find what the results of the next kernel equal."""
        out: list[list[ConstantUnless | None]] = []
        for stage in x.kernel.stages:
            t = stage.template
            body = t.parts[0].body

            def read(e: Read, stage=stage) -> ConstantUnless | None:
                kind, *where = stage.args[e.slot]
                return out[where[0]][where[1]] if kind == "stage" else self._find(x, where[0], e.index)

            results: list[ConstantUnless | None] = []
            for b in t.parts[0].bodies if whole_piece(t) is not None else ():
                value = constant_unless(b, read)
                unless = None if value is None else self._rename(value.unless, x, stage.args)
                if value is not None and unless is not None and isinstance(body, Reduce):
                    summed = {a for a in axes_of(unless) if a >= t.rank}
                    # A sum is its identity where all its terms are: their condition may not depend on the summed axes.
                    value = value if value.value == identity(body.combiner, b.dtype) and not summed else None
                results.append(None if value is None or unless is None else ConstantUnless(value.value, unless))
            # An argmax has two results of one body; nothing is known of its position.
            out.append(results if len(results) == len(t.dtypes) else [None] * len(t.dtypes))
            for place, known in zip(stage.outputs, out[-1], strict=True):
                if place is not None and known is not None:
                    self._known[x.tensors[place]] = known, t.shape

    def gains_unless(self, x: SweptKernel) -> Expr | None:
        """Return the condition on a point of the domain of the next kernel's root without which its reduction adds
        nothing there; None if there is none."""
        t, args = x.kernel.root, x.kernel.stages[0].args
        body = t.parts[0].body
        if whole_piece(t) is None or not isinstance(body, Reduce) or len(body.bodies) > 1:
            return None
        value = constant_unless(body.bodies[0], lambda e: self._find(x, args[e.slot][1], e.index))
        if value is None or value.value != identity(body.combiner, body.bodies[0].dtype):
            return None
        return self._rename(value.unless, x, args)

    def _find(self, x: SweptKernel, buffer: int, index: tuple[Expr, ...]) -> ConstantUnless | None:
        """Return what a kernel's buffer equals where it is read at an index."""
        value, shape = self._known.get(x.tensors[buffer], (None, ()))
        axes = None if value is None else axes_at(shape, x.kernel.buffers[buffer].shape, index)
        return None if value is None or axes is None else ConstantUnless(value.value, substitute(value.unless, axes))

    def _rename(self, condition: Expr, x: SweptKernel, args: Sequence[tuple]) -> Expr | None:
        """Return a condition with the names of tensors for slots, whose indices are those of the tensors; None where it
        reads another stage, a tensor without a name, or one by other dimensions than its own. Reads of known values,
        which `constant_unless` has put there, have names already (negative slots)."""
        valid = True

        def rule(e):
            nonlocal valid
            if not isinstance(e, Read) or e.slot < 0:
                return None
            kind, place, *_ = args[e.slot]
            number = self.name(x.tensors[place]) if kind == "buffer" else None
            if number is not None:
                # A kernel whose leading axes are merged sees fewer dimensions than the tensor has.
                axes = axes_at(x.tensors[place].shape, x.kernel.buffers[place].shape, e.index)
                if axes is not None:
                    return Read(-1 - number, tuple(axes.values()), e.dtype)
            valid = False
            return None

        out = rebuild([condition], rule)[0]
        return out if valid else None


def names_in(condition: Expr) -> set[int]:
    """Return the names of the buffers that a condition reads."""
    return {-1 - r.slot for r in reads(condition)}
