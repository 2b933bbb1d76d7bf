"""Resolve dimensions that attributes and inputs of operators name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base.errors import ShapeError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.lang.builder import Value


def axis(d: int, rank: int) -> int:
    """Return a dimension, negative from the end, counted from the front. Raises ShapeError."""
    if not -rank <= d < rank:
        raise ShapeError(f"axis {d} is no dimension of a tensor that has {rank}")
    return d % rank


def axes(listed: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return dimensions, negative from the end, counted from the front. Raises ShapeError if one is named twice."""
    dims = tuple(axis(d, rank) for d in listed)
    if len(set(dims)) < len(dims):
        raise ShapeError(f"axes {tuple(listed)[:8]} name a dimension twice")
    return dims


def axes_of(n: NodeCall, given: Any, rank: int, name: str = "axes") -> tuple[int, ...] | None:
    """Return the dimensions that an input, or an attribute in older versions, names; None if none are given."""
    listed: Sequence[int] | None = n.attr(name) if given is None else n.ints(given, f"{name} of {n.node}")
    return None if listed is None else axes(listed, rank)


def move_to_end(x: Value, d: int) -> Value:
    """Return x with dimension d moved to the end."""
    return x.transpose(*(k for k in range(x.ndim) if k != d), d) if d != x.ndim - 1 else x


def move_back(x: Value, d: int) -> Value:
    """Return x with the last dimension moved to place d."""
    return x.transpose(*range(d), x.ndim - 1, *range(d, x.ndim - 1)) if d != x.ndim - 1 else x
