"""The training steps that the benchmarks time: networks and recurrent networks at the batch sizes of the papers."""

from __future__ import annotations

from einsmith.bench.networks import NETWORKS
from einsmith.bench.problem import Workload
from einsmith.bench.recurrent import CELLS, Recurrent, language_model, recurrent

BATCHES = (1, 16)


def _recurrent(batch: int) -> list[Recurrent]:
    """The cells over one step and over 28, the language model over 35."""
    return [*(recurrent(c, batch, t) for c in CELLS for t in (1, 28)), language_model(batch=batch)]


TRAINING: dict[str, Workload] = {
    p.name: p
    for p in (
        *(make(b) for make in NETWORKS.values() for b in BATCHES),
        *(p for b in BATCHES for p in _recurrent(b)),
        *(NETWORKS[n](b) for n in ("mlp3", "lenet5") for b in (64, 256)),
    )
}
