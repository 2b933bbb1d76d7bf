"""Formulas that are odd or illegal: each its own error with its place, before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

V, N = np.arange(5.0), np.arange(5)
AXES = ",".join(f"a{k}" for k in range(33))

ILLEGAL = [
    ("Y[i] = X[i@//0]", V, {}, es.FormulaError, "integer division by zero"),
    ("Y[i] = X[i%n]", V, {"n": 0}, es.FormulaError, "integer division by zero"),
    ("Y[i] = X[i//(i-i)]", V, {}, es.BoundsError, "has no bounds"),
    ("Y[i] = i64(nan) + X[i]", N, {}, es.FormulaError, "nan does not fit i64"),
    ("Y[i] = i8(300) + X[i]", N, {}, es.FormulaError, "300 does not fit i8"),
    ("Y[i] = X[i] + @9223372036854775808", N, {}, es.FormulaError, "does not fit 64 bits"),
    ("Y[i] = X[i] + @" + "9" * 5000, N, {}, es.FormulaError, "5000 digits does not fit 64 bits"),
    ("Y[i] = X[i] + 9223372036854775807 + 9223372036854775807*2", N, {}, es.FormulaError, "does not fit 64 bits"),
    ("Y[i] = X[i+n]", V, {"n": 2**70}, es.FormulaError, "the parameter n does not fit 64 bits"),
    ("Y[i] = X[i] + argmax[k](X[k] > i)", V, {}, es.FormulaError, "argmax of a bool"),
    ("Y[i] = X[i] + @X.shape[5]", V, {}, es.FormulaError, r"X.shape\[5\] does not exist"),
    ("Y[i] = X[i] + @X.shape[-2]", V, {}, es.FormulaError, r"X.shape\[-2\] does not exist"),
    ("Y[i] = X[i] + @٣", V, {}, es.FormulaError, "has no meaning here"),
    ("Y[a@²] = X[a²]", V, {}, es.FormulaError, "has no meaning in a name"),
    ("Y[i] = X[i]@\x00", V, {}, es.FormulaError, "has no meaning here"),
    ("Y[i] = X[i] + @\ud800", V, {}, es.FormulaError, "has no meaning here"),
    ("Y[i] = " + "(" * 100_000 + "X[i]" + ")" * 100_000, V, {}, es.FormulaError, "nested too deeply"),
    ("Y[i] = " + "-" * 100_000 + "X[i]", V, {}, es.FormulaError, "nested too deeply"),
    ("@Y[i] = X[i]\nY[k+2147483648] = X[k]", V, {}, es.FormulaError,
     "no piece of Y defines some elements: the pieces define 10"),
    ("Y[2*i] = X[i]\n@Y[3*k] = X[k]", V, {}, es.FormulaError, "overlaps a piece above"),
    ("Y[i] = @" + "x5" * 200, V, {}, es.FormulaError, "the name has 400 characters"),
    (f"Y[{AXES}] = X[a0]", V, {}, es.FormulaError, "at most 32 axes"),
]  # fmt: skip


@pytest.mark.parametrize("text,array,parameters,error,message", ILLEGAL, ids=[t[0][:40].encode("ascii", "replace")
                         .decode() for t in ILLEGAL])  # fmt: skip
def test_illegal(text, array, parameters, error, message):
    with pytest.raises(error, match=message) as e:
        es.op(text.replace("@", ""))(array, **parameters)
    if "@" in text:
        assert abs(e.value.offset - text.index("@")) <= 1
    assert len(str(e.value)) < 1000
    str(e.value).encode()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("extents,message", [
    ({"i": 2**61}, "no array can have that many elements"), ({"Y.shape[x]": 3}, "not an axis of the formula"),
    ({"Y.shape[7]": 3}, "not an axis of the formula"), ({"i": "(" * 100_000}, "never closed"),
    ({"i": "-" * 100_000 + "1"}, "nested too deeply"),
    ({"i": 2**31, "j": 2**31}, "no array can have that many elements"),
])  # fmt: skip
def test_extents(extents, message):
    with pytest.raises(es.EinsmithError, match=message):
        es.op("Y[i,j] = 1.0", extents={"j": 2, **extents})()


def test_sizes_beyond_memory_are_rejected():
    with pytest.raises(es.OutOfMemoryError, match="GiB are requested"):
        es.op("Y[i] = 1.0", extents={"i": 2**50})()
    assert issubclass(es.OutOfMemoryError, MemoryError)


def test_a_long_line_is_shown_around_its_fault():
    text = "Y[i] = " + "X[i] + " * 3000 + "@" + " + X[i]" * 3000
    with pytest.raises(es.FormulaError) as e:
        es.op(text)
    _, line, caret, *_ = str(e.value).split("\n")
    assert len(line) < 200 and line[caret.index("^")] == "@"
    assert line.startswith("  line 1: ... ") and line.endswith(" ...")


def test_remainders_by_floats():
    """No index arithmetic: compiled as any other function."""
    for divisor in ("nan", "inf", "2.5", "sqrt(-1)"):
        op = es.op(f"Y[i] = where((i + 1) % {divisor} == 0, X[i], -X[i])")
        np.testing.assert_array_equal(op(V), es.interpret(op)(V))
