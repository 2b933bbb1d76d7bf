"""Sums that only updates read become one sum of several results."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.expr.nodes import Compute, Reduce


class Gates(es.nn.Module):
    """y = a*u + b*u*v + c with a factor and a bias for every column."""

    def __init__(self, n: int, rng: np.random.Generator):
        self.a, self.b, self.c = (es.nn.Parameter(rng.standard_normal(n).astype(np.float32)) for _ in range(3))

    def forward(self, u, v):
        f = es.op("y[i,n] = tanh(a[n]*u[i,n] + b[n]*u[i,n]*v[i,n] + c[n])\nreturn y")
        return f(a=self.a, u=u, b=self.b, v=v, c=self.c)


def sums(run) -> list[int]:
    """How many results each reduction of a program over both axes of the batch or more has."""
    nodes = {n for c in run.plan.calls for n in c.nodes if isinstance(n, Compute)}
    bodies = [n.template.parts[0].body for n in nodes if len(n.template.parts) == 1 and n.shape != ()]
    return sorted(len(b.bodies) for b in bodies if isinstance(b, Reduce))


@pytest.mark.parametrize("shape", [(301, 131), (5, 7)])
@pytest.mark.parametrize("rule", ["sgd", "momentum"])
def test_the_gradients_of_factors_and_biases_are_one_sweep(shape, rule, rng):
    model = Gates(shape[1], rng)
    a, b, c = (p.numpy().astype(np.float64) for p in (model.a, model.b, model.c))
    u, v, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    rate = es.optim.SGD(lr=0.1, momentum=0.9 if rule == "momentum" else 0.0)
    step = es.TrainStep(model, es.functional.mse_loss, rate)
    state = [np.zeros_like(x) for x in (a, b, c)]
    for _ in range(3):
        step(u, v, y)
        h = np.tanh(a * u + b * u * v + c)
        g = 2 / y.size * (h - y) * (1 - h * h)
        grads = [(g * u).sum(0), (g * u * v).sum(0), g.sum(0)]
        state = [0.9 * s + d if rule == "momentum" else d for s, d in zip(state, grads, strict=True)]
        a, b, c = (x - 0.1 * s for x, s in zip((a, b, c), state, strict=True))
    for p, want in zip((model.a, model.b, model.c), (a, b, c), strict=True):
        np.testing.assert_allclose(p.numpy(), want, rtol=1e-4, atol=1e-5)
    (run,) = step._programs.values()
    if rule == "sgd":
        assert sums(run) == ([3] if shape[0] > 100 else [1, 1, 1])
