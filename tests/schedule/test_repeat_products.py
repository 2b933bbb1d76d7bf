"""Products that the backward pass computes again: neither pass stores the scores of attention."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.driver import compile
from einsmith.ir.nodes import nbytes
from einsmith.schedule import repeat_products
from einsmith.training.step import TrainStep

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


def step_of(p: float = 0.0, **settings) -> TrainStep:
    es.manual_seed(3)
    return es.TrainStep(Attention(p), lambda y, t: ((y - t) ** 2).mean(), es.optim.SGD(lr=0.5), **settings)


def largest(step: TrainStep) -> int:
    """Return the bytes of the largest tensor that the step's kernels read or write."""
    (program,) = step._programs.values()
    return max(nbytes(t) for _, call, _ in program.plan.kernel_calls() for t in call.tensors)


@pytest.fixture
def batch(rng) -> list[np.ndarray]:
    return [rng.standard_normal((2, STEPS, WIDTH), np.float32) for _ in range(2)]


SCORES = 4 * 2 * HEADS * STEPS * STEPS


def losses(step: TrainStep, batch: list[np.ndarray]) -> list[float]:
    return [step(*batch) for _ in range(6)]


@pytest.mark.parametrize("p", [0.0, 0.25], ids=["", "dropout"])
def test_scores_that_are_computed_again_change_no_result(p: float, batch, monkeypatch) -> None:
    """With dropout, too, whose random numbers are the same in both passes."""
    monkeypatch.setattr(repeat_products, "MAX_KEPT_BYTES", 0)
    monkeypatch.setattr(compile, "MAX_KEPT_BYTES", 0)
    again = step_of(p)
    found = losses(again, batch)
    assert largest(again) < SCORES / 2
    monkeypatch.setattr(compile, "repeat_products", lambda graph, fuse, *_: fuse(graph))
    kept = step_of(p)
    np.testing.assert_allclose(found, losses(kept, batch), rtol=1e-5)
    assert largest(kept) >= SCORES


def test_a_memory_limit_computes_scores_again(batch, monkeypatch) -> None:
    """16 MiB of scores are kept where there is room, and are not where there is none."""
    monkeypatch.setattr(compile, "repeat_products", _kept_unless_forbidden)
    free, limited = step_of(), step_of(memory_limit="16MB")
    assert losses(free, batch) == pytest.approx(losses(limited, batch), rel=1e-5)
    assert largest(free) >= SCORES > 2 * largest(limited)


def _kept_unless_forbidden(graph, fuse, seconds, smallest, most):
    """Keep results where they may be kept, whatever is faster."""
    return fuse(graph) if most else repeat_products.repeat_products(graph, fuse, seconds, smallest, 0)
