"""The one calling rule: on arrays, functions and modules compile, run, and return fresh arrays."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith import functional as F
from einsmith import nn
from einsmith.api import transforms
from einsmith.base.errors import IndexOutOfRange, ShapeError
from einsmith.ops import call
from tests.caches import bound


def test_functions_on_arrays(torch, rng) -> None:
    x, w = rng.normal(size=(2, 3, 9, 8)), rng.normal(size=(4, 3, 3, 3))
    for stride in (1, 2, 1):  # numbers are static: a new one is another program
        found = F.conv2d(x, w, stride=stride, padding=1)
        wanted = torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(w), stride=stride, padding=1)
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)
    assert found.dtype == np.float64
    np.testing.assert_allclose(F.softmax(torch.tensor(x), 1).sum(1), np.ones((2, 9, 8)))
    values, positions = F.max(x, 1)
    np.testing.assert_array_equal(values, x.max(1))
    assert positions.dtype == np.int32 and np.array_equal(positions, x.argmax(1))
    np.testing.assert_array_equal(F.cat([x, x[:1]]), np.concatenate([x, x[:1]]))
    np.testing.assert_array_equal(F.cat([x[:, ::2], x[:, :1]], dim=1), np.concatenate([x[:, ::2], x[:, :1]], 1))
    np.testing.assert_array_equal(F.arange(3), [0, 1, 2])
    assert F.sum(x).shape == () and F.sum(np.ones((3, 2), np.int32)).dtype == np.int64


def test_results_are_fresh(rng) -> None:
    x = rng.normal(size=(3, 4)).astype(np.float32)
    first = F.relu(x)
    kept = first.copy()
    second = F.relu(-x)
    assert first is not second and np.array_equal(first, kept)
    for identity in (F.reshape(x, (3, 4)), nn.Identity()(x)):
        assert not np.shares_memory(identity, x)


def test_equal_calls_share_a_program(rng) -> None:
    calls = bound("calls of functions of tensors")
    before, _ = calls.held()
    for _ in range(3):
        F.leaky_relu(rng.normal(size=5), 0.125)
    assert calls.held()[0] == min(before + 1, calls.entries)
    structures = {call.freeze(v, []) for v in (1, 1.0, True, np.float32(1), (1,), [1])}
    assert len(structures) == 5  # 1, 1.0, True, (1,), [1]


def test_labels_are_checked(rng) -> None:
    with pytest.raises(IndexOutOfRange):
        F.cross_entropy(rng.normal(size=(2, 5)), np.array([0, 5]))


def test_modules_on_arrays(rng) -> None:
    m = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = rng.normal(size=(5, 3))

    def wanted() -> np.ndarray:
        return np.tanh(x @ m[0].weight.data.T + m[0].bias.data) @ m[2].weight.data.T + m[2].bias.data

    np.testing.assert_allclose(m(x), wanted(), rtol=1e-12, atol=1e-14)
    m[0].weight.data[...] += 1  # parameters are live
    np.testing.assert_allclose(m(x), wanted(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(F.linear(x, m[0].weight), x @ m[0].weight.data.T, rtol=1e-12, atol=1e-14)
    m.float()
    assert m(x.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(m(x.astype(np.float32)), wanted(), rtol=1e-5, atol=1e-6)


def test_predict_evaluates_in_batches(rng) -> None:
    class Layer(nn.Module):
        def forward(self, x):
            return x + (1 if self.training else 0)

    m = nn.Sequential(Layer())
    x = rng.normal(size=(7, 2))
    np.testing.assert_array_equal(m.predict(x, batch_size=3), x)
    assert m.training and m[0].training
    with pytest.raises(ShapeError, match="predict"):
        m.predict()


def test_gradients_by_parameter_name(rng) -> None:
    m = nn.Linear(3, 2).double()
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    params = {n: p.numpy() for n, p in m.named_parameters()}
    grads = transforms.grad(lambda p: F.mse_loss(nn.functional_call(m, p, x), y))(params)
    error = 2 * (x @ params["weight"].T + params["bias"] - y) / y.size
    assert list(grads) == ["weight", "bias"]
    np.testing.assert_allclose(grads["weight"], error.T @ x, rtol=1e-11)
    np.testing.assert_allclose(grads["bias"], error.sum(0), rtol=1e-11)
    got = nn.functional_call(m, {"bias": np.zeros(2)}, x)
    np.testing.assert_allclose(got, x @ params["weight"].T, rtol=1e-12, atol=1e-14)
