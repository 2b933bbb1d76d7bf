"""Match sums of products and describe them as contractions.

A contraction has two operands, axes sorted into batch, M, N and K, and steps that follow the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import isfinite, prod
from typing import NamedTuple

from einsmith.base.dtypes import DType, i32
from einsmith.base.locks import cached_property
from einsmith.ir.analysis import obvious
from einsmith.ir.analysis.bounds import Facts, prove
from einsmith.ir.analysis.linear import LinearForm, affine_of, linear
from einsmith.ir.analysis.obvious import leaves
from einsmith.ir.analysis.predicates import guarded_reads
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Template,
    apply,
    axes_of,
    has_no_reduction_axis,
    has_read,
    is_zero,
    postorder,
    reads,
)
from einsmith.ir.rebuild import clamp_index, guarded, operands, rebuild

VIEW_SLOT = 1 << 21
"""First slot of views in words: VIEW_SLOT + n is the view of slot n (`words.view_of`)."""
MAX_AXIS_SETS = 6
"""Most groups of factors with equal sets of axes that are divided between two operands; 2**5 divisions are tried."""


@dataclass(frozen=True, eq=False)
class Operand:
    """A product of reduction-free factors, nonzero only where every guard holds, and the axes it depends on."""

    expr: Expr
    guards: tuple[Expr, ...]
    axes: frozenset[int]

    @cached_property
    def plain(self) -> bool:
        """Return True if the operand is a single read at an affine index without guards."""
        return isinstance(self.expr, Read) and not self.guards and affine(self.expr) is not None


EpilogueSteps = tuple[tuple[str, Expr | None], ...]
"""Steps applied to a sum: each is a function and its second argument (None for a function of the sum alone)."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A piece of a contraction: `out[batch, left, right] = epilogue(sum over k of left operand * right operand)`.

    Axes are the piece's own. `left` and `right` are the output axes of one operand only, in output order. `epilogue` is
    a list of (fn, expr) steps on the sum: mul and div by factors free of K, neg, and ("where", guard).

    A term of the sum is `term` where every guard of `exact` holds; elsewhere it is zero, whatever the operands hold
    there. An operand that is zero where a guard fails makes the term zero too, unless the other operand is infinite or
    NaN.

    constant_pieces: constant pieces of the template that are a shift of this piece and are stored along with it. The
    backward pass of a strided convolution has them where no gradient arrives.

    dot, dot_first, word_axis: the dot product of words that the operands hold (`words.in_words`), the operand whose
    words it takes first, and the axis of K whose points are in words; None, 0, None where operands hold elements.
    in_tiles: whether tile registers multiply the words.

    companion: a companion piece of equal extents whose results are interleaved with this piece's. Both sums are at hand
    when a tile's epilogue runs, so that both results are stored in contiguous stretches.
    """

    piece: Piece
    dtype: DType
    operands: tuple[Operand, Operand]
    batch: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    k: tuple[int, ...]
    epilogue: EpilogueSteps
    term: Expr
    exact: tuple[Expr, ...]
    constant_pieces: tuple[Piece, ...] = ()
    companion: Problem | None = None
    dot: str | None = None
    dot_first: int = 0
    word_axis: int | None = None
    in_tiles: bool = False

    @property
    def operand_type(self) -> DType:
        """Return the type of the operands' elements."""
        return self.dtype if self.dot is None else i32

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Return the extents of all axes, output axes first."""
        return self.piece.domain

    def count(self, axes: Iterable[int]) -> int:
        """Return the number of points of these axes."""
        extents = self.extents
        return prod([extents[a] for a in axes])

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Return the numbers of points: batch, left, right, k."""
        return self.count(self.batch), self.count(self.left), self.count(self.right), self.count(self.k)


@lru_cache(maxsize=1024)
def with_companion(p: Problem, companion: Problem) -> Problem:
    """Return the problem with a companion piece, `companion`."""
    return replace(p, companion=companion)


def slots_of(o: Operand) -> set[int]:
    """Return the slots of the arguments that an operand and its guards read."""
    return {r.slot % VIEW_SLOT for x in (o.expr, *o.guards) for r in reads(x)}


@lru_cache(maxsize=1 << 14)
def affine(r: Read) -> tuple[LinearForm, ...] | None:
    """Return the affine form of each index of a read, or None if one of them is not affine in the axes."""
    forms = [affine_of(linear(index)) for index in r.index]
    return None if None in forms else tuple(x for x in forms if x is not None)


