"""Derive the kernels that run a member of a row-block fusion: on a block, before the first and after the last block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod

from einsmith.base import dtypes as dt
from einsmith.ir.functions import COMBINING, identity
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Piece, Read, Reduce, Template, apply, template
from einsmith.ir.rebuild import map_bodies, rebuild, types_of
from einsmith.schedule.kernel import Follow, Kernel, KernelBuffer, LimitedKernel, Member, Stage, limits_of, row_major

NO_RESULT = -1.0
"""Factor of a sum so far that has followed a running result without any value: negative, as none of exp is."""


@lru_cache(maxsize=1024)
def block_kernel(member: Member, count: int, block: int, local: int, turned: bool = False) -> Kernel:
    """Return the member's kernel on `count` rows that begin at a multiple of `block`.

    Buffers of the Rows from number `local` on hold only these rows, which are their last dimension in memory if
    `turned`. The kernel of a reducing member accumulates: its
    buffers are those in `inputs`, the results so far, and the new results, which may be the same memory. The kernel of
    a member that `uses_number` has one more buffer, with the number of the block's first row."""
    kernel = (
        _accumulation(member, count, block, local, turned)
        if member.reduces
        else _restrict_to_block(member, count, block, local, turned)
    )
    return _add_block_number(kernel, member) if uses_number(member) else kernel


def _restrict_to_block(member: Member, count: int, block: int, local: int, turned: bool) -> Kernel:
    kernel = member.kernel
    buffers = tuple(
        _restrict_buffer(b, axis - 1, count, block, place >= local, turned) if axis else b
        for b, axis, place in zip(kernel.buffers, member.by_row, member.places, strict=True)
    )
    stages = [_restrict_stage(s, buffers, member.axis, count) for s in kernel.stages]
    return _like(kernel, stages, buffers)


def _like(kernel: Kernel, stages: Sequence[Stage], buffers: tuple[KernelBuffer, ...]) -> Kernel:
    """Return the kernel of other stages and buffers, with the limit of `kernel` where that has one."""
    if isinstance(kernel, LimitedKernel):
        return LimitedKernel(tuple(stages), buffers, limits=kernel.limits, is_short=kernel.is_short)
    return Kernel(tuple(stages), buffers)


def _restrict_buffer(b: KernelBuffer, axis: int, count: int, block: int, local: bool, turned: bool) -> KernelBuffer:
    """Return the buffer restricted to a block's rows: a strided view, or a dense tensor if the buffer is local."""
    # Stores may be non-temporal only where every block of rows begins on a cache line.
    non_temporal = b.non_temporal and b.strides[axis] * b.dtype.itemsize * block % 64 == 0
    if not local:
        return b.part(axis, count, non_temporal)
    shape = _resize(b.shape, axis, count)
    strides = None
    if turned:
        others = row_major(_resize(b.shape, axis, 1))
        strides = tuple(1 if d == axis else count * s for d, s in enumerate(others))
    return KernelBuffer(b.dtype, shape, non_temporal, strides)


def _resize(shape: Sequence[int], axis: int, count: int) -> tuple[int, ...]:
    return (*shape[:axis], count, *shape[axis + 1 :])


def _restrict_stage(stage: Stage, buffers: Sequence[KernelBuffer], axis: int, count: int) -> Stage:
    """Return the stage with `count` rows along `axis` of its output."""
    t = stage.template
    params = []
    for (dtype, shape), (kind, *where) in zip(t.params, stage.args, strict=True):
        params.append((dtype, buffers[where[0]].shape if kind == "buffer" else _resize(shape, axis, count)))
    parts = []
    for part in t.parts:
        assert isinstance(part, Piece)
        parts.append(Piece(part.offset, part.step, _resize(part.extents, axis, count), part.body))
    return Stage(Template(_resize(t.shape, axis, count), tuple(params), tuple(parts)), stage.args, stage.outputs)


def _row_axis(member: Member) -> int:
    """Return the axis of the root that is the row."""
    return member.kernel.root.rank if member.reduces else member.axis


def _row_dims(stage: Stage, by_row: Sequence[int], axis: int) -> list[int]:
    """Return the dimension of each slot whose index is the row axis itself; -1 where there is none."""
    return [by_row[where[0]] - 1 if kind == "buffer" else axis for kind, *where in stage.args]


