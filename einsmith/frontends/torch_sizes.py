"""Choose whether calls from PyTorch that differ in sizes share programs."""

from __future__ import annotations

import torch

from einsmith.base.environment import AUTO, EACH
from einsmith.cost.facts import CPU
from einsmith.driver.sizes import choose_sizes


def choose(device: str, sizes: str | None = None) -> str:
    """Return "each", "shared" or "auto" for a checked choice, EINSMITH_SIZES's where that is None.

    Where neither says anything, sizes share programs, unless these run on a card, where kernels compute all of the
    capacity, or PyTorch is to compute deterministically: which program a size has depends on the sizes before it."""
    return choose_sizes(sizes, default=EACH if device != CPU or torch.are_deterministic_algorithms_enabled() else AUTO)
