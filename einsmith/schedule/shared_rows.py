"""Eliminate common special functions in a row-block fusion: one that several members need is stored once in scratch.

before: s[i] = sum[k](exp(x[i,k] - m[i]));  y[i,k] = exp(x[i,k] - m[i])/s[i]
after:  e[i,k] = exp(x[i,k] - m[i]);  s[i] = sum[k](e[i,k]);  y[i,k] = e[i,k]/s[i], e being local to the row

Functions that agree under a condition are shared too: exp(where(k <= i, x[i,k], -inf) - m[i]) of one member serves a
use of exp(x[i,k] - m[i]) in another one that is read only where k <= i.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from einsmith.ir.functions import has_lanes
from einsmith.ir.nodes import Apply, Axis, Expr, Read, Template, postorder, reads, template
from einsmith.ir.rebuild import map_bodies, rebuild, types_of, whole_piece
from einsmith.schedule.kernel import Kernel, KernelBuffer, Member, Rows, Stage


class _Use(NamedTuple):
    """A use of a subexpression in a stage: numbers of the member and the stage, the subexpression, and its axes in the
    order of the tensor that would hold it."""

    member: int
    stage: int
    expr: Expr
    axes: tuple[Axis, ...]


class _Key(NamedTuple):
    """A subexpression in terms that do not depend on its member.

    Attributes:
        expr: the subexpression, its slots being buffers of the Rows, its axes numbered in the order of `extents`.
        extents: the extents of its axes, the row first.
        by_row: (buffer of the Rows, 1 + the axis of it that is the row; 0 if it has none) for each buffer it reads.
    """

    expr: Expr
    extents: tuple[int, ...]
    by_row: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def share(rows: Rows) -> Rows:
    """Return the Rows with common subexpressions evaluated by members of their own; `rows` itself if there are none."""
    while not rows.is_online:  # a running result differs from use to use
        uses = _uses(rows)
        several = [k for k, same in uses.items() if len({u.member for u in same}) > 1]
        if not several:
            return rows
        best = max(several, key=lambda k: (sum(1 for _ in postorder([k.expr])), k.expr.digest))
        rows = _hoist(rows, best, uses[best])
    return rows


def _domain(t: Template) -> tuple[int, ...] | None:
    """Return the extents of all axes of a template of one whole piece; None for other templates."""
    part = whole_piece(t)
    return None if part is None else part.domain


def _uses(rows: Rows) -> dict[_Key, list[_Use]]:
    """Return the uses of every subexpression that could be shared: of functions that several members evaluate."""
    stages = [
        (m, s, stage, domain, _special_functions(stage.template.parts[0].bodies))
        for m, member in enumerate(rows.members)
        for s, stage in enumerate(member.kernel.stages[:1] if member.reduces else member.kernel.stages)
        if (domain := _domain(stage.template)) is not None
    ]
    members_with: dict[str, set[int]] = defaultdict(set)
    for m, *_, functions in stages:
        for e in functions:
            members_with[e.fn].add(m)
    out: dict[_Key, list[_Use]] = defaultdict(list)
    guarded: list[tuple[_Key, _Use, Expr]] = []
    for m, s, stage, domain, functions in stages:
        member = rows.members[m]
        row = Axis(stage.template.rank if member.reduces else member.axis)
        bodies = stage.template.parts[0].bodies
        for e in functions:
            key_and_axes = _key(member, stage, domain, row, e) if len(members_with[e.fn]) > 1 else None
            if key_and_axes is not None:
                key, axes = key_and_axes
                use = _Use(m, s, e, axes)
                out[key].append(use)
                guarded += [(key, use, _rename(member, stage, axes, c)) for c in _guards(bodies, e)]
    by_branch = {(value, k.extents, c): k for k in out for c, value in _branches(k.expr)}
    for key, use, c in guarded:
        whole = by_branch.get((key.expr, key.extents, c))
        if whole is not None and use in out[key] and use not in out[whole]:
            out[whole].append(use)
            out[key].remove(use)
    return out


def _special_functions(exprs: Sequence[Expr]) -> list[Apply]:
    return [e for e in postorder(exprs) if isinstance(e, Apply) and has_lanes(e.fn) and e.dtype.is_float]


def _guards(bodies: Sequence[Expr], e: Expr) -> list[Expr]:
    """Return the conditions outside of which the bodies' values do not depend on `e`."""
    wheres = [x for x in postorder(bodies) if isinstance(x, Apply) and x.fn == "where" and x is not e]
    conditions = dict.fromkeys(x.args[0] for x in wheres if e in postorder([x.args[1]]))
    return [c for c in conditions if e not in postorder(rebuild(bodies, partial(_other_branch, c)))]


def _other_branch(condition: Expr, x: Expr) -> Expr | None:
    """Return the other side of a `where` on this condition (a `rebuild` rule); None for other nodes."""
    return x.args[2] if isinstance(x, Apply) and x.fn == "where" and x.args[0] is condition else None


def _branches(e: Expr) -> list[tuple[Expr, Expr]]:
    """Return the conditions of the `where`s in an expression, each with the expression's value where it holds."""
    conditions = dict.fromkeys(x.args[0] for x in postorder([e]) if isinstance(x, Apply) and x.fn == "where")
    return [(c, rebuild([e], partial(_chosen_branch, c))[0]) for c in conditions]


