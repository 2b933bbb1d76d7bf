"""Enumerate the instructions of functions of tiles, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from einsmith.tiles.ir import ROUNDINGS, TileFunction, TileLoop, TileOp, TileType


def operations(body: Sequence[TileOp | TileLoop]) -> Iterator[TileOp]:
    """Yield all instructions, the ones in loops at the loops' positions."""
    for x in body:
        if isinstance(x, TileLoop):
            yield from operations(x.body)
        else:
            yield x


def rounding_of(functions: Sequence[TileFunction]) -> float:
    """Return the factor by which products of some functions round more than arithmetic of their types."""
    precisions = {x.attrs[0] for f in functions for x in operations(f.body) if x.name == "dot"}
    return max((ROUNDINGS[p] for p in precisions), default=1.0)


def count_lanes(type: TileType) -> int:
    """Return the number of lanes of a tile."""
    return prod(type.shape)
