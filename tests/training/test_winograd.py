"""What `winograd=True` allows: 3x3 convolutions in Winograd's form, forward and in the gradient by the input."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es


def _patterns(step) -> list[str]:
    return [k.pattern for run in step.compiler.programs.values() for k in run.kernels]


def _step(allowed: bool, threads: int = 2) -> es.TrainStep:
    es.manual_seed(0)
    model = es.nn.Sequential(
        es.nn.Conv2d(32, 64, 3, padding=1), es.nn.ReLU(), es.nn.Conv2d(64, 64, 3, padding=1), es.nn.Flatten(),
        es.nn.Linear(64 * 24 * 24, 3),
    )  # fmt: skip
    return es.TrainStep(
        model, es.functional.cross_entropy, es.optim.SGD(lr=0.01), winograd=allowed, threads=threads
    )  # fmt: skip


@pytest.mark.slow
def test_a_training_step_uses_it_where_it_is_allowed(tmp_path, rng):
    x = rng.standard_normal((4, 32, 24, 24)).astype(np.float32)
    y = rng.integers(0, 3, 4)
    plain, fast = _step(False), _step(True)
    for _ in range(3):
        a, b = plain(x, y), fast(x, y)
        assert abs(a - b) <= 1e-4 * abs(a)
    assert "winograd" not in _patterns(plain)
    assert _patterns(fast).count("winograd") >= 2
    for name, w in plain.model.state_dict().items():
        np.testing.assert_allclose(fast.model.state_dict()[name], w, rtol=1e-3, atol=1e-4)
    es.save(fast, tmp_path / "run")
    assert es.load(tmp_path / "run", model=_step(True).model).winograd


def test_jit(rng):
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 64, 20, 20), (64, 64, 3, 3)))

    def f(x, w):
        return es.functional.conv2d(x, w, padding=1)

    fast = es.jit(f, winograd=True)
    got = fast(x, w)
    want = es.jit(f)(x, w)
    assert not np.array_equal(got, want)  # it did round differently
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
