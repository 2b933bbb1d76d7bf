"""Embedding: rows chosen by integers, as in torch.nn."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.base.errors import ArgumentError, DtypeError


def test_training_moves_the_rows_that_were_read(torch, rng) -> None:
    ours, theirs = nn.Embedding(20, 8, padding_idx=3), torch.nn.Embedding(20, 8, padding_idx=3)
    assert list(ours.state_dict()) == list(theirs.state_dict()) and repr(ours) == repr(theirs)
    assert not ours.weight.data[3].any() and ours.weight.data[4].any()
    ours.load_state_dict(theirs.state_dict())
    step = es.TrainStep(ours, es.functional.mse_loss, es.optim.SGD(lr=0.5))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(5):
        i, y = rng.integers(0, 20, (4, 9)), rng.standard_normal((4, 9, 8), np.float32)
        loss = torch.nn.functional.mse_loss(theirs(torch.tensor(i)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert step(i, y) == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(ours.weight.data, theirs.weight.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_bad_input(rng) -> None:
    m = nn.Embedding(5, 2)
    with pytest.raises(IndexError):
        m(np.array([0, 5]))
    with pytest.raises(IndexError):
        m(np.array([-1]))
    with pytest.raises(DtypeError, match="'input' needs integers"):
        m(np.ones(3, np.float32))
    with pytest.raises(ArgumentError, match="padding_idx=5"):
        nn.Embedding(5, 2, padding_idx=5)
    with pytest.raises(ArgumentError, match="padding_idx=7"):
        es.functional.embedding(np.array([0]), rng.standard_normal((5, 2)), 7)
