"""Recognize linear recurrences: those whose chunk form is made of products.

    S[t,x] = a[t,x]*S[t-1,x] + sum over r of p_r[t,x]*u_r[t,x],   u_r affine in z_s[t,v] = sum[k](q_s[t,k]*S[t-1,k,v])

The axes of the state are of three kinds: keys (k), which every read contracts and u_r does not have; values (v), which
a, p_r and q_s do not have; and shared ones, such as heads. Expressions here are over labels: axis 0 is time, axis d is
dimension d of the state, and further ones are axes that only one read has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from einsmith.ir.nodes import Apply, Axis, Const, Expr, Piece, Read, Recurrence, Reduce, apply, is_zero, postorder, rank
from einsmith.ir.rebuild import operands, substitute
from einsmith.ir.recurrence.chunks.affine import (
    FIRST,
    STATE,
    Affine,
    AffineStep,
    NotLinearError,
    plain_index,
    product,
    reduction_slot,
    total,
)


@dataclass(frozen=True)
class StateRead:
    """A read of the state: scale * (sum over keys of query * S).

    query, scale: over labels; keys: the labels that it sums over; axes: the label of each axis of the result;
    extents: those of labels that the state has not
    """

    query: Expr
    scale: Expr
    keys: frozenset[int]
    axes: tuple[int, ...]
    extents: Mapping[int, int]

    def scale_at(self, read: Read) -> Expr:
        """Return the scale where the contraction is read at an index, one for each of its axes but time."""
        return substitute(self.scale, dict(zip(self.axes[1:], read.index, strict=True)))


@dataclass(frozen=True)
class RankOneTerm:
    """A term of rank one: key * (value + sum of weights * reads). value: None for 0; weights: by the read's number."""

    key: Expr
    value: Expr | None
    weights: Mapping[int, Expr]


@dataclass(frozen=True)
class LinearRecurrence:
    """A linear recurrence.

    Attributes:
        node: the recurrence
        state: the number of the member that is the state
        keys, values, shared: the axes of each kind
        decay: over time and axes that are no values; None for 1
        terms: the terms of rank one
        reads: by member, the contractions of the state before a step that the step has
        forms: by exposed member, its value as an affine function of `reads`, in axes of its own
    """

    node: Recurrence
    state: int
    keys: tuple[int, ...]
    values: tuple[int, ...]
    shared: tuple[int, ...]
    decay: Expr | None
    terms: tuple[RankOneTerm, ...]
    reads: Mapping[int, StateRead]
    forms: Mapping[int, Affine]


def axes_of(x: Expr | None) -> frozenset[int]:
    """Return the axes that an expression depends on."""
    return frozenset(e.position for e in postorder([x]) if isinstance(e, Axis)) if x is not None else frozenset()


def contraction(form: Affine, free: int, time: int, extents: Sequence[int]) -> StateRead:
    """Return the read that a sum is. form: that of its body; free: number of axes of its result; time: which of them is
    time; extents: those of all axes. Raises NotLinearError where it is none."""
    reads = [r for r in form if r is not None]
    if len(reads) != 1 or reads[0].slot != STATE:
        raise NotLinearError("a sum reads the state at several places")
    if None in form and not is_zero(form[None]):
        raise NotLinearError("a sum over the state adds what is no part of it")
    (read,) = reads
    places = {d: i.position for d, i in enumerate(read.index, 1) if isinstance(i, Axis)}
    axes, dims = [*places.values()], len(read.index)
    # An axis of one element has no index.
    if any(i is not FIRST for i in read.index if not isinstance(i, Axis)) or len({*axes, time}) <= len(axes):
        raise NotLinearError("a step reads elements of its state at other places than their own")
    keys = frozenset(d for d, a in places.items() if a >= free)
    if len(keys) != len(extents) - free:
        raise NotLinearError("a sum over the state has axes that the state has not")
    labels = {a: d for d, a in places.items()} | {time: 0}
    further: dict[int, int] = {}
    for a in range(free):
        if a not in labels:
            labels[a] = dims + 1 + len(further)
            further[labels[a]] = extents[a]
    query = substitute(form[read], {a: Axis(d) for a, d in labels.items()})
    query, scale = _factors(query, keys)
    return StateRead(query, scale, keys, tuple(labels[a] for a in range(free)), further)


def recognize(step: AffineStep, outputs: Sequence[StateRead], exposed: Collection[int]) -> LinearRecurrence:
    """Return the linear recurrence that a recurrence is.

    Args:
        step: its step
        outputs: the contractions of the state outside of the recurrence
        exposed: the numbers of members, other than the state, that are read outside

    Raises:
        NotLinearError: it is none, or reads contract different axes.
    """
    node, state = step.node, step.state
    shape = node.results[state][1]
    dims = range(1, len(shape))
    _check_initial(node, state)
    reads: dict[int, StateRead] = {}
    for j in range(len(node.members)):
        piece = step.step_piece(j)
        if isinstance(piece.body, Reduce):
            reads[j] = contraction(step.forms[j], len(piece.extents), 0, piece.domain)
            if any(n > 1 for n in reads[j].extents.values()):
                raise NotLinearError("a sum over the state has axes that the state has not")
    keys = {r.keys for r in (*reads.values(), *outputs)}
    if len(keys) != 1:
        raise NotLinearError("reads contract different axes of the state" if keys else "nothing contracts the state")
    (contracted,) = keys
    own = _scaled(step.forms[state], reads)
    at_place = plain_index([Axis(d) for d in dims], shape[1:])
    decay = own.pop(Read(STATE, at_place, node.results[state][0]), None)
    for at in own:
        if at is not None:
            _check_place(at, reads)
    shared = {d for r in (*reads.values(), *outputs) for d in axes_of(r.query) & {*dims}} | axes_of(decay) & {*dims}
    shared -= contracted
    while True:
        terms, mixed = _terms(own, contracted, {*dims} - contracted - shared, reads)
        if not mixed:
            break
        shared |= mixed
    values = tuple(d for d in dims if d not in contracted and d not in shared)
    forms = {}
    for j in exposed:
        forms[j] = _scaled(step.value(j), reads)
        if node.results[j][1][0] != node.steps:
            raise NotLinearError("a member that is read outside begins ahead of the first step")
        for place in forms[j]:
            if place is not None and place.slot == STATE:
                raise NotLinearError("all states are read as they are")
    is_one = isinstance(decay, Const) and decay.value == 1
    decay = Const(0, node.results[state][0]) if decay is None else None if is_one else decay
    return LinearRecurrence(
        node, state, tuple(sorted(contracted)), values, tuple(sorted(shared)), decay, tuple(terms), reads, forms
    )


