"""The scalar baseline against the evaluator: kernels of every kind, guards, epilogues, limits, integers; its price."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.nest_text import show
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import apply
from einsmith.kernels import autoconfig
from einsmith.kernels.scalar import Scalar, ScalarConfig
from einsmith.tuning.kernels import override
from einsmith.tuning.kernels.decisions import name_of
from tests.fuzz.check import agree
from tests.kernels.runner import check, host, sampled
from tests.kernels.samples import axes, capsule, conv, plain, product, read, strided_conv_dx

PATTERN = Scalar()


@sampled(2)
@pytest.mark.parametrize("n", [1, 3, 15, 16, 17, 37])
def test_pointwise(rng, n):
    i, j = axes(2)
    body = apply("exp", apply("mul", read(0, i, j), read(1, j)))
    check(PATTERN, plain((n, 5), [(dt.f32, (n, 5)), (dt.f32, (5,))], body), rng)


PROGRAMS = {
    "product": (lambda x, w: F.relu(x @ w), [(7, 13), (13, 17)]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), [(2, 3, 9, 7), (5, 3, 3, 3)]),
    "pooling": (lambda x: F.max_pool2d(x, 2), [(2, 3, 7, 9)]),
    "argmax": (lambda x: x.argmax(1), [(5, 17)]),
    "softmax": (lambda x: F.softmax(x, 1), [(5, 31)]),
    "variance": (lambda x: x.var(0), [(33, 3)]),
    "transposed": (lambda x: x.T.sum(1), [(1, 17)]),
    "cumulative": (lambda x: x.cumsum(0), [(17, 3)]),
    "joined": (lambda x, y: F.cat([x, F.tanh(y)], 0) + 1, [(3, 5), (4, 5)]),
}


def gradients(f, count):
    return lambda *xs: (
        f(*xs),
        es.grad(lambda *ys: (f(*ys) ** 2).sum(), argnums=tuple(range(count)))(*xs),
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_scalar_kernels(name, rng, monkeypatch):
    """Every kernel that the baseline takes is compiled to it by an override."""
    f, shapes = PROGRAMS[name]
    f = f if name == "argmax" else gradients(f, len(shapes))
    monkeypatch.setenv("EINSMITH_WITHOUT", "row fusion")
    args = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    traced = trace_call(f, tuple(args), {})
    run = Executable(traced.graph, traced.bind, 1)
    taken = {name_of(c.kernel): "scalar" for c in run.calls if PATTERN.match(c.kernel)}
    assert taken
    with override.overriding(taken):
        run = Executable(traced.graph, traced.bind, 1)
        agree(run(args)[1], traced.graph, args, name)
    assert [k.pattern for k in run.kernels].count("scalar") == sum(PATTERN.match(c.kernel) for c in run.calls)


@pytest.mark.parametrize(
    "kernel",
    [product(7, 17, 13), conv(2, 3, 9, 7, 5, 3, 3, 1, 2), strided_conv_dx(1, 3, 6, 8, 5), capsule(1, 3, 5, 2, 2)],
    ids=["product", "convolution", "phases", "capsules"],
)
def test_sums_of_products(kernel, rng):
    check(PATTERN, kernel, rng)


def test_no_vectors_and_never_chosen():
    kernel = product(64, 64, 512)
    text = show(PATTERN.lower(kernel, ScalarConfig(), host(1)).functions[0])
    assert "f32" in text and "f32x" not in text
    choice = autoconfig.choose(kernel, host(1))
    assert all(name != PATTERN.name for name, _, _ in choice.alternatives)
    scalar = autoconfig.price_scalar(kernel, host(1))
    assert scalar is not None and scalar.seconds > 5 * choice.cost.seconds


def test_the_price_counts_terms_functions_and_lines_walked_across():
    """What is measured beside it, benchmarks.algorithms says; machines differ by what a line from L2 or L3 costs."""
    i, j = axes(2)

    def seconds(kernel):
        return PATTERN.cost(kernel, ScalarConfig(), host(1)).seconds

    def pointwise(function):
        return plain((300, 200), [(dt.f32, (300, 200))], apply(function, read(0, i, j)))

    short, long = seconds(product(64, 64, 256, "NT")), seconds(product(64, 64, 512, "NT"))
    assert 1.9 < long / short < 2.1
    assert seconds(product(64, 64, 4096, "NN")) > seconds(product(64, 64, 4096, "NT"))
    assert seconds(pointwise("exp")) > 2 * seconds(pointwise("neg"))
