"""Sums apart from the updates that use them: a loss over a large vocabulary stores no logits."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.schedule import planner, row_clusters
from einsmith.training.step import TrainStep
from tests.schedule.test_repeat_products import largest

ROWS, WIDTH, WORDS = 150, 8, 1999
LOGITS = 4 * ROWS * WORDS


class Words(es.nn.Module):
    """Logits of a vocabulary, a linear layer behind another one."""

    def __init__(self) -> None:
        self.hidden, self.words = es.nn.Linear(WIDTH, WIDTH), es.nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        """Return the logits [rows, words]."""
        return self.words(F.tanh(self.hidden(x)))


def step_of(optimizer) -> TrainStep:
    es.manual_seed(5)
    return es.TrainStep(Words(), F.cross_entropy, optimizer, max_stored=0)


@pytest.fixture
def batch(rng) -> list[np.ndarray]:
    return [rng.standard_normal((ROWS, WIDTH), np.float32), rng.integers(0, WORDS, ROWS).astype(np.int32)]


@pytest.fixture
def unstored(monkeypatch) -> None:
    """Results of any size are used up unstored where that is possible, however long it takes."""
    monkeypatch.setattr(row_clusters, "STREAMED_L3_RATIO", 1 << 14)


OPTIMIZERS = {
    "sgd": lambda: es.optim.SGD(lr=0.5),
    "momentum": lambda: es.optim.SGD(lr=0.5, momentum=0.9),
    "adam": lambda: es.optim.Adam(lr=0.1),
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_logits_are_not_stored(optimizer: str, threads: int, batch, unstored, monkeypatch) -> None:
    """Losses are those of the plan that stores them."""
    es.set_threads(threads)
    streaming = step_of(OPTIMIZERS[optimizer]())
    found = [streaming(*batch) for _ in range(4)]
    assert largest(streaming) < LOGITS / 2
    monkeypatch.setattr(planner, "compute_apart", lambda fuse, *_: fuse(()))
    storing = step_of(OPTIMIZERS[optimizer]())
    np.testing.assert_allclose(found, [storing(*batch) for _ in range(4)], rtol=1e-4)
    assert largest(storing) >= LOGITS


def test_gradients_are_the_same_bits_in_every_run(batch, unstored) -> None:
    first, second = (step_of(es.optim.SGD(lr=0.5)) for _ in range(2))
    assert [first(*batch) for _ in range(4)] == [second(*batch) for _ in range(4)]
