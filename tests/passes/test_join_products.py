"""Products that are added, and products of slices of one tensor, become one product; every value stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, postorder, size
from einsmith.ir.rebuild import whole_sum
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra import join_products as module
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.join_products import join_products
from einsmith.passes.algebra.read_forwarding import read_forwarding
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import PASSES, Pass
from tests.fuzz.check import compile_and_compare

F = es.functional
FEWER = PassContext(cost=lambda kernel, target: float(whole_sum(kernel.root) is not None))
"""A machine where only sums take time, and all the same."""
NEVER = PassContext(cost=lambda kernel, target: float(sum(size(p.domain) for p in kernel.root.parts)) ** 2)
"""One where a large sum takes longer than the small ones that it is made of."""


def joined(f: Callable, arrays: Sequence[np.ndarray], context: PassContext = FEWER) -> tuple[Graph, Graph]:
    """The graph of a function before and after the pass, which has the same values."""
    before = inline(read_forwarding(simplify(trace_call(f, tuple(arrays), {}).graph)))
    after = join_products(before, context)
    verify_graph(after)
    inputs = [np.asarray(a, np.float64) for a in arrays]
    for got, want in zip(evaluate(after, inputs)[0], evaluate(before, inputs)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    return before, after


def extents(graph: Graph) -> list[tuple[int, ...]]:
    """The extents of the products' axes, without those of a point."""
    pieces = [whole_sum(n.template) for n in postorder(graph.roots) if isinstance(n, Compute)]
    return sorted(p.domain for p in pieces if p is not None)


def product(g, x):
    return g.transpose(1, 0) @ x


def draw(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(s) for s in shapes]


@pytest.fixture
def always(monkeypatch):
    """Compiled programs have every product joined."""

    def run(graph: Graph, _: PassContext) -> Graph:
        return join_products(graph, FEWER)

    changed = tuple(Pass(p.name, run, p.needs) if p.name == "join products" else p for p in PASSES)
    monkeypatch.setattr("einsmith.passes.pipeline.PASSES", changed)


# --------------------------------------------------------------------------------------------------------- addends


@pytest.mark.thinned(2)
@pytest.mark.parametrize("b, m, n", [(2, 8, 9), (3, 13, 17), (2, 7, 15), (2, 7, 31)])
@pytest.mark.parametrize("count", [2, 5])
def test_products_that_are_added_are_one(always, count, b, m, n, rng):
    def run(w, *xs):
        parts = [product(*xs[i : i + 2]) for i in range(0, len(xs), 2)]
        total = parts[0] * 1
        for p in parts[1:]:
            total = total + p
        return w - 0.1 * total

    arrays = draw(rng, (m, n), *((b, m), (b, n)) * count)
    before, after = joined(run, arrays)
    assert len(extents(before)) == count and extents(after) == [(m, n, count, b)]
    assert extents(joined(run, arrays, NEVER)[1]) == extents(before)
    compile_and_compare(run, [a.astype(np.float32) for a in arrays], {}, f"{count} products {b} {m} {n}")


def test_shared_operands_and_slices_are_not_copied_and_a_copy_counts_once(rng):
    def run(v, w, x, z, *gs):
        return v + sum(product(g, x[:, t]) for t, g in enumerate(gs)), w + sum(product(g, z) for g in gs)

    priced = []

    def cost(kernel, target):
        priced.append(len(kernel.root.parts))
        return FEWER.cost(kernel, target)

    _, after = joined(run, draw(rng, (3, 5), (3, 5), (2, 3, 5), (2, 5), *[(2, 3)] * 3), PassContext(cost=cost))
    stacks = [n for n in postorder(after.roots) if isinstance(n, Compute) and len(n.template.parts) > 1]
    assert len(stacks) == 1 and extents(after) == [(3, 5, 3, 2), (3, 5, 3, 2)]
    assert priced.count(3) == 1


def test_many_products_become_several(monkeypatch, rng):
    monkeypatch.setattr(module, "_MAX_MEMBERS", 4)

    def run(w, *xs):
        return w + sum(product(*xs[i : i + 2]) for i in range(0, len(xs), 2))

    _, after = joined(run, draw(rng, (8, 9), *((2, 8), (2, 9)) * 9))
    assert extents(after) == [(8, 9, 2), (8, 9, 4, 2), (8, 9, 4, 2)]


def a_product_is_a_result(a, b, c, d):
    p = product(a, b)
    return p + product(c, d), p


def a_product_is_read_otherwise(a, b, c, d):
    p = product(a, b)
    return (p + product(c, d)) * p


def a_product_is_added_twice(a, b, c, d):
    p = product(a, b)
    return ((p + a[:1]) + p) + (product(c, d) + product(a, d))


def a_product_is_subtracted(a, b, c, d):
    return product(a, b) - product(c, d)


def a_product_is_transposed(a, b, c, d):
    return product(a, b) + product(c, d).transpose(1, 0)


