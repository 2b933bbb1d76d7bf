"""Generate the tables of docs/aten.md from the table of operators."""

from __future__ import annotations

from pathlib import Path

from einsmith.frontends.aten import FAMILIES, REFUSED, TABLE
from tests.docs.tables import cell

PATH = Path(__file__).resolve().parents[2] / "docs" / "aten.md"
MARK = "<!-- generated: python -m tests.docs --update -->\n"


def page(text: str) -> str:
    """Return the page with everything below the mark generated again."""
    return text.partition(MARK)[0] + MARK + "\n" + "\n".join(_tables())


def _tables() -> list[str]:
    lines = []
    for module in FAMILIES:
        family = module.__name__.rpartition(".")[2]
        entries = [e for e in TABLE.values() if e.family == family]
        by_formula: dict[str, list[str]] = {}
        for e in entries:
            by_formula.setdefault(e.formula, []).append(e.name)
        lines += [f"### {family}", "", (module.__doc__ or "").strip(), ""]
        lines += ["| operators | result |", "| --- | --- |"]
        lines += [f"| {', '.join(f'`{n}`' for n in names)} | {cell(said)} |" for said, names in by_formula.items()]
        lines.append("")
    lines += ["## Refused", "", "| operator | reason |", "| --- | --- |"]
    lines += [f"| `{name}` | {cell(why)} |" for name, why in sorted(REFUSED.items())]
    return [*lines, ""]
