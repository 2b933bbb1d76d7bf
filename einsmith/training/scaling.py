"""Predict a training step in a group of processes from a step compiled in one (weak scaling: a batch each)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from einsmith.distributed.network import Interconnect, exposed_seconds
from einsmith.driver.binding import last_store
from einsmith.driver.bound_program import BoundProgram
from einsmith.training.gradient_buckets import BUCKET_BYTES, FIRST_BYTES, MOST_BYTES, bucket_bytes, divide
from einsmith.training.state import GRADIENT
from einsmith.training.step import TrainStep

BUCKETS = FIRST_BYTES, BUCKET_BYTES, MOST_BYTES, 100 << 20
"""Sizes of buckets that are compared, in bytes."""
USEFUL = 0.8
"""Least efficiency of a useful number of processes."""


class Scaling(NamedTuple):
    """The prediction for a number of processes.

    seconds: of a step; exposed: seconds of it in which it only waits for sums; efficiency: seconds of a process alone
    per `seconds`; bucket_bytes: size of buckets with the least exposed communication."""

    ranks: int
    seconds: float
    exposed: float
    efficiency: float
    bucket_bytes: int


class Communication(NamedTuple):
    """Predicted communication of a step, in seconds: `whole` of all sums, `exposed` of those that computation does not
    hide."""

    whole: float
    exposed: float


def predict_communication(
    step: TrainStep, arrays: list[np.ndarray], ranks: int, network: Interconnect, is_crowded: bool = False
) -> Communication:
    """Predict the communication of a step of `ranks` processes, each with this batch, in buckets of the usual size.

    is_crowded: whether the step uses all cores of its process (`exposed_seconds`)."""
    gradients = _Gradients(step, arrays)
    buckets = gradients.in_buckets(bucket_bytes(gradients.total, ranks))
    whole = sum(network.all_reduce_seconds(nbytes, ranks) for _, nbytes in buckets)
    exposed = exposed_seconds(buckets, gradients.computed, ranks, network, is_crowded)
    # a difference of two times, which may round to more than all communication where nothing overlaps
    return Communication(whole, min(exposed, whole) if not is_crowded else exposed)


def predict_scaling(step: TrainStep, arrays: list[np.ndarray], most: int, network: Interconnect) -> list[Scaling]:
    """Predict steps of 1, 2, 4, ... processes, up to `most`, each with this batch, by predicted times of kernels."""
    gradients = _Gradients(step, arrays)
    whole = step.compiler.find_or_compile(arrays)
    alone = sum(k.seconds * n for k, n in zip(whole.kernels, whole.turns, strict=True))
    ranks, out = 1, []
    while ranks <= most:
        options = []
        for nbytes in BUCKETS:
            buckets = gradients.in_buckets(nbytes)
            options.append((exposed_seconds(buckets, gradients.computed, ranks, network), nbytes))
        exposed, size = min(options)
        out.append(Scaling(ranks, alone + exposed, exposed, alone / (alone + exposed), size))
        ranks *= 2
    return out


class _Gradients:
    """When a step's gradients are complete, by predicted times of kernels.

    computed: seconds of the whole computation; total: bytes of all gradients"""

    def __init__(self, step: TrainStep, arrays: list[np.ndarray]):
        run = step.compiler.find_or_compile(arrays, True)
        self._ready, self.computed = _completion(step, run)
        self._parameters = {n: p for n, p in reversed(step.store.parameters.items()) if n in self._ready}
        self.total = sum(p.memory.physical.nbytes for p in self._parameters.values())

    def in_buckets(self, most: int) -> list[tuple[float, int]]:
        """Return buckets of at most `most` bytes, as for `exposed_seconds`."""
        return [
            (max(self._ready[n] for n in part), sum(p.memory.physical.nbytes for p in part.values()))
            for part in divide(self._parameters, most)
        ]


def _completion(step: TrainStep, run: BoundProgram) -> tuple[dict[str, float], float]:
    """Return the predicted seconds until each parameter's gradient is complete, by name, and those of the program."""
    names = {
        id(slot.memory.physical): n.rpartition("/")[0] for n, slot in step.store.state.items() if n.endswith(GRADIENT)
    }
    leaves = {names[id(array)]: x for x, array in run.bound.items() if id(array) in names}
    ends = np.zeros(len(run.plan.calls))
    for (place, _, turns), kernel in zip(run.plan.kernel_calls(), run.kernels, strict=True):
        ends[place] += kernel.seconds * turns
    ends = ends.cumsum()
    return {n: float(ends[last_store(run.plan, {x})]) for n, x in leaves.items()}, float(ends[-1])


def largest_useful(scaling: list[Scaling]) -> int:
    """Return the largest number of processes whose efficiency is at least USEFUL."""
    return max(s.ranks for s in scaling if s.efficiency >= USEFUL or s.ranks == 1)
