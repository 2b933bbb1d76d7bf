"""The networks that are trained in a group beside DistributedDataParallel."""

import numpy as np
import pytest

import einsmith as es
from benchmarks.distributed import CASES
from einsmith.bench import twins

torch = pytest.importorskip("torch", reason="the twins are PyTorch's")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_a_twin_has_the_parameters_of_the_network(name) -> None:
    problem = CASES[name](2)
    own = {n: np.shape(v) for n, v in problem.network_of(es.models.get).state_dict().items()}
    twin = problem.network_of(twins.get).state_dict()
    assert own == {n: tuple(v.shape) for n, v in twin.items()}
