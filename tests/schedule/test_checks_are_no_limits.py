"""The check of a single label is a flag, 0 in every run, and no limit of the positions of a batch of one sample."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from tests.programs import program_of


def block(x, w, scale, shift, last, y):
    """Return the loss of a depthwise convolution of stride 2 between batch norms with ReLU6."""
    a = F.relu6(F.batch_norm(x, None, None, scale, shift, training=True))
    z = F.conv2d(a, w, stride=2, padding=1, groups=x.shape[1])
    z = F.relu6(F.batch_norm(z, None, None, shift, scale, training=True))
    return F.cross_entropy(F.conv2d(z, last).mean((2, 3)), y)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("channels", [7, 24])
def test_gradients_of_one_sample(batch, channels, rng) -> None:
    c = channels
    shapes = [(batch, c, 14, 14), (c, 1, 3, 3), (c,), (c,), (16, c, 1, 1)]
    args = [rng.standard_normal(s) for s in shapes]
    gradients = es.grad(block, argnums=tuple(range(5)))
    y = np.arange(batch) + 3
    want = es.interpret(gradients)(*args, y)
    f = es.jit(gradients)
    got = f(*(a.astype(np.float32) for a in args), y)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())
    assert not any(type(c.kernel).__name__ == "LimitedKernel" for c in program_of(f).calls)
