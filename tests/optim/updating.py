"""One parameter under an update rule, run by the reference evaluator."""

from __future__ import annotations

import numpy as np

from einsmith.base.dtypes import dtype_of, f64
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Graph, leaf
from einsmith.tracing.builder import Value


def trace(rule, shape, dtype=f64):
    """The graph of one update: inputs p, g, states, hyperparameters, step; outputs p and the states that change."""
    x, g, step = leaf(shape, dtype), leaf(shape, dtype), leaf((), f64)
    state = {n: leaf(s, dtype) for n, s in rule.states(shape, dtype).items()}
    hyper = {n: leaf((), f64) for n in rule.hyper}
    new, after = rule.update(
        Value(x),
        Value(g),
        {n: Value(t) for n, t in state.items()},
        {n: Value(t, weak=True) for n, t in hyper.items()},
        Value(step, weak=True),
    )
    assert new.dtype is dtype and all(v.dtype is dtype for v in after.values())
    assert new.shape == shape and all(after[n].shape == state[n].shape for n in after)
    outputs = (new.tensor, *(v.tensor for v in after.values()))
    return Graph((x, g, *state.values(), *hyper.values(), step), outputs, (), ()), list(after)


class Updater:
    """Runs a rule on one array."""

    def __init__(self, rule, p):
        self.rule, self.p, self.steps = rule, np.array(p), 0
        kind = dtype_of(self.p.dtype)
        self.state = {n: np.full(s, rule.initial(n)) for n, s in rule.states(p.shape, kind).items()}
        self.graph, self.names = trace(rule, p.shape, kind)

    def step(self, g) -> None:
        self.steps += 1
        numbers = self.rule.values(self.steps)
        values, _ = evaluate(self.graph, [self.p, g, *self.state.values(), *numbers.values(), float(self.steps)])
        self.p = values[0]
        self.state.update(zip(self.names, values[1:], strict=True))
