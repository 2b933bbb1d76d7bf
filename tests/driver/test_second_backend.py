"""Another back end than the CPU's, chosen by its target: nothing above takes machine code for granted."""

from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
from einsmith.base.environment import CHECK
from einsmith.base.errors import CheckError, CompileError, IndexOutOfRange, NonFiniteError
from einsmith.cli import explain
from einsmith.codegen.cache import native
from einsmith.driver import registry
from einsmith.driver.cpu import CPU
from einsmith.driver.executable import Executable
from einsmith.kernels import autoconfig
from einsmith.runtime import pool
from einsmith.runtime.arena import Block
from einsmith.training.definition import batch_arrays
from tests.driver.evaluated import Evaluate, Evaluated, Machine


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    """The back end, in which everything is compiled within a test; machine code is neither made nor run."""
    monkeypatch.setenv(CHECK.name, "0")
    monkeypatch.setattr(registry, "BACKENDS", {CPU.name: CPU})
    monkeypatch.setattr(autoconfig, "OTHERS", {})
    made = Evaluated()
    registry.register(made)
    return made


@pytest.fixture
def alone(backend: Evaluated, monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    def never(*_):
        raise AssertionError("machine code")

    for module, name in ((native, "compile_text"), (native, "compile_many"), (pool, "native_entry")):
        monkeypatch.setattr(module, name, never)
    monkeypatch.setattr(registry, "DEFAULT", backend)
    return backend


class Images(es.nn.Module):
    def __init__(self):
        self.conv, self.out = es.nn.Conv2d(2, 3, 3, padding=1), es.nn.Linear(27, 4)
        self.mean = es.nn.Buffer(np.zeros(3, np.float32))

    def forward(self, x):
        y = self.conv(x)
        self.mean = self.mean * 0.5 + y.mean((0, 2, 3)) * 0.5
        y = es.functional.max_pool2d(es.functional.relu(y), 2)
        return self.out(es.functional.flatten(y, 1))


class Texts(es.nn.Module):
    def __init__(self):
        self.table, self.rnn, self.out = es.nn.Embedding(11, 5), es.nn.LSTM(5, 6), es.nn.Linear(6, 4)

    def forward(self, x):
        return self.out(self.rnn(self.table(x))[0].mean(1))


RNG = np.random.default_rng(5)
NETWORKS = {
    "mlp": (
        lambda: es.nn.Sequential(es.nn.Linear(7, 15), es.nn.Tanh(), es.nn.Dropout(0.3), es.nn.Linear(15, 4)),
        RNG.standard_normal((5, 7)).astype(np.float32),
    ),
    "images": (Images, RNG.standard_normal((3, 2, 7, 6)).astype(np.float32)),
    "texts": (Texts, RNG.integers(0, 11, (3, 9))),
}


def trained(name: str) -> tuple[es.TrainStep, list[float]]:
    make, x = NETWORKS[name]
    es.manual_seed(3)
    step = es.TrainStep(make(), es.functional.cross_entropy, es.optim.Adam(lr=0.01), threads=2)
    return step, [step(x, np.arange(len(x)) % 4) for _ in range(3)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_as_on_the_cpu(name, request):
    plain, wanted = trained(name)
    backend = request.getfixturevalue("alone")
    step, losses = trained(name)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    assert losses[-1] < losses[0]
    for (k, a), (_, b) in zip(step.store.arrays(), plain.store.arrays(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5, err_msg=k)
    assert backend.programs == 1 and backend.compiled and step.compiler.arena.block in backend.blocks


def test_reports_of_another_back_end(alone):
    step, _ = trained("texts")
    x = NETWORKS["texts"][1]
    batch = x, np.arange(len(x)) % 4
    assert "evaluate " in step.plan
    profile = step.profile(*batch, repeats=2)
    assert {r[2] for r in profile.rows} == {"evaluate"} and all(r[3] > 0 for r in profile.rows)
    assert 0 < step.evaluate([batch])["loss"] < 2
    (run,) = step.compiler.programs.values()
    report = explain.gather(run, batch_arrays(batch), 2, measure=True)
    assert [k["pattern"] for k in report["kernels"]] == ["evaluate"] * len(run.kernels)
    assert all(k["candidates"][0]["alone"] > 0 for k in report["kernels"])


def test_errors_are_those_of_the_program(alone):
    step, _ = trained("texts")
    before = {k: v.copy() for k, v in step.store.arrays()}
    x = NETWORKS["texts"][1].copy()
    x[1, 2] = 11
    with pytest.raises(IndexOutOfRange):
        step(x, np.arange(len(x)) % 4)
    step.model.out.bias.data[1] = np.inf
    before["out.bias"][1] = np.inf
    with pytest.raises(NonFiniteError):
        step(NETWORKS["texts"][1], np.arange(len(x)) % 4)
    assert all((v == before[k]).all() for k, v in step.store.arrays())


def test_both_in_one_process(backend):
    """A program goes where its target says."""
    step, _ = trained("images")
    (run,) = step.compiler.programs.values()
    x = NETWORKS["images"][1]
    inputs = [x, np.arange(len(x)) % 4]
    with run.preserve():
        _, (wanted,) = run(inputs)
    other = Executable(run.source_graph, run.bound, 2, target=Machine(cores=2))
    with other.preserve():
        _, (found,) = other(inputs)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert run.backend is CPU and other.backend is backend and not isinstance(other.program, type(run.program))


def test_unknown_targets_and_duplicate_names(backend):
    with pytest.raises(CompileError, match="'evaluated' already"):
        registry.register(Evaluated())

    class Another(Evaluated):
        name, patterns = "another", (Evaluate(),)

    with pytest.raises(CompileError, match="a pattern 'evaluate' already"):
        registry.register(Another())

    class Nobody(Machine):
        backend = "nobody"

    with pytest.raises(CompileError, match="no back end 'nobody'.*cpu, evaluated"):
        registry.backend_of(Nobody())
    assert Machine() != replace(CPU.target(1)) and hash(Machine()) == hash(Machine())


def test_checked_runs_say_that_they_know_the_cpu_only(alone, monkeypatch):
    monkeypatch.setenv(CHECK.name, "1")
    allocate = alone.allocate

    def opaque(nbytes: int) -> Block:
        return Block(object(), allocate(nbytes).address, nbytes)  # memory of which the process knows no more

    monkeypatch.setattr(alone, "allocate", opaque)
    with pytest.raises(CheckError, match="'evaluated'"):
        trained("mlp")
