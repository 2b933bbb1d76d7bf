"""Training steps: what may change between two steps, what a stopped run goes on with, what a save holds."""

import json
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import einsmith as es


class Net(es.nn.Module):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.a = es.nn.Linear(4, 6)
        self.b = es.nn.Linear(6, 3)
        for p in self.parameters():
            p.data = rng.standard_normal(p.shape).astype(np.float32) * 0.5
        self.register_buffer("seen", np.zeros((), np.float32))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + 1.0
        else:
            x = x * 0.5
        return self.b(es.tanh(self.a(x)))


def data(n=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 4)).astype(np.float32), rng.integers(0, 3, n)


def make(optimizer=None, model=None, **kw):
    rule = optimizer or es.optim.SGD(lr=0.1, momentum=0.9)
    return es.TrainStep(model or Net(), es.functional.cross_entropy, rule, **kw)


def values(step):
    return {k: v.copy() for k, v in step.model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


# ---------------------------------------------------------------------------------------- changes between two steps


def test_freezing_a_layer_after_the_first_step():
    step = make()
    step(*data())
    step.model.a.requires_grad_(False)
    before = values(step)
    step(*data())
    after = values(step)
    assert before["a.weight"].tobytes() == after["a.weight"].tobytes()
    assert before["b.weight"].tobytes() != after["b.weight"].tobytes()
    step.model.a.requires_grad_(True)
    step(*data())
    assert after["a.weight"].tobytes() != values(step)["a.weight"].tobytes()


def test_replaced_parameter_is_trained():
    step = make()
    step(*data())
    step.model.b.bias = es.nn.Parameter(np.full(3, 5.0, np.float32))
    step(*data())
    assert not np.array_equal(step.model.b.bias.data, np.full(3, 5.0, np.float32))


def test_model_converted_to_double_between_two_steps():
    step = make()
    x, y = data()
    step(x, y)
    step.model.double()
    before = values(step)
    loss = step(x.astype(np.float64), y)
    after = values(step)
    assert after["a.weight"].dtype == np.float64
    assert not np.array_equal(before["a.weight"], after["a.weight"])
    step(x, y)
    assert not np.array_equal(values(step)["a.weight"], after["a.weight"])
    other = make()
    other(x, y)
    assert abs(other(x, y) - loss) < 1e-5


def test_another_optimizer_takes_over():
    step = make()
    step(*data())
    step.optimizer = es.optim.SGD(lr=0.0)
    before = values(step)
    step(*data())
    after = values(step)
    assert before["a.weight"].tobytes() == after["a.weight"].tobytes()


def test_step_trains_whatever_the_mode():
    step = make()
    step.model.eval()
    a = step(*data())
    assert step.model.seen.data == 1
    assert not step.model.training and not step.model.a.training
    assert a == make()(*data())


def test_evaluate_keeps_each_modules_mode():
    step = make()
    step.model.a.eval()
    step.evaluate([data()])
    assert step.model.training and not step.model.a.training
    x, y = data()
    got = step.evaluate([(x, y)])["loss"]
    step.model.eval()
    np.testing.assert_allclose(got, es.functional.cross_entropy(step.model(x), y), rtol=1e-6)


def test_evaluate_of_a_model_with_several_results():
    class Two(Net):
        def forward(self, x):
            out = super().forward(x)
            return out, out * 2

    step = make()
    two = es.TrainStep(Two(), lambda out, t: es.functional.cross_entropy(out[0], t), es.optim.SGD(lr=0.1))
    a, b = step.evaluate([data()]), two.evaluate([data()])
    assert a["loss"] == b["loss"]
    assert "accuracy" not in b


def test_profile_changes_no_buffer():
    step = make()
    step(*data())
    before = values(step)
    step.profile(*data(), repeats=2)
    assert same(before, values(step))


def test_nonfinite_loss_leaves_buffers():
    step = make()
    step(*data())
    before = values(step)
    x, y = data()
    x[3, 2] = np.nan
    with pytest.raises(es.NonFiniteError):
        step(x, y)
    assert same(before, values(step))


def test_single_target_counts_as_one_sample():
    step = es.TrainStep(Net(), lambda out, t: es.functional.sum(out * out) * t, es.optim.SGD(lr=0.01))
    x, _ = data(1)
    history = step.fit([(x, np.float32(1.0).reshape(()))], epochs=1, progress=False)
    assert len(history) == 1 and step.steps == 1


# ------------------------------------------------------------------------------------------------ stopping, resuming


class Stop(Exception):
    pass


def stop_at(n):
    def on_step(step, loss):
        if step.steps == n:
            raise Stop

    return on_step


@pytest.mark.thinned(4)
@pytest.mark.parametrize("at", [2, 3, 4, 5, 6])
def test_history_of_a_resumed_run_is_that_of_a_whole_one(tmp_path, at):
    """Three batches an epoch: stops within epochs and at their ends."""
    x, y = data(20)
    batches = es.data.batches(x, y, 8, seed=1)
    whole = make()
    history = whole.fit(batches, epochs=3, progress=False)
    part = make()
    seen = []
    with pytest.raises(Stop):
        part.fit(batches, epochs=3, progress=False, on_step=stop_at(at), on_epoch=lambda s, mean: seen.append(mean))
    es.save(part, tmp_path / "run")
    again = es.load(tmp_path / "run", model=Net())
    seen += again.fit(batches, epochs=3, progress=False)
    assert seen == history
    assert same(values(whole), values(again))
    seen2 = part.fit(batches, epochs=3, progress=False)  # the same object goes on, too
    assert seen2 == history[-len(seen2) :]
    assert same(values(whole), values(part))


def test_interrupt_during_a_step_leaves_counters_that_agree_with_the_weights(monkeypatch):
    """A signal that comes while native code runs is handled when it ends."""
    from einsmith.driver.runs import Runs

    run = Runs.run

    def interrupted(self, *args):
        status = run(self, *args)
        signal.raise_signal(signal.SIGINT)
        return status

    x, y = data(20)
    batches = es.data.batches(x, y, 8, seed=1)
    step = make()
    step.compile(x[:8], y[:8])
    monkeypatch.setattr(Runs, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        step.fit(batches, epochs=1, progress=False)
    assert (step.steps, step.position) == (1, 1)
    with pytest.raises(KeyboardInterrupt):
        step(x[:8], y[:8])
    assert step.steps == 2
    assert step.model.seen.data == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_steps_in_another_thread():
    step, out = make(), []
    t = threading.Thread(target=lambda: out.append(step(*data())))
    t.start()
    t.join()
    assert out == [make()(*data())]


def test_callable_learning_rate_that_raises_changes_nothing():
    def lr(n):
        if n == 2:
            raise Stop
        return 0.1

    step = make(es.optim.SGD(lr=lr))
    step(*data())
    before = values(step)
    with pytest.raises(Stop):
        step(*data())
    assert same(before, values(step)) and step.steps == 1


# ------------------------------------------------------------------------------------------------------------- saving


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "rule, name, value",
    [
        (lambda: es.optim.SGD(lr=0.1, momentum=0.9, nesterov=True), "momentum", 0.0),
        (lambda: es.optim.SGD(lr=0.1, momentum=0.9), "momentum", 0.0),
        (lambda: es.optim.SGD(lr=0.1, momentum=0.9, dampening=0.5), "dampening", 0.0),
        (lambda: es.optim.AdamW(lr=0.1, weight_decay=0.1), "weight_decay", 0.0),
        (lambda: es.optim.Adam(lr=0.1), "beta1", 0.5),
        (lambda: es.optim.RMSprop(lr=0.1, momentum=0.5), "lr", -0.01),
        (lambda: es.optim.SGD(lr=lambda n: 0.1, momentum=0.9), "lr", 0.05),
        (lambda: es.optim.Rule("p[i] = p[i] - lr*g[i]*m[i]\nm[i] = m[i] + 1", init=2, lr=0.1), "lr", 0.05),
    ],
)
def test_settings_changed_after_the_start_are_resumed(tmp_path, rule, name, value):
    whole, part = make(rule()), make(rule())
    for s in (whole, part):
        s(*data())
        setattr(s.optimizer, name, value)
        s(*data())
    es.save(part, tmp_path / "run")
    again = es.load(tmp_path / "run", model=Net())
    for s in (whole, again):
        s(*data())
        s.optimizer.lr = 0.2
        s(*data())
    assert same(values(whole), values(again))
    assert again.optimizer.state_names == whole.optimizer.state_names


def test_saved_element_types_and_frozen_parameters_are_restored(tmp_path):
    model = es.models.mlp3().double()
    next(iter(model.parameters())).requires_grad = False
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1, momentum=0.9), seed=np.int64(3))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 1, 28, 28)), rng.integers(0, 10, 8)
    step(x, y)
    es.save(step, tmp_path / "run")
    again = es.load(tmp_path / "run")
    assert same(values(step), values(again))
    step(x, y)
    again(x, y)
    assert same(values(step), values(again))


