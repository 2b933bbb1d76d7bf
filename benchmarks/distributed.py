"""Training steps of several processes beside PyTorch's DistributedDataParallel:
python -m benchmarks.distributed [network ...] [--processes 2] [--network "1 Gb/s, 100 us"]
python -m benchmarks.distributed --predicted resnet50 --network "25 Gb/s, 10 us"

torchrun starts the processes, of one thread each, which hold both libraries' steps from equal weights and let them take
turns: alone (a step without the others, on all processes at once), in the group, and with the optimizer's state
divided. Both use gloo; with --engine MPI, mpirun starts them, and Einsmith uses MPI. Losses and weights of the group's
steps are compared with DistributedDataParallel's before anything is timed. Exposed communication is what a step in the
group takes longer than one alone.

With --network the processes run in a network namespace of their own, whose loopback device has that rate and delay
(tc netem; only the rate, and this is said, where the kernel lacks it); this takes the rights of root.

With --predicted nothing runs: steps of up to 4096 processes of 2 threads, each with 16 samples, are predicted for a
network of einsmith.bench.networks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import driver
from benchmarks.driver import KEPT, Parser, Results
from einsmith.bench.networks import NETWORKS, NetworkStep

CASES: dict[str, Callable[[int], NetworkStep]] = {
    "lenet5": NETWORKS["lenet5"],
    "resnet18_cifar": NETWORKS["resnet18_cifar"],
    "mobilenet_v2": NETWORKS["mobilenet_v2"],
    "gpt_tiny": lambda batch: NetworkStep(
        f"gpt_tiny-b{batch}", "gpt_small", batch, sample=(64,), target=(64,), words=512, classes=512,
        arguments={"vocabulary": 512, "positions": 64, "width": 128, "layers": 4, "heads": 4, "dropout": 0.0},
    ),
}  # fmt: skip
"""Networks by name, each a function of the samples of one process."""
CLOSE = 2e-3
"""Largest relative difference of losses after the verified steps."""
MOST = 4096
"""Processes for which steps are predicted."""
VERIFIED = 3
"""Steps whose losses and weights are compared, unless --verified says how many."""
BURST_SECONDS = 4e-3
"""Seconds of its rate that a token bucket lets through at once: the timer's period, which it must exceed."""
CHUNK = 0.3
"""Seconds of a turn, at least one step."""
NOTHING = 0.05
"""Part of all sums below which the model hides nothing that could be measured."""
MODEL = "efficiency", "sums, ms, predicted", "exposed, predicted", "hidden"
"""Of a process alone per process in the group; the model's answer (`predict_communication`) from a network as sums of
arrays over the group measure it; and the part of what the model hides that is hidden."""
STORE = "BENCHMARK_STORE"
"""The variable that names the file by which PyTorch's processes find each other under MPI."""
WAYS = "alone", "group", "sharded", "torch alone", "torch group"


