"""The contraction pattern: sums of products of any reduction-free factors, on register tiles.

Matrix products, convolutions in every direction, capsule convolutions and attention are all this pattern. What it takes
apart is in contraction_problem, how operands are read and packed in contraction_pack, the loops in contraction_tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod
from typing import Any

from einsmith.expr.kernel import Kernel
from einsmith.kernels import contraction_box as box
from einsmith.kernels import contraction_dot as dot
from einsmith.kernels import contraction_finish as finish
from einsmith.kernels import contraction_launch as launch
from einsmith.kernels import contraction_plan as plan
from einsmith.kernels import contraction_traffic as traffic
from einsmith.kernels import contraction_trim as trim
from einsmith.kernels.contraction_plan import Config
from einsmith.kernels.contraction_problem import Problem, problems
from einsmith.kernels.contraction_sample import Pointer, Sampler
from einsmith.kernels.kernel import Cost, Lowered

FAR_ROWS = 1024
"""Bytes between the rows of an operand beyond which each begins with a wait that no prefetch hides."""
MAX_K_PANEL = 1 << 19
"""Bytes of a packed panel over K beyond which K is blocked; half of a usual private second-level cache."""


@dataclass(frozen=True)
class Configs:
    """One configuration a piece."""

    pieces: tuple[Config, ...]

    def __str__(self) -> str:
        return "; ".join(str(c) for c in dict.fromkeys(self.pieces))


def _pointers(kernel: Kernel) -> dict[int, Pointer]:
    root = kernel.stages[0]
    found = {}
    for slot, ref in enumerate(root.args):
        buffer = kernel.buffers[ref[1]]
        found[slot] = Pointer(None, buffer.shape, buffer.dtype)
    return found


def _even(size: int, limit: int) -> int:
    """The tile extent at most `limit` that cuts `size` most evenly into the fewest tiles."""
    return ceil(size / ceil(size / limit))


class Contraction:
    """The pattern of DESIGN section 4."""

    name = "contraction"

    def match(self, kernel: Kernel) -> bool:
        """Every piece of the root is a sum of products of two groups of factors."""
        root = kernel.stages[0]
        return all(ref[0] == "buffer" for ref in root.args) and problems(kernel.root) is not None

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


def _rows_limit(nv: int, registers: int) -> int:
    """Rows of a tile of nv vectors. Where accumulators, a row's vectors and a broadcast take all registers but one, the
    allocator rotates the accumulators through each other at every step."""
    spare = 1 + registers // 16
    return max(1, min((registers - spare - nv) // nv, 28 if nv == 1 else 14))


def _tiles(m: int, n: int, lanes: int, registers: int) -> list[tuple[int, int]]:
    """Register tiles mr x nv: the accumulators and a row's vectors fit the registers."""
    vectors = ceil(n / lanes)
    out: dict[tuple[int, int], None] = {}
    for nv in (1, 2, 3, 4, 6, 8):
        if nv > max(1, vectors):
            break
        mr = _rows_limit(nv, registers)
        if nv >= 6 and m > mr:
            continue
        out[(_even(m, mr), nv if vectors >= nv else vectors)] = None
    return list(out)