def conjuncts(x: Expr) -> list[Expr]:
    """Return the parts of a conjunction; negated integer comparisons are replaced by their opposites."""
    out: list[Expr] = []
    for e in operands(x, "and"):
        if isinstance(e, Apply) and e.fn == "not" and isinstance(e.args[0], Apply) and e.args[0].fn in ("lt", "le"):
            a, b = e.args[0].args
            if a.dtype.is_int:
                out.append(apply("le" if e.args[0].fn == "lt" else "lt", b, a))
            else:
                out.append(e)
        elif not (isinstance(e, Const) and e.value is True):
            out.append(e)
    return out


class _Body(NamedTuple):
    """The parts of a product under guards.

    factors: each factor that depends on K, with the guards that hold around it alone
    guards: guards that hold around all factors, or that are a zero of the whole term
    steps: the steps that follow the sum
    """

    factors: list[tuple[Expr, tuple[Expr, ...]]]
    guards: list[Expr]
    steps: list[tuple[str, Expr | None]]


def _split_body(body: Expr, rank: int) -> _Body:
    """Split a body into its factors, with the guards around them, and the steps that follow the sum."""
    guarded_factors: list[tuple[Expr, tuple[Expr, ...]]] = []  # a factor, and the `where`s around it
    steps: list[tuple[str, Expr | None]] = []
    around_constants: list[Expr] = []  # `where`s around numbers that become steps
    stack: list[tuple[Expr, tuple[Expr, ...]]] = [(body, ())]
    seen: set[Expr] = set()  # a product that occurs several times is split once
    while stack:
        e, wheres = stack.pop()
        if isinstance(e, Apply) and e.fn == "mul" and e not in seen:
            seen.add(e)
            stack += [(e.args[1], wheres), (e.args[0], wheres)]
        elif isinstance(e, Apply) and e.fn == "neg":
            steps.append(("neg", None))
            stack.append((e.args[0], wheres))
        elif isinstance(e, Apply) and e.fn == "div" and not wheres and has_no_reduction_axis(e.args[1], rank):
            steps.append(("div", e.args[1]))
            stack.append((e.args[0], wheres))
        elif (isinstance(e, Const) and isfinite(e.value)) or not wheres and has_no_reduction_axis(e, rank):
            # A factor under a guard stays: where the guard zeroes every term, the sum must not be multiplied by it.
            steps.append(("mul", e))
            around_constants += wheres
        elif isinstance(e, Apply) and e.fn == "where" and is_zero(e.args[2]):
            stack.append((e.args[1], (*wheres, e)))
        else:
            guarded_factors.append((e, wheres))
    carried = {w for _, wheres in guarded_factors for w in wheres}
    for w in dict.fromkeys(around_constants):
        if w not in carried:  # its zeros would be lost with the number
            one, zero = Const(1, w.dtype), Const(0, w.dtype)
            guarded_factors.append((apply("where", w.args[0], one, zero), ()))
    shared = (
        [w for w in guarded_factors[0][1] if all(w in wheres for _, wheres in guarded_factors)]
        if guarded_factors
        else []
    )
    factors = []
    guards = [g for w in shared for g in conjuncts(w.args[0])]
    for e, wheres in guarded_factors:
        own = [g for w in wheres if w not in shared for g in conjuncts(w.args[0])]
        inside = axes_of(e)
        # A zero inside a factor that depends on fewer axes is a zero of the whole term.
        guards += [g for g in own if not axes_of(g) <= inside]
        factors.append((e, tuple(dict.fromkeys(g for g in own if axes_of(g) <= inside))))
    return _Body(factors, list(dict.fromkeys(guards)), steps)


def _multiply(factors: Sequence[Expr]) -> Expr:
    """Return the product of factors."""
    out = factors[0]
    for f in factors[1:]:
        out = apply("mul", out, f)
    return out


def _is_in_bounds(template: Template, operand: Operand, extents: Sequence[int]) -> bool:
    """Return whether every affine read of the operand is proven in bounds under its guards."""

    def is_open(r: Read) -> bool:
        sizes = template.params[r.slot][1]
        return not all(leaves(linear(i), extents, n) is False for i, n in zip(r.index, sizes, strict=True))

    for r, around in guarded_reads(operand.expr, is_open):
        guards = (*operand.guards, *(g for c in around for g in conjuncts(c)))
        known, facts = obvious.find_lower_bounds(guards), None
        for index, n in zip(r.index, template.params[r.slot][1], strict=True):
            if any(isinstance(e, Read) for e in postorder([index])):
                continue
            form = linear(index)
            if obvious.at_least(form, 0, extents, known) and obvious.at_least(form * -1, 1 - n, extents, known):
                continue
            facts = facts or Facts.of(extents, guards)
            for ok in (apply("le", Const(0, index.dtype), index), apply("lt", index, Const(n, index.dtype))):
                if not facts.prove(ok):
                    return False
    return True


