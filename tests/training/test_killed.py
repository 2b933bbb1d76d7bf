"""Processes that are killed with all they are doing, at random moments: while they train in dynamic mode, and while
`einsmith tune` searches. The store and the saves are whole, the next run goes on, and nothing is left over."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import einsmith as es
from einsmith.base import files
from einsmith.tuning.kernels import database, records

STARTED = 2.0
"""Seconds after which a process has begun its work, about: what has to have happened is waited for."""
HANGS = 900
"""Seconds that no process takes, on whatever machine."""

NETWORK = """
import numpy as np
import einsmith as es

def network():
    es.manual_seed(0)
    return es.nn.Sequential(es.nn.Linear(24, 48), es.nn.ReLU(), es.nn.Linear(48, 5))

def batch(n):
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, 24), np.float32), rng.integers(0, 5, n)
"""

TRAIN = (
    NETWORK
    + """
import sys
from math import inf
from pathlib import Path
from einsmith.tuning.kernels import workshop
from einsmith.tuning.programs import budget, dynamic

# What is tried stays at once, so that a short life goes through all that a long one does.
dynamic.MAX_COST_SHARE, dynamic.MIN_KERNEL_SHARE = inf, 0.0
dynamic.Exploration.try_seconds, dynamic.SAMPLE_SECONDS = 0.0, 0.0
budget.Budget.waiting_share = property(lambda own: 0.0, lambda own, share: None)
dynamic.judge = lambda ratios, rounds: True
workshop.WorkshopProcess.is_low = False

folder, size, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
try:
    step = es.load(folder / "last", model=network())
except es.SaveError:
    step = es.TrainStep(network(), es.functional.cross_entropy, es.optim.SGD(lr=1e-3), mode="dynamic", threads=1)
assert step.mode == "dynamic"
print("begins", step.steps, flush=True)
end = step.steps + steps
class Enough(es.callbacks.Callback):
    def on_epoch(self, step, row):
        return step.steps >= end and "the program has" in step.explored
class Said(es.callbacks.Callback):
    saved = 0
    def on_step(self, step, loss):
        if save._saved != self.saved:
            self.saved = save._saved
            print("saved", self.saved, flush=True)
save = es.callbacks.Save(folder, every_steps=5)
step.fit([batch(size)] * 40, epochs=10**9, progress=False, callbacks=[save, Said(), Enough()])
print("ends", step.steps, flush=True)
"""
)

TUNE = (
    NETWORK
    + """
step = es.TrainStep(network(), es.functional.cross_entropy, es.optim.SGD(lr=1e-3), threads=1)
inputs = batch(16)
"""
)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a folder of temporary files of their own, which the processes have too."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(database, "_unusable", {})


def begun(arguments: Sequence[object]) -> subprocess.Popen[str]:
    """A process in a session of its own, by which those that it starts are known."""
    words = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )  # fmt: skip


def session(number: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[3]) == number and words[0] != "Z":
            found.append(int(path.name))
    return found


def printed(process: subprocess.Popen[str], sign: str) -> None:
    """Waits until a process has printed a line that begins so."""
    assert process.stdout is not None
    before = []
    for line in process.stdout:
        if line.startswith(sign):
            return
        before.append(line)
    raise AssertionError(f"no {sign!r} in {''.join(before)}")


def kill(process: subprocess.Popen[str], seconds: float) -> None:
    """Kills a process so many seconds from now; what it had started ends too."""
    assert process.stdout is not None
    time.sleep(seconds)
    assert process.poll() is None, process.stdout.read()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    looks = 1000  # not seconds: a machine may stop for a while
    while (left := session(process.pid)) and looks:
        time.sleep(0.02)
        looks -= 1
    assert not left, f"left over: {[(Path('/proc') / str(n) / 'status').read_text() for n in left]}"


def whole_store() -> int:
    """How many records there are in the store, which is whole."""
    found = records.list_records()
    assert not list(database.path_of().parent.glob("*.damaged-*"))
    return len(found)


def nothing_left(folder: Path) -> None:
    left = [p for p in folder.rglob("*") if files.is_begun(p.name) or p.name.endswith((".new", ".old"))]
    assert not left and not list((folder / "temporary").iterdir())


def saved_steps(run: Path) -> int:
    """Those of the last save; 0 where there is none."""
    try:
        return es.load(run / "last", model=model()).steps
    except es.SaveError as e:
        assert "is not a folder" in str(e), e
        return 0


def killed_while_training(folder: Path, times: int) -> None:
    draw, run, script = random.Random(5), folder / "run", folder / "train.py"
    script.write_text(TRAIN)
    steps = 0
    for n in range(times):
        process = begun([script, run, 16, 10**9])
        if n % 4 == 0:  # maybe while it starts
            kill(process, STARTED * draw.random())
        else:
            printed(process, "begins")
            if n % 4 == 1:
                printed(process, "saved")
            kill(process, 1.5 * draw.random())
        whole_store()
        now = saved_steps(run)
        assert now >= steps + (n % 4 == 1), "what was saved is lost"
        steps = now
    process = begun([script, run, 17, 60])
    out, _ = process.communicate(timeout=HANGS)
    assert process.returncode == 0, out
    assert f"begins {steps}\n" in out and f"ends {saved_steps(run)}\n" in out
    assert whole_store(), "it explores, and keeps what it finds"
    nothing_left(folder)


def model() -> es.nn.Module:
    return es.nn.Sequential(es.nn.Linear(24, 48), es.nn.ReLU(), es.nn.Linear(48, 5))


def killed_while_tuning(folder: Path, times: int) -> None:
    draw, file = random.Random(6), folder / "step.py"
    file.write_text(TUNE)
    arguments = ["-m", "einsmith.cli.main", "tune", file, "--json", "--seconds"]
    for n in range(times):
        process = begun([*arguments, 10**5])
        while n % 4 == 1 and len(session(process.pid)) < 2 and process.poll() is None:  # until it measures something
            time.sleep(0.05)
        kill(process, STARTED * draw.random() if n % 4 <= 1 else STARTED * (0.5 + draw.random()))
        whole_store()
    process = begun([*arguments, 2])
    out, _ = process.communicate(timeout=HANGS)
    assert process.returncode == 0 and '"tried"' in out, out
    whole_store()
    nothing_left(folder)


@pytest.mark.slow
def test_training_that_is_killed_often(tmp_path: Path) -> None:
    killed_while_training(tmp_path, 200)


@pytest.mark.slow
def test_searches_that_are_killed_often(tmp_path: Path) -> None:
    killed_while_tuning(tmp_path, 200)
