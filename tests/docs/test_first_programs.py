"""The programs that README.md and docs/recurrences.md begin with run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "page,blocks,shape", [("README.md", 2, (16, 32, 6, 6, 4, 4)), ("docs/recurrences.md", 1, (35, 20, 16))]
)
def test_a_page_begins_with_a_program_that_runs(page, blocks, shape, capsys) -> None:
    text = (ROOT / page).read_text()
    found = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[:blocks]
    names: dict = {}
    exec(compile("\n".join(found), page, "exec"), names)
    result = names["C" if "C" in names else "h"]
    assert result.shape == shape and np.isfinite(result).all()
    shown = re.sub(r"\s", "", text)
    sums = [line for line in capsys.readouterr().out.splitlines() if "sum[" in line]
    assert len(sums) == (4 if page == "README.md" else 0)
    assert all(re.sub(r"\s", "", line) in shown for line in sums)
