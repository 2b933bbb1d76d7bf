"""The benchmark of a card, on an interpreter in its place: all parts, runs that go on, and what is wrong is seen."""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsmith as es
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import compare, kernels, packages, parts, problems, record, report
from benchmarks.gpu.compare import Comparison
from benchmarks.gpu.launching import CardBench
from benchmarks.gpu.problems import ROUTED, Case
from benchmarks.gpu.record import Deadline, OutOfTime, Record, RecordError
from benchmarks.gpu.serving import AVAILABLE, Client
from einsmith.kernels import autoconfig
from tests.cuda.fake import backend

OPTIONS = ["--fake", "--models", ROUTED, "--batches", "3", "--precisions", "tf32,fp32", "--peers", "torch,torch-graph",
           "--kernels", "deep conv,softmax"]  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run of all parts."""
    pytest.importorskip("torch", reason="PyTorch is a peer, and the reference in float64")
    path = tmp_path_factory.mktemp("gpu") / "out.json"
    assert command.main(["--out", str(path), *OPTIONS]) == 0
    return path


@pytest.mark.slow
def test_all_parts_run_on_an_interpreter(done: Path) -> None:
    found = Record(done)
    assert list(found.parts) == list(command.PARTS) == list(parts.PARTS)
    assert found.about["fake"] and found.about["card"] == found.parts["facts"]["card"]["card"]
    every = [(part, item, row) for part, items in found.parts.items() for item, row in items.items()]
    for part, item, row in every:
        # What is being built may be refused, with the reason; nothing may fail or be wrong.
        assert row["status"] == "ok" or (row["status"] == AVAILABLE and row["reason"]), (part, item, row)
    required = {
        "kernels": ["deep conv", "softmax"], "steps": [f"{ROUTED} fp32"], "models": [f"{ROUTED}-b3 fp32"],
        "coefficients": ["launches of 1 programs", "dots tf32 32", "dots bf16 in memory 32"],
        "regret": [f"{ROUTED}-b3 fp32"],
    }  # fmt: skip
    assert all(found.parts[part][item]["status"] == "ok" for part, items in required.items() for item in items)
    product = found.parts["kernels"]["deep conv"]
    assert {"tf32", "tf32x3", "bf16"} <= product["errors"].keys() and product["runs"] >= 5
    peers = found.parts["models"][f"{ROUTED}-b3 fp32"]["peers"]
    assert peers["torch"]["status"] == "ok" and len(peers["torch"]["rounds"]) == len(peers["einsmith"]["rounds"]) == 2
    assert peers["torch-graph"]["status"] == AVAILABLE and "need a card" in peers["torch-graph"]["reason"]
    assert found.parts["regret"][f"{ROUTED}-b3 fp32"]["kernels"][0]["regret"] >= 1


@pytest.mark.slow
def test_the_report_of_a_run(done: Path, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(report, "WIDTH", 300)  # a busy machine's times are wide
    plot = tmp_path / "ratios.png"
    assert command.main(["--report", str(done), "--plot", str(plot)]) == 0
    text = capsys.readouterr().out
    assert "2 of 2 kinds are right" in text and "us between launches" in text and "CUDA graphs need a card" in text
    assert plot.stat().st_size > 5000
    assert command.main(["--report", str(done), "--docs"]) == 1
    assert "an interpreter in the place of a card" in capsys.readouterr().err and not report.PAGE.exists()


class Stub:
    """A process that answers at once, and whose requests take ten seconds of the clock that `record` reads."""

    asked: list[tuple] = []
    now = 0.0

    def __init__(self, server: str, fake: bool, deadline: Deadline):
        self.deadline = deadline

    def ask(self, name: str, *arguments: Any, limit: float = 0.0) -> dict[str, Any]:
        self.deadline.check()
        if name == "facts":
            return {"status": "ok", "card": "Fake H100"}
        Stub.now += 10
        self.deadline.check()
        Stub.asked.append((name, *arguments))
        return {"status": "ok"}

    def close(self) -> None:
        pass


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[Stub]:
    monkeypatch.setattr(parts, "Client", Stub)
    monkeypatch.setattr(record.time, "monotonic", lambda: Stub.now)
    Stub.asked, Stub.now = [], 0.0
    return Stub


@pytest.mark.slow
def test_what_the_file_holds_is_not_run_again(done: Path, stub: type[Stub], tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_text(done.read_text())
    assert command.main(["--out", str(copy), *OPTIONS]) == 0
    assert not stub.asked
    content = json.loads(copy.read_text())
    del content["parts"]["steps"][f"{ROUTED} fp32"]
    copy.write_text(json.dumps(content))
    assert command.main(["--out", str(copy), *OPTIONS]) == 0
    assert stub.asked == [("steps", ROUTED, "fp32", 3)]
    assert len(Record(copy).about["runs"]) == 3


def test_a_run_whose_time_is_over_goes_on(stub: type[Stub], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "out.json"
    arguments = ["--out", str(path), *OPTIONS, "--parts", "kernels,steps", "--seconds", "35"]
    assert command.main(arguments) == command.LEFT
    assert [a[:2] for a in stub.asked] == [("kernel", "deep conv"), ("kernel", "softmax"), ("steps", ROUTED)]
    assert f"again with --out {path}" in capsys.readouterr().out
    assert command.main(arguments) == 0
    assert stub.asked[3:] == [("steps", ROUTED, "fp32", 3)]  # the one that was cut off counts for nothing
    with pytest.raises(OutOfTime):
        Deadline(0).check()


DAMAGED = {"{": "cannot be read as JSON", '{"format": 0}': "is not a file", '{"format": 1}': "lacks its parts"}


@pytest.mark.parametrize("content, message", DAMAGED.items())
def test_damaged_files(content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "out.json"
    path.write_text(content)
    with pytest.raises(RecordError, match=message):
        Record(path)
    assert command.main(["--out", str(path), *OPTIONS]) == 1
    assert str(path) in capsys.readouterr().err and path.read_text() == content


def test_results_of_two_cards_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    Record(path).begin({"card": "H100", "fake": False})
    with pytest.raises(RecordError, match="results of H100, and this machine has H200"):
        Record(path).begin({"card": "H200", "fake": False})


def test_unknown_names_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path / "x.json"), "--fake", "--models", "resnet19"])
    assert "unknown: resnet19; there are" in capsys.readouterr().err


def test_all_models_are_among_the_problems() -> None:
    assert {*es.models.names(), ROUTED} == set(problems.names())
    assert all(Case(name, 2, True).problem().arrays()["x"].any() for name in problems.names())
    assert Case(ROUTED, 2).problem().arrays()["weight"].shape == (10, 1152, 8, 16)


# ------------------------------------------------------------------------------------------------------- what is wrong


def test_processes_that_fail_are_started_again() -> None:
    client = Client("tests.benchmarks.gpu_servers:Troubled", True, Deadline(300))
    try:
        assert client.ask("count")["calls"] == 1
        assert client.ask("refuse") == {"status": AVAILABLE, "reason": "tuned only on weekdays"}
        assert client.ask("no_such_method")["status"] == "failed"
        assert client.ask("count")["calls"] == 2
        died = client.ask("die")
        assert died["status"] == "failed" and died["reason"]
        assert client.ask("count")["calls"] == 1
        assert client.ask("hang", limit=0.2)["status"] == "too slow"
    finally:
        client.close()
    missing = Client("tests.benchmarks.gpu_servers:Missing", True, Deadline(300))
    assert missing.ask("count")["status"] == AVAILABLE
    missing.close()


def test_a_wrong_kernel_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CardBench(backend())
    others = {**autoconfig.OTHERS, bench.backend.name: bench.backend.patterns}
    monkeypatch.setattr(autoconfig, "OTHERS", others)
    assert kernels.check(bench, "softmax", 1)["status"] == "ok"
    right = kernels.reference
    monkeypatch.setattr(kernels, "reference", lambda *a: {n: x * np.float32(1 + 1e-3) for n, x in right(*a).items()})
    found = kernels.check(bench, "softmax", 1)
    assert found["status"] == "wrong" and "buffer" in found["reason"] and found["errors"]["ieee"] > 5e-4


class Library:
    """A library whose steps are given: the factor on the change of a weight, and the seconds of a step."""

    def __init__(self, factor: float, seconds: float):
        self.factor, self.seconds, self.times = factor, seconds, 0

    def ask(self, name: str, *arguments: Any, limit: float = 0.0) -> dict[str, Any]:
        if name in ("open", "reference"):
            case: Case = arguments[0]
            path = arguments[3 if name == "open" else 1]
            start = case.problem().arrays()["weight"]
            change = np.linspace(-1, 1, start.size).reshape(start.shape) * (self.factor if name == "open" else 1)
            np.savez(path, weight=(start + change).astype(np.float32 if name == "open" else np.float64))
            return {"status": "ok", "losses": [1.0, 0.9], "first_seconds": 1.0}
        self.times += name == "clock"
        return {"status": "ok", "seconds": self.seconds}


def test_steps_are_verified_before_they_are_timed() -> None:
    clients: Any = {
        "einsmith": Library(1.0, 1e-3), "torch": Library(1.0, 3e-3), "torch-graph": Library(1.0, 2e-3),
        "compile": Library(1.5, 1e-4), "jax": Library(float("nan"), 1e-4),
    }  # fmt: skip
    row = Comparison(clients, 10.0, False, lambda text: None).compare(Case(ROUTED, 3, True), "fp32", compare.PEERS)
    assert {p: r["status"] for p, r in row["peers"].items()} == {
        "einsmith": "ok", "torch": "ok", "torch-graph": "ok", "compile": "wrong", "jax": "wrong",
    }  # fmt: skip
    assert clients["jax"].times == clients["compile"].times == 0
    assert row["best_peer"] == "torch-graph" and row["times_as_fast"] == pytest.approx(2)
    assert len(row["peers"]["torch"]["rounds"]) == compare.ROUNDS and row["peers"]["torch"]["wall"] == 3e-3


# ------------------------------------------------------------------------------------------------------------ packages


def wheel(folder: Path, name: str) -> None:
    """Write a wheel of an empty module."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as z:
        z.writestr(f"{name}.py", "")
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
def test_packages_come_from_a_folder_of_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pip", reason="pip installs the wheels")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "einsmith_probe")
    assert packages.provide(["numpy"]) == []
    assert packages.provide(["einsmith_probe"], wheels) == ["einsmith_probe"]
    assert not packages.missing(["einsmith_probe"])
    monkeypatch.setattr(packages, "_pip", lambda arguments, folder: "nothing fits")
    with pytest.raises(
        packages.MissingError, match="(?s)einsmith_other; .*nothing fits.*pip download .* einsmith_other"
    ):
        packages.provide(["einsmith_probe", "einsmith_other"], wheels)
    with pytest.raises(packages.MissingError, match="is no folder"):
        packages.provide(["einsmith_other"], tmp_path / "elsewhere")


