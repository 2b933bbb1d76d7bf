"""A process that makes and checks cases: one line of JSON in, one out. `run.Worker` starts it and talks to it.

    python tests/fuzz/worker.py ANNOUNCED [CHECKOUT] [SETUP]

ANNOUNCED: a file that always has the case under way; CHECKOUT: a folder from which einsmith is imported, "" for the
usual one; SETUP: a Python file that runs first (to plant faults).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent.parent)


def serve(announced: str, checkout: str, setup: str) -> None:
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nobody else's words go into the channel
    sys.path = [p for p in sys.path if p and Path(p).resolve() != Path(__file__).resolve().parent]
    if checkout:
        sys.path.insert(0, checkout)
        import einsmith

        assert Path(einsmith.__file__).resolve().is_relative_to(Path(checkout).resolve()), einsmith.__file__
        sys.path.remove(checkout)
    if ROOT in sys.path:
        sys.path.remove(ROOT)
    sys.path.insert(0, ROOT)

    import faulthandler
    from dataclasses import asdict

    faulthandler.enable()
    from tests.fuzz import session, variants

    variants.in_memory()
    session.ANNOUNCED = os.open(announced, os.O_RDWR | os.O_CREAT, 0o600)
    if setup:
        exec(compile(Path(setup).read_text(), setup, "exec"), {"__name__": "setup"})
    reached: set = set()
    told: set = set()
    for line in sys.stdin:
        job = json.loads(line)
        reached |= {tuple(c) for c in job.get("reached", ())}
        if "given" in job:
            outcome = session.attempt(job["theme"], job["given"], job["check"])
        else:
            outcome = session.session(job["seed"], job["number"], reached)
        variants.forget(code=True)
        reached |= set(outcome.cells)
        answer = asdict(outcome)
        answer["cells"] = [c for c in outcome.cells if c not in told]
        answer["offered"] = [c for c in outcome.offered if ("offered", *c) not in told]
        told |= set(outcome.cells) | {("offered", *c) for c in outcome.offered}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


if __name__ == "__main__":
    serve(*(sys.argv[1:] + [""] * 3)[:3])
