"""Random integer expressions and conditions over small boxes, shared by the tests of this folder."""

from __future__ import annotations

from hypothesis import strategies as st

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Axis, Const, apply, cast


def k(n: int) -> Const:
    return Const(n, dt.i32)


def add(*xs):
    out = xs[0]
    for x in xs[1:]:
        out = apply("add", out, x)
    return out


def mul(a: int, x):
    return apply("mul", k(a), x)


_INTEGER = ("add", "add", "sub", "sub", "scale", "scale", "floordiv", "mod", "divide", "min", "max", "where", "abs",
            "neg", "mul", "bool", "sign")  # fmt: skip


@st.composite
def integers(draw, depth: int = 3, rank: int = 3):
    """A random integer expression of `rank` axes, and constants."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return (
            draw(st.sampled_from([Axis(d) for d in range(rank)]))
            if draw(st.booleans())
            else k(draw(st.integers(-5, 5)))
        )
    sub = integers(depth=depth - 1, rank=rank)
    fn = draw(st.sampled_from(_INTEGER))
    if fn == "scale":
        return apply("mul", draw(sub), k(draw(st.integers(-4, 7))))
    if fn in ("floordiv", "mod"):
        return apply(fn, draw(sub), k(draw(st.sampled_from([-6, -4, -3, -2, -1, 0, 1, 2, 2, 3, 3, 4, 5, 6]))))
    if fn == "divide":
        return apply(draw(st.sampled_from(["floordiv", "mod"])), draw(sub), add(apply("abs", draw(sub)), k(1)))
    if fn == "where":
        return apply("where", draw(conditions(depth=depth - 1, rank=rank)), draw(sub), draw(sub))
    if fn in ("abs", "neg", "sign"):
        return apply(fn, draw(sub))
    if fn == "bool":
        return cast(draw(conditions(depth=depth - 1, rank=rank)), dt.i32)
    return apply(fn, draw(sub), draw(sub))


@st.composite
def conditions(draw, depth: int = 2, rank: int = 3):
    if depth > 0 and draw(st.integers(0, 2)) == 0:
        fn = draw(st.sampled_from(["and", "or", "not"]))
        args = [draw(conditions(depth=depth - 1, rank=rank)) for _ in range(1 if fn == "not" else 2)]
        return apply(fn, *args)
    fn = draw(st.sampled_from(["lt", "le", "eq", "ne"]))
    return apply(fn, draw(integers(depth=depth, rank=rank)), draw(integers(depth=depth, rank=rank)))
