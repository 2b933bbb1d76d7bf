"""Fused kernels as the kernels that they stand for compute the same."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.schedule.split_kernel import split_stages
from tests.kernels import samples as s
from tests.kernels.runner import fresh, reference

FUSED = {
    "bias": s.biased(s.product(5, 7, 3), 1),
    "bias, the sum is stored too": s.biased(s.product(5, 7, 3), 1, keep=True),
    "update": s.updated(s.product(4, 6, 3)),
    "twice": s.biased(s.biased(s.conv(2, 3, 6, 5, 4, 3, 3, 1), 1), 1),
}


@pytest.mark.parametrize("name", FUSED)
def test_stages_of_a_kernel(name: str) -> None:
    kernel = FUSED[name]
    arrays = fresh(kernel, 3)
    want, made = reference(kernel, arrays), dict[object, np.ndarray]()
    parts = split_stages(kernel)
    assert len(parts) == len(kernel.stages) > 1 and all(len(x.kernel.stages) == 1 for x in parts)
    for part, places, _ in parts:
        given = [made[p] if p in made else arrays[p] if isinstance(p, int) else np.empty(b.shape, b.dtype.numpy)
                 for p, b in zip(places, part.buffers, strict=True)]  # fmt: skip
        found = reference(part, given)
        made |= {places[n]: x for n, x in found.items()}
    for n, x in want.items():
        np.testing.assert_array_equal(made[n], x)


def test_intermediate_stages_are_stored_when_split() -> None:
    kernel = FUSED["bias"]
    total, relu = (x.kernel for x in split_stages(kernel))
    assert len(total.buffers) == len(relu.buffers) == 3 and total.buffers[2] == relu.buffers[0]
    assert [x.kernel for x in split_stages(total)] == [total]
