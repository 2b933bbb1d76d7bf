"""Orders chosen by a cost model: the least of all assignments, copies where they pay, nothing where nothing gains."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.arrays import to_array
from einsmith.base.errors import MemoryLimitError, VerifyError
from einsmith.codegen.cache import native
from einsmith.cost.facts import LayoutRules, Target
from einsmith.driver import registry
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import Tensor
from einsmith.kernels.autoconfig import predicted
from einsmith.passes.pipeline import run_passes
from einsmith.schedule import pipeline
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.layout import choice
from einsmith.schedule.layout.apply import (
    LayoutCopy,
    LayoutDecision,
    apply_layouts,
    converter,
    free_tensors,
    loop_invariant_operands,
)
from einsmith.schedule.layout.dimension_orders import candidates
from einsmith.schedule.layout.folded import folded_sets
from einsmith.schedule.layout.price import Prices
from einsmith.schedule.plan import KernelCall, LayoutChoice, LoopCall, Order, Plan
from einsmith.schedule.planner import fuse
from tests.fuzz.check import agree

F = es.functional
MARGIN, MARGIN_OF_SUMS = Target.layouts[:2]
PROGRAMS: dict[str, tuple[Callable, list[tuple[int, ...]]]] = {
    "products": (lambda a, b, c: F.tanh(F.tanh(a @ b) @ c) @ b, [(4, 5), (5, 6), (6, 5)]),
    "a sum of branches": (lambda a, b, c: (F.tanh(a @ b) @ c + a) @ b, [(4, 5), (5, 6), (6, 5)]),
    "a convolution": (lambda a, b, c: F.relu(F.conv2d(a, b)).sum(1) @ c, [(2, 3, 5, 4), (2, 3, 3, 3), (2, 3)]),
}


def plan_of(name: str, gradients: bool) -> Plan:
    f, shapes = PROGRAMS[name]
    arrays = tuple(np.ones(s) for s in shapes)
    whole = es.grad(lambda *xs: f(*xs).sum(), (0, 1, 2)) if gradients else f
    return fuse(run_passes(trace_call(whole, arrays, {}).graph))


def drawn(seed: int, cheap: float = 1.0) -> Callable[[Kernel], float]:
    """A model that draws what a kernel costs, by its digest; `cheap`: copies cost so many times that."""

    def seconds(kernel: Kernel) -> float:
        copies = not isinstance(kernel, Rows) and len(kernel.buffers) == 2 and len(kernel.stages) == 1
        row_major = all(b.row_major for b in kernel.buffers)
        rng = random.Random(f"{seed}/{kernel.digest.hex()}")
        return rng.uniform(1, 2) * (1 if row_major else 0.7) * (cheap if copies and not row_major else 1)

    return seconds


@pytest.fixture
def asking(monkeypatch):
    """Everything may be asked, and whatever might gain is looked at."""
    rules = LayoutRules(MARGIN, MARGIN, gain_queries=10**6, small_operand=10**6, small_filter=10**6)
    monkeypatch.setattr(Target, "layouts", rules)
    monkeypatch.setattr(Prices, "lower_bound", lambda self, call, closely=False: 0.0)


def seconds_of(plan: Plan, seconds: Callable[[Kernel], float], given: Plan) -> float:
    """What a plan costs by a model: kernels that are not as they were in the one that is given count more."""
    before = {c.kernel for _, c, _ in given.kernel_calls()}
    return sum(seconds(c.kernel) * (1 if c.kernel in before else 1 + MARGIN) for _, c, _ in plan.kernel_calls())


def enumerated(plan: Plan, seconds: Callable[[Kernel], float]) -> float:
    """The least of every assignment of orders and copies, by costs of calls alone."""
    prices = Prices(seconds, Target())
    calls = [c for c in plan.calls if isinstance(c, KernelCall)]
    sets = folded_sets(calls, free_tensors(plan))
    read: list[Tensor] = []
    for c in calls:
        written = [t for t, w in zip(c.tensors, c.written, strict=True) if w]
        read += [t for t in c.tensors if t not in written and t not in read and len(candidates(t.shape)) > 1]
    own = {t: n for n, x in enumerate(sets) for t in x}
    best = inf

    def ask(call: KernelCall, orders: dict[Tensor, int]) -> float:
        found = {t: candidates(t.shape)[k] for t, k in orders.items() if k}
        return prices.query(call, found) if found else prices.now(call)

    for values in product(*(range(len(candidates(x[0].shape))) for x in sets)):
        stored = {t: values[n] for t, n in own.items()}
        for copied in product(*(range(len(candidates(t.shape))) for t in read)):
            copies = {t: k for t, k in zip(read, copied, strict=True) if k}
            total = 0.0
            for t, k in copies.items():
                move = choice.converter(t)
                total += ask(move, {t: stored.get(t, 0), move.tensors[1]: k})
            for c in calls:
                written = [t for t, w in zip(c.tensors, c.written, strict=True) if w]
                mine = list(dict.fromkeys(t for t in c.tensors if t in stored or t in copies))
                ways = [{stored.get(t, 0), *([copies[t]] if t in copies and t not in written else [])} for t in mine]
                total += min(ask(c, dict(zip(mine, way, strict=True))) for way in product(*ways))
            best = min(best, total)
    return best


def test_tables_of_calls(rng):
    """Against the cheapest way of every assignment, with several tensors of one variable and copies of some."""
    plan = plan_of("a convolution", False)
    call = next(c for c in plan.calls if isinstance(c, KernelCall))
    images = [t for t in call.tensors if len(t.shape) == 4]
    n = len(candidates(images[0].shape))
    for stored, copies in (((0, 0), (1, 2)), ((0, None), (2, 1)), ((1, 1), (None, 0)), ((None, None), (0, 1))):
        seen = [choice.SeenTensors((images[0],), v, c) for v, c in zip(stored, copies, strict=True)]
        node = choice.CostNode(call, seen, 1.0, 0.5)
        assert node.cheapest([0, 0, 0]) == (0, 0) and not node.known[1, 1]
        for way in product(range(n), repeat=2):
            if any(way):
                node.learn(way, rng.random() * 2)
        table = node.table()
        assert set(table.over) == {v for v in (*stored, *copies) if v is not None}
        for values in product(range(n), repeat=3):
            assert table.costs[tuple(values[v] for v in table.over)] == node.costs[node.cheapest(values)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seeds", [8, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name, gradients", [("products", False), ("a sum of branches", False)])
def test_no_assignment_costs_less(name, gradients, seeds, asking):
    """Random costs of kernels, all orders and copies enumerated."""
    plan, changed, copied = plan_of(name, gradients), 0, 0
    for seed in range(seeds):
        seconds = drawn(seed, cheap=0.1 if seed % 2 else 1.0)
        found = apply_layouts(plan, lambda p, s=seconds: choice.decide_orders(p, Prices(s, Target())))
        assert seconds_of(found, seconds, plan) == pytest.approx(enumerated(plan, seconds)), seed
        changed += bool(found.orders)
        copied += bool(found.originals)
    assert changed > seeds // 2 and copied > seeds // 8


def test_next_best_is_what_it_would_cost_more(asking):
    plan = plan_of("products", True)
    for seed in range(5):
        seconds = drawn(seed)
        decided = choice.decide_orders(plan, Prices(seconds, Target()))
        assert decided.orders
        for t, laid in decided.orders.items():
            assert laid.more >= 0 and laid.runner_up in candidates(t.shape) and laid.runner_up != laid.order


@pytest.mark.thinned(6)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_copies_in_other_orders(name, gradients, asking, monkeypatch, rng):
    """What costs drawn at random lead to, copies of inputs, parameters and results too, computes the same."""
    f, shapes = PROGRAMS[name]
    arrays = [rng.standard_normal(s) for s in shapes]
    whole = es.value_and_grad(lambda *xs: f(*xs).sum(), (0, 1, 2)) if gradients else f
    traced = trace_call(whole, tuple(arrays), {})
    given = [to_array(a) for a in arrays]
    inputs = [*given, *(traced.bind[x] for x in traced.graph.inputs[len(given) :])]
    copies = 0
    monkeypatch.setattr(choice, "MAX_TABLE_ENTRIES", 1 << 8)
    for seed in range(2):
        monkeypatch.setattr(
            pipeline,
            "layouts_of",
            lambda _, __, t, s=seed: lambda p: choice.decide_orders(p, Prices(drawn(s, 0.05), t)),
        )
        run = Executable(traced.graph, traced.bind, 2)
        assert run.plan.orders and len(run.roles) == len(run.calls) and run.describe()
        copies += len(run.plan.originals)
        agree(run(given)[1], traced.graph, inputs, f"{name}, costs {seed}")
    assert copies


def test_plans_with_the_same_kernels_are_compiled_once(monkeypatch):
    """Where orders of known cost are noted, but not chosen."""
    f, shapes = PROGRAMS["products"]
    traced = trace_call(f, tuple(np.ones(s) for s in shapes), {})
    backend = registry.backend_of(registry.DEFAULT.target(1))
    counts, compiling = [], type(backend).compile
    monkeypatch.setattr(
        type(backend), "compile", lambda self, kernels, target: [counts.append(1), compiling(self, kernels, target)][1]
    )
    noted = LayoutChoice((0, 1), (1, 0), 1e-6)
    monkeypatch.setattr(
        pipeline, "layouts_of", lambda *_: lambda p: LayoutDecision(unchanged=dict.fromkeys(free_tensors(p), noted))
    )
    run = Executable(traced.graph, traced.bind, 1)
    assert set(run.plan.unchanged_orders.values()) == {noted} and len(counts) == 1


def test_checked_copies(asking, monkeypatch, rng):
    """Copies under a check of what lies between kernels, of parameters that the program updates too."""
    monkeypatch.setenv("EINSMITH_CHECK", "2")
    x, y = rng.standard_normal((7, 12)).astype("f"), rng.integers(0, 5, 7)

    def steps() -> list[float]:
        es.manual_seed(1)
        model = es.nn.Sequential(es.nn.Linear(12, 9), es.nn.Tanh(), es.nn.Linear(9, 5))
        step = es.TrainStep(model, F.cross_entropy, es.optim.SGD(lr=0.1, momentum=0.9), threads=2)
        return [float(step(x, y)) for _ in range(3)]

    want = steps()
    monkeypatch.setattr(
        pipeline, "layouts_of", lambda _, __, t: lambda p: choice.decide_orders(p, Prices(drawn(3, 0.05), t))
    )
    np.testing.assert_allclose(steps(), want, rtol=1e-5)


RECURRENCE = es.op("h[t,b,k] = tanh(x[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], 0)*U[j,k]))\nreturn h")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("sizes", [(8, 16, 64), (16, 4, 64)])
def test_operands_packed_before_a_loop_are_not_copied(sizes, asking, monkeypatch, rng):
    """The steps' kernels know that the weights stay as they are, and may read them when no step has run."""
    steps, batch, width = sizes
    arrays = [rng.standard_normal((steps, batch, width)) * 0.3, rng.standard_normal((width, width)) * 0.1]
    traced = trace_call(RECURRENCE, tuple(arrays), {})
    given = [to_array(a) for a in arrays]
    for seed in range(2):
        monkeypatch.setattr(
            pipeline,
            "layouts_of",
            lambda _, __, t, s=seed: lambda p: choice.decide_orders(p, Prices(drawn(s, 0.05), t)),
        )
        run = Executable(traced.graph, traced.bind, 2)
        agree(run(given)[1], traced.graph, given, f"costs {seed}")
    (plan,) = {id(p): p for c in run.plan.calls if isinstance(c, LoopCall) for p in c.plans[:1]}.values()
    (call,) = [c for c in plan.calls if isinstance(c, KernelCall) and loop_invariant_operands(c)]
    (t,) = loop_invariant_operands(call)
    copy = LayoutCopy(converter(t), LayoutChoice((1, 0)), (call,))
    with pytest.raises(VerifyError, match="before the loop"):
        apply_layouts(plan, lambda _: LayoutDecision({}, (copy,)))


