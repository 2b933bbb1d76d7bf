"""Compare the size of a package with the ceilings of `budgets.toml`, and lower the ceilings to what is there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Sizes = dict[str, dict[str, int]]
"""(table, entry) -> number, as measured or as allowed."""


@dataclass(frozen=True)
class Table:
    """What the entries of a table count, and how far a ceiling may stand above its entry.

    Attributes:
        unit: What is counted.
        limit: The ceiling of what is not listed.
        slack: Most units between a ceiling and what is there, unless `SLACK_PART` of the ceiling is more.
    """

    unit: str
    limit: int
    slack: int


SLACK_PART = 0.03
"""Part of a ceiling by which a package may shrink before the ceiling has to follow; small changes leave it alone."""
TABLES = {
    "total": Table("lines of code", 0, 500),
    "packages": Table("lines of code", 0, 50),
    "files": Table("lines", 500, 50),
    "functions": Table("lines", 80, 20),
    "classes": Table("methods", 25, 5),
    "names": Table("names with a word that says nothing", 0, 10),
}


def find_excess(sizes: Sizes, budget: Sizes) -> Iterator[str]:
    """Yield a message for each size above its ceiling."""
    for table, entries in sizes.items():
        for entry, size in entries.items():
            ceiling = budget.get(table, {}).get(entry, TABLES[table].limit)
            if size > ceiling:
                yield f"[{table}] {entry}: {size} {TABLES[table].unit}, {ceiling} allowed"


def find_slack(sizes: Sizes, budget: Sizes) -> Iterator[str]:
    """Yield a message for each ceiling far above what is there, or of what needs none of its own."""
    for table, entries in budget.items():
        kind = TABLES[table]
        for entry, ceiling in entries.items():
            size = sizes.get(table, {}).get(entry, 0)
            if size <= kind.limit:
                yield f"[{table}] {entry}: the ceiling of {ceiling} {kind.unit} is no longer needed"
            elif ceiling - size > max(kind.slack, SLACK_PART * ceiling):
                yield f"[{table}] {entry}: {size} {kind.unit}, the ceiling is still {ceiling}"


def lower(text: str, sizes: Sizes) -> str:
    """Lower each ceiling of a budget's text to what is there and remove those no longer needed; comments stay."""
    lines, table = [], ""
    for line in text.splitlines(keepends=True):
        if header := re.match(r"\[(\w+)\]", line):
            table = header[1]
        elif row := re.match(r'("?)(?P<entry>[^"=#]+?)\1 = (?P<ceiling>\d+)', line):
            size = sizes.get(table, {}).get(row["entry"], 0)
            if size <= TABLES[table].limit:
                continue
            ceiling = min(size, int(row["ceiling"]))
            line = f"{line[: row.start('ceiling')]}{ceiling}{line[row.end() :]}"
        lines.append(line)
    return "".join(lines)


def read(path: Path) -> Sizes:
    """Return the ceilings of a file.

    Raises:
        ValueError: A table that `TABLES` does not have.
    """
    budget = tomllib.loads(path.read_text())
    if unknown := sorted(set(budget) - set(TABLES)):
        raise ValueError(f"{path}: unknown tables {', '.join(unknown)}; there are {', '.join(TABLES)}")
    return budget
