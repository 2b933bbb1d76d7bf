"""Run networks in Einsmith: training steps, and outputs in evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import einsmith as es
from benchmarks.models import NetworkCase
from benchmarks.peers.described import described
from einsmith.bench.networks import LR
from einsmith.bench.steps import EinsmithStep
from einsmith.nn import functional_call

FORMS: dict[str, dict[str, Any]] = {
    "static-60": {"tune": 60.0}, "static-300": {"tune": 300.0}, "dynamic": {"mode": "dynamic"},
}  # fmt: skip
"""Ways to tune a training step, by the names of peers."""


class EinsmithTask:
    """A part of a training step: its loss, or its loss and gradients.

    Args:
        whole: a training step with its `trainer` and its `batch`
        names: names of its parameters in the model, by those of the problem
        rate: learning rate; None for the loss alone
    """

    def __init__(self, whole: Any, names: Mapping[str, str], rate: float | None):
        self.whole, self.names, self.rate = whole, names, rate
        model, loss = whole.trainer.model, whole.trainer.loss

        def with_gradients(parameters: Any, *batch: Any) -> Any:
            return loss(functional_call(model, parameters, *batch[:-1]), batch[-1])

        self._loss = es.jit(lambda *batch: loss(model(*batch[:-1]), batch[-1]))
        self._both = es.jit(es.value_and_grad(with_gradients))
        self._parameters = {n: np.asarray(p) for n, p in model.named_parameters()}
        self._gradients: dict[str, np.ndarray] = {}

    def step(self) -> float:
        """Compute the loss, and the gradients where they are asked for."""
        if self.rate is None:
            return float(self._loss(*self.whole.batch))
        loss, self._gradients = self._both(self._parameters, *self.whole.batch)
        return float(loss)

    def results(self) -> dict[str, np.ndarray]:
        """Return the running statistics, and the parameters that an update would make."""
        out = self.whole.results()
        if self.rate is None:
            return out
        return out | {n: out[n] - np.float32(self.rate) * self._gradients[own] for n, own in self.names.items()}


class EinsmithTraining(EinsmithStep):
    """A training step that tells of its program."""

    def describe(self) -> dict[str, Any]:
        """Return what the program says of itself."""
        return described(self.trainer)


class EinsmithForward:
    """The output of a module in evaluation, for the same inputs each time."""

    def __init__(self, model: es.nn.Module, inputs: Sequence[np.ndarray], threads: int):
        es.set_threads(threads)
        self.model, self.inputs = model.eval(), inputs

    def step(self) -> float:
        """Run the forward pass; there is no loss."""
        self.output = np.asarray(self.model(*self.inputs))
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        """Return the output."""
        return {"output": self.output}


def build(
    problem: NetworkCase, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "", **options: Any
) -> Any:
    """Return the problem's session. options: those of TrainStep."""
    if not problem.training:
        model = problem.make_network()
        model.load_state_dict({n: a for n, a in arrays.items() if n not in ("x", "y")})
        return EinsmithForward(model, (arrays["x"],), threads)
    step = EinsmithTraining(problem, arrays, threads, **FORMS.get(peer, {}), **options)
    if problem.task == "step":
        return step
    names = {n: n for n, _ in step.model.named_parameters()}
    return EinsmithTask(step, names, LR if problem.task == "gradients" else None)
