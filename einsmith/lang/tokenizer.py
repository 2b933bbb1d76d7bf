"""Split formula text into tokens: names, numbers, operators and ends of lines.

Comments run from # until the line ends; inside brackets a line break does not end the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from einsmith.base.errors import FormulaError

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\f]+|\#[^\n]*)"
    r"|(?P<newline>\n)"
    r"|(?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|[0-9]+)"
    r"|(?P<sign>(?:max|min)=(?!=))"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<op>\*\*|//|<=|>=|==|!=|\+=|\*=|[-+*/%<>=()\[\],.])"
)
MAX_NAME_LENGTH = 200
"""Most characters of a name."""
_PAIRS = {")": "(", "]": "["}


@dataclass(frozen=True)
class Token:
    """A token. `kind`: name, number, op, newline or end; `at`: offset in the text."""

    kind: str
    text: str
    at: int


def tokenize(source: str) -> list[Token]:
    """Return the tokens of a text, with one `newline` between statements and an `end`. Raises FormulaError."""
    out: list[Token] = []
    open_: list[Token] = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise FormulaError(f"{source[at]!r} has no meaning here", source, at, _hint(source[at]))
        kind, text = str(match.lastgroup), match.group()
        kind = "op" if kind == "sign" else kind
        token = Token(kind, text, at)
        at = match.end()
        if kind == "number" and at < len(source) and (source[at].isalnum() or source[at] == "_"):
            raise FormulaError(
                f"a name cannot start with a digit, and {text} is followed by {source[at]!r}",
                source,
                at,
                "write a * between a number and a name",
            )
        if kind == "name" and len(text) > MAX_NAME_LENGTH:
            raise FormulaError(
                f"the name has {len(text)} characters; at most {MAX_NAME_LENGTH} are allowed", source, token.at
            )
        if kind == "name" and not text.isidentifier():
            odd = next(n for n in range(len(text)) if not text[: n + 1].isidentifier())
            raise FormulaError(f"{text[odd]!r} has no meaning in a name", source, token.at + odd)
        if kind == "newline":
            if not open_ and out and out[-1].kind != "newline":
                out.append(token)
        elif kind != "space":
            if text in ("(", "["):
                open_.append(token)
            elif text in _PAIRS:
                if not open_ or open_[-1].text != _PAIRS[text]:
                    raise FormulaError(f"{text!r} has no opening bracket", source, token.at)
                open_.pop()
            out.append(token)
    if open_:
        raise FormulaError(f"{open_[-1].text!r} is never closed", source, open_[-1].at)
    if out and out[-1].kind != "newline":
        out.append(Token("newline", "\n", len(source)))
    out.append(Token("end", "", len(source)))
    return out


def _hint(char: str) -> str | None:
    return {
        "&": "write `and`",
        "|": "write `or`",
        "~": "write `not`",
        "!": "write `not`, or !=",
        "^": "write ** for a power",
        "@": "write the product out, as in sum[k](A[i,k] * B[k,j])",
        ";": "write one statement on each line",
        ":": "an index is an integer expression; write an axis instead of a slice",
        "{": "use ( ) and [ ]",
        "\\": "a statement continues on the next line inside brackets",
    }.get(char)
