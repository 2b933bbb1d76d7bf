"""How far a computed result may lie from the exact one: `einsmith.checking.tolerance` of this checkout, also where
another checkout's einsmith is under test."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_spec = importlib.util.spec_from_file_location(
    "tests.fuzz.own_tolerance", Path(__file__).resolve().parents[2] / "einsmith" / "checking" / "tolerance.py"
)
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
C = _module.ROUNDINGS


class _Digits(_module.Analysis):
    """Notes the finest digit of the floats met: the greatest power of two that they are all multiples of."""

    finest = 1.0

    def note(self, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind == "f" and x.size:
            mantissas, exponents = np.frexp(x[np.isfinite(x) & (x != 0)])
            whole = np.ldexp(mantissas, 53).astype(np.int64)
            lowest = np.ldexp((whole & -whole).astype(float), exponents - 53)
            self.finest = min(self.finest, float(lowest.min(initial=1)))
        return super().note(x)


def errors(graph: Any, inputs: Sequence[np.ndarray]) -> tuple[list[tuple[np.ndarray, np.ndarray]], float, bool]:
    """(value, error bound) of every output and then of every update; the greatest magnitude of any number met; whether
    float32 holds every number met and their sums in any order, so that nothing is rounded."""
    run = _Digits()
    pairs, greatest = _module.errors(graph, inputs, run)
    return pairs, greatest, greatest < 2**24 * run.finest
