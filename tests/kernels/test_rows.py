"""Kernels joined by rows: how many there are, and what they compute, in every configuration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_call
from einsmith.codegen.ssa import Op
from einsmith.cost.facts import Target
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Apply, Graph, nbytes, postorder
from einsmith.kernels import autoconfig
from einsmith.kernels.autoconfig import ROWS
from einsmith.kernels.rows import rows_cost
from einsmith.kernels.rows.rows_cost import RowsConfig
from einsmith.passes.analysis.index_checks import index_checks
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Rows
from einsmith.schedule.planner import fuse
from einsmith.schedule.row_blocks import block_kernel
from einsmith.schedule.row_forms import row_forms
from einsmith.schedule.shared_rows import share
from einsmith.tracing import builder
from einsmith.tuning.calibration import calibrate
from einsmith.tuning.kernels.decisions import lower_choice
from tests import nest_interp
from tests.fuzz.check import agree
from tests.kernels import runner
from tests.kernels import samples as s
from tests.kernels.runner import reference


def layer_norm(x, w, b):
    """Over the last axis, the variance in a sweep of its own."""
    *lead, k = x.shape
    (r,) = builder.axes(k)
    mean = builder.compute(tuple(lead), lambda *i: builder.mean(x[(*i, r)], over=r))
    var = builder.compute(tuple(lead), lambda *i: builder.mean((x[(*i, r)] - mean[i]) ** 2, over=r))
    return builder.compute(
        x.shape, lambda *i: (x[i] - mean[i[:-1]]) * builder.rsqrt(var[i[:-1]] + 1e-5) * w[i[-1]] + b[i[-1]]
    )


def norm_gradient(x, w, b, g):
    return es.grad(lambda x, w, b: (layer_norm(x, w, b) * g).sum(), (0, 1, 2))(x, w, b)


def softmax_gradient(x, g):
    return es.grad(lambda x: (F.softmax(x, 1) * g).sum())(x)


def product_of_means(x):
    """A product over the rows of the largest of each, and the smallest of all."""
    b, k = x.shape
    i, j = builder.axes(b, k)
    top = builder.compute((b,), lambda i: builder.max(x[i, j], over=j))
    return builder.compute((), lambda: builder.prod(top[i] * 0.3, over=i)) + builder.compute(
        (), lambda: builder.min(top[i], over=i)
    )


def batch(rng, b, k):
    return rng.standard_normal((b, k)).astype(np.float32), rng.integers(0, k, b)


def norm_arguments(rng, b, k):
    return [rng.standard_normal(s).astype(np.float32) for s in ((b, k), (k,), (k,), (b, k))]


def batch_norm(x, w, b):
    """Over all axes but the second, the variance in a sweep of its own."""
    n, c, h, k = x.shape
    i, j, r = builder.axes(n, h, k)
    mean = builder.compute((c,), lambda c: builder.mean(x[i, c, j, r], over=(i, j, r)))
    var = builder.compute((c,), lambda c: builder.mean((x[i, c, j, r] - mean[c]) ** 2, over=(i, j, r)))
    return builder.compute(
        x.shape, lambda n, c, h, k: (x[n, c, h, k] - mean[c]) * builder.rsqrt(var[c] + 1e-5) * w[c] + b[c]
    )


def batch_norm_gradient(x, w, b, g):
    return es.grad(lambda x, w, b: (F.relu(batch_norm(x, w, b)) * g).sum(), (0, 1, 2))(x, w, b)


def channels(rng, c, k):
    """Images of as many points as a row, with the channels in the second place."""
    shape = (2, c, 5, 35 + k // 64)
    return [rng.standard_normal(s).astype(np.float32) for s in (shape, (c,), (c,), shape)]


def causal_softmax(s):
    """Over the keys, each query's own position and those before it."""
    *lead, _, _ = s.shape
    return F.softmax(builder.compute(s.shape, lambda *i: builder.where(i[-1] <= i[-2], s[i], -np.inf)), len(lead) + 1)


def causal_gradient(s, g):
    return es.grad(lambda s: (causal_softmax(s) * g).sum())(s)


