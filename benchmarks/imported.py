"""Networks of PyTorch by torch.compile's backends: python -m benchmarks.imported [network ...] [--rounds 7]

A training step in plain PyTorch, the optimizer being torch.optim's as it is: eager, inductor and backend="einsmith"
take turns in one process. Before they are timed, losses and gradients are compared with eager execution in float64. The
first call's seconds are those of whatever the caches on disk have; --fresh gives all empty ones. The networks are those
of einsmith.models and, where their packages are installed, of benchmarks.models_of_others.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as tf

import einsmith as es
import einsmith.frontends.torch  # noqa: F401 - registers the backend
from benchmarks import models_of_others
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


def measured(name: str, peers: Sequence[str], rounds: int, batch: int | None) -> dict:
    problem = Problem(name, batch)
    errors, steps, first = verified(problem, peers)
    times: dict[str, list[float]] = {p: [] for p in peers}
    for _ in range(rounds):
        for peer in peers:
            steps[peer]()
            start = time.perf_counter()
            count = 0
            while count < 2 or time.perf_counter() - start < 0.1:
                steps[peer]()
                count += 1
            times[peer].append((time.perf_counter() - start) / count)
    medians = {p: statistics.median(t) for p, t in times.items()} if rounds else {}
    return {"network": name, "batch": problem.batch, "seconds": medians, "first": first, "errors": errors}


def _fresh(name: str, peer: str, batch: int | None) -> float:
    """Seconds of a peer's first call in a process and caches of its own."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "EINSMITH_CACHE_DIR": f"{folder}/einsmith"}
        command = [sys.executable, "-m", "benchmarks.imported", name, "--peers", peer, "--rounds", "0", "--json", "-"]
        command += ["--batch", str(batch)] if batch else []
        done = subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])["first"][peer]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", choices=[[], *NETWORKS, *models_of_others.MODELS],
                        help="those to run; all where none is given")  # fmt: skip
    parser.add_argument("--peers", default=",".join(PEERS), help="separated by commas")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each peer; 0: verified alone")
    parser.add_argument("--batch", type=int, help="instead of the network's own, for those that have a twin")
    parser.add_argument("--fresh", action="store_true", help="also time first calls in empty caches")
    parser.add_argument("--json", help="a file that gets a line a network; - for standard output alone")
    options = parser.parse_args()
    peers = options.peers.split(",")
    console = Console(stderr=options.json == "-")
    failed, ratios = False, []
    columns = [*(f"{p}, ms" for p in peers), "against the best other", *(f"{p} first, s" for p in peers)]
    table = Table("network", "batch", *columns)
    for name in options.networks or (*NETWORKS, *models_of_others.MODELS):
        package = models_of_others.missing(name) if name in models_of_others.MODELS else ""
        if package:
            console.print(f"{name}: {package} is not installed")
            continue
        row = measured(name, peers, options.rounds, options.batch)
        if options.fresh:
            row["first"] = {p: _fresh(name, p, options.batch) for p in peers}
        for peer, text in row["errors"].items():
            failed = True
            console.print(f"[red]{name}, {peer}: {text}")
        if options.json == "-":
            print(json.dumps(row), flush=True)
        elif options.json:
            with Path(options.json).open("a") as f:
                f.write(json.dumps(row) + "\n")
        seconds, others = row["seconds"], [p for p in peers if p != "einsmith"]
        ratio = min(seconds[p] for p in others) / seconds["einsmith"] if "einsmith" in seconds and others else math.nan
        ratios.append(ratio)
        table.add_row(
            name, str(row["batch"]), *[f"{seconds.get(p, math.nan) * 1e3:.2f}" for p in peers], f"{ratio:.2f}",
            *[f"{row['first'][p]:.1f}" for p in peers],
        )  # fmt: skip
    console.print(table)
    known = [r for r in ratios if r == r]
    if len(known) > 1:
        console.print(f"geometric mean {statistics.geometric_mean(known):.2f} times the better of the others")
    sys.exit(failed)


if __name__ == "__main__":
    main()
