"""Runs a problem through all peers in one run: first calls, verification, then interleaved rounds."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.problems import Problem
from benchmarks.process import Worker, WorkerError
from benchmarks.verify import disagreements

PEERS = ("torch", "compile", "jax", "tensorflow", "xla")
VERIFIED_STEPS = 5
CHUNK_SECONDS = 0.2
"""How long a peer's turn in a round lasts, about: long enough to be in its stride, short enough that all peers meet the
same weather on a machine whose speed drifts."""

Say = Callable[[str], None]


def run_problem(problem: Problem, peers: Sequence[str], threads: int, rounds: int, cap: float, say: Say) -> dict:
    """One cell of the results: a dict as it is written to JSON. `cap`: seconds that each peer may take in all."""
    cell: dict = {
        "batch": problem.batch,
        "flops": problem.flops,
        "nbytes": problem.nbytes,
        "threads": threads,
        "load_before": os.getloadavg()[0],
        "peers": {},
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="einsmith-bench-")))
        workers: dict[str, Worker] = {}
        spent: dict[str, float] = {}
        changes: dict[str, dict[str, np.ndarray]] = {}
        losses: dict[str, list[float]] = {}
        start_values = problem.arrays()

        def attempt(peer: str, action: Callable[[float], None]) -> None:
            """Runs an action of a peer against its time cap; a failure is noted and ends that peer's part."""
            begun = time.monotonic()
            try:
                action(begun + cap - spent.get(peer, 0.0))
            except WorkerError as e:
                cell["peers"].setdefault(peer, {})
                cell["peers"][peer] |= {"status": e.kind, "message": str(e)}
                if peer in workers:
                    workers.pop(peer).close()
                say(f"{problem.name}: {peer}: {e.kind}: {e}")
            spent[peer] = spent.get(peer, 0.0) + time.monotonic() - begun

        for peer in peers:
            caches = folder / peer

            def begin(deadline: float, peer: str = peer, caches: Path = caches) -> None:
                caches.mkdir()
                worker = workers[peer] = Worker(peer, problem.name, threads, caches, deadline)
                stack.callback(worker.close)
                first = worker.ask("first", deadline)
                cell["peers"][peer] = {"status": "ok", "version": worker.version, "first_seconds": first["seconds"]}
                chosen = worker.ask("choose 6", deadline)
                if chosen["variant"] is not None:
                    cell["peers"][peer] |= {"variant": chosen["variant"], "variants": chosen["seconds"]}
                later = worker.ask(f"steps {VERIFIED_STEPS}", deadline)
                path = folder / f"{peer}.npz"
                worker.ask(f"results {path}", deadline)
                with np.load(path) as data:
                    changes[peer] = {
                        n: data[n] - start_values[n] if n in start_values else data[n] for n in problem.results
                    }
                losses[peer] = later["losses"]

            say(f"{problem.name}: {peer}: first call")
            attempt(peer, begin)
            if peer == "einsmith" and peer in workers:

                def again(deadline: float, caches: Path = caches) -> None:
                    seconds = _first_again("einsmith", problem, threads, caches, deadline)
                    cell["peers"]["einsmith"]["first_seconds_warm"] = seconds

                attempt(peer, again)

        verified = {p: losses[p] for p in workers if p in losses}
        for peer, what in disagreements(verified, {p: changes[p] for p in verified}).items():
            cell["peers"][peer] |= {"status": "wrong", "message": what}
            workers.pop(peer).close()
            say(f"{problem.name}: {peer}: wrong result: {what}")
        cell["verified"] = len(verified) > 1

        measured = ("peak", "copy") if problem.nbytes else ("peak",)
        rates = [_Rate(what, problem, threads, folder, cap, say) for what in measured]
        for rate in rates:
            stack.callback(rate.close)
        _time_rounds(cell, problem, workers, rounds, attempt, rates, say)
    _summarize(cell, *(rate.per_second for rate in rates))
    return cell


def _first_again(peer: str, problem: Problem, threads: int, caches: Path, deadline: float) -> float:
    """The first call of another fresh process that finds the caches the first one left."""
    worker = Worker(peer, problem.name, threads, caches, deadline)
    try:
        return worker.ask("first", deadline)["seconds"]
    finally:
        worker.close()


