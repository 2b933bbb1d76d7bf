"""Turn expressions into instructions: the traversal shared by all emitters, which define reads and axes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence

from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.ir.analysis.guarded import unconditional
from einsmith.ir.analysis.widths import modulo
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, postorder

Memo = dict[tuple[Expr, int | None], SSAValue]
"""Emitted values, by the expression and the id of the guard under which its reads may touch memory."""
_Visit = Generator[tuple[Expr, SSAValue | None], SSAValue, SSAValue]


class ExpressionEmitter(ABC):
    """An emitter of expressions; a value that is uniform over the lanes is a scalar, any other one a vector.

    A guard is the condition, a scalar or a vector of i1, under which reads may touch memory; None: everywhere. Where it
    does not hold, an expression has any value.
    """

    b: Builder
    unsafe: dict[Expr, bool]
    """What `is_unsafe` has returned."""

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

    @abstractmethod
    def may_leave_bounds(self, x: Read) -> bool:
        """Return whether a read may be out of bounds where a guard around it does not hold."""

    def is_unsafe(self, x: Expr) -> bool:
        """Return whether x holds a read that `may_leave_bounds`; decided once for each expression."""
        for e in postorder([x], self.unsafe):
            self.unsafe[e] = any(self.unsafe[a] for a in e.args) or (isinstance(e, Read) and self.may_leave_bounds(e))
        return self.unsafe[x]

    def guard_of(self, x: Expr, guard: SSAValue | None) -> SSAValue | None:
        """Return the guard under which to emit x, given the guard around it; None where x needs none."""
        return guard

    def evaluate(self, root: Expr, guard: SSAValue | None, memo: Memo) -> SSAValue:
        """Emit `root` and return its value; `memo` is read and extended. Iterative, as expressions may be deep."""
        stack: list[tuple[tuple[Expr, int | None], _Visit]] = []
        value: SSAValue | None = None
        request: tuple[Expr, SSAValue | None] | None = (root, guard)
        while True:
            if request is not None:
                e, g = request[0], self.guard_of(*request)
                key = (e, None if g is None else g.id)
                value = memo.get(key)
                if value is None:
                    stack.append((key, self._visit(e, g, memo)))
            elif stack:
                assert value is not None
                memo[stack.pop()[0]] = value
            if not stack:
                assert value is not None
                return value
            try:
                request = stack[-1][1].send(value)  # type: ignore[arg-type]
            except StopIteration as stop:
                value, request = stop.value, None

    def _visit(self, x: Expr, guard: SSAValue | None, memo: Memo) -> _Visit:
        if isinstance(x, Const):
            return self.const(x.value, elem_of(x.dtype))
        if isinstance(x, Read):
            return self.read(x, guard)
        if isinstance(x, Axis):
            value = self.index(x, "i32")
            assert value is not None
            return value
        assert isinstance(x, Apply)
        if x.fn == "where":
            return (yield from self._where(x, guard, memo))
        if x.dtype.is_int and x.fn in ("floordiv", "mod", "cast"):
            value = self.index(x, elem_of(x.dtype))
            if value is not None:
                return value
            narrow = modulo(x.args[0], x.dtype) if x.fn == "cast" else None
            if narrow is not None:
                return (yield narrow, guard)
        adjacent = self.adjacent_words(x, guard) if x.fn == "pack" else None
        if adjacent is not None:
            return adjacent
        args = []
        for a in x.args:
            args.append((yield a, guard))
        if x.fn == "cast":
            return self.cast(args[0], elem_of(x.dtype))
        if x.fn == "pack":
            return self.pack(args)
        return args[0] if x.fn in ("stop_gradient", "full_precision") else self.op(x.fn, *args)

    def _where(self, x: Apply, guard: SSAValue | None, memo: Memo) -> _Visit:
        """Emit a `where`: both sides are evaluated, their unsafe reads guarded by the condition of their side. What
        both sides read is read once, under the guard around them: a chain of conditions reads it twice at each else."""
        condition = yield x.args[0], guard
        shared: dict[Expr, SSAValue] = {}
        if all(map(self.is_unsafe, x.args[1:])):
            first, second = (unconditional([a], self.is_unsafe) for a in x.args[1:])
            for e in (e for e in first if e in second):
                shared[e] = yield e, guard
        sides = []
        for side, holds in ((x.args[1], True), (x.args[2], False)):
            side_guard = guard
            if self.is_unsafe(side):
                side_condition = condition if holds else self.op("not", condition)
                side_guard = side_condition if guard is None else self.op("and", guard, side_condition)
                for e, value in shared.items():
                    of_side = self.guard_of(e, side_guard)
                    memo.setdefault((e, None if of_side is None else of_side.id), value)
            sides.append((yield side, side_guard))
        return self.op("where", condition, *sides)
