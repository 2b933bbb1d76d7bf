"""Compute with quasi-affine integer forms: linear forms whose atoms may be floor divisions, over axes of known extents.

A remainder is never an atom: `x % c` is kept as `x - c*(x//c)`, so that `c*(x//c) + x % c` cancels to `x` by plain
addition. `emit` converts such differences back into remainders.
"""

from __future__ import annotations

from collections.abc import Mapping

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.symbolic import gcd, to_whole
from einsmith.ir.analysis.bounds import bounds
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import Apply, Axis, Const, Expr, postorder
from einsmith.ir.rebuild import with_args


class Quasi:
    """Arithmetic on quasi-affine forms; axis `p` ranges over `[0, extents[p])`."""

    def __init__(self, extents: list[int]):
        self.extents = extents
        self._bounds: dict[Expr, tuple[int | None, int | None]] = {}
        self._floors: dict[Expr, tuple[LinearForm, int]] = {}

    # ------------------------------------------------------------------------------------------------ arithmetic

    def bounds(self, lin: LinearForm) -> tuple[int | None, int | None]:
        """Return an inclusive interval that holds the form; None for an end that is unbounded."""
        lin = self.remainders(lin)
        lo: int | None = lin.const
        hi: int | None = lin.const
        for atom, c in lin.terms.items():
            if isinstance(atom, Axis):
                a: int | None = 0
                b: int | None = self.extents[atom.position] - 1
            else:
                if atom not in self._bounds:
                    self._bounds[atom] = bounds(atom, self.extents)
                a, b = self._bounds[atom]
            if c < 0:
                a, b = b, a
            lo = None if lo is None or a is None else lo + c * a
            hi = None if hi is None or b is None else hi + c * b
        return lo, hi

    def div(self, lin: LinearForm, c: int) -> LinearForm:
        """Return `lin // c` for c > 0."""
        if c == 1:
            return lin
        whole = LinearForm(lin.const // c, {a: k // c for a, k in lin.terms.items() if k % c == 0})
        rest = LinearForm(lin.const % c, {a: k for a, k in lin.terms.items() if k % c})
        if not rest.terms:
            return whole
        lo, hi = self.bounds(rest)
        if lo is not None and hi is not None and lo // c == hi // c:
            return whole + lo // c
        for g in sorted({gcd(k, c) for k in rest.terms.values()} - {1}, reverse=True):
            # (g*a + b) // (g*d) = (a + b//g) // d: what is left of b may lie within one multiple of g
            small = LinearForm(rest.const % g, {a: k for a, k in rest.terms.items() if k % g})
            lo, hi = self.bounds(small)
            if lo is not None and hi is not None and lo // g == hi // g:
                const = rest.const // g + lo // g
                return whole + self.div(
                    LinearForm(const, {a: k // g for a, k in rest.terms.items() if k % g == 0}), c // g
                )
        if len(rest.terms) == 1:
            ((atom, k),) = rest.terms.items()
            if k == 1 and atom in self._floors:
                inner, d = self._floors[atom]
                return whole + self.div(inner + rest.const * d, c * d)
        x = self.emit(rest)
        node = Apply("floordiv", (x, Const(c, x.dtype)), x.dtype)
        self._floors[node] = (rest, c)
        return whole + LinearForm(0, {node: 1})

    def mod(self, lin: LinearForm, c: int) -> LinearForm:
        """Return `lin % c` for c > 0, as a difference."""
        return lin - self.div(lin, c) * c

    # ---------------------------------------------------------------------------------------------- expressions

    def linear(self, e: Expr, env: Mapping[int, LinearForm], memo: dict | None = None) -> LinearForm:
        """Return the form of an integer expression, its axes replaced by forms."""
        out = self._walk(e, env, {} if memo is None else memo)
        return out if isinstance(out, LinearForm) else LinearForm(0, {out: 1})

    def expr(self, e: Expr, env: Mapping[int, LinearForm], memo: dict | None = None) -> Expr:
        """Return an expression with its axes replaced by forms and its integer parts normalized."""
        out = self._walk(e, env, {} if memo is None else memo)
        return self.emit(out, e.dtype) if isinstance(out, LinearForm) else out

    def _walk(self, root: Expr, env: Mapping[int, LinearForm], memo: dict) -> LinearForm | Expr:
        for e in postorder([root]):
            if e in memo:
                continue
            form = self._form(e, env, memo)
            if form is None:
                args = tuple(self.emit(m, a.dtype) if isinstance(m := memo[a], LinearForm) else m for a in e.args)
                new = with_args(e, args) if args else e
                form = LinearForm(0, {new: 1}) if new.dtype.is_int else new
            memo[e] = form
        return memo[root]

    def _form(self, e: Expr, env: Mapping[int, LinearForm], memo: dict) -> LinearForm | None:
        """Return the form of `e` from its arguments' forms; None if `e` is an atom."""
        if isinstance(e, Axis):
            return env.get(e.position, LinearForm(0, {e: 1}))
        if not e.dtype.is_int:
            return None
        if isinstance(e, Const):
            return LinearForm(to_whole(e.value))
        if not isinstance(e, Apply):
            return None
        args = [memo[a] for a in e.args]
        if e.fn == "add":
            return args[0] + args[1]
        if e.fn == "sub":
            return args[0] - args[1]
        if e.fn == "neg":
            return args[0] * -1
        if e.fn == "mul" and not args[0].terms:
            return args[1] * args[0].const
        if e.fn == "mul" and not args[1].terms:
            return args[0] * args[1].const
        if e.fn in ("floordiv", "mod") and not args[1].terms and args[1].const > 0:
            return (self.div if e.fn == "floordiv" else self.mod)(args[0], args[1].const)
        if e.fn == "cast" and e.args[0].dtype.is_int and e.dtype.bits >= e.args[0].dtype.bits:
            return args[0]
        return None

    def emit(self, lin: LinearForm, dtype: DType | None = None) -> Expr:
        """Return the form as an expression, of the widest type among its atoms unless `dtype` is given."""
        if dtype is None:
            dtype = dt.i64 if any(a.dtype is dt.i64 for a in lin.terms) else dt.i32
        return self.remainders(lin).expr(dtype)

    def remainders(self, lin: LinearForm) -> LinearForm:
        """Return the form with `m*x - m*c*(x//c)` written as `m*(x % c)`, where x may itself be `y//d`."""
        if not any(a in self._floors for a in lin.terms):
            return lin
        for atom, k in list(lin.terms.items()):
            if atom not in self._floors or lin.coefficient(atom) != k:
                continue
            x, c = self._floors[atom]
            for other, m in list(lin.terms.items()):
                if other is not atom and other in self._floors:
                    y, d = self._floors[other]
                    if c % d == 0 and x == y and k == -m * (c // d):
                        node = Apply("mod", (other, Const(c // d, other.dtype)), other.dtype)
                        lin = LinearForm(lin.const, {a: n for a, n in lin.terms.items() if a not in (atom, other)})
                        lin = lin + LinearForm(0, {node: m})
                        break
            else:
                if k % c:
                    continue
                m = -k // c
                terms = lin.terms
                if all(terms.get(a, 0) * m * n > 0 and abs(terms[a]) >= abs(m * n) for a, n in x.terms.items()):
                    value = self.emit(x)
                    node = Apply("mod", (value, Const(c, value.dtype)), value.dtype)
                    lin = lin - x * m - LinearForm(0, {atom: k}) + LinearForm(0, {node: m})
        return lin
