"""Fused kernels as the kernels that they stand for compute the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_shapes
from einsmith.base import dtypes as dt
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.plan import KernelCall
from einsmith.schedule.planner import fuse
from einsmith.schedule.split_kernel import split_kernel, split_stages
from tests.kernels import samples as s
from tests.kernels.runner import fresh, host, reference

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
    for part, places in parts:
        given = [made[p] if p in made else arrays[p] if isinstance(p, int) else np.empty(b.shape, b.dtype.numpy)
                 for p, b in zip(places, part.buffers, strict=True)]  # fmt: skip
        found = reference(part, given)
        made |= {places[n]: x for n, x in found.items()}
    for n, x in want.items():
        np.testing.assert_array_equal(made[n], x)


def test_intermediate_stages_are_stored_when_split() -> None:
    kernel = FUSED["bias"]
    total, relu = split_kernel(kernel)
    assert len(total.buffers) == len(relu.buffers) == 3 and total.buffers[2] == relu.buffers[0]
    assert list(split_kernel(total)) == [total]


def test_members_of_rows() -> None:
    n = 3 * host().l1

    def softmax(x):
        return es.functional.softmax(x, 1)

    (rows,) = (k for k in _kernels(softmax, (64, n // 64)) if isinstance(k, Rows))
    assert [k.root for k in split_kernel(rows)] == [stage.template for stage in rows.stages]
    assert len(list(split_kernel(rows))) >= 3


def _kernels(f: Callable, *shapes: tuple[int, ...]) -> list[Kernel]:
    graph = run_passes(trace_shapes(f, [(shape, dt.f32) for shape in shapes]).graph)
    return [call.kernel for call in fuse(graph, None).calls if isinstance(call, KernelCall)]
