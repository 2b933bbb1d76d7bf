"""Losses over a vocabulary whose weights take more memory than the rows: blocks pack the weights once."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.ir.nodes import size
from einsmith.kernels.rows import rows_cost
from einsmith.schedule import row_clusters
from einsmith.training.step import TrainStep

WIDTH = 64


class Words(es.nn.Module):
    """Logits of a vocabulary, a linear layer behind another one."""

    def __init__(self, words: int) -> None:
        self.hidden = es.nn.Linear(WIDTH, WIDTH, bias=False)
        self.words = es.nn.Linear(WIDTH, words, bias=False)

    def forward(self, x):
        """Return the logits [rows, words]."""
        return self.words(F.tanh(self.hidden(x)))


def step_of(words: int, is_frozen: bool, **settings) -> TrainStep:
    es.manual_seed(5)
    model = Words(words)
    if is_frozen:
        es.nn.freeze(model, ["words.weight"])
    return es.TrainStep(model, F.cross_entropy, es.optim.SGD(lr=0.5), **settings)


@pytest.fixture
def packed(monkeypatch) -> list[bool]:
    """Large results are used up unstored, in blocks one after the other, which pack what they share once; the list
    receives whether kernels have launches for that."""
    monkeypatch.setattr(row_clusters, "STREAMED_L3_RATIO", 1 << 14)
    monkeypatch.setattr(rows_cost, "LEAST_SAVED_BY_PACKING", -10.0)
    monkeypatch.setattr(rows_cost, "MAX_SHARED_L2_RATIO", 0.0)
    choices, pack_once = rows_cost.configs, rows_cost.pack_once
    seen: list[bool] = []

    def serial(rows, target):
        configs = choices(rows, target)
        return [c for c in configs if not c.tasks and c.block > 1] or configs

    def noted(rows, part, block, target, chooser):
        repeated = pack_once(rows, part, block, target, chooser)
        choice = chooser.choose(repeated.kernel, target)
        seen.append(
            any(x.loop_invariant for x in choice.pattern.lower(repeated.kernel, choice.config, target).launches)
        )
        return repeated

    monkeypatch.setattr(rows_cost, "configs", serial)
    monkeypatch.setattr(rows_cost, "pack_once", noted)
    return seen


def largest_size(step: TrainStep) -> int:
    """Return the elements of the largest tensor that the step's kernels read or write."""
    (program,) = step.compiler.programs.values()
    return max(size(t.shape) for _, call, _ in program.plan.kernel_calls() for t in call.tensors)


def batch_of(rows: int, words: int, rng) -> list[np.ndarray]:
    return [rng.standard_normal((rows, WIDTH), np.float32), rng.integers(0, words, rows).astype(np.int32)]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("is_frozen", [True, False])
@pytest.mark.parametrize("rows, words", [(139, 1999), (192, 1024)])
def test_logits_are_not_stored(rows, words, is_frozen, precision, rng, packed) -> None:
    """Losses are those of the plan that stores them."""
    batch = batch_of(rows, words, rng)
    streaming = step_of(words, is_frozen, precision=precision, max_stored=0)
    streamed = [streaming(*batch) for _ in range(4)]
    storing = step_of(words, is_frozen, precision=precision, max_stored="1TB")
    stored = [storing(*batch) for _ in range(4)]
    assert largest_size(streaming) == WIDTH * words < rows * words <= largest_size(storing)
    assert any(packed)
    np.testing.assert_allclose(streamed, stored, rtol=1e-4 if precision == "fp32" else 2e-2)


@pytest.mark.parametrize("rows, words", [(33, 31), (67, 257), (64, 16), (2, 17)])
def test_gradients_are_those_of_the_evaluator(rows, words, rng, packed) -> None:
    def gradients(x, w, labels):
        return es.grad(lambda x, w: F.cross_entropy(F.linear(x, w), labels), (0, 1))(x, w)

    x, labels = batch_of(rows, words, rng)
    w = rng.standard_normal((words, WIDTH), np.float32)
    compiled = es.jit(gradients, max_stored=0)(x, w, labels)
    for ours, exact in zip(compiled, es.interpret(gradients)(x, w, labels), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-4, atol=1e-6)
