"""Define the training steps that the benchmarks time: networks and recurrent networks at the batch sizes of the
papers."""

from __future__ import annotations

import functools
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields

from benchmarks.graphs.graph import NetworkGraph
from benchmarks.problem import Workload
from benchmarks.recurrent_steps import CELLS, Recurrent, language_model, recurrent
from einsmith.bench import networks
from einsmith.bench.networks import NetworkStep

EXPORTER = "benchmarks.graphs.exporter"
"""Module that exports a network's graph from PyTorch, in a process of its own."""
BATCHES = (1, 16)


@dataclass(frozen=True)
class NetworkCase(NetworkStep, Workload):
    """A training step of a network, and its arithmetic."""

    kind = "networks"
    verified_steps = 2
    exact = True

    def graph(self) -> NetworkGraph:
        """Return the forward and its loss as PyTorch's operations. Raises ImportError where PyTorch is missing."""
        return _export(self.name)

    @property
    def operations(self) -> int:
        try:
            return self.graph().flops()
        except ImportError:
            return 0


def case_of(step: NetworkStep, kind: type[NetworkCase] = NetworkCase) -> NetworkCase:
    """Return a training step of a network as a case of the benchmarks."""
    return kind(**{f.name: getattr(step, f.name) for f in fields(step)})


@functools.lru_cache(maxsize=1)
def _export(name: str) -> NetworkGraph:
    """Return the graph of a step from a process of its own: peers need not import PyTorch beside their library."""
    done = subprocess.run([sys.executable, "-m", EXPORTER, name], capture_output=True)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ImportError(f"the network cannot be exported from PyTorch: {' '.join(last)}")
    return pickle.loads(done.stdout)


def _case(make: Callable[[int], NetworkStep], batch: int) -> NetworkCase:
    return case_of(make(batch))


NETWORKS: dict[str, Callable[[int], NetworkCase]] = {
    name: functools.partial(_case, make) for name, make in networks.NETWORKS.items()
}
"""Training step of each network, by its name in `einsmith.models`, as a function of the batch size."""


def _recurrent(batch: int) -> list[Recurrent]:
    """The cells over one step and over 28, the language model over 35."""
    return [*(recurrent(c, batch, t) for c in CELLS for t in (1, 28)), language_model(batch=batch)]


TRAINING: dict[str, Workload] = {
    p.name: p
    for p in (
        *(make(b) for make in NETWORKS.values() for b in BATCHES),
        *(p for b in BATCHES for p in _recurrent(b)),
        *(NETWORKS[n](b) for n in ("mlp3", "lenet5") for b in (64, 256)),
        recurrent("milstm", 64, 28),
    )
}


def named(name: str) -> Workload | None:
    """Return a training step at any batch size by its name, as resnet18-b64, milstm-b4-t28 or lstm_lm-b256-t35; None
    where it is none."""
    found = re.fullmatch(r"(\w+)-b(\d+)(?:-t(\d+))?", name)
    if found is None:
        return None
    network, batch, steps = found[1], int(found[2]), int(found[3] or 0)
    if not steps:
        return NETWORKS[network](batch) if network in NETWORKS else None
    if network == "lstm_lm":
        return language_model(steps, batch)
    return recurrent(network, batch, steps) if network in CELLS else None
