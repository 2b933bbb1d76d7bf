"""Define what the benchmarks time of networks and recurrent networks at the batch sizes of the papers: training steps,
and outputs in evaluation."""

from __future__ import annotations

import functools
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.random import default_rng

from benchmarks.graphs.graph import NetworkGraph
from benchmarks.problem import Workload
from benchmarks.recurrent_steps import CELLS, Recurrent, forward_of, language_model, recurrent
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
        graph = _export(self.name.removesuffix(f"-{self.task}"))
        return replace(graph, parameters=()) if self.task == "loss" else graph

    @property
    def operations(self) -> int:
        try:
            return self.graph().flops()
        except ImportError:
            return 0


@dataclass(frozen=True)
class NetworkForward(NetworkCase):
    """The output of a network in evaluation, whose running statistics are those of some training."""

    exact = False
    has_reference = True

    results: tuple[str, ...] = ("output",)
    training: bool = False

    def state(self) -> dict[str, np.ndarray]:
        rng, out = default_rng(3), super().state()
        for name, a in out.items():
            if name.endswith("running_mean"):
                out[name] = 0.1 * rng.standard_normal(a.shape, np.float32)
            elif name.endswith("running_var"):
                out[name] = rng.uniform(0.5, 1.5, a.shape).astype(np.float32)
        return out


def case_of(step: NetworkStep, kind: type[NetworkCase] = NetworkCase) -> NetworkCase:
    """Return a training step of a network as a case of the benchmarks."""
    return kind(**{f.name: getattr(step, f.name) for f in fields(NetworkStep)})


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
    """Return a training step at any batch size by its name, as resnet18-b64, milstm-b4-t28 or lstm_lm-b256-t35, a part
    of one, as resnet18-b64-loss or -gradients, or the output in evaluation, as resnet18-b64-inference; None where it is
    none."""
    before, _, task = name.rpartition("-")
    if task in ("loss", "gradients"):
        whole = named(before)
        return None if whole is None else replace(whole, name=name, task=task, flops=0, nbytes=0)
    found = re.fullmatch(r"(\w+)-b(\d+)(?:-t(\d+))?(-inference)?", name)
    if found is None:
        return None
    network, batch, steps = found[1], int(found[2]), int(found[3] or 0)
    if not steps:
        if network not in NETWORKS:
            return None
        step = networks.NETWORKS[network](batch)
        return replace(case_of(step, NetworkForward), name=name) if found[4] else case_of(step)
    if network == "lstm_lm":
        return None if found[4] else language_model(steps, batch)
    if network not in CELLS:
        return None
    training = recurrent(network, batch, steps)
    return forward_of(training) if found[4] else training
