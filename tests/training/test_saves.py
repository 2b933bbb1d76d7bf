"""Saves under harm: mutated, truncated, foreign and half-written ones are refused by name, and nothing is lost."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import einsmith as es
from einsmith.training import manifest
from tests.review.test_steps import Net, data, make, same, values

META = "step.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A save of a network that `es.load` makes itself, after one step."""
    model = es.models.mlp3()
    next(iter(model.parameters())).requires_grad = False
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1, momentum=0.9))
    rng = np.random.default_rng(0)
    step(rng.standard_normal((8, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 8))
    path = tmp_path_factory.mktemp("saved") / "run"
    es.save(step, path)
    return path


VALUES = (None, True, -1, 1.5, float("nan"), 10**400, "x", "", [], ["x"], [1], {}, {"x": 1}, "../secret")


def _changed(tree, path, value):
    out = copy.deepcopy(tree)
    at = out
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return out


def _places(tree, path=()):
    if isinstance(tree, dict):
        for key, inner in tree.items():
            yield (*path, key)
            yield from _places(inner, (*path, key))


def _refused_or_equal(path: Path, whole: Path, what: str) -> bool:
    """Loading raises SaveError, or gives a step that trains; anything else fails. Whether it was refused."""
    try:
        step = es.load(path)
    except es.SaveError as e:
        assert str(path) in str(e), f"{what}: the message names no place: {e}"
        return True
    rng = np.random.default_rng(0)
    assert np.isfinite(step(rng.standard_normal((8, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 8))), what
    return False


ALLOWED = {  # what a user may have saved as well, and so what must load
    "model": (), "frozen": ([],), "loss": (), "optimizer": (), "seed": (-1, 10**400), "winograd": (True,),
    "separate_exponentials": (True,),
    "mode": (), "tune": (1.5,), "steps": (), "epoch": (), "position": (), "epoch_loss": (-1, 1.5), "epoch_samples": (),
}  # fmt: skip


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_changed_description_is_refused_by_name(saved, tmp_path, every):
    whole = json.loads((saved / META).read_text())
    del whole["checksum"]  # which is made anew
    for n, place in enumerate(_places(whole)):
        for value in VALUES if every else VALUES[n % 5 :: 5]:  # others at the next place
            run = tmp_path / "run"
            shutil.copytree(saved, run)
            (run / META).write_text(manifest.sign(_changed(whole, place, value)))
            what = f"{place} = {value!r}"
            refused = _refused_or_equal(run, saved, what)
            if len(place) == 1 and place[0] in ALLOWED:
                same_kind = any(type(value) is type(a) and value == a for a in ALLOWED[place[0]])
                assert refused != same_kind, what
            shutil.rmtree(run)


def test_missing_entries_are_refused(saved, tmp_path):
    whole = json.loads((saved / META).read_text())
    del whole["checksum"]  # which is made anew
    for place in _places(whole):
        less = copy.deepcopy(whole)
        at = less
        for key in place[:-1]:
            at = at[key]
        del at[place[-1]]
        run = tmp_path / "run"
        shutil.copytree(saved, run)
        (run / META).write_text(manifest.sign(less))
        refused = _refused_or_equal(run, saved, f"without {place}")
        assert refused or len(place) > 2, f"without {place}"
        shutil.rmtree(run)


@pytest.mark.parametrize("text", ["", "null", "[]", "7", '"x"', "{", '{"format": "einsmith-step"}', "\x00", "\ud800"])
def test_a_description_that_is_none_is_refused(saved, tmp_path, text):
    run = tmp_path / "run"
    shutil.copytree(saved, run)
    (run / META).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(es.SaveError):
        es.load(run)


def _tensors(run: Path, name: str, change) -> None:
    """The file with changed tensors and a checksum that fits."""
    arrays = load_file(run / name)
    changed = change(arrays)
    save_file(changed, run / name)
    _sign(run, name)


def _sign(run: Path, name: str) -> None:
    meta = json.loads((run / META).read_text())
    meta["files"][name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
    (run / META).write_text(manifest.sign(meta))


def _first(arrays, f):
    name = sorted(arrays)[0]
    return {**arrays, name: f(arrays[name])}


@pytest.mark.parametrize("name", ["weights.safetensors", "state.safetensors"])
@pytest.mark.parametrize(
    "change",
    [
        lambda a: {**a, "none/such": np.zeros(3, np.float32)},
        lambda a: {**a, "none": np.zeros(3, np.float32)},
        lambda a: _first(a, lambda x: x.reshape(-1)[:-1].copy()),
        lambda a: _first(a, lambda x: x[None].copy()),
        lambda a: _first(a, lambda x: x.astype(np.int64)),
        lambda a: _first(a, lambda x: x.astype(np.uint8)),
        lambda a: {k: v for k, v in a.items() if k != sorted(a)[0]},
        lambda a: {k.replace("momentum_buffer", "exp_avg"): v for k, v in a.items()} | {"x.weight": np.zeros(2)},
    ],
    ids=["extra", "extra name", "short", "rank", "integers", "bytes", "missing", "other names"],
)
def test_tensors_that_do_not_fit_are_refused(saved, tmp_path, name, change):
    run = tmp_path / "run"
    shutil.copytree(saved, run)
    _tensors(run, name, change)
    assert _refused_or_equal(run, saved, name)


@pytest.mark.parametrize("name", ["weights.safetensors", "state.safetensors"])
@pytest.mark.parametrize("harm", [lambda b: b[:-10], lambda b: b"", lambda b: b"\xff" * len(b), lambda b: b[8:]])
def test_files_that_are_no_tensors_are_refused(saved, tmp_path, name, harm):
    run = tmp_path / "run"
    shutil.copytree(saved, run)
    (run / name).write_bytes(harm((run / name).read_bytes()))
    with pytest.raises(es.SaveError, match=name):
        es.load(run)
    _sign(run, name)
    with pytest.raises(es.SaveError, match=name):
        es.load(run)


def test_state_of_another_optimizer_is_refused(saved, tmp_path):
    with pytest.raises(es.SaveError, match="momentum_buffer"):
        es.load(saved, optimizer=es.optim.Adam(lr=0.1))
    # One that took over since is saved with what it has: nothing yet.
    step = make()
    step(*data())
    step.optimizer = es.optim.Adam(lr=0.1)
    es.save(step, tmp_path / "run")
    again = es.load(tmp_path / "run", model=Net())
    for s in (step, again):
        s(*data())
    assert same(values(step), values(again))


@pytest.mark.parametrize("take_over", [True, False], ids=["steps", "none"])
def test_an_optimizer_needs_the_state_of_what_it_has_updated(tmp_path, take_over):
    """One without state says nothing of its own; what was never updated, or was frozen since, has none either."""
    step = make()
    step.optimizer = es.optim.SGD(lr=0.1)
    if take_over:
        step(*data())
    es.save(step, tmp_path / "run")
    if take_over:
        with pytest.raises(es.SaveError, match="does not fit the optimizer, Adam, which needs exp_avg, exp_avg_sq of"):
            es.load(tmp_path / "run", model=Net(), optimizer=es.optim.Adam(lr=0.1))
    else:
        es.load(tmp_path / "run", model=Net(), optimizer=es.optim.Adam(lr=0.1))(*data())


def test_a_model_that_is_given_says_what_it_trains_unlike_the_saved_one(tmp_path):
    step = make()
    names = [n for n, _ in step.model.named_parameters()]
    step.model.get_parameter(names[0]).requires_grad = False
    step(*data())
    es.save(step, tmp_path / "run")
    with pytest.warns(es.EinsmithWarning, match=f"trains {names[0]}, unlike the saved one.*requires_grad") as told:
        es.load(tmp_path / "run", model=Net())
    assert len(told) == 1 and told[0].filename == __file__
    equal, other = Net(), Net()
    equal.get_parameter(names[0]).requires_grad = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        es.load(tmp_path / "run", model=equal)
    other.requires_grad_(False)
    other.get_parameter(names[0]).requires_grad = True
    with pytest.warns(es.EinsmithWarning, match=f"trains {names[0]} and freezes {names[1]}"):
        es.load(tmp_path / "run", model=other)


def test_only_losses_are_restored_by_name(tmp_path):
    step = es.TrainStep(Net(), lambda out, y: es.functional.mean(out), es.optim.SGD(lr=0.1))
    step.loss = es.functional.mean
    es.save(step, tmp_path / "run")
    assert json.loads((tmp_path / "run" / META).read_text())["loss"] is None
    with pytest.raises(es.SaveError, match="loss="):
        es.load(tmp_path / "run", model=Net())


def test_a_full_disk_is_said_and_the_old_save_stays(tmp_path):
    """A limit on the size of files stands for the disk: writing beyond it fails as on a full one."""
    script = f"""
import resource, signal, sys
import numpy as np, einsmith as es
step = es.TrainStep(es.models.mlp3(), es.functional.cross_entropy, es.optim.SGD(lr=0.1))
es.save(step, {str(tmp_path / "run")!r})
step.steps = 5
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    es.save(step, {str(tmp_path / "run")!r})
except es.SaveError as e:
    print("refused:", e)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(es.load({str(tmp_path / "run")!r}).steps)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith("refused:") and out.stdout.strip().endswith("0"), out.stdout
    assert os.listdir(tmp_path) == ["run"]


def _dead() -> int:
    """The number of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_leftovers_of_killed_saves_are_removed(tmp_path):
    step = make()
    es.save(step, tmp_path / "run")
    dead, alive = _dead(), os.getppid()
    for kind in ("new", "old"):
        shutil.copytree(tmp_path / "run", tmp_path / f".run.{dead}.{kind}")
        (tmp_path / f".run.{alive}.{kind}").mkdir()
    (tmp_path / f".runner.{dead}.new").mkdir()
    es.save(step, tmp_path / "run")
    left = {"run", f".run.{alive}.new", f".run.{alive}.old", f".runner.{dead}.new"}
    assert set(os.listdir(tmp_path)) == left


def test_a_run_resumes_in_its_mode(tmp_path):
    """In dynamic mode for as long as it was told to; a search before the first step is not made again."""
    for mode in ("dynamic", "static"):
        es.save(make(mode=mode, tune=7), tmp_path / mode)
    found = [es.load(tmp_path / mode, model=Net()) for mode in ("dynamic", "static")]
    assert [(s.mode, s.tune) for s in found] == [("dynamic", 7), ("static", 0)]
    again = es.load(tmp_path / "static", model=Net(), mode="dynamic", tune=5)
    assert (again.mode, again.tune, again.compiler.search.remaining_seconds) == ("dynamic", 5, 5)
    with pytest.raises(es.EinsmithError, match="mode='fast' is not available"):
        es.load(tmp_path / "static", model=Net(), mode="fast")
    with pytest.raises(es.EinsmithError, match="tune=-1"):
        es.load(tmp_path / "static", model=Net(), tune=-1)


@pytest.mark.parametrize("path", ["", ".", "..", "a\0b", None, 7])
def test_places_that_are_no_folder_of_a_run_are_refused(tmp_path, monkeypatch, path):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(es.SaveError):
        es.save(make(), path)
    assert os.listdir(tmp_path) == ["work"] and Path.cwd() == tmp_path / "work"
    with pytest.raises(es.SaveError):
        es.load(path)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_save_of_a_version_before_is_read(saved, tmp_path, version):
    run = tmp_path / "run"
    shutil.copytree(saved, run)
    meta = json.loads((run / META).read_text())
    since = {
        2: ("epoch_losses", "history", "settings", "gathered", "gathered_samples", "loader_state"), 3: ("updates",),
        4: ("mode", "tune"),
    }  # fmt: skip
    for name in (n for v, names in since.items() if v >= version for n in names):
        del meta[name]
    del meta["checksum"]
    (run / META).write_text(json.dumps(meta | {"version": version}))
    with pytest.warns(UserWarning, match="has no checksum"):
        again = es.load(run)
    assert (again.mode, again.tune) == ("static", 0.0)
    assert again.history == [] and again.updates == es.load(saved).updates
    with pytest.warns(UserWarning):
        assert not _refused_or_equal(run, saved, f"version {version}")


def test_a_save_without_weights_goes_on_with_a_model_that_has_them(tmp_path, rng):
    from einsmith.training import checkpoint

    x, y = rng.standard_normal((3, 8, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, (3, 8))
    step = es.TrainStep(es.models.mlp3(), es.functional.cross_entropy, es.optim.Adam(lr=0.01))
    step(x[0], y[0])
    checkpoint.write(step, tmp_path / "run", {}, holds_weights=False)
    assert not load_file(tmp_path / "run" / "weights.safetensors")
    other = es.models.mlp3()
    other.load_state_dict(step.model.state_dict())
    losses = [step(x[n], y[n]) for n in (1, 2)]
    with pytest.raises(es.SaveError, match="no weights; pass the model"):
        es.load(tmp_path / "run")
    again = es.load(tmp_path / "run", model=other)
    assert [again(x[n], y[n]) for n in (1, 2)] == losses
