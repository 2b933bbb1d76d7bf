"""Random recurrences over batches of sequences of different lengths: gradients compiled in memory that starts as NaN,
against the evaluator. What lies beyond all lengths is left out where nothing reads it, and must be there where anything
does."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate

GUARDS = (
    "t < n[b]", "t+1 <= n[b]", "t+1 < n[b]", "t < n[b] + 1", "t <= n[b]", "n[b] > t", "not (n[b] <= t)",
    "t < n[b] and m[b] <= t", "t < 2*n[b]",
)  # fmt: skip
VALUES = (
    "tanh(x[t,b,k] + u[t,b,k])*z[t,b,k]", "z[t,b,k] - 0.5*u[t,b,k]", "max(u[t,b,k], z[t,b,k])",
    "tanh(sum[j](z[t,b,j]*V[j,k]))",
)  # fmt: skip


def random_text(rng) -> tuple[str, int]:
    """A formula, and the `checkpoint` to differentiate it with."""
    reverse, named = rng.random() < 0.4, rng.random() < 0.5

    def before(name: str, k: str, back: int = 1) -> str:
        start = f"h0[b,{k}]" if rng.random() < 0.5 else "0"
        if reverse:
            return f"where(t+{back} < size(t), {name}[t+{back},b,{k}], {start})"
        return f"where(t >= {back}, {name}[t-{back},b,{k}], {start})"

    def old(k: str) -> str:
        return f"p[t,b,{k}]" if named else before("h", k)

    guard = str(rng.choice(GUARDS))
    lines = [f"p[t,b,k] = {before('h', 'k')}"] if named else []
    lines.append(f"u[t,b,k] = sum[j]({old('j')}*U[j,k])")
    lines.append("z[t,b,k] = " + str(rng.choice(["sigmoid(u[t,b,k] + x[t,b,k])", "u[t,b,k]*x[t,b,k]"])))
    value = str(rng.choice(VALUES))
    if rng.random() < 0.5:
        other = guard if rng.random() < 0.6 else str(rng.choice(GUARDS))
        step = f"z[t,b,k]*{before('c', 'k', int(rng.integers(1, 3)))} + tanh(u[t,b,k])"
        lines.append(f"c[t,b,k] = where({other}, {step}, {before('c', 'k')})")
        value = "tanh(c[t,b,k])*z[t,b,k]"
    lines.append(f"h[t,b,k] = where({guard}, {value}, {rng.choice([old('k'), '0', 'x[t,b,k]', '0.5*' + old('k')])})")
    outputs = ["h"]
    if rng.random() < 0.3:
        outputs.append("u")  # what is returned is read at all steps
    if rng.random() < 0.3:
        lines.append(f"y[b,k] = sum[t](where({guard}, z[t,b,k]*u[t,b,k], 0))")
        outputs.append("y")
    if rng.random() < 0.2:
        lines.append("w[t,b] = z[t,b,0]")
        outputs.append("w")
    return "\n".join([*lines, "return " + ", ".join(outputs)]), 0 if rng.random() < 0.7 else 2


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text, checkpoint = random_text(rng)
    steps, batch, width = int(rng.integers(2, 10)), int(rng.integers(1, 5)), int(rng.integers(3, 20))
    op = es.op(text, checkpoint=checkpoint)
    given = {
        "x": 0.5 * rng.standard_normal((steps, batch, width)), "U": 0.4 * rng.standard_normal((width, width)),
        "V": 0.4 * rng.standard_normal((width, width)), "h0": 0.5 * rng.standard_normal((batch, width)),
        "n": np.minimum(rng.integers(-1, steps + 2, batch), rng.integers(0, steps + 2)), "m": rng.integers(0, 3, batch),
    }  # fmt: skip
    inputs = [given[i] for i in op.inputs]
    at = tuple(i for i, a in enumerate(inputs) if a.dtype.kind == "f")

    def loss(*xs):
        out = op(*xs)
        return sum(((o * o).sum() for o in (out if isinstance(out, tuple) else (out,))), 0.0)

    f = es.grad(loss, at)
    if seed % 4 == 3:
        f = es.grad(lambda *xs, first=f: sum((g * g).sum() for g in first(*xs)), at)
    traced = trace_call(f, inputs, {})
    want = evaluate(traced.graph, inputs)[0]
    for threads in (1, 2):
        program = Executable(traced.graph, traced.bind, threads)
        program.arena.fill(0xFF)
        for a, b in zip(program(inputs)[1], want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8 * max(1.0, np.abs(b).max()), err_msg=text)
    if checkpoint == 0 and seed % 4 == 1:
        es.check_gradients(op, *inputs, order=1)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", range(3))
def test_gradients(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 100))
def test_many(seed):
    check(seed)