def _promising(sizes: list[tuple[int, int]], m: int, n: int, k: int, lanes: int) -> list[tuple[int, int]]:
    """The three to five tiles of the fewest cycles in multiply-adds and loads; for few results, all of them."""

    def cycles(size: tuple[int, int]) -> float:
        mr, nv = size
        columns = ceil(n / lanes)
        rows = ((m // mr, mr), (1, m % mr))
        vectors = ((columns // nv, nv), (1, columns % nv))
        step = sum(i * j * max(x * y / 2, (x + y) / 2, 4.0) for i, x in rows for j, y in vectors if x and y)
        return k * step + ceil(m / mr) * ceil(columns / nv) * (20 + mr * nv * 1.5 + mr * 3)

    if m * n < 1 << 14:  # how few tiles are shared by the cores matters as much
        return sizes
    found = sorted((cycles(x), i, x) for i, x in enumerate(sizes))
    return [x for i, (c, _, x) in enumerate(found) if i < 3 or (i < 5 and c <= 1.1 * found[0][0])]


def _shares(kernel: Kernel, p: Problem, config: Config, target: Any) -> tuple[int, int]:
    """Tasks along M and along N: enough for every core, cut on the side that is not packed twice."""
    lanes = target.lanes(p.dtype.itemsize)
    m_side, n_side = plan.sides(p, config.swap)
    m, n = p.count(m_side.axes), p.count(n_side.axes)
    if config.rows:
        n = n // p.extents[n_side.axes[-1]] * plan.row_of(p, n_side, lanes)
    mt, nt = ceil(m / config.mr), ceil(n / (config.nv * lanes))
    others = p.count(p.batch) * config.split
    if target.cores == 1 and others >= 1:
        want = 1
    else:
        want = max(1, ceil(4 * target.cores / others))
        want += next(i for i in range(target.cores) if others * (want + i) % target.cores == 0)  # as many for each core
    first, second = (nt, mt) if config.order == "n" else (mt, nt)
    major = min(first, want)
    minor = 1
    if others * major < target.cores:
        minor = min(second, ceil(target.cores / (others * major)))
    if major < want and target.cores > 1:  # even shares are worth packing the outer side once more in each
        packed = (config.b if config.order == "n" else config.a) == "panel"
        minor = max(minor, min(second // 8 if packed else second, ceil(want / major)))
    return (minor, major) if config.order == "n" else (major, minor)


@lru_cache(maxsize=1024)
def _changed(kernel: Kernel, p: Problem, windows: plan.Windows) -> plan.Windowed | None:
    return plan.windowed(p, windows, plan.WINDOW_BYTES) if windows else plan.Windowed(p, (), False)


@lru_cache(maxsize=1024)
def _slots(kernel: Kernel, p: Problem, windows: plan.Windows) -> dict[int, Pointer]:
    changed = _changed(kernel, p, windows)
    assert changed is not None
    return {**_pointers(kernel), **plan.window_pointers(changed, [None] * len(windows))}


_WINDOWS: tuple[plan.Windows, ...] = (
    (),
    *(((i, fixes),) for i in (0, 1) for fixes in ("all", "side", "k")),
    *(((0, fixes), (1, fixes)) for fixes in ("all", "k")),
)


@lru_cache(maxsize=4096)
def _candidates(kernel: Kernel, p: Problem, target: Any) -> tuple[Config, ...]:
    out: list[Config] = []
    for windows in _WINDOWS:
        changed = _changed(kernel, p, windows)
        if changed is not None:
            out += _some(kernel, p, changed, windows, target)
            lanes = target.lanes(p.dtype.itemsize)
            slots = _slots(kernel, p, windows)
            out += dot.configs(changed, windows, slots, lanes, target.vector_registers, target.cores)
    out += box.configs(kernel, p, _pointers(kernel), target)
    return tuple(out)


def _some(
    kernel: Kernel, original: Problem, changed: plan.Windowed, windows: plan.Windows, target: Any
) -> list[Config]:
    p = changed.problem
    pointers = _slots(kernel, original, windows)
    item = p.dtype.itemsize
    lanes = target.lanes(item)
    points = p.count(p.k)
    blocks = traffic.blocks_of_k(points, plan.masked_tail(p)) if points >= 2 * traffic.BLOCK and not windows else 0
    out: dict[Config, None] = {}
    for swap, rows in ((False, False), (True, False), (False, True), (True, True)):
        m_side, n_side = plan.sides(p, swap)
        m, n, k, batch = p.count(m_side.axes), p.count(n_side.axes), p.count(p.k), p.count(p.batch)
        if rows:
            if len(n_side.axes) < 2 or not n_side.operand.plain or (1 - int(swap)) not in dict(windows):
                continue
            last = p.extents[n_side.axes[-1]]
            if last % lanes == 0 or last / plan.row_of(p, n_side, lanes) < 0.6:
                continue
            n = n // last * plan.row_of(p, n_side, lanes)
        sizes = _tiles(m, n, lanes, target.tile_registers)
        once = launch.fixed_sides(kernel, p, swap)
        in_place = plan.sampler(None, p, m_side, pointers, (), 0) if m_side.operand.plain else None
        if in_place is not None:
            for nv in {nv for _, nv in sizes}:
                regular = plan.regular_rows(in_place, m_side.axes, _rows_limit(nv, target.tile_registers))
                if regular >= 4 and (regular, nv) not in sizes:
                    sizes.append((regular, nv))
            a_steps = traffic.steps(kernel, original, swap, 0)
            if not windows and a_steps.k == item and a_steps.side >= traffic.LINE:  # rows that share cache sets
                fit = traffic.rows_that_fit(a_steps, target.l1)
                more = [(_even(m, fit), nv) for mr, nv in sizes if mr > fit]
                sizes += [x for x in dict.fromkeys(more) if x not in sizes]
        if not windows and not rows and n_side.operand.plain:
            for nv in {nv for _, nv in sizes}:
                for c in traffic.sweeps(m, n, k, batch, traffic.steps(kernel, original, swap, 1), nv, item, target):
                    out[replace(c, swap=swap)] = None
        for mr, nv in _promising(sizes, m, n, k, lanes):
            can_inline = in_place is not None and plan.row_offsets(in_place, m_side.axes, mr) is not None
            mt, nt = ceil(m / mr), ceil(n / (nv * lanes))
            split = 1
            tiles = batch * mt * nt
            if changed.k_outer:
                split = min(p.extents[p.k[0]], max(1, ceil(4 * target.cores / batch)))
            elif tiles < 2 * target.cores and k >= 512:
                split = min(ceil(k / 256), max(1, ceil(4 * target.cores / tiles)))
                # Panels over a task's part of K stay in the caches.
                split = max(split, ceil(k * (mr + nv * lanes) * item / MAX_K_PANEL))
            for a in ("inline", "panel", "buffer"):
                if a == "inline" and not can_inline:
                    continue
                if a == "buffer" and can_inline and (windows or m <= mr) and "a" not in once:
                    continue
                for b in ("inline", "panel", "buffer"):
                    if rows and b != "inline":
                        continue
                    if (split > 1 or changed.k_outer) and "buffer" in (a, b):
                        continue
                    if "buffer" in (a, b) and any(
                        h == "buffer" and i in dict(windows) for h, i in ((a, int(swap)), (b, 1 - int(swap)))
                    ):
                        continue
                    for order in ("n", "m"):
                        if order == "m" and (b == "panel" and nt > 1):
                            continue
                        if order == "n" and (a == "panel" and mt > 1 and nt > 1) and not blocks:
                            continue
                        if (mt == 1 or nt == 1) and order == "m" and a != "panel":
                            continue
                        if mt == 1 and order == "m":
                            continue
                        for kc in (0, blocks) if blocks and order == "n" and split == 1 else (0,):
                            c = Config(swap, mr, nv, a, b, order, kc, split, rows=rows)
                            tm, tn = _shares(kernel, p, c, target)
                            c = replace(c, tm=tm, tn=tn, windows=windows)
                            out[c] = None
                            if "buffer" == (a if order == "n" else b) and "panel" not in (a, b) and not windows:
                                out[traffic.in_cache(p, c, target)] = None
    return list(out)


@lru_cache(maxsize=4096)
def _ranked(kernel: Kernel, p: Problem, target: Any) -> list[tuple[float, Config]]:
    every = []
    for i, c in enumerate(_candidates(kernel, p, target)):
        launch_seconds = _launches(kernel, p, c) * target.launch_seconds
        every.append((_cost(kernel, p, c, target).rank + launch_seconds, i, c))
    every.sort(key=lambda x: x[:2])
    return [(s, c) for s, _, c in every[:12]]


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
    changed = _changed(kernel, p, windows)
    assert changed is not None
    pointers = _slots(kernel, p, windows)
    p = changed.problem
    side = plan.sides(p, swap)[which]
    turn, cost = plan.orientation(p, side, pointers, lanes, lanes if which else 4)
    s = plan.sampler(None, p, side, pointers, side.axes, lanes)
    row = max((s.row_cost(f) for f in s.reads.values()), default=1.0) if s.lane_groups else 1.0
    return turn, cost, s.load_cost(lanes), row


@lru_cache(maxsize=65536)
def _cost(kernel: Kernel, original: Problem, c: Config, target: Any) -> Cost:
    if c.direct is not None:
        return _direct_cost(kernel, original, c, target)
    changed = _changed(kernel, original, c.windows)
    assert changed is not None
    p = changed.problem
    item = p.dtype.itemsize
    lanes = target.lanes(item)
    m_side, n_side = plan.sides(p, c.swap)
    m, n, k, batch = p.count(m_side.axes), p.count(n_side.axes), p.count(p.k), p.count(p.batch)
    row_points = 1
    if c.rows:
        row_points = plan.row_of(p, n_side, lanes)
        n = n // p.extents[n_side.axes[-1]] * row_points
    if c.dot:
        return _dot_cost(kernel, original, c, target)
    mt, nt = ceil(m / c.mr), ceil(n / (c.nv * lanes))
    nvs = ceil(n / lanes)
    cycle = lanes / (target.fma_per_second * (4 / item)) * 2  # seconds of one cycle in which two vectors are multiplied
    a_turn, a_load, *_ = _orientation(kernel, original, c.windows, c.swap, 0, lanes)
    b_turn, b_load, b_place, b_row = _orientation(kernel, original, c.windows, c.swap, 1, lanes)
    if c.rows:
        b_place = b_row
    tasks = min(target.cores, batch * c.split * c.tm * c.tn)

    in_place = not c.windows
    a_steps = traffic.steps(kernel, p, c.swap, 0) if in_place else traffic.Steps(0, 0)
    b_steps = traffic.steps(kernel, p, c.swap, 1) if in_place else traffic.Steps(0, 0)
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
        steps *= _kept(original, changed, c.swap, c.rows, c.mr, max(1, c.nv * lanes // row_points) if c.rows else 0)
    tile_overhead = ceil(part / kc) * mt * nt * batch * c.split * (20 + c.mr * c.nv * 1.5 + c.mr * 3)
    pack = batch * m * nvs * _finish_cost(kernel, original, c.windows, c.swap, lanes, target.l2)
    # Packing, in cycles: what a vector takes, and how often each is packed.
    each = _buffered(kernel, original, c)
    once = launch.fixed_sides(kernel, original, c.swap)
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
    sizes = [prod(x.shape) * x.dtype.itemsize for x in kernel.buffers]
    a_bytes, b_bytes = batch * m * k * item, batch * n * k * item
    # The side of the inner loop is streamed once per outer tile where a task's range of it exceeds the second level,
    # the outer side once per task.
    inner, how, tiles = (a_bytes, c.a, nt) if c.order == "n" else (b_bytes, c.b, mt)
    outer, again = (b_bytes, c.tm) if c.order == "n" else (a_bytes, c.tn)
    span = traffic.inner_bytes(p, c)
    streamed = inner * (tiles - 1) if span > target.l2 * traffic.HELD else 0.0
    if c.a == "inline" and m > c.mr and nt > 1 and a_steps.side >= 1024 and a_steps.side % 1024 == 0:
        arithmetic *= 1.15  # rows of M fall into the same cache sets
    packed = sum(x for side, x in (("a", a_bytes), ("b", b_bytes)) if side in each)
    held = sum(sizes) + packed
    memory = target.seconds_for_bytes(held + packed, held, tasks)
    if streamed and how == "buffer":  # a stretch a tile, too short for prefetching to be far ahead
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


@lru_cache(maxsize=4096)
def _kept(original: Problem, changed: plan.Windowed, swap: bool, rows: bool, mr: int, nr: int) -> float:
    """The part of K that guards leave for a tile of mr rows of M and nr rows of N."""
    p = changed.problem
    m_side, n_side = plan.sides(p, swap)
    out = 1.0
    for which, axes, points in ((int(swap), m_side.axes, mr), (1 - int(swap), n_side.axes[:-1] if rows else (), nr)):
        found = [t for t in trim.trims(original, which) if t.axes <= {*p.batch, *axes}]
        if found and axes and points:
            out *= trim.share(original, found, axes, points)
    return out


def _dot_cost(kernel: Kernel, original: Problem, c: Config, target: Any) -> Cost:
    changed = _changed(kernel, original, c.windows)
    assert changed is not None
    p = changed.problem
    item = p.dtype.itemsize
    lanes = target.lanes(item)
    pointers = _slots(kernel, original, c.windows)
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
    changed = _changed(kernel, p, windows)
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
