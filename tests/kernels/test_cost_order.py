"""Predicted costs of random kernels keep the order that they must have, whatever the terms of the model: a better
machine never makes the chosen configuration slower, and more work is never done in less time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.random import default_rng

from benchmarks import choices as cases
from benchmarks import kernel_cases, random_cases
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from tests.kernels.runner import NARROW, WIDE

MACHINES = {"narrow": NARROW, "wide": WIDE, "server": Target(vector_bytes=64, vector_registers=32, cores=8)}
ROUNDING = 1e-9
BETTER: dict[str, tuple[Callable[[Target], Target], float]] = {
    "faster memory": (lambda t: replace(t, memory_bandwidth=2 * t.memory_bandwidth), 0.0),
    "a faster core for memory": (lambda t: replace(t, core_bandwidth=2 * t.core_bandwidth), 0.0),
    "faster caches": (lambda t: replace(t, bytes_per_second=tuple(2 * x for x in t.bytes_per_second)), 0.0),
    "cheaper launches": (lambda t: replace(t, launch_seconds=t.launch_seconds / 2), 0.0),
    "a larger L3": (lambda t: replace(t, l3=2 * t.l3), 0.0),
}
"""A machine that is better in one respect, and by which part the model may price it higher all the same."""


def seconds(kernel, target: Target) -> float:
    return autoconfig.choose(kernel, target).cost.rank


@pytest.mark.thinned(4)
@pytest.mark.parametrize("number", range(30))
def test_a_better_machine_is_not_slower(number: int) -> None:
    for kernel in cases.kernels_of(random_cases.draw(77, number)):
        for name, target in MACHINES.items():
            before = seconds(kernel, target)
            for what, (make, slack) in BETTER.items():
                after = seconds(kernel, make(target))
                assert after <= before * (1 + slack + ROUNDING), f"{what}: {before} -> {after} on the {name} machine"


@pytest.mark.thinned(4)
@pytest.mark.parametrize("number", range(40))
def test_more_work_takes_longer(number: int) -> None:
    """Of products: a row, a column, a point of K and a point of the batch more."""
    rng = default_rng((78, number))
    m, n, k, batch = (int(np.exp(rng.uniform(0, 7))) for _ in range(4))
    way = "".join(rng.choice(["n", "t"], 2))
    batch = batch % 16 + 2
    shapes = [(m, n, k, batch), (2 * m, n, k, batch), (m, 2 * n, k, batch), (m, n, 2 * k, batch), (m, n, k, 2 * batch)]
    kernels = [cases.kernels_of(kernel_cases.product(*s[:3], way, s[3])) for s in shapes]
    for name, target in MACHINES.items():
        least, *more = (sum(seconds(x, target) for x in found) for found in kernels)
        for shape, price in zip(shapes[1:], more, strict=True):
            assert price >= least * (1 - ROUNDING), f"{shapes[0]} takes {least}, {shape} {price} on the {name} machine"
