"""Groups of real processes under both launchers: equal results, and an end of all when one ends."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from tests.cli.digits import write_digits
from tests.distributed import worker

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
START = 120.0
"""Seconds that processes may take to start and compile, on a busy machine."""
END = 10.0
"""Seconds within which all processes of a group end after one of them."""


def command(engine: str, *args: str, size: int = 2, options: Sequence[str] = ()) -> list[str]:
    """The command that starts the processes; options: the launcher's."""
    if engine == "MPI":
        pytest.importorskip("mpi4py")
        if not (BIN / "mpirun").exists():
            pytest.skip("mpirun is not installed; pip install 'einsmith[mpi]'")
        options = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), *options]
        return [str(BIN / "mpirun"), *options, "-n", str(size), sys.executable, "-m", "tests.distributed.worker", *args]
    pytest.importorskip("torch")
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size),
        *options, "-m", "tests.distributed.worker", *args,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def start(engine: str, *args: str, size: int = 2, options: Sequence[str] = ()) -> subprocess.Popen:
    return subprocess.Popen(
        command(engine, *args, size=size, options=options), cwd=ROOT, env=environment(), text=True,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def kill(process: subprocess.Popen) -> None:
    """Kill a launcher and what it has started, which may be in sessions of their own."""
    children = {int(p.name): (p / "stat").read_text() for p in Path("/proc").iterdir() if p.name.isdigit()}
    parents = {pid: int(stat.rpartition(")")[2].split()[1]) for pid, stat in children.items()}
    found = [process.pid]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    for pid in reversed(found):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end(process: subprocess.Popen, seconds: float) -> str:
    """Return what the processes have printed when they have ended; after these seconds kill them and fail."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        kill(process)
        pytest.fail(f"the group has not ended within {seconds} s:\n{process.communicate()[0]}")


@pytest.fixture(params=["MPI", "torchrun"])
def engine(request: pytest.FixtureRequest) -> str:
    command(request.param)
    return request.param


def by_default(engine: str) -> pytest.MarkDecorator:
    """Run the test with one of the launchers, and in slow tests with the other."""
    every = [pytest.param(x, marks=[pytest.mark.slow] * (x != engine)) for x in ("MPI", "torchrun")]
    return pytest.mark.parametrize("engine", every, indirect=True)


@by_default("MPI")
def test_results_are_those_of_one_process(engine, tmp_path):
    process = start(engine, "compare", str(tmp_path))
    text = end(process, START)
    assert process.returncode == 0, text
    losses, expected = worker.train(None)
    expected |= worker.normalized(None)
    states = [dict(np.load(tmp_path / f"{engine}-{rank}.npz")) for rank in range(2)]
    for rank, state in enumerate(states):
        facts = json.loads((tmp_path / f"{engine}-{rank}.json").read_text())
        np.testing.assert_allclose(facts["losses"], losses, rtol=2e-5)
        assert facts["local"] == [rank, 2]
        assert facts["cores"] <= max(1, len(os.sched_getaffinity(0)) // 2)
        for name, value in state.items():
            np.testing.assert_array_equal(value, states[0][name])
            np.testing.assert_allclose(value, expected[name], atol=2e-4, err_msg=name)


@pytest.fixture(scope="module")
def alone():
    """Losses and weights of every network in one process, as usual and deterministically."""
    names = {"": worker.NETWORKS, "deterministic-": ("lenet5", "gpt_small", "milstm")}
    return {
        prefix + name: worker.train_network(name, None, **({"deterministic": True} if prefix else {}))
        for prefix, every in names.items()
        for name in every
    }


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_twenty_steps_of_four_networks(engine, size, alone, tmp_path):
    """Losses and weights of one process with the whole batch; bitwise those in deterministic mode."""
    process = start(engine, "networks", str(tmp_path), size=size)
    text = end(process, 5 * START)
    assert process.returncode == 0, text
    for name, (losses, expected) in alone.items():
        is_deterministic = name.startswith("deterministic")
        if is_deterministic and size == 3:
            continue
        for rank in range(size):
            state = dict(np.load(tmp_path / f"{name}-{rank}.npz"))
            found = state.pop("losses")
            if is_deterministic:
                np.testing.assert_array_equal(found, losses)
            else:
                np.testing.assert_allclose(found, losses, rtol=1e-4, err_msg=name)
            for key, value in state.items():
                if is_deterministic:
                    np.testing.assert_array_equal(value, expected[key], err_msg=f"{name} {key}")
                else:
                    scale = max(1.0, np.abs(expected[key]).max())
                    np.testing.assert_allclose(value, expected[key], atol=1e-3 * scale, err_msg=f"{name} {key}")


@by_default("MPI")
def test_an_error_of_one_process_ends_all(engine, tmp_path):
    process = start(engine, "fail", str(tmp_path))
    text = end(process, START)
    assert process.returncode != 0 and "an error of rank 1" in text


def await_file(file: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START
    while not file.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    if not file.exists():
        kill(process)
        pytest.fail(f"there is no {file.name}:\n{process.communicate()[0]}")


def check_save(folder: Path) -> int:
    """Check that a save is whole and can be continued; return the number of its step."""
    step = es.load(folder, model=worker.network(0))
    assert step.steps % worker.SAVED == 1 and np.isfinite(step(*worker.data()))
    return step.steps - 1


@by_default("MPI")
def test_a_killed_process_ends_all_and_the_save_is_whole(engine, tmp_path):
    process = start(engine, "last", str(tmp_path))
    await_file(tmp_path / "saved-1", process)
    os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
    end(process, END)
    assert process.returncode != 0
    check_save(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_a_process_is_killed_at_any_moment(engine, seed, tmp_path):
    """While it starts, computes, sums, or saves; then the group goes on from the save."""
    rng = random.Random(seed)
    process = start(engine, "last", str(tmp_path))
    rank = rng.randrange(2)
    await_file(tmp_path / f"pid-{rank}", process)
    time.sleep(rng.choice([0.0, 0.1, 1.0, 4.0]) * rng.random())
    os.kill(int((tmp_path / f"pid-{rank}").read_text()), signal.SIGKILL)
    end(process, END)
    assert process.returncode != 0
    before = check_save(tmp_path / "run") if (tmp_path / "run").exists() else 0
    for file in tmp_path.glob("saved-*"):
        file.unlink()
    process = start(engine, "last", str(tmp_path))
    await_file(tmp_path / "saved-1", process)
    kill(process)
    process.communicate()
    assert check_save(tmp_path / "run") >= before


@pytest.mark.slow
def test_a_launcher_that_restarts_the_processes_goes_on_from_the_save(tmp_path):
    process = start("torchrun", "last", str(tmp_path), options=("--max-restarts", "1"))
    await_file(tmp_path / "saved-1", process)
    before, killed = check_save(tmp_path / "run"), int((tmp_path / "pid-1").read_text())
    os.kill(killed, signal.SIGKILL)
    for file in tmp_path.glob("saved-*"):
        file.unlink(missing_ok=True)
    deadline = time.monotonic() + START
    while int((tmp_path / "pid-1").read_text() or killed) == killed and time.monotonic() < deadline:
        time.sleep(0.05)
    await_file(tmp_path / "saved-1", process)
    kill(process)
    process.communicate()
    assert int((tmp_path / "pid-1").read_text()) != killed and check_save(tmp_path / "run") > before


@pytest.mark.slow
@by_default("MPI")
def test_a_process_that_is_stopped_for_a_while_holds_up_the_others_and_no_more(engine, tmp_path):
    process = start(engine, "last", str(tmp_path))
    await_file(tmp_path / "saved-1", process)
    pid = int((tmp_path / "pid-1").read_text())
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    (tmp_path / "saved-1").unlink()
    time.sleep(1)
    assert not (tmp_path / "saved-1").exists() and process.poll() is None
    os.kill(pid, signal.SIGCONT)
    await_file(tmp_path / "saved-1", process)
    kill(process)
    process.communicate()
    check_save(tmp_path / "run")


@pytest.mark.slow
@by_default("MPI")
def test_the_command_trains_in_a_group(engine, tmp_path):
    """`einsmith train` under a launcher: one process reports and saves."""
    write_digits(tmp_path, 70, 30)
    options = ["--data", str(tmp_path), "--epochs", "30", "--batch", "35", "--save", str(tmp_path / "run"), "--json"]
    run = command(engine)
    at = run.index("tests.distributed.worker")
    process = subprocess.Popen(
        [*run[:at], "einsmith.cli.main", "train", "mlp3", *options], cwd=ROOT, env=environment(), text=True,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        text, errors = process.communicate(timeout=2 * START)
    except subprocess.TimeoutExpired:
        kill(process)
        pytest.fail(f"the command has not ended:\n{process.communicate()}")
    assert process.returncode == 0, errors
    *epochs, final = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    assert [row["epoch"] for row in epochs] == list(range(1, 31)) and final["accuracy"] > 0.8
    step = es.load(tmp_path / "run")
    assert step.epoch == 30 and step.steps == 30 * 2


@pytest.mark.slow
def test_processes_measure_for_one_search(tmp_path):
    """`einsmith tune --workers mpi`: the first process searches and reports, the others measure."""
    run = command("MPI", options=("--bind-to", "none"))
    at = run.index("tests.distributed.worker")
    options = ["lenet5", "--batch", "2", "--seconds", "3", "--workers", "mpi", "--json"]
    done = subprocess.run(
        [*run[:at], "einsmith.cli.main", "tune", *options], cwd=ROOT,
        env={**environment(), "EINSMITH_CACHE_DIR": str(tmp_path)}, text=True, capture_output=True, timeout=START,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("{")]
    assert json.loads(line)["tried"] >= 4


def test_a_launcher_without_its_library_is_refused():
    script = "import sys; sys.modules['mpi4py'] = None\nimport einsmith as es\nes.distributed.init()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env={**environment(), "PMI_SIZE": "2"}, capture_output=True, text=True
    )
    assert done.returncode and "MPI has started this process" in done.stderr
    assert "pip install 'einsmith[mpi]'" in done.stderr
