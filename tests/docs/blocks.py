"""Find the Python programs of documents: their fenced blocks, which run in order in one namespace."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[int, str, str | None]]:
    """Return the Python blocks of a document: the number of the first line, the code, and the output that a following
    block of `text` shows, or None."""
    return [(text.count("\n", 0, m.start(1)) + 1, m[1], m[2]) for m in BLOCK.finditer(text)]


def run(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the blocks of a page, by its path from the root; return the names that they define.

    A fault's traceback has the page's line. Raises AssertionError where a page shows another output than is printed.
    """
    for line, block, shown in blocks((ROOT / page).read_text()):
        code = compile("\n" * (line - 1) + block, page, "exec")
        if shown is None:
            exec(code, names)
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        assert is_shown(printed.getvalue(), shown), f"{page}, line {line}, prints\n{printed.getvalue()}"
    return names


def is_shown(printed: str, shown: str) -> bool:
    """Return whether a page shows what is printed, but for spaces at the ends of lines; `...` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in _stripped(shown).split("..."))
    return re.fullmatch(pattern, _stripped(printed), re.DOTALL) is not None


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
