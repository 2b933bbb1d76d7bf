"""Measure one showpiece: each library in a process of its own with empty caches, all of which take turns."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.showpieces import programs
from benchmarks.showpieces.case import Sizes
from benchmarks.showpieces.collection import SHOWPIECES
from benchmarks.showpieces.verify import AGREE, MODULES, verify
from benchmarks.worker import Allowance, Crew, PeerProcess, WorkerError
from einsmith.base import environment
from einsmith.base.system import memory
from einsmith.bench.server import StepServer

CLOSE = 2e-2
"""Most that a library's results in float32 may be off, relative to the largest element: what is further off is wrong.
(Measured: 9e-4 of F.ctc_loss is the most.)"""
VERIFYING = 60.0
"""Seconds that the verification may take at the size that is measured; beyond, it is done at a small one."""
TURN, SLOW = 0.02, 2.0
"""Seconds of a turn, at least, and of a call that has only SLOW_TURNS turns."""
SLOW_TURNS = 3
PATIENCE = 600.0
"""Seconds that a step without a limit of its own may take."""
EINSMITH = "einsmith"


@dataclass(frozen=True)
class Settings:
    """How a case is measured.

    Args:
        threads: of each library
        rounds: turns of each
        limit: seconds that a first call may take
        compiled: whether torch.compile is measured
        peers: what is measured beside Einsmith; None: all
        without: passes that Einsmith is measured without, instead of peers; names of passes separated by commas
    """

    threads: int = 1
    rounds: int = 7
    limit: float = 90.0
    compiled: bool = True
    peers: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()


def contenders(name: str, settings: Settings) -> list[str]:
    """Return what is measured: "einsmith", then "library label" of each peer, or "einsmith PASSES" of what is left
    out."""
    if settings.without:
        return [EINSMITH, *(f"{EINSMITH} {x}" for x in settings.without)]
    out = [EINSMITH]
    for label, peer in SHOWPIECES[name].peers.items():
        out.append(f"{peer.library} {label}")
        if peer.library == "torch" and peer.compiles and settings.compiled:
            out.append(f"compile {label}")
    return [n for n in out if n == EINSMITH or settings.peers is None or n in settings.peers]


class Server(StepServer):
    """A contender in its process, which knows the showpieces by name."""

    def begin(self, peer: str, threads: int, caches: str | None) -> str:
        library, _, self.label = peer.partition(" ")
        if threads == 1:
            os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["JAX_PLATFORMS"] = "cpu"
        if library == EINSMITH and self.label:
            os.environ[environment.WITHOUT.name] = self.label
        return super().begin(library, threads, caches)

    def load(self) -> str:
        if self.peer == "jax":
            import jax

            return f"JAX {jax.__version__}"
        if self.peer == "keops":
            import pykeops  # noqa: F401
        programs.es.set_threads(self.threads)
        if self.peer != EINSMITH:
            self.peer, peer = "torch", self.peer
            version, self.peer = super().load(), peer
            return version
        return super().load()

    def verify(self, name: str, sizes: Sizes, path: str, libraries: Sequence[str]) -> dict[str, float]:
        """Return how far peers of some libraries are apart in float64; write Einsmith's results and cotangents into a
        file of NumPy."""
        return verify(SHOWPIECES[name], sizes, libraries=libraries, path=path)

    def open_case(self, name: str, sizes: Sizes, path: str, double: bool) -> None:
        """Take up a showpiece; path: of what `verify` wrote."""
        piece, dtype = SHOWPIECES[name], np.float64 if double else np.float32
        with np.load(path) as kept:
            seeds = [kept[n].astype(dtype) for n in kept if n.startswith("seed")]
            self.wanted = [kept[n] for n in kept if n.startswith("wanted")]
        arrays = programs.draw(piece, sizes, dtype)
        self._make: Callable[[], programs.Call]
        if self.peer == EINSMITH:
            self._make = lambda: programs.OfEinsmith(piece, sizes, arrays, seeds)
        else:
            if double and self.peer == "jax":
                import jax

                jax.config.update("jax_enable_x64", True)
            peer, compiles = piece.peers[self.label], self.peer == "compile"
            self._make = lambda: programs.of_peer(piece, peer, arrays, seeds, compiles)

    def first_call(self) -> tuple[float, float]:
        """Return the seconds of the first call, compilation included, and how far its results are off."""
        start = time.perf_counter()
        self._call = self._make()
        results = self._call()
        return time.perf_counter() - start, programs.apart(results, self.wanted)

    def memory(self) -> int:
        """Return the bytes that a call takes: what it adds to the process, and what Einsmith holds between calls."""
        self._call()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
        before = memory.resident_bytes()
        memory.reset_peak()
        self._call()
        return max(memory.peak_bytes() - before, 0) + getattr(self._call, "held", 0)

    def turn(self, calls: int) -> float:
        """Return the seconds of a call: of the processor with one thread, else by the clock."""
        clock = time.process_time if self.threads == 1 else time.perf_counter
        start = clock()
        for _ in range(calls):
            self._call()
        return (clock() - start) / calls


def _crew(threads: int, caches: Path, names: Sequence[str]) -> Crew:
    """Return the processes of contenders, which have caches without code."""
    crew = Crew(threads, caches, "benchmarks.showpieces.measure:Server")
    crew.keep_calibration([n for n in names if n.startswith(EINSMITH)])
    return crew


def _verify(name: str, sizes: Sizes, settings: Settings, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of results in float64 at the sizes that are measured, and how far peers are apart there, or at
    small sizes where that takes too long. Raises ValueError where a peer disagrees."""
    path, libraries = folder / "wanted.npz", () if settings.without else tuple(MODULES)
    with closing(_crew(settings.threads, folder / "double", [EINSMITH])) as crew:

        def ask(sizes: Sizes, libraries: Sequence[str], seconds: float) -> dict[str, float]:
            crew.start(EINSMITH).ready(Allowance(PATIENCE))
            return crew.start(EINSMITH).request("verify", Allowance(seconds), name, sizes, str(path), libraries)

        try:
            errors, where = ask(sizes, libraries, VERIFYING), "as measured"
        except WorkerError as e:
            if e.kind != "timeout":
                raise WorkerError(e.kind, f"{name}: {e}") from None
            errors, where = ask(programs.middle(SHOWPIECES[name]), libraries, PATIENCE), "small"
            ask(sizes, (), PATIENCE)
    for peer, error in errors.items():
        if not error <= AGREE:
            raise ValueError(f"{name} {dict(sizes)}: {peer} is {error:.0e} apart in float64")
    return path, {"apart": errors, "verified": where}


