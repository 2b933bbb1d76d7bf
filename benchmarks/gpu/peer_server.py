"""What the peers' processes have in common: a training step that is opened, verified and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from benchmarks.gpu.problems import Case
from benchmarks.gpu.serving import NotAvailable, Server


class PeerStep(Protocol):
    """A training step in a library, whose batch lies on the card."""

    def upload(self) -> None:
        """Copy the batch from this process to the card once more."""

    def step(self) -> Any:
        """Begin a step; return its loss as it lies on the card."""

    def loss(self, found: Any) -> float:
        """Return a loss when it is there."""

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters and the running statistics."""

    def seconds(self, count: int) -> float:
        """Return the seconds of a step among `count` that wait for nothing but each other."""


class PeerServer(Server):
    """A library on the card."""

    def __init__(self) -> None:
        self._open: dict[str, PeerStep] = {}
        """The steps that are open, by form."""

    def build(self, case: Case, precision: str, form: str) -> dict[str, Callable[[], PeerStep]]:
        """Return functions that set up a training step, by formulation: the fastest one takes part. Raises
        NotAvailable."""
        raise NotImplementedError

    def open(self, case: Case, precision: str, form: str, path: str) -> dict[str, Any]:
        """Begin a training step; return the seconds of the first one and the losses of the first two. The results of
        the first are written to a file. Of several formulations the one is kept whose step is the fastest."""
        self._open.pop(form, None)
        made = self.build(case, precision, form)
        times: dict[str, float] = {}
        faults: dict[str, str] = {}
        best: PeerStep | None = None
        out: dict[str, Any] = {}
        for name, make in made.items():
            begun = time.perf_counter()
            try:
                step = make()
                losses = [step.loss(step.step())]
                first = time.perf_counter() - begun
                results = step.results()
                losses.append(step.loss(step.step()))
                seconds = min(step.seconds(3) for _ in range(2)) if len(made) > 1 else 0.0
            except Exception as e:
                if len(made) == 1:
                    raise
                faults[name] = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
                continue
            times[name] = seconds
            if seconds <= min(times.values()):
                best, out = step, {"losses": losses, "first_seconds": first, "variant": name}
                np.savez(path, **results)  # type: ignore[arg-type]
            del step
        if best is None:
            raise RuntimeError(f"no formulation runs: {faults}")
        self._open[form] = best
        return out | ({"variants": times} if len(made) > 1 else {}) | ({"faults": faults} if faults else {})

    def clock(self, form: str, count: int) -> dict[str, Any]:
        """Return the seconds of a step among `count` that wait for nothing but each other."""
        return {"seconds": self._opened(form).seconds(count)}

    def wall(self, form: str, count: int) -> dict[str, Any]:
        """Return the seconds of a step whose batch comes from this process and whose loss is read."""
        step = self._opened(form)
        begun = time.perf_counter()
        for _ in range(count):
            step.upload()
            step.loss(step.step())
        return {"seconds": (time.perf_counter() - begun) / count}

    def close(self) -> dict[str, Any]:
        """Free what is open."""
        self._open.clear()
        return {}

    def _opened(self, form: str) -> PeerStep:
        if form not in self._open:
            raise NotAvailable(f"no step of {form} is open: its process was lost, and started again")
        return self._open[form]