def _uses(stage: Stage, row: int, dims: Sequence[int]) -> bool:
    """Return whether a stage uses the row axis as a value; in dimension `dims[slot]` of a slot it only selects a
    buffer's own row."""
    todo = [b for part in stage.template.parts for b in part.bodies]
    seen = set(todo)
    while todo:
        e = todo.pop()
        if isinstance(e, Axis) and e.position == row:
            return True
        args = [i for d, i in enumerate(e.index) if d != dims[e.slot]] if isinstance(e, Read) else e.args
        todo += [a for a in args if a not in seen]
        seen.update(args)
    return False


@lru_cache(maxsize=1024)
def uses_number(member: Member) -> bool:
    """Return whether the member needs the number of a block's first row."""
    if finds_position(member):
        return True
    stages = member.kernel.stages[:1] if member.reduces else member.kernel.stages
    return any(_uses(s, _row_axis(member), _row_dims(s, member.by_row, member.axis)) for s in stages)


def _add_block_number(kernel: Kernel, member: Member) -> Kernel:
    """Return a member's kernel on a block with one more buffer, the number of the block's first row, added where the
    row is a value."""
    row, stages = _row_axis(member), []
    if member.reduces:
        by_row = [*(member.by_row[n] for n in inputs(member)), *(0 for _ in kernel.buffers)]
    else:
        by_row = [*member.by_row]
    for n, stage in enumerate(kernel.stages):
        dims = _row_dims(stage, by_row, member.axis)
        if (n == 0 or not member.reduces) and _uses(stage, row, dims):
            t, args = stage.template, (*stage.args, ("buffer", len(kernel.buffers)))
            t = map_bodies(t, partial(_shift, row, len(stage.args), dims), (*t.params, (dt.i32, ())))
            stage = Stage(t, args, stage.outputs)
        stages.append(stage)
    return _like(kernel, stages, (*kernel.buffers, KernelBuffer(dt.i32, ())))


def _shift(row: int, slot: int, dims: Sequence[int], body: Expr) -> Expr:
    """Return the body with the value of slot `slot` added to the row axis wherever it is a value, not the index of
    dimension `dims[slot]`."""
    number = apply("add", Axis(row), Read(slot, (), dt.i32))

    def rule(e):
        if isinstance(e, Axis):
            return number if e.position == row else None
        if isinstance(e, Read) and e.slot != slot and dims[e.slot] >= 0 and e.index[dims[e.slot]] is number:
            index = (*e.index[: dims[e.slot]], Axis(row), *e.index[dims[e.slot] + 1 :])
            return Read(e.slot, index, e.dtype)
        return None

    return rebuild([body], rule)[0]


def finds_position(member: Member) -> bool:
    """Return whether the member reduces to the position of the largest or the smallest value."""
    return member.reduces and _root(member).combiner.startswith("arg")


def inputs(member: Member) -> list[int]:
    """Return the numbers of the buffers that the root of a reducing member reads, and of its limits."""
    read = (where[0] for _, *where in member.kernel.stages[0].args)
    return list(dict.fromkeys((*read, *limits_of(member.kernel).values())))


def combiner_of(member: Member) -> str:
    """Return the combiner of a reducing member."""
    return _root(member).combiner


def partials(member: Member) -> list[KernelBuffer]:
    """Return the buffers of a reducing member's partial results, one per result of its root."""
    root = member.kernel.root
    return [KernelBuffer(d, root.shape) for d in root.dtypes]


def _axes(rank: int) -> tuple[Axis, ...]:
    return tuple(map(Axis, range(rank)))


def _root(member: Member) -> Reduce:
    body = member.kernel.root.parts[0].body
    assert isinstance(body, Reduce)
    return body


