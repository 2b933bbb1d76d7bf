"""The rate of a problem's special functions on this machine, by calibration's probes: on arrays in the first cache."""

from __future__ import annotations

import numpy as np

from einsmith.bench.problem import Session, Workload
from einsmith.cost.facts import host
from einsmith.tuning.calibration.probes import SPECIAL_ELEMENTS, special_function

VERSION = "special"

SWEEPS = 256


class Special:
    """One step evaluates each function as many times as its part of the problem says, on one thread; its work is that
    of `threads` such threads, as cores do not disturb each other here."""

    def __init__(self, specials: tuple[tuple[str, int], ...], threads: int):
        least = min(n for _, n in specials)
        target = host()
        self._probes = []
        self.evaluations = 0
        for fn, n in specials:
            probe = special_function(target, fn, target.lanes())
            probe.keep[-1][1] = repeats = SWEEPS * max(1, round(n / least))
            self._probes.append(probe)
            self.evaluations += threads * repeats * SPECIAL_ELEMENTS

    def step(self) -> float:
        for probe in self._probes:
            probe.program.run()
        return float(self.evaluations)

    def results(self) -> dict[str, np.ndarray]:
        return {}


def build(problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str) -> Session:
    return Special(problem.specials, threads)
