"""The benchmark of graph searches: what it reads from their reports, and one search of a small network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import graph_search

CELL: dict[str, Any] = {
    "compiled": 1.5,
    "seconds": 5.0,
    "tried": 4,
    "before": 0.0,
    "after": 0.0,
    "decisions": [],
    "log": [
        "without layouts: changes no kernel",
        "without epilogue sums: 0.968 of the time",
        "cut 01234567 (t3): 0.951 of the time",
        "cut 01234567 (t3): in a second race 0.991 of the time",
        "cut 89abcdef (t4, t5): 1.020 of the time, while other processes keep the processors busy",
        "order 01234567 1,0 (t3): not tried, as no time is left",
    ],
}


def test_ratios_are_read_from_the_report() -> None:
    found = graph_search.ratios(CELL)
    assert found == {"without": [0.968], "cut": [0.951, 1.02], "join": [], "order": []}
    kept = CELL | {"decisions": ["cut 01234567"], "before": 2e-3, "after": 1e-3}
    table = graph_search.table({"a": CELL, "b": kept})
    columns = [list(column.cells) for column in table.columns]
    assert columns[1:3] == [["1: 0.968"] * 2, ["2: 0.951"] * 2]
    assert columns[5:] == [["", "cut 01234567"], ["", "2.00 ms"], ["", "1.00 ms"]]


def test_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    searched: list[tuple] = []
    monkeypatch.setattr(graph_search, "search", lambda *arguments: searched.append(arguments) or CELL)
    file = tmp_path / "results.json"
    for _ in range(2):
        assert graph_search.main(["mlp3", "--batch", "4", "--seconds", "2", "--json", str(file)]) == 0
        assert "mlp3-b4-t2" in capsys.readouterr().out
    assert searched == [("mlp3", 4, 2, 2.0)] and json.loads(file.read_text())["cells"] == {"mlp3-b4-t2": CELL}


@pytest.mark.slow
def test_a_network_is_searched() -> None:
    cell = graph_search.search("mlp3", 4, 1, 3.0)
    assert cell["tried"] == sum(map(len, graph_search.ratios(cell).values()))
    assert cell["compiled"] > 0 and cell["seconds"] > 0