REFUSED = [
    a_product_is_a_result,
    a_product_is_read_otherwise,
    a_product_is_added_twice,
    a_product_is_subtracted,
    a_product_is_transposed,
]


def test_products_of_operands_larger_than_results_stay(rng):
    """They would all be held until the last one is known."""

    def run(a, b, c, d):
        return product(a, b) + product(c, d)

    assert extents(joined(run, draw(rng, *[(2, 8), (2, 8)] * 2))[1]) == [(8, 8, 2, 2)]
    assert extents(joined(run, draw(rng, *[(5, 8), (5, 8)] * 2))[1]) == [(8, 8, 5)] * 2


@pytest.mark.parametrize("f", REFUSED, ids=lambda f: f.__name__)
def test_other_sums_of_products_stay(f, rng):
    _, after = joined(f, draw(rng, *[(2, 9)] * 4))
    assert {x[2:] for x in extents(after)} == {(2,)}


# ---------------------------------------------------------------------------------------------------------- slices


@pytest.mark.thinned(3)
@pytest.mark.parametrize("b, k, n", [(1, 2, 3), (3, 7, 17), (5, 16, 9)])
@pytest.mark.parametrize("count, step", [(2, 1), (5, 1), (3, 2)])
def test_products_of_slices_are_one(always, count, step, b, k, n, rng):
    def steps(x, w, u, v):
        y = v
        for t in range(count):
            y = F.tanh(y @ u + x[:, 1 + step * t] @ w)
        return y

    arrays = draw(rng, (b, 2 + step * count, k), (k, n), (n, n), (b, n))
    before, after = joined(steps, arrays)
    assert extents(before).count((b, n, k)) == count
    assert (count, b, n, k) in extents(after) and len(extents(after)) == count + 1
    assert extents(joined(steps, arrays, NEVER)[1]) == extents(before)
    compile_and_compare(steps, [a.astype(np.float32) for a in arrays], {}, f"{count} slices {b} {k} {n}")


def test_a_product_of_slices_may_read_another(rng):
    def run(x, w, u):
        whole = [x[:, t] @ w for t in range(3)]
        return sum(F.exp(y) @ u for y in whole), F.sum(whole[2] * whole[0])

    _, after = joined(run, draw(rng, (5, 3, 7), (7, 4), (4, 2)))
    assert (3, 5, 4, 7) in extents(after)


def uneven(x, w):
    return sum(F.tanh(x[:, t] @ w) for t in (0, 1, 3))


def results(x, w):
    return tuple(x[:, t] @ w for t in range(3))


def views(x, w):
    return sum(F.exp((x[:, t] @ w).reshape((-1, 2)) @ w[:2]) for t in range(3))


@pytest.mark.parametrize("f", [uneven, results, views])
def test_other_products_of_slices_stay(f, rng):
    before, after = joined(f, draw(rng, (5, 4, 7), (7, 4)))
    assert extents(after).count((5, 4, 7)) == extents(before).count((5, 4, 7)) == 3


# ------------------------------------------------------------------------------------------------------- training


class Cell(es.nn.Module):
    """Two gates written one by one, and steps in a loop of Python."""

    def __init__(self, size: int, width: int):
        super().__init__()
        for name in ("xa", "xb"):
            setattr(self, name, es.nn.Linear(size, width))
        for name in ("ha", "hb"):
            setattr(self, name, es.nn.Linear(width, width))
        self.head = es.nn.Linear(width, 10)

    def forward(self, x):
        h = F.tanh(self.xb(x[:, 0]))
        for t in range(1, x.shape[1]):
            a = F.sigmoid(self.xa(x[:, t]) + self.ha(h))
            h = a * h + (1 - a) * F.tanh(self.xb(x[:, t]) + self.hb(h))
        return self.head(h)


def train() -> tuple[list[float], dict[str, np.ndarray], str]:
    es.manual_seed(0)
    rng = np.random.default_rng(1)
    model = Cell(13, 31)
    step = es.TrainStep(model, F.cross_entropy, es.optim.SGD(lr=0.05, momentum=0.9))
    x, y = rng.standard_normal((7, 4, 13)).astype(np.float32), rng.integers(0, 10, 7)
    losses = [float(step(x, y)) for _ in range(4)]
    return losses, {n: np.array(a) for n, a in model.state_dict().items()}, str(step.plan)


def test_training_steps_are_the_same(always, monkeypatch):
    losses, state, plan = train()
    assert "join products" in plan
    again = train()
    assert losses == again[0] and all(np.array_equal(a, again[1][n]) for n, a in state.items())
    monkeypatch.setenv("EINSMITH_WITHOUT", "join products")
    want_losses, want, plain = train()
    assert "join products" not in plain
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    for n, a in state.items():
        np.testing.assert_allclose(a, want[n], rtol=1e-4, atol=1e-6, err_msg=n)
