"""What all productions write formulas with: axes, extents, inputs, chains of scalar functions, conditions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from einsmith.base import dtypes
from tests.fuzz import places
from tests.fuzz.case import LAYOUTS, Case, Input
from tests.fuzz.choices import Choices

TYPES = tuple(d for d in dtypes.ALL if d not in (dtypes.bf16, dtypes.u8))  # NumPy has no bfloat16, uint8 no -1
FLOATS = tuple(d for d in TYPES if d.is_float)
INTEGERS = tuple(d for d in TYPES if d.is_int)
CASTS = ("f32", "f64", "i32", "i64")
_OTHERS = tuple(d.name for d in TYPES if d.name not in ("f32", "f64"))
KINDS = ("f32",) * 8 + ("exact",) * 4 + ("f64",) * 4 + _OTHERS * 2
BUDGETS = (3_000,) * 24 + (20_000,) * 12 + (150_000,) * 3 + (1_000_000,)
"""Points of one statement, those of its reductions included."""

SMALL = (2, 3, 1, 4, 5, 6, 7, 8)
PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 67, 131)
LONG = (100, 127, 200, 257, 300, 384, 513, 701, 1031, 2049, 4100, 8209)
LANES = (16, 8, 4, 32, 48, 64)
_EXTENTS = ("small",) * 4 + ("vector",) * 4 + ("prime", "prime", "long", "one")
_ROWS = ("small",) * 2 + ("vector",) * 6 + ("prime", "prime", "long", "one")

UNARY = (
    "relu({})", "-({})", "abs({})", "tanh({})", "sigmoid({})", "sin({})", "cos({})", "erf({})", "({})**2",
    "exp(tanh({}))", "sqrt(1 + abs({}))", "log(1.5 + abs({}))", "rsqrt(1 + ({})**2)", "pow(0.5 + abs({}), 1.5)",
    "sign({})", "floor(2*{})", "stop_gradient({})", "max({}, 0.25)", "where({} > 0, 1, -1)", "min(max({}, -1), 1)",
    "f32({} > 0)", "({})**3",
)  # fmt: skip
BINARY = (
    "({}) + ({})", "({}) * ({})", "({}) - ({})", "({}) / (1 + abs({}))", "max({}, {})", "min({}, {})",
    "where({} > 0, {}, 0)", "where(({}) <= ({}), 1, 0)", "({}) % (1 + abs({}))",
    "pow({}, stop_gradient(min(3, floor(abs(2*{})))))", "({}) % (-0.5 - abs({}))",
)  # fmt: skip
EXACT_UNARY = (
    "relu({})", "-({})", "abs({})", "sign({})", "min(2, max(-2, {}))", "where({} > 0, 1, 0)", "f32({} > 0)",
    "stop_gradient({})",
)  # fmt: skip
EXACT_BINARY = ("({}) + ({})", "({}) - ({})", "max({}, {})", "min({}, {})", "where({} > 0, {}, 0)",
                "min(2, max(-2, {})) * ({})", "where(({}) <= ({}), 1, 0)")  # fmt: skip
INT_UNARY = (*EXACT_UNARY[:-2], "i32({} > 0)", "({}) // 2", "({}) % 3", "({}) // -3", "({}) % -4", "i64({})")
INT_BINARY = (
    *EXACT_BINARY,
    "({}) // (1 + abs({}))",
    "({}) % (1 + abs({}))",
    "where(({}) == ({}), 2, -1)",
    "({}) // (-1 - abs({}))",
    "({}) % (-1 - abs({}))",
)


class Writer:
    """One formula under construction. Axis names are unique in it; `axes` has their extents."""

    def __init__(self, choose: Choices, kinds: Sequence[str] = KINDS):
        self.choose, self.pick, self.chance = choose, choose.pick, choose.chance
        self.kind = self.pick(kinds)
        self.budget = self.pick(BUDGETS)
        self.dtype = str(dtypes.dtype_of("f32" if self.kind == "exact" else self.kind).numpy)
        self.integer = self.kind[0] in "ib"
        self.exact = self.integer or self.kind == "exact"
        if self.integer:
            self.unary, self.binary = INT_UNARY, INT_BINARY
        else:
            self.unary, self.binary = (EXACT_UNARY, EXACT_BINARY) if self.exact else (UNARY, BINARY)
        size = np.dtype(self.dtype).itemsize
        self.vectors = (64 // size, 32 // size)
        self.special = self.chance(4) and not self.exact
        self.axes: dict[str, int] = {}
        self.inputs: dict[str, Input] = {}
        self.parameters: dict[str, Any] = {}
        self.extents: dict[str, Any] = {}
        self.largest: set[str] = set()  # axes whose extent is the largest that keeps a read in bounds
        self.shapes: dict[str, tuple[str, ...]] = {}  # of tensors that statements define, by the axes of their left
        self.lines: list[str] = []
        self.outputs: list[str] = []

    # ------------------------------------------------------------------------------------------------------- extents

    def extent(self, room: int, row: bool = False) -> int:
        """row: of an axis along which vectors lie."""
        form = self.pick(_ROWS if row else _EXTENTS)
        if form == "vector":
            lanes, more = self.pick((*LANES, *self.vectors)), self.pick((1, 1, -1, 0))
            n = lanes * self.pick((1, 1, 2, 3)) + more
            return n if n <= room else max(1, min((room - more) // lanes * lanes + more, room))
        n = self.pick({"small": SMALL, "prime": PRIMES, "long": LONG, "one": (1,)}[form])
        return max(1, min(n, room))

    def axis(self, others: Iterable[str] = (), most: int = 1 << 30, row: bool = False) -> str:
        """A new axis, in a statement that also has `others`."""
        name = f"a{len(self.axes)}"
        self.axes[name] = self.extent(min(most, self.budget // max(1, self.points(others))), row)
        return name

    def axis_of(self, n: int) -> str:
        name = f"a{len(self.axes)}"
        self.axes[name] = n
        return name

    def some_axes(self, count: int, others: Iterable[str] = (), most: int = 1 << 30) -> list[str]:
        """New axes. The last, which vectors lie along, is drawn first: it has the most room."""
        made: list[str] = []
        for n in range(count):
            made.insert(0, self.axis([*others, *made], most, row=n == 0))
        return made

    def points(self, axes: Iterable[str]) -> int:
        return prod(self.axes[a] for a in set(axes))

    # --------------------------------------------------------------------------------------------------------- reads

    def input(self, shape: Sequence[int], dtype: str | None = None, low: int | None = None, high: int | None = None,
              name: str = "X") -> str:  # fmt: skip
        name = f"{name}{len(self.inputs)}"
        layout = self.pick(("plain",) * 6 + LAYOUTS)
        dtype = dtype or self.element()
        special = self.special and np.dtype(dtype).kind == "f" and self.choose(3) > 0
        self.inputs[name] = Input(tuple(shape), dtype, low, high, layout, special)
        return name

    def element(self) -> str:
        """The element type of an input: mostly the formula's own."""
        if self.kind == "bool":
            return str(self.pick(INTEGERS).numpy)
        if not self.chance(12):
            return self.dtype
        if self.integer:
            return str(self.pick(INTEGERS).numpy)
        return str(self.pick((*INTEGERS, *(FLOATS if self.kind != "exact" else (dtypes.f32,)))).numpy)

    def read(self, axes: Sequence[str], ordered: bool = False, name: str = "X", dtype: str | None = None) -> str:
        """A new input over these axes."""
        index = list(axes) if ordered else self.choose.shuffled(axes)
        if dtype is None and self.kind != "bool" and self.chance(16):
            made = self.input([self.axes[a] for a in index], "uint8", name=name)
            return f"{'i16' if self.exact else 'f32'}({made}[{', '.join(index)}])"
        made = self.input([self.axes[a] for a in index], dtype, name=name)
        return f"{made}[{', '.join(index)}]"

    def operand(self, scope: Sequence[str]) -> str:
        """Something small that depends on some of the axes: an input, a number, a parameter, an axis."""
        form = self.pick(("read",) * 6 + ("vector", "literal", "parameter", "axis", "scalar"))
        if form == "literal":
            return self.pick(("2", "1", "-1") if self.exact else ("0.5", "2", "-1.25"))
        if form == "parameter" and not self.exact:
            name = f"p{len(self.parameters)}"
            self.parameters[name] = self.pick((0.5, -1.0, 0.3))
            return name
        if form == "axis" and scope:
            a = self.pick(scope)
            return f"min({a}, 3)" if self.exact else f"({a} / {self.axes[a]})"
        if form == "scalar" or not scope:
            return self.read([])
        if form == "vector":
            return self.read([self.pick(scope)])
        kept = self.choose.some(scope) or [scope[-1]]
        return self.read(kept if self.points(kept) <= self.budget else [scope[-1]])

    def chain(self, e: str, scope: Sequence[str], most: int = 3) -> str:
        """Scalar functions around an expression."""
        for _ in range(self.choose(most + 1)):
            if self.choose(2):
                shape = self.pick(self.unary)
                e = shape.format(*[e] * shape.count("{}"))
            else:
                shape = self.pick(self.binary)
                other = self.operand(scope)
                e = shape.format(*((e, other) if self.choose(2) else (other, e)))
            if self.chance(16):
                e = f"{self.pick(CASTS[2:] if self.integer else CASTS)}({e})"
                if e.startswith("i") and not self.integer:
                    e = f"({e} + {self.operand(scope)})"
        return e

    def condition(self, scope: Sequence[str]) -> str:
        form = self.pick(("less", "data", "equal", "phase", "flags", "and", "not", "band", "place"))
        if form == "flags":
            return self.read(self.choose.some(scope) or list(scope)[-1:], name="B", dtype="bool")
        if form == "data" or not scope:
            return f"{self.operand(scope)} {self.pick(('>', '<=', '<', '>=', '==', '!='))} {self.operand(scope)}"
        if form == "and":
            return f"({self.condition(scope)} {self.pick(('and', 'or'))} {self.condition(scope)})"
        if form == "not":
            return f"not ({self.condition(scope)})"
        if form == "place":
            at = places.place(self, scope, 2)
            self.extents |= {a: self.axes[a] for a in scope if a in _words(at.text)}
            edge = at.low + self.choose(min(at.span, 9))
            return f"{at.text} {self.pick(('==', '!=', '<', '<=', '>', '>='))} {edge}"
        a, b = self.pick(scope), self.pick(scope)
        if form == "phase":
            by = self.pick((2, 3, -2, -3))
            return f"({a} + {b}) % {by} == {self.choose(2) if by > 0 else -self.choose(2)}"
        if form == "equal":
            return f"{a} == {b}" if a != b else f"{a} != 1"
        if form == "band" and a != b:
            return f"abs({a} - {b}) <= {self.pick((1, 2, 5))}"
        return f"{a} < {self.pick((1, 2, 8))}" if a == b else f"{a} <= {b}"

    # ---------------------------------------------------------------------------------------------------- statements

    def name(self) -> str:
        return f"T{len(self.shapes)}"

    def define(self, left: Sequence[str], right: str, output: bool = True) -> str:
        """`T[left] = right`; what reads it."""
        name = self.name()
        self.shapes[name] = tuple(left)
        self.lines.append(f"{name}[{', '.join(left)}] = {right}")
        if output:
            self.outputs.append(name)
        return f"{name}[{', '.join(left)}]"

    def finish(self, e: str, left: Sequence[str]) -> None:
        """The expression over the axes `left` as results: with a chain behind it, in one statement or several, with a
        reduction of it, or twice."""
        left = list(left) if self.choose(4) else self.choose.shuffled(left)
        form = self.pick(("inline",) * 3 + ("apart", "both", "reduced", "condition", "turned"))
        if form == "inline" or (form == "reduced" and not left):
            self.define(left, self.chain(e, left))
        elif form == "apart":
            t = self.define(left, e, self.chance(2))
            self.define(self.choose.shuffled(left), self.chain(t, left))
        elif form == "both":
            t = self.define(left, e)
            self.define(left, self.chain(t, left))
            self.define(left, self.chain(t, left))
        elif form == "reduced":
            t = self.define(left, self.chain(e, left), self.chance(2))
            over = self.choose.some(left) or [left[-1]]
            rest = [a for a in left if a not in over]
            self.define(rest, f"{self.combiner()}[{', '.join(over)}]({self.chain(t, left, 1)})")
        elif form == "condition":
            t = self.define(left, self.chain(e, left), self.chance(2))
            self.define(left, f"{t} {self.pick(('>', '<=', '=='))} {self.operand(left)}")
        else:
            t = self.define(left, self.chain(e, left), False)
            self.define(list(reversed(left)), self.chain(t, left, 1))

    def combiner(self, summed: int = 3) -> str:
        found = self.pick(("sum",) * summed + ("max", "mean", "min", "argmax", "argmin", "logsumexp"))
        return "sum" if found in ("mean", "logsumexp") and self.exact else found

    # ---------------------------------------------------------------------------------------------------------- case

    def case(self) -> Case:
        text = "\n".join(self.lines)
        if len(self.lines) > 1 and self.outputs:
            text += "\nreturn " + ", ".join(self.outputs)
        given = {a: self.axes[a] for line in self.lines for a in self.open_axes(line)}
        if self.chance(4):  # more than is needed
            given = dict(self.axes)
        given |= self.extents
        words = _words(text)
        order = sorted((n for n in self.inputs if n in words), key=lambda n: words.index(n))
        return Case(
            text,
            {a: n for a, n in given.items() if a.partition(".")[0] in words},
            {n: self.inputs[n] for n in order},
            {p: x for p, x in self.parameters.items() if p in words},
            self.exact,
            self.choose(10_000),
            {a: n for a, n in self.axes.items() if a in words},
        )

    def open_axes(self, line: str) -> set[str]:
        """The axes of a statement that no plain index of a tensor made before gives an extent, and that are not the
        largest that keep a read in bounds."""
        left, _, right = line.partition("+=" if "+=" in line else " = ")
        own, plain = left.partition("[")[0], set() if "where" in right else set(self.largest)
        made = {x.partition("[")[0] for x in self.lines[: self.lines.index(line)]} - {own}
        while found := re.search(r"(\w+)\[([^\[\]]*)\]", right):
            if found[1] in self.inputs or found[1] in made:
                plain.update(found[2].split(", "))
            right = right[: found.start()] + "#" + right[found.end() :]
        for name, inner in re.findall(r"(\w+)\[([^\[\]]*)\]", left):
            if name in self.inputs:
                plain.update(inner.split(", "))
        return {a for a in _words(line) if a in self.axes} - plain


def _words(text: str) -> list[str]:
    """Names in the order of their appearance."""
    return re.findall(r"\w+", text)
