"""A card of which programs think that it is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from einsmith.base.environment import CHECK
from einsmith.driver import registry
from einsmith.driver.cuda import Cuda
from einsmith.kernels import autoconfig
from tests.cuda.fake import backend


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cuda]:
    """Returns a function that puts a card into the machine, as "cuda:0" or another one."""
    monkeypatch.setenv(CHECK.name, "0")
    monkeypatch.setattr(registry, "BACKENDS", dict(registry.BACKENDS))
    monkeypatch.setattr(autoconfig, "OTHERS", dict(autoconfig.OTHERS))

    def insert(**options) -> Cuda:
        made = backend(**options)
        registry.BACKENDS.pop(made.name, None)
        registry.register(made)
        return made

    return insert
