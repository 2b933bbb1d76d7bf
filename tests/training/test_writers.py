"""Several processes that save to one folder: each save succeeds, and whoever loads finds a whole one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.base import folders
from einsmith.training import checkpoint
from tests.export.common import compiler

SAVE = """
import sys
import numpy as np, einsmith as es
net = es.nn.Sequential(es.nn.Linear(4, 3000), es.nn.ReLU(), es.nn.Linear(3000, 3))
step = es.TrainStep(net, es.functional.mse_loss, es.optim.SGD(lr=0.01, momentum=0.9))
step(np.ones((8, 4), "f"), np.ones((8, 3), "f"))
print("ready", flush=True)
sys.stdin.readline()
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    for p in net.parameters():
        p.data[...] = n
    step.steps = n
    es.save(step, sys.argv[1])
"""


def network() -> es.nn.Module:
    return es.nn.Sequential(es.nn.Linear(4, 3000), es.nn.ReLU(), es.nn.Linear(3000, 3))


def numbered(step: es.TrainStep) -> int:
    """The number of a save, all parts of which are of one save."""
    values = {float(v) for p in step.model.parameters() for v in (p.data.min(), p.data.max())}
    assert values == {float(step.steps)}, "weights of one save, and the description of another"
    return step.steps


def test_processes_that_save_to_one_folder(tmp_path: Path) -> None:
    place = tmp_path / "run"
    processes = [
        subprocess.Popen([sys.executable, "-c", SAVE, str(place), str(k * 100), str(k * 100 + 25)], text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for k in (1, 2)
    ]  # fmt: skip
    for p in processes:
        assert p.stdin is not None and p.stdout is not None
        assert p.stdout.readline() == "ready\n"
    for p in processes:
        p.stdin.write("go\n")
        p.stdin.flush()
    seen = set()
    while any(p.poll() is None for p in processes):
        if seen or place.exists():
            seen.add(numbered(es.load(place, model=network())))
    out = [p.communicate()[0] for p in processes]
    assert [p.returncode for p in processes] == [0, 0], out
    assert numbered(es.load(place, model=network())) % 100 == 24 and seen
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("what", ["load", "save", "failed save"])
def test_another_process_is_between_its_two_moves(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is not there for a moment: nobody fails for it, nor takes what was moved aside."""
    step = es.TrainStep(es.nn.Linear(2, 1), es.functional.mse_loss, es.optim.SGD(lr=0.1))
    other = es.TrainStep(es.nn.Linear(2, 1), es.functional.mse_loss, es.optim.SGD(lr=0.1))
    step.steps, other.steps = 1, 2
    place = tmp_path / "run"
    es.save(step, place)
    rename, results = Path.rename, []

    def meanwhile() -> None:
        try:
            if what == "load":
                results.append(es.load(place, model=es.nn.Linear(2, 1)).steps)
            else:
                results.append(es.save(other, place))
        except BaseException as e:
            results.append(e)

    thread = threading.Thread(target=meanwhile)
    taken = threading.Event()
    acquire = folders._acquire

    def waits(*arguments: object) -> int:
        taken.set()
        return acquire(*arguments)

    def moved(self: Path, target: Path) -> Path:
        out = rename(self, target)
        if self == place and not thread.ident:
            monkeypatch.setattr(folders, "_acquire", waits)
            thread.start()
            taken.wait(60)
            if what == "failed save":
                raise OSError("disk full")
        return out

    monkeypatch.setattr(Path, "rename", moved)
    step.steps = 3
    if what == "failed save":
        with pytest.raises(es.SaveError, match="disk full"):
            es.save(step, place)
    else:
        es.save(step, place)
    thread.join()
    assert results == [3 if what == "load" else None]
    assert es.load(place, model=es.nn.Linear(2, 1)).steps == (3 if what == "load" else 2)
    assert os.listdir(tmp_path) == ["run"]


def test_a_save_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The description of one save and the weights of the next never come together."""
    steps = [es.TrainStep(es.nn.Linear(2, 1), es.functional.mse_loss, es.optim.SGD(lr=0.1)) for _ in range(2)]
    for n, step in enumerate(steps):
        step.model.weight.data[...] = step.steps = n
    es.save(steps[0], tmp_path / "run")
    tensors = checkpoint._tensors

    def replaced(source: Path, name: str) -> dict[str, np.ndarray]:
        monkeypatch.setattr(checkpoint, "_tensors", tensors)
        es.save(steps[1], source)
        return tensors(source, name)

    monkeypatch.setattr(checkpoint, "_tensors", replaced)
    again = es.load(tmp_path / "run", model=es.nn.Linear(2, 1))
    assert again.steps == 1 == again.model.weight.data.max()


def test_the_other_writer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = es.TrainStep(es.nn.Linear(2, 1), es.functional.mse_loss, es.optim.SGD(lr=0.1))
    monkeypatch.setattr(folders, "PATIENCE", 0.0)
    with folders.turn(tmp_path / "run"):
        with pytest.raises(es.SaveError, match=f"process {os.getpid()} on .* save to another folder"):
            es.save(step, tmp_path / "run")
        compiler()
        with pytest.raises(es.SaveError, match=f"process {os.getpid()} on .* export to another folder"):
            es.export(lambda x: 2 * x, tmp_path / "run", np.ones(3))
    assert os.listdir(tmp_path) == []


def test_threads_that_export_to_one_folder(tmp_path: Path) -> None:
    compiler()
    errors: list[BaseException] = []

    def write(factor: float) -> None:
        try:
            es.export(lambda x: factor * x, tmp_path / "out", np.ones(3), name="scaled", overwrite=True)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=write, args=(float(k),)) for k in (2, 3, 4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and os.listdir(tmp_path) == ["out"]
    assert es.load_library(tmp_path / "out")(np.ones(3))[0] in (2, 3, 4)