def measure(name: str, batch: int, rounds: int, verified: int) -> dict[str, Any] | None:
    """Time one network in this process of the group; return the results on rank 0."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import einsmith as es
    from einsmith.bench.steps import EinsmithStep
    from einsmith.bench.torch_steps import TorchStep
    from einsmith.distributed.network import measure_network
    from einsmith.training.scaling import predict_communication

    torch.set_num_threads(1)
    group = es.distributed.init()
    if group.engine == "MPI":  # DistributedDataParallel keeps to gloo
        store = os.environ[STORE]
        torch.distributed.init_process_group("gloo", init_method=store, rank=group.rank, world_size=group.size)
    problem = CASES[name](batch)
    arrays = problem.arrays()
    whole = CASES[name](batch * group.size).arrays()
    first = batch * group.rank
    arrays |= {n: whole[n][first : first + batch] for n in ("x", "y")}

    def torch_step(shared: bool) -> Any:
        training = TorchStep(problem, arrays, "torch")
        if shared:
            training.loss = DistributedDataParallel(training.loss)
        return training

    steps: dict[str, Any] = {
        "alone": EinsmithStep(problem, arrays, 1),
        "group": EinsmithStep(problem, arrays, 1, group=group),
        "sharded": EinsmithStep(problem, arrays, 1, group=group, shard_optimizer=True),
        "torch alone": torch_step(False),
        "torch group": torch_step(True),
    }
    for way in WAYS:
        for _ in range(verified):
            steps[way].step()
    expected = steps["torch group"].results()
    for way in ("group", "sharded"):
        for key, value in steps[way].results().items():
            if "running" not in key and not np.allclose(value, expected[key], rtol=CLOSE, atol=CLOSE):
                raise SystemExit(f"{name}: {key} differs from DistributedDataParallel's")
    counts = {}
    for way in WAYS:
        group.barrier()
        start = time.perf_counter()
        steps[way].step()
        counts[way] = max(1, int(CHUNK / group.broadcast(time.perf_counter() - start)))
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for r in range(rounds):
        for way in (*WAYS[r % len(WAYS) :], *WAYS[: r % len(WAYS)]):
            group.barrier()
            start = time.perf_counter()
            for _ in range(counts[way]):
                steps[way].step()
            group.barrier()
            times[way].append((time.perf_counter() - start) / counts[way])
    gradient_bytes = sum(np.asarray(p.data).nbytes for p in steps["group"].model.parameters())
    alone = steps["alone"]
    network = measure_network(group)
    is_crowded = len(os.sched_getaffinity(0)) <= 1
    communication = predict_communication(alone.trainer, list(alone.batch), group.size, network, is_crowded)
    group.close()
    result = {"times": times, "bytes": gradient_bytes, "network": asdict(network), **communication._asdict()}
    return result if group.rank == 0 else None


def launch(
    name: str, batch: int, processes: int, engine: str, rounds: int, verified: int, network: str | None
) -> dict[str, Any]:
    """Run `measure` in new processes and return its results. Raises SystemExit where they fail."""
    count = str(processes)
    if engine == "MPI":
        options = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        options += [] if network is None else ["--mca", "btl", "self,tcp"]
        mpirun = str(Path(sys.executable).with_name("mpirun"))
        start = [mpirun, *options, "--bind-to", "none", "-n", count, sys.executable]
    else:
        start = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--master-addr", "127.0.0.1",
            "--nproc-per-node", count,
        ]  # fmt: skip
    command = [
        *start, "-m", "benchmarks.distributed", name, "--batch", str(batch), "--rounds", str(rounds), "--verified",
        str(verified), "--worker",
    ]  # fmt: skip
    if network is not None:
        command = ["unshare", "--net", "sh", "-c", f"{_emulate(network)} && exec {' '.join(command)}"]
    with tempfile.TemporaryDirectory() as folder:
        places = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.getcwd(), STORE: f"file://{folder}/store"}
        done = subprocess.run(command, env=os.environ | places, capture_output=True, text=True)
    match = re.search(r"^RESULT (.*)$", done.stdout, re.M)
    if done.returncode or match is None:
        raise SystemExit(f"{name}: the processes failed:\n{done.stdout}\n{done.stderr[-3000:]}")
    return json.loads(match[1]) | {"delayed": "NO DELAY" not in done.stdout}


def _emulate(network: str) -> str:
    """Return the shell commands that give the loopback device a rate and a delay, as in "1 Gb/s, 100 us"."""
    parsed = re.fullmatch(r"([\d.]+) Gb/s, ([\d.]+) us", network)
    if parsed is None or shutil.which("tc") is None:
        raise SystemExit(f'--network takes a text as "1 Gb/s, 100 us", and needs tc; given {network!r}')
    rate, delay = float(parsed[1]), float(parsed[2])
    shape = f"delay {delay / 2:g}us rate {rate * 1000:g}mbit limit 100000"
    bucket = f"rate {rate * 1000:g}mbit burst {max(64, round(rate * 1e6 / 8 * BURST_SECONDS))}kb latency 1s"
    missing = "echo 'NO DELAY: this kernel has no netem; the rate alone is emulated'"
    add = "tc qdisc add dev lo root"
    return f"ip link set lo up && {{ {add} netem {shape} 2>/dev/null || {{ {missing} && {add} tbf {bucket}; }}; }}"


def table(results: dict[str, dict[str, Any]]) -> Table:
    def row(name: str, cell: dict[str, Any]) -> tuple[str, ...]:
        times = cell["times"]
        ms = {way: 1e3 * statistics.median(times[way]) for way in WAYS}
        paired = statistics.median(b / a for a, b in zip(times["group"], times["torch group"], strict=True))
        exposed, whole = ms["group"] - ms["alone"], 1e3 * cell["whole"]
        hideable = whole - 1e3 * cell["exposed"]
        hidden = f"{(whole - exposed) / hideable:.0%}" if hideable > NOTHING * whole else "-"
        return (
            name, *(f"{ms[w]:.3g}" for w in WAYS), f"{exposed:.3g}", f"{ms['torch group'] - ms['torch alone']:.3g}",
            f"{paired:.2f}", f"{ms['torch alone'] / ms['alone']:.2f}", f"{ms['alone'] / ms['group']:.0%}",
            f"{whole:.3g}", f"{1e3 * cell['exposed']:.3g}", hidden,
        )  # fmt: skip

    columns = ("", *(f"{w}, ms" for w in WAYS), "exposed, ms", "torch's", "times DDP", "alone", *MODEL)
    return driver.table("training steps of several processes", columns, (row(*x) for x in results.items()))


def predict(name: str, batch: int, network: str) -> Table:
    """Predicted steps of 1 to MOST processes, each with `batch` samples and two threads."""
    from benchmarks import plans
    from benchmarks.models import TRAINING
    from einsmith.distributed.network import parse_network
    from einsmith.training.scaling import largest_useful, predict_scaling

    step, arrays = plans.begun(TRAINING[f"{name}-b{batch}"], 2)
    with plans.uncompiled():
        rows = predict_scaling(step, [np.asarray(a) for a in arrays], MOST, parse_network(network))
    title = f"{name}, {batch} samples a process, {network}: {largest_useful(rows)} processes at 80 %"
    shown = (
        (r.ranks, f"{r.seconds * 1e3:.1f}", f"{r.exposed * 1e3:.2f}", f"{100 * r.efficiency:.0f} %",
         f"{r.bucket_bytes / 2**20:.0f}")
        for r in rows
    )  # fmt: skip
    return driver.table(title, ("processes", "step, ms", "exposed, ms", "efficiency", "buckets, MiB"), shown)


def main() -> int:
    """Time, or predict, the networks' steps; return the exit status."""
    parser = Parser(
        __doc__, CASES, processes=(2, ""), engine=("torchrun", "of Einsmith: torchrun or MPI; PyTorch's is gloo"),
        batch=(16, "samples of one process"), rounds=(10, ""), verified=(VERIFIED, "steps that are compared"),
        network=(str, 'rate and delay, as "10 Gb/s, 50 us"; default: unlimited'),
        predicted=([str], "networks of which steps of up to 4096 processes are predicted"),
        worker=(False, "one process of a group"), json=KEPT,
    )  # fmt: skip
    args = parser.read()
    if args.engine not in ("torchrun", "MPI"):
        parser.error("--engine is torchrun or MPI")
    if args.worker:
        result = measure(args.names[0], args.batch, args.rounds, args.verified)
        if result is not None:
            print(f"RESULT {json.dumps(result)}", flush=True)
        return 0
    results = Results(args.json, 200)
    for name in args.predicted:
        results.console.print(predict(name, args.batch, args.network or "25 Gb/s, 10 us"))
    if args.predicted:
        return 0
    how = args.batch, args.processes, args.engine, args.rounds, args.verified, args.network
    form = f"b{args.batch}-p{args.processes}-{args.engine}" + f"-{args.network}" * bool(args.network)
    cells = results.fill((f"{name}-{form}", partial(launch, name, *how)) for name in args.names or CASES)
    results.console.print(table(cells))
    if not all(cell["delayed"] for cell in cells.values()):
        print("the rate alone was emulated: this kernel has no netem, which delays")
    return 0


if __name__ == "__main__":
    sys.exit(main())
