"""The language's syntax: against Python's own parser where it agrees, and every error with its caret and remedy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einsmith.base.errors import FormulaError
from einsmith.lang.elaborate import Elaborator
from einsmith.lang.parser import parse, parse_expression
from einsmith.lang.resolve import resolve
from einsmith.lang.syntax import Number, ParsedApply, ParsedRead, ParsedReduction, walk
from einsmith.lang.tokenizer import tokenize
from einsmith.tracing.formula import Literal


def value(text: str) -> object:
    def name(node):
        raise AssertionError(node.id)

    form = Elaborator(text, name).form(parse_expression(text))
    assert isinstance(form, Literal)
    return form.value


@st.composite
def _integers(draw, depth=3):
    """Integer arithmetic as text, with few parentheses, so that precedence matters."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return str(draw(st.integers(0, 9)))
    kind = draw(st.sampled_from(["+", "-", "*", "//", "%", "neg", "paren", "pow"]))
    inner = draw(_integers(depth - 1))
    if kind == "neg":
        return f"-{inner}"
    if kind == "paren":
        return f"({inner})"
    if kind == "pow":
        return f"({inner})**{draw(st.integers(0, 3))}"
    return f"{inner} {kind} {draw(_integers(depth - 1))}"


@given(_integers())
def test_integer_arithmetic_is_pythons(text):
    try:
        want = eval(text)
    except ZeroDivisionError:
        with pytest.raises(FormulaError, match="division by zero"):
            value(text)
        return
    assert value(text) == want


@given(st.lists(st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), min_size=1, max_size=3), st.data())
def test_chained_comparisons_are_pythons(signs, data):
    text = str(data.draw(st.integers(0, 3)))
    for s in signs:
        text += f" {s} {data.draw(st.integers(0, 3))}"
    if data.draw(st.booleans()):
        text = f"not {text} or 1 < 2 and {text}"
    assert value(text) is eval(text)


@pytest.mark.parametrize(
    "text", ["-2**2", "2**-1", "2**3**2", "1 - 2 - 3", "2 * -3", "7 / 2", "1e-3 + .5 + 2.", "not 1 < 2", "-(3) % 5"]
)
def test_precedence(text):
    assert value(text) == eval(text)


def test_functions_fold_as_numpy():
    assert value("exp(1)") == np.exp(1.0) and value("min(3, 1, 2)") == 1 and value("max(2.5, 2)") == 2.5
    assert value("-inf") == -math.inf and math.isnan(value("nan")) and value("True and not False") is True
    assert value("relu(-2)") == 0 and value("floor(-2.5)") == -3.0


def test_lines_and_comments():
    text = """
      # a comment
      Y[i] = sum[j](A[i, j]   # one
                    * B[j])
      Z[] = sum[i](Y[i])

      return Y, Z
    """
    source = parse(text)
    assert [s.name for s in source.statements] == ["Y", "Z"] and [n for n, _ in source.returns] == ["Y", "Z"]
    assert source.statements[1].index == ()
    body = source.statements[0].value
    assert isinstance(body, ParsedReduction) and body.axes == ("j",)
    assert [n.name for n in walk(body) if isinstance(n, ParsedRead)] == ["A", "B"]


def test_tokens_tile_the_text():
    text = "D[b,2*h+1] += where(0<=i-1<n, x1**2, 1.5e3)//2"
    assert "".join(t.text for t in tokenize(text) if t.kind != "newline") == text.replace(" ", "")


def test_greater_is_parsed_as_less():
    node = parse_expression("a > 3")
    assert isinstance(node, ParsedApply) and node.fn == "lt" and isinstance(node.operands[0], Number)


SYNTAX = [
    ("Y[i] = foo(X[i])", "foo(", "unknown function foo", None),
    ("Y[i] = exq(X[i])", "exq", "unknown function exq", "did you mean exp"),
    ("Y[i] = softmax[j](X[i,j])", "softmax", "softmax is not a reduction; those are sum", r"write e\[i,j\] = exp"),
    ("Y[i] = sum[k](norm[j](X[i,j]))", "norm", "not a reduction", r"sqrt\(sum\[j\]\(x\[i,j\]\*\*2\)\)"),
    ("Y[i] = topk[j](X[i,j])", "topk", "not a reduction", "cannot be written"),
    ("Y[i] = cosh(X[i])", "cosh", "unknown function", r"write \(exp\(x\) \+ exp\(-x\)\)/2"),
    ("Y[i] = atan(X[i])", "atan", "unknown function", "cannot be written with the functions of formulas, abs, "),
    ("Y[b] = X[b,...]", "...", "expected an expression", "name every axis; there is no ellipsis"),
    ("Y = X[0]", "= X", "axes in brackets", r"Y\[\] = "),
    ("Y[i] = sum(X[i])", "sum(", "axes in brackets", r"sum\[i\]"),
    ("Y[i] = sum[](X[i])", "sum", "at least one axis", None),
    ("Y[i] = sum[j] X[j]", "X[j]", "parentheses", None),
    ("Y[i] = sum[j,j](X[j])", "j](", "twice", None),
    ("Y[i] = X[i] X[i]", "X[i]$", "does not continue", "operator"),
    ("Y[i] = (X[i]", "(X", "never closed", None),
    ("Y[i] = X[i])", ")", "no opening bracket", None),
    ("sum[i] = X[i]", "sum", "reserved", "another name"),
    ("Y[exp] = X[0]", "exp", "function's name", "another name"),
    ("Y[i] = X[i] if i else 3", "if", "does not continue", "where"),
    ("Y[i] = (X[i] if i > 0 else 3)", "if", "expected '\\)'", r"where\(condition, a, b\), not a if"),
    ("Y[i] = if X[i]", "if", "reserved name", "where"),
    ("Y[i] = 2x", "x", "digit", r"\*"),
    ("Y[i] = X[i:3]", ":3", "no meaning", "instead of a slice"),
    ("Y[i] = A[i] @ B[i]", "@", "no meaning", "sum"),
    ("Y[i] = (X[i] > 0) & (X[i] < 1)", "&", "no meaning", "and"),
    ("Y[i] = exp(X[i], 2)", "exp", "takes 1 argument, not 2", None),
    ("Y[i] = where(i > 0, 1)", "where", "takes 3 arguments, not 2", None),
    ("Y[i] =", "$", "expected an expression", None),
    ("Y[i] + 3", "+", "expected = or", None),
    ("Y[i] = X.size", "size", "no 'size'", "X.shape"),
    ("Y[i] = (X[i], 2)", ", 2", "no tuples", None),
    ("return Y\nY[i] = X[i]", "Y[i]", "nothing may follow", None),
    ("Y[i] = size(2)", "size", "name of an axis", None),
    ("", "", "empty", "Y"),
]