class _Rate:
    """What the machine can do, measured in the same rounds: operations a second of the multiply-add kernel ("peak") or
    bytes a second ("copy"); without the first no percentage of the floor is given."""

    def __init__(self, what: str, problem: Problem, threads: int, folder: Path, cap: float, say: Say):
        self.worker: Worker | None = None
        self.rates: list[float] = []
        deadline = time.monotonic() + cap
        try:
            self.worker = Worker(what, problem.name, threads, folder, deadline)
            self._work = self.worker.ask("first", deadline)["loss"]
        except WorkerError as e:
            say(f"{what} cannot be measured: {e}")
            self.close()
            self.worker = None

    def measure(self) -> None:
        if self.worker is not None:
            seconds = self.worker.ask("time 2 1", time.monotonic() + 60)["seconds"]
            self.rates.append(self._work / min(seconds))

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()

    @property
    def per_second(self) -> float | None:
        return statistics.median(self.rates) if self.rates else None


def _time_rounds(
    cell: dict,
    problem: Problem,
    workers: dict[str, Worker],
    rounds: int,
    attempt: Callable[[str, Callable[[float], None]], None],
    rates: Sequence[_Rate],
    say: Say,
) -> None:
    samples: dict[str, list[list[float]]] = {p: [] for p in workers}
    counts: dict[str, int] = {}

    for peer in list(workers):

        def probe(deadline: float, peer: str = peer) -> None:
            seconds = workers[peer].ask("time 3 2", deadline)["seconds"]
            counts[peer] = max(3, min(200, round(CHUNK_SECONDS / max(min(seconds), 1e-6))))

        attempt(peer, probe)
    for r in range(rounds):
        say(f"{problem.name}: round {r + 1} of {rounds}")
        for rate in rates:
            rate.measure()
        # Every round starts with another peer, so that none always follows the same neighbor.
        order = list(workers)
        turn_of = r % max(1, len(order))
        for peer in order[turn_of:] + order[:turn_of]:

            def turn(deadline: float, peer: str = peer) -> None:
                samples[peer].append(workers[peer].ask(f"time {counts[peer]} 2", deadline)["seconds"])

            attempt(peer, turn)
    for peer, chunks in samples.items():
        if chunks and cell["peers"][peer]["status"] == "timeout":
            cell["peers"][peer]["status"] = "ok"
            cell["peers"][peer]["message"] = f"{len(chunks)} of {rounds} rounds within the time cap"
        cell["peers"][peer]["rounds"] = [statistics.median(c) for c in chunks]
        cell["peers"][peer]["best"] = min((min(c) for c in chunks), default=None)


def _summarize(cell: dict, peak: float | None, bandwidth: float | None = None) -> None:
    """Adds medians, spread (the middle half of the rounds), the ratio to the best peer, and the part of the floor: the
    longer of the arithmetic at the peak and the bytes at the bandwidth."""
    cell["peak_flops_per_second"], cell["bytes_per_second"] = peak, bandwidth
    arithmetic = cell["flops"] / peak if peak else None
    traffic = cell["nbytes"] / bandwidth if bandwidth else 0.0
    cell["floor_seconds"] = max(arithmetic, traffic) if arithmetic is not None else None
    cell["bound_by"] = "arithmetic" if arithmetic is None or arithmetic >= traffic else "bytes"
    for result in cell["peers"].values():
        if result["status"] != "ok" or not result.get("rounds"):
            continue
        low, middle, high = np.percentile(result["rounds"], [25, 50, 75])
        result |= {"median": float(middle), "low": float(low), "high": float(high)}
        if peak:
            result["floor_percent"] = 100 * cell["floor_seconds"] / result["median"]
    others = {p: r["median"] for p, r in cell["peers"].items() if p != "einsmith" and "median" in r}
    cell["best_peer"] = min(others, key=others.__getitem__) if others else None
    ours = cell["peers"].get("einsmith", {}).get("median")
    cell["speedup"] = others[cell["best_peer"]] / ours if ours and others else None
