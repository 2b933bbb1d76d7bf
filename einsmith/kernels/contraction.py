"""The contraction pattern: sums of products of any reduction-free factors, on register tiles.

Matrix products, convolutions in every direction, capsule convolutions and attention are all this pattern. What it takes
apart is in contraction_problem, how operands are read and packed in contraction_pack, the loops in contraction_tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Any

from einsmith.expr.kernel import Kernel
from einsmith.kernels import contraction_box as box
from einsmith.kernels import contraction_dot as dot
from einsmith.kernels import contraction_finish as finish
from einsmith.kernels import contraction_launch as launch
from einsmith.kernels import contraction_plan as plan
from einsmith.kernels import contraction_search as search
from einsmith.kernels import contraction_traffic as traffic
from einsmith.kernels.contraction_plan import Config
from einsmith.kernels.contraction_problem import Problem, problems
from einsmith.kernels.contraction_sample import Pointer, Sampler
from einsmith.kernels.kernel import Cost, Lowered

FAR_ROWS = 1024
"""Bytes between the rows of an operand beyond which each begins with a wait that no prefetch hides."""


@dataclass(frozen=True)
class Configs:
    """One configuration a piece."""

    pieces: tuple[Config, ...]

    def __str__(self) -> str:
        return "; ".join(str(c) for c in dict.fromkeys(self.pieces))


class Contraction:
    """The pattern of DESIGN section 4."""

    name = "contraction"

    def match(self, kernel: Kernel) -> bool:
        """Every piece of the root is a sum of products of two groups of factors."""
        root = kernel.stages[0]
        return all(ref[0] == "buffer" for ref in root.args) and problems(kernel.root) is not None

    def best(self, kernel: Kernel, target: Any, limit: float = float("inf")) -> Configs | None:
        """The first of `configs`, found without the cost of those that cannot be it; None where a kernel of one piece
        has none whose rank is below `limit`."""
        found = problems(kernel.root)
        assert found is not None
        if len(found) > 1:
            limit = float("inf")
        best = [_best(kernel, p, target, limit) for p in found]
        return None if None in best else Configs(tuple(c for c in best if c is not None))

    def configs(self, kernel: Kernel, target: Any) -> list[Configs]:
        """Configurations worth a measurement, the cheapest by prediction first."""
        found = problems(kernel.root)
        assert found is not None
        ranked = [_ranked(kernel, p, target) for p in found]
        depth = max(len(r) for r in ranked)
        if len(found) == 1:
            return [Configs((c,)) for _, c in ranked[0]]
        return [Configs(tuple(r[min(i, len(r) - 1)][1] for r in ranked)) for i in range(min(depth, 6))]

    def cost(self, kernel: Kernel, config: Configs, target: Any) -> Cost:
        """Predicted seconds on all cores of the target."""
        found = problems(kernel.root)
        assert found is not None
        costs = [_cost(kernel, p, c, target) for p, c in zip(found, config.pieces, strict=True)]
        launches = max(_launches(kernel, p, c) for p, c in zip(found, config.pieces, strict=True))
        return Cost(
            sum(c.arithmetic for c in costs), sum(c.memory for c in costs), sum(c.special for c in costs),
            launches * target.launch_seconds,
        )

    def lower(self, kernel: Kernel, config: Configs, target: Any) -> Lowered:
        """The launches: packing where the configuration has buffers, the tiles, the addition of partial sums."""
        found = problems(kernel.root)
        assert found is not None
        return launch.lower(kernel, found, config.pieces, target)


PATTERN = Contraction()


def _rank(kernel: Kernel, p: Problem, c: Config, target: Any) -> float:
    return _cost(kernel, p, c, target).rank + _launches(kernel, p, c) * target.launch_seconds


@lru_cache(maxsize=4096)
def _ranked(kernel: Kernel, p: Problem, target: Any) -> list[tuple[float, Config]]:
    found = enumerate(search.candidates(kernel, p, target))
    every = [(_rank(kernel, p, c, target), i, c) for i, c in found]
    every.sort(key=lambda x: x[:2])
    return [(s, c) for s, _, c in every[:12]]


def _best(kernel: Kernel, p: Problem, target: Any, limit: float) -> Config | None:
    least, best = search.Least(limit), None
    for c in search.candidates(kernel, p, target, least):
        rank = _rank(kernel, p, c, target)
        if rank < least.rank:
            least.rank, best = rank, c
    return best


def _buffered(kernel: Kernel, p: Problem, c: Config) -> str:
    """The sides that are packed into the workspace at every run."""
    once = launch.fixed_sides(kernel, p, c.swap)
    return "".join(side for side, how in (("a", c.a), ("b", c.b)) if how == "buffer" and side not in once)


def _launches(kernel: Kernel, p: Problem, c: Config) -> int:
    return 1 + int(c.split > 1) + int(bool(_buffered(kernel, p, c)))


@lru_cache(maxsize=65536)
def _orientation(
    kernel: Kernel, p: Problem, windows: plan.Windows, swap: bool, which: int, lanes: int
) -> tuple[str, float, float, float]:
    """How a side is packed, loads a packed vector, and loads a vector of N read in place, in any row and in one."""
    changed = search.changed_by(kernel, p, windows)
    assert changed is not None
    pointers = search.slots_of(kernel, p, windows)
    p = changed.problem
    side = plan.sides(p, swap)[which]
    turn, cost = plan.orientation(p, side, pointers, lanes, lanes if which else 4)
    s = plan.sampler(None, p, side, pointers, side.axes, lanes)
    row = max((s.row_cost(f) for f in s.reads.values()), default=1.0) if s.lane_groups else 1.0
    return turn, cost, s.load_cost(lanes), row


@dataclass(frozen=True, eq=False)
class _Setting:
    """What the costs of configurations with the same windows and sides share. sizes: (M, N, K, batch) in points, N with
    its rows filled up; row: points of such a row, 1 for none; a, b: of `_orientation`; finish: cycles a vector of what
    follows the sum; once: sides packed once; nbytes: of all buffers."""

    changed: plan.Windowed
    item: int
    lanes: int
    sizes: tuple[int, int, int, int]
    row: int
    a: tuple[str, float, float, float]
    b: tuple[str, float, float, float]
    a_steps: traffic.Steps
    b_steps: traffic.Steps
    finish: float
    once: str
    nbytes: int


@lru_cache(maxsize=4096)
def _setting(
    kernel: Kernel, original: Problem, windows: plan.Windows, swap: bool, rows: bool, target: Any
) -> _Setting:
    changed = search.changed_by(kernel, original, windows)
    assert changed is not None
    p = changed.problem
    lanes = target.lanes(p.dtype.itemsize)
    m_side, n_side = plan.sides(p, swap)
    n, row = p.count(n_side.axes), 1
    if rows:
        row = plan.row_of(p, n_side, lanes)
        n = n // p.extents[n_side.axes[-1]] * row
    a, b = (_orientation(kernel, original, windows, swap, which, lanes) for which in (0, 1))
    if windows:
        a_steps = b_steps = traffic.Steps(0, 0)
    else:
        a_steps, b_steps = (traffic.steps(kernel, p, swap, which) for which in (0, 1))
    sizes = p.count(m_side.axes), n, p.count(p.k), p.count(p.batch)
    return _Setting(
        changed, p.dtype.itemsize, lanes, sizes, row, a, b, a_steps, b_steps,
        _finish_cost(kernel, original, windows, swap, lanes, target.l2), launch.fixed_sides(kernel, original, swap),
        sum(prod(x.shape) * x.dtype.itemsize for x in kernel.buffers),
    )


@lru_cache(maxsize=65536)
def _cost(kernel: Kernel, original: Problem, c: Config, target: Any) -> Cost:
    if c.direct is not None:
        return _direct_cost(kernel, original, c, target)
    if c.dot:
        return _dot_cost(kernel, original, c, target)
    at = _setting(kernel, original, c.windows, c.swap, c.rows, target)
    changed, p, a_steps, b_steps = at.changed, at.changed.problem, at.a_steps, at.b_steps
    item, lanes = at.item, at.lanes
    m, n, k, batch = at.sizes
    row_points = at.row
    mt, nt = ceil(m / c.mr), ceil(n / (c.nv * lanes))
    nvs = ceil(n / lanes)
    cycle = lanes / (target.fma_per_second * (4 / item)) * 2  # seconds of one cycle in which two vectors are multiplied
    a_turn, a_load, *_ = at.a
    b_turn, b_load, b_place, b_row = at.b
    if c.rows:
        b_place = b_row
    tasks = min(target.cores, batch * c.split * c.tm * c.tn)
    in_place = not c.windows
    part = ceil(k / c.split)
    kc = min(c.kc or part, part)
    if changed.k_outer:
        kc = k // p.extents[p.k[0]]
    conflicts = traffic.row_conflicts(c, a_steps, item, target.l1)

    # One step of K of a full tile, in cycles: multiply-adds, loads, or the latency of a short chain.
    def step(mr: int, nv: int) -> float:
        fma = mr * nv / 2
        loads = mr / 2 + conflicts * mr + nv / 2 * (b_place if c.b == "inline" else 1.0)
        if c.b == "inline" and b_place > 1:  # masks: moved and combined on the ports of the arithmetic
            fma += nv * b_place * 0.6
        return max(fma, loads, 4.0 if mr * nv >= 1 else 0.0)

    rows = [(mt - 1, c.mr), (1, m - (mt - 1) * c.mr)]
    cols = [(nt - 1, c.nv), (1, nvs - (nt - 1) * c.nv)]
    steps = sum(i * j * step(x, y) for i, x in rows for j, y in cols) * batch * k
    if c.split == 1 and not c.kc and not changed.k_outer:
        n_rows = max(1, c.nv * lanes // row_points) if c.rows else 0
        steps *= search.kept(original, changed, c.swap, c.rows, c.mr, n_rows)
    if c.kc and kc < part and c.mr * c.nv + c.nv + 2 >= target.tile_registers:
        steps *= 1.3  # sums loaded for a block and no register to spare: the allocator rotates them at every step
    tile_overhead = ceil(part / kc) * mt * nt * batch * c.split * (20 + c.mr * c.nv * 1.5 + c.mr * 3)
    pack = batch * m * nvs * at.finish
    # Packing, in cycles: what a vector takes, and how often each is packed.
    once = at.once
    each = "".join(side for side, how in (("a", c.a), ("b", c.b)) if how == "buffer" and side not in once)
    if c.b == "inline" and "b" in once and b_steps.k >= FAR_ROWS:  # panels packed once are read in one stream
        pack += 6.0 * nt * batch * k
    if c.b != "inline":
        times = mt if c.order == "m" and c.b == "panel" else (c.tm if c.b == "panel" else int("b" in each))
        turned = 3.0 if b_turn == "along" else 1.0
        if b_turn == "along" and b_steps.side >= FAR_ROWS and n * k * item > target.l2:
            turned += 4.0  # every block of K begins in each of the rows anew
        pack += times * batch * k * nvs * (b_load * 0.75 + turned)
    if c.a != "inline":
        times = nt if c.order == "n" and c.a == "panel" else (c.tn if c.a == "panel" else int("a" in each))
        vectors = c.mr / lanes if a_turn == "along" else ceil(c.mr / lanes)
        pack += times * batch * k * vectors * mt * (a_load * 0.75 + 1.0)
    for _, w in changed.windows:
        times = batch * c.tm * c.tn * (p.extents[p.k[0]] if changed.k_outer else c.split)
        pack += times * w.elements / lanes * 6
    if changed.k_outer:
        pack += 2 * m * nvs * p.extents[p.k[0]] * batch
    if c.split > 1:
        pack += 2 * c.split * m * nvs * batch
    count = batch * c.split * c.tm * c.tn
    uneven = ceil(count / tasks) * tasks / count
    arithmetic = (steps + tile_overhead + pack) * cycle / tasks * uneven
    a_bytes, b_bytes = batch * m * k * item, batch * n * k * item
    # The side of the inner loop is streamed once per outer tile where a task's range of it exceeds the second level,
    # the outer side once per task.
    inner, how, tiles = (a_bytes, c.a, nt) if c.order == "n" else (b_bytes, c.b, mt)
    outer, again = (b_bytes, c.tm) if c.order == "n" else (a_bytes, c.tn)
    span = traffic.inner_bytes(p, c)
    beside = kc * item * (c.nv * lanes if c.order == "n" else c.mr)  # the outer side's panel
    streamed = inner * (tiles - 1) if span > min(target.l2 * traffic.HELD, target.l2 - beside) else 0.0
    if c.a == "inline" and m > c.mr and nt > 1 and a_steps.side >= 1024 and a_steps.side % 1024 == 0:
        arithmetic *= 1.15  # rows of M fall into the same cache sets
    packed = sum(x for side, x in (("a", a_bytes), ("b", b_bytes)) if side in each)
    held = at.nbytes + packed
    memory = target.seconds_for_bytes(held + packed, held, tasks)
    far = not changed.windows and (a_steps if c.order == "n" else b_steps).k >= FAR_ROWS
    if streamed and (how == "buffer" or how == "inline" and far):  # stretches too short for prefetching to be far ahead
        ranges = 2 * max(min(inner, span * tasks), target.l2 * tasks)
        arithmetic += target.seconds_for_bytes(streamed, ranges, tasks)
    elif streamed:
        memory += target.seconds_for_bytes(streamed, max(held, 2 * target.l2 * tasks), tasks)
    if again > 1:
        memory += target.seconds_for_bytes(outer * (again - 1), max(2 * outer, 2 * target.l2 * tasks), tasks)
    nr = c.nv * lanes
    if in_place:
        slow = traffic.strips(c, b_steps, n, k, nr, item, target.l2) if c.b != "buffer" or "b" in each else 0.0
        memory += target.seconds_for_bytes(b_bytes, held, tasks) * slow
        slow = traffic.strips(c, a_steps, m, k, c.mr, item, target.l2) if c.a == "inline" else 0.0
        arithmetic += target.seconds_for_bytes(a_bytes, held, tasks) * slow
        more = traffic.again(c, a_steps, b_steps, (m, n, k, batch), kc, nr, item, target.l2)
        arithmetic += more / (target.bytes_per_second[2] * tasks)
    if c.b == "inline" and mt > 1 and kc >= 64:
        if b_steps.k >= 1024 and b_steps.k % 1024 == 0:  # the panel's rows fall into the same cache sets
            arithmetic *= 1.2 if kc > traffic.BLOCK else 1.1
        elif b_steps.k >= 4096:
            arithmetic *= 1.02
    return Cost(arithmetic, memory)


def _dot_cost(kernel: Kernel, original: Problem, c: Config, target: Any) -> Cost:
    changed = search.changed_by(kernel, original, c.windows)
    assert changed is not None
    p = changed.problem
    item = p.dtype.itemsize
    lanes = target.lanes(item)
    pointers = search.slots_of(kernel, original, c.windows)
    m_side, n_side = plan.sides(p, c.swap)
    m, n = p.count(m_side.axes), p.count(n_side.axes)
    batch = p.count(p.batch)
    count, points = dot.vectors(p, pointers, lanes), p.extents[p.k[0]] * batch
    row = dot.row_length(p, pointers, lanes) or 0
    loads = []
    for side in (m_side, n_side):
        s = plan.sampler(None, p, side, pointers, p.k[1:], lanes, row)
        loads.append(s.load_cost(lanes) + 0.5 * bool(row))
    tiles = ceil(m / c.mr) * ceil(n / c.nv)
    step = max(c.mr * c.nv / 2, (c.mr * loads[0] + c.nv * loads[1]) / 2) + 0.1 * (c.mr + c.nv)
    cycles = points * (tiles * (count * step + 30) + 2.0 * m * n) + batch * c.split * m * n * 12
    for _, w in changed.windows:
        cycles += points * w.elements / lanes * 6
    cycle = lanes / (target.fma_per_second * (4 / item)) * 2
    tasks = min(target.cores, batch * c.split)
    size = sum(prod(x.shape) * x.dtype.itemsize for x in kernel.buffers)
    return Cost(cycles * cycle / tasks, target.seconds_for_bytes(size, size, tasks))


def _direct_cost(kernel: Kernel, p: Problem, c: Config, target: Any) -> Cost:
    assert c.direct is not None
    item = p.dtype.itemsize
    lanes = target.lanes(item)
    v = c.direct.vector
    after = _after(kernel, p, (v,) if v < len(p.piece.extents) else (), lanes, target.l2)
    cycle = lanes / (target.fma_per_second * (4 / item)) * 2
    points = p.count(c.direct.outer)
    tasks = min(target.cores, points)
    uneven = ceil(points / tasks) * tasks / points
    size = sum(prod(x.shape) * x.dtype.itemsize for x in kernel.buffers)
    arithmetic = box.cycles(kernel, p, c, lanes, after, target.l1) * cycle / tasks * uneven
    return Cost(arithmetic, target.seconds_for_bytes(size, size, tasks))


@lru_cache(maxsize=4096)
def _finish_cost(kernel: Kernel, p: Problem, windows: plan.Windows, swap: bool, lanes: int, l2: int) -> float:
    changed = search.changed_by(kernel, p, windows)
    assert changed is not None
    return _after(kernel, p, plan.sides(changed.problem, swap)[1].axes, lanes, l2)


@lru_cache(maxsize=4096)
def _after(kernel: Kernel, p: Problem, axes: tuple[int, ...], lanes: int, l2: int) -> float:
    """Cycles to load, compute and store what follows the sum, for one vector along the axes."""
    results = finish.epilogue(kernel, p)
    extra = finish.addresses(kernel, p, [n for _, n in results])
    pointers = {n: Pointer(None, x.shape, x.dtype) for n, x in enumerate(kernel.buffers)}
    s = Sampler(None, [x for x, _ in results], (), p.extents, pointers, axes, lanes, extra, (-1,))
    out = s.load_cost(lanes) + 0.5 * finish.operations(s.exprs)
    for f, (_, n) in zip(s.extra, results, strict=True):
        kind = s.kind(f, lanes)
        if kind == "gather":
            stride = s.forms[f].coef.get(s.lane_groups[-1].inner, 0) * kernel.buffers[n].dtype.itemsize
            size = prod(kernel.buffers[n].shape) * kernel.buffers[n].dtype.itemsize
            out += lanes * traffic.scattered(abs(stride), size, l2)
        elif kind == "uniform":
            out += 1.0
        else:
            out += s.row_cost(f) * (1.5 * s.runs(lanes) if kind == "runs" else 1.0)
    return out


__all__ = ["PATTERN", "Config", "Configs", "Contraction", "Lowered"]
