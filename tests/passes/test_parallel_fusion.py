"""Siblings below a concatenation and over slices become one tensor; every value stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Apply, Compute, Graph, Piece, Read, Reduce, postorder, size
from einsmith.ir.verify import verify_graph
from einsmith.passes import pipeline
from einsmith.passes.algebra import siblings as module
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.parallel_fusion import parallel_fusion
from einsmith.passes.algebra.read_forwarding import read_forwarding
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.algebra.store_post_activation import store_post_activation
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import run_passes
from tests.fuzz.check import compile_and_compare

F = es.functional


FEWER = PassContext(cost=lambda kernel, target: float(len(kernel.root.parts[0].domain) > 1))
"""A machine where all kernels over several axes take the same time."""
LARGER = PassContext(cost=lambda kernel, target: float(sum(size(p.domain) for p in kernel.root.parts)) ** 2)
"""One where a large kernel takes longer than the small ones that it is made of."""


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs have every tensor fused."""
    changed = [
        replace(p, run=lambda graph, _: parallel_fusion(graph, FEWER)) if p.name == "parallel fusion" else p
        for p in pipeline.PASSES
    ]
    monkeypatch.setattr(pipeline, "PASSES", tuple(changed))


def fused(f: Callable, arrays: Sequence[np.ndarray], context: PassContext = FEWER) -> tuple[Graph, Graph]:
    """The graph of a function before and after the pass, whose values are the same to the bit."""
    before = trace_call(f, tuple(arrays), {}).graph
    before = store_post_activation(inline(read_forwarding(simplify(before))))
    after = parallel_fusion(before, context)
    verify_graph(after)
    inputs = [np.asarray(a, np.float64) for a in arrays]
    for got, want in zip(evaluate(after, inputs)[0], evaluate(before, inputs)[0], strict=True):
        np.testing.assert_array_equal(got, want)
    return before, after


def computes(graph: Graph) -> list[Compute]:
    return [n for n in postorder(graph.roots) if isinstance(n, Compute)]


def copies(graph: Graph, rank: int = 3) -> int:
    """Concatenations that copy tensors of this rank."""
    return sum(
        len(n.template.parts) > 1 and len(n.shape) == rank and any(isinstance(p.body, Read) for p in n.template.parts)
        for n in computes(graph)
    )


def pieces_of_sums(graph: Graph) -> list[int]:
    """Numbers of pieces of the tensors that are sums of products over three axes."""
    return sorted(
        len(n.template.parts)
        for n in computes(graph)
        if len(n.shape) == 3 and all(isinstance(p, Piece) and isinstance(p.body, Reduce) for p in n.template.parts)
    )


# ------------------------------------------------------------------------------------------ below a concatenation

AXES = "ijk"
EXTENTS = [(1, 15), (17, 1), (13, 7), (2, 3, 5), (1, 1, 1)]


def product(axis: int) -> tuple[Callable, Callable]:
    """relu(a . b + c over one axis, scaled over another), and the product alone."""
    scale = AXES[(axis + 1) % 3]
    rule = f"s[i,j,k] = sum[r](a[i,j,r]*b[j,k,r])\ny[i,j,k] = max(s[i,j,k]*g[{scale}] + c[{AXES[axis]}], 0)\nreturn y"
    return es.op(rule), es.op("s[i,j,k] = sum[r](a[i,j,r]*b[j,k,r])\nreturn s")


