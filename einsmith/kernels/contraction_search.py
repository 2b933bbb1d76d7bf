"""Which configurations of a contraction are worth a prediction: windows, register tiles, how operands are reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any

from einsmith.expr.kernel import Kernel
from einsmith.kernels import contraction_box as box
from einsmith.kernels import contraction_dot as dot
from einsmith.kernels import contraction_launch as launch
from einsmith.kernels import contraction_plan as plan
from einsmith.kernels import contraction_traffic as traffic
from einsmith.kernels import contraction_trim as trim
from einsmith.kernels.contraction_plan import Config
from einsmith.kernels.contraction_problem import Problem
from einsmith.kernels.contraction_sample import Pointer

MAX_K_PANEL = 1 << 19
"""Bytes of a packed panel over K beyond which K is blocked; half of a usual private second-level cache."""


def pointers(kernel: Kernel) -> dict[int, Pointer]:
    root = kernel.stages[0]
    found = {}
    for slot, ref in enumerate(root.args):
        buffer = kernel.buffers[ref[1]]
        found[slot] = Pointer(None, buffer.shape, buffer.dtype)
    return found


def _even(size: int, limit: int) -> int:
    """The tile extent at most `limit` that cuts `size` most evenly into the fewest tiles."""
    return ceil(size / ceil(size / limit))


def _rows_limit(nv: int, registers: int) -> int:
    return max(1, min((registers - nv) // nv, 28 if nv == 1 else 14))


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


def _shares(config: Config, m: int, n: int, batch: int, lanes: int, target: Any) -> tuple[int, int]:
    """Tasks along M and along N: enough for every core, cut on the side that is not packed twice."""
    mt, nt = ceil(m / config.mr), ceil(n / (config.nv * lanes))
    others = batch * config.split
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
def changed_by(kernel: Kernel, p: Problem, windows: plan.Windows) -> plan.Windowed | None:
    return plan.windowed(p, windows, plan.WINDOW_BYTES) if windows else plan.Windowed(p, (), False)


@lru_cache(maxsize=1024)
def slots_of(kernel: Kernel, p: Problem, windows: plan.Windows) -> dict[int, Pointer]:
    changed = changed_by(kernel, p, windows)
    assert changed is not None
    return {**pointers(kernel), **plan.window_pointers(changed, [None] * len(windows))}


_WINDOWS: tuple[plan.Windows, ...] = (
    (),
    *(((i, fixes),) for i in (0, 1) for fixes in ("all", "side", "k")),
    *(((0, fixes), (1, fixes)) for fixes in ("all", "k")),
)


@dataclass
class Least:
    """The least `rank` of a cost so far."""

    rank: float = float("inf")


def candidates(kernel: Kernel, p: Problem, target: Any, least: Least | None = None) -> Iterator[Config]:
    """Configurations whose cost may be below `least`, which the caller lowers as it goes on; all where there is none.
    """
    least = least or Least()
    for windows in _WINDOWS:
        changed = changed_by(kernel, p, windows)
        if changed is not None:
            yield from dict.fromkeys(_some(kernel, p, changed, windows, target, least))
            lanes = target.lanes(p.dtype.itemsize)
            slots = slots_of(kernel, p, windows)
            yield from dot.configs(changed, windows, slots, lanes, target.vector_registers, target.cores)
    yield from box.configs(kernel, p, pointers(kernel), target)


def _floor(
    original: Problem, changed: plan.Windowed, tile: Config, sizes: tuple[int, int], row: int, target: Any
) -> float:
    """Seconds that no configuration with these windows, sides and register tile is below: the steps of its tiles on all
    cores. sizes: (M, N) in points; row: points of a row of whole vectors, 0 for none."""
    p = changed.problem
    item = p.dtype.itemsize
    lanes = target.lanes(item)
    m, n = sizes
    k, batch = p.count(p.k), p.count(p.batch)
    nvs = ceil(n / lanes)
    mt, nt = ceil(m / tile.mr), ceil(nvs / tile.nv)
    steps = 0.0
    for i, x in ((mt - 1, tile.mr), (1, m - (mt - 1) * tile.mr)):
        for j, y in ((nt - 1, tile.nv), (1, nvs - (nt - 1) * tile.nv)):
            steps += i * j * max(x * y / 2, (x + y) / 2, 4.0)
    steps *= kept(original, changed, tile.swap, tile.rows, tile.mr, max(1, tile.nv * lanes // row) if row else 0)
    cycles = batch * (k * steps + mt * nt * (20 + tile.mr * tile.nv * 1.5 + tile.mr * 3))
    return cycles * lanes / (target.fma_per_second * (4 / item)) * 2 / target.cores


def _some(
    kernel: Kernel, original: Problem, changed: plan.Windowed, windows: plan.Windows, target: Any, least: Least
) -> Iterator[Config]:
    p = changed.problem
    pointers = slots_of(kernel, original, windows)
    item = p.dtype.itemsize
    lanes = target.lanes(item)
    points = p.count(p.k)
    blocks = traffic.blocks_of_k(points, plan.masked_tail(p)) if points >= 2 * traffic.BLOCK and not windows else 0
    for swap, rows in ((False, False), (True, False), (False, True), (True, True)):
        m_side, n_side = plan.sides(p, swap)
        m, n, k, batch = p.count(m_side.axes), p.count(n_side.axes), p.count(p.k), p.count(p.batch)
        row = 0
        if rows:
            if len(n_side.axes) < 2 or not n_side.operand.plain or (1 - int(swap)) not in dict(windows):
                continue
            last = p.extents[n_side.axes[-1]]
            row = plan.row_of(p, n_side, lanes)
            if last == row or last / row < 0.6:
                continue
            n = n // last * row
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
                    yield replace(c, swap=swap)
        for mr, nv in _promising(sizes, m, n, k, lanes):
            if _floor(original, changed, Config(swap, mr, nv, rows=rows), (m, n), row, target) >= least.rank:
                continue
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
                            c = Config(swap, mr, nv, a, b, order, kc, split, 1, 1, windows, rows)
                            tm, tn = _shares(c, m, n, batch, lanes, target)
                            c = replace(c, tm=tm, tn=tn)
                            yield c
                            if "buffer" == (a if order == "n" else b) and "panel" not in (a, b) and not windows:
                                yield traffic.in_cache(p, c, target)


@lru_cache(maxsize=4096)
def kept(original: Problem, changed: plan.Windowed, swap: bool, rows: bool, mr: int, nr: int) -> float:
    """The part of K that guards leave for a tile of mr rows of M and nr rows of N."""
    p = changed.problem
    m_side, n_side = plan.sides(p, swap)
    out = 1.0
    for which, axes, points in ((int(swap), m_side.axes, mr), (1 - int(swap), n_side.axes[:-1] if rows else (), nr)):
        found = [t for t in trim.trims(original, which) if t.axes <= {*p.batch, *axes}]
        if found and axes and points:
            out *= trim.share(original, found, axes, points)
    return out
