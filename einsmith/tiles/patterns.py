"""Configure and price the patterns of the tile IR for a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from einsmith.cost.facts import Target
from einsmith.cost.gpu import GpuTarget
from einsmith.kernels.contraction.problem import problems
from einsmith.kernels.pattern import Cost, Lowered, Pattern
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.tiles.lower import lower, patterns
from einsmith.tiles.pieces import Tiling


@dataclass(frozen=True)
class TileConfig:
    """Tile sizes, the warps of a program, and the turns of a loop that are loaded ahead.

    m, n, k, split: as in `pieces.Tiling`."""

    m: int = 256
    n: int = 64
    k: int = 64
    split: int = 1
    warps: int = 4
    stages: int = 3

    def tiling(self, precision: str) -> Tiling:
        """Return the tile sizes, with the precision of dots."""
        return Tiling(self.m, self.n, self.k, self.split, precision)

    def __str__(self) -> str:
        return " ".join(f"{name}={getattr(self, name)}" for name in ("m", "n", "k", "split", "warps", "stages"))


class TilePattern(Pattern):
    """A pattern of the tile IR (`tiles.lower.patterns`) on a card."""

    def __init__(self, kind: str):
        self.kind, self.name = kind, f"tiled {kind}"

    def match(self, kernel: Any) -> bool:
        return self.kind in patterns(kernel)

    def configs(self, kernel: Any, target: Target) -> Sequence[TileConfig]:
        if self.kind == "contraction":
            return [TileConfig(128, 128, 32, warps=8), TileConfig(64, 64, 32)]
        return [TileConfig(1024, 1, 64), TileConfig(64, 1, 256)]

    def cost(self, kernel: Any, config: TileConfig, target: Target) -> Cost:
        assert isinstance(target, GpuTarget)
        moved = sum(b.nbytes for b in kernel.buffers)
        work = sum(prod(p.domain) for k in _kernels(kernel) for s in k.stages for p in s.template.parts)
        rate = target.rate(target.precision if self.kind == "contraction" else "ieee")
        products = problems(kernel.root) if self.kind == "contraction" else None
        if products:
            work = sum(prod(p.sizes) for p in products)
        return Cost(2 * work / rate, moved / target.memory_bandwidth, 0.0, target.launch_gap)

    def lower(self, kernel: Any, config: TileConfig, target: Target) -> Lowered:
        assert isinstance(target, GpuTarget)
        return lower(kernel, config.tiling(target.precision), self.kind)


def _kernels(kernel: Kernel | Rows) -> list[Kernel]:
    return [m.kernel for m in kernel.members] if isinstance(kernel, Rows) else [kernel]


TILE_PATTERNS: tuple[Pattern, ...] = tuple(
    map(TilePattern, ("pointwise", "stencil", "contraction", "reduction", "rows", "scatter"))
)
"""The patterns of cards."""
