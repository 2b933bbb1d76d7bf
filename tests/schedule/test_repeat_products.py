"""Products that the backward pass computes again: neither pass stores the scores of attention."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.base.errors import ArgumentError
from einsmith.codegen.cache.native import host_target
from einsmith.driver import compile, registry
from einsmith.driver.executable import Executable
from einsmith.export import exported, traces
from einsmith.ir.nodes import nbytes
from einsmith.schedule import pipeline, repeat_products
from einsmith.schedule.kernel import Rows
from einsmith.training.step import TrainStep
from tests.programs import program_of

HEADS, STEPS, WIDTH = 8, 512, 16


class Attention(es.nn.Module):
    """Causal self-attention with a projection on either side; dropout p of the weights."""

    def __init__(self, p: float = 0.0):
        self.into, self.out, self.p = es.nn.Linear(WIDTH, 3 * HEADS * WIDTH), es.nn.Linear(HEADS * WIDTH, WIDTH), p

    def forward(self, x):
        """Return the values [batch, steps, width] after attention."""
        b, t, _ = x.shape
        y = self.into(x).reshape(b, t, 3, HEADS, WIDTH)
        q, k, v = (y[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)
        return self.out(a.transpose(0, 2, 1, 3).reshape(b, t, HEADS * WIDTH))


@pytest.fixture(autouse=True, params=[32 << 20, 300 << 20], ids=["L3 of 32 MiB", "of 300 MiB"])
def machine(request, monkeypatch) -> None:
    """Two threads, whose tiles take memory, and last-level caches that hold the scores or do not."""
    target = replace(host_target(), cores=2, l2=1 << 20, l3=request.param)
    monkeypatch.setattr(registry.DEFAULT, "target", lambda threads: replace(target, cores=threads))
    es.set_threads(2)


def step_of(p: float = 0.0, **settings) -> TrainStep:
    """Return the step of a loss whose gradient waits for all rows: no kernel can compute both passes."""
    es.manual_seed(3)
    return es.TrainStep(Attention(p), lambda y, t: ((y - t) ** 2).mean() ** 0.5, es.optim.SGD(lr=0.5), **settings)


def largest(step: TrainStep) -> int:
    """Return the bytes of the largest tensor that the step's kernels read or write."""
    (program,) = step.compiler.programs.values()
    return largest_of(program)


def largest_of(program: Executable) -> int:
    return max(nbytes(t) for _, call, _ in program.plan.kernel_calls() for t in call.tensors)


@pytest.fixture
def batch(rng) -> list[np.ndarray]:
    return [rng.standard_normal((2, STEPS, WIDTH), np.float32) for _ in range(2)]


SCORES = 4 * 2 * HEADS * STEPS * STEPS


def losses(step: TrainStep, batch: list[np.ndarray]) -> list[float]:
    return [step(*batch) for _ in range(3)]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("p", [0.0, 0.25], ids=["", "dropout"])
def test_scores_that_are_computed_again_change_no_result(p: float, batch, monkeypatch) -> None:
    """With dropout, too, whose random numbers are the same in both passes."""
    again = step_of(p, max_stored=0)
    found = losses(again, batch)
    assert largest(again) < SCORES / 2
    monkeypatch.setattr(pipeline, "repeat_products", lambda graph, fuse, *_: fuse(graph, False))
    kept = step_of(p)
    np.testing.assert_allclose(found, losses(kept, batch), rtol=1e-5)
    assert largest(kept) >= SCORES


def seconds_of_products(ratio: float):
    """Return a cost model by which a product takes a second, and those of a row-block fusion `ratio` of it."""

    def predicted(kernel, target) -> float:
        return (ratio if isinstance(kernel, Rows) else 1.0) * sum(k.reuses for k in kernel.parts)

    return predicted


