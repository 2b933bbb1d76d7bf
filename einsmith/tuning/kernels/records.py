"""Store and look up tuned configurations: for a kernel on a machine, the one that was measured to be the fastest.

A record found on this machine with these sources is used; any other record of the kernel, or of kernels that differ
from it in extents alone, is a first guess for a search. A record is a text, as `decisions` reads it; its reader finds
out whether it can be followed. A store that cannot be used counts as empty.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from einsmith.base import files
from einsmith.base.caches import Once
from einsmith.base.errors import EinsmithWarning, StoreError
from einsmith.cost.facts import Target
from einsmith.ir.graph_digest import graph_digest, number_leaves
from einsmith.ir.nodes import Compute, Graph, postorder
from einsmith.kernels.pattern import describe
from einsmith.passes.pipeline import is_graph_decision
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.structure import extents, structure
from einsmith.tuning.calibration import store
from einsmith.tuning.kernels import database
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.kernels.model_error import Win

MAX_RECORDS = 20_000
"""Most records kept; imported ones are removed first, and then the oldest."""
MAX_GUESSES = 8
"""Most first guesses of one kind: records of the kernel itself, or of similar kernels."""
MAX_IMPORT = MAX_RECORDS << 14
"""Most bytes of an exported file that are read: 16 KiB for each record that is kept."""
EXPORT_FORMAT = "einsmith: tuned configurations"
"""Name of the format of exported files, their entry `format`."""
_LATEST, _LARGEST = 253_402_300_800.0, 2**63
"""End of the times that a calendar shows, the year 9999 (seconds since 1970), and of SQLite's integers."""
_MAX_QUERY_KERNELS = 500
"""Most kernels in one query: SQLite's own limit on parameters may be 999."""

T = TypeVar("T")


class Record(NamedTuple):
    """The fastest configuration of a kernel, or the decisions by which a graph's program is faster.

    Attributes:
        kernel: the digest of the kernel or graph, in hexadecimal digits
        seconds: the median of the runs
        spread: the fraction of `seconds` by which runs differ
        prior: seconds of the model's own choice, measured in the same race
        when: seconds since 1970
        confirmed: how often it was faster again inside a program
        described: the kernel, for people
    """

    kernel: str
    text: str
    seconds: float
    spread: float
    prior: float
    when: float
    confirmed: int
    described: str


class StoredRecord(NamedTuple):
    """A record and its origin. machine: as `store.machine_of` returns it; version: hash of the sources that made the
    code; own: whether it was measured here, not imported."""

    record: Record
    machine: str
    version: str
    own: bool


_WHERE_OWN = "kernel=? AND machine=? AND version=? AND own=1"
"""SQL condition of a record found for a kernel on this machine with these sources."""
_WHERE_USED = "own=1 AND confirmed>0"
"""SQL condition of records that programs are compiled to: found here, and faster inside a program too. A search that
is killed leaves unconfirmed ones."""
_RECORD_COLUMNS = "kernel, text, seconds, spread, prior, at, confirmed, described"
"""Columns of the fields of a `Record`, in their order."""
GRAPH = "graph"
"""The `structure` of a graph's record."""
SHOWN_DIGITS = 8
"""Digits of a record's name that messages and lists show."""
_SEPARATOR = "; "
"""What stands between the decisions of a graph's record."""
_WARNED = Once("records of graphs with texts that are no decisions")
"""Texts of which a warning was given."""
COLUMNS: dict[str, type] = {
    "kernel": str,
    "machine": str,
    "version": str,
    "text": str,
    "seconds": float,
    "spread": float,
    "prior": float,
    "at": float,
    "confirmed": int,
    "described": str,
    "structure": str,
    "extents": str,
}
"""Columns of the table of records, except the one that says whether a record is this machine's own."""
_INSERT = f"INSERT OR REPLACE INTO records ({', '.join(COLUMNS)}, own) VALUES ({'?, ' * len(COLUMNS)}?)"


def version() -> str:
    """Return a hash of the sources that make the code of a configuration: figures of other code do not apply."""
    return store.sources("kernels/**/*.py", "codegen/**/*.py", "gpu/tiles/**/*.py")


def _here(target: Target) -> tuple[str, str]:
    return store.machine_of(target), version()


def _sizes(kernel: Kernel) -> str:
    return ",".join(map(str, extents(kernel)))


