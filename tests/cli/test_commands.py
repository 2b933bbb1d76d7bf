"""Exit statuses and the small commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from einsmith.base.errors import EinsmithError
from einsmith.cli import main
from einsmith.gpu.cuda import libcuda
from tests.runtime.cuda.fake_libcuda import Card, FakeLibCuda


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["machine"]["cores"] >= 1 and "lenet5" in facts["models"]
    assert "EINSMITH_THREADS" in facts["environment variables"]


def test_info_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["info"]) == 0
    assert "vector_bytes" in capsys.readouterr().out


def test_info_shows_cards_or_why_there_are_none(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    cards = FakeLibCuda(Card("New", memory=141 << 30), Card("Old", (7, 5)))
    for load, wanted in (
        (missing, ["none", "no NVIDIA driver is installed: libcuda.so.1: cannot open"]),
        (lambda: FakeLibCuda(version=11040), ["none", "the NVIDIA driver supports CUDA 11.4, but"]),
        (
            lambda: cards,
            ["cuda:0", "New, compute capability 9.0, 132 multiprocessors, 151.4 GB, driver of CUDA"],
        ),
        (lambda: cards, ["cuda:1", "; cannot be used: compute capability 7.5 is below 8.0\n"]),
    ):
        monkeypatch.setattr(libcuda, "_load", load)
        monkeypatch.setattr(libcuda, "_loaded", [])
        assert main.run(["info"]) == 0
        section = capsys.readouterr().out.partition("graphics cards\n")[2].partition("\ncoefficients")[0] + "\n"
        assert all(text in section for text in wanted), section
    assert not cards.named("cuDevicePrimaryCtxRetain") and not cards.faults


def test_cache_shows_and_clears(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    objects, data = tmp_path / "objects", tmp_path / "data" / "mnist"
    objects.mkdir(mode=0o700)
    data.mkdir(parents=True)
    (objects / "entry").write_bytes(b"x" * 1000)
    (data / "file").write_bytes(b"y" * 10)
    assert main.run(["cache", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["code"] == {"entries": 1, "bytes": 1000} and shown["data"] == {"entries": 1, "bytes": 10}
    assert main.run(["cache", "--clear"]) == 0
    assert "removed 1" in capsys.readouterr().out
    assert not list(objects.iterdir()) and (data / "file").exists()
    assert main.run(["cache"]) == 0
    assert "0 entries" in capsys.readouterr().out


def test_cache_that_is_not_there(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "none"))
    assert main.run(["cache", "--clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == {"entries": 0, "bytes": 0}


@pytest.mark.parametrize("arguments", [["fly"], ["info", "--color"], ["train"], ["cache", "x"]])
def test_wrong_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 2
    assert "Usage" in capsys.readouterr().err


def test_a_bad_environment_variable_is_wrong_use(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EINSMITH_THREADS", "many")
    assert main.run(["info"]) == 2
    assert "EINSMITH_THREADS" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "text"), [(EinsmithError("that is it"), "that is it"), (OSError("no"), "a fault")])
def test_errors_are_one_message(error: Exception, text: str, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    from einsmith.cli import info

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(info, "info", fail)
    monkeypatch.delenv("EINSMITH_DEBUG", raising=False)
    assert main.run(["info"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and text in err and "Traceback" not in err
    monkeypatch.setenv("EINSMITH_DEBUG", "1")
    assert main.run(["info"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_program_itself() -> None:
    done = subprocess.run([sys.executable, "-m", "einsmith.cli.main", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "train" in done.stdout
    done = subprocess.run([sys.executable, "-m", "einsmith.cli.main", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
