"""Kernels some of whose pieces are reduced and some not, as kernels of each kind."""

from __future__ import annotations

import pytest

from einsmith.kernels import autoconfig
from einsmith.schedule.contraction_problem import problems
from tests.kernels.runner import check, host
from tests.kernels.samples import pointwise_dx

BY_KIND = autoconfig.pattern_of("by kind")


@pytest.mark.thinned(6)
@pytest.mark.parametrize("case", [
    (2, 3, 9, 13, 5, 2), (1, 2, 2, 17, 4, 2), (2, 3, 7, 8, 4, 3), (3, 2, 31, 33, 1, 2), (2, 3, 4, 9, 3, 2, True),
])  # fmt: skip
def test_common_parts_of_phases_are_one_kernel(case):
    """Phases of images with odd sides: sums and the zeros between them are stored together but for the edges."""
    kernel = pointwise_dx(*case)
    assert problems(kernel.root) is None and BY_KIND.match(kernel)
    ((inner, *edges),) = BY_KIND.ways(kernel, host())
    (p,) = problems(inner.root)
    assert len(p.constant_pieces) == case[5] ** 2 - 1
    assert 0 < len(edges) <= 2
    check(BY_KIND, kernel, configs=BY_KIND.configs(kernel, host())[:8])


def test_phases_that_share_no_points_are_apart():
    """A row of results, of which the second of every two is in no phase but one."""
    kernel = pointwise_dx(2, 3, 1, 9, 4, 2)
    ((sums, zeros),) = BY_KIND.ways(kernel, host())
    assert problems(sums.root) is not None and problems(zeros.root) is None
    check(BY_KIND, kernel, configs=BY_KIND.configs(kernel, host())[:2])
