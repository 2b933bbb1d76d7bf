"""The networks that are trained in a group beside DistributedDataParallel."""

import numpy as np
import pytest

from benchmarks.distributed import CASES

torch = pytest.importorskip("torch", reason="the twins are PyTorch's")

from einsmith.bench.in_torch import in_torch  # noqa: E402


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_a_twin_has_the_parameters_of_the_network(name) -> None:
    problem = CASES[name](2)
    own = {n: np.shape(v) for n, v in problem.make_network().state_dict().items()}
    twin = in_torch(problem.make_network()).state_dict()
    assert own == {n: tuple(v.shape) for n, v in twin.items()}
