"""The table of what each algorithm executes and takes: here, and for another CPU."""

from __future__ import annotations

import sys

import pytest
from rich.console import Console

from benchmarks import algorithms, kernel_cases
from benchmarks.algorithms import best, table, told
from benchmarks.convolutions import Conv


@pytest.fixture
def small(monkeypatch) -> str:
    """The name of a case that takes no time."""
    case = next(kernel_cases.convolution(Conv(3, 4, 3, 1, 1, 6), 2))
    monkeypatch.setitem(kernel_cases.CASES, case.name, case)
    return case.name


def test_another_cpu_is_priced_and_not_measured(small, monkeypatch, capsys):
    rows = told(small, "neon")
    assert rows[-1]["algorithm"] == "scalar" and rows[0]["predicted"] <= min(x["predicted"] for x in rows)
    assert all("measured" not in x and x["floats"] > 0 for x in rows)
    monkeypatch.setattr(sys, "argv", ["algorithms", small, "--target", "avx2"])
    assert algorithms.main() == 0
    assert "times as fast as scalar code" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["algorithms", small, "--target", "vax"])
    with pytest.raises(SystemExit):
        algorithms.main()


def test_algorithms_are_measured_here(small):
    rows = told(small, "")
    assert all(x["measured"] > 0 for x in rows)
    assert best({small: rows}, "measured") > 1
    console = Console(width=170, record=True)
    console.print(table({small: rows}, True))
    text = console.export_text()
    assert "scalar" in text and "times scalar" in text and "measured, us" in text
