"""Run a problem through all peers in one run: first calls, verification, then interleaved rounds."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.problem import Workload
from benchmarks.verify import disagreements, error, medians
from benchmarks.worker import LEAST_CAPS, Allowance, Crew, PeerProcess, WorkerError, alone
from einsmith.base.system import processors
from einsmith.base.system.memory import available_bytes
from einsmith.bench.verify import Exact, step_error

PEERS = ("torch", "compile", "jax", "tensorflow", "xla")
SLOW = 4
"""A peer that is so many times slower than the fastest takes part in the first SLOW_ROUNDS rounds alone."""
SLOW_ROUNDS = 3
CHUNK_SECONDS = 0.2
"""How long a peer's turn in a round lasts, about: long enough to be in its stride, short enough that all peers meet the
same weather on a machine whose speed drifts."""

TRIALS = 6
"""Steps of each formulation among which the fastest is chosen."""
MIN_ROUNDS = 3
ROOM = 2.0
"""How many times the memory of the peer that holds most must be free for the next one to run beside the others."""

Say = Callable[[str], None]


class Pace(NamedTuple):
    """How long a problem is timed: `rounds`, in each of which a peer runs `warm` steps and then about `chunk` seconds,
    `least` steps or more. Without rounds the first calls alone are measured.

    seconds: what a peer's rounds may take in all, where that is less; MIN_ROUNDS take place all the same. A step longer
    than `chunk` is then a turn by itself, after an untimed one where it takes no more than a second.
    """

    rounds: int
    chunk: float = CHUNK_SECONDS
    least: int = 3
    warm: int = 2
    seconds: float | None = None

    def turn(self, step: float) -> tuple[int, int, int]:
        """Return (rounds, steps of a turn, untimed steps before them) of a peer whose step takes so long (seconds)."""
        if self.seconds is None:
            return self.rounds, max(self.least, min(200, round(self.chunk / max(step, 1e-6)))), self.warm
        short = step < self.chunk
        count = max(self.least, min(200, round(self.chunk / max(step, 1e-6)))) if short else 1
        warm = self.warm if short else int(step <= 1)
        return max(MIN_ROUNDS, min(self.rounds, int(self.seconds / (step * (count + warm))))), count, warm


def run_problem(
    problem: Workload,
    peers: Sequence[str],
    threads: int,
    pace: Pace,
    cap: float,
    say: Say,
    crew: Crew | None = None,
    keeper: str | None = None,
) -> dict:
    """Return one cell of the results: a dict as it is written to JSON. `cap`: seconds that each peer may take in all
    (see `Allowance`). `keeper`: a command that keeps other work away while times are taken (see `worker.alone`).

    Without a `crew` every peer gets a process and caches of its own, and its first call is that of a newcomer. The
    processes of a crew go on to the next problem with whatever they have cached.
    """
    cell: dict = {
        "batch": problem.batch,
        "flops": problem.operations,
        "nbytes": problem.nbytes,
        "specials": dict(problem.specials),
        "threads": threads,
        "cap": cap,
        "load_before": processors.load(),
        "peers": {},
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="einsmith-bench-")))
        fresh = crew is None
        if crew is None:
            crew = Crew(threads, folder)
            stack.callback(crew.close)
            if keeper is not None or problem.has_reference:
                crew.keep_calibration()
        run = _Run(problem, cap, crew, cell, say)
        results: dict[str, PeerResults] = {}
        exact = run.reference() if problem.exact and pace.rounds else None
        if exact is not None:
            crew.drop("reference")
        measured = ["peak", *(["copy"] if problem.nbytes else []), *(["special"] if problem.specials else [])]
        rates: dict[str, _Rate] = {}

        def timed() -> None:
            """Verify the peers that are at hand, and time them."""
            run.verify(results, exact)
            for what in measured:
                rates.setdefault(what, _Rate(what, run))
            cell.setdefault("groups", []).append(list(run.workers))
            with alone(keeper):
                cell["load_timing"] = processors.load()
                _time_rounds(run, pace, list(rates.values()))

        for peer in peers:
            if exact is not None and run.workers and not _room(cell["peers"].values()):
                say(f"{problem.name}: no memory for more peers at once: {', '.join(run.workers)} are timed first")
                timed()
                for other in list(run.workers):
                    run.workers.pop(other)
                    crew.drop(other)
            crew.start(peer)
            if fresh or keeper:
                say(f"{problem.name}: {peer}: first call")
            run.attempt(peer, partial(run.begin, peer, results if pace.rounds else None))
            if not pace.rounds:
                crew.drop(peer)
                continue
            if fresh and not problem.has_reference and peer == "einsmith" and peer in run.workers:

                def again(allowance: Allowance) -> None:
                    caches = run.crew.caches("einsmith")
                    with PeerProcess("einsmith", threads, caches) as worker:  # it finds what the first one left
                        worker.request("open", allowance, problem.name)
                        first = worker.request("first", allowance)
                    cell["peers"]["einsmith"]["first_seconds_warm"] = first["seconds"]

                run.attempt(peer, again)
        if pace.rounds:
            timed()
    _summarize(cell, **{what: rate.per_second for what, rate in rates.items()})
    return cell


class PeerResults(NamedTuple):
    """What a peer computes: the losses of the first steps, and the change of every result array since the start: after
    those steps, or after the first alone where the problem is verified against an exact run. (What float32 rounds in
    the first step of a deep network of batch norms over one image is all that the second one's gradients say.)"""

    losses: list[float]
    changes: dict[str, np.ndarray]


class _Run:
    """One problem on its way through the workers."""

    def __init__(self, problem: Workload, cap: float, crew: Crew, cell: dict, say: Say):
        self.problem, self.cap, self.crew, self.cell, self.say = problem, cap, crew, cell, say
        self.workers: dict[str, PeerProcess] = {}
        self.start_values = problem.arrays()
        self._allowances: dict[str, Allowance] = {}
        self._lacking = ""
        """Why there is no run of the peer "reference"."""

    def attempt(self, peer: str, action: Callable[[Allowance], None]) -> None:
        """Run an action of a peer against its time cap; a failure is noted and ends that peer's part."""
        cap = max(self.cap, LEAST_CAPS.get(peer, 0.0))
        allowance = self._allowances.setdefault(peer, Allowance(cap))
        try:
            action(allowance)
        except WorkerError as e:
            self.cell["peers"].setdefault(peer, {})
            self.cell["peers"][peer] |= {"status": e.kind, "message": str(e)}
            if e.kind == "timeout":
                self.cell["peers"][peer]["cap"] = cap
            self.end(peer, e)
            self.say(f"{self.problem.name}: {peer}: {e.kind}: {e}")
        self.cell["peers"][peer]["spent"] = round(cap - allowance.left, 2)

    def end(self, peer: str, e: WorkerError) -> None:
        worker = self.workers.pop(peer, None)
        if e.kind == "timeout" or worker is None or not worker.alive:
            self.crew.drop(peer)

    def open(self, peer: str, allowance: Allowance) -> tuple[PeerProcess, dict]:
        """Return the worker with the problem set up, and its answer to the first step; what that computed is
        "spent"."""
        worker = self.workers[peer] = self.crew.start(peer)
        worker.request("open", allowance, self.problem.name)
        before = allowance.left
        return worker, worker.request("first", allowance) | {"spent": before - allowance.left}

    def results(self, peer: str, worker: PeerProcess, allowance: Allowance) -> PeerResults:
        count = self.problem.verified_steps if self.problem.stateful else 1
        before = 1 if self.problem.exact else count
        steps = worker.request("steps", allowance, before)
        changes = self.changes(worker, allowance)
        later = worker.request("steps", allowance, count - before)
        self.cell["peers"].setdefault(peer, {})["bytes"] = max(steps["bytes"], later["bytes"])
        return PeerResults(steps["losses"] + later["losses"], changes)

    def changes(self, worker: PeerProcess, allowance: Allowance) -> dict[str, np.ndarray]:
        """Return the change of every result array since the start, as it is now."""
        data, start = worker.request("results", allowance), self.start_values
        return {n: data[n] - start[n] if n in start else data[n] for n in self.problem.results or data}

    def begin(self, peer: str, results: dict[str, PeerResults] | None, allowance: Allowance) -> None:
        """Run the first step of a peer, and where `results` are wanted the steps that are verified."""
        worker, first = self.open(peer, allowance)
        self.cell["peers"][peer] = {"status": "ok", "version": worker.version, "first_seconds": first["seconds"]}
        self.cell["peers"][peer]["first_spent"] = round(first["spent"], 3)
        self.cell["peers"][peer] |= first["described"]
        if results is None:
            return
        chosen = worker.request("choose", allowance, TRIALS)
        if chosen["variant"]:
            self.cell["peers"][peer] |= {"variant": chosen["variant"], "variants": chosen["seconds"]}
        results[peer] = self.results(peer, worker, allowance)

    def verify(self, results: dict[str, PeerResults], exact: PeerResults | None) -> None:
        """End the part of peers at hand whose results are wrong, or cannot be told from wrong ones."""
        verified = {p: r for p, r in results.items() if p in self.workers}
        losses, changes = {p: r.losses for p, r in verified.items()}, {p: r.changes for p, r in verified.items()}
        reference = self.reference() if self.problem.has_reference and not self.problem.training else None
        status, by = "wrong", "results agree"
        if exact is not None:
            by = f"against PyTorch in float64: a step's changes, and the losses of {len(exact.losses)}"
            torch = results.get("torch")
            float32 = None if torch is None else (torch.losses, torch.changes)
            known = Exact(exact.losses, exact.changes, self.start_values, float32)
            wrong = {p: w for p in verified if (w := step_error(losses[p], changes[p], known))}
        elif reference is not None:
            by = "against PyTorch in float64"
            wrong = {p: w for p in verified if (w := error(changes[p], reference.changes))}
        elif self.problem.exact and len(results) > 1:
            # What float32 rounds off a deep network's gradients is more than `disagreements` allows.
            status, by = "unverified", f"against each other in float32: {self._lacking}"
            middle = medians([r.losses for r in results.values()], [r.changes for r in results.values()])
            known = Exact(*middle, self.start_values)
            off = {p: step_error(losses[p], changes[p], known) for p in verified}
            wrong = {p: f"not verified: {self._lacking}, and beside the other peers {w}" for p, w in off.items() if w}
        else:
            wrong = disagreements(losses, changes)
        self.cell["verified"] = exact is not None or reference is not None or len(results) > 1
        self.cell["verification"] = by if self.cell["verified"] else f"not verified: {self._lacking or 'one peer only'}"
        for peer, what in wrong.items():
            self.cell["peers"][peer] |= {"status": status, "message": what}
            del self.workers[peer]
            self.say(f"{self.problem.name}: {peer}: {'wrong result: ' if status == 'wrong' else ''}{what}")

    def reference(self) -> PeerResults | None:
        """Return what the peer "reference" computes; None where its library is missing, or takes too long.

        Of an exact problem it has as many losses as there is time for, and the first step's changes."""
        allowance, known, steps = Allowance(self.cap), None, self.problem.verified_steps
        try:
            worker, first = self.open("reference", allowance)
            if not self.problem.exact:
                worker.request("choose", allowance, 0)
                return self.results("reference", worker, allowance)
            known = PeerResults([first["loss"]], self.changes(worker, allowance))
            while len(known.losses) < steps:
                known.losses.extend(worker.request("steps", allowance, 1)["losses"])
            return known
        except WorkerError as e:
            late = e.kind == "timeout"
            self._lacking = f"the reference took longer than {self.cap:g} s" if late else f"there is no reference: {e}"
            done = f", {len(known.losses)} of {steps} steps are compared" if known else ""
            self.say(f"{self.problem.name}: {self._lacking}{done}")
            self.end("reference", e)
            return known
        finally:
            self.workers.pop("reference", None)
            self.cell["peers"].pop("reference", None)


def _room(peers: Iterable[dict]) -> bool:
    """Return whether another peer can run beside those at hand, by what they hold at most."""
    return available_bytes() > ROOM * max((r.get("bytes", 0) for r in peers), default=0)


class _Rate:
    """What the machine can do, measured in the same rounds: operations a second of the multiply-add kernel ("peak"),
    bytes a second ("copy"), or evaluations a second of the problem's functions ("special"); without the first no
    percentage of the floor is given."""

    def __init__(self, what: str, run: _Run):
        self.rates: list[float] = []
        self._worker: PeerProcess | None = None
        try:
            self._worker, first = run.open(what, Allowance(run.cap))
            self._work = first["loss"]
        except WorkerError as e:
            run.say(f"{what} cannot be measured: {e}")
            run.end(what, e)
        run.workers.pop(what, None)

    def measure(self) -> None:
        if self._worker is not None:
            seconds = self._worker.request("time", Allowance(60), 2, 1)
            self.rates.append(self._work / min(seconds))

    @property
    def per_second(self) -> float | None:
        return statistics.median(self.rates) if self.rates else None


def _time_rounds(run: _Run, pace: Pace, rates: Sequence[_Rate]) -> None:
    workers, cell = run.workers, run.cell
    samples: dict[str, list[list[float]]] = {p: [] for p in workers}
    turns: dict[str, tuple[int, int, int]] = {}
    quickest: dict[str, float] = {}

    for peer in list(workers):

        def probe(allowance: Allowance, peer: str = peer) -> None:
            least, warm = (pace.least, pace.warm) if pace.seconds is None else (1, 0)
            seconds = workers[peer].request("time", allowance, least, warm)
            if pace.seconds is not None and seconds[0] < pace.chunk:
                seconds = workers[peer].request("time", allowance, pace.least, pace.warm)
            quickest[peer] = min(seconds)
            turns[peer] = pace.turn(quickest[peer])

        run.attempt(peer, probe)
    for r in range(pace.rounds):
        # Every round starts with another peer, so that none always follows the same neighbor.
        order = [p for p in workers if r < SLOW_ROUNDS or quickest[p] < SLOW * min(quickest[q] for q in workers)]
        order = [p for p in order if r < turns[p][0]]
        if not order:
            break
        if pace.chunk >= CHUNK_SECONDS:
            run.say(f"{run.problem.name}: round {r + 1} of {max(turns[p][0] for p in order)}")
        for rate in rates:
            rate.measure()
        first = r % len(order)
        for peer in order[first:] + order[:first]:

            def turn(allowance: Allowance, peer: str = peer) -> None:
                _, count, warm = turns[peer]
                samples[peer].append(workers[peer].request("time", allowance, count, warm))

            run.attempt(peer, turn)
    for peer, chunks in samples.items():
        if chunks and cell["peers"][peer]["status"] == "timeout":
            cell["peers"][peer]["status"] = "ok"
            cell["peers"][peer]["message"] = f"{len(chunks)} of {pace.rounds} rounds within the time cap"
        cell["peers"][peer]["rounds"] = [statistics.median(c) for c in chunks]
        cell["peers"][peer]["best"] = min((min(c) for c in chunks), default=None)


def _summarize(cell: dict, peak: float | None = None, copy: float | None = None, special: float | None = None) -> None:
    """Add medians, spread (the middle half of the rounds), the ratio to the best peer, and the part of the floor: the
    longest of the arithmetic at the peak, the bytes at the bandwidth of a copy, and the functions at their rate."""
    cell["peak_flops_per_second"], cell["bytes_per_second"], cell["specials_per_second"] = peak, copy, special
    floors = {
        "arithmetic": cell["flops"] / peak if peak else 0.0,
        "bytes": cell["nbytes"] / copy if copy else 0.0,
        "functions": sum(cell.get("specials", {}).values()) / special if special else 0.0,
    }
    cell["bound_by"] = max(floors, key=floors.__getitem__)
    cell["floor_seconds"] = floors[cell["bound_by"]] if peak else None
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
