"""Lower row-block fusions (tile and fuse): run kernels that share their rows block by block in one launch.

Every member is lowered by its own pattern, on a block's shape and for one core; a task runs the members in order on one
block after the other. Tensors local to a row lie in the thread's scratch and stay in the cache, as do operands that
several members read. A member that reduces over the rows leaves one partial result per task, and another launch adds
these. A member that uses its row's number reads the number of the block's first row and adds its place in the block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from math import prod
from typing import TypeVar

from einsmith.base.errors import VerifyError
from einsmith.codegen.loopnest.nest import Builder, Function
from einsmith.codegen.loopnest.splice import splice
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Read
from einsmith.kernels.composite.parts import BufferPlace, LaunchSequence
from einsmith.kernels.emit import boxes
from einsmith.kernels.genes import Space
from einsmith.kernels.pattern import Chooser, Cost, Launch, Lowered, Pattern
from einsmith.kernels.rows import rows_cost
from einsmith.kernels.rows.box_condition import BoxCondition, Ends
from einsmith.kernels.rows.rows_cost import RowsConfig
from einsmith.schedule.block_kernels import BlockKernel
from einsmith.schedule.kernel import Activity, Beyond, Kernel, KernelBuffer, Rows
from einsmith.schedule.row_blocks import (
    copy_kernel,
    fill_kernel,
    finds_position,
    merge,
    merge_positions,
    partials,
)
from einsmith.schedule.row_nests import block_places, follow_of, shared_memory
from einsmith.schedule.shared_rows import share

_Memory = TypeVar("_Memory")


class RowBlocks(Pattern):
    """The pattern of a Rows. Its chooser selects the pattern and configuration of each member."""

    name = "rows"

    def __init__(self, chooser: Chooser):
        self.chooser = chooser

    def match(self, kernel: Rows) -> bool:
        return isinstance(kernel, Rows)

    def configs(self, kernel: Rows, target: Target) -> list[RowsConfig]:
        return rows_cost.configs(kernel, target)

    def space(self, kernel: Rows, target: Target) -> Space:
        """Return the space of configurations: blocks of any length, several numbers of tasks, and `share`."""
        shares = (False, True) if share(kernel) is not kernel else (False,)
        tasks = tuple(dict.fromkeys((0, 1, *(n * target.cores for n in (1, 2, 4, 8, 16, 32)))))
        blocks = tuple(range(1, kernel.rows + 1))
        return {
            "block": blocks,
            "tasks": tasks,
            "share": shares,
            "nested": (0, *rows_cost.TILES),
            "turned": (False, True),
            "again": (False, True),
        }

    def legal(self, kernel: Rows, config: RowsConfig, target: Target) -> str:
        if not config.tasks and config.block == 1 and any(m.reduces for m in kernel.members):
            return "single rows can be launched at once only where no member reduces over them"
        if kernel.is_online and (not config.tasks or config.nested):
            return "running results are carried from block to block by each task"
        if kernel.has_running_mean and config.tasks > 1:
            return "means so far are carried through all rows in one task"
        space = self.space(kernel, target)
        return "" if all(v in space[g] for g, v in config._asdict().items()) else "rows have no such blocks"

    def best(self, kernel: Rows, target: Target, limit: float = float("inf")) -> RowsConfig | None:
        return rows_cost.best(kernel, target, self.chooser, limit)

    def cost(self, kernel: Rows, config: RowsConfig, target: Target) -> Cost:
        """Return the cost: the members' costs on all blocks, and the memory traffic."""
        if not config.tasks:
            return rows_cost.launched_cost(kernel, config, target, self.chooser)
        blocks = rows_cost.Blocks(kernel, config, target)
        return blocks.cost([blocks.work(n, self.chooser) for n in range(len(blocks.lower_bounds))])

    def lower(self, kernel: Rows, config: RowsConfig, target: Target) -> Lowered:
        kernel = share(kernel) if config.share else kernel
        lowering = _RowsLowering(self.chooser, kernel, config, target)
        if not config.tasks:
            return lowering.emit_batch() if config.block == 1 else lowering.emit_serial()
        out = lowering.sequence
        out.lowered.launches.append(Launch(lowering.emit_sweep(), lowering.tasks))
        if kernel.active is not None:
            out.lowered.beyond = Beyond.UNTOUCHED if config.block == 1 else Beyond.TOUCHED
        for n in lowering.partial_places:
            lowering.emit_merge(n)
        return out.lowered


