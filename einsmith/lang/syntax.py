"""Define the syntax trees of formulas, which the parser makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from einsmith.base.dtypes import DType


@dataclass(frozen=True, eq=False)
class Ast:
    """Base of syntax nodes; `at` is the offset in the text."""

    at: int

    @property
    def args(self) -> tuple[Ast, ...]:
        """The nodes directly below."""
        return ()


@dataclass(frozen=True, eq=False)
class Number(Ast):
    """A literal."""

    value: bool | int | float


@dataclass(frozen=True, eq=False)
class Name(Ast):
    """An axis or a parameter."""

    id: str


@dataclass(frozen=True, eq=False)
class ParsedRead(Ast):
    """A read `name[index]`."""

    name: str
    index: tuple[Ast, ...]

    @property
    def args(self) -> tuple[Ast, ...]:
        return self.index


@dataclass(frozen=True, eq=False)
class ShapeOf(Ast):
    """The extent `name.shape[dim]`."""

    name: str
    dim: Ast

    @property
    def args(self) -> tuple[Ast, ...]:
        return (self.dim,)


@dataclass(frozen=True, eq=False)
class SizeOf(Ast):
    """The extent `size(axis)`."""

    axis: str


@dataclass(frozen=True, eq=False)
class ParsedApply(Ast):
    """A scalar function, under its name in the IR or `relu`."""

    fn: str
    operands: tuple[Ast, ...]

    @property
    def args(self) -> tuple[Ast, ...]:
        return self.operands


@dataclass(frozen=True, eq=False)
class Cast(Ast):
    """A conversion to an element type."""

    dtype: DType
    operand: Ast

    @property
    def args(self) -> tuple[Ast, ...]:
        return (self.operand,)


@dataclass(frozen=True, eq=False)
class ParsedReduction(Ast):
    """A reduction by a combiner over named axes."""

    combiner: str
    axes: tuple[str, ...]
    body: Ast

    @property
    def args(self) -> tuple[Ast, ...]:
        return (self.body,)


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement `name[index] = value`, or with `+=`, `*=`, `max=` or `min=` if it has a `combiner`."""

    at: int
    name: str
    index: tuple[Ast, ...]
    combiner: str | None
    value: Ast

    @property
    def accumulate(self) -> bool:
        """Return whether the statement accumulates into its tensor instead of defining it."""
        return self.combiner is not None


@dataclass(frozen=True, eq=False)
class Source:
    """A parsed text: statements in order, and the names of a last `return` line (None without one)."""

    text: str
    statements: tuple[Statement, ...]
    returns: tuple[tuple[str, int], ...] | None = field(default=None)


def walk(root: Ast, into_reads: bool = True) -> Iterator[Ast]:
    """Yield every node once, arguments first, in the text's order, without recursion. into_reads: yield the indices of
    reads, too."""
    stack: list[tuple[Ast, bool]] = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done or not node.args or (isinstance(node, ParsedRead) and not into_reads):
            yield node
        else:
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args))
