"""Random formulas: text of the formula language with the arrays to call it on.

`Generator(choose).case()` makes a Case from a source of choices, `choose(n)` giving an integer in [0, n): hypothesis
(`cases`), which shrinks towards 0, or `random.Random(seed).randrange`. Every formula is legal: reads are in bounds or
guarded, denominators and arguments of roots and logarithms stay away from zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from einsmith.base import dtypes
from tests.fuzz.case import Case, Input

EXTENTS = (2, 3, 1, 5, 4, 7, 16, 17, 15)
DOMAIN = 6_000  # points of a statement, all its nested reductions included
ELEMENTS = 3_000  # elements of an input
KINDS = ("f32", "exact", "i64", "f64", "i32")

UNARY = (
    "-({})", "relu({})", "tanh({})", "sigmoid({})", "abs({})", "sin({})", "cos({})", "erf({})", "({})**2",
    "exp(tanh({}))", "sqrt(1 + abs({}))", "log(1.5 + abs({}))", "rsqrt(1 + ({})**2)", "pow(0.5 + abs({}), 1.5)",
    "sign({})", "floor(2*{})",
)  # fmt: skip
BINARY = (
    "{} + {}", "{} * {}", "{} - {}", "({}) / (1 + abs({}))", "max({}, {})", "min({}, {})", "({}) % (1 + abs({}))",
)  # fmt: skip
INT_UNARY = (
    "-({})",
    "abs({})",
    "sign({})",
    "({}) // 2",
    "({}) % 3",
    "({}) // -3",
    "({})**2",
    "i64({})",
    "relu({})",
    "({}) % -4",
)
INT_BINARY = (
    "{} + {}", "{} - {}", "{} * {}", "max({}, {})", "min({}, {})", "({}) // (1 + abs({}))", "({}) % (1 + abs({}))",
)  # fmt: skip
EXACT_UNARY = ("-({})", "abs({})", "relu({})", "sign({})", "({})**2", "floor({})", "stop_gradient({})")
EXACT_BINARY = ("{} + {}", "{} - {}", "{} * {}", "max({}, {})", "min({}, {})")


@dataclass
class _Statement:
    """What is known of the statement under construction."""

    domain: int = 1
    used: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)


Scope = dict[str, int]


class Generator:
    """Makes cases from choices. `smooth`: without steps and remainders, whose gradients say nothing."""

    def __init__(self, choose: Callable[[int], int], kinds: Sequence[str] = KINDS, smooth: bool = False):
        self.choose = choose
        self.kind = self.pick(kinds)
        self.smooth = smooth
        self.integer = self.kind.startswith("i")
        self.exact = self.integer or self.kind == "exact"
        self.dtype = str(dtypes.dtype_of("f32" if self.kind == "exact" else self.kind).numpy)
        if self.integer:
            self.unary, self.binary = INT_UNARY, INT_BINARY
        elif self.exact:
            self.unary, self.binary = EXACT_UNARY, EXACT_BINARY
        else:
            self.unary, self.binary = (UNARY[:-2], BINARY[:-1]) if smooth else (UNARY, BINARY)
        self.axes: Scope = {}
        self.extents: dict[str, Any] = {}
        self.inputs: dict[str, Input] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.conditions: set[str] = set()
        self.parameters: dict[str, float] = {}
        self.lines: list[str] = []
        self.guards = 0
        self.now = _Statement()

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.choose(len(options))]

    def chance(self, n: int) -> bool:
        """True once in n."""
        return self.choose(n) == n - 1

    # ------------------------------------------------------------------------------------------------------- whole

    def case(self) -> Case:
        wanted = 1 + self.pick((0, 0, 1, 1, 2))
        everything = self.chance(3)
        for _ in range(wanted):
            self.statement()
        names = [n for n in self.shapes if n not in self.inputs]
        if everything or self.chance(2):
            some = [n for n in names if self.chance(2)] or names[-1:]
            self.lines.append("return " + ", ".join(some))
        text = "\n".join(self.lines)
        there = set(re.findall(r"\w+", text))
        order = sorted((n for n in self.inputs if n in there), key=lambda n: text.index(f"{n}["))
        return Case(
            text,
            {a: n for a, n in sorted(self.extents.items()) if a.partition(".")[0] in there},
            {n: self.inputs[n] for n in order},
            {p: x for p, x in self.parameters.items() if p in there},
            self.exact,
            self.choose(10_000),
            {a: n for a, n in self.axes.items() if a in there},
        )

    def statement(self) -> None:
        name = f"T{sum(n.startswith('T') for n in self.shapes)}"
        form = self.pick(("plain",) * 5 + ("divided", "interleaved", "stacked", "accumulated"))
        if form == "plain":
            self.now = _Statement()
            scope = self.left(self.pick((1, 2, 0, 3)))
            boolean = self.chance(12)
            body = self.condition(scope) if boolean else self.expression(scope, 3)
            if boolean:
                self.conditions.add(name)
            self.finish(f"{name}[{', '.join(scope)}] = {body}")
            shape = tuple(scope.values())
        elif form == "divided":
            self.now = _Statement()
            scope = self.left(2)
            (a, b), (m, n) = list(scope), list(scope.values())
            rest = self.left(self.pick((0, 1)))
            left = ", ".join((f"{n}*{a} + {b}", *rest))
            self.finish(f"{name}[{left}] = {self.expression({**scope, **rest}, 3)}")
            shape = (m * n, *rest.values())
        elif form == "interleaved":
            parts = 2 + self.choose(2)
            lead = self.pick((0, 1))
            i, n = self.axis(60)
            rest = {}
            for p in range(parts):
                self.now = _Statement(domain=n)
                if p == 0 and lead:
                    rest = self.left(1)
                scope = {i: n, **rest}
                self.now.domain = n * int(np.prod(list(rest.values()) or [1]))
                at = f"{parts}*{i}" + (f" + {p}" if p else "")
                self.finish(f"{name}[{', '.join([at, *rest])}] = {self.expression(scope, 2)}", {i, *rest})
            shape = (parts * n, *rest.values())
        elif form == "stacked":
            start = 0
            rest = {}
            for p in range(2):
                self.now = _Statement()
                i, n = self.axis(60)
                if p == 0 and self.chance(2):
                    rest = self.left(1)
                self.now.domain = n * int(np.prod(list(rest.values()) or [1]))
                at = f"{i} + {start}" if p else i
                self.finish(f"{name}[{', '.join([at, *rest])}] = {self.expression({i: n, **rest}, 2)}", {i, *rest})
                start += n
            shape = (start, *rest.values())
        else:
            self.now = _Statement()
            scope = self.left(2)
            (a, b), (m, n) = list(scope), list(scope.values())
            if self.chance(2):
                left, shape = f"{a} + {b}", (m + n - 1,)
            else:
                size = self.pick(EXTENTS)
                left, shape = f"{self.integers(a, m, size)}, {b}", (size, n)
                self.now.bound.discard(b)
            self.extents[f"{name}.shape[0]"] = shape[0]
            added = self.now
            if self.chance(2):  # onto a value
                self.now = _Statement()
                start: Scope = {}
                for n in shape:
                    a = f"a{len(self.axes)}"
                    self.axes[a] = start[a] = n
                    self.now.used.add(a)
                    self.now.domain *= n
                self.finish(f"{name}[{', '.join(start)}] = {self.expression(start, 2)}", set(start))
                self.now = added
            self.finish(f"{name}[{left}] += {self.expression(scope, 2)}", set(scope))
        self.shapes[name] = shape

    def left(self, rank: int) -> Scope:
        scope: Scope = {}
        for _ in range(rank):
            name, n = self.axis(400)
            scope[name] = n
        return scope

    def finish(self, line: str, explicit: Sequence[str] | set[str] = ()) -> None:
        """Records the statement; axes that no plain index gives an extent to get it by `extents=`."""
        self.lines.append(line)
        for a in {*(self.now.used - self.now.bound), *explicit}:
            self.extents[a] = self.axes[a]
        if self.chance(3):
            self.extents.update({a: self.axes[a] for a in self.now.used})

    def axis(self, limit: int, fresh: bool = True) -> tuple[str, int]:
        """A new axis that keeps the statement's domain within limits."""
        room = max(1, min(limit, DOMAIN) // self.now.domain)
        n = self.pick([e for e in EXTENTS if e <= room] or [1])
        name = f"a{len(self.axes)}"
        self.axes[name] = n
        self.now.used.add(name)
        self.now.domain *= n
        return name, n

    # ----------------------------------------------------------------------------------------------------- indices

    def affine(self, scope: Scope) -> tuple[str, int, int]:
        """An index expression with its least and greatest value."""
        names = list(scope)
        if not names or self.chance(12):
            c = self.choose(4)
            return str(c), c, c
        a = self.pick(names)
        b = self.pick(names)
        m, n = scope[a] - 1, scope[b] - 1
        k = self.pick((2, 3, 5))
        form = self.pick(
            ("plain",) * 4
            + (
                "window",
                "stride",
                "shift",
                "div",
                "mod",
                "flat",
                "back",
                "dilate",
                "deep",
                "under",
                "below",
                "negative",
            )
        )
        if form == "window" and a != b:
            return f"{a} + {b}", 0, m + n
        if form == "stride" and a != b:
            return f"{k}*{a} + {b}", 0, k * m + n
        if form == "dilate" and a != b:
            return f"2*{a} + {k}*{b} - 1", -1, 2 * m + k * n - 1
        if form == "flat" and a != b:
            return f"{n + 1}*{a} + {b}", 0, (n + 1) * m + n
        if form == "deep" and a != b:
            return f"({k}*{a} + {b}) // 2 % {k + 2}", 0, min(k + 1, (k * m + n) // 2)
        if form == "shift":
            return f"{a} - {k}", -k, m - k
        if form == "div":
            return f"{a}//{k}", 0, m // k
        if form == "mod":
            return f"{a} % {k}", 0, min(k - 1, m)
        if form == "under":
            return f"{a} // -{k}", m // -k, 0
        if form == "below":
            return f"{a} % -{k}", 1 - k if m else 0, 0
        if form == "negative" and a != b:
            return f"(-{k}*{a} + {b}) // -2 % -{k + 2}", -k - 1, 0
        if form == "back":
            return f"{m} - {a}", 0, m
        return a, 0, m

    def integers(self, a: str, extent: int, high: int) -> str:
        """A read of an integer input along axis `a`, with elements in [0, high)."""
        name = f"N{sum(n.startswith('N') for n in self.inputs)}"
        self.inputs[name] = Input((extent,), self.pick(("int64", "int32")), 0, high)
        self.bind(a)
        return f"{name}[{a}]"

    def bind(self, a: str) -> None:
        """A plain index gives the axis its extent, unless a guard around it might mention the axis."""
        if not self.guards:
            self.now.bound.add(a)

    def read(self, scope: Scope) -> str:
        """A read of a tensor: an input made for it, or one that is there already."""
        known = [n for n in self.shapes if n not in self.conditions]
        if known and self.chance(2):
            return self.read_known(self.pick(known), scope)
        name = f"X{sum(n.startswith('X') for n in self.inputs)}"
        index, shape = [], []
        for _ in range(self.pick((1, 2, 3, 0))):
            text, low, high = self.affine(scope)
            if low < 0:
                text, high = f"{text} + {-low}", high - low
            n = high + 1
            if (n + 17) * int(np.prod(shape or [1])) > ELEMENTS:
                break
            if text in scope:
                self.bind(text)
            elif scope and self.chance(8):
                n = self.pick(EXTENTS)
                a = self.pick(list(scope))
                text = self.integers(a, scope[a], n)
            elif self.chance(3):
                n += 1
            index.append(text)
            shape.append(n)
        dtype = self.dtype
        if self.kind == "f64" and self.chance(3):
            dtype = "float32"
        if not self.integer and self.chance(8):
            dtype = self.pick(("int64", "int32"))
        self.inputs[name] = Input(tuple(shape), dtype)
        self.shapes[name] = tuple(shape)
        return f"{name}[{', '.join(index)}]"

    def read_known(self, name: str, scope: Scope) -> str:
        index, guards, before = [], [], set(self.now.bound)
        for n in self.shapes[name]:
            same = [a for a in scope if scope[a] == n]
            text, low, high = (self.pick(same), 0, n - 1) if same and not self.chance(3) else self.affine(scope)
            if text in scope and scope[text] == n:
                self.bind(text)
            elif low < 0 or high >= n or text in scope:
                if self.chance(2) and text not in scope:
                    text = f"({text}) % {n}"
                else:
                    guards.append(f"0 <= {text} < {n}")
            index.append(text)
        out = f"{name}[{', '.join(index)}]"
        if guards:
            other = self.pick(("0", "1", "-2"))
            out = f"where({' and '.join(guards)}, {out}, {other})"
            self.now.bound = before
        return out

    # ------------------------------------------------------------------------------------------------- expressions

    def expression(self, scope: Scope, depth: int) -> str:
        form = self.pick(("leaf", "neighbours") + ("binary",) * 3 + ("fold",) * 3 + ("unary",) * 2 + ("where",))
        if depth == 0 or form == "leaf":
            return self.leaf(scope)
        if form == "neighbours":
            return self.neighbours(scope)
        if form == "unary":
            return self.pick(self.unary).format(self.expression(scope, depth - 1))
        if form == "binary":
            a, b = self.expression(scope, depth - 1), self.expression(scope, depth - 1)
            shape = self.pick(self.binary)
            return shape.format(a, b) if "(" in shape else shape.format(f"({a})", f"({b})")
        if form == "where":
            c = self.condition(scope)
            self.guards += 1
            a, b = self.expression(scope, depth - 1), self.expression(scope, depth - 1)
            self.guards -= 1
            return f"where({c}, {a}, {b})"
        return self.fold(scope, depth)

    def neighbours(self, scope: Scope) -> str:
        """Two reads of an input at an axis and further on, which give the axis its extent."""
        if not scope or self.guards:
            return self.leaf(scope)
        name, a, c = f"X{sum(n.startswith('X') for n in self.inputs)}", self.pick(list(scope)), 1 + self.choose(3)
        self.inputs[name] = Input((scope[a] + c,), self.dtype)
        self.shapes[name] = (scope[a] + c,)
        self.bind(a)
        return f"({name}[{a}] + 2*{name}[{a} + {c}])"

    def fold(self, scope: Scope, depth: int) -> str:
        combiner = self.pick(("sum",) * 4 + ("max", "mean", "min", "prod", "argmax", "argmin", "logsumexp"))
        if self.exact and combiner in ("mean", "logsumexp"):
            combiner = "sum"
        if self.smooth and combiner.startswith("arg"):
            combiner = combiner[3:]
        before = self.now.domain
        inner = dict(scope)
        names = []
        for _ in range(self.pick((1, 1, 2))):
            name, n = self.axis(before * (7 if combiner == "prod" else 300))
            inner[name] = n
            names.append(name)
        product = self.chance(2) and combiner == "sum"
        if product:
            body = f"{self.read(inner)} * {self.read(inner)}"
        else:
            body = self.expression(inner, depth - 1)
        if combiner == "prod":
            body = f"max(-2, min(2, {body}))" if self.exact else f"1 + tanh({body})"
        self.now.domain = before if self.chance(2) else max(before, self.now.domain // 4)
        return f"{combiner}[{', '.join(names)}]({body})"

    def leaf(self, scope: Scope) -> str:
        form = self.pick(("read",) * 6 + ("literal", "parameter", "axis"))
        if form == "literal":
            return self.pick(("1", "2", "-1") if self.exact else ("0.5", "2", "-1.25"))
        if form == "parameter" and not self.exact:
            name = f"p{len(self.parameters)}"
            self.parameters[name] = self.pick((0.5, -1.0, 0.3))
            return name
        if form == "axis" and scope:
            a = self.pick(list(scope))
            return a if self.exact else f"({a} / {scope[a]})"
        return self.read(scope)

    def condition(self, scope: Scope) -> str:
        form = self.pick(("less", "equal", "data", "phase", "and", "not"))
        if form in ("less", "equal", "phase") and not scope:
            form = "data"
        if form == "data":
            return f"{self.read(scope)} {self.pick(('>', '<=', '<', '>='))} {self.read(scope) if self.chance(3) else 0}"
        if form == "and":
            return f"({self.condition(scope)} {self.pick(('and', 'or'))} {self.condition(scope)})"
        if form == "not":
            return f"(not {self.condition(scope)})"
        a, b = self.pick(list(scope)), self.pick(list(scope))
        if form == "phase":
            by = self.pick((2, 3, -2, -3))
            return f"({a} + {b}) % {by} == {self.choose(2) if by > 0 else -self.choose(2)}"
        if form == "equal":
            return f"{a} == {b}" if a != b else f"{a} != 1"
        return f"{a} < {self.pick((1, 2, 8))}" if a == b else f"{a} + 1 <= {b}"


@st.composite
def cases(draw: Any, kinds: Sequence[str] = KINDS, smooth: bool = False) -> Case:
    """Hypothesis strategy for cases."""
    return Generator(lambda n: draw(st.integers(0, n - 1)) if n > 1 else 0, kinds, smooth).case()
