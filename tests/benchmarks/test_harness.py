"""The benchmark harness: it verifies before it times, counts the arithmetic right, and resumes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import driver, recurrent, report, run, training, worker
from benchmarks.driver import geometric_mean
from benchmarks.models import TRAINING
from benchmarks.problems import OPERATORS
from benchmarks.recurrent_steps import CELLS, LAYER_CELLS, RECURRENT, language_model, peers_of
from benchmarks.recurrent_steps import recurrent as recurrent_step
from benchmarks.run import MIN_ROUNDS, Pace, _room, _summarize, run_problem
from benchmarks.verify import disagreements
from benchmarks.worker import Allowance, PeerProcess, WorkerError, alone
from einsmith.base.system import memory


def test_arithmetic_is_counted_from_the_shapes() -> None:
    assert OPERATORS["capsule_conv-s2"].flops == 3 * 2 * (16 * 32 * 6 * 6 * 4 * 4) * (32 * 3 * 3 * 4)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", list(OPERATORS))
def test_arrays_are_the_same_every_time(name: str) -> None:
    a, b = OPERATORS[name].arrays(), OPERATORS[name].arrays()
    assert list(a) == list(b) and all(np.array_equal(a[k], b[k]) for k in a)
    assert all(v.dtype in (np.float32, np.int64) for v in a.values())


def results(rng: np.random.Generator, wrong: str | None = None) -> tuple[dict, dict]:
    base = rng.standard_normal((17, 5)).astype(np.float32)
    losses, changes = {}, {}
    for peer in ("a", "b", "c"):
        noise = 1 + 1e-6 * rng.standard_normal(base.shape)
        losses[peer], changes[peer] = [2.3, 2.2], {"w": base * noise}
    if wrong == "loss":
        losses["b"] = [2.3, 2.21]
    elif wrong == "update":
        changes["b"] = {"w": changes["b"]["w"] * 1.01}
    elif wrong == "nan":
        changes["b"] = {"w": changes["b"]["w"] * np.nan}
    return losses, changes


@pytest.mark.parametrize("wrong", [None, "loss", "update", "nan"])
def test_a_wrong_peer_is_named(wrong: str | None, rng: np.random.Generator) -> None:
    with np.errstate(invalid="ignore"):
        found = disagreements(*results(rng, wrong))
    if wrong == "nan":
        assert "b" in found
    else:
        assert set(found) == ({"b"} if wrong else set())


def cell(**medians: float) -> dict:
    peers = {p: {"status": "ok", "rounds": [m, m, m], "first_seconds": 1.0} for p, m in medians.items()}
    return {"flops": 10**9, "nbytes": 10**6, "threads": 2, "verified": True, "peers": peers}


def test_the_ratio_is_to_the_best_peer() -> None:
    c = cell(einsmith=0.002, torch=0.004, jax=0.003)
    c["peers"]["xla"] = {"status": "missing", "message": "No module named 'tensorflow'"}
    _summarize(c, 1e12)
    assert c["best_peer"] == "jax" and c["speedup"] == pytest.approx(1.5)
    assert c["peers"]["einsmith"]["floor_percent"] == pytest.approx(50)
    assert "median" not in c["peers"]["xla"]


def test_the_floor_is_what_binds() -> None:
    c = cell(einsmith=0.002, torch=0.004)
    _summarize(c, 1e12, 1e9)
    assert c["floor_seconds"] == pytest.approx(0.001) and c["bound_by"] == "arithmetic"
    _summarize(c, 1e12, 0.5e9)
    assert c["floor_seconds"] == pytest.approx(0.002) and c["bound_by"] == "bytes"
    assert c["peers"]["einsmith"]["floor_percent"] == pytest.approx(100)


def test_the_mean_of_ratios_is_geometric() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2) and geometric_mean([]) is None


def brute_force_points(problem: str) -> int:
    """Multiply-adds of the forward's sums, by looking at every index."""
    if problem == "local_attention":
        t = np.arange(2048)
        return int((np.abs(t[:, None] - t) <= 64).sum()) * 8 * 64 * 2
    n, lead = {"depthwise": (56, 16 * 64), "involution": (32, 8 * 4 * 16)}[problem]
    h = np.arange(n)[:, None] + np.arange(7) - 3
    return int(((0 <= h) & (h < n)).sum()) ** 2 * lead


@pytest.mark.parametrize("problem", ["local_attention", "depthwise", "involution"])
def test_points_outside_are_not_counted(problem: str) -> None:
    assert OPERATORS[problem].flops == 3 * 2 * brute_force_points(problem)


