"""Prices of kernels that are joined by rows: they decide, they are printed, and they are those of what runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_call
from einsmith.cli import main
from einsmith.cost.facts import Target
from einsmith.driver import compile, streaming
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import Graph, nbytes
from einsmith.kernels import autoconfig
from einsmith.kernels.rows.rows_cost import Blocks
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.losses import LossSplitter
from einsmith.schedule.options import ROW_PRICES
from einsmith.schedule.pipeline import LOSSES
from einsmith.schedule.plan import KernelCall, LoopCall, Plan
from einsmith.schedule.planner import fuse
from tests.fuzz.check import agree

NORM = """
m[i] = mean[k](x[i,k])
v[i] = mean[k]((x[i,k] - m[i])**2)
y[i,k] = (x[i,k] - m[i])*rsqrt(v[i] + 1e-5)*w[k]
return y
"""
CHANNELS = """
m[c] = mean[n,k](x[n,c,k])
v[c] = mean[n,k]((x[n,c,k] - m[c])**2)
y[n,c,k] = (x[n,c,k] - m[c])*rsqrt(v[c] + 1e-5)
return y
"""
GATHERED = """
a[e,k] = exp(x[at[e],k])*w[e,k]
s[e] = sum[k](a[e,k])
y[e,k] = a[e,k]*s[e]*x[at[e],k]
return y
"""
STEPS = """
s[t,b] = sum[k](where(t > 0, h[t-1,b,k], 0)*w[k])
h[t,b,k] = tanh(where(t > 0, h[t-1,b,k], 0)*s[t,b] + x[t,b,k])
return h
"""


def norm_gradient(x, w):
    return es.grad(lambda x, w: (es.op(NORM)(x=x, w=w) ** 2).sum(), (0, 1))(x, w)


def steps_gradient(x, w):
    return es.grad(lambda x, w: (es.op(STEPS)(x=x, w=w) ** 2).sum(), (0, 1))(x, w)


CASES = {
    "softmax": (lambda x: F.softmax(x, 1), [(37, 61)]),
    "norm": (es.op(NORM), [(37, 61), (61,)]),
    "gradients of a norm": (norm_gradient, [(19, 33), (33,)]),
    "channels": (es.op(CHANNELS), [(3, 64, 50)]),
    "a recurrence": (steps_gradient, [(9, 17, 11), (11,)]),
}


def dear(kernel: Kernel, target: Target) -> float:
    """Predict that kernels joined by rows take ten times as long as they do."""
    return _KNOWN(kernel, target) * (10.0 if isinstance(kernel, Rows) else 1.0)


_KNOWN = compile.predicted


def rows_of(plan: Plan) -> list[Rows]:
    members = (k for _, c, _ in plan.kernel_calls() for k in getattr(c.kernel, "members", ()))
    return [
        *(c.kernel for _, c, _ in plan.kernel_calls() if isinstance(c.kernel, Rows)),
        *(m.kernel for m in members if isinstance(m.kernel, Rows)),
    ]


def planned(f, shapes, rng) -> tuple[Executable, Graph, list[np.ndarray]]:
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    traced = trace_call(f, arrays, {}, frozenset())
    return Executable(traced.graph, traced.bind, 1), traced.graph, arrays


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_not_made(name: str, rng, monkeypatch) -> None:
    """Values and gradients are those of the definition, joined and not; both prices are told."""
    f, shapes = CASES[name]
    monkeypatch.setenv("EINSMITH_WITHOUT", "epilogue sums")
    run, graph, arrays = planned(f, shapes, rng)
    agree(run(arrays)[1], graph, arrays, name)
    monkeypatch.setattr(compile, "predicted", dear)
    apart, *_ = planned(f, shapes, rng)
    assert not rows_of(apart.plan)
    agree(apart(arrays)[1], graph, arrays, f"{name}, separate")
    decisions = ["" for _ in apart.plan.kernel_calls()]
    lines = [x for r in streaming.results_of(apart.plan, apart.target, decisions) for x in streaming.lines_of(r)]
    assert any("kernels is predicted to be slower (" in x and "us, with it " in x for x in lines)
    monkeypatch.setenv("EINSMITH_WITHOUT", f"epilogue sums, {ROW_PRICES}, {LOSSES}")
    forced, *_ = planned(f, shapes, rng)
    assert rows_of(forced.plan)
    agree(forced(arrays)[1], graph, arrays, f"{name}, joined whatever the price")


@pytest.mark.parametrize("name", CASES)
def test_losses_are_split_when_all_is_known(name: str, rng, monkeypatch) -> None:
    """As if orders of dimensions had made the joined kernels slower after they were joined."""
    f, shapes = CASES[name]
    monkeypatch.setenv("EINSMITH_WITHOUT", f"epilogue sums, {ROW_PRICES}")
    monkeypatch.setattr(compile, "predicted", dear)
    run, graph, arrays = planned(f, shapes, rng)
    assert not rows_of(run.plan)
    agree(run(arrays)[1], graph, arrays, name)
    monkeypatch.setenv("EINSMITH_WITHOUT", f"epilogue sums, {ROW_PRICES}, {LOSSES}, joined steps")
    plan = planned(f, shapes, rng)[0].plan
    splitter = LossSplitter(dear, lambda *_: 0.0, run.target)
    again = splitter.split(plan)
    assert rows_of(plan) and not rows_of(again)
    assert len(again.calls) > len(plan.calls) or any(isinstance(c, LoopCall) for c in plan.calls)
    assert splitter.split(again) == again


def test_the_printed_prices_decided(rng) -> None:
    run, *_ = planned(*CASES["norm"], rng)
    for call in (c for _, c, _ in run.plan.kernel_calls() if isinstance(c.kernel, Rows) and c.parts):
        if call.prices is not None:
            assert 0 < call.prices.fused < call.prices.apart
            assert call.prices.fused == pytest.approx(_KNOWN(call.kernel, run.target))


def test_what_is_joined_tells_what_it_gains(capsys) -> None:
    """Kernels that take sums of their results depend on others, and tell none."""
    assert main.run(["explain", "mlp3", "--batch", "3", "--threads", "1", "--candidates", "0"]) == 0
    fused = [x.strip() for x in capsys.readouterr().out.splitlines() if x.strip().startswith("fused:")]
    assert any("separate kernels" in x for x in fused) and all("gain -" not in x for x in fused)
    assert all(" -> " in x for x in fused if "separate kernels" in x)


def test_a_gathered_tensor_is_not_read_whole_in_every_block(rng) -> None:
    """Blocks of rows read the elements that their own indices name; a bound by bytes is one."""
    n, e = 3000, 9000
    x, w = (rng.standard_normal((m, 32)).astype(np.float32) for m in (n, e))
    at = rng.integers(0, n, e).astype(np.int32)
    f = es.op(GATHERED)
    arrays = [{"x": x, "w": w, "at": at}[k] for k in f.inputs]
    target = replace(Target(), cores=1)
    graph = run_passes(trace_call(f, arrays, {}).graph)
    (call,) = (c for c in fuse(graph, target=target).calls if isinstance(c, KernelCall) and isinstance(c.kernel, Rows))
    fused, parts = _KNOWN(call.kernel, target), sum(_KNOWN(p.kernel, target) for p in call.parts)
    assert fused < 2 * parts
    for config in (c for c in autoconfig.ROWS.configs(call.kernel, target) if c.tasks):
        blocks = Blocks(call.kernel, config, target)
        for k, bound in enumerate(blocks.lower_bounds):
            work = blocks.work(k, autoconfig)
            assert bound.seconds <= (work.seconds + work.special) * (1 + 1e-9)


def test_a_function_of_the_row_is_priced_once_a_row(rng) -> None:
    """rsqrt(v[i] + 1e-5) is evaluated in front of the loop over k."""
    x, v = rng.standard_normal((64, 4096)).astype(np.float32), rng.random(64).astype(np.float32)

    def price(text: str) -> float:
        f = es.op(text)
        graph = run_passes(trace_call(f, [{"x": x, "v": v}[n] for n in f.inputs], {}).graph)
        (call,) = fuse(graph, None).calls
        return _KNOWN(call.kernel, replace(Target(), cores=1))

    once = price("y[i,k] = x[i,k]*exp(v[i])\nreturn y")
    assert once < 1.2 * price("y[i,k] = x[i,k]*v[i]\nreturn y")
    assert once < 0.7 * price("y[i,k] = v[i]*exp(x[i,k])\nreturn y")


TRIANGLE = """
q[i,h,j,c] = sum[d](x[i,j,d]*Q[d,h,c])
s[i,h,j,l] = sum[c](q[i,h,j,c]*x[i,l,c])
e[i,h,j,l] = exp(s[i,h,j,l] - stop_gradient(max[m](s[i,h,j,m])))
o[i,h,j,c] = sum[l](e[i,h,j,l]*x[i,l,c])/sum[l](e[i,h,j,l])
y[i,j,d] = sum[h,c](o[i,h,j,c]*Q[d,h,c])
return y
"""


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_no_bound_means_that_no_chain_is_stored(factor: float, rng, monkeypatch) -> None:
    """Scores of 8.9 MB, and gradients with small results between: never stored at a bound of 0, whatever the price and
    however much the fused kernel passes on; else the price decides. Memory never grows."""
    monkeypatch.setattr(compile, "predicted", lambda k, t: _KNOWN(k, t) * (factor if isinstance(k, Rows) else 1.0))
    x, q = rng.standard_normal((54, 54, 8)).astype(np.float32), rng.standard_normal((8, 14, 8)).astype(np.float32) / 8
    scores = 4 * 54 * 14 * 54 * 54

    def gradients(x, Q):
        return es.grad(lambda x, Q: (es.op(TRIANGLE)(x=x, Q=Q) ** 2).sum(), (0, 1))(x, Q)

    traced = trace_call(gradients, [x, q], {}, frozenset())
    runs = {most: Executable(traced.graph, traced.bind, 1, max_stored=most) for most in (0, 1 << 25)}
    largest = {m: max(nbytes(t) for _, c, _ in r.plan.kernel_calls() for t in c.tensors) for m, r in runs.items()}
    assert largest[0] < scores and (largest[1 << 25] >= scores) == (factor > 1)
    assert runs[0].arena_bytes <= runs[1 << 25].arena_bytes
    for most, run in runs.items():
        agree(run([x, q])[1], traced.graph, [x, q], f"at most {most} stored")
