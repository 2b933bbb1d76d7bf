"""The benchmark of choices: what it measures, its figures, and that it goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import autoconfig, kernel_cases
from benchmarks.convolutions import Conv
from einsmith.kernels.autoconfig import PATTERNS

TINY = Conv(3, 4, 3, 1, 1, 6)


def cell(*candidates: tuple[str, float, float]) -> dict:
    rows = [
        {"pattern": p, "config": "c", "predicted": a, "measured": b, "chosen": n == 0}
        for n, (p, a, b) in enumerate(candidates)
    ]
    return {"threads": 1, "choose_seconds": 1e-3, "considered": 9, "candidates": rows, "seconds": 0.1}


def test_a_convolution_is_one_kernel_that_several_patterns_take() -> None:
    (kernel,) = autoconfig.kernels_of(next(kernel_cases.convolution(TINY, 2)))
    assert kernel.shape == (2, 4, 6, 6)
    assert len({p.name for p in PATTERNS if p.match(kernel)}) >= 2


def test_the_spread_has_the_best_and_the_worst_of_every_pattern() -> None:
    alternatives = [("a" if n % 3 else "b", n, None) for n in range(30)]
    picked = autoconfig.spread(alternatives, 4)
    assert picked[0] == 0 and len(picked) == len(set(picked)) == 8
    of = {name: [n for n in picked if alternatives[n][0] == name] for name in "ab"}
    assert {1, 2, 29} <= set(of["a"]) and {0, 3, 27} <= set(of["b"])
    assert [alternatives[n][0] for n in picked[:4]] == ["b", "a", "b", "a"], "in turn: a cap leaves some of each"
    assert autoconfig.spread(alternatives[:1], 4) == [0]


def test_a_cell_is_measured_with_the_choice_in_it() -> None:
    found = autoconfig.measure(TINY, 1, 1, 2, 600.0)
    rows = autoconfig.measured(found)
    assert [r["chosen"] for r in rows].count(True) == 1 and rows[0]["chosen"]
    assert all(r["measured"] > 0 for r in rows) and len({r["pattern"] for r in rows}) >= 2
    assert found["choose_seconds"] > 0 and found["considered"] >= len(rows)


def test_regret_and_rank_correlation() -> None:
    good = cell(("a", 1, 1.0), ("a", 2, 2.0), ("b", 3, 3.0))
    assert autoconfig.regret(good) == 0 and autoconfig.rank_correlation(good) == pytest.approx(1)
    bad = cell(("a", 1, 3.0), ("a", 2, 2.0), ("b", 3, 1.5))
    assert autoconfig.regret(bad) == pytest.approx(1) and autoconfig.rank_correlation(bad) == pytest.approx(-1)
    assert autoconfig.rank_correlation(cell(("a", 1, 3.0), ("a", 2, 2.0))) is None
    assert list(autoconfig.ranks([3.0, 1.0, 3.0, 2.0])) == [3.5, 1, 3.5, 2]


def test_a_single_candidate_has_no_regret() -> None:
    alone, worse = cell(("a", 1, 1.0)), cell(("a", 1, 2.0), ("b", 2, 1.0))
    found = {what: value for what, value, *_ in autoconfig.verdicts([alone, worse, alone])}
    assert found["regret, median"] == "100.0 %" and found["the choice alone measured, not counted"] == "2 of 3"
    assert autoconfig.verdicts([alone]) and autoconfig.table({"x": alone, "y": worse}).row_count == 2


def test_an_interrupted_run_resumes(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def fake(conv, batch, threads, count, cap, winograd):
        calls.append((conv, batch))
        return cell(("a", 1, 1.05), ("b", 2, 1.0), ("b", 3, 9.0))

    monkeypatch.setattr(autoconfig, "measure", fake)
    path = tmp_path / "out" / "auto.json"
    arguments = ["--only", "7x7s2", "--json", str(path)]
    assert autoconfig.main([*arguments, "--batch", "1"]) == 0 and [b for _, b in calls] == [1]
    assert autoconfig.main(arguments) == 0 and [b for _, b in calls] == [1, 16]
    assert len(json.loads(path.read_text())["cells"]) == 2
    out = capsys.readouterr().out
    assert "5 %" in out and "holds" in out
    for wrong in (["--only", "9x9"], ["--only", "shufflenet"], ["--count", "0"]):
        with pytest.raises(SystemExit):
            autoconfig.main(wrong)
