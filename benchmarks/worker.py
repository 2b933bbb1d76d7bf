"""One peer on one problem, in a process of its own, driven by lines of JSON.

    python -m benchmarks.worker PEER PROBLEM THREADS

It answers {"ready": ...} once its library is imported, then one line per command:
    first             builds everything and runs the first step: {"seconds", "loss"}
    choose N          where the peer has several formulations, times N steps of each, then starts afresh with the
                      fastest: {"variant": its name, or null}
    steps N           {"losses": [...]}
    results PATH      writes the results as .npz: {}
    time N WARM       WARM steps untimed, then N timed: {"seconds": [...]}
    quit
An exception is answered by {"error": ...}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import numpy as np

from benchmarks.problems import PROBLEMS, Session

PEERS = {
    "einsmith": "benchmarks.peers.einsmith_peer",
    "torch": "benchmarks.peers.torch_peer",
    "compile": "benchmarks.peers.torch_peer",
    "jax": "benchmarks.peers.jax_peer",
    "tensorflow": "benchmarks.peers.tensorflow_peer",
    "xla": "benchmarks.peers.tensorflow_peer",
    "peak": "benchmarks.peers.peak",
    "copy": "benchmarks.peers.copying",
}


def limit_cpus(threads: int) -> None:
    """Leaves the process as many CPUs as threads, on separate cores: some libraries offer no other way."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as f:
                core = f.read().strip()
        except OSError:
            core = str(cpu)
        cores.setdefault(core, cpu)
    chosen = list(cores.values())
    chosen += [c for c in sorted(os.sched_getaffinity(0)) if c not in chosen]
    if len(chosen) > threads:
        os.sched_setaffinity(0, chosen[:threads])


def measure(variants: Sequence[str], build: Callable[[str], Session], steps: int) -> dict[str, float]:
    """Seconds of each formulation's quickest step; one that fails has none. The first, which ran before, is measured
    whatever happens, so that an error of it is raised."""
    seconds: dict[str, float] = {}
    for variant in variants:
        try:
            session = build(variant)
            seconds[variant] = min(clock(session, steps + 2)[2:])
        except Exception:
            if variant == variants[0]:
                raise
            traceback.print_exc()
    return seconds


def clock(session: Session, steps: int) -> list[float]:
    """Seconds of each step."""
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        session.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def serve(module: Any, setup: tuple, commands: TextIO, answer: Callable[[dict], None]) -> None:
    session: Session | None = None
    problem, arrays, threads, peer = setup
    variants: tuple = (module.variants(problem.network, peer) if hasattr(module, "variants") else None) or (None,)

    def build(variant: str | None) -> Session:
        extra = {} if variant is None else {"variant": variant}
        return module.build(problem, arrays, threads, peer, **extra)

    for line in commands:
        words = line.split()
        try:
            if words[0] == "quit":
                return
            if words[0] == "first":
                start = time.perf_counter()
                session = build(variants[0])
                loss = session.step()
                answer({"seconds": time.perf_counter() - start, "loss": loss})
                continue
            assert session is not None, "the first command is `first`"
            if words[0] == "choose":
                seconds = measure(variants, build, int(words[1])) if len(variants) > 1 else {}
                variant = min(seconds, key=seconds.__getitem__) if seconds else variants[0]
                session = build(variant)
                answer({"variant": variant, "seconds": seconds})
            elif words[0] == "steps":
                answer({"losses": [session.step() for _ in range(int(words[1]))]})
            elif words[0] == "results":
                np.savez(words[1], **session.results())  # type: ignore[arg-type]
                answer({})
            elif words[0] == "time":
                warm = int(words[2])
                answer({"seconds": clock(session, warm + int(words[1]))[warm:]})
            else:
                answer({"error": f"no command {words[0]!r}"})
        except Exception as e:
            if os.environ.get("EINSMITH_DEBUG", "0") not in ("", "0"):
                traceback.print_exc()
            answer({"error": f"{type(e).__name__}: {e}"})


def main() -> None:
    peer, name, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # Libraries print to stdout; the answers go through a descriptor of their own.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(reply: dict) -> None:
        out.write(json.dumps(reply) + "\n")
        out.flush()

    limit_cpus(threads)
    problem = PROBLEMS[name]
    start = time.perf_counter()
    try:
        module = importlib.import_module(PEERS[peer])
        if hasattr(module, "prepare"):
            module.prepare()
    except ImportError as e:
        answer({"missing": str(e)})
        return
    except Exception as e:
        answer({"error": f"{type(e).__name__}: {e}"})
        return
    arrays = problem.arrays()
    answer({"ready": module.VERSION, "import_seconds": time.perf_counter() - start})
    serve(module, (problem, arrays, threads, peer), sys.stdin, answer)


if __name__ == "__main__":
    main()
