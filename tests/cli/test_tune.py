"""`einsmith tune`: what tuning has found, shown, forgotten, and given to other machines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from einsmith.cli import main
from einsmith.codegen.cache import native
from einsmith.cost.facts import Target
from einsmith.cost.overheads import Overheads
from einsmith.kernels import autoconfig
from einsmith.tuning.calibration import calibrate, fitted
from einsmith.tuning.calibration import store as calibration
from einsmith.tuning.calibration.fitted import OverheadFit
from einsmith.tuning.kernels import database, measurements, records, refit
from einsmith.tuning.kernels.genetic import Candidate
from einsmith.tuning.kernels.records import Record
from tests.kernels.samples import product

FORGOTTEN = {"forgotten": 0, "measurements": {"kernels": 0, "candidates": 0}}
"""What --forget prints where there is nothing."""
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
    assert lines(capsys, "--forget", "all") == [FORGOTTEN | {"forgotten": 2}]
    assert lines(capsys, "--import", file) == [{"imported": 2}]
    assert {(row["used"], row["origin"]) for row in lines(capsys, "--list")} == {(False, "imported")}
    assert main.run(["tune", "--list"]) == 0 and "a starting point only: imported" in capsys.readouterr().out
    assert main.run(["tune", "--import", __file__]) == 1
    assert "not a valid file" in capsys.readouterr().err and len(records.list_records()) == 2


def test_forgetting(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "--forget", "all") == [FORGOTTEN]
    put()
    assert main.run(["tune", "--forget", KERNEL.digest.hex()[:6].upper()]) == 0
    assert "1 record and 0 measurements of 0 kernels forgotten" in capsys.readouterr().out
    assert [x.record.text for x in records.list_records()] == ["reduction"]
    assert main.run(["tune", "--forget", KERNEL.digest.hex()[:6]]) == 1
    assert "nothing is recorded for a kernel" in capsys.readouterr().err
    for wrong in ("12", "", "contraction"):
        assert main.run(["tune", "--forget", wrong]) == 2
        assert "does not name a kernel" in capsys.readouterr().err


def test_measurements_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of kernels too for which nothing faster was found."""
    target = native.host_target()
    alternatives = autoconfig.choose(KERNEL, target).alternatives[:5]
    measurements.record(KERNEL, target, {Candidate(name, c): 1e-6 for name, c, _ in alternatives})
    assert lines(capsys, "--list") == [{"measurements": {"kernels": 1, "candidates": 5}}]
    assert main.run(["tune", "--list"]) == 0
    assert "5 measurements of 1 kernel kept" in capsys.readouterr().out
    digits = KERNEL.digest.hex()[:8]
    assert main.run(["tune", "--forget", digits]) == 0
    assert "0 records and 5 measurements of 1 kernel forgotten" in capsys.readouterr().out
    assert main.run(["tune", "--forget", digits]) == 1 and lines(capsys, "--list") == []


def test_one_thing_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ([], ["--list", "--forget", "all"], ["--json"]):
        assert main.run(["tune", *wrong]) == 2
        assert "exactly one of --list" in capsys.readouterr().err


def test_where_nothing_can_be_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch) -> None:
    put()
    file = str(tmp_path / "tuned.json")
    assert main.run(["tune", "--export", file]) == 0
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "file"))
    assert main.run(["tune", "--import", file]) == 1
    assert "cannot be used" in capsys.readouterr().err


# -- the fit of the cost model


