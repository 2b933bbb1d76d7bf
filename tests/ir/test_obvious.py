"""Bounds without a search: never more than is true, and what they are for is found."""

from __future__ import annotations

from itertools import product

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.ir.analysis import obvious
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Axis, Const, Expr, apply


def _form(rng: np.random.Generator, rank: int) -> Expr:
    out: Expr = Const(int(rng.integers(-6, 7)), dt.i32)
    for a in range(rank):
        out = apply("add", out, apply("mul", Const(int(rng.integers(-2, 3)), dt.i32), Axis(a)))
    return out


def _value(e: Expr, point: tuple[int, ...]) -> int:
    form = linear(e)
    return form.const + sum(c * point[a.position] for a, c in form.terms.items())


def test_proven_bounds_hold_at_every_point():
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(400):
        extents = tuple(int(n) for n in rng.integers(1, 5, 2))
        guards = [apply(str(rng.choice(["lt", "le"])), _form(rng, 2), _form(rng, 2)) for _ in range(2)]
        known = obvious.find_lower_bounds(guards)
        points = [
            x
            for x in product(*map(range, extents))
            if all(_value(g.args[0], x) + (g.fn == "lt") <= _value(g.args[1], x) for g in guards)
        ]
        forms = [linear(_form(rng, 2)), linear(guards[0].args[1]) - linear(guards[0].args[0])]
        for form in forms:
            bound = int(rng.integers(-4, 5))
            if obvious.at_least(form, bound, extents, known):
                found += 1
                assert all(_value(form.expr(), x) >= bound for x in points)
    assert found > 100


def test_a_window_is_inside_under_its_guards():
    place = apply("sub", apply("add", Axis(0), Axis(1)), Const(1, dt.i32))
    guards = [apply("le", Const(0, dt.i32), place), apply("lt", place, Const(5, dt.i32))]
    known, form = obvious.find_lower_bounds(guards), linear(place)
    assert obvious.at_least(form, 0, (5, 3), known) and obvious.at_least(form * -1, -4, (5, 3), known)
    assert all(obvious.holds(g, (5, 3), known) and not obvious.holds(g, (5, 3), {}) for g in guards)
    assert not obvious.at_least(form, 0, (5, 3), {}) and not obvious.at_least(form, 1, (5, 3), known)
