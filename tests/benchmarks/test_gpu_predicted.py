"""Predictions of training steps on graphics cards: nothing runs, and a plan is priced on each card."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import gpu_predicted
from benchmarks.models import NETWORKS
from einsmith.driver import registry
from einsmith.gpu.cards import CARDS


def test_figures_of_a_plan() -> None:
    before = dict(registry.BACKENDS), registry.DEFAULT
    cells = gpu_predicted.cells_of(NETWORKS["lenet5"](4), "fp32", list(CARDS))
    for x in cells.values():
        assert 0 < x["chain"] < x["seconds"] and x["kernels"] > 10
    assert cells["h200"]["seconds"] <= cells["h100"]["seconds"]
    assert (dict(registry.BACKENDS), registry.DEFAULT) == before


def test_what_the_file_holds_is_not_planned_again(tmp_path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "cells.json"
    cell = {"seconds": 0.5, "chain": 0.25, "kernels": 7}
    file.write_text(json.dumps({"cells": {"mlp3-b1-tf32": dict.fromkeys(CARDS, cell)}}))
    monkeypatch.setattr(gpu_predicted, "planned", lambda *_: pytest.fail("planned again"))
    monkeypatch.setattr(sys, "argv", ["x", "mlp3", "--batch", "1", "--precision", "tf32", "--json", str(file)])
    assert gpu_predicted.main() == 0
    out = capsys.readouterr().out
    assert "500.000 (250.000)" in out and "PREDICTED" in out
