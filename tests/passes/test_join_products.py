"""Products that share an operand, that read slices of one tensor, or that are added, become one; values stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, Piece, Reduce, Template, postorder, size
from einsmith.ir.rebuild import whole_sum
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra import join_products as module
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.join_products import join_products, refused_joins
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


OPERANDS = PassContext(cost=lambda kernel, target: float(sums_of(kernel.root)))
"""One where each piece of a sum takes time: operands are joined rather than pieces."""


def sums_of(t: Template) -> int:
    return sum(isinstance(p.body, Reduce) for p in t.parts if isinstance(p, Piece))


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


def join_always(monkeypatch, context: PassContext) -> None:
    def run(graph: Graph, _: PassContext) -> Graph:
        return join_products(graph, context)

    changed = tuple(Pass(p.name, run, p.needs) if p.name == "join products" else p for p in PASSES)
    monkeypatch.setattr("einsmith.passes.pipeline.PASSES", changed)


@pytest.fixture
def always(monkeypatch):
    """Compiled programs have every product joined."""
    join_always(monkeypatch, FEWER)


@pytest.fixture(params=[FEWER, OPERANDS], ids=["pieces", "operands"])
def way(request, monkeypatch):
    """The same, in pieces or of joined operands."""
    join_always(monkeypatch, request.param)
    return request.param


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


# -------------------------------------------------------------------------------------------------- shared operands


def step_of(f: Callable) -> Callable:
    """A function's values, and its arguments after a step down the gradients."""

    def run(c, *arrays):
        y, pull_back = es.vjp(f, *arrays)
        return y, *(a - 0.1 * d for a, d in zip(arrays, pull_back(c), strict=True))

    return run


def rows(x, w):
    return x @ w.transpose(1, 0)


def convolution(stride: int, padding: int) -> Callable:
    return lambda x, w: F.conv2d(x, w, stride=stride, padding=padding)


SHARING = {
    "product": ((9, 17), (17,), rows),
    "row": ((1, 33), (33,), rows),
    "convolution": ((2, 3, 7, 5), (3, 3, 3), convolution(1, 1)),
    "strided": ((2, 3, 7, 8), (3, 3, 3), convolution(2, 0)),
    "narrow": ((3, 5, 4, 4), (5, 1, 1), convolution(1, 0)),
}
"""Shape of the input, of a weight without its first dimension, and the product."""


@pytest.mark.thinned(6)
@pytest.mark.parametrize("widths", [(13, 7), (2, 3, 5), (16, 15, 17), (4,) * 8, (1, 8)], ids=str)
@pytest.mark.parametrize("case", SHARING)
def test_products_that_share_an_operand_are_one(way, case, widths, rng):
    shape, rest, product = SHARING[case]

    def run(x, *weights):
        parts = [F.tanh(product(x, w)) for w in weights]
        return sum((n + 1.0) * F.sum(p * p, 1) for n, p in enumerate(parts))

    arrays = draw(rng, shape, *((n, *rest) for n in widths))
    before, after = joined(run, arrays, way)
    wide = [n for n in widths if n > 1]
    if len(wide) > 1:
        whole = [n for n in postorder(after.roots) if isinstance(n, Compute) and len(n.shape) == len(shape)]
        assert any(n.shape[1] == sum(wide) and sums_of(n.template) == (len(wide) if way is FEWER else 1) for n in whole)
        assert sum(sums_of(n.template) > 0 for n in whole) == 1 + len(widths) - len(wide)
    inputs = [rng.standard_normal(evaluate(before, arrays)[0][0].shape), *arrays]
    compile_and_compare(step_of(run), [a.astype(np.float32) for a in inputs], {}, f"{case} {widths}")


def test_functions_of_joined_products_are_one_too(way, rng):
    """Biases are concatenated, what is common to all stays as it is; one function that differs keeps them apart."""

    def run(last, x, s, *xs):
        fs = [F.tanh] * 2 + [last]
        parts = [f(rows(x, w) * s + b) for f, w, b in zip(fs, xs[::2], xs[1::2], strict=True)]
        return sum(F.sum(p, 1) for p in parts), *(F.sum(p, 0) for p in parts)

    arrays = draw(rng, (5, 9), (5, 1), *((n,) if d else (n, 9) for n in (2, 3, 5) for d in (0, 1)))
    for last, count in ((F.tanh, 1), (F.exp, 3)):
        _, after = joined(lambda *a, last=last: run(last, *a), arrays, way)
        nodes = [n for n in postorder(after.roots) if isinstance(n, Compute)]
        assert sum(n.shape == (5, 10) and sums_of(n.template) > 0 for n in nodes) == 1
        assert sum(len(n.shape) == 2 and len(n.template.parts) == 1 and not sums_of(n.template) for n in nodes) == count


def test_functions_of_several_joined_products_read_all_in_place(rng):
    """Gates of an input and of a state, each of which is needed by itself."""

    def run(x, h, *weights):
        parts = [F.tanh(rows(x, w) + rows(h, u)) for w, u in zip(weights[::2], weights[1::2], strict=True)]
        return sum(F.sum(p, 1) for p in parts), *(F.sum(p, 0) for p in parts)

    _, after = joined(run, draw(rng, (5, 9), (5, 7), *((n, k) for n in (2, 3, 5) for k in (9, 7))), OPERANDS)
    nodes = [n for n in postorder(after.roots) if isinstance(n, Compute) and n.shape == (5, 10)]
    assert sorted((sums_of(n.template), len(n.args)) for n in nodes) == [(0, 2), (1, 2), (1, 2)]


