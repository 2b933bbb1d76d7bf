"""A pattern of cards whose configurations differ in the warps of a program alone, and some of which are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from einsmith.cost.facts import Target
from einsmith.cost.roofline import Cost
from einsmith.gpu.tiles.ir import TileFunction
from einsmith.gpu.tiles.lower import lower
from einsmith.gpu.tiles.pieces import Tiling
from einsmith.kernels.pattern import Launch, Lowered, Pattern
from einsmith.schedule.kernel import Rows

CRASH = "crash"
"""What the names of functions begin with that end the process."""
CRASHING = (9, 9), (5, 2)
"""Shapes of the kernels that have such a configuration: a process takes a while to start again."""
FASTEST = 2
"""Warps of the fastest configuration that is right."""


@dataclass(frozen=True)
class PlantedConfig:
    way: str = "right"
    warps: int = 8
    stages: int = 1


class PlantedTiles(Pattern):
    """Takes every kernel; the model chooses eight warps."""

    name = "planted tiles"
    version = 1

    def match(self, kernel: Any) -> bool:
        return True

    def configs(self, kernel: Any, target: Target) -> Sequence[PlantedConfig]:
        right = [PlantedConfig("right", warps) for warps in (8, 4, FASTEST)]
        crash = [PlantedConfig(CRASH, 1)] if kernel.shape in CRASHING and not isinstance(kernel, Rows) else []
        return [*right, PlantedConfig("wrong", 1), *crash]

    def cost(self, kernel: Any, config: PlantedConfig, target: Target) -> Cost:
        # What ends the process is tried first: what has been prepared before is lost with it.
        rank = 1.0 if config == PlantedConfig() else 1.001 if config.way == CRASH else 1.0 + 0.01 * config.warps
        return Cost(1e-6 * rank, 0.0)

    def lower(self, kernel: Any, config: PlantedConfig, target: Target) -> Lowered:
        lowered = lower(kernel, Tiling(m=8, n=16, k=16, split=1, precision="ieee"))
        return replace(lowered, launches=[Launch(changed(x.function, config.way), x.tasks) for x in lowered.launches])


def changed(f: TileFunction, way: str) -> TileFunction:
    if way == "wrong":  # some results are not stored
        return replace(f, programs=f.programs - 1)
    return replace(f, name=f"{CRASH}_{f.name}") if way == CRASH else f
