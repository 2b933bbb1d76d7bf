"""The kernels that a member of a Rows becomes: on a block of rows, before the first block and after the last one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from einsmith import dtypes as dt
from einsmith.expr.functions import COMBINING, identity
from einsmith.expr.nodes import Axis, Const, Expr, Piece, Read, Reduce, Template, apply, template
from einsmith.expr.rewrite.rebuild import map_bodies, rebuild
from einsmith.plan.kernel import Kernel, KernelBuffer, Member, Stage


@lru_cache(maxsize=1024)
def block_kernel(member: Member, count: int, block: int, local: int) -> Kernel:
    """The member's kernel on `count` rows that begin at a multiple of `block`; buffers of the Rows from `local` on hold
    just these rows. A reducing one adds to what has been found so far: its buffers are those in `inputs`, the results
    so far, and the new results, which may be the same memory. One that `uses_number` has one more buffer."""
    kernel = _accumulation(member, count) if member.reduces else _of_block(member, count, block, local)
    return _numbered(kernel, _row_axis(member)) if uses_number(member) else kernel


def _of_block(member: Member, count: int, block: int, local: int) -> Kernel:
    kernel = member.kernel
    buffers = tuple(
        _of_rows(b, axis - 1, count, block, place >= local) if axis else b
        for b, axis, place in zip(kernel.buffers, member.by_row, member.places, strict=True)
    )
    stages = [_on_rows(s, buffers, member.axis, count) for s in kernel.stages]
    return Kernel(tuple(stages), buffers)


def _of_rows(b: KernelBuffer, axis: int, count: int, block: int, local: bool) -> KernelBuffer:
    """The buffer from a block's first row on. Where other axes stand before the rows, what lies between its rows keeps
    its place, unless it is local."""
    # Stores may go past the caches only where every block of rows begins on a cache line.
    far = b.far and b.strides[axis] * b.dtype.itemsize * block % 64 == 0
    return KernelBuffer(b.dtype, _resized(b.shape, axis, count), far) if local else b.part(axis, count, far)


def _resized(shape: Sequence[int], axis: int, count: int) -> tuple[int, ...]:
    return (*shape[:axis], count, *shape[axis + 1 :])


def _on_rows(stage: Stage, buffers: Sequence[KernelBuffer], axis: int, count: int) -> Stage:
    """The stage with `count` rows in its output."""
    t = stage.template
    params = []
    for (dtype, shape), (kind, *where) in zip(t.params, stage.args, strict=True):
        params.append((dtype, buffers[where[0]].shape if kind == "buffer" else _resized(shape, axis, count)))
    parts = []
    for part in t.parts:
        assert isinstance(part, Piece)
        parts.append(Piece(part.offset, part.step, _resized(part.extents, axis, count), part.body))
    return Stage(Template(_resized(t.shape, axis, count), tuple(params), tuple(parts)), stage.args, stage.outputs)


def _row_axis(member: Member) -> int:
    """The axis of the root that is the row."""
    return member.kernel.root.rank if member.reduces else member.axis


def _uses(stage: Stage, row: int) -> bool:
    """Whether the row is used as a value: in an index it is nothing but the place in a buffer's own row."""
    todo = [b for part in stage.template.parts for b in part.bodies]
    seen = set(todo)
    while todo:
        e = todo.pop()
        if isinstance(e, Axis) and e.position == row:
            return True
        if not isinstance(e, Read):
            todo += [a for a in e.args if a not in seen]
            seen.update(e.args)
    return False


@lru_cache(maxsize=1024)
def uses_number(member: Member) -> bool:
    """Whether the member needs to know at which row a block begins."""
    stages = member.kernel.stages[:1] if member.reduces else member.kernel.stages
    return any(_uses(s, _row_axis(member)) for s in stages)


def _numbered(kernel: Kernel, row: int) -> Kernel:
    """The kernel of a block whose first row's number is in one more buffer."""
    stages = []
    for stage in kernel.stages:
        if _uses(stage, row):
            t, args = stage.template, (*stage.args, ("buffer", len(kernel.buffers)))
            t = map_bodies(t, partial(_shifted, row, len(stage.args)), (*t.params, (dt.i32, ())))
            stage = Stage(t, args, stage.outputs)
        stages.append(stage)
    return Kernel(tuple(stages), (*kernel.buffers, KernelBuffer(dt.i32, ())))


def _shifted(row: int, slot: int, body: Expr) -> Expr:
    """The body with what slot `slot` holds added to the row, wherever that is a value."""
    number = apply("add", Axis(row), Read(slot, (), dt.i32))

    def rule(e):
        if isinstance(e, Axis):
            return number if e.position == row else None
        if isinstance(e, Read) and number in e.index:
            return Read(e.slot, tuple(Axis(row) if i is number else i for i in e.index), e.dtype)
        return None

    return rebuild([body], rule)[0]


