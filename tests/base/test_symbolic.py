"""Symbolic integers: they compute as integers do, and at other values of the symbols they give what is computed and
decided there, or nothing."""

from __future__ import annotations

import math
import operator
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsmith.base.symbolic import (
    Scope,
    SymbolicInt,
    count_steps,
    gcd,
    hint,
    is_same,
    is_symbolic,
    literal,
    slice_indices,
)

OPERATIONS: list[Callable[[Any, Any], Any]] = [
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, max, min, lambda a, b: divmod(a, b)[1],
    lambda a, b: abs(a - b), lambda a, b: a if a < b else b + 1, lambda a, b: a if a == b else -b,
    lambda a, b: a if a >= 3 else b, lambda a, b: sum([a, b, 2]), lambda a, b: math.prod([a, b]),
]  # fmt: skip
"""Functions of two integers, of which some decide by them."""
ENDS = st.none() | st.integers(-9, 9)


@st.composite
def programs(draw: Any) -> list[tuple[int, int, int]]:
    """Steps of a computation: (number of an operation, places of its operands among the values so far)."""
    steps = []
    for n in range(draw(st.integers(1, 8))):
        places = st.integers(0, 4 + n)
        steps.append((draw(st.integers(0, len(OPERATIONS) - 1)), draw(places), draw(places)))
    return steps


def compute(steps: list[tuple[int, int, int]], a: int, b: int) -> list[int]:
    values = [a, b, 1, 2, 5]
    for k, i, j in steps:
        values.append(OPERATIONS[k](values[i], values[j]))
    return values


@settings(max_examples=300, deadline=None)
@given(programs(), st.integers(2, 12), st.integers(2, 12))
def test_other_values_give_what_is_computed_there(steps: Any, n: int, m: int) -> None:
    scope = Scope((n, m))
    try:
        traced = compute(steps, *scope.symbols)
    except ZeroDivisionError:
        return
    for a in range(1, 14):
        for b in range(1, 14):
            if (at := scope.at((a, b))) is not None:
                assert [at.value(x) for x in traced] == compute(steps, a, b)


def test_values_are_those_of_the_trace() -> None:
    scope = Scope((40, 6))
    n, m = scope.symbols
    assert [hint(x) for x in (n + m, n - 1, 2 * n, n // 7, n % 7, -n)] == [46, 39, 80, 5, 5, -40]
    assert str(n) != "40" and f"{m}" == str(m) != str(m + n - n + 1) and (n + m) - m is not n and (n + m) - m == n
    assert is_same((n + 1) * (m - 3) // (n + 1), m - 3) and (5 * n + 10) // (n + 2) == 5 and (n + 1) % (n + 1) == 0
    assert (n * 4) // 4 == n and (n * m) // m == n and not is_symbolic(n - n) and n - n == 0
    assert at_least(scope, (41, 7), n * m) == 287


def at_least(scope: Scope, values: tuple[int, ...], x: int) -> int:
    at = scope.at(values)
    assert at is not None
    return at.value(x)


def test_unlike_forms_are_never_equal() -> None:
    scope = Scope((6, 6))
    n, m = scope.symbols
    assert n != m and n != 6 and hash(n) != hash(m) and len({n, m, 6}) == 3
    assert scope.at((5, 6)) is not None and scope.at((5, 5)) is None and scope.at((6, 7)) is None


@pytest.mark.parametrize(
    "take",
    [
        int, float, operator.index, math.sqrt, lambda x: x << 1, lambda x: ~x ^ 3, lambda x: x.bit_length(),
        lambda x: len(range(x)), lambda x: [0] * x, lambda x: x * "a", lambda x: math.gcd(x, 4), lambda x: bytes(x),
        lambda x: list(range(9))[:x], lambda x: "abcdefgh"[x], lambda x: np.ones(x).tolist(), lambda x: np.int64(3) * x,
        lambda x: np.arange(8)[x], lambda x: np.float32(x), lambda x: np.asarray([x], np.int64)[0],
        lambda x: struct.pack("q", x), lambda x: x in (3.0, 6.0),
    ],
)  # fmt: skip
def test_what_needs_the_value_holds_for_it_alone(take: Callable) -> None:
    scope = Scope((6,))
    assert take(scope.symbols[0]) == take(6)
    assert scope.at((7,)) is None and scope.at((6,)) is not None


def test_numbers_pass_for_plain_ones_of_their_class() -> None:
    (n,) = Scope((6,)).symbols
    x = literal(n, True)
    assert math.floor(n) is n and round(n) is n and isinstance(n, int) and isinstance(x, float)
    assert not isinstance(n, float) and pickle.loads(pickle.dumps((n, x))) == (6, 6.0)
    with pytest.raises(TypeError):
        int.__add__(n, 1)


def test_a_remainder_of_zero_holds_for_multiples() -> None:
    scope = Scope((24,))
    (n,) = scope.symbols
    assert n % 4 == 0 and not is_symbolic(n % 4)
    assert scope.at((20,)) is not None and scope.at((21,)) is None
    assert is_same((n - 1) % n, n - 1) and (n - 1) // n == 0 and is_symbolic((n + 1) % n) and scope.at((1,)) is None
    assert is_symbolic(n % 5) and gcd(2 * n, 6) == 2 and gcd(4, 6) == 2


@settings(max_examples=300, deadline=None)
@given(
    st.builds(slice, *[st.none() | st.integers(-9, 9)] * 2, st.sampled_from([None, 1, 2, 3, -1, -2])), st.integers(1, 8)
)
def test_slices(s: slice, n: int) -> None:
    scope = Scope((n,))
    traced = slice_indices(s, scope.symbols[0])
    count = count_steps(*traced)
    for k in range(1, 12):
        if (at := scope.at((k,))) is not None:
            assert tuple(map(at.value, traced)) == s.indices(k)
            assert at.value(count) == len(range(*s.indices(k)))


def test_floats_follow() -> None:
    scope = Scope((8,))
    x = literal(scope.symbols[0], True)
    assert hint(scope.symbols[0] * 0.5 + 1) == 5.0 and is_same(2.5 - scope.symbols[0], -scope.symbols[0] + 2.5)
    y = 1.0 / (x * 2.0) + 1.0
    assert hint(y) == 1.0625 and is_symbolic(y) and x == literal(scope.symbols[0], True) and x != y and x != 8.0
    at = scope.at((4,))
    assert at is not None and at.value(y) == 1.125 and at.value(x) == 4.0
    z = scope.symbols[0] / (scope.symbols[0] - 1)
    assert is_symbolic(z) and at.value(z) == 4 / 3
    assert y > 1 and scope.at((4,)) is None  # a decision by a float needs its value


def test_symbols_of_two_traces_differ() -> None:
    (n,), (m,) = Scope((6,)).symbols, Scope((6,)).symbols
    assert isinstance(n, SymbolicInt) and n != m
