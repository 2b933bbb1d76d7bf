"""Write messages to the standard error, which services may not have."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """Print a message to standard error. If that is closed or cannot be written, drop the message."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # its descriptor, or it, is closed
            print(text, file=sys.stderr, flush=True)


def is_terminal(stream: object) -> bool:
    """Return whether a stream, which may be None or closed, is a terminal."""
    try:
        return stream is not None and bool(stream.isatty())  # type: ignore[attr-defined]
    except (OSError, ValueError):
        return False
