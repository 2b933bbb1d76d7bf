"""The syntax trees of the package, parsed once a process, for tests of its sources."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "einsmith"


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each file by its path below `ROOT`."""
    return {p.relative_to(ROOT).as_posix(): ast.parse(p.read_text(), str(p)) for p in sorted(ROOT.rglob("*.py"))}