# ---------------------------------------------------------------------------------------------------------------- page


def sample() -> Record:
    """A file as a real run leaves it, with numbers of no machine."""
    out = Record(Path("/nowhere/sample.json"))
    out.about = {"card": "Card X", "fake": False, "runs": [{"date": "2000-01-01", "command": "run it", "versions": {}}]}
    rng = np.random.default_rng(0)
    rows: dict[str, Any] = {}
    for p, precision in enumerate(problems.PRECISIONS):
        for m, model in enumerate(problems.names()):
            for batch in problems.BATCHES:
                ratio = float(np.exp(0.3 * rng.standard_normal() + 0.1 * m - 0.6 + 0.2 * p))
                peers = {"einsmith": {"status": "ok", "median": 1e-3, "wall": 2e-3}}
                peers["torch"] = {"status": "ok", "median": ratio * 1e-3}
                peers["compile"] = {"status": "too slow", "reason": "it did not end within 60 s"}
                row = {"status": "ok", "peers": peers, "best_peer": "torch", "times_as_fast": ratio}
                rows[f"{model}-b{batch} {precision}"] = row
    out.parts = {"facts": {"card": {"status": "ok", "card": "Card X [new]"}}, "models": rows}
    return out


def test_the_page_and_the_plot_of_a_sample(tmp_path: Path) -> None:
    made = sample()
    text = report.write_page(made, True)
    assert "Machine: Card X; 2000-01-01" in text and "run it    # 2000-01-01" in text and "Card X [new]" in text
    assert "| resnet18-b16 tf32 | 1 (2) | " in text and "compile too slow: it did not end within 60 s" in text
    found = report.ratios(made)
    assert list(found) == list(problems.PRECISIONS) and len(found["bf16"]["lstm-lm"]) == 3
    picture = report.draw(made, tmp_path / "ratios.png")
    assert picture is not None and picture.stat().st_size > 20_000
    made.parts["models"] = {}
    assert report.draw(made, tmp_path / "none.png") is None
