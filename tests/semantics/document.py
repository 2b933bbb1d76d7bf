"""Compute `docs/semantics.md`: results of Einsmith and of PyTorch in special cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from tests.operators import accuracy
from tests.operators.accuracy import ROUNDED
from tests.semantics.derivatives import CASES, Case, Found, compare, same
from tests.semantics.rows import BOUNDS, LENGTHS, SECTIONS, Row, agree, results

PATH = Path(__file__).parents[2] / "docs" / "semantics.md"
WIDTH = 120
"""Longest line of the page's prose (characters)."""
HEAD = """# Numerical semantics

This page lists the results of formulas and of `einsmith.functional` in special cases: ties, kinks, bounds, NaN,
infinities, zeros, empty tensors and overflow.

```python
import numpy as np

import einsmith as es

f = es.op("y[i] = max(x[i], 0)")
x = np.array([-1.0, 0.0, np.nan], np.float32)
print(f(x), es.interpret(f)(x))  # compiled, and by the reference evaluator: [0. 0. nan] twice
```

The tests compute every row in compiled code, by the reference evaluator (`es.interpret`), and by PyTorch's function of
the same name. "=" in the column PyTorch means equal results. Otherwise the column shows PyTorch's results, and a note
gives the reason for the difference. `python -m tests.semantics --update` generates this page.

- The evaluator computes in float64 and int64, whatever the types of its arguments, and rounds only to float16. Notes
  show where its results differ from those of compiled code.
- A term that a zero of a constant multiplies is absent in compiled code (`docs/constants.md`). The evaluator
  multiplies.
- A zero result of `max`, `min`, `relu` or a derivative may have either sign, in Einsmith as in PyTorch.
"""


GROUPS = (
    ("Functions of the language",
     "Values, first and second derivatives in float32. d/dx and d/dy name the argument of the derivatives.",
     lambda c: c.elementwise and not c.name.startswith("functional")),
    ("Reductions and recurrences", """Derivatives are those of the sum of the results with the weights 1, 2, 3, ...

A factor that does not depend on all reduction axes may be moved out of the sum, as in `torch.einsum`:
`sum[k](x[i,k]*c[i])` becomes `c[i]*sum[k](x[i,k])`. Both forms are finite for the same numbers. Where they are not
finite, one may be infinite and the other NaN (if c[i] is infinite and an x[i,k] is zero).

A sum of what is gathered may be taken once per row, for all rows, where that takes less time:
`sum[d](x[src[e],d]*W[d,k])` reads `T[src[e],k]` of `T[n,k] = sum[d](x[n,d]*W[d,k])`, and a sum of differences of rows
of x is a difference of rows of T, rounded relative to these. Rows that no index names, or only under conditions that
fail, as padding is, change neither values nor gradients, whatever they hold. Indices are checked as the formula has
them. `EINSMITH_WITHOUT="postponed gathers"` computes the sums where they are written.

An exponential of a sum inside of a sum, as in `sum[j](exp(a[i,j] + b[j,c])*v[j,c])`, is a product of exponentials of
small tables where each part, here a and b, is proven never to be positive: a difference from a maximum, minus a square
or a magnitude, and what is made of them. Its value differs by rounding: where the exponential of a part underflows, so
does that of the sum. Other exponentials are computed as they are written, unless `separate_exponentials=True` of
`es.jit`, `es.CompileSettings` or a training step permits `exp(a[i,j] - r[j])*exp(b[j,c] + r[j])`, where r[j] is
`max[i](a[i,j])`. This overflows only where the formula does, but an exponential that is less than 1e-38 of the largest
one of the same j and c becomes 0. Where all exponentials of a sum are so small, the sum is 0, and a quotient of two
such sums is NaN, though the formula's is finite. `logsumexp[i](p[b,i] + M[i,j])` then takes out the maxima of p and of
M over i, and is -inf where all products of exponentials are less than 1e-38. Leave it off for differences of
cumulative sums of logarithms of decays, whose exponentials are often 1e38 apart. A condition on axes of several parts
excludes this form, and `EINSMITH_WITHOUT="separate exponentials"` both. `.plan` and `einsmith explain` say how many
exponentials would separate.""",
     lambda c: not c.elementwise and not c.name.startswith("functional")),
    ("Functions of tensors", "Special cases of functions of `einsmith.functional`.",
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
            by = f", d/d{'xyz'[f.wrt]}" if len(f.at) > 1 else ""
            reason = "; ".join(dict.fromkeys(r for r, t in zip(reasons, theirs, strict=True) if r and t != "="))
            peer = "=" if alike else ", ".join(theirs)
            rows.append([f"`{case.name}`{by}", at, *map(shown, f.ours), peer, notes.number(reason)])
    return (
        table(["function", "at", "value", "first derivative", "second derivative", "PyTorch", "note"], rows)
        + notes.list()
    )


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
        heads = ["expression", "arguments", "Einsmith", "PyTorch", "note"]
        parts.append(f"## {section.title}\n\n{fill(section.text, WIDTH)}\n\n{table(heads, rows)}{notes.list()}")
    text = (
        "Bounds of the relative error against float64, in units of 2^-23, for uniform random numbers from [0, 1). A"
        " recurrence computes in its own type; PyTorch's cumulative sum accumulates in float64, as a formula with"
        " `f64(x)` does."
    )
    parts.append(f"## Errors of float32 sums by length\n\n{fill(text, WIDTH)}\n\n{_sums()}")
    text = (
        "Bounds of the error of functions of one number against mpmath, in units in the last place of the result, for"
        " operands that are not denormal and results of at least 128 times the least number that is not. Results of"
        f" float16 and bfloat16 are within {ROUNDED:g} units, since they are computed in float32 and rounded."
    )
    table_of_functions = table(["function", "float32", "float64", "where"], list(accuracy.rows()))
    parts.append(f"## Errors of functions\n\n{fill(text, WIDTH)}\n\n{table_of_functions}")
    return "\n".join(parts)
