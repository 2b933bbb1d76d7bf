"""List the peers and problems of `einsmith bench`, for the processes of `bench.worker`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from einsmith import models
from einsmith.base.errors import ArgumentError
from einsmith.bench.networks import NETWORKS
from einsmith.bench.problem import Workload
from einsmith.bench.recurrent import CELLS, LM_BATCH, ROW, language_model, recurrent

PEERS = {
    "einsmith": "einsmith.bench.peers.einsmith_peer",
    "torch": "einsmith.bench.peers.torch_peer",
    "compile": "einsmith.bench.peers.torch_peer",
    "compile-cell": "einsmith.bench.peers.torch_peer",
    "jax": "einsmith.bench.peers.jax_peer",
    "jax-unrolled": "einsmith.bench.peers.jax_peer",
    "tensorflow": "einsmith.bench.peers.tensorflow_peer",
    "tensorflow-unrolled": "einsmith.bench.peers.tensorflow_peer",
    "xla": "einsmith.bench.peers.tensorflow_peer",
    "xla-unrolled": "einsmith.bench.peers.tensorflow_peer",
    "peak": "einsmith.bench.peers.peak",
    "reference": "einsmith.bench.peers.torch_peer",
}

COMPARED: dict[str, Callable[[int], Workload]] = {
    **NETWORKS,
    **{cell: partial(recurrent, cell, steps=ROW) for cell in CELLS},
    "lstm-lm": lambda batch: language_model(batch=batch),
}
"""Training step of each model, by its name in `einsmith.models`, as a function of the batch size."""
QUICK = ("mlp3", "lenet5")
"""Models that are compared where none is named."""
QUICK_BATCH, RECURRENT_BATCH, BATCH = 64, 16, 4
"""Batch size of a problem where none is given: of the models of QUICK, of recurrent cells and of all others."""
QUICK_CAP, CAP = 30.0, 180.0
"""Seconds that a peer may take for a model of QUICK, and for another one; torch.compile takes minutes for some."""


def make_problem(model: str, batch: int | None = None) -> Workload:
    """Return the training step of a model; batch: None for the usual batch size.

    Raises UnknownNameError for a name that `einsmith.models` does not have, ArgumentError for a model of which there is
    no program in another library.
    """
    models.maker(model)
    if model not in COMPARED:
        raise ArgumentError(
            f"{model!r} is written in Einsmith alone, so there is nothing to compare it with; the models with programs "
            f"in other libraries are {', '.join(sorted(COMPARED))}"
        )
    return COMPARED[model](batch or _usual_batch(model))


def _usual_batch(model: str) -> int:
    if model in QUICK:
        return QUICK_BATCH
    return RECURRENT_BATCH if model in CELLS else LM_BATCH if model == "lstm-lm" else BATCH


def usual_cap(model: str) -> float:
    """Return the seconds that a peer may take for a model where no limit is given."""
    return QUICK_CAP if model in QUICK else CAP


def find(name: str) -> Workload:
    """Return the problem of a name: resnet18-b4, milstm-b16-t28 (28 steps). Raises KeyError where there is none."""
    network, _, sizes = name.partition("-b")
    batch, _, steps = sizes.partition("-t")
    if not steps:
        return NETWORKS[network](int(batch))
    if network == "lstm_lm":
        return language_model(int(steps), int(batch))
    return recurrent(network, int(batch), int(steps))
