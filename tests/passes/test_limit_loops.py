"""Steps of recurrences end at sizes in every dimension: loops within a step, kernels, and loops over what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.ir.loop import LoopSegment
from einsmith.ir.nodes import Axis, Const, Expr, Read, Reduce, Template, apply, template
from einsmith.passes.recurrence.limit_loops import _end_sums
from einsmith.schedule import pipeline
from einsmith.schedule.kernel import limits_of
from einsmith.schedule.plan import KernelCall, LoopCall, Plan
from tests.fuzz.sizes import Subject, compare, guarded_memory

ALIGNED = """
p[t,u,b] = where(t > 0, a[t-1,u,b] + k[t-1,u,b], -1e30)
q[t,u,b] = where(u > 0, a[t,u-1,b] + e[t,u-1,b], where(t == 0, 0, -1e30))
a[t,u,b] = max(p[t,u,b], q[t,u,b]) + log1p(exp(-abs(p[t,u,b] - q[t,u,b])))
y[b] = -a[k.shape[0]-1,k.shape[1]-1,b] - k[k.shape[0]-1,k.shape[1]-1,b]
return y
"""
WARPED = """
r[0,0] = 0.0
r[i+1,0] = r[i,0] + d[i,0]
r[0,j+1] = r[0,j] + d[0,j]
r[i+1,j+1] = d[i,j] - log(exp(-r[i,j]) + exp(-r[i,j+1]) + exp(-r[i+1,j]))
return r
"""
CELLS = """
h[0,b,i] = 0.0
h[t+1,b,i] = tanh(sum[j](x[t,b,j]*V[i,j]) + sum[j](h[t,b,j]*W[i,j]) + c[i])
return h
"""
LABELS = """
a[0,s] = where(s < 2, p[0,s], -1e3)
v[t,s] = where(s > 0, a[t,s-1], -1e3)
a[t+1,s] = p[t+1,s] + max(a[t,s], v[t,s]) + log1p(exp(-abs(a[t,s] - v[t,s])))
y[] = a[p.shape[0]-1,p.shape[1]-1]
return y
"""
PREFIXES = """
c[t] = a[t] + where(t > 0, c[t-1], 0)
l[t] = sum[s](where(s <= t, exp(b[s] - c[s]), 0))
y[t] = c[t] + l[t]
return y
"""
"""Positions stand in a table, of which a step reads a part."""
Shapes = Callable[[int], Sequence[tuple[int, ...]]]
CASES: dict[str, tuple[str, Shapes]] = {
    "frames and labels": (ALIGNED, lambda n: [(2 * n, n + 1, 2), (2 * n, n, 2)]),
    "labels": (ALIGNED, lambda n: [(3, n + 1, 2), (3, n, 2)]),
    "batch of alignments": (ALIGNED, lambda n: [(4, 3, n), (4, 2, n)]),
    "rows and columns": (WARPED, lambda n: [(n, n + 2)]),
    "columns": (WARPED, lambda n: [(3, n)]),
    "steps and sequences": (CELLS, lambda n: [(n + 3, n, 5), (5, 5), (5, 5), (5,)]),
    "sequences": (CELLS, lambda n: [(7, n, 17), (17, 17), (17, 17), (17,)]),
    "states": (CELLS, lambda n: [(7, 2, n), (n, n), (n, n), (n,)]),
    "states along time": (LABELS, lambda n: [(n, n + 3)]),
    "large steps": (CELLS, lambda n: [(4 * n, n, 64), (64, 64), (64, 64), (64,)]),
    "prefixes": (PREFIXES, lambda n: [(20 * n,), (20 * n,)]),
    "a state at a place": ("h[0,i] = x[0,i]\nh[t+1,i] = h[t,i]*0.5 + h[t,1]*x[t,i]", lambda n: [(4, n)]),
}
SIZES = 7, 12, 5, 20, 2, 13


def arrays(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    rng = default_rng(len(shapes) + sum(map(sum, shapes)))
    return [(rng.normal(size=s) * 0.4).astype("float32") for s in shapes]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients(case: str) -> None:
    """What lies beyond a size is poison."""
    text, shapes = CASES[case]
    with guarded_memory() as guards:
        subject = Subject(case, es.op(text), lambda n: arrays(shapes(n)))
        assert compare(subject, SIZES, "shared", guards) >= len(SIZES) - 2


@pytest.fixture
def plans(monkeypatch) -> list[Plan]:
    """The plans of programs that sizes share."""
    out: list[Plan] = []
    limit_rows = pipeline.limit_rows

    def observe(plan: Plan, limits: Any) -> Plan:
        out.append(limit_rows(plan, limits))
        return out[-1]

    monkeypatch.setenv("EINSMITH_PLANS", "0")
    monkeypatch.setattr(pipeline, "limit_rows", observe)
    return out


def planned(case: str, is_gradient: bool, plans: list[Plan]) -> tuple[Plan, set[int]]:
    """The plan of all sizes, and the extents that vary of its arrays."""
    text, shapes = CASES[case]
    f: Any = es.op(text)
    if is_gradient:
        f = es.grad(lambda *xs, f=f: (f(*xs) ** 2).sum(), argnums=tuple(range(len(shapes(3)))))
    shared = es.jit(f, sizes="shared")
    for n in (17, 23):
        shared(*arrays(shapes(n)))
    varying = {n for s in CASES[case][1](23) for n in s} - {n for s in shapes(17) for n in s}
    inputs = [x.shape for x in plans[-1].graph.inputs]
    places = [(k, d) for k, s in enumerate(shapes(23)) for d, n in enumerate(s) if n in varying]
    return plans[-1], {inputs[k][d] for k, d in places}


def parts_of_loops(plan: Plan) -> Iterator[tuple[LoopSegment, Plan]]:
    for call in plan.calls:
        if isinstance(call, LoopCall):
            for segment, step in zip(call.loop.segments, call.plans, strict=True):
                yield segment, step
                yield from parts_of_loops(step)


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("case", ["frames and labels", "rows and columns", "steps and sequences", "sequences"])
def test_steps_end_at_the_size(case: str, is_gradient: bool, plans: list[Plan]) -> None:
    plan, extents = planned(case, is_gradient, plans)
    parts = list(parts_of_loops(plan))
    near = {n + more for n in extents for more in range(-1, 3)}
    assert all(s.stop is not None for s, _ in parts if s.steps in near and not s.body.updates)
    kernels = [
        c.kernel for _, p in parts for c in p.calls if isinstance(c, KernelCall) and extents & {*c.kernel.shape[:2]}
    ]
    kernels = [k for k in kernels if any(b.dtype.is_float for b in k.buffers)]  # tables of positions are whole
    assert all(map(limits_of, kernels)) and (kernels or case == "rows and columns")


def test_a_state_that_is_read_at_a_place_has_no_limit(plans: list[Plan]) -> None:
    """At a size of 1, the place would lie beyond it."""
    plan, extents = planned("a state at a place", False, plans)
    kernels = [c.kernel for _, p in parts_of_loops(plan) for c in p.calls if isinstance(c, KernelCall)]
    assert any(extents & {*k.shape} for k in kernels) and not any(map(limits_of, kernels))


def test_sums_of_several_steps_end_at_the_sequences(plans: list[Plan]) -> None:
    """Steps that share a cache are taken together, and their sums run over sequences first."""
    plan, _ = planned("large steps", True, plans)
    parts = [x for s, p in parts_of_loops(plan) if s.rows for c in p.calls for x in c.kernel.root.parts]
    sums = [p.body.extents for p in parts if isinstance(p.body, Reduce) and len(p.body.extents) == 2]
    assert sums and all(extents[0] == plan.graph.inputs[0].shape[1] for extents in sums)


def test_sums_of_several_bodies_end_together() -> None:
    """Where they end at the same number; elsewhere nothing moves."""
    rows = [Read(s, (Axis(0), Axis(2), Axis(1)), dt.f32) for s in (1, 2)]
    params = [(dt.i32, ()), *[(dt.f32, (2, 4, 3))] * 2]

    def sums(*ends: Expr) -> Template:
        kept = (apply("where", apply("lt", Axis(2), e), x, Const(0.0, dt.f32)) for e, x in zip(ends, rows, strict=True))
        return template((2,), params, Reduce("sum", (3, 4), tuple(kept)))

    number = Read(0, (), dt.i32)
    (moved,) = _end_sums(sums(number, number)).parts
    assert moved.body.extents == (4, 3)
    apart = sums(number, Const(2, dt.i32))
    assert _end_sums(apart) is apart