def operands(rng: np.random.Generator, axis: int, extents: Sequence[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """a, b and c of every sibling, and the scale that they share."""
    shape = [4, 5, 6]
    out = []
    for r, n in enumerate(extents):
        i, j, k = (n if d == axis else s for d, s in enumerate(shape))
        out += [rng.standard_normal(s) for s in ((i, j, 3 + r), (j, k, 3 + r), (n,))]
    return out, rng.standard_normal(shape[(axis + 1) % 3])


@pytest.mark.thinned(10)
@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_siblings_below_a_concatenation_are_one_tensor(axis, extents, rng):
    f, _ = product(axis)
    arrays, g = operands(rng, axis, extents)

    def run(*xs):
        *xs, g = xs
        parts = [f(a=a, b=b, c=c, g=g) for a, b, c in zip(xs[::3], xs[1::3], xs[2::3], strict=True)]
        whole = F.cat(parts, axis)
        return F.sum(whole * whole, 2), F.sum(parts[1] * parts[1], 0)

    before, after = fused(run, [*arrays, g])
    assert copies(before) == 1 and pieces_of_sums(before) == [1] * len(extents)
    assert copies(after) == 0 and pieces_of_sums(after) == [len(extents)]
    compile_and_compare(run, [a.astype(np.float32) for a in (*arrays, g)], {}, f"axis {axis}, {extents}")


def test_products_are_concatenated_without_a_function(rng):
    _, f = product(1)
    arrays, _ = operands(rng, 1, (2, 3))
    del arrays[2::3]

    def run(*xs):
        return F.sum(F.cat([f(*xs[:2]), f(*xs[2:])], 1) ** 2, 0)

    before, after = fused(run, arrays)
    assert (copies(before), copies(after)) == (1, 0) and pieces_of_sums(after) == [2]


def test_the_result_of_a_graph_may_be_the_concatenation(rng):
    f, _ = product(2)
    arrays, g = operands(rng, 2, (3, 5))

    def run(*xs):
        return F.cat([f(a=a, b=b, c=c, g=xs[6]) for a, b, c in (xs[:3], xs[3:6])], 2)

    _, after = fused(run, [*arrays, g])
    assert copies(after) == 0 and pieces_of_sums(after) == [2]


def different_functions(f, a, b, g):
    return F.sum(F.cat([f(*a, g), F.exp(f(*b, g))], 1) ** 2, 2)


def a_sibling_is_a_result(f, a, b, g):
    u = f(*a, g)
    return F.sum(F.cat([u, f(*b, g)], 1) ** 2, 2), u


def a_sibling_needs_the_other(f, a, b, g):
    u = f(*a, g)
    v = f(b[0] * F.sum(u), *b[1:], g)
    return F.sum(F.cat([u, v], 1) ** 2, 2)


def one_sibling_twice(f, a, b, g):
    u = f(*a, g)
    return F.sum(F.cat([u, u], 1) ** 2, 2), F.sum(f(*b, g))


def different_scales(f, a, b, g):
    return F.sum(F.cat([f(*a, g), f(*b, g * g)], 1) ** 2, 2)


def one_product_twice(f, a, b, g):
    return F.sum(F.cat([f(*a, g), f(*a[:2], a[2] * 2, g)], 1) ** 2, 2), F.sum(f(*b, g))


@pytest.mark.parametrize(
    "case",
    [
        different_functions,
        a_sibling_is_a_result,
        a_sibling_needs_the_other,
        one_sibling_twice,
        different_scales,
        one_product_twice,
    ],
    ids=lambda f: f.__name__,
)
def test_other_siblings_stay(case, rng):
    op, _ = product(1)
    arrays, g = operands(rng, 1, (4, 7))

    def f(a, b, c, g):
        return op(a=a, b=b, c=c, g=g)

    def run(*xs):
        return case(f, xs[:3], xs[3:6], xs[6])

    before, after = fused(run, [*arrays, g])
    assert copies(before) == copies(after) == 1 and max(pieces_of_sums(after)) == 1


def test_of_two_fusions_that_need_each_other_one_is_done_at_the_most(rng):
    """u0 -> v0 and v1 -> u1: u and v cannot both be one tensor."""
    op, _ = product(1)
    arrays, g = operands(rng, 1, (4, 7))
    others, _ = operands(rng, 1, (3, 2))

    def run(*xs):
        (a, b), (c, d), g = (xs[:3], xs[3:6]), (xs[6:9], xs[9:12]), xs[12]

        def f(x, y):
            return op(a=x[0] * y, b=x[1], c=x[2], g=g)

        u0 = f(a, 1.0)
        v0 = f(c, F.sum(u0))
        v1 = f(d, 1.0)
        u1 = f(b, F.sum(v1))
        return F.sum(F.cat([u0, u1], 1) ** 2, 2), F.sum(F.cat([v0, v1], 1) ** 3, 2)

    before, after = fused(run, [*arrays, *others, g])
    assert copies(before) == 2 and copies(after) == 1


def test_siblings_that_need_each_other_keep_no_others_apart(rng):
    """As in a network with many skips and one block of branches."""
    op, _ = product(1)
    arrays, g = operands(rng, 1, (4, 7))

    def run(*xs):
        a, b, g = xs[:3], xs[3:6], xs[6]
        x, out = 1.0, []
        for _ in range(2 * module.MAX_CYCLES):
            u = op(a=a[0] * x, b=a[1], c=a[2], g=g)
            v = op(a=b[0] * F.sum(u), b=b[1], c=b[2], g=g)
            out.append(F.sum(F.cat([u, v], 1) ** 2))
            x = out[-1] * 1e-3
        u, v = (op(a=y[0] * x, b=y[1], c=y[2], g=g) for y in (a, b))
        return (*out, F.sum(F.cat([u, v], 1) ** 2))

    before, after = fused(run, [*arrays, g])
    assert copies(before) == 2 * module.MAX_CYCLES + 1 and copies(after) == 2 * module.MAX_CYCLES


def test_tensors_of_several_results_and_pieces_stay(rng):
    f = es.op("m[i] = max[j](x[i,j])\nm[3+k] = max[j](y[k,j])\nreturn m")

    def run(x, y):
        value = f(x=x, y=y)
        return (value, *es.grad(lambda x, y: F.sum(f(x=x, y=y) ** 2), (0, 1))(x, y))

    arrays = [rng.standard_normal(s) for s in ((3, 5), (4, 2))]
    before = run_passes(trace_call(run, tuple(arrays), {}).graph)
    assert any(len(n.template.dtypes) > 1 and len(n.template.parts) > 1 for n in computes(before))
    assert parallel_fusion(before, FEWER) is before


def test_concatenations_that_cost_less_stay(rng):
    f, _ = product(1)
    arrays, g = operands(rng, 1, (4, 7))

    def run(*xs):
        return F.sum(F.cat([f(a=a, b=b, c=c, g=xs[6]) for a, b, c in (xs[:3], xs[3:6])], 1) ** 2, 2)

    before, after = fused(run, [*arrays, g], LARGER)
    assert after is before


# ---------------------------------------------------------------------------------------------------- over slices


def mask(axis: int, first: int, count: int) -> es.lang.op.Operator:
    """where(x <= 0, 0, y) over `count` positions of an axis."""
    at = ",".join(f"{a}+{first}" if d == axis and first else a for d, a in enumerate(AXES))
    return es.op(f"m[i,j,k] = where(x[{at}] <= 0, 0, y[{at}])\nreturn m", extents={AXES[axis]: count})


def over_slices(axis: int, slices: Sequence[tuple[int, int]], tensors: int = 16) -> Callable:
    """Of a mask over each slice: its product with the slices of a weight, and its sums."""
    dot = es.op("z[i,j,l] = sum[k](m[i,j,k]*w[l,k])\nreturn z")
    others = [d for d in range(3) if d != axis]

    def run(x, y, w):
        out = []
        for n, (first, count) in enumerate(slices):
            m = mask(axis, first, count)(x=x, y=y if n < tensors else x)
            weight = w[:, first : first + count] if axis == 2 else w
            out += [dot(m, weight), F.sum(m, others) * 3]
        return tuple(out)

    return run


SLICES = {
    "two": ([(0, 4), (4, 13)], [17]),
    "three, out of order": ([(5, 2), (0, 5), (7, 10)], [17]),
    "a part": ([(2, 3), (5, 2)], [5]),
    "a gap": ([(0, 4), (5, 12)], [4, 12]),
    "overlapping": ([(0, 5), (4, 13)], [5, 13]),
    "two, a gap, two": ([(0, 2), (2, 2), (5, 5), (10, 7)], [4, 12]),
}


@pytest.mark.thinned(10)
@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("case", SLICES)
def test_siblings_over_slices_are_one_tensor(axis, case, rng):
    slices, want = SLICES[case]
    shape = [17 if d == axis else n for d, n in enumerate((3, 2, 7))]
    arrays = [rng.standard_normal(s) for s in (shape, shape, (5, shape[2]))]
    run = over_slices(axis, slices)
    before, after = fused(run, arrays)
    assert masks(before, axis) == sorted(n for _, n in slices)
    assert masks(after, axis) == sums(after) == want
    compile_and_compare(run, [a.astype(np.float32) for a in arrays], {}, f"axis {axis}, {case}")


def masks(graph: Graph, axis: int) -> list[int]:
    """Extents of the masks along the axis that is cut."""
    bodies = {n: n.template.parts[0].body for n in computes(graph)}
    return sorted(n.shape[axis] for n, b in bodies.items() if isinstance(b, Apply) and b.fn == "where")


def sums(graph: Graph) -> list[int]:
    nodes = [n for n in computes(graph) if len(n.shape) == 1 and isinstance(n.template.parts[0].body, Reduce)]
    return sorted(n.shape[0] for n in nodes)


def test_slices_of_other_tensors_stay(rng):
    arrays = [rng.standard_normal(s) for s in ((3, 17, 7), (3, 17, 7), (5, 7))]
    _, after = fused(over_slices(1, [(0, 8), (8, 9)], tensors=1), arrays)
    assert sums(after) == [8, 9]


def test_slices_that_their_readers_compute_stay(rng):
    """The gates of a cell: each is computed where it is used."""

    def run(x):
        a, b = (F.sigmoid(x[:, n : n + 5]) for n in (0, 5))
        return a * F.tanh(b) + F.sum(b, 1, keepdim=True), F.sum(a * a)

    before, after = fused(run, [rng.standard_normal((3, 10))])
    assert [n.shape for n in computes(before)] == [n.shape for n in computes(after)]


# ----------------------------------------------------------------------------------------------------- whole steps


class Fire(es.nn.Module):
    def __init__(self, channels: int, squeezed: int, one: int, three: int):
        super().__init__()
        self.s = es.nn.Conv2d(channels, squeezed, 1)
        self.a, self.b = es.nn.Conv2d(squeezed, one, 1), es.nn.Conv2d(squeezed, three, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.s(x))
        return F.cat([F.relu(self.a(x)), F.relu(self.b(x))], 1)


class Inception(es.nn.Module):
    """Four branches, each a convolution, a batch norm and a relu at its end."""

    def __init__(self, channels: int, widths: Sequence[int]):
        super().__init__()
        a, b, c, d = widths
        self.a, self.c0, self.d = (es.nn.Conv2d(channels, n, 1, bias=False) for n in (a, 3, d))
        self.b = es.nn.Conv2d(channels, b, 3, padding=1, bias=False)
        self.c = es.nn.Conv2d(3, c, 5, padding=2, bias=False)
        self.n = es.nn.ModuleList([es.nn.BatchNorm2d(n) for n in widths])

    def forward(self, x):
        parts = [self.a(x), self.b(x), self.c(F.relu(self.c0(x))), self.d(F.max_pool2d(x, 3, 1, 1))]
        return F.cat([F.relu(n(p)) for n, p in zip(self.n, parts, strict=True)], 1)


class UNet(es.nn.Module):
    """A level with a skip, and a block of branches at the bottom."""

    def __init__(self, channels: int):
        super().__init__()
        self.down, self.up = es.nn.Conv2d(channels, 5, 3, padding=1), es.nn.Conv2d(7, 4, 3, padding=1)
        self.bottom = Fire(5, 3, 3, 4)
        self.out = es.nn.Conv2d(9, 3, 3, padding=1)

    def forward(self, x):
        skip = F.relu(self.down(x))
        low = self.bottom(F.max_pool2d(skip, 2))
        up = F.relu(self.up(F.interpolate(low, scale_factor=2)))
        return F.relu(self.out(F.cat([skip, up], 1)))


BLOCKS = {
    "fire": lambda: [Fire(3, 5, 7, 1), Fire(8, 2, 3, 4)],
    "wide fire": lambda: [Fire(3, 5, 7, 2), Fire(9, 2, 3, 5)],
    "inception": lambda: [Inception(3, (2, 5, 3, 2)), Inception(12, (2, 3, 2, 2))],
    "unet": lambda: [UNet(3)],
}


class Net(es.nn.Module):
    def __init__(self, blocks: list):
        super().__init__()
        self.blocks = es.nn.Sequential(*blocks)

    def forward(self, x):
        return F.mean(self.blocks(x), (2, 3))


def step_of(name: str) -> es.TrainStep:
    es.manual_seed(3)
    return es.TrainStep(Net(BLOCKS[name]()), F.mse_loss, es.optim.SGD(lr=0.1, momentum=0.9), threads=2)


COPIES = {"fire": (2, 0), "inception": (2, 0), "unet": (2, 1)}
"""Concatenations of images before and after; a skip is read by what it is concatenated with."""


@pytest.mark.parametrize("name", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("fire", "inception")), "unet"])
def test_training_steps_compute_the_same(name, rng, monkeypatch):
    width = {"fire": 7, "inception": 9, "unet": 3}[name]
    batches = [[rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 8, 6), (2, width))] for _ in range(4)]
    programs, losses, values = [], [], []
    for without in ("parallel fusion", ""):
        monkeypatch.setenv("EINSMITH_WITHOUT", without)
        step = step_of(name)
        losses.append([float(step(*batch)) for batch in batches])
        values.append([p.numpy() for p in step.model.parameters()])
        programs += step.compiler.programs.values()
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for got, want in zip(*values, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
    graphs = [run.graph for run in programs]
    assert tuple(copies(g, 4) for g in graphs) == COPIES[name]
    inputs = [random_input(x, rng) for x in graphs[0].inputs]
    exact = [[a for part in evaluate(g, inputs) for a in part] for g in graphs]
    for got, want in zip(*exact, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


def random_input(x, rng: np.random.Generator) -> np.ndarray:
    if not x.dtype.is_float:
        return np.ones(x.shape, x.dtype.numpy)
    return np.abs(rng.standard_normal(x.shape)) + 0.01 if len(x.shape) < 2 else rng.standard_normal(x.shape)


def test_a_fire_module_has_no_kernels_that_copy_or_mask_slices(rng):
    step = step_of("wide fire")
    step(rng.standard_normal((2, 3, 8, 6)).astype(np.float32), rng.standard_normal((2, 8)).astype(np.float32))
    (run,) = step.compiler.programs.values()
    nodes = {n for c in run.plan.calls for n in c.nodes if isinstance(n, Compute) and len(n.shape) == 4}
    for n in nodes:
        bodies = [p.body for p in n.template.parts]
        assert not (len(bodies) > 1 and any(isinstance(b, Read) for b in bodies))
        if len(bodies) == 1 and not isinstance(bodies[0], Reduce):
            images = [a for a in n.args if len(a.shape) == 4 and a.shape[2:] == n.shape[2:]]
            assert all(a.shape == n.shape for a in images)
    pairs = [n for n in nodes if len(n.template.parts) == 2]
    assert sorted(n.shape[1] for n in pairs) == [8, 9]
    gradients = [
        n for c in run.plan.calls for n in c.nodes if n.shape in ((8,), (9,)) and run.graph.role[n] != "forward"
    ]
    assert len(gradients) >= 2


def test_roles_stay(rng):
    step = step_of("wide fire")
    step(rng.standard_normal((2, 3, 8, 6)).astype(np.float32), rng.standard_normal((2, 8)).astype(np.float32))
    (run,) = step.compiler.programs.values()
    role = run.graph.role
    for n in role:
        if isinstance(n, Compute) and len(n.template.parts) == 2 and len(n.shape) == 4:
            assert role[n] == "forward"
        if isinstance(n, Compute) and n.shape in ((8,), (9,)) and isinstance(n.template.parts[0].body, Reduce):
            assert role[n] == "backward"
    assert all(role[g] == "backward" for g in run.graph.gradients)
