"""Predictions from several threads: python -m benchmarks.serving [name ...] [--threads 1 2 4 8] [--json FILE]

Networks of `es.models` in evaluation mode, called by 1, 2, 4 and 8 threads of one process, each with a batch of its
own; the numbers of threads take turns. Results are compared with those of a single thread before anything is timed.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

import einsmith as es
from benchmarks.driver import KEPT, Parser, Results, table

BATCHES = {"mlp3": 8, "lenet5": 8, "resnet18_cifar": 1, "mobilenet_v2": 1}
"""Rows of a call, by network."""
SHAPES = {"mlp3": (784,), "lenet5": (1, 28, 28), "resnet18_cifar": (3, 32, 32), "mobilenet_v2": (3, 224, 224)}
ROUNDS = 5
"""Turns of each number of threads, of which the median counts."""


def together(count: int, work: Callable[[int], None]) -> list[threading.Thread]:
    """Start threads that do some work, each with its number; return them."""
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    return threads


def calls_per_second(model: es.nn.Module, batches: Sequence[np.ndarray], seconds: float) -> float:
    """Return the calls that threads, one for each batch, end together in a second."""
    counts = [0] * len(batches)
    begin, end = threading.Barrier(len(batches) + 1), threading.Event()

    def work(n: int) -> None:
        begin.wait()
        while not end.is_set():
            model(batches[n])
            counts[n] += 1

    threads = together(len(batches), work)
    begin.wait()
    start = time.perf_counter()
    end.wait(seconds)
    end.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def check(model: es.nn.Module, batches: Sequence[np.ndarray]) -> None:
    """Compare results that threads compute at one time with those of this thread. Raises AssertionError."""
    wants = [model(x) for x in batches]
    by_thread: list[list[np.ndarray]] = [[] for _ in batches]

    def work(n: int) -> None:
        by_thread[n] += [model(batches[n]) for _ in range(20)]

    for thread in together(len(batches), work):
        thread.join()
    for want, results in zip(wants, by_thread, strict=True):
        assert len(results) == 20
        for y in results:
            np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def measure(name: str, threads: Sequence[int], seconds: float) -> list[float]:
    """Return the calls in a second of a network, for each number of threads."""
    es.manual_seed(0)
    model = getattr(es.models, name)().eval()
    rng = np.random.default_rng(0)
    batches = list(rng.standard_normal((max(threads), BATCHES[name], *SHAPES[name])).astype(np.float32))
    check(model, batches)
    rates: dict[int, list[float]] = {n: [] for n in threads}
    for _ in range(ROUNDS):
        for n in threads:
            rates[n].append(calls_per_second(model, batches[:n], seconds))
    return [statistics.median(rates[n]) for n in threads]


def main() -> int:
    """Measure, and print a table; return the exit status."""
    parser = Parser(__doc__, BATCHES, threads=((1, 2, 4, 8), "of callers"), seconds=(1.0, "of each turn"), json=KEPT)
    args = parser.read(threads=1)
    results = Results(args.json)
    counts = "-".join(map(str, args.threads))
    cells = results.fill(
        (f"{n}-b{BATCHES[n]}-t{counts}", partial(measure, n, args.threads, args.seconds)) for n in args.names or BATCHES
    )
    rows = ((key, *(f"{rate:.0f} ({rate / rates[0]:.2f})" for rate in rates)) for key, rates in cells.items())
    columns = ("", *(f"{n} thread{'s' * (n > 1)}" for n in args.threads))
    results.console.print(table("calls in a second (as a ratio to the first column)", columns, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