def test_failed_move_leaves_the_old_save(tmp_path, monkeypatch):
    step = make()
    step(*data())
    es.save(step, tmp_path / "run")
    old = values(step)
    step(*data())
    rename = Path.rename

    def failing(self, target):
        if self.name.endswith(".new"):
            raise OSError("disk full")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(es.SaveError):
        es.save(step, tmp_path / "run")
    monkeypatch.undo()
    assert same(old, values(es.load(tmp_path / "run", model=Net())))
    assert os.listdir(tmp_path) == ["run"]


def test_killed_between_the_moves_the_old_save_is_found(tmp_path, monkeypatch):
    step = make()
    step(*data())
    es.save(step, tmp_path / "run")
    old = values(step)
    step(*data())
    rename = Path.rename

    class Killed(BaseException):
        pass

    moves = []

    def killed(self, target):
        moves.append(self)
        out = rename(self, target)
        if len(moves) == 1:
            monkeypatch.setattr(Path, "rename", dead)
        return out

    def dead(self, target):
        raise Killed

    monkeypatch.setattr(Path, "rename", killed)
    monkeypatch.setattr("shutil.rmtree", lambda *a, **k: None)
    with pytest.raises(Killed):
        es.save(step, tmp_path / "run")
    monkeypatch.undo()
    found = values(es.load(tmp_path / "run", model=Net()))
    assert same(found, old) or same(found, values(step))
    es.save(step, tmp_path / "run")
    assert os.listdir(tmp_path) == ["run"]