def gates(x, w, v):
    a = F.tanh(x @ w)
    return F.sum(a @ v[:9, :9]) + F.sum(a[:, :2])


def one_needs_the_other(x, w, v):
    y = x @ w
    return F.sum(F.tanh(y)) + F.sum(F.exp(x @ (v * F.sum(y))))


def other_rows(x, w, v):
    return F.sum(F.exp(x @ w)) + F.sum(F.exp(x[:2] @ v))


def of_two_types(x, w, v):
    return F.sum(F.exp(x @ w)), F.sum(F.exp(x.astype("float32") @ v.astype("float32")))


@pytest.mark.parametrize("f", [gates, one_needs_the_other, other_rows, of_two_types])
def test_other_products_stay(f, way, rng):
    before, after = joined(f, draw(rng, (9, 9), (9, 9), (9, 9)), way)
    assert extents(after) == extents(before)


@pytest.mark.parametrize("depths", [(3, 5, 16), (8, 7), (4, 4)], ids=str)
def test_products_of_different_depths_that_are_added_are_one(depths, rng, monkeypatch):
    def run(*xs):
        return F.tanh(sum(rows(x, w) for x, w in zip(xs[::2], xs[1::2], strict=True)))

    arrays = draw(rng, *((n, k) for k in depths for n in (19, 23)))
    _, after = joined(run, arrays, OPERANDS)
    assert [int(np.prod(x[2:])) for x in extents(after)] == [sum(depths)]
    join_always(monkeypatch, OPERANDS)
    compile_and_compare(run, [a.astype(np.float32) for a in arrays], {}, f"depths {depths}")


@pytest.mark.parametrize("kernel, stride, padding", [(3, 2, 1), (2, 2, 0), (3, 3, 0), (1, 2, 0)])
def test_gradients_of_strided_convolutions_are_one(kernel, stride, padding, rng, monkeypatch):
    """Each is a sum in pieces, by phases, some of which are zero."""

    def run(x, *weights):
        f = convolution(stride, padding)
        return F.sum(F.stack([f(x, w) for w in weights], 2) ** 2, (1, 2))

    def gradient(c, x, *weights):
        return es.vjp(lambda x: run(x, *weights), x)[1](c)

    arrays = draw(rng, (2, 3, 8, 7), *[(4, 3, kernel, kernel)] * 4)
    inputs = [np.ones(evaluate(trace_call(run, tuple(arrays), {}).graph, arrays)[0][0].shape), *arrays]
    before, after = joined(gradient, inputs, OPERANDS)
    images = [
        [n for n in postorder(g.roots) if isinstance(n, Compute) and n.shape == (2, 3, 8, 7)] for g in (before, after)
    ]
    assert [sum(sums_of(n.template) > 0 for n in nodes) for nodes in images] == [4, 1]
    join_always(monkeypatch, OPERANDS)
    compile_and_compare(gradient, [a.astype(np.float32) for a in inputs], {}, f"{kernel} {stride} {padding}")


def test_copies_that_joined_products_share_are_priced_once(rng):
    """The weights of the forward pass are those of the gradient by the input."""
    priced = []

    def cost(kernel, target):
        priced.append(len(kernel.root.parts))
        return OPERANDS.cost(kernel, target)

    arrays = draw(rng, (31, 9), (2, 9), (3, 9))
    f = step_of(lambda x, u, v: F.tanh(rows(x, u)) @ u + F.tanh(rows(x, v)) @ v)
    _, after = joined(f, [np.ones((31, 9)), *arrays], PassContext(cost=cost))
    weights = [
        n for n in postorder(after.roots) if isinstance(n, Compute) and n.shape == (5, 9) and not sums_of(n.template)
    ]
    assert len(weights) == 1


def test_refused_joins_are_told_with_both_prices(rng):
    def run(x, u, v):
        return F.sum(F.tanh(rows(x, u))) + F.sum(F.exp(rows(x, v)))

    arrays = draw(rng, (7, 9), (2, 9), (3, 9))
    before, after = joined(run, arrays, NEVER)
    assert before is after
    (refused,) = refused_joins(after, NEVER)
    assert {m.shape for m in refused.members} == {(7, 2), (7, 3)} and refused.joined > refused.apart > 0
    assert not refused_joins(joined(run, arrays, OPERANDS)[1], OPERANDS)


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


def test_kernels_are_priced_with_what_they_read_first() -> None:
    """A tensor that reads the first of three products, the second, and a function of the second."""

    def f(x, w, u):
        h = F.tanh(u @ x)
        g = F.tanh(u @ h)
        near, mid, deep = x @ w, h @ w, g @ w
        r = F.tanh(mid)
        both = F.tanh(near * mid + r)
        return F.tanh(near).sum(0), both.sum(0), (both * r).sum(0), r.sum(0), (deep * r).sum(0), (h * g).sum(0)

    seen = []

    def cost(kernel, target):
        for number, stage in enumerate(kernel.stages):
            before = [ref[1] for ref in stage.args if ref[0] == "stage"]
            assert all(k < number for k in before)
            seen.extend(before)
        return float(whole_sum(kernel.root) is not None)

    arrays = [np.random.default_rng(0).standard_normal(s) for s in ((4, 8), (8, 1), (4, 4))]
    joined(f, arrays, PassContext(cost=cost))
    assert seen
