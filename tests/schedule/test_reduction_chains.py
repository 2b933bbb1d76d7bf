"""Chains of reductions run by row blocks: a large result that only reductions read is never stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.driver import compile
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import nbytes
from einsmith.schedule.kernel import Rows
from einsmith.tuning.calibration import calibrate
from tests.fuzz.check import agree
from tests.kernels.test_rows import compiled

GAUSSIAN = "o[i,v] = sum[j](exp(-sum[d]((x[i,d]-y[j,d])**2)*0.5) * b[j,v])"
LAPLACIAN = "o[i,v] = sum[j](exp(-sum[d](abs(x[i,d]-y[j,d]))) * b[j,v])"
LOG_SUM_EXP = "o[i,v] = log(sum[j](exp(sum[d](x[i,d]*y[j,d]) + b[j,v])))"
FARTHEST = "o[i] = max[j](sum[d]((x[i,d]-y[j,d])**2) + b[j,0])"
NEAREST = "o[i] = argmin[j](sum[d]((x[i,d]-y[j,d])**2) + b[j,0])"


def attention(x, y, b):
    """Return softmax(x y^T) y, masked causally."""
    return F.scaled_dot_product_attention(x, y, b, is_causal=True)


def gradients_of(f):
    """Return the gradients of the sum of squares of f's result by all arguments."""
    return es.grad(lambda *args: (f(*args) ** 2).sum(), (0, 1, 2))


def second_gradient_of(f):
    """Return the gradient by the first argument of the squared norm of the gradient of f's sum by it."""

    def squared_norm(x, y, b):
        dx = es.grad(lambda x: f(x, y, b).sum())(x)
        return (dx * dx).sum()

    return es.grad(squared_norm)


CHAINS = {
    "gaussian": es.op(GAUSSIAN),
    "laplacian": es.op(LAPLACIAN),
    "log-sum-exp": es.op(LOG_SUM_EXP),
    "farthest": es.op(FARTHEST),
    "nearest": es.op(NEAREST),
    "attention": attention,
    "gaussian's gradients": gradients_of(es.op(GAUSSIAN)),
    "gaussian's second gradient": second_gradient_of(es.op(GAUSSIAN)),
    "laplacian's gradients": gradients_of(es.op(LAPLACIAN)),
    "log-sum-exp's gradients": gradients_of(es.op(LOG_SUM_EXP)),
    "farthest's gradients": gradients_of(es.op(FARTHEST)),
    "attention's gradients": gradients_of(attention),
}


def arguments(rng: np.random.Generator, rows: int, columns: int, d: int, v: int) -> list[np.ndarray]:
    shapes = (rows, d), (columns, d), (columns, v)
    return [rng.standard_normal(s, np.float32) for s in shapes]


def compile_with(f, args, threads: int, l3: int) -> Executable:
    """Return the program for this machine with a last-level cache of `l3` bytes."""
    return compiled(f, args, threads, replace(calibrate.target(threads), l3=l3))[0]


def stored(run: Executable) -> int:
    """Return the bytes of the largest tensor that a program's kernels read or write."""
    return max(nbytes(t) for call in run.plan.calls for t in call.tensors)


@pytest.fixture
def fused_at_any_cost(monkeypatch) -> None:
    """Row blocks are predicted to cost nothing."""
    monkeypatch.setattr(compile, "predicted", lambda kernel, target: float(not isinstance(kernel, Rows)))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", CHAINS)
def test_the_result_between_two_reductions_is_not_stored(name: str, rng, fused_at_any_cost) -> None:
    """A matrix of 600 x 500 is larger than the cache and than every argument and result."""
    args = arguments(rng, 600, 500, 3, 3)
    run = compile_with(CHAINS[name], args, 2, 1 << 16)
    assert stored(run) < 600 * 500, name
    assert any(isinstance(k, Rows) for k in (call.kernel for call in run.plan.calls)), name
    results, again = run(args)[1], run(args)[1]
    for a, b in zip(results, again, strict=True):
        np.testing.assert_array_equal(a, b)
    agree(results, run.graph, args, name)


AWKWARD = [(1, 1, 1, 1), (1, 37, 2, 1), (37, 1, 1, 3), (17, 15, 16, 17), (31, 33, 7, 2)]


