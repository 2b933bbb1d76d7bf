"""Tuning the graph: passes are left out where whole steps are faster without, and never where results differ."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.base.caches import Once
from einsmith.base.errors import MemoryLimitError
from einsmith.driver import compile
from einsmith.driver.bound_program import BoundProgram
from einsmith.driver.executable import Executable
from einsmith.passes import pipeline
from einsmith.schedule.decision_report import report_decisions
from einsmith.schedule.layout import choice
from einsmith.schedule.layout.apply import reorder_call
from einsmith.schedule.layout.price import Prices
from einsmith.schedule.plan import KernelCall
from einsmith.tuning.kernels import database, records
from einsmith.tuning.kernels.tuner import RaceResult
from einsmith.tuning.programs import graph_search, kernel_search


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> None:
    """Each test records in a store of its own; compiled code is shared."""
    monkeypatch.setattr(database, "path_of", lambda: tmp_path / "tuning" / "records.sqlite")
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
    step.parts.set_numbers([*map(np.asarray, batch)])
    (run,) = step.compiler.programs.values()
    return run


def raced(monkeypatch, seconds: Callable[[Executable], float]) -> None:
    """Instead of a race: steps of a form take so long."""

    def race(first: Executable, second: Executable, inputs: Any, left: float) -> RaceResult:
        a, b = seconds(first), seconds(second)
        return RaceResult(a, b, b / a, b / a, b / a, "", True)

    monkeypatch.setattr(graph_search, "race", race)


def test_parameters_move_to_the_order_that_wins(monkeypatch) -> None:
    """Training goes on in memory of that order; an equal step of a later program begins there."""
    x, y = np.ones((5, 17), np.float32), np.arange(5) % 3

    def stepping(tune: Any) -> es.TrainStep:
        es.manual_seed(0)
        net = es.nn.Sequential(es.nn.Linear(17, 19), es.nn.Tanh(), es.nn.Linear(19, 3))
        return es.TrainStep(net, es.functional.cross_entropy, es.optim.Adam(lr=0.01), tune=tune)

    raced(monkeypatch, lambda r: 1.0 / (1 + sum(x.shape == (19, 17) for x in r.memory.placed)))
    monkeypatch.setattr(graph_search, "MAX_PRICE_RATIO", 1e9)
    monkeypatch.setattr(graph_search, "MIN_SHARE", 0.0)
    monkeypatch.setattr(kernel_search, "parse_tune", lambda tune: (0.0, 60.0 if tune else 0.0))
    monkeypatch.setattr("einsmith.training.compiler.ProgramSearch.can_tune", lambda self: bool(self.settings.tune))
    with monkeypatch.context() as without:
        without.setenv("EINSMITH_WITHOUT", "layouts")  # another digest of the passes: nothing recorded is found
        plain = stepping(0)
        wanted = [plain(x, y) for _ in range(3)]
    tuned = stepping("graph")
    assert [tuned(x, y) for _ in range(3)] == pytest.approx(wanted, rel=1e-5)
    orders = [p.memory.layout and p.memory.layout.order for p in tuned.model.parameters()]
    assert orders == [(1, 0), None, None, None]
    assert records.list_records()
    again = stepping(0)
    assert [again(x, y) for _ in range(3)] == pytest.approx(wanted, rel=1e-5)
    assert again.model[0].weight.memory.layout.order == (1, 0)
    assert all(s.memory.layout == again.store.parameters[n.rpartition("/")[0]].memory.layout
               for n, s in again.store.state.items())  # fmt: skip


@pytest.mark.slow
def test_faster_graphs_are_kept_and_found_again(batch, monkeypatch) -> None:
    plain = made()
    run = program(plain, batch)
    gene, *others = graph_search.pass_genes(run)
    assert others, "several genes"
    raced(monkeypatch, lambda r: 1.0 if gene in r.decisions else 2.0)
    monkeypatch.setattr(graph_search, "MAX_PRICE_RATIO", 1e9)
    report = graph_search.tune(run, [*batch], 60)
    assert report.decisions == {gene} and (report.before, report.after) == (2.0, 1.0) and report.tried > 1
    assert f": {gene}\n" in str(report)
    again = made()
    other = program(again, batch)
    assert other.decisions == {gene} and f"{gene}, which tuning" in again.plan
    assert gene.removeprefix("without ") not in other.changes.tensors
    np.testing.assert_allclose([again(*batch) for _ in range(5)], [plain(*batch) for _ in range(5)], rtol=1e-5)
    (stored,) = records.list_records()
    assert (
        stored.record.text == gene
        and stored.own
        and records.find_graph_decisions(run.source_graph, run.target) == {gene}
    )
    monkeypatch.setenv("EINSMITH_TUNED", "0")
    assert program(made(), batch).decisions == frozenset()
    monkeypatch.delenv("EINSMITH_TUNED")
    raced(monkeypatch, lambda r: 2.0 if gene in r.decisions else 1.0)
    assert graph_search.tune(other, [*batch], 60).decisions == frozenset(), "it is switched back"
    assert records.list_records() == [] and program(made(), batch).decisions == frozenset()


def tensor_gene(run: Executable, word: str) -> str:
    """The decision on a tensor that is predicted to cost the least, of one kind."""
    return next(x for x in graph_search.tensor_genes(run) if x.startswith(word))


@pytest.fixture
def small(monkeypatch) -> None:
    """Decisions on kernels that take hardly any time are tried, whatever is predicted of them."""
    monkeypatch.setattr(graph_search, "MIN_SHARE", 0.0)
    monkeypatch.setattr(graph_search, "MAX_TENSOR_GENES", 8)
    monkeypatch.setattr(graph_search, "MAX_PRICE_RATIO", 1e9)


@pytest.fixture
def bad_orders(monkeypatch) -> None:
    """The model takes kernels for fast that read and write tensors in other orders."""

    def query(self: Prices, call: KernelCall, orders: Any) -> float:
        return inf if reorder_call(call, orders) is None else 1e-9 * (1 + len(orders))

    monkeypatch.setattr(Prices, "query", query)
    monkeypatch.setattr(Prices, "lower_bound", lambda self, call, closely=False: 0.0)
    monkeypatch.setattr(choice, "MIN_GAIN_SECONDS", 0.0)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("word", ["cut", "order"])
def test_wrong_choices_for_tensors_are_repaired(word, batch, monkeypatch, small, request) -> None:
    """Steps with one kernel in two, or with a tensor in its next best order, are the faster ones."""
    if word == "order":
        request.getfixturevalue("bad_orders")
    monkeypatch.setattr(graph_search, "pass_genes", lambda run: [])
    plain = made()
    run = program(plain, batch)
    assert run.plan.orders or word == "cut", "the model is led astray"
    gene = tensor_gene(run, word)
    raced(monkeypatch, lambda r: 1.0 if gene in r.decisions else 2.0)
    report = graph_search.tune(run, [*batch], 60)
    assert report.decisions == {gene} and any(gene in line and "0.500 of the time" in line for line in report.log)
    again = made()
    other = program(again, batch)
    assert other.decisions == {gene} and f"{gene} (" in again.plan and "found to be faster" in again.plan
    assert [c.kernel for c in other.calls] != [c.kernel for c in run.calls]
    assert not report_decisions(other.plan, other.decisions)[0].ignored
    np.testing.assert_allclose([again(*batch) for _ in range(5)], [plain(*batch) for _ in range(5)], rtol=1e-5)
    assert not program(made(), tuple(a[:3] for a in batch)).decisions, "another graph"
    raced(monkeypatch, lambda r: 2.0 if gene in r.decisions else 1.0)
    assert gene not in graph_search.tune(other, [*batch], 60).decisions, "it is switched back"


@pytest.mark.slow
def test_one_kind_of_decision_after_the_other(batch, monkeypatch, small, bad_orders) -> None:
    """Each is tried beside those that were kept before it."""
    run = program(made(), batch)
    of_passes = graph_search.pass_genes(run)[:1]
    monkeypatch.setattr(graph_search, "pass_genes", lambda run: of_passes)
    genes = {*of_passes, tensor_gene(run, "cut"), tensor_gene(run, "order")}
    raced(monkeypatch, lambda r: 4.0 - len(genes & r.decisions))
    report = graph_search.tune(run, [*batch], 60)
    assert len(report.decisions) > 1 and report.decisions <= genes
    (stored,) = records.list_records()
    assert stored.record.text == "; ".join(sorted(report.decisions))
    assert program(made(), batch).decisions == report.decisions


@pytest.mark.thinned(2)
@pytest.mark.parametrize("word", ["without", "cut"])
def test_another_process_finds_it(word, batch, small, monkeypatch, tmp_path) -> None:
    """A graph is known by its structure: leaves have other numbers there. A third process reads the plan."""
    run = program(made(), batch)
    gene = graph_search.pass_genes(run)[0] if word == "without" else tensor_gene(run, word)
    run.backend.keep_graph_decisions(run.source_graph, run.target, frozenset({gene}), 1.0, 0.0, 2.0)
    code = (
        "import numpy as np, einsmith as es\n"
        "from einsmith.driver import compile\n"
        "from tests.tuning.test_graph_search import made, program\n"
        "es.jit(lambda x: x + 1)(np.ones(3, np.float32))\n"
        "batch = np.zeros((7, 3, 12, 12), np.float32), np.zeros(7, np.int64)\n"
        "counted, runs = compile.run_passes, []\n"
        "compile.run_passes = lambda *args: [runs.append(1), counted(*args)][1]\n"
        "for some in (batch, tuple(a[:3] for a in batch)):\n"
        "    found = program(made(), some)\n"
        "    print(sorted(found.decisions), len(found.calls))\n"
        "print(len(runs))\n"
    )
    monkeypatch.setenv("EINSMITH_PLANS", "1")
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        said.append(done.stdout.splitlines())
        assert len(said[-1]) == 3, done.stderr
    kernels = len(run.compile_deciding(frozenset({gene})).calls)
    assert said[0][0] == f"{[gene]} {kernels}" and said[0][1].startswith("[] ")
    assert said[1][:2] == said[0][:2] and int(said[0][2]) > int(said[1][2]) == 0


def test_texts_that_are_no_decisions_are_ignored(batch, monkeypatch) -> None:
    """As of a store that is damaged, or that other sources have written."""
    monkeypatch.setattr(records, "_WARNED", Once("warnings of this test"))
    run = program(made(), batch)
    gene = graph_search.pass_genes(run)[0]
    texts = frozenset({gene, "without simplify", "cut 123", "order 00000000 x"})
    run.backend.keep_graph_decisions(run.source_graph, run.target, texts, 1.0, 0.0, 2.0)
    with pytest.warns(es.EinsmithWarning, match="is no decision that can be followed") as warned:
        assert program(made(), batch).decisions == {gene}
        assert program(made(), batch).decisions == {gene}
    assert len(warned) == 1


def test_gains_of_several_searches_multiply(batch, monkeypatch) -> None:
    """A search that begins with recorded decisions compares with the cost model's program all the same."""
    monkeypatch.setattr(graph_search, "MAX_PRICE_RATIO", 1e9)
    run = program(made(), batch)
    first, second, *_ = graph_search.pass_genes(run)
    monkeypatch.setattr(graph_search, "tensor_genes", lambda run: {})
    times = {frozenset(): 8.0, frozenset({first}): 4.0, frozenset({first, second}): 3.0}
    raced(monkeypatch, lambda r: times.get(r.decisions, 9.0))
    monkeypatch.setattr(graph_search, "pass_genes", lambda run: [first])
    graph_search.tune(run, [*batch], 60)
    again = program(made(), batch)
    monkeypatch.setattr(graph_search, "pass_genes", lambda run: [second])
    report = graph_search.tune(again, [*batch], 60)
    assert again.decisions == {first} and (report.before, report.after) == (4.0, 3.0)
    (stored,) = records.list_records()
    assert (stored.record.seconds, stored.record.prior) == (3.0, 8.0)


