"""Describe the parts of parameters that one process of a group updates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Shard(NamedTuple):
    """Elements of a parameter's memory, with their accumulated gradient.

    name: the parameter; part: the elements, in the order of its memory; gradient: their gradient [n]; is_whole: whether
    the parameter is updated as a whole, in its own shape."""

    name: str
    part: slice
    gradient: np.ndarray
    is_whole: bool

    def select(self, memory: np.ndarray) -> np.ndarray:
        """Return the piece's elements of memory in the parameter's layout, as a view [n]."""
        return memory.reshape(-1)[self.part]
