"""Exported training steps against the steps that they were exported from: every loss and tensor, bit for bit."""

from __future__ import annotations

import os
import platform
import stat

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import einsmith as es
from einsmith.base.system import processors
from einsmith.schedule import pipeline, together
from tests.export.common import batch, compiler, small


@pytest.fixture(autouse=True)
def _tools():
    compiler()


def agree(library: es.Library, step: es.TrainStep) -> None:
    """Everything that the library holds is what the step holds."""
    want = step.model.state_dict()
    got = library.state_dict()
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    tensors = library.tensors()
    for name, slot in step.current_state().items():
        np.testing.assert_array_equal(tensors[name], slot.data, err_msg=name)
    assert library.steps == step.steps


STEPS = {
    "sgd": {},
    "adam": {"optimizer": es.optim.Adam(lr=1e-2)},
    "three batches an update": {"accumulate": 3},
    "clipped and averaged": {"clip_grad_norm": 0.5, "clip_grad_value": 0.3, "ema": 0.9},
    "groups": {"optimizer": es.optim.Groups(es.optim.Adam(lr=1e-2), bias=es.optim.Group("*.bias", lr=1e-3))},
}


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * ("clipped" not in x)) for x in STEPS])
def test_training_is_the_same(tmp_path, name) -> None:
    step = small(**STEPS[name])
    step(*batch())  # exported as it is after some training
    library = es.load_library(es.export(step, tmp_path / "out", *batch()))
    agree(library, step)
    for n in range(7):
        assert library.step(*batch(seed=n)) == step(*batch(seed=n))
        for report, value in library.reports.items():
            assert value == (step.losses | {"grad_norm": step.grad_norm or 0.0})[report]
    agree(library, step)
    assert library.evaluate(*batch()) == step.evaluate([batch()])["loss"]
    np.testing.assert_array_equal(library.predict(batch()[0]), step.model.predict(batch()[0]))
    agree(library, step)


@pytest.mark.slow
def test_calls_that_run_together(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(together, "MIN_GAIN", -np.inf)
    monkeypatch.setattr(pipeline, "MORE_BYTES", 1 << 30)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 2)
    es.set_threads(2)
    try:
        es.manual_seed(0)
        step = es.TrainStep(es.models.lenet5(), es.functional.cross_entropy, es.optim.SGD(lr=0.01, momentum=0.9))
        step(x, y)
        (run,) = step.compiler.programs.values()
        assert run.plan.together
        library = es.load_library(es.export(step, tmp_path / "out", x, y))
        for _ in range(3):
            assert library.step(x, y) == step(x, y)
        agree(library, step)
    finally:
        es.set_threads(None)


def test_several_losses_are_reported(tmp_path) -> None:
    def losses(out, y):
        return {"class": es.functional.cross_entropy(out, y), "size": es.mean(out * out)}

    es.manual_seed(0)
    model = es.nn.Linear(5, 3)
    step = es.TrainStep(model, losses, es.optim.SGD(lr=0.1), trained="sum")
    library = es.load_library(es.export(step, tmp_path / "out", *batch()))
    for n in range(3):
        assert library.step(*batch(seed=n)) == step(*batch(seed=n))
        assert library.reports == step.losses and set(step.losses) == {"class", "size"}


def test_all_shapes_that_are_compiled(tmp_path) -> None:
    step = small()
    step.compile(*batch(8)).compile(*batch(3))
    library = es.load_library(es.export(step, tmp_path / "out"))
    functions = [f["function"] for f in library.manifest["functions"]]
    assert functions[:2] == ["small_train_8", "small_train_3"] and len(functions) == 6
    for n, size in enumerate([8, 3, 8, 8]):
        assert library.step(*batch(size, n)) == step(*batch(size, n))
    agree(library, step)
    with pytest.raises(es.ShapeError, match=r"small takes x float32\[8, 5\], target int64\[8\]; or x float32\[3, 5\]"):
        library.step(*batch(5))


def test_parameters_that_are_frozen_later_count_their_own_updates(tmp_path) -> None:
    step = small(es.optim.Adam(lr=1e-2))
    step(*batch())
    step.model.first.requires_grad_(False)
    step(*batch())
    step.model.first.requires_grad_(True)
    library = es.load_library(es.export(step, tmp_path / "out", *batch()))
    assert [library.step(*batch(seed=n)) for n in range(3)] == [step(*batch(seed=n)) for n in range(3)]
    agree(library, step)


