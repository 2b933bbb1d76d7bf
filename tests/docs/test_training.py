"""The program of docs/training.md runs, and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import einsmith as es

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_page_runs(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 10
    names: dict = {}
    es.manual_seed(0)  # how far eight epochs come depends on where the weights begin
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    step, again = names["step"], names["again"]
    assert step.epoch == 8 and again.epoch == 9
    assert step.history[-1]["loss"] < 0.7 * step.history[0]["loss"]
    named = re.search(r"# (epoch, steps, .*), and the rates\n", PAGE.read_text())
    assert named is not None
    told = {n for n in step.history[-1] if "/" not in n}
    assert told == set(named[1].split(", "))
    assert "val_loss" in capsys.readouterr().out
    assert len((tmp_path / "runs" / "page.csv").read_text().splitlines()) == 9
    assert {p.name for p in (tmp_path / "runs" / "page").iterdir()} == {"last", "best"}
