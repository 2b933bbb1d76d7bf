"""Store the measurements of searches: for a kernel on a machine, the seconds of every candidate that was raced.

They lie in a table of their own in the store of tuned configurations, one row a kernel, and serve to fit the cost model
(`tuning.kernels.refit`). They are read only by the sources and on the machine that made them: a row is a pickle, and
its seconds are those of generated code. Rows are neither exported nor imported.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from einsmith.cost.facts import Target
from einsmith.ir import pickled
from einsmith.kernels import autoconfig
from einsmith.kernels.sources import is_builtin
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.tuning.calibration import store
from einsmith.tuning.kernels import database
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.kernels.genetic import Candidate

MAX_KERNELS = 1000
"""Most kernels whose measurements are kept, a few to 20 KB each; the oldest are removed first."""
MIN_CANDIDATES = 2
"""Fewest candidates of a kernel that are kept: only their ratios are of use."""
_TABLE = """
CREATE TABLE IF NOT EXISTS measurements (
    kernel TEXT NOT NULL, machine TEXT NOT NULL, version TEXT NOT NULL, count INTEGER NOT NULL, at REAL NOT NULL,
    content BLOB NOT NULL, checksum TEXT NOT NULL, PRIMARY KEY (kernel, machine, version)
)
"""
_HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type='table' AND name='measurements'"
_INSERT = """
INSERT INTO measurements VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (kernel, machine, version) DO UPDATE
SET count=excluded.count, at=excluded.at, content=excluded.content, checksum=excluded.checksum
WHERE excluded.count >= count
"""


class Measurements(NamedTuple):
    """The measured candidates of one kernel.

    machine: digest of the machine (`store.machine_of`); seconds: of each candidate, all relative to the model's choice
    of one search."""

    kernel: Kernel | Rows
    machine: str
    seconds: dict[Candidate, float]


class Count(NamedTuple):
    """Numbers of measured candidates, and of their kernels."""

    kernels: int = 0
    candidates: int = 0

    def __str__(self) -> str:
        many = "" if self.candidates == 1 else "s", "" if self.kernels == 1 else "s"
        return f"{self.candidates} measurement{many[0]} of {self.kernels} kernel{many[1]}"


def version() -> str:
    """Return a hash of the sources that make the code of a configuration, and of those that rows are pickles of."""
    code = "kernels/**/*.py", "codegen/**/*.py", "tiles/**/*.py", "schedule/**/*.py", "ir/**/*.py"
    return store.sources(*code, "base/dtypes.py", "tuning/kernels/genetic.py")


def record(kernel: Kernel | Rows, target: Target, seconds: Mapping[Candidate, float]) -> None:
    """Record the seconds of a kernel's candidates in one search, unless an earlier search has measured more of them.

    Candidates that cannot run (infinite seconds) and those of a user's patterns are left out."""
    kept = {
        c: s for c, s in seconds.items() if 0 < s < math.inf and is_builtin(autoconfig.pattern_of(c.pattern))
    }  # a process that fits need not know the user's patterns
    if len(kept) < MIN_CANDIDATES:
        return
    try:
        content = pickled.dumps((kernel, kept))
    except ValueError:  # a node nested too deeply for a pickle: a fit goes without the kernel
        return
    row = (name_of(kernel), store.machine_of(target), version(), len(kept), time.time(), content, _checksum(content))

    def insert(link: sqlite3.Connection) -> None:
        link.execute(_TABLE)
        link.execute(_INSERT, row)
        kept_rows = "SELECT rowid FROM measurements ORDER BY at DESC LIMIT -1 OFFSET ?"
        link.execute(f"DELETE FROM measurements WHERE rowid IN ({kept_rows})", (MAX_KERNELS,))

    database.attempt(insert, None, write=True)


def list_measurements(machines: Collection[str]) -> list[Measurements]:
    """Return the measurements made on these machines (digests) with these sources, the newest first; rows
    that are damaged are left out."""

    def find(link: sqlite3.Connection) -> list[tuple]:
        if link.execute(_HAS_TABLE).fetchone() is None:
            return []
        query = "SELECT machine, content, checksum FROM measurements WHERE version=? ORDER BY at DESC"
        return link.execute(query, (version(),)).fetchall()

    out = []
    for machine, content, checksum in database.attempt(find, list[tuple]()):
        if machine in machines and isinstance(content, bytes) and _checksum(content) == checksum:
            row = _read(content, machine)
            out += [row] if row is not None else []
    return out


def _read(content: bytes, machine: str) -> Measurements | None:
    """Return what a row holds; None where it is not what `record` writes."""
    try:
        kernel, seconds = pickled.loads(content)
        sound = isinstance(kernel, Kernel | Rows) and all(
            isinstance(c, Candidate) and 0 < s < math.inf for c, s in seconds.items()
        )
    except (ValueError, TypeError, AttributeError):
        return None
    return Measurements(kernel, machine, seconds) if sound else None


def count(link: sqlite3.Connection, prefix: str = "") -> Count:
    """Return how many measurements there are of kernels whose digests begin with `prefix`, in the transaction of
    `link`."""
    if link.execute(_HAS_TABLE).fetchone() is None:
        return Count()
    query = "SELECT count(DISTINCT kernel), total(count) FROM measurements WHERE substr(kernel, 1, ?)=?"
    return Count(*map(int, link.execute(query, (len(prefix), prefix)).fetchone()))


def delete(link: sqlite3.Connection, prefix: str) -> Count:
    """Remove the measurements of kernels whose digests begin with `prefix`, in the transaction of `link`; return how
    many there were."""
    found = count(link, prefix)
    if found.kernels:
        link.execute("DELETE FROM measurements WHERE substr(kernel, 1, ?)=?", (len(prefix), prefix))
    return found


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
