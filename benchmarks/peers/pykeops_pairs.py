"""KeOps: kernel methods as LazyTensor programs on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from pykeops.torch import LazyTensor
from torch import Tensor

from benchmarks.pairs import EPS, Pairs
from benchmarks.peers import torch_pairs


def reduction(kind: str, x: Tensor, y: Tensor, b: Tensor | None) -> Tensor:
    """The reduction over j of a symbolic matrix."""
    squares: Any = LazyTensor(x[:, None].contiguous()).sqdist(LazyTensor(y[None]))
    if kind == "nearest":
        return squares.argmin(dim=1)[:, 0]
    if b is None:
        mean = squares.sum(dim=1) / len(y)
        return (squares - LazyTensor(mean[:, None])).square().sum(dim=1)[:, 0] / len(y)
    if kind == "sinkhorn":
        return (LazyTensor(b[None, :, None]) - squares / EPS).logsumexp(dim=1)[:, 0]
    if kind == "gaussian":
        return (-squares / 2).exp() @ b
    r = (squares * {"laplacian": 1, "matern32": 3, "matern52": 5}[kind]).sqrt()
    decay = (-r).exp()
    return {"laplacian": lambda: decay, "matern32": lambda: (1 + r) * decay,
            "matern52": lambda: (1 + r + r.square() / 3) * decay}[kind]() @ b  # fmt: skip


class Session(torch_pairs.Session):
    def __init__(self, problem: Pairs, arrays: dict[str, np.ndarray]):
        super().__init__(problem, arrays, "keops", "dense")
        self.f = lambda x, y, b=None: reduction(problem.network, x, y, b)


def build(problem: Pairs, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Session:
    return Session(problem, arrays)
