"""The training steps that are compared on a card: every network of `einsmith.models`, and the routing of capsules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.graphs.graph import NetworkGraph
from benchmarks.models import NETWORKS, NetworkCase, case_of
from benchmarks.problem import Workload
from benchmarks.recurrent_steps import CELLS, ROW, language_model, recurrent
from benchmarks.small_networks import SMALL, small
from einsmith.bench.verify import Tolerances

ROUTED = "routed_capsules"
BATCHES = (16, 64, 1)
"""In the order in which they are compared."""
PRECISIONS = ("tf32", "bf16", "fp32")
"""As TrainStep spells them; the most usual one of cards first."""
TOLERANCES = {
    "fp32": Tolerances(),
    "tf32": Tolerances(2e-3, 2e-2, 0.1),
    "bf16": Tolerances(3e-2, 0.1, 0.3),
}
"""Against float64. A change that is missing, or of the wrong sign, is off by 1 and more."""
FIRST = (
    "resnet18", "capsulenet", ROUTED, "milstm", "lenet5", "gpt_small", "vit_small", "scrn", "sublstm", "lltm",
    "mobilenet_v2", "shufflenet_v1", "resnet50", "lstm-lm", "mlp3", "bert_base",
)  # fmt: skip
"""Networks that are compared first, where time is short."""


@dataclasses.dataclass(frozen=True)
class CardStep(NetworkCase):
    """A training step whose graph is exported in this process, at whatever size it has."""

    def graph(self) -> NetworkGraph:
        """Return the forward and its loss as PyTorch's operations. Raises ImportError where PyTorch is missing."""
        import torch

        from benchmarks.graphs.exporter import TorchWithLoss, export

        with torch.device("cpu"):
            return export(TorchWithLoss(self), *(torch.from_numpy(a) for a in self.inputs_and_targets()))


class Case(NamedTuple):
    """A network at a batch size; tiny: at a size that an interpreter can run."""

    model: str
    batch: int
    tiny: bool = False

    def __str__(self) -> str:
        return f"{self.model}-b{self.batch}"

    def problem(self) -> Workload:
        """Return the training step."""
        return (_tiny if self.tiny else _full)(self.model, self.batch)


def names() -> list[str]:
    """Return the networks, the most telling ones first."""
    every = [*NETWORKS, ROUTED, *CELLS, "lstm-lm"]
    return [*FIRST, *(n for n in every if n not in FIRST)]


def cases(models: Sequence[str], batches: Sequence[int], tiny: bool) -> Iterator[Case]:
    """Yield the networks at all batch sizes, one size after the other."""
    for batch in batches:
        for model in models:
            yield Case(model, batch, tiny)


def _full(model: str, batch: int) -> Workload:
    if model == ROUTED:
        return _routed(NetworkCase(f"{ROUTED}-b{batch}", "capsulenet", batch), (1152, 8), (10, 16))
    if model in NETWORKS:
        return _of_card(NETWORKS[model](batch))
    return language_model(batch=batch) if model == "lstm-lm" else recurrent(model, batch, ROW)


def _tiny(model: str, batch: int) -> Workload:
    if model == ROUTED:
        # In an image of 18 pixels the capsules have one place.
        arguments: Any = SMALL["capsulenet"][0]
        step = NetworkCase(f"{ROUTED}-b{batch}", "capsulenet", batch, arguments=arguments)
        return _routed(step, (2, 3), (3, 16))
    if model in NETWORKS:
        return _of_card(dataclasses.replace(small(model), batch=batch, name=f"{model}-b{batch}"))
    if model == "lstm-lm":
        return language_model(steps=2, batch=batch, width=5, words=11)
    return recurrent(model, batch, steps=2, width=5)


def _routed(step: NetworkCase, sample: tuple[int, ...], target: tuple[int, ...]) -> Workload:
    return _of_card(dataclasses.replace(step, part="routed", loss="mse_loss", sample=sample, target=target))


def _of_card(step: NetworkCase) -> NetworkCase:
    return case_of(step, CardStep)
