"""What the process that tunes answers to the program that trains."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from einsmith.cost.roofline import Cost
from einsmith.driver import cpu, workshop
from einsmith.tuning.kernels import records


def searched(chosen: float, *ranks: float) -> Any:
    """A search whose choice and other configurations have these ranks."""
    others = [("other", n, Cost(rank, 0.0)) for n, rank in enumerate(ranks)]
    choice = SimpleNamespace(cost=Cost(chosen, 0.0), alternatives=[("chosen", 0, Cost(chosen, 0.0)), *others])
    return SimpleNamespace(choice=choice, chosen=("chosen", 0))


def test_predictions_are_ratios_to_the_choice() -> None:
    assert workshop.predict_others(searched(2.0, 6.0, 3.0)) == pytest.approx([1.5, 3.0])
    assert workshop.predict_others(searched(1.0, *range(2, 99))) == [float(n) for n in range(2, 18)]


def test_predictions_that_are_no_times_are_dropped() -> None:
    """A pattern may predict that a configuration takes no time."""
    assert workshop.predict_others(searched(1.0, 0.0, 2.0)) == [2.0]
    assert workshop.predict_others(searched(1e-300, 1e300, 2e-300)) == [2.0], "no infinite ratio"
    assert workshop.predict_others(searched(0.0, 0.0, 1.0)) is None
    assert inf not in (workshop.predict_others(searched(5e-324, 1.0)) or [])


@pytest.mark.parametrize(
    ("seconds", "prior", "part"), [(0.6e-3, 1e-3, 0.6), (0.0, 1e-3, 1.0), (1e-3, 0.0, 1.0), (1e-3, inf, 1.0)]
)
def test_a_recorded_configuration_compares_to_the_choice(monkeypatch, seconds, prior, part) -> None:
    kernel: Any = object()
    record = records.Record("k", "tuned", seconds, 0.0, prior, 0.0, 1, "")
    monkeypatch.setattr(workshop.records, "find", lambda k, target: record if k is kernel else None)
    made = workshop.ProcessWorkshop(cpu.CPU.target(1), 1, cpu.CPU.make)
    assert made.find_part(kernel, "tuned") == pytest.approx(part)
    assert made.find_part(kernel, "another") == made.find_part(None, "tuned") == 1.0
