"""Cache object code on disk.

Each entry is a file named by its key. An entry is trusted only if its checksum, length and version fit; any other is a
miss, and is written anew. The directory is private and so is each entry (`base.private`), since object code and
pickles are executed. A file's modification time is when the entry was last used: beyond EINSMITH_CACHE_LIMIT the least
recently used entries are removed.
"""

from __future__ import annotations

import hashlib
import json
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from einsmith.base import environment, files, locks, messages, private
from einsmith.base.caches import Once
from einsmith.base.errors import StoreError, StoreWarning
from einsmith.base.private import PrivateFolder
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
        out.update(files.read_bytes(path))
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
        warnings.warn(f"compiled code is not kept on disk: {problem}", StoreWarning, stacklevel=5)


@contextmanager
def _opened(create: bool = True) -> Iterator[PrivateFolder | None]:
    """Yield the directory of entries, created if missing; None, with one warning, where it cannot be used safely.
    Errors of its entries in the block are warnings too."""
    path = environment.cache_dir() / "objects"
    folder = None
    try:
        folder = PrivateFolder(path, create)
    except OSError as e:
        if create or not isinstance(e, FileNotFoundError):
            _warn(private.describe(path, e))
    with folder or nullcontext():
        yield folder


def read(key: str) -> CachedObject | None:
    """Return the entry of a key; None where there is none or it is damaged in any way."""
    with _opened() as folder:
        if folder is None:
            return None
        try:
            entry = _decode(folder.read(key), key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, IndexError) as e:
            if environment.debug() >= 1:
                why = e if isinstance(e, OSError) else "it is damaged"
                messages.say(f"einsmith: the cache entry {key} is compiled again: {why}")
            return None
        with suppress(OSError):  # removed meanwhile, or read-only: it is read anyway
            folder.touch(key)
        return entry


def write(key: str, entry: CachedObject) -> None:
    """Store an entry by writing a new file and renaming it. A failure causes one warning and is otherwise harmless."""
    with _opened() as folder:
        if folder is None:
            return
        data = _encode(entry, key)
        try:
            folder.write(key, data, private.MODE)
            _enforce_limit(folder, len(data))
        except OSError as e:
            _warn(private.describe(folder.path, e))


def read_pickled(key: str, leaves: Sequence[Leaf] = ()) -> Any:
    """Return the value of a key that `write_pickled` has written; None where there is none or it cannot be read."""
    entry = read(key)
    if entry is None:
        return None
    try:
        return pickled.loads(entry.code, leaves)
    except ValueError as e:
        if environment.debug() >= 1:
            messages.say(f"einsmith: the cache entry {key} cannot be read and is written again: {e}")
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


def _enforce_limit(folder: PrivateFolder, written: int) -> None:
    """Count bytes written into the folder, and remove the least recently used entries where a scan is due."""
    limit, where = environment.CACHE_LIMIT.get() << 20, folder.path
    with _lock:
        due = where not in _written or _written[where] + written > limit // _SLACK_SHARE
        _written[where] = 0 if due else _written[where] + written
    if not due:
        return
    total = 0
    entries: list[tuple[float, int, str]] = []
    for name in folder.names():
        with suppress(OSError):  # another process has removed or renamed it
            info = folder.status(name)
            if not stat.S_ISREG(info.st_mode):
                continue
            if not files.is_begun(name):
                entries.append((info.st_mtime, info.st_size, name))
                total += info.st_size
    if total <= limit - limit // _SLACK_SHARE:
        return
    for _, size, name in sorted(entries):
        if total <= limit - limit // _SLACK_SHARE:
            break
        with suppress(OSError):
            folder.remove(name)
        total -= size


def clear() -> tuple[int, int]:
    """Remove every entry; return how many there were and their bytes. Raises StoreError where one cannot be removed."""
    return _count(lambda folder, name: folder.remove(name))


def usage() -> tuple[int, int]:
    """Return the number of entries and their bytes."""
    return _count(lambda folder, name: None)


def _count(use: Callable[[PrivateFolder, str], None]) -> tuple[int, int]:
    """Call `use` for every entry; return how many there were and their bytes."""
    sizes = []
    with _opened(create=False) as folder:
        if folder is None:
            return 0, 0
        for name in folder.names():
            try:
                status = folder.status(name)
                if not stat.S_ISDIR(status.st_mode):  # folders are none of Einsmith's
                    use(folder, name)
                    sizes.append(status.st_size)
            except FileNotFoundError:  # another process has removed it
                continue
            except OSError as e:
                raise StoreError(
                    f"{folder.path / name} cannot be removed: {e.strerror}; change its owner or mode"
                ) from e
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
