"""Render formulas, models, plans and steps as HTML for notebooks: text and tables, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

Bar = tuple[str, str, float]
"""A kernel of a timeline: what it computes, its role, and its seconds."""

COLOURS = {"forward": "#4c78a8", "backward": "#f58518", "update": "#54a24b", "again": "#b279a2"}
"""Colours of kernels by role, on light and dark pages; `again` is recomputation."""


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


def timeline(bars: Sequence[Bar]) -> str:
    """Return a picture of kernels in order of execution, as wide as they take time and coloured by role, with the time
    of each role below."""
    total = sum(seconds for *_, seconds in bars)
    if not total:
        return ""
    parts, at = [], 0.0
    for n, (label, role, seconds) in enumerate(bars):
        tip = escape(f"{n}: {label}, {role}, {seconds * 1e6:.1f} us predicted")
        box = f'x="{at:.2f}" y="0" width="{1000 * seconds / total:.2f}" height="24" fill="{COLOURS[role]}"'
        parts.append(f'<rect {box} stroke="white" stroke-width="0.5"><title>{tip}</title></rect>')
        at += 1000 * seconds / total
    roles = {role: sum(seconds for _, r, seconds in bars if r == role) for role in COLOURS}
    legend = "".join(
        f'<span style="margin-right:1em"><span style="color:{COLOURS[role]}">&#9632;</span> '
        f"{role} {1e6 * seconds:,.1f} us</span>"
        for role, seconds in roles.items()
        if seconds
    )
    picture = f'<svg viewBox="0 0 1000 24" preserveAspectRatio="none" style="width:100%;height:24px">{"".join(parts)}'
    return f'<div style="font-size:small">{picture}</svg><div>{legend}</div></div>'


class PlanText(Text):
    """Descriptions of compiled programs: a title, lines, and the kernels, of which a notebook shows a timeline."""

    programs: tuple[tuple[str, str, Sequence[Bar]], ...]

    def __new__(cls, programs: Iterable[tuple[str, str, Sequence[Bar]]], otherwise: str = "") -> PlanText:
        """otherwise: the text where there are no programs."""
        programs = tuple(programs)
        self = super().__new__(cls, "\n\n".join(f"{title}\n{lines}" for title, lines, _ in programs) or otherwise)
        self.programs = programs
        return self

    def __reduce__(self) -> tuple:
        return PlanText, (self.programs, str(self))

    def _repr_html_(self) -> str:
        if not self.programs:
            return super()._repr_html_()
        return "".join(timeline(bars) + text(title, lines, folded=True) for title, lines, bars in self.programs)
