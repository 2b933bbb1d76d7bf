"""What an entry of the gallery is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ints:
    """An int64 input with elements in [low, high), `also` among them."""

    shape: tuple[int, ...]
    high: int
    low: int = 0
    also: int | None = None


@dataclass(frozen=True)
class Entry:
    """`cases`: input names with shapes (or Ints), and parameters. `twin(torch, *inputs, **parameters)` is PyTorch's.
    `positive`: inputs that are above 0."""

    name: str
    formula: str
    cases: Sequence[Mapping[str, Any]]
    twin: Callable | None = None
    extents: Mapping[str, Any] = field(default_factory=dict)
    positive: Sequence[str] = ()
    most: float = 2.5  # operations of the gradient over the forward's, for each differentiated input
    tol: float = 1e-9

    def inputs(self, case: Mapping[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
        out = {}
        for name, s in case.items():
            if isinstance(s, Ints):
                a: np.ndarray = rng.integers(s.low, s.high, s.shape)
                if s.also is not None:
                    a.flat[:: max(2, a.size // 3)] = s.also
                out[name] = a
            elif isinstance(s, tuple):
                a = rng.standard_normal(s)
                out[name] = 0.5 + np.abs(a) if name in self.positive else a
        return out

    @staticmethod
    def parameters(case: Mapping[str, Any]) -> dict[str, Any]:
        return {n: v for n, v in case.items() if not isinstance(v, (tuple, Ints))}


ENTRIES: list[Entry] = []


def entry(
    name: str, formula: str, cases: Sequence[Mapping[str, Any]], twin: Callable | None = None, **more: Any
) -> None:
    ENTRIES.append(Entry(name, formula, cases, twin, **more))
