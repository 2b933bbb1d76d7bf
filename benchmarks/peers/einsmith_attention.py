"""Einsmith: attention whose masks and biases are index formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import einsmith as es
from benchmarks.attention_problems import CAP, SLOPE, WINDOW, Attention, document_length, verified
from benchmarks.peers.einsmith_operators import by_name

CAUSAL = "where(j <= i, s[n,i,j], -1e30)"


def score(mask: str, length: int) -> str:
    """The formula of the masked score from the scaled product s[n,i,j] of query i and key j."""
    part = document_length(length)
    return {
        "none": "s[n,i,j]",
        "causal": CAUSAL,
        "window": f"where(j <= i and i < j + {WINDOW}, s[n,i,j], -1e30)",
        "documents": f"where(j <= i and i//{part} == j//{part}, s[n,i,j], -1e30)",
        "alibi": f"where(j <= i, s[n,i,j] + {SLOPE}*(j - i), -1e30)",
        "softcap": f"{CAP}*tanh(s[n,i,j]/{CAP})",
    }[mask]


def masked_attention(problem: Attention) -> Callable:
    """The function of queries, keys and values."""
    text = f"""
        s[n,i,j] = sum[d](Q[n,i,d] * K[n,j,d]) * {problem.width**-0.5!r}
        S[n,i,j] = {score(problem.network, problem.length)}
        E[n,i,j] = exp(S[n,i,j] - stop_gradient(max[k](S[n,i,k])))
        O[n,i,d] = sum[j](E[n,i,j] * V[n,j,d]) / sum[j](E[n,i,j])
    """
    return by_name(text, "Q K V")


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
