"""Training that knows of 8-bit integers: the rounding and its derivative, and what is made of a trained network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import einsmith as es
from einsmith.base.errors import ArgumentError
from einsmith.quantization import convert, prepare_qat
from tests.quantization.test_quantize import Net, images, integer_sums

F = es.functional


def test_rounding_and_its_derivative_are_those_of_torch(rng):
    fake = es.nn.FakeQuantize(0, 255)
    x = (2 * rng.standard_normal((7, 11))).astype(np.float32)
    es.jit(fake)(x)
    np.testing.assert_allclose([fake.min_val.data, fake.max_val.data], [x.min(), x.max()], rtol=1e-6)
    fake.eval()
    outside = np.concatenate([x, [[x.min() - 1] * 11, [x.max() + 1] * 11]]).astype(np.float32)
    scale = (x.max() - x.min()) / 255
    zero = round(float(-x.min() / scale))
    of_torch = torch.tensor(outside, requires_grad=True)
    wanted = torch.fake_quantize_per_tensor_affine(of_torch, float(scale), zero, 0, 255)
    (wanted * torch.arange(1.0, 12)).sum().backward()
    np.testing.assert_allclose(es.jit(fake)(outside), wanted.detach(), rtol=1e-4, atol=1e-5)
    gradient = es.grad(lambda x: (fake(x) * np.arange(1, 12, dtype=np.float32)).sum())(outside)
    np.testing.assert_array_equal(gradient, of_torch.grad)


def test_ranges_are_moving_averages(rng):
    fake = es.nn.FakeQuantize(averaging_constant=0.25)
    run = es.jit(fake)
    low, high = None, None
    for n in range(4):
        x = rng.standard_normal((5, 3)).astype(np.float32) * (n + 1)
        run(x)
        low = x.min() if low is None else 0.75 * low + 0.25 * x.min()
        high = x.max() if high is None else 0.75 * high + 0.25 * x.max()
    np.testing.assert_allclose([fake.min_val.data, fake.max_val.data], [low, high], rtol=1e-6)
    assert fake.num_batches.data == 4


def test_channels_have_ranges_of_their_own(rng):
    fake = es.nn.FakeQuantize(-127, 127, symmetric=True, averaging_constant=1.0, channels=5)
    w = (rng.standard_normal((5, 4, 3)) * np.arange(1, 6)[:, None, None]).astype(np.float32)
    y = es.jit(fake)(w)
    scale = np.abs(w).reshape(5, -1).max(1) / 127
    np.testing.assert_allclose(y, np.rint(w / scale[:, None, None]) * scale[:, None, None], rtol=1e-5, atol=1e-6)


def trained(rng, steps=12):
    es.manual_seed(0)
    aware = prepare_qat(Net())
    step = es.TrainStep(aware, F.cross_entropy, es.optim.Adam(lr=0.01))
    x, y = images(rng, 16), rng.integers(0, 10, 16)
    return aware, x, [step(x, y) for _ in range(steps)]


def test_a_network_is_trained_and_converted(rng):
    aware, x, losses = trained(rng)
    assert losses[-1] < 0.6 * losses[0]
    q = convert(aware)
    aware.eval()
    wanted = aware(x)
    # Rounded as its integers are: what differs are halves that fall to the other side.
    assert np.abs(q(x) - wanted).max() <= 0.03 * np.abs(wanted).max()
    assert np.abs(q(x) - wanted).mean() <= 0.005 * np.abs(wanted).max()
    assert len(integer_sums(q, x)) == 3 and integer_sums(q, x)[0][1] == 8
    assert q.layers["conv1"] == "int8"


def test_what_is_refused(rng):
    for make, message in (
        (lambda: prepare_qat(np.exp), "is not a network"),
        (lambda: prepare_qat(es.nn.ReLU()), "no weight of two dimensions"),
        (lambda: convert(Net()), "is not a network of prepare_qat"),
        (lambda: convert(prepare_qat(Net())), "no batch has passed"),
        (lambda: es.nn.FakeQuantize(5, 5), "must be below"),
        (lambda: es.nn.FakeQuantize(averaging_constant=0.0), r"must be in \(0, 1\]"),
    ):
        with pytest.raises(ArgumentError, match=message):
            make()
    aware = prepare_qat(Net())
    aware.eval()
    aware(images(rng))
    with pytest.raises(ArgumentError, match="no training batch has passed conv1.input"):
        convert(aware)
