"""Servers of the benchmark of a card that do whatever can go wrong."""

from __future__ import annotations

import sys
import time

from benchmarks.gpu.serving import Server
from einsmith.base.errors import ArgumentError


class Troubled(Server):
    """A server that does whatever can go wrong."""

    def begin(self, fake: bool) -> None:
        self.calls = 0

    def refuse(self) -> None:
        raise ArgumentError("tuned only on weekdays")

    def die(self) -> None:
        sys.exit(3)

    def hang(self) -> None:
        time.sleep(60)

    def count(self) -> dict[str, int]:
        self.calls += 1
        return {"calls": self.calls}


class Missing(Server):
    """A server whose library is missing."""

    def begin(self, fake: bool) -> None:
        import no_such_library  # type: ignore[import-not-found]  # noqa: F401
