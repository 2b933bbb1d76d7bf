"""Einsmith: networks and operators as any user writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

import einsmith as es
from benchmarks.attention_problems import Attention
from benchmarks.kernel_cases import Case
from benchmarks.pair_problems import Pairs
from benchmarks.peers import einsmith_attention, einsmith_kernels, einsmith_pairs
from benchmarks.peers.einsmith_operators import OPERATORS
from einsmith.bench.networks import NetworkStep
from einsmith.bench.peers import einsmith_peer
from einsmith.bench.problem import Session, Workload
from einsmith.bench.recurrent import Recurrent

VERSION = einsmith_peer.VERSION

FORMS: dict[str, dict[str, Any]] = {
    "static-60": {"tune": 60.0}, "static-300": {"tune": 300.0}, "dynamic": {"mode": "dynamic"},
}  # fmt: skip
"""Ways to tune a training step, by the names of peers."""


def variants(problem: Workload, peer: str) -> tuple[str, ...] | None:
    return None if isinstance(problem, Case) else tuple(OPERATORS.get(problem.network, ())) or None


prepare = einsmith_peer.prepare


class Operator:
    def __init__(self, problem: Workload, arrays: dict[str, np.ndarray], threads: int, variant: str):
        es.set_threads(threads)
        operator = OPERATORS[problem.network][variant]()

        def loss(xs, g):
            return (operator(*xs, **problem.options) * g).sum()

        self._step = es.jit(es.value_and_grad(loss))
        self.inputs, self.g = tuple(arrays[n] for n in problem.inputs), arrays["G"]
        self.names = problem.results

    def step(self) -> float:
        value, self.grads = self._step(self.inputs, self.g)
        return float(value)

    def results(self) -> dict[str, np.ndarray]:
        return {n: np.asarray(g) for n, g in zip(self.names, self.grads, strict=True)}


def build(problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "") -> Session:
    if isinstance(problem, Case):
        return einsmith_kernels.build(problem, arrays, threads)
    if isinstance(problem, Attention):
        return einsmith_attention.Session(problem, arrays, threads)
    if isinstance(problem, Pairs):
        return einsmith_pairs.Session(problem, arrays, threads)
    if isinstance(problem, (NetworkStep, Recurrent)):
        return einsmith_peer.build(problem, arrays, threads, peer, **FORMS.get(peer, {}))
    return Operator(problem, arrays, threads, variant)