def test_layouts_stay_under_a_limit_of_memory(asking, monkeypatch, rng):
    """Copies to other layouts take memory, which the least limit counts: a program under a limit has the same layouts,
    so that its results are bitwise those without one."""
    arrays = list(rng.standard_normal((2, 96, 96)).astype("f"))
    whole = es.value_and_grad(lambda a, b: F.softmax(F.tanh(a @ b) @ b, 1).sum(), (0, 1))
    traced = trace_call(whole, tuple(arrays), {})
    copying = dict(seed=0)
    monkeypatch.setattr(
        pipeline,
        "layouts_of",
        lambda _, __, t: lambda p: choice.decide_orders(p, Prices(drawn(copying["seed"], 0.01), t)),
    )
    more = 0
    for copying["seed"] in range(2):
        free_run = Executable(traced.graph, traced.bind, 2)
        more += len(free_run.plan.originals) > 0
        with pytest.raises(MemoryLimitError) as refused:
            Executable(traced.graph, traced.bind, 2, memory=sum(free_run.fixed_bytes()))
        run = Executable(traced.graph, traced.bind, 2, memory=refused.value.needed)
        assert run.held_bytes <= refused.value.needed
        for a, b in zip(run(arrays)[1], free_run(arrays)[1], strict=True):
            np.testing.assert_array_equal(a, b)
    assert more


