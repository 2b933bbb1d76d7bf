"""Rewrite a template for all sizes up to a capacity: extents become limits, constants become numbers that it reads.

See `passes.capacity`, which rewrites graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.errors import BoundsError, VerifyError
from einsmith.ir.analysis.in_bounds import out_of_bounds
from einsmith.ir.functions import SELECTIONS, identity, last_key
from einsmith.ir.nodes import (
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    apply,
    axes_of,
    has_read,
    reads,
)
from einsmith.ir.rebuild import (
    clamp_index,
    map_bodies,
    rebuild,
    substitute,
    with_args,
)
from einsmith.ir.rewrite.rules import connect
from einsmith.ir.verify import verify_template
from einsmith.passes.size_traces import (
    SizeDependentError,
    Varying,
    is_equal,
    postorder_together,
)

_FIRST_NUMBER = 1 << 20
"""First slot of the run-time numbers while a template is rewritten."""


@contextmanager
def unproven() -> Iterator[None]:
    """Raise SizeDependentError where a check of the IR's rules fails within."""
    try:
        yield
    except (BoundsError, VerifyError) as e:
        raise SizeDependentError(f"a formula is not proven for smaller sizes ({e})") from None


class Steps(NamedTuple):
    """Steps of a recurrence whose number depends on the size: position of a member's first one in dimension 0, and
    their numbers for the capacity and for the probe."""

    origin: int
    capacity: int
    probe: int


