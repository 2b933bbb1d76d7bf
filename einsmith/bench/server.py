"""Serve one library's training steps in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from einsmith.base import locks
from einsmith.base.system import memory, processors
from einsmith.bench import steps
from einsmith.tuning.calibration import calibrate

CACHES = ("EINSMITH_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables that name the folders of libraries' compiled code."""
CHOICE_SECONDS = 0.3
"""What a formulation may take where the fastest is chosen; it runs at least once untimed and once timed."""


def limit_cpus(threads: int) -> None:
    """Leave the process as many CPUs as threads, on separate cores: some libraries offer no other way."""
    cores = processors.cores()
    chosen = [core[0] for core in cores] + sorted(cpu for core in cores for cpu in core[1:])
    if len(chosen) > threads:
        processors.restrict(chosen[:threads])


def clock(session: steps.Session, count: int) -> list[float]:
    """Return the seconds of each step."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        session.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def measure(variants: Sequence[str], build: Callable[[str], steps.Session], count: int) -> dict[str, float]:
    """Return the seconds of each formulation's quickest step of `count`, or of those that CHOICE_SECONDS leave; one
    that fails has none. The first, which ran before, is measured whatever happens, so that an error of it is
    raised."""
    seconds: dict[str, float] = {}
    for variant in variants:
        try:
            session = build(variant)
            clock(session, 1)
            end = time.perf_counter() + CHOICE_SECONDS
            seconds[variant] = clock(session, 1)[0]
            for _ in range(count - 1):
                if time.perf_counter() > end:
                    break
                seconds[variant] = min(seconds[variant], *clock(session, 1))
        except Exception:
            if variant == variants[0]:
                raise
    return seconds


class StepServer:
    """The training step of one network in one library: "einsmith", or a peer of `torch_steps`."""

    def begin(self, peer: str, threads: int, caches: str | None) -> str:
        """Import the library and return its version. caches: folder of its compiled code; None for the user's own."""
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "EINSMITH_THREADS"):
            os.environ[name] = str(threads)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        for name in CACHES if caches is not None else ():
            os.environ[name] = f"{caches}/{name}"
        limit_cpus(threads)
        self.peer, self.threads = peer, threads
        version = self.load()
        self.imported = memory.resident_bytes()
        return version

    def load(self) -> str:
        """Import the library and return its version. Einsmith measures the machine, which an installation does once:
        that is no part of a first call."""
        if self.peer == "einsmith":
            calibrate.target()
            return steps.VERSION
        with locks.IMPORTING:
            import torch

        torch.set_num_threads(self.threads)
        return f"PyTorch {torch.__version__}"

    def open(self, problem: Any) -> None:
        """Take up a problem, and free what the one before held."""
        self.session: Any = None
        self._sessions: dict[str, Any] = {}
        self.problem, self.arrays = problem, {}
        self.variants = self.list_variants()
        self.arrays = problem.arrays()

    def list_variants(self) -> tuple[str, ...]:
        """Return the formulations among which the fastest is chosen: PyTorch's memory formats of images."""
        if self.peer not in ("torch", "compile") or not self.problem.is_of_images:
            return ("",)
        with locks.IMPORTING:
            from einsmith.bench.torch_steps import LAYOUTS

        return LAYOUTS

    def make_session(self, variant: str) -> steps.Session:
        """Set up the problem in a formulation."""
        if self.peer == "einsmith":
            return steps.EinsmithStep(self.problem, self.arrays, self.threads)
        with locks.IMPORTING:
            from einsmith.bench.torch_steps import TorchStep

        return TorchStep(self.problem, self.arrays, self.peer, variant)

    def _restarted(self, variant: str) -> Any:
        """Return the session of a formulation at the starting values: one that exists where it can begin anew."""
        session = self._sessions.get(variant)
        if session is not None and hasattr(session, "restart"):
            session.restart(self.arrays)
        elif session is None or getattr(self.problem, "stateful", True):
            self._sessions.pop(variant, None)
            self._sessions[variant] = self.make_session(variant)
        return self._sessions[variant]

    def first(self) -> dict[str, Any]:
        """Build everything and run the first step; return the seconds, the loss, and what the program tells of
        itself."""
        start = time.perf_counter()
        self.session = self._restarted(self.variants[0])
        loss = self.session.step()
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "loss": loss, "described": self.describe()}

    def describe(self) -> dict[str, Any]:
        """Return what the program tells of itself, such as how many kernels it has."""
        return self.session.describe() if hasattr(self.session, "describe") else {}

    def choose(self, count: int) -> dict[str, Any]:
        """Begin anew with the formulation whose step is the fastest of `count`; return its name, and all seconds."""
        several = len(self.variants) > 1 and count
        seconds = measure(self.variants, self._restarted, count) if several else {}
        best = min(seconds, key=seconds.__getitem__) if seconds else self.variants[0]
        self.session = self._restarted(best)
        return {"variant": best, "seconds": seconds}

    def steps(self, count: int) -> dict[str, Any]:
        """Return the losses of some steps, and the most bytes that this process held meanwhile above those that it
        held when its library was imported; 0 where the system does not tell."""
        memory.reset_peak()
        losses = [self.session.step() for _ in range(count)]
        return {"losses": losses, "bytes": max(0, memory.peak_bytes() - self.imported)}

    def results(self) -> dict[str, np.ndarray]:
        """Return the arrays that the steps have changed, or given."""
        return self.session.results()

    def time(self, count: int, warm: int) -> list[float]:
        """Return the seconds of steps after some untimed ones."""
        return clock(self.session, warm + count)[warm:]
