"""Lower scans: kernels whose root combines the elements of an axis up to each position, in one pass over the axis.

before: Y[b, t] = sum[j](where(j <= t, x[b, j], 0)), n*(n + 1)/2 terms for each b
after:  for each b: c = 0; for t = 0 .. n-1: c = c + x[b, t]; Y[b, t] = c

row: lanes along the axis. A vector is scanned in log2(lanes) shifts (Hillis and Steele 1986, "Data parallel
algorithms"), and combined with the result of the preceding elements.
column: lanes along another output axis, each with a scan of its own.
Few scans: the axis is divided into parts. A first launch stores the total of each part, and a second one begins each
part with the totals of those before it (Blelloch 1990, "Prefix sums and their applications").

Results are combinations of their own elements alone: an infinity or NaN reaches no result that it is not part of.
Suffixes (t <= j) are scanned from the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from einsmith.codegen.loopnest.address import BufferMemory, address
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import State, emit_carrying_loop, emit_groups, part_bounds, tile_count
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.cost.facts import LINE, Target
from einsmith.cost.overheads import INSTRUCTIONS
from einsmith.cost.roofline import distribute
from einsmith.ir.analysis.linear import nonnegative
from einsmith.ir.analysis.predicates import compares_integers
from einsmith.ir.functions import COMBINING, identity
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Piece, Read, Reduce, apply, axes_of
from einsmith.ir.rebuild import operands, substitute
from einsmith.kernels.emit import boxes, loops
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.emit.combine import Accumulators, Combine
from einsmith.kernels.emit.loops import Ramps, find_guard_bounds
from einsmith.kernels.emit.vector import LanePattern
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.schedule.footprint import touched_bytes
from einsmith.schedule.kernel import Beyond, Kernel, KernelBuffer, row_major

_MIN_PART = 16
"""Fewest vectors (row) or positions (column) of a part of the axis."""


class ScanConfig(NamedTuple):
    """A configuration of a scan.

    mode: 'row': lanes along the scanned axis; 'column': lanes along another output axis. lanes: vector length. unroll:
    vectors at once. tasks: parts of the other axes. parts: parts of the scanned axis (1: not divided)."""

    mode: str
    lanes: int
    unroll: int
    tasks: int
    parts: int


class ScannedBox(NamedTuple):
    """A scan over a box. box: the box whose body is the element at each position; axis: the scanned one; combiner: of
    the elements; is_backward: whether it begins at the end."""

    box: Box
    axis: int
    combiner: str
    is_backward: bool

    @property
    def length(self) -> int:
        """Return the positions of the scanned axis."""
        return self.box.extents[self.axis]

    def column(self, config: ScanConfig) -> int | None:
        """Return the axis of the lanes in column mode; None in row mode."""
        return None if config.mode == "row" else _choose_column(self, config.lanes)

    def group(self, config: ScanConfig) -> int:
        """Return the positions that are scanned at once."""
        return config.lanes * config.unroll if config.mode == "row" else 1

    def parts(self, config: ScanConfig) -> int:
        """Return the parts of the scanned axis after rounding to whole groups."""
        return tile_count(self.length, config.parts, self.group(config))


@lru_cache(maxsize=512)
def find_scan(kernel: Kernel) -> ScannedBox | None:
    """Return the scan that a kernel is; None for other kernels."""
    if len(kernel.root.parts) != 1 or not isinstance(kernel.root.parts[0], Piece):
        return None
    reduction = kernel.root.parts[0].body
    if not isinstance(reduction, Reduce) or reduction.combiner not in COMBINING or len(reduction.bodies) != 1:
        return None
    if not compares_integers(reduction.bodies):
        return None
    all_boxes = boxes.boxes(kernel)
    if len(all_boxes) != 1 or all_boxes[0].combiner is None or len(all_boxes[0].reduce) != 1:
        return None
    (box,) = all_boxes
    (e,) = box.bodies
    neutral = identity(reduction.combiner, e.dtype)
    if not (isinstance(e, Apply) and e.fn == "where" and isinstance(e.args[2], Const) and e.args[2].value == neutral):
        return None
    if not (e.dtype.is_float or e.dtype.is_int) or e.dtype.in_memory_only:
        return None
    conditions = operands(e.args[0], "and")
    for c in conditions:
        bound = _parse_bound(box, c)
        rest = [x for x in conditions if x is not c]
        if bound is None or bound[0] in axes_of(e.args[1], *rest):
            continue
        axis, is_backward = bound
        body = e.args[1]
        for x in reversed(rest):
            body = apply("where", x, body, e.args[2])
        body = substitute(body, {box.rank: Axis(axis)})
        return ScannedBox(replace(box, reduce=(), combiner=None, bodies=(body,)), axis, reduction.combiner, is_backward)
    return None


def _parse_bound(box: Box, condition: Expr) -> tuple[int, bool] | None:
    """Return (output axis t, whether it is t <= j) of a condition j <= t or t <= j of the reduction axis j; None for
    other conditions."""
    form = nonnegative(condition)
    if form is None or form.const or sorted(form.terms.values()) != [-1, 1]:
        return None
    axes = {x.position: k for x, k in form.terms.items() if isinstance(x, Axis)}
    if len(axes) != 2 or box.rank not in axes:
        return None
    t = min(axes)
    return (t, axes[t] == -1) if box.extents[t] == box.reduce[0] else None


@lru_cache(maxsize=2048)
def _choose_column(scan: ScannedBox, lanes: int) -> int | None:
    """Return the output axis besides the scanned one that is cheapest to vectorise; None: there is none."""
    box = scan.box

    def cost(a: int) -> tuple[float, int]:
        instructions = boxes.access_cost(box.every_flat, a, lanes, box.guarded) + 1
        return instructions / boxes.lane_utilization(box.extents[a], lanes), -a

    return min((a for a in range(box.rank) if a != scan.axis), key=cost, default=None)


class ScanEmitter:
    """The emitter of one launch of a scan.

    column: axis of the lanes (None: the scanned one). part: number of the task's part of the scanned axis. totals: the
    buffer of the parts' totals, of which each has `results` elements. place: offset of an element among them."""

    def __init__(self, b: Builder, kernel: Kernel, scan: ScannedBox, config: ScanConfig):
        self.b, self.scan, self.config, self.box = b, scan, config, scan.box
        self.em = loops.make_emitter(b, kernel, self.box.extents, config.lanes)
        loops.limit_points(self.em, kernel, self.box)
        (self.dtype,) = (x.dtype for x in self.box.bodies)
        self.combine = Combine(self.em, scan.combiner, [self.dtype])
        self.column, self.parts = scan.column(config), scan.parts(config)
        self.part: SSAValue = b.const(0)
        self.neutral = self.em.const(identity(scan.combiner, self.dtype), elem_of(self.dtype), config.lanes)
        outer = [a for a in range(self.box.rank) if a not in (scan.axis, self.column)]
        outer += [] if self.column is None else [self.column]
        extents = tuple(self.box.extents[a] for a in outer)
        self.results = self.box.points // scan.length
        self.totals = KernelBuffer(self.dtype, (self.parts * self.results,))
        self.place = address([Axis(a) for a in outer], row_major(extents))
        self.read = Read(max(self.box.results) + 1, (self.place.expr(),), self.dtype)

    def emit(self, point: Callable[[Ramps], None], parts: int) -> int:
        """Emit `point(vectors of the column axis)` at every point of the other axes and for the first `parts` parts;
        return the number of tasks."""

        def begin(part: SSAValue) -> None:
            self.part = part

        c = self.config
        sweep = loops.BoxSweep(
            self.em, self.box, self.column, c.unroll, lambda ramps, *_: point(ramps), own=self.scan.axis
        )
        return sweep.emit_tasks(c.tasks, 0, True, parts, begin)

    def emit_totals(self, ramps: Ramps) -> None:
        """Emit the total of a part, and its store."""
        states = self._walk([[self.neutral] for _ in ramps], ramps, lambda old, x, active: self.combine.merge(old, x))
        for (at, active), state in zip(ramps, states, strict=True):
            self._bind_column(at, active)
            value = self.combine.across(state)[0] if self.column is None else state[0]
            self.em.store(value, self._totals_of(self.part), self.place)

    def emit_results(self, ramps: Ramps) -> None:
        """Emit the results of a part, and the epilogue on them."""
        states = [[self.neutral] for _ in ramps]
        if self.parts > 1:
            states = emit_carrying_loop(self.b, (0, self.part), 1, states, lambda x, p: self._add_total(x, p, ramps))
        self._walk(states, ramps, self._emit_vector)

    def _totals_of(self, part: SSAValue) -> BufferMemory:
        elem = elem_of(self.dtype)
        pointer = self.b.address(self.b.buffers[-1], self.b.mul(part, self.results), elem)
        return BufferMemory(pointer, self.totals)

    def _add_total(self, states: State, part: SSAValue, ramps: Ramps) -> State:
        self.em.place(self.read.slot, self._totals_of(part))
        out = []
        for (at, active), state in zip(ramps, states, strict=True):
            self._bind_column(at, active)
            out.append(self.combine.merge(state, [self.em.splat(self.em.read(self.read))]))
        return out

    def _bind_column(self, at: LanePattern, active: int | None) -> None:
        if self.column is not None:
            self.em.bind(self.column, at)
        self.em.mask = active

    def _walk(
        self,
        states: State,
        ramps: Ramps,
        visit: Callable[[Accumulators, Accumulators, int | None], Accumulators],
    ) -> State:
        """Emit `visit(state, elements, active lanes) -> state` for the vectors of the part in the order of the scan;
        return the final states. Inactive lanes along the scanned axis hold the identity."""
        em, axis, length = self.em, self.scan.axis, self.scan.length
        lanes, group, is_backward = self.config.lanes, self.scan.group(self.config), self.scan.is_backward

        def emit_row(state: Accumulators, base: SSAValue | int, count: int) -> Accumulators:
            vectors = loops.make_ramps(base, count, lanes, 1 if is_backward else group)
            for at, active in reversed(vectors) if is_backward else vectors:
                em.bind(axis, at)
                em.mask = active
                x = em.splat(em.emit(self.box.bodies[0]))
                x = x if active is None else em.op("where", em.first_lanes(active), x, self.neutral)
                state = visit(state, [x], active)
            return state

        def emit_columns(states: State, at: SSAValue | int) -> State:
            em.bind(axis, at)
            out = []
            for ramp, state in zip(ramps, states, strict=True):
                self._bind_column(*ramp)
                out.append(visit(state, [em.splat(em.emit(self.box.bodies[0]))], ramp[1]))
            return out

        def emit_group(states: State, base: SSAValue | int, count: int) -> State:
            base = self.b.sub(length - count, base) if is_backward else base
            return [emit_row(states[0], base, count)] if self.column is None else emit_columns(states, base)

        return emit_groups(self.b, length, group, states, emit_group, self.part, self.parts, self._range(group))

    def _range(self, group: int) -> tuple[SSAValue, SSAValue] | None:
        """Return the range of the part's positions, in the order of the scan, that count in a run; None where all do,
        or all are scanned at once."""
        b, axis, length = self.b, self.scan.axis, self.scan.length
        if axis not in self.em.limits or length <= group:
            return None
        part = self.part if self.parts > 1 else None
        low, high = (b.index(x) for x in part_bounds(b, length, part, self.parts, group, rest=True))
        end = self.em.limits[axis]
        if not self.scan.is_backward:
            return low, b.op("min", high, end)
        # A scan from the end begins where elements are no longer the identity.
        (body,) = self.box.bodies
        neutral = identity(self.scan.combiner, body.dtype)
        guards = find_guard_bounds(body, neutral, axis, self.box.extents, self.box.sizes)
        guards = guards.without(range(self.box.rank))
        if not guards.high:
            return None
        end = b.op("max", end, guards.emit_range(self.em, 0, length)[1])
        return b.op("max", low, b.sub(length, end)), high

    def _emit_vector(self, state: Accumulators, x: Accumulators, active: int | None) -> Accumulators:
        """Emit the results of a vector and their stores; return the state after it."""
        last = None
        if self.column is None:
            x = self._scan_lanes(x)
            lane = 0 if self.scan.is_backward else self.config.lanes - 1
            last = [self.em.shuffle(v, v, [lane] * self.config.lanes) for v in x]
        out = self.combine.merge(state, x)
        loops.store_point(self.em, self.box, loops.evaluate_point(self.em, self.box, out))
        return out if last is None else self.combine.merge(state, last)

    def _scan_lanes(self, x: Accumulators) -> Accumulators:
        """Return, in each lane, the combination of the lanes up to it, or from it on if the scan is backward."""
        n, step = self.config.lanes, 1
        while step < n:
            kept = range(n, 2 * n - step) if not self.scan.is_backward else range(n + step, 2 * n)
            fill = [0] * step
            lanes = [*kept, *fill] if self.scan.is_backward else [*fill, *kept]
            x = self.combine.merge([self.em.shuffle(self.neutral, v, lanes) for v in x], x)
            step *= 2
        return x


