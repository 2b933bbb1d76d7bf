"""A network and its PyTorch twin from equal weights: states, gradients, training steps and evaluation agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import einsmith as es

TOLERANCE = 1e-8


def close(ours, theirs, what: str, rtol: float = TOLERANCE) -> None:
    """Equal within rtol of the largest element."""
    a, b = np.asarray(ours), np.asarray(theirs)
    assert a.shape == b.shape, f"{what}: {a.shape} and {b.shape}"
    scale = np.abs(b).max(initial=0.0)
    worst = np.abs(a - b).max(initial=0.0)
    assert worst <= rtol * scale + 1e-14, f"{what}: off by {worst:.3g}, where the largest is {scale:.3g}"


def numbers(model) -> dict[str, np.ndarray]:
    """The state of a torch module as arrays."""
    return {n: v.detach().numpy().copy() for n, v in model.state_dict().items()}


def spread(model, seed: int) -> None:
    """Random values in place of the ones and zeros of biases, norms and running statistics."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point():
                continue
            if name.endswith("running_var"):
                value.copy_(0.5 + torch.rand_like(value))
            elif value.ndim < 2:
                constant = 1.0 if (value == 1).all() else 0.0
                value.copy_(constant + 0.2 * torch.randn_like(value))
            elif not value.any():
                value.copy_(0.2 * torch.randn_like(value))


OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9), lambda: es.optim.SGD(lr=0.02, momentum=0.9)),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=1e-3), lambda: es.optim.AdamW(lr=1e-3)),
}


def outputs(found) -> list[np.ndarray]:
    """What a network gives, a tensor or several."""
    found = found if isinstance(found, tuple) else (found,)
    return [x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x) for x in found]


def same_forward(ours, theirs, inputs, what: str) -> None:
    """Evaluation on equal inputs."""
    ours.eval(), theirs.eval()
    with torch.no_grad():
        want = outputs(theirs(*(torch.tensor(x) for x in inputs)))
    got = outputs(ours(*inputs))
    ours.train(), theirs.train()
    assert len(got) == len(want)
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        close(a, b, f"{what}, output {n}")


def agree(
    ours,
    theirs,
    batches: list[tuple],
    our_loss: Callable,
    their_loss: Callable,
    optimizers=("sgd", "adamw"),
    rtol: float = TOLERANCE,
) -> None:
    """Both in float64 from one state: forward, gradients at step 1, losses of steps, state after them, both ways."""
    theirs.double()
    spread(theirs, 0)
    start = numbers(theirs)
    assert list(ours.state_dict()) == list(start)
    ours.load_state_dict(theirs.state_dict())
    same_forward(ours, theirs, batches[0][:-1], "forward")
    for name in optimizers:
        ours.load_state_dict(start)
        theirs.load_state_dict({n: torch.tensor(v) for n, v in start.items()})
        optimizer = OPTIMIZERS[name][0](theirs.parameters())
        step = es.TrainStep(ours, our_loss, OPTIMIZERS[name][1](), threads=1)
        for number, batch in enumerate(batches, 1):
            optimizer.zero_grad()
            loss = their_loss(theirs(*(torch.tensor(x) for x in batch[:-1])), torch.tensor(batch[-1]))
            loss.backward()
            mine = step(*batch)
            assert abs(mine - loss.item()) <= rtol * abs(loss.item()), f"{name}, step {number}: {mine}, {loss.item()}"
            if number == 1:
                noise = gradients_agree(name, step, theirs)
            optimizer.step()
        after = numbers(theirs)
        for path, value in ours.state_dict().items():
            counts = ~noise.get(path, np.zeros(value.shape, bool))
            close(value[counts], after[path][counts], f"{name}, {path} at the end", 1e-7)
    same_forward(ours, theirs, batches[-1][:-1], "forward at the end")
    theirs.load_state_dict({n: torch.tensor(v) for n, v in ours.state_dict().items()})


def gradients_agree(name: str, step, theirs) -> dict[str, np.ndarray]:
    """Every parameter's gradient, which the first step leaves in the optimizer's first moment.

    Gives the places whose gradient is zero but for rounding, as that of a bias before a batch norm or of a key's bias:
    AdamW, which divides by their size, moves these parameters by a rate in no certain direction.
    """
    state, factor = ("momentum_buffer", 1.0) if name == "sgd" else ("exp_avg", 0.1)
    found = {k.rpartition("/")[0]: v for k, v in step.current_state().items() if k.endswith("/" + state)}
    noise = {}
    whole = max(p.grad.abs().max().item() for p in theirs.parameters() if p.grad is not None)
    for path, p in theirs.named_parameters():
        want = np.zeros(p.shape) if p.grad is None else p.grad.numpy()
        got = found[path].data / factor
        worst = np.abs(got - want).max(initial=0.0)
        limit = TOLERANCE * np.abs(want).max(initial=0.0) + 1e-13 * whole
        assert worst <= limit, f"{name}, gradient of {path}: off by {worst:.3g}, limit {limit:.3g}"
        noise[path] = np.abs(want) <= 1e-9 * whole
    return noise


def images(rng: np.random.Generator, batch: int, channels: int, height: int, width: int | None = None) -> np.ndarray:
    """Random images [batch, channels, height, width or height]."""
    return rng.standard_normal((batch, channels, height, width or height))
