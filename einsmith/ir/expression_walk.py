"""Evaluate expressions from the values of their operands: the traversal shared by what writes them in another language.

An evaluator defines the values of leaves and of functions; the traversal defines their order, that each expression is
evaluated once, and which reads the condition of a `where` guards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Sequence
from typing import Generic, TypeVar

from einsmith.ir.analysis.guarded import unconditional
from einsmith.ir.nodes import Apply, Expr, Read, postorder

TRANSPARENT = ("stop_gradient", "full_precision", "differentiate_as")
"""Functions whose value is their first operand: they say something to derivatives or to passes."""

Value = TypeVar("Value")
Guard = TypeVar("Guard", bound=Hashable)
Visit = Generator[tuple[Expr, Guard], Value, Value]
"""A visit of an expression: it yields (operand, guard), is sent the operand's value, and returns its own."""


class ExpressionWalk(ABC, Generic[Value, Guard]):
    """An evaluator of expressions. The guard of an expression is passed on to its operands."""

    def evaluate(self, root: Expr, guard: Guard, memo: dict[tuple[Expr, Guard], Value]) -> Value:
        """Return the value of `root`. memo: known values, by (expression, its guard); it is read and extended.

        Iterative, as expressions may be deep."""
        stack: list[tuple[tuple[Expr, Guard], Visit[Guard, Value]]] = []
        value: Value | None = None
        request: tuple[Expr, Guard] | None = (root, guard)
        while True:
            if request is not None:
                key = request[0], self.guard_of(*request)
                value = memo.get(key)
                if value is None:
                    stack.append((key, self.visit(*key, memo)))
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

    def guard_of(self, x: Expr, guard: Guard) -> Guard:
        """Return the guard under which to evaluate x, given the guard around it."""
        return guard

    def visit(self, x: Expr, guard: Guard, memo: dict[tuple[Expr, Guard], Value]) -> Visit[Guard, Value]:
        """Evaluate x, whose guard is `guard`."""
        value = self.leaf(x, guard)
        if value is not None:
            return value
        operands: list[Value] = []
        for a in self.operands(x):
            operands.append((yield a, guard))
        return self.combine(x, operands, guard)

    def leaf(self, x: Expr, guard: Guard) -> Value | None:
        """Return the value of an expression that needs none of its operands' values; None for any other."""
        return None

    def operands(self, x: Expr) -> Sequence[Expr]:
        """Return the expressions whose values `combine` takes."""
        return x.args[:1] if isinstance(x, Apply) and x.fn in TRANSPARENT else x.args

    @abstractmethod
    def combine(self, x: Expr, operands: Sequence[Value], guard: Guard) -> Value:
        """Return the value of x from those of its operands."""


class GuardedWalk(ExpressionWalk[Value, Guard]):
    """An evaluator for which some reads under a condition may touch memory only where the condition holds.

    A guard is what holds wherever an expression may read. Where it fails, the expression has any value.
    """

    unsafe: dict[Expr, bool]
    """What `is_unsafe` has returned."""

    @abstractmethod
    def needs_guard(self, x: Read) -> bool:
        """Return whether a read may touch memory only where the guard around it holds."""

    @abstractmethod
    def narrow(self, guard: Guard, condition: Value, holds: bool) -> Guard:
        """Return the guard of what is evaluated only where the condition holds, or where it fails (holds=False)."""

    @abstractmethod
    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """Return the value of a `where`."""

    def is_unsafe(self, x: Expr) -> bool:
        """Return whether x holds a read that `needs_guard`; decided once for each expression."""
        for e in postorder([x], self.unsafe):
            self.unsafe[e] = any(self.unsafe[a] for a in e.args) or (isinstance(e, Read) and self.needs_guard(e))
        return self.unsafe[x]

    def visit(self, x: Expr, guard: Guard, memo: dict[tuple[Expr, Guard], Value]) -> Visit[Guard, Value]:
        if isinstance(x, Apply) and x.fn == "where":
            return (yield from self._visit_where(x, guard, memo))
        return (yield from super().visit(x, guard, memo))

    def _visit_where(self, x: Apply, guard: Guard, memo: dict[tuple[Expr, Guard], Value]) -> Visit[Guard, Value]:
        """Evaluate a `where`: both sides, with unsafe reads guarded by the condition of their side. What both sides
        read is read once, under the guard around them: a chain of conditions reads it twice at each else."""
        condition = yield x.args[0], guard
        shared: dict[Expr, Value] = {}
        if all(map(self.is_unsafe, x.args[1:])):
            first, second = (unconditional([a], self.is_unsafe) for a in x.args[1:])
            for e in (e for e in first if e in second):
                shared[e] = yield e, guard
        sides: list[Value] = []
        for side, holds in ((x.args[1], True), (x.args[2], False)):
            inner = self.narrow(guard, condition, holds) if self.is_unsafe(side) else guard
            for e, value in shared.items():
                memo.setdefault((e, self.guard_of(e, inner)), value)
            sides.append((yield side, inner))
        return self.select(condition, *sides)