def test_a_schedule_is_a_table(tmp_path) -> None:
    step = small(es.optim.SGD(lr=es.optim.lr_scheduler.CosineAnnealingLR(0.1, T_max=10), momentum=0.9))
    with pytest.raises(es.ArgumentError, match="lr is a callable of the step.*schedule=N"):
        es.export(step, tmp_path / "out", *batch())
    assert not (tmp_path / "out").exists()
    library = es.load_library(es.export(step, tmp_path / "out", *batch(), schedule=4))
    assert [library.step(*batch(seed=n)) for n in range(4)] == [step(*batch(seed=n)) for n in range(4)]
    before = library.state_dict()
    with pytest.raises(es.LibraryError, match="table has no value for this step"):
        library.step(*batch())
    assert all((before[n] == x).all() for n, x in library.state_dict().items()) and library.steps == 4
    library.set("lr", step.optimizer.values(5)["lr"])
    assert library.step(*batch()) == step(*batch())
    assert library.get("lr") == step.optimizer.values(5)["lr"]
    for name, value, told in (("rate", 0.1, "no setting of this name"), ("momentum", np.nan, "out of its range")):
        with pytest.raises(es.LibraryError, match=told):
            library.set(name, value)


def test_a_loss_that_is_not_finite_updates_nothing(tmp_path) -> None:
    step = small()
    library = es.load_library(es.export(step, tmp_path / "out", *batch()))
    before = library.tensors()
    x, y = batch()
    x[0, 0] = np.inf
    with pytest.raises(es.LibraryError, match="not finite; nothing was updated") as found:
        library.step(x, y)
    assert found.value.code == 1
    assert all((before[n] == a).all() for n, a in library.tensors().items())
    assert library.step(*batch()) == step(*batch())


def test_an_index_out_of_range_is_a_code(tmp_path) -> None:
    step = small()
    library = es.load_library(es.export(step, tmp_path / "out", *batch()))
    x, y = batch()
    for role in (library.step, library.evaluate):
        with pytest.raises(es.LibraryError, match="index .* leaves its range 0 <= index < 3") as found:
            role(x, y + 3)
        assert found.value.code == 2000
    assert library.step(*batch()) == step(*batch())


def test_saved_and_loaded(tmp_path) -> None:
    step = small(es.optim.Adam(lr=1e-2), accumulate=2)
    library = es.load_library(es.export(step, tmp_path / "out", *batch()))
    for n in range(3):
        assert library.step(*batch(seed=n)) == step(*batch(seed=n))
    library.set("lr", 0.5)
    library.save(tmp_path / "saved")
    assert os.listdir(tmp_path) == ["out", "saved"] or sorted(os.listdir(tmp_path)) == ["out", "saved"]
    step.optimizer.lr = 0.5
    others = [es.load_library(tmp_path / "out", tmp_path / "saved"), es.load_library(tmp_path / "out")]
    others[1].load(tmp_path / "saved")
    for n in range(3):
        want = step(*batch(seed=n))
        assert [x.step(*batch(seed=n)) for x in (library, *others)] == [want] * 3
    for x in (library, *others):
        agree(x, step)


def test_weights_come_from_python_and_go_there(tmp_path) -> None:
    """The file is one that the safetensors library reads, and a file that it writes is read."""
    step = small()
    library = es.load_library(es.export(step, tmp_path / "out", *batch()))
    library.step(*batch())
    library.save(tmp_path / "saved")
    found = load_file(tmp_path / "saved")
    assert found.keys() == library.tensors().keys()
    step.model.load_state_dict({n: found[n] for n in step.model.state_dict()})
    np.testing.assert_array_equal(step.model.predict(batch()[0]), library.predict(batch()[0]))
    found["first.weight"] = found["first.weight"] * 2
    save_file({"more": np.zeros(3), **found}, tmp_path / "other", metadata={"from": '"first.weight":{'})
    library.load(tmp_path / "other")
    np.testing.assert_array_equal(library.state_dict()["first.weight"], found["first.weight"])


def test_files_that_do_not_fit_change_nothing(tmp_path) -> None:
    library = es.load_library(es.export(small(), tmp_path / "out", *batch()))
    whole = (tmp_path / "out" / "weights.safetensors").read_bytes()
    found = load_file(tmp_path / "out" / "weights.safetensors")
    before = library.tensors()
    path = tmp_path / "file"
    files = {
        "truncated": (whole[:-1], "truncated"), "empty": (b"", "truncated"), "text": (b"no such thing", "not a safe"),
        "long header": ((1 << 40).to_bytes(8, "little") + whole[8:], "not a safe"),
        "another shape": ({**found, "last.bias": np.zeros(4, np.float32)}, r"tensor last.bias, of float32\[3\]"),
        "another type": ({**found, "last.bias": np.zeros(3)}, "tensor last.bias"),
        "without one": ({n: a for n, a in found.items() if n != "last.weight"}, "lacks the tensor last.weight"),
    }  # fmt: skip
    for data, told in files.values():
        if isinstance(data, dict):
            save_file(data, path)
        else:
            path.write_bytes(data)
        for use in (library.load, lambda path: es.load_library(tmp_path / "out", path)):
            with pytest.raises(es.LibraryError, match=told):
                use(path)
    with pytest.raises(es.LibraryError, match="cannot be read"):
        library.load(tmp_path / "none")
    with pytest.raises(es.LibraryError, match="cannot be written"):
        library.save(tmp_path / "none" / "file")
    assert all((before[n] == a).all() for n, a in library.tensors().items())


