"""Tensors in other orders of their dimensions: what buffers become, whole programs in orders drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.base.arrays import to_array
from einsmith.base.errors import VerifyError
from einsmith.driver.executable import Executable
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.kernel import KernelBuffer, row_major
from einsmith.schedule.layout import forced
from einsmith.schedule.layout.apply import LayoutDecision, apply_layouts, free_tensors
from einsmith.schedule.layout.dimension_orders import (
    block_of,
    candidates,
    find_crossing,
    in_blocks,
    innermost,
    name_of,
    placement_of,
    relocate,
    row_major_order,
    strides,
)
from einsmith.schedule.plan import LayoutChoice
from einsmith.schedule.planner import fuse
from tests.fuzz.check import agree
from tests.programs import program_of

# -------------------------------------------------------------------------------------------------------------- orders


def test_candidates_put_one_dimension_inside():
    assert candidates((2, 3, 4, 5)) == [(0, 1, 2, 3), (0, 2, 3, 1), (1, 2, 3, 0), (0, 1, 3, 2)]
    assert candidates((2, 3)) == [(0, 1), (1, 0)]
    assert candidates((1, 3, 4, 4)) == [(0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 3, 1)], "a batch of one lies anywhere"
    assert candidates((7,)) == [(0,)] and candidates(()) == [()] and candidates((1, 9, 1)) == [(0, 1, 2)]
    assert candidates((2, 1, 3, 4)) == [(0, 1, 2, 3), (0, 1, 3, 2), (1, 2, 3, 0)]


def test_candidates_put_channels_in_blocks():
    """Where the channels fill several blocks, and images have pixels."""
    assert [block_of(o) for o in candidates((2, 128, 5, 5))[4:]] == [(1, n) for n in (4, 8, 16, 32, 64, 4)]
    assert candidates((2, 8, 5, 5))[-1] == (1, 2, 3, 0, (1, 4)), "CHWN4"
    assert [block_of(o) for o in candidates((1, 16, 1, 7))[2:]] == [(1, 4), (1, 8)]
    assert [block_of(o) for o in candidates((1, 24, 1, 7))[2:]] == [(1, 4), (1, 8)]
    for shape in ((2, 6, 5, 5), (2, 4, 5, 5), (2, 16, 1, 1), (8, 16, 5), (16, 16)):
        assert all(block_of(o) is None for o in candidates(shape)), shape


def test_names():
    shape = (2, 3, 4, 5)
    assert [name_of(shape, o) for o in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0))] == [
        "as is", "dimension 1 innermost", "dimensions in the order 3, 2, 1, 0",
    ]  # fmt: skip
    assert name_of((2, 8, 4, 5), in_blocks((2, 8, 4, 5), 1, 4)) == "dimension 1 in blocks of 4"


def addresses(buffer: KernelBuffer, first: int) -> np.ndarray:
    """Of each element, where it lies."""
    at = np.full(buffer.shape, first)
    for d, s in enumerate(buffer.strides):
        at += s * np.arange(buffer.shape[d]).reshape([-1 if x == d else 1 for x in range(len(buffer.shape))])
    return at


def random_buffer(rng: random.Random, shape: tuple[int, ...]) -> tuple[KernelBuffer, int]:
    """A view or a slice of a tensor: dimensions taken together or apart, of some only the positions of a part, in steps
    too; and the element where it begins."""
    found = list(zip(shape, row_major(shape), strict=True))
    for d in reversed(range(1, len(found))):
        if rng.random() < 0.3:  # one dimension with the one before it
            (m, _), (n, s) = found[d - 1], found[d]
            found[d - 1 : d + 1] = [(m * n, s)]
    for d in reversed(range(len(found))):
        n, s = found[d]
        if rng.random() < 0.3 and n % 2 == 0:
            found[d : d + 1] = [(n // 2, 2 * s), (2, s)]
    first = 0
    for d, (n, s) in enumerate(found):
        start, step = rng.randrange(n) if rng.random() < 0.3 else 0, rng.choice([1, 1, 1, 2])
        found[d] = (max(1, (n - start) // step), s * step)
        first += start * s
    return KernelBuffer(dt.f32, tuple(n for n, _ in found), False, tuple(s for _, s in found)), first


def test_moved_buffers_hold_the_same_elements():
    """Against the addresses of all elements: the same ones where there are strides, and None where there are none."""
    rng, none, some = random.Random(0), 0, 0
    for _ in range(3000):
        shape = tuple(rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randrange(1, 5)))
        order = rng.choice(list(permutations(range(len(shape)))))
        buffer, first = random_buffer(rng, shape)
        there = np.arange(np.prod(shape)).reshape(shape).transpose(order).reshape(-1).argsort()  # old place -> new one
        want = there[addresses(buffer, first)]
        found = relocate(buffer, first, placement_of(tuple(shape), order))
        if found is not None:
            some += 1
            np.testing.assert_array_equal(addresses(*found), want)
            continue
        none += 1
        steps = [np.diff(want, axis=d) for d in range(want.ndim)]
        even = all(np.unique(s).size <= 1 for s in steps)
        positive = all(s.min(initial=1) > 0 for s in steps)
        assert not even or not positive, f"{buffer.shape} of {shape} in {order}: it has strides"
    assert none > 300 and some > 1000


def test_buffers_of_tensors_in_blocks():
    """Against the addresses of all elements, once the dimension that passes from block to block is split; without
    strides only where a dimension does not begin and end with a block, or is merged with another."""
    rng, apart, some = random.Random(1), 0, 0
    for _ in range(3000):
        shape = tuple(rng.choice([1, 2, 3, 4]) for _ in range(rng.randrange(1, 4)))
        d, points = rng.randrange(len(shape)), rng.choice([2, 3, 4])
        shape = (*shape[:d], points * rng.randrange(1, 4), *shape[d + 1 :])
        order = in_blocks(shape, d, points)
        buffer, first = random_buffer(rng, shape)
        blocks = (*shape[:d], shape[d] // points, points, *shape[d + 1 :])
        inner = (*(x for x in range(len(blocks)) if x != d + 1), d + 1)
        there = np.arange(np.prod(shape)).reshape(blocks).transpose(inner).reshape(-1).argsort()
        split = find_crossing(buffer, first, placement_of(tuple(shape), order))
        want = there[addresses(buffer, first)]
        found = relocate(buffer if split is None else buffer.split(*split), first, placement_of(tuple(shape), order))
        apart += split is not None
        if found is not None:
            some += 1
            np.testing.assert_array_equal(addresses(*found).reshape(want.shape), want)
        else:
            whole = buffer.shape == shape and buffer.strides == row_major(shape) and first == 0
            assert not whole, f"{buffer.shape} of {shape} in {order}"
    assert apart > 300 and some > 1000


def test_dense_strides():
    assert strides((2, 3, 4, 5), innermost((2, 3, 4, 5), 1)) == (60, 1, 15, 3)
    x = KernelBuffer(dt.f32, (2, 3, 4), True)
    assert relocate(x, 0, placement_of(x.shape, row_major_order(x.shape))) == (x, 0)
    assert relocate(x, 0, placement_of(x.shape, (0, 2, 1))) == (KernelBuffer(dt.f32, (2, 3, 4), True, (12, 1, 3)), 0)


# ------------------------------------------------------------------------------------------------------------ programs


def drawn(seed: int, blocks: bool = False) -> tuple[forced.Rule, list[int]]:
    """A rule that draws orders, and how many tensors it leaves as they are and how many not.

    blocks: most of the orders that are drawn have channels in blocks, where a tensor may have such orders."""
    rng, counts = random.Random(seed), [0, 0]

    def rule(t, orders):
        blocked = [o for o in orders if block_of(o)]
        order = rng.choice(blocked if blocks and blocked and rng.random() < 0.7 else orders)
        counts[order != orders[0]] += 1
        return order

    return rule, counts


CASES: dict[str, tuple[Callable, list[tuple[int, ...]]]] = {
    "convolutions": (
        lambda x, w, v: es.functional.conv2d(es.functional.relu(es.functional.conv2d(x, w, padding=1)), v, stride=2)
        .sum((2, 3)),
        [(3, 4, 9, 11), (8, 4, 3, 3), (5, 8, 3, 3)],
    ),
    "depthwise and pooled": (
        lambda x, w, v: es.functional.max_pool2d(
            es.functional.conv2d(es.functional.conv2d(x, w, padding=1, groups=6), v), 2
        ).sum((2, 3)),
        [(2, 6, 12, 10), (6, 1, 3, 3), (7, 6, 1, 1)],
    ),
    "shuffled channels": (
        lambda x, w, v: es.functional.conv2d(
            es.functional.conv2d(x, w, groups=3).reshape(2, 3, 4, 7, 5).transpose(0, 2, 1, 3, 4).reshape(2, 12, 7, 5),
            v, groups=2,
        ).sum((2, 3)),
        [(2, 9, 7, 5), (12, 3, 1, 1), (8, 6, 1, 1)],
    ),
    "flattened": (
        lambda x, w, v: es.functional.relu(es.functional.conv2d(x, w)).reshape(3, 5 * 6 * 6) @ v,
        [(3, 2, 8, 8), (5, 2, 3, 3), (180, 7)],
    ),
    "attention": (
        lambda q, k, v: (es.functional.softmax(q @ k.transpose(0, 2, 1), 2) @ (v @ v.transpose(0, 2, 1)) @ v),
        [(3, 10, 8), (3, 10, 8), (3, 10, 8)],
    ),
    "rows": (
        lambda x, w, v: es.functional.softmax(es.functional.layer_norm(x @ w, (24,)), 2) @ v,
        [(4, 9, 16), (16, 24), (24, 6)],
    ),
    "a recurrence": (
        es.op("h[t,b,k] = tanh(x[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], 0)*U[j,k]))\n"
              "g[t,b,k] = h[t,b,k]*h[t,b,k] + h[t,b,0]\ny[b,k] = sum[t](g[t,b,k]*exp(g[t,b,k] + V[b,k]))\nreturn y"),
        [(6, 3, 8), (8, 8), (3, 8)],
    ),
}  # fmt: skip


def with_gradients(f, shapes, rng):
    """A function of three arrays with its gradients, traced; random arrays; and these with what the trace binds."""
    arrays = [rng.standard_normal(s) * 0.3 for s in shapes]
    graph = trace_call(es.value_and_grad(lambda *xs: (f(*xs) * f(*xs)).sum(), tuple(range(3))), tuple(arrays), {})
    given = [to_array(a) for a in arrays]
    inputs = [*given, *(graph.bind[x] for x in graph.graph.inputs[len(given) :])]
    return graph, given, inputs


@pytest.mark.thinned(12)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_programs_in_any_orders(case, seed, rng):
    """A function and its gradients, against the evaluator, on both numbers of threads."""
    graph, given, inputs = with_gradients(*CASES[case], rng)
    rule, counts = drawn(seed)
    for threads in (1, 2):
        with forced.forcing(rule):
            run = Executable(graph.graph, graph.bind, threads)
        result, again = run(given)[1], run(given)[1]
        agree(result, graph.graph, inputs, f"{case}, {threads} threads")
        assert all(a.tobytes() == b.tobytes() for a, b in zip(result, again, strict=True))
    assert counts[1] or case == "a recurrence"


F = es.functional
IN_BLOCKS: dict[str, tuple[Callable, list[tuple[int, ...]]]] = {
    "convolutions": (
        lambda x, w, v: F.conv2d(F.relu(F.conv2d(x, w, padding=1)), v, stride=2).sum((2, 3)),
        [(3, 5, 9, 7), (32, 5, 3, 3), (8, 32, 3, 3)],
    ),
    "depthwise, pooled, with a residual": (
        lambda x, w, v: F.conv2d(F.max_pool2d(F.conv2d(x, w, padding=1, groups=64) + x, 2), v).sum((2, 3)),
        [(2, 64, 8, 6), (64, 1, 3, 3), (7, 64, 1, 1)],
    ),
    "groups": (
        lambda x, w, v: F.relu(F.conv2d(F.conv2d(x, w, groups=2), v, groups=4)).mean((2, 3)),
        [(2, 16, 7, 5), (32, 8, 1, 1), (16, 8, 1, 1)],
    ),
    "concatenated": (
        lambda x, w, v: F.conv2d(F.cat([F.relu(F.conv2d(x, w)), F.tanh(x)], 1), v, padding=1).sum((2, 3)),
        [(2, 16, 5, 4), (32, 16, 1, 1), (8, 48, 3, 3)],
    ),
    "one image": (
        lambda x, w, v: F.conv2d(F.avg_pool2d(F.tanh(F.conv2d(x, w, padding=2)), 2), v, padding=1).sum((2, 3)),
        [(1, 8, 6, 6), (16, 8, 5, 5), (8, 16, 3, 3)],
    ),
}  # fmt: skip


@pytest.mark.thinned(6)
@pytest.mark.parametrize("case", IN_BLOCKS)
def test_programs_with_channels_in_blocks(case, rng):
    """A function and its gradients, against the evaluator."""
    graph, given, inputs = with_gradients(*IN_BLOCKS[case], rng)
    blocked = 0
    for seed in range(3):
        with forced.forcing(drawn(seed, blocks=True)[0]):
            run = Executable(graph.graph, graph.bind, 2)
        agree(run(given)[1], graph.graph, inputs, case)
        blocked += sum(block_of(x.order) is not None for x in run.plan.orders.values())
    assert blocked >= 2


def trained(seed: int | None, limit: int | None = None, rounds: int = 2) -> tuple[list[np.ndarray], es.TrainStep]:
    """Losses and what is learned in a few steps of a network of images."""

    class Net(es.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = es.nn.Conv2d(2, 6, 3, padding=1)
            self.blocks = es.nn.ModuleList([es.nn.Conv2d(6, 6, 3, padding=1) for _ in range(2)])
            self.norms = es.nn.ModuleList([es.nn.BatchNorm2d(6) for _ in range(2)])
            self.last = es.nn.Linear(6 * 6 * 5, 4)

        def forward(self, x):
            x = self.first(x)
            for block, norm in zip(self.blocks, self.norms, strict=True):
                x = x + es.functional.relu(norm(block(x)))
            return self.last(es.functional.max_pool2d(x, 2).reshape(x.shape[0], 180))

    es.manual_seed(3)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 2, 12, 10)).astype("f"), rng.integers(0, 4, 5)
    descent = es.optim.SGD(lr=0.05, momentum=0.9)
    step = es.TrainStep(Net(), es.functional.cross_entropy, descent, memory_limit=limit, threads=2)
    with forced.forcing((lambda t, orders: orders[0]) if seed is None else drawn(seed)[0]):
        losses = [float(step(x, y)) for _ in range(rounds)]
    return [np.array(losses), *(np.array(v) for v in step.model.state_dict().values())], step


def close(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", range(3))
def test_training_steps_in_any_orders(seed):
    got, step = trained(seed)
    assert "innermost" in step.plan or any(run.plan.orders for run in step.compiler.programs.values())
    close(got, trained(None)[0])


def test_as_is_is_bitwise_what_it_was():
    """Orders that change nothing leave the kernels as they are."""
    want, step = trained(None)
    (run,) = step.compiler.programs.values()
    assert not run.plan.orders
    assert apply_layouts(run.plan, lambda plan: LayoutDecision()).calls == run.plan.calls
    for a, b in zip(want, trained(None)[0], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_memory_limits_in_any_orders():
    """What is computed again lies as it did: bitwise the results without a limit."""
    want, free_step = trained(1)
    (run,) = free_step.compiler.programs.values()
    got, step = trained(1, run.held_bytes - run.arena_bytes // 8)
    (limited,) = step.compiler.programs.values()
    assert limited.plan.orders and limited.arena_bytes < run.arena_bytes
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_checked_runs_in_any_orders(monkeypatch):
    monkeypatch.setenv("EINSMITH_CHECK", "2")
    close(trained(2, rounds=1)[0], trained(None, rounds=1)[0])


def test_another_order_is_no_place_to_write_over(monkeypatch):
    """A result may lie over what is read at the same element only where the two lie alike."""
    monkeypatch.setenv("EINSMITH_WITHOUT", "join products")
    x, v, w = np.random.default_rng(1).standard_normal((3, 33, 33))
    for first, count in (((0, 0), 1), ((1, 1), 1), ((0, 1), 0), ((1, 0), 0)):
        numbers = iter(first)
        with forced.forcing(lambda t, orders, numbers=numbers: orders[next(numbers)]):
            run = es.jit(lambda x, v, w: es.functional.tanh(x @ v + x @ w) @ w)
            got = run(x, v, w)
        np.testing.assert_allclose(got, np.tanh(x @ v + x @ w) @ w, rtol=1e-9, atol=1e-9)
        made = program_of(run)
        assert sum(life.overwrites is not None for life in made.lives()) == count


def test_tensors_that_keep_row_major_order():
    """Inputs, results, parameters and what loops see; an order that a view has no strides for is refused."""
    x, w = np.ones((3, 4, 5)), np.ones((20, 7))
    graph = trace_call(lambda x, w: es.functional.exp((x + 1).reshape(3, 20) @ w) @ w.transpose(1, 0), (x, w), {}).graph
    plan = fuse(run_passes(graph))
    found = free_tensors(plan)
    assert found and not {*graph.inputs, *plan.graph.outputs} & {*found}
    wide = [t for t in found if t.shape == (3, 4, 5)]
    for t in wide:
        with pytest.raises(VerifyError, match="no strides"):
            apply_layouts(plan, lambda _, t=t: LayoutDecision({t: LayoutChoice((2, 0, 1))}))


NETWORKS: dict[str, tuple[dict, tuple[int, ...], Callable]] = {
    "mobilenet_v2": (
        {"width": 0.125, "blocks": [(1, 32, 1, 1), (3, 64, 2, 2)], "dropout": 0.0, "divisor": 4, "last": 24,
         "classes": 5}, (3, 3, 9, 9), es.functional.cross_entropy,
    ),
    "shufflenet_v1": (
        {"stages": [(24, 2), (36, 1)], "stem": 6, "classes": 5}, (3, 3, 17, 17), es.functional.cross_entropy,
    ),
    "squeezenet": (
        {"width": 0.125, "fires": 3, "dropout": 0.0, "version": "1_1", "classes": 5}, (3, 3, 20, 20),
        es.functional.cross_entropy,
    ),
    "resnet18": ({"depths": (2, 1), "width": 3, "classes": 5}, (3, 3, 17, 17), es.functional.cross_entropy),
    "capsulenet": (
        {"classes": 3, "filters": 4, "capsules": 2, "width": 3, "features": 5, "size": 19}, (3, 1, 19, 19),
        es.functional.margin_loss,
    ),
    "unet": (
        {"classes": 3, "depth": 2, "width": 3, "channels": 2, "padding": 1}, (2, 2, 12, 8),
        es.functional.cross_entropy,
    ),
    "vit_small": (
        {"classes": 5, "width": 6, "layers": 1, "heads": 3, "inner": 9, "size": 8, "patch": 4}, (3, 3, 8, 8),
        es.functional.cross_entropy,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_any_orders(name, rng):
    """Two steps in float64, in which sums in another order differ by little."""
    arguments, shape, loss = NETWORKS[name]
    x = rng.standard_normal(shape)
    y = rng.integers(0, 3, (shape[0], *(shape[2:] if name == "unet" else ())))

    def steps(rule: forced.Rule) -> list[np.ndarray]:
        es.manual_seed(1)
        model = es.models.get(name, **arguments, dtype="float64")
        step = es.TrainStep(model, loss, es.optim.SGD(lr=0.02, momentum=0.9), threads=2)
        with forced.forcing(rule):
            losses = [float(step(x, y)) for _ in range(2)]
        return [np.array(losses), *(np.array(v) for v in model.state_dict().values())]

    want = steps(lambda t, orders: orders[0])
    for seed in range(2):
        rule, counts = drawn(seed)
        for a, b in zip(steps(rule), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-10)
        assert counts[1] > 10
