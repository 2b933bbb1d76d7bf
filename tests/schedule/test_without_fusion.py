"""Programs without each part of fusion, and without all of them: the same values, and a kernel for each operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsmith as es
from benchmarks.ablations import ALL, FUSING
from einsmith import functional as F
from einsmith.api.tracing import trace_call
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import Compute, postorder
from einsmith.ir.views import is_view
from einsmith.passes import pipeline
from einsmith.passes.algebra.simplify import simplify
from einsmith.schedule.kernel import Rows
from tests.fuzz.check import agree

Program = tuple[Callable[..., Any], list[tuple[int, ...]]]


def normalized(x, w, b, g):
    """Return a convolution, its batch norm, a ReLU and a pool, with a loss."""
    y = F.max_pool2d(F.relu(F.batch_norm(F.conv2d(x, w, b, padding=1), None, None, g, b, training=True)), 2)
    return y, (y * y).sum()


def attention(q, k, v):
    return F.softmax(q @ k.T, -1) @ v


def gated(x, w, u):
    return es.op("h[t,b,k] = tanh(sum[i](x[t,b,i]*W[i,k]) + sum[j](where(t > 0, h[t-1,b,j], 0.0)*U[j,k]))")(
        x=x, W=w, U=u
    )


def joined(x, y, w):
    """Return products of parts of one tensor, and a scatter-add."""
    z = F.cat([F.tanh(x), F.exp(y)], 0)
    return z @ w, F.pad(z, (1, 2)).cumsum(0), F.relu(z[1:]) * z[:-1]


PROGRAMS: dict[str, Program] = {
    "convolution": (normalized, [(3, 5, 9, 7), (17, 5, 3, 3), (17,), (17,)]),
    "attention": (attention, [(31, 7), (33, 7), (33, 5)]),
    "recurrence": (gated, [(5, 3, 7), (7, 9), (9, 9)]),
    "pieces": (joined, [(1, 13), (5, 13), (13, 17)]),
}


def gradients(f: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return the function of the results of f and of the gradients of their sum."""

    def total(*xs: Any) -> Any:
        out = f(*xs)
        return sum((y * y).sum() for y in (out if isinstance(out, tuple) else (out,)))

    return lambda *xs: (f(*xs), es.grad(total, argnums=tuple(range(count)))(*xs))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("without", [*FUSING, ALL])
def test_values_and_gradients(name: str, without: str, rng, monkeypatch) -> None:
    f, shapes = PROGRAMS[name]
    args = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    monkeypatch.setenv("EINSMITH_WITHOUT", without)
    traced = trace_call(gradients(f, len(args)), tuple(args), {})
    graph, run = traced.graph, Executable(traced.graph, traced.bind, 2)
    agree(run(args)[1], graph, args, f"{name} without {without}")
    if without != ALL:
        return
    kernels = [k for _, c, _ in run.plan.kernel_calls() for k in c.kernel.parts]
    assert not any(isinstance(k, Rows) or len(k.stages) > 1 for k in kernels)
    if name != "recurrence":
        nodes = [n for n in postorder(simplify(graph).roots) if isinstance(n, Compute) and not is_view(n.template)]
        assert len(run.calls) >= len(nodes)


@pytest.mark.parametrize("without", ["fusion", "update fusion", ALL])
def test_training_steps(without: str, rng, monkeypatch) -> None:
    """Losses and parameters are those of the fused step, whose updates are stages of kernels of gradients."""
    x, y = rng.standard_normal((17, 13)).astype(np.float32), rng.integers(0, 5, 17)

    def train() -> tuple[list[float], dict[str, np.ndarray], list[Any]]:
        es.manual_seed(0)
        model = es.nn.Sequential(es.nn.Linear(13, 33), es.nn.BatchNorm1d(33), es.nn.ReLU(), es.nn.Linear(33, 5))
        step = es.TrainStep(model, F.cross_entropy, es.optim.Adam(lr=1e-2))
        losses = [float(step(x, y)) for _ in range(4)]
        (run,) = step.compiler.programs.values()
        return losses, {n: np.array(v) for n, v in model.state_dict().items()}, run.calls

    losses, state, calls = train()
    monkeypatch.setenv("EINSMITH_WITHOUT", without if without == ALL else f"{without}, joined updates")
    others, other_state, apart = train()
    np.testing.assert_allclose(others, losses, rtol=1e-5)
    for name, value in state.items():
        np.testing.assert_allclose(other_state[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert len(apart) > len(calls)
    assert (without != ALL) == any(isinstance(c.kernel, Rows) or len(c.kernel.stages) > 1 for c in apart)


def test_the_parts_are_names_that_can_be_left_out() -> None:
    assert {*FUSING} <= {*pipeline.optional()}
