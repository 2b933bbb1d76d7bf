"""The experiments of papers: what is measured, what is kept, and the page that is made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import __main__ as command
from benchmarks.paper import page
from benchmarks.paper.experiment import Bars, Experiment, Paper, Plan, Shown, beside, times_as_fast


def _cell(**seconds: float) -> dict[str, Any]:
    return {"peers": {p: {"status": "ok", "median": t, "version": f"{p} 1"} for p, t in seconds.items()}}


def _paper(measured: list[str], name: str = "sample") -> Paper:
    def cases(plan: Plan) -> Any:
        for key in plan.pick(("a", "b"), ("a",)):
            yield key, lambda key=key: measured.append(key) or {"ms": 1.5}

    def show(cells: Any) -> list[Shown]:
        rows = [(key, str(c["ms"])) for key, c in cells.items()]
        return [Shown(("", "ms"), rows, ["A remark."], Bars(list(cells), {"x": [1.0] * len(cells)}, "ms"))]

    experiment = Experiment("Figure 1", "a sample", "nothing.", show, cases=cases, card="--parts models")
    return Paper(name, "Sample", "Nobody, 2026.", {"an idea": "`docs/training.md`"}, [experiment])


def test_a_run_keeps_each_case_and_goes_on_from_there(tmp_path: Path) -> None:
    measured: list[str] = []
    results = command.PaperResults(tmp_path / "sample.json", timing=False)
    for _ in range(2):
        assert command.run(_paper(measured), results, Plan(False, 1), only="", fresh=False, seconds=60)
    assert measured == ["a", "b"]
    assert json.loads((tmp_path / "sample.json").read_text())["cells"] == {"a": {"ms": 1.5}, "b": {"ms": 1.5}}


def test_a_fresh_run_measures_shared_cases_once(tmp_path: Path) -> None:
    measured: list[str] = []
    paper = _paper(measured)
    twice = replace(paper, experiments=[*paper.experiments, replace(paper.experiments[0], figure="Figure 2")])
    results = command.PaperResults(tmp_path / "sample.json", timing=False)
    for _ in range(2):
        command.run(twice, results, Plan(False, 1), only="", fresh=True, seconds=60)
    assert measured == ["a", "b", "a", "b"]


def test_only_experiments_that_are_named_run(tmp_path: Path) -> None:
    measured: list[str] = []
    results = command.PaperResults(tmp_path / "sample.json", timing=False)
    command.run(_paper(measured), results, Plan(False, 1), only="table", fresh=False, seconds=60)
    assert measured == []


def test_single_rounds_are_not_kept(tmp_path: Path) -> None:
    results = command.PaperResults(tmp_path / "sample.json", timing=False)
    cell = _cell(einsmith=1.0)
    cell["peers"]["einsmith"]["rounds"] = [1.0, 2.0]
    results.keep("a", cell)
    assert "rounds" not in json.loads((tmp_path / "sample.json").read_text())["cells"]["a"]["peers"]["einsmith"]


def test_the_page_shows_what_the_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    unmeasured = page.text([_paper([])])
    assert "Not measured yet: `python -m benchmarks.paper sample`" in unmeasured and "### " not in unmeasured
    results = command.PaperResults(tmp_path / "sample.json", timing=False)
    results.content |= {"quick": True, "threads": 1}
    results.keep("a", {"ms": 2.5})
    drawn: dict[str, Any] = {}
    text = page.text([_paper([])], lambda drawing, name: drawn.setdefault(name, drawing))
    assert "| a | 2.5 |" in text and "A remark." in text and "assets/papers/sample-figure-1.svg" in text
    assert "needs a card: `python -m benchmarks.gpu --out FILE --parts models`" in text
    assert list(drawn) == ["sample-figure-1"]


def test_drawings_are_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "DRAWINGS", tmp_path)
    bars = Bars(["a", "b"], {"x": [1.0, None], "y": [2.0, 3.0]}, "ms", 1.0)
    page.draw(bars, "one")
    page.draw(bars, "two")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_ratios_are_to_the_fastest_of_a_column() -> None:
    cells = {"net-b1-t2": _cell(einsmith=1.0, torch=3.0, compile=2.0), "net-b4-t2": _cell(einsmith=1.0, torch=8.0)}
    shown = beside(cells, {"PyTorch": ["torch", "compile"], "XLA": ["xla"]})
    assert [row[0] for row in shown.rows] == ["net-b1", "net-b4"]
    assert [row[3:5] for row in shown.rows] == [["", "2.00"], ["", "8.00"]]
    assert shown.remarks == ["Einsmith's speed as a ratio to PyTorch, geometric mean of 2: 4.00."]
    assert times_as_fast(cells["net-b4-t2"], "xla") is None


@pytest.mark.parametrize("name", command.PAPERS)
def test_every_paper_names_its_cells(name: str) -> None:
    paper = command.paper(name)
    assert paper.name == name and len({e.figure for e in paper.experiments}) == len(paper.experiments)
    for experiment in paper.experiments:
        for quick in (True, False):
            plan = Plan(quick, 2)
            keys = [*(j.key for j in experiment.jobs(plan)), *(k for k, _ in experiment.cases(plan))]
            assert len(set(keys)) == len(keys)
            assert keys or experiment.card, experiment.figure


@pytest.mark.slow
@pytest.mark.parametrize("name", command.PAPERS)
def test_a_quick_run_measures_everything(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.json"
    assert command.main([name, "--quick", "--json", str(path)]) == 0
    cells, plan = json.loads(path.read_text())["cells"], Plan(True, 2)
    for experiment in command.paper(name).experiments:
        found = experiment.of(cells, plan)
        assert found or experiment.card
        assert not found or all(shown.rows for shown in experiment.show(found)), experiment.figure
