"""What is cheap is made again by those who read it, where storing it costs more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith.api.tracing import trace_shapes
from einsmith.base import dtypes as dt
from einsmith.cost.facts import Target
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Apply, Compute, Const, Graph, nbytes, postorder, size
from einsmith.ir.verify import verify_graph
from einsmith.ir.views import is_view, storage
from einsmith.kernels.autoconfig import predicted
from einsmith.passes.algebra.recompute import recompute
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import PASSES, run_passes

SMALL = Target(l1=1 << 9, l2=1 << 10, l3=1 << 11, launch_seconds=1e-9)
"""A machine whose caches hold nothing of a test."""


def moved(kernel, target):
    """Seconds of a kernel that waits for memory alone."""
    return sum(b.nbytes for b in kernel.buffers) / target.memory_bandwidth


def counted(kernel, target):
    """Seconds of a kernel that waits for arithmetic alone."""
    parts = [p for s in kernel.stages for p in s.template.parts]
    return sum(size(p.domain) * isinstance(e, Apply) for p in parts for e in postorder(p.bodies)) / 1e9


def before(f, *shapes) -> Graph:
    """The graph as the pass is given it."""
    return until_the_pass(trace_shapes(f, [(x, dt.f32) for x in shapes]).graph)


def until_the_pass(graph: Graph) -> Graph:
    for p in PASSES:
        if p.name == "recompute":
            return graph
        graph = p.run(graph, PassContext(SMALL))
    raise AssertionError


def large(g: Graph, least: int) -> int:
    """Tensors that are stored, of so many bytes."""
    tensors = [n for n in postorder(g.roots) if isinstance(n, Compute) and len(n.template.dtypes) == 1]
    return sum(nbytes(n) >= least for n in tensors)  # sums of several results are small


def clamped(g: Graph) -> int:
    """Tensors that sums read, and that are numbers of which none is above 6."""
    sums = [n for n in postorder(g.roots) if isinstance(n, Compute) and pointwise_body(n.template) is None]
    found = {a for n in sums for a in n.args}
    bodies = [pointwise_body(a.template) for a in found if isinstance(a, Compute)]
    return sum(b is not None and any(Const(6.0, dt.f32) in e.args[1:] for e in (b, *b.args)) for b in bodies)


def changed(g: Graph, cost=moved) -> Graph:
    """The graph after the pass, which computes what it has computed before."""
    verify_graph(g)
    new = recompute(g, PassContext(SMALL, cost))
    verify_graph(new)
    rng = np.random.default_rng()
    values = [rng.standard_normal(x.shape) if x.dtype.is_float else np.zeros(x.shape, int) for x in g.inputs]
    for a, b in zip(evaluate(new, values)[0], evaluate(g, values)[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    return new


def block(stride=1, groups=1):
    """The gradients of a convolution of a normalised and clamped one, by all weights."""

    def f(x, w, v, scale, shift):
        def loss(x, w, v, scale, shift):
            t = F.conv2d(x, w, None, 1, 1)
            m = F.mean(t, (0, 2, 3), keepdim=True)
            d = F.mean((t - m) * (t - m), (0, 2, 3), keepdim=True)
            t = F.relu6((t - m) * F.rsqrt(d + 1e-5) * scale[None, :, None, None] + shift[None, :, None, None])
            return F.sum(F.square(F.conv2d(t, v, None, stride, 1, groups=groups)))

        return es.grad(loss, argnums=(1, 2, 3, 4))(x, w, v, scale, shift)

    return f


def shapes(n, c, h, w, groups=1):
    return (n, 3, h, w), (c, 3, 3, 3), (c, c // groups, 3, 3), (c,), (c,)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 5), (2, 5)])
@pytest.mark.parametrize(("h", "w"), [(5, 7), (8, 17)])
def test_an_activation_between_convolutions_is_not_stored(h, w, stride, groups):
    g = before(block(stride, groups), *shapes(2, 5, h, w, groups))
    new = changed(g)
    least = 2 * 5 * h * w * 4
    assert large(new, least) < large(g, least)
    assert clamped(g) == 1 and clamped(new) == 0


def test_expensive_tensors_are_not_recomputed():
    g = before(block(), *shapes(2, 5, 6, 7))
    assert changed(g, counted) is g


def spline(readers="s[b,i] = sum[g](where(t[b,i,g] < 2, t[b,i,g], 1))"):
    """Distances of each number from a few places, which a tensor of their shape reads, and a sum over the places."""
    formula = f"t[b,i,g] = abs(x[b,i] - g)\nB[b,i,g] = where(t[b,i,g] < 1, 1 - t[b,i,g], 0)\n{readers}\nreturn B, s"
    return es.op(formula, extents={"g": 7})


@pytest.mark.parametrize("shape", [(1, 257), (13, 17), (16, 33)])
def test_a_pointwise_reader_computes_what_another_one_may_compute_too(shape):
    g = before(spline(), shape)
    least = 7 * 4 * shape[0] * shape[1]
    assert large(g, least) == 2 and large(changed(g), least) == 1
    assert changed(g, counted) is g


def test_what_no_pointwise_reader_computes_or_products_read_is_stored():
    """Of two sums of the tensor neither computes it for the other; a product reads it several times."""
    sums = "s[b,i] = sum[g](where(t[b,i,g] < 2, t[b,i,g], 1))\nB[b,i] = max[g](where(t[b,i,g] < 3, t[b,i,g], 1))"
    alone = es.op(f"t[b,i,g] = abs(x[b,i] - g)\n{sums}\nreturn B, s", extents={"g": 7})
    product = spline("s[b,j] = sum[i,g](t[b,i,g]*w[i,g,j])")
    for g in (before(alone, (13, 17)), before(product, (13, 17), (17, 7, 33))):
        assert recompute(g, PassContext(SMALL, moved)) is g


def test_it_stays_in_cache():
    g = before(block(), *shapes(2, 5, 6, 7))
    assert recompute(g, PassContext(replace(SMALL, l2=1 << 20, l3=1 << 22), moved)) is g


def test_graphs_without_prices_stay():
    g = before(block(), *shapes(2, 5, 6, 7))
    assert recompute(g, PassContext(SMALL)) is g


def test_results_and_what_windows_read_stay():
    """A maximum over windows would make each element several times."""

    def result(x, w, v):
        t = F.relu(F.conv2d(x, w, None, 1, 1) * 2.0 + F.sum(F.conv2d(x, w, None, 1, 1)))
        return t, F.conv2d(t, v, None, 1, 1)

    def windows(x, w, v):
        t, out = result(x, w, v)
        return F.max_pool2d(t, 3, 1), out

    for f in (result, windows):
        g = before(f, (2, 3, 6, 7), (5, 3, 3, 3), (4, 5, 3, 3))
        assert recompute(g, PassContext(SMALL, moved)) is g
    g = before(lambda *a: result(*a)[1], (2, 3, 6, 7), (5, 3, 3, 3), (4, 5, 3, 3))
    assert changed(g) is not g


def test_steps_lose_the_same():
    """The whole way, with the prices of kernels, against the pass left out."""
    rng = np.random.default_rng()
    arrays = [rng.standard_normal(x).astype(np.float32) for x in shapes(2, 8, 19, 33, 8)]
    graph = trace_shapes(block(1, 8), [(a.shape, dt.f32) for a in arrays]).graph
    new = run_passes(graph, PassContext(SMALL, predicted))
    old = run_passes(graph, PassContext(SMALL))
    assert large(new, arrays[0].nbytes) < large(old, arrays[0].nbytes)
    for a, b in zip(evaluate(new, arrays)[0], evaluate(old, arrays)[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


class Layers(es.nn.Module):
    """Norms, activations and dropout between products; a sum of branches that both passes read."""

    def __init__(self):
        self.first, self.last = es.nn.Linear(17, 24), es.nn.Linear(24, 5)
        self.inner = [es.nn.Linear(24, 24) for _ in range(3)]
        self.norm, self.drop = es.nn.LayerNorm(24), es.nn.Dropout(0.3)

    def forward(self, x):
        x = F.gelu(self.first(x))
        for layer, act in zip(self.inner, (F.gelu, F.tanh, F.relu), strict=True):
            x = x + self.drop(act(layer(self.norm(x))))
        return self.last(x)


class Images(es.nn.Module):
    def __init__(self):
        self.a, self.b, self.c = es.nn.Conv2d(2, 8, 3, padding=1), es.nn.Conv2d(8, 8, 3, padding=1), es.nn.Linear(8, 4)
        self.norm, self.more = es.nn.BatchNorm2d(8), es.nn.BatchNorm2d(8)

    def forward(self, x):
        x = F.relu(self.norm(self.a(x)))
        x = x + F.relu(self.more(self.b(x)))
        return self.c(F.mean(x, (2, 3)))


def trained(net: es.nn.Module, *shape: int, steps: int = 0) -> tuple[es.TrainStep, list[float]]:
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal(shape).astype(np.float32), rng.integers(0, 4, shape[0])
    step = es.TrainStep(net, F.cross_entropy, es.optim.SGD(lr=0.05, momentum=0.9), seed=1, threads=1)
    step.compile(x, y)
    return step, [step(x, y) for _ in range(steps)]


def given(step: es.TrainStep) -> Graph:
    """The graph of a training step before all passes."""
    (program,) = step.compiler.programs.values()
    return program.source_graph


def held(g: Graph) -> int:
    """Bytes of what the forward pass stores and the rest reads."""
    nodes = [n for n in postorder(g.roots) if isinstance(n, Compute) and not is_view(n.template)]
    late = {storage(a) for n in nodes if g.role[n] != "forward" for a in n.args}
    return sum(nbytes(t) for t in late if isinstance(t, Compute) and g.role[t] == "forward")


@pytest.mark.parametrize(
    ("net", "shape", "part"),
    [pytest.param(Layers, (61, 17), 0.9, marks=pytest.mark.slow), (Images, (7, 2, 9, 11), 0.8)],
)
def test_a_training_step_holds_less_for_the_backward_pass(net, shape, part):
    g = until_the_pass(given(trained(net(), *shape)[0]))
    new = changed(g)
    assert held(new) < part * held(g)
    stored = {t for t in postorder(g.roots) if isinstance(t, Compute) and g.role[t] == "forward"}
    assert stored & set(postorder(new.roots)), "what the forward pass reads is stored there as before"


@pytest.mark.slow
def test_dropped_out_activations_are_the_same(monkeypatch):
    """Where kernels are priced by the bytes that they move, from beyond the caches. Blocks of rows are chosen by what a
    kernel reads, so that sums of gradients may be added in another order."""
    monkeypatch.setattr("einsmith.driver.compile.predicted", moved)
    monkeypatch.setattr("einsmith.schedule.recomputation.CACHED_RATIO", 1 << 40)
    found = []
    for without in ("", "recompute"):
        monkeypatch.setenv("EINSMITH_WITHOUT", without)
        es.manual_seed(7)
        net = Layers()
        step, losses = trained(net, 301, 17, steps=3)
        (program,) = step.compiler.programs.values()
        found.append((losses, {n: np.array(v) for n, v in net.state_dict().items()}, program))
    (losses, new, program), (expected, old, whole) = found
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for n in old:
        np.testing.assert_allclose(new[n], old[n], rtol=1e-5, atol=1e-6)
    assert "recompute" in program.changes.tensors and program.arena_bytes < whole.arena_bytes


def test_chains_are_recomputed_from_their_start():
    """a follows from x, b from a; both are read by products of the backward pass: each of them reads x alone."""

    class Chain(es.nn.Module):
        def __init__(self):
            self.a, self.b, self.c = es.nn.Linear(9, 33), es.nn.Linear(33, 7), es.nn.Linear(33, 7)

        def forward(self, x):
            a = F.relu(self.a(x))
            return self.b(a) + self.c(F.square(a))

    g = until_the_pass(given(trained(Chain(), 50, 9)[0]))
    new = changed(g)
    large = [t for t in postorder(new.roots) if isinstance(t, Compute) and t.shape == (50, 33)]
    late = {a for n in postorder(new.roots) if new.role[n] != "forward" for a in n.args}
    assert sum(t in late and new.role[t] == "forward" for t in large) == 1
