"""Curves of losses: a network trained by Einsmith and by PyTorch from the same weights on the same batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import models
from einsmith.base.errors import DataError
from einsmith.data import mnist

BATCH, LR = 256, 0.1
POINTS = 75
"""Losses of a curve that are kept."""


def digits() -> tuple[str, np.ndarray, np.ndarray]:
    """Return MNIST as its name, images [N, 1, 28, 28] and labels; scikit-learn's digits, three times as large and with
    a margin, where there is no MNIST. Raises DataError where there is neither."""
    try:
        return "MNIST", *mnist("train")
    except DataError:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise DataError("no MNIST (einsmith.data.mnist says what to put where), and no scikit-learn") from None
        x, y = load_digits(return_X_y=True)
        images = np.kron(x.reshape(-1, 1, 8, 8), np.ones((3, 3))) / 16
        padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2))).astype(np.float32)
        return "the digits of scikit-learn", padded, y.astype(np.int64)


def curves(network: str, threads: int, steps: int) -> dict[str, Any]:
    """Return the losses of so many steps of SGD in both libraries, some of them, and their largest difference relative
    to PyTorch's."""
    import torch

    from einsmith.bench.steps import EinsmithStep
    from einsmith.bench.torch_steps import TorchStep

    torch.set_num_threads(threads)
    problem: Any = models.named(f"{network}-b{BATCH}")
    arrays = problem.arrays()
    ours, theirs = EinsmithStep(problem, arrays, threads), TorchStep(problem, arrays, "torch")
    ours.trainer.optimizer.lr = LR
    theirs.optimizer.param_groups[0]["lr"] = LR
    name, x, y = digits()
    rng, order = np.random.default_rng(0), np.zeros(0, np.int64)
    losses: dict[str, list[float]] = {"einsmith": [], "torch": []}
    for _ in range(steps):
        if len(order) < BATCH:
            order = rng.permutation(len(x))
        chosen, order = order[:BATCH], order[BATCH:]
        ours.batch = (x[chosen], y[chosen])
        theirs.x, theirs.y = (torch.from_numpy(a) for a in ours.batch)
        losses["einsmith"].append(ours.step())
        losses["torch"].append(theirs.step())
    a, b = np.array(losses["einsmith"]), np.array(losses["torch"])
    every = max(1, -(-steps // POINTS))
    return {
        "data": name,
        "steps": steps,
        "iterations": list(range(1, steps + 1, every)),
        **{peer: [round(v, 6) for v in values[::every]] for peer, values in losses.items()},
        "last": {peer: values[-1] for peer, values in losses.items()},
        "largest": float(np.max(np.abs(a - b) / np.abs(b))),
    }