def _accumulation(member: Member, count: int, block: int, local: int, turned: bool) -> Kernel:
    """Return the kernel that accumulates over `count` rows: total[j] = sum[i](f(i, j)) becomes
    new[j] = old[j] + sum[i](f(i, j))."""
    kernel, root, used = member.kernel, _root(member), inputs(member)
    sums = partials(member)
    buffers = [
        _restrict_buffer(kernel.buffers[n], axis - 1, count, block, member.places[n] >= local, turned)
        if (axis := member.by_row[n])
        else kernel.buffers[n]
        for n in used
    ]
    t, stage = kernel.root, kernel.stages[0]
    args = tuple(("buffer", used.index(where[0])) for _, *where in stage.args)
    params = tuple((buffers[n].dtype, buffers[n].shape) for _, n in args)
    body = Reduce(root.combiner, (count, *root.extents[1:]), root.bodies)
    stages = [Stage(template(t.shape, params, body), args, (None,) * len(sums))]
    read: tuple[tuple, ...]
    # The order of the buffers is that of `row_nests.block_kernels`: operands, results so far, new results, correction,
    # number of the block's first row.
    before, after = len(used), len(used) + len(sums)
    last = ("buffer", after + len(sums))  # the correction; without one, the number, which `_add_block_number` adds
    old_places = [("buffer", before + m) for m in range(len(sums))]
    if finds_position(member):
        value, place = (x.dtype for x in sums)
        shapes = [(x.dtype, x.shape) for x in (sums[0], sums[0], sums[1], sums[1])]
        old, new, old_place, new_place = (Read(n, _axes(t.rank), d) for n, d in enumerate((value, value, place, place)))
        is_better = _is_better(root.combiner, new, old)
        first = apply("mul", Read(4, (), place), Const(prod(root.extents[1:]), place))
        read = (old_places[0], ("stage", 0, 0), old_places[1], ("stage", 0, 1), last)
        best = template(t.shape, shapes[:2], apply("where", is_better, new, old))
        at = apply("where", is_better, apply("add", first, new_place), old_place)
        stages.append(Stage(best, read[:2], (after,)))
        stages.append(Stage(template(t.shape, [*shapes, (place, ())], at), read, (after + 1,)))
        return Kernel(tuple(stages), (*buffers, *sums, *sums))
    follows = member.follows
    corrections = [] if follows is None else [follows.correction]
    for m, x in enumerate(sums):
        old, new = (Read(slot, _axes(t.rank), x.dtype) for slot in (0, 1))
        read = (old_places[m], ("stage", 0, m), *([last] if corrections else []))
        kept: Expr = old
        if follows is not None:
            correction = Read(2, follows.index, follows.buffer.dtype)
            kept = apply("add", old, correction) if follows.is_mean else scale(old, correction)
        shapes = [(y.dtype, y.shape) for y in (x, x, *corrections)]
        total = template(t.shape, shapes, apply(COMBINING[root.combiner], kept, new))
        stages.append(Stage(total, read, (after + m,)))
    limits = tuple((a, used.index(n)) for a, n in limits_of(kernel).items())
    every = (*buffers, *sums, *sums, *corrections)
    return LimitedKernel(tuple(stages), every, limits=limits) if limits else Kernel(tuple(stages), every)


def _is_better(combiner: str, x: Expr, best: Expr) -> Expr:
    """Return whether x replaces an earlier `best`: it is strictly better, or the first NaN."""
    a, b = (x, best) if combiner == "argmax" else (best, x)
    if not x.dtype.is_float:
        return apply("lt", b, a)
    return apply("and", apply("not", apply("le", a, b)), apply("eq", best, best))


def _pointwise(shape: Sequence[int], bodies: Sequence[Expr], reads: Sequence[KernelBuffer]) -> Kernel:
    """Return a kernel of one pointwise stage per body over one box, each with an output buffer of its own.

    Body m reads buffer m of `reads`, if there are any."""
    stages = []
    for m, body in enumerate(bodies):
        params = [(reads[m].dtype, reads[m].shape)] if reads else []
        stages.append(Stage(template(shape, params, body), (("buffer", m),) if reads else (), (len(reads) + m,)))
    return Kernel(tuple(stages), (*reads, *(KernelBuffer(b.dtype, tuple(shape)) for b in bodies)))


def fill_kernel(member: Member) -> Kernel:
    """Return the kernel that fills a reducing member's results with the combiner's identity, before the first row."""
    values = [identity(_root(member).combiner, x.dtype) for x in partials(member)]
    if finds_position(member):
        values[1] = 0
    bodies = [Const(v, x.dtype) for v, x in zip(values, partials(member), strict=True)]
    return _pointwise(member.kernel.root.shape, bodies, [])


def copy_kernel(buffers: Sequence[KernelBuffer]) -> Kernel:
    """Return the kernel that copies dense buffers of one shape to others."""
    return _pointwise(buffers[0].shape, [Read(0, _axes(len(x.shape)), x.dtype) for x in buffers], buffers)


