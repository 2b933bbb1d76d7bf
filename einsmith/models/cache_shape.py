"""Say what a language model lets others exchange and keep: its attention, and the keys and values of its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from einsmith.tracing.builder import Value

Attend = Callable[[Value, Value, Value], Value]
"""Function from queries [B, heads, T, width], keys and values [B, shared heads, T, width] to averages of values."""


@dataclass(frozen=True)
class CacheShape:
    """What generation keeps of each token in each layer.

    Args:
        heads: heads of keys and values
        width: features of a head
        windows: for each layer, how many keys a query sees, its own included; 0: all
        most_steps: most tokens of a text, infinite where there is no limit
    """

    heads: int
    width: int
    windows: tuple[int, ...]
    most_steps: float
