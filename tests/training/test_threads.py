"""Threads that share one training step: nothing is lost, torn or waited for endlessly."""

import threading

import numpy as np
import pytest

import einsmith as es
from einsmith.runtime import queues
from einsmith.runtime.program import Program
from einsmith.tracing import trace
from einsmith.training.description import measure
from tests.programs import program_of

INPUTS, CLASSES = 6, 3


def network() -> es.nn.Module:
    return es.nn.Sequential(
        es.nn.Linear(INPUTS, 17), es.nn.BatchNorm1d(17), es.nn.ReLU(), es.nn.Dropout(0.3), es.nn.Linear(17, CLASSES)
    )


def make(**options) -> es.TrainStep:
    es.manual_seed(3)
    return es.TrainStep(network(), es.functional.cross_entropy, es.optim.Adam(lr=0.01), ema=0.9, **options)


def batch(rng, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((size, INPUTS)).astype("f"), rng.integers(0, CLASSES, size)


def threads(*functions) -> None:
    """Run functions at once and raise the first error; threads that never end are an error."""
    errors: list[BaseException] = []

    def caught(f) -> None:
        try:
            f()
        except BaseException as e:
            errors.append(e)

    running = [threading.Thread(target=caught, args=(f,), daemon=True) for f in functions]
    for t in running:
        t.start()
    for t in running:
        t.join(300)
    if errors:
        raise errors[0]
    assert not any(t.is_alive() for t in running), "threads wait for ever"


def state_of(step: es.TrainStep) -> dict[str, bytes]:
    """Weights, buffers and the optimizer's state, by name."""
    with step.store.guard:
        arrays = step.model.state_dict() | {n: s.data.copy() for n, s in step.current_state().items()}
    return {n: np.ascontiguousarray(a).tobytes() for n, a in arrays.items()}


def stress(rng, folder, rounds: int, **options) -> None:
    """Steps of two shapes, profile, evaluation, saves, loads, predictions, from nine threads at once."""
    step = make(**options)
    batches = {size: batch(rng, size) for size in (16, 7)}
    order: list[int] = []
    train = step.runner._train

    def logged(run, arrays, *rest):
        value = train(run, arrays, *rest)
        order.append(len(arrays[0]))  # its place is that of the step, since the guard is held
        return value

    step.runner._train = logged  # type: ignore[method-assign]
    x = batches[16][0]
    begun = state_of(step)
    step(*batches[16])
    es.save(step, folder)
    saved: dict[int, dict[str, bytes]] = {}
    averages, predicted, evaluated, states = [], [], [], []

    def steps(size):
        return lambda: [step(*batches[size]) for _ in range(20 * rounds)]

    def profile():
        for n in range(rounds):
            step.profile(*batches[(16, 7)[n % 2]], repeats=20)

    def save():
        for _ in range(rounds):
            es.save(step, folder)

    def load():
        for _ in range(rounds):
            other = es.load(folder, model=network())
            saved[other.steps] = state_of(other)

    def evaluate():
        for _ in range(rounds):
            evaluated.append(step.evaluate([batches[16]])["loss"])

    def evaluate_averages():
        for _ in range(rounds):
            averages.append(step.evaluate([batches[16]], averaged=True)["loss"])

    def predict():
        for _ in range(10 * rounds):
            predicted.append(step.model.predict(x).tobytes())

    def read():
        for _ in range(10 * rounds):
            states.append({n: a.tobytes() for n, a in step.model.state_dict().items()})

    threads(steps(16), steps(7), profile, save, load, evaluate, evaluate_averages, predict, read)

    assert len(order) == step.steps == 40 * rounds + 1
    alone = make(**options)
    assert state_of(alone) == begun
    at: dict[int, dict[str, bytes]] = {}
    moments: dict[str, set] = {"predicted": set(), "evaluated": set(), "averages": set(), "states": set()}
    names = alone.model.state_dict().keys()
    for n, size in enumerate(order, start=1):
        alone(*batches[size])
        at[n] = state_of(alone)
        moments["predicted"].add(alone.model.predict(x).tobytes())
        moments["evaluated"].add(alone.evaluate([batches[16]])["loss"])
        moments["averages"].add(alone.evaluate([batches[16]], averaged=True)["loss"])
        moments["states"].add(tuple(at[n][name] for name in names))
    assert state_of(step) == at[len(order)]
    assert saved and all(state == at[n] for n, state in saved.items())
    assert set(predicted) <= moments["predicted"]
    assert set(evaluated) <= moments["evaluated"]
    assert set(averages) <= moments["averages"]
    assert {tuple(state[name] for name in names) for state in states} <= moments["states"]
    assert step.model.training and all(m.training for m in step.model.modules())


def test_threads_that_share_a_step_lose_nothing(rng, tmp_path) -> None:
    stress(rng, tmp_path / "run", 3)


@pytest.mark.slow
def test_threads_that_share_a_step_lose_nothing_for_a_minute(rng, tmp_path) -> None:
    stress(rng, tmp_path / "run", 250)


@pytest.mark.slow
def test_threads_that_share_a_step_that_tunes_itself(rng, tmp_path) -> None:
    """Searches take back what their runs store; which configurations are found does not change a bit of these sizes."""
    stress(rng, tmp_path / "run", 20, tune=2.0)


def test_a_step_during_a_profile_is_kept(rng) -> None:
    step = make(threads=1)
    first, second = batch(rng, 16), batch(rng, 7)
    step.compile(*first)
    step.compile(*second)
    for _ in range(3):
        inside, done = threading.Event(), []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("einsmith.training.step.measure", lambda *a, f=measure, e=inside: (e.set(), f(*a))[1])
            before = state_of(step)
            thread = threading.Thread(target=lambda d=done: d.append(step.profile(*first, repeats=100)), daemon=True)
            thread.start()
            assert inside.wait(60)
            step(*second)
            thread.join(60)
        assert done
        assert state_of(step) != before


def test_batches_that_threads_gather_are_as_many_as_an_update_takes(rng) -> None:
    step = make(accumulate=3)
    one = batch(rng, 7)
    gathered: list[bool] = []
    accumulation = step.parts.accumulation
    for name, f in (("add", accumulation.add), ("end_update", accumulation.end_update)):
        gathers = name == "add"
        setattr(accumulation, name, lambda x, f=f, gathers=gathers: (gathered.append(gathers), f(x)))
    threads(*[lambda: [step(*one) for _ in range(60)]] * 3)
    assert gathered == [True, True, False] * 60 and step.steps == 60


def test_modes_of_two_threads_do_not_mix() -> None:
    """A thread that evaluates and one that trains see their own modes, and neither leaves its mode to the model."""
    model = network()
    entered, leave = threading.Event(), threading.Event()
    seen = []

    def evaluating():
        with model.in_mode(training=False):
            entered.set()
            leave.wait(60)
            seen.append([m.training for m in model.modules()])

    thread = threading.Thread(target=evaluating, daemon=True)
    thread.start()
    assert entered.wait(60)
    assert all(m.training for m in model.modules())
    with model.in_mode(training=True):
        leave.set()
        thread.join(60)
        assert all(m.training for m in model.modules())
    assert seen == [[False] * len(list(model.modules()))]
    assert all(m.training for m in model.modules())


def test_modes_of_a_block_end_with_it() -> None:
    model = network()
    model[3].eval()
    with model.in_mode(training=False):
        version = trace.version()
        assert trace.version() is version
        model[0].train()
        assert model[0].training and not model[1].training
        assert trace.version() is not version
    assert [m.training for m in model.modules()] == [True, True, True, True, False, True]


def test_a_mode_of_ones_own_is_heeded_within_blocks() -> None:
    """A model whose `train` keeps its batch norm in evaluation mode keeps it there in training steps too."""

    class Frozen(es.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = es.nn.BatchNorm1d(INPUTS)
            self.out = es.nn.Linear(INPUTS, CLASSES)

        def train(self, mode: bool = True):
            super().train(mode)
            self.norm.eval()
            return self

        def forward(self, x):
            return self.out(self.norm(x))

    model = Frozen()
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    before = model.norm.running_mean.numpy()
    rng = np.random.default_rng(0)
    step(*batch(rng, 7))
    assert (model.norm.running_mean.numpy() == before).all()


def test_prediction_waits_while_weights_are_not_those_of_a_step(rng) -> None:
    """Within `averaged` the model has other weights: other threads see those before it or those after it."""
    step = make()
    one = batch(rng, 7)
    for _ in range(3):
        step(*one)
    x = one[0]
    plain = step.model.predict(x).tobytes()
    found = []
    with step.averaged():
        assert step.model.predict(x).tobytes() != plain
        thread = threading.Thread(target=lambda: found.append(step.model.predict(x).tobytes()), daemon=True)
        thread.start()
        thread.join(0.05)
        assert found == []
    thread.join(60)
    assert found == [plain]


def test_two_steps_that_share_parameters_share_their_lock(rng) -> None:
    model = network()
    first = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    second = es.TrainStep(model, es.functional.cross_entropy, es.optim.Adam(lr=0.1))
    other = es.TrainStep(network(), es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    one = batch(rng, 7)
    for step in (first, second, other):
        step(*one)
    done = []
    with first.store.guard:
        thread = threading.Thread(target=lambda: done.append(second(*one)), daemon=True)
        thread.start()
        free = threading.Thread(target=lambda: done.append(other(*one)), daemon=True)
        free.start()
        free.join(60)
        thread.join(0.05)
        assert len(done) == 1
    thread.join(60)
    assert len(done) == 2


def test_a_call_that_waits_runs_what_the_program_has_become(rng, monkeypatch) -> None:
    f = es.jit(lambda x: (x * 2 + 1).sum())
    x = rng.standard_normal((5, 7))
    f(x)
    run = program_of(f)
    other = run.with_decisions({})
    old, new, ran = run.program, other.program, []
    plain = Program.run
    monkeypatch.setattr(Program, "run", lambda self: (ran.append(self), plain(self))[1])
    found = []
    with queues.FIRST.lock:
        thread = threading.Thread(target=lambda: found.append(f(x)), daemon=True)
        thread.start()
        thread.join(0.05)
        run.swap(other)
    thread.join(60)
    assert ran == [new] and old is not new
    np.testing.assert_allclose(found, [(x * 2 + 1).sum()])
