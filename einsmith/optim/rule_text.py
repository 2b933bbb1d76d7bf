"""Update rules as text: assignments in order become definitions, each name written again getting a new name.

m[i] = b*m[i] + g[i]                m_1[i] = b*m[i] + g[i]
g[i] = g[i] + b*m[i]         ->     g_1[i] = g[i] + b*m_1[i]
p[i] = p[i] - lr*g[i]               p_1[i] = p[i] - lr*g_1[i]
                                    return p_1, m_1
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import count
from typing import NamedTuple

from einsmith.base.errors import FormulaError
from einsmith.lang.parser import REDUCTIONS

_TOKEN = re.compile(
    r"(?P<skip>[ \t\r]+|\#[^\n]*)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<line>\n)|(?P<sign>\*\*|//|<=|>=|==|!=|\+=|.)"
)
_WORDS = ("and", "or", "not", "True", "False", "inf", "nan")


class RuleToken(NamedTuple):
    """A token of an update rule, with its offset in the text."""

    kind: str
    text: str
    offset: int


class _Statement(NamedTuple):
    target: RuleToken
    axes: tuple[str, ...]
    body: list[RuleToken]


def _tokens(text: str) -> Iterator[RuleToken]:
    """Yield the tokens without blanks and comments; line ends inside brackets are blanks."""
    depth = 0
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if match.group() in "([":
            depth += 1
        elif match.group() in ")]":
            depth -= 1
        if kind != "skip" and not (kind == "line" and depth > 0):
            yield RuleToken(kind, match.group(), match.start())


def _statements(text: str) -> list[_Statement]:
    lines: list[list[RuleToken]] = [[]]
    for token in _tokens(text):
        if token.kind == "line":
            lines.append([])
        else:
            lines[-1].append(token)
    out = []
    for line in filter(None, lines):
        words = [t.text for t in line]
        if len(words) < 4 or line[0].kind != "name" or words[1] != "[" or "]" not in words:
            raise FormulaError(
                "a line of a rule must be an assignment", text, line[0].offset, "write it as name[i] = expression"
            )
        close = words.index("]")
        if words[close + 1 : close + 2] != ["="]:
            raise FormulaError("an assignment needs = after its axes", text, line[close].offset)
        axes = tuple(w for w in words[2:close] if w != ",")
        if any(not a.isidentifier() for a in axes) or len(set(axes)) != len(axes):
            raise FormulaError("the axes of an assignment must be distinct names", text, line[2].offset)
        out.append(_Statement(line[0], axes, line[close + 2 :]))
    if not out:
        raise FormulaError("the rule is empty")
    return out


class RuleProgram:
    """A rule's text, parsed.

    axes: axes of p; a single axis means all elements of a tensor of any rank; rank: number of axes; parameters: names
    of numbers; inputs: tensors read before they are written; states: inputs except p and g, each with its axes;
    written: states that some line writes.
    """

    def __init__(self, text: str):
        self.text = text
        self.statements = _statements(text)
        self.axes = next((s.axes for s in self.statements if s.target.text == "p"), self.statements[0].axes)
        self.rank = len(self.axes)
        if not self.axes:
            raise FormulaError("p needs an axis, which stands for all of its elements", text, 0, "write p[i] = ...")
        for s in self.statements:
            like_p = s.target.text in ("p", "g")
            if len(s.axes) != self.rank and (like_p or (self.rank == 1 and s.axes)):
                raise FormulaError(
                    "the assignments of a rule must have equally many axes, or none for a number", text, s.target.offset
                )
        written: list[str] = []
        read: dict[str, tuple[str, ...]] = {}  # name -> axes of its first read
        self.parameters: dict[str, RuleToken] = {}
        for s in self.statements:
            bound = set(s.axes) | self._reduced_axes(s.body)
            for n, token in enumerate(s.body):
                if token.kind != "name" or (n and s.body[n - 1].text == "."):
                    continue
                after = s.body[n + 1].text if n + 1 < len(s.body) else ""
                if after == "[" and token.text not in REDUCTIONS:
                    if token.text not in written and token.text not in read:
                        read[token.text] = self._index(s.body, n + 2)
                elif after not in ("[", "(", ".") and token.text not in bound and token.text not in _WORDS:
                    self.parameters.setdefault(token.text, token)
            if s.target.text not in written:
                written.append(s.target.text)
        if "p" not in written:
            raise FormulaError("a rule must assign the parameter's new value, p[...] = ...", text, 0)
        self.inputs = list(read)
        targets = {s.target.text: (s.axes, s.target.offset) for s in reversed(self.statements)}
        self.states: dict[str, tuple[str, ...]] = {}
        for name in (n for n in read if n not in ("p", "g")):
            own, offset = targets.get(name, (read[name], 0))
            if len(own) == self.rank:
                own = self.axes
            elif not set(own) <= set(self.axes):
                raise FormulaError(
                    f"the state {name} has axes that p does not have, and so no extents",
                    text,
                    offset,
                    f"use those of p[{','.join(self.axes)}]",
                )
            self.states[name] = own
        self.written = [n for n in self.states if n in written]
        for name, token in self.parameters.items():
            if name in written or name in read:
                raise FormulaError(f"{name} is a tensor and needs its axes here", text, token.offset)

    @staticmethod
    def _index(body: Sequence[RuleToken], start: int) -> tuple[str, ...]:
        """Return the names between brackets, from token `start`, the first inside, to the closing bracket."""
        out = []
        for token in body[start:]:
            if token.text == "]":
                break
            if token.kind == "name":
                out.append(token.text)
        return tuple(out)

    def state_shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shape of every state of a parameter of the given shape."""
        if self.rank == 1:
            return {n: shape if axes else () for n, axes in self.states.items()}
        extents = dict(zip(self.axes, shape, strict=True))
        return {n: tuple(extents[a] for a in axes) for n, axes in self.states.items()}

    @staticmethod
    def _reduced_axes(body: Sequence[RuleToken]) -> set[str]:
        """Return the axes that reductions in `body` bind."""
        axes: set[str] = set()
        for n, token in enumerate(body):
            if token.text in REDUCTIONS and n + 1 < len(body) and body[n + 1].text == "[":
                axes.update(RuleProgram._index(body, n + 2))
        return axes

    def check_parameters(self, known: Sequence[str], all_used: bool = True) -> None:
        """Check the names of hyperparameters. Raises FormulaError for a name in the text that is not in `known`, and,
        with `all_used`, for a name in `known` that the text does not use."""
        for name, token in self.parameters.items():
            if name not in known and name != "step":
                near = get_close_matches(name, [*known, "step"], 1)
                hint = f"did you mean {near[0]}?" if near else f"give it a value: Rule(..., {name}=...)"
                raise FormulaError(f"{name} is not a hyperparameter of this rule", self.text, token.offset, hint)
        for name in known if all_used else ():
            if name not in self.parameters:
                raise FormulaError(f"the rule does not use the hyperparameter {name}", self.text, 0)

    def formula(self, rank: int) -> str:
        """Return the formula for tensors of `rank` dimensions (at least 1), ending in `return` of p and the states."""
        spread = self.rank == 1 and rank != 1
        taken = {t.text for s in self.statements for t in s.body} | {s.target.text for s in self.statements}
        names: dict[str, str] = {}
        lines = []
        for s in self.statements:
            body = self._rewrite(s.body, names, rank, spread)
            target = s.target.text
            new = target
            if target in names or target in ("p", "g", *self.states):
                new = next(n for n in (f"{target}_{k}" for k in count(1)) if n not in taken)
            taken.add(new)
            names[target] = new
            axes = [self._axis_names(a, rank) for a in s.axes] if spread else list(s.axes)
            lines.append(f"{new}[{','.join(axes)}] = {body}")
        lines.append("return " + ", ".join(names[n] for n in ("p", *self.written)))
        return "\n".join(lines)

    @staticmethod
    def _axis_names(axis: str, rank: int) -> str:
        return ",".join(f"{axis}_{n}" for n in range(rank))

    def _rewrite(self, body: Sequence[RuleToken], names: dict[str, str], rank: int, spread: bool) -> str:
        """Join the tokens, with tensors renamed by `names` and, with `spread`, each axis replaced by `rank` axes."""
        out: list[str] = []
        open_brackets: list[bool] = []  # for each open bracket, whether it holds the axes of a tensor or a reduction
        for n, token in enumerate(body):
            text = token.text
            before = body[n - 1].text if n else ""
            after = body[n + 1].text if n + 1 < len(body) else ""
            if spread and text == "size" and after == "(":
                text = ""
            elif spread and n > 1 and before == "(" and body[n - 2].text == "size":
                text = "*".join(f"size({a})" for a in self._axis_names(text, rank).split(","))
            elif text == "[":
                open_brackets.append(n > 0 and body[n - 1].kind == "name" and not (n > 1 and body[n - 2].text == "."))
            elif text == "]" and open_brackets:
                open_brackets.pop()
            elif token.kind == "name" and before != ".":
                if after in ("[", ".") and text not in REDUCTIONS:
                    text = names.get(text, text)
                elif spread and open_brackets and open_brackets[-1]:
                    if before not in ("[", ",") or after not in ("]", ","):
                        raise FormulaError(
                            f"the one axis of a rule stands for all elements and cannot be a part of an index, as "
                            f"{text!r} is here",
                            self.text,
                            token.offset,
                            "write as many axes as the tensors have dimensions",
                        )
                    text = self._axis_names(text, rank)
            out.append(f" {text} " if text in ("and", "or", "not", "=") else text)
        return "".join(out)
