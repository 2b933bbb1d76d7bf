"""Tuning the graph: passes are left out where whole steps are faster without, and never where results differ."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.driver.backend import RaceResult
from einsmith.driver.executable import Executable
from einsmith.passes import pipeline
from einsmith.tuning.kernels import database, records
from einsmith.tuning.programs import graph_search


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(database, "_unusable", {})


def made(**options: Any) -> es.TrainStep:
    """A network on whose graph several passes work that can be left out."""
    es.manual_seed(0)
    model = es.nn.Sequential(
        es.nn.Conv2d(3, 4, 3), es.nn.BatchNorm2d(4), es.nn.ReLU(), es.nn.MaxPool2d(2), es.nn.Flatten(),
        es.nn.Linear(4 * 5 * 5, 5),
    )  # fmt: skip
    return es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1, momentum=0.9), threads=1, **options)


@pytest.fixture
def batch(rng) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((7, 3, 12, 12), np.float32), rng.integers(0, 5, 7)


def program(step: es.TrainStep, batch: tuple) -> Executable:
    step.compile(*batch)
    step.numbers.set([*map(np.asarray, batch)])
    (run,) = step._programs.values()
    return run


def raced(monkeypatch, seconds: Callable[[Executable], float]) -> None:
    """Instead of a race: steps of a form take so long."""

    def race(first: Executable, second: Executable, inputs: Any, left: float) -> RaceResult:
        a, b = seconds(first), seconds(second)
        return RaceResult(a, b, b / a, b / a, b / a, "", True)

    monkeypatch.setattr(graph_search, "race", race)


def test_faster_graphs_are_kept_and_found_again(batch, monkeypatch) -> None:
    plain = made()
    run = program(plain, batch)
    gene, *others = graph_search.genes(run)
    assert others, "several genes"
    raced(monkeypatch, lambda r: 1.0 if gene in r.without else 2.0)
    monkeypatch.setattr(graph_search, "MAX_PRICE_RATIO", 1e9)
    report = graph_search.tune(run, [*batch], 60)
    assert report.without == {gene} and (report.before, report.after) == (2.0, 1.0) and report.tried > 1
    assert f"without {gene}" in str(report)
    again = made()
    other = program(again, batch)
    assert other.without == {gene} and f"without {gene}, which tuning" in again.plan
    assert gene not in other.changes.tensors
    np.testing.assert_allclose([again(*batch) for _ in range(5)], [plain(*batch) for _ in range(5)], rtol=1e-5)
    (stored,) = records.list_records()
    assert (
        stored.record.text == f"without {gene}"
        and stored.own
        and records.find_omitted_passes(run.source_graph, run.target) == {gene}
    )
    monkeypatch.setenv("EINSMITH_TUNED", "0")
    assert program(made(), batch).without == frozenset()
    monkeypatch.delenv("EINSMITH_TUNED")
    raced(monkeypatch, lambda r: 2.0 if gene in r.without else 1.0)
    assert graph_search.tune(other, [*batch], 60).without == frozenset(), "it is switched back"
    assert records.list_records() == [] and program(made(), batch).without == frozenset()


def test_another_process_finds_it(batch, monkeypatch) -> None:
    """A graph is known by its structure: leaves have other numbers there."""
    run = program(made(), batch)
    gene = graph_search.genes(run)[0]
    run.backend.keep_omitted_passes(run.source_graph, run.target, frozenset({gene}), 1.0, 0.0, 2.0)
    code = (
        "import numpy as np, einsmith as es\n"
        "from tests.tuning.test_graph_search import made, program\n"
        "es.jit(lambda x: x + 1)(np.ones(3, np.float32))\n"
        "batch = np.zeros((7, 3, 12, 12), np.float32), np.zeros(7, np.int64)\n"
        "print(sorted(program(made(), batch).without), sorted(program(made(), tuple(a[:3] for a in batch)).without))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == f"{[gene]} []", done.stderr


def test_graphs_with_other_results_are_rejected(batch, monkeypatch) -> None:
    run = program(made(), batch)
    raced(monkeypatch, lambda r: 1.0 if r.without else 2.0)
    monkeypatch.setattr(graph_search, "MAX_PRICE_RATIO", 1e9)
    call = Executable.__call__
    weight = next(a for leaf, a in run.bound.items() if leaf.shape == (4, 3, 3, 3))

    def wrong(self: Executable, inputs: Any) -> Any:
        out = call(self, inputs)
        weight[1, 1] += 0.01 * bool(self.without)
        return out

    monkeypatch.setattr(Executable, "__call__", wrong)
    report = graph_search.tune(run, [*batch], 60)
    assert not report.without and records.list_records() == []
    assert any("rejected: the value stored into f32" in line for line in report.log)


def test_a_race_in_whole_steps_changes_nothing(batch) -> None:
    step = made()
    run = program(step, batch)
    before = {n: a.copy() for n, a in step.model.state_dict().items()}
    report = graph_search.tune(run, [*batch], 5.0)
    assert report.tried and report.log and all(line.strip() for line in report.log)
    for n, a in step.model.state_dict().items():
        np.testing.assert_array_equal(a, before[n])
    found = graph_search.race(run, run, [*batch], 10.0)
    assert found is not None and found.first > 0 and 0 < found.low <= found.ratio <= found.high
    assert graph_search.difference(run, run, [*batch]) == ""


def test_a_loss_that_is_not_finite_tells_nothing(batch) -> None:
    run = program(made(), batch)
    bad = [np.full_like(batch[0], np.nan), batch[1]]
    report = graph_search.tune(run, bad, 5.0)
    assert not report.without and (not report.tried or "cannot be compared" in str(report))


def test_a_step_with_graph_search(batch, monkeypatch) -> None:
    from einsmith.tuning.programs import kernel_search

    monkeypatch.setattr(kernel_search, "GRAPH_SECONDS", 1.0)
    gene = graph_search.genes(program(made(), batch))[0]
    raced(monkeypatch, lambda r: 1.0 if gene in r.without else 2.0)
    monkeypatch.setattr(graph_search, "MAX_PRICE_RATIO", 1e9)
    step, plain = made(tune="graph"), made()
    found, wanted = [step(*batch) for _ in range(3)], [plain(*batch) for _ in range(3)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    with pytest.raises(es.EinsmithError, match="tune='graphs' is neither seconds nor 'graph'"):
        made(tune="graphs")


def test_passes_that_are_left_out(monkeypatch) -> None:
    with pipeline.leaving_out(frozenset({"multi-output reduction"})):
        assert pipeline.is_left_out("multi-output reduction") and pipeline.decided_out() == {"multi-output reduction"}
        monkeypatch.setenv("EINSMITH_WITHOUT", "layouts")
        assert pipeline.is_left_out("layouts") and pipeline.is_left_out("multi-output reduction")
    assert pipeline.is_left_out("layouts") and not pipeline.is_left_out("multi-output reduction")
    assert pipeline.decided_out() is None
