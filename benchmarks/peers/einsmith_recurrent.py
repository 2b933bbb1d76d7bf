"""Run recurrent networks in Einsmith, as any user writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.peers.described import described
from benchmarks.peers.einsmith_networks import FORMS, EinsmithForward, EinsmithTask
from benchmarks.recurrent_steps import LAYER_CELLS, LR, Recurrent, RecurrentForward
from einsmith import functional, models, nn, optim
from einsmith.tracing.builder import Value
from einsmith.training import TrainStep


class FromState(nn.Module):
    """A network whose initial states are arguments of every step."""

    def __init__(self, network: nn.Module):
        self.network = network

    def forward(self, x: Value, a: Value, b: Value | None = None) -> Any:
        if isinstance(self.network, models.LSTMLanguageModel):
            h, _ = self.network.rnn(self.network.embedding(x), (a, b))
            return self.network.decoder(functional.flatten(h, 0, 1))
        return self.network(x, a if b is None else (a, b))


class LayerClassifier(nn.Module):
    """A layer of nn.RNN, nn.LSTM or nn.GRU, and a linear classifier of its last output."""

    def __init__(self, name: str, inputs: int, width: int, classes: int):
        self.rnn = getattr(nn, name.upper())(inputs, width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Value, hx: Any) -> Any:
        states = tuple(s.reshape((1, *s.shape)) for s in (hx if isinstance(hx, tuple) else (hx,)))
        output, _ = self.rnn(x, states if isinstance(hx, tuple) else states[0])
        return self.fc(output[x.shape[0] - 1])


def _network(
    problem: Recurrent, arrays: dict[str, np.ndarray], weights: Sequence[str]
) -> tuple[FromState, dict[str, str], tuple[np.ndarray, ...]]:
    """Return a network with its weights, their names in it, and its inputs."""
    h, x = arrays["h0"], arrays["x"]
    network: nn.Module
    if problem.network == "lstm_lm":
        words, width = arrays["embedding.weight"].shape
        network = models.lstm_lm(vocabulary=words, width=width, batch=x.shape[1])
        inside = ""
    elif problem.network in LAYER_CELLS:
        network = LayerClassifier(problem.network, x.shape[2], h.shape[1], arrays["fc.bias"].shape[0])
        inside = "rnn."
    else:
        network = models.get(problem.network, input_size=x.shape[2], hidden_size=h.shape[1])
        x, inside = np.ascontiguousarray(x.swapaxes(0, 1)), "cell."
    names = {n: f"network.{'' if n.startswith('fc.') else inside}{n}" for n in weights}
    model = FromState(network)
    model.load_state_dict({ours: arrays[n] for n, ours in names.items()}, strict=False)
    return model, names, (x, *(arrays[n] for n in problem.states))


class RecurrentTraining:
    """A training step of a recurrent network. options: those of TrainStep."""

    def __init__(self, problem: Recurrent, arrays: dict[str, np.ndarray], threads: int, **options: Any):
        self.model, self.names, inputs = _network(problem, arrays, problem.results)
        optimizer = optim.SGD(lr=LR)
        self.trainer = TrainStep(self.model, functional.cross_entropy, optimizer, seed=0, threads=threads, **options)
        self.batch = (*inputs, arrays["y"])

    def step(self) -> float:
        """Train on the batch and return the loss."""
        return self.trainer(*self.batch)

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        state = self.model.state_dict()
        return {n: np.asarray(state[ours]) for n, ours in self.names.items()}

    def describe(self) -> dict[str, Any]:
        """Return what the program says of itself."""
        return described(self.trainer)


def build(
    problem: Recurrent, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "", **options: Any
) -> Any:
    """Return the problem's session. options: those of TrainStep."""
    if isinstance(problem, RecurrentForward):
        model, _, inputs = _network(problem, arrays, problem.weights)
        return EinsmithForward(model, inputs, threads)
    step = RecurrentTraining(problem, arrays, threads, **FORMS.get(peer, {}), **options)
    if problem.task == "step":
        return step
    return EinsmithTask(step, step.names, LR if problem.task == "gradients" else None)
