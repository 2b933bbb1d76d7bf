from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from einsmith.cli.curve import draw, running_mean  # noqa: E402


def test_running_mean() -> None:
    assert np.allclose(running_mean([2.0, 4.0, 6.0]), [2, 3, 4])
    assert np.allclose(running_mean([5.0] * 50), 5)
    long = running_mean([0.0] * 100 + [1.0])
    assert long[-1] == pytest.approx(0.05)


@pytest.mark.parametrize("n", [0, 1, 17])
def test_draw(n: int, tmp_path: Path) -> None:
    losses = list(np.linspace(2.3, 0.1, n))
    history = [{"epoch": 1, "test_loss": 0.2, "accuracy": 0.9}] if n else []
    draw(losses, history, tmp_path / "loss.png", "title")
    assert [p.name for p in tmp_path.iterdir()] == ["loss.png"]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