class _RowsLowering:
    """The lowering of one Rows in one configuration."""

    def __init__(self, chooser: Chooser, kernel: Rows, config: RowsConfig, target: Target):
        self.chooser, self.kernel, self.config, self.target = chooser, kernel, config, target
        self.one = rows_cost.share_of_one_core(kernel, target)
        self.tasks, self.chunk = rows_cost.task_count(kernel, config) if config.tasks else (0, 0)
        self.sequence = LaunchSequence(boxes.function_name("rows", kernel, config), len(kernel.buffers))
        # Workspace of each reducing member's partial results, [tasks, ...] each.
        self.partial_places = {
            n: [self.sequence.reserve(self.tasks * b.nbytes) for b in partials(member)]
            for n, member in enumerate(kernel.members if self.tasks else ())
            if member.reduces
        }
        # Workspace of what each task made of a running result that others follow, [tasks, ...]; the merged one is made
        # of all tasks' results. One task makes it where it is stored.
        self.followed_places = {
            n: self.sequence.reserve(self.tasks * follow_of(kernel, n).correction.nbytes)
            for n in block_places(kernel).followed
            if self.tasks > 1
        }

    def lower(self, kernel: Kernel, target: Target) -> Lowered:
        choice = self.chooser.choose(kernel, target)
        return choice.pattern.lower(kernel, choice.config, target)

    def emit_merge(self, n: int) -> None:
        """Add the launches that merge the tasks' partial results of member n, in order, and run the stages after the
        reduction."""
        member, out, at, tasks = self.kernel.members[n], self.sequence, self.partial_places[n], self.tasks
        reducer = None
        if tasks > 1 and finds_position(member):
            values, positions = merge_positions(member, tasks)
            best, first = (out.reserve(x.nbytes) for x in partials(member))
            out.add(self.lower(values, self.target), [at[0], best])
            out.add(self.lower(positions, self.target), [at[0], best, at[1], first])
            at, tasks = [best, first], 1
        elif tasks > 1 and member.follows is not None:
            number = member.follows.reducer
            reducer = self.kernel.members[number]
            more = self.partial_places[number][0], self.followed_places[number], BufferPlace(member.follows.place)
            at = [*at, *more]
        merged, places = merge(member, tasks, reducer)
        out.add(self.lower(merged, self.target), [*at, *map(BufferPlace, places)])

    def emit_batch(self) -> Lowered:
        """Return the launches of the kernels of a row, each on all rows at once: its tasks times the rows. Local
        buffers lie in the workspace."""
        kernel, rows, out = self.kernel, self.kernel.rows, self.sequence
        places = block_places(kernel)
        parts = rows_cost.kernels_of(kernel, self.config)
        of_row = rows_cost.target_of_row(kernel, self.target)
        lowered = [self.lower(x.kernel, of_row) for x in parts]
        local = self._local_memory({1: parts}, lambda x: out.reserve(x.nbytes))[1]
        size = max(-(-x.workspace // 64) * 64 for x in lowered)
        workspace = out.reserve(rows * size)
        for n, (part, x) in enumerate(zip(lowered, parts, strict=True)):
            for m, launch in enumerate(part.launches):
                b = Builder(f"{out.name}_{n}_{m}", len(kernel.buffers) + 1)
                row = b.op("floordiv", b.task, launch.tasks)
                number = b.alloc("i32", int(places.number in x.places))
                if places.number in x.places:
                    b.store(b.cast(row, "i32"), number, 0)
                pointers = []
                for place in x.places:
                    if place in local:
                        elem = kernel.local[place - len(kernel.buffers)]
                        step = elem.nbytes // rows
                        pointers.append(b.address(b.buffers[-1], b.add(b.mul(row, step), local[place].offset), "i8"))
                    else:
                        pointers.append(number if place == places.number else self._pointer(b, place, row))
                pointers.append(b.address(b.buffers[-1], b.add(b.mul(row, size), workspace.offset), "i8"))
                scratch = b.alloc("i8", launch.function.scratch_bytes)
                splice(b, launch.function, pointers, scratch, b.op("mod", b.task, launch.tasks))
                out.lowered.launches.append(Launch(b.finish(), rows * launch.tasks))
        return out.lowered

    def emit_serial(self) -> Lowered:
        """Return the launches of the kernels of a block, for one block after the other. Local buffers, results of
        reducing members so far, and the number of the block's first row lie in the workspace, unless such a result can
        lie where it is stored."""
        kernel, block, out = self.kernel, self.config.block, self.sequence
        places = block_places(kernel)
        whole, rest = divmod(kernel.rows, block)
        counts = [block] * whole + [rest] * bool(rest)
        kernels = {count: rows_cost.kernels_of(kernel, self.config, count) for count in counts}
        kept = [rows_cost.pack_once(kernel, x, block, self.target, self.chooser) for x in kernels[block]]
        lowered = {count: [self.lower(x.kernel, self.target) for x in parts] for count, parts in kernels.items()}
        lowered[block] = [self.lower(x.kernel, self.target) for x in kept]
        memory = {places.number: out.reserve(4)}
        local = self._local_memory(kernels, lambda x: out.reserve(x.nbytes // kernel.rows * block))
        merged = []
        for n, first in places.accumulators.items():
            direct = rows_cost.direct_result(kernel.members[n])
            sums = partials(kernel.members[n])
            at = [out.reserve(x.nbytes) for x in sums] if direct is None else [BufferPlace(direct)]
            memory |= dict(enumerate(at, first))
            if direct is None:
                merged.append((n, at))
            out.add(self.lower(fill_kernel(kernel.members[n]), self.target), at)
        # What is packed once stays in a workspace of its own.
        apart = {n: out.reserve(lowered[block][n].workspace) for n, x in enumerate(kept) if x.packs_once}
        passing = [
            x for count, parts in lowered.items() for n, x in enumerate(parts) if count < block or n not in apart
        ]
        workspace = out.reserve(max((x.workspace for x in passing), default=0))

        def launches(count: int, n: int, is_first: bool = False) -> list[Launch]:
            """Return the launches of kernel n on the block of `count` rows whose number is in memory, or, if it
            `is_first`, those that run before the first block alone."""
            block_launches = []
            part, used, own = lowered[count][n], kernels[count][n].places, memory | local[count]
            owned = apart.get(n, workspace) if count == block else workspace
            for m, launch in enumerate(part.launches):
                if launch.loop_invariant is not is_first:
                    continue
                b = Builder(f"{out.name}_{count}_{n}_{m}", len(kernel.buffers) + 1)
                first = b.cast(b.load(self._address(b, memory[places.number], "i32"), 0, "i32"), "i64")
                pointers = [self._address(b, own[p], "i8") if p in own else self._pointer(b, p, first) for p in used]
                scratch = b.alloc("i8", launch.function.scratch_bytes)
                splice(b, launch.function, [*pointers, self._address(b, owned, "i8")], scratch, b.task)
                block_launches.append(Launch(b.finish(), launch.tasks))
            return block_launches

        by_count = {
            count: [launch for n in range(len(parts)) for launch in launches(count, n)]
            for count, parts in kernels.items()
        }
        begin, advance = (Builder(f"{out.name}_{name}", len(kernel.buffers) + 1) for name in ("begin", "advance"))
        begin.store(begin.const(0, "i32"), self._address(begin, memory[places.number], "i32"), 0)
        number = self._address(advance, memory[places.number], "i32")
        advance.store(advance.add(advance.load(number, 0, "i32"), advance.const(block, "i32")), number, 0)
        out.lowered.launches.append(Launch(begin.finish(), 1))
        for n in apart:
            out.lowered.launches += launches(block, n, is_first=True)
        step = Launch(advance.finish(), 1)
        for n, count in enumerate(counts):
            out.lowered.launches += [step] * (n > 0) + by_count[count]
        for n, at in merged:
            last, used = merge(kernel.members[n], 1)
            out.add(self.lower(last, self.target), [*at, *map(BufferPlace, used)])
        return out.lowered

    def _local_memory(
        self, kernels: Mapping[int, Sequence[BlockKernel]], reserve: Callable[[KernelBuffer], _Memory]
    ) -> dict[int, dict[int, _Memory]]:
        """Return the memory of local buffers by place, for each number of rows for which there are kernels, which may
        hand over other buffers; `reserve` returns new memory of a buffer."""
        first = len(self.kernel.buffers)
        owners = {count: shared_memory(self.kernel, parts) for count, parts in kernels.items()}
        used = sorted({owner for some in owners.values() for owner in some.values()})
        memory = {place: reserve(self.kernel.local[place - first]) for place in used}
        return {count: {place: memory[owner] for place, owner in some.items()} for count, some in owners.items()}

    @staticmethod
    def _address(b: Builder, at: BufferPlace, elem: str) -> SSAValue:
        return b.address(b.buffers[at.number], at.offset // (4 if elem == "i32" else 1), elem)

    def emit_sweep(self) -> Function:
        """Return the function that runs all blocks of a task."""
        kernel, config = self.kernel, self.config
        whole, rest = divmod(kernel.rows, config.block)
        b = Builder(self.sequence.name, len(kernel.buffers) + 1)
        places = block_places(kernel)
        counts = [config.block] * (whole > 0) + [rest] * (rest > 0)
        kernels = {count: rows_cost.kernels_of(kernel, config, count) for count in counts}
        by_count = {
            count: [(self.lower(x.kernel, self.one), x.places) for x in parts] for count, parts in kernels.items()
        }
        sums = {n: partials(m) for n, m in enumerate(kernel.members) if m.reduces}
        fills = {n: self.lower(fill_kernel(kernel.members[n]), self.one) for n in sums}
        copied = {n: [(self.partial_places[n], sums[n])] for n in sums}
        for n, place in self.followed_places.items():
            copied[n].append(([place], [follow_of(kernel, n).buffer]))
        copies = {n: [self.lower(copy_kernel(x), self.one) for _, x in some] for n, some in copied.items()}
        all_lowered = [*chain(fills.values(), *copies.values()), *(x for some in by_count.values() for x, _ in some)]
        used = {place for parts in by_count.values() for _, at in parts for place in at}
        # pointers that are the same for all blocks, by place
        fixed: dict[int, SSAValue] = {}
        local = self._local_memory(kernels, lambda x: b.alloc(elem_of(x.dtype), x.size // kernel.rows * config.block))
        accumulators = {n: [b.alloc(elem_of(x.dtype), x.size) for x in buffers] for n, buffers in sums.items()}
        for n, first in places.accumulators.items():
            fixed |= dict(enumerate(accumulators[n], first))
        for n, followed in places.followed.items():
            x = follow_of(kernel, n).correction
            for at, y in zip(followed, (sums[n][0], x, x), strict=True):
                fixed[at] = b.alloc(elem_of(y.dtype), x.size)
            if n in self.followed_places:
                own = dict(zip(kernel.members[n].places, kernel.members[n].kernel.buffers, strict=True))
                fixed |= {p: b.alloc(elem_of(own[p].dtype), own[p].size) for p in sorted(kernel.members[n].results)}
        functions = (launch.function for x in all_lowered for launch in x.launches)
        scratch = b.alloc("i8", max((f.scratch_bytes for f in functions), default=0))
        workspace = b.alloc("i8", max(x.workspace for x in all_lowered))
        fixed[places.number] = b.alloc("i32", int(places.number in used))

        def emit_launches(part: Lowered, pointers: Sequence[SSAValue]) -> None:
            for launch in part.launches:
                with b.loop(0, launch.tasks) as each:
                    splice(b, launch.function, [*pointers, workspace], scratch, each.var)

        def emit_block(row: SSAValue, count: int, runs: SSAValue | None) -> None:
            if places.number in used:
                b.store(b.cast(row, "i32"), fixed[places.number], 0)
            with nullcontext() if runs is None else b.if_(runs):
                own = fixed | local[count]
                for part, at in by_count[count]:
                    emit_launches(part, [own[p] if p in own else self._pointer(b, p, row) for p in at])

        for n, part in fills.items():
            emit_launches(part, accumulators[n])
        self._emit_blocks(b, emit_block)
        for n, some in copied.items():
            sources = [accumulators[n]]
            if n in self.followed_places:
                sources.append([fixed[follow_of(kernel, n).place]])
            for (reserved, buffers), source, part in zip(some, sources, copies[n], strict=True):
                targets = []
                for place, x in zip(reserved, buffers, strict=True):
                    offset = b.add(b.mul(b.task, prod(x.shape)), place.offset // x.dtype.itemsize)
                    targets.append(b.address(b.buffers[-1], offset, elem_of(x.dtype)))
                emit_launches(part, [*source, *targets])
        return b.finish()

    def _emit_blocks(self, b: Builder, emit: Callable[[SSAValue, int, SSAValue | None], None]) -> None:
        """Emit the loop over a task's blocks, and the rows that do not fill one, which the last task has.

        emit: function (first row, number of rows, whether the block runs or None for always) -> None."""
        active, block = self.kernel.active, self.config.block
        whole, rest = divmod(self.kernel.rows, block)
        lo, step = b.mul(b.task, self.chunk), 1
        last = b.const(whole)
        if active is not None:
            # The last block of all, which runs where all might be left out, has rows below each limit.
            box = self._box(b, b.const(0), 1, active)
            for end in active.ends:
                blocks = b.op("floordiv", b.add(box.ends(end)[1], block - 1), b.const(block))
                last = b.op("min", last, blocks)
        hi = b.op("min", b.add(lo, self.chunk), last)
        if self.kernel.reuses or (active is not None and not active.extents):
            # Every task has blocks from everywhere: masks may leave most of the work to the last rows, and limits to
            # the first ones.
            lo, hi, step = b.task, last, self.tasks
        runs_some = active is not None and active.some
        with b.loop(lo, hi, step=step, init=[b.const(True, "i1")] if runs_some else []) as loop:
            row = b.mul(loop.var, block)
            runs = self._is_active(b, row, block)
            if runs is not None and runs_some:
                (is_idle,) = loop.carried
                is_last = b.op("le", hi, b.add(loop.var, step))
                runs = b.op("or", runs, b.op("and", is_idle, is_last))
                loop.next = [b.select(runs, b.const(False, "i1"), is_idle)]
            emit(row, block, runs)
        if rest:
            with b.if_(b.op("eq", b.task, self.tasks - 1)):
                row = b.const(whole * block)
                emit(row, rest, None if runs_some and not whole else self._is_active(b, row, rest))

    def _is_active(self, b: Builder, first: SSAValue, count: int) -> SSAValue | None:
        """Return whether the kernel may be active on some of `count` rows from `first` on, an i1; None: it always
        is."""
        active = self.kernel.active
        return None if active is None else self._box(b, first, count, active).may_hold(active.condition)

    def _box(self, b: Builder, first: SSAValue, count: int, active: Activity) -> BoxCondition:
        """Return what decides conditions on `count` rows from `first` on."""

        def ends_of(e: Read, box: BoxCondition) -> Ends:
            """Return the first and last element that a read of one dimension reads in a box: it is scanned."""
            buffer = self.kernel.buffers[e.slot]
            elem = elem_of(buffer.dtype)
            if len(e.index) != len(buffer.shape):
                raise VerifyError(f"a condition reads a buffer of shape {buffer.shape} at an index of {len(e.index)}")
            if not e.index:
                x = b.cast(b.load(b.buffers[e.slot], 0, elem), "i64")
                return x, x
            if len(e.index) > 1:
                raise KeyError
            # Where the index leaves the array, another condition keeps it from being read.
            low, high = (b.op("max", b.op("min", x, buffer.shape[0] - 1), 0) for x in box.ends(e.index[0]))
            x = b.cast(b.load(b.buffers[e.slot], b.mul(low, buffer.strides[0]), elem), "i64")
            with b.loop(low, b.add(high, 1), init=[x, x]) as loop:
                x = b.cast(b.load(b.buffers[e.slot], b.mul(loop.var, buffer.strides[0]), elem), "i64")
                loop.next = [b.op("min", loop.carried[0], x), b.op("max", loop.carried[1], x)]
            return loop.results[0], loop.results[1]

        zero = b.const(0)
        ends = [(first, b.add(first, count - 1)), *((zero, b.const(n - 1)) for n in active.extents)]
        return BoxCondition(ends, ends_of, b)

    def _pointer(self, b: Builder, place: int, first: SSAValue) -> SSAValue:
        """Return the pointer to a buffer of the Rows for the block whose first row is `first`. Raises VerifyError for a
        place that is none."""
        if place >= len(self.kernel.buffers):
            raise VerifyError(f"a kernel of a block uses place {place}, for which no memory is reserved")
        for member in self.kernel.members:
            for at, buffer, axis in zip(member.places, member.kernel.buffers, member.by_row, strict=True):
                if at == place and axis:
                    return b.address(b.buffers[place], b.mul(first, buffer.strides[axis - 1]), elem_of(buffer.dtype))
        return b.buffers[place]
