"""Einsmith: networks and operators as any user writes them."""

from __future__ import annotations

import numpy as np

import einsmith as es
from benchmarks.problems import LR, Problem, Session

VERSION = f"Einsmith {getattr(es, '__version__', '')}".strip()

CAPSULE_CONV = "C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j])"


class Training:
    def __init__(self, problem: Problem, arrays: dict[str, np.ndarray], threads: int):
        self.model = getattr(es.models, problem.network)()
        names = list(self.model.state_dict())
        self.names = dict(zip(names, problem.results, strict=True))
        self.model.load_state_dict({name: arrays[ours] for name, ours in self.names.items()})
        self._step = es.TrainStep(
            self.model, es.functional.cross_entropy, es.optim.SGD(lr=LR), seed=0, threads=threads
        )
        self.x, self.y = arrays["x"], arrays["y"]

    def step(self) -> float:
        return self._step(self.x, self.y)

    def results(self) -> dict[str, np.ndarray]:
        return {self.names[name]: np.asarray(v) for name, v in self.model.state_dict().items()}


class Operator:
    def __init__(self, problem: Problem, arrays: dict[str, np.ndarray], threads: int):
        es.set_threads(threads)
        capsule_conv = es.op(CAPSULE_CONV)

        def loss(a, w):
            c = capsule_conv(a, w, stride=problem.stride)
            return (c * c).mean() / 2

        self._step = es.jit(es.value_and_grad(loss, argnums=(0, 1)))
        self.a, self.w = arrays["A"], arrays["W"]

    def step(self) -> float:
        value, self.grads = self._step(self.a, self.w)
        return float(value)

    def results(self) -> dict[str, np.ndarray]:
        return {n: np.asarray(g) for n, g in zip(("dA", "dW"), self.grads, strict=True)}


def build(problem: Problem, arrays: dict[str, np.ndarray], threads: int, peer: str) -> Session:
    return (Training if problem.training else Operator)(problem, arrays, threads)
