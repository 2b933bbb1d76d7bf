"""Sums that a kernel takes of its results: means and variances, gradients of norms, losses, in every configuration."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_call
from einsmith.driver import compile
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Graph
from einsmith.kernels import autoconfig
from einsmith.kernels.composite.summed_pattern import APART
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows, Stage
from einsmith.schedule.summed import SumPart, summed_form
from einsmith.tuning.kernels.decisions import format_choice
from tests.fuzz.check import agree
from tests.kernels.runner import random_array, reference
from tests.kernels.test_rows import compiled

MEAN = es.op("m[c] = sum[n,h,w](z[n,c,h,w])/(z.shape[0]*z.shape[2]*z.shape[3])")
VARIANCE = es.op("v[c] = sum[n,h,w]((z[n,c,h,w]-m[c])**2)/(z.shape[0]*z.shape[2]*z.shape[3])")
SLOPES = es.op("s[c] = sum[n,h,w](where(y[n,c,h,w] > 0, z[n,c,h,w], 0)*(y[n,c,h,w]-m[c]))")
MOST = 4
"""Most configurations that a test runs."""


def convolved(stride: int, padding: int, groups: int = 1):
    def f(x, w):
        z = F.conv2d(x, w, stride=stride, padding=padding, groups=groups)
        m = MEAN(z)
        return z, m, VARIANCE(z, m)

    return f


def masked(x, w, y, m):
    z = F.conv2d(x, w)
    return z, SLOPES(y=y, z=z, m=m), es.op("b[c] = sum[n,h,w](where(y[n,c,h,w] > 0, z[n,c,h,w], 0))")(y=y, z=z)


def losses(x, w, y):
    """Return a product and the sum of squares of what it misses, over all its elements."""
    z = x @ w
    return z, ((z - y) ** 2).sum()


def column_sums(x, w):
    z = x @ w
    return z, z.sum(0), (z * z).sum(0)


def layer_statistics(x, w):
    z = x @ w
    m = z.mean(1)
    return z, m, es.op("v[n] = sum[k]((z[n,k]-m[n])**2)/z.shape[1]")(z=z, m=m)


def over_channels(x, w):
    z = F.conv2d(x, w, padding=1)
    return z, z.sum(1), (z * z).sum(1)


def arrays(rng, *shapes):
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


CASES = {
    "1x1, 14x14": (convolved(1, 0), [(2, 8, 14, 14), (17, 8, 1, 1)]),
    "1x1, 7x7": (convolved(1, 0), [(5, 16, 7, 7), (15, 16, 1, 1)]),
    "1x1, one image": (convolved(1, 0), [(1, 3, 13, 11), (16, 3, 1, 1)]),
    "1x1, two channels": (convolved(1, 0), [(3, 5, 9, 9), (2, 5, 1, 1)]),
    "3x3": (convolved(1, 1), [(3, 7, 13, 11), (5, 7, 3, 3)]),
    "3x3, stride 2": (convolved(2, 1), [(2, 6, 17, 15), (31, 6, 3, 3)]),
    "3x3, 28x28": (convolved(1, 1), [(2, 32, 28, 28), (33, 32, 3, 3)]),
    "3x3, over channels": (over_channels, [(2, 7, 5, 13), (11, 7, 3, 3)]),
    "3x3, over channels, 27 wide": (over_channels, [(1, 3, 6, 27), (7, 3, 3, 3)]),
    "depthwise": (convolved(1, 1, 5), [(2, 5, 13, 31), (5, 1, 3, 3)]),
    "depthwise, stride 2": (convolved(2, 1, 4), [(3, 4, 33, 17), (4, 1, 3, 3)]),
    "depthwise, 7x7": (convolved(1, 1, 6), [(4, 6, 7, 7), (6, 1, 3, 3)]),
    "depthwise, 112 wide": (convolved(1, 1, 2), [(2, 2, 30, 112), (2, 1, 3, 3)]),
    "masked": (masked, [(3, 9, 10, 10), (20, 9, 1, 1), (3, 20, 10, 10), (20,)]),
    "loss": (losses, [(37, 11), (11, 50), (37, 50)]),
    "columns": (column_sums, [(67, 9), (9, 33)]),
    "rows": (layer_statistics, [(33, 12), (12, 47)]),
}


@pytest.fixture
def joined_at_any_cost(monkeypatch) -> None:
    """Kernels that take sums are predicted to cost nothing, and no other row blocks."""
    known = compile.predicted

    def predicted(kernel, target):
        return 0.0 if isinstance(kernel, Rows) and kernel.takes_sums else known(kernel, target)

    monkeypatch.setattr(compile, "predicted", predicted)


@pytest.mark.thinned(12)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_values_in_every_configuration(name: str, threads: int, rng, joined_at_any_cost) -> None:
    f, shapes = CASES[name]
    args = arrays(rng, *shapes)
    run, graph, _ = compiled(f, args, threads)
    (call,) = run.plan.calls
    assert call.kernel.takes_sums and summed_form(call.kernel) is not None
    configs = [c for _, c, _ in autoconfig.choose(call.kernel, run.target).alternatives]
    together = [c for c in configs if c != APART]
    assert together, "no pattern takes the sums"
    for config in [*together[:: -(-len(together) // MOST)], APART]:
        other = run.with_decisions({call.kernel: format_choice(autoconfig.SUMMED, config)})
        results, again = other(args)[1], other(args)[1]
        agree(results, graph, args, f"{name}, {config}")
        for x, y in zip(results, again, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["3x3", "3x3, over channels", "3x3, over channels, 27 wide"])
def test_vectors_that_keep_to_rows(name: str, threads: int, rng, joined_at_any_cost) -> None:
    """Rows of an image are padded to whole vectors; elements of the sums, or their terms, are those without padding."""
    f, shapes = CASES[name]
    args = arrays(rng, *shapes)
    run, graph, _ = compiled(f, args, threads)
    (call,) = run.plan.calls
    every = [c for _, c, _ in autoconfig.choose(call.kernel, run.target).alternatives if c != APART]
    padded = [c for c in every if any(getattr(x, "rows", False) for x in c.config.pieces)]
    assert padded
    for config in padded[:MOST]:
        other = run.with_decisions({call.kernel: format_choice(autoconfig.SUMMED, config)})
        agree(other(args)[1], graph, args, f"{name}, {config}")


@pytest.mark.parametrize("shift", [1e2, 1e4])
@pytest.mark.parametrize("name", ["1x1, 14x14", "3x3", "depthwise", "depthwise, 7x7"])
def test_variances_do_not_cancel(name: str, shift: float, rng, joined_at_any_cost) -> None:
    """The mean is many times the standard deviation, and early values (a padded corner) are far from it. The error is
    that of single precision times the ratio of the two, not times its square."""
    f, (x_shape, w_shape) = CASES[name]
    x, w = arrays(rng, x_shape, w_shape)
    x += shift
    run, _, _ = compiled(f, [x, w], 2)
    (call,) = run.plan.calls
    config = next(c for _, c, _ in autoconfig.choose(call.kernel, run.target).alternatives if c != APART)
    z, m, v = run.with_decisions({call.kernel: format_choice(autoconfig.SUMMED, config)})([x, w])[1]
    z = z.astype(float)
    np.testing.assert_allclose(m, z.mean((0, 2, 3)), rtol=2e-6)
    np.testing.assert_allclose(v, z.var((0, 2, 3)), rtol=5e-6 + 2e-8 * shift)


def test_a_norm_is_summed_where_its_input_is_made(rng) -> None:
    """By the machine's own costs: a convolution whose result leaves the caches is read once more, to be normalised."""
    args = arrays(rng, (32, 16, 112, 112), (96, 16, 1, 1), (96,), (96,))

    def f(x, w, mean, variance):
        return F.batch_norm(F.conv2d(x, w), mean, variance, training=True)

    run, _, _ = compiled(f, args, 2)
    assert any(isinstance(c.kernel, Rows) and c.kernel.takes_sums for c in run.plan.calls)


