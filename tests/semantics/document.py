"""`docs/semantics.md`, computed: what Einsmith gives, beside PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.semantics.derivatives import CASES, Case, Found, compare, same
from tests.semantics.rows import BOUNDS, LENGTHS, SECTIONS, Row, agree, results

PATH = Path(__file__).parents[2] / "docs" / "semantics.md"
HEAD = """# Semantics next to PyTorch's

What formulas and `einsmith.functional` give where a result is not obvious: at ties, kinks and bounds, for NaN,
infinities, zeros, empty tensors and what overflows. Every row is computed by the tests, compiled and by the reference
evaluator (`es.interpret`), beside PyTorch's function of that name. "=" says that PyTorch gives the same; else there is
its result, and why Einsmith's is another one. `python -m tests.semantics --update` writes this page.

The evaluator computes in float64 and int64 whatever the types of its arguments, and rounds to float16 alone; where that
shows, the page says so.
A zero that `max`, `min`, `relu` or a derivative gives may have either sign, in Einsmith as in PyTorch.
"""


GROUPS = (
    ("Functions of the language", "Value, first and second derivative, in float32.",
     lambda c: c.elementwise and not c.name.startswith("functional")),
    ("Reductions and recurrences", """Results are weighted by 1, 2, 3, ... before a derivative is taken.

A factor that does not depend on all axes summed over may be multiplied with a sum instead of its terms, as
`torch.einsum` does: `sum[k](x[i,k]*c[i])` is then `c[i]*sum[k](x[i,k])`. Both are finite for the same numbers; where
they are not, one may be infinite and the other NaN (c[i] infinite, an x[i,k] zero).""",
     lambda c: not c.elementwise and not c.name.startswith("functional")),
    ("Functions of tensors", "`einsmith.functional`, where it has more to say than the language.",
     lambda c: c.name.startswith("functional")),
)  # fmt: skip


def number(x: Any, signed: bool = False) -> str:
    if isinstance(x, (bool, np.bool_)):
        return "true" if x else "false"
    if isinstance(x, (int, np.integer)):
        return str(int(x))
    x = float(x)
    if x == 0:
        return "-0" if signed and np.signbit(x) else "0"
    return f"{x:.5g}"


def shown(x: Any, signed: bool = False) -> str:
    """An array as text, or a text."""
    if isinstance(x, str):
        return x
    x = np.asarray(x)
    if x.size == 0:
        return f"shape {list(x.shape)}"
    if x.ndim == 0:
        return number(x[()], signed)
    return "[" + ", ".join(shown(v, signed) for v in x) + "]"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


class Notes:
    """Remarks of one table, which its rows point to by number."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def number(self, text: str) -> str:
        return str(self.texts.setdefault(text, len(self.texts) + 1)) if text else ""

    def list(self) -> str:
        return "".join(f"\n{n}. {text[0].upper()}{text[1:]}." for text, n in self.texts.items()) + "\n"


def _derivatives(torch: Any, cases: Sequence[Case]) -> str:
    rows, notes = [], Notes()
    for case in cases:
        for f in _found(torch, case):
            reasons = [case.differs(k, f.wrt, f.at) for k in range(3)]
            theirs = ["=" if same(a, b, np.float32) else shown(b) for a, b in zip(f.ours, f.theirs, strict=True)]
            alike = set(theirs) == {"="}
            at = ", ".join(shown(x, not isinstance(x, tuple)) for x in f.at)
            by = f" by {'xyz'[f.wrt]}" if len(f.at) > 1 else ""
            reason = "; ".join(dict.fromkeys(r for r, t in zip(reasons, theirs, strict=True) if r and t != "="))
            peer = "=" if alike else ", ".join(theirs)
            rows.append([f"`{case.name}`{by}", at, *map(shown, f.ours), peer, notes.number(reason)])
    return table(["function", "at", "value", "first", "second", "PyTorch", "note"], rows) + notes.list()


def _found(torch: Any, case: Case) -> list[Found]:
    return compare(torch, Case(case.name, case.ours, case.peer, case.shown, elementwise=case.elementwise))


def _row(torch: Any, row: Row, notes: Notes, signed: bool) -> list[str]:
    mine, evaluated, theirs = results(torch, row)
    said = [notes.number(row.reason)] if row.reason else []
    if not agree(mine, evaluated, signed):
        said.append(f"evaluator {shown(evaluated, signed)}: {notes.number(row.exact)}")
    given = "; ".join(f"{'xy'[n]} = {shown(a, signed)}" for n, a in enumerate(row.arrays))
    kind = row.arrays[0].dtype.name.replace("float", "f").replace("uint", "u").replace("int", "i")
    peer = "=" if agree(mine, theirs, signed) and not isinstance(mine, str) else shown(theirs, signed)
    return [f"`{row.what}`", f"{kind}: {given}", shown(mine, signed), peer, ", ".join(said)]


def _sums() -> str:
    rows = []
    for what, (ours, theirs) in BOUNDS.items():
        rows += [[f"`{what}`", who, *("" if b is None else f"{b}" for b in bounds)]
                 for who, bounds in (("Einsmith", ours), ("PyTorch", theirs))]  # fmt: skip
    return table(["", "", *(f"10^{round(np.log10(n))}" for n in LENGTHS)], rows)


def document(torch: Any) -> str:
    """The page."""
    parts = [HEAD]
    parts += [
        f"## {title}\n\n{text}\n\n{_derivatives(torch, [c for c in CASES if c.shown and belongs(c)])}"
        for title, text, belongs in GROUPS
    ]
    for section in SECTIONS:
        notes = Notes()
        rows = [_row(torch, r, notes, section.signed) for r in section.rows]
        heads = ["expression", "of", "Einsmith", "PyTorch", "note"]
        parts.append(f"## {section.title}\n\n{section.text}\n\n{table(heads, rows)}{notes.list()}")
    parts.append(
        "## Errors of float32 sums by length\n\nBounds of the relative error against float64, in units of 2^-23, for"
        " numbers drawn evenly from [0, 1). A recurrence runs in its own type; PyTorch's running sum accumulates in"
        f" float64. `f64(x)` in the formula does that here.\n\n{_sums()}"
    )
    return "\n".join(parts)
