"""docs/from_scratch.py runs, is as short as it says, stands alone, and sees a gradient that is wrong."""

from __future__ import annotations

import re
import runpy

import numpy as np
import pytest
from numpy.random import default_rng

from tests.docs.blocks import ROOT

PATH = ROOT / "docs" / "from_scratch.py"


@pytest.fixture(scope="module")
def essay() -> dict:
    return runpy.run_path(str(PATH))


def test_it_is_short_and_stands_alone() -> None:
    text = PATH.read_text()
    assert len(text.splitlines()) <= 300
    assert not re.search(r"^\s*(?:import|from) einsmith", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("Y[i] = tanh(A[i]*B[i]) + A[i]/B[i]", {"A": (5,), "B": (5,)}),
        ("Y[i] = sum[j](A[i,j]*A[j,i])", {"A": (4, 4)}),
        ("Y[i] = A[i,i] - A[0,i]", {"A": (3, 3)}),
        ("Y[i] = A[2*i]*A[2*i + 1]", {"A": (10,)}),
        ("Y[p,k] = sum[r](where(0 <= p + r - 1 < 6, X[p + r - 1]*W[r,k], 0))", {"X": (6,), "W": (1, 2)}),
        ("H[i] = log(A[i]*A[i] + 1)\nY[i] = sum[j](H[j]*A[i]) + H[i]", {"A": (4,)}),
    ],
)
def test_gradients_of_other_programs(essay: dict, text: str, shapes: dict) -> None:
    """The essay's own check, against finite differences; divisors are away from zero."""
    rng = default_rng(0)
    essay["check"](text, **{n: 1 + rng.random(s) for n, s in shapes.items()})


def test_a_gradient_is_a_program_again(essay: dict) -> None:
    text = essay["gradient"]("Y[p] = sum[r](X[2*p + r]*W[r])", "XW", {"X": (9,), "W": (3,)})
    assert essay["show"](essay["parse"](text)) == text
    (twice,) = (line for line in text.splitlines() if line.startswith("dX"))
    second = essay["gradient"](twice, ["W"], {"W": (3,), "dY": (4,), "dX": (9,)})
    w, c, v = (default_rng(n).random(s) for n, s in enumerate((3, 4, 9)))
    arrays = {"W": w, "dY": c, "ddX": v}
    got = essay["build"](second, {n: a.shape for n, a in arrays.items()})(arrays)["dW"]
    np.testing.assert_allclose(got, [sum(c[p] * v[2 * p + r] for p in range(4)) for r in range(3)])


def test_a_wrong_rule_is_seen(essay: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(essay["RULES"], "tanh", ("{C}*(1 - {E})",))
    with pytest.raises(AssertionError):
        essay["check"]("Y[i] = tanh(A[i])", A=np.array([0.5, -1.0]))
