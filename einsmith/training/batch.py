"""Check the arrays of a batch of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einsmith.base.arrays import to_array
from einsmith.base.errors import ShapeError


def batch_arrays(batch: Sequence[Any], may_be_empty: bool = False) -> list[np.ndarray]:
    """Return a batch (inputs..., target) as arrays.

    Raises ShapeError where there is no target, or, unless the batch may be empty, where an array holds no sample.
    """
    if len(batch) < 2:
        raise ShapeError("a training step takes the model's inputs and a target: step(x, y)")
    arrays = [to_array(x, f"argument {i}") for i, x in enumerate(batch)]
    for i, a in enumerate(arrays):
        if a.ndim and a.shape[0] == 0 and not may_be_empty:
            raise ShapeError(f"argument {i} has shape {a.shape}: a batch needs at least one sample")
    return arrays


def count_samples(arrays: Sequence[np.ndarray]) -> int:
    """Return the number of samples of a batch: the first extent of its target, which is last; 1 for a 0-d target."""
    return len(arrays[-1]) if arrays[-1].ndim else 1