def triangle_sums(x):
    """Over the rows, with a row's number in the summand; and by the column's."""
    b, k = x.shape
    i, j = builder.axes(b, k)
    mean = builder.compute((b,), lambda i: builder.mean(builder.where(j <= i, x[i, j], 0.0), over=j))
    below = builder.compute((k,), lambda j: builder.sum(builder.where(j <= i, (x[i, j] - mean[i]) * i, 0.0), over=i))
    return below, builder.compute((b, k), lambda i, j: builder.where(j > i, x[i, j] - mean[i], mean[i]))


def numbered_channels(x):
    """The channels between the images and the pixels, each with its number."""
    n, c, h, k = x.shape
    i, j, r = builder.axes(n, h, k)
    mean = builder.compute((c,), lambda c: builder.mean(x[i, c, j, r], over=(i, j, r)))
    return builder.compute(x.shape, lambda n, c, h, k: (x[n, c, h, k] - mean[c]) * builder.where(c % 2 == 0, 1.0, c))


def scores(rng, b, k):
    """A score for each pair of positions, in several heads."""
    shape = (1 + b // 16, 5 + k % 64, 5 + k % 64)
    return [rng.standard_normal(shape).astype(np.float32) for _ in "sg"]


CASES = {
    "softmax": (lambda x, y: F.softmax(x, 1), batch),
    "log softmax": (lambda x, y: F.log_softmax(x, 1), batch),
    "cross-entropy": (F.cross_entropy, batch),
    "cross-entropy's gradient": (es.grad(F.cross_entropy), batch),
    "cross-entropy and its gradient": (es.value_and_grad(F.cross_entropy), batch),
    "layer norm": (lambda x, w, b, g: layer_norm(x, w, b), norm_arguments),
    "layer norm's gradients": (norm_gradient, norm_arguments),
    "softmax's gradient": (lambda x, w, b, g: softmax_gradient(x, g), norm_arguments),
    "reductions over the rows": (lambda x, y: product_of_means(x), batch),
    "batch norm": (lambda x, w, b, g: batch_norm(x, w, b), channels),
    "batch norm with pooling": (lambda x, w, b, g: F.max_pool2d(F.relu(batch_norm(x, w, b)), 2), channels),
    "batch norm's gradients": (batch_norm_gradient, channels),
    "causal softmax": (lambda s, g: causal_softmax(s), scores),
    "causal softmax's gradient": (causal_gradient, scores),
    "causal softmax of a matrix": (lambda x, y: causal_softmax(x), batch),
    "sums of a triangle": (lambda x, y: triangle_sums(x), batch),
    "channels by number": (lambda x, w, b, g: numbered_channels(x), channels),
    "softmax over channels": (lambda x, w, b, g: F.softmax(x, 3) * w[:, None, None], channels),
}


def compiled(f, args, threads=1, target=None) -> tuple[Executable, Graph, list[np.ndarray]]:
    traced = trace_call(f, args, {}, frozenset())
    run = Executable(traced.graph, traced.bind, threads, target=target)
    return run, run.graph, list(args)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name, most",
    [("softmax", 1), ("log softmax", 1), ("layer norm", 1), ("softmax's gradient", 1), ("layer norm's gradients", 1),
     ("batch norm", 1), ("batch norm with pooling", 1), ("batch norm's gradients", 1), ("cross-entropy's gradient", 2),
     ("cross-entropy", 3), ("cross-entropy and its gradient", 3), ("causal softmax", 1),
     ("causal softmax's gradient", 1), ("causal softmax of a matrix", 1), ("sums of a triangle", 1),
     ("channels by number", 1)],
)  # fmt: skip
def test_counts(name, most, rng):
    f, arguments = CASES[name]
    for b, k in ((64, 10), (101, 1000)):
        traced = trace_call(f, arguments(rng, b, k), {}, frozenset())
        graph = Graph(traced.graph.inputs, traced.graph.outputs, (), index_checks(traced.graph.roots))
        assert len(fuse(run_passes(graph), target=Target(cores=2)).calls) <= most