def _keep_indices_inside(template: Template, operand: Operand, guards: Sequence[Expr]) -> Operand:
    """Return an operand in which each index that is read from memory is valid wherever it is evaluated.

    An index is checked only where all guards of the term hold. Where guards on axes that the operand lacks fail, its
    value is arbitrary, so it is clamped to its dimension."""

    def clamp(r: Expr) -> Expr | None:
        if not isinstance(r, Read) or not any(map(has_read, r.index)):
            return None
        inside = frozenset[int]().union(*map(axes_of, r.index))
        if all(g in operand.guards or inside.isdisjoint(axes_of(g)) for g in guards):
            return None
        extents = template.params[r.slot][1]
        index = (clamp_index(i, n) if has_read(i) else i for i, n in zip(r.index, extents, strict=True))
        return Read(r.slot, tuple(index), r.dtype)

    return replace(operand, expr=rebuild([operand.expr], clamp)[0])


def apply_epilogue(steps: EpilogueSteps, x: Expr) -> Expr:
    """Apply the steps that follow a sum to it, or to its terms."""
    for fn, e in steps:
        if fn == "where":
            assert e is not None
            x = guarded((e,), x)
        else:
            x = Apply(fn, (x,) if e is None else (x, e), x.dtype)
    return x


def _make_operand(factors: Sequence[tuple[Expr, tuple[Expr, ...]]], axes: frozenset[int]) -> Operand:
    """Return the product of factors as an operand; guards common to all factors become the operand's guards."""
    shared = tuple(g for g in factors[0][1] if all(g in own for _, own in factors))
    return Operand(_multiply([guarded([g for g in own if g not in shared], f) for f, own in factors]), shared, axes)


def _order_k(piece: Piece, guards: Sequence[Expr]) -> tuple[int, ...]:
    """Return the reduction axes (K), outermost first. The first axis whose range ends at a run-time number becomes the
    outermost one, so that the loop over K ends there.

    An axis along which all operands lie in memory stays innermost, for vectors of K: the product of two [8, 128, 280]
    by their rows takes 0.64 ms with the axis outermost and 0.40 ms without.
    """
    k = tuple(range(len(piece.extents), len(piece.domain)))
    ends = [a for a in k if find_end(guards, a) is not None]
    innermost = (r.index[-1] for r in reads(piece.bodies[0]) if r.index)
    if not ends or ends[0] == k[-1] and all(i is Axis(k[-1]) for i in innermost):
        return k
    return (ends[0], *(a for a in k if a != ends[0]))


