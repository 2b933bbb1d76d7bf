"""What users wait for before a network trains: python -m benchmarks.first_calls [network ...] [--batch 1]

Every network trains two steps in a process whose caches are empty, then in new processes that find them filled; all
must compute the same bits. Seconds of each part of a first call: tracing (with gradients), passes and planning, code
and binding, then the first step; `beyond` is all of these from TrainStep on, less a later step. --depths: ResNets on
CIFAR by their number of layers, which shows whether compilation is linear.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import driver
from benchmarks.driver import KEPT, Parser, Results
from benchmarks.recurrent_steps import CELLS

PARTS = ("trace", "plan", "code", "first", "later", "beyond")
LATER = 5
"""Steps whose median is that of a later one."""


def make_training(name: str, batch: int) -> tuple[Any, Any, Any, Any]:
    """(network, loss, input, target) of a name: a network of `bench.networks`, "resnet-N" of N layers on CIFAR (6n +
    2, He et al. 2016, section 4.2), a classifier by one of CELLS over 28 steps, or the language model over 35."""
    import einsmith as es
    from benchmarks.models import NETWORKS
    from einsmith.bench.steps import LOSSES

    rng, loss = np.random.default_rng(1), LOSSES["cross_entropy"]
    if name in NETWORKS:
        problem = NETWORKS[name](batch)
        return problem.make_network(), LOSSES[problem.loss], *problem.inputs_and_targets()
    if name.startswith("resnet-"):
        depth = (int(name.removeprefix("resnet-")) - 2) // 6
        network = es.models.get("resnet18_cifar", depths=(depth,) * 3, width=16)
        return network, loss, rng.standard_normal((batch, 3, 32, 32), np.float32), rng.integers(0, 10, batch)
    if name == "lstm-lm":
        words, wanted = (rng.integers(0, 1000, (batch, 35)) for _ in range(2))
        return es.models.get(name, batch=batch), lambda y, t: loss(y, t.reshape((-1,))), words, wanted
    return es.models.get(name), loss, rng.standard_normal((batch, 28, 28), np.float32), rng.integers(0, 10, batch)


def measure(name: str, batch: int) -> dict[str, Any]:
    """What a first call takes in this process, by part (seconds), and a digest of what two steps compute."""
    import einsmith as es
    from einsmith.tuning.calibration import calibrate

    calibrate.target()
    es.manual_seed(0)
    network, loss, x, y = make_training(name, batch)
    start = time.perf_counter()
    step = es.TrainStep(network, loss, es.optim.SGD(lr=0.002))
    step.compile(x, y)
    compiled = time.perf_counter()
    losses = [step(x, y)]
    first = time.perf_counter() - compiled
    losses.append(step(x, y))
    state = b"".join(np.asarray(v).tobytes() for v in network.state_dict().values())
    later = []
    for _ in range(LATER):
        begin = time.perf_counter()
        step(x, y)
        later.append(time.perf_counter() - begin)
    (run,) = step.compiler.programs.values()
    whole, usual = compiled - start, statistics.median(later)
    return {
        "trace": whole - run.compile_seconds,
        "plan": run.compiled.seconds,
        "code": run.compile_seconds - run.compiled.seconds,
        "first": first,
        "later": usual,
        "beyond": whole + first - usual,
        "arena": run.arena_bytes,
        "digest": hashlib.sha256(state + repr(losses).encode()).hexdigest(),
    }


def in_new_process(name: str, batch: int, threads: int, cache: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.first_calls", name, "--batch", str(batch), "--here"]
    environment = {**os.environ, "EINSMITH_THREADS": str(threads), "EINSMITH_CACHE_DIR": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} x{batch}: {done.stderr}")
    return json.loads(done.stdout)


def compare(name: str, batch: int, threads: int, rounds: int) -> dict[str, Any]:
    """A cold process and, in the median, processes after it. Raises SystemExit where they do not compute the same."""
    with tempfile.TemporaryDirectory() as folder:
        in_new_process("mlp3", 1, threads, Path(folder))  # measures the machine
        runs = [in_new_process(name, batch, threads, Path(folder)) for _ in range(rounds + 1)]
    if len({r["digest"] for r in runs}) > 1:
        raise SystemExit(f"{name} x{batch}: a second process computes other numbers than the first one")
    warm = {p: statistics.median(r[p] for r in runs[1:]) for p in PARTS}
    return {"network": name, "batch": batch, "cold": runs[0], "warm": warm, "arena": runs[0]["arena"]}


def show(cells: Mapping[str, dict[str, Any]]) -> Table:
    parts = ("trace", "plan", "code")
    columns = [f"{way}: {p}" for way in ("cold", "then") for p in (*parts, "beyond")]

    def row(r: dict[str, Any]) -> tuple[Any, ...]:
        numbers = [r[way][p] for way in ("cold", "warm") for p in (*parts, "beyond")] + [r["warm"]["later"]]
        return r["network"], r["batch"], *(f"{n:.2f}" for n in numbers), f"{r['arena'] / 2**20:.0f}"

    columns = ["", "batch", *columns, "a step", "arena, MiB"]
    return driver.table("first calls, seconds", columns, map(row, cells.values()))


def main() -> int:
    """Measure first calls; return the exit status."""
    from benchmarks.models import NETWORKS

    parser = Parser(
        __doc__, (), batch=(1, ""), depths=([int], "ResNets of so many layers, 6n + 2, in their place"),
        threads=(2, ""), rounds=(3, "processes after the cold one"), json=KEPT, here=(False, "in this process"),
    )  # fmt: skip
    args = parser.read()
    if args.here:
        print(json.dumps(measure(args.names[0], args.batch)))
        return 0
    names = [f"resnet-{n}" for n in args.depths] or args.names or [*NETWORKS, *CELLS, "lstm-lm"]
    results = Results(args.json, 160)
    cells = results.fill(
        (
            (f"{n}-b{args.batch}-t{args.threads}", partial(compare, n, args.batch, args.threads, args.rounds))
            for n in names
        ),
        line=lambda r: f"{r['cold']['beyond']:.2f} s cold, {r['warm']['beyond']:.2f} s then",
    )
    results.console.print(show(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
