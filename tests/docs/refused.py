"""Generate the table of docs/torch.md that lists the names of PyTorch which Einsmith does not have."""

from __future__ import annotations

from pathlib import Path

from einsmith.tracing.refused import REFUSED

PATH = Path(__file__).resolve().parents[2] / "docs" / "torch.md"
MARK = "<!-- generated: python -m tests.docs --update -->\n"


def page(text: str) -> str:
    """Return the page with everything below the mark generated again."""
    lines = ["| name | reason | use instead |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {reason} | {instead} |" for name, (reason, instead) in REFUSED.items()]
    return text.partition(MARK)[0] + MARK + "\n" + "\n".join([*lines, ""])
