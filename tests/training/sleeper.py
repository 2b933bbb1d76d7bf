"""A process of a workshop that answers after some time of the processor."""

from __future__ import annotations

import time


class Sleeper:
    def begin(self, *arguments: object) -> None:
        pass

    def work(self, seconds: float, data: bytes = b"") -> tuple[float]:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return (time.process_time(),)
