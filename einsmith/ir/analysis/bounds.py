"""Prove conditions and bound integer expressions over a box of axes, given conditions that hold; answers are yes or
unknown.

All reasoning is about linear forms L (see `analysis.linear`). A condition that holds becomes lines `F >= 0`; a lower
bound of L is the sum of its atoms' least values, or that of `(a*L - b*F)/a` for a line F that cancels one of its atoms.
Atoms such as `e // k` add lines of their own (`0 <= e - k*(e//k) < k`, of a negative k `k < e - k*(e//k) <= 0`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd

import numpy as np

from einsmith.ir.analysis import intervals
from einsmith.ir.analysis.intervals import Interval
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.analysis.lines import COMPARISONS, lines_of, own_lines
from einsmith.ir.analysis.sample import Sample
from einsmith.ir.nodes import Apply, Axis, Const, Expr
from einsmith.ir.rebuild import operands

_DEPTH = 2  # most lines combined in the search for one bound
_LINES = 24  # most lines tried at each step of that search
_FEW = 4  # most lines with which a search is cheaper than evaluating sample points
_CASES = 3  # most disjunctions split into cases
_NESTING = 40  # most nested atoms examined
_CHOICES = 2  # most nested integer `where`s whose conditions are assumed


def bounds(e: Expr, extents: Sequence[int], guards: Sequence[Expr] = ()) -> Interval:
    """Return the inclusive interval of an integer expression, axis i ranging over [0, extents[i]); None: unbounded.

    `guards` (bool expressions) are assumed to hold; where they cannot all hold they are ignored.
    """
    facts = Facts.of(extents, guards)
    return (facts if facts.feasible else Facts.of(extents)).bounds(e)


def prove(cond: Expr, extents: Sequence[int], guards: Sequence[Expr] = ()) -> bool:
    """Return True if `cond` is proven at every point of the box at which the guards hold. False: unknown, or it does
    not hold."""
    return Facts.of(extents, guards).prove(cond)


class Facts:
    """A box of axes with conditions assumed on it. Immutable; `assume` makes another, and results are cached.

    `feasible` is False where the conditions contradict each other or the box is empty; then everything is proven.
    """

    __slots__ = (
        *("extents", "known", "lines", "cases", "feasible"),
        *("_tight", "_atoms", "_plain", "_low", "_children", "_depth", "_reach", "_choices", "_sample", "_here"),
        *("_ends", "_line_seen"),
    )

    def __init__(self, extents: Sequence[int]):
        self.extents = tuple(extents)
        self.known: frozenset[tuple[Expr, bool]] = frozenset()
        self.lines: tuple[LinearForm, ...] = ()
        self.cases: tuple[tuple[tuple[Expr, bool], ...], ...] = ()
        self.feasible = all(n > 0 for n in self.extents)
        self._tight: Mapping[Expr, Interval] = {}
        self._atoms: dict[Expr, Interval] = {}
        self._plain: dict[Expr, Interval] = {}  # from the intervals of their parts, without lines
        self._low: dict[tuple[int, frozenset[tuple[Expr, int]]], int | None] = {}
        self._ends: dict[int, tuple[LinearForm, tuple[int, dict[Expr, int]] | None]] = {}  # by id; holds the line
        self._line_seen: dict[int, tuple[LinearForm, np.ndarray | None]] = {}
        self._children: dict[tuple[tuple[tuple[Expr, bool], ...], bool, int], Facts] = {}
        self._depth = 0
        self._reach = _DEPTH
        self._choices = 0
        self._sample = Sample(self.extents)
        self._here: np.ndarray | None = None  # mask of the sample points where the known conditions hold

    @staticmethod
    def of(extents: Sequence[int], guards: Iterable[Expr] = ()) -> Facts:
        """Return the facts of a box of axes under guards."""
        return Facts(extents).assume_all(guards)

    # -- assuming

    def assume(self, cond: Expr, truth: bool = True) -> Facts:
        """Return these facts extended by `cond` (or its negation if not `truth`)."""
        return self._child(((cond, truth),))

    def assume_all(self, conditions: Iterable[Expr], truth: bool = True) -> Facts:
        """Return these facts extended by all conditions (or their negations if not `truth`)."""
        assumed = tuple((c, truth) for c in conditions)
        return self._child(assumed) if assumed else self

    def _child(self, conditions: tuple[tuple[Expr, bool], ...], drop_case: bool = False, choices: int = 0) -> Facts:
        key = (conditions, drop_case, choices)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._with(conditions, drop_case, self._choices + choices)
        return child

    def undecided(self, cond: Expr, others: Iterable[Expr], truth: bool) -> bool:
        """Return whether sample points show that neither `cond` nor its negation follows from these facts and the other
        conditions, all taken with `truth`. False: one of them may follow."""
        value, here = self._sample.values(cond), self._points()
        for c in others:
            known = self._sample.values(c)
            here = None if known is None or here is None else here & (known == truth)
        return value is not None and here is not None and bool((here & value).any() and (here & ~value).any())

    def _fails(self, cond: Expr, truth: bool) -> bool:
        """Return whether a sample point satisfies these facts but not `cond` (or its negation if not `truth`)."""
        value = self._sample.values(cond)
        here = self._points() if value is not None else None
        return here is not None and bool((here & (value != truth)).any())

    def _points(self) -> np.ndarray | None:
        """Return a mask of the sample points at which the known conditions hold; None where a condition cannot be
        evaluated."""
        if self._here is None:
            here = self._sample.everywhere()
            for c, truth in self.known:
                known = self._sample.values(c)
                if known is None:
                    return None
                here &= known == truth
            self._here = here
        return self._here

    def _sample_values(self, form: LinearForm) -> np.ndarray | None:
        """Return a linear form's values at the sample points where the known conditions hold; its minimum is at most
        these.

        None: the values cannot be computed, or no sample point satisfies the conditions.
        """
        here = self._points()
        value = self._sample.of_form(form) if here is not None and here.any() else None
        return None if value is None else value[here]

    def _is_no_better(self, seen: np.ndarray | None, a: int, line: LinearForm, b: int, best: int | None) -> bool:
        """Return whether sample points show that a*form - b*line bounds the form no better than `best`; `seen`: the
        form's values there."""
        if seen is None or best is None:
            return False
        if (known := self._line_seen.get(id(line))) is None:
            known = self._line_seen[id(line)] = line, self._sample_values(line)
        return known[1] is not None and -(-int((seen * a - known[1] * b).min()) // a) <= best

    def _with(self, conditions: Sequence[tuple[Expr, bool]], drop_case: bool, choices: int) -> Facts:
        out = Facts(self.extents)
        out.feasible = self.feasible
        out._depth, out._choices, out._sample = self._depth, choices, self._sample
        known = set(self.known)
        lines: list[LinearForm] = []
        cases = list(self.cases[1:] if drop_case else self.cases)
        unequal: list[LinearForm] = []
        todo = list(conditions)
        while todo:
            c, truth = todo.pop()
            known.add((c, truth))
            if (c, not truth) in known:
                out.feasible = False
            if isinstance(c, Const):
                out.feasible = out.feasible and bool(c.value) == truth
            elif not isinstance(c, Apply):
                pass
            elif c.fn == "not":
                todo.append((c.args[0], not truth))
            elif (c.fn, truth) in (("and", True), ("or", False)):
                todo += [(a, truth) for a in c.args]
            elif c.fn in ("and", "or"):
                cases.append(tuple((a, truth) for a in c.args))
            elif c.fn in COMPARISONS and c.args[0].dtype.is_int:
                holds, differs = lines_of(c, truth)
                lines += holds
                unequal += differs
                # A guard on e//k, abs(e) and the like bounds e: their lines connect the two.
                atoms = dict.fromkeys(atom for line in holds for atom in line.terms)
                lines += [own for a in atoms for own in own_lines(a)]
        out.known, out.cases = frozenset(known), tuple(cases)
        old = {line.key for line in self.lines}
        new = {line.key: line for line in lines if line.key not in old}
        out.lines, out._tight = (*self.lines, *new.values()), self._tight
        if new or unequal:
            out._propagate()
            out._drop_implied_lines()
            more = out._simplify_atoms(new.values())
            for line in unequal:
                more += [side - 1 for side in (line, line * -1) if out._sum_low(side) == 0]
            if more:
                out.lines += tuple(more)
                out._propagate()
                out._drop_implied_lines()
            met = (
                out._sample_values(LinearForm()) if len(out.lines) > _FEW else None
            )  # a point that satisfies all conditions refutes a contradiction
            if (
                out.feasible
                and met is None
                and any((out._search(line * -1, 1) or 0) > 0 for line in out.lines if line.key not in old)
            ):
                out.feasible = False
        return out

    def _drop_implied_lines(self) -> None:
        """Drop lines that the intervals of atoms imply: combined with others they give no better bounds.

        The intervals used are found without lines, so that no line is dropped because of itself.
        """
        reach, self._reach = self._reach, 0
        self.lines = tuple({line.key: line for line in self.lines if not _at_least(self._sum_low(line), 0)}.values())
        self._reach = reach

    def _simplify_atoms(self, lines: Iterable[LinearForm]) -> list[LinearForm]:
        """Return the new lines with atoms replaced by simpler forms that equal them under these facts.

        e % k becomes e - m*k where e lies between m*k and its next multiple; min, max and abs become the argument that
        they take; i32(e) becomes e where no value wraps.
        """
        out: list[LinearForm] = []
        for line in lines:
            for atom, c in line.terms.items():
                value = self._value(atom)
                if value is not None:
                    out.append(line.without(atom) + value * c)
        return out

    def _value(self, atom: Expr) -> LinearForm | None:
        if not isinstance(atom, Apply) or not atom.dtype.is_int or not atom.args[0].dtype.is_int:
            return None
        if atom.fn == "cast":
            return self._remove_cast(atom)
        if atom.fn not in ("mod", "min", "max", "abs"):
            return None
        a, b = linear(atom.args[0]), linear(atom.args[-1])
        if atom.fn == "mod":
            k = b.const
            quotient = None if b.terms or k == 0 else self.quotient(a, k)
            return None if quotient is None else a - quotient * k
        if atom.fn == "abs":
            b = a * -1
        if len(self.lines) > _FEW and (seen := self._sample_values(a - b)) is not None and seen.min() < 0 < seen.max():
            return None
        lo, hi = self.interval(a - b)
        if lo is not None and lo >= 0:
            return b if atom.fn == "min" else a
        if hi is not None and hi <= 0:
            return a if atom.fn == "min" else b
        return None

    def _remove_cast(self, atom: Apply) -> LinearForm | None:
        """Return the integer x under a narrowing cast if the cast is known to leave it unchanged; else None.

        That is so if no value of x outside the cast's known interval wraps into that interval.
        """
        form, (lo, hi), size = linear(atom.args[0]), self._atom(atom), 1 << atom.dtype.bits
        ends = [intervals.scale(intervals.meet(self._atom(x), x.dtype.range), c) for x, c in form.terms.items()]
        least, most = (form.const + sum(e[k] or 0 for e in ends) for k in (0, 1))
        return form if lo is not None and hi is not None and hi - size < least and most < lo + size else None

    def _propagate(self) -> None:
        """Tighten the intervals of the atoms by every line, in a few rounds."""
        tight = dict(self._tight)
        self._tight = tight
        self._reach = 1  # arguments of atoms are examined again in each round
        for _ in range(4):
            changed = False
            for line in self.lines:
                if not line.terms and line.const < 0:
                    self.feasible = False
                    return
                for atom, c in line.terms.items():
                    least = self._sum_low(line.without(atom) * -1)  # least <= -rest <= c*atom
                    if least is None:
                        continue
                    lo, hi = self._atom(atom)
                    if c > 0 and (lo is None or -(-least // c) > lo):
                        lo, changed = -(-least // c), True
                    elif c < 0 and (hi is None or least // c < hi):
                        hi, changed = least // c, True
                    if tight.get(atom) != (lo, hi):
                        tight[atom] = (lo, hi)
                        if self._ends:
                            self._ends = {n: end for n, end in self._ends.items() if atom not in end[0].terms}
                    if lo is not None and hi is not None and lo > hi:
                        self.feasible = False
                        return
            self._atoms.clear()
            self._plain.clear()
            self._ends.clear()
            if not changed:
                break
        self._reach = _DEPTH
        self._low.clear()

    # -- intervals

    def bounds(self, e: Expr, splits: int = _CASES) -> Interval:
        """Return the inclusive interval of an integer expression; None: unbounded."""
        out = self.interval(linear(e))
        if self.cases and splits:
            rest = [self._child(((c, truth),), True) for c, truth in self.cases[0]]
            by_case = [f.bounds(e, splits - 1) for f in rest if f.feasible]
            if by_case:
                out = intervals.meet(out, intervals.hull(by_case))
        return out

    def low(self, form: LinearForm) -> int | None:
        """Return the least value found for a linear form; None: unbounded."""
        return self._search(form, self._reach)

    def interval(self, form: LinearForm) -> Interval:
        """Return the interval of a linear form."""
        if len(form.terms) == 1 and not self.lines:
            ((atom, c),) = form.terms.items()
            lo, hi = self._atom(atom)
            if c < 0:
                lo, hi = hi, lo
            return (None if lo is None else c * lo + form.const, None if hi is None else c * hi + form.const)
        high = self._search(form * -1, self._reach)
        return self._search(form, self._reach), None if high is None else -high

    def quotient(self, form: LinearForm, k: int) -> int | None:
        """Return the value of form // k, k not 0, where it is known to be constant; else None."""
        if (
            len(self.lines) > _FEW
            and (seen := self._sample_values(form)) is not None
            and seen.min() // k != seen.max() // k
        ):
            return None
        lo, hi = self.interval(form)
        return lo // k if lo is not None and hi is not None and lo // k == hi // k else None

    def _sum_low(self, form: LinearForm) -> int | None:
        """Return the sum of the atoms' own least values; None: unbounded."""
        out = form.const
        for atom, c in form.terms.items():
            end = self._atom(atom)[0 if c > 0 else 1]
            if end is None:
                return None
            out += c * end
        return out

    def _greatest(self, line: LinearForm) -> tuple[int, dict[Expr, int]] | None:
        """Return the greatest value of a line by its atoms' own intervals, and the length of each interval; None:
        unbounded.

        The cached result is dropped as soon as one of these intervals changes.
        """
        known = self._ends.get(id(line))
        if known is not None:
            return known[1]
        most, lengths = line.const, dict[Expr, int]()
        for atom, c in line.terms.items():
            lo, hi = self._atom(atom)
            if lo is None or hi is None:
                break
            most += c * (hi if c > 0 else lo)
            lengths[atom] = hi - lo
        ends = (most, lengths) if len(lengths) == len(line.terms) else None
        self._ends[id(line)] = line, ends
        return ends

    def _low_of_difference(self, form: LinearForm, low: int | None, a: int, line: LinearForm, b: int) -> int | None:
        """Return `_sum_low(a*form - b*line)`; `low` is that of the form."""
        ends = None if low is None else self._greatest(line)
        if low is None or ends is None:
            return self._sum_low(form * a - line * b)
        most, lengths = ends
        out = a * low - b * most
        for atom, mine in form.terms.items():
            # A term that cancels must not count with one end in the form and the other in the line.
            if atom in line.terms and mine * (c := line.terms[atom]) > 0:
                out += min(abs(a * mine), abs(b * c)) * lengths[atom]
        return out

    def _search(self, form: LinearForm, depth: int) -> int | None:
        if not form.terms:
            return form.const
        if depth == 0:
            return self._sum_low(form)
        if not self.lines and (len(form.terms) == 1 or all(isinstance(a, Axis) for a in form.terms)):
            return self._sum_low(form)
        key = (depth, frozenset(form.terms.items()))
        if key not in self._low:
            form0 = LinearForm(0, form.terms)
            best = plain_low = self._sum_low(form0)
            # No bound exceeds the form's value at some point: a bound that reaches it needs no search.
            seen = self._sample_values(form0) if len(self.lines) > _FEW else None
            most = None if seen is None else int(seen.min())
            terms, tried = form.terms, 0
            for line in [*self.lines, *(ln for a in terms for ln in own_lines(a))]:
                if tried >= _LINES or (most is not None and best is not None and best >= most):
                    break
                for atom, c in line.terms.items():
                    if atom not in terms or (mine := terms[atom]) * c <= 0 or tried >= _LINES:
                        continue
                    tried += 1
                    g = gcd(mine, c)
                    a, b = abs(c) // g, abs(mine) // g
                    # a*form >= a*form - b*line, as line >= 0
                    if depth == 1:
                        found = self._low_of_difference(form0, plain_low, a, line, b)
                    elif self._is_no_better(seen, a, line, b, best):
                        continue
                    else:
                        found = self._search(form0 * a - line * b, depth - 1)
                    if found is not None and (best is None or -(-found // a) > best):
                        best = -(-found // a)
            self._low[key] = best
        found = self._low[key]
        return None if found is None else found + form.const

    def _atom(self, atom: Expr) -> Interval:
        known = self._atoms if self._reach else self._plain
        found = known.get(atom)
        if found is None:
            if self._depth >= _NESTING:
                return None, None
            self._depth += 1
            if reach := self._reach:  # lines may lead back to the atom, which then has the interval of its parts alone
                self._reach = 0
                known[atom] = self._atom(atom)
                self._reach = reach
            found = known[atom] = intervals.meet(known.get(atom, (None, None)), self._own_interval(atom))
            self._depth -= 1
            if reach and self._ends:  # lines used the atom's interval so far
                self._ends = {n: end for n, end in self._ends.items() if atom not in end[0].terms}
        tight = self._tight.get(atom)
        return found if tight is None else intervals.meet(found, tight)

    def _own_interval(self, e: Expr) -> Interval:
        if isinstance(e, Axis):
            return (0, max(0, self.extents[e.position] - 1)) if e.position < len(self.extents) else (None, None)
        width = e.dtype.range if e.dtype.is_int and e.dtype.bits < 32 else (0, 1) if e.dtype.is_bool else (None, None)
        if not isinstance(e, Apply):
            return width
        fn, args = e.fn, e.args
        if fn == "where":
            return self._choice(args[0], args[1], args[2])
        if fn == "cast":
            if args[0].dtype.is_bool:
                return (1, 1) if self.prove(args[0]) else (0, 0) if self.prove(args[0], False) else (0, 1)
            if args[0].dtype.is_int:
                inner = self.interval(linear(args[0]))
                least, most = e.dtype.range
                fits = inner[0] is not None and inner[1] is not None and least <= inner[0] and inner[1] <= most
                return inner if fits else width
            return width
        if not args[0].dtype.is_int:
            return width
        a = self.interval(linear(args[0]))
        if fn == "stop_gradient":
            return a
        if fn == "abs":
            return intervals.hull([intervals.meet(a, (0, None)), intervals.meet(intervals.scale(a, -1), (0, None))])
        if fn == "sign":
            return (-1 if a[0] is None else intervals.sign(a[0])), (1 if a[1] is None else intervals.sign(a[1]))
        if len(args) != 2:
            return width
        b = self.interval(linear(args[1]))
        if fn == "floordiv":
            return intervals.floordiv(a, b)
        if fn == "mod":
            return intervals.mod(a, b)
        if fn == "mul":
            return intervals.mul(a, b)
        if fn in ("min", "max"):  # the least end of min is either's, its greatest end is bounded by both
            both, one = intervals.hull([a, b]), intervals.meet(a, b)
            return (both[0], one[1]) if fn == "min" else (one[0], both[1])
        return width

    def _choice(self, c: Expr, a: Expr, b: Expr) -> Interval:
        """Return the interval of where(c, a, b): the hull of a's where c may hold, and of b's where it may fail."""
        for truth, side in ((True, a), (False, b)):
            if (c, truth) in self.known:
                return self.interval(linear(side))
        found = []
        for truth, side in ((True, a), (False, b)):
            # Lines may contain `where` themselves, so that assuming one condition examines others: limit the nesting.
            under = self._child(((c, truth),), choices=1) if self._reach and self._choices < _CHOICES else self
            if under.feasible:
                under._depth = self._depth
                found.append(under.interval(linear(side)))
        return intervals.hull(found or [(None, None)])

    # -- proving

    def prove(self, cond: Expr, truth: bool = True, splits: int = _CASES) -> bool:
        """Return True if `cond` (or, with truth=False, its negation) is proven wherever these facts hold. False:
        unknown."""
        if not self.feasible:
            return True
        if self._fails(cond, truth):
            return False
        if self._proves(cond, truth):
            return True
        if not self.cases or not splits:
            return False
        return all(self._child(((c, t),), True).prove(cond, truth, splits - 1) for c, t in self.cases[0])

    def _proves(self, cond: Expr, truth: bool) -> bool:
        todo = [(cond, truth)]  # all of these must be proven
        while todo:
            c, truth = todo.pop()
            if (c, truth) in self.known:
                continue
            if isinstance(c, Const):
                if bool(c.value) != truth:
                    return False
            elif not isinstance(c, Apply):
                return False
            elif c.fn == "not":
                todo.append((c.args[0], not truth))
            elif (c.fn, truth) in (("and", True), ("or", False)):
                todo += [(a, truth) for a in c.args]
            elif c.fn in ("and", "or"):
                # A disjunction holds where the negations of its operands contradict each other.
                if self.assume(c, not truth).feasible and not any(self._proves(d, truth) for d in operands(c, c.fn)):
                    return False
            elif c.fn == "where":
                if not (
                    self.assume(c.args[0]).prove(c.args[1], truth)
                    and self.assume(c.args[0], False).prove(c.args[2], truth)
                ):
                    return False
            elif c.fn in COMPARISONS and c.args[0].dtype.is_int:
                holds, differs = lines_of(c, truth)
                if not all(_at_least(self.low(line), 0) for line in holds):
                    return False
                if not all(self._differs(line) for line in differs):
                    return False
            else:
                return False
        return True

    def _differs(self, form: LinearForm) -> bool:
        """Return whether the form is proven to be never 0: by its sign, or because the gcd of its coefficients does not
        divide the constant."""
        step = gcd(*form.terms.values())
        if form.const % step if step else form.const:
            return True
        return _at_least(self.low(form), 1) or _at_least(self.low(form * -1), 1)


def _at_least(x: int | None, least: int) -> bool:
    return x is not None and x >= least
