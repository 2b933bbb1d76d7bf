"""Planted faults: each can be planted, the programs that search for them are right, and some are found at once."""

from __future__ import annotations

import ast

import pytest

from tests.fuzz import checked
from tests.fuzz.planted import PACKAGE, plant, search
from tests.fuzz.plants import PLANTS, Plant

KINDS = (
    "emitter",
    "pattern",
    "pass",
    "adjoint",
    "simplifier",
    "runtime",
    "language",
    "optimizer",
    "frontend",
    "process",
    "files",
    "number",
    "size",
)


def test_faults_are_of_every_kind() -> None:
    assert len({p.name for p in PLANTS}) == len(PLANTS) >= 24
    assert {p.kind for p in PLANTS} == set(KINDS)


@pytest.mark.parametrize("p", PLANTS, ids=[p.name for p in PLANTS])
def test_the_line_is_there_once(p: Plant) -> None:
    lines = (PACKAGE / p.file).read_text().splitlines()
    found = [n for n, line in enumerate(lines) if line.strip() == p.before]
    assert len(found) == 1, f"{p.file} has {len(found)} lines {p.before!r}; say another in tests/fuzz/plants.py"
    lines[found[0]] = lines[found[0]].replace(p.before, p.after)
    if p.file.endswith(".py"):
        ast.parse("\n".join(lines))
    assert p.before != p.after


def test_missing_lines_are_reported(tmp_path) -> None:
    with pytest.raises(ValueError, match="0 lines"):
        plant(Plant("none", "emitter", "base/dtypes.py", "no such line", "another", ""), tmp_path)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", [*checked.FORMULAS, *checked.WANTED, "embedding", "second-order recurrence"])
def test_programs_find_nothing_in_the_package(name: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv("EINSMITH_CHECK", "0")
    assert checked.main(["--only", name]) == 0, capsys.readouterr().out


FOUND_AT_ONCE = [
    ("argmax-tie", "check"),
    pytest.param("tail-mask", "fuzzer", marks=pytest.mark.slow),
    pytest.param("strided-overread", "check", marks=pytest.mark.slow),
    pytest.param("fork-order", "tests", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name,way", FOUND_AT_ONCE)
def test_faults_are_found(name: str, way: str) -> None:
    (p,) = [p for p in PLANTS if p.name == name]
    found = search(p, way, 120)
    assert found.found and found.case and found.message
