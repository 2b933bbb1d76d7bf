"""What compiling may cost: python -m benchmarks.budgets

Seconds of Python (tracing, gradients, passes, fusion) for a training graph of 3,000 tensors; seconds until the
gradients of a layer norm are compiled, cold; and for a training step of ResNet-18, cold, its distinct kernels, the
longest CPU time that choosing one of them takes (a collection of the process's garbage may fall into it), and the
seconds until it is compiled.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.driver import Parser, asked

TENSORS = 3000
PYTHON_SECONDS, NORM_SECONDS, KERNELS, CHOOSE_MS = 1.0, 0.5, 100, 5.0
"""For a graph of 3,000 tensors, a layer norm's gradients, and ResNet-18's training step: kernels, and a choice of one.
"""


class Budget(NamedTuple):
    """A figure and what it may be at most, None where it is printed alone."""

    what: str
    value: float
    limit: float | None = None
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.limit is None or self.value <= self.limit


def chain(layers: int) -> tuple[Callable, tuple]:
    """The loss of a residual network of `layers` dense layers, and its arguments."""
    import einsmith as es

    def loss(x, weights):
        for w, b in weights:
            x = x + es.functional.relu(x @ w + b)
        return (x * x).sum()

    rng = np.random.default_rng(0)
    weights = [(rng.standard_normal((32, 32), np.float32), np.zeros(32, np.float32)) for _ in range(layers)]
    return loss, (rng.standard_normal((8, 32), np.float32), weights)


def python_seconds(tensors: int) -> tuple[int, float]:
    """(how many tensors the training graph has, at least `tensors`; seconds of Python until its kernels are known)."""
    import einsmith as es
    from einsmith.api.tracing import trace_call
    from einsmith.ir.nodes import postorder
    from einsmith.passes.pipeline import run_passes
    from einsmith.schedule.planner import fuse

    def plan(layers: int) -> tuple[int, float]:
        loss, arguments = chain(layers)
        start = time.perf_counter()
        graph = trace_call(es.value_and_grad(loss, 1), arguments, {}).graph
        middle = time.perf_counter()
        count = sum(1 for _ in postorder(graph.roots))
        after = time.perf_counter()
        fuse(run_passes(graph), None)
        return count, middle - start + time.perf_counter() - after

    few, more = plan(4)[0], plan(8)[0]
    return plan(8 + -(-(tensors - more) * 4 // (more - few)))


def step_budgets(batch: int = 16, size: int = 224, width: int = 64) -> list[Budget]:
    """Of one training step of ResNet-18, nothing of it compiled before."""
    import einsmith as es
    from einsmith.kernels import autoconfig
    from einsmith.training.definition import batch_arrays

    model = es.models.get("resnet18", width=width)
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.01, momentum=0.9))
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((batch, 3, size, size), np.float32), rng.integers(0, 1000, batch)
    start = time.perf_counter()
    run = step.compiler.find_or_compile(batch_arrays(inputs))
    seconds = time.perf_counter() - start
    kernels = [call.kernel for _, call, _ in run.plan.kernel_calls()]
    took = [1e3 * autoconfig.choose(k, run.target).took for k in dict.fromkeys(kernels)]
    over = sum(ms > CHOOSE_MS for ms in took)
    return [
        Budget("ResNet-18 training step, distinct kernels", len(set(kernels)), KERNELS),
        Budget("ResNet-18 training step, kernels in all", len(kernels)),
        Budget("ResNet-18 training step, longest choice of a kernel", max(took), CHOOSE_MS, "ms"),
        Budget(f"ResNet-18 training step, choices over {CHOOSE_MS:g} ms", over),
        Budget("ResNet-18 training step, seconds until compiled", seconds, None, "s"),
    ]


def norm_seconds(rows: int = 256, width: int = 1024) -> float:
    """Seconds of the first call of a layer norm's gradients, in a process that has compiled something before."""
    import einsmith as es
    from benchmarks.peers.einsmith_kernels import LAYER_NORM, by_name

    norm = by_name(LAYER_NORM, "X scale shift")
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, rows, width), np.float32)
    scale, shift = rng.standard_normal((2, width), np.float32)
    es.jit(lambda a: 2 * a)(scale)
    gradients = es.grad(lambda x, scale, shift: (norm(x, scale, shift) * g).sum(), (0, 1, 2))
    start = time.perf_counter()
    gradients(x, scale, shift)
    return time.perf_counter() - start


def budgets() -> list[Budget]:
    from einsmith.tuning.calibration import calibrate

    calibrate.target()
    count, seconds = python_seconds(TENSORS)
    per = seconds * TENSORS / count
    return [
        Budget(f"Python for {TENSORS} tensors (measured on {count})", per, PYTHON_SECONDS, "s"),
        Budget("gradients of a layer norm, seconds until compiled", norm_seconds(), NORM_SECONDS, "s"),
        *step_budgets(),
    ]


def show(every: list[Budget]) -> Table:
    def row(b: Budget) -> tuple[str, str, str, bool | None]:
        allowed = "" if b.limit is None else f"{b.limit:g} {b.unit}"
        return b.what, f"{b.value:.{2 if b.unit else 0}f} {b.unit}", allowed, None if b.limit is None else b.holds

    return asked("compile budgets", list(map(row, every)))


def main() -> int:
    """Measure, and print a table and a line of JSON; return the exit status."""
    Parser(__doc__).read()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EINSMITH_CACHE_DIR"] = folder
        every = budgets()
    Console(highlight=False, width=110).print(show(every))
    print(json.dumps({b.what: round(b.value, 3) for b in every}))
    return int(not all(b.holds for b in every))


if __name__ == "__main__":
    sys.exit(main())
