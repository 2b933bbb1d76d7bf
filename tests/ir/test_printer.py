"""Nodes as text."""

from __future__ import annotations

import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Graph,
    Item,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    apply,
    leaf,
    template,
)
from einsmith.ir.printer import show, show_graph

from .formulas import k

U, J = Axis(0), Axis(1)
A, B, C = (Read(n, (U,), dt.f32) for n in range(3))


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (apply("mul", apply("add", A, B), C), "(x0[i0] + x1[i0])*x2[i0]"),
        (apply("sub", A, apply("sub", B, C)), "x0[i0] - (x1[i0] - x2[i0])"),
        (apply("sub", apply("sub", A, B), C), "x0[i0] - x1[i0] - x2[i0]"),
        (apply("div", A, apply("mul", B, C)), "x0[i0]/(x1[i0]*x2[i0])"),
        (apply("pow", apply("pow", A, B), C), "(x0[i0]**x1[i0])**x2[i0]"),
        (apply("pow", A, apply("pow", B, C)), "x0[i0]**x1[i0]**x2[i0]"),
        (apply("pow", apply("neg", A), Const(-2.0, dt.f32)), "(-x0[i0])**(-2.0)"),
        (apply("neg", apply("mul", A, B)), "-(x0[i0]*x1[i0])"),
        (apply("not", apply("and", apply("lt", A, B), apply("le", B, C))),
         "not (x0[i0] < x1[i0] and x1[i0] <= x2[i0])"),
        (apply("eq", apply("lt", A, B), Const(True, dt.bool_)), "(x0[i0] < x1[i0]) == True"),
        (apply("mod", apply("floordiv", U, k(3)), k(-2)), "i0//3%-2"),
        (apply("where", apply("or", apply("lt", U, J), apply("ne", U, k(2))), A, apply("max", B, C)),
         "where(i0 < i1 or i0 != 2, x0[i0], max(x1[i0], x2[i0]))"),
        (Apply("cast", (U,), dt.f32), "f32(i0)"),
        (Const(float("nan"), dt.f32), "nan"),
    ],
)  # fmt: skip
def test_expressions(e, text):
    assert show(e) == repr(e) == text


def test_names():
    assert show(apply("mul", A, B), ["row"], ["W", "X"]) == "W[row]*X[row]"


def test_templates_and_graphs():
    body = apply("mul", Read(0, (U, J), dt.f32), Read(1, (J,), dt.f32))
    t = template((3,), [(dt.f32, (3, 4)), (dt.f32, (4,))], Reduce("sum", (4,), (body,)))
    assert show(t) == (
        "(x0: f32[3, 4], x1: f32[4]) -> f32[3]:\n  out[i0] = sum[r0](x0[i0, r0]*x1[r0])  # i0 < 3, r0 < 4"
    )
    a, w = leaf((3, 4), dt.f32), leaf((4,), dt.f32)
    y = Compute(t, (a, w))
    top = Compute(template((), [(dt.f32, (3,))], Reduce("argmax", (3,), (Read(0, (U,), dt.f32),))), (y,))
    assert show_graph(Graph((a, w), (Item(top, 1),), ((w, w),), ())) == (
        "inputs in0: f32[3, 4], in1: f32[4]\n"
        "f32[3] t0[i0] = sum[r0](in0[i0, r0]*in1[r0])  # i0 < 3, r0 < 4\n"
        "f32[], i32[] t1[] = argmax[r0](t0[r0])  # r0 < 3\n"
        "update in1 <- in1\n"
        "return t1.1"
    )
    odd = Piece((1,), (2,), (2,), A)
    assert show(odd) == "out[2*i0 + 1] = x0[i0]  # i0 < 2"
    s = Template((3,), ((dt.f32, (5,)),), (Scatter("sum", (5,), (apply("mod", U, k(3)),), A),))
    assert "out[i0%3] += x0[i0]  # i0 < 5" in show(s)
    start = Piece((0,), (1,), (3,), B)
    s = Template((3,), ((dt.f32, (5,)), (dt.f32, (3,))), (start, *s.parts))
    assert show(s).splitlines()[1:] == ["  out[i0] = x1[i0]  # i0 < 3", "  out[i0%3] += x0[i0]  # i0 < 5"]


def test_shared_expressions_do_not_explode():
    e = A
    for _ in range(200):
        e = apply("add", e, e)
    assert len(show(e)) < 10_000 and "where t0 = " in show(e)
    for _ in range(5000):
        e = apply("sub", e, B)
    assert show(e)
