"""Copies whose source and result share memory, on a card."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from tests.fuzz.variants import coalescing
from tests.schedule.test_coalesce import Shuffled, copies, plan_of


@pytest.mark.parametrize("seed", [0, 1])
def test_a_training_step_without_copies(seed, rng, card, monkeypatch):
    monkeypatch.setenv("EINSMITH_PLANS", "0")
    x = rng.standard_normal((2, 12, 5, 4)).astype(np.float32)

    class Net(es.nn.Module):
        def __init__(self):
            self.unit, self.last = Shuffled(12, 3), es.nn.Conv2d(6, 3, 3, padding=1)

        def forward(self, x):
            y = F.relu(self.unit(x))
            return self.last(F.cat([F.pixel_shuffle(y, 2), F.pixel_shuffle(F.tanh(y), 2)], 1))

    def trained(device):
        es.manual_seed(5)
        step = es.TrainStep(Net(), lambda y, t: ((y - t) ** 2).mean(), es.optim.SGD(lr=0.05), device=device)
        losses = [step(x, np.zeros((2, 3, 10, 8), np.float32)) for _ in range(2)]
        return step, losses

    plain, wanted = trained("cpu")
    card(seed=seed)
    with coalescing(seed):
        step, losses = trained("cuda")
    assert copies(plan_of(step)) == 0 and plan_of(step).copies
    np.testing.assert_allclose(losses, wanted, rtol=2e-5)
    state = step.model.state_dict()
    for key, value in plain.model.state_dict().items():
        np.testing.assert_allclose(state[key], value, rtol=1e-3, atol=2e-5, err_msg=key)