class SizedTemplate:
    """The rewriting of a template. keys: the numbers that it reads, each with its slot while it is rewritten.

    steps: what varies of the recurrence of which the template is a member, or None.
    """

    def __init__(self, a: Template, b: Template, steps: Steps | None = None):
        self._a, self._b = a, b
        self.keys: dict[Varying, int] = {}
        if any(0 in shape for _, shape in (*a.params, *b.params)) or 0 in a.shape or 0 in b.shape:
            raise SizeDependentError("a tensor is empty")
        self._varying = {d for d, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)) if n != m}
        self._new: dict[tuple, Expr] = {}
        pairs = list(zip(a.parts, b.parts, strict=True))
        if steps is not None:
            self._parts = self._rewrite_member(pairs, steps)
        elif all(isinstance(p, Scatter) or self._is_whole(p, q) for p, q in pairs):
            self._parts = [self._rewrite_part(p, q) for p, q in pairs]
        else:
            self._parts = [self._join(pairs)]

    def finish(self, slots: Mapping[int, int], params: tuple, members: int) -> Template:
        """Return the rewritten template, with some slots renumbered, in which every read is proven in bounds. members:
        the first slot of members of a recurrence."""

        def renumber(e: Any) -> Expr | None:
            return Read(slots[e.slot], e.index, e.dtype) if isinstance(e, Read) and e.slot in slots else None

        def clamp(e: Any) -> Expr | None:
            if not isinstance(e, Read) or e not in outside:
                return None
            extents = params[e.slot][1]
            if e.slot >= members:  # where the step is not proven to be an earlier one if the index is clamped
                return _guarded(_inside(e.index, extents), e, 0)
            inside = [apply("lt", i, Const(n, i.dtype)) for i, n in zip(e.index, extents, strict=True) if i in beyond]
            return _guarded(inside, Read(e.slot, tuple(map(clamp_index, e.index, extents)), e.dtype), 0)

        t = map_bodies(Template(self._a.shape, self._a.params, tuple(self._parts)), _rule(renumber), params)
        while places := [x for x in out_of_bounds(t) if x.read is not None]:
            # A condition that was a constant one proves nothing any more; where it holds, the index is in bounds.
            outside, beyond = {x.read for x in places}, {x.index for x in places if isinstance(x.index, Axis)}
            clamped = map_bodies(t, _rule(clamp))
            if clamped is t:
                break
            t = clamped
        with unproven():
            verify_template(t)
        return t

    def _number(self, key: Varying) -> Read:
        slot = self.keys.setdefault(key, _FIRST_NUMBER + len(self.keys))
        return Read(slot, (), dt.i32 if key.dtype is None else key.dtype)

    def _rewrite_part(self, p: Piece | Scatter, q: Piece | Scatter) -> Piece | Scatter:
        axes = [(n, a, b) for n, (a, b) in enumerate(zip(p.domain, q.domain, strict=True))]
        bodies = [self._rewrite_expr(x, y) for x, y in zip(p.bodies, q.bodies, strict=True)]
        if isinstance(p, Scatter):
            guards = self._below(axes)
            # An index of axes alone is in bounds at the capacity, too; one that is read is none beyond its own axes.
            own = [self._below([x for x in axes if x[0] in axes_of(e)]) if has_read(e) else () for e in bodies[:-1]]
            index = tuple(_guarded(g, e, 0) for g, e in zip(own, bodies, strict=False))
            return Scatter(p.combiner, p.extents, index, _guarded(guards, bodies[-1], p.neutral))
        assert isinstance(q, Piece)
        rank = len(p.extents)
        # What lies beyond a limit is not an index; elsewhere it is left to be anything.
        of_index = _axes_of_read_indices(bodies)
        guards = self._below([x for x in axes if x[0] >= rank or x[0] in of_index])
        if not isinstance(p.body, Reduce):
            return Piece(p.offset, p.step, p.extents, _guarded(guards, bodies[0], 0))
        combiner = p.body.combiner
        if combiner.startswith("arg") and any(a != b for _, a, b in axes[rank + 1 :]):
            raise SizeDependentError(f"{combiner} counts positions along an axis of this size")
        reduction = Reduce(combiner, p.body.extents, tuple(bodies))
        guarded_terms = _guard_terms(guards, reduction)
        varying = [n - rank for n, a, b in axes[rank:] if a != b]
        return Piece(p.offset, p.step, p.extents, put_first(guarded_terms, rank, varying))

    def _is_whole(self, p: Any, q: Any, first: int = 0) -> bool:
        """Return whether a piece has all of each axis from `first` on that varies, and one and the same part of the
        others."""
        return (p.step[first:], p.offset[first:]) == (q.step[first:], q.offset[first:]) and all(
            (p.offset[d], p.step[d], q.offset[d], q.step[d]) == (0, 1, 0, 1)
            and (p.extents[d], q.extents[d]) == (self._a.shape[d], self._b.shape[d])
            for d in self._varying
            if d >= first
        )

    def _rewrite_member(self, pairs: Sequence[tuple[Any, Any]], steps: Steps) -> list[Piece | Scatter]:
        """Return the pieces of a member of a recurrence whose number of steps depends on the size.

        before: h[t] = f(h[t+1]) for t < 64;  h[64] = g      (64, the capacity)
        after:  h[t] = where(t < n, f(h[t+1]), where(t == n, g, 0));  h[64] = where(64 == n, g, 0)
        """
        groups: dict[tuple, list[tuple[Any, Any]]] = {}  # of the same positions in time
        for p, q in pairs:
            if (p.step[0], q.step[0]) != (1, 1):
                raise SizeDependentError("every other step of a recurrence has a formula of its own")
            groups.setdefault((p.offset[0], p.extents[0], q.offset[0], q.extents[0]), []).append((p, q))
        pieces: list[Any] = []
        for (first, count, other, other_count), group in groups.items():
            is_whole = all(self._is_whole(p, q, 1) for p, q in group)
            is_step = first == steps.origin
            if first > steps.origin:
                first, other = first - steps.capacity, other - steps.probe
            if first != other or not is_step and count != other_count:
                raise SizeDependentError("initial values of a recurrence are at other positions")
            pieces += [self._rewrite_part(p, q) for p, q in group] if is_whole else [self._join(group, 1)]
        following = [(x.offset[0] - steps.origin - steps.capacity, x) for x in pieces if x.offset[0] > steps.origin]
        end = self._extent(steps.capacity, steps.probe)
        return [
            x if x.offset[0] < steps.origin else _end_steps(x, x.offset[0] - steps.origin, end, following)
            for x in pieces
        ]

    def _join(self, pairs: Sequence[tuple[Any, Any]], first: int = 0) -> Piece:
        """Return one piece for pieces whose ends depend on the size: a condition on the position chooses among them.

        first: the first dimension along which they are joined; they have the same part of those before it.
        """
        p, q = pairs[0]
        domain = [(*p.extents[:first], *self._a.shape[first:]), (*q.extents[:first], *self._b.shape[first:])]
        offset, step = (*p.offset[:first], *(0 for _ in domain[0][first:])), (1,) * len(domain[0])
        sums = [x for x in pairs if isinstance(x[0].body, Reduce)]
        others = [x.body for x, _ in pairs if not isinstance(x.body, Reduce)]
        is_sum = len(sums) == 1 and all(_is_sum_of_nothing(x, sums[0][0].body) for x in others)
        if sums and not is_sum or any({*x.step, *y.step} - {1} for x, y in pairs):
            raise SizeDependentError("sums, or every other element, are joined along an axis of this size")

        def below(bodies: Iterable[Expr]) -> list[Expr]:
            """Return the conditions that the axes of indices that are read lie below their limits."""
            axes = [(d, n, m) for d, (n, m) in enumerate(zip(*domain, strict=True))]
            of_index = _axes_of_read_indices(bodies)
            return self._below([x for x in axes if x[0] in of_index])

        if sums:
            inside, shift = self._locate(*sums[0], first)
            body = self._rewrite_part(*sums[0]).body
            assert isinstance(body, Reduce)
            moved = Reduce(body.combiner, body.extents, tuple(substitute(x, shift) for x in body.bodies))
            return Piece(offset, step, domain[0], _guard_terms([*inside, *below(moved.bodies)], moved))
        joined: Expr | None = None
        for x, y in reversed(pairs):
            inside, shift = self._locate(x, y, first)
            value = substitute(self._rewrite_expr(x.bodies[0], y.bodies[0]), shift)
            joined = value if joined is None else _chosen(inside, value, joined)
        assert joined is not None
        return Piece(offset, step, domain[0], _guarded(below([joined]), joined, 0))

    def _locate(self, p: Piece, q: Piece, first: int) -> tuple[list[Expr], dict[int, Expr]]:
        """Return the conditions that a position lies in a piece, and its position there along the dimensions from
        `first` on that begin elsewhere."""
        shift: dict[int, Expr] = {}
        inside: list[Expr] = []
        for d, extents in list(enumerate(zip(self._a.shape, self._b.shape, strict=True)))[first:]:
            place: Expr = Axis(d)
            if (begin := (p.offset[d], q.offset[d])) != (0, 0):
                inside.append(apply("le", self._extent(*begin), place))
                place = shift[d] = apply("sub", place, self._extent(*begin))
            if (p.extents[d] + begin[0], q.extents[d] + begin[1]) != extents:
                inside.append(apply("lt", place, self._extent(p.extents[d], q.extents[d])))
        return inside, shift

    def _extent(self, a: int, b: int) -> Expr:
        """Return an extent that is `a` at the capacity and `b` at the probe."""
        return Const(a, dt.i32) if a == b else self._number(Varying(None, a, b))

    def _below(self, axes: Iterable[tuple[int, int, int]]) -> list[Expr]:
        """Return the conditions that axes lie below their limits; axes: (position, extent for the capacity, extent for
        the probe)."""
        return [apply("lt", Axis(n), self._number(Varying(None, a, b))) for n, a, b in axes if a != b]

    def _rewrite_expr(self, a: Expr, b: Expr) -> Expr:
        """Return an expression in which constants that depend on the size are read."""
        new = self._new
        seen = set(new)
        for pair in postorder_together([(a, b)], seen):
            x, y = pair
            args = tuple(new[z] for z in zip(x.args, y.args, strict=True))
            new[pair] = with_args(x, args) if args else x
            if isinstance(x, Const) and not is_equal(x.value, y.value):
                if x.dtype.is_bool:
                    raise SizeDependentError("a condition has another value")
                number = Varying(x.dtype, x.value, y.value)
                # An index that lies below a number that grows with the size is in bounds as it is at the capacity.
                new[pair] = apply("min", self._number(number), x) if number.is_bounded else self._number(number)
            elif isinstance(x, Read) and args != x.index:
                extents = self._a.params[x.slot][1]
                pairs = zip(x.index, args, extents, strict=True)
                new[pair] = Read(x.slot, tuple(i if i is j else clamp_index(j, n) for i, j, n in pairs), x.dtype)
        return new[a, b]


