"""The loop around the step: validation, metrics, callbacks, logs, DataLoaders and what goes wrong in them."""

from __future__ import annotations

import csv
import sys
import types

import numpy as np
import pytest

import einsmith as es
from tests import lock_order
from tests.training.small import arrays, data, net, same

F = es.functional.cross_entropy


def make(**options):
    return es.TrainStep(net(), F, es.optim.SGD(lr=0.2, momentum=0.5), **options)


def train(n=20, size=6):
    return es.data.batches(*data(n), size, seed=4)


VALIDATION = [data(5, seed=8), data(1, seed=9), data(3, seed=10)]


# ------------------------------------------------------------------------------------------------------- validation


def test_history_tells_of_every_epoch() -> None:
    step = make(ema=0.5)
    losses = step.fit(train(), 3, progress=False, validation=VALIDATION, metrics={"top2": es.metrics.top_k(2)})
    assert [row["epoch"] for row in step.history] == [1, 2, 3] and [row["steps"] for row in step.history] == [4, 8, 12]
    assert [row["loss"] for row in step.history] == losses
    last = step.history[-1]
    assert last["lr"] == 0.2 and last["seconds"] > 0
    found = step.evaluate(VALIDATION, metrics={"top2": es.metrics.top_k(2)}, averaged=True)
    assert {n: last[f"val_{n}"] for n in found} == found
    assert found["loss"] != step.evaluate(VALIDATION)["loss"]


def test_batches_of_all_sizes_share_the_weights() -> None:
    """Training in batches of several sizes, evaluation in others: what a step sees is what the last one left."""
    x, y = data(40)
    step, other = make(), make()
    for a, b in ((0, 7), (7, 8), (8, 24), (24, 40)):
        step(x[a:b], y[a:b])
        whole = step.evaluate([(x, y)])
        parts = step.evaluate([(x[:13], y[:13]), (x[13:], y[13:])])
        assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-12) and parts["accuracy"] == whole["accuracy"]
        other(x[a:b], y[a:b])
    same(arrays(step), arrays(other))


def test_evaluation_follows_the_loss_and_the_trained_one_of_several() -> None:
    def both(out, y):
        return {"a": F(out, y), "b": 2.0 * F(out, y)}

    step = make()
    plain = step.evaluate(VALIDATION)["loss"]
    step.loss = both
    assert step.evaluate(VALIDATION)["b"] == pytest.approx(2 * plain, rel=1e-5)
    step.trained = "sum"
    assert step.evaluate(VALIDATION)["loss"] == pytest.approx(3 * plain, rel=1e-5)
    step.loss = F
    assert step.evaluate(VALIDATION)["loss"] == plain


def test_metrics(rng) -> None:
    out, y = rng.normal(size=(40, 4)), rng.integers(0, 3, 40)  # a class that never occurs
    y[5] = -100
    kept, said = y[y >= 0], out[y >= 0].argmax(1)

    def run(metric, output=out, target=y):
        metric.reset()
        for a in range(0, len(target), 7):
            metric.update(output[a : a + 7], target[a : a + 7])
        return metric.compute()

    assert run(es.metrics.accuracy()) == (kept == said).mean()
    order = np.argsort(-out[y >= 0], axis=1)[:, :2]
    assert run(es.metrics.top_k(2)) == (order == kept[:, None]).any(1).mean()
    assert run(es.metrics.top_k(4)) == 1.0
    both = [(((said == c) & (kept == c)).sum(), (said == c).sum(), (kept == c).sum()) for c in range(4)]
    assert run(es.metrics.precision()) == pytest.approx(np.mean([r / max(s, 1) for r, s, _ in both]))
    assert run(es.metrics.recall()) == pytest.approx(np.mean([r / max(t, 1) for r, _, t in both]))
    assert run(es.metrics.f1()) == pytest.approx(np.mean([2 * r / (s + t) for r, s, t in both]))
    assert run(es.metrics.f1("micro")) == pytest.approx((kept == said).mean())
    a, b = rng.normal(size=(2, 30, 2))
    assert run(es.metrics.r2(), a, b) == pytest.approx(1 - ((a - b) ** 2).sum() / ((b - b.mean()) ** 2).sum())
    assert es.metrics.mean_absolute_error(a, b) == pytest.approx(np.abs(a - b).mean())
    assert es.metrics.mean_squared_error(a, b) == pytest.approx(((a - b) ** 2).mean())
    for metric in (es.metrics.accuracy(), es.metrics.r2()):
        with pytest.raises(es.ShapeError):
            run(metric, a, b[:, :1])


