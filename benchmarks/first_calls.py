"""What users wait for before a network trains: python -m benchmarks.first_calls [network ...] [--batch 1]

Every network trains two steps in a process whose caches are empty, then in new processes that find them filled; all
must compute the same bits. Seconds of each part of a first call: tracing (with gradients), passes and planning, code
and binding, then the first step; `beyond` is all of these from TrainStep on, less a later step. --depths: ResNets on
CIFAR by their number of layers, which shows whether compilation is linear.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

PARTS = ("trace", "plan", "code", "first", "later", "beyond")
LATER = 5
"""Steps whose median is that of a later one."""


CELLS = ("milstm", "scrn", "sublstm", "lltm")


def made(name: str, batch: int) -> tuple[Any, Any, Any, Any]:
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
    start = time.perf_counter()
    import einsmith as es
    from einsmith.tuning.calibration import calibrate

    imported = time.perf_counter() - start
    calibrate.target()
    es.manual_seed(0)
    network, loss, x, y = made(name, batch)
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
        "import": imported,
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


def show(rows: Sequence[dict[str, Any]]) -> None:
    parts = ("trace", "plan", "code")
    heads = [f"{way}: {p}" for way in ("cold", "then") for p in (*parts, "beyond")]
    table = Table("network", "batch", *heads, "a step", "arena, MiB", title="first calls, seconds")
    for r in rows:
        numbers = [r[way][p] for way in ("cold", "warm") for p in (*parts, "beyond")] + [r["warm"]["later"]]
        table.add_row(r["network"], str(r["batch"]), *(f"{n:.2f}" for n in numbers), f"{r['arena'] / 2**20:.0f}")
    Console(width=160).print(table)


def main() -> int:
    from benchmarks.models import NETWORKS

    parser = argparse.ArgumentParser(description="Measures first calls in a cold and in later processes.")
    parser.add_argument("network", nargs="*", help=f"default: {', '.join(NETWORKS)}")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--depths", type=int, nargs="*", help="ResNets of so many layers, 6n + 2, in their place")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="processes after the cold one")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measure(args.network[0], args.batch)))
        return 0
    names = [f"resnet-{n}" for n in args.depths] if args.depths else args.network or [*NETWORKS, *CELLS, "lstm-lm"]
    rows = []
    for name in names:
        rows.append(compare(name, args.batch, args.threads, args.rounds))
        cold, warm = rows[-1]["cold"]["beyond"], rows[-1]["warm"]["beyond"]
        print(f"{name} x{args.batch}: {cold:.2f} s cold, {warm:.2f} s then", file=sys.stderr, flush=True)
        if args.json:
            args.json.write_text(json.dumps({"threads": args.threads, "cores": os.cpu_count(), "rows": rows}, indent=1))
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