@pytest.mark.thinned(6)
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (31, 15), (9, 3001)])
@pytest.mark.parametrize("name", CASES)
def test_values(name, shape, rng):
    """Rows below, at and above the number of threads; widths around a vector; rows beyond a cache: the evaluator's
    values, the same ones in every run."""
    f, arguments = CASES[name]
    args = arguments(rng, *shape)
    run, graph, inputs = compiled(f, args, 2)
    first, again = run(inputs)[1], run(inputs)[1]
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    agree(first, graph, inputs, name)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 1), (17, 16), (101, 64), (257, 3), (2, 70001), (300, 1025)])
@pytest.mark.parametrize("name", CASES)
def test_more_values(name, shape, rng):
    f, arguments = CASES[name]
    for threads in (1, 2, 3):
        run, graph, inputs = compiled(f, arguments(rng, *shape), threads)
        agree(run(inputs)[1], graph, inputs, f"{threads} threads")


@runner.sampled(3)
@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", CASES)
def test_every_configuration(name, rng):
    """On nests, strictly: no access leaves a buffer, tasks run in any order, whole and shorter blocks."""
    f, arguments = CASES[name]
    count = 0
    for rows, width, target in (
        (13, 5, Target(vector_bytes=16, cores=2, l1=1 << 8, l2=1 << 12)),
        (16, 19, Target(vector_bytes=64, cores=3, l1=1 << 11)),
    ):
        count += strictly(f, arguments(rng, rows, width), target)
    assert count


