"""Render formulas, models, plans and steps as HTML for notebooks: text and tables, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def text(title: str, body: str, folded: bool = False, name: str = "") -> str:
    """Return a title over preformatted lines, collapsed until clicked if `folded`. `name`: anchor for links."""
    anchor = f' id="{escape(name)}"' if name else ""
    lines = f'<pre{anchor} style="margin:0;line-height:1.3">{escape(body)}</pre>'
    if folded:
        return f"<details><summary><code>{escape(title)}</code></summary>{lines}</details>"
    return f"<div><code>{escape(title)}</code>{lines}</div>"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a title over a table; numbers are right-aligned."""

    def cell(x: Any) -> str:
        shown = f"{x:,}" if isinstance(x, int) else str(x)
        return f'<td style="text-align:{"right" if isinstance(x, int) else "left"}">{escape(shown)}</td>'

    top = "".join(f'<th style="text-align:left">{escape(h)}</th>' for h in head)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f"<div><code>{escape(title)}</code><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


class Text(str):
    """Preformatted lines as a notebook shows them; the first line of each part between empty lines is its title."""

    def _repr_html_(self) -> str:
        parts = (part.partition("\n") for part in self.split("\n\n"))
        return "".join(text(title, body, folded=True) if body else text("", title) for title, _, body in parts)
