"""LeNet-5 and MLP-3 trained from PyTorch's weights: losses equal PyTorch's step by step (issue: what it must show)."""

import numpy as np
import pytest

import einsmith as es

torch = pytest.importorskip("torch", reason="the twin networks are PyTorch's")
from torch import nn as tnn  # noqa: E402


def twin(name):
    if name == "mlp3":
        return tnn.Sequential(
            tnn.Flatten(), tnn.Linear(784, 512), tnn.ReLU(), tnn.Linear(512, 256), tnn.ReLU(), tnn.Linear(256, 10)
        )
    return tnn.Sequential(
        tnn.Conv2d(1, 6, 5, padding=2), tnn.ReLU(), tnn.MaxPool2d(2),
        tnn.Conv2d(6, 16, 5), tnn.ReLU(), tnn.MaxPool2d(2), tnn.Flatten(),
        tnn.Linear(400, 120), tnn.ReLU(), tnn.Linear(120, 84), tnn.ReLU(), tnn.Linear(84, 10),
    )  # fmt: skip


# Rates at which training is stable: where it is not, rounding grows until any two float32 runs are losses apart.
OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), lambda: es.optim.SGD(lr=0.01, momentum=0.9)),
    "adam": (lambda p: torch.optim.Adam(p, lr=1e-3), lambda: es.optim.Adam(lr=1e-3)),
}


def batches(steps, size, seed):
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((10, 1, 28, 28))
    for _ in range(steps):
        y = rng.integers(0, 10, size)
        yield (centers[y] + rng.standard_normal((size, 1, 28, 28))), y


def torch_losses(name, optimizer, dtype, state, steps, size, seed):
    model = twin(name).to(dtype)
    model.load_state_dict({k: v.to(dtype) for k, v in state.items()})
    opt = OPTIMIZERS[optimizer][0](model.parameters())
    out = []
    for x, y in batches(steps, size, seed):
        opt.zero_grad()
        loss = tnn.functional.cross_entropy(model(torch.tensor(x, dtype=dtype)), torch.tensor(y))
        loss.backward()
        opt.step()
        out.append(loss.item())
    return np.array(out)


def our_losses(name, optimizer, dtype, state, steps, size, seed):
    model = es.models.get(name).to(dtype)
    ours = list(model.state_dict())
    model.load_state_dict({k: v.numpy().astype(dtype) for k, v in zip(ours, state.values(), strict=True)})
    step = es.TrainStep(model, es.functional.cross_entropy, OPTIMIZERS[optimizer][1]())
    return np.array([step(x.astype(dtype), y) for x, y in batches(steps, size, seed)])


OTHERS = ("lenet5", "sgd"), ("mlp3", "adam")


def torch_losses_of_threads(name, optimizer, *args):
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            yield torch_losses(name, optimizer, torch.float32, *args)
    finally:
        torch.set_num_threads(before)


DEFAULT = (("lenet5", "adam", 25),)


@pytest.mark.parametrize(
    "name,optimizer,steps",
    [
        *DEFAULT,
        *(pytest.param(*x, 100, marks=pytest.mark.slow) for x in (("lenet5", "adam"), ("mlp3", "sgd"), *OTHERS)),
    ],
)
def test_losses_step_by_step(name, optimizer, steps):
    torch.manual_seed(0)
    state = twin(name).double().state_dict()
    state = {k: v.float().double() for k, v in state.items()}
    args = (state, steps, 20, 7)
    exact = torch_losses(name, optimizer, torch.float64, *args)
    mine = our_losses(name, optimizer, "float64", *args)
    np.testing.assert_allclose(mine, exact, rtol=1e-8)
    # In two orders of addition: a rounding that turns a ReLU or a maximum moves all losses after it.
    peer = np.maximum(*(np.abs(a - exact) for a in torch_losses_of_threads(name, optimizer, *args)))
    error = np.abs(our_losses(name, optimizer, "float32", *args) - exact)
    assert error.max() <= 3 * peer.max(), (error.max(), peer.max())
    assert error.mean() <= 3 * peer.mean(), (error.mean(), peer.mean())
