"""Lower row-block fusions (tile and fuse): run kernels that share their rows block by block in one launch.

Every member is lowered by its own pattern, on a block's shape and for one core; a task runs the members in order on one
block after the other. Tensors local to a row lie in the thread's scratch and stay in the cache, as do operands that
several members read. A member that reduces over the rows leaves one partial result per task, and another launch adds
these. A member that uses its row's number reads the number of the block's first row and adds its place in the block.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.codegen.loopnest.nest import Builder, Function, SSAValue, elem_of
from einsmith.codegen.loopnest.splice import splice
from einsmith.cost.facts import Target
from einsmith.kernels.composite.parts import BufferPlace, LaunchSequence
from einsmith.kernels.emit import boxes
from einsmith.kernels.genes import Space
from einsmith.kernels.pattern import Chooser, Cost, Launch, Lowered, Pattern
from einsmith.kernels.rows import cost
from einsmith.kernels.rows.cost import RowsConfig
from einsmith.schedule.kernel import Kernel, Member, Rows
from einsmith.schedule.row_blocks import block_kernel, copy_kernel, fill_kernel, inputs, merge, partials, uses_number
from einsmith.schedule.shared_rows import share


class RowBlocks(Pattern):
    """The pattern of a Rows. Its chooser selects the pattern and configuration of each member."""

    name = "rows"

    def __init__(self, chooser: Chooser):
        self.chooser = chooser

    def match(self, kernel: Rows) -> bool:
        return isinstance(kernel, Rows)

    def configs(self, kernel: Rows, target: Target) -> list[RowsConfig]:
        return cost.configs(kernel, target)

    def space(self, kernel: Rows, target: Target) -> Space:
        """Return the space of configurations: blocks of any length, several numbers of tasks, and `share`."""
        shares = (False, True) if share(kernel) is not kernel else (False,)
        tasks = tuple(dict.fromkeys((1, *(n * target.cores for n in (1, 2, 4, 8, 16, 32)))))
        return {"block": tuple(range(1, kernel.rows + 1)), "tasks": tasks, "share": shares}

    def legal(self, kernel: Rows, config: RowsConfig, target: Target) -> str:
        space = self.space(kernel, target)
        return "" if all(v in space[g] for g, v in config._asdict().items()) else "rows have no such blocks"

    def best(self, kernel: Rows, target: Target, limit: float = float("inf")) -> RowsConfig | None:
        return cost.best(kernel, target, self.chooser, limit)

    def cost(self, kernel: Rows, config: RowsConfig, target: Target) -> Cost:
        """Return the cost: the members' costs on all blocks, and the memory traffic."""
        blocks = cost.Blocks(kernel, config, target)
        return blocks.cost(sum(blocks.seconds(n, self.chooser) for n in range(len(blocks.lower_bounds))))

    def lower(self, kernel: Rows, config: RowsConfig, target: Target) -> Lowered:
        kernel = share(kernel) if config.share else kernel
        lowering = _Lowering(self.chooser, kernel, config, target)
        out = lowering.sequence
        out.lowered.launches.append(Launch(lowering.emit_sweep(), lowering.tasks))
        for n, partial_places in lowering.partial_places.items():
            # The tasks' partial results are merged, in order, and the stages after the reduction run.
            merged, places = merge(kernel.members[n], lowering.tasks)
            out.add(lowering.lower(merged, target), [*partial_places, *map(BufferPlace, places)])
        return out.lowered


