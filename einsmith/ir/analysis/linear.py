"""Normalize integer expressions to `const + sum of coefficient * atom`; an atom is any expression that is not itself a
sum.

Bounds, simplification, inversion of reads and address arithmetic share this normal form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.locks import cached_property
from einsmith.base.symbolic import to_whole
from einsmith.ir.nodes import Apply, Axis, Const, Expr, apply, axes_of, cast


@dataclass(frozen=True, init=False)
class LinearForm:
    """A sum `const + sum(coefficient * atom)`; coefficients are not 0."""

    const: int
    terms: dict[Expr, int]

    def __init__(self, const: int = 0, terms: dict[Expr, int] | None = None):
        own = self.__dict__  # several times as fast as the assignments of a frozen class
        own["const"], own["terms"] = const, {} if terms is None else terms

    @staticmethod
    def of_axes(const: int, coef: Mapping[int, int]) -> LinearForm:
        """Return the sum of axes with these coefficients by the axes' positions."""
        return LinearForm(const, {Axis(a): c for a, c in coef.items()})

    def __add__(self, other: LinearForm | int) -> LinearForm:
        if isinstance(other, int):
            return LinearForm(self.const + other, self.terms)
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            c += terms.get(atom, 0)
            if c:
                terms[atom] = c
            else:
                terms.pop(atom, None)
        return LinearForm(self.const + other.const, terms)

    def __mul__(self, k: int) -> LinearForm:
        if k == 0:
            return LinearForm()
        return LinearForm(self.const * k, {a: c * k for a, c in self.terms.items()})

    def __sub__(self, other: LinearForm | int) -> LinearForm:
        return self + (-other if isinstance(other, int) else other * -1)

    @property
    def key(self) -> tuple[int, frozenset[tuple[Expr, int]]]:
        """Return a hashable key that equal sums share."""
        return self.const, frozenset(self.terms.items())

    @cached_property
    def atoms(self) -> tuple[Expr, ...]:
        """Return the atoms that are not axes."""
        return tuple([a for a in self.terms if not isinstance(a, Axis)])

    @cached_property
    def axes(self) -> frozenset[int]:
        """Return the positions of the axes that the sum depends on."""
        return axes_of(*self.terms)

    @cached_property
    def coef(self) -> dict[int, int]:
        """Return the coefficients of the axes by their positions."""
        return {a.position: c for a, c in self.terms.items() if isinstance(a, Axis)}

    def coefficient(self, atom: Expr) -> int:
        """Return the coefficient of an atom, 0 if it does not occur."""
        return self.terms.get(atom, 0)

    def without(self, atom: Expr) -> LinearForm:
        """Return the sum without an atom's term."""
        return LinearForm(self.const, {a: c for a, c in self.terms.items() if a is not atom})

    def at_point(self, point: Mapping[int, int]) -> LinearForm:
        """Return a sum of axes with the values of some of them substituted."""
        const = self.const + sum(c * point[a] for a, c in self.coef.items() if a in point)
        return LinearForm.of_axes(const, {a: c for a, c in self.coef.items() if a not in point})

    def at(self, axes: Mapping[int, Expr]) -> LinearForm | None:
        """Return the sum with axes replaced; None where it depends on more than axes."""
        out = LinearForm(self.const)
        for atom, c in self.terms.items():
            if not isinstance(atom, Axis):
                return None
            out += linear(axes.get(atom.position, atom)) * c
        return out

    def expr(self, dtype: DType = dt.i32) -> Expr:
        """Return the sum as an expression, in an order that depends on structure alone: axes by position, then other
        atoms."""

        def rank(item: tuple[Expr, int]):
            atom = item[0]
            return (0, atom.position, b"") if isinstance(atom, Axis) else (1, 0, atom.digest)

        out: Expr | None = None
        for atom, c in sorted(self.terms.items(), key=rank):
            atom = cast(atom, dtype)
            if out is None:
                out = atom if c == 1 else apply("mul", Const(c, dtype), atom)
                continue
            term = atom if abs(c) == 1 else apply("mul", Const(abs(c), dtype), atom)
            out = apply("add" if c > 0 else "sub", out, term)
        if out is None:
            return Const(self.const, dtype)
        if self.const:
            out = apply("add" if self.const > 0 else "sub", out, Const(abs(self.const), dtype))
        return out


def nonnegative(condition: Expr) -> LinearForm | None:
    """Return the linear form that an integer comparison by < or <= states to be at least 0; None for other
    expressions."""
    if not isinstance(condition, Apply) or condition.fn not in ("lt", "le") or not condition.args[0].dtype.is_int:
        return None
    return linear(condition.args[1]) - linear(condition.args[0]) - int(condition.fn == "lt")


@lru_cache(maxsize=1 << 15)
def linear(x: Expr) -> LinearForm:
    """Return the normal form of an integer expression.

    A node other than +, -, * by a constant, or a widening cast is an atom.
    """
    const = 0
    terms: dict[Expr, int] = {}
    stack: list[tuple[Expr, int]] = [(x, 1)]
    while stack:
        e, k = stack.pop()
        if isinstance(e, Const):
            const += k * (e.value if type(e.value) is int else to_whole(e.value))
            continue
        if isinstance(e, Apply):
            fn, args = e.fn, e.args
            if fn in ("add", "sub"):
                stack += [(args[1], k if fn == "add" else -k), (args[0], k)]
                continue
            if fn == "neg":
                stack.append((args[0], -k))
                continue
            if fn == "mul":
                a, b = linear(args[0]), linear(args[1])
                if not a.terms:
                    stack.append((args[1], k * a.const))
                    continue
                if not b.terms:
                    stack.append((args[0], k * b.const))
                    continue
            if fn == "cast" and args[0].dtype.is_int and e.dtype.is_int and e.dtype.bits >= args[0].dtype.bits:
                stack.append((args[0], k))
                continue
        terms[e] = terms.get(e, 0) + k
    return LinearForm(const, {a: c for a, c in terms.items() if c})


def values_in_box(coefficients: Mapping[int, int], counts: Iterable[tuple[int, int]]) -> int:
    """Return the number of distinct values of a linear form over a box of points.

    coefficients: coefficient by axis position; counts: (axis, points) of the axes that the box extends along.
    """
    seen = {0}
    for a, n in counts:
        if a in coefficients:
            steps = [coefficients[a] * i for i in range(int(n))]
            seen = {x + y for x in seen for y in steps}
    return len(seen)


def row_major_number(index: Sequence[Axis], extents: Sequence[int]) -> Expr:
    """Return the row-major number of a point of a box."""
    out, stride = LinearForm(), 1
    for axis, extent in reversed(list(zip(index, extents, strict=True))):
        out = out + LinearForm(0, {axis: stride} if extent > 1 else {})
        stride *= extent
    return out.expr()


def affine_of(x: LinearForm, extents: Sequence[int] | None = None) -> LinearForm | None:
    """Return a sum of axes; None where it has other atoms. Axes with one point in `extents` are dropped."""
    if x.atoms:
        return None
    return x if extents is None else without_points(x, extents)


def without_points(x: LinearForm, extents: Sequence[int]) -> LinearForm:
    """Return a sum of axes without those that have one point."""
    if all(extents[a] > 1 for a in x.coef):
        return x
    return LinearForm.of_axes(x.const, {a: c for a, c in x.coef.items() if extents[a] > 1})


def moved(e: Expr, by: int) -> Expr:
    """Return an index increased by a constant."""
    return (linear(e) + by).expr(e.dtype) if by else e
