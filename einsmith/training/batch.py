"""Read the batches of a training step: the model's inputs, then a target or a tuple of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einsmith.base.arrays import is_array, to_array
from einsmith.base.errors import ShapeError


def targets_of(batch: Sequence[Any]) -> tuple[Any, ...]:
    """Return the targets of a batch: what is last in it or, where that is a tuple of arrays, these. In a batch that is
    itself a list, as PyTorch's DataLoader makes them, the targets may be in a list, too."""
    target = batch[-1]
    is_collection = isinstance(target, (tuple, list) if isinstance(batch, list) else tuple)
    return tuple(target) if is_collection and any(map(is_array, target)) else (target,)


def batch_arrays(batch: Sequence[Any], may_be_empty: bool = False) -> list[np.ndarray]:
    """Return the arrays of a batch (inputs..., target), in order; several targets in a tuple come one after the other.

    Raises ShapeError where there is no target, or, unless the batch may be empty, where an array holds no sample.
    """
    if len(batch) < 2:
        raise ShapeError("a training step takes the model's inputs and a target: step(x, y)")
    if isinstance(batch[-1], (tuple, list)):
        batch = (*batch[:-1], *targets_of(batch))
    arrays = [to_array(x, f"argument {i}") for i, x in enumerate(batch)]
    for i, a in enumerate(arrays):
        if a.ndim and a.shape[0] == 0 and not may_be_empty:
            raise ShapeError(f"argument {i} has shape {a.shape}: a batch needs at least one sample")
    return arrays


def count_samples(target: np.ndarray) -> int:
    """Return the number of samples that a target has: its first extent, or 1 where it is 0-d."""
    return len(target) if target.ndim else 1
