"""Generate the tables of docs/onnx.md from the table of operators and the standard's versions."""

from __future__ import annotations

from pathlib import Path

import onnx

from einsmith.frontends.onnx import reader  # noqa: F401  # fills the table
from einsmith.frontends.onnx.inlining import is_composed
from einsmith.frontends.onnx.operators import FAMILIES
from einsmith.frontends.onnx.refused import REFUSED
from einsmith.frontends.onnx.table import DOMAINS, GREATEST, LEAST, TABLE
from einsmith.frontends.onnx.types import ELEMENTS, REFUSED_TYPES
from einsmith.frontends.onnx.writer.operators import TRANSLATORS
from einsmith.ops.table import OPERATORS
from tests.docs.tables import cell

PATH = Path(__file__).resolve().parents[2] / "docs" / "onnx.md"
MARK = "<!-- generated: python -m tests.docs --update -->\n"


def page(text: str) -> str:
    """Return the page with everything below the mark generated again."""
    return text.partition(MARK)[0] + MARK + "\n" + "\n".join(_tables())


def versions(key: str) -> str:
    """Return the supported versions of an operator: sets that changed it, and the last one before."""
    domain, _, name = key.rpartition(".")
    since = sorted({s.since_version for s in onnx.defs.get_all_schemas_with_history()
                    if s.name == name and s.domain == domain})  # fmt: skip
    if domain:
        return ", ".join(map(str, since or range(1, DOMAINS[domain][1] + 1)))
    before = [v for v in since if v <= LEAST]
    return ", ".join(map(str, [*before[-1:], *(v for v in since if LEAST < v <= GREATEST)]))


def composed() -> list[str]:
    """The operators that the standard defines as functions of others, which take their places."""
    keys = {f"{s.domain}.{s.name}".removeprefix(".") for s in onnx.defs.get_all_schemas()}
    return sorted(filter(is_composed, keys))


def _tables() -> list[str]:
    lines = []
    for module in FAMILIES:
        family = module.__name__.rpartition(".")[2]
        lines += [f"### {family}", "", (module.__doc__ or "").strip(), ""]
        lines += ["| operator | versions | result |", "| --- | --- | --- |"]
        lines += [f"| `{e.name}` | {versions(e.name)} | {cell(e.formula)} |" for e in TABLE.values()
                  if e.family == family]  # fmt: skip
        lines.append("")
    lines += [
        "### composed",
        "",
        "The standard defines these operators as functions of others; they are inlined when a file is read.",
        "",
    ]
    lines += ["| operator | versions |", "| --- | --- |"]
    lines += [f"| `{name}` | {versions(name)} |" for name in composed()]
    lines += ["", "## Refused", "", "| operator | reason |", "| --- | --- |"]
    lines += [f"| `{name}` | {cell(why)} |" for name, why in sorted(REFUSED.items())]
    lines += ["", "## Element types", "", "| type | stored as |", "| --- | --- |"]
    lines += [f"| {e.name} | {e.dtype.numpy if e.name != 'bfloat16' else 'bfloat16'} |" for e in ELEMENTS.values()]
    lines += [f"| {name} | refused: {why} |" for name, why in REFUSED_TYPES.items()]
    lines += ["", "## Written", ""]
    lines += [
        "`export` writes these functions by ONNX's names where its operators have the call's settings, and others as",
        "functions of the file:",
        "",
    ]
    lines += ["| operator | functions |", "| --- | --- |"]
    plain = {n: OPERATORS[n].onnx for n in sorted(TRANSLATORS) if n in OPERATORS}
    lines += [f"| convolutions, pooling, norms and others | {', '.join(f'`{n}`' for n, o in plain.items() if not o)} |"]
    lines += [f"| `{o}` | layers of `nn.{o}` |" for o in ("RNN", "LSTM", "GRU")]
    lines += ["| `Softmax` | within `scaled_dot_product_attention`, `flex_attention` and `nn.MultiheadAttention` |"]
    lines += [f"| `{o}` | `{n}` |" for n, o in plain.items() if o]
    return [*lines, ""]
