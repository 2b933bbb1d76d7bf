"""Stages that are predicted to be slower in one kernel get kernels of their own."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_call
from einsmith.cost.facts import Target
from einsmith.driver import compile, streaming
from einsmith.driver.executable import Executable
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import Graph
from einsmith.kernels import autoconfig
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.losses import MODEL_ERROR
from einsmith.schedule.pipeline import LOSSES
from einsmith.schedule.plan import Plan
from tests.fuzz.check import agree

STEPS = """
z[t,b,j] = sum[k](where(t > 0, h[t-1,b,k], 0)*w[k,j]) + x[t,b,j]
h[t,b,j] = tanh(z[t,b,j])*sigmoid(x[t,b,j])
return h
"""
CHECKED = "y[i,k] = exp(sum[j](x[at[i],j]*w[j,k]))*x[at[i],k]"


def gradients(f, *operands):
    return es.grad(lambda *v: (f(*v) ** 2).sum(), tuple(range(len(operands))))(*operands)


def layer(x, w, b):
    return F.relu(es.op("z[i,o] = sum[j](x[i,j]*w[o,j])")(x=x, w=w) + b)


CASES = {
    "layer": (layer, [(17, 13), (7, 13), (7,)]),
    "gradients of a layer": (lambda *v: gradients(layer, *v), [(17, 13), (7, 13), (7,)]),
    "one row": (layer, [(1, 5), (31, 5), (31,)]),
    "convolution": (lambda x, w: F.gelu(F.conv2d(x, w, padding=1)) + 1.0, [(2, 3, 9, 7), (5, 3, 3, 3)]),
    "sums": (lambda x: F.sqrt(F.sum(x * x, 1) + 1.0) * 3.0, [(19, 23)]),
    "largest": (lambda x: F.exp(F.amax(x, 1)) / 2.0, [(19, 23)]),
    "a recurrence": (lambda x, w: es.op(STEPS)(x=x, w=w), [(5, 3, 11), (11, 11)]),
    "gradients of steps": (lambda *v: gradients(lambda x, w: es.op(STEPS)(x=x, w=w), *v), [(5, 3, 11), (11, 11)]),
}  # fmt: skip


def cost_of_stages(factor: float):
    """A cost model by which kernels of several stages take `factor` times as long as they do."""

    def predicted(kernel: Kernel, target: Target) -> float:
        several = not isinstance(kernel, Rows) and len(kernel.stages) > 1
        return _KNOWN(kernel, target) * (factor if several else 1.0)

    return predicted


_KNOWN = compile.predicted


def several_stages(plan: Plan) -> int:
    kernels = [c.kernel for _, c, _ in plan.kernel_calls() if not isinstance(c.kernel, Rows)]
    return sum(len(k.stages) > 1 and pointwise_body(k.root) is None for k in kernels)


def planned(f, arrays) -> tuple[Executable, Graph]:
    traced = trace_call(f, arrays, {}, frozenset())
    return Executable(traced.graph, traced.bind, 1), traced.graph


@pytest.mark.parametrize("name", CASES)
def test_stages_that_lose_are_kernels_of_their_own(name: str, rng, monkeypatch) -> None:
    """Values are those of the definition, fused and not; both prices are told, and the pass can be left out."""
    f, shapes = CASES[name]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    run, graph = planned(f, arrays)
    agree(run(arrays)[1], graph, arrays, name)
    monkeypatch.setattr(compile, "predicted", cost_of_stages(50.0))
    monkeypatch.setattr(autoconfig, "least_of_stages", lambda *_: 0.0)
    apart, _ = planned(f, arrays)
    assert several_stages(run.plan) > several_stages(apart.plan) == 0
    agree(apart(arrays)[1], graph, arrays, f"{name}, separate")
    decisions = ["" for _ in apart.plan.kernel_calls()]
    lines = [x for r in streaming.results_of(apart.plan, apart.target, decisions) for x in streaming.lines_of(r)]
    others = len(apart.plan.calls) < len(decisions) or any(isinstance(k, Rows) for k in apart.plan.kernels)
    assert others or any("joining 2 kernels is predicted to be slower (" in x and "us, with it " in x for x in lines)
    monkeypatch.setenv("EINSMITH_WITHOUT", LOSSES)
    kept = planned(f, arrays)[0].plan
    assert several_stages(kept) or any(isinstance(k, Rows) for k in kept.kernels)


def test_checks_come_before_what_they_guard(rng, monkeypatch) -> None:
    monkeypatch.setattr(compile, "predicted", cost_of_stages(50.0))
    monkeypatch.setattr(autoconfig, "least_of_stages", lambda *_: 0.0)
    f = es.jit(es.op(CHECKED))
    x, w = rng.standard_normal((5, 3)).astype(np.float32), rng.standard_normal((3, 3)).astype(np.float32)
    at = np.array([4, 0, 2, 2])
    named = {"x": x, "w": w, "at": at}
    found = f(**named)
    np.testing.assert_allclose(found, np.exp(x[at] @ w) * x[at], rtol=2e-5)
    with pytest.raises(es.EinsmithError, match="5"):
        f(**{**named, "at": np.array([4, 0, 5, 2])})


def test_a_step_with_updates_apart_trains_alike(rng, monkeypatch) -> None:
    x, t = rng.standard_normal((16, 9)).astype(np.float32), rng.integers(0, 5, 16)

    def losses() -> list[float]:
        es.manual_seed(3)
        model = es.nn.Sequential(es.nn.Linear(9, 11), es.nn.ReLU(), es.nn.Linear(11, 5))
        step = es.TrainStep(model, F.cross_entropy, es.optim.Adam(lr=0.01))
        return [float(step(x, t)) for _ in range(5)]

    together = losses()
    monkeypatch.setattr(compile, "predicted", cost_of_stages(50.0))
    monkeypatch.setattr(autoconfig, "least_of_stages", lambda *_: 0.0)
    np.testing.assert_allclose(losses(), together, rtol=1e-5)


def test_a_difference_within_the_model_s_error_decides_nothing(rng, monkeypatch) -> None:
    f, shapes = CASES["layer"]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    fused = several_stages(planned(f, arrays)[0].plan)

    def level(kernel: Kernel, target: Target) -> float:
        return 1.0 if len(kernel.stages) > 1 else (1.0 - MODEL_ERROR / 2) / 2

    monkeypatch.setattr(compile, "predicted", level)
    monkeypatch.setattr(autoconfig, "least_of_stages", lambda *_: 0.0)
    assert several_stages(planned(f, arrays)[0].plan) == fused
