"""Configure and price the patterns of the tile IR for a card, without measuring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from einsmith.cost.facts import Target
from einsmith.gpu.cards import GpuTarget
from einsmith.gpu.tiles.lane_facts import products_of
from einsmith.gpu.tiles.lower import lower, patterns
from einsmith.gpu.tiles.pieces import TileConfig, blocks, least_power
from einsmith.gpu.tiles.price import least_seconds, price, programs_of, row_lanes
from einsmith.gpu.tiles.scatter import scatter_to_reductions
from einsmith.gpu.tiles.segments import sorted_scatter
from einsmith.gpu.tiles.times import Times, cost_of_launches
from einsmith.ir.nodes import Piece, Reduce
from einsmith.kernels.genes import Space
from einsmith.kernels.pattern import Cost, Lowered, Pattern
from einsmith.schedule.kernel import Kernel, Rows

EXTENTS = tuple(1 << n for n in range(13))
"""Extents of tiles."""
DOT_EXTENTS = (16, 32, 64, 128, 256)
"""Extents of the tiles of dots: no less than tensor cores take, and sums that registers hold."""
WARPS, STAGES = (1, 2, 4, 8), (1, 2, 3, 4)
SPLITS = tuple(1 << n for n in range(9))
"""Numbers of programs that share the terms of a sum."""
MOST_LANES = 1 << 14
"""Most lanes of a tile of terms: 64 registers of 8 warps for each tensor that is read."""
_DOT_TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64),
    (128, 16), (16, 128), (32, 32), (64, 16), (16, 64), (16, 16),
)  # fmt: skip
_SUM_TILES = (
    (1, 512), (1, 2048), (4, 256), (4, 1024), (16, 64), (16, 256), (32, 32), (64, 16), (128, 8), (128, 32), (256, 4),
)  # fmt: skip
"""Results and terms of a tile that are worth pricing."""


class TilePattern(Pattern):
    """A pattern of the tile IR (`gpu.tiles.lower.patterns`) on a card."""

    def __init__(self, kind: str):
        self.kind, self.name = kind, f"tiled {kind}"

    def match(self, kernel: Any) -> bool:
        return self.kind in patterns(kernel)

    def configs(self, kernel: Any, target: Target) -> Sequence[TileConfig]:
        assert isinstance(target, GpuTarget)
        return _configs(self.kind, kernel, target)

    def space(self, kernel: Any, target: Target) -> Space:
        configs = self.configs(kernel, target)
        space: Space = {"m": EXTENTS, "n": (1,), "k": (1,), "split": (1,), "warps": WARPS, "stages": (1,)}
        if self.kind == "contraction":
            space |= {"m": DOT_EXTENTS, "n": DOT_EXTENTS, "k": DOT_EXTENTS, "stages": STAGES}
        elif self.kind == "rows":
            space |= {"n": DOT_EXTENTS, "k": EXTENTS}
        elif self.kind in ("sweeps", "members"):
            space |= {"m": DOT_EXTENTS, "n": DOT_EXTENTS, "k": DOT_EXTENTS, "stages": STAGES}
        elif self.kind in ("reduction", "scatter"):
            space |= {"k": EXTENTS}
        if self.kind in ("contraction", "reduction", "scatter"):
            space |= {"split": tuple(sorted({*SPLITS, *(c.split for c in configs)}))}
        return space

    def legal(self, kernel: Any, config: Any, target: Target) -> str:
        assert isinstance(target, GpuTarget)
        space = self.space(kernel, target)
        strange = [f"{g}={getattr(config, g)}" for g, values in space.items() if getattr(config, g) not in values]
        if strange:
            return f"the pattern has no {', '.join(strange)}"
        if self.kind in ("sweeps", "members"):
            return ""
        if self.kind != "contraction":
            lanes = row_lanes(kernel, config) if self.kind == "rows" else config.m * config.k
            return "" if lanes <= MOST_LANES else f"a tile of {lanes} lanes has more than the {MOST_LANES} of registers"
        return _unfit(kernel, config, target)

    def cost(self, kernel: Any, config: TileConfig, target: Target) -> Cost:
        return cost_of_launches(self.times(kernel, config, target))

    def times(self, kernel: Kernel, config: TileConfig, target: Target) -> list[Times]:
        """Return the predicted seconds of each launch, by resource."""
        assert isinstance(target, GpuTarget)
        return price(kernel, self.kind, config, target)

    def floor(self, kernel: Any, target: Target) -> float:
        assert isinstance(target, GpuTarget)
        return least_seconds(kernel, self.kind, target)

    def bound(self, kernel: Any, target: Target) -> float:
        return self.floor(kernel, target)

    def lower(self, kernel: Any, config: TileConfig, target: Target) -> Lowered:
        assert isinstance(target, GpuTarget)
        return lower(kernel, config.tiling(target.precision), self.kind)


TILE_PATTERNS: tuple[Pattern, ...] = tuple(
    map(
        TilePattern,
        ("contraction", "pointwise", "stencil", "reduction", "sweeps", "rows", "members", "joined", "scatter"),
    )
)
"""The patterns of cards."""


@lru_cache(maxsize=1024)
def _configs(kind: str, kernel: Kernel, target: GpuTarget) -> tuple[TileConfig, ...]:
    """Return the configurations worth pricing, each once."""
    if kind in ("sweeps", "members"):
        return tuple(TileConfig(m, 64, k, 1, 4, 3) for m in (64, 128) for k in (32, 64))
    if kind == "joined":
        return tuple(dict.fromkeys(c for k in kernel.parts for c in _configs("pointwise", k, target)))
    if isinstance(kernel, Rows):
        tiles = [TileConfig(m, 64, k) for m in (1, 16, 64, 256, 1024, 4096) for k in (16, 128, 1024)]
        return tuple(c for c in tiles if row_lanes(kernel, c) <= MOST_LANES // 2) or tuple(tiles[:1])
    if kind == "contraction":
        return tuple(dict.fromkeys(_dot_configs(kernel, target)))
    if kind in ("pointwise", "stencil"):
        most = max((least_power(prod(p.extents)) for p in kernel.root.parts if isinstance(p, Piece)), default=1)
        return tuple(dict.fromkeys(TileConfig(min(m, most)) for m in (1024, 512, 256, 128, 2048)))
    if kind == "scatter" and sorted_scatter(kernel) is not None:
        return tuple(TileConfig(m) for m in (256, 128, 512, 1024))
    parts = scatter_to_reductions(kernel) if kind == "scatter" else (kernel,)
    return tuple(dict.fromkeys(_sum_configs(parts, target)))


def _dot_configs(kernel: Kernel, target: GpuTarget) -> Iterator[TileConfig]:
    """Yield configurations for the largest product of a kernel. Tiles larger than it are cut; where tiles are fewer
    than multiprocessors, programs share the terms."""
    p = max(products_of(kernel)[1], key=lambda p: prod(p.sizes))
    batch, m, n, k = p.sizes
    wide, high = max(16, least_power(n)), max(16, least_power(m))
    any_fits = False
    for tm, tn in dict.fromkeys((min(tm, high), min(tn, wide)) for tm, tn in _DOT_TILES):
        tiles = batch * blocks(m, tm) * blocks(n, tn)
        for tk in (32, 64) if k > 32 else (max(16, least_power(k)),):
            config = TileConfig(tm, tn, tk, 1, 8 if tm * tn >= 128 * 128 else 4)
            fitting = (c for stages in (3, 4, 2, 1) if not _unfit(kernel, c := replace(config, stages=stages), target))
            if (chosen := next(fitting, None)) is None:
                continue
            any_fits = True
            for split in _splits(tiles, blocks(k, tk), target):
                yield replace(chosen, split=split)
    if not any_fits:  # the smallest tiles, as they take the least of a multiprocessor
        yield TileConfig(16, 16, 16)


def _splits(tiles: int, turns: int, target: GpuTarget) -> list[int]:
    """Return numbers of programs among which the turns of each tile may be divided, to keep all multiprocessors busy
    with one or two programs; each program keeps at least four turns."""
    most = max(1, min(SPLITS[-1], turns // 4))
    wanted = (blocks(n * target.cores, max(1, tiles)) for n in (1, 2)) if tiles < 2 * target.cores else ()
    return sorted({1, *(min(n, most) for n in wanted)})


def _sum_configs(kernels: Sequence[Kernel], target: GpuTarget) -> Iterator[TileConfig]:
    sums = [p for k in kernels for p in k.root.parts if isinstance(p, Piece) and isinstance(p.body, Reduce)]
    results = max((prod(p.extents) for p in sums), default=1)
    terms = max((prod(p.body.extents) for p in sums if isinstance(p.body, Reduce)), default=1)
    for m, k in dict.fromkeys((min(m, least_power(results)), min(k, least_power(terms))) for m, k in _SUM_TILES):
        for split in _splits(blocks(results, m), blocks(terms, k), target):
            yield TileConfig(m, 1, k, split)


@lru_cache(maxsize=4096)
def _unfit(kernel: Kernel, config: TileConfig, target: GpuTarget) -> str:
    """Return why no multiprocessor can run a contraction's programs; an empty string where one can."""
    unsplit = replace(config, split=1)
    for program in programs_of(kernel, unsplit, target):
        if program.shared > target.shared:
            return f"its tiles take {program.shared} bytes of shared memory, of {target.shared}"
        if program.registers > 2 * 255:
            return f"its tiles take {program.registers} registers of each thread, of 255"
    return ""