def test_metrics_are_functions_too() -> None:
    def right(output, target):
        return (output.argmax(1) == target).mean()

    found = make().evaluate(VALIDATION, metrics={"right": right})
    assert found["right"] == pytest.approx(found["accuracy"])
    with pytest.raises(es.ArgumentError, match="top=3"):
        make().evaluate(VALIDATION, metrics={"top": 3})
    with pytest.raises(es.ArgumentError, match="validation="):
        make().fit(train(), metrics={"right": right})
    with pytest.raises(es.ArgumentError, match="k=7"):
        make().evaluate(VALIDATION, metrics={"top": es.metrics.top_k(7)})


# -------------------------------------------------------------------------------------------------------- callbacks


class Told(es.callbacks.Callback):
    def __init__(self, stop=99):
        self.heard, self.stop = [], stop

    def on_begin(self, step):
        self.heard.append("begin")

    def on_step(self, step, loss):
        self.heard.append(step.steps)

    def on_epoch(self, step, row):
        self.heard.append(row["epoch"] * 100)
        return row["epoch"] >= self.stop

    def on_end(self, step):
        self.heard.append("end")


def test_callbacks_hear_everything_and_may_stop() -> None:
    a, b = Told(), Told(stop=2)
    step = make()
    assert len(step.fit(train(), 5, progress=False, callbacks=[a, b])) == 2
    assert a.heard == b.heard == ["begin", 1, 2, 3, 4, 100, 5, 6, 7, 8, 200, "end"]
    with pytest.raises(es.ArgumentError, match="Callback"):
        step.fit(train(), 5, progress=False, callbacks=[print])

    def fail(step, loss):
        raise KeyError

    with pytest.raises(KeyError):
        step.fit(train(), 5, progress=False, callbacks=[a], on_step=fail)
    assert a.heard[-2:] == ["begin", "end"]


class Scripted(es.callbacks.Callback):
    """Epochs that find what a test says."""

    def __init__(self, values):
        self.values = values

    def on_epoch(self, step, row):
        row["score"] = self.values[row["epoch"] - 1]


SCORES = [5.0, 4.0, 4.5, 3.95, 4.0, 4.1, 4.2, 1.0]


@pytest.mark.parametrize("options, epochs", [({"patience": 2}, 6), ({"patience": 2, "min_delta": 0.1}, 4),
                                             ({"patience": 4}, 8), ({"patience": 1, "mode": "max"}, 2)])  # fmt: skip
def test_early_stopping_and_going_on(tmp_path, options, epochs) -> None:
    """A training that is loaded in its midst stops at the same epoch, and one that has stopped does nothing more."""
    step = make()
    stopping = es.callbacks.EarlyStopping("score", **options)
    step.fit(train(), 8, progress=False, callbacks=[Scripted(SCORES), stopping])
    assert step.epoch == epochs
    part = make()
    part.fit(train(), epochs - 1, progress=False, callbacks=[Scripted(SCORES)])
    es.save(part, tmp_path / "run")
    again = es.load(tmp_path / "run", model=net())
    stopping = es.callbacks.EarlyStopping("score", **options)
    again.fit(train(), 8, progress=False, callbacks=[Scripted(SCORES), stopping])
    same(arrays(step), arrays(again))
    if epochs < 8:
        again.fit(train(), 8, progress=False, callbacks=[Scripted(SCORES), stopping])
        assert again.epoch == epochs