def _axes_of_read_indices(bodies: Iterable[Expr]) -> Collection[int]:
    """Return the axes of the indices in some expressions that are read from tensors."""
    return axes_of(*(i for e in bodies for x in reads(e) for i in x.index if has_read(i)))


def _rule(rule: Callable[[Any], Any]) -> Callable[[Expr], Expr]:
    return lambda body: rebuild([body], rule)[0]


def _is_sum_of_nothing(body: Any, reduction: Reduce) -> bool:
    """Return whether a piece has the value that a reduction of no terms has."""
    return isinstance(body, Const) and is_equal(body.value, identity(reduction.combiner, body.dtype))


def _inside(index: Sequence[Expr], extents: Sequence[int]) -> list[Expr]:
    """Return the conditions that an index is in bounds."""
    return [
        c
        for i, n in zip(index, extents, strict=True)
        for c in (apply("le", Const(0, i.dtype), i), apply("lt", i, Const(n, i.dtype)))
    ]


def _chosen(conditions: Sequence[Expr], x: Expr, otherwise: Expr) -> Expr:
    """Return x where all conditions hold, elsewhere another expression."""
    return apply("where", connect("and", conditions), x, otherwise) if conditions else x


def _end_steps(piece: Piece, first: int, end: Expr, following: Sequence[tuple[int, Piece]]) -> Piece:
    """End a piece of a recurrence's member after `end` steps, a run-time number. Beyond them, the piece has the initial
    values that follow the last step.

    first: the distance of the piece from the first step; following: pieces of these initial values, each with its
    distance from the last step."""
    body = piece.body
    live = apply("lt", Axis(0), end)
    if isinstance(body, Reduce):
        if first or not all(_is_sum_of_nothing(x.body, body) for _, x in following):
            raise SizeDependentError("sums and initial values of a recurrence are joined")
        return Piece(piece.offset, piece.step, piece.extents, _guard_terms([live], body))
    place = apply("sub", apply("add", Axis(0), Const(first, dt.i32)), end)
    beyond: Expr = Const(0, body.dtype)
    for distance, x in following:
        if isinstance(x.body, Reduce):
            raise SizeDependentError("initial values behind the steps of a recurrence are sums")
        at = apply("sub", place, Const(distance, dt.i32))
        beyond = _chosen(_inside([at], x.extents[:1]), substitute(x.body, {0: at}), beyond)
    return Piece(piece.offset, piece.step, piece.extents, beyond if first else apply("where", live, body, beyond))


