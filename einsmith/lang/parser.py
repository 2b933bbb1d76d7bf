"""Parse the formula language: from text to statements.

program    = statement* ["return" name ("," name)*]
statement  = name "[" [expr ("," expr)*] "]" ("=" | "+=" | "*=" | "max=" | "min=") expr
expr       = Python's operators over numbers, names, A[i, ...], A.shape[n], size(k), f(x, ...), sum[k](x)
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import FormulaError
from einsmith.ir import functions
from einsmith.ir.functions import CALLS, SCATTERED, comparison, floats, numbers
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
from einsmith.lang.tokenizer import Token, tokenize
from einsmith.tracing import composed  # noqa: F401  # adds functions to CALLS

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "argmax", "argmin", "logsumexp")
CASTS = {d.name: d for d in dt.ALL}
FUNCTIONS = {**{name: f.arity for name, f in CALLS.items()}, **dict.fromkeys(CASTS, 1), "size": 1}
"""Number of arguments of each function of the language. Functions that are added from outside are in CALLS alone: their
names stay free for tensors."""
VARIADIC = ("min", "max", "logaddexp")
"""Functions of two or more arguments."""
WRITTEN = {
    "softmax": "e[i,j] = exp(x[i,j] - max[m](x[i,m])) on a line of its own, then e[i,j]/sum[m](e[i,m])",
    "log_softmax": "x[i,j] - logsumexp[m](x[i,m])",
    "norm": "sqrt(sum[j](x[i,j]**2))",
    "var": "m[i] = mean[j](x[i,j]) on a line of its own, then mean[j]((x[i,j] - m[i])**2)",
    "std": "m[i] = mean[j](x[i,j]) on a line of its own, then sqrt(mean[j]((x[i,j] - m[i])**2))",
    "any": "max[j](where(x[i,j] > 0, 1, 0)) > 0",
    "all": "min[j](where(x[i,j] > 0, 1, 0)) > 0",
    "cumsum": "s[i,j] = x[i,j] + where(j > 0, s[i,j-1], 0)",
    "sinh": "(exp(x) - exp(-x))/2",
    "cosh": "(exp(x) + exp(-x))/2",
    "tan": "sin(x)/cos(x)",
    "ceil": "-floor(-x)",
    "ln": "log(x)",
    "log2": "log(x)/0.6931471805599453",
    "log10": "log(x)/2.302585092994046",
    "exp2": "2.0**x",
    "square": "x*x",
    "reciprocal": "1/x",
    "clamp": "min(max(x, low), high)",
    "clip": "min(max(x, low), high)",
    "silu": "x*sigmoid(x)",
    "gelu": "0.5*x*(1 + erf(x*0.7071067811865476))",
    "elu": "where(x > 0, x, expm1(x))",
    "leaky_relu": "where(x > 0, x, 0.01*x)",
    "maximum": "max(x, y)",
    "minimum": "min(x, y)",
}
"""How functions that the language lacks are written in it, by their usual names."""
WRITTEN_NUMBERS = {"pi": "3.141592653589793", "e": "2.718281828459045"}
"""Constants that the language lacks, as they are written."""
UNWRITTEN = frozenset("acos arccos asin arcsin atan arctan atan2 arctan2 lgamma digamma sort cumprod topk".split())
"""Names of functions that no formula expresses by the others, for which near names would mislead."""
KEYWORDS = ("and", "or", "not", "return", "if", "else", "for", "in", "lambda", "True", "False", "inf", "nan", "shape")
RESERVED = frozenset((*FUNCTIONS, *REDUCTIONS, *KEYWORDS))
_SIGNS = {sign: combiner for combiner, sign in SCATTERED.items()}
_CONSTANTS = {"True": True, "False": False, "inf": math.inf, "nan": math.nan}


def near(name: str, known: Iterable[str]) -> str | None:
    """Return a sentence with names like `name`, or None."""
    close = difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else None


_OPERATORS = {f.symbol: f for f in functions.FUNCTIONS.values() if f.symbol and f.arity == 2}
_COMPARISONS = {sign: f.name for sign, f in _OPERATORS.items() if f.rule is comparison} | {">": "lt", ">=": "le"}
_BINARY = {sign: (f.name, f.precedence) for sign, f in _OPERATORS.items() if f.rule in (numbers, floats) and not f.call}
_CHOICE = "a choice is written where(condition, a, b), not a if condition else b"


class _Parser:
    def __init__(self, text: str):
        self.text = text
        self.tokens = tokenize(text)
        self.place = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.place]

    def fail(self, message: str, at: int | None = None, hint: str | None = None) -> FormulaError:
        if hint is None and self.token.text in ("if", "else"):
            hint = _CHOICE
        return FormulaError(message, self.text, self.token.at if at is None else at, hint)

    def take(self, text: str | None = None) -> Token:
        token = self.token
        if text is not None and token.text != text:
            shown = "the end of the line" if token.kind in ("newline", "end") else f"{token.text!r}"
            raise self.fail(f"expected {text!r}, found {shown}")
        self.place += 1
        return token

    def accept(self, *texts: str) -> Token | None:
        return self.take() if self.token.text in texts and self.token.kind in ("op", "name") else None

    def name(self, role: str) -> Token:
        token = self.token
        if token.kind != "name":
            raise self.fail(f"expected the name of {role}, found {token.text.strip() or 'the end of the line'!r}")
        if token.text in RESERVED:
            raise self.fail(f"{token.text!r} is a reserved name and cannot name {role}", hint="choose another name")
        return self.take()

    def program(self) -> Source:
        statements: list[Statement] = []
        returns: tuple[tuple[str, int], ...] | None = None
        while self.token.kind != "end":
            if self.token.kind == "newline":
                self.take()
                continue
            if returns is not None:
                raise self.fail("nothing may follow `return`")
            if self.accept("return"):
                names = [self.name("an output")]
                while self.accept(","):
                    names.append(self.name("an output"))
                returns = tuple((n.text, n.at) for n in names)
            else:
                statements.append(self.statement())
            if self.token.kind != "newline":
                raise self.fail(
                    f"{self.token.text!r} does not continue the expression before it", hint=self._continuation()
                )
            self.take()
        if not statements:
            raise FormulaError("the formula is empty", self.text, 0, "write statements such as Y[i] = X[i] + 1")
        return Source(self.text, tuple(statements), returns)

    def _continuation(self) -> str | None:
        text = self.token.text
        if text == "if":
            return "a choice is written where(condition, a, b)"
        if text == "=":
            return "a comparison is written =="
        return "an operator may be missing" if self.token.kind in ("name", "number") or text in "([" else None

    def statement(self) -> Statement:
        if self.token.kind == "op":
            hint = (
                "a statement continues on the next line only inside brackets: put the expression after = in parentheses"
            )
            raise self.fail(f"expected the name of a tensor, found {self.token.text!r}", hint=hint)
        head = self.name("a tensor")
        if self.token.text != "[":
            hint = f"a tensor without axes is written {head.text}[] = ..."
            raise self.fail("the left side needs its axes in brackets", hint=hint)
        index = self.brackets()
        sign = self.accept("=", *_SIGNS)
        if sign is None:
            shown = self.token.text.strip() or "the end of the line"
            raise self.fail(f"expected = or one of {', '.join(_SIGNS)} after the left side, found {shown!r}")
        return Statement(head.at, head.text, index, _SIGNS.get(sign.text), self.expression())

    def brackets(self) -> tuple[Ast, ...]:
        self.take("[")
        index: list[Ast] = []
        while self.token.text != "]":
            index.append(self.expression())
            if not self.accept(","):
                break
        self.take("]")
        return tuple(index)

    # Precedence climbing: one level of recursion for each parenthesis or prefix, loops for chains.

    def expression(self, level: int = 1) -> Ast:
        left = self.prefix(level)
        while True:
            token = self.token
            if token.kind not in ("op", "name"):
                return left
            if token.text in ("or", "and"):
                own = 1 if token.text == "or" else 2
                if own < level:
                    return left
                self.take()
                left = ParsedApply(token.at, token.text, (left, self.expression(own + 1)))
            elif token.text in _COMPARISONS:
                if level > 4:
                    return left
                left = self.comparison(left)
            elif token.text in _BINARY:
                fn, own = _BINARY[token.text]
                if own < level:
                    return left
                self.take()
                left = ParsedApply(token.at, fn, (left, self.expression(own + 1)))
            else:
                return left

    def comparison(self, left: Ast) -> Ast:
        out: Ast | None = None
        while self.token.kind == "op" and self.token.text in _COMPARISONS:
            token = self.take()
            right = self.expression(5)
            sides = (right, left) if token.text in (">", ">=") else (left, right)
            term = ParsedApply(token.at, _COMPARISONS[token.text], sides)
            out = term if out is None else ParsedApply(token.at, "and", (out, term))
            left = right
        assert out is not None
        return out

    def prefix(self, level: int) -> Ast:
        token = self.token
        if token.kind == "name" and token.text == "not":
            if level > 3:
                raise self.fail("`not` needs parentheses here")
            self.take()
            return ParsedApply(token.at, "not", (self.expression(3),))
        if self.accept("-"):
            inner = self.expression(7)
            return (
                Number(token.at, -inner.value)
                if type(inner) is Number and _is_number(inner.value)
                else ParsedApply(token.at, "neg", (inner,))
            )
        if self.accept("+"):
            return self.expression(7)
        return self.power()

    def power(self) -> Ast:
        base = self.atom()
        token = self.token
        if self.accept("**"):
            return ParsedApply(token.at, "pow", (base, self.expression(7)))
        return base

    def atom(self) -> Ast:
        token = self.token
        if token.kind == "number":
            self.take()
            if token.text.isdigit() and len(token.text) > 20:
                raise self.fail(
                    f"the integer of {len(token.text)} digits does not fit 64 bits",
                    token.at,
                    "write a float, as in 1e20",
                )
            return Number(token.at, int(token.text) if token.text.isdigit() else float(token.text))
        if self.accept("("):
            inner = self.expression()
            if self.token.text == ",":
                raise self.fail(
                    "there are no tuples here", hint="a reduction over several axes is written sum[i,j](...)"
                )
            self.take(")")
            return inner
        if token.kind == "name":
            return self.named_atom()
        shown = "the end of the line" if token.kind in ("newline", "end") else repr(token.text)
        hint = "name every axis; there is no ellipsis" if self.token.text == "." else None
        raise self.fail(f"expected an expression, found {shown}", hint=hint)

    def named_atom(self) -> Ast:
        token = self.take()
        name, follows = token.text, self.token.text
        if name in _CONSTANTS:
            return Number(token.at, _CONSTANTS[name])
        if name in REDUCTIONS and follows == "[":
            return self.reduction(token)
        if follows == "(":
            return self.call(token)
        if name in REDUCTIONS or name in FUNCTIONS:
            usage = f"{name}[i](...)" if name in REDUCTIONS else f"{name}(...)"
            raise self.fail(f"{name!r} is a function's name", token.at, f"write {usage}, or choose another name")
        if follows == "[" and self.is_called_behind_brackets():
            is_known = name in WRITTEN or name in UNWRITTEN
            hint = self.written(name) if is_known else near(name, REDUCTIONS) or "an operator may be missing before '('"
            raise self.fail(f"{name} is not a reduction; those are {', '.join(REDUCTIONS)}", token.at, hint)
        if name in RESERVED:
            hint = _CHOICE if name in ("if", "else") else "choose another name"
            raise self.fail(f"{name!r} is a reserved name", token.at, hint)
        if follows == "[":
            return ParsedRead(token.at, name, self.brackets())
        if follows == ".":
            self.take()
            attribute = self.take()
            if attribute.text != "shape" or self.token.text != "[":
                raise self.fail(f"a tensor has no {attribute.text!r} here", attribute.at, f"write {name}.shape[n]")
            index = self.brackets()
            if len(index) != 1:
                raise self.fail("shape takes one index", attribute.at, f"write {name}.shape[n]")
            return ShapeOf(token.at, name, index[0])
        return Name(token.at, name)

    def is_called_behind_brackets(self) -> bool:
        """Return whether parentheses follow the brackets that open here, as behind a reduction's axes."""
        depth, at = 0, self.place
        while True:
            text = self.tokens[at].text
            depth += (text == "[") - (text == "]")
            at += 1
            if depth == 0:
                return self.tokens[at].text == "("

    @staticmethod
    def written(name: str) -> str:
        """Return a hint for an unknown function: its formula, or similar names."""
        if name in WRITTEN:
            return f"write {WRITTEN[name]}"
        if name in UNWRITTEN:
            return "it cannot be written with the functions of formulas, " + ", ".join(sorted(FUNCTIONS))
        known = {*FUNCTIONS, *CALLS}
        return near(name, (*known, *REDUCTIONS)) or "the functions are " + ", ".join(sorted(known))

    def reduction(self, token: Token) -> Ast:
        self.take("[")
        names: list[str] = []
        while self.token.text != "]":
            axis = self.name("an axis")
            if axis.text in names:
                raise self.fail(f"{token.text} names the axis {axis.text} twice", axis.at)
            names.append(axis.text)
            if not self.accept(","):
                break
        self.take("]")
        if not names:
            raise self.fail(f"{token.text} needs at least one axis", token.at, f"write {token.text}[i](...)")
        if self.token.text != "(":
            raise self.fail(f"{token.text}[{','.join(names)}] needs its body in parentheses")
        self.take("(")
        body = self.expression()
        self.take(")")
        return ParsedReduction(token.at, token.text, tuple(names), body)

    def call(self, token: Token) -> Ast:
        name = token.text
        spec = CALLS.get(name)
        if spec is None and name not in FUNCTIONS and name not in REDUCTIONS:
            raise self.fail(f"unknown function {name}", token.at, self.written(name))
        self.take("(")
        args: list[Ast] = []
        while self.token.text != ")":
            args.append(self.expression())
            if not self.accept(","):
                break
        self.take(")")
        if name in REDUCTIONS and (name not in FUNCTIONS or len(args) < 2):
            raise self.fail(f"{name} needs its axes in brackets", token.at, f"write {name}[i](...)")
        arity = FUNCTIONS[name] if spec is None else spec.arity
        if len(args) != arity and not (name in VARIADIC and len(args) > 2):
            raise self.fail(f"{name} takes {arity} argument{'s' if arity > 1 else ''}, not {len(args)}", token.at)
        if name == "size":
            if not isinstance(args[0], Name):
                raise self.fail("size takes the name of an axis", token.at, "for a tensor write A.shape[n]")
            return SizeOf(token.at, args[0].id)
        if name in CASTS:
            return Cast(token.at, CASTS[name], args[0])
        assert spec is not None
        if name == "logaddexp":
            return ParsedApply(token.at, name, tuple(args))
        out = ParsedApply(token.at, spec.name, tuple(args[:arity]))
        for extra in args[arity:]:
            out = ParsedApply(token.at, spec.name, (out, extra))
        return out


def _is_number(value: bool | int | float) -> bool:
    return not isinstance(value, bool)


def parse(text: str) -> Source:
    """Return the statements of a text. Raises FormulaError with line, caret and remedy."""
    parser = _Parser(text)
    return _parse_nested(parser, parser.program)


def parse_expression(text: str) -> Ast:
    """Parse one expression, as in `extents={"p": "H//2"}`. Raises FormulaError for other text."""
    parser = _Parser(text)
    out = _parse_nested(parser, parser.expression)
    if parser.token.kind not in ("newline", "end"):
        raise parser.fail(f"{parser.token.text!r} does not continue the expression before it")
    return out


def _parse_nested(parser: _Parser, part: Callable[[], Any]) -> Any:
    """Return `part()`; raise FormulaError where brackets are nested too deeply for Python's stack."""
    try:
        return part()
    except RecursionError:
        raise FormulaError(
            "the formula is nested too deeply", parser.text, parser.token.at, "split it into statements"
        ) from None