NAMES = [
    ("Y[i] = X[i]\nreturn Z", "Z", "not defined", "the tensors are Y"),
    ("Y[i] = X[i]\nreturn YY", "YY", "not defined", "did you mean Y"),
    ("Y[i,i] = X[i]", "i] =", "axis i twice", None),
    ("Y[i] = X[i] + sum[i](X[i])", "sum", "bound twice", "another axis"),
    ("Y[] = sum[i](X[i] * sum[i](X[i]))", "sum[i](X[i]))", "bound twice", "another axis"),
    ("Y[i] = sum[j](M[i,j]) + M[i,j]", "j]$", "outside its reduction", None),
    ("Y[i] = X[i] + i[0]", "i] = X", "both an axis and a tensor", "rename"),
    ("Y[i] = X[i] * size(k)", "size", "not an axis", None),
    ("Z[j,k] = X[j,k]\nY[j] = Z[j,size(k)-1]", "size", "not an axis", r"write Z.shape\[1\]"),
    ("Y[i] = X[i] + X", "X$", "without indices", None),
    ("Y[i] = X[i] + X[i,0]", "X[i,0]", "1 dimensions elsewhere", None),
    ("Y[i] = X[i]\nY[i,j] = M[i,j]", "Y[i,j]", "1 dimensions above", None),
    ("Y[i] += X[i]\nY[i] = X[i]", "Y[i] =", "after it is accumulated", "first"),
]


@pytest.mark.parametrize("text,where,message,hint", SYNTAX + NAMES)
def test_errors_have_a_caret_and_a_remedy(text, where, message, hint):
    with pytest.raises(FormulaError, match=message) as caught:
        resolve(text)
    e = caught.value
    assert e.source == text and e.offset is not None
    place = len(text.split("\n")[0]) if where == "$" else text.rfind(where.rstrip("$")) if "$" in where else None
    place = text.index(where) if place is None else place
    if (text, where) != ("Y[i] = (X[i], 2)", ", 2") and where:
        assert e.offset == place or text[e.offset :].lstrip().startswith(where.rstrip("$")), (e.offset, place)
    line, caret = str(e).split("\n")[1:3] if text else ("", "^")
    assert caret.strip() == "^" and (not text or len(caret) <= len(line) + 1)
    if hint:
        import re

        assert e.hint and re.search(hint, e.hint), e.hint


def test_a_deep_formula_is_refused_and_a_long_one_is_not():
    with pytest.raises(FormulaError, match="too deeply"):
        parse("Y[] = " + "(" * 5000 + "1" + ")" * 5000)
    parse("Y[i] = " + " + ".join(["X[i]"] * 5000))


def test_parameters_static_and_run_time():
    p = resolve("""
        Y[i] = where(i < n, X[s*i + o], 0) * lr + b**e
        Z[i] = where(flag, X[i // q], w) + thr * (X[i] > thr)
    """).parameters
    assert {k for k, v in p.items() if v} == {"n", "s", "o", "flag", "q"}
    assert {k for k, v in p.items() if not v} == {"lr", "b", "e", "w", "thr"}


def test_inputs_in_the_order_of_the_text():
    program = resolve("""
        u[t,b,k] = sum[j](where(t > 0, g[t,b,j], h0[b,j]) * U[j,k])
        h[t,b,k] = tanh(sum[i](x[t,b,i] * W[i,k]) + u[t,b,k])
        return h
    """)
    assert list(program.inputs) == ["g", "h0", "U", "x", "W"] and program.outputs == ("h",)
    assert list(resolve("E[ids[i],k] += X[i,k]").inputs) == ["ids", "X"]
    assert resolve("A[i] = B[i]\nB[i] = X[i]\nC[i] = B[i]").outputs == ("A", "C")


@pytest.mark.parametrize(
    "text, hint",
    [
        ("y[b] = smu[t](x[b,t])", "did you mean sum"),
        ("y[b] = 1 + medean[t](x[b,t])", "did you mean mean"),
        ("y[b] = x[b](z[b])", "operator may be missing"),
    ],
)
def test_brackets_and_parentheses_are_a_reduction(text, hint):
    with pytest.raises(FormulaError) as e:
        parse(text)
    assert "is not a reduction; those are sum" in str(e.value) and hint in str(e.value)