def _scaled(form: Affine, reads: Mapping[int, StateRead]) -> Affine:
    """Return a form whose reads are of contractions without their scale."""
    out = dict(form)
    for read, x in form.items():
        if read is not None and reduction_slot(read.slot) in reads:
            out[read] = product(x, reads[reduction_slot(read.slot)].scale_at(read))
    return out


def _factors(x: Expr, keys: frozenset[int]) -> tuple[Expr, Expr]:
    """Return a product as (the factors with keys, the others)."""
    one = Const(1, x.dtype)
    if not axes_of(x) & keys:
        return one, x
    if isinstance(x, Apply) and x.fn == "mul":
        (a, b), (c, d) = (_factors(e, keys) for e in x.args)
        return product(a, c), product(b, d)
    if isinstance(x, Apply) and x.fn == "neg":
        inside, outside = _factors(x.args[0], keys)
        return inside, apply("neg", outside)
    if isinstance(x, Apply) and x.fn == "div" and not axes_of(x.args[1]) & keys:
        inside, outside = _factors(x.args[0], keys)
        return inside, apply("div", outside, x.args[1])
    return x, one


def _check_initial(node: Recurrence, state: int) -> None:
    """Raise NotLinearError where the state does not begin with one value ahead of its first step."""
    shape, origin = node.results[state][1], node.origins[state]
    place = node.steps if node.reverse else 0
    initial = [p for p in node.members[state].parts if isinstance(p, Piece) and p.offset[0] == place]
    is_whole = len(initial) == 1 and initial[0].extents[1:] == shape[1:] and not isinstance(initial[0].body, Reduce)
    if shape[0] != node.steps + 1 or origin != (0 if node.reverse else 1) or not is_whole:
        raise NotLinearError("its state does not begin with one value ahead of the first step")


def _check_place(read: Read, reads: Mapping[int, StateRead]) -> None:
    """Raise NotLinearError where the state reads another element of itself, or of a read, than that at its place."""
    s = reduction_slot(read.slot)
    if read.slot == STATE or s not in reads:
        raise NotLinearError("a step reads elements of its state at other places than their own")
    own = tuple(FIRST if d in reads[s].extents else Axis(d) for d in reads[s].axes[1:])
    if read.index != own:
        raise NotLinearError("a step reads elements of its state at other places than their own")


def _terms(
    form: Affine, keys: frozenset[int], values: set[int], reads: Mapping[int, StateRead]
) -> tuple[list[RankOneTerm], set[int]]:
    """Split a form into terms of rank one, key times value. Return also the axes that were taken for axes of values,
    but on which keys or weights depend."""
    parts_of: dict[Expr, dict[int | None, Expr]] = {}
    mixed: set[int] = set()
    for read, x in form.items():
        s = None if read is None else reduction_slot(read.slot)
        for key, value in _split(x, keys, values):
            mixed |= axes_of(key) & values
            if s is not None:
                mixed |= axes_of(value) & values
            parts = parts_of.setdefault(key, {})
            parts[s] = total(parts.get(s), value)
    terms = [RankOneTerm(k, v.get(None), {s: w for s, w in v.items() if s is not None}) for k, v in parts_of.items()]
    return terms, mixed


def _split(x: Expr, keys: frozenset[int], values: set[int]) -> list[tuple[Expr, Expr]]:
    """Return a sum of products of (a factor with keys, one without). A factor that has both keys and values is one with
    keys."""
    one = Const(1, x.dtype)
    if is_zero(x):
        return []
    if not axes_of(x) & keys:
        return [(one, x)]
    has_values = bool(axes_of(x) & values)
    if isinstance(x, Apply) and x.fn in ("add", "sub") and has_values:
        second = _split(x.args[1], keys, values)
        if x.fn == "sub":
            second = [(k, apply("neg", v)) for k, v in second]
        return [*_split(x.args[0], keys, values), *second]
    if isinstance(x, Apply) and x.fn == "neg":
        return [(k, apply("neg", v)) for k, v in _split(x.args[0], keys, values)]
    if isinstance(x, Apply) and x.fn == "mul":
        first, second = (_split(a, keys, values) for a in x.args)
        return [(_ordered(k, m), product(v, w)) for k, v in first for m, w in second]
    if isinstance(x, Apply) and x.fn == "div" and not axes_of(x.args[1]) & keys:
        return [(k, apply("div", v, x.args[1])) for k, v in _split(x.args[0], keys, values)]
    return [(x, one)]


def _ordered(x: Expr, y: Expr) -> Expr:
    """Return a product whose factors are in an order of their own, without factors of 1."""
    factors: Iterable[Expr] = sorted((*operands(x, "mul"), *operands(y, "mul")), key=rank)
    out: Expr = Const(1, x.dtype)
    for f in factors:
        out = product(out, f)
    return out
