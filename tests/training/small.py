"""A small network with its PyTorch twin, and random batches."""

from __future__ import annotations

import numpy as np

import einsmith as es


def net(dtype="float64", seed=0):
    es.manual_seed(seed)
    return es.nn.Sequential(es.nn.Linear(7, 13), es.nn.Tanh(), es.nn.Linear(13, 5)).to(dtype)


def twin(torch, model):
    other = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.Tanh(), torch.nn.Linear(13, 5)).double()
    other.load_state_dict({n: torch.tensor(v) for n, v in model.state_dict().items()})
    return other


def data(n, seed=1, dtype="float64"):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 7)).astype(dtype), rng.integers(0, 5, n)


def batches(steps, n=6, seed=1, dtype="float64"):
    return [data(n, seed + 100 * k, dtype) for k in range(steps)]


def equal(model, other, rtol=1e-10):
    theirs = {n: p.detach().numpy() for n, p in other.state_dict().items()}
    for n, a in model.state_dict().items():
        np.testing.assert_allclose(a, theirs[n], rtol=rtol, atol=1e-13, err_msg=n)


def arrays(step):
    """Every number that training goes on with."""
    return {n: a.copy() for n, a in step.store.arrays()} | {f"b.{n}": b.numpy() for n, b in step.model.named_buffers()}


def same(a, b):
    assert a.keys() == b.keys()
    for n in a:
        assert a[n].tobytes() == b[n].tobytes(), n
