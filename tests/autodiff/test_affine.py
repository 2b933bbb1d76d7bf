"""Inversion of index maps against enumeration of the box."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsmith.autodiff.inversion.preimage import affine_cases, invert
from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, apply, postorder

TABLE = np.array([1, 0, 3, 3, 1, 5, 2])


def const(n: int) -> Const:
    return Const(n, dt.i32)


def affine(*coefficients: int, plus: int = 0) -> Expr:
    out: Expr = const(plus)
    for k, c in enumerate(coefficients):
        out = apply("add", out, apply("mul", const(c), Axis(k)))
    return out


def div(e: Expr, n: int) -> Expr:
    return apply("floordiv", e, const(n))


def mod(e: Expr, n: int) -> Expr:
    return apply("mod", e, const(n))


def inside(e: Expr, n: int) -> Expr:
    return apply("and", apply("le", const(0), e), apply("lt", e, const(n)))


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
}


def value(e: Expr, at) -> int:
    """An expression at one point; `and` is lazy, reads must be in bounds."""
    if isinstance(e, Const):
        return e.value
    if isinstance(e, Axis):
        return at[e.position]
    if isinstance(e, Read):
        i = value(e.index[0], at)
        assert 0 <= i < len(TABLE)
        return int(TABLE[i])
    assert isinstance(e, Apply)
    if e.fn == "and":
        return value(e.args[0], at) and value(e.args[1], at)
    args = [value(a, at) for a in e.args]
    return {"neg": lambda a: -a, "cast": lambda a: a, "not": lambda a: not a}.get(e.fn, BINARY.get(e.fn))(*args)


def points(box):
    return itertools.product(*map(range, box))


def check(index, extents, shape, guards=()):
    """Every point of the domain is in the fibre of its image exactly once; the parts cover z-space exactly once.
    Returns the parts and the number of points that they visit."""
    parts = invert(index, extents, shape, guards)
    expected = {}
    for u in points(extents):
        if all(value(g, u) for g in guards):
            z = tuple(value(e, u) for e in index)
            if all(0 <= a < n for a, n in zip(z, shape, strict=True)):
                expected[u] = z
    covered, found = [], {}
    for p in parts:
        for i in points(p.extents):
            z = tuple(o + s * x for o, s, x in zip(p.offset, p.step, i, strict=True))
            covered.append(z)
            for t in points(p.free) if not p.is_empty else ():
                if all(value(g, i + t) for g in p.guards):
                    u = tuple(value(e, i + t) for e in p.axes)
                    assert u not in found, f"{u} twice"
                    found[u] = z
    assert sorted(covered) == list(points(shape))
    assert found == expected
    return parts, sum(p.points for p in parts)


CASES = {
    # name: index, extents, shape, guards, most points visited
    "stride below the kernel": ([affine(2, 1)], (7, 3), (15,), (), 23),
    "stride at the kernel": ([affine(2, 1)], (7, 2), (14,), (), 14),
    "stride above the kernel": ([affine(3, 1)], (7, 2), (20,), (), 20),
    "stride 1": ([affine(1, 1)], (7, 3), (9,), (), 27),
    "kernel longer than the output": ([affine(1, 1)], (3, 7), (9,), (), 27),
    "stride 2 alone, summed": ([affine(2), Axis(1)], (7, 4, 5), (14, 4), (), 140),
    "dilation": ([affine(1, 3)], (7, 3), (13,), (), 39),
    "stride 2 dilation 3": ([affine(2, 3)], (7, 3), (19,), (), 29),
    "stride 2 dilation 2": ([affine(2, 2)], (7, 3), (19,), (), 30),
    "diagonal": ([Axis(0), Axis(0)], (5,), (5, 5), (), 25),
    "sum and difference": ([affine(1, 1), affine(1, -1, plus=4)], (5, 5), (9, 9), (), 81),
    "2i+3j": ([affine(2, 3)], (5, 6), (24,), (), 40),
    "reversed": ([affine(-1, plus=4)], (5,), (5,), (), 5),
    "i//3": ([div(Axis(0), 3)], (10,), (4,), (), 12),
    "i%3": ([mod(Axis(0), 3)], (10,), (3,), (), 12),
    "digits": ([mod(div(Axis(0), 2), 3), mod(Axis(0), 2), div(Axis(0), 6)], (24,), (3, 2, 4), (), 24),
    "flatten": ([affine(5, 1)], (4, 5), (20,), (), 20),
    "unflatten": ([div(Axis(0), 5), mod(Axis(0), 5)], (20,), (4, 5), (), 20),
    "reshape": ([div(affine(4, 1), 6), mod(affine(4, 1), 6)], (6, 4), (4, 6), (), 24),
    "reshape that divides nothing": ([div(affine(7, 1), 5), mod(affine(7, 1), 5)], (5, 7), (7, 5), (), 35),
    "constant": ([const(2), Axis(1)], (4, 5), (6, 5), (), 20),
    "remainder of a negative divisor": ([Axis(0)], (9,), (9,), (apply("eq", mod(Axis(0), -3), const(-1)),), 9),
    "label": ([Axis(0), Read(0, (Axis(0),), dt.i64)], (5,), (5, 4), (), 20),
    "embedding": ([Read(0, (Axis(0),), dt.i32), Axis(1)], (5, 3), (4, 3), (), 60),
    "table plus axis": ([apply("add", Read(0, (Axis(0),), dt.i32), Axis(1))], (5, 3), (7,), (), 35),
    "table plus its own axis": ([apply("add", Read(0, (Axis(0),), dt.i32), Axis(0))], (5,), (9,), (), 45),
    "product of axes": ([apply("mul", Axis(0), Axis(1))], (4, 5), (13,), (), 260),
    "adaptive pooling": (
        [apply("add", div(affine(7), 3), Axis(1))],
        (3, 3),
        (7,),
        (apply("lt", Axis(1), apply("sub", div(affine(7, plus=9), 3), div(affine(7), 3))),),
        21,
    ),
    "padded convolution": (
        [affine(2, 1, plus=-1), affine(0, 0, 2, 1, plus=-1)],
        (4, 3, 4, 3),
        (8, 8),
        (inside(affine(2, 1, plus=-1), 8), inside(affine(0, 0, 2, 1, plus=-1), 8)),
        144,
    ),
    "band": ([Axis(1)], (9, 9), (9,), (apply("le", Axis(0), Axis(1)), apply("lt", Axis(1), affine(1, plus=2))), 18),
    "past the end": ([affine(1, plus=2)], (9,), (4,), (), 4),
    "empty domain": ([Axis(0)], (0,), (4,), (), 0),
    "scalar": ([], (3, 2), (), (), 6),
}


@pytest.mark.parametrize("name", CASES)
def test_named_maps(name):
    index, extents, shape, guards, most = CASES[name]
    _, visited = check(index, extents, shape, guards)
    assert visited <= most


def test_strided_phases_need_no_guard_on_residues():
    parts, _ = check([affine(2, 1)], (7, 3), (15,))
    assert [(p.offset, p.step, p.free) for p in parts] == [((0,), (2,), (2,)), ((1,), (2,), ())]


def test_flatten_and_reshape_leave_no_loop_and_no_guard():
    for name in ("flatten", "unflatten", "reshape", "reshape that divides nothing", "digits", "stride at the kernel"):
        (part,) = invert(*CASES[name][:3])
        assert part.free == () and part.guards == ()


@st.composite
def index_maps(draw):
    rank = draw(st.integers(1, 3))
    extents = tuple(draw(st.lists(st.integers(1, 7), min_size=rank, max_size=rank)))

    def form():
        cs = [draw(st.sampled_from([0, 0, 1, 1, 1, 2, 3, -1, -2, 4, 5])) for _ in range(rank)]
        return affine(*cs, plus=draw(st.integers(-3, 6)))

    def divided(e):
        return draw(st.sampled_from([div, mod]))(e, draw(st.sampled_from([*range(1, 7), -1, -2, -3, -5])))

    def side():
        return divided(form()) if draw(st.integers(0, 2)) == 0 else form()

    def entry():
        e = form()
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
            e = divided(e)
            if draw(st.booleans()):
                e = apply("add", e, apply("mul", const(draw(st.integers(-2, 3))), Axis(draw(st.integers(0, rank - 1)))))
        return e

    index = [entry() for _ in range(draw(st.integers(1, 3)))]
    if rank > 1 and draw(st.integers(0, 9)) == 0:
        index[0] = apply("add", apply("mul", Axis(0), Axis(1)), index[0])
    shape = tuple(draw(st.integers(1, 9)) for _ in index)
    count = draw(st.sampled_from([0, 0, 1, 2]))
    guards = [apply(draw(st.sampled_from(["lt", "le", "eq"])), side(), side()) for _ in range(count)]
    return index, extents, shape, guards


@settings(max_examples=70)
@given(index_maps())
def test_random_maps(case):
    check(*case)


@pytest.mark.slow
@settings(max_examples=2000, derandomize=False, print_blob=True)
@given(index_maps())
def test_many_random_maps(case):
    """Other maps at every run; a failure prints how to repeat it."""
    check(*case)


@settings(max_examples=100)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3))
def test_windows(count, size, stride, dilation, before, after):
    """Windows of every stride, dilation and padding, summed over a channel: no visit but to what can match."""
    extent = max(1, (count - 1) * stride + (size - 1) * dilation + 1 - before - after)
    e = affine(stride, dilation, plus=-before)
    parts, visited = check([e, Axis(2)], (count, size, 2), (extent, 2), [inside(e, extent)])
    plain, _ = check([e], (count, size), (extent,))
    assert visited <= 2 * extent * min(size, count)


def evaluated(e: Expr, at) -> int:
    """As `value`, with the functions that make an index piecewise affine."""
    if not isinstance(e, Apply) or e.fn not in ("abs", "min", "max", "where"):
        return value(e, at) if not isinstance(e, Apply) else _applied(e, [evaluated(a, at) for a in e.args])
    args = [evaluated(a, at) for a in e.args]
    return {"abs": abs, "min": min, "max": max, "where": lambda c, a, b: a if c else b}[e.fn](*args)


def _applied(e: Apply, args) -> int:
    return {"neg": lambda a: -a, "not": lambda a: not a, "and": lambda a, b: a and b}.get(e.fn, BINARY.get(e.fn))(*args)


@settings(max_examples=100)
@given(st.data())
def test_piecewise_indices_are_split_into_affine_ones(data):
    """At every point exactly one branch holds, and it is the index."""

    def grow(depth: int) -> Expr:
        kind = data.draw(st.sampled_from(["affine", "abs", "min", "max", "where", "div"] if depth else ["affine"]))
        if kind == "affine":
            return affine(*(data.draw(st.integers(-2, 3)) for _ in range(2)), plus=data.draw(st.integers(-4, 4)))
        if kind == "div":
            return div(grow(depth - 1), data.draw(st.integers(1, 4)))
        if kind == "abs":
            return apply("abs", grow(depth - 1))
        if kind == "where":
            return apply("where", apply("lt", grow(0), grow(0)), grow(depth - 1), grow(depth - 1))
        return apply(kind, grow(depth - 1), grow(depth - 1))

    index = (grow(2), grow(1))
    branches = affine_cases(index)
    for u in points((4, 5)):
        holds = [branch for branch, chosen in branches if all(evaluated(c, u) for c in chosen)]
        assert len(holds) == 1
        assert [evaluated(e, u) for e in holds[0]] == [evaluated(e, u) for e in index]


def test_branches_of_a_distance():
    one, two = affine_cases((apply("abs", affine(1, plus=-3)),))
    assert all(e.fn != "abs" for branch, _ in (one, two) for e in postorder(branch) if isinstance(e, Apply))
    assert [evaluated(c, (2,)) for _, (c,) in (one, two)] == [False, True]


def test_an_equation_or_a_remainder_among_the_guards_is_solved():
    """Positions of a transposed convolution, (p + 1 - r) % 2 == 0: half of the loop, and no guard on the remainder."""
    e = affine(1, -1, plus=1)
    parts, visited = check([div(e, 2)], (13, 3), (7,), (apply("eq", mod(e, 2), const(0)), inside(div(e, 2), 7)))
    assert visited <= 7 * 3
    parts, visited = check([Axis(1)], (13, 3), (3,), (apply("eq", mod(e, 2), const(0)),))
    assert visited <= 3 * 7
    parts, visited = check([Axis(1)], (13, 3), (3,), (apply("eq", affine(1, -2), const(1)),))
    assert visited == 3


def test_windows_of_uneven_length_are_short_loops():
    """Adaptive pooling of 17 into 5: an element is in two windows at most."""
    start, stop = div(affine(17), 5), div(affine(17, plus=21), 5)
    within = apply("lt", Axis(1), apply("sub", stop, start))
    _, visited = check([apply("add", start, Axis(1))], (5, 5), (17,), (within,))
    assert visited <= 34
