"""EINSMITH_DUMP: the files of each program that is compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.base import files
from einsmith.base.errors import KnobError
from einsmith.cli import main
from einsmith.passes.pipeline import PASSES

PLAN = ["graph.txt", "plan.txt", "arena.txt", "program.txt"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EINSMITH_DUMP", str(tmp_path / "a" / "b"))
    return tmp_path / "a" / "b"


def files_of(p: Path) -> list[str]:
    return sorted(f.name for f in p.iterdir() if f.is_file())


def names() -> list[str]:
    return [f"{n:02d}-{p.name.replace(' ', '-')}.txt" for n, p in enumerate(PASSES, start=1)]


def test_every_pass_of_every_program(folder: Path) -> None:
    x = np.ones((5, 7), np.float32)
    es.op("Y[i] = sum[k](X[i,k])*0.25 + 3")(x)
    es.op("Y[i] = sum[k](X[i,k])*0.5 + 3")(x)
    (folder / "program-0003").mkdir()  # as if somebody else had just made it
    es.op("Y[i] = sum[k](X[i,k])*0.75 + 3")(x)
    assert [p.name for p in sorted(folder.iterdir())] == [f"program-000{n}" for n in (0, 1, 3, 4)]
    for n, factor in ((0, "0.25"), (1, "0.5"), (4, "0.75")):
        program = folder / f"program-000{n}"
        assert files_of(program) == sorted(["00-given.txt", *names(), *PLAN])
        graphs = {p.stem: p.read_text() for p in program.iterdir()}
        assert all(f"*{factor}" in text for stem, text in graphs.items() if stem not in ("arena", "graph", "program"))
        (inlined,) = (text for stem, text in graphs.items() if stem.endswith("-inline"))
        assert "sum[r0]" in graphs["00-given"] and inlined.startswith("# after inline: ")
        body = graphs["00-given"]
        for name in names():
            head, _, after = graphs[name.removesuffix(".txt")].partition("\n")
            assert head.endswith(", no change") == (after == body), name
            body = after
        assert graphs["plan"].startswith("call 0: kernel over [5] of in0: f32[5, 7]")
        assert graphs["arena"].startswith("arena of ") and graphs["program"].startswith("step 0: kernel 0")


def test_the_steps_of_loops_have_folders_of_their_own(folder: Path) -> None:
    es.op("h[t,i] = where(t > 0, h[t-1,i] * x[t,i], x[t,i])")(np.ones((7, 3), np.float32))
    program = folder / "program-0000"
    assert files_of(program) == sorted(["00-given.txt", *names(), *PLAN])
    steps = sorted(p for p in program.iterdir() if p.is_dir())
    at = [p.name for p in PASSES].index("lower loops") + 1
    assert steps and all(
        p.name.startswith(f"{at}-lower-loops-steps-") and files_of(p) == sorted(names()) for p in steps
    )


def test_nothing_is_written_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EINSMITH_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    es.op("Y[i] = X[i] + 3.25")(np.ones(5, np.float32))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_named(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    monkeypatch.setenv("EINSMITH_DUMP", str(tmp_path / where))
    with pytest.raises(KnobError, match=f"EINSMITH_DUMP is '{tmp_path / where}', where .* cannot be written: .* unset"):
        es.op("Y[i] = X[i] + 3.75")(np.ones(5, np.float32))
    formula = tmp_path / "formula.txt"
    formula.write_text("Y[i] = X[i] + 4.75")
    assert main.run(["explain", str(formula), "--shape", "X=5"]) == 2
    assert str(tmp_path / where) in capsys.readouterr().err and (tmp_path / "file").read_text() == "kept"


def test_a_folder_that_goes_away_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = files.write

    def full(path: Path, text: str) -> None:
        if path.parent.parent == folder and path.name.endswith("-order.txt"):
            raise OSError(28, "No space left on device", str(path))
        whole(path, text)

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(KnobError, match="-order.txt cannot be written: No space left on device"):
        es.op("Y[i] = X[i] + 5.75")(np.ones(5, np.float32))
