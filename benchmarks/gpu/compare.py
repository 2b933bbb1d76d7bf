"""Compare training steps on a card with those of other libraries: verified, then timed in interleaved rounds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.problems import TOLERANCES, Case
from benchmarks.gpu.serving import Client
from benchmarks.problem import Workload
from einsmith.bench.verify import Exact, step_error

OURS = "einsmith"
PEERS = ("torch", "torch-graph", "compile", "jax")
ROUNDS = 7
TURN = 0.1
"""Seconds of the card that a peer's turn takes, about."""
MOST = 200
"""Most steps of a turn."""
WALLS = 3
"""Turns of steps whose batch comes from the process and whose loss is read."""
LOSSES = 2
"""Steps whose losses are compared."""
SMALL = 60.0
"""Most seconds of a turn."""

Say = Callable[[str], None]


class Comparison:
    """Processes of Einsmith and its peers.

    Args:
        clients: by peer; several may be one process
        limit: most seconds in which a peer compiles a step, and runs its first ones
    """

    def __init__(self, clients: Mapping[str, Client], limit: float, fake: bool, say: Say):
        self.clients, self.limit, self.fake, self.say = clients, limit, fake, say

    def compare(self, case: Case, precision: str, peers: Sequence[str]) -> dict[str, Any]:
        """Return what each peer does with a case: a status, and seconds where it is right. A row has the status of
        Einsmith."""
        problem = case.problem()
        out: dict[str, Any] = {"peers": {}}
        with tempfile.TemporaryDirectory(prefix="einsmith-gpu-") as name:
            folder = Path(name)
            exact = self._reference(case, problem, folder, out)
            for peer in (OURS, *peers):
                self._begin(peer, case, precision, problem, folder, exact, out["peers"])
        running = [p for p, r in out["peers"].items() if r["status"] == "ok"]
        self._time(running, out["peers"])
        for client in dict.fromkeys(self.clients[p] for p in (OURS, *peers)):
            client.ask("close", limit=SMALL)
        return _summarize(out)

    def _reference(self, case: Case, problem: Workload, folder: Path, out: dict[str, Any]) -> Exact | None:
        """Return what PyTorch computes in float64; None, with the reason in the row, where it cannot."""
        path = folder / "reference.npz"
        answer = self.clients["torch"].ask("reference", case, str(path), LOSSES, limit=self.limit)
        if answer["status"] != "ok":
            out["reference"] = answer["reason"]
            return None
        start = problem.arrays()
        return Exact(answer["losses"], _changes(path, start), start)

    def _begin(
        self, peer: str, case: Case, precision: str, problem: Workload, folder: Path, exact: Exact | None,
        rows: dict[str, Any],
    ) -> None:  # fmt: skip
        self.say(f"  {peer}: first step")
        path = folder / f"{peer}.npz"
        rows[peer] = row = self.clients[peer].ask("open", case, precision, peer, str(path), limit=self.limit)
        if row["status"] != "ok":
            self.say(f"  {peer}: {row['status']}: {row['reason']}")
            return
        if exact is None:
            row |= {"status": "unverified", "reason": "there is no reference in float64"}
            return
        changes = _changes(path, exact.start)
        path.unlink()
        if problem.results:
            changes = {n: changes[n] for n in exact.changes if n in changes}
        if peer == "torch":
            self._theirs = row["losses"], changes
        usual = self._theirs if "torch" in rows and rows["torch"]["status"] == "ok" and peer != "torch" else None
        known = exact._replace(float32=usual, tolerances=TOLERANCES[precision])
        if wrong := step_error(row["losses"], changes, known):
            row |= {"status": "wrong", "reason": wrong}
            self.say(f"  {peer}: wrong: {wrong}")

    def _time(self, running: Sequence[str], rows: dict[str, Any]) -> None:
        counts = {p: self._count(p, rows[p]) for p in running}
        rounds: dict[str, list[float]] = {p: [] for p in running}
        walls: dict[str, list[float]] = {p: [] for p in running}
        for r in range(2 if self.fake else ROUNDS):
            # Every round starts with another peer, so that none always follows the same neighbour.
            left = [p for p in running if rows[p]["status"] == "ok"]
            for peer in [*left[r % max(len(left), 1) :], *left[: r % max(len(left), 1)]]:
                self._turn(peer, "clock", counts[peer], rows[peer], rounds[peer])
                if r < WALLS:
                    self._turn(peer, "wall", max(1, counts[peer] // 4), rows[peer], walls[peer])
        for peer in running:
            rows[peer] |= {"rounds": rounds[peer], "walls": walls[peer], "steps": counts[peer]}

    def _count(self, peer: str, row: dict[str, Any]) -> int:
        """Return the steps of a turn."""
        probe: list[float] = []
        self._turn(peer, "clock", 1, row, [])
        self._turn(peer, "clock", 3, row, probe)
        return max(1, min(MOST, round(TURN / max(probe[0], 1e-6)))) if probe and not self.fake else 1

    def _turn(self, peer: str, what: str, count: int, row: dict[str, Any], times: list[float]) -> None:
        if row["status"] == "ok":
            answer = self.clients[peer].ask(what, peer, count, limit=SMALL)
            if answer["status"] == "ok":
                times.append(answer["seconds"])
            else:
                row |= answer


def _changes(path: Path, start: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the change of every array of a file since the start."""
    with np.load(path) as data:
        return {n: data[n] - start[n] for n in data.files if n in start}


def _summarize(out: dict[str, Any]) -> dict[str, Any]:
    """Add medians, the middle half of the rounds, and times as fast as the best peer."""
    for row in out["peers"].values():
        if row["status"] == "ok" and row.get("rounds"):
            low, middle, high = np.percentile(row["rounds"], [25, 50, 75])
            row |= {"median": float(middle), "low": float(low), "high": float(high)}
            row["wall"] = float(np.median(row["walls"])) if row["walls"] else None
    others = {p: r["median"] for p, r in out["peers"].items() if p != OURS and "median" in r}
    ours = out["peers"][OURS]
    best = min(others, key=others.__getitem__) if others else None
    out |= {"status": ours["status"], "best_peer": best}
    if "reason" in ours:
        out["reason"] = ours["reason"]
    out["times_as_fast"] = others[best] / ours["median"] if best and ours.get("median") else None
    return out
