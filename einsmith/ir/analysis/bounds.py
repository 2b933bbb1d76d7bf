"""Prove conditions and bound integer expressions over a box of axes, under conditions that are assumed to hold.

The answers are bounds that hold, not necessarily the closest ones, and "proven" or "unknown". All reasoning is about
linear forms (`analysis.linear`), sums of integer multiples of atoms. An assumed condition becomes lines, linear forms
F >= 0. A lower bound of a linear form L is the sum of the least values of its terms. A line F that cancels one of L's
atoms may give a better one: L >= (a*L - b*F)/a for positive a and b. Atoms such as `e // k` add lines of their own:
0 <= e - k*(e//k) < k for a positive k, and k < e - k*(e//k) <= 0 for a negative k.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from einsmith.base.symbolic import gcd
from einsmith.ir.analysis import intervals
from einsmith.ir.analysis.intervals import Interval
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.analysis.lines import COMPARISONS, definition_lines, lines_of
from einsmith.ir.analysis.sample import Sample, SampledConditions
from einsmith.ir.nodes import Apply, Axis, Const, Expr
from einsmith.ir.rebuild import operands

_MAX_COMBINED_LINES = 2  # most lines combined in the search for one bound
_MAX_TRIED_LINES = 24  # most pairs (line, atom that it cancels) tried at each step of the search
_MAX_UNSAMPLED_LINES = 4  # most lines with which a search is cheaper than evaluating sample points that may spare it
_MAX_CASE_SPLITS = 3  # most disjunctions by which one question is split into cases
_MAX_ATOM_NESTING = 40  # most atoms inside each other that are examined; one further inside is unbounded
_MAX_NESTED_CHOICES = 2  # most integer `where`s inside each other whose conditions are assumed


def bounds(e: Expr, extents: Sequence[int], guards: Sequence[Expr] = ()) -> Interval:
    """Return the inclusive interval of an integer expression over a box, axis i in [0, extents[i]); None: unbounded.

    `guards` (bool expressions) are assumed to hold; where they cannot all hold they are ignored.
    """
    facts = Facts.of(extents, guards)
    return (facts if facts.feasible else Facts.of(extents)).bounds(e)


def prove(cond: Expr, extents: Sequence[int], guards: Sequence[Expr] = ()) -> bool:
    """Return whether `cond` is proven at every point of the box where the guards hold. False: it is not proven."""
    return Facts.of(extents, guards).prove(cond)


class Facts:
    """A box of axes with conditions that are assumed to hold on it.

    Facts are immutable; `assume` returns other facts. Results are cached.

    Attributes:
        extents: points of the box along each axis
        known: assumed conditions and their parts, each with the truth value that it has
        lines: linear forms >= 0 that the conditions state, without the ones that the intervals of atoms imply
        cases: disjunctions that hold, each as (condition, truth value) of its operands
        sampled: sample points of the box at which the conditions hold
        feasible: False if the conditions contradict each other or the box is empty; then everything is proven
    """

    __slots__ = (
        *("extents", "known", "lines", "cases", "feasible", "sampled", "_nesting", "_search_depth", "_choices"),
        *("_tightened", "_atom_intervals", "_lineless_intervals", "_line_maxima", "_search_results", "_children"),
    )

    def __init__(self, extents: Sequence[int]):
        self.extents = tuple(extents)
        self.known: frozenset[tuple[Expr, bool]] = frozenset()
        self.lines: tuple[LinearForm, ...] = ()
        self.cases: tuple[tuple[tuple[Expr, bool], ...], ...] = ()
        self.feasible = all(n > 0 for n in self.extents)
        self._tightened: Mapping[Expr, Interval] = {}  # intervals of atoms that the lines imply
        # Intervals of atoms that their arguments imply, which are bounded with lines or without them.
        self._atom_intervals: dict[Expr, Interval] = {}
        self._lineless_intervals: dict[Expr, Interval] = {}
        # (depth, terms) -> lower bound of the sum of the terms.
        self._search_results: dict[tuple[int, frozenset[tuple[Expr, int]]], int | None] = {}
        # Maxima of lines, by the line's id, with the line, so that its id stays unique.
        self._line_maxima: dict[int, tuple[LinearForm, tuple[int, dict[Expr, int]] | None]] = {}
        self._children: dict[tuple[tuple[tuple[Expr, bool], ...], bool, int], Facts] = {}  # results of `_derive`
        self._nesting = 0  # atoms inside each other whose intervals are being computed
        self._search_depth = _MAX_COMBINED_LINES  # most lines combined at present; 0: bounds are found without lines
        self._choices = 0  # conditions of nested `where`s that are assumed
        self.sampled = SampledConditions(Sample(self.extents), self.known)

    @staticmethod
    def of(extents: Sequence[int], guards: Iterable[Expr] = ()) -> Facts:
        """Return the facts of a box of axes on which `guards` are assumed to hold."""
        return Facts(extents).assume_all(guards)

    # -- assuming

    def assume(self, cond: Expr, truth: bool = True) -> Facts:
        """Return these facts extended by `cond` (or its negation if not `truth`)."""
        return self._derive(((cond, truth),))

    def assume_all(self, conditions: Iterable[Expr], truth: bool = True) -> Facts:
        """Return these facts extended by all conditions (or their negations if not `truth`)."""
        assumed = tuple((c, truth) for c in conditions)
        return self._derive(assumed) if assumed else self

    def _derive(self, conditions: tuple[tuple[Expr, bool], ...], drop_case: bool = False, choices: int = 0) -> Facts:
        """Return these facts extended by conditions with their truth values.

        drop_case: drop the first of `cases`, which a condition decides; choices: additional conditions of `where`s.
        """
        key = (conditions, drop_case, choices)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._with(conditions, drop_case, self._choices + choices)
        return child

    def _with(self, conditions: Sequence[tuple[Expr, bool]], drop_case: bool, choices: int) -> Facts:
        """Return new facts as `_derive` does, without the cache; choices: number of `where`s that they assume."""
        out = Facts(self.extents)
        out.feasible = self.feasible
        out._nesting, out._choices = self._nesting, choices
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
                lines += [own for a in atoms for own in definition_lines(a)]
        out.known, out.cases = frozenset(known), tuple(cases)
        out.sampled = SampledConditions(self.sampled.sample, out.known)
        old_keys = {line.key for line in self.lines}
        new = {line.key: line for line in lines if line.key not in old_keys}
        out.lines, out._tightened = (*self.lines, *new.values()), self._tightened
        if new or unequal:
            out._propagate()
            out._drop_implied_lines()
            implied = out._resolve_atoms(new.values())
            for line in unequal:  # a form that is not 0 and at least 0 is at least 1
                implied += [side - 1 for side in (line, line * -1) if out._sum_least(side) == 0]
            if implied:
                out.lines += tuple(implied)
                out._propagate()
                out._drop_implied_lines()
            # A sample point that satisfies all conditions shows that they do not contradict each other.
            satisfied = out.sampled.values(LinearForm()) if len(out.lines) > _MAX_UNSAMPLED_LINES else None
            if (
                out.feasible
                and satisfied is None
                and any((out._search(line * -1, 1) or 0) > 0 for line in out.lines if line.key not in old_keys)
            ):
                out.feasible = False
        return out

    def _drop_implied_lines(self) -> None:
        """Drop repeated lines, and lines that the intervals of atoms imply, as they lead to no better bounds.

        The arguments of atoms are bounded without lines here, so that no line is dropped because of itself.
        """
        depth, self._search_depth = self._search_depth, 0
        lines = {line.key: line for line in self.lines if not _is_at_least(self._sum_least(line), 0)}
        self.lines = tuple(lines.values())
        self._search_depth = depth

    def _resolve_atoms(self, lines: Iterable[LinearForm]) -> list[LinearForm]:
        """Return the lines that follow from `lines` by replacing an atom with a simpler form that equals it here.

        e % k becomes e - m*k if e // k is always m; min, max and abs become the argument that they always take; i32(e)
        becomes e if no value wraps.
        """
        return [
            line.without(atom) + value * c
            for line in lines
            for atom, c in line.terms.items()
            if (value := self._resolve_atom(atom)) is not None
        ]

    def _resolve_atom(self, atom: Expr) -> LinearForm | None:
        """Return a simpler form that equals an atom under these facts (see `_resolve_atoms`); None if none is known."""
        if not isinstance(atom, Apply) or not atom.dtype.is_int or not atom.args[0].dtype.is_int:
            return None
        if atom.fn == "cast":
            return self._unwrap_cast(atom)
        if atom.fn not in ("mod", "min", "max", "abs"):
            return None
        a, b = linear(atom.args[0]), linear(atom.args[-1])
        if atom.fn == "mod":
            k = b.const
            quotient = None if b.terms or k == 0 else self.quotient(a, k)
            return None if quotient is None else a - quotient * k
        if atom.fn == "abs":
            b = a * -1
        if (
            len(self.lines) > _MAX_UNSAMPLED_LINES
            and (values := self.sampled.values(a - b)) is not None
            and values.min() < 0 < values.max()
        ):
            return None
        lo, hi = self.interval(a - b)
        if lo is not None and lo >= 0:
            return b if atom.fn == "min" else a
        if hi is not None and hi <= 0:
            return a if atom.fn == "min" else b
        return None

    def _unwrap_cast(self, atom: Apply) -> LinearForm | None:
        """Return the argument of a narrowing cast of an integer if the cast is known to leave it unchanged; else None.

        It does so if no value of the argument outside the cast's known interval wraps into this interval.
        """
        form, (lo, hi), size = linear(atom.args[0]), self._bound_atom(atom), 1 << atom.dtype.bits
        ends = [intervals.scale(intervals.meet(self._bound_atom(x), x.dtype.range), c) for x, c in form.terms.items()]
        least, most = (form.const + sum(e[k] or 0 for e in ends) for k in (0, 1))
        return form if lo is not None and hi is not None and hi - size < least and most < lo + size else None

    def _propagate(self) -> None:
        """Tighten the intervals of the atoms by every line, in at most four rounds; find contradictions on the way."""
        tight = dict(self._tightened)
        self._tightened = tight
        self._search_depth = 1  # arguments of atoms are examined again in each round
        for _ in range(4):
            changed = False
            for line in self.lines:
                if not line.terms and line.const < 0:
                    self.feasible = False
                    return
                for atom, c in line.terms.items():
                    least = self._sum_least(line.without(atom) * -1)  # line = c*atom + rest: least <= -rest <= c*atom
                    if least is None:
                        continue
                    lo, hi = self._bound_atom(atom)
                    if c > 0 and (lo is None or -(-least // c) > lo):
                        lo, changed = -(-least // c), True
                    elif c < 0 and (hi is None or least // c < hi):
                        hi, changed = least // c, True
                    if tight.get(atom) != (lo, hi):
                        tight[atom] = (lo, hi)
                        if self._line_maxima:
                            self._line_maxima = {n: x for n, x in self._line_maxima.items() if atom not in x[0].terms}
                    if lo is not None and hi is not None and lo > hi:
                        self.feasible = False
                        return
            self._atom_intervals.clear()
            self._lineless_intervals.clear()
            self._line_maxima.clear()
            if not changed:
                break
        self._search_depth = _MAX_COMBINED_LINES
        self._search_results.clear()

    # -- intervals

    def bounds(self, e: Expr, splits: int = _MAX_CASE_SPLITS) -> Interval:
        """Return the inclusive interval of an integer expression; None: unbounded. splits: most cases to split by."""
        out = self.interval(linear(e))
        if self.cases and splits:
            rest = [self._derive(((c, truth),), True) for c, truth in self.cases[0]]
            by_case = [f.bounds(e, splits - 1) for f in rest if f.feasible]
            if by_case:
                out = intervals.meet(out, intervals.hull(by_case))
        return out

    def low(self, form: LinearForm) -> int | None:
        """Return a lower bound of a linear form, the best one found; None: no bound is known."""
        return self._search(form, self._search_depth)

    def interval(self, form: LinearForm) -> Interval:
        """Return an inclusive interval that contains all values of a linear form; None: no bound is known."""
        if len(form.terms) == 1 and not self.lines:
            ((atom, c),) = form.terms.items()
            lo, hi = intervals.scale(self._bound_atom(atom), c)
            return (None if lo is None else lo + form.const, None if hi is None else hi + form.const)
        high = self._search(form * -1, self._search_depth)
        return self._search(form, self._search_depth), None if high is None else -high

    def quotient(self, form: LinearForm, k: int) -> int | None:
        """Return the value of form // k, k not 0, where it is known to be constant; else None."""
        if (
            len(self.lines) > _MAX_UNSAMPLED_LINES
            and (values := self.sampled.values(form)) is not None
            and values.min() // k != values.max() // k
        ):
            return None
        lo, hi = self.interval(form)
        return lo // k if lo is not None and hi is not None and lo // k == hi // k else None

    def _sum_least(self, form: LinearForm) -> int | None:
        """Return the sum of the least values of a form's terms, each by the interval of its atom; None: unbounded."""
        out = form.const
        for atom, c in form.terms.items():
            end = self._bound_atom(atom)[0 if c > 0 else 1]
            if end is None:
                return None
            out += c * end
        return out

    def _bound_line_above(self, line: LinearForm) -> tuple[int, dict[Expr, int]] | None:
        """Return an upper bound of a line by its atoms' intervals, and the length of each interval; None: unbounded.

        The cached result is dropped as soon as one of these intervals changes.
        """
        cached = self._line_maxima.get(id(line))
        if cached is not None:
            return cached[1]
        most, lengths = line.const, dict[Expr, int]()
        for atom, c in line.terms.items():
            lo, hi = self._bound_atom(atom)
            if lo is None or hi is None:
                break
            most += c * (hi if c > 0 else lo)
            lengths[atom] = hi - lo
        ends = (most, lengths) if len(lengths) == len(line.terms) else None
        self._line_maxima[id(line)] = line, ends
        return ends

    def _sum_least_of_difference(
        self, form: LinearForm, low: int | None, a: int, line: LinearForm, b: int
    ) -> int | None:
        """Return `_sum_least(a*form - b*line)` for positive a and b, fast if `line` is in the cache of maxima.

        low: `_sum_least(form)`.
        """
        maximum = None if low is None else self._bound_line_above(line)
        if low is None or maximum is None:
            return self._sum_least(form * a - line * b)
        most, lengths = maximum
        out = a * low - b * most
        for atom, mine in form.terms.items():
            # The form counts this atom with one end of its interval and the line with the other end, which is too low.
            if atom in line.terms and mine * (c := line.terms[atom]) > 0:
                out += min(abs(a * mine), abs(b * c)) * lengths[atom]
        return out

    def _search(self, form: LinearForm, depth: int) -> int | None:
        """Return the best lower bound of a form that combinations with at most `depth` lines give; None: unbounded."""
        if not form.terms:
            return form.const
        if depth == 0 or not self.lines and (len(form.terms) == 1 or all(isinstance(a, Axis) for a in form.terms)):
            return self._sum_least(form)
        key = (depth, frozenset(form.terms.items()))
        if key not in self._search_results:
            terms = form.terms
            bare = LinearForm(0, terms)
            best = without_lines = self._sum_least(bare)
            # No bound exceeds the form's value at some point: a bound that reaches it needs no search.
            values = self.sampled.values(bare) if len(self.lines) > _MAX_UNSAMPLED_LINES else None
            most, tried = None if values is None else int(values.min()), 0
            for line in [*self.lines, *(own for a in terms for own in definition_lines(a))]:
                if tried >= _MAX_TRIED_LINES or (most is not None and best is not None and best >= most):
                    break
                for atom, c in line.terms.items():
                    if atom not in terms or (mine := terms[atom]) * c <= 0 or tried >= _MAX_TRIED_LINES:
                        continue
                    tried += 1
                    g = gcd(mine, c)
                    a, b = abs(c) // g, abs(mine) // g
                    # a*form >= a*form - b*line, as line >= 0
                    if depth == 1:
                        bound = self._sum_least_of_difference(bare, without_lines, a, line, b)
                    elif self.sampled.shows_no_better(values, a, line, b, best):
                        continue
                    else:
                        bound = self._search(bare * a - line * b, depth - 1)
                    if bound is not None and (best is None or -(-bound // a) > best):
                        best = -(-bound // a)
            self._search_results[key] = best
        low = self._search_results[key]
        return None if low is None else low + form.const

    def _bound_atom(self, atom: Expr) -> Interval:
        """Return the interval of an atom that its arguments and the lines imply."""
        cache = self._atom_intervals if self._search_depth else self._lineless_intervals
        interval = cache.get(atom)
        if interval is None:
            if self._nesting >= _MAX_ATOM_NESTING:
                return None, None
            self._nesting += 1
            # Lines may lead back to the atom, which then has the interval that its arguments imply without lines.
            if depth := self._search_depth:
                self._search_depth = 0
                cache[atom] = self._bound_atom(atom)
                self._search_depth = depth
            interval = cache[atom] = intervals.meet(cache.get(atom, (None, None)), self.own_interval(atom))
            self._nesting -= 1
            if depth and self._line_maxima:  # computed with the interval that the atom had so far
                self._line_maxima = {n: x for n, x in self._line_maxima.items() if atom not in x[0].terms}
        tightened = self._tightened.get(atom)
        return interval if tightened is None else intervals.meet(interval, tightened)

    def own_interval(self, e: Expr) -> Interval:
        """Return the interval of an atom that its operator, its type and the bounds of its arguments imply."""
        if isinstance(e, Axis):
            return (0, max(0, self.extents[e.position] - 1)) if e.position < len(self.extents) else (None, None)
        width = e.dtype.range if e.dtype.is_int and e.dtype.bits < 32 else (0, 1) if e.dtype.is_bool else (None, None)
        if not isinstance(e, Apply):
            return width
        fn, args = e.fn, e.args
        if fn == "where":
            return self._bound_choice(args[0], args[1], args[2])
        if fn == "cast":
            if args[0].dtype.is_bool:
                return (1, 1) if self.prove(args[0]) else (0, 0) if self.prove(args[0], False) else (0, 1)
            if args[0].dtype.is_int:
                inner = self.interval(linear(args[0]))
                least, most = e.dtype.range
                fits = inner[0] is not None and inner[1] is not None and least <= inner[0] and inner[1] <= most
                return inner if fits else width
            return width
        if len(args) > 2 or not args[0].dtype.is_int:
            return width
        return intervals.of_function(fn, *(self.interval(linear(x)) for x in args)) or width

    def _bound_choice(self, c: Expr, a: Expr, b: Expr) -> Interval:
        """Return the interval of where(c, a, b): the hull of that of a if c may hold, and that of b if c may fail."""
        for truth, side in ((True, a), (False, b)):
            if (c, truth) in self.known:
                return self.interval(linear(side))
        parts = []
        for truth, side in ((True, a), (False, b)):
            # Lines may contain `where` themselves, so that assuming one condition examines others: limit the nesting.
            assumes = self._search_depth and self._choices < _MAX_NESTED_CHOICES
            under = self._derive(((c, truth),), choices=1) if assumes else self
            if under.feasible:
                under._nesting = self._nesting
                parts.append(under.interval(linear(side)))
        return intervals.hull(parts or [(None, None)])

    # -- proving

    def prove(self, cond: Expr, truth: bool = True, splits: int = _MAX_CASE_SPLITS) -> bool:
        """Return whether `cond` (or, with truth=False, its negation) is proven wherever these facts hold.

        False: unknown. splits: most cases to split by.
        """
        if not self.feasible:
            return True
        if self.sampled.refutes(cond, truth):
            return False
        if self._proves(cond, truth):
            return True
        if not self.cases or not splits:
            return False
        return all(self._derive(((c, t),), True).prove(cond, truth, splits - 1) for c, t in self.cases[0])

    def _proves(self, cond: Expr, truth: bool) -> bool:
        """Return whether `cond` (or its negation if not `truth`) is proven without splitting into cases."""
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
                if not all(_is_at_least(self.low(line), 0) for line in holds):
                    return False
                if not all(self._is_never_zero(line) for line in differs):
                    return False
            else:
                return False
        return True

    def _is_never_zero(self, form: LinearForm) -> bool:
        """Return whether a form is proven never to be 0: by its sign, or because the gcd of its coefficients does not
        divide its constant."""
        step = gcd(*form.terms.values())
        if form.const % step if step else form.const:
            return True
        return _is_at_least(self.low(form), 1) or _is_at_least(self.low(form * -1), 1)


def _is_at_least(x: int | None, least: int) -> bool:
    """Return whether a lower bound is known (not None) and at least `least`."""
    return x is not None and x >= least