def test_finished_cells_are_not_run_again(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def fake(problem, peers, threads, pace, cap, say, **_):
        calls.append(problem.name)
        c = cell(**{p: 0.002 for p in peers})
        _summarize(c, None)
        return c

    monkeypatch.setattr(report, "run_problem", fake)
    path = tmp_path / "out" / "results.json"
    arguments = ["mlp3", "--batch", "64", "--batch", "256", "--peers", "torch", "--json", str(path)]
    assert report.run("title", TRAINING, arguments) == 0
    assert calls == ["mlp3-b64", "mlp3-b256"]
    assert report.run("title", TRAINING, arguments) == 0
    assert len(calls) == 2
    more = ["torch,jax" if a == "torch" else a for a in arguments]
    assert report.run("title", TRAINING, more) == 0
    assert len(calls) == 4, "a cell that lacks a peer is run again as a whole"
    data = json.loads(path.read_text())
    data["cells"]["mlp3-b64-t2"]["peers"]["torch"] = {"status": "failed", "message": "x"}
    path.write_text(json.dumps(data))
    report.run("title", TRAINING, arguments)
    assert calls[4:] == ["mlp3-b64"]
    assert "mlp3-b64" in capsys.readouterr().out


def test_a_foreign_json_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"mine": 1}')
    with pytest.raises(SystemExit, match="not a file of this benchmark"):
        report.run("title", TRAINING, ["mlp3", "--json", str(path)])
    assert path.read_text() == '{"mine": 1}'