def measure(name: str, label: str, settings: Settings) -> dict[str, Any]:
    """Return errors, seconds, bytes and first calls of Einsmith and all peers. Raises WorkerError where a process
    fails, ValueError where results are wrong."""
    sizes, names = SHOWPIECES[name].sizes[label], contenders(name, settings)
    cell: dict[str, Any] = {"seconds": {}, "bytes": {}, "first": {}, "off": {}, "left_out": {}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path, verified = _verify(name, sizes, settings, folder)
        with closing(_crew(settings.threads, folder, names)) as crew:
            for contender in names:
                process = crew.start(contender)
                try:
                    process.ready(Allowance(PATIENCE))
                    process.request("open_case", Allowance(PATIENCE), name, sizes, str(path), False)
                    seconds, off = process.request("first_call", Allowance(settings.limit))
                except WorkerError as e:
                    if e.kind == "failed" or contender == EINSMITH:
                        raise WorkerError(e.kind, f"{name}, {contender}: {e}") from None
                    cell["left_out"][contender] = f"over {settings.limit:g} s" if e.kind == "timeout" else str(e)
                    crew.drop(contender)
                    continue
                if not off <= CLOSE:
                    raise ValueError(f"{name}: {contender} is {off:.0e} off in float32")
                cell["first"][contender], cell["off"][contender] = seconds, off
                cell["bytes"][contender] = process.request("memory", Allowance(PATIENCE))
            cell["seconds"] = _in_turns({n: crew.start(n) for n in cell["first"]}, settings.rounds)
    return cell | verified


def _in_turns(running: dict[str, PeerProcess], rounds: int) -> dict[str, float]:
    """Return the seconds of a call in the fastest turn of each."""
    first = {n: p.request("turn", Allowance(PATIENCE), 1) for n, p in running.items()}
    seconds: dict[str, list[float]] = {n: [] for n in running}
    for turn in range(rounds):
        for n, p in running.items():
            if turn < SLOW_TURNS or first[n] < SLOW:
                calls = max(1, int(TURN / max(first[n], 1e-6)))
                seconds[n].append(p.request("turn", Allowance(PATIENCE), calls))
    return {n: min(x) for n, x in seconds.items()}


def fastest(cell: dict[str, Any]) -> str | None:
    """Return the fastest peer; None where there is none."""
    return next(iter(peers_by_time(cell)), None)


def peers_by_time(cell: dict[str, Any]) -> list[str]:
    """Return the peers, the fastest one first."""
    return sorted((n for n in cell["seconds"] if not n.startswith(EINSMITH)), key=cell["seconds"].__getitem__)
