"""TrainStep: one native call, the same memory, bitwise repeatable, nothing changed by a failed step."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

import einsmith as es
from einsmith.base.environment import CHECK
from einsmith.runtime import buffers
from einsmith.runtime.program import Program
from tests.programs import program_of


def make(seed=0, optimizer=None, name="mlp3", **kw):
    es.manual_seed(seed)
    return es.TrainStep(
        es.models.get(name), es.functional.cross_entropy, optimizer or es.optim.SGD(lr=0.05, momentum=0.9), **kw
    )


def batch(n=16, seed=3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, n)


def weights(step):
    return {k: v.copy() for k, v in step.store.arrays()}


def same(a, b):
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


def test_one_native_call_on_the_same_buffers(monkeypatch):
    monkeypatch.setenv(CHECK.name, "0")  # a checked step runs more, and keeps more
    calls = []
    run = Program.run
    monkeypatch.setattr(Program, "run", lambda self: (calls.append(self), run(self))[1])
    step = make()
    x, y = batch()
    step(x, y)
    tables, addresses = [], []
    for _ in range(5):
        calls.clear()
        step(x, y)
        assert len(calls) == 1
        program = calls[0]
        tables.append(sorted(set(program.table.tolist())))
        addresses.append([a.ctypes.data for _, a in step.store.arrays()])
    assert all(a == addresses[0] for a in addresses)
    # only the fresh array of the loss may lie elsewhere from step to step
    assert all(len(set(t) ^ set(tables[0])) <= 2 for t in tables)


def test_nothing_grows(monkeypatch, new_objects):
    monkeypatch.setenv(CHECK.name, "0")
    step = make()
    x, y = batch()
    for _ in range(5):
        step(x, y)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(40):
        step(x, y)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 40 * 200  # less than one small object a step


def test_two_runs_are_bitwise_equal():
    results = []
    for _ in range(2):
        step = make()
        for i in range(5):
            step(*batch(seed=i))
        results.append(weights(step))
    assert same(*results)


def test_thread_counts_agree():
    out = []
    for threads in (1, 2):
        step = make(name="lenet5", threads=threads)
        for i in range(3):
            step(*batch(seed=i))
        out.append(weights(step))
    for name, a in out[0].items():  # kernels are configured for the number of threads: sums may be cut differently
        np.testing.assert_allclose(a, out[1][name], rtol=1e-4, atol=1e-6)


def test_nonfinite_loss_changes_nothing():
    step = make()
    x, y = batch()
    step(x, y)
    before = weights(step)
    bad = x.copy()
    bad[0, 0, 3, 3] = np.nan
    with pytest.raises(es.NonFiniteError, match="step 2") as e:
        step(bad, y)
    assert e.value.step == 2 and step.steps == 1
    assert same(before, weights(step))
    step(x, y)


def test_label_outside_the_classes_changes_nothing():
    step = make()
    x, y = batch()
    step(x, y)
    before = weights(step)
    for bad in (10, -1):
        z = y.copy()
        z[5] = bad
        with pytest.raises(IndexError):
            step(x, z)
        assert same(before, weights(step))


def test_learning_rate_is_settable_without_recompiling():
    step = make()
    x, y = batch()
    step(x, y)
    programs = list(step.compiler.programs.values())
    step.optimizer.lr = 0.0
    step(x, y)
    before = {k: v for k, v in weights(step).items() if "/" not in k}
    step.optimizer.lr = lambda n: 0.0
    step(x, y)
    assert same(before, {k: v for k, v in weights(step).items() if "/" not in k})
    assert list(step.compiler.programs.values()) == programs


def test_evaluate_and_profile_change_nothing():
    step = make()
    x, y = batch()
    step(x, y)
    before = weights(step)
    result = step.evaluate(es.data.batches(x, y, 7))
    assert set(result) == {"loss", "accuracy"} and 0 <= result["accuracy"] <= 1
    assert abs(result["loss"] - step.evaluate([(x, y)])["loss"]) < 1e-5
    profile = step.profile(x, y, repeats=2)
    assert {r[0] for r in profile.rows} >= {"forward", "backward"}
    assert "kernels" in step.plan
    assert same(before, weights(step))


def test_bad_input():
    step = make()
    x, y = batch()
    with pytest.raises(es.ShapeError):
        step(x[:, :, :20], y)
    with pytest.raises(es.ShapeError, match="a batch needs at least one sample"):
        step(x[:0], y[:0])
    with pytest.raises(es.EinsmithError):
        step(x, y[:7])
    with pytest.raises(es.EinsmithError):
        step(x, y.astype(np.float32))
    with pytest.raises(es.GradientError):
        es.TrainStep(es.models.get("mlp3"), lambda a, b: a, es.optim.SGD(lr=0.1))(x, y)
    for call, said in (
        (lambda: step.profile(x, y, repeats=0), "repeats=0"), (lambda: step.model.predict(x, batch_size=0), "size=0"),
        (lambda: es.TrainStep(step.model, step.loss, step.optimizer, seed="a"), "seed='a'"),
    ):  # fmt: skip
        with pytest.raises(es.ArgumentError, match=said):
            call()


def test_damaged_saves_are_refused(tmp_path):
    step = make()
    step(*batch())
    path = tmp_path / "run"
    es.save(step, path)
    with pytest.raises(es.SaveError):
        es.load(tmp_path / "none")
    file = path / "weights.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    with pytest.raises(es.SaveError, match="weights.safetensors"):
        es.load(path)
    file.write_bytes(whole)
    es.load(path)
    (path / "step.json").write_text("{}")
    with pytest.raises(es.SaveError):
        es.load(path)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    with pytest.raises(es.SaveError):
        es.save(step, foreign)
    assert (foreign / "thesis.tex").read_text() == "x"


@pytest.mark.thinned(4)
@pytest.mark.parametrize("n", [1, 3, 20])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uninitialized_memory_is_not_read(n, dtype):
    """Arena and scratch full of NaN: a kernel that reads what it has not written shows."""
    x, y = batch(n)
    out = []
    for poison in (0x00, 0xFF, 0x7B):
        es.manual_seed(0)
        model = es.models.get("lenet5").to(dtype)
        step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.05, momentum=0.9))
        step.compile(x.astype(dtype), y)
        (run,) = step.compiler.programs.values()
        run.arena[...] = poison
        run.program.scratch[...] = poison
        step(x.astype(dtype), y)
        out.append(weights(step))
    assert same(out[0], out[1]) and same(out[0], out[2])


def test_timing_kernels_writes_into_living_memory(monkeypatch):
    """The outputs whose addresses a run has set stay alive while it goes on."""
    f = es.value_and_grad(lambda x: es.functional.sum(x * x))
    x = np.ones((300, 300), np.float32)
    f(x)
    run = program_of(f)
    alive = []
    take = buffers.ResultMemory.take

    def taken(self):
        array, at = take(self)
        alive.append(weakref.ref(array.base if array.base is not None else array))
        return array, at

    timed = Program.run_timed
    monkeypatch.setattr(buffers.ResultMemory, "take", taken)
    monkeypatch.setattr(Program, "run_timed", lambda self: (check(), timed(self))[1])

    def check():
        assert len(alive) >= 4 and all(r() is not None for r in alive[-2:])

    run.time_calls([x], repeats=2)


def test_ignored_labels_count_neither_as_wrong_nor_in_the_mean(torch):
    step = make()
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((30, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 30)
    y[rng.permutation(30)[:13]] = -100
    y[20:] = -100  # a batch without any label
    out = step.model.predict(x)
    want = torch.nn.functional.cross_entropy(torch.from_numpy(out), torch.from_numpy(y)).item()
    found = step.evaluate([(x[:8], y[:8]), (x[8:20], y[8:20]), (x[20:], y[20:])])
    assert found["loss"] == pytest.approx(want, rel=1e-5)
    assert found["accuracy"] == ((out.argmax(1) == y) & (y >= 0)).sum() / (y >= 0).sum()
    with pytest.raises(es.ShapeError, match="ignored"):
        step.evaluate([(x[20:], y[20:])])


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": [es.optim.SGD(lr=0.1)]}, {"optimizer": es.optim.SGD}, {"optimizer": None}, {"loss": "mse"},
        {"loss": None}, {"model": lambda x: x}, {"model": es.models.MLP3},
    ],
    ids=lambda wrong: next(iter(wrong)),
)  # fmt: skip
def test_wrong_arguments_of_a_step_are_named(wrong):
    given = {
        "model": es.models.mlp3(), "loss": es.functional.cross_entropy, "optimizer": es.optim.SGD(lr=0.1), **wrong,
    }  # fmt: skip
    with pytest.raises(es.EinsmithError, match=next(iter(wrong))):
        es.TrainStep(given["model"], given["loss"], given["optimizer"])


def test_long_epochs_show_lines_off_a_terminal(monkeypatch, capfd):
    x, y = batch()
    step = make()
    step.fit([(x, y)] * 4, epochs=1)
    assert capfd.readouterr().err.count("\n") == 1
    monkeypatch.setattr("einsmith.training.progress.Progress.LINE_SECONDS", 0.0)
    step.fit([(x, y)] * 4, epochs=2)
    lines = capfd.readouterr().err.splitlines()
    steps = [f"epoch 2/2  batch {n}/4" for n in range(1, 5)]
    assert [line.split("  loss")[0] for line in lines] == [*steps, "epoch 2/2"]
