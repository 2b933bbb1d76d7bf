"""What is chosen to be one kernel, against every legal partition, by the prices that `einsmith explain` shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith.api.tracing import trace_shapes
from einsmith.base import dtypes as dt
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Compute, Graph, nbytes, postorder
from einsmith.ir.views import storage
from einsmith.kernels.autoconfig import predicted
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.options import ROW_PRICES
from einsmith.schedule.planner import fuse
from einsmith.schedule.residency import plan_seconds
from tests.passes.drawn_graphs import drawn
from tests.passes.partitions import Best, chosen, seconds_of, unfused
from tests.passes.test_passes import run_plan

TARGET = Target(cpu="x86-64-v3", features="", triple="x86_64-unknown-linux-gnu", cores=2)
MEDIAN, MOST = 1.05, 1.45
"""How many times as long as the best partition the chosen one may take: in the median, and in nine of ten cases."""


def off(graph: Graph, best: Best) -> float:
    """How many times as long as the best partition the chosen one takes."""
    return seconds_of(chosen(graph, TARGET), best.price) / best.of(graph)[0]


@pytest.mark.parametrize("count", [15, pytest.param(30, marks=pytest.mark.slow)])
def test_random_graphs(count):
    """The small ones of those that `tests.passes.partition_costs` draws."""
    graphs = [g for g in map(drawn, range(count)) if sum(isinstance(n, Compute) for n in postorder(g.roots)) <= 6]
    found = sorted(off(g, Best(TARGET)) for g in graphs)
    assert min(found) > 0.999  # what is chosen is one of those that are looked at
    assert statistics.median(found) <= MEDIAN
    assert found[len(found) * 9 // 10] <= MOST


def step(f: Callable, *shapes: tuple[int, ...]) -> Graph:
    """The result of a function and all gradients, of a given cotangent: forward and backward in one graph."""
    count = len(shapes)

    def both(*args: Any) -> Any:
        *xs, g = args
        gradients = es.grad(lambda *xs: (f(*xs) * g).sum(), tuple(range(count)))(*xs)
        return f(*xs), *gradients

    result = trace_shapes(f, [(s, dt.f32) for s in shapes]).graph.outputs[0].shape
    return trace_shapes(both, [(s, dt.f32) for s in (*shapes, result)]).graph


ONE_MANY = {
    "one, one": (lambda a: F.tanh(F.exp(a)), 1),
    "one, many": (lambda a, b: F.tanh(F.exp(a)) * b, 2),
    "many, one": (lambda a, b: F.tanh(a * b + a), 2),
    "many, many": (lambda a, b, c: F.tanh(a * b + a) * c + b, 3),
}
"""An operator behind another one, each of one operand or of several (the paper's four cases)."""


@pytest.mark.parametrize("shape", [(1, 7), (24, 40), (512, 384), (4096, 768)])
@pytest.mark.parametrize("case", ONE_MANY)
def test_operators_of_one_operand_or_many(case, shape):
    """What stands between two operators is stored neither by the forward pass nor by the backward pass: both are one
    kernel, which reads what is given and writes what is asked for. Of one operand each, they move four tensors less."""
    f, count = ONE_MANY[case]
    graph = step(f, *[shape] * count)
    (call,) = chosen(graph, TARGET).calls
    assert {storage(t) for t in call.tensors} == {*graph.inputs, *chosen(graph, TARGET).graph.outputs}
    alone = [n for n in postorder(unfused(graph).roots) if isinstance(n, Compute)]
    apart = sum(sum(map(nbytes, n.args)) + nbytes(n) for n in alone)
    assert apart - sum(map(nbytes, call.tensors)) >= 4 * nbytes(graph.inputs[0])


def test_products_stay_apart():
    """Many and many, of which each reads what it reads often: a product would be computed again for every reader's
    element."""
    graph = step(lambda a, b, c: (a @ b) @ c, (64, 48), (48, 32), (32, 40))
    assert len(chosen(graph, TARGET).calls) >= 5


SOFTMAX = "m[i] = max[k](x[i,k])\ns[i] = sum[k](exp(x[i,k] - m[i]))\ny[i,k] = exp(x[i,k] - m[i])/s[i]\nreturn y"


@pytest.mark.parametrize("l1, dear, members", [(1 << 15, 1, [3]), (64, 4, [3]), (64, 3, [2, 1]), (64, 2, [1, 1, 1])])
def test_kernels_with_long_rows_are_joined_where_that_takes_less_time(l1, dear, members):
    """By prices alone, where those of `dear` members and more take as long as four kernels: two of three are joined
    where all would take too long; short rows can be joined at any price."""
    graph = run_passes(trace_shapes(es.op(SOFTMAX), [((40, 50), dt.f32)]).graph)

    def cost(kernel: Kernel, target: Target) -> float:
        return 4.0 if isinstance(kernel, Rows) and len(kernel.members) >= dear else 1.0

    plan = fuse(graph, None, replace(TARGET, l1=l1), cost=cost, without={ROW_PRICES})
    assert [len(c.parts) or 1 for c in plan.calls] == members
    plan = fuse(graph, None, replace(TARGET, l1=l1), cost=cost)
    assert [len(c.parts) or 1 for c in plan.calls] == (members if l1 == 64 else [1, 1, 1])
    x = np.random.default_rng(0).standard_normal((40, 50))
    got = run_plan(plan, {graph.inputs[0]: x})[plan.graph.outputs[0]]
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-10)


@pytest.mark.parametrize("image", [(28, 28), (112, 112)])
def test_norms_and_pooling_take_no_longer_than_apart(image):
    """Of one image between two products: the planes of a large one are in no first level of cache."""
    target = replace(TARGET, vector_bytes=64, vector_registers=32)

    def f(x, w, scale, v):
        x = F.conv2d(x, w)
        mean = F.mean(x, (0, 2, 3), keepdim=True)
        y = F.relu((x - mean) * F.rsqrt(F.mean((x - mean) ** 2, (0, 2, 3), keepdim=True) + 1e-5) * scale[:, None, None])
        return F.conv2d(F.max_pool2d(y, 3, 2, 1), v)

    graph = run_passes(step(f, (1, 64, *image), (64, 64, 1, 1), (64,), (64, 64, 1, 1)), PassContext(target, predicted))
    plans = fuse(graph, None, target), fuse(graph, None, target, cost=predicted)
    joined, priced = (plan_seconds(p, predicted, target) for p in plans)
    assert priced <= joined
