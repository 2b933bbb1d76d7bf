"""Nested row blocks: a block of rows runs in sweeps over another axis; a batch of matrices runs matrix by matrix."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.driver import compile
from einsmith.kernels import autoconfig
from einsmith.kernels.rows import cost
from einsmith.schedule import row_nests
from einsmith.schedule.kernel import Rows
from tests.fuzz.check import agree
from tests.schedule.test_reduction_chains import CHAINS, arguments, compile_with

HEADS = "o[h,i,v] = sum[j](exp(-sum[d]((x[h,i,d]-y[h,j,d])**2)*0.5) * b[h,j,v])"


def attention(x, y, b):
    """Return causal attention of a batch of heads."""
    return F.scaled_dot_product_attention(x, y, b, is_causal=True)


def gradients_of(f):
    """Return the gradients of the sum of squares of f's result by all arguments."""
    return es.grad(lambda *args: (f(*args) ** 2).sum(), (0, 1, 2))


BATCHED = {
    "gaussian": es.op(HEADS),
    "attention": attention,
    "gaussian's gradients": gradients_of(es.op(HEADS)),
    "attention's gradients": gradients_of(attention),
}


@pytest.fixture(params=[(3, 8), (16, 32)], ids=["blocks of 3", "blocks of 16"])
def nested(request, monkeypatch, tmp_path) -> Iterator[None]:
    """Row blocks cost nothing, are as small as given, and nest wherever they can."""
    block, least = request.param
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile, "predicted", lambda kernel, target: float(not isinstance(kernel, Rows)))
    monkeypatch.setattr(row_nests, "MIN_SWEEP_ROWS", least)
    monkeypatch.setattr(cost, "REUSING_BLOCKS", (block,))
    monkeypatch.setattr(cost, "TILES", (block + 1,))
    configs = cost.configs

    def nests(rows, target):
        every = configs(rows, target)
        return [c for c in every if c.nested] or every

    monkeypatch.setattr(cost, "configs", nests)
    for cache in (row_nests.block_kernels, autoconfig._CHOSEN):
        getattr(cache, "cache_clear", getattr(cache, "clear", None))()
    yield
    for cache in (row_nests.block_kernels, autoconfig._CHOSEN):
        getattr(cache, "cache_clear", getattr(cache, "clear", None))()


def depth(kernel, target) -> int:
    """Return how many row blocks lie inside each other in the chosen configuration of a kernel."""
    if not isinstance(kernel, Rows):
        return 0
    config = autoconfig.choose(kernel, target).config
    inner = row_nests.block_kernels(kernel, config.block, config.block, config.nested)
    return 1 + max(depth(x.kernel, cost.one_core(target)) for x in inner)


@pytest.mark.parametrize("sizes", [(37, 43, 2, 1), (33, 40, 7, 3)])
@pytest.mark.parametrize("name", CHAINS)
def test_sweeps_over_columns_agree_with_the_evaluator(name: str, sizes, rng, nested) -> None:
    args = arguments(rng, *sizes)
    for threads in (1, 2):
        run = compile_with(CHAINS[name], args, threads, 1)
        agree(run(args)[1], run.graph, args, f"{name}, {threads} threads")


@pytest.mark.parametrize("sizes", [(11, 37, 43, 2, 1), (8, 33, 32, 7, 3), (3, 40, 41, 5, 5), (1, 35, 35, 4, 4)])
@pytest.mark.parametrize("name", BATCHED)
def test_batches_agree_with_the_evaluator(name: str, sizes, rng, nested) -> None:
    heads, rows, columns, d, v = sizes
    args = [rng.standard_normal((heads, *s), np.float32) for s in ((rows, d), (columns, d), (columns, v))]
    for threads in (1, 2):
        run = compile_with(BATCHED[name], args, threads, 1)
        results = run(args)[1]
        agree(results, run.graph, args, f"{name}, {threads} threads")
        for a, b in zip(results, run(args)[1], strict=True):
            np.testing.assert_array_equal(a, b)


def test_heads_nest_their_queries_which_nest_their_keys(rng, nested) -> None:
    """The innermost tiles have a block of queries and a block of keys."""
    args = [rng.standard_normal((16, 50, 4), np.float32) for _ in range(3)]
    run = compile_with(BATCHED["attention"], args, 1, 1)
    assert max(depth(call.kernel, run.target) for call in run.plan.calls) == 3