def put_first(reduction: Reduce, rank: int, first: Collection[int]) -> Reduce:
    """Return a reduction with some of its axes ahead of the others, as products end at limits of the first one. Axes
    along which a tensor is contiguous keep their places. rank: number of the output's axes."""
    contiguous = axes_of(*(x.index[-1] for body in reduction.bodies for x in reads(body) if x.index))
    order = sorted(range(len(reduction.extents)), key=lambda n: n not in first or rank + n in contiguous)
    if reduction.combiner.startswith("arg") or order == sorted(order):
        return reduction
    axes: dict[int, Expr] = {rank + n: Axis(rank + at) for at, n in enumerate(order)}
    bodies = tuple(substitute(x, axes) for x in reduction.bodies)
    return Reduce(reduction.combiner, tuple(reduction.extents[n] for n in order), bodies)


def _guard_terms(guards: Sequence[Expr], reduction: Reduce) -> Reduce:
    """Return a reduction of the terms for which all guards hold."""
    combiner, bodies = reduction.combiner, reduction.bodies
    if combiner in SELECTIONS:
        key, of_rank = bodies
        return Reduce(combiner, reduction.extents, (_guarded(guards, key, last_key(combiner, key.dtype)), of_rank))
    bodies = tuple(_guarded(guards, x, identity(combiner, x.dtype)) for x in bodies)
    return Reduce(combiner, reduction.extents, bodies)


def _guarded(guards: Sequence[Expr], x: Expr, otherwise: float | int | bool) -> Expr:
    """Return x where all guards hold, elsewhere a constant."""
    for g in reversed(guards):
        x = apply("where", g, x, Const(otherwise, x.dtype))
    return x
