"""Run one peer in a process of its own, driven by lines of JSON.

    python -m einsmith.bench.worker TABLE PEER THREADS

It answers {"ready": ...} once its library is imported, then one line per command:
    open PROBLEM      the problem that the next commands are about: {}
    first             builds everything and runs the first step: {"seconds", "loss", "described"}, the last being what a
                      session can tell of its program, such as how many kernels it has
    choose N          where the peer has several formulations, times N steps of each, then starts afresh with the
                      fastest: {"variant": its name, or null}
    steps N           {"losses": [...], "bytes": the most memory that the process held meanwhile, above what it held
                      when its library was imported; 0 where the system does not tell}
    describe          {"described"}, as after `first`
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

from einsmith.base import npz
from einsmith.base.system import memory, processors
from einsmith.bench.problem import Session, Workload


def limit_cpus(threads: int) -> None:
    """Leave the process as many CPUs as threads, on separate cores: some libraries offer no other way."""
    cores = processors.cores()
    chosen = [core[0] for core in cores] + sorted(cpu for core in cores for cpu in core[1:])
    if len(chosen) > threads:
        processors.restrict(chosen[:threads])


CHOICE_SECONDS = 0.3
"""What a formulation may take where the fastest is chosen; it runs at least once untimed and once timed."""


def measure(variants: Sequence[str], build: Callable[[str], Session], steps: int) -> dict[str, float]:
    """Return the seconds of each formulation's quickest step of `steps`, or of those that CHOICE_SECONDS leave; one
    that fails has none. The first, which ran before, is measured whatever happens, so that an error of it is
    raised."""
    seconds: dict[str, float] = {}
    for variant in variants:
        try:
            session = build(variant)
            clock(session, 1)
            end = time.perf_counter() + CHOICE_SECONDS
            seconds[variant] = clock(session, 1)[0]
            for _ in range(steps - 1):
                if time.perf_counter() > end:
                    break
                seconds[variant] = min(seconds[variant], *clock(session, 1))
        except Exception:
            if variant == variants[0]:
                raise
            traceback.print_exc()
    return seconds


def clock(session: Session, steps: int) -> list[float]:
    """Return the seconds of each step."""
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        session.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def describe(session: Session) -> dict[str, Any]:
    """Return what a session can tell of its program."""
    return session.describe() if hasattr(session, "describe") else {}


def serve(
    module: Any,
    peer: str,
    threads: int,
    commands: TextIO,
    answer: Callable[[dict], None],
    find: Callable[[str], Workload],
) -> None:
    """Answer commands until there are no more. find: function that returns the problem of a name."""
    session: Session | None = None
    problem: Workload | None = None
    arrays: dict[str, np.ndarray] = {}
    variants: tuple = (None,)
    made: dict[str | None, Session] = {}
    imported = memory.resident_bytes()

    def build(variant: str | None) -> Session:
        assert problem is not None
        known = made.get(variant)
        if known is None or problem.stateful and not hasattr(known, "restart"):
            made.pop(variant, None)
            extra = {} if variant is None else {"variant": variant}
            made[variant] = module.build(problem, arrays, threads, peer, **extra)
        elif problem.stateful:
            known.restart(arrays)  # type: ignore[attr-defined]
        return made[variant]

    for line in commands:
        words = line.split()
        try:
            if words[0] == "quit":
                return
            if words[0] == "open":
                session, arrays = None, {}
                made.clear()  # frees what the last problem held
                problem = find(words[1])
                names = module.variants(problem, peer) if hasattr(module, "variants") else None
                if names == ():
                    answer({"error": "it has no operator for this problem"})
                    continue
                arrays, variants = problem.arrays(), names or (None,)
                answer({})
                continue
            assert problem is not None, "the first command is `open`"
            if words[0] == "first":
                start = time.perf_counter()
                session = build(variants[0])
                loss = session.step()
                took = time.perf_counter() - start
                answer({"seconds": took, "loss": loss, "described": describe(session)})
                continue
            assert session is not None, "the first command about a problem is `first`"
            if words[0] == "choose":
                seconds = measure(variants, build, int(words[1])) if len(variants) > 1 else {}
                variant = min(seconds, key=seconds.__getitem__) if seconds else variants[0]
                session = build(variant)
                answer({"variant": variant, "seconds": seconds})
            elif words[0] == "steps":
                memory.reset_peak()
                losses = [session.step() for _ in range(int(words[1]))]
                answer({"losses": losses, "bytes": max(0, memory.peak_bytes() - imported)})
            elif words[0] == "describe":
                answer({"described": describe(session)})
            elif words[0] == "results":
                npz.write_arrays(words[1], session.results())
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
    """Serve the commands of standard input."""
    table, peer, threads = importlib.import_module(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    # Libraries print to stdout; the answers go through a descriptor of their own.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(reply: dict) -> None:
        out.write(json.dumps(reply) + "\n")
        out.flush()

    limit_cpus(threads)
    start = time.perf_counter()
    try:
        module = importlib.import_module(table.PEERS[peer])
        if hasattr(module, "prepare"):
            module.prepare()
    except ImportError as e:
        answer({"missing": str(e)})
        return
    except Exception as e:
        answer({"error": f"{type(e).__name__}: {e}"})
        return
    answer({"ready": module.VERSION, "import_seconds": time.perf_counter() - start})
    serve(module, peer, threads, sys.stdin, answer, table.find)


if __name__ == "__main__":
    main()
