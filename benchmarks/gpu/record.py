"""Keep results in one JSON file, written whole after each item, so that a run that was cut off is continued."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from einsmith.base import files

FORMAT = 1


class RecordError(Exception):
    """A file that cannot be continued or reported."""


class OutOfTime(Exception):
    """The time budget is over; the item at work counts for nothing."""


class Deadline:
    """A time budget of so many seconds from now."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raise OutOfTime where nothing is left."""
        if self.left <= 0:
            raise OutOfTime


class Record:
    """The results: what they belong to (`about`), and for each part its items by name.

    path: the file; one that exists is continued. Raises RecordError where it is damaged or of another kind.
    """

    def __init__(self, path: Path):
        self.path = path
        self.about: dict[str, Any] = {}
        self.parts: dict[str, dict[str, Any]] = {}
        if path.exists():
            self.about, self.parts = _read(path)

    def begin(self, about: Mapping[str, Any]) -> None:
        """Note what the results belong to. Raises RecordError where those of the file belong to something else."""
        for key in ("card", "fake"):
            if self.about and self.about.get(key) != about.get(key):
                raise RecordError(
                    f"{self.path} holds results of {self.about.get('card')}, and this machine has {about.get('card')}; "
                    f"name another file with --out"
                )
        if not self.about:
            self.about = dict(about)
        runs = self.about.setdefault("runs", [])
        runs.append({key: about[key] for key in ("date", "command", "versions") if key in about})
        self.write()

    def add(self, part: str, item: str, result: Mapping[str, Any]) -> None:
        """Add the result of an item, and write the file."""
        self.parts.setdefault(part, {})[item] = dict(result)
        self.write()

    def find(self, part: str, item: str) -> dict[str, Any] | None:
        """Return the result of an item; None where there is none yet."""
        return self.parts.get(part, {}).get(item)

    def write(self) -> None:
        """Replace the file by one with all results."""
        content = {"format": FORMAT, "about": self.about, "parts": self.parts}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.write(self.path, json.dumps(content, indent=1))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    try:
        content = json.loads(path.read_text())
    except (ValueError, OSError) as e:
        raise RecordError(f"{path} cannot be read as JSON ({e}); remove it, or name another file with --out") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RecordError(f"{path} is not a file of this benchmark (format {FORMAT}); name another file with --out")
    about, parts = content.get("about"), content.get("parts")
    if (
        not isinstance(about, dict)
        or not isinstance(parts, dict)
        or not all(isinstance(p, dict) for p in parts.values())
    ):
        raise RecordError(f"{path} lacks its parts; remove it, or name another file with --out")
    return about, parts
