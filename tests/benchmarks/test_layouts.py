"""The experiment behind what layouts are taken to gain: kernels in other orders, the best ones measured."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import layouts
from einsmith.codegen.cache import native
from tests.kernels import samples as s


def test_kernels_in_every_order() -> None:
    kernel = s.bias_relu(5, 17)
    found = [k for _, k in layouts.in_orders(kernel)]
    assert found[0] is kernel and len(found) == len({k.digest for k in found}) > 1
    assert all(k.stages is kernel.stages for k in found)


def test_kernels_are_sorted_by_gain() -> None:
    kernels = Counter({s.bias_relu(5, 17): 1, s.depthwise(1, 64, 28, 28, 3, 2): 3})
    found = layouts.promising(kernels, native.host_target(), 2)
    gains = [kernels[now.kernel] * (now.cost.seconds - best.cost.seconds) for now, best in found]
    assert gains == sorted(gains, reverse=True) and all(g > 0 for g in gains)


@pytest.mark.slow
def test_a_network_is_measured() -> None:
    found = layouts.measure("lenet5-b1", 1, 1)
    assert all(min(*x.predicted, *x.measured) > 0 and x.gains[0] > 1 for x in found)
    assert layouts.table(found).row_count == len(found) <= 1


def test_layouts_are_bounded() -> None:
    """A network with padded windows may gain by zero halos, one without windows may not."""
    found = {n: layouts.bounds(n, 1) for n in ("mlp3-b1", "lenet5-b1")}
    assert found["mlp3-b1"].borders == 0 < found["lenet5-b1"].borders < 1
    assert layouts.bounds_table(found).row_count == 2
