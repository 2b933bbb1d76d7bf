"""One name for one thing: modules keep theirs where they are imported, and a class name means one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "einsmith"
SHORT = {"dt", "F"}
"""Names of `dtypes` and `functional` that every file knows."""
TWICE = {"Backend", "Library", "Prepared"}
"""Class names that may stand twice: exported libraries do without Einsmith; ONNX names the classes of a back end."""


def trees():
    return [(p.relative_to(ROOT).as_posix(), ast.parse(p.read_text())) for p in sorted(ROOT.rglob("*.py"))]


def test_modules_keep_their_names_where_they_are_imported() -> None:
    renamed = [
        f"{path}:{node.lineno}: {a.name} as {a.asname}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("einsmith")
        for a in node.names
        if a.asname and a.asname != a.name and not a.asname.startswith("_") and a.asname not in SHORT
    ]
    assert not renamed


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1 and name not in TWICE}
