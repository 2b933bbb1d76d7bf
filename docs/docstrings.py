"""Show docstrings on the site as they are written: an asterisk in one multiplies, and emphasizes nothing."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

CODE = re.compile(r"(```.*?```|`[^`]*`|^ {4}[^\n]*$)", re.MULTILINE | re.DOTALL)


def escape_asterisks(text: str) -> str:
    """Return a docstring whose asterisks outside of code mean themselves in Markdown."""
    parts = CODE.split(text)
    parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
    return "".join(parts)


class PlainAsterisks(Extension):
    """An extension of the reference's collector that escapes asterisks in each docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Escape the asterisks of an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = escape_asterisks(obj.docstring.value)
