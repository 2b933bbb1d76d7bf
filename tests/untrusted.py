"""Folders of the cache that other users own, or may write into: what they hold must not be used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

HARMS = {
    "writable": "can be written by others; run chmod 700", "foreign": "belongs to another user", "link": "remove it",
}  # fmt: skip
"""What is done to a folder -> what is said of it."""


@contextmanager
def made(folder: Path, harm: str) -> Iterator[str]:
    """Makes a folder untrusted within the block; gives what is said of it."""
    if harm == "foreign":
        with mock.patch.object(os, "geteuid", lambda: folder.stat().st_uid + 1):
            yield HARMS[harm]
    elif harm == "writable":
        folder.chmod(0o722)
        yield HARMS[harm]
        folder.chmod(0o700)
    else:
        folder.rename(folder.with_name("elsewhere"))
        folder.symlink_to(folder.with_name("elsewhere"))
        yield HARMS[harm]
        folder.unlink()
        folder.with_name("elsewhere").rename(folder)