def _match_piece(template: Template, piece: Piece) -> Problem | None:
    """Return a piece as a contraction with the operands of the fewest points, or None if it is not a contraction."""
    body = piece.body
    if not isinstance(body, Reduce) or body.combiner != "sum" or len(body.bodies) != 1:
        return None
    dtype = body.bodies[0].dtype
    if not (dtype.is_float or dtype is i32) or 0 in piece.domain:
        return None
    rank = len(piece.extents)
    factors, guards, steps = _split_body(body.bodies[0], rank)
    by_axes: dict[frozenset[int], list[tuple[Expr, tuple[Expr, ...]]]] = {}
    for f in factors:
        by_axes.setdefault(axes_of(f[0]), []).append(f)
    keys = [k for k in by_axes if not any(k < other for other in by_axes)]
    if len(keys) == 1 and len(by_axes) > 1:  # one factor spans all axes: the others together are the second operand
        keys.append(max((k for k in by_axes if k not in keys), key=lambda k: prod(piece.domain[a] for a in k)))
    for key in [k for k in by_axes if k not in keys]:
        home = min((k for k in keys if key < k), key=lambda k: prod(piece.domain[a] for a in k))
        by_axes[home] += by_axes.pop(key)
    if not 2 <= len(keys) <= MAX_AXIS_SETS:
        return None
    best: tuple[int, tuple[list, list]] | None = None
    for bits in product((0, 1), repeat=len(keys) - 1):
        sides: tuple[list, list] = ([keys[0]], [])
        for key, bit in zip(keys[1:], bits, strict=True):
            sides[bit].append(key)
        if not sides[1]:
            continue
        points = sum(prod(piece.domain[a] for a in frozenset().union(*s)) for s in sides)
        if best is None or points < best[0]:
            best = (points, sides)
    assert best is not None
    bare = [_make_operand([f for key in s for f in by_axes[key]], frozenset().union(*s)) for s in best[1]]
    k = _order_k(piece, guards)
    end = find_end(guards, k[0]) if k else None  # no term beyond is computed
    owned: list[list[Expr]] = [[], []]
    for g in guards:
        inside = axes_of(g)
        free = not any(a >= rank for a in inside)
        if free:
            steps.append(("where", g))
        homes = [i for i in (0, 1) if inside <= bare[i].axes]
        if not homes and not free:
            return None
        for i in homes:
            owned[i].append(g)
    operands = []
    for i, o in enumerate(bare):
        # A guard that the other operand has already is kept only where reads of this operand need it.
        is_gathered = any(has_read(x) for r in reads(o.expr) for x in r.index)
        required = [g for g in owned[i] if is_gathered or (g not in owned[1 - i] or i == 0) and g is not end]
        choices = (replace(o, guards=tuple(dict.fromkeys((*o.guards, *x)))) for x in (required, owned[i]))
        bounded = next((x for x in choices if _is_in_bounds(template, x, piece.domain)), None)
        if bounded is None:
            return None
        operands.append(_keep_indices_inside(template, bounded, guards))
    in_left, in_right = (o.axes for o in operands)
    batch = tuple(a for a in range(rank) if a in in_left and a in in_right)
    right = tuple(a for a in range(rank) if a in in_right and a not in in_left)
    left = tuple(a for a in range(rank) if a not in in_right and (a in in_left or piece.extents[a] > 1))
    steps = [s for s in steps if not (s[0] == "mul" and isinstance(s[1], Const) and s[1].value == 1)]
    wheres = [s for s in steps if s[0] == "where"]
    term = _multiply([guarded(own, f) for f, own in factors])
    return Problem(
        piece,
        dtype,
        (operands[0], operands[1]),
        batch,
        left,
        right,
        k,
        (*(s for s in steps if s[0] != "where"), *wheres),
        term,
        tuple(guards),
    )


def problems(template: Template) -> tuple[Problem, ...] | None:
    """Return a template's pieces as contractions, or None if some piece is none. Computed once per template."""

    def compute(t: Template):
        if t.is_scatter or len(t.dtypes) != 1:
            return None
        matched: list[Problem] = []
        constant: list[Piece] = []
        for piece in t.parts:
            assert isinstance(piece, Piece)
            if 0 in piece.extents:
                continue
            if isinstance(piece.body, Const):
                constant.append(piece)
                continue
            p = _match_piece(t, piece)
            if p is None:
                return None
            matched.append(p)
        for piece in constant:
            shape = piece.extents, piece.step
            home = next((i for i, p in enumerate(matched) if (p.piece.extents, p.piece.step) == shape), None)
            if home is None:
                return None
            matched[home] = replace(matched[home], constant_pieces=(*matched[home].constant_pieces, piece))
        return tuple(matched) or None

    return template.memo("contraction", compute)


@lru_cache(maxsize=1024)
def needs_exact_guards(p: Problem) -> bool:
    """Return whether some guard on K zeroes one operand only."""
    left, right = p.operands
    end = None if p.in_tiles else end_of_k(p)
    single = (g for g in p.exact if not (g in left.guards and g in right.guards) and g is not end)
    return any(axes_of(g) & set(p.k) and not prove(g, p.extents, ()) for g in single)


def k_limit(p: Problem) -> int | None:
    """Return the slot of a number, known when the kernel runs, at which the first axis of K ends; None where it has
    none."""
    end = end_of_k(p)
    return None if end is None else next(r.slot for r in reads(end))


@lru_cache(maxsize=1024)
def end_of_k(p: Problem) -> Expr | None:
    """Return the guard that makes all terms zero from a number on along the first axis of K, which ends there in a run;
    None where there is none. Operands need not have the guard."""
    return find_end(p.exact, p.k[0]) if p.k else None


def find_end(guards: Iterable[Expr], axis: int) -> Expr | None:
    """Return the guard that an axis lies below a number which is read from memory; None where there is none."""
    for g in guards:
        if isinstance(g, Apply) and g.fn == "lt" and g.args[0] is Axis(axis):
            number = g.args[1]
            if isinstance(number, Read) and not number.index and number.dtype is i32:
                return g
    return None
