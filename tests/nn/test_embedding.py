"""Embedding: rows chosen by integers, as in torch.nn."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.base.errors import ArgumentError, DtypeError


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5)])
@pytest.mark.parametrize("padding", [None, 2, -1])
def test_values_and_gradients_equal_torch(torch, rng, shape, padding) -> None:
    weight = rng.standard_normal((11, 6))
    i = rng.integers(0, 11, shape)
    g = rng.standard_normal((*shape, 6))
    if padding is not None and shape:
        i.flat[0] = padding % 11
    w = torch.tensor(weight, requires_grad=True)
    wanted = torch.nn.functional.embedding(torch.tensor(i), w, padding_idx=padding)
    wanted.backward(torch.tensor(g))
    got, pullback = es.vjp(lambda w: es.functional.embedding(i, w, padding), weight)
    np.testing.assert_array_equal(got, wanted.detach().numpy())
    np.testing.assert_allclose(pullback(g)[0], w.grad.numpy(), rtol=1e-12, atol=1e-14)


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
