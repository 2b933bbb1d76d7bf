"""Results in the place of what their kernel reads last: where they may be, where not, and the same values there."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import einsmith as es
from einsmith.schedule import arena
from tests.programs import program_of

N = 17
CASES = {
    "an epilogue reads its own element": ("a = x@w; b = tanh(x@v + a)", 1),
    "a sum of products reads rows": ("a = x@w; b = tanh(a@v)", 0),
    "both": ("a = x@w; b = tanh(a@v + a)", 0),
    "read later": ("a = x@w; b = tanh(x@v + a); c = b@w + a", 1),
    "one after the other": ("a = x@w; b = x@v + a; c = softmax(b)", 2),
    "another place": ("a = x@w; b = x@v + a.T", 0),
    "neighbours": ("a = x@w; b = x@v + shift(a)", 0),
    "by rows": ("a = x@w; b = softmax(a)", 1),
    "by rows, read after it is stored": ("a = x@w; b = softmax(a); c = norm(a + b)", 1),
    "by rows, across rows": ("a = x@w; b = softmax(a) + a.T", 0),
}
OPS = {
    "tanh": es.functional.tanh,
    "softmax": lambda x: es.functional.softmax(x, 1),
    "norm": es.op("q[i] = sum[k](x[i,k]*x[i,k])\ny[i,j] = x[i,j]*rsqrt(q[i] + 1)\nreturn y"),
    "shift": es.op("y[i,j] = where(i >= 1, x[i-1,j], 0)", extents={"i": "x.shape[0]"}),
}


def numpy_ops() -> dict:
    def softmax(x):
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def norm(x):
        return x / np.sqrt((x * x).sum(1, keepdims=True) + 1)

    return {"tanh": np.tanh, "softmax": softmax, "norm": norm, "shift": lambda x: np.vstack([0 * x[:1], x[:-1]])}


def program(text: str, ops: dict):
    """Of x, w, v, the last line's value times w: no result of the lines is one of the program."""

    def f(x, w, v):
        names = {"x": x, "w": w, "v": v, **ops}
        for line in text.split(";"):
            name, value = line.split("=")
            names[name.strip()] = last = eval(value, {}, names)
        return last @ w

    return f


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", CASES)
def test_places_and_values(case, rng):
    text, count = CASES[case]
    arrays = [rng.standard_normal((N, N)) for _ in range(3)]
    f = es.jit(program(text, OPS))
    got = f(*arrays)
    np.testing.assert_allclose(got, program(text, numpy_ops())(*arrays), rtol=1e-9, atol=1e-9)
    run = program_of(f)
    assert sum(x.overwrites is not None for x in run.lives()) == count, str(f.plan)


def test_a_training_step_is_the_same_in_less_memory(rng):
    """Residual blocks with dropout: against the same step whose results have places of their own."""

    class Net(es.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.drop = es.nn.Linear(13, 29), es.nn.Dropout(0.3)
            self.blocks = es.nn.ModuleList([es.nn.Linear(29, 29) for _ in range(3)])

        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = x + self.drop(es.functional.gelu(block(x)))
            return x

    x, y = rng.standard_normal((37, 13)).astype("f"), rng.integers(0, 29, 37)

    def trained() -> tuple[list[float], int, int]:
        es.manual_seed(3)
        step = es.TrainStep(Net(), es.functional.cross_entropy, es.optim.AdamW(lr=1e-2), seed=5)
        losses = [float(step(x, y)) for _ in range(4)]
        (run,) = step.compiler.programs.values()
        return losses, run.arena_bytes, sum(n.overwrites is not None for n in run.lives())

    losses, nbytes, count = trained()
    with mock.patch.object(arena, "find_overwrites", lambda calls, lives: {}):
        apart, more, none = trained()
    assert losses == apart and count > 0 == none and nbytes <= more
