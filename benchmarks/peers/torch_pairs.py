"""PyTorch: kernel methods over the whole matrix of pairs or over blocks of its rows; their float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.pairs import EPS, Pairs, sampled
from benchmarks.peers.torch_operators import _squared_distances

MOST_BYTES = 8e9
"""Memory that a formulation may take."""
COPIES = 6
"""Matrices of all pairs that autograd holds at once, about."""
BLOCK_BYTES = 16e6
"""A block of rows of the matrix of pairs."""


def differences(x: Tensor, y: Tensor) -> Tensor:
    return ((x[:, None] - y) ** 2).sum(2)


def product(x: Tensor, y: Tensor) -> Tensor:
    return _squared_distances(x, y).clamp_min(1e-12)


def kernel(kind: str, squares: Tensor, b: Tensor | None) -> Tensor:
    """The reduction over the columns of a matrix of squared distances."""
    if b is None:
        return squares.argmin(1) if kind == "nearest" else squares.var(1, correction=0)
    if kind == "gaussian":
        return (squares * -0.5).exp() @ b
    if kind == "sinkhorn":
        return (b - squares / EPS).logsumexp(1)
    r = (squares * {"laplacian": 1, "matern32": 3, "matern52": 5}[kind]).sqrt()
    factor = {"laplacian": 1, "matern32": 1 + r, "matern52": 1 + r + r * r / 3}[kind]
    return (factor * (-r).exp()) @ b


def variants(problem: Pairs, peer: str) -> tuple[str, ...]:
    """The formulations that fit into MOST_BYTES."""
    dense = COPIES * 4 * problem.points**2 <= MOST_BYTES
    dimension = int(problem.name.split("-d")[1].split("-")[0])
    if peer == "reference":
        return ("blocks",)
    names = ("blocks", "dense") if dense else ("blocks",)
    return (*names, "blocks of differences") if peer == "compile" and dimension <= 10 else names


def evaluate(f: Callable[..., Tensor], order: str, inputs: Sequence[Tensor], g: Tensor | None, rows: int) -> list:
    """The results of an order, `rows` rows of pairs at a time: their gradients by y and b add up."""
    x, *others = inputs
    parts, sums = [], [torch.zeros_like(o) for o in others]
    for k in range(0, len(x), rows):
        if order == "values":
            with torch.no_grad():
                parts.append(f(x[k : k + rows], *others))
            continue
        assert g is not None
        part = x[k : k + rows].detach().requires_grad_()
        loss = (f(part, *others) * g[k : k + rows]).sum()
        if order == "second":
            (dx,) = torch.autograd.grad(loss, part, create_graph=True)
            parts += torch.autograd.grad((dx * dx).sum(), part)
            continue
        dx, *rest = torch.autograd.grad(loss, [part, *others])
        parts.append(dx)
        for total, r in zip(sums, rest, strict=True):
            total += r
    return [torch.cat(parts), *(sums if order == "gradients" else ())]


class Session:
    def __init__(self, problem: Pairs, arrays: dict[str, np.ndarray], peer: str, variant: str):
        kind, squares = problem.network, differences if "differences" in variant else product

        def f(x: Tensor, y: Tensor, b: Tensor | None = None) -> Tensor:
            return kernel(kind, squares(x, y), b)

        self.f = torch.compile(f) if peer == "compile" else f
        self.problem, self.arrays = problem, arrays
        self.inputs = [torch.from_numpy(arrays[n]).clone() for n in problem.inputs]
        if problem.order == "gradients":
            self.inputs = [x.requires_grad_() for x in self.inputs]
        self.g = torch.from_numpy(arrays["G"]) if "G" in arrays else None
        self.rows = problem.points if variant == "dense" else max(1, int(BLOCK_BYTES / 4 / problem.points))

    def step(self) -> float:
        self.out = evaluate(self.f, self.problem.order, self.inputs, self.g, self.rows)
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        return sampled(self.problem, self.arrays, [x.detach().numpy() for x in self.out])


class Reference:
    """The verified rows alone, in float64, from differences of coordinates."""

    def __init__(self, problem: Pairs, arrays: dict[str, np.ndarray]):
        self.problem, self.inputs = problem, [torch.from_numpy(arrays[n]) for n in problem.inputs]
        self.g = torch.from_numpy(arrays["G"]) if "G" in arrays else None

    def step(self) -> float:
        p, rows = self.problem, torch.from_numpy(self.problem.rows)
        x, y, *b = self.inputs

        def f(x: Tensor, y: Tensor, b: Tensor | None = None) -> Tensor:
            # Of nearest neighbours the distances are compared.
            return differences(x, y).amin(1) if p.network == "nearest" else kernel(p.network, differences(x, y), b)

        g = None if self.g is None else self.g[rows]
        if p.order != "gradients":
            self.out = evaluate(f, p.order, (x[rows], y, *b), g, 1)
            return 0.0
        assert self.g is not None
        own = [t.clone().requires_grad_() for t in (y, *b)]
        self.out = evaluate(f, p.order, (x[rows], *own), g, 1)[:1]
        sizes = [f(part, y, *b) for part in x.split(16)] if p.network == "sinkhorn" else []

        def column(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
            """Of Sinkhorn's sum, whose total is constant here: d log(sum exp s) = sum(exp(s - total) ds)."""
            if not sizes:
                return f(x, y, b)
            return (b - differences(x, y) / EPS - self.total[:, None]).exp().sum(1)

        self.total = torch.cat(sizes) if sizes else torch.zeros(0)
        columns = [t[rows].clone().requires_grad_() for t in (y, *b)]
        sums = [torch.zeros_like(t) for t in columns]
        total = self.total
        for k in range(0, len(x), 1024):
            self.total = total[k : k + 1024]
            loss = (column(x[k : k + 1024], *columns) * self.g[k : k + 1024]).sum()
            for s, r in zip(sums, torch.autograd.grad(loss, columns), strict=True):
                s += r
        self.out += sums
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        return {n: x.detach().numpy() for n, x in zip(self.problem.results, self.out, strict=True)}


def build(problem: Pairs, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Session | Reference:
    return Reference(problem, arrays) if peer == "reference" else Session(problem, arrays, peer, variant)
