"""Random quasi-affine formulas: values against loops in Python, gradients against forward mode."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.verify import verify_graph
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import PASSES

AXES = "ijkl"


@dataclass(frozen=True)
class Text:
    """An expression in the formula language and in Python."""

    formula: str
    python: str

    @staticmethod
    def of(pattern: str, *args: Text) -> Text:
        return Text(pattern.format(*(a.formula for a in args)), pattern.format(*(a.python for a in args)))

    @staticmethod
    def where(c: Text, a: Text, b: Text) -> Text:
        return Text(f"where({c.formula}, {a.formula}, {b.formula})", f"({a.python} if {c.python} else {b.python})")


@dataclass(frozen=True)
class Formula:
    """Statements (name, axes of the result, axes of its sum, body), the shapes of the inputs, the axes' extents."""

    statements: tuple[tuple[str, str, str, Text], ...]
    inputs: dict[str, tuple[int, ...]]
    extents: dict[str, int]

    @property
    def text(self) -> str:
        lines = []
        for name, out, over, body in self.statements:
            right = f"sum[{','.join(over)}]({body.formula})" if over else body.formula
            lines.append(f"{name}[{','.join(out)}] = {right}")
        return "\n".join(lines)

    def by_loops(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        known = dict(arrays)
        for name, out, over, body in self.statements:
            code = compile(body.python, name, "eval")
            result = np.zeros([self.extents[a] for a in out])
            for at in itertools.product(*(range(self.extents[a]) for a in out + over)):
                result[at[: len(out)]] += eval(
                    code, {**known, **dict(zip(out + over, at, strict=True)), "tanh": np.tanh}
                )
            known[name] = result
        return known[self.statements[-1][0]]


@st.composite
def integers(draw, axes: str) -> Text:
    """An integer expression of axes."""
    terms = []
    for a in axes:
        c = draw(st.sampled_from([0, 0, 1, 1, 1, 2, 3, -1, -2]))
        if c:
            terms.append(f"{c}*{a}" if c != 1 else a)
    text = " + ".join([*terms, str(draw(st.integers(-3, 5)))])
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        k = draw(st.integers(1, 6))
        text = draw(
            st.sampled_from(["({0})//{1}", "({0}) % {1}", "abs({0})", "min({0}, {1})", "max({0}, {1})"])
        ).format(text, k)
        if axes and draw(st.booleans()):
            text = f"{text} + {draw(st.sampled_from(axes))}"
    return Text(text, text)


@st.composite
def reads(draw, name: str, shape: tuple[int, ...], axes: str) -> Text:
    """A read in bounds: by a remainder, by clipping, or under a guard."""
    index, guards = [], []
    for n in shape:
        e = draw(integers(axes))
        style = draw(st.sampled_from(["remainder", "clip", "guard", "guard"]))
        if style == "remainder":
            e = Text.of(f"({{0}}) % {n}", e)
        elif style == "clip":
            e = Text.of(f"min(max({{0}}, 0), {n - 1})", e)
        else:
            guards.append(Text.of(f"0 <= {{0}} and {{0}} < {n}", e))
        index.append(e)
    read = Text.of(f"{name}[{', '.join(f'{{{d}}}' for d in range(len(index)))}]", *index)
    if guards:
        condition = Text.of(" and ".join(f"{{{k}}}" for k in range(len(guards))), *guards)
        read = Text.where(condition, read, Text("0.0", "0.0"))
    return read


@st.composite
def formulas(draw) -> Formula:
    extents = {a: draw(st.integers(1, 5)) for a in AXES}
    shapes = {n: tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))) for n in "XZ"}
    statements = []
    for name in draw(st.sampled_from([["Y"], ["Y"], ["U", "Y"]])):
        split = draw(st.integers(1, 3))
        axes = AXES[: draw(st.integers(split, 4))]
        out, over = axes[:split], axes[split:]
        sources = {**shapes, **{n: tuple(extents[a] for a in o) for n, o, *_ in statements}}
        names = [statements[-1][0]] if statements else []
        names += draw(st.lists(st.sampled_from(sorted(sources)), min_size=1 - len(names), max_size=3 - len(names)))
        found = [draw(reads(n, sources[n], axes)) for n in names]
        pattern = {
            1: ["{0}", "tanh({0})", "2.0*{0} - 1.0"],
            2: ["{0}*{1}", "{0} - {1}", "{0}*tanh({1})"],
            3: ["{0}*{1} + {2}", "{0}*{1}*{2}", "tanh({0} - {1})*{2}"],
        }[len(found)]
        body = Text.of(draw(st.sampled_from(pattern)), *(Text(f"({t.formula})", f"({t.python})") for t in found))
        if draw(st.integers(0, 3)) == 0:
            condition = Text.of("{0} < {1}", draw(integers(axes)), draw(integers(axes)))
            body = Text.where(condition, body, Text("0.5", "0.5"))
        statements.append((name, out, over, body))
    used = "".join(b.formula for *_, b in statements)
    return Formula(tuple(statements), {n: s for n, s in shapes.items() if f"{n}[" in used}, extents)


def check(f: Formula, seed: int, compiled: bool = False, verified: bool = False) -> None:
    rng = np.random.default_rng(seed)
    axes = {a for _, out, over, _ in f.statements for a in out + over}
    op = es.op(f.text, extents={a: n for a, n in f.extents.items() if a in axes})
    arrays = {n: rng.standard_normal(f.inputs[n]) for n in op.inputs}
    x, v = list(arrays.values()), [rng.standard_normal(a.shape) for a in arrays.values()]
    n = len(x)
    want = f.by_loops(arrays)
    c = rng.standard_normal(want.shape)

    def everything(c, *a):
        value, pull = es.vjp(op, *a[:n])
        return value, es.jvp(op, a[:n], a[n:])[1], pull(c)

    if verified:  # every read of the gradients is proven in bounds, before and after each pass
        graph = trace_call(everything, (c, *x, *v), {}).graph
        verify_graph(graph)
        for step in PASSES:
            graph = step.run(graph, PassContext())
            verify_graph(graph)
    # Forward mode inverts no index, so that the two sides agree by chance only where both are right.
    for run in (es.interpret, es.jit) if compiled else (es.interpret,):
        value, moved, pulled = run(everything)(c, *x, *v)
        np.testing.assert_allclose(value, want, rtol=1e-9, atol=1e-9)
        left, right = np.vdot(c, moved), sum(np.vdot(g, w) for g, w in zip(pulled, v, strict=True))
        scale = 1 + sum(np.abs(g).sum() for g in pulled) + np.abs(moved).sum()
        assert abs(left - right) <= 1e-9 * scale, f"{left} is not {right}"


@settings(max_examples=12)
@given(formulas(), st.integers(0, 2**32 - 1))
def test_random_formulas(f, seed):
    check(f, seed)


@settings(max_examples=10)
@given(formulas(), st.integers(0, 2**32 - 1))
def test_random_formulas_compiled(f, seed):
    check(f, seed, compiled=True, verified=True)


@pytest.mark.slow
@settings(max_examples=2000, derandomize=False, print_blob=True)
@given(formulas(), st.integers(0, 2**32 - 1))
def test_many_random_formulas(f, seed):
    check(f, seed, compiled=seed % 10 == 0, verified=True)
