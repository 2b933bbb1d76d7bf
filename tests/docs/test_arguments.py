"""The programs of docs/arguments.md run, and hold what they assert."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "arguments.md"


def test_the_page_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks and all("assert" in block for block in blocks)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
