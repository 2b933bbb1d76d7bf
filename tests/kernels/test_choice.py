"""A choice leaves out what cannot win, and is the same as over every pattern and configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einsmith.kernels import autoconfig
from einsmith.kernels.contraction import PATTERN
from einsmith.target.facts import Target
from tests.kernels.samples import conv, conv_dw, conv_dx, product

SERVER = Target(vector_bytes=64, vector_registers=32, l1=48 << 10, l2=1 << 20, l3=32 << 20, cores=2,
                fma_per_second=1.2e11, bytes_per_second=(5e11, 2e11, 8e10), l3_bandwidth=1.5e11)
KERNELS = {
    "matrices": product(64, 300, 257), "transposed": product(33, 1000, 64, "NT"), "row": product(1, 4096, 512),
    "few": product(3, 5, 7), "convolution": conv(4, 16, 14, 14, 32, 3, 3, 1), "first": conv(16, 1, 28, 28, 6, 5, 5, 2),
    "backward": conv_dx(2, 8, 14, 14, 16, 3, 3, 1), "weights": conv_dw(2, 8, 15, 15, 16, 3, 3, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", [SERVER, Target(), replace(SERVER, cores=1)], ids=["server", "small", "one"])
def test_the_choice_is_the_least_of_all(name: str, target: Target) -> None:
    kernel = KERNELS[name]
    chosen = autoconfig.choose(kernel, target)
    pattern, config, cost = chosen.alternatives[0]
    assert (pattern, config) == (chosen.pattern.name, chosen.config) and cost.rank == chosen.cost.rank
    assert len(chosen.alternatives) == len({(p, c) for p, c, _ in chosen.alternatives})
    best = PATTERN.best(kernel, target)
    first = PATTERN.configs(kernel, target)[0]
    assert best == first and PATTERN.best(kernel, target, 0.999999 * PATTERN.cost(kernel, first, target).rank) is None


@pytest.mark.parametrize("name", KERNELS)
def test_bounds_are_below_every_cost(name: str) -> None:
    kernel = KERNELS[name]
    for pattern in autoconfig.PATTERNS:
        if hasattr(pattern, "bound") and pattern.match(kernel):
            costs = [pattern.cost(kernel, c, SERVER).rank for c in pattern.configs(kernel, SERVER)]
            assert 0 < pattern.bound(kernel, SERVER) <= min(costs)
