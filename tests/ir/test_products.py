"""Positions that are proven to lie below a product of extents, and those that are not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.products import is_less
from einsmith.ir.nodes import Axis, Const, Expr, Read, apply

N, M = Read(0, (), dt.i32), Read(1, (), dt.i32)
X, Y = Axis(0), Axis(1)


def num(x: int) -> Const:
    return Const(x, dt.i32)


def op(fn: str, *args: Expr) -> Expr:
    return apply(fn, *args)


TWICE, PRODUCT = op("mul", N, num(2)), op("mul", N, M)
ROW = op("add", op("mul", N, X), Y)
CASES = {
    # name: (position, end, guards, whether it is less)
    "rows of two": (ROW, TWICE, [op("lt", Y, N), op("lt", X, num(2))], True),
    "rows of three": (ROW, TWICE, [op("lt", Y, N)], False),
    "no guard": (ROW, TWICE, [op("lt", X, num(2))], False),
    "kept inside": (op("min", op("max", ROW, num(0)), num(19)), TWICE, [op("lt", Y, N), op("lt", X, num(2))], True),
    "one further": (op("add", ROW, num(1)), TWICE, [op("lt", Y, N), op("lt", X, num(2))], False),
    "columns": (op("add", op("mul", X, num(2)), Y), TWICE, [op("lt", X, N), op("lt", Y, num(2))], True),
    "two extents": (op("add", op("mul", M, X), Y), PRODUCT, [op("lt", X, N), op("lt", Y, M)], True),
    "two extents, turned": (op("add", op("mul", N, X), Y), PRODUCT, [op("lt", X, N), op("lt", Y, M)], False),
    "a remainder": (op("mod", X, N), N, [], True),
    "a remainder by another one": (op("mod", X, M), N, [], False),
    "there and back": (
        op("add", op("mul", N, op("min", op("floordiv", X, N), num(1))), op("min", op("mod", X, N), num(9))),
        TWICE, [], True,
    ),
    "there and back, kept inside": (
        op(
            "add",
            op("mul", N, op("min", op("max", op("floordiv", X, N), num(0)), num(1))),
            op("min", op("max", op("mod", X, N), num(0)), num(9)),
        ),
        TWICE, [], True,
    ),
    "there and back, of two extents": (
        op(
            "add",
            op("mul", N, op("min", op("max", op("floordiv", X, N), num(0)), num(39))),
            op("min", op("max", op("mod", X, N), num(0)), num(9)),
        ),
        PRODUCT, [op("lt", X, op("mul", op("mul", num(1), M), N))], True,
    ),
    "there and back, of more": (
        op("add", op("mul", N, op("floordiv", X, N)), op("mod", X, N)), PRODUCT,
        [op("lt", X, op("mul", op("mul", num(2), M), N))], False,
    ),
    "a quotient": (op("floordiv", X, N), M, [op("lt", X, PRODUCT)], True),
    "a quotient of one more": (op("floordiv", X, N), M, [op("le", X, PRODUCT)], False),
    "a quotient by another one": (op("floordiv", X, M), M, [op("lt", X, PRODUCT)], False),
    "a difference": (op("sub", op("mul", N, num(2)), num(1)), TWICE, [], True),
    "a negative factor": (op("sub", op("mul", N, num(3)), op("mul", N, X)), TWICE, [op("lt", X, num(2))], False),
    "the largest of two": (op("max", ROW, op("mul", N, num(2))), TWICE, [op("lt", Y, N), op("lt", X, num(2))], False),
    "less by a negative axis": (op("sub", op("mul", N, num(2)), op("sub", X, num(5))), TWICE, [], False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_proofs(case: str) -> None:
    """Where the position is not less at some extents it is not proven to be."""
    x, end, guards, is_proven = CASES[case]
    assert is_less(x, end, Facts.of((20, 20), guards), (N, M)) == is_proven
    if is_proven:
        for n, m, i, j in itertools.product((1, 2, 7, 10), (1, 3, 10), range(20), range(20)):
            values = {N: n, M: m, X: i, Y: j}
            if all(evaluate(g, values) for g in guards) and (end is not PRODUCT or n * m <= 20):
                assert evaluate(x, values) < evaluate(end, values), values


def evaluate(e: Expr, values: dict[Expr, int]) -> int:
    if e in values:
        return values[e]
    if isinstance(e, Const):
        return int(e.value)
    args = [evaluate(a, values) for a in e.args]
    functions = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": min, "max": max,
        "mod": np.mod, "floordiv": np.floor_divide, "lt": np.less,
    }  # fmt: skip
    return functions[e.fn](*args)
