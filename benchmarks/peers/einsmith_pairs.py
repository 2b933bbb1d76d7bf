"""Einsmith: kernel methods as index formulas."""

from __future__ import annotations

from typing import Any

import numpy as np

import einsmith as es
from benchmarks.pairs import EPS, Pairs, sampled
from benchmarks.peers.einsmith_operators import GAUSSIAN_KERNEL, by_name

_DISTANCE = "r[i,j] = sqrt({0}*sum[d]((X[i,d]-Y[j,d])**2))\n"
FORMULAS = {  # POINTS: the number of points
    "gaussian": GAUSSIAN_KERNEL,
    "laplacian": _DISTANCE.format(1) + "O[i,v] = sum[j](exp(-r[i,j]) * B[j,v])",
    "matern32": _DISTANCE.format(3) + "O[i,v] = sum[j]((1 + r[i,j]) * exp(-r[i,j]) * B[j,v])",
    "matern52": _DISTANCE.format(5) + "O[i,v] = sum[j]((1 + r[i,j] + r[i,j]**2/3) * exp(-r[i,j]) * B[j,v])",
    "sinkhorn": f"""
        s[i,j] = B[j] - sum[d]((X[i,d]-Y[j,d])**2)/{EPS}
        m[i] = stop_gradient(max[j](s[i,j]))
        O[i] = m[i] + log(sum[j](exp(s[i,j] - m[i])))
    """,
    "nearest": "O[i] = argmin[j](sum[d]((X[i,d]-Y[j,d])**2))",
    "variance": """
        s[i,j] = sum[d]((X[i,d]-Y[j,d])**2)
        m[i] = sum[j](s[i,j])/POINTS
        O[i] = sum[j]((s[i,j] - m[i])**2)/POINTS
    """,
}


class Session:
    def __init__(self, problem: Pairs, arrays: dict[str, np.ndarray], threads: int):
        es.set_threads(threads)
        f = by_name(FORMULAS[problem.network].replace("POINTS", str(problem.points)), " ".join(problem.inputs))

        def loss(xs: Any, g: Any) -> Any:
            return (f(*xs) * g).sum()

        def squared_norm(x: Any, y: Any, b: Any, g: Any) -> Any:
            dx = es.grad(lambda x: loss((x, y, b), g))(x)
            return (dx * dx).sum()

        steps: dict[str, Any] = {
            "values": lambda xs, g: (f(*xs),),
            "gradients": es.grad(loss),
            "second": lambda xs, g: (es.grad(squared_norm)(*xs, g),),
        }
        step = steps[problem.order]
        self.problem, self.arrays = problem, arrays
        self.inputs, self.g = tuple(arrays[n] for n in problem.inputs), arrays.get("G")
        self._step = es.jit(lambda xs: step(xs, None)) if self.g is None else es.jit(step)

    def step(self) -> float:
        self.out = self._step(self.inputs) if self.g is None else self._step(self.inputs, self.g)
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        return sampled(self.problem, self.arrays, [np.asarray(x) for x in self.out])


def build(problem: Pairs, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Session:
    return Session(problem, arrays, threads)