@lru_cache(maxsize=4096)
def _estimate_work(scan: ScannedBox, config: ScanConfig, target: Target) -> tuple[float, float, float]:
    """Return (seconds of arithmetic, of special functions, and of arithmetic of the totals) on one core."""
    box, axis, rate = scan.box, scan.column(config), boxes.vectors_per_second(target)
    lane_axis = scan.axis if axis is None else axis
    count, seconds = boxes.operations(box.exprs, target)
    accesses = boxes.access_cost(box.every_flat, lane_axis, config.lanes, box.guarded)
    extent = box.extents[lane_axis]
    in_row = -(-extent // config.lanes)
    vectors = box.points / extent * in_row
    shifts = config.lanes.bit_length() - 1 if axis is None else 0
    chains = 1 if axis is None else min(config.unroll, in_row)
    each = max(count + accesses + INSTRUCTIONS.shift * shifts + 2.0 + 1.5 / config.unroll, INSTRUCTIONS.chain / chains)
    own_count, own_seconds = boxes.operations(box.bodies, target)
    own_accesses = boxes.access_cost(box.flats, lane_axis, config.lanes, box.guarded)
    total = max(own_count + own_accesses + 2.0, INSTRUCTIONS.chain / chains)
    return (
        vectors * each / rate,
        vectors * config.lanes * seconds,
        vectors * (total / rate + config.lanes * own_seconds),
    )


class Scan(Pattern):
    """The pattern of scans: sums, products, maxima and minima of the elements up to each position, or from it on, with
    an epilogue."""

    name = "scan"

    def match(self, kernel: Kernel) -> bool:
        return find_scan(kernel) is not None

    def bound(self, kernel: Kernel, target: Target) -> float:
        """Return the seconds in which all cores move the kernel's bytes."""
        return target.seconds_for_bytes(*touched_bytes(kernel, LINE), target.cores)

    def configs(self, kernel: Kernel, target: Target) -> list[ScanConfig]:
        scan = find_scan(kernel)
        assert scan is not None
        lanes = target.lanes(scan.box.bodies[0].dtype.itemsize)
        several = (1,) if target.cores == 1 else (1, target.cores, 4 * target.cores)
        out = []
        for mode, unrolls in (("row", (1, 2, 4)), ("column", (1, 2, 4, 8))):
            if mode == "column" and _choose_column(scan, lanes) is None:
                continue
            for unroll, tasks, parts in product(unrolls, several, several):
                c = ScanConfig(mode, lanes, unroll, tasks, parts)
                room = scan.length // (_MIN_PART * (lanes if mode == "row" else 1))
                if parts == 1 or (tasks == 1 and scan.parts(c) > 1 and parts <= room):
                    out.append(c)
        return out

    def cost(self, kernel: Kernel, config: ScanConfig, target: Target) -> Cost:
        """Return the cost: instructions over the vector rate, or the latency of a chain of combinations, and bytes."""
        scan = find_scan(kernel)
        assert scan is not None
        box, column, parts = scan.box, scan.column(config), scan.parts(config)
        arithmetic, special, totals = _estimate_work(scan, config._replace(tasks=1, parts=1), target)
        points = scan.box.points // scan.length
        runs = (
            points
            if column is None
            else points // box.extents[column] * -(-box.extents[column] // (config.lanes * config.unroll))
        )
        tasks = min(config.tasks, runs) * parts
        moved, footprint = touched_bytes(kernel, LINE)
        memory = target.seconds_for_bytes(moved, footprint, tasks)
        cost = distribute(arithmetic, memory, special, tasks, target)
        if parts == 1:
            return cost
        read = moved - sum(box.points * kernel.buffers[n].dtype.itemsize for _, n, _ in box.stores)
        first = distribute(totals, target.seconds_for_bytes(max(read, 0), footprint, tasks), 0.0, tasks, target)
        return cost._replace(
            arithmetic=cost.arithmetic + first.arithmetic,
            memory=cost.memory + first.memory,
            launch=cost.launch + first.launch + target.overheads.call_seconds,
        )

    def lower(self, kernel: Kernel, config: ScanConfig, target: Target) -> Lowered:
        scan = find_scan(kernel)
        assert scan is not None
        # Vectors and parts may reach beyond a limit.
        parts, out = scan.parts(config), Lowered(beyond=Beyond.TOUCHED)
        for launch in range(2 if parts > 1 else 1):
            b = Builder(boxes.function_name(self.name, kernel, config, launch), len(kernel.buffers) + 1)
            emitter = ScanEmitter(b, kernel, scan, config)
            is_first = launch == 0 and parts > 1
            tasks = emitter.emit(*((emitter.emit_totals, parts - 1) if is_first else (emitter.emit_results, parts)))
            out.workspace = emitter.totals.nbytes if parts > 1 else 0
            out.launches.append(Launch(b.finish(), tasks))
        return out
