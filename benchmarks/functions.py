"""How many functions of Einsmith a first call enters: python -m benchmarks.functions

Functions are counted from the import on until the first relu(A @ B + b) has returned, in a process with empty caches
and in one after it: comprehensions and generators too, bodies of modules and classes not. The machine is not measured.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
import threading
from types import FrameType

import numpy as np

MARK = "BENCHMARKS_COUNT_FUNCTIONS"
"""The environment variable of processes that count; they import Einsmith no earlier than that."""


def count() -> str:
    """Return the number of functions that this process enters, and of files that they are in, in words."""
    entered: set[tuple[str, str, int]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        place = code.co_filename.rpartition("/einsmith/")[2]
        if event == "call" and place != code.co_filename and code.co_flags & inspect.CO_OPTIMIZED:
            entered.add((place, code.co_qualname, code.co_firstlineno))

    a, b, c = (np.ones(shape, np.float32) for shape in ((96, 64), (64, 48), (48,)))
    threading.setprofile(note)
    sys.setprofile(note)
    import einsmith as es

    es.jit(lambda a, b, c: es.functional.relu(a @ b + c))(a, b, c)
    sys.setprofile(None)
    threading.setprofile(None)
    return f"{len(entered):,} functions in {len({place for place, *_ in entered})} files"


def main() -> int:
    """Print the counts; return the exit status."""
    if MARK in os.environ:
        print(count())
        return 0
    with tempfile.TemporaryDirectory() as folder:
        variables = {MARK: "1", "EINSMITH_CACHE_DIR": folder, "EINSMITH_CALIBRATE": "0", "EINSMITH_THREADS": "2"}
        for when in ("with empty caches", "then"):
            command = [sys.executable, "-m", "benchmarks.functions"]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | variables)
            print(done.stdout.strip(), when)
    return 0


if __name__ == "__main__":
    sys.exit(main())
