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
            value.copy_(value.float())  # what float32 holds, so that runs in either type begin alike


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


def agree(ours, theirs, batches: list[tuple], our_loss: Callable, their_loss: Callable) -> None:
    """Both in float64 from one state: forward, gradients at step 1, losses of steps, state after them, both ways.

    Fewer than 20 steps are taken by one of the optimizers, which networks have in turn by their number of weights. 20
    steps run by both, on two threads, and also in float32: losses no farther from torch's in float64 than 3 times
    torch's own in float32.
    """
    theirs.double()
    spread(theirs, 0)
    batches = [tuple(np.asarray(rounded(x)) for x in batch) for batch in batches]
    start = numbers(theirs)
    assert list(ours.state_dict()) == list(start)
    ours.load_state_dict(theirs.state_dict())
    same_forward(ours, theirs, batches[0][:-1], "forward")
    exact, threads = {}, 1 if len(batches) < 20 else 2
    optimizers = list(OPTIMIZERS) if threads == 2 else [list(OPTIMIZERS)[len(start) % len(OPTIMIZERS)]]
    for name in optimizers:
        ours.load_state_dict(start)
        exact[name], gradients, after = torch_losses(name, theirs, start, batches, their_loss, torch.float64)
        step = es.TrainStep(ours, our_loss, OPTIMIZERS[name][1](), threads=threads)
        for number, (batch, loss) in enumerate(zip(batches, exact[name], strict=True), 1):
            mine = step(*batch)
            assert abs(mine - loss) <= TOLERANCE * abs(loss), f"{name}, step {number}: {mine}, {loss}"
            if number == 1:
                zero = gradients_agree(name, step, gradients)
        for path, value in ours.state_dict().items():
            counts = ~zero.get(path, np.zeros(value.shape, bool))
            close(value[counts], after[path][counts], f"{name}, {path} at the end", 1e-7)
    same_forward(ours, theirs, batches[-1][:-1], "forward at the end")
    if len(batches) >= 20:
        agree_in_float32(ours.to("float32"), theirs, start, batches, our_loss, their_loss, exact)
    theirs.load_state_dict({n: torch.tensor(v) for n, v in ours.state_dict().items()})


def rounded(x):
    """Floats that float32 holds, so that runs in either type begin alike."""
    return x.astype(np.float32).astype(np.float64) if np.asarray(x).dtype.kind == "f" else x


def torch_losses(name: str, model, start: dict, batches: list[tuple], loss_of: Callable, dtype) -> tuple:
    """(losses, gradients at step 1, state at the end) of torch's run in a type."""
    model.to(dtype)
    model.load_state_dict({n: torch.tensor(v) for n, v in start.items()})
    optimizer = OPTIMIZERS[name][0](model.parameters())
    losses, first = [], {}
    for number, batch in enumerate(batches):
        given = [torch.tensor(x) for x in batch]
        given = [x.to(dtype) if x.is_floating_point() else x for x in given]
        optimizer.zero_grad()
        loss = loss_of(model(*given[:-1]), given[-1])
        loss.backward()
        if number == 0:
            first = {n: (p * 0 if p.grad is None else p.grad).detach().numpy() for n, p in model.named_parameters()}
            first = {n: g.copy() for n, g in first.items()}
        optimizer.step()
        losses.append(loss.item())
    return losses, first, numbers(model)


def agree_in_float32(ours, theirs, start: dict, batches: list[tuple], our_loss, their_loss, exact: dict) -> None:
    threads = 1
    for name in OPTIMIZERS:
        peer = np.array(torch_losses(name, theirs, start, batches, their_loss, torch.float32)[0])
        ours.load_state_dict(start)
        step = es.TrainStep(ours, our_loss, OPTIMIZERS[name][1](), threads=threads)
        singles = [[x.astype(np.float32) if x.dtype.kind == "f" else x for x in batch] for batch in batches]
        mine = np.array([step(*batch) for batch in singles])
        want = np.array(exact[name])
        # A loss is itself a float32: its last bit is no fault.
        floor = np.finfo(np.float32).eps * np.abs(want).max()
        error, limit = np.abs(mine - want).max(), 3 * max(np.abs(peer - want).max(), floor)
        assert error <= limit, f"{name} in float32: off by {error:.3g}, limit {limit:.3g}"


def gradients_agree(name: str, step, wanted: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every parameter's gradient, which the first step leaves in the optimizer's first moment.

    Gives the places whose gradient is zero but for rounding, as that of a bias before a batch norm or of a key's bias:
    AdamW, which divides by their size, moves these parameters by a rate in no certain direction.
    """
    state, factor = ("momentum_buffer", 1.0) if name == "sgd" else ("exp_avg", 0.1)
    found = {k.rpartition("/")[0]: v for k, v in step.current_state().items() if k.endswith("/" + state)}
    assert found.keys() == wanted.keys()
    zero = {}
    whole = max(np.abs(g).max(initial=0.0) for g in wanted.values())
    for path, want in wanted.items():
        got = found[path].data / factor
        worst = np.abs(got - want).max(initial=0.0)
        limit = TOLERANCE * np.abs(want).max(initial=0.0) + 1e-13 * whole
        assert worst <= limit, f"{name}, gradient of {path}: off by {worst:.3g}, limit {limit:.3g}"
        zero[path] = np.abs(want) <= 1e-9 * whole
    return zero


def same_statistics(ours, theirs, sample: np.ndarray, copies: int = 4000) -> None:
    """Dropout: over many copies of a sample [1, ...] the outputs' means and deviations are those of torch's.

    Batch norm stays in evaluation, so that a copy knows nothing of the others.
    """
    theirs.double()
    spread(theirs, 2)
    ours.load_state_dict(theirs.state_dict())
    for model in (ours, theirs):
        model.train()
        for m in model.modules():
            if type(m).__name__.startswith("BatchNorm"):
                m.eval()
    torch.manual_seed(0)
    es.manual_seed(0)
    many = np.repeat(sample, copies, axis=0)
    with torch.no_grad():
        want = outputs(theirs(torch.tensor(many)))
    for a, b in zip(outputs(ours(many)), want, strict=True):
        assert (b.std(0) > 0.01 * np.abs(b).max()).any()  # there is dropout
        apart = np.abs(a.mean(0) - b.mean(0))
        assert (apart <= 5 * b.std(0) * np.sqrt(2 / copies) + 1e-9).all()
        np.testing.assert_allclose(a.std(0), b.std(0), rtol=0.15, atol=1e-9)


def images(rng: np.random.Generator, batch: int, channels: int, height: int, width: int | None = None) -> np.ndarray:
    """Random images [batch, channels, height, width or height]."""
    return rng.standard_normal((batch, channels, height, width or height))
