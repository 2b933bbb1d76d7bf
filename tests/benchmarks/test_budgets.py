"""The compile budgets: the graphs are as large as they say, and a budget knows whether it holds."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import budgets
from benchmarks.budgets import Budget


def test_the_graph_has_the_tensors() -> None:
    count, seconds = budgets.python_seconds(90)
    assert 90 <= count < 120 and seconds > 0


def test_verdicts() -> None:
    assert Budget("a", 3).holds and Budget("a", 1, 1.0).holds and not Budget("a", 1.01, 1.0, "s").holds
    assert budgets.show([Budget("a", 3), Budget("b", 2, 1)]).row_count == 2


@pytest.mark.slow
def test_the_networks_kernels_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a whole training step, planned and not compiled."""

    class Planned(Exception):
        pass

    def found(kernels, target):
        raise Planned(kernels)

    monkeypatch.setattr("einsmith.driver.cpu.CPU.compile", found)
    with pytest.raises(Planned) as planned:
        budgets.step_budgets()
    (kernels,) = planned.value.args
    assert 50 < len(set(kernels)) <= budgets.KERNELS


@pytest.mark.slow
def test_a_small_one_trains(rng: np.random.Generator) -> None:
    found = budgets.step_budgets(2, 32, 4)
    assert 10 < found[0].value <= found[1].value and all(b.value > 0 for b in (found[2], found[-1]))