@pytest.mark.thinned(4)
@pytest.mark.parametrize("ratio", [0.5, 0.94])
def test_the_bound_says_which_results_may_be_stored(ratio: float, batch, monkeypatch) -> None:
    """The seven products of a fused step take `ratio` of their time alone: more than the six of a step that stores the
    scores, if these are fused too or the ratio is near 1. The scores are never stored where the bound forbids it."""
    monkeypatch.setattr(compile, "predicted", seconds_of_products(ratio))
    is_stored = {}
    for most in (0, SCORES - 1, str(SCORES), "1TB"):
        step = step_of(max_stored=most).compile(*batch)
        is_stored[most] = largest(step) >= SCORES
    forbidden, allowed = list(is_stored.values())[:2], list(is_stored.values())[2:]
    assert forbidden == [False, False] and (ratio < 0.9 or allowed == [True, True])


def chain(x, y):
    """Return attention of y to x, whose scores take as many bytes as those of the step."""
    q, k = (F.reshape(t, (2, 1, STEPS, WIDTH)) * F.reshape(t[0, :HEADS, 0], (1, HEADS, 1, 1)) for t in (x, y))
    return F.scaled_dot_product_attention(q, k, k)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("ratio", [0.94, 1.05, 1.3])
def test_the_bound_of_a_function(ratio: float, batch, monkeypatch) -> None:
    """Scores that exceed the bound may cost a quarter more time; smaller ones are stored where that is faster."""
    monkeypatch.setattr(compile, "predicted", seconds_of_products(ratio))
    for most in (SCORES - 1, SCORES):
        f = es.jit(chain, max_stored=most)
        again = copy.copy(f)
        for g in (f, es.jit(max_stored=most)(chain), again):
            g(*batch)
            program = program_of(g)
            assert (largest_of(program) >= SCORES) == (ratio > (1.25 if most < SCORES else 0.95))


@pytest.mark.thinned(2)
def test_the_bound_can_be_set_at_any_time(batch, monkeypatch) -> None:
    monkeypatch.setattr(compile, "predicted", seconds_of_products(0.94))
    step = step_of()
    assert step.max_stored == 32 << 20
    first = step(*batch)
    assert largest(step) >= SCORES
    step.max_stored = "1 kB"
    assert step.max_stored == 1000 and step(*batch) < first and largest(step) < SCORES / 2
    (program,) = step.compiler.programs.values()
    assert largest_of(program.compile_deciding(frozenset({"without prefix sums"}))) < SCORES / 2


def test_an_exported_step_has_the_bound_too(batch) -> None:
    subject = traces.of_step(step_of(max_stored=7), tuple(batch), 1, 1)
    assert [g.max_stored for g in subject.graphs if g.role == exported.TRAIN] == [7]
    (graph,) = traces.of_function(es.jit(chain, max_stored=7), tuple(batch), 1).graphs
    assert graph.max_stored == 7


@pytest.mark.parametrize("bad", ["lots", "", -5, "5 XB", True, 1.5, None, [1]])
def test_bounds_that_are_no_sizes_are_refused(bad) -> None:
    why = "max_stored=.* (is not a size; give bytes, or text such as '800MB'|must be an integer or a string)"
    with pytest.raises(ArgumentError, match=why):
        step_of(max_stored=bad)
    with pytest.raises(ArgumentError, match=why):
        es.jit(chain, max_stored=bad)


@pytest.mark.thinned(2)
def test_a_memory_limit_computes_scores_again(batch, monkeypatch) -> None:
    """16 MiB of scores are kept where there is room, and are not where there is none."""
    monkeypatch.setattr(pipeline, "repeat_products", _kept_unless_forbidden)
    free, limited = step_of(), step_of(memory_limit="16MB")
    assert losses(free, batch) == pytest.approx(losses(limited, batch), rel=1e-5)
    assert largest(free) >= SCORES > 2 * largest(limited)


def _kept_unless_forbidden(graph, fuse, seconds, smallest, most):
    """Keep results where they may be kept, whatever is faster."""
    return fuse(graph, False) if most else repeat_products.repeat_products(graph, fuse, seconds, smallest, 0)
