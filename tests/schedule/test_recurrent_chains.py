"""Chains of reductions in the steps of a recurrence: a step uses up its scores tile by tile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.autodiff.recurrence import recompute
from einsmith.ir.nodes import size
from einsmith.schedule.kernel import Rows
from einsmith.schedule.plan import KernelCall, LoopCall, Plan
from tests.fuzz.check import agree
from tests.fuzz.variants import STREAMED, streaming
from tests.schedule.test_reduction_chains import compile_with

STATE = "p[t,i,d] = where(t > 0, h[t-1,i,d], h0[i,d])\n"
ATTENTION = """m[t,i] = max[j](s[t,i,j])
e[t,i,j] = exp(s[t,i,j] - m[t,i])
z[t,i] = sum[j](e[t,i,j])
h[t,i,k] = tanh(x[t,i,k] + sum[j](e[t,i,j]*b[j,k])/z[t,i])
return h"""
STEPS = {
    "attention": f"{STATE}s[t,i,j] = sum[d](p[t,i,d]*y[j,d])\n{ATTENTION}",
    "causal attention": f"{STATE}s[t,i,j] = where(j <= i, sum[d](p[t,i,d]*y[j,d]), -1e9)\n{ATTENTION}",
    "gaussian": f"{STATE}h[t,i,k] = tanh(x[t,i,k] + sum[j](exp(-sum[d]((p[t,i,d]-y[j,d])**2))*b[j,k]))\nreturn h",
    "largest": f"{STATE}h[t,i,k] = tanh(x[t,i,k] + 0.1*max[j](sum[d]((p[t,i,d]-y[j,d])**2) + b[j,0]))\nreturn h",
    "farthest": f"{STATE}h[t,i,k] = tanh(x[t,i,k] + 0.1*max[j](sum[d]((p[t,i,d]-y[j,d])**2) + b[j,k]))\nreturn h",
}
SIZES = {"x": (4, 37, 3), "h0": (37, 3), "y": (43, 3), "b": (43, 3)}


def recurrence(name: str, checkpoint: int | None = None):
    """Return the recurrence as a function of x, h0, y and b."""
    f = es.op(STEPS[name], **({} if checkpoint is None else {"checkpoint": checkpoint}))
    return lambda *args: f(**dict(zip(SIZES, args, strict=True)))


def step_calls(plan: Plan) -> Iterator[KernelCall]:
    """Yield the calls of the steps of a plan's loops."""
    for call in plan.calls:
        if isinstance(call, LoopCall):
            for step in call.plans:
                yield from (c for c in step.calls if isinstance(c, KernelCall))
                yield from step_calls(step)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("blocks", STREAMED)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_uses_up_its_scores(name: str, blocks: str, rng) -> None:
    args = [rng.standard_normal(s, np.float32) for s in SIZES.values()]
    f = recurrence(name)
    graph = trace_call(f, tuple(args), {}).graph
    for threads in (1, 2):
        with streaming(blocks):
            run = compile_with(f, args, threads, 1)
        calls = list(step_calls(run.plan))
        assert any(size(b.shape) == 37 * 43 for c in calls if isinstance(c.kernel, Rows) for b in c.kernel.local)
        assert all(size(t.shape) < 37 * 43 for c in calls for t in c.tensors)
        agree(run(args)[1], graph, args, f"{name}, {threads} threads")


@pytest.mark.thinned(8)
@pytest.mark.parametrize(
    "name, checkpoint",
    [*((name, None) for name in STEPS), *((name, n) for name in STEPS for n in (1, 2))],
)
def test_gradients_through_the_steps(name: str, checkpoint: int | None, rng) -> None:
    args = [rng.standard_normal(s, np.float32) for s in SIZES.values()]
    f = recurrence(name, checkpoint)
    gradients = es.grad(lambda *args: (f(*args) ** 2).sum(), (0, 1, 2, 3))
    graph = trace_call(gradients, tuple(args), {}).graph
    with streaming("3"):
        run = compile_with(gradients, args, 2, 1)
    agree(run(args)[1], graph, args, name)


@pytest.mark.thinned(20)
@pytest.mark.parametrize("blocks", STREAMED)
@pytest.mark.parametrize("checkpoint", [0, 1])
@pytest.mark.parametrize("name", STEPS)
def test_gradients_store_no_scores(name: str, checkpoint: int, blocks: str, rng, monkeypatch) -> None:
    """Neither those of all steps nor those of a step: each is computed again, block by block."""
    monkeypatch.setattr(recompute, "MAX_SAVED_BYTES", 0)
    args = [rng.standard_normal(s, np.float32) for s in SIZES.values()]
    f = recurrence(name, checkpoint)
    gradients = es.grad(lambda *args: (f(*args) ** 2).sum(), (0, 1, 2, 3))
    graph = trace_call(gradients, tuple(args), {}).graph
    for threads in (1, 2):
        with streaming(blocks):
            run = compile_with(gradients, args, threads, 1)
        assert all(size(t.shape) < 37 * 43 for _, call, _ in run.plan.kernel_calls() for t in call.tensors)
        assert run.arena_bytes < 2 * sum(x.nbytes for x in args) + 4 * 37 * 43
        agree(run(args)[1], graph, args, f"{name}, {threads} threads")