def test_best_and_last_are_saved(tmp_path) -> None:
    step = make()
    save = es.callbacks.Save(tmp_path / "runs", monitor="score", every_steps=3)
    seen = []

    def on_step(step, loss):
        path = tmp_path / "runs" / "last"
        if path.exists():
            seen.append((step.steps, es.load(path, model=net()).steps))

    step.fit(train(), 5, progress=False, callbacks=[Scripted(SCORES), save], on_step=on_step)
    assert seen[:5] == [(4, 3), (5, 4), (6, 4), (7, 4), (8, 7)]
    assert es.load(tmp_path / "runs" / "last", model=net()).epoch == 5
    best = es.load(tmp_path / "runs" / "best", model=net())
    assert best.epoch == 4 and best.history[-1]["score"] == 3.95
    # A break between does not make a worse epoch the best.
    again = es.load(tmp_path / "runs" / "last", model=net())
    save = es.callbacks.Save(tmp_path / "runs", monitor="score")
    again.fit(train(), 6, progress=False, callbacks=[Scripted(SCORES), save])
    assert es.load(tmp_path / "runs" / "best", model=net()).epoch == 4
    (tmp_path / "file").write_text("x")
    with pytest.raises(es.SaveError, match="file"):
        step.fit(train(), 6, progress=False, callbacks=[es.callbacks.Save(tmp_path / "file")])
    assert step.epoch == 5


@pytest.mark.parametrize(
    "make_one, words",
    [(lambda: es.callbacks.EarlyStopping(patience=0), "patience=0"),
     (lambda: es.callbacks.EarlyStopping(min_delta=-1), "min_delta=-1"),
     (lambda: es.callbacks.EarlyStopping(mode="least"), "mode='least'"),
     (lambda: es.callbacks.Save("x", every_steps=0), "every_steps=0"),
     (lambda: es.callbacks.Save("x", mode="max"), "mode='max' has no effect .*monitor="),
     (lambda: es.metrics.top_k(0), "k=0"), (lambda: es.metrics.f1("all"), "average='all'")],
)  # fmt: skip
def test_wrong_arguments_are_named(make_one, words) -> None:
    with pytest.raises(es.ArgumentError, match=words):
        make_one()


@pytest.mark.parametrize(
    "given, epochs, error, words",
    [(train, "3", es.ArgumentError, "epochs='3'"), (train, -1, es.ArgumentError, "epochs=-1"),
     (lambda: iter(train()), 2, es.ShapeError, "empty in epoch 2; an iterator"), (list, 1, es.ShapeError, "epoch 1$")],
)  # fmt: skip
def test_impossible_trainings_are_named(given, epochs, error, words) -> None:
    with pytest.raises(error, match=words):
        make().fit(given(), epochs, progress=False)


def test_unknown_metrics_are_named() -> None:
    for watch in (es.callbacks.EarlyStopping("val_los"), es.callbacks.EarlyStopping()):
        with pytest.raises(es.ArgumentError, match="'val_los.*results of an epoch, epoch, steps, loss"):
            make().fit(train(), progress=False, callbacks=[watch])


# ------------------------------------------------------------------------------------------------------------- logs


def test_a_csv_log_resumes(tmp_path) -> None:
    path = tmp_path / "logs" / "log.csv"
    step = make()
    step.fit(train(), 2, progress=False, callbacks=[es.callbacks.CSVLog(path)])
    es.save(step, tmp_path / "run")
    step.fit(train(), 3, progress=False, callbacks=[es.callbacks.CSVLog(path)])
    again = es.load(tmp_path / "run", model=net())
    again.fit(train(), 4, progress=False, validation=VALIDATION, callbacks=[es.callbacks.CSVLog(path)])
    with open(path, newline="") as f:
        rows = list(csv.DictReader(f))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in again.history]
    assert rows[0]["val_loss"] == "" and float(rows[3]["val_loss"]) == again.history[3]["val_loss"]
    assert list(path.parent.iterdir()) == [path]


class Writer:
    made: list = []

    def __init__(self, folder):
        self.folder, self.scalars, self.closed = folder, [], False
        Writer.made.append(self)

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, float(value), step))

    def flush(self):
        pass

    def close(self):
        self.closed = True


@pytest.mark.parametrize("package, name", [("tensorboardX", "SummaryWriter"), ("tensorboard.summary", "Writer")])
def test_a_log_for_tensorboard(monkeypatch, tmp_path, package, name) -> None:
    for known in ("tensorboardX", "tensorboard", "tensorboard.summary"):
        monkeypatch.setitem(sys.modules, known, None)
    with pytest.raises(es.ArgumentError, match="pip install"):
        es.callbacks.TensorBoard(tmp_path)
    module = types.ModuleType(package)
    setattr(module, name, Writer)
    monkeypatch.setitem(sys.modules, "tensorboard", types.ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, package, module)
    step = make(clip_grad_norm=1.0)
    step.fit(train(), 2, progress=False, callbacks=[es.callbacks.TensorBoard(tmp_path / "tb", every_steps=3)])
    writer = Writer.made[-1]
    assert writer.closed and writer.folder == str(tmp_path / "tb")
    assert [n for t, _, n in writer.scalars if t == "step/grad_norm"] == [3, 6]
    losses = [v for t, v, _ in writer.scalars if t == "epoch/loss"]
    assert losses == [row["loss"] for row in step.history]


