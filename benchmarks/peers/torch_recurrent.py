"""Run recurrent networks in PyTorch: loops in Python, compiled whole or by the cell, and the fused LSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.peers.recurrent_cells import Arrays, CellLibrary, State, Step, lstm_layers, networks
from benchmarks.peers.torch_networks import TorchForward, TorchTask
from benchmarks.recurrent_steps import LAYERS, LR, Recurrent, RecurrentForward
from einsmith.bench.steps import Session

VARIANTS = dict.fromkeys(("torch", "compile-cell"), ("fused LSTM", "loop")) | {"torchscript": ("fused LSTM",)}
"""Formulations of the language model; the cells have the loop alone."""
LARGE = 128
"""A batch from which on the loop is not tried, where products take most of the time (batch 256: 2.6 times as long)."""


def variants(problem: Recurrent, peer: str) -> tuple[str, ...]:
    """Return the formulations to choose from."""
    names = VARIANTS.get(peer, ("",)) if problem.network == "lstm_lm" else ("",)
    return names[:1] if problem.batch >= LARGE else names


def library(compiled_cell: bool) -> CellLibrary:
    """Return PyTorch's operations; the loop runs in Python."""
    compiled: dict[Step, Callable] = {}

    def loop(step: Step, p: Arrays, state: State, xs: tuple, collect: bool) -> tuple[State, Any]:
        if compiled_cell:
            step = compiled.setdefault(step, torch.compile(step))
        out = []
        for at in zip(*(x.unbind(0) for x in xs), strict=True):
            state = step(p, state, at)
            if collect:
                out.append(state[0])
        return state, torch.stack(out) if collect else None

    return CellLibrary(
        linear=F.linear,
        inputs=lambda w, start, stop: w[:, start:stop],
        sigmoid=torch.sigmoid,
        tanh=torch.tanh,
        elu=F.elu,
        muladd=lambda a, b, c: torch.addcmul(c, a, b),
        concat=lambda parts: torch.cat(parts, -1),
        loop=loop,
    )


class TorchRecurrent:
    """A training step of a recurrent network."""

    def __init__(self, problem: Recurrent, arrays: dict[str, np.ndarray], peer: str, variant: str):
        self.x, self.y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
        self.state = tuple(torch.from_numpy(arrays[n]) for n in problem.states)
        self.p = {n: torch.from_numpy(arrays[n]).clone().requires_grad_() for n in problem.results}
        # A table's gradient as the rows that were read: eager torch then updates those alone.
        self.sparse = problem.network == "lstm_lm" and peer != "compile"
        o = library(peer == "compile-cell")
        network = self._language_model(o, variant) if problem.network == "lstm_lm" else None
        apply = network or networks(o)[problem.network]

        def loss(p: Any, x: torch.Tensor, state: State, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(apply(p, x, state), y)

        self.loss: Any = torch.compile(loss) if peer == "compile" else loss
        if peer == "torchscript":
            self.loss = self._traced(loss)
        dense = [v for n, v in self.p.items() if not (self.sparse and n == "embedding.weight")]
        self.optimizer = torch.optim.SGD(dense, lr=LR, foreach=True)
        self.update: Any = torch.compile(self.optimizer.step) if peer == "compile" else self.optimizer.step

    def _traced(self, loss: Callable) -> Callable:
        """Return the loss, traced by TorchScript."""

        def flat(x: torch.Tensor, y: torch.Tensor, state: State, *values: torch.Tensor) -> torch.Tensor:
            return loss(dict(zip(self.p, values, strict=True)), x, state, y)

        script = torch.jit.trace(flat, (self.x, self.y, self.state, *self.p.values()), check_trace=False)
        return lambda p, x, state, y: script(x, y, state, *p.values())

    def _language_model(self, o: CellLibrary, variant: str) -> Any:
        layers: Any = lstm_layers(o)
        if variant == "fused LSTM":

            def layers(p: Any, x: torch.Tensor, state: State) -> torch.Tensor:
                weights = [v for n, v in p.items() if n.startswith("rnn.")]
                return torch.lstm(x, state, weights, True, LAYERS, 0.0, True, False, False)[0]

        def network(p: Any, x: torch.Tensor, state: State) -> torch.Tensor:
            h = layers(p, F.embedding(x, p["embedding.weight"], sparse=self.sparse), state)
            return F.linear(h.flatten(0, 1), p["decoder.weight"], p["decoder.bias"])

        return network

    def step(self) -> float:
        """Train on the batch and return the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.p, self.x, self.state, self.y)
        loss.backward()
        self.update()
        if self.sparse:
            table = self.p["embedding.weight"]
            with torch.no_grad():
                table.add_(table.grad, alpha=-LR)
            table.grad = None
        return loss.item()

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return {n: v.detach().numpy() for n, v in self.p.items()}


def build(problem: Recurrent, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Session:
    """Return the problem's session."""
    # A loop over steps is one graph: the limits on how much is traced are for programs that were not meant to be.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 32)
    if isinstance(problem, RecurrentForward):
        tensors = {n: torch.from_numpy(a) for n, a in arrays.items()}
        given = {n: tensors[n] for n in problem.weights}, tensors["x"], tuple(tensors[n] for n in problem.states)
        return TorchForward(networks(library(peer == "compile-cell"))[problem.network], given, peer)
    step = TorchRecurrent(problem, arrays, peer, variant)
    if problem.task == "step":
        return step
    rate = LR if problem.task == "gradients" else None
    return TorchTask(step, lambda: step.loss(step.p, step.x, step.state, step.y), step.p, rate)