# -- used while programs are compiled: nothing here raises an error


def _find(query: str, parameters: Sequence[Any]) -> list[tuple]:
    return database.attempt(lambda link: link.execute(query, parameters).fetchall(), list[tuple]())


def text_of(kernel: Kernel, target: Target) -> str:
    """Return the recorded configuration of a kernel; empty where there is none."""
    return texts_of((kernel,), target).get(kernel, "")


def texts_of(kernels: Iterable[Kernel], target: Target) -> dict[Kernel, str]:
    """Return the recorded configurations of those kernels that have one."""
    if not files.exists(database.path_of()):
        return {}
    by_name = {name_of(k): k for k in kernels}
    names = list(by_name)

    def find(link: sqlite3.Connection) -> dict[Kernel, str]:
        texts: dict[Kernel, str] = {}
        for first in range(0, len(names), _MAX_QUERY_KERNELS):
            chunk = names[first : first + _MAX_QUERY_KERNELS]
            places = ", ".join("?" * len(chunk))
            where = f"kernel IN ({places}) AND machine=? AND version=? AND {_WHERE_USED}"
            query = f"SELECT kernel, text FROM records WHERE {where}"
            texts |= {by_name[name]: str(text) for name, text in link.execute(query, (*chunk, *_here(target)))}
        return texts

    return database.attempt(find, {})


def list_guesses(kernel: Kernel, target: Target) -> list[Win]:
    """Return first guesses for a kernel: its records by other machines, with other sources, from imported files, or
    never confirmed; those found here before imported ones, newest first."""
    query = (
        f"SELECT text, seconds, prior FROM records WHERE kernel=? AND NOT (machine=? AND version=? AND {_WHERE_USED}) "
        "ORDER BY own DESC, at DESC"
    )
    rows = _find(query, (name_of(kernel), *_here(target)))
    return _first_of_each((str(text), ratio(*seconds), 0.0) for text, *seconds in rows)


def list_similar_guesses(kernel: Kernel, target: Target) -> list[Win]:
    """Return first guesses from kernels that differ in extents alone: records of this machine and these sources first,
    each group by increasing distance of the extents."""
    query = "SELECT text, seconds, prior, extents, machine=? AND version=? FROM records WHERE structure=? AND kernel<>?"
    rows = _find(query, (*_here(target), structure(kernel), name_of(kernel)))
    kernel_extents = extents(kernel)

    def distance(sizes: str) -> float:
        try:
            pairs = zip(kernel_extents, map(int, sizes.split(",")), strict=True)
            return sum(abs(math.log((a + 1) / (b + 1))) for a, b in pairs)
        except ValueError:
            return math.inf

    wins = [(not here, distance(str(sizes)), str(text), ratio(*seconds)) for text, *seconds, sizes, here in rows]
    return _first_of_each((text, ratio, far) for _, far, text, ratio in sorted(wins, key=lambda win: win[:2]))


def _first_of_each(wins: Iterable[tuple[str, float, float]]) -> list[Win]:
    """Return the first win of each text, of the first MAX_GUESSES texts."""
    by_text: dict[str, Win] = {}
    for text, ratio, distance in wins:
        by_text.setdefault(text, Win(text, ratio, distance))
    return [*by_text.values()][:MAX_GUESSES]


def ratio(seconds: Any, prior: Any) -> float:
    """Return a record's seconds over those of the model's choice; 1 where they are no times."""
    usable = all(isinstance(x, float) and 0 < x < math.inf for x in (seconds, prior))
    return seconds / prior if usable else 1.0


def create(kernel: Kernel, text: str, seconds: float, spread: float, prior: float, confirmed: int) -> Record:
    """Return a record with the current time."""
    return Record(name_of(kernel), text, seconds, spread, prior, time.time(), confirmed, describe(kernel))


def record_choice(kernel: Kernel, target: Target, record: Record) -> None:
    """Record the configuration found for a kernel here, in the place of an earlier one."""
    _record_work(record, target, structure(kernel), _sizes(kernel))


def _record_work(record: Record, target: Target, structure: str, extents: str) -> None:
    machine, code_version = _here(target)
    values = {
        "kernel": record.kernel,
        "machine": machine,
        "version": code_version,
        "text": record.text,
        "seconds": record.seconds,
        "spread": record.spread,
        "prior": record.prior,
        "at": record.when,
        "confirmed": record.confirmed,
        "described": record.described,
        "structure": structure,
        "extents": extents,
    }

    def insert(link: sqlite3.Connection) -> None:
        link.execute(_INSERT, (*(values[c] for c in COLUMNS), 1))
        _trim(link)

    database.attempt(insert, None, write=True)