def save_kernel(reducer: Member, follow: Follow) -> Kernel:
    """Return the kernel that copies a reducing member's result so far, and what its later stages made of it."""
    return copy_kernel([partials(reducer)[0], follow.buffer])


def _factor(combiner: str, total: Expr, before: Expr, after: Expr) -> Expr:
    """Return the factor of sums that follow a running result: exp(before - after) for a maximum; `NO_RESULT` where the
    result so far, `total`, is the combiner's identity.

    A result that stays changes no sum, even where it is infinite: of a row of minus infinities, a sum of terms
    exp(-inf - -inf) stays no number, and one whose terms the formula guards stays 0."""
    none = apply("eq", total, Const(identity(combiner, total.dtype), total.dtype))
    change = apply("sub", before, after) if combiner == "max" else apply("sub", after, before)
    factor = apply("where", none, Const(NO_RESULT, before.dtype), apply("exp", change))
    return apply("where", apply("eq", before, after), Const(1.0, before.dtype), factor)


def _increase(before: Expr, after: Expr, number: Expr) -> Expr:
    """Return what a sum of squared deviations of `number` values grows by where their mean changes:
    number*(before - after)**2; the first mean replaces none."""
    change, count, zero = apply("sub", before, after), Apply("cast", (number,), before.dtype), Const(0.0, before.dtype)
    more = apply("mul", count, apply("mul", change, change))
    return apply("where", apply("eq", count, zero), zero, more)


def scale(x: Expr, factor: Expr) -> Expr:
    """Return a sum so far times a factor, which is of the running result's type, as the exponentials are that the sum
    is of. One whose running result was the identity may be no number; it is left out."""
    none = apply("lt", factor, Const(0.0, factor.dtype))
    factor = factor if factor.dtype == x.dtype else Apply("cast", (factor,), x.dtype)
    return apply("where", none, Const(0.0, x.dtype), apply("mul", x, factor))


def correction_kernel(reducer: Member, follow: Follow) -> Kernel:
    """Return the kernel of the correction of sums that follow a running result, for each point of the result. Its
    buffers are the copies of `save_kernel`, the new result, and the correction, before which, for a mean, the number of
    the block's first row comes."""
    x = follow.correction
    operands = [partials(reducer)[0], x, follow.buffer, *([KernelBuffer(dt.i32, ())] if follow.is_mean else [])]
    total, before, after, *number = (Read(n, _axes(len(y.shape)), y.dtype) for n, y in enumerate(operands))
    body = _increase(before, after, *number) if number else _factor(_root(reducer).combiner, total, before, after)
    t = template(x.shape, types_of(operands), body)
    stage = Stage(t, tuple(("buffer", n) for n in range(len(operands))), (len(operands),))
    return Kernel((stage,), (*operands, x))


def stage_apart(count: int, n: int, result: int) -> tuple:
    """Return the reference to a result of stage n after the first stage became `count` stages, one for each of its
    results."""
    return ("stage", n + count - 1, result) if n else ("stage", result, 0)


def _of_tasks(x: KernelBuffer, tasks: int) -> KernelBuffer:
    """Return the buffer of one dense buffer for each task."""
    return KernelBuffer(x.dtype, (tasks, *x.shape))


def merge_positions(member: Member, tasks: int) -> tuple[Kernel, Kernel]:
    """Return the kernels that merge the partial results of `tasks` tasks of a member that finds positions: the best
    value, from the values, [tasks, ...]; the first position of it, from the values, the best one, and the positions. A
    value that is no number is the best one."""
    t, (value, place) = member.kernel.root, partials(member)
    values, places = _of_tasks(value, tasks), _of_tasks(place, tasks)
    index = (Axis(t.rank), *_axes(t.rank))
    combiner = _root(member).combiner.removeprefix("arg")
    read = Read(0, index, value.dtype)
    best = template(t.shape, [(values.dtype, values.shape)], Reduce(combiner, (tasks,), (read,)))
    is_best = apply("eq", read, Read(1, _axes(t.rank), value.dtype))
    if value.dtype.is_float:
        is_best = apply("or", is_best, apply("ne", read, read))
    none = Const(identity("min", place.dtype), place.dtype)
    at = Reduce("min", (tasks,), (apply("where", is_best, Read(2, index, place.dtype), none),))
    first = template(t.shape, types_of((values, value, places)), at)
    return (
        Kernel((Stage(best, (("buffer", 0),), (1,)),), (values, value)),
        Kernel((Stage(first, tuple(("buffer", n) for n in range(3)), (3,)),), (values, value, places, place)),
    )


