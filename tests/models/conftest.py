"""How many training steps a network is compared over."""

import pytest


@pytest.fixture(params=[3, pytest.param(20, marks=pytest.mark.slow)], ids=["three", "twenty"])
def steps(request: pytest.FixtureRequest) -> int:
    return request.param
