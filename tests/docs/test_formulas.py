"""The list of functions in docs/formulas.md, and the forms in which missing functions are written."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import einsmith as es
from einsmith.lang.parser import CASTS, FUNCTIONS, REDUCTIONS, RESERVED, UNWRITTEN, WRITTEN, WRITTEN_NUMBERS
from tests.docs import formulas


def test_the_page_lists_every_function() -> None:
    text = formulas.PATH.read_text()
    assert formulas.page(text) == text, "python -m tests.docs --update"
    assert set(formulas.MEANINGS) == {*FUNCTIONS, *REDUCTIONS} - set(CASTS)
    assert not {*WRITTEN, *UNWRITTEN, *WRITTEN_NUMBERS} & RESERVED


X = np.linspace(0.1, 2, 12).reshape(3, 4) * np.array([1.0, -1, 1, 1])
E = np.exp(X)
ROWS = {
    "softmax": E / E.sum(1, keepdims=True),
    "log_softmax": X - np.log(E.sum(1, keepdims=True)),
    "logsumexp": np.log(E.sum(1)),
    "norm": np.linalg.norm(X, axis=1),
    "var": X.var(1),
    "std": X.std(1),
    "any": (X > 0).any(1),
    "all": (X > 0).all(1),
    "cumsum": X.cumsum(1),
}
POINTS = {
    "sinh": np.sinh, "cosh": np.cosh, "tan": np.tan, "ceil": np.ceil, "ln": np.log, "log2": np.log2, "log10": np.log10,
    "exp2": np.exp2, "square": np.square, "reciprocal": np.reciprocal, "clamp": lambda x: x.clip(0.5, 1.0),
    "clip": lambda x: x.clip(0.5, 1.0), "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)), "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "maximum": lambda x: np.maximum(x, 0.7), "minimum": lambda x: np.minimum(x, 0.7),
    "logaddexp": lambda x: np.logaddexp(x, 0.7),
}  # fmt: skip


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", WRITTEN)
def test_missing_functions_are_written_so(name) -> None:
    text = WRITTEN[name]
    if name in POINTS:
        f = es.interpret(es.op(f"out[i,j] = {_at(text)}"))
        x = np.abs(X) if name in ("ln", "log2", "log10") else X
        np.testing.assert_allclose(f(x), POINTS[name](x), rtol=1e-9)
        return
    *before, last = text.split(" on a line of its own, then ")
    axes = "i,j" if ROWS[name].ndim == 2 else "i"
    lines = [*before, last] if last.startswith("s[") else [*before, f"out[{axes}] = {last}"]
    np.testing.assert_allclose(es.interpret(es.op("\n".join(lines)))(X), ROWS[name], rtol=1e-9)


def _at(text: str) -> str:
    """Return a form of x, y, low and high at a point."""
    for name, value in (("x", "x[i,j]"), ("y", "0.7"), ("low", "0.5"), ("high", "1.0")):
        text = re.sub(rf"\b{name}\b", value, text)
    return text


def test_constants() -> None:
    assert {n: float(v) for n, v in WRITTEN_NUMBERS.items()} == {"pi": math.pi, "e": math.e}
    with pytest.raises(es.FormulaError, match=r"write 3\.141592653589793; or pass the parameter"):
        es.op("y[i] = pi*x[i]")(X[0])


def test_tensors_may_have_such_names() -> None:
    f = es.op("norm[i] = sqrt(sum[j](x[i,j]**2))\ny[i,j] = x[i,j]/norm[i]\nreturn y")
    np.testing.assert_allclose(f(X), X / np.linalg.norm(X, axis=1, keepdims=True))