def test_sums_of_operands_in_other_orders_are_doubted_most():
    """Of what is predicted for a product: where its result lies otherwise, and where an operand does."""
    plan = plan_of("products", False)
    prices = Prices(lambda kernel: 1.0, Target())
    first, second = (c for c in plan.calls[:2] if isinstance(c, KernelCall))
    (t,) = [t for t, w in zip(first.tensors, first.written, strict=True) if w]
    assert prices.now(first) == 1.0 and prices.query(first, {t: (1, 0)}) == 1 + MARGIN
    assert prices.query(second, {t: (1, 0)}) == 1 + MARGIN_OF_SUMS


def test_nothing_is_asked_where_nothing_might_gain():
    """Products at about their peak, and programs of microseconds."""
    plan = plan_of("products", True)
    prices = Prices(lambda kernel: 1e-6, Target())
    assert not choice.decide_orders(plan, prices).orders and prices.queries == 0


def test_questions_have_a_limit(asking, monkeypatch):
    """Then what is not known is not taken; what is known and cheaper is."""
    monkeypatch.setattr(Target, "layouts", LayoutRules(gain_queries=6))
    plan = plan_of("products", True)
    for seed in range(5):
        seconds = drawn(seed)
        prices = Prices(seconds, Target())
        found = apply_layouts(plan, lambda p, s=prices: choice.decide_orders(p, s))
        assert prices.queries <= 6 + Target.layouts.loss_queries + 2 * choice.QUERIES_PER_ROUND
        assert all(x.more < inf for x in found.orders.values())
        assert seconds_of(found, seconds, plan) <= seconds_of(plan, seconds, plan)


