"""Kernels that share their rows, run block of rows by block of rows in one launch.

Every member is lowered by its own pattern, on a block's shape and for one core; a task runs them in order on one block
after the other. What is local to a row lies in the thread's scratch, so it stays in the cache, as does what several
members read. A member that reduces over the rows leaves one partial result a task, and another launch adds them. One
that uses the number of its row adds that of the block's first row, which it reads, to its place in the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, NamedTuple

from einsmith import dtypes as dt
from einsmith.expr.kernel import Buffer, Kernel, Member, Rows, Stage
from einsmith.expr.nodes import Axis, Const, Expr, Piece, Read, Reduce, Template, apply, size, template
from einsmith.expr.rewrite import map_bodies, rebuild
from einsmith.kernels import boxes as bx
from einsmith.kernels.combine import identity
from einsmith.kernels.kernel import Cost, Launch, Lowered
from einsmith.kernels.pointwise import SMALL_SECONDS, TASK_SECONDS
from einsmith.kernels.rows_share import shared
from einsmith.kernels.touched import touched
from einsmith.loops.nest import Builder, Function, Value, elem_of
from einsmith.loops.splice import splice
from einsmith.target.facts import Target

_MERGES = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
BLOCK_SECONDS = 1e-8
"""What a member's code takes to begin on a block."""
ROW_SHARE = 0.95
"""The least part of the time that a row takes in a larger block: that has fewer ends, but not all vectors are full."""
Known = dict[Member, tuple[int, Cost]]
"""Rows of the largest block that members have been looked at in, and what they cost there."""


class RowsConfig(NamedTuple):
    """block: rows that the members run on at a time; tasks: runs of blocks that may be done at once; share: what
    several members would evaluate is evaluated once, into the scratch."""

    block: int
    tasks: int
    share: bool = False


def _bytes(b: Buffer) -> int:
    return prod(b.shape) * b.dtype.itemsize


