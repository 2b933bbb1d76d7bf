"""Groups of calls that run together: no hazard inside of a group, a legal order, the same results bit for bit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.cost.facts import Target
from einsmith.ir.nodes import leaf
from einsmith.passes import pipeline
from einsmith.runtime.assemble import Assembler, PointerTarget
from einsmith.runtime.steps import RunLaunch, Together
from einsmith.schedule import pipeline as plan_passes
from einsmith.schedule import together
from einsmith.schedule.arena import lives
from einsmith.schedule.plan import KernelCall
from einsmith.schedule.together import Work, find_dependences, group_calls
from einsmith.tuning.calibration import calibrate

TARGET = Target(cores=2)


def close(needs: list[set[int]]) -> list[set[int]]:
    """Return all calls that must end before each call, directly or not."""
    out: list[set[int]] = []
    for direct in needs:
        out.append(set(direct).union(*(out[j] for j in direct)))
    return out


def draw_plan(rng: np.random.Generator, count: int = 14) -> SimpleNamespace:
    """Return calls that read and write few tensors, some of which share their memory with a leaf."""
    tensors = [leaf((3,), dt.f32) for _ in range(8)]
    home = {tensors[0]: tensors[1], tensors[2]: tensors[3]}
    calls = []
    for _ in range(count):
        touched = rng.choice(8, int(rng.integers(1, 4)), False)
        written = (True, *(bool(rng.random() < 0.2) for _ in touched[1:]))
        calls.append(KernelCall(None, tuple(tensors[i] for i in touched), written, ()))
    return SimpleNamespace(calls=calls, home=home, graph=SimpleNamespace(inputs=()))


def have_hazard(plan: SimpleNamespace, i: int, j: int) -> bool:
    """Return whether a call writes what the other reads or writes."""
    touched = [
        [(plan.home.get(t, t), w) for t, w in zip(plan.calls[n].tensors, plan.calls[n].written, strict=True)]
        for n in (i, j)
    ]
    return any(a is b and (v or w) for a, v in touched[0] for b, w in touched[1])


@pytest.mark.parametrize("seed", range(100))
def test_groups_have_no_hazards_and_a_legal_order(seed):
    rng = np.random.default_rng(seed)
    plan = draw_plan(rng)
    count = len(plan.calls)
    needs = find_dependences(plan)
    before = close(needs)
    works = [
        None if rng.random() < 0.15 else Work(float(rng.uniform(0.1, 5)) * 1e-6, int(rng.choice([1, 1, 2, 8])))
        for _ in range(count)
    ]
    groups = group_calls(needs, works, TARGET)
    order = [i for g in groups for i in g]
    assert sorted(order) == list(range(count))
    place = {i: k for k, g in enumerate(groups) for i in g}
    for i in range(count):
        for j in range(i):
            assert (j in before[i]) >= have_hazard(plan, i, j)
            if have_hazard(plan, i, j):
                assert place[j] < place[i]
    for g in groups:
        if len(g) > 1:
            members = [works[i] for i in g]
            assert sum(w.tasks > 1 for w in members) == 1
            wide = next(w for w in members if w.tasks > 1)
            assert sum(w.seconds for w in members) <= 2 * wide.seconds + 1e-12


def test_random_graphs_have_groups():
    rng = np.random.default_rng(0)
    sizes = []
    for _ in range(50):
        plan = draw_plan(rng)
        works = [Work(1e-6, int(rng.choice([1, 2]))) for _ in plan.calls]
        sizes += [len(g) for g in group_calls(find_dependences(plan), works, TARGET)]
    assert max(sizes) > 1


def test_without_gain_the_order_stays():
    alone: list[set[int]] = [set() for _ in range(6)]
    order = [[i] for i in range(6)]
    assert group_calls(alone, [None] * 6, TARGET) == order
    assert group_calls(alone, [Work(1e-6, 1)] * 6, TARGET) == order
    assert group_calls(alone, [Work(1e-6, 2)] * 6, TARGET) == order
    tiny = [Work(1e-3, 2), *[Work(1e-6, 1)] * 5]
    assert group_calls(alone, tiny, TARGET) == order
    assert group_calls(alone, [Work(1e-6, 2), *[Work(1e-7, 1)] * 5], TARGET) == order
    longer = [Work(1e-6, 2), Work(2e-6, 1)]
    assert group_calls(alone[:2], longer, TARGET) == order[:2]


def test_a_short_call_hides_behind_a_launch():
    works = [Work(4.5e-6, 2), Work(1e-6, 1), Work(2e-6, 1), Work(3e-6, 1)]
    assert group_calls([set()] * 4, works, TARGET) == [[1, 0, 3], [2]]
    assert group_calls([set(), {0}, set(), {2}], works, TARGET) == [[0, 2], [1], [3]]


# -- training steps


def lenet():
    return es.models.lenet5(), (1, 28, 28)


def norms():
    nn = es.nn
    layers = [nn.Flatten(), nn.Linear(196, 160), nn.BatchNorm1d(160), nn.ReLU(), nn.Linear(160, 160)]
    return nn.Sequential(*layers, nn.BatchNorm1d(160), nn.ReLU(), nn.Linear(160, 10)), (14, 14)


class Recurrent(es.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = es.nn.LSTM(24, 48, batch_first=True), es.nn.Linear(48, 10)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def recurrent():
    return Recurrent(), (9, 24)


def train(make, steps: int = 4):
    """Return the losses, the parameters' bytes, the run's plan and its program."""
    es.manual_seed(0)
    rng = np.random.default_rng(1)
    model, shape = make()
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.05, momentum=0.9))
    losses = []
    for _ in range(steps):
        x = rng.standard_normal((4, *shape)).astype(np.float32)
        losses.append(float(step(x, rng.integers(0, 10, 4))))
    (run,) = step.compiler.programs.values()
    return losses, {n: a.tobytes() for n, a in model.state_dict().items()}, run


@pytest.fixture
def eager(monkeypatch):
    """Every group that is legal is made."""
    monkeypatch.setattr(together, "MIN_GAIN", -np.inf)
    real = calibrate.target

    def target(*threads: int) -> Target:
        found = real(*threads)
        return replace(found, overheads=replace(found.overheads, task_seconds=0.0))

    monkeypatch.setattr(calibrate, "target", target)
    monkeypatch.setattr(plan_passes, "MORE_BYTES", 1 << 30)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("make", [lenet, norms, recurrent])
def test_training_is_bitwise_the_same(eager, make, threads, monkeypatch):
    es.set_threads(threads)
    try:
        losses, state, run = train(make)
        monkeypatch.setenv("EINSMITH_WITHOUT", "together")
        want_losses, want_state, other = train(make)
    finally:
        es.set_threads(None)
    assert losses == want_losses and state == want_state
    assert not other.plan.together and bool(run.plan.together) == (threads > 1)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("make", [lenet, norms])
def test_checked_training_is_the_same(eager, make, monkeypatch):
    es.set_threads(2)
    try:
        want = train(make, 2)[:2]
        monkeypatch.setenv("EINSMITH_CHECK", "2")
        losses, state, run = train(make, 2)
    finally:
        es.set_threads(None)
    assert run.plan.together and any(isinstance(s, Together) for s in run.program.steps)
    assert (losses, state) == want


@pytest.fixture
def grouped(eager):
    es.set_threads(2)
    try:
        yield train(lenet)[2]
    finally:
        es.set_threads(None)


def test_memory_of_a_group_is_its_own(grouped):
    """Nothing that a member touches ends, begins or is overwritten within its group."""
    plan, code = grouped.plan, grouped.compiled.code
    workspaces = {i: code[c.kernel].workspace + 64 for i, c in enumerate(plan.calls)}
    ranges = lives(plan, grouped.compiled.outside, workspaces)
    for first, last in plan.together:
        met = [x for x in ranges if x.first <= last and first <= x.last]
        assert met and all(x.first <= first and last <= x.last for x in met if x.overwrites is None)
        assert not [x for x in met if x.overwrites is not None and first <= x.first <= last]


@pytest.mark.parametrize("stored, commit", [(None, None), (0, 0), (2, 1), (3, 1), (4, 4)])
def test_signals_wait_from_the_header_of_a_group_that_stores(stored, commit):
    assembler = Assembler({}, 0)
    launch = RunLaunch(0, 1, [0])
    assembler.steps += [launch, Together(2), launch, launch, launch]
    assembler.headers[1] = 0
    if stored is not None:
        assembler.places[stored, 0] = PointerTarget(leaf((1,), dt.f32), 0, 4)
        assembler.values[stored, 0] = "new"
    assert assembler.commit() == commit


def test_times_of_a_group_are_those_of_its_call_of_most_tasks(grouped):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(x.shape).astype(np.float32) for x in grouped.compiled.inputs[:1]]
    arrays += [np.zeros(x.shape, x.dtype.numpy) for x in grouped.compiled.inputs[1:]]
    seconds = grouped.run_timed(arrays)[2]
    assert len(seconds) == len(grouped.calls)
    tasks = [max(n for _, n, _ in k.launches) for k in grouped.kernels]
    wide = [max(range(a, b + 1), key=lambda i: tasks[i]) for a, b in grouped.plan.together]
    assert all(seconds[i] > 0 for i in wide)


def test_the_pass_can_be_left_out():
    assert "together" in pipeline.optional()
