"""The bandwidth of the machine at a problem's size: what the floor of memory traffic is counted from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from einsmith.bench.problem import Session, Workload

VERSION = "copy"

MOVED = 64 << 20
"""Bytes that a step moves at least, so that its start does not count; and at least twice its arrays."""


class Copy:
    """One step copies half of `nbytes` to the other half, several times over, each thread its own part: so small arrays
    are measured in the cache that holds them, as the problem finds them too."""

    def __init__(self, nbytes: int, threads: int):
        n = max(nbytes // (8 * threads), 1)
        self._parts = [(np.ones(n, np.float32), np.zeros(n, np.float32)) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)
        self._repeats = max(2, min(256, MOVED // (threads * 8 * n)))
        self.nbytes = self._repeats * threads * 8 * n

    def _copy(self, part: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(self._repeats):
            np.copyto(part[1], part[0])  # without the interpreter lock

    def step(self) -> float:
        list(self._pool.map(self._copy, self._parts))
        return float(self.nbytes)

    def results(self) -> dict[str, np.ndarray]:
        return {"out": np.concatenate([b for _, b in self._parts])}


def build(problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str) -> Session:
    return Copy(problem.nbytes, threads)
