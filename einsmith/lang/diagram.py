"""Draw how the axes of a formula index its tensors, as tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterator

from einsmith.base import html
from einsmith.lang.resolve import FormulaProgram, Line
from einsmith.lang.syntax import ParsedReduction, walk

OPEN = 2
"""Most tables that are shown at once; more would hide the formula."""


def index_tables(program: FormulaProgram) -> str:
    """Return a table for each statement: a column for each axis, a row for the result and for each read, and in the
    cells the dimensions that the axis indexes. More than OPEN tables are collapsed until clicked."""
    tables = "".join(_table(program.text, line) for line in program.lines)
    return f"<details><summary>indices</summary>{tables}</details>" if len(program.lines) > OPEN else tables


def _table(text: str, line: Line) -> str:
    reduced = {a: n.combiner for n in walk(line.statement.value) if isinstance(n, ParsedReduction) for a in n.axes}
    head = [a if a in line.output_axes else f"{a} ({reduced[a]})" if a in reduced else a for a in line.axes]
    places = dict.fromkeys([(line.statement.name, line.statement.at), *((s.node.name, s.node.at) for s in line.reads)])
    rows: dict[tuple[str, ...], None] = {}
    for name, at in places:
        index = list(_split_index(text, at))
        cells = (", ".join(f"{d}: {i}" for d, i in enumerate(index) if _has_name(i, axis)) for axis in line.axes)
        rows[f"{name}[{', '.join(index)}]", *cells] = None
    return html.table("", ("", *head), rows)


def _split_index(text: str, at: int) -> Iterator[str]:
    """Yield the indices of the brackets that follow a position of a formula's text."""
    start = depth = 0
    for k in range(text.index("[", at), len(text)):
        c = text[k]
        depth += (c in "[(") - (c in "])")
        if c == "[" and depth == 1:
            start = k + 1
        elif depth == 0 or (c == "," and depth == 1):
            if part := " ".join(text[start:k].split()):
                yield part
            start = k + 1
        if depth == 0:
            return


def _has_name(index: str, axis: str) -> bool:
    return axis in "".join(c if c.isalnum() or c == "_" else " " for c in index).split()
