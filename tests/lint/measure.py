"""Measure a package by syntax: code lines of its parts; long files, functions and classes; names that say nothing."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

EMPTY_WORDS = frozenset({"found", "given", "made", "told"})
"""Participles that do not say what a name holds, alone or as a word of a longer name."""

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def count_code_lines(text: str, tree: ast.AST) -> int:
    """Count the lines that are neither blank, comment, import nor docstring."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, (ast.Import, ast.ImportFrom)):
            skipped.update(range(node.lineno, node.end_lineno + 1))
    return sum(
        1
        for number, line in enumerate(text.splitlines(), 1)
        if number not in skipped and line.strip() and not line.strip().startswith("#")
    )


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield each function and class with its qualified name, such as `Reader.load`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (*Function, ast.ClassDef)):
            yield prefix + node.name, node
            yield from definitions(node, f"{prefix}{node.name}.")
        else:
            yield from definitions(node, prefix)


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each variable, attribute, parameter, function and class where it is defined or assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (*Function, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.lineno, node.name


def is_empty_name(name: str) -> bool:
    """Return whether one of a name's words is in `EMPTY_WORDS`; words are parted by underscores or capital letters."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
    return not EMPTY_WORDS.isdisjoint(words)


def empty_names(root: Path) -> Iterator[tuple[str, int, str]]:
    """Yield (file below `root`, line, name) of each definition or assignment of a name that says nothing."""
    for path in sorted(root.rglob("*.py")):
        for line, name in bound_names(ast.parse(path.read_text())):
            if is_empty_name(name):
                yield path.relative_to(root).as_posix(), line, name


def part_of(file: str) -> str:
    """Return the package below the root to which a file belongs, or "(top)"."""
    return file.split("/")[0] if "/" in file else "(top)"


def measure(root: Path) -> dict[str, dict[str, int]]:
    """Return (table, entry) -> number of everything in a package that has a ceiling.

    The tables are those of `budget.TABLES`. Entries are packages and files below `root`, functions and classes as
    `file qualified.name`.
    """
    packages: Counter[str] = Counter()
    sizes: dict[str, dict[str, int]] = {"files": {}, "functions": {}, "classes": {}}
    for path in sorted(root.rglob("*.py")):
        text, file = path.read_text(), path.relative_to(root).as_posix()
        tree = ast.parse(text)
        packages[part_of(file)] += count_code_lines(text, tree)
        sizes["files"][file] = len(text.splitlines())
        for name, node in definitions(tree):
            if isinstance(node, ast.ClassDef):
                methods = {n.name for n in node.body if isinstance(n, Function)}
                sizes["classes"][f"{file} {name}"] = len(methods)
            else:
                # An overload or a property's setter has the name of what it belongs to.
                length = node.end_lineno - node.lineno + 1
                sizes["functions"][f"{file} {name}"] = max(length, sizes["functions"].get(f"{file} {name}", 0))
    names = Counter(part_of(file) for file, _, _ in empty_names(root))
    return {"total": {"einsmith": packages.total()}, "packages": dict(packages), **sizes, "names": dict(names)}
