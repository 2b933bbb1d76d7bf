"""Chrome traces: `step.profile(trace=)`, `einsmith explain --trace` and EINSMITH_TRACE."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
from einsmith.base import files, recording
from einsmith.cli import main
from tests.tracing.trace_format import check_trace, counters_of, read_trace, spans_of

ROOT = Path(__file__).resolve().parents[2]


class Net(es.nn.Module):
    def __init__(self) -> None:
        self.first = es.nn.Linear(12, 40)
        self.second = es.nn.Linear(40, 5)

    def forward(self, x):
        return self.second(es.functional.relu(self.first(x)))


def network(threads: int = 2) -> tuple[es.TrainStep, tuple[np.ndarray, np.ndarray]]:
    es.manual_seed(0)
    step = es.TrainStep(Net(), es.functional.cross_entropy, es.optim.SGD(lr=0.1, momentum=0.9), threads=threads)
    rng = default_rng(0)
    return step, (rng.standard_normal((64, 12)).astype(np.float32), rng.integers(0, 5, 64))


def test_a_step_as_a_trace(tmp_path: Path) -> None:
    step, batch = network()
    before = {n: v.copy() for n, v in step.model.state_dict().items()}
    profile = step.profile(*batch, repeats=3, trace=tmp_path / "step.json")
    assert all((before[n] == v).all() for n, v in step.model.state_dict().items()) and step.steps == 0
    data = read_trace(tmp_path / "step.json")
    (run,) = spans_of(data, cat="run", name=f"run of {len(profile.rows)} kernels")
    kernels = [e for e in spans_of(data, tid=run["tid"]) if e["cat"] in ("forward", "backward", "update")]
    assert {r[0] for r in profile.rows} == {e["cat"] for e in kernels}
    assert {e["args"]["computes"] for e in kernels} <= {r[1] for r in profile.rows}
    names = " | ".join(e["name"] for e in kernels)
    assert "first (linear), relu" in names and "second (linear)" in names and "cross_entropy" in names
    assert "first.weight (SGD)" in names and "second.bias (SGD)" in names
    forward = [e["name"] for e in kernels if e["cat"] == "forward"]
    assert [n.startswith("first") for n in forward].index(True) < [n.startswith("second") for n in forward].index(True)
    phases = [e["name"] for e in spans_of(data, cat="compilation")]
    for phase in ("tracing", "passes", "simplify", "schedule: kernels", "code generation", "binding to memory"):
        assert phase in phases, phase
    assert {e["tid"] for e in spans_of(data)} <= {run["tid"], 1000, 1001}
    live = [sum(e["args"].values()) for e in counters_of(data)]
    assert max(live) > 0 and live[-1] == 0 and max(e["args"]["saved"] for e in counters_of(data)) >= 64 * 40 * 4


def test_rows_are_the_threads_that_work(tmp_path: Path) -> None:
    """A thread's spans lie within the calling thread's, and the first thread's row has every kernel that it runs."""
    step, batch = network(threads=1)
    step.profile(*batch, repeats=1, trace=tmp_path / "step.json")
    data = read_trace(tmp_path / "step.json")
    seen = {e["ts"]: e for e in spans_of(data, tid=1) if e["cat"] in ("forward", "backward", "update")}
    worked = spans_of(data, tid=1000)
    assert len(worked) == len(seen) and {e["tid"] for e in spans_of(data)} == {1, 1000}
    for e in worked:
        assert e["name"] == seen[e["ts"]]["name"] and e["dur"] <= seen[e["ts"]]["dur"]


def test_lines_of_formulas_and_loops_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rnn.py"
    file.write_text(
        "import numpy as np, einsmith as es\n"
        "step = es.op('''\n"
        "    u[t,b,k] = sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * U[j,k])\n"
        "    h[t,b,k] = tanh(x[t,b,k] + u[t,b,k])\n"
        "    y[b] = sum[t,k](h[t,b,k] * h[t,b,k])\n"
        "    return y\n"
        "''')\n"
        "inputs = [np.ones(s, np.float32) for s in ((4, 8), (8, 8), (6, 4, 8))]\n"
    )
    assert main.run(["explain", str(file), "--trace", str(tmp_path / "rnn.json"), "--threads", "2"]) == 0
    data = read_trace(tmp_path / "rnn.json")
    kernels = spans_of(data, cat="forward", tid=1)
    assert any("y, line 4" in e["name"] for e in kernels)
    looped = [e for e in kernels if e["args"].get("turns", 1) > 1]
    assert looped and all("line" in e["name"] for e in looped)


