"""Cache object code on disk.

Each entry is a file named by its key. An entry is trusted only if its checksum, length and version fit; any other is a
miss, and is written anew. The directory is private (0700) and must be owned by this user, since its content is
executed. A file's modification time is when the entry was last used: beyond EINSMITH_CACHE_LIMIT the least recently
used entries are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from einsmith.base import environment, files, locks
from einsmith.base.caches import Once
from einsmith.base.errors import StoreWarning
from einsmith.ir import pickled
from einsmith.ir.interned import Node
from einsmith.ir.nodes import Leaf

FORMAT = b"EINSMITH-OBJ-2\n"
_CHECKSUM_BYTES = 32
_SLACK_SHARE = 16
"""Fraction (1/16) of the limit that a process writes between two scans of the folder. A scan shrinks the folder to
that much below the limit, so that a process that writes alone stays within it."""
_warned = Once("reasons not to keep compiled code", 64)
_lock = locks.lock()
_written: dict[Path, int] = {}  # bytes written into a folder since its last scan


class CachedObject(NamedTuple):
    """Object code, the names of the functions in it, and JSON metadata of its maker."""

    code: bytes
    names: tuple[str, ...]
    metadata: dict[str, Any]


@cache
def source_hash() -> bytes:
    """Return a hash of Einsmith's own sources: code compiled by other sources is never reused."""
    root = Path(__file__).resolve().parent.parent.parent
    out = hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        out.update(str(path.relative_to(root)).encode() + b"\0")
        out.update(path.read_bytes())
    return out.digest()


def name_of(*parts: bytes, sources: bytes | None = None) -> str:
    """Return the name of an entry, a digest of everything that its content depends on: these parts, this format and
    sources, by default all of Einsmith's."""
    out = hashlib.blake2b(FORMAT, digest_size=20)
    for part in (source_hash() if sources is None else sources, *parts):
        out.update(len(part).to_bytes(8, "little") + part)
    return out.hexdigest()


def _warn(problem: str) -> None:
    """Warn once that the cache is not used; compilation continues without it."""
    if _warned(problem):
        warnings.warn(f"compiled code is not kept on disk: {problem}", StoreWarning, stacklevel=3)


def folder(create: bool = True) -> Path | None:
    """Return the directory of entries, created if missing; None, with one warning, where it cannot be used safely."""
    path = environment.cache_dir() / "objects"
    problem, is_there = files.distrust(path), path.is_dir()
    if create and not problem and not is_there:
        try:
            files.make_private(path)
            is_there = True
        except OSError as e:
            problem = str(e) if e.strerror is None else _unwritable(path, e)
    if problem:
        _warn(problem)
    return path if is_there and not problem else None


def _unwritable(path: Path, e: OSError) -> str:
    return f"{path}: {e.strerror or e}; set EINSMITH_CACHE_DIR to a directory that can be written"


def read(key: str) -> CachedObject | None:
    """Return the entry of a key; None where there is none or it is damaged in any way."""
    where = folder()
    if where is None:
        return None
    try:
        data = (where / key).read_bytes()
    except OSError:
        return None
    try:
        entry = _decode(data, key)
    except (ValueError, KeyError, TypeError, IndexError):
        if environment.debug() >= 1:
            print(f"einsmith: the cache entry {key} is damaged and is compiled again", file=sys.stderr)
        return None
    with suppress(OSError):  # removed meanwhile, or read-only: it is read anyway
        os.utime(where / key)
    return entry


def write(key: str, entry: CachedObject) -> None:
    """Store an entry by writing a new file and renaming it. A failure causes one warning and is otherwise harmless."""
    where = folder()
    if where is None:
        return
    data = _encode(entry, key)
    try:
        with files.replacing(where / key) as work:
            work.write_bytes(data)
        _enforce_limit(where, len(data))
    except OSError as e:
        _warn(_unwritable(where, e))


def read_pickled(key: str, leaves: Sequence[Leaf] = ()) -> Any:
    """Return the value of a key that `write_pickled` has written; None where there is none or it cannot be read."""
    entry = read(key)
    if entry is None:
        return None
    try:
        return pickled.loads(entry.code, leaves)
    except ValueError as e:
        if environment.debug() >= 1:
            print(f"einsmith: the cache entry {key} cannot be read and is written again: {e}", file=sys.stderr)
        return None


def write_pickled(
    key: str, value: Any, roots: Iterable[Node] = (), leaves: Mapping[Leaf, int] = pickled.NO_LEAVES
) -> None:
    """Store a value as a pickle (`ir.pickled.dumps` has the arguments); warn once of one that has none."""
    try:
        data = pickled.dumps(value, roots, leaves)
    except ValueError as e:
        _warn(f"what tracing or planning has made cannot be written ({e})")
        return
    write(key, CachedObject(data, (), {}))


def _enforce_limit(where: Path, written: int) -> None:
    """Count bytes written into the folder, and remove the least recently used entries where a scan is due."""
    limit = environment.CACHE_LIMIT.get() << 20
    with _lock:
        due = where not in _written or _written[where] + written > limit // _SLACK_SHARE
        _written[where] = 0 if due else _written[where] + written
    if not due:
        return
    total = 0
    entries: list[tuple[float, int, Path]] = []
    for path in where.iterdir():
        with suppress(OSError):  # another process has removed or renamed it
            info = path.lstat()
            if not stat.S_ISREG(info.st_mode):
                continue
            if not files.is_begun(path.name):
                entries.append((info.st_mtime, info.st_size, path))
                total += info.st_size
    if total <= limit - limit // _SLACK_SHARE:
        return
    for _, size, path in sorted(entries):
        if total <= limit - limit // _SLACK_SHARE:
            break
        with suppress(OSError):
            path.unlink()
        total -= size


def clear() -> tuple[int, int]:
    """Remove every entry; return how many there were and their bytes."""
    count, size = 0, 0
    where = folder(create=False)
    for path in where.iterdir() if where is not None else ():
        size, count = size + path.stat().st_size, count + 1
        path.unlink(missing_ok=True)
    return count, size


def usage() -> tuple[int, int]:
    """Return the number of entries and their bytes."""
    where = folder(create=False)
    sizes = [p.stat().st_size for p in where.iterdir()] if where is not None else []
    return len(sizes), sum(sizes)


def _encode(entry: CachedObject, key: str) -> bytes:
    head = json.dumps({"key": key, "names": entry.names, "metadata": entry.metadata}).encode()
    body = len(head).to_bytes(8, "little") + head + entry.code
    return FORMAT + hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest() + body


def _decode(data: bytes, key: str) -> CachedObject:
    start = len(FORMAT) + _CHECKSUM_BYTES
    if data[: len(FORMAT)] != FORMAT:
        raise ValueError("format")
    body = data[start:]
    if hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest() != data[len(FORMAT) : start]:
        raise ValueError("checksum")
    size = int.from_bytes(body[:8], "little")
    head = json.loads(body[8 : 8 + size])
    if head["key"] != key:
        raise ValueError("key")
    return CachedObject(body[8 + size :], tuple(head["names"]), dict(head["metadata"]))
