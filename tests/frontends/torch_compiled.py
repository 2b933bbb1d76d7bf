"""What the tests of torch.compile's backend share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import einsmith.frontends.torch  # noqa: F401 - registers the backend
import einsmith.frontends.torch_compile.options  # noqa: F401 - has the bound of what is said once
from tests.caches import forget


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    forget("operators that run in PyTorch")


def compiled(f: Callable, **options: Any) -> Callable:
    """f by the backend, where nothing may run in PyTorch."""
    return torch.compile(f, backend="einsmith", options={"fallback": "error", **options})


def randn(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def agree(a: Any, b: Any, rtol: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=rtol, atol=rtol, check_stride=True)