@pytest.mark.parametrize("shape", [(2, 1, 1), (13, 7, 17), (67, 9, 31)])
@pytest.mark.parametrize("of", ["x", "z"])
def test_updates_are_taken_with_the_sums_that_they_use(of: str, shape, rng, joined_at_any_cost) -> None:
    """A parameter is stored by the kernel whose results its gradient sums; not if that kernel makes what is checked
    before anything is stored."""
    rows, depth, columns = shape
    args = arrays(rng, (rows, depth), (depth, columns), (columns,))

    def f(x, w, b):
        z = x @ w
        checked = ((z if of == "z" else x) ** 2).mean()
        if of == "x":
            z = z * checked
        return z, checked, b - 0.1 * z.sum(0)

    traced = trace_call(f, args, {}, frozenset()).graph
    z, checked, new = traced.outputs
    graph = Graph(traced.inputs, (z, checked), ((traced.inputs[2], new),), ())
    wanted = evaluate(graph, [a.astype(float) for a in args])
    bias = args[2].copy()
    run = Executable(graph, {graph.inputs[2]: bias}, 2, finite=checked)
    ((_, stored),), made = run.plan.graph.updates, run.plan.graph.outputs[0]
    (call,) = (c for c in run.plan.calls if stored in c.results)
    assert (isinstance(call.kernel, Rows) and call.kernel.takes_sums) == (made in call.results) == (of == "x")
    np.testing.assert_allclose(run(args[:2])[1][0], wanted[0][0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(bias, wanted[1][0], rtol=1e-5, atol=1e-5)
    args[0][0, 0] = np.inf
    run(args[:2])
    np.testing.assert_allclose(bias, wanted[1][0], rtol=1e-5, atol=1e-5)


# -------------------------------------------------------------------------------------------------- the rule by force


def finish_by_force(rows: Rows, buffers: list[np.ndarray], rng, parts: int) -> dict[int, np.ndarray]:
    """What the reductions' results are, by place, if the main kernel's points are divided into random parts."""
    form = summed_form(rows)
    assert form is not None
    held = [*buffers, *(np.zeros(b.shape, b.dtype.numpy) for b in rows.local)]

    def arguments(kernel: Kernel, sources) -> list[np.ndarray]:
        return [
            sums[s] if isinstance(s, SumPart) else held[s].reshape(b.shape)
            for s, b in zip(sources, kernel.buffers, strict=True)
        ]

    main, sums = form.main.kernel, dict[SumPart, np.ndarray]()
    terms_from = len(rows.members[0].kernel.stages)
    stages = [
        Stage(s.template, s.args, (len(main.buffers) + i,) if i >= terms_from else s.outputs)
        for i, s in enumerate(main.stages)
    ]
    results = [KernelBuffer(s.template.dtypes[0], s.template.shape) for s in main.stages]
    shown = Kernel(tuple(stages), (*main.buffers, *results))
    extra = [np.zeros(s.template.shape, s.template.dtypes[0].numpy) for s in main.stages]
    computed = reference(shown, [*arguments(main, form.main.sources), *extra])
    for n, x in computed.items():
        if n < len(main.buffers):
            held[form.main.sources[n]] = x.reshape(held[form.main.sources[n]].shape)
    part_of = rng.integers(0, parts, main.shape)
    for number, s in enumerate(main.sums):
        terms = computed[len(main.buffers) + s.stage].astype(float)
        kept = [main.shape[d] for d in s.kept]
        summed = tuple(d for d in range(len(main.shape)) if d not in s.kept)
        # A part has the same number of terms of every element, as the tasks of a kernel have.
        places = part_of[tuple(slice(None) if d in summed else slice(1) for d in range(len(main.shape)))]
        counts = np.array([np.sum(places == p) for p in range(parts)], float)
        totals = np.array([np.where(places == p, terms, 0).sum(summed).reshape(kept) for p in range(parts)])
        if not s.centred:
            sums[SumPart(number, "sum")] = totals
            continue
        each = np.maximum(counts, 1).reshape(-1, *(1 for _ in kept))
        means = totals / each
        squares = np.array(
            [
                (np.where(places == p, terms - np.expand_dims(means[p], summed), 0) ** 2).sum(summed).reshape(kept)
                for p in range(parts)
            ]
        )
        sums |= {SumPart(number, "count"): counts, SumPart(number, "mean"): means, SumPart(number, "squares"): squares}
    out: dict[int, np.ndarray] = {}
    for finish in form.finishes:
        built = finish.build(main.sums, parts)
        args = []
        for s, b in zip(built.sources, built.kernel.buffers, strict=True):
            flat = sums[s].reshape(-1) if isinstance(s, SumPart) else None
            if flat is None:
                args.append(held[s].reshape(b.shape))
            else:
                strides = [n * flat.itemsize for n in b.strides]
                args.append(np.lib.stride_tricks.as_strided(flat, b.shape, strides).astype(b.dtype.numpy))
        for n, x in reference(built.kernel, args).items():
            place = built.sources[n]
            held[place] = out[place] = x.reshape(held[place].shape)
    return out


FORMULAS = [
    ("s[j] = sum[i,k](z[i,j,k])", (2, 3, 5)),
    ("s[i,k] = sum[j](z[i,j,k]*a[k])", (2, 3, 5)),
    ("s[k,i] = sum[j](exp(z[i,j,k]))", (2, 3, 5)),
    ("s[] = sum[i,j,k](z[i,j,k]*z[i,j,k])", (3, 1, 4)),
    ("s[j,k] = sum[i](z[i,j,k]*y[i,j,k])", (4, 1, 3)),
    ("s[c] = sum[i,k](f[i,c,k])", (2, 6, 5)),
]


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("n", range(len(FORMULAS)))
def test_the_parts_of_a_sum_give_the_sum(n: int, parts: int, rng, joined_at_any_cost) -> None:
    """Whichever points a part has, the finished results are those of the reduction."""
    formula, shape = FORMULAS[n]
    names = {"z": shape, "a": shape[-1:], "y": shape, "f": shape}
    used = [x for x in names if f"{x}[" in formula.split("=")[1]]
    op = es.op(formula)

    def f(*args):
        given = dict(zip(used, args, strict=True))
        made = {x: es.tanh(given[x]) for x in used if x != "a"}
        return *made.values(), op(**{**given, **made})

    args = arrays(rng, *(names[x] for x in used))
    rows = [c.kernel for c in compiled(f, args, 1)[0].plan.calls]
    check(rows, rng, parts)


def check(kernels, rng, parts: int) -> None:
    for rows in kernels:
        if isinstance(rows, Rows) and rows.takes_sums:
            buffers = [random_array(rng, b) for b in rows.buffers]
            want = reference(rows, buffers)
            for place, x in finish_by_force(rows, buffers, rng, parts).items():
                if place < len(buffers):
                    np.testing.assert_allclose(x, want[place], rtol=2e-5, atol=2e-5)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("parts", [1, 3, 7])
@pytest.mark.parametrize("name", CASES)
def test_the_parts_of_every_case_give_its_sums(name: str, parts: int, rng, joined_at_any_cost) -> None:
    f, shapes = CASES[name]
    calls = compiled(f, arrays(rng, *shapes), 1)[0].plan.calls
    assert any(c.kernel.takes_sums for c in calls)
    check([c.kernel for c in calls], rng, parts)


OTHERWISE = {
    "a neighbour": ("s[j] = sum[i](z[i,j+1])", {"j": "z.shape[1]-1"}),
    "a part": ("s[] = sum[i](z[i,0])", {}),
    "the diagonal": ("s[i] = sum[k](z[i,i]*a[k])", {}),
    "every element twice": ("s[] = sum[i,j,k](z[i,j]*a[k])", {}),
    "every other row": ("s[j] = sum[i](z[2*i,j])", {"i": "z.shape[0]//2"}),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_reductions_of_other_elements_are_not_taken(what: str, rng, joined_at_any_cost) -> None:
    formula, extents = OTHERWISE[what]
    op = es.op(formula, extents=extents)
    named = ("z", "a") if "a[k]" in formula else ("z",)

    def f(z, a):
        made = es.tanh(z)
        return made, op(**dict(zip(named, (made, a), strict=False)))

    args = arrays(rng, (6, 6), (3,))
    run, graph, _ = compiled(f, args, 1)
    assert not any(isinstance(c.kernel, Rows) and c.kernel.takes_sums for c in run.plan.calls)
    agree(run(args)[1], graph, args, what)
