"""PyTorch, eager and through torch.compile."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.attention_problems import Attention
from benchmarks.kernel_cases import Case
from benchmarks.pair_problems import Pairs
from benchmarks.peers import torch_attention, torch_kernels, torch_pairs
from benchmarks.peers.torch_operators import COMPILED, EAGER
from einsmith.bench.networks import NetworkStep
from einsmith.bench.peers import torch_peer
from einsmith.bench.problem import Session, Workload
from einsmith.bench.recurrent import Recurrent

VERSION = torch_peer.VERSION


def formulations(peer: str) -> dict[str, dict]:
    return COMPILED if peer == "compile" else EAGER


def variants(problem: Workload, peer: str) -> tuple[str, ...] | None:
    if isinstance(problem, Case):
        names = torch_kernels.variants(problem)
        return names[:1] if peer == "reference" else names
    if isinstance(problem, Attention):
        return torch_attention.variants(problem, peer)
    if isinstance(problem, Pairs):
        return torch_pairs.variants(problem, peer)
    if isinstance(problem, (NetworkStep, Recurrent)):
        return torch_peer.variants(problem, peer)
    return tuple(formulations(peer).get(problem.network, ())) or None


class Operator:
    def __init__(self, problem: Workload, arrays: dict[str, np.ndarray], peer: str, variant: str):
        operator = formulations(peer)[problem.network][variant]
        self.inputs = [torch.from_numpy(arrays[n]).clone().requires_grad_() for n in problem.inputs]
        self.g, self.names = torch.from_numpy(arrays["G"]), problem.results

        def loss(xs: list[torch.Tensor], g: torch.Tensor) -> torch.Tensor:
            return (operator(*xs, **problem.options) * g).sum()

        self.loss = torch.compile(loss) if peer == "compile" else loss
        self.grads: tuple[torch.Tensor, ...] = ()

    def step(self) -> float:
        loss = self.loss(self.inputs, self.g)
        self.grads = torch.autograd.grad(loss, self.inputs)
        return loss.item()

    def results(self) -> dict[str, np.ndarray]:
        return {n: g.numpy() for n, g in zip(self.names, self.grads, strict=True)}


def build(problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "") -> Session:
    torch.set_num_threads(threads)
    if peer == "reference":
        arrays = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()}
    if isinstance(problem, Case):
        return torch_kernels.build(problem, arrays, peer, variant)
    if isinstance(problem, Attention):
        return torch_attention.Session(problem, arrays, peer, variant)
    if isinstance(problem, Pairs):
        return torch_pairs.build(problem, arrays, peer, variant)
    if isinstance(problem, (NetworkStep, Recurrent)):
        return torch_peer.build(problem, arrays, threads, peer, variant)
    return Operator(problem, arrays, peer, variant)
