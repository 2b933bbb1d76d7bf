"""Which of their configurations tests of kernels run."""

import pytest

from tests.kernels import runner


@pytest.fixture(autouse=True)
def sample(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All configurations that a test checks, or those of its `sampled(n)`."""
    monkeypatch.setattr(runner, "SAMPLE", runner.Sample(getattr(request, "param", 1)))
