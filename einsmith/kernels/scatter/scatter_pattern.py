"""Lower scatters, `out[index(i)] += body(i)`, deterministically.

Contributions to an element are added in row-major order of i, whatever the number of tasks. The initial value is a
pointwise kernel of its own that runs first; if the output's memory already holds it, that kernel is omitted and only
the destinations are touched.

Tasks and lanes run along axes of the domain that alone determine the position along an output dimension (i in
`dX[i, k[i, j]] += ...`): points that differ there never write the same element. Without such an axis there is one task.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from einsmith.codegen.loopnest.address import address
from einsmith.codegen.loopnest.nest import Builder
from einsmith.cost.facts import Target
from einsmith.cost.overheads import INSTRUCTIONS
from einsmith.cost.roofline import in_turn, shared_out
from einsmith.ir.analysis.reads import uses
from einsmith.ir.nodes import Axis, Const, Piece, Read, Template
from einsmith.kernels.emit import boxes
from einsmith.kernels.emit.loops import make_emitter
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.kernels.pointwise import Pointwise, PointwiseConfig
from einsmith.kernels.scatter.points import add_points, find_bounds, owned_axes, renumber_parts, scatter_of, terms_of
from einsmith.schedule.kernel import Kernel, Stage

POINTWISE = Pointwise()


class ScatterConfig(NamedTuple):
    """A configuration of a scatter.

    axis: the domain's axis that tasks run along, or None. along: the axis that lanes run along, or None. lanes: of a
    vector (0: scalar code). tasks: parallel tasks."""

    axis: int | None
    along: int | None
    lanes: int
    tasks: int


def in_place(kernel: Kernel) -> bool:
    """Return whether the output's memory already holds the initial value."""
    stage = kernel.stages[0]
    first = stage.template.parts[0]
    if len(stage.template.parts) != 2 or not isinstance(first, Piece) or not isinstance(first.body, Read):
        return False
    reads_output = stage.args[first.body.slot] == ("buffer", stage.outputs[0])
    return reads_output and all(i is Axis(d) for d, i in enumerate(first.body.index))


@lru_cache(maxsize=512)
def _plan_initial_value(kernel: Kernel, target: Target) -> tuple[Kernel, PointwiseConfig, Cost] | None:
    """Return (kernel, configuration, cost) of the initial value; None where there is nothing to do."""
    root, first = kernel.root, kernel.stages[0]
    if in_place(kernel) or not prod(root.shape):
        return None
    neutral = Const(scatter_of(kernel).neutral, root.dtypes[0])
    whole = Piece((0,) * root.rank, (1,) * root.rank, root.shape, neutral)
    initial_template = Template(root.shape, root.params, root.parts[:-1] or (whole,))
    initial = Kernel((Stage(initial_template, first.args, first.outputs),), kernel.buffers)
    costs = [(c, POINTWISE.cost(initial, c, target)) for c in POINTWISE.configs(initial, target)]
    return initial, *min(costs, key=lambda x: x[1].seconds)


class ScatterAdd(Pattern):
    """The pattern of a Scatter without an epilogue."""

    name = "scatter"

    def match(self, kernel: Kernel) -> bool:
        return kernel.root.is_scatter and len(kernel.stages) == 1

    def configs(self, kernel: Kernel, target: Target) -> list[ScatterConfig]:
        s = scatter_of(kernel)
        exprs, out = renumber_parts(kernel)
        lanes = boxes.lanes_of(kernel, target)
        owned = owned_axes(s)
        flats, _ = uses(tuple(exprs))
        flat = address(s.index, kernel.buffers[out].strides)
        along = [
            a
            for a in owned
            if all(f.coefficient(Axis(a)) in (0, 1) for f in flats)
            and flat.coefficient(Axis(a)) == 1
            and a not in flat.without(Axis(a)).axes
        ]
        tasks: list[tuple[int | None, int]] = [(None, 1)]
        tasks += [(a, t) for t in (target.cores, 4 * target.cores) if target.cores > 1 for a in owned]
        return [ScatterConfig(a, v, lanes if v is not None else 0, t) for v in (None, *along) for a, t in tasks]

    def cost(self, kernel: Kernel, config: ScatterConfig, target: Target) -> Cost:
        """Return the cost: the initial value, then a load, an addition and a store of every point."""
        s = scatter_of(kernel)
        exprs, out = renumber_parts(kernel)
        buffer = kernel.buffers[out]
        points, size = prod(s.extents), prod(kernel.shape)
        loops, terms = terms_of(kernel)
        every = (*(e for index, _ in terms for e in index.terms), *(body for _, body in terms))
        count, seconds = boxes.operations(every, target)
        rate = boxes.vectors_per_second(target)
        tasks = config.tasks
        if config.axis is not None:
            tasks = min(tasks, s.extents[config.axis] // (config.lanes if config.axis == config.along else 1))
        cores = max(1, min(target.cores, tasks))
        flats, _ = uses(every)
        destinations = [index for index, _ in terms]
        parts = {
            a: x.estimate_fraction(a, s.extents) for a, x in find_bounds(kernel, config.along).items() if a < loops
        }
        active_points = points // len(terms) * prod(parts.values())
        if config.along is None:
            work = active_points * (count + len(flats))
        else:
            extent, part = s.extents[config.along], parts.get(config.along, 1.0)
            vectors = min(-(-extent // config.lanes), part * extent / config.lanes + 1)
            work = active_points / max(part * extent, 1e-9) * vectors
            vector_cost = count + boxes.access_cost([*flats, *destinations, *destinations], config.along, config.lanes)
            tail = INSTRUCTIONS.tail + INSTRUCTIONS.term * (len(terms) - 1)
            work *= vector_cost + tail * (extent % config.lanes > 0) / -(-extent // config.lanes)
        args = (ref[1] for ref in kernel.stages[0].args if ref[0] == "buffer")
        read = sum(kernel.buffers[n].nbytes for n in args if n != out)
        moved = read + 2 * min(points, size) * buffer.dtype.itemsize
        memory = target.seconds_for_bytes(moved, moved, cores)
        total = Cost(work / rate / cores, memory, active_points * seconds / cores, shared_out(tasks, target))
        initial = _plan_initial_value(kernel, target)
        return total if initial is None else in_turn([total, initial[2]])

    def lower(self, kernel: Kernel, config: ScatterConfig, target: Target) -> Lowered:
        s, initial = scatter_of(kernel), _plan_initial_value(kernel, target)
        out = Lowered() if initial is None else POINTWISE.lower(*initial[:2], target)
        if not prod(s.extents) or not prod(kernel.shape):
            return out
        b = Builder(boxes.function_name(self.name, kernel, config), len(kernel.buffers) + 1)
        em = make_emitter(b, kernel, s.extents, config.lanes)
        tasks = add_points(em, kernel, config.along, config.axis, config.tasks)
        out.launches.append(Launch(b.finish(), tasks))
        return out
