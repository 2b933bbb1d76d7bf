"""Short loops as one kernel: values and gradients at awkward sizes, what stays in registers, and what stays a loop."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.codegen.ssa import Loop, Op
from einsmith.cost.facts import Target
from einsmith.driver.executable import Executable
from einsmith.kernels import autoconfig
from einsmith.lang.op import op
from einsmith.schedule.plan import LoopCall
from einsmith.schedule.step_loops import StepLoop
from tests.fuzz.check import agree

FORMULAS = {
    "product": "c[t] = where(t > 0, c[t-1], 1)*x[t]\nreturn c",
    "from the end": "c[t] = where(t < size(t)-1, c[t+1], 0)*0.5 + x[t]\nreturn c",
    "two steps back": "c[t] = x[t] + where(t > 1, 0.3*c[t-2], 0) - where(t > 0, 0.5*c[t-1], 0)\nreturn c",
    "two members": "a[t] = x[t] + where(t > 0, 0.5*b[t-1], 0)\nb[t] = tanh(a[t])*x[t] + where(t > 0, 0.1*a[t-1], 0)\n"
    "return a, b",
    "last state": "c[t] = where(t > 0, c[t-1], 1)*(x[t] + 0.1)\ny[] = sum[t](where(t == size(t)-1, c[t], 0))\nreturn y",
    "rows": "c[t,i] = where(t > 0, c[t-1,i], 1)*x[t,i]\nreturn c",
    "rotated rows": "c[t,i] = x[t,i] + where(t > 0, 0.5*c[t-1,size(i)-1-i], 0)\nreturn c",
    "grid": "c[t,i] = x[t,i] + where((t > 0) and (i > 0), 0.4*max(c[t-1,i], c[t,i-1]), 0)\nreturn c",
}
SHAPES = {"rows": (1, 15, 16, 17, 31), "rotated rows": (1, 7, 16, 17, 65), "grid": (1, 5, 17)}


def run_of(name: str, shape: tuple[int, ...], rng, gradient: bool = False):
    f = op(FORMULAS[name])
    x = rng.uniform(0.8, 1.2, shape).astype(np.float32)

    def total(x):
        out = f(x)
        return sum((y * y).sum() for y in (out if isinstance(out, tuple) else (out,)))

    traced = trace_call((lambda x: (f(x), es.grad(total)(x))) if gradient else f, (x,), {})
    return Executable(traced.graph, traced.bind, 2), [x], traced.graph


def joined(run: Executable) -> list[StepLoop]:
    return [c.kernel for _, c, _ in run.plan.kernel_calls() if isinstance(c.kernel, StepLoop)]


@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_gradients(name, rng) -> None:
    for steps in (1, 2, 3, 17):
        for columns in SHAPES.get(name, (0,)):
            run, args, graph = run_of(name, (steps, columns) if columns else (steps,), rng, True)
            agree(run(args)[1], graph, args, f"{name}, {steps} steps of {columns or 1}")


@pytest.mark.parametrize("name", ["product", "from the end", "two members", "rows"])
def test_short_steps_are_one_kernel(name, rng) -> None:
    run, _, _ = run_of(name, (100, 16) if name == "rows" else (100,), rng)
    assert joined(run) and not any(isinstance(c, LoopCall) for c in run.plan.calls)


def test_states_stay_in_registers(rng) -> None:
    run, _, _ = run_of("product", (100,), rng)
    (kernel,) = joined(run)
    choice = autoconfig.choose(kernel, Target())
    (launch,) = choice.pattern.lower(kernel, choice.config, choice.target).launches
    (loop,) = (x for x in launch.function.body if isinstance(x, Loop))
    assert len(loop.carried) == 1
    assert [x.name for x in loop.body if isinstance(x, Op) and x.name in ("load", "store")] == ["load", "store"]


def test_checked_runs_know_loops(rng, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_CHECK", "1")
    for name in ("product", "from the end", "rotated rows", "last state"):
        run, args, graph = run_of(name, (7, 17) if name == "rotated rows" else (7,), rng)
        agree(run(args)[1], graph, args, name)


def test_steps_of_several_threads_stay_a_loop(rng) -> None:
    run, _, _ = run_of("rows", (4, 4_000_000), rng)
    assert not joined(run)