def _chosen_branch(condition: Expr, x: Expr) -> Expr | None:
    return x.args[1] if isinstance(x, Apply) and x.fn == "where" and x.args[0] is condition else None


def _key(
    member: Member, stage: Stage, domain: tuple[int, ...], row: Axis, e: Expr
) -> tuple[_Key, tuple[Axis, ...]] | None:
    """Return the key of a subexpression and its axes, the row first.

    None where e reads other than whole dimensions by axes, or does not vary within the row."""
    axes: dict[Axis, int] = {row: 0}
    by_row: dict[int, int] = {}
    for read in reads(e):
        kind, *where = stage.args[read.slot]
        if kind != "buffer":
            return None
        shape = member.kernel.buffers[where[0]].shape
        for i, n in zip(read.index, shape, strict=True):
            if not isinstance(i, Axis) or domain[i.position] != n:
                return None
            axes.setdefault(i, len(axes))
        by_row[member.places[where[0]]] = member.by_row[where[0]]
    inside = [x for r in reads(e) for x in r.index]
    free = [x for x in postorder([e]) if isinstance(x, Axis) and x not in inside]
    if len(axes) == 1 or free:
        return None

    extents = tuple(domain[a.position] for a in axes)
    return _Key(_rename(member, stage, tuple(axes), e), extents, tuple(sorted(by_row.items()))), tuple(axes)


def _rename(member: Member, stage: Stage, axes: tuple[Axis, ...], e: Expr) -> Expr:
    """Return the expression with `axes` numbered in their order, and slots numbered as buffers of the Rows.

    Other axes get higher numbers; slots that hold results of stages get negative ones."""
    first = len(axes)

    def rule(x):
        if isinstance(x, Axis):
            return Axis(axes.index(x) if x in axes else first + x.position)
        if isinstance(x, Read):
            kind, *where = stage.args[x.slot]
            return Read(member.places[where[0]] if kind == "buffer" else -1 - x.slot, x.index, x.dtype)
        return None

    return rebuild([e], rule)[0]


def _hoist(rows: Rows, key: _Key, uses: list[_Use]) -> Rows:
    """Return the Rows with one more member that evaluates `key` into a new local buffer, which replaces the uses."""
    last = len(rows.buffers) + len(rows.local)
    shared = KernelBuffer(key.expr.dtype, key.extents)
    placed_buffers = [x for m in rows.members for x in zip(m.places, m.kernel.buffers, strict=True)]
    strides_of = {(place, b.shape): b.strides for place, b in placed_buffers}
    dtypes = {place: b.dtype for place, b in placed_buffers}
    by_row = dict(key.by_row)

    def view(x: Read) -> tuple[int, tuple[int, ...]]:
        """Return a buffer's place and the shape in which it is read; a buffer may be read with or without unit axes."""
        return x.slot, tuple(key.extents[i.position] for i in x.index if isinstance(i, Axis))

    views = sorted({view(x) for x in reads(key.expr)})
    (body,) = rebuild(
        [key.expr], lambda x: Read(views.index(view(x)), x.index, x.dtype) if isinstance(x, Read) else None
    )
    buffers = tuple(KernelBuffer(dtypes[p], shape, False, strides_of[p, shape]) for p, shape in views)
    t = template(key.extents, types_of(buffers), body)
    stage = Stage(t, tuple(("buffer", n) for n in range(len(views))), (len(views),))
    kernel = Kernel((stage,), (*buffers, shared))
    evaluator = Member(kernel, (*(p for p, _ in views), last), (*(by_row[p] for p, _ in views), 1), False)
    members = []
    for m, member in enumerate(rows.members):
        here = [u for u in uses if u.member == m]
        if here and evaluator not in members:
            members.append(evaluator)
        members.append(_read_shared(member, here, shared, last) if here else member)
    return Rows(rows.rows, tuple(members), rows.buffers, (*rows.local, shared), rows.active)


def _read_shared(member: Member, uses: list[_Use], shared: KernelBuffer, place: int) -> Member:
    """Return the member with one more buffer, which is read in place of the uses."""
    kernel, last = member.kernel, len(member.kernel.buffers)
    stages = []
    for s, stage in enumerate(kernel.stages):
        axes_of = {u.expr: u.axes for u in uses if u.stage == s}
        if axes_of:
            t = stage.template
            new: dict = {e: Read(len(stage.args), axes, shared.dtype) for e, axes in axes_of.items()}
            params = (*t.params, (shared.dtype, shared.shape))
            t = map_bodies(t, partial(_substitute, new), params)
            stage = Stage(t, (*stage.args, ("buffer", last)), stage.outputs)
        stages.append(stage)
    kernel = Kernel(tuple(stages), (*kernel.buffers, shared))
    return Member(kernel, (*member.places, place), (*member.by_row, 1), member.reduces, member.axis)


def _substitute(new: dict, body: Expr) -> Expr:
    """Return the body with each subexpression that is a key of `new` replaced by its value there."""
    return rebuild([body], lambda x: None, dict(new))[0]
