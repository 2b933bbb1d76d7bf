"""Generate the list of functions in docs/formulas.md from the parser's tables."""

from __future__ import annotations

from pathlib import Path

from einsmith.lang.parser import CASTS, FUNCTIONS, REDUCTIONS, VARIADIC, WRITTEN, WRITTEN_NUMBERS
from tests.docs.tables import cell

PATH = Path(__file__).resolve().parents[2] / "docs" / "formulas.md"
MARK = "<!-- generated: python -m tests.docs --update -->\n"
MEANINGS = {
    "exp": "e to the power of x",
    "log": "natural logarithm",
    "tanh": "hyperbolic tangent",
    "sigmoid": "`1/(1 + exp(-x))`",
    "sqrt": "square root",
    "rsqrt": "`1/sqrt(x)`",
    "erf": "error function",
    "abs": "absolute value",
    "sign": "-1, 0 or 1",
    "floor": "largest whole number that is not above x",
    "relu": "`max(x, 0)`",
    "sin": "sine, of radians",
    "cos": "cosine, of radians",
    "stop_gradient": "x, a constant for derivatives",
    "log1p": "`log(1 + x)`, exact near 0",
    "expm1": "`exp(x) - 1`, exact near 0",
    "softplus": "`log(1 + exp(x))`, without overflow",
    "logaddexp": "`log(exp(x) + exp(y))`, without overflow; -inf is the neutral element",
    "pow": "`x**y`",
    "min": "smallest of two or more; NaN if one is NaN",
    "max": "largest of two or more; NaN if one is NaN",
    "where": "`where(condition, a, b)`; only the chosen side is evaluated",
    "size": "extent of an axis",
    "random_bits": "32 random bits of four integers, a counter and a key",
    "sum": "sum",
    "mean": "sum divided by the number of points",
    "prod": "product",
    "argmax": "position of the first largest element, int32, over one axis or several in order",
    "argmin": "position of the first smallest element",
    "logsumexp": "`log(sum[i,j](exp(...)))`, without overflow; -inf where all elements are, with derivatives of 0",
}


def page(text: str) -> str:
    """Return the page with everything below the mark generated again."""
    return text.partition(MARK)[0] + MARK + "\n" + "\n".join(_tables())


def _tables() -> list[str]:
    lines = ["| function | arguments | meaning |", "| --- | --- | --- |"]
    for name, arity in FUNCTIONS.items():
        if name not in CASTS:
            count = "2 or more" if name in VARIADIC else arity
            lines.append(f"| `{name}` | {count} | {cell(MEANINGS[name])} |")
    lines += ["", f"Casts: {', '.join(f'`{n}(x)`' for n in CASTS)}.", "", "| reduction | meaning |", "| --- | --- |"]
    for name in REDUCTIONS:
        meaning = {"min": "smallest element", "max": "largest element"}.get(name) or MEANINGS[name]
        lines.append(f"| `{name}[i,j](...)` | {cell(meaning)} |")
    lines += [
        "",
        "Other functions and constants are written with these:",
        "",
        "| function | written |",
        "| --- | --- |",
    ]
    for name, text in (WRITTEN | WRITTEN_NUMBERS).items():
        parts = text.split(" on a line of its own, then ")
        lines.append(f"| `{name}` | {', then '.join(f'`{p}`' for p in parts)} |")
    return [*lines, ""]
