"""Types of tensors that read each other: integers, conditions and literals of mixed kinds."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.trees import flatten

STATES = np.array([1, 0, 1])
CELLS = """
    n[t,i] = where(t > 0, g[t-1,i], g0[i])
    c[t,i] = where(t > 0, g[t-1,i], g0[i])
    g[t,i] = where(n[t,i]-c[t,i] == 0 or c[t,i] == 1, 1, 0)
    return g, n, c
"""
AUTOMATON = """
    n[t,i] = sum[a](where(t > 0, g[t-1,(i+a)%3], g0[(i+a)%3]))
    c[t,i] = where(t > 0, g[t-1,i], g0[i])
    g[t,i] = where(n[t,i]-c[t,i] == 2 or c[t,i] == 1, 1, 0)
    return g, n, c
"""


def types_of(op: es.Operator, *arrays: np.ndarray) -> list[str]:
    return [t.dtype.name for t in trace_call(op, arrays, {}).graph.outputs]


def check(op: es.Operator, *arrays: np.ndarray) -> list[np.ndarray]:
    """Compiled results, which are the evaluator's."""
    want, got = flatten(es.interpret(op)(*arrays))[0], flatten(op(*arrays))[0]
    for w, g in zip(want, got, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6)
    return got


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int8])
@pytest.mark.parametrize("text", [CELLS, AUTOMATON])
def test_choices_of_literals_are_floats(text, kind):
    """As in a tensor that does not read itself: `g[i] = where(c[i], 1, 0)` has the formula's float type, and so has
    what chooses between it and integers."""
    op = es.op(text, extents={"t": 4, "i": 3} | ({"a": 3} if "sum" in text else {}))
    assert types_of(op, STATES.astype(kind)) == ["f32", "f32", "f32"]
    g, n, c = check(op, STATES.astype(kind))
    state = STATES
    for t in range(4):
        count = np.full(3, state.sum()) if "sum" in text else state
        state = np.where((count - state == (2 if "sum" in text else 0)) | (state == 1), 1, 0)
        np.testing.assert_array_equal(g[t], state)
        np.testing.assert_array_equal(n[t], count)


def test_a_cast_keeps_them_integers():
    op = es.op(CELLS.replace("1, 0)", "i64(1), 0)"), extents={"t": 4, "i": 3})
    assert types_of(op, STATES) == ["i64", "i64", "i64"]
    check(op, STATES)


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_sums_of_integers(kind):
    op = es.op("g[t,i] = sum[a](where(t > 0, g[t-1,(i+a)%3], g0[(i+a)%3]))", extents={"t": 4, "i": 3, "a": 3})
    assert types_of(op, STATES.astype(kind)) == ["i64"]
    np.testing.assert_array_equal(check(op, STATES.astype(kind))[0][:, 0], [2, 6, 18, 54])


def test_conditions_from_outside():
    op = es.op("b[t] = where(t > 0, b[t-1], m[t])\nc[t] = where(b[t], x[t], 0)\nreturn b, c")
    assert types_of(op, np.array([True, False]), np.ones(2)) == ["bool", "f64"]
    np.testing.assert_array_equal(check(op, np.array([True, False]), np.ones(2))[0], [True, True])


@pytest.mark.parametrize("order", [1, -1])
def test_types_travel_through_any_number_of_tensors(order):
    """Each reads the one before it, the first the last of the step before; one of them an integer of 64 bits."""
    size = 23
    lines = ["a0[t] = where(t > 0, a22[t-1], n[t])"] + [f"a{k}[t] = a{k - 1}[t] + 1" for k in range(1, size)]
    lines[7] += " + i64(m[t])"
    op = es.op("\n".join([*lines[::order], "return a22, a3"]))
    n = np.arange(5, dtype=np.int32)
    assert types_of(op, *([n, n])) == ["i64", "i64"]
    check(op, n, n)


def random_text(rng: np.random.Generator) -> tuple[str, dict[str, int]]:
    """Tensors over (t, i), each defined from each other's steps before, and from those above at the same step."""
    names = [f"s{k}" for k in range(int(rng.integers(1, 4)))]
    kinds = {n: str(rng.choice(["number", "number", "condition"])) for n in names}
    starts = {"number": ["g0[i]", "h0[i]", "f0[i]", "1", "0.5", "i"], "condition": ["m0[i]", "f0[i] > 0", "1 < 0"]}

    def read(name: str, here: bool) -> str:
        if here:
            return f"{name}[t,i]"
        start = str(rng.choice(starts[kinds[name]]))
        return f"where(t > 0, {name}[t-1,{rng.choice(['i', '(i+1)%3'])}], {start})"

    def any_of(kind: str, above: list[str], depth: int) -> str:
        pick = [n for n in names if kinds[n] == kind]
        if pick and rng.random() < 0.5:
            n = str(rng.choice(pick))
            return read(n, n in above and rng.random() < 0.5)
        if kind == "condition":
            if depth == 0:
                return str(rng.choice(["m0[i]", "g0[i] == 1", "t > 1"]))
            a, b = any_of("number", above, depth - 1), any_of("number", above, depth - 1)
            x, y = any_of("condition", above, depth - 1), any_of("condition", above, depth - 1)
            forms = [f"{a} == {b}", f"{a} < {b}", f"({x} or {y})", f"not ({x})"]
            return str(rng.choice(forms))
        if depth == 0:
            return str(rng.choice(["1", "0", "2.5", "g0[i]", "h0[i]", "f0[i]", "i", "t"]))
        a, b = any_of("number", above, depth - 1), any_of("number", above, depth - 1)
        c = any_of("condition", above, depth - 1)
        forms = [
            f"where({c}, {a}, {b})", f"where({c}, 1, 0)", f"({a}) // 2", f"({a}) % 3", f"min({a}, {b})",
            f"max({a}, 1)", f"i64(min({a}, 5))", f"i32(min({a}, 5))", f"sum[a](where({c}, a, 1))", f"floor({a})",
            f"min({a} + {b}, 9)", f"abs({a})", f"({a})/4",
        ]  # fmt: skip
        return str(rng.choice(forms))

    lines = [f"{n}[t,i] = {any_of(kinds[n], names[:k], 2)}" for k, n in enumerate(names)]
    return "\n".join([*lines, "return " + ", ".join(names)]), {"t": 4, "i": 3, "a": 2}


@pytest.mark.thinned(8)
@pytest.mark.parametrize("seed", range(60))
def test_random(seed):
    rng = np.random.default_rng(seed)
    text, extents = random_text(rng)
    extents = {a: n for a, n in extents.items() if f"[{a}]" in text or a != "a"}
    op = es.op(text, extents=extents)
    given = {
        "g0": rng.integers(0, 3, 3), "h0": rng.integers(0, 3, 3).astype(np.int32),
        "f0": rng.integers(-1, 3, 3).astype(np.float32), "m0": rng.random(3) < 0.5,
    }  # fmt: skip
    arrays = [given[n] for n in op.inputs]
    want, got = flatten(es.interpret(op)(*arrays))[0], flatten(op(*arrays))[0]
    for w, g in zip(want, got, strict=True):
        assert w.dtype.kind == g.dtype.kind
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5, err_msg=text)