class Outer(es.nn.Module):
    """A layer with the outer product of two rows inside, which no kernel stores."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = es.nn.Linear(64, 64), es.nn.Linear(64, 64)

    def forward(self, x):
        products = es.functional.relu(self.first(x)[:, :, None] * self.second(x)[:, None, :])
        return es.functional.sum(products, 2)


def test_recorded_decisions_do_not_exceed_a_limit_of_memory(rng, monkeypatch, small) -> None:
    def stepping(**options: Any) -> es.TrainStep:
        es.manual_seed(0)
        return es.TrainStep(Outer(), es.functional.cross_entropy, es.optim.SGD(lr=0.1), threads=1, **options)

    def least(decisions: frozenset[str]) -> int:
        with pipeline.deciding(decisions), pytest.raises(MemoryLimitError) as raised:
            program(stepping(memory_limit=1000), batch)
        return raised.value.needed

    monkeypatch.setattr(compile, "_OVER_LIMIT", Once("warnings of this test"))
    batch = rng.standard_normal((256, 64), np.float32), rng.integers(0, 64, 256)
    run = program(stepping(), batch)
    monkeypatch.setattr(graph_search, "MAX_TENSOR_GENES", 24)
    cuts = [frozenset({x}) for x in graph_search.tensor_genes(run) if x.startswith("cut")]
    needed = {x: least(x) for x in (frozenset[str](), *cuts)}
    (gene,) = decisions = max(needed, key=lambda x: needed[x])
    limit = needed[frozenset()]
    assert needed[decisions] > 1.5 * limit, "a kernel's intermediate result is large"
    run.backend.keep_graph_decisions(run.source_graph, run.target, decisions, 1.0, 0.0, 2.0)
    with pytest.warns(
        es.EinsmithWarning, match=f"{gene}, which tuning.*`einsmith tune --forget [0-9a-f]{{8}}`"
    ) as warned:
        limited = program(stepping(memory_limit=limit), batch)
        program(stepping(memory_limit=limit), batch)
    assert limited.decisions == frozenset() and len(warned) == 1
    assert program(stepping(memory_limit=100 * limit), batch).decisions == decisions
    with pytest.raises(MemoryLimitError):
        limited.compile_deciding(decisions)
    with pytest.raises(MemoryLimitError):
        program(stepping(memory_limit=1000), batch)


def test_graphs_with_other_results_are_rejected(batch, monkeypatch) -> None:
    run = program(made(), batch)
    raced(monkeypatch, lambda r: 1.0 if r.decisions else 2.0)
    monkeypatch.setattr(graph_search, "MAX_PRICE_RATIO", 1e9)
    call = BoundProgram.__call__
    weight = next(leaf for leaf in run.bound if leaf.shape == (4, 3, 3, 3))

    def wrong(self: Executable, inputs: Any) -> Any:
        out = call(self, inputs)
        self.memory.read(weight)[1, 1] += 0.01 * bool(self.decisions)
        return out

    monkeypatch.setattr(BoundProgram, "__call__", wrong)
    report = graph_search.tune(run, [*batch], 60)
    assert not report.decisions and records.list_records() == []
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
    assert not report.decisions and (not report.tried or "cannot be compared" in str(report))


def test_a_step_with_graph_search(batch, monkeypatch) -> None:
    from einsmith.tuning.programs import kernel_search

    monkeypatch.setattr(kernel_search, "GRAPH_SECONDS", 1.0)
    gene = graph_search.pass_genes(program(made(), batch))[0]
    raced(monkeypatch, lambda r: 1.0 if gene in r.decisions else 2.0)
    monkeypatch.setattr(graph_search, "MAX_PRICE_RATIO", 1e9)
    step, plain = made(tune="graph"), made()
    found, wanted = [step(*batch) for _ in range(3)], [plain(*batch) for _ in range(3)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    with pytest.raises(es.EinsmithError, match="tune='graphs' is neither seconds nor 'graph'"):
        made(tune="graphs")


def test_passes_that_are_left_out(monkeypatch) -> None:
    with pipeline.deciding(frozenset({"without multi-output reduction"})):
        assert "multi-output reduction" in pipeline.left_out()
        assert pipeline.present_decisions() == {"without multi-output reduction"}
        monkeypatch.setenv("EINSMITH_WITHOUT", "layouts")
        assert {"layouts", "multi-output reduction"} <= {*pipeline.left_out()}
    assert "layouts" in pipeline.left_out() and "multi-output reduction" not in pipeline.left_out()
    assert pipeline.present_decisions() is None
