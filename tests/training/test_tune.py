"""A search before training: it changes nothing that is trained, what it finds is used, and bad budgets are refused."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError, EinsmithWarning
from einsmith.driver.cpu import Cpu
from einsmith.kernels import autoconfig
from einsmith.tuning.kernels import records
from einsmith.tuning.kernels.genetic import Candidate
from einsmith.tuning.kernels.tuner import CHEAPEST, SearchResult
from einsmith.tuning.programs import kernel_search


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))


def made(**options):
    es.manual_seed(0)
    model = es.nn.Sequential(es.nn.Linear(37, 64), es.nn.ReLU(), es.nn.Linear(64, 5))
    return es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1, momentum=0.9), threads=1, **options)


@pytest.fixture
def batch(rng):
    return rng.standard_normal((48, 37), np.float32), rng.integers(0, 5, 48)


def _others(self, parts, target, threads, seconds, tell, executor=None, effort=None):
    """Instead of a search: of every kernel the last configuration that is worth a measurement."""
    out = []
    for kernel, turns in parts:
        name, config, _ = autoconfig.choose(kernel, target).alternatives[-1]
        chosen = autoconfig.choose(kernel, target)
        choice, best = Candidate(chosen.pattern.name, chosen.config), Candidate(name, config)
        found = SearchResult(kernel, turns, choice, 2e-6, 1e-6, best if best != choice else None, (0.4, 0.6), 3)
        tell(found, best, 1e-6)
        out.append(found)
    return out


def inside(monkeypatch, ratio):
    """Inside the program every kernel takes this part of its time."""
    real = kernel_search.alternate

    def alternated(first, second, *rest):
        return (*real(first, second, *rest)[:2], {c.kernel: ratio for c in first.calls})

    monkeypatch.setattr(kernel_search, "alternate", alternated)


def told_of_settling(monkeypatch):
    """Of every kernel whether it was confirmed."""
    settled = []
    monkeypatch.setattr(Cpu, "settle", lambda self, f, target, confirmed: settled.append(confirmed))
    return settled


def test_a_search_finds_something_or_nothing_and_the_step_trains_on(batch):
    plain, tuned = made(), made(tune=2.0)
    for _ in range(5):
        a, b = plain(*batch), tuned(*batch)
        assert b == pytest.approx(a, rel=1e-5)
    assert tuned.compiler.search.remaining_seconds < 1
    for p, q in zip(plain.model.parameters(), tuned.model.parameters(), strict=True):
        np.testing.assert_allclose(q.data, p.data, rtol=1e-4, atol=1e-6)


def test_first_calls_race_the_candidates_that_promise_most_once(batch, monkeypatch):
    """Of a step, a compiled function and a prediction: as long as compilation took, when a program is compiled."""
    asked = []

    def race(self, parts, target, threads, seconds, tell, executor=None, effort=None):
        asked.append((seconds, effort))
        return _others(self, parts, target, threads, seconds, tell)

    monkeypatch.setattr(Cpu, "tune", race)
    monkeypatch.setattr(kernel_search, "LEAST_RACE_SECONDS", 0.25)
    inside(monkeypatch, 0.5)
    plain, tuned = made(), made(tune="first-call")
    np.testing.assert_allclose([tuned(*batch) for _ in range(3)], [plain(*batch) for _ in range(3)], rtol=1e-5)
    (run,) = tuned.compiler.programs.values()
    assert len(asked) == 1 and any(k.decision for k in run.kernels)

    f = es.jit(lambda x: es.functional.softmax(x @ x.T, 1), tune="first-call")
    want = es.jit(lambda x: es.functional.softmax(x @ x.T, 1))(batch[0])
    for _ in range(2):
        np.testing.assert_allclose(f(batch[0]), want, rtol=1e-5)
    assert len(asked) == 2

    want = plain.model.predict(batch[0])
    for _ in range(2):
        np.testing.assert_allclose(plain.model.predict(batch[0], tune="first-call"), want, rtol=1e-5)
    assert len(asked) == 3
    for seconds, effort in asked:
        assert 0.2 < seconds < 60 and effort is CHEAPEST


def test_a_race_of_a_first_call_keeps_the_meaning(batch):
    f = es.jit(lambda x: (x @ x.T).sum(0), tune="first-call")
    np.testing.assert_allclose(f(batch[0]), (batch[0] @ batch[0].T).sum(0), rtol=1e-4)


def test_options_that_race_nothing_are_refused(batch, monkeypatch):
    with pytest.raises(ArgumentError, match="needs mode='static'"):
        made(tune="first-call", mode="dynamic")
    with pytest.raises(ArgumentError, match="neither seconds nor 'graph' nor 'first-call'"):
        es.jit(lambda x: x, tune="first")
    with pytest.raises(ArgumentError, match="searched in training alone"):
        es.jit(lambda x: x, tune="graph")
    monkeypatch.setenv("EINSMITH_CHECK", "1")
    with pytest.warns(EinsmithWarning, match="not tuned while EINSMITH_CHECK is set"):
        es.jit(lambda x: x + 1, tune="first-call")(batch[0])


def test_configurations_faster_in_the_program_are_used(batch, monkeypatch):
    monkeypatch.setattr(Cpu, "tune", _others)
    inside(monkeypatch, 0.5)
    settled = told_of_settling(monkeypatch)
    plain, tuned = made(), made(tune=1.0)
    losses = [(plain(*batch), tuned(*batch)) for _ in range(4)]
    assert settled and all(settled)
    (run,) = tuned.compiler.programs.values()
    assert sum(bool(k.decision) for k in run.kernels) == sum(settled)
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-5)


def test_configurations_slower_in_the_program_are_dropped(batch, monkeypatch):
    monkeypatch.setattr(Cpu, "tune", _others)
    inside(monkeypatch, 1.0)
    settled = told_of_settling(monkeypatch)
    step = made(tune=1.0)
    step(*batch)
    assert settled and not any(settled)
    (run,) = step.compiler.programs.values()
    assert not any(k.decision for k in run.kernels)


def test_a_search_changes_no_weight_and_no_state(batch, monkeypatch):
    monkeypatch.setattr(Cpu, "tune", _others)
    step = made()
    step(*batch)
    (run,) = step.compiler.programs.values()
    before = {n: a.copy() for n, a in step.model.state_dict().items()}
    state = {n: s.data.copy() for n, s in step.current_state().items()}
    report = kernel_search.tune(run, [*batch], 0.5)
    assert report.before > 0 and report.after > 0 and str(report).startswith(f"{3 * len(report.results)} candidates")
    for n, a in step.model.state_dict().items():
        np.testing.assert_array_equal(a, before[n])
    for n, s in step.current_state().items():
        np.testing.assert_array_equal(s.data, state[n])


def test_the_next_process_uses_what_is_in_the_store(batch):
    """Here the next step: what is recorded is looked up whenever a program is compiled."""
    step = made()
    step(*batch)
    (run,) = step.compiler.programs.values()
    call = max(run.calls, key=lambda c: len(autoconfig.choose(c.kernel, run.target).alternatives))
    name, config, _ = autoconfig.choose(call.kernel, run.target).alternatives[1]
    found = SearchResult(call.kernel, 1, Candidate(name, config), 2e-6, 1e-6, Candidate(name, config))
    run.backend.keep(found, run.target)
    once = made()
    once(*batch)
    assert not any(k.tuned for k in next(iter(once.compiler.programs.values())).kernels), "it is not confirmed yet"
    run.backend.settle(found, run.target, True)
    again = made()
    again(*batch)
    (other,) = again.compiler.programs.values()
    assert [k.tuned for k, c in zip(other.kernels, other.calls, strict=True) if c.kernel is call.kernel] == [True]
    run.backend.settle(found, run.target, True)
    assert [x.record.confirmed for x in records.list_records()] == [2]
    run.backend.settle(found, run.target, False)
    assert records.list_records() == []


def test_former_records_stay_without_better_ones(batch, monkeypatch):
    """In this process as in the next one; and where it is replaced by what is slower in the program, it comes back."""
    step = made()
    step(*batch)
    (run,) = step.compiler.programs.values()
    call = max(run.calls, key=lambda c: len(autoconfig.choose(c.kernel, run.target).alternatives))
    every = [Candidate(name, config) for name, config, _ in autoconfig.choose(call.kernel, run.target).alternatives]
    run.backend.keep(SearchResult(call.kernel, 1, every[0], 2e-6, 1e-6, every[1]), run.target)
    run.backend.settle(SearchResult(call.kernel, 1, every[0], 2e-6, 1e-6, every[1]), run.target, True)
    before = records.list_records()

    def search(self, parts, target, threads, seconds, tell, executor=None, effort=None):
        found = SearchResult(call.kernel, 1, every[0], 2e-6, 1e-6, every[2])
        self.keep(found, target)
        return [found]

    monkeypatch.setattr(Cpu, "tune", search)
    inside(monkeypatch, 1.5)
    again = made(tune=1.0)
    again(*batch)
    (tuned,) = again.compiler.programs.values()
    assert [k.tuned for k, c in zip(tuned.kernels, tuned.calls, strict=True) if c.kernel is call.kernel] == [True]
    assert records.list_records() == before


def test_a_loss_that_is_not_finite_tells_nothing(batch, monkeypatch):
    monkeypatch.setattr(Cpu, "tune", _others)
    settled = told_of_settling(monkeypatch)
    step = made(tune=1.0)
    with pytest.raises(es.NonFiniteError):
        step(np.full_like(batch[0], np.nan), batch[1])
    assert settled and not any(settled)


@pytest.mark.parametrize("seconds", [-1, math.inf, math.nan, "60", None, True, 10**7], ids=repr)
def test_budgets_that_are_none(seconds):
    with pytest.raises(ArgumentError, match="tune"):
        made(tune=seconds)


@pytest.mark.parametrize("options", [{"tune": 2}, {"mode": "dynamic"}, {}])
def test_that_checked_programs_are_not_tuned_is_said(options, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_CHECK", "1")
    step = es.TrainStep(es.nn.Linear(3, 2), es.functional.mse_loss, es.optim.SGD(lr=0.1), threads=1, **options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step(np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))
    texts = [str(w.message) for w in told if issubclass(w.category, es.EinsmithWarning)]
    assert [t for t in texts if "not tuned while EINSMITH_CHECK is set" in t] == texts[:1] and bool(texts) == bool(
        options
    )
