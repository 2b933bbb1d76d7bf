"""Programs between PyTorch's operators, and PyTorch's operators between programs, against either side alone.

`python -m benchmarks.torch_overhead between` runs this in a process for each order of import. Three sequences are timed
in every round of a row: the program between operators of PyTorch's, between Einsmith's own forms of these operators
(Einsmith alone), and PyTorch's form of the program between PyTorch's operators (PyTorch alone). Memory and caches are
used alike in all of them; whose threads run differs. A ratio is the median over the rounds. Results are compared with
PyTorch in float64 before anything is timed.

Meanwhile a neighbour takes a processor for 3 ms ten times a second, as other work on a machine does: a program whose
threads it keeps must not leave PyTorch's threads for that, beside which its own ones take 1.4 times as long.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

LIMIT = 1.1
"""Largest ratio that passes: time between calls of the other side / time between calls of the own side."""
ROUNDS = 11
SECONDS = 30.0
"""Longest time that the rounds of one order of import take."""
LEAST_ROUNDS = 5
QUIET = 0.04
"""Part of the processors' time that other processes may take in a round that counts."""
CHUNK_SECONDS = 0.05
"""About how long a sequence takes."""
ASLEEP_SECONDS = 0.04
"""Pause after which no side's threads spin any more; libgomp's do for 10 to 30 ms."""
_NEIGHBOUR = """
import time
while True:
    end = time.perf_counter() + 0.003
    while time.perf_counter() < end:
        pass
    time.sleep(0.097)
"""
TOLERANCE = 1e-4
"""Relative to the largest element of the result."""
ORDERS = {"PyTorch first": ("torch", "einsmith"), "Einsmith first": ("einsmith", "torch")}

Call = Callable[[], object]


class Row(NamedTuple):
    """One kind of program, or an operator: `ours` and `theirs` run it once, in Einsmith and in PyTorch; `results` and
    `expected` are Einsmith's arrays and PyTorch's in float64."""

    name: str
    ours: Call
    theirs: Call
    results: list[np.ndarray]
    expected: list[np.ndarray]


