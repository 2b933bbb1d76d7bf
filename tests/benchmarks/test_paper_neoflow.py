"""NeoFlow's experiments: what their tables say of cells, whatever peers there are."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import worker
from benchmarks.paper import neoflow, neoflow_cases
from benchmarks.paper.experiment import Plan
from benchmarks.tuning import FIRST_TURN, TURNS


def _row(first: float, step: float, **more: Any) -> dict[str, Any]:
    return {"status": "ok", "first": first, "by_turn": [step] * TURNS, "steps": FIRST_TURN * TURNS, **more}


def _cell(job: Any) -> dict[str, Any]:
    """Return a cell in which PyTorch is missing, and the last peer has failed."""
    rows: dict[str, Any] = {p: {"status": "ok", "median": 1.0 + n} for n, p in enumerate(job.peers)}
    rows |= {"torch": {"status": "missing"}, job.peers[-1]: {"status": "failed"}}
    return {"peers": rows}


def test_the_first_step_ends_with_the_first_call() -> None:
    row = _row(2.0, 0.01)
    assert neoflow_cases._done(row, 1.9) == 0.0
    assert neoflow_cases._done(row, 2.0 + FIRST_TURN * 0.01) == pytest.approx(1 + FIRST_TURN)
    assert neoflow_cases._done(row, 1e9) == 1 + FIRST_TURN * TURNS


def test_who_begins_late_and_is_faster_overtakes() -> None:
    late, early = _row(1.0, 0.01), _row(0.1, 0.02)
    since = neoflow_cases._overtakes(late, early)
    assert since is not None and neoflow_cases._done(late, since) > neoflow_cases._done(early, since)
    assert neoflow_cases._overtakes(early, late) is None
    cells = {"torch/x": early, "dynamic/x": late | {"explored": {"tried": 3, "kept": 1, "state": "over"}}}
    latency, steps = neoflow_cases.show_dynamic(cells)
    assert [row[0] for row in latency.rows] == ["PyTorch", "Einsmith, dynamic mode"]
    assert steps.remarks[0].startswith("Einsmith has done more steps than PyTorch from")
    (alone,) = neoflow_cases.show_dynamic({"torch/x": {"status": "failed"}, "dynamic/x": late})
    assert len(alone.rows) == 1


@pytest.mark.parametrize("quick", [True, False])
def test_tables_leave_out_what_is_missing(quick: bool) -> None:
    plan = Plan(quick, 2)
    for experiment in neoflow.PAPER.experiments:
        jobs = experiment.jobs(plan)
        assert all(job.peers[0] == "einsmith" and {*job.peers} <= {*worker.PEERS} for job in jobs)
        if jobs:
            cells = {job.key: _cell(job) for job in jobs}
            rows = [row for shown in experiment.show(cells) for row in shown.rows]
            assert len(rows) >= len(cells), experiment.figure


def test_a_cell_is_the_same_in_every_figure() -> None:
    peers: dict[str, Any] = {}
    for experiment in neoflow.PAPER.experiments:
        for job in experiment.jobs(Plan(False, 2)):
            assert peers.setdefault(job.key, job.peers) == job.peers
