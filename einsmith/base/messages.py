"""Write messages to the standard error, which services may not have."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """Print a message to the standard error. Where there is none, or it cannot be written, the message is lost: the
    program goes on."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # its descriptor, or it, is closed
            print(text, file=sys.stderr, flush=True)


def is_terminal(stream: object) -> bool:
    """Return whether a stream, which may be None or closed, is a terminal."""
    try:
        return stream is not None and bool(stream.isatty())  # type: ignore[attr-defined]
    except (OSError, ValueError):
        return False
