"""Set up and solve the equations `index(u) = z` of one part of z-space (`preimage`, steps 0 to 3).

The result is rows, digits, loops, carries and guards.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.autodiff.inversion.quasi import Quasi
from einsmith.base.symbolic import gcd, hint, to_whole
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import Apply, Axis, Const, Expr, apply, axes_of, reads
from einsmith.ir.rebuild import operands

MAX_PHASES = 16
"""Most parts that z-space is split into by residues; beyond it the condition stays a guard."""


def axis_position(atom: Expr) -> int:
    """Return the position of an axis."""
    assert isinstance(atom, Axis)
    return atom.position


def modulus(remainder: Apply) -> int | None:
    """Return the constant, positive modulus of a remainder, whose values are 0 to m - 1; None for other remainders."""
    by = remainder.args[1]
    return to_whole(by.value) if isinstance(by, Const) and by.value > 0 else None


class System(Quasi):
    """The equations of one part. Axes 0..n-1 are z's; the domain's axes follow, then unknowns introduced by the
    solver."""

    def __init__(self, index, extents, guards, offset, step, box, outer_first=False):
        super().__init__([*box, *extents])
        self.n = len(box)
        self.outer_first = outer_first  # of equally long loops, keep the outer one
        self.domain = range(self.n, self.n + len(extents))
        self.order: dict[int, tuple[int, int]] = {p: (p, 0) for p in self.domain}
        self.solved: dict[int, LinearForm] = {p: LinearForm() for p in self.domain if self.extents[p] == 1}
        self.chosen: set[int] = set()  # unknowns kept as loops
        self.ranged: list[int] = [p for p in self.domain if self.extents[p] > 1]
        self.congruences: list[tuple[LinearForm, int]] = []
        self.zeros: list[LinearForm] = []
        self.other_guards: list[Expr] = []
        self.nonnegative: list[LinearForm] = []
        self.feasible = True
        self.rows: list[LinearForm] = []
        self._quotients: dict[tuple, tuple[int, int]] = {}
        self._pivots: set[int] = set()

        self._is_reading_index = True
        env = {p - self.n: LinearForm(0, {Axis(p): 1}) for p in self.domain}
        memo: dict = {}
        for k, e in enumerate(index):
            z = LinearForm(offset[k], {Axis(k): step[k]}) if box[k] > 1 else LinearForm(offset[k])
            self.rows.append(self.linear(e, env, memo) - z)
        self._is_reading_index = False
        self._solve()
        if self.feasible:
            self._collect_conditions(guards)

    # ------------------------------------------------------------------------------------- step 0: digits and rows

    def div(self, lin: LinearForm, c: int) -> LinearForm:
        """Return `lin // c`. While the index is read, a division of unknowns splits axes into digits, or introduces a
        quotient and a remainder as unknowns."""
        if not self._is_reading_index or c == 1:
            return super().div(lin, c)
        lin = self.resolve(lin)
        whole = LinearForm(lin.const // c, {a: k // c for a, k in lin.terms.items() if k % c == 0})
        rest = LinearForm(lin.const % c, {a: k for a, k in lin.terms.items() if k % c})
        if any(not isinstance(a, Axis) for a in rest.terms):
            return super().div(lin, c)
        lo, hi = self.bounds(rest)
        assert lo is not None and hi is not None
        if lo // c == hi // c:
            return whole + lo // c
        if 0 <= rest.const < c and self._split_digits(rest, c):
            return whole + super().div(self.resolve(rest), c)
        key = (rest.const, frozenset(rest.terms.items()), c)
        if key not in self._quotients:
            order = max(self.order[axis_position(a)] for a in rest.terms)
            q = self._add_unknown(hi // c - lo // c + 1, (order[0], order[1] + 1))
            s = self._add_unknown(c, (order[0], order[1] + 2))
            self._quotients[key] = (q, lo // c)
            self.ranged.append(s)
            self.rows.append(rest - LinearForm(lo // c, {Axis(q): 1}) * c - LinearForm(0, {Axis(s): 1}))
        q, first = self._quotients[key]
        return whole + LinearForm(first, {Axis(q): 1})

    def _split_digits(self, rest: LinearForm, c: int) -> bool:
        """Split axes at multiples of c if the remainder of `rest` by c then stays below c; return whether that was
        done."""
        lo = hi = rest.const
        splits = []
        for atom, k in rest.terms.items():
            e = self.extents[axis_position(atom)]
            if k > 0 and c % k == 0 and e > c // k and e % (c // k) == 0:
                splits.append((axis_position(atom), c // k))
                e = c // k
            lo, hi = lo + min(0, k * (e - 1)), hi + max(0, k * (e - 1))
        if lo < 0 or hi >= c or not splits:
            return False
        for p, base in splits:
            major, minor = self.order[p]
            low, high = (
                self._add_unknown(base, (major, minor + 1)),
                self._add_unknown(self.extents[p] // base, (major, minor)),
            )
            self.solved[p] = LinearForm(0, {Axis(low): 1, Axis(high): base})
            self.ranged = [r for r in self.ranged if r != p] + [low, high]
        return True

    def _add_unknown(self, extent: int, order: tuple[int, int]) -> int:
        self.extents.append(extent)
        p = len(self.extents) - 1
        self.order[p] = order
        return p

    def resolve(self, lin: LinearForm) -> LinearForm:
        """Return the form with every solved unknown replaced, inside atoms too."""
        while True:
            for atom, c in lin.terms.items():
                if isinstance(atom, Axis):
                    if atom.position in self.solved:
                        lin = lin.without(atom) + self.solved[atom.position] * c
                        break
                elif not self._axes_in(atom).isdisjoint(self.solved):
                    lin = lin.without(atom) + self.linear(atom, self.solved) * c
                    break
            else:
                return lin

    def _axes_in(self, atom: Expr) -> frozenset[int]:
        return frozenset((atom.position,)) if isinstance(atom, Axis) else axes_of(atom)

    # ---------------------------------------------------------------------------------------- steps 1 and 2: solve

    def _find_unknowns(self, row: LinearForm) -> dict[Expr, int]:
        return {
            a: c
            for a, c in row.terms.items()
            if isinstance(a, Axis) and a.position >= self.n and a.position not in self.chosen
        }

    def _find_inner_unknowns(self, row: LinearForm) -> set[int]:
        """Return the unknowns inside the row's opaque atoms, which must be known before the row can be solved."""
        inner: set[int] = set()
        for a in row.terms:
            if not isinstance(a, Axis):
                inner |= {p for p in self._axes_in(a) if p >= self.n and p not in self.chosen and p not in self.solved}
        return inner

    def _solve(self) -> None:
        while self.rows and self.feasible:
            self.rows = [self.resolve(r) for r in self.rows]
            if self._solve_single():
                continue
            ready = [i for i, r in enumerate(self.rows) if not self._find_inner_unknowns(r)]
            if not ready:
                for p in sorted(set().union(*(self._find_inner_unknowns(r) for r in self.rows))):
                    self._choose(p)
            elif not self._eliminate(ready):
                self._reduce_one(ready)

    def _choose(self, p: int) -> None:
        """Keep unknown p as a loop over its whole extent."""
        if self.extents[p] == 1:
            self.solved[p] = LinearForm()
        else:
            self.chosen.add(p)

    def _solve_single(self) -> bool:
        """Solve one row of at most one unknown; return whether there was any."""
        for i, row in enumerate(self.rows):
            if self._find_inner_unknowns(row):
                continue
            unknowns = self._find_unknowns(row)
            if not unknowns:
                del self.rows[i]
                self._pivots = set()
                self.zeros.append(row)
                if not row.terms and row.const:
                    self.feasible = False
                return True
            g = gcd(*unknowns.values()) * (1 if next(iter(unknowns.values())) > 0 else -1)
            known = LinearForm(row.const, {a: c for a, c in row.terms.items() if a not in unknowns}) * (
                -1 if g > 0 else 1
            )
            if abs(g) > 1:  # g*(unknowns) = known
                if any(v % g for v in (known.const, *known.terms.values())):
                    self.congruences.append((known, abs(g)))
                known = self.div(known, abs(g))
                self.rows[i] = LinearForm(0, {a: c // g for a, c in unknowns.items()}) - known
            if len(unknowns) == 1:
                del self.rows[i]
                self._pivots = set()
                self.solved[axis_position(next(iter(unknowns)))] = known
                return True
        return False

    def _eliminate(self, ready: list[int]) -> bool:
        """Remove one unknown from the rows that share two unknowns or more with another row; return whether there were
        any."""
        for i in ready:
            if i in self._pivots:
                continue
            mine = self._find_unknowns(self.rows[i])
            coupled = [j for j in ready if j != i and len(mine.keys() & self._find_unknowns(self.rows[j]).keys()) > 1]
            if not coupled:
                continue
            shared = {a for j in coupled for a in mine.keys() & self._find_unknowns(self.rows[j]).keys()}
            pivot = min(shared, key=lambda a: (abs(mine[a]), axis_position(a)))
            for j in coupled:
                c = self.rows[j].coefficient(pivot)
                if c:
                    g = gcd(mine[pivot], c)
                    self.rows[j] = self.rows[j] * (mine[pivot] // g) - self.rows[i] * (c // g)
            self._pivots.add(i)
            return True
        return False

    def _reduce_one(self, ready: list[int]) -> None:
        """Take the cheapest step: an unknown becomes a loop, or is divided out and its carry becomes a loop. Of equal
        costs the first step is taken."""
        best: tuple | None = None
        for i in ready:
            for atom in self._find_unknowns(self.rows[i]):
                p = axis_position(atom)
                sign = 1 if self.outer_first else -1
                key: tuple = (self.extents[p], 0, tuple(sign * x for x in self.order[p]))
                if best is None or key < best[0]:
                    best = (key, p, None)
        for i in ready:
            unknowns = self._find_unknowns(self.rows[i])
            for atom, c in unknowns.items():
                rest = {a: (k if c > 0 else -k) for a, k in unknowns.items() if a is not atom}
                lo, hi = self.bounds(LinearForm(0, rest))
                assert lo is not None and hi is not None and best is not None
                trips = -(-(hi - lo + 1) // abs(c))
                # In phases the carry is shorter in some of them: on average it takes range/c trips.
                key = (hint(hi - lo + 1) / abs(hint(c)) if trips > 1 and abs(c) <= MAX_PHASES else trips, 1, (hi - lo,))
                if key < best[0]:
                    best = (key, i, (atom, abs(c), LinearForm(0, rest), lo, trips))
        assert best is not None
        _, which, carry = best
        if carry is None:
            self._choose(which)
            return
        atom, c, rest, lo, trips = carry
        row = self.rows.pop(which)
        self._pivots = set()
        known = (row - LinearForm(0, self._find_unknowns(row))) * (-1 if row.coefficient(atom) > 0 else 1) - lo
        t = LinearForm()
        if trips > 1:
            order = max(self.order[axis_position(a)] for a in rest.terms)
            loop = self._add_unknown(trips, (order[0], order[1] + 1))
            self.chosen.add(loop)
            t = LinearForm(0, {Axis(loop): 1})
        self.solved[axis_position(atom)] = self.div(known, c) - t
        self.rows.append(rest - lo - self.mod(known, c) - t * c)

    # ------------------------------------------------------------------------------------- steps 3 and 4: guards

    def _collect_conditions(self, guards: Sequence[Expr]) -> None:
        """Collect the remaining conditions, as linear forms where they are linear."""
        for p in range(self.n, len(self.extents)):
            if p not in self.solved:
                self._choose(p)
        for p in self.ranged:
            if p in self.solved:
                x = self.solved[p]
                self.nonnegative += [x, LinearForm(self.extents[p] - 1) - x]
        env = {p - self.n: self.resolve(LinearForm(0, {Axis(p): 1})) for p in self.domain}
        memo: dict = {}
        for g in [self.expr(g, env, memo) for g in guards]:
            for condition in operands(g, "and"):
                self._add_condition(condition)
        self._drop_proven()

    def _add_condition(self, g: Expr) -> None:
        if isinstance(g, Const):
            self.feasible &= bool(g.value)
            return
        if isinstance(g, Apply) and g.fn == "not" and isinstance(g.args[0], Apply):
            a = g.args[0]
            swap = {"lt": "le", "le": "lt"}
            if a.fn in swap and a.args[0].dtype.is_int:
                g = apply(swap[a.fn], a.args[1], a.args[0])
            elif a.fn == "ne":
                g = apply("eq", *a.args)
        if isinstance(g, Apply) and g.fn in ("lt", "le", "eq") and g.args[0].dtype.is_int and not reads(g):
            difference = self.linear(g.args[1], {}) - self.linear(g.args[0], {})
            if g.fn == "eq":
                self._add_equation(difference)
            else:
                self.nonnegative.append(difference - (1 if g.fn == "lt" else 0))
            return
        self.other_guards.append(g)

    def _add_equation(self, x: LinearForm) -> None:
        """Add the equation `x = 0`; it becomes a congruence if it only determines a remainder."""
        plain = self.remainders(x)
        if len(plain.terms) == 1:
            ((atom, k),) = plain.terms.items()
            if isinstance(atom, Apply) and atom.fn == "mod" and (m := modulus(atom)) is not None and abs(k) == 1:
                rest = -plain.const * k
                self.feasible &= 0 <= rest < m
                self.congruences.append((self.linear(atom.args[0], {}) - rest, m))
                return
        self.zeros.append(x)

    def _drop_proven(self) -> None:
        """Drop proven conditions; detect contradictions."""
        kept: list[LinearForm] = []
        for x in map(self.resolve, self.nonnegative):
            if (g := gcd(*x.terms.values())) > 1:
                x = LinearForm(x.const // g, {a: c // g for a, c in x.terms.items()})
            lo, hi = self.bounds(x)
            self.feasible &= hi is None or hi >= 0
            if (lo is None or lo < 0) and x not in kept:
                kept.append(x)
        self.nonnegative = kept
        zeros: list[LinearForm] = []
        for x in map(self.resolve, self.zeros):
            lo, hi = self.bounds(x)
            self.feasible &= (lo is None or lo <= 0) and (hi is None or hi >= 0)
            if (lo, hi) != (0, 0) and x not in zeros:
                zeros.append(x)
        self.zeros = zeros
        congruences: list[tuple[LinearForm, int]] = []
        for x, m in self.congruences:
            x = self.resolve(x)
            x = LinearForm(x.const % m, {a: c % m for a, c in x.terms.items() if c % m})
            if x.terms:
                if (x, m) not in congruences:
                    congruences.append((x, m))
            elif x.const:
                self.feasible = False
        self.congruences = congruences
        solved = {p: self.resolve(x) for p, x in self.solved.items()}
        self.other_guards = [g if axes_of(g).isdisjoint(solved) else self.expr(g, solved) for g in self.other_guards]

    def find_loops(self) -> list[int]:
        """Return the unknowns that stay as loops, in the order of their axes."""
        return sorted(self.chosen - self.solved.keys(), key=lambda p: (self.order[p], p))
