"""The first program of a page of `docs/` runs as it stands there, and gives what the page says."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsmith as es

DOCS = Path(__file__).parents[2] / "docs"


def first_program(page: str) -> dict[str, Any]:
    """Run the first Python block of a page; return its names."""
    block = re.search(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert block, page
    names: dict[str, Any] = {}
    exec(compile(block[1], page, "exec"), names)
    return names


def test_semantics(capsys) -> None:
    names = first_program("semantics.md")
    for run in (names["f"], es.interpret(names["f"])):
        np.testing.assert_array_equal(run(names["x"]), [0, 0, np.nan])
    assert capsys.readouterr().out.count("nan") == 2


def test_tuning() -> None:
    assert first_program("tuning.md")["step"].tune == 60


def test_sklearn(capsys) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    names = first_program("sklearn.md")
    assert names["scores"].mean() > 0.9 and len(capsys.readouterr().out) > 100


@pytest.mark.slow
def test_trainers(torch) -> None:
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    assert first_program("trainers.md")["trainer"].state.global_step == 4


def test_models() -> None:
    assert first_program("models.md")["model"].fc.weight.shape[0] == 10


def test_imported_networks(torch) -> None:
    names = first_program("aten.md")
    assert math.isfinite(names["loss"]) and names["step"].steps == 1
    state = names["model"].state_dict()
    for name, tensor in names["module"].state_dict().items():  # the trained weights came back
        np.testing.assert_array_equal(tensor.numpy(), state[name])


def test_torch_compile(torch) -> None:
    import einsmith.frontends.torch  # noqa: F401  # registers the backend in a checkout

    names = first_program("pytorch.md")
    assert math.isfinite(names["loss"].item())
    assert all(p.grad is not None for p in names["model"].parameters())
