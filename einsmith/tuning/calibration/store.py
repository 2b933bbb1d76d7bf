"""Store a machine's measured coefficients: one small JSON file a machine in the cache directory.

A record is trusted only if its format, key and checksum fit; any other counts as absent and is written anew. It is
written to a temporary file and moved into place. The first of several processes that measure at once wins: all of them
use its figures, so that they choose, and add up, alike.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from einsmith.base import environment, files, private
from einsmith.base.private import PrivateFolder
from einsmith.cost.facts import REUSED_L3_FRACTION, SHARED_L3_FRACTION, Target

FORMAT = 6
"""Number of the format; it grows with every change of the record, and machines with older records are measured
anew."""
COEFFICIENTS = (
    "fma_per_second",
    "multiplies",
    "dots",
    "tiles",
    "bytes_per_second",
    "l3_share",
    "l3_bandwidth",
    "memory_bandwidth",
    "core_bandwidth",
    "load_seconds",
    "unaligned_seconds",
    "store_seconds",
    "broadcast_seconds",
    "gather_seconds",
    "special_seconds",
    "launch_seconds",
)


def facts_of(target: Target) -> dict[str, Any]:
    """Return the facts that identify a machine: the fields that its target names (`Target.identity`), else all that are
    not measured, and which dot products its tile registers compute, as the system may not let every
    process use them."""
    if target.identity:
        return {name: getattr(target, name) for name in target.identity}
    others = (*COEFFICIENTS, "measured", "overheads")
    facts = {f.name: getattr(target, f.name) for f in fields(target) if f.name not in others}
    return facts | {"tiles": [name for name, _ in target.tiles]}


def machine_of(target: Target) -> str:
    """Return a digest of the facts that identify a machine, in hexadecimal digits."""
    return hashlib.blake2b(_text(facts_of(target)), digest_size=8).hexdigest()


def list_variants(target: Target) -> dict[str, Target]:
    """Return the machine with every number of threads and every option of programs, by its digest (`machine_of`)."""
    options = product(range(1, target.cores + 1), (False, True), (REUSED_L3_FRACTION, SHARED_L3_FRACTION))
    variants = (replace(target, cores=n, winograd=w, kept=k) for n, w, k in options)
    return {machine_of(x): x for x in variants}


@lru_cache(maxsize=8)
def sources(*patterns: str) -> str:
    """Return a hash, in hexadecimal digits, of Einsmith's source files whose paths match one of these patterns.

    Raises:
        ValueError: if a pattern matches no file.
    """
    root = Path(__file__).resolve().parents[2]
    out = hashlib.blake2b(digest_size=8)
    matches = {pattern: list(root.glob(pattern)) for pattern in patterns}
    if missing := [pattern for pattern, paths in matches.items() if not paths]:
        raise ValueError(f"no source file of Einsmith matches {', '.join(missing)}")
    for path in sorted({path for paths in matches.values() for path in paths}):
        out.update(str(path.relative_to(root)).encode() + b"\0" + files.read_bytes(path))
    return out.hexdigest()


def version() -> str:
    """Return a hash of the sources that make the measured code: figures of other code do not apply."""
    return sources(
        "codegen/**/*.py", "codegen/entry/*.[ch]", "tuning/calibration/probes.py", "tuning/calibration/calibrate.py"
    )


def path_of(target: Target, pattern: str = "") -> Path:
    """Return the path of a machine's record, or of a pattern's record on the machine. The target's coefficients do not
    matter."""
    key = hashlib.blake2b(_text([FORMAT, version(), facts_of(target)]), digest_size=8).hexdigest()
    return environment.cache_dir() / "calibration" / (f"{key}-{pattern}.json" if pattern else f"{key}.json")


def read_record(target: Target, path: Path) -> dict[str, Any] | None:
    """Return the content of the sound record of this machine at `path`; None where there is none, or where other users
    may have written it."""
    try:
        with PrivateFolder(path.parent, create=False) as folder:
            record = json.loads(folder.read(path.name))
        body = record["record"]
        if record["checksum"] != checksum(body) or [body["format"], body["version"]] != [FORMAT, version()]:
            return None
        return body if _text(body["machine"]) == _text(facts_of(target)) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def load_pattern(target: Target, pattern: str) -> dict[str, float] | None:
    """Return the coefficients that the pattern with key `pattern` has measured on this machine; None where there is no
    sound record."""
    body = read_record(target, path_of(target, pattern))
    return body["coefficients"] if body is not None else None


def save_pattern(target: Target, pattern: str, coefficients: dict[str, float]) -> dict[str, float]:
    """Record the coefficients that a pattern has measured; return the recorded ones, which may be another process's
    (see `save`)."""
    write_record(target, path_of(target, pattern), {"coefficients": coefficients}, overwrite=False)
    return load_pattern(target, pattern) or coefficients


def load(target: Target) -> Target | None:
    """Return the machine with its recorded coefficients; None where there is no sound record."""
    body = read_record(target, path_of(target))
    if body is None:
        return None
    try:
        coefficients = body["coefficients"]
        coefficients["bytes_per_second"] = tuple(coefficients["bytes_per_second"])
        for name in ("special_seconds", "dots", "tiles"):
            coefficients[name] = tuple((key, value) for key, value in coefficients[name])
        return replace(target, **{name: coefficients[name] for name in COEFFICIENTS})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def measured(target: Target) -> list[str]:
    """Return the names of coefficients that were measured, not taken from the static facts; for people."""
    body = read_record(target, path_of(target))
    return list(body["measured"]) if body is not None else []


def rejected(target: Target) -> dict[str, str]:
    """Return, by name, why a measured coefficient is not used; for people."""
    body = read_record(target, path_of(target))
    return dict(body["rejected"]) if body is not None else {}


def save(target: Target, names: list[str], overwrite: bool, rejected: dict[str, str] | None = None) -> Target:
    """Record the coefficients, the names of measured ones, and why others are not used; return the machine with the
    recorded coefficients. These are another process's where it came first and `overwrite` is False. Raises OSError
    where nothing can be written."""
    coefficients = {name: value for name, value in asdict(target).items() if name in COEFFICIENTS}
    content = {"coefficients": coefficients, "measured": names, "rejected": rejected or {}}
    if write_record(target, path_of(target), content, overwrite):
        return target
    return load(target) or target


def write_record(target: Target, path: Path, content: dict[str, Any], overwrite: bool) -> bool:
    """Put a record in place, unless there is a sound one and `overwrite` is False; return whether it was put."""
    body = {"format": FORMAT, "version": version(), "machine": facts_of(target)} | content
    text = json.dumps({"checksum": checksum(body), "record": body}, indent=1)
    with PrivateFolder(path.parent) as folder:
        if not overwrite and not folder.write(path.name, text.encode(), private.MODE, is_new=True):
            if read_record(target, path) is not None:
                return False
            overwrite = True
        return not overwrite or folder.write(path.name, text.encode(), private.MODE)


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def checksum(body: Any) -> str:
    """Return the digest by which a damaged record is noticed."""
    return hashlib.blake2b(_text(body), digest_size=16).hexdigest()