def mean_kernel(member: Member, count: int) -> tuple[Kernel, list[int]]:
    """Return the kernel that makes the mean so far of the sum so far, after a block of `count` rows.

    Its buffers are the sum, the number of the block's first row, then buffers of the Rows, whose numbers are returned
    too."""
    (total,), (_, stage) = partials(member), member.kernel.stages
    rows = _root(member).extents[0]
    so_far = Apply("cast", (apply("add", Read(1, (), dt.i32), Const(count, dt.i32)),), total.dtype)
    # The stage divides by the number of all rows; after the last block this factor is 1.
    more = apply("div", Const(float(rows), total.dtype), so_far)
    whole = apply("mul", Read(0, _axes(len(total.shape)), total.dtype), more)
    number = KernelBuffer(dt.i32, ())
    scaled = template(total.shape, types_of((total, number)), whole)
    place = stage.outputs[0]
    assert place is not None
    kernel = Kernel(
        (Stage(scaled, (("buffer", 0), ("buffer", 1)), (None,)), Stage(stage.template, (("stage", 0, 0),), (2,))),
        (total, number, member.kernel.buffers[place]),
    )
    return kernel, [member.places[place]]


def merge(member: Member, tasks: int, reducer: Member | None = None) -> tuple[Kernel, list[int]]:
    """Return the kernel that merges the partial results of `tasks` tasks, one for positions, and runs the stages after
    the reduction.

    Its buffers are the partial results, [tasks, ...] each, then buffers of the Rows, whose numbers are returned too.
    After the partial results of a sum that follows a running result, that of member `reducer`, come, of this result:
    its partial results, what the tasks made of them, [tasks, ...] each, and what was made of the merged one."""
    kernel, root, sums = member.kernel, _root(member), partials(member)
    t, count, outputs = kernel.root, len(sums), kernel.stages[0].outputs
    if finds_position(member):
        parts = sums
        first = [
            Stage(template(t.shape, [(x.dtype, x.shape)], Read(0, _axes(t.rank), x.dtype)), (("buffer", m),), (out,))
            for m, (x, out) in enumerate(zip(sums, outputs, strict=True))
        ]
    else:
        parts = [_of_tasks(x, tasks) for x in sums]
        index = (Axis(t.rank), *_axes(t.rank))
        bodies: list[Expr] = [Read(m, index, x.dtype) for m, x in enumerate(sums)]
        if reducer is not None and member.follows is not None:
            x, own = member.follows.correction, (Axis(t.rank), *member.follows.index)
            operands = [_of_tasks(partials(reducer)[0], tasks), _of_tasks(x, tasks), member.follows.buffer]
            places = own, own, own[1:]
            reads = [Read(count + n, places[n], y.dtype) for n, y in enumerate(operands)]
            bodies = [scale(b, _factor(_root(reducer).combiner, *reads)) for b in bodies]
            parts, count = [*parts, *operands], count + len(operands)
        whole = template(t.shape, types_of(parts), Reduce(root.combiner, (tasks,), tuple(bodies)))
        first = [Stage(whole, tuple(("buffer", m) for m in range(count)), outputs)]

    def place_of(kind: str, n: int, *result: int) -> tuple:
        """Return an argument of a later stage of the member in the new kernel."""
        if kind == "buffer":
            return kind, count + used.index(n)
        return stage_apart(len(first), n, *result) if len(first) > 1 else (kind, n, *result)

    used = [where[0] for s in kernel.stages[1:] for kind, *where in s.args if kind == "buffer"]
    used = list(dict.fromkeys([*used, *kernel.outputs]))
    stages = []
    for s in (*first, *kernel.stages[1:]):
        args = s.args if s in first else tuple(place_of(*x) for x in s.args)
        stages.append(Stage(s.template, args, tuple(None if n is None else count + used.index(n) for n in s.outputs)))
    buffers = (*parts, *(kernel.buffers[n] for n in used))
    return Kernel(tuple(stages), buffers), [member.places[n] for n in used]
