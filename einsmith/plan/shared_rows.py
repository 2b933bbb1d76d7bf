"""Special functions that several members of a Rows evaluate at the same points are evaluated once, into the scratch.

before: s[i] = sum[k](exp(x[i,k] - m[i]));  y[i,k] = exp(x[i,k] - m[i])/s[i]
after:  e[i,k] = exp(x[i,k] - m[i]);  s[i] = sum[k](e[i,k]);  y[i,k] = e[i,k]/s[i], e being local to the row

So is what stands under a condition that one of them chooses by: exp(where(k <= i, x[i,k], -inf) - m[i]) here is
exp(x[i,k] - m[i]) there where k <= i.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from einsmith.expr.nodes import Apply, Axis, Expr, Piece, Read, Template, postorder, reads, template
from einsmith.expr.rewrite.rebuild import map_bodies, rebuild
from einsmith.plan.kernel import Kernel, KernelBuffer, Member, Rows, Stage

_SPECIAL = {"exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "pow"}


class _Use(NamedTuple):
    """A subexpression of a stage, and its axes in the order of the tensor that might hold it."""

    member: int
    stage: int
    expr: Expr
    axes: tuple[Axis, ...]


class _Key(NamedTuple):
    """What a subexpression computes, whichever member it stands in: slots are buffers of the Rows."""

    expr: Expr
    extents: tuple[int, ...]
    by_row: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def shared(rows: Rows) -> Rows:
    """The Rows with what several members would evaluate in a member of its own; itself where there is no such."""
    while True:
        uses = _uses(rows)
        several = [k for k, found in uses.items() if len({u.member for u in found}) > 1]
        if not several:
            return rows
        best = max(several, key=lambda k: (sum(1 for _ in postorder([k.expr])), k.expr.digest))
        rows = _hoisted(rows, best, uses[best])


def _domain(t: Template) -> tuple[int, ...] | None:
    """The extents of all axes of a template of one whole piece."""
    part = t.parts[0]
    if len(t.parts) > 1 or not isinstance(part, Piece) or part.extents != t.shape:
        return None
    return part.domain


def _uses(rows: Rows) -> dict[_Key, list[_Use]]:
    """Every subexpression that might be evaluated once, with its places."""
    out: dict[_Key, list[_Use]] = defaultdict(list)
    guarded: list[tuple[_Key, _Use, Expr]] = []
    for m, member in enumerate(rows.members):
        for s, stage in enumerate(member.kernel.stages[:1] if member.reduces else member.kernel.stages):
            domain = _domain(stage.template)
            if domain is None:
                continue
            row = Axis(stage.template.rank if member.reduces else member.axis)
            bodies = stage.template.parts[0].bodies
            for e in _special(bodies):
                found = _key(member, stage, domain, row, e)
                if found is not None:
                    use = _Use(m, s, e, found[1])
                    out[found[0]].append(use)
                    guarded += [(found[0], use, _renamed(member, stage, found[1], c)) for c in _guards(bodies, e)]
    chosen = {(value, k.extents, c): k for k in out for c, value in _chosen(k.expr)}
    for key, use, c in guarded:
        whole = chosen.get((key.expr, key.extents, c))
        if whole is not None and use in out[key] and use not in out[whole]:
            out[whole].append(use)
            out[key].remove(use)
    return out


def _special(exprs: Sequence[Expr]) -> list[Apply]:
    return [e for e in postorder(exprs) if isinstance(e, Apply) and e.fn in _SPECIAL and e.dtype.is_float]


def _guards(bodies: Sequence[Expr], e: Expr) -> list[Expr]:
    """The conditions without which nothing in the bodies reads `e`."""
    wheres = [x for x in postorder(bodies) if isinstance(x, Apply) and x.fn == "where" and x is not e]
    conditions = dict.fromkeys(x.args[0] for x in wheres if e in postorder([x.args[1]]))
    return [c for c in conditions if e not in postorder(rebuild(bodies, partial(_without, c)))]


def _without(condition: Expr, x: Expr) -> Expr | None:
    """What a choice is where the condition does not hold."""
    return x.args[2] if isinstance(x, Apply) and x.fn == "where" and x.args[0] is condition else None


def _chosen(e: Expr) -> list[tuple[Expr, Expr]]:
    """The conditions of choices in an expression, with what it is where they hold."""
    conditions = dict.fromkeys(x.args[0] for x in postorder([e]) if isinstance(x, Apply) and x.fn == "where")
    return [(c, rebuild([e], partial(_taken, c))[0]) for c in conditions]


def _taken(condition: Expr, x: Expr) -> Expr | None:
    return x.args[1] if isinstance(x, Apply) and x.fn == "where" and x.args[0] is condition else None


def _key(
    member: Member, stage: Stage, domain: tuple[int, ...], row: Axis, e: Expr
) -> tuple[_Key, tuple[Axis, ...]] | None:
    """None where e reads other than whole dimensions by axes, or does not vary within the row."""
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
    return _Key(_renamed(member, stage, tuple(axes), e), extents, tuple(sorted(by_row.items()))), tuple(axes)


def _renamed(member: Member, stage: Stage, axes: tuple[Axis, ...], e: Expr) -> Expr:
    """The expression with `axes` numbered in their order and slots that are buffers of the Rows; those that are none,
    and other axes, keep away from these."""
    first = len(axes)

    def rule(x):
        if isinstance(x, Axis):
            return Axis(axes.index(x) if x in axes else first + x.position)
        if isinstance(x, Read):
            kind, *where = stage.args[x.slot]
            return Read(member.places[where[0]] if kind == "buffer" else -1 - x.slot, x.index, x.dtype)
        return None

    return rebuild([e], rule)[0]


def _hoisted(rows: Rows, key: _Key, uses: list[_Use]) -> Rows:
    """The Rows with one more member, which evaluates `key` into one more local buffer, and reads of that."""
    last = len(rows.buffers) + len(rows.local)
    held = KernelBuffer(key.expr.dtype, key.extents)
    found = [x for m in rows.members for x in zip(m.places, m.kernel.buffers, strict=True)]
    seen = {(place, b.shape): b.strides for place, b in found}
    dtypes = {place: b.dtype for place, b in found}
    by_row = dict(key.by_row)

    def view(x: Read) -> tuple[int, tuple[int, ...]]:
        """A buffer's place and the shape in which it is read: with axes of one, or without them, or both ways."""
        return x.slot, tuple(key.extents[i.position] for i in x.index if isinstance(i, Axis))

    views = sorted({view(x) for x in reads(key.expr)})
    (body,) = rebuild(
        [key.expr], lambda x: Read(views.index(view(x)), x.index, x.dtype) if isinstance(x, Read) else None
    )
    buffers = tuple(KernelBuffer(dtypes[p], shape, False, seen[p, shape]) for p, shape in views)
    t = template(key.extents, [(b.dtype, b.shape) for b in buffers], body)
    stage = Stage(t, tuple(("buffer", n) for n in range(len(views))), (len(views),))
    kernel = Kernel((stage,), (*buffers, held))
    made = Member(kernel, (*(p for p, _ in views), last), (*(by_row[p] for p, _ in views), 1), False)
    members = []
    for m, member in enumerate(rows.members):
        here = [u for u in uses if u.member == m]
        if here and made not in members:
            members.append(made)
        members.append(_reading(member, here, held, last) if here else member)
    return Rows(rows.rows, tuple(members), rows.buffers, (*rows.local, held))


def _reading(member: Member, uses: list[_Use], held: KernelBuffer, place: int) -> Member:
    """The member with one more buffer, read in the places of the uses."""
    kernel, last = member.kernel, len(member.kernel.buffers)
    stages = []
    for s, stage in enumerate(kernel.stages):
        found = {u.expr: u.axes for u in uses if u.stage == s}
        if found:
            t = stage.template
            new: dict = {e: Read(len(stage.args), axes, held.dtype) for e, axes in found.items()}
            params = (*t.params, (held.dtype, held.shape))
            t = map_bodies(t, partial(_exchanged, new), params)
            stage = Stage(t, (*stage.args, ("buffer", last)), stage.outputs)
        stages.append(stage)
    kernel = Kernel(tuple(stages), (*kernel.buffers, held))
    return Member(kernel, (*member.places, place), (*member.by_row, 1), member.reduces, member.axis)


def _exchanged(new: dict, body: Expr) -> Expr:
    """The body with some subexpressions exchanged."""
    return rebuild([body], lambda x: None, dict(new))[0]
