"""Turn expressions into instructions: what all emitters of loop nests share, which define reads and axes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.ir.analysis.widths import modulo
from einsmith.ir.expression_walk import TRANSPARENT, GuardedWalk
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read

Memo = dict[tuple[Expr, SSAValue | None], SSAValue]
"""Emitted values, by the expression and the guard under which its reads may touch memory."""


class ExpressionEmitter(GuardedWalk[SSAValue, SSAValue | None]):
    """An emitter of expressions; a value that is uniform over the lanes is a scalar, any other one a vector.

    A guard is the condition, a scalar or a vector of i1, under which reads may touch memory; None: everywhere.
    """

    b: Builder

    def op(self, fn: str, *args: SSAValue | int) -> SSAValue:
        """Emit a function of the IR; scalars are splatted where they meet vectors."""
        return self.b.op(fn, *args)

    def cast(self, x: SSAValue, elem: str) -> SSAValue:
        """Emit a conversion to another element type."""
        return self.b.cast(x, elem)

    def adjacent_words(self, x: Apply, guard: SSAValue | None) -> SSAValue | None:
        """Emit words whose points lie next to each other in memory; None where they do not."""
        return None

    def pack(self, points: Sequence[SSAValue]) -> SSAValue:
        """Emit words of these points."""
        return self.b.pack(points)

    def const(self, value: float | int | bool, elem: str) -> SSAValue:
        """Emit a constant."""
        return self.b.const(value, elem)

    @abstractmethod
    def read(self, x: Read, guard: SSAValue | None) -> SSAValue:
        """Emit the value of a read; memory may be touched only where the guard holds."""

    @abstractmethod
    def index(self, x: Expr, elem: str) -> SSAValue | None:
        """Return the value of an axis or of an integer expression of axes, as type `elem`.

        None where the value must be computed from the expression's operands. `elem` may be wider than their type."""

    def narrow(self, guard: SSAValue | None, condition: SSAValue, holds: bool) -> SSAValue | None:
        condition = condition if holds else self.op("not", condition)
        return condition if guard is None else self.op("and", guard, condition)

    def select(self, condition: SSAValue, yes: SSAValue, no: SSAValue) -> SSAValue:
        return self.op("where", condition, yes, no)

    def leaf(self, x: Expr, guard: SSAValue | None) -> SSAValue | None:
        if isinstance(x, Const):
            return self.const(x.value, elem_of(x.dtype))
        if isinstance(x, Read):
            return self.read(x, guard)
        if isinstance(x, Axis):
            return self.index(x, "i32")
        assert isinstance(x, Apply)
        if x.fn == "pack":
            return self.adjacent_words(x, guard)
        is_index = x.dtype.is_int and x.fn in ("floordiv", "mod", "cast")
        return self.index(x, elem_of(x.dtype)) if is_index else None

    def operands(self, x: Expr) -> Sequence[Expr]:
        narrow = modulo(x.args[0], x.dtype) if isinstance(x, Apply) and x.fn == "cast" and x.dtype.is_int else None
        return super().operands(x) if narrow is None else (narrow,)

    def combine(self, x: Expr, operands: Sequence[SSAValue], guard: SSAValue | None) -> SSAValue:
        assert isinstance(x, Apply)
        if x.fn == "cast":
            return self.cast(operands[0], elem_of(x.dtype))
        if x.fn == "pack":
            return self.pack(operands)
        return operands[0] if x.fn in TRANSPARENT else self.op(x.fn, *operands)
