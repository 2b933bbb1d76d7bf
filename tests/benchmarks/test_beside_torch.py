"""The verdict on programs between PyTorch's operators: what passes, what fails, and what is none."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest

from benchmarks import beside_torch


def record(*ratios: float, busy: bool = False) -> dict:
    sides = {n: {"alone_ms": 2.0, "between_ms": 2 * r, "ratio": r} for n, r in zip("abc", ratios, strict=True)}
    return {"name": "es.jit", "rounds": 7, "busy": busy, **sides}


def test_every_side_counts():
    assert beside_torch.verdict(record(1.0, 0.9, 1.1))
    for k in range(3):
        assert not beside_torch.verdict(record(*(1.11 if n == k else 1.0 for n in range(3))))
    assert not beside_torch.verdict(record(1.0, 1.0, 1.0, busy=True))


def test_the_table_says_which():
    rows = beside_torch.table("order", [record(1, 1, 1), record(1, 2, 1), record(1, 1, 1, busy=True)])[1:]
    assert [r.split("  ")[-1] for r in rows] == ["passes", "FAILS: over 1.1", "no verdict: busy"]


@pytest.mark.parametrize("slow", [None, "PyTorch first", "Einsmith first"])
def test_one_row_of_either_order_decides(slow, monkeypatch, tmp_path, capsys):
    def run(command, **_):
        order = command[command.index("--order") + 1]
        out = json.dumps([record(1, 1, 1), record(1, 1.2 if order == slow else 1, 1)])
        return subprocess.CompletedProcess(command, 0, stdout=f"told before\n{out}\n")

    monkeypatch.setattr(subprocess, "run", run)
    file = tmp_path / "figures.json"
    assert beside_torch.compare(3, False, str(file)) is (slow is None)
    told = json.loads(file.read_text())
    assert told["passes"] is (slow is None) and set(told["orders"]) == set(beside_torch.ORDERS)
    assert capsys.readouterr().out.count("FAILS") == (slow is not None)


def test_results_are_compared_element_by_element(rng):
    want = [rng.standard_normal((5, 17)), np.array(3.0)]
    got = [w.copy() for w in want]
    assert beside_torch.relative_error(got, want) == 0
    got[0][3, 16] += 0.01 * np.abs(want[0]).max()
    assert beside_torch.relative_error(got, want) == pytest.approx(0.01)
    with pytest.raises(ValueError, match="shape"):
        beside_torch.relative_error([got[0][:4], got[1]], want)
