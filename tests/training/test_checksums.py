"""Every byte of a save counts: a save of which one has changed is refused, and never gives other values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.training import checkpoint, manifest
from einsmith.training.manifest import FILES, META, PLAN, STATE, WEIGHTS


def tiny() -> es.nn.Module:
    return es.nn.Linear(1, 1)


def load(folder: Path) -> es.TrainStep:
    return es.load(folder, model=tiny())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A save of a tiny step with every kind of file, one of them of the program that saves."""
    step = es.TrainStep(tiny(), es.functional.mse_loss, es.optim.SGD(lr=0.01, momentum=0.9))
    step(np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))
    checkpoint.write(step, tmp_path / "run", {"more.json": lambda path: path.write_text('{"epochs": 3}') and None})
    return tmp_path / "run"


def harm(saved: Path, rng: np.random.Generator, count: int | None) -> None:
    """Change single bits of every file, at all bytes or as many of them, and every character of what is text."""
    assert load(saved).steps == 1
    for path in sorted(saved.iterdir()):
        whole = path.read_bytes()
        places = np.arange(len(whole)) if count is None else rng.choice(len(whole), min(count, len(whole)), False)
        for at in places.tolist():
            others = [whole[at] ^ (1 << int(rng.integers(8)))]
            if path.suffix != ".safetensors":
                others.append(int(rng.choice([c for c in b'0123456789abcdef",:{}[] \n' if c != whole[at]])))
            for other in others:
                path.write_bytes(whole[:at] + bytes([other]) + whole[at + 1 :])
                with pytest.raises(es.SaveError, match="damaged|changed|checksum|is not a saved step"):
                    load(saved)
                    pytest.fail(f"{path.name}, byte {at}: {whole[at]:#x} -> {other:#x}")
        for less in (whole[:-1], whole[1:], whole + b"\n", b""):
            path.write_bytes(less)
            with pytest.raises(es.SaveError):
                load(saved)
        path.unlink()
        with pytest.raises(es.SaveError, match=f"{path.name} is missing"):
            load(saved)
        path.write_bytes(whole)
    assert load(saved).steps == 1


def test_a_changed_byte_is_refused(saved: Path, rng: np.random.Generator) -> None:
    harm(saved, rng, 60)


@pytest.mark.slow
def test_every_changed_byte_is_refused(saved: Path, rng: np.random.Generator) -> None:
    harm(saved, rng, None)


def test_the_description_has_every_file_of_the_save(saved: Path) -> None:
    assert {p.name for p in saved.iterdir()} == {*FILES, "more.json"}
    assert set(manifest.read(saved)["files"]) == {WEIGHTS, STATE, PLAN, "more.json"}
    (saved / "notes.txt").write_text("a user's own")
    es.save(load(saved), saved)
    assert (saved / "notes.txt").exists() and load(saved).steps == 1
    (saved / "notes.txt").write_text("and free to change")
    assert load(saved).steps == 1


@pytest.mark.parametrize("name", ["../more.json", "a/b", "", ".", "/etc/hostname"])
def test_no_file_elsewhere_is_read(saved: Path, name: str) -> None:
    meta = json.loads((saved / META).read_text())
    meta["files"][name] = "0" * 64
    (saved / META).write_text(manifest.sign(meta))
    with pytest.raises(es.SaveError, match="'files'"):
        load(saved)


def test_a_save_without_a_checksum_of_its_description(saved: Path) -> None:
    """As version 5 wrote them: read with the checksums that there are, and said."""
    meta = json.loads((saved / META).read_text())
    files = {n: d for n, d in meta["files"].items() if n in (WEIGHTS, STATE)}
    old = {k: v for k, v in meta.items() if k != "checksum"} | {"version": 5, "files": files}
    (saved / META).write_text(json.dumps(old, indent=1) + "\n")
    with pytest.warns(UserWarning, match=r"step\.json of version 5 has no checksum.*es\.save"):
        step = load(saved)
    assert step.steps == 1
    (saved / META).write_text(json.dumps(old | {"version": 6}, indent=1) + "\n")
    with pytest.raises(es.SaveError, match="checksum"):
        load(saved)