@pytest.mark.thinned(12)
@pytest.mark.parametrize("size", range(len(AWKWARD)))
@pytest.mark.parametrize("name", CHAINS)
def test_values_at_awkward_sizes(name: str, size: int, rng, fused_at_any_cost) -> None:
    """The cache holds next to nothing; each chain and each size is met with 1 thread and with 2."""
    args, threads = arguments(rng, *AWKWARD[size]), 1 + (list(CHAINS).index(name) + size) % 2
    run = compile_with(CHAINS[name], args, threads, 1)
    agree(run(args)[1], run.graph, args, f"{name}, {threads} threads")


@pytest.mark.parametrize("name", ["gaussian", pytest.param("gaussian's gradients", marks=pytest.mark.slow)])
def test_kernel_methods_take_memory_for_their_arguments_alone(name: str, rng) -> None:
    """On this machine, by its own costs: 9,000 x 9,000 pairs, 324 MB, in a few."""
    args = arguments(rng, 9000, 9000, 3, 2)
    assert stored(compiled(CHAINS[name], args, 2)[0]) <= args[0].nbytes * 3


def test_a_result_that_is_read_elsewhere_too_is_stored(rng, fused_at_any_cost) -> None:
    """The matrix is a result of the program as well: nothing is saved, and the product keeps its own tiles."""
    x, y, b = arguments(rng, 300, 250, 64, 1)

    def chain(x, y, b):
        t = x @ y.T
        return t, (F.tanh(t) * b[:, 0]).sum(1)

    run = compile_with(chain, [x, y, b], 2, 1 << 16)
    assert stored(run) == 4 * 300 * 250
    assert not any(isinstance(call.kernel, Rows) and not call.kernel.takes_sums for call in run.plan.calls)
    agree(run([x, y, b])[1], run.graph, [x, y, b], "a stored matrix")


PAIRS = es.op("o[i,v] = sum[j](exp(-sum[d]((x[i,d]-y[j,d])**2)*s) * b[j,v])")


def pairs(x, y, b):
    """Return sums over all pairs of points, weighted by a Gaussian kernel whose width is a parameter."""
    return PAIRS(x=x, y=y, b=b, s=0.5)


def pulled(x, y, b, c):
    """Return the cotangents of x, y and b."""
    return es.vjp(pairs, x, y, b)[1](c)


PAIRS_PROGRAMS = {
    "values": lambda x, y, b, c: pairs(x, y, b),
    "gradients": pulled,
    "values and gradients": lambda x, y, b, c: (pairs(x, y, b), *pulled(x, y, b, c)),
}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("name", PAIRS_PROGRAMS)
def test_sums_over_many_pairs_hold_no_pairs(name: str, threads: int, rng) -> None:
    """Beside its arguments and results, of 20,000 x 20,000 pairs, 1.6 GB, a program holds at most 64 MB."""
    args = [*arguments(rng, 20_000, 20_000, 3, 2), np.ones((20_000, 2), np.float32)]
    run = compiled(PAIRS_PROGRAMS[name], args, threads, replace(calibrate.target(threads), cores=threads))[0]
    assert run.held_bytes - sum(run.fixed_bytes()) <= 64e6


def test_sums_over_many_pairs_are_those_of_float64(rng) -> None:
    """A sample of rows and of columns, called as users call them, twice."""
    x, y, b = arguments(rng, 2500, 2001, 3, 2)
    c = rng.standard_normal((2500, 2), np.float32)
    at, wide = rng.integers(0, 2001, 20), [a.astype(float) for a in (x, y, b, c)]

    def weights(x, y):
        return np.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(2))

    rows, columns = weights(wide[0][at], wide[1]), weights(wide[0], wide[1][at])
    by_row, by_column = rows * (wide[3][at] @ wide[2].T), columns * (wide[3] @ wide[2][at].T)
    wanted = (
        (rows @ wide[2]),
        (by_row @ wide[1] - by_row.sum(1)[:, None] * wide[0][at]),
        (by_column.T @ wide[0] - by_column.sum(0)[:, None] * wide[1][at]),
        (columns.T @ wide[3]),
    )
    for _ in range(2):
        out, pull = es.vjp(pairs, x, y, b)
        for result, want in zip((out, *pull(c)), wanted, strict=True):
            np.testing.assert_allclose(result[at], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
