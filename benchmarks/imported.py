"""Networks of PyTorch by torch.compile's backends: python -m benchmarks.imported [network ...] [--rounds 7]

A training step in plain PyTorch, the optimizer being torch.optim's as it is: eager, inductor and backend="einsmith"
take turns in one process. Before they are timed, losses and gradients are compared with eager execution in float64. The
first call's seconds are those of whatever the caches on disk have; --fresh gives all empty ones. The networks are those
of einsmith.models and, where their packages are installed, of benchmarks.models_of_others.
"""

from __future__ import annotations

import copy
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as tf

import einsmith as es
import einsmith.frontends.torch  # noqa: F401 - registers the backend
from benchmarks import models_of_others
from benchmarks.driver import KEPT, Parser, Results, compared, in_turns, load
from benchmarks.models_of_others import Batch, Trained, converted
from einsmith.bench.in_torch import in_torch

PEERS = ("eager", "inductor", "einsmith")
CLOSE = 1e-4
"""Relative difference of losses, and of all gradients together, that rounding in float32 explains; of the latter also
TIMES as much as eager execution in float32 is off by, as it is or with parameters that differ in their last bit: an
element may fall to the other side of a relu."""
TIMES = 4.0
SHAKEN = 4
"""How often parameters are changed so."""
SMALL = {"vocabulary": 2000, "width": 256, "layers": 4, "heads": 4, "inner": 1024, "dropout": 0.0}
NETWORKS: dict[str, tuple[dict[str, Any], int, tuple[int, ...]]] = {
    "resnet18": ({}, 16, (3, 224, 224)),
    "resnet50": ({}, 8, (3, 224, 224)),
    "mobilenet_v2": ({"dropout": 0.0}, 8, (3, 224, 224)),
    "gpt_small": ({**SMALL, "positions": 128}, 8, (128,)),
    "vit_small": ({"width": 256, "layers": 4, "heads": 4, "inner": 1024, "size": 96, "patch": 8}, 8, (3, 96, 96)),
    "resnet18_cifar": ({}, 32, (3, 32, 32)),
    "mlp3": ({}, 256, (1, 28, 28)),
}
"""Arguments of the twin, batch and shape of a sample (of tokens where it has one dimension)."""
EPS = torch.finfo(torch.float32).eps
Gradients = Sequence[torch.Tensor | None]


class Problem:
    """A network with a batch; steps of a peer on a model of its own."""

    def __init__(self, name: str, batch: int | None = None):
        torch.manual_seed(0)
        self.trained = models_of_others.get(name, "usual") if name in models_of_others.MODELS else _twin(name, batch)
        self.model = self.trained.model
        self.inputs = self.trained.batch(0)
        self.batch = len(next(iter(self.inputs.values())))

    def stepper(self, peer: str) -> tuple[Callable[[], float], torch.nn.Module]:
        model = copy.deepcopy(self.model)
        run = model if peer == "eager" else torch.compile(model, backend=peer)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

        def step() -> float:
            optimizer.zero_grad()
            loss = self.trained.loss(run, self.inputs)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step, model

    def in_eager(self, dtype: torch.dtype, shaken: int = 0) -> tuple[float, Gradients]:
        """The loss and the gradients of a copy. shaken: from 1, a seed for what its parameters differ by."""
        model = copy.deepcopy(self.model).to(dtype)
        g = torch.Generator().manual_seed(shaken)
        for p in model.parameters() if shaken else ():
            p.data *= 1 + EPS * torch.randn(p.shape, generator=g)
        loss = self.trained.loss(model, converted(self.inputs, dtype))
        loss.backward()
        return loss.item(), [p.grad for p in model.parameters()]


def _twin(name: str, batch: int | None) -> Trained:
    arguments, usual, shape = NETWORKS[name]
    tokens = len(shape) == 1
    count, classes = batch or usual, arguments["vocabulary"] if tokens else 10

    def make(_: int) -> Batch:
        x = torch.randint(0, classes, (count, *shape)) if tokens else torch.randn(count, *shape)
        return {"x": x, "y": torch.randint(0, classes, (count, *shape) if tokens else (count,))}

    def loss(f: Callable, inputs: Batch) -> torch.Tensor:
        out = f(inputs["x"])
        return tf.cross_entropy(out.flatten(0, out.ndim - 2), inputs["y"].flatten())

    return Trained(in_torch(es.models.get(name, **arguments)), make, loss)