def _trim(link: sqlite3.Connection) -> None:
    link.execute(
        "DELETE FROM records WHERE rowid IN (SELECT rowid FROM records ORDER BY own DESC, at DESC LIMIT -1 OFFSET ?)",
        (MAX_RECORDS,),
    )


def confirm(kernel: Kernel, target: Target) -> None:
    """Count that a kernel's recorded configuration was the fastest once more."""
    _change(f"UPDATE records SET confirmed=confirmed+1 WHERE {_WHERE_OWN}", kernel, target)


def find(kernel: Kernel, target: Target) -> Record | None:
    """Return the record found for a kernel on this machine with these sources; None where there is none."""
    query = f"SELECT {_RECORD_COLUMNS} FROM records WHERE {_WHERE_OWN}"
    rows = _find(query, (name_of(kernel), *_here(target)))
    return Record(*rows[0]) if rows else None


def remove(kernel: Kernel, target: Target) -> None:
    """Remove the record found for a kernel on this machine with these sources."""
    _change(f"DELETE FROM records WHERE {_WHERE_OWN}", kernel, target)


def _change(query: str, kernel: Kernel, target: Target) -> None:
    parameters = (name_of(kernel), *_here(target))
    database.attempt(lambda link: link.execute(query, parameters).rowcount, 0, write=True)


# -- of graphs


def name_of_graph(graph: Graph) -> str:
    """Return a digest of a graph, in hexadecimal digits: of its structure, and of the sources of the passes that it
    goes through."""
    sources = store.sources("passes/**/*.py", "schedule/**/*.py", "ir/**/*.py").encode()
    return hashlib.blake2b(graph_digest(graph, number_leaves(graph)) + sources, digest_size=16).hexdigest()


def _find_graph(graph: Graph, target: Target) -> Record | None:
    """Return the recorded decisions for a graph on a machine; None where nothing is recorded."""
    if not files.exists(database.path_of()):
        return None
    query = f"SELECT {_RECORD_COLUMNS} FROM records WHERE structure=? AND machine=? AND version=? AND {_WHERE_USED}"
    by_name = {str(row[0]): Record(*row) for row in _find(query, (GRAPH, *_here(target)))}
    return by_name.get(name_of_graph(graph)) if by_name else None  # the name takes longer than the query


def find_graph_ratio(graph: Graph, target: Target) -> float:
    """Return the time of a graph's program by its recorded decisions, as a ratio to its time where the cost model
    decides; 1 where nothing is recorded."""
    record = _find_graph(graph, target)
    return record.seconds / record.prior if record is not None and min(record.seconds, record.prior) > 0 else 1.0


def find_graph_decisions(graph: Graph, target: Target) -> frozenset[str]:
    """Return the decisions that are recorded for a graph's program. Texts that are none are ignored, with a
    warning."""
    record = _find_graph(graph, target)
    name, text = (record.kernel, str(record.text)) if record is not None else ("", "")
    parts = text.split(_SEPARATOR) if text else []
    unknown = [x for x in parts if not is_graph_decision(x)]
    if unknown and _WARNED((name, *unknown)):
        digits = name[:SHOWN_DIGITS]
        warnings.warn(
            f"the record {digits} of a graph holds {unknown[0]!r}, which is no decision that can be followed; it is "
            f"ignored. `einsmith tune --forget {digits}` removes the record",
            EinsmithWarning,
            stacklevel=2,
        )
    return frozenset(parts).difference(unknown)


def record_graph(
    graph: Graph, target: Target, decisions: frozenset[str], seconds: float, spread: float, prior: float
) -> None:
    """Record the decisions by which a graph's program is faster; where there are none, remove the earlier record."""
    name, text = name_of_graph(graph), _SEPARATOR.join(sorted(decisions))
    if decisions:
        tensors = sum(isinstance(t, Compute) for t in postorder(graph.roots))
        inputs = ", ".join(f"{x.dtype.name}{list(x.shape)}" for x in graph.inputs)
        described = f"a graph of {tensors} tensors, of {inputs}"
        _record_work(Record(name, text, seconds, spread, prior, time.time(), 1, described), target, GRAPH, "")
    else:
        parameters = (name, *_here(target))
        database.attempt(
            lambda link: link.execute(f"DELETE FROM records WHERE {_WHERE_OWN}", parameters).rowcount, 0, write=True
        )


