"""PyTorch: attention by scaled_dot_product_attention where it can express the mask, and by its mathematical form."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.attention import CAP, SLOPE, WINDOW, Attention, document_length, verified

MOST_BYTES = 8e9
"""Memory that the mathematical form may take."""
COPIES = 5
"""Matrices of all scores that it holds at once, about."""


def variants(problem: Attention, peer: str) -> tuple[str, ...]:
    """The formulations: soft-capping is none of the library's masks, and the mathematical form must fit in memory."""
    math = COPIES * 4 * problem.heads * problem.length**2 <= MOST_BYTES
    library = problem.network != "softcap" and peer == "torch"
    names = (*(("library",) if library else ()), *(("math",) if math else ()))
    return ("math",) if peer == "reference" else names


def bias(mask: str, length: int, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores; None where nothing is."""
    i, j = torch.arange(length)[:, None], torch.arange(length)
    if mask in ("none", "softcap"):
        return None
    allowed, part = j <= i, document_length(length)
    if mask == "window":
        allowed = allowed & (i - j < WINDOW)
    elif mask == "documents":
        allowed = allowed & (i // part == j // part)
    distance = SLOPE * (j - i) if mask == "alibi" else torch.zeros(())
    return torch.where(allowed, distance, -torch.inf).to(dtype)


class Session:
    def __init__(self, problem: Attention, arrays: dict[str, np.ndarray], peer: str, variant: str):
        mask, heads = problem.network, problem.verified_heads if peer == "reference" else problem.heads
        self.problem = problem
        q, k, v, self.g = (torch.from_numpy(arrays[n][-heads:])[None] for n in "QKVG")
        self.inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        causal = mask == "causal" and variant == "library"
        added = None if causal else bias(mask, problem.length, q.dtype)

        def library(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=added, is_causal=causal)

        def math(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            s = q @ k.transpose(2, 3) * problem.width**-0.5
            s = CAP * (s / CAP).tanh() if mask == "softcap" else s
            return (s if added is None else s + added).softmax(-1) @ v

        f = library if variant == "library" else math
        self.f = torch.compile(f) if peer == "compile" else f

    def step(self) -> float:
        out = self.f(*self.inputs)
        self.out = [out.detach(), *torch.autograd.grad(out, self.inputs, self.g)]
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        return verified(self.problem, [x[0].numpy() for x in self.out])


def build(problem: Attention, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Session:
    return Session(problem, arrays, peer, variant)
