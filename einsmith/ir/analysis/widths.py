"""Widen integers over axes that overflow their types: `widen` converts them, `find_overflow` finds one.

The rules and proofs of `ir` speak of unbounded integers; a machine computes modulo 2^32 or 2^64. Both agree where
each observed integer lies in its type. Intermediate sums and multiples by constants may overflow, since they are right
again modulo the type. Operands of comparisons, divisions and conversions and stored values may not overflow; neither
may an atom of a linear form, which is taken out of its sum when an address is computed.

before: x[(65537*i0) % 60000]                      with i0 < 60000
after:  x[(65537*i64(i0)) % 60000]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.symbolic import to_whole
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.guarded import collect_under
from einsmith.ir.analysis.ranges import Range, leaves, reach_of, wrapped
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Piece, Read, Scatter, Template, apply, cast, postorder
from einsmith.ir.rebuild import map_parts, rebuild

_LINEAR = ("add", "sub", "neg", "mul")
_COMPARISONS = ("lt", "le", "eq", "ne")
_INTEGER = (*_LINEAR, "floordiv", "mod", "min", "max", "abs", "sign", "where", "stop_gradient")


class Reaches:
    """The intervals of integer expressions over a box of axes, ignoring guards; None: it depends on elements."""

    def __init__(self, extents: Sequence[int]):
        self.extents = extents
        self.known: dict[Expr, Range | None] = {}

    def add(self, roots: Iterable[Expr]) -> Iterator[Expr]:
        """Find the intervals of all integers below, arguments first; yield each that overflows its type."""
        for e in postorder(roots, self.known):
            reach = self.known[e] = self._compute_reach(e)
            if reach is not None and e.dtype.is_int and leaves(reach, e.dtype):
                yield e

    def _compute_reach(self, e: Expr) -> Range | None:
        if isinstance(e, Axis):
            return 0, max(0, self.extents[e.position] - 1)
        if not e.dtype.is_int or isinstance(e, Read):
            return None
        if isinstance(e, Const):
            return to_whole(e.value), to_whole(e.value)
        if e.fn == "cast":
            of = e.args[0].dtype
            reach = (0, 1) if of.is_bool else self.known[e.args[0]] if of.is_int else None
            return e.dtype.range if reach is not None and leaves(reach, e.dtype) else reach
        if e.fn not in _INTEGER:
            return None
        args = [self.known[a] for a in e.args]
        if e.fn == "mod" and args[1] is not None and args[0] is None:
            return reach_of("mod", [e.dtype.range, args[1]])
        if e.fn == "where":
            args[0] = 0, 1
        return None if None in args else reach_of(e.fn, args)  # type: ignore[arg-type]


def _is_sum(e: Expr) -> bool:
    """Return whether an expression is part of a linear form: a linear function, with a constant factor if it is a
    product."""
    if not isinstance(e, Apply) or e.fn not in _LINEAR:
        return False
    return e.fn != "mul" or any(isinstance(a, Const) for a in e.args)


def _may_overflow(e: Expr, user: Expr | None) -> bool:
    """Return whether an expression may overflow because its user only needs it modulo its type. `user` is None for a
    stored value.

    An axis that is cast or is an index is exact, whatever its type.
    """
    if isinstance(user, Apply) and user.fn in _LINEAR:
        return isinstance(e, Axis) or _is_sum(e)
    return isinstance(e, Axis) and (isinstance(user, Read) or (user is not None and user.dtype is dt.i64))


def find_overflow(t: Template) -> tuple[Expr, Range] | None:
    """Return an integer over axes that overflows its type where that matters, under its guards, and its interval; else
    None."""
    for part in t.parts:
        reaches = Reaches(part.domain)
        if not list(reaches.add(part.bodies)):
            continue
        roots = part.bodies[:-1] if isinstance(part, Scatter) else ()
        uses: list[tuple[Expr, Expr | None]] = [(b, _read_at(b) if b in roots else None) for b in part.bodies]
        uses += [(a, e) for e in postorder(part.bodies) for a in e.args]
        users: dict[Expr | None, dict[Expr, None]] = defaultdict(dict)
        for e, user in uses:
            interval = reaches.known[e]
            if interval is not None and e.dtype.is_int and leaves(interval, e.dtype) and not _may_overflow(e, user):
                users[user][e] = None
        if not users:
            continue
        candidates = [(e, Facts(part.domain)) for e in users.pop(None, ())]
        for user, known in collect_under(part, users.__contains__):
            for e in users[user]:
                if isinstance(user, Apply) and user.fn == "where" and e is not user.args[0]:
                    candidates += [(e, known.assume(user.args[0], n == 1)) for n in (1, 2) if user.args[n] is e]
                else:
                    candidates.append((e, known))
        for e, known in candidates:
            (lo, hi), widest = known.bounds(e), reaches.known[e]
            assert widest is not None
            reach = widest[0] if lo is None else lo, widest[1] if hi is None else hi
            if known.feasible and leaves(reach, e.dtype):
                return e, reach
    return None


def widen(t: Template) -> Template:
    """Return the template with every integer over axes that overflows int32 in int64."""

    def rule(part: Piece | Scatter) -> tuple[Expr, ...]:
        reaches = Reaches(part.domain)
        if not list(reaches.add(part.bodies)):
            return part.bodies
        return _Widener(reaches).widen_bodies(part)

    return map_parts(t, rule)


class _Widener:
    def __init__(self, reaches: Reaches):
        self.reaches = reaches

    def widen_bodies(self, part: Piece | Scatter) -> tuple[Expr, ...]:
        """Return the part's bodies with integers widened, in their own types; indices of a scatter may have any integer
        type."""
        bodies = rebuild(part.bodies, self._widen_operands)
        last = len(bodies) - 1
        return tuple(
            self._widen_overflow(b, True)
            if isinstance(part, Scatter) and n < last
            else cast(self._widen_overflow(b, False), b.dtype)
            for n, b in enumerate(bodies)
        )

    def _widen_operands(self, e: Expr) -> Expr | None:
        if isinstance(e, Read):
            return Read(e.slot, tuple(self._widen_overflow(i, True) for i in e.index), e.dtype)
        if not isinstance(e, Apply) or not e.args[0].dtype.is_int:
            return None
        if e.fn in _COMPARISONS:
            a, b = (self._widen_overflow(x, False) for x in e.args)
            return apply(e.fn, cast(a, b.dtype), b) if b.dtype.bits > a.dtype.bits else apply(e.fn, a, cast(b, a.dtype))
        if e.fn == "cast":
            return cast(self._widen_overflow(e.args[0], False), e.dtype)
        if e.fn == "random_bits":
            return apply(e.fn, *(cast(self._widen_overflow(a, False), a.dtype) for a in e.args))
        return None

    def _widen_overflow(self, root: Expr, is_index: bool) -> Expr:
        """Return the integer in int64 where some part of it overflows its type; others unchanged."""
        if not root.dtype.is_int:
            return root
        list(self.reaches.add([root]))
        checked = [] if _may_overflow(root, _read_at(root) if is_index else None) else [root]
        inner, stack = {root}, [root]
        while stack:
            e = stack.pop()
            for a in e.args if _is_inner(e) else ():
                if a.dtype.is_int:
                    checked += [] if _may_overflow(a, e) else [a]
                    stack += [] if a in inner else [a]
                    inner.add(a)
        if not any((r := self.reaches.known[e]) is not None and leaves(r, e.dtype) for e in checked):
            return root
        new: dict[Expr, Expr] = {}
        for e in postorder([root]):
            if e not in inner:
                continue
            if isinstance(e, Const):
                new[e] = Const(e.value, dt.i64)
            elif _is_inner(e):
                new[e] = apply(e.fn, *(new[a] if a.dtype.is_int else a for a in e.args))
            else:
                new[e] = cast(e, dt.i64)
        return new[root]


def _is_inner(e: Expr) -> bool:
    return isinstance(e, Apply) and e.fn in _INTEGER and e.dtype.is_int


def _read_at(e: Expr) -> Read:
    """Return an arbitrary read at an index."""
    return Read(0, (e,), dt.f32)


def modulo(x: Expr, dtype: DType) -> Expr | None:
    """Return a sum or product of wider integers, computed in the narrower type that it is cast to; None for others."""
    if not isinstance(x, Apply) or x.fn not in _LINEAR or not x.dtype.is_int or x.dtype.bits <= dtype.bits:
        return None
    if dtype.in_memory_only:
        return None
    args: list[Expr] = []
    for a in x.args:
        inner = a.args[0] if isinstance(a, Apply) and a.fn == "cast" else a
        if isinstance(a, Const):
            args.append(Const(wrapped(to_whole(a.value), dtype.bits), dtype))
        else:
            args.append(inner if inner.dtype is dtype else cast(a, dtype))
    return apply(x.fn, *args)


def placed(body: Expr, axes: Mapping[int, Expr]) -> Expr:
    """Return the body with integer expressions in place of axes, in the dtype of the body.

    Where an int64 expression is combined with narrower integers, those are cast to int64.

    Args:
        body: an expression over axes
        axes: the integer expression that replaces each axis, by the axis's position
    """
    at = {d: cast(i, dt.i32) if i.dtype.bits < 32 else i for d, i in axes.items()}

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Axis):
            return at.get(e.position)
        if not isinstance(e, Apply) or not any(a.dtype is dt.i64 for a in e.args):
            return None
        if e.fn == "random_bits":
            return apply(e.fn, *(cast(a, dt.i32) for a in e.args))
        if e.fn not in (*_INTEGER, *_COMPARISONS):
            return None
        return apply(e.fn, *(cast(a, dt.i64) if a.dtype.is_int else a for a in e.args))

    return cast(rebuild([body], rule)[0], body.dtype)