def test_threads_do_not_change_results(tmp_path) -> None:
    es.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((16, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 16)
    step = es.TrainStep(es.models.lenet5(), es.functional.cross_entropy, es.optim.SGD(lr=0.1), threads=2)
    es.export(step, tmp_path / "out", x, y)
    libraries = [es.load_library(tmp_path / "out", threads=n) for n in (0, 1, 2, 5)]
    for _ in range(3):
        want = step(x, y)
        assert [library.step(x, y) for library in libraries] == [want] * 4
    for library in libraries:
        agree(library, step)
    with pytest.raises(es.LibraryError, match="out of its range"):
        es.load_library(tmp_path / "out", threads=5000)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("target", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_levels_of_x86(tmp_path, target) -> None:
    """Kernels are chosen for another machine, and round otherwise; a processor that lacks one refuses it."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("not on this processor")
    step = small(accumulate=2)
    es.export(step, tmp_path / "out", *batch(), target=target)
    has = processors.flags()
    if target.endswith("v4") and "avx512f" not in has or target.endswith("v3") and "avx2" not in has:
        with pytest.raises(es.LibraryError, match="lacks avx"):
            es.load_library(tmp_path / "out")
        return
    library = es.load_library(tmp_path / "out")
    got, want = zip(*((library.step(*batch(seed=n)), step(*batch(seed=n))) for n in range(6)), strict=True)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_constants_and_tied_weights(tmp_path) -> None:
    table = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)

    class Tied(es.nn.Module):
        def __init__(self):
            self.a = es.nn.Linear(5, 5, bias=False)
            self.b = es.nn.Linear(5, 5, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(es.tanh(self.a(x) @ table)) @ table[::-1].T

    es.manual_seed(0)
    step = es.TrainStep(Tied(), es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    library = es.load_library(es.export(step, tmp_path / "out", *batch()))
    assert [library.step(*batch(seed=n)) for n in range(3)] == [step(*batch(seed=n)) for n in range(3)]
    agree(library, step)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_runs_alone(tmp_path) -> None:
    """It has none of the threads, and must wait for none of them."""
    step = small(threads=2)
    library = es.load_library(es.export(step, tmp_path / "out", *batch()), threads=3)
    assert library.step(*batch()) == step(*batch())
    child = os.fork()
    if child == 0:
        try:
            losses = [library.step(*batch(seed=n)) for n in range(3)]
            library.close()
            (tmp_path / "losses").write_text(repr(losses))
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "losses").read_text() == repr([library.step(*batch(seed=n)) for n in range(3)])


@pytest.mark.slow
def test_a_language_model_keeps_its_states(tmp_path) -> None:
    """Indices, states of the batch before, and other ones in evaluation, which no state dictionary has."""
    rng = np.random.default_rng(0)
    model = es.models.get("lstm-lm", vocabulary=20, width=6, batch=3)

    def loss(out, y):
        return es.functional.cross_entropy(out, y.reshape((-1,)))

    text = [(rng.integers(0, 20, (5, 3)), np.array([n == 0, False, n == 2]), rng.integers(0, 20, (5, 3)))
            for n in range(4)]  # fmt: skip
    step = es.TrainStep(model, loss, es.optim.SGD(lr=0.5))
    library = es.load_library(es.export(step, tmp_path / "out", *text[0]))
    for window in text:
        assert library.step(*window) == step(*window)
        assert library.evaluate(*window) == step.evaluate([window])["loss"]
    agree(library, step)
    step.model.load_state_dict(library.state_dict())


def test_planted_links_and_odd_files(tmp_path) -> None:
    """A library writes through no link that lies where its temporary file would be, waits for no FIFO, and replaces no
    link and no device."""
    step = small()
    library = es.load_library(es.export(step, tmp_path / "out", *batch()))
    victim, weights = tmp_path / "victim", tmp_path / "saved"
    victim.write_text("precious")
    for n in range(3):
        os.symlink(victim, f"{weights}.{os.getpid()}-{n}.new")
    os.symlink(victim, f"{weights}.{os.getpid()}.new")
    library.save(weights)
    library.load(weights)
    assert victim.read_text() == "precious" and not weights.is_symlink()
    link = tmp_path / "link"
    link.symlink_to("saved")
    weights.write_bytes(b"")
    library.save(link)
    assert link.is_symlink() and weights.stat().st_size > 100
    library.load(link)
    os.mkfifo(tmp_path / "fifo")
    for act in (library.load, library.save):  # nobody reads or writes it
        for place in (tmp_path / "fifo", tmp_path):
            with pytest.raises(es.LibraryError):
                act(place)
    with pytest.raises(es.LibraryError):
        library.save("/dev/full")
    library.save("/dev/null")
    for path, kind in ((tmp_path / "fifo", stat.S_ISFIFO), ("/dev/null", stat.S_ISCHR), ("/dev/full", stat.S_ISCHR)):
        assert kind(os.stat(path).st_mode)
    library.close()
