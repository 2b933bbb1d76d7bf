"""What code and documents refer to is there: documents, files and modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import einsmith
from docs import hooks

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "einsmith"
DOCUMENT = re.compile(r"[\w./-]+\.md\b|\b[A-Z]{5,} (?:section )?[A-Z0-9]\b(?=[,.)])")
FILE = re.compile(r"(?<![\w/.-])(?:einsmith|tests|docs|benchmarks|examples)/[\w./-]*\w")
PACKAGES = "|".join(sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py")))
DOTTED = re.compile(rf"`((?:einsmith|{PACKAGES})\.[a-z_]+(?:\.[A-Za-z_]+)+)`")

PROGRAMS = {page.rpartition("/")[2] for page in hooks.programs()}
"""Pages that are made of programs."""


def sources() -> list[Path]:
    return sorted(p for folder in ("einsmith", "benchmarks", "examples") for p in (ROOT / folder).rglob("*.py"))


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def prose(path: Path) -> Iterator[str]:
    """The comments and texts of a Python file; the whole of another one."""
    text = path.read_text()
    if path.suffix != ".py":
        yield text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    yield from re.findall(r"#(.*)", text)


def missing_documents(text: str, folder: Path = ROOT) -> list[str]:
    """The documents named that are neither in this folder nor among the others."""
    named = (m for m in DOCUMENT.findall(text) if m.rpartition("/")[2] not in PROGRAMS)
    return [m for m in named if not any((at / m).exists() for at in (ROOT, ROOT / "docs", folder))]


def missing_files(text: str) -> list[str]:
    return [m for m in FILE.findall(text) if not (ROOT / m.rstrip("/")).exists()]


def missing_modules(text: str) -> list[str]:
    """Dotted names in backticks, of three parts or more, that begin with a package of Einsmith and lead to nothing."""
    out = []
    for found in DOTTED.findall(text):
        at: Any = einsmith
        for part in found.removeprefix("einsmith.").split("."):
            if hasattr(at, "__path__") and find_spec(f"{at.__name__}.{part}"):
                at = import_module(f"{at.__name__}.{part}")
            else:
                at = getattr(at, part, None)
        if at is None:
            out.append(found)
    return out


def missing(path: Path) -> set[str]:
    found: set[str] = set()
    for text in prose(path):
        found.update(missing_documents(text, path.parent), missing_modules(text))
        if path.suffix == ".md":
            found.update(missing_files(text))
    return found


def test_references_lead_somewhere() -> None:
    wrong = {str(path.relative_to(ROOT)): sorted(m) for path in (*sources(), *documents()) if (m := missing(path))}
    assert not wrong


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the rule is in ALGORITHMS B.", ["ALGORITHMS B"]),
        ("(see docs/nowhere.md)", ["docs/nowhere.md"]),
        ("(see docs/patterns.md)", []),
    ],
)
def test_a_missing_document_is_seen(text: str, found: list[str]) -> None:
    assert missing_documents(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`decisions.explain` and `np.float32`", []),
        ("`kernels.choose.nothing`", ["kernels.choose.nothing"]),
        ("`kernels.kernel.Launch`", ["kernels.kernel.Launch"]),
        ("`einsmith.ir.evaluator`", []),
    ],
)
def test_a_missing_module_is_seen(text: str, found: list[str]) -> None:
    assert missing_modules(text) == found