def inputs(member: Member) -> list[int]:
    """The buffers that the root of a reducing member reads, by number."""
    return list(dict.fromkeys(where[0] for _, *where in member.kernel.stages[0].args))


def partials(member: Member) -> list[KernelBuffer]:
    """What a reducing member's root makes."""
    root = member.kernel.root
    return [KernelBuffer(d, root.shape) for d in root.dtypes]


def _axes(rank: int) -> tuple[Axis, ...]:
    return tuple(map(Axis, range(rank)))


def _root(member: Member) -> Reduce:
    body = member.kernel.root.parts[0].body
    assert isinstance(body, Reduce)
    return body


def _accumulation(member: Member, count: int) -> Kernel:
    """total[j] = sum[i](f(i, j)) as new[j] = old[j] + sum[i](f(i, j)) over `count` rows i."""
    kernel, root, used = member.kernel, _root(member), inputs(member)
    sums = partials(member)
    buffers = [b.part(0, count, False) if member.by_row[n] else b for n in used for b in [kernel.buffers[n]]]
    t, stage = kernel.root, kernel.stages[0]
    args = tuple(("buffer", used.index(where[0])) for _, *where in stage.args)
    params = tuple((buffers[n].dtype, buffers[n].shape) for _, n in args)
    body = Reduce(root.combiner, (count, *root.extents[1:]), root.bodies)
    stages = [Stage(template(t.shape, params, body), args, (None,) * len(sums))]
    for m, x in enumerate(sums):
        old, new = (Read(slot, _axes(t.rank), x.dtype) for slot in (0, 1))
        total = template(t.shape, [(x.dtype, x.shape)] * 2, apply(COMBINING[root.combiner], old, new))
        stages.append(Stage(total, (("buffer", len(used) + m), ("stage", 0, m)), (len(used) + len(sums) + m,)))
    return Kernel(tuple(stages), (*buffers, *sums, *sums))


def _pointwise(shape: Sequence[int], bodies: Sequence[Expr], reads: Sequence[KernelBuffer]) -> Kernel:
    """One stage a body, each into a buffer of its own, over the same box; body m reads buffer m, if there are any."""
    stages = []
    for m, body in enumerate(bodies):
        params = [(reads[m].dtype, reads[m].shape)] if reads else []
        stages.append(Stage(template(shape, params, body), (("buffer", m),) if reads else (), (len(reads) + m,)))
    return Kernel(tuple(stages), (*reads, *(KernelBuffer(b.dtype, tuple(shape)) for b in bodies)))


def filled(member: Member) -> Kernel:
    """A reducing member's results before the first row."""
    bodies = [Const(identity(_root(member).combiner, x.dtype), x.dtype) for x in partials(member)]
    return _pointwise(member.kernel.root.shape, bodies, [])


def copied(member: Member) -> Kernel:
    """A reducing member's results, from here to there."""
    sums = partials(member)
    bodies = [Read(0, _axes(len(x.shape)), x.dtype) for x in sums]
    return _pointwise(member.kernel.root.shape, bodies, sums)


def merge(member: Member, tasks: int) -> tuple[Kernel, list[int]]:
    """A reducing member's kernel with the partial results of `tasks` tasks in the place of the rows, and which buffers
    of the Rows it has after those."""
    kernel, root, sums = member.kernel, _root(member), partials(member)
    t, count = kernel.root, len(sums)
    parts = [KernelBuffer(x.dtype, (tasks, *x.shape)) for x in sums]
    index = (Axis(t.rank), *_axes(t.rank))
    body = Reduce(root.combiner, (tasks,), tuple(Read(m, index, x.dtype) for m, x in enumerate(sums)))
    first = Stage(
        template(t.shape, [(x.dtype, x.shape) for x in parts], body),
        tuple(("buffer", m) for m in range(count)), kernel.stages[0].outputs,
    )  # fmt: skip
    used = [where[0] for s in kernel.stages[1:] for kind, *where in s.args if kind == "buffer"]
    used = list(dict.fromkeys([*used, *(n for s in kernel.stages for n in s.outputs if n is not None)]))
    stages = []
    for s in (first, *kernel.stages[1:]):
        args = s.args
        if s is not first:
            args = tuple((k, count + used.index(w[0])) if k == "buffer" else (k, *w) for k, *w in args)
        stages.append(Stage(s.template, args, tuple(None if n is None else count + used.index(n) for n in s.outputs)))
    buffers = (*parts, *(kernel.buffers[n] for n in used))
    return Kernel(tuple(stages), buffers), [member.places[n] for n in used]