class _Lowering:
    """The lowering of one Rows in one configuration."""

    def __init__(self, chooser: Chooser, kernel: Rows, config: RowsConfig, target: Target):
        self.chooser, self.kernel, self.config, self.target = chooser, kernel, config, target
        self.one = cost.one_core(target)
        self.tasks, self.chunk = cost.task_count(kernel, config)
        self.sequence = LaunchSequence(boxes.function_name("rows", kernel, config), len(kernel.buffers))
        # Workspace of each reducing member's partial results, [tasks, ...] each.
        self.partial_places = {
            n: [self.sequence.reserve(self.tasks * b.nbytes) for b in partials(member)]
            for n, member in enumerate(kernel.members)
            if member.reduces
        }

    def lower(self, kernel: Kernel, target: Target) -> Lowered:
        choice = self.chooser.choose(kernel, target)
        return choice.pattern.lower(kernel, choice.config, target)

    def emit_sweep(self) -> Function:
        """Return the function that runs all blocks of a task."""
        kernel, config = self.kernel, self.config
        whole, rest = divmod(kernel.rows, config.block)
        b = Builder(self.sequence.name, len(kernel.buffers) + 1)
        lowered_by_count = {
            count: [
                self.lower(block_kernel(m, count, config.block, len(kernel.buffers)), self.one) for m in kernel.members
            ]
            for count, present in ((config.block, whole), (rest, rest))
            if present
        }
        sums = {n: partials(m) for n, m in enumerate(kernel.members) if m.reduces}
        fills = {n: self.lower(fill_kernel(kernel.members[n]), self.one) for n in sums}
        copies = {n: self.lower(copy_kernel(kernel.members[n]), self.one) for n in sums}
        all_lowered = [*fills.values(), *copies.values(), *(x for parts in lowered_by_count.values() for x in parts)]
        local = [b.alloc(elem_of(x.dtype), x.size // kernel.rows * config.block) for x in kernel.local]
        accumulators = {n: [b.alloc(elem_of(x.dtype), x.size) for x in buffers] for n, buffers in sums.items()}
        scratch = b.alloc(
            "i8", max((launch.function.scratch_bytes for x in all_lowered for launch in x.launches), default=0)
        )
        workspace = b.alloc("i8", max(x.workspace for x in all_lowered))
        uses_numbers = [uses_number(m) for m in kernel.members]
        number = b.alloc("i32", int(any(uses_numbers)))

        def emit_launches(part: Lowered, pointers: Sequence[SSAValue]) -> None:
            for launch in part.launches:
                with b.loop(0, launch.tasks) as each:
                    splice(b, launch.function, [*pointers, workspace], scratch, each.var)

        def emit_block(first: SSAValue, count: int) -> None:
            if any(uses_numbers):
                b.store(b.cast(first, "i32"), number, 0)
            for n, (member, part) in enumerate(zip(kernel.members, lowered_by_count[count], strict=True)):
                used = inputs(member) if member.reduces else range(len(member.places))
                pointers = [self._pointer(b, member, i, first, local) for i in used]
                pointers += [*accumulators.get(n, ()), *accumulators.get(n, ())]
                emit_launches(part, [*pointers, number] if uses_numbers[n] else pointers)

        for n, part in fills.items():
            emit_launches(part, accumulators[n])
        lo = b.mul(b.task, self.chunk)
        with b.loop(lo, b.op("min", b.add(lo, self.chunk), whole)) as loop:
            emit_block(b.mul(loop.var, config.block), config.block)
        if rest:
            with b.if_(b.op("eq", b.task, self.tasks - 1)):
                emit_block(b.const(whole * config.block), rest)
        for n, part in copies.items():
            places = []
            for at, x in zip(self.partial_places[n], sums[n], strict=True):
                offset = b.add(b.mul(b.task, x.size), at.offset // x.dtype.itemsize)
                places.append(b.address(b.buffers[-1], offset, elem_of(x.dtype)))
            emit_launches(part, [*accumulators[n], *places])
        return b.finish()

    def _pointer(self, b: Builder, member: Member, n: int, first: SSAValue, local: Sequence[SSAValue]) -> SSAValue:
        """Return the pointer to buffer n of a member for the block whose first row is `first`."""
        place = member.places[n]
        if place >= len(b.buffers) - 1:
            return local[place - len(b.buffers) + 1]
        axis = member.by_row[n]
        if not axis:
            return b.buffers[place]
        buffer = member.kernel.buffers[n]
        return b.address(b.buffers[place], b.mul(first, buffer.strides[axis - 1]), elem_of(buffer.dtype))
