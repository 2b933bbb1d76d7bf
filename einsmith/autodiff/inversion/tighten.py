"""Shorten the loops of one part of z-space as far as the conditions allow (`preimage`, 4 to 6)."""

from __future__ import annotations

from math import lcm, prod

from einsmith.autodiff.inversion.equations import System, modulus
from einsmith.autodiff.inversion.quasi import Quasi
from einsmith.base import dtypes as dt
from einsmith.base.symbolic import gcd
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import Apply, Axis, Expr, apply, axes_of, cast, reads


class SolvedPart(System):
    """The solved equations of a part, with its loops, phases, bounding box and points."""

    def tighten(self) -> None:
        """Shorten loops by the congruences and inequalities that bind them."""
        while self.feasible and (self._tighten_equation() or self._tighten_congruence() or self._tighten_range()):
            self._drop_proven()

    def _loops_of(self, x: LinearForm) -> list[int]:
        """Return the loops that are plain terms of a form and occur in none of its divisions, the longest first."""
        inner = {p for a in x.terms if not isinstance(a, Axis) for p in self._axes_in(a)}
        loops = [p for p in self.find_loops() if Axis(p) in x.terms and p not in inner]
        return sorted(loops, key=lambda p: -self.extents[p])

    def _tighten_equation(self) -> bool:
        """Remove one loop that an equation determines; return whether there was one."""
        for x in self.zeros:
            for p in self._loops_of(x):
                c = x.coefficient(Axis(p))
                known = x.without(Axis(p)) * (-1 if c > 0 else 1)
                if abs(c) > 1:
                    self.congruences.append((known, abs(c)))
                    known = self.div(known, abs(c))
                self.zeros.remove(x)
                self.solved[p] = known
                self.nonnegative += [known, LinearForm(self.extents[p] - 1) - known]
                return True
        return False

    def _replace(self, p: int, extent: int, first: LinearForm, step: int) -> None:
        """Replace loop p by `first + step*t`, t in [0, extent)."""
        t = self._add_unknown(extent, self.order[p])
        self.solved[p] = first + (LinearForm(0, {Axis(t): step}) if extent > 1 else LinearForm())
        if extent > 1:
            self.chosen.add(t)

    def _tighten_congruence(self) -> bool:
        for x, m in self.congruences:
            moving = [a for a, c in x.terms.items() if c % m]
            if len(moving) == 1 and isinstance(moving[0], Axis) and moving[0].position >= self.n:
                p, a = moving[0].position, x.terms[moving[0]]
                g = gcd(a, m)
                if x.const % g:
                    self.feasible = False
                    return True
                period = m // g
                first = (-x.const // g) * pow(a // g, -1, period) % period
                if first >= self.extents[p]:
                    self.feasible = False
                    return True
                self._replace(p, -(-(self.extents[p] - first) // period), LinearForm(first), period)
                return True
            for p in self._loops_of(x):
                a = x.coefficient(Axis(p))
                if gcd(a, m) == 1 and self.extents[p] > 1:
                    first_of = self.mod(x.without(Axis(p)) * (-pow(a, -1, m) % m), m)
                    self.congruences.remove((x, m))
                    e = self.extents[p]
                    self._replace(p, -(-e // m), first_of, m)
                    self.nonnegative.append(LinearForm(e - 1) - self.resolve(LinearForm(0, {Axis(p): 1})))
                    return True
        return False

    def _tighten_range(self) -> bool:
        for p in self.find_loops():
            t, e = Axis(p), self.extents[p]
            lower = [(1, LinearForm())]  # (a, rest): a*t + rest >= 0
            upper = [(1, LinearForm(e - 1))]  # (a, rest): a*t <= rest
            for x in (*self.nonnegative, *filter(None, map(self._remove_division, self.nonnegative))):
                a = x.coefficient(t)
                rest = x.without(t)
                if a and not any(p in self._axes_in(b) for b in rest.terms):
                    (lower if a > 0 else upper).append((abs(a), rest))
            best: tuple | None = None
            for a, low in lower:
                for b, high in upper:
                    top = self.bounds(high * a + low * b)[1]
                    if top is not None and top // (a * b) + 1 < (e if best is None else best[0]):
                        best = (top // (a * b) + 1, a, low)
            if best is None:
                continue
            extent, a, low = best
            if extent <= 0:
                self.feasible = False
                return True
            first = self.div(low, a) * -1
            self._replace(p, extent, first, 1)
            lo, hi = self.bounds(first)
            if not (lo is not None and hi is not None and lo >= 0 and hi + extent <= e):
                x = self.solved[p]
                self.nonnegative += [x, LinearForm(e - 1) - x]
            return True
        return False

    def _remove_division(self, x: LinearForm) -> LinearForm | None:
        """Return `g - e//c >= 0` as `c*g + c - 1 - e >= 0`, and `e//c + g >= 0` as `e + c*g >= 0`, to free loops from a
        division; None for other conditions."""
        divided = [a for a in x.terms if a in self._floors and any(p >= self.n for p in self._axes_in(a))]
        if len(divided) != 1 or abs(x.terms[divided[0]]) != 1:
            return None
        ((inner, c), k) = self._floors[divided[0]], x.terms[divided[0]]
        rest = x.without(divided[0]) * c
        return self.resolve(rest + inner if k > 0 else rest + (c - 1) - inner)

    # ----------------------------------------------------------------------------- steps 5 and 6: parts of z-space

    def choose_moduli(self, budget: int) -> list[int]:
        """Return, for each z axis, the modulus whose residues decide the guards; 1 where phases do not help. Their
        product is at most `budget`."""
        out = [1] * self.n

        def require(x: LinearForm, m: int) -> None:
            required = [1] * self.n
            todo = [(x, m)]
            while todo:
                x, m = todo.pop()
                for a, c in x.terms.items():
                    rest = m // gcd(c, m)
                    if isinstance(a, Axis):
                        if a.position < self.n:
                            required[a.position] = lcm(required[a.position], rest)
                    elif a in self._floors and all(p < self.n for p in axes_of(a)):
                        todo.append((self._floors[a][0], self._floors[a][1] * rest))
                    elif rest > 1:
                        return
            out[:] = map(lcm, out, required)

        for x, m in self.congruences:
            require(x, m)
        for x in (*self.nonnegative, *self.zeros):
            for atom in self.remainders(x).terms:
                if isinstance(atom, Apply) and atom.fn == "mod" and (by := modulus(atom)) is not None:
                    inner = self.linear(atom.args[0], {})
                    if all(isinstance(a, Axis) and a.position < self.n for a in inner.terms):
                        require(inner, by)
        while prod(out) > budget:
            out[out.index(max(out))] = 1
        return out

    def find_bounding_box(self) -> list[tuple[int, int]] | None:
        """Return, for each z axis (a dimension of the gradient), the interval [low, end) in which its guards can hold.

        Only guards on a single z axis count. Returns None where an interval is empty.
        """
        box = [(0, e) for e in self.extents[: self.n]]
        for x, equal in [(x, False) for x in self.nonnegative] + [(x, True) for x in self.zeros]:
            if len(x.terms) != 1:
                continue
            ((atom, c),) = x.terms.items()
            if not isinstance(atom, Axis) or atom.position >= self.n:
                continue
            lo, hi = box[atom.position]
            if equal and x.const % c:
                return None
            if equal or c > 0:
                lo = max(lo, -(x.const // c))
            if equal or c < 0:
                hi = min(hi, (x.const // -c) + 1)
            if lo >= hi:
                return None
            box[atom.position] = (lo, hi)
        return box

    def build_solution(self) -> tuple[tuple[int, ...], tuple[Expr, ...], tuple[Expr, ...]]:
        """Return (extents of the loops, renumbered n, n+1, ...; the domain's axes; the remaining guards)."""
        loops = self.find_loops()
        out = Quasi([*self.extents[: self.n], *(self.extents[p] for p in loops)])
        env = {p: LinearForm() for p in range(self.n) if self.extents[p] == 1}
        env |= {p: LinearForm(0, {Axis(self.n + k): 1}) for k, p in enumerate(loops)}
        memo: dict = {}

        def resolve(lin: LinearForm) -> LinearForm:
            lin = self.resolve(lin)
            total = LinearForm(lin.const)
            for atom, c in lin.terms.items():
                total = total + out.linear(atom, env, memo) * c
            return total

        axes = tuple(out.emit(resolve(LinearForm(0, {Axis(p): 1})), dt.i32) for p in self.domain)
        guards: list[Expr] = [out.expr(g, env, memo) for g in self.other_guards]
        for x in self.nonnegative:
            guards.append(_nonnegative(out, resolve(x)))
        for x, m in self.congruences:
            remainder = out.mod(resolve(x), m)
            guards.append(_compare(out, "eq", remainder, LinearForm()))
        for x in self.zeros:
            x = resolve(x)
            if any(c < 0 for a, c in x.terms.items() if reads(a)):
                x = x * -1
            left = LinearForm(0, {a: c for a, c in x.terms.items() if c > 0})
            guards.append(_compare(out, "eq", left, left - x))
        guards.sort(key=lambda g: bool(reads(g)))
        return tuple(self.extents[p] for p in loops), axes, tuple(guards)


def _nonnegative(q: Quasi, x: LinearForm) -> Expr:
    """Return `x >= 0` with positive terms on both sides."""
    x = q.remainders(x)
    right = LinearForm(0, {a: c for a, c in x.terms.items() if c > 0})
    left = right - LinearForm(0, x.terms)
    if x.const <= 0:
        return _compare(q, "le", left - x.const, right)
    return _compare(q, "lt", left, right + x.const + 1)


def _compare(q: Quasi, fn: str, a: LinearForm, b: LinearForm) -> Expr:
    """Return a comparison of two forms, in the wider of their types."""
    x, y = q.emit(a), q.emit(b)
    wide = x.dtype if x.dtype.bits >= y.dtype.bits else y.dtype
    return apply(fn, cast(x, wide), cast(y, wide))