def test_validation_is_shown(capfd) -> None:
    make().fit(train(), 1, validation=VALIDATION)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("epoch 1/1  loss ") and "  val_loss " in line and "  val_accuracy " in line


def test_a_bar_in_notebooks(monkeypatch, capfd) -> None:
    shown = []

    class Handle:
        def update(self, content):
            shown.append(content)

    def display(content, display_id):
        shown.append("new")
        shown.append(content)
        return Handle()

    ipython = types.ModuleType("IPython")
    ipython.display = types.SimpleNamespace(HTML=str, display=display)
    ipython.get_ipython = type("ZMQInteractiveShell", (), {})
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    make().fit(train(), 2)
    assert capfd.readouterr().err == ""
    assert '<progress value="1" max="4">' in shown[1] and "1/4" in shown[1]
    ends = [s for s in shown if s.startswith("epoch 1/2 ") and "progress" not in s]
    assert len(ends) == 1 and shown.count("new") == 2
    shown.clear()
    ipython.get_ipython = lambda: None  # IPython is imported, but nobody sits before it
    make().fit(train(), 1)
    assert not shown and "epoch 1/1" in capfd.readouterr().err


# ------------------------------------------------------------------------------------------------------ DataLoaders


def loader(torch, n=20, workers=0, seed=None, dataset=None, **options):
    x, y = data(n)
    dataset = dataset or torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return torch.utils.data.DataLoader(dataset, 6, num_workers=workers, generator=generator, **options)


def test_a_data_loader_is_trained_from(torch) -> None:
    step, other = make(), make()
    losses = step.fit(loader(torch), 2, progress=False, validation=loader(torch, 9))
    assert losses == other.fit(es.data.batches(*data(20), 6), 2, progress=False)
    same(arrays(step), arrays(other))
    assert step.history[-1]["val_loss"] == pytest.approx(other.evaluate([data(9)])["loss"], rel=1e-12)


@pytest.mark.parametrize("when", [4, 6, 8])
def test_a_shuffling_loader_with_a_generator_resumes_bitwise(torch, tmp_path, when) -> None:
    whole = make()
    whole.fit(loader(torch, seed=3, shuffle=True), 4, progress=False)

    class Stop(Exception):
        pass

    def stop(step, loss):
        if step.steps == when:
            raise Stop

    part = make()
    with pytest.raises(Stop):
        part.fit(loader(torch, seed=3, shuffle=True), 4, progress=False, on_step=stop)
    es.save(part, tmp_path / "run")
    again = es.load(tmp_path / "run", model=net())
    again.fit(loader(torch, seed=3, shuffle=True), 4, progress=False)
    same(arrays(whole), arrays(again))
    assert [r["loss"] for r in whole.history] == [r["loss"] for r in again.history]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_raises_loses_nothing(torch, workers) -> None:
    x, y = data(20)

    class Faulty(torch.utils.data.Dataset):
        broken = True

        def __len__(self):
            return 20

        def __getitem__(self, n):
            if self.broken and n == 14:
                raise ValueError("image_0014.png cannot be decoded")
            return torch.tensor(x[n]), torch.tensor(y[n])

    faulty = Faulty()
    step = make()
    with pytest.raises(es.DataError, match=r"(?s)ValueError in epoch 1, after batch 2.*image_0014.*Nothing is lost"):
        step.fit(loader(torch, workers=workers, dataset=faulty), 2, progress=False)
    assert (step.steps, step.epoch, step.position) == (2, 0, 2)
    faulty.broken = False
    step.fit(loader(torch, workers=workers, dataset=faulty), 2, progress=False)
    other = make()
    other.fit(loader(torch), 2, progress=False)
    same(arrays(step), arrays(other))