def _has_channels_inside(order: Order) -> bool:
    """Whether the innermost points of images are channels: all of them, or those of a block."""
    last = order[-1]
    return (last[0] if isinstance(last, tuple) else last) == 1


def test_pooling_lies_with_channels_inside(rng, monkeypatch):
    """What the model finds on its own: windows in steps of five over rows that end within one. It can be left out."""

    def loss(x, w, v):
        return (F.conv2d(F.max_pool2d(F.relu(F.conv2d(x, w)), 6, 5, ceil_mode=True), v) ** 2).sum()

    shapes = (1, 16, 54, 54), (256, 16, 1, 1), (16, 256, 1, 1)
    arrays = [rng.standard_normal(s).astype("f") for s in shapes]
    traced = trace_call(es.value_and_grad(loss, (1, 2)), tuple(arrays), {})
    target = replace(native.host_target(), cores=2)
    run = Executable(traced.graph, traced.bind, 2, target=target)
    inner = {t.shape for t, x in run.plan.orders.items() if _has_channels_inside(x.order) and x.more > 0}
    assert (1, 256, 54, 54) in inner
    monkeypatch.setenv("EINSMITH_WITHOUT", "layouts")
    without = Executable(traced.graph, traced.bind, 2, target=target)
    now, then = (sum(predicted(c.kernel, target) for c in x.calls) for x in (without, run))
    assert not without.plan.orders and then < 0.9 * now
    for a, b in zip(run(arrays)[1], without(arrays)[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
