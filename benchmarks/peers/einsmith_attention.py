"""Einsmith: flex_attention, whose masks and biases are index formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import einsmith as es
import einsmith.functional as F
from benchmarks.attention import CAP, SLOPE, WINDOW, Attention, document_length, verified


def modifications(mask: str, length: int) -> tuple[Callable | None, Callable | None]:
    """The functions that change a score and that tell whether a key takes part; None where there is none."""
    part = document_length(length)

    def is_causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return j <= i

    return {
        "none": (None, None),
        "causal": (None, is_causal),
        "window": (None, lambda b, h, i, j: (j <= i) & (i < j + WINDOW)),
        "documents": (None, lambda b, h, i, j: (j <= i) & (i // part == j // part)),
        "alibi": (lambda s, b, h, i, j: s + SLOPE * (j - i), is_causal),
        "softcap": (lambda s, b, h, i, j: CAP * es.tanh(s / CAP), None),
    }[mask]


def masked_attention(problem: Attention) -> Callable:
    """The function of queries, keys and values, [heads, steps, width] each."""
    score_mod, mask_mod = modifications(problem.network, problem.length)

    def f(*args: Any) -> Any:
        q, k, v = (x.reshape(1, *x.shape) for x in args)
        out = F.flex_attention(q, k, v, score_mod, mask_mod)
        return out.reshape(out.shape[1:])

    return f


class Session:
    def __init__(self, problem: Attention, arrays: dict[str, np.ndarray], threads: int):
        es.set_threads(threads)
        f = masked_attention(problem)

        def step(q: Any, k: Any, v: Any, g: Any) -> Any:
            out, pull_back = es.vjp(f, q, k, v)
            return (out, *pull_back(g))

        self._step, self.problem = es.jit(step), problem
        self.arrays = [arrays[n] for n in "QKVG"]

    def step(self) -> float:
        self.out = self._step(*self.arrays)
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        return verified(self.problem, [np.asarray(x) for x in self.out])


def build(problem: Attention, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Session:
    return Session(problem, arrays, threads)
