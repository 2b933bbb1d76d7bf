"""Turn scatters into reductions: each output element combines the terms that fall on it.

Results are then equal in every run, and no two programs write one element.

before: out[ids[t], d] += x[t, d]                                             t < 20, d < 8
after:  out[v, d] = start[v, d] + sum[t](where(ids[t] == v, x[t, d], 0))      v < 100, d < 8

A scatter that keeps the largest or smallest becomes a max or min likewise.

An index that is an axis of its own is the output's axis, and is not searched for. Other indices are compared with
every element. The work is the number of terms times the number of elements they may fall on, which a sort of the terms
would save.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast as typed

from einsmith.base import dtypes as dt
from einsmith.ir.functions import COMBINING
from einsmith.ir.nodes import (
    Axis,
    Const,
    Expr,
    Piece,
    Reduce,
    Scatter,
    Template,
    apply,
    cast,
    read_whole,
    template,
)
from einsmith.ir.rebuild import substitute
from einsmith.schedule.kernel import Kernel, Stage


@lru_cache(maxsize=1024)
def scatter_to_reductions(kernel: Kernel) -> tuple[Kernel, ...]:
    """Turn a kernel whose root is a scatter into kernels whose roots are reductions, one for each piece of the initial
    value, which a stage combines with the reduction."""
    t = kernel.root
    *before, last = t.parts
    s = typed(Scatter, last)
    whole = Piece((0,) * t.rank, (1,) * t.rank, t.shape, Const(s.neutral, t.dtypes[0]))
    return tuple(_reduce_piece(kernel, s, typed(Piece, p)) for p in before or [whole])


def _reduce_piece(kernel: Kernel, s: Scatter, start: Piece) -> Kernel:
    first, t = kernel.stages[0], kernel.root
    places = [
        Axis(d) if (o, step) == (0, 1) else apply("add", apply("mul", Axis(d), _int(step)), _int(o))
        for d, (o, step) in enumerate(zip(start.offset, start.step, strict=True))
    ]
    total = Piece(start.offset, start.step, start.extents, _to_reduction(s, places, t.shape))
    root = Stage(Template(t.shape, t.params, (total,)), first.args, (None,))
    piece_axes: dict[int, Expr] = {
        d: apply("floordiv", apply("sub", Axis(d), _int(o)), _int(step))
        for d, (o, step) in enumerate(zip(start.offset, start.step, strict=True))
        if (o, step) != (0, 1)
    }
    (value,) = start.bodies
    total_read = read_whole(len(t.params), t.shape, t.dtypes[0])
    combined = apply(COMBINING[s.combiner], substitute(value, piece_axes), total_read)
    added = template(t.shape, (*t.params, (t.dtypes[0], t.shape)), combined)
    stages = [root, Stage(added, (*first.args, ("stage", 0, 0)), first.outputs)]
    for stage in kernel.stages[1:]:
        args = [("stage", x[1] + 1, x[2]) if x[0] == "stage" else x for x in stage.args]
        stages.append(Stage(stage.template, tuple(args), stage.outputs))
    return Kernel(tuple(stages), kernel.buffers, kernel.loop_invariant)


def _int(n: int) -> Const:
    return Const(n, dt.i32)


def _to_reduction(s: Scatter, places: Sequence[Expr], shape: tuple[int, ...]) -> Reduce:
    """Return the reduction of the terms that fall on an output element with index `places`. Axes of the scatter that
    are indices by themselves are axes of the output."""
    output_axes: dict[int, int] = {}
    for d, e in enumerate(s.index):
        if isinstance(e, Axis) and e.position not in output_axes:
            output_axes[e.position] = d
    reduced = [a for a in range(len(s.extents)) if a not in output_axes]
    axes: dict[int, Expr] = {a: places[d] for a, d in output_axes.items()}
    axes |= {a: Axis(len(shape) + n) for n, a in enumerate(reduced)}
    *index, body = (substitute(e, axes) for e in (*s.index, s.body))
    neutral = Const(s.neutral, body.dtype)
    for d, e in enumerate(index):
        if output_axes.get(getattr(s.index[d], "position", -1)) != d:
            body = apply("where", apply("eq", cast(e, dt.i64), cast(places[d], dt.i64)), body, neutral)
    for a, d in output_axes.items():
        if s.extents[a] < shape[d]:
            body = apply("where", apply("lt", places[d], _int(s.extents[a])), body, neutral)
    return Reduce(s.combiner, tuple(s.extents[a] for a in reduced), (body,))
