"""`einsmith tune MODEL`: what it prints, draws and refuses."""

from __future__ import annotations

import json

import pytest

from einsmith.cli import main
from einsmith.cli.search import Dot, draw
from einsmith.tuning.kernels.tuner import RaceResult
from einsmith.tuning.programs import graph_search, kernel_search


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "cache"))


def test_a_formula_is_searched_and_drawn(tmp_path, capfd):
    formula, picture = tmp_path / "product.txt", tmp_path / "search.png"
    formula.write_text("C[i,j] = sum[k](A[i,k] * B[k,j])")
    sizes = ["--shape", "A=61,300", "--shape", "B=300,127"]
    words = ["tune", str(formula), *sizes, "--seconds", "2", "--threads", "1", "--picture", str(picture)]
    assert main.run(words) == main.OK
    out = capfd.readouterr().out
    assert "candidates of 1 kernels tried" in out and "ms before" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_json_is_one_object(tmp_path, capfd):
    formula = tmp_path / "sum.txt"
    formula.write_text("y[i] = sum[k](x[i,k])")
    words = ["tune", str(formula), "--shape", "x=50,700", "--seconds", "2", "--threads", "1", "--json"]
    assert main.run(words) == main.OK
    said = capfd.readouterr()
    found = json.loads(said.out)
    assert found["tried"] > 0 and found["before"] > 0 and found["after"] > 0 and said.err == ""


@pytest.mark.slow
def test_the_graph_is_tuned_first_and_what_is_found_is_said(tmp_path, capfd, monkeypatch):
    """Of a pooling, whose argmax is made narrow; here steps without that take half as long."""
    file = tmp_path / "step.py"
    file.write_text(
        "import numpy as np\nimport einsmith as es\nes.manual_seed(0)\n"
        "model = es.nn.Sequential(es.nn.Conv2d(2, 3, 3), es.nn.MaxPool2d(2), es.nn.Flatten(), es.nn.Linear(12, 4))\n"
        "step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1))\n"
        "inputs = np.ones((3, 2, 6, 6), np.float32), np.arange(3)\n"
    )

    def race(first, second, inputs, end):
        a, b = (0.5 if "without narrow argmax" in run.decisions else 1.0 for run in (first, second))
        return RaceResult(a, b, b / a, b / a, b / a, "", True)

    monkeypatch.setattr(graph_search, "race", race)
    monkeypatch.setattr(graph_search, "MAX_PRICE_RATIO", 1e9)
    monkeypatch.setattr(kernel_search, "MAX_ROUNDS", 5)
    words = ["tune", str(file), "--graph", "--seconds", "2", "--threads", "1"]
    assert main.run([*words, "--json"]) == main.OK
    found = json.loads(capfd.readouterr().out)
    assert found["decisions"] == ["without narrow argmax"] and found["forms"] >= 1
    assert main.run(["tune", "--list"]) == main.OK
    said = capfd.readouterr().out
    assert "without narrow argmax" in said and "2.00 times as fast" in said and "a graph of" in said
    assert main.run(["explain", str(file), "--threads", "1"]) == main.OK
    assert "without narrow argmax, which tuning has found to be faster" in capfd.readouterr().out
    kept = str(tmp_path / "kept.json")
    assert main.run(["tune", "--export", kept]) == main.OK
    assert main.run(["tune", "--forget", "all"]) == main.OK
    assert main.run(["tune", "--import", kept]) == main.OK
    capfd.readouterr()
    assert main.run(["explain", str(file), "--threads", "1", "--json"]) == main.OK
    assert json.loads(capfd.readouterr().out)["decisions"] == [], "what another machine says is a guess alone"


@pytest.mark.parametrize(
    "words,why",
    [
        (["lenet5", "--seconds", "-3"], "--seconds"), (["lenet5", "--seconds", "1e9"], "--seconds"),
        (["lenet5", "--list"], "manage the stored results"), (["no_such_model"], "neither a file nor a model"),
        (["lenet5", "--picture", "/no/such/folder/x.png"], "--picture"),
    ],
)  # fmt: skip
def test_impossible_searches_are_rejected_before_any_run(words, why, capfd):
    assert main.run(["tune", *words]) in (main.WRONG_USE, main.FAILED)
    assert why in capfd.readouterr().err


def test_the_picture_of_a_search_without_results(tmp_path):
    dots = [Dot(0.5, "aa", float("inf"), 1e-3), Dot(1.0, "bb", 0.7, 9e-4), Dot(1.5, "aa", 1.2, 9e-4)]
    for n in range(4):
        draw(dots[:n], tmp_path / "x.png", "nothing")
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