def relative_error(results: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the largest difference of two lists of arrays, relative to the largest element of each array."""
    worst = 0.0
    for got, want in zip(results, expected, strict=True):
        if got.shape != want.shape:
            raise ValueError(f"a result has the shape {got.shape}, not {want.shape}")
        worst = max(worst, float(np.abs(got - want).max() / np.abs(want).max()))
    return worst


def programs() -> Iterator[Row]:
    """Yield every kind of program, compiled and run once."""
    import torch
    from torch.nn import functional

    import einsmith as es
    from einsmith.frontends.torch import operator

    rng = np.random.default_rng(0)
    image = rng.standard_normal((4, 32, 56, 56), np.float32)
    weight = rng.standard_normal((64, 32, 3, 3), np.float32)
    a, b = rng.standard_normal((2, 448, 448), np.float32)
    timage, tweight, ta, tb = (torch.from_numpy(v) for v in (image, weight, a, b))
    filtered = functional.conv2d(timage.double(), tweight.double(), padding=1).numpy()

    def convolution(x: object, w: object) -> object:
        return es.functional.conv2d(x, w, padding=1)

    def their_convolution() -> torch.Tensor:
        return functional.conv2d(timage, tweight, padding=1)

    jitted = es.jit(convolution)
    yield Row(
        "es.jit: convolution", lambda: jitted(image, weight), their_convolution, [jitted(image, weight)], [filtered]
    )

    product = es.op("C[i,j] = sum[k](A[i,k] * B[k,j])")
    yield Row("es.op: product", lambda: product(a, b), lambda: ta @ tb, [product(a, b)], [a.astype(np.float64) @ b])

    twin = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    model = es.nn.Sequential(es.nn.Linear(512, 512), es.nn.ReLU(), es.nn.Linear(512, 10))
    model.load_state_dict({k: v.numpy() for k, v in twin.state_dict().items()})
    x, y = rng.standard_normal((384, 512), np.float32), rng.integers(0, 10, 384)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)
    exact = copy.deepcopy(twin).double()
    optimizers = {m: torch.optim.SGD(m.parameters(), lr=0.01) for m in (twin, exact)}

    def their_prediction() -> torch.Tensor:
        with torch.no_grad():
            return twin(tx)

    def their_step(m: torch.nn.Module = twin, v: torch.Tensor = tx) -> float:
        optimizers[m].zero_grad()
        loss = functional.cross_entropy(m(v), ty)
        loss.backward()
        optimizers[m].step()
        return loss.item()

    yield Row(
        "predict", lambda: model.predict(x), their_prediction, [model.predict(x)], [exact(tx.double()).detach().numpy()]
    )
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.01))
    trained = [np.array(step(x, y)), *(np.array(v) for v in model.state_dict().values())]
    want = [np.array(their_step(exact, tx.double())), *(v.detach().numpy() for v in exact.state_dict().values())]
    yield Row("TrainStep", lambda: step(x, y), their_step, trained, want)

    called = operator(convolution)
    yield Row(
        "frontends.torch.operator", lambda: called(timage, tweight), their_convolution,
        [called(timage, tweight).numpy()], [filtered],
    )  # fmt: skip

    layer = torch.nn.Sequential(torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU()).requires_grad_(False)
    compiled = torch.compile(layer, backend="einsmith")
    yield Row(
        "torch.compile", lambda: compiled(timage), lambda: layer(timage),
        [compiled(timage).numpy()], [copy.deepcopy(layer).double()(timage.double()).numpy()],
    )  # fmt: skip


def operators() -> Iterator[Row]:
    """Yield the operators that come between: one that computes, one that moves memory."""
    import torch

    import einsmith as es

    rng = np.random.default_rng(1)
    a, wide = rng.random((512, 512), np.float32), rng.random(1 << 20, np.float32)
    ta, twide = torch.from_numpy(a), torch.from_numpy(wide)
    product, curve = es.op("C[i,j] = sum[k](A[i,k] * A[k,j])"), es.op("y[i] = sigmoid(x[i])")
    yield Row("mm", lambda: product(a), lambda: torch.mm(ta, ta), [product(a)], [a.astype(np.float64) @ a])
    yield Row(
        "sigmoid", lambda: curve(wide), lambda: torch.sigmoid(twide), [curve(wide)], [twide.double().sigmoid().numpy()]
    )


def _seconds(f: Call) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def _busy_seconds() -> float:
    """Return the seconds for which processors have worked for other processes, all in all; 0 where it is not known."""
    from einsmith.base.system import processors  # imported late: the order of imports is what is measured

    return max(0.0, processors.seconds_worked() - time.process_time())


def _in_turn(program: Call, others: list[Call], turns: int) -> list[float]:
    """Return the median seconds of a call of the program and of each other side; the program is called before each."""
    time.sleep(ASLEEP_SECONDS)
    times: list[list[float]] = [[], *([] for _ in others)]
    for k in range(turns + 1):
        for n, other in enumerate(others, 1):
            pair = _seconds(program), _seconds(other)
            if k:  # the first turn wakes threads
                times[0].append(pair[0])
                times[n].append(pair[1])
    return [statistics.median(t) for t in times]


def measure(rounds: int) -> list[dict]:
    """Return a record a kind of program: its name, rounds that count, and of the program and of every operator
    milliseconds alone and between calls of the other side, and their ratio.

    The rounds of all rows are interleaved. Those count in which other processes leave the processors alone; where there
    are fewer than LEAST_ROUNDS when the time is over, all count, and `busy` is true.
    """
    others, rows = list(operators()), list(programs())
    for row in [*others, *rows]:
        if not (off := relative_error(row.results, row.expected)) <= TOLERANCE:
            sys.exit(f"{row.name} differs from PyTorch in float64 by {off:.1e} of its largest element")
    ours, theirs = [o.ours for o in others], [o.theirs for o in others]
    turns = {}
    for row in rows:
        turn = sum(_in_turn(row.ours, theirs, 3)) + _seconds(row.ours)
        turns[row.name] = max(5, min(100, round(CHUNK_SECONDS / turn)))
    times: dict[str, list[tuple[float, list[float], list[float]]]] = {row.name: [] for row in rows}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        left = [r for r in rows if sum(others_took <= QUIET for others_took, *_ in times[r.name]) < rounds]
        if not left:
            break
        for row in left:
            n, busy, start = turns[row.name], _busy_seconds(), time.perf_counter()
            between = _in_turn(row.ours, theirs, n)
            alone = [_in_turn(row.ours, ours, n)[0], *_in_turn(row.theirs, theirs, n)[1:]]
            took = (time.perf_counter() - start) * (os.cpu_count() or 1)
            times[row.name].append(((_busy_seconds() - busy) / took, alone, between))
    records = []
    for name, all_rounds in times.items():
        quiet = [(a, b) for others_took, a, b in all_rounds if others_took <= QUIET]
        busy_machine = len(quiet) < min(rounds, LEAST_ROUNDS)
        pairs = [(a, b) for _, a, b in all_rounds] if busy_machine else quiet
        record: dict = {"name": name, "rounds": len(pairs), "busy": busy_machine}
        for k, side in enumerate(["program", *(o.name for o in others)]):
            record[side] = {
                "alone_ms": statistics.median(a[k] for a, _ in pairs) * 1e3,
                "between_ms": statistics.median(b[k] for _, b in pairs) * 1e3,
                "ratio": statistics.median(b[k] / a[k] for a, b in pairs),
            }
        records.append(record)
    return records


def verdict(record: dict) -> bool:
    """Whether every ratio of a record of `measure` is within LIMIT, and the machine was idle otherwise."""
    return not record["busy"] and all(side["ratio"] <= LIMIT for side in record.values() if isinstance(side, dict))


def table(order: str, records: list[dict]) -> list[str]:
    """Return the lines of a table of one order of import."""
    sides = [k for k, v in records[0].items() if isinstance(v, dict)]
    names = ("program" if s == "program" else f"torch.{s}" for s in sides)
    lines = [f"{order:26}" + "".join(f"{name:>16}{'between':>9}{'ratio':>7}" for name in names)]
    for record in records:
        cells = (record[s] for s in sides)
        lines.append(
            f"{record['name']:26}"
            + "".join(f"{c['alone_ms']:16.3f}{c['between_ms']:9.3f}{c['ratio']:7.2f}" for c in cells)
            + ("  passes" if verdict(record) else "  no verdict: busy" if record["busy"] else f"  FAILS: over {LIMIT}")
        )
    return lines


def compare(rounds: int, workers: bool, out: str | None) -> bool:
    """Run both orders of import, print a table with a verdict a row, write JSON to `out`. Whether all rows pass.

    workers: programs run on workers of our own, as though PyTorch were not there; the rows ought to fail.
    """
    result: dict = {"limit": LIMIT, "rounds": rounds, "load_before": os.getloadavg()[0], "orders": {}}
    for order in ORDERS:
        command = [sys.executable, "-m", "benchmarks.beside_torch", "--order", order, "--rounds", str(rounds)]
        neighbour = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR])
        try:
            done = subprocess.run([*command, *(["--workers"] if workers else [])], stdout=subprocess.PIPE, text=True)
        finally:
            neighbour.kill()
            neighbour.wait()
        if done.returncode:
            sys.exit(f"{order}: the process ended with status {done.returncode}")
        records = json.loads(done.stdout.splitlines()[-1])
        for line in table(order, records):
            print(line, flush=True)
        result["orders"][order] = [{**r, "passes": verdict(r)} for r in records]
    result["passes"] = all(r["passes"] for records in result["orders"].values() for r in records)
    print("milliseconds alone and between the other side's calls, medians over rounds; results were verified before")
    if out:
        with open(out, "w") as file:
            json.dump(result, file, indent=1)
    return result["passes"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", choices=list(ORDERS), required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--workers", action="store_true")
    options = parser.parse_args()
    if options.workers:
        from einsmith.runtime import thread_count

        thread_count.is_team_final = True
    for name in ORDERS[options.order]:
        importlib.import_module(name)
        if name == "einsmith":  # whose workers are there, and were used, before PyTorch comes
            wide = np.ones((1 << 18,), np.float32)
            doubled = sys.modules[name].op("y[i] = 2*x[i]")(wide)
            assert (doubled == 2).all()
    print(json.dumps(measure(options.rounds)))


if __name__ == "__main__":
    main()