@pytest.mark.parametrize(
    "arguments",
    [["resnet"], ["--networks", "x"], ["--peers", "tinygrad"], ["--rounds", "0"], ["--batch", "3"], ["--seconds", "0"]],
)
def test_wrong_use(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as e:
        report.run("title", TRAINING, arguments)
    assert e.value.code == 2


@pytest.mark.slow
def test_a_missing_peer_is_reported(tmp_path: Path, monkeypatch) -> None:
    """A package of that name that cannot be imported stands in for a library that is not installed."""
    (tmp_path / "tensorflow.py").write_text("raise ImportError('No module named tensorflow')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said: list[str] = []
    c = run_problem(TRAINING["mlp3-b64"], ["xla"], 1, Pace(1), 60, said.append)
    assert c["peers"]["xla"]["status"] == "missing" and "tensorflow" in c["peers"]["xla"]["message"]


def test_time_cap(tmp_path: Path) -> None:
    with PeerProcess("torch", 1, tmp_path) as peer:
        with pytest.raises(WorkerError) as e:
            peer.ready(Allowance(0.01))
        assert e.value.kind == "timeout" and not peer.alive


def test_waiting_does_not_count_against_the_cap(tmp_path: Path, monkeypatch) -> None:
    """A worker that other work keeps from the processors may take longer than its cap."""
    monkeypatch.setattr(worker, "tree_seconds", lambda pid: 7.0)
    monkeypatch.setattr(worker, "PATIENCE", 1e6)
    with PeerProcess("peak", 1, tmp_path) as peer:
        allowance = Allowance(0.001)
        peer.ready(allowance)
        assert peer.version and allowance.left == pytest.approx(0.001, abs=1e-4)


def test_processor_seconds_are_those_of_all_descendants() -> None:
    burn = "import time; e = time.process_time() + 0.4\nwhile time.process_time() < e: pass"
    script = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); print(1); time.sleep(9)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None and parent.stdout.readline()
            assert (worker.tree_seconds(parent.pid) or 0) > 0.3
        finally:
            parent.kill()
    assert worker.tree_seconds(parent.pid) is None


def test_other_work_is_kept_away(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with alone(f"echo begun > {log}; echo ready; cat; echo ended >> {log}"):
        assert log.read_text() == "begun\n"
    assert log.read_text() == "begun\nended\n"
    with alone(None):
        pass
    with pytest.raises(OSError, match="without a line"), alone("true"):
        pass


def test_calibration_is_kept(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "own"))
    record = tmp_path / "own" / "calibration" / "x.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    crew = worker.Crew(1, tmp_path / "caches")
    crew.keep_calibration()
    caches = crew.caches("einsmith")
    assert caches is not None
    assert (caches / "EINSMITH_CACHE_DIR" / "calibration" / "x.json").read_text() == "{}"


def test_untimed_peers_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    c = cell(einsmith=0.002, torch=0.004)
    c["peers"]["xla"] = {"status": "timeout", "message": "over the time cap", "cap": 60.0}
    _summarize(c, None)
    path = tmp_path / "results.json"
    driver.store(path, {"cells": {"mlp3-b64-t2": c}})
    assert report.run("title", TRAINING, ["--summary", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "xla over 60 s" in out and "over 60" in out.partition("first call, seconds")[2]


def test_a_turn_is_short_unless_a_step_is_long() -> None:
    assert Pace(15).turn(0.01) == (15, 20, 2) and Pace(15).turn(5.0) == (15, 3, 2)
    assert Pace(15, seconds=100).turn(0.01) == (15, 20, 2)
    assert Pace(15, seconds=1).turn(0.05) == (MIN_ROUNDS, 4, 2)
    assert Pace(15, seconds=6).turn(0.5) == (6, 1, 1)
    assert Pace(15, seconds=60).turn(5.0) == (12, 1, 0) and Pace(15, seconds=60).turn(50.0) == (MIN_ROUNDS, 1, 0)


def test_there_is_room_while_memory_lasts(monkeypatch) -> None:
    monkeypatch.setattr(run, "available_bytes", lambda: 1000)
    assert _room([]) and _room([{"bytes": 499}, {}]) and not _room([{"bytes": 10}, {"bytes": 501}])
    assert memory.available_bytes() > 2**20


@pytest.mark.slow
@pytest.mark.parametrize("room", [True, False])
def test_peers_agree(room: bool, torch, monkeypatch) -> None:
    """The whole way with a real library: first call, verification in float64, rounds; also where memory is scarce."""
    if not room:
        monkeypatch.setattr(run, "available_bytes", lambda: 1)
    c = run_problem(TRAINING["mlp3-b64"], ["einsmith", "torch"], 1, Pace(2, seconds=1), 60, lambda line: None)
    assert all(r["status"] == "ok" and len(r["rounds"]) == 2 for r in c["peers"].values())
    assert c["best_peer"] == "torch" and c["speedup"] > 0 and c["verified"]
    assert c["groups"] == ([["einsmith", "torch"]] if room else [["einsmith"], ["torch"]])
    assert set(c["peers"]) == {"einsmith", "torch"} and c["peers"]["einsmith"]["kernels"] > 5
    assert c["peers"]["torch"]["bytes"] > 0 and c["flops"] > 2 * 64 * 535_000


def test_peers_that_fit_a_training_benchmark() -> None:
    cells = {"resnet18-b1": cell(einsmith=0.002, torch=0.004), "mlp3-b1": cell(einsmith=0.002, torch=0.001)}
    for c in cells.values():
        _summarize(c, None)
        c["peers"]["einsmith"] |= {"first_spent": 2.0, "kernels": 101}
    cells["mlp3-b1"]["peers"]["compile"] = {"status": "timeout", "cap": 8.0}
    cells["resnet18-b1"]["peers"]["compile"] = {"status": "ok", "first_spent": 5.0}
    found = {what: (got, holds) for what, got, _, holds in training.verdicts(cells)}
    assert found["times as fast as the best peer, geometric mean"] == ("1.00", None)
    assert found["slower than the best peer"] == ("1 of 2 mlp3-b1 0.50", False)
    assert found["cold first call, of torch.compile's"] == ("0.32 in the mean; above: resnet18-b1 0.40", False)
    assert found["distinct kernels of resnet18-b1"] == ("101", False)
    assert peers_of(TRAINING["milstm-b1-t28"], ["einsmith", "compile", "jax"]) == [
        "einsmith", "compile", "compile-cell", "jax", "jax-unrolled",
    ]  # fmt: skip
    assert peers_of(TRAINING["mlp3-b1"], ["einsmith", "compile"]) == ["einsmith", "compile"]


@pytest.mark.slow
@pytest.mark.parametrize("problem", list(OPERATORS))
def test_every_formulation_means_the_same(problem: str, torch) -> None:
    """Loss and gradients of each of ours and of each in PyTorch."""
    losses, changes = {}, {}
    for library in ("einsmith", "torch"):
        p = OPERATORS[problem]
        for variant in worker.variants(p, library):
            if variant == "a step for each k":
                continue  # a second of time, and the harness compares it in every run
            it = worker.build(p, p.arrays(), 2, library, variant)
            losses[f"{library}: {variant}"] = [it.step()]
            changes[f"{library}: {variant}"] = it.results()
    assert not disagreements(losses, changes)
    assert {n for c in changes.values() for n in c} == set(OPERATORS[problem].results)


def test_recurrent_arithmetic_is_counted_from_the_shapes() -> None:
    """A step: two products forward, their weight gradients, and the gradient by the states but the initial one."""
    b, t, n, h = 64, 28, 28, 1024
    gates, carried = 4 * h * n, 4 * h * h
    assert RECURRENT["milstm-b64-t28"].flops == 2 * b * (t * (2 * gates + 3 * carried) - carried + 3 * 10 * h)
    one = 3 * 128 * (2 * 784 + 2 * 128) + 3 * 10 * 128
    assert RECURRENT["lltm-b1-t1"].flops == 2 * one
    assert set(RECURRENT) >= {f"{c}-b{b}-t{t}" for c in CELLS for b in (1, 16, 64) for t in (1, 28, 35, 150)}


@pytest.mark.parametrize("name", [*(f"{c}-b1-t1" for c in CELLS), "milstm-b1-t28", "scrn-b16-t28"])
def test_recurrent_arrays_fit_their_names(name: str) -> None:
    p = RECURRENT[name]
    arrays = p.arrays()
    assert {*p.results, *p.states, "x", "y"} == set(arrays)
    assert arrays["x"].shape[:2] == (p.steps, p.batch) and arrays["y"].shape == (p.batch,)


def test_only_a_pattern(tmp_path: Path, monkeypatch) -> None:
    calls = []

    def fake(problem, peers, *_, **__):
        calls.append((problem.name, peers))
        c = cell(**{p: 0.002 for p in peers})
        _summarize(c, None)
        return c

    monkeypatch.setattr(report, "run_problem", fake)
    known = ("jax", "jax-unrolled")
    assert report.run("title", RECURRENT, ["--only", "*-b16-t28", "--without-einsmith"], known) == 0
    assert calls == [(f"{c}-b16-t28", list(known)) for c in CELLS]
    with pytest.raises(SystemExit):
        report.run("title", RECURRENT, ["--only", "*-b17-*"], known)


def test_first_calls_are_kept_and_capped(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []
    kernels = {"kernels": 9, "code_bytes": 2048, "loop_bytes": 512}

    def fake(problem, peers, threads, pace, cap, *_, **__):
        assert not pace.rounds
        asked.append(problem.name)
        ours = {"status": "ok", "version": "1", "first_seconds": 1.5} | kernels
        late = {"status": "timeout", "message": "over the time cap", "cap": cap}
        return {"peers": {"einsmith": ours, "compile": late}}

    monkeypatch.setattr(report, "run_problem", fake)
    arguments = ["--first-calls", "--only", "lltm-*", "--peers", "compile", "--json", str(tmp_path / "x.json"), "--cap"]
    assert recurrent.main([*arguments, "7"]) == 0 and len(asked) == 3
    assert recurrent.main([*arguments, "7"]) == 0 and len(asked) == 3
    out = capsys.readouterr().out
    assert "over 7" in out and "1.50 (9, 2)" in out and "holds" in out
    kernels["loop_bytes"] = 100
    assert recurrent.main([*arguments, "7", "--fresh"]) == 0
    short = {"kernels": 9, "code_bytes": 100, "loop_bytes": 20}
    for change, even in (({}, True), ({"code_bytes": 120}, True), ({"code_bytes": 130}, False), ({"kernels": 8}, False),
                         ({"loop_bytes": 21}, False)):  # fmt: skip
        cells = {n: {"peers": {"einsmith": s}} for n, s in (("lltm-b4-t8", short), ("lltm-b4-t128", short | change))}
        ((_, _, _, holds),) = recurrent.steady(cells)
        assert holds is even


@pytest.mark.slow
def test_a_first_call_is_all_that_is_measured_without_rounds() -> None:
    c = run_problem(TRAINING["mlp3-b64"], ["einsmith"], 1, Pace(0), 60, lambda line: None)
    assert c["peers"]["einsmith"]["first_spent"] > 0 and not c["peers"]["einsmith"].keys() & {"rounds", "bytes"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CELLS, *LAYER_CELLS, "lstm_lm"])
def test_recurrent_programs_mean_the_same(name: str, torch, jax) -> None:
    """Losses and updates of Einsmith, PyTorch's loop, its fused LSTM, JAX's scan and its unrolled loop."""
    p = language_model(3, 2, 12, 40) if name == "lstm_lm" else recurrent_step(name, 2, 3)
    losses, changes = {}, {}
    start = p.arrays()
    for peer in ("einsmith", "torch", "jax", "jax-unrolled"):
        for variant in worker.variants(p, peer):
            it = worker.build(p, p.arrays(), 2, peer, variant)
            losses[f"{peer} {variant}"] = [it.step() for _ in range(3)]
            changes[f"{peer} {variant}"] = {n: v - start[n] for n, v in it.results().items()}
    assert len(losses) >= 4 and not disagreements(losses, changes)
