"""Write texts of the program as cells of Markdown's tables."""

from __future__ import annotations

import re


def cell(text: str) -> str:
    """Return a text on one line in which, outside code, nothing of a formula is taken for emphasis, a link or a cell's
    end."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    plain = (re.sub(r"([*\[\]|])", r"\\\1", part) for part in parts[::2])
    code = [part.replace("|", "\\|") for part in parts[1::2]] + [""]
    return "".join(a + b for a, b in zip(plain, code, strict=True))
