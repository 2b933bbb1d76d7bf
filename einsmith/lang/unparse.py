"""Write parsed formulas as text that parses to the same again."""

from __future__ import annotations

import math

from einsmith.ir.functions import FUNCTIONS, SCATTERED
from einsmith.lang.syntax import (
    Ast,
    Cast,
    Name,
    Number,
    ParsedApply,
    ParsedRead,
    ParsedReduction,
    ShapeOf,
    SizeOf,
    Source,
    Statement,
)

_COMPARISON, _PREFIX, _ATOM = 4, 7, 9


def unparse(source: Source) -> str:
    """Return the text of a formula, a statement a line."""
    lines = [*map(_statement, source.statements)]
    if source.returns is not None:
        lines.append(f"return {', '.join(name for name, _ in source.returns)}")
    return "\n".join(lines)


def _statement(s: Statement) -> str:
    sign = "=" if s.combiner is None else SCATTERED[s.combiner]
    return f"{s.name}[{', '.join(map(expression, s.index))}] {sign} {expression(s.value)}"


def expression(e: Ast, level: int = 0) -> str:
    """Return the text of an expression, in parentheses where it binds less than `level`."""
    text, own = _text(e)
    return f"({text})" if own < level else text


def _text(e: Ast) -> tuple[str, int]:
    """Return the text of an expression, and its precedence."""
    if isinstance(e, Number):
        if isinstance(e.value, float) and not math.isfinite(e.value):
            sign = "-" if e.value < 0 else ""
            return f"{sign}{'nan' if math.isnan(e.value) else 'inf'}", _PREFIX if sign else _ATOM
        return repr(e.value), _PREFIX if not isinstance(e.value, bool) and repr(e.value).startswith("-") else _ATOM
    if isinstance(e, Name):
        return e.id, _ATOM
    if isinstance(e, ParsedRead):
        return f"{e.name}[{', '.join(map(expression, e.index))}]", _ATOM
    if isinstance(e, ShapeOf):
        return f"{e.name}.shape[{expression(e.dim)}]", _ATOM
    if isinstance(e, SizeOf):
        return f"size({e.axis})", _ATOM
    if isinstance(e, Cast):
        return f"{e.dtype.name}({expression(e.operand)})", _ATOM
    if isinstance(e, ParsedReduction):
        return f"{e.combiner}[{', '.join(e.axes)}]({expression(e.body)})", _ATOM
    assert isinstance(e, ParsedApply)
    spec = FUNCTIONS[e.fn]
    if spec.symbol and spec.arity == 2 and not spec.call:
        sign, own = spec.symbol, spec.precedence
        left, right = e.operands
        first = expression(left, own + (own == _COMPARISON))  # a chain of comparisons means something else
        return f"{first} {sign} {expression(right, own + 1)}", own
    if e.fn == "neg":
        return f"-{expression(e.operands[0], _ATOM)}", _PREFIX
    if e.fn == "not":
        return f"not {expression(e.operands[0], _PREFIX)}", 3
    return f"{spec.call or e.fn}({', '.join(map(expression, e.operands))})", _ATOM