def test_a_users_folder_in_the_save_stays(tmp_path):
    step = make()
    es.save(step, tmp_path / "run")
    (tmp_path / "run" / "plots").mkdir()
    (tmp_path / "run" / "plots" / "a.txt").write_text("mine")
    es.save(step, tmp_path / "run")
    assert (tmp_path / "run" / "plots" / "a.txt").read_text() == "mine"


def test_save_through_a_link(tmp_path):
    step = make()
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk", target_is_directory=True)
    es.save(step, tmp_path / "run")
    es.save(step, tmp_path / "run")
    assert (tmp_path / "run").is_symlink()
    assert (tmp_path / "disk" / "step.json").exists()
    assert sorted(os.listdir(tmp_path)) == ["disk", "run"]


def test_nothing_is_left_where_a_save_fails(tmp_path):
    step = make()
    step.model.spec = {"name": "net", "arguments": {"f": object()}}
    with pytest.raises(Exception):  # noqa: B017
        es.save(step, tmp_path / "run")
    assert os.listdir(tmp_path) == []


def test_state_that_does_not_fit_the_model_is_refused_before_training(tmp_path):
    step = make()
    step(*data())
    es.save(step, tmp_path / "run")
    model = Net().double()
    again = es.load(tmp_path / "run", model=model)
    x, y = data()
    again(x.astype(np.float64), y)
    assert all(s.data.dtype == np.float64 for s in again.store.state.values())


def test_step_json_is_plain(tmp_path):
    step = make()
    es.save(step, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "step.json").read_text())["steps"] == 0
