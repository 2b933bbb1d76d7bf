"""Parse and format sizes of memory."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from einsmith.base.dtypes import is_whole
from einsmith.base.errors import ArgumentError

UNITS = {"": 1, "b": 1} | {
    f"{prefix}{i}b": (1024 if i else 1000) ** (n + 1) for n, prefix in enumerate("kmgt") for i in ("", "i")
}
"""Bytes of each unit, in lower case: kB is 1000, KiB 1024."""
_DIGITS = 4
"""Digits of a formatted size."""
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")


def size_of(x: Any, name: str, least: int = 1) -> int:
    """Return a size in bytes, given as a number or as text such as "800MB", "1.5 GiB". Raises ArgumentError, which
    names `name`, for other values and for less than `least` bytes."""
    match = _SIZE.fullmatch(x) if isinstance(x, str) else None
    if match and match[2].lower() in UNITS:
        n = int(Decimal(match[1]) * UNITS[match[2].lower()])
    elif is_whole(x) and not hasattr(x, "mask"):
        n = int(x)
    else:
        n = least - 1
    if n < least:
        raise ArgumentError(f"{name}={x!r} is not a size; give bytes, or text such as '800MB' or '1.5GiB'")
    return n


def show_size(n: int, rounding: str = ROUND_HALF_EVEN) -> str:
    """Return a size in the unit in which it has the fewest digits before its point, in four digits.

    Args:
        n: the size (bytes).
        rounding: of `decimal`. With ROUND_CEILING, `size_of` of the text is at least n, with ROUND_FLOOR at most n, so
            that a limit in a message still holds when it is typed.
    """
    unit = next((u for u in ("GB", "MB", "kB") if n >= UNITS[u.lower()]), "B")
    if unit == "B":
        return f"{n} B"
    context = Context(prec=_DIGITS, rounding=rounding)
    return f"{context.normalize(context.divide(Decimal(int(n)), Decimal(UNITS[unit.lower()]))):f} {unit}"
