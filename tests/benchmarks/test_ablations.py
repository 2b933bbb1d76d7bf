"""Steps with and without each pass: what is measured, and how it is shown."""

from __future__ import annotations

import os

import pytest
from rich.console import Console

from benchmarks.ablations import ALL, FUSING, fusion_table, measured, table
from benchmarks.worker import WorkerError
from einsmith.base import environment
from einsmith.passes.pipeline import optional


@pytest.mark.slow
def test_a_step_is_compared_with_those_that_lack_a_pass():
    cell = measured("lenet5-b1", 1, 2, 100)
    assert set(cell) > {""} and set(cell) <= {"", *optional()}
    assert all(len(c["rounds"]) == 2 and c["kernels"] > 5 for c in cell.values())
    assert environment.WITHOUT.name not in os.environ


def test_times_and_memory_are_ratios_to_the_step_without():
    cell = {
        "": {"rounds": [1.0, 2.0, 1.0], "arena_bytes": 1 << 20, "kernels": 3},
        "recompute": {"rounds": [1.5, 3.0, 9.0], "arena_bytes": 2 << 20, "kernels": 3},
    }
    console = Console(width=120, record=True)
    console.print(table({"net-b1": cell}))
    assert "1.50 (0.50)" in console.export_text()


@pytest.mark.slow
def test_a_step_without_fusion_has_a_kernel_for_each_operator():
    cell = measured("mlp3-b1", 1, 2, 100, [*FUSING, ALL])
    assert {"", "fusion", "update fusion", ALL} <= set(cell) and "parallel fusion" not in cell
    assert cell[""]["calls"] < cell["fusion"]["calls"] < cell[ALL]["calls"]
    console = Console(width=120, record=True)
    console.print(fusion_table({"mlp3-b1": cell}))
    assert "all of these" in console.export_text()


@pytest.mark.slow
def test_another_loss_is_no_comparison(monkeypatch):
    monkeypatch.setattr("benchmarks.ablations.CLOSE", -1.0)
    with pytest.raises(WorkerError, match="the first loss is"):
        measured("lenet5-b1", 1, 1, 100)