def strictly(f, arguments, target: Target) -> int:
    """Runs every configuration of the row kernels of f, or those of the test's sample, on the interpreter of nests;
    returns how many."""
    traced = trace_call(f, arguments, {}, frozenset())
    graph = run_passes(Graph(traced.graph.inputs, traced.graph.outputs, (), index_checks(traced.graph.roots)))
    count = 0
    for call in fuse(graph, target=target).calls:  # without prices: long rows, too, stay together
        if not isinstance(call.kernel, Rows):
            continue
        wanted = evaluate(Graph(graph.inputs, call.tensors, (), ()), arguments)[0]
        space = ROWS.space(call.kernel, target)
        other = RowsConfig(*(values[len(values) * 2 // 3] for values in space.values()))  # which a search may go to
        for config in [*ROWS.configs(call.kernel, target), other]:
            if not runner.SAMPLE.includes_next():
                continue
            assert ROWS.legal(call.kernel, config, target) == ""
            assert ROWS.cost(call.kernel, config, target).seconds > 0
            lowered = ROWS.lower(call.kernel, config, target)
            arrays = [
                np.full(t.shape, 77, t.dtype.numpy) if w else np.asarray(a, t.dtype.numpy, order="C")
                for t, w, a in zip(call.tensors, call.written, wanted, strict=True)
            ]
            nest_interp.run(lowered, call.kernel, arrays, reverse=count % 2 == 1)
            for got, want in zip(arrays, wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=str(config))
            count += 1
    return count


@runner.sampled(6)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_block_of_an_inner_axis_ends_before_its_buffer(batch, rng):
    """Strided reads take whole vectors where these lie in the tensor: from a block's first row on there is less of it
    than from the first row of all."""

    def largest(x):
        (i, j, r, s) = builder.axes(32, 4, batch, 65)
        top = builder.compute((32, 4), lambda i, j: builder.max(x[r, i, s, j], over=(r, s)))
        return builder.compute((32, 4), lambda i, j: builder.sqrt(1 + builder.abs(top[i, j])))

    def gradient(x):
        return es.grad(lambda x: largest(x).sum())(x)

    x = rng.standard_normal((batch, 32, 65, 4)).astype(np.float64)
    assert strictly(gradient, [x], Target(vector_bytes=64, cores=2))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_the_choice_is_the_least_of_all(name, rng, monkeypatch):
    """Blocks whose bytes alone take longer than another one takes are not looked at."""
    f, arguments = CASES[name]
    seen: set = set()
    looked = every = 0
    choose = autoconfig.choose
    monkeypatch.setattr(autoconfig, "choose", lambda kernel, one: seen.add(kernel) or choose(kernel, one))
    for rows, width in ((48, 300), (400, 1000)):
        traced = trace_call(f, arguments(rng, rows, width), {}, frozenset())
        graph = Graph(traced.graph.inputs, traced.graph.outputs, (), index_checks(traced.graph.roots))
        target = Target(cores=2, vector_bytes=64, l1=48 << 10, l2=1 << 20)
        for call in fuse(run_passes(graph), target=target).calls:
            if not isinstance(kernel := call.kernel, Rows):
                continue
            seen.clear()
            best = ROWS.best(kernel, target)
            looked += len(seen)
            ranks = {c: ROWS.cost(kernel, c, target).rank for c in ROWS.configs(kernel, target)}
            every += len(seen)
            assert best is not None and ranks[best] <= 1.0001 * min(ranks.values())
            assert ROWS.best(kernel, target, 0.9999 * min(ranks.values())) is None
    assert 0 < looked < every


def test_a_block_touches_its_rows(rng):
    """The bytes of other rows that lie between its own do not count, however the buffers are laid out."""
    run, _, _ = compiled(batch_norm, channels(rng, 16, 64)[:3], 2, Target(cores=2))
    (rows,) = (c.kernel for c in run.plan.calls)
    assert isinstance(rows, Rows) and all(2 in m.by_row for m in rows.members)
    for m in rows.members:
        block = bytes_by_buffer(block_kernel(m, 4, 4, len(rows.buffers)))
        whole = [4 if by_row else rows.rows for by_row in m.by_row]
        assert list(block) == [nbytes(b) * n // rows.rows for b, n in zip(m.kernel.buffers, whole, strict=True)]


def test_rows_of_several_axes(rng):
    """Attention's softmax: rows are batch, head and query; over the first of three axes only the other way round."""
    x = rng.standard_normal((3, 5, 7, 11)).astype(np.float32)
    for dim in (3, 1):
        run, graph, inputs = compiled(lambda x, dim=dim: F.softmax(x, dim), [x])
        (call,) = run.plan.calls
        assert isinstance(call.kernel, Rows) and call.kernel.rows == (105 if dim == 3 else 3)
        agree(run(inputs)[1], graph, inputs, "rows")


def test_rows_of_an_inner_axis(rng):
    """Channels between the images and the pixels; not where they are contiguous, a few bytes of each pixel."""
    x = rng.standard_normal((8, 16, 6, 8)).astype(np.float32)
    w = rng.standard_normal(16).astype(np.float32)
    run, graph, inputs = compiled(batch_norm, [x, w, w], 2)
    (call,) = run.plan.calls
    assert isinstance(call.kernel, Rows) and call.kernel.rows == 16
    assert all(2 in m.by_row for m in call.kernel.members)
    agree(run(inputs)[1], graph, inputs, "channels")

    def last(x, w):
        i, j, r = builder.axes(8, 16, 6)
        mean = builder.compute((8,), lambda c: builder.mean(x[i, j, r, c], over=(i, j, r)))
        return builder.compute(x.shape, lambda n, h, k, c: x[n, h, k, c] - mean[c])

    x = rng.standard_normal((8, 16, 6, 8)).astype(np.float32)
    run, graph, inputs = compiled(last, [x, w], 2)
    assert len(run.plan.calls) == 2
    agree(run(inputs)[1], graph, inputs, "channels last")


def test_no_rows(rng):
    for b, k in ((0, 5), (5, 0), (0, 0)):
        x = np.zeros((b, k), np.float32)
        run, _, _ = compiled(lambda x: (x - x.sum(1, keepdims=True), (x * 2).sum(0)), [x])
        out, total = run([x])[1]
        assert out.shape == (b, k)
        np.testing.assert_array_equal(total, np.zeros(k))


def test_other_rows_are_not_joined(rng):
    """What reads a neighbour's row, or a sum over all rows, is another kernel."""
    x = rng.standard_normal((64, 40)).astype(np.float32)

    def shifted(x):
        s = x.sum(1)
        return builder.compute((63, 40), lambda i, j: x[i, j] - s[i + 1])

    def centred(x):
        mean = x.mean(0)
        return builder.compute((64, 40), lambda i, j: x[i, j] - mean[j])

    for f in (shifted, centred):
        run, graph, inputs = compiled(f, [x])
        assert len(run.plan.calls) == 2
        agree(run(inputs)[1], graph, inputs, "rows")


def test_a_long_row_is_not_joined():
    """A row beyond the cache gains nothing, and few rows would leave cores idle."""
    x = np.zeros((2, 1 << 20), np.float32)
    run, _, _ = compiled(lambda x: F.softmax(x, 1), [x], threads=2)
    assert len(run.plan.calls) == 3


def _streams(run: Executable) -> int:
    """Instructions that store past the caches."""
    count = 0
    choices = [autoconfig.choose(c.kernel, run.target) for c in run.plan.calls]
    todo: list = [x.function.body for c in choices for x in lower_choice(c).launches]
    while todo:
        for x in todo.pop():
            if isinstance(x, Op):
                count += x.name == "stream"
            else:
                todo.append(x.body)
    return count


@pytest.mark.thinned(6)
@pytest.mark.parametrize("shape, past", [((64, 48), True), ((37, 16), True), ((37, 19), False), ((9, 61), False)])
@pytest.mark.parametrize("name", ["softmax", "softmax's gradient", "layer norm's gradients"])
def test_large_results_are_stored_past_the_caches(name, shape, past, rng):
    """Where vectors begin on cache lines: rows of whole vectors, whatever their number. Others are stored as ever."""
    f, arguments = CASES[name]
    for threads in (1, 2):
        target = replace(calibrate.target(threads), l3=1 << 11)
        run, graph, inputs = compiled(f, arguments(rng, *shape), threads, target)
        assert (_streams(run) > 0) is past, run.describe()
        agree(run(inputs)[1], graph, inputs, f"{threads} threads")


def test_results_read_again_use_no_streaming_stores(rng, monkeypatch):
    monkeypatch.setenv("EINSMITH_WITHOUT", "epilogue sums, prices of short rows, losses")
    x = rng.standard_normal((64, 64)).astype(np.float32)

    def both(x):
        e = builder.exp(x)
        return e, e.sum(1)

    run, graph, inputs = compiled(both, [x], 1, replace(calibrate.target(1), l3=1 << 11))
    assert len(run.plan.calls) == 1 and _streams(run) == 0
    agree(run(inputs)[1], graph, inputs, "read again")


def test_special_functions_are_evaluated_once(rng):
    """exp(x - max) of softmax, for the sum and for the result, along whichever axis."""
    x = rng.standard_normal((48, 7, 40)).astype(np.float32)
    for dim in (1, 2):
        run, _, _ = compiled(lambda x, dim=dim: F.softmax(x, dim), [x])
        (call,) = run.plan.calls
        changed = share(call.kernel)
        assert len(changed.members) == 4 and len(changed.local) == len(call.kernel.local) + 1
        assert _exps(changed) == 1


def _exps(kernel: Rows) -> int:
    bodies = [b for s in kernel.stages for b in s.template.parts[0].bodies]
    return sum(isinstance(e, Apply) and e.fn == "exp" for b in bodies for e in postorder([b]))


def test_masked_values_are_evaluated_once(rng):
    """Behind a mask the gradient of a softmax reads the scores alone, where the forward chooses by the mask."""
    s, g, m = (rng.standard_normal((3, 19, 19)).astype(np.float32) for _ in range(3))
    m += 3 * np.eye(19, dtype=np.float32)

    def masked(s, g, m):
        def loss(s):
            return (
                F.softmax(builder.compute(s.shape, lambda *i: builder.where(m[i] > 0.0, s[i], -np.inf)), 2) * g
            ).sum()

        return es.grad(loss)(s)

    def elsewhere(s, g, m):
        """Under another condition it is another value."""
        x, e = masked(s, g, m), builder.compute(s.shape, lambda *i: builder.where(m[i] > 0.5, builder.exp(s[i]), 0.0))
        top = builder.compute(
            s.shape[:2],
            lambda i, j: builder.sum(builder.exp(builder.where(m[i, j, k] > 0.0, s[i, j, k], -9.0)), over=k),
        )
        return x, builder.compute(s.shape, lambda *i: e[i] / top[i[:2]])

    (k,) = builder.axes(19)
    for f, args, most in ((causal_gradient, [s, g], 1), (masked, [s, g, m], 1), (elsewhere, [s, g, m], 3)):
        run, graph, inputs = compiled(f, args, 2)
        (call,) = run.plan.calls
        assert _exps(share(call.kernel)) == most
        agree(run(inputs)[1], graph, inputs, "masked")


def test_every_piece_has_the_rows_number(rng):
    """Two leading axes are one in a kernel whose pieces sum over different extents, and use one of them as a value."""
    made = s.numbered_phases(3, 4, 5)
    arrays = [rng.standard_normal(b.shape).astype(np.float32) for b in made.buffers]
    (want,) = reference(made, arrays).values()
    (leading,) = (way for way in row_forms(made)[12] if not way.reduces)
    merged = [a.reshape(b.shape) for a, b in zip(arrays, leading.kernel.buffers, strict=True)]
    (got,) = reference(leading.kernel, merged).values()
    np.testing.assert_array_equal(got.reshape(want.shape), want)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("batch,length", [(1, 17), (2, 17), (2, 1), (1, 1)])
def test_members_may_see_a_buffer_with_an_axis_of_one_and_without(rng, batch, length):
    """The tangent of attention: a single sample's tensors are read by all their axes, or by all but the first."""

    def attention(x, v, w):
        scores = F.matmul(F.linear(x, v), F.transpose(F.linear(x, w), 1, 2))
        return F.matmul(F.softmax(scores, -1), x)

    x = [rng.standard_normal(s).astype(np.float32) for s in ((batch, length, 2), (2, 2), (2, 2))]
    t = [rng.standard_normal(a.shape).astype(np.float32) for a in x]

    def tangent(x, t):
        return es.jvp(attention, tuple(x), tuple(t))[1]

    np.testing.assert_allclose(es.jit(tangent)(x, t), es.interpret(tangent)(x, t), rtol=1e-4, atol=1e-4)


def vocabulary_gradients(x, w, labels):
    """Gradients of a softmax cross entropy by a linear layer's input and weight; the weight's is stored as it is
    added up, or followed by that of a penalty."""
    dx, dw = es.grad(lambda x, w: F.cross_entropy(F.linear(x, w), labels), (0, 1))(x, w)
    return (dx, dw + 0.1 * w) if w.shape[0] % 2 else (dx, dw)


@runner.sampled(6)
@pytest.mark.parametrize(
    "rows, words, room",
    [
        (37, 61, 1 << 12), (64, 48, 1 << 25),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in ((37, 61, 1 << 25), (64, 48, 1 << 12))),
    ],
)  # fmt: skip
def test_every_configuration_of_a_vocabulary(rows, words, room, rng, monkeypatch):
    """Logits stay local; the weight's gradient is added up over blocks one after the other where there is no room for
    sums of every task."""
    monkeypatch.setattr(rows_cost, "MAX_LOCAL_BYTES", room)
    seen: list[RowsConfig] = []
    choices = rows_cost.configs
    monkeypatch.setattr(rows_cost, "configs", lambda *args: [seen.append(c) or c for c in choices(*args)])
    x, w = (rng.standard_normal((n, 7)).astype(np.float32) for n in (rows, words))
    arguments = [x, w, rng.integers(0, words, rows).astype(np.int32)]
    target = Target(vector_bytes=16, cores=2, l1=1 << 9, l2=1 << 12, l3=1 << 14)
    assert strictly(vocabulary_gradients, arguments, target)
    assert any(not c.tasks and c.turned for c in seen) == (room == 1 << 12)
