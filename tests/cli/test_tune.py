"""`einsmith tune`: what tuning has found, shown, forgotten, and given to other machines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from einsmith.cli import main
from einsmith.codegen.cache import native
from einsmith.tuning.kernels import database, records
from einsmith.tuning.kernels.records import Record
from tests.kernels.samples import product

KERNEL, OTHER = product(13, 37, 19), product(13, 37, 20)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(database, "_unusable", {})


def put() -> None:
    for kernel, text in ((KERNEL, "contraction mr=3"), (OTHER, "reduction")):
        record = Record(kernel.digest.hex(), text, 1e-3, 0.013, 2e-3, time.time(), 4, "sum over 13x37")
        records.record_choice(kernel, native.host_target(), record)


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict]:
    assert main.run(["tune", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["tune", "--list"]) == 0
    assert "nothing is recorded" in capsys.readouterr().out and lines(capsys, "--list") == []
    put()
    found = {row["kernel"]: row for row in lines(capsys, "--list")}
    assert found[KERNEL.digest.hex()]["text"] == "contraction mr=3" and found[KERNEL.digest.hex()]["used"]
    assert main.run(["tune", "--list"]) == 0
    out = capsys.readouterr().out
    assert KERNEL.digest.hex()[:8] in out and "2.00 times as fast as the model's choice, +-1.3%, confirmed 4" in out
    assert "contraction mr=3" in out and "sum over 13x37" in out and "guess" not in out


def test_a_file_for_another_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    put()
    file = str(tmp_path / "tuned.json")
    assert lines(capsys, "--export", file) == [{"exported": 2, "file": file}]
    assert lines(capsys, "--forget", "all") == [{"forgotten": 2}]
    assert lines(capsys, "--import", file) == [{"imported": 2}]
    assert {(row["used"], row["origin"]) for row in lines(capsys, "--list")} == {(False, "imported")}
    assert main.run(["tune", "--list"]) == 0 and "a starting point only: imported" in capsys.readouterr().out
    assert main.run(["tune", "--import", __file__]) == 1
    assert "not a valid file" in capsys.readouterr().err and len(records.list_records()) == 2


def test_forgetting(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "--forget", "all") == [{"forgotten": 0}]
    put()
    assert main.run(["tune", "--forget", KERNEL.digest.hex()[:6].upper()]) == 0
    assert "1 record forgotten" in capsys.readouterr().out
    assert [x.record.text for x in records.list_records()] == ["reduction"]
    assert main.run(["tune", "--forget", KERNEL.digest.hex()[:6]]) == 1
    assert "nothing is recorded for a kernel" in capsys.readouterr().err
    for wrong in ("12", "", "contraction"):
        assert main.run(["tune", "--forget", wrong]) == 2
        assert "does not name a kernel" in capsys.readouterr().err


def test_one_thing_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ([], ["--list", "--forget", "all"], ["--json"]):
        assert main.run(["tune", *wrong]) == 2
        assert "one of --list" in capsys.readouterr().err


def test_where_nothing_can_be_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch) -> None:
    put()
    file = str(tmp_path / "tuned.json")
    assert main.run(["tune", "--export", file]) == 0
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "file"))
    assert main.run(["tune", "--import", file]) == 1
    assert "cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--graph"], ["--seconds", "5"], ["--batch", "4"], ["--picture", "x.png"]])
def test_options_of_a_search_are_none_of_the_store(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert main.run(["tune", "--list", *option]) == 2
    assert f"{option[0]}: these options belong to a search; name a MODEL or FILE" in capsys.readouterr().err


def test_forgetting_nothing_is_no_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["tune", "mlp3", "--forget", "", "--seconds", "1"]) == 2
    assert "leave out MODEL or FILE" in capsys.readouterr().err