@pytest.mark.parametrize(
    "batch, words",
    [({"x": np.zeros((2, 7)), "y": np.zeros(2, int)}, "mapping"), (np.zeros((2, 7)), "tuple"), ("xy", "tuple")],
)
def test_batches_that_are_no_tuples_are_named(batch, words) -> None:
    with pytest.raises(es.EinsmithError, match=words):
        make().fit([batch], progress=False)
    with pytest.raises(es.EinsmithError, match=words):
        make().evaluate([batch])


def test_nothing_that_is_off_is_called() -> None:
    """Python calls of a step: the same number with everything off as with the simplest loop."""

    def calls(**options):
        step = make()
        x, y = data(6)
        for key, value in options.items():
            setattr(step, key, value)
        for _ in range(3):
            step(x, y)
        count = 0

        def profile(frame, event, arg):
            nonlocal count
            count += event == "call" and frame.f_code.co_filename != lock_order.__file__

        sys.setprofile(profile)
        step(x, y)
        sys.setprofile(None)
        return count

    assert calls() <= 48
    assert calls(clip_grad_norm=1.0) <= calls() + 10
    assert calls(accumulate=1, ema=None) == calls()


def test_an_interrupted_validation_is_done_again() -> None:
    whole, step = make(ema=0.5), make(ema=0.5)
    whole.fit(train(), 2, progress=False, validation=VALIDATION)

    def interrupted():
        yield VALIDATION[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step.fit(train(), 2, progress=False, validation=interrupted())
    assert (step.epoch, step.position, step.history) == (0, 4, [])
    step.fit(train(), 2, progress=False, validation=VALIDATION)
    same(arrays(whole), arrays(step))
    told = [{n: v for n, v in row.items() if n != "seconds"} for row in step.history]
    assert told == [{n: v for n, v in row.items() if n != "seconds"} for row in whole.history]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("where", ["after a batch", "while a batch is made", "before a step"])
def test_an_iterator_continues_where_it_stopped(monkeypatch, accumulate, where) -> None:
    """Interrupted anywhere, every batch trains once; a new one begins anew, so that what has trained is passed over."""

    def new() -> es.TrainStep:
        return es.TrainStep(
            net(), es.functional.cross_entropy, es.optim.SGD(lr=0.1, momentum=0.9), accumulate=accumulate
        )

    given = [data(4, k) for k in range(10)]
    whole, step, fresh = new(), new(), new()
    whole.fit(given, 1, progress=False)
    stopping = True

    class Batches:
        """An iterator that can go on after an interruption, as a generator cannot."""

        def __init__(self):
            self.left = list(given)

        def __iter__(self):
            return self

        def __next__(self):
            if not self.left:
                raise StopIteration
            if stopping and where == "while a batch is made" and len(self.left) == 5:
                raise KeyboardInterrupt
            return self.left.pop(0)

    def stop(step, loss) -> None:
        if stopping and where == "after a batch" and step.position == 5:
            raise KeyboardInterrupt

    usual = es.TrainStep.read_batch

    def once(self, *arguments):
        if stopping and where == "before a step" and self.position == 5:
            raise KeyboardInterrupt
        return usual(self, *arguments)

    monkeypatch.setattr(es.TrainStep, "read_batch", once)
    iterator = Batches()
    for s, again in ((step, lambda: iterator), (fresh, Batches)):
        stopping = True
        with pytest.raises(KeyboardInterrupt):
            s.fit(again(), 1, progress=False, on_step=stop)
        stopping = False
        s.fit(again(), 1, progress=False)
        assert (s.epoch, s.steps) == (1, whole.steps)
        same(arrays(s), arrays(whole))


def test_an_iterator_that_has_failed_ends_no_epoch() -> None:
    given = [data(4, k) for k in range(10)]

    def failing():
        yield from given[:4]
        raise OSError("the disk is gone")

    step = make()
    iterator = failing()
    with pytest.raises(es.DataError, match="the disk is gone"):
        step.fit(iterator, 1, progress=False)
    for _ in range(2):
        with pytest.raises(es.DataError, match="yields no more batches; pass a new one"):
            step.fit(iterator, 1, progress=False)
    assert (step.epoch, step.position) == (0, 4)
    step.fit(iter(given), 1, progress=False)
    assert (step.epoch, step.steps) == (1, 10)
