"""Einsmith: recurrent networks as any user writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

import einsmith as es
from benchmarks.models import in_einsmith
from benchmarks.problems import LR
from benchmarks.recurrent_problems import CELLS, LAYER_CELLS, Recurrent
from einsmith import nn
from einsmith.lang.builder import Value

NETWORKS = (*LAYER_CELLS, *CELLS, "lstm_lm")


class FromState(nn.Module):
    """A network whose initial states are arguments of every step."""

    def __init__(self, network: nn.Module):
        self.network = network

    def forward(self, x: Value, a: Value, b: Value | None = None) -> Any:
        if isinstance(self.network, es.models.LSTMLanguageModel):
            h, _ = self.network.rnn(self.network.embedding(x), (a, b))
            return self.network.decoder(es.functional.flatten(h, 0, 1))
        return self.network(x, a if b is None else (a, b))


class Layer(nn.Module):
    """A layer of nn.RNN, nn.LSTM or nn.GRU, and a linear classifier of its last output."""

    def __init__(self, name: str, inputs: int, width: int, classes: int):
        self.rnn = getattr(nn, name.upper())(inputs, width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Value, hx: Any) -> Any:
        given = tuple(s.reshape((1, *s.shape)) for s in (hx if isinstance(hx, tuple) else (hx,)))
        output, _ = self.rnn(x, given if isinstance(hx, tuple) else given[0])
        return self.fc(output[x.shape[0] - 1])


class Training:
    def __init__(self, problem: Recurrent, arrays: dict[str, np.ndarray], threads: int, **options: Any):
        h, x = arrays["h0"], arrays["x"]
        network: nn.Module
        if problem.network == "lstm_lm":
            words, width = arrays["embedding.weight"].shape
            network = es.models.lstm_lm(vocabulary=words, width=width, batch=x.shape[1])
            inside = ""
        elif problem.network in LAYER_CELLS:
            network = Layer(problem.network, x.shape[2], h.shape[1], arrays["fc.bias"].shape[0])
            inside = "rnn."
        else:
            network = es.models.get(problem.network, input_size=x.shape[2], hidden_size=h.shape[1])
            x, inside = np.ascontiguousarray(x.swapaxes(0, 1)), "cell."
        self.names = {n: f"network.{'' if n.startswith('fc.') else inside}{n}" for n in problem.results}
        self.model = FromState(network)
        self.model.load_state_dict({ours: arrays[n] for n, ours in self.names.items()}, strict=False)
        optimizer = es.optim.SGD(lr=LR)
        self._step = es.TrainStep(
            self.model, es.functional.cross_entropy, optimizer, seed=0, threads=threads, **options
        )
        self.batch = (x, *(arrays[n] for n in problem.states), arrays["y"])

    def step(self) -> float:
        return self._step(*self.batch)

    def results(self) -> dict[str, np.ndarray]:
        state = self.model.state_dict()
        return {n: np.asarray(state[ours]) for n, ours in self.names.items()}

    def describe(self) -> dict[str, Any]:
        return in_einsmith.described(self._step)


def build(problem: Recurrent, arrays: dict[str, np.ndarray], threads: int, **options: Any) -> Training:
    return Training(problem, arrays, threads, **options)