# -- for people: these raise StoreError where the store cannot be used


def _query(work: Callable[[sqlite3.Connection], T], nothing: T, write: bool = False) -> T:
    try:
        return database.run(work, nothing, write)
    except (sqlite3.Error, OSError) as e:
        raise StoreError(f"the store of tuned configurations {database.path_of()} cannot be used: {e}") from e


def _all(query: str) -> list[tuple]:
    return _query(lambda link: link.execute(query).fetchall(), list[tuple]())


def list_records() -> list[StoredRecord]:
    """Return all records, the newest first."""
    query = f"SELECT machine, version, own, {_RECORD_COLUMNS} FROM records ORDER BY at DESC"
    rows = _all(query)
    return [
        StoredRecord(Record(*record), machine, code_version, bool(is_own))
        for machine, code_version, is_own, *record in rows
    ]


def forget(prefix: str = "") -> int:
    """Remove the records of kernels whose digests begin with `prefix`, whatever their origin; return how many there
    were."""
    query = "DELETE FROM records WHERE substr(kernel, 1, ?)=?"

    def remove(link: sqlite3.Connection) -> int:
        return link.execute(query, (len(prefix), prefix)).rowcount

    return _query(remove, 0, write=True) if files.exists(database.path_of()) else 0


def export_file(path: Path) -> int:
    """Write all records found on this machine, with whatever sources, to a file for others; return how many they
    are."""
    query = f"SELECT {', '.join(COLUMNS)} FROM records WHERE own=1 ORDER BY kernel, machine, version"
    rows = _all(query)
    records = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    content = {"format": EXPORT_FORMAT, "number": database.FORMAT, "checksum": checksum(records), "records": records}
    try:
        files.write(path, json.dumps(content, indent=1))
    except OSError as e:
        raise StoreError(f"{path} cannot be written: {e.strerror or e}") from e
    return len(records)


def import_file(path: Path) -> int:
    """Store the records of another machine's file as first guesses; return how many they are. Raises StoreError, with
    nothing changed, for a file that `export_file` did not write, or that is damaged."""
    try:
        rows = _content(json.loads(files.read_bytes(path, MAX_IMPORT)))
    except OSError as e:
        raise StoreError(f"{path} cannot be read: {e.strerror or e}") from e
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise StoreError(f"{path} is not a valid file of `einsmith tune --export`: {e}; nothing was changed") from None

    def insert(link: sqlite3.Connection) -> None:
        link.executemany(_INSERT, [(*row, 0) for row in rows])
        _trim(link)

    _query(insert, None, write=True)
    return len(rows)


def _content(content: Any) -> list[tuple]:
    """Return the rows of a file. Raises ValueError, KeyError or TypeError where the file is not sound."""
    if not isinstance(content, dict) or content.get("format") != EXPORT_FORMAT:
        raise ValueError("it has another format")
    if content["number"] != database.FORMAT:
        raise ValueError(f"its format has the number {content['number']!r}, and only {database.FORMAT} can be read")
    if content["checksum"] != checksum(content["records"]):
        raise ValueError("its content does not match its checksum")
    rows = []
    for record in content["records"]:
        values = [record[name] for name in COLUMNS]
        for (name, kind), value in zip(COLUMNS.items(), values, strict=True):
            if type(value) is not kind or not _is_sound(name, value):
                raise ValueError(f"a record has {ascii(value)[:80]} for {name}")
        rows.append(tuple(values))
    return rows


def _is_sound(name: str, value: Any) -> bool:
    """Return whether a column of a record may have a value: lines of printable text, and numbers that can be stored and
    shown."""
    if isinstance(value, str):
        return value.isprintable() and (name != "kernel" or set(value) <= set("0123456789abcdef"))
    return bool(0 <= value < {"at": _LATEST, "confirmed": _LARGEST}.get(name, math.inf))


def checksum(records: Any) -> str:
    """Return the digest by which a damaged file of records is noticed."""
    return hashlib.blake2b(json.dumps(records, sort_keys=True).encode(), digest_size=16).hexdigest()
