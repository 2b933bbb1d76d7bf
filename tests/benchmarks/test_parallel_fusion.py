"""The programs that are compared differ where they should, and compute the same."""

from __future__ import annotations

import pytest

from benchmarks import parallel_fusion as module


@pytest.mark.parametrize("gradients", [False, True])
def test_narrow_products_are_joined_and_wide_ones_are_not(gradients, monkeypatch) -> None:
    monkeypatch.setattr(module, "ROUNDS", 1)
    monkeypatch.setattr(module, "TURN", 1e-6)
    narrow = module.measure(module.CASES["heads-512x64"], gradients)
    wide = module.measure(module.CASES["qkv-197x320"], gradients)
    assert narrow["joins"] and narrow["joined"] and wide["joined"] and not wide["joins"]
    assert set(narrow["seconds"]) == {"apart", "joined", "decided"} and min(narrow["seconds"].values()) > 0
    assert narrow["apart"] < 1e-4