def test_a_process_writes_its_compilation_and_runs(tmp_path: Path) -> None:
    code = (
        "import numpy as np, einsmith as es\n"
        "from tests.tracing.test_traces import network\n"
        "step, batch = network()\n"
        "for _ in range(3): step(*batch)\n"
        "f = es.jit(lambda x: es.functional.softmax(x, -1))\n"
        "f(np.ones((4, 5), np.float32)); f(np.ones((4, 5), np.float32))\n"
    )
    file = tmp_path / "all-%p.json"
    variables = os.environ | {"EINSMITH_TRACE": str(file), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True, cwd=tmp_path)
    (written,) = tmp_path.iterdir()
    data = read_trace(written)
    assert str(data["traceEvents"][0]["pid"]) in written.name
    runs = [e for e in spans_of(data, cat="run") if e["name"].startswith("run of")]
    assert len(runs) == 5 and data["otherData"]["left out"] == 0
    phases = spans_of(data, cat="compilation")
    assert len([e for e in phases if e["name"] == "compilation"]) == 2
    assert any("softmax" in e["name"] for e in spans_of(data, cat="forward"))
    assert max(e["ts"] + e["dur"] for e in phases[:5]) < runs[0]["ts"]


def test_places_that_cannot_be_written_are_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step, batch = network()
    absent = tmp_path / "none" / "step.json"
    for place, why in ((absent, "No such file"), (tmp_path, "it is a directory")):
        with pytest.raises(es.ArgumentError, match=f"trace=.*cannot be written: {why}"):
            step.profile(*batch, trace=place)
    with pytest.raises(es.KindError, match="trace=3 must be the path"):
        step.profile(*batch, trace=3)
    assert "compiled" in step.plan  # nothing yet
    assert main.run(["explain", "mlp3", "--trace", str(absent)]) == 1
    assert "--trace" in capsys.readouterr().err
    monkeypatch.setenv("EINSMITH_TRACE", str(absent))
    with pytest.raises(es.KnobError, match="EINSMITH_TRACE is .*none.*cannot be written: No such file"):
        es.jit(lambda x: x + 1)(np.ones(3, np.float32))
    assert main.run(["explain", "mlp3"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_fails_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "step.json"
    file.write_text("before")

    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write_all", full)
    with pytest.raises(OSError):
        recording.Recorder().write(file)
    assert file.read_text() == "before" and list(tmp_path.iterdir()) == [file]


def test_the_size_is_bounded() -> None:
    step, batch = network(threads=1)
    with recording.recording() as recorder:
        run = step.compiler.compile_apart([*batch], False)
        step.parts.set_numbers([*batch])
        recorder.limit = recorder._count + 2 * run.run_recorded(batch).count + 1
        for _ in range(5):
            run.record(recorder, batch, 1)
    data = recorder.data()
    check_trace(data)
    assert len([e for e in spans_of(data, cat="run") if e["name"].startswith("run of")]) == 2
    assert data["otherData"]["left out"] == 3 and "3 later runs" in data["otherData"]["note"]
    assert data["otherData"]["events"] <= recorder.limit


def test_nothing_is_recorded_where_nothing_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EINSMITH_TRACE", raising=False)
    step, batch = network()
    step(*batch)
    assert recording.current() is None
    (run,) = [run for _, run in step.compiler.programs.items()]
    assert run.runs.recorder is None and not run.runs.timelines


FAULTS = {
    "a field is missing": lambda e: e.pop("pid"),
    "a phase that is none": lambda e: e.update(ph="Q"),
    "begins before": lambda e: e.update(ts=-1.0),
    "no duration": lambda e: e.update(dur=None),
    "not nested": lambda e: e.update(dur=e["dur"] + 1e7),
    "a row without a name": lambda e: e.update(tid=77),
    "a time that is text": lambda e: e.update(ts=str(e["ts"])),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_refuses(fault: str, tmp_path: Path) -> None:
    step, batch = network(threads=1)
    step.profile(*batch, repeats=1, trace=tmp_path / "step.json")
    data = read_trace(tmp_path / "step.json")
    broken = copy.deepcopy(data)
    FAULTS[fault]([e for e in broken["traceEvents"] if e["ph"] == "X" and e["cat"] == "forward"][2])
    with pytest.raises(AssertionError):
        check_trace(broken)
    counter = copy.deepcopy(data)
    next(e for e in counter["traceEvents"] if e["ph"] == "C")["args"]["saved"] = "12"
    with pytest.raises(AssertionError, match="a counter is numbers"):
        check_trace(counter)
