"""Key the code of patterns in the caches of compiled code and of measurements.

Einsmith's own sources are part of every key. A user's pattern is known by its class, its `version` and what its
instance holds; without a version it is known to this process alone.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_PROCESS_SALT = os.urandom(16)
"""Random bytes that make a key unique to this process."""


def is_builtin(pattern: Any) -> bool:
    """Return whether a pattern is part of Einsmith."""
    return type(pattern).__module__.partition(".")[0] == _PACKAGE


def code_of(pattern: Any) -> bytes | None:
    """Return the version of a pattern's code, as keys contain it: empty for Einsmith's own patterns, None where the
    pattern has no `version`."""
    if is_builtin(pattern):
        return b""
    if pattern.version is None:
        return None
    kind = type(pattern)
    text = f"{kind.__module__}.{kind.__qualname__} {pattern.version!r} {sorted(vars(pattern).items())!r}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def key_of(pattern: Any) -> bytes:
    """Return `code_of`, or where that is None a key valid in this process alone."""
    return _PROCESS_SALT if (code := code_of(pattern)) is None else code