def row_bytes(rows: Rows) -> int:
    """Bytes of one row of everything that has rows."""
    found: dict[int, Buffer] = {}
    for m in rows.members:
        found |= {place: b for place, b, by_row in zip(m.places, m.kernel.buffers, m.by_row, strict=True) if by_row}
    return max(1, sum(_bytes(b) // rows.rows for b in found.values()))


def _block_bytes(rows: Rows, member: Member, block: int) -> float:
    """Bytes of a member's buffers in a block of rows."""
    return sum(
        _bytes(b) * (block / rows.rows if axis else 1)
        for b, axis in zip(member.kernel.buffers, member.by_row, strict=True)
    )


def _divisor(n: int, most: int) -> int:
    """The largest divisor of n that is at most `most`, if that is more than half of it; else `most`."""
    return next((d for d in range(most, most // 2, -1) if n % d == 0), most)


@cache
def _one_core(target: Target) -> Target:
    return replace(target, cores=1)


@lru_cache(maxsize=1024)
def block_kernel(member: Member, count: int, block: int, local: int) -> Kernel:
    """The member's kernel on `count` rows that begin at a multiple of `block`; buffers of the Rows from `local` on hold
    just these rows. A reducing one adds to what has been found so far: its buffers are those in `_inputs`, the results
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


def _of_rows(b: Buffer, axis: int, count: int, block: int, local: bool) -> Buffer:
    """The buffer from a block's first row on. Where other axes stand before the rows, what lies between its rows keeps
    its place, unless it is local."""
    shape = _resized(b.shape, axis, count) if axis == 0 or local else b.shape
    # Stores may go past the caches only where every block of rows begins on a cache line.
    return Buffer(b.dtype, shape, b.far and size(b.shape[axis + 1 :]) * b.dtype.itemsize * block % 64 == 0)


def _resized(shape: Sequence[int], axis: int, count: int) -> tuple[int, ...]:
    return (*shape[:axis], count, *shape[axis + 1 :])


def _on_rows(stage: Stage, buffers: Sequence[Buffer], axis: int, count: int) -> Stage:
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
    return Kernel(tuple(stages), (*kernel.buffers, Buffer(dt.i32, ())))


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


def _inputs(member: Member) -> list[int]:
    """The buffers that the root of a reducing member reads, by number."""
    return list(dict.fromkeys(where[0] for _, *where in member.kernel.stages[0].args))


def _partials(member: Member) -> list[Buffer]:
    """What a reducing member's root makes."""
    root = member.kernel.root
    return [Buffer(d, root.shape) for d in root.dtypes]


def _axes(rank: int) -> tuple[Axis, ...]:
    return tuple(map(Axis, range(rank)))


def _root(member: Member) -> Reduce:
    body = member.kernel.root.parts[0].body
    assert isinstance(body, Reduce)
    return body


def _accumulation(member: Member, count: int) -> Kernel:
    """total[j] = sum[i](f(i, j)) as new[j] = old[j] + sum[i](f(i, j)) over `count` rows i."""
    kernel, root, used = member.kernel, _root(member), _inputs(member)
    sums = _partials(member)
    buffers = [
        Buffer(b.dtype, (count, *b.shape[1:])) if member.by_row[n] else b for n in used for b in [kernel.buffers[n]]
    ]
    t, stage = kernel.root, kernel.stages[0]
    args = tuple(("buffer", used.index(where[0])) for _, *where in stage.args)
    params = tuple((buffers[n].dtype, buffers[n].shape) for _, n in args)
    body = Reduce(root.combiner, (count, *root.extents[1:]), root.bodies)
    stages = [Stage(template(t.shape, params, body), args, (None,) * len(sums))]
    for m, x in enumerate(sums):
        old, new = (Read(slot, _axes(t.rank), x.dtype) for slot in (0, 1))
        total = template(t.shape, [(x.dtype, x.shape)] * 2, apply(_MERGES[root.combiner], old, new))
        stages.append(Stage(total, (("buffer", len(used) + m), ("stage", 0, m)), (len(used) + len(sums) + m,)))
    return Kernel(tuple(stages), (*buffers, *sums, *sums))


def _pointwise(shape: Sequence[int], bodies: Sequence[Expr], reads: Sequence[Buffer]) -> Kernel:
    """One stage a body, each into a buffer of its own, over the same box; body m reads buffer m, if there are any."""
    stages = []
    for m, body in enumerate(bodies):
        params = [(reads[m].dtype, reads[m].shape)] if reads else []
        stages.append(Stage(template(shape, params, body), (("buffer", m),) if reads else (), (len(reads) + m,)))
    return Kernel(tuple(stages), (*reads, *(Buffer(b.dtype, tuple(shape)) for b in bodies)))


def _filled(member: Member) -> Kernel:
    """A reducing member's results before the first row."""
    bodies = [Const(identity(_root(member).combiner, x.dtype), x.dtype) for x in _partials(member)]
    return _pointwise(member.kernel.root.shape, bodies, [])


def _copied(member: Member) -> Kernel:
    """A reducing member's results, from here to there."""
    sums = _partials(member)
    bodies = [Read(0, _axes(len(x.shape)), x.dtype) for x in sums]
    return _pointwise(member.kernel.root.shape, bodies, sums)


def _merge(member: Member, tasks: int) -> tuple[Kernel, list[int]]:
    """A reducing member's kernel with the partial results of `tasks` tasks in the place of the rows, and which buffers
    of the Rows it has after those."""
    kernel, root, sums = member.kernel, _root(member), _partials(member)
    t, count = kernel.root, len(sums)
    parts = [Buffer(x.dtype, (tasks, *x.shape)) for x in sums]
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


class _Blocks:
    """One Rows in one configuration, to be predicted."""

    def __init__(self, rows: Rows, config: RowsConfig, target: Target):
        self.rows = rows = shared(rows) if config.share else rows
        self.config, self.target, self.one = config, target, _one_core(target)
        self.blocks = rows.rows / config.block
        sizes = [whole + by_row / self.blocks for whole, by_row in map(_touched, rows.members)]
        self.memory = [self.one.seconds_for_bytes(n, n, 1) for n in sizes]

    def least(self, known: Known) -> list[float]:
        """Seconds that each member takes at least, for all blocks: every byte of a block is read or written, and rows
        of all members take no less than ROW_SHARE of their time in a larger block, where that is known."""
        out = []
        for member, memory in zip(self.rows.members, self.memory, strict=True):
            each = memory
            if self.is_bounded(member, known):
                block, cost = known[member]
                part = self.config.block / block * ROW_SHARE
                each = max(memory, part * cost.arithmetic) + part * cost.special
            out.append(self.blocks * (each + BLOCK_SECONDS))
        return out

    def bounded(self, known: Known) -> bool:
        """Whether `least` counts what every member is known to cost."""
        return all(self.is_bounded(m, known) for m in self.rows.members)

    def is_bounded(self, member: Member, known: Known) -> bool:
        return member in known and known[member][0] >= self.config.block

    def found(self, n: int, choose: Callable[[Kernel, Target], Any]) -> Cost:
        """What member n costs on a block."""
        block = self.config.block
        cost: Cost = choose(block_kernel(self.rows.members[n], block, block, len(self.rows.buffers)), self.one).cost
        return cost

    def seconds(self, n: int, found: Cost) -> float:
        """Of member n, for all blocks, where it costs `found` on one."""
        memory, member = found.memory, self.rows.members[n]
        if any(axis > 1 for axis in member.by_row):  # the kernel's buffers are larger than what it touches
            taken = _block_bytes(self.rows, member, self.config.block)
            memory = self.one.seconds_for_bytes(taken, taken, 1)
        return self.blocks * (max(found.arithmetic, memory) + BLOCK_SECONDS + found.special)

    def cost(self, work: float) -> Cost:
        """Where the members take `work` seconds on one core."""
        rows, target = self.rows, self.target
        tasks = task_count(rows, self.config)[0]
        cores = min(target.cores, tasks)
        uneven = 1.0 if tasks == 1 else 1 + 0.15 * cores / tasks
        size = float(sum(map(_bytes, rows.buffers)))
        launch = TASK_SECONDS * tasks + (target.launch_seconds + SMALL_SECONDS if tasks > 1 else 0.0)
        alone = min(1.0, size * self.config.block / rows.rows / target.l1)
        each = work * uneven / cores
        return Cost((1 - alone) * each, target.seconds_for_bytes(size, size, tasks), alone * each, launch)


@lru_cache(maxsize=1024)
def _touched(member: Member) -> tuple[float, float]:
    """Bytes that the member's kernel of a block touches: of buffers without rows, and, for all rows, of the others."""
    used = _inputs(member) if member.reduces else range(len(member.places))
    taken = touched(member.kernel)
    whole = sum(taken[n] for n in used if not member.by_row[n])
    return whole, sum(taken[n] for n in used if member.by_row[n])


class RowBlocks:
    """The pattern of a Rows. `choose(kernel, target)` gives the pattern and configuration of a member."""

    name = "rows"

    def __init__(self, choose: Callable[[Kernel, Target], Any]):
        self.choose = choose

    def match(self, kernel: Rows) -> bool:
        return isinstance(kernel, Rows)

    def configs(self, kernel: Rows, target: Target) -> list[RowsConfig]:
        each = row_bytes(kernel)
        out = []
        for tasks in (1, 8 * target.cores) if each * kernel.rows <= 4 * target.l2 else (8 * target.cores,):
            for room in (target.l1 // 4, target.l1 * 3 // 4, target.l2 // 4):
                most = max(1, min(room // each, -(-kernel.rows // tasks)))
                block = _divisor(kernel.rows, most)
                out += [RowsConfig(block, tasks, s) for s in (False, True) if not s or shared(kernel) is not kernel]
        return list(dict.fromkeys(out))

    def best(self, kernel: Rows, target: Target, limit: float = float("inf")) -> RowsConfig | None:
        """The configuration of the lowest cost; None where it is not below `limit`. The largest block is looked at
        first, as what it takes for a row bounds what the others do; then what may cost least. Members are looked at one
        by one, the longest first, until with the least of the others they cost more than another configuration does.
        """
        todo = [(i, _Blocks(kernel, c, target)) for i, c in enumerate(self.configs(kernel, target))]
        best, first = (limit, -1), None
        known: Known = {}
        while True:
            bounds = [((x.cost(sum(least)).rank, i), x, least) for i, x in todo for least in [x.least(known)]]
            bounds = [bound for bound in bounds if bound[0] < best]
            if not bounds:
                return first
            free = [bound for bound in bounds if not bound[1].bounded(known)]
            ranked = max(free, key=lambda b: b[1].config.block) if free else min(bounds, key=lambda b: b[0])
            (rank, i), x, seconds = ranked
            todo = [(n, y) for (_, n), y, _ in bounds if n != i]
            for n in sorted(range(len(seconds)), key=lambda n: -seconds[n]):
                found = x.found(n, self.choose)
                if not x.is_bounded(member := x.rows.members[n], known):
                    known[member] = x.config.block, found
                seconds[n] = x.seconds(n, found)
                rank = x.cost(sum(seconds)).rank
                if (rank, i) >= best:
                    break
            else:
                best, first = (rank, i), x.config

    def cost(self, kernel: Rows, config: RowsConfig, target: Target) -> Cost:
        """The members' costs on a block, for all blocks, and the bytes from beyond. While a member computes on a small
        block, the rows that follow are on their way; beyond the first level it computes on what others have fetched,
        and then memory waits."""
        x = _Blocks(kernel, config, target)
        return x.cost(sum(x.seconds(n, x.found(n, self.choose)) for n in range(len(x.rows.members))))

    def lower(self, kernel: Rows, config: RowsConfig, target: Target) -> Lowered:
        kernel = shared(kernel) if config.share else kernel
        work = _Lowering(self.choose, kernel, config, target)
        launches = [Launch(work.sweep(), work.tasks)]
        for n, member in enumerate(kernel.members):
            if member.reduces:
                launches += work.finish(member, len(launches), work.partial[n])
        return Lowered(launches, work.workspace)


class _Lowering:
    """One Rows in one configuration."""

    def __init__(self, choose: Callable[[Kernel, Target], Any], kernel: Rows, config: RowsConfig, target: Target):
        self.choose, self.kernel, self.config, self.target = choose, kernel, config, target
        self.one = _one_core(target)
        self.tasks, self.chunk = task_count(kernel, config)
        self.workspace = 0
        self.partial: dict[int, list[int]] = {}  # where a reducing member's partial results lie, [tasks, ...] each
        for n, member in enumerate(kernel.members):
            if member.reduces:
                self.partial[n] = [self._section(self.tasks * _bytes(b)) for b in _partials(member)]

    def _section(self, nbytes: int) -> int:
        at = self.workspace
        self.workspace += -(-nbytes // 64) * 64
        return at

    def _lowered(self, kernel: Kernel, target: Target) -> Lowered:
        chosen = self.choose(kernel, target)
        return chosen.pattern.lower(kernel, chosen.config, target)

    def sweep(self) -> Function:
        """The function of all blocks of a task."""
        kernel, config = self.kernel, self.config
        whole, rest = divmod(kernel.rows, config.block)
        b = Builder(bx.function_name("rows", kernel, config), len(kernel.buffers) + 1)
        lowered = {
            count: [
                self._lowered(block_kernel(m, count, config.block, len(kernel.buffers)), self.one)
                for m in kernel.members
            ]
            for count, present in ((config.block, whole), (rest, rest)) if present
        }  # fmt: skip
        sums = {n: _partials(m) for n, m in enumerate(kernel.members) if m.reduces}
        before = {n: self._lowered(_filled(kernel.members[n]), self.one) for n in sums}
        after = {n: self._lowered(_copied(kernel.members[n]), self.one) for n in sums}
        found = [*before.values(), *after.values(), *(x for parts in lowered.values() for x in parts)]
        local = [b.alloc(elem_of(x.dtype), size(x.shape) // kernel.rows * config.block) for x in kernel.local]
        held = {n: [b.alloc(elem_of(x.dtype), size(x.shape)) for x in found] for n, found in sums.items()}
        scratch = b.alloc("i8", max((launch.function.scratch_bytes for x in found for launch in x.launches), default=0))
        space = b.alloc("i8", max(x.workspace for x in found))
        numbered = [uses_number(m) for m in kernel.members]
        number = b.alloc("i32", int(any(numbered)))

        def run(part: Lowered, pointers: Sequence[Value]) -> None:
            for launch in part.launches:
                with b.loop(0, launch.tasks) as each:
                    splice(b, launch.function, [*pointers, space], scratch, each.var)

        def block(first: Value, count: int) -> None:
            if any(numbered):
                b.store(b.cast(first, "i32"), number, b.const(0))
            for n, (member, part) in enumerate(zip(kernel.members, lowered[count], strict=True)):
                used = _inputs(member) if member.reduces else range(len(member.places))
                pointers = [self._pointer(b, member, i, first, local) for i in used]
                pointers += [*held.get(n, ()), *held.get(n, ())]
                run(part, [*pointers, number] if numbered[n] else pointers)

        for n, part in before.items():
            run(part, held[n])
        lo = b.mul(b.task, b.const(self.chunk))
        with b.loop(lo, b.op("min", b.add(lo, b.const(self.chunk)), b.const(whole))) as loop:
            block(b.mul(loop.var, b.const(config.block)), config.block)
        if rest:
            with b.if_(b.op("eq", b.task, b.const(self.tasks - 1))):
                block(b.const(whole * config.block), rest)
        for n, part in after.items():
            places = []
            for at, x in zip(self.partial[n], sums[n], strict=True):
                past = b.add(b.mul(b.task, b.const(size(x.shape))), b.const(at // x.dtype.itemsize))
                places.append(b.address(b.buffers[-1], past, elem_of(x.dtype)))
            run(part, [*held[n], *places])
        return b.finish()

    def _pointer(self, b: Builder, member: Member, n: int, first: Value, local: Sequence[Value]) -> Value:
        """Where buffer n of a member begins for the block whose first row is `first`."""
        place = member.places[n]
        if place >= len(b.buffers) - 1:
            return local[place - len(b.buffers) + 1]
        axis = member.by_row[n]
        if not axis:
            return b.buffers[place]
        buffer = member.kernel.buffers[n]
        return b.address(b.buffers[place], b.mul(first, b.const(size(buffer.shape[axis:]))), elem_of(buffer.dtype))

    def finish(self, member: Member, first: int, partial: Sequence[int]) -> list[Launch]:
        """The launches that merge the tasks' partial results, in order, and run the stages after the reduction."""
        sums = _partials(member)
        kernel, places = _merge(member, self.tasks)
        part = self._lowered(kernel, self.target)
        space = self._section(part.workspace) if part.workspace else 0
        out = []
        for n, launch in enumerate(part.launches, start=first):
            b = Builder(bx.function_name("rows", self.kernel, self.config, n), len(self.kernel.buffers) + 1)
            pointers = [
                b.address(b.buffers[-1], b.const(at // x.dtype.itemsize), elem_of(x.dtype))
                for at, x in zip(partial, sums, strict=True)
            ]
            pointers += [b.buffers[place] for place in places]
            scratch = b.alloc("i8", launch.function.scratch_bytes)
            splice(b, launch.function, [*pointers, b.address(b.buffers[-1], b.const(space), "i8")], scratch, b.task)
            out.append(Launch(b.finish(), launch.tasks))
        return out


def task_count(kernel: Rows, config: RowsConfig) -> tuple[int, int]:
    """(tasks, blocks of a task); the last one takes the shorter block at the end, where there is one."""
    blocks = -(-kernel.rows // config.block)
    chunk = -(-blocks // config.tasks)
    return -(-blocks // chunk), chunk
