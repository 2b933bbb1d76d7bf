"""The programs of docs/segments.md run, and give what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "segments.md"


def test_the_page_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    names: dict = {}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    row, col, v, X, Z = (names[k] for k in ("row", "col", "v", "X", "Z"))
    dense = np.zeros((3, 4))
    np.add.at(dense, (np.repeat(np.arange(3), np.diff(row)), col), v)
    y = dense @ X
    np.testing.assert_allclose(names["y"], y)
    np.testing.assert_allclose(names["dX"], dense.T @ (2 * y))
    np.testing.assert_allclose(names["dv"], (2 * y @ X.T)[np.repeat(np.arange(3), np.diff(row)), col])
    np.testing.assert_allclose(names["m"], [Z[:2].mean(0), [0, 0], Z[2:].mean(0)])
    np.testing.assert_array_equal(names["top"], [Z[1], [-np.inf, -np.inf], Z[4]])
    np.testing.assert_allclose(names["w"], [Z[:3, 0].sum(), Z[3:, 0].sum()])