FIT = OverheadFit(Overheads(tile=60.0), 24, 400, (0.2, 0.1), (0.08, 0.04), 1000.0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """The static machine, with these figures as its calibration."""
    static = native.host_target()
    calibration.save(static, [], overwrite=True)
    monkeypatch.setenv("EINSMITH_CALIBRATE", "1")
    calibrate.forget()
    yield calibrate.target()
    calibrate.forget()


@pytest.mark.parametrize("case", ["busy", "off", "failed"])
def test_a_fit_that_nobody_would_use_is_refused(capsys, machine: Target, monkeypatch, case: str) -> None:
    """Where other processes do not find the figures that the fit is for."""
    fitted.save(machine, FIT)
    if case == "off":
        monkeypatch.setenv("EINSMITH_CALIBRATE", "0")
    elif case == "busy":
        monkeypatch.setattr(calibrate, "target", lambda: replace(machine, load_seconds=2 * machine.load_seconds))
    else:
        calibration.path_of(machine).unlink()
    monkeypatch.setattr(refit, "fit", lambda *_: refit.Refit(FIT._replace(kernels=25), 0.03, True))
    assert main.run(["tune", "--fit"]) == 1
    err = capsys.readouterr().err
    assert ("unset EINSMITH_CALIBRATE" if case == "off" else "run `einsmith calibrate`") in " ".join(err.split())
    assert fitted.load(machine) == FIT


def test_too_few_kernels_are_no_fit(capsys: pytest.CaptureFixture[str], machine: Target) -> None:
    assert main.run(["tune", "--fit"]) == 1
    err = capsys.readouterr().err
    assert "measurements of 0 kernels of use for a fit" in err and "einsmith tune MODEL" in err
    kernel = product(130, 170, 190)
    alternatives = autoconfig.choose(kernel, machine).alternatives[:8]
    seconds = {Candidate(name, c): 1e-6 * (n + 1) for n, (name, c, _) in enumerate(alternatives)}
    measurements.record(kernel, machine, seconds)
    assert main.run(["tune", "--fit"]) == 1 and "of 1 kernel of use" in capsys.readouterr().err


@pytest.mark.parametrize("accepted", [True, False])
def test_a_fit_is_stored_if_it_is_accepted(capsys, machine: Target, monkeypatch, accepted: bool) -> None:
    monkeypatch.setattr(refit, "fit", lambda *_: refit.Refit(FIT, 0.03, accepted))
    assert main.run(["tune", "--fit"]) == 0
    out = capsys.readouterr().out
    assert "400 measurements of 24 kernels" in out and "8.0%     4.0%" in out
    assert ("tile x 3.00" in out) is accepted and ("stay as they are" in out) is not accepted
    assert fitted.load(machine) == (FIT if accepted else None)
    (found,) = lines(capsys, "--fit")
    assert found["accepted"] is accepted and found["factors"] == {"tile": 3.0} and found["kernels"] == 24


def test_a_fit_is_listed_and_forgotten(capsys: pytest.CaptureFixture[str], machine: Target, monkeypatch) -> None:
    assert main.run(["tune", "--forget", "fit"]) == 1 and "there is no fit" in capsys.readouterr().err
    fitted.save(machine, FIT)
    assert main.run(["tune", "--list"]) == 0
    assert "cost model fitted to 400 measurements of 24 kernels" in capsys.readouterr().out
    assert [row["fit"]["factors"] for row in lines(capsys, "--list")] == [{"tile": 3.0}]
    assert main.run(["info"]) == 0 and "fitted: tile x 3.00" in capsys.readouterr().out
    monkeypatch.setenv("EINSMITH_TUNED", "0")
    assert main.run(["info"]) == 0 and "not fitted" in capsys.readouterr().out
    assert lines(capsys, "--forget", "fit") == [{"forgotten": 1}] and fitted.load(machine) is None
    fitted.save(machine, FIT)
    assert lines(capsys, "--forget", "all") == [FORGOTTEN] and fitted.load(machine) is None


@pytest.mark.parametrize("option", [["--graph"], ["--seconds", "5"], ["--batch", "4"], ["--picture", "x.png"]])
def test_options_of_a_search_are_none_of_the_store(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert main.run(["tune", "--list", *option]) == 2
    assert f"{option[0]}: these options belong to a search; name a MODEL or FILE" in capsys.readouterr().err


def test_forgetting_nothing_is_no_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["tune", "mlp3", "--forget", "", "--seconds", "1"]) == 2
    assert "leave out MODEL or FILE" in capsys.readouterr().err