def _off(got: Gradients, want: Gradients) -> float:
    """Relative error of all gradients as one vector; those of parameters that nothing uses are None."""
    pairs = [(a, b) for a, b in zip(got, want, strict=True) if a is not None and b is not None]
    error = sum(float((a.double() - b).square().sum()) for a, b in pairs)
    return math.sqrt(error / sum(float(b.square().sum()) for _, b in pairs))


def verified(problem: Problem, peers: Sequence[str]) -> tuple[dict, dict[str, Callable], dict[str, float]]:
    """(errors by peer, steps by peer, seconds of first calls)."""
    wanted, want = problem.in_eager(torch.float64)
    usual = max(_off(problem.in_eager(torch.float32, seed)[1], want) for seed in range(SHAKEN + 1))
    errors: dict[str, str] = {}
    steps, first = {}, {}
    for peer in peers:
        step, model = problem.stepper(peer)
        start = time.perf_counter()
        loss = step()
        first[peer] = time.perf_counter() - start
        got = [p.grad for p in model.parameters()]
        off = _off(got, want)
        if abs(loss - wanted) > CLOSE * abs(wanted):
            errors[peer] = f"the loss is {loss}, in float64 {wanted}"
        elif off > max(CLOSE, TIMES * usual):
            errors[peer] = f"the gradients are off by {off:.1e}, eager execution in float32 by {usual:.1e}"
        steps[peer] = step
    return errors, steps, first


def measured(name: str, peers: Sequence[str], rounds: int, batch: int | None, is_fresh: bool) -> dict:
    problem = Problem(name, batch)
    errors, steps, first = verified(problem, peers)
    times = in_turns(steps, rounds, 0.1, 2, warm=1)
    medians = {p: statistics.median(t) for p, t in times.items() if t}
    if is_fresh:
        first = {p: _fresh(name, p, batch) for p in peers}
    return {"network": name, "batch": problem.batch, "seconds": medians, "first": first, "errors": errors}


def _fresh(name: str, peer: str, batch: int | None) -> float:
    """Seconds of a peer's first call in a process and caches of its own."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "EINSMITH_CACHE_DIR": f"{folder}/einsmith"}
        command = [sys.executable, "-m", "benchmarks.imported", name, "--peers", peer, "--rounds", "0"]
        command += ["--json", f"{folder}/found.json", *(["--batch", str(batch)] if batch else [])]
        subprocess.run(command, env={**os.environ, **caches}, capture_output=True, check=True)
        (cell,) = load(Path(folder) / "found.json")["cells"].values()
        return cell["first"][peer]


def main() -> int:
    """Train the networks that are asked for; return the exit status."""
    every = (*NETWORKS, *models_of_others.MODELS)
    parser = Parser(
        __doc__, every, peers=(",".join(PEERS), "comma-separated"), json=KEPT,
        rounds=(7, "turns of each peer; 0: verified alone"),
        batch=(int, "instead of the network's own, for those that have a twin"),
        fresh=(False, "first calls in empty caches"),
    )  # fmt: skip
    args = parser.read()
    peers, results = args.peers.split(","), Results(args.json)

    def measure(name: str) -> dict | None:
        package = models_of_others.missing(name) if name in models_of_others.MODELS else ""
        if package:
            results.say(f"{name}: {package} is not installed")
            return None
        return measured(name, peers, args.rounds, args.batch, args.fresh)

    form = "".join(f"-{x}" for x in (f"b{args.batch}" * bool(args.batch), "fresh" * args.fresh) if x)
    cells = results.fill((f"{n}{form}-{args.peers}", partial(measure, n)) for n in args.names or every)
    errors = [f"{c['network']}, {peer}: {text}" for c in cells.values() for peer, text in c["errors"].items()]
    for text in errors:
        results.console.print(f"[red]{text}")
    first = {f"{p} first, s": lambda c, p=p: f"{c['first'][p]:.1f}" for p in peers}
    more = {"batch": lambda c: c["batch"], **first}
    for part in compared("training steps of PyTorch's networks", cells, peers, more):
        results.console.print(part)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
