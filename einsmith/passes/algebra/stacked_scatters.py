"""Stack scatters of one index but for a literal position: one scatter runs over the positions, too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Piece,
    Reduce,
    Scatter,
    Tensor,
    apply,
    axes_of,
    read_whole,
)
from einsmith.ir.rebuild import prune_args, substitute, template_over
from einsmith.ir.rewrite.simplify import simplified
from einsmith.passes.algebra.piece_sums import absorb_producers
from einsmith.passes.context import PassContext

_MAX_POSITIONS = 16
"""Most positions that are stacked; each is a piece, which is compiled by itself."""


def stack_scatters(scatters: list[Compute], private: Collection[Tensor], context: PassContext) -> list[Compute]:
    """Return fewer scatters with the same sum, where their predicted time is lower; `scatters` itself if there are
    none. Each is the scatter alone, without a start."""
    if len(scatters) < 2 or not context.can_price:
        return scatters
    args: dict[Tensor, int] = {}
    own = [_renumber(s, args) for s in scatters]
    groups, d = min(((_group(own, d), d) for d in range(-1, len(scatters[0].shape))), key=lambda x: len(x[0]))
    out: list[Compute] = []
    for members in groups:
        separate = [scatters[n] for n in members]
        if len(members) > 1:
            runs = _stack([own[n] for n in members], d, scatters[0].shape, tuple(args), private)
            stacked = [s for s, _ in runs]
            after = [*stacked, *(v for _, v in runs if v is not None)]
            still_read = {a for x in after for a in x.args}
            producers = dict.fromkeys(a for s in separate for a in s.args if a in private and isinstance(a, Compute))
            before = [*separate, *(a for a in producers if a not in still_read)]
            separate = stacked if sum(map(context.price, after)) < sum(map(context.price, before)) else separate
        out += separate
    return out if len(out) < len(scatters) else scatters


def _renumber(node: Compute, args: dict[Tensor, int]) -> Scatter:
    """Return a node's scatter with slots that number all `args`, to which new ones are added."""
    slots = {s: args.setdefault(a, len(args)) for s, a in enumerate(node.args)}
    s = node.template.parts[-1]
    assert isinstance(s, Scatter)
    index = tuple(substitute(i, {}, slots) for i in s.index)
    return Scatter(s.combiner, s.extents, index, substitute(s.body, {}, slots))


def _group(scatters: Sequence[Scatter], d: int) -> list[list[int]]:
    """Return the numbers of scatters over the same points with the same index, but for a literal in dimension d."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for n, s in enumerate(scatters):
        index = tuple(None if k == d and isinstance(i, Const) else i for k, i in enumerate(s.index))
        groups[s.extents, index].append(n)
    return list(groups.values())


def _stack(
    scatters: Sequence[Scatter], d: int, shape: tuple[int, ...], args: tuple[Tensor, ...], private: Collection[Tensor]
) -> list[tuple[Compute, Compute | None]]:
    """Return (scatter, the values that it adds, if they are a tensor) for each run of equally distant positions."""
    bodies: dict[int, Expr] = {}
    for s in scatters:
        i = s.index[d] if d >= 0 else None
        at = int(i.value) if isinstance(i, Const) else 0
        bodies[at] = apply("add", bodies[at], s.body) if at in bodies else s.body
    return [
        _stack_run(scatters[0], d, {at: bodies[at] for at in run}, shape, args, private)
        for run in _find_runs([*bodies])
    ]


def _find_runs(positions: Sequence[int]) -> list[list[int]]:
    """Return positions as runs of equal distances."""
    runs: list[list[int]] = []
    for at in sorted(positions):
        run = runs[-1] if runs else []
        if not run or len(run) == _MAX_POSITIONS or (len(run) > 1 and at - run[-1] != run[1] - run[0]):
            runs.append([at])
        else:
            run.append(at)
    return runs


def _stack_run(
    first: Scatter,
    d: int,
    bodies: dict[int, Expr],
    shape: tuple[int, ...],
    args: tuple[Tensor, ...],
    private: Collection[Tensor],
) -> tuple[Compute, Compute | None]:
    """Return the scatter of values at positions of equal distances, and the tensor of values if there are several."""
    start, *rest = bodies
    if not rest:
        index = tuple(
            Const(start, i.dtype) if k == d and isinstance(i, Const) else i for k, i in enumerate(first.index)
        )
        return _scatter(shape, args, Scatter("sum", first.extents, index, bodies[start])), None
    # The new axis lies where the dimension does, so that the elements of a point are neighbours in memory.
    rank = len(first.extents)
    axis = min(axes_of(*first.index[d + 1 :]), default=rank)
    moved: dict[int, Expr] = {a: Axis(a + 1) for a in range(axis, rank)}
    extents, box = ((*first.extents[:axis], n, *first.extents[axis:]) for n in (len(bodies), 1))
    parts = tuple(
        Piece(tuple(k if a == axis else 0 for a in range(rank + 1)), (1,) * (rank + 1), box, substitute(body, moved))
        for k, body in enumerate(bodies.values())
    )
    values = prune_args(template_over(args, extents, parts), args)
    absorbed = absorb_producers(values, private)
    if len({isinstance(p.body, Reduce) for p in absorbed.template.parts}) == 1:
        values = absorbed
    values = simplified(values.template, values.args)
    at = LinearForm(start, {Axis(axis): rest[0] - start}).expr()
    index = tuple(at if k == d else substitute(i, moved) for k, i in enumerate(first.index))
    body = read_whole(len(args), extents, values.dtype)
    return _scatter(shape, (*args, values), Scatter("sum", extents, index, body)), values


def _scatter(shape: tuple[int, ...], args: tuple[Tensor, ...], scatter: Scatter) -> Compute:
    return simplified(template_over(args, shape, (scatter,)), args)
