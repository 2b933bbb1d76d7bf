"""Extents of one, in every dimension by itself and in all together: what works at two and more works there, with the
evaluator's values, gradients and second derivatives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.base.trees import flatten
from einsmith.nn.cells import LLTM, MILSTM, SCRN, SubLSTM
from tests.gallery.entries import ENTRIES, Entry
from tests.gallery.entry import Ints
from tests.lang.recurrences import CASES

# A window longer than what it slides over, two channels of one: refused, and never for want of an extent.
REFUSED = re.compile("an extent is not negative|integer division by zero|no extent of|only 0 to 0 exist")


def agree(f: Callable, arrays: Mapping[str, np.ndarray], rng: np.random.Generator) -> None:
    """Compiled values, gradients and second derivatives of f(**arrays) are the evaluator's, and the evaluator's
    gradients its differences."""
    names = list(arrays)
    floats = [n for n, a in arrays.items() if a.dtype.kind == "f"]
    x = [arrays[n] for n in floats]

    def outputs(*x: Any) -> list:
        return flatten(f(**{**arrays, **dict(zip(floats, x, strict=True))}))[0]

    shapes = [np.shape(y) for y in flatten(es.interpret(lambda *a: f(**dict(zip(names, a, strict=True))))(
        *arrays.values()))[0]]  # fmt: skip
    weights = [rng.standard_normal(s) for s in shapes]
    along = [rng.standard_normal(a.shape) for a in x]

    def total(*x: Any) -> Any:
        return sum((y * w).sum() for y, w in zip(outputs(*x), weights, strict=True) if y.dtype.is_float)

    at = tuple(range(len(x)))
    first = es.grad(total, at)

    def everything(*x: Any) -> tuple:
        slope = es.grad(lambda *x: sum((g * v).sum() for g, v in zip(first(*x), along, strict=True)), at)
        return tuple(outputs(*x)), first(*x), slope(*x)

    want, got = (flatten(make(everything)(*x))[0] for make in (es.interpret, es.jit))
    for w, g in zip(want, got, strict=True):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-9 * max(1.0, float(np.abs(w).max(initial=0))))


def shrunk(case: Mapping[str, Any], sizes: set[int], parameters: bool = False) -> dict[str, Any]:
    """A case of the gallery with 1 for every extent of these, and (`parameters`) for integer parameters above 1."""
    out: dict[str, Any] = {}
    for name, s in case.items():
        if isinstance(s, Ints):
            high = 1 if s.high in sizes else s.high
            out[name] = replace(s, high=high, shape=tuple(1 if n in sizes else n for n in s.shape))
        elif isinstance(s, tuple):
            out[name] = tuple(1 if n in sizes else n for n in s)
        else:
            out[name] = min(s, 1) if parameters and isinstance(s, int) else s
    return out


def sizes_of(case: Mapping[str, Any]) -> list[int]:
    shapes = [s.shape if isinstance(s, Ints) else s for s in case.values() if isinstance(s, (tuple, Ints))]
    return sorted({n for s in shapes for n in s} - {1})


def gallery(entry: Entry, case: Mapping[str, Any], rng: np.random.Generator, check: Callable) -> bool:
    """Whether the entry has a value for the case; `check(f, arrays, rng)` where it has."""
    op = es.op(entry.formula, extents=entry.extents)
    arrays, parameters = entry.inputs(case, rng), entry.parameters(case)
    arrays = {n: arrays[n] for n in op.inputs}
    try:
        es.interpret(lambda **x: op(**x, **parameters))(**arrays)
    except es.EinsmithError as e:
        assert REFUSED.search(str(e)), f"{case}: {e}"
        return False
    check(lambda **x: op(**x, **parameters), arrays, rng)
    return True


@pytest.mark.thinned(2)
@pytest.mark.parametrize("entry", ENTRIES, ids=[e.name for e in ENTRIES])
def test_the_gallery_has_its_values(entry, rng):
    """One extent after the other, at all sizes of the entry: a value, or an error that speaks of something else."""
    for case in entry.cases:
        small = [shrunk(case, {n}) for n in sizes_of(case)] + [shrunk(case, set(sizes_of(case)))]
        for s in small:
            gallery(entry, s, rng, lambda f, arrays, rng: None)


EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])


def some(check: Callable[[Any], bool], alone: list, together: Any, every: bool, rng: np.random.Generator) -> None:
    """Checks everything together, and each alone, or (`every` takes minutes) only the first of them, in a random
    order, that has a value."""
    done = check(together)
    for k in rng.permutation(len(alone)):
        has = check(alone[k])
        done |= has
        if has and not every:
            break
    assert done


@pytest.mark.thinned(12)
@EVERY
@pytest.mark.parametrize("entry", ENTRIES, ids=[e.name for e in ENTRIES])
def test_the_gallery_compiled(entry, every, rng):
    case = entry.cases[0]
    alone = [shrunk(case, {n}) for n in sizes_of(case)]
    together = shrunk(case, set(sizes_of(case)), parameters=True)
    some(lambda s: gallery(entry, s, rng, agree), alone, together, every, rng)


def lengths(inputs: tuple[np.ndarray, ...]) -> list[int]:
    return sorted({n for a in inputs for n in a.shape} - {1})


@pytest.mark.thinned(6)
@EVERY
@pytest.mark.parametrize("name", CASES)
def test_recurrences(name, every, rng):
    """Steps, batches, channels of one."""
    c = CASES[name]
    sizes = lengths(c.inputs)

    def check(one: set[int]) -> bool:
        arrays = {
            n: a[tuple(slice(0, 1) if e in one else slice(None) for e in a.shape)]
            for n, a in zip(c.formula.inputs, c.inputs, strict=True)
        }
        try:
            es.interpret(lambda *x: c.formula(*x))(*arrays.values())
        except es.EinsmithError as e:
            assert REFUSED.search(str(e)) or "has two extents" in str(e), f"{one}: {e}"
            return False
        want = flatten(c.loop(*arrays.values(), **c.parameters))[0]
        got = flatten(c.formula(*arrays.values()))[0]
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-12)
        if any(a.dtype.kind == "f" for a in arrays.values()):
            agree(c.formula, arrays, rng)
        return True

    some(check, [{n} for n in sizes], set(sizes), every, rng)


@pytest.mark.thinned(4)
@EVERY
@pytest.mark.parametrize("cell", [MILSTM, SCRN, SubLSTM, LLTM, es.nn.RNN, es.nn.LSTM, es.nn.GRU])
def test_cells(cell, every, rng):
    def check(sizes: tuple[int, int, int, int]) -> bool:
        steps, batch, width, hidden = sizes
        module = cell(width, hidden, *[hidden] * (cell is SCRN), dtype="float64")
        arrays = {n: a.copy() for n, a in module.state_dict().items()}

        def run(x, **parameters):
            return es.nn.functional_call(module, parameters, x)

        agree(run, {"x": rng.standard_normal((steps, batch, width)), **arrays}, rng)
        return True

    some(check, [(1, 3, 2, 4), (5, 1, 2, 4), (5, 3, 1, 4), (5, 3, 2, 1)], (1,) * 4, every, rng)


FORMULAS = [
    ("y[b,i] = where(i > 0, max(y[b,i-1], x[b,i]), x[b,i])", {"x": (3, 5)}, {}),
    ("y[i] = where(i > 0, x[i]-x[i-1], x[i])", {"x": (5,)}, {}),
    ("y[i] = where(0 < i, x[i]*x[i-1], 2*x[i])", {"x": (5,)}, {}),
    ("y[i] = where(i+1 < x.shape[0], x[i+1]-x[i], 0)", {"x": (5,)}, {}),
    ("y[i] = where(i == 0, x[i], x[i]-x[i-1])", {"x": (5,)}, {}),
    ("y[i,j] = where(j > i, 0, q[i]*k[j])", {"q": (5,), "k": (4,)}, {}),
    ("y[t,d] = sum[s](where(s <= t, q[t]*k[s]*v[s,d], 0))", {"q": (5,), "k": (4,), "v": (4, 2)}, {}),
    ("y[t] = max[s](where(s <= t and t - s < n, x[t]*k[s], -9))", {"x": (5,), "k": (5,)}, {"n": 2}),
    ("y[i] = where(i < n, x[i], 0)", {"x": (5,)}, {"n": 1}),
    ("y[i] = where(i >= n, x[i], 0)", {"x": (5,)}, {"n": 1}),
    ("y[i] = where(i < n, x[i], z[i])", {"x": (5,), "z": (5,)}, {"n": 1}),
    ("y[i] = where(i % 2 == 0, x[i], -x[i])", {"x": (5,)}, {}),
    ("y[i] = where(not (i > 0 and i < 3), x[i], x[i-1])", {"x": (5,)}, {}),
    ("y[i] = where(abs(i-1) < 2, x[i], 0)", {"x": (5,)}, {}),
    ("y[t,k] = where(t == 0, s[k], a[k]*y[t-1,k]) + x[t,k]", {"s": (3,), "a": (3,), "x": (5, 3)}, {}),
]  # fmt: skip


@pytest.mark.thinned(4)
@pytest.mark.parametrize("text,shapes,parameters", FORMULAS, ids=[f[0] for f in FORMULAS])
def test_formulas_with_guards(text, shapes, parameters, rng):
    op = es.op(text)
    sizes = sorted({n for s in shapes.values() for n in s})
    for one in [set(), *({n} for n in sizes), set(sizes)]:
        small = shrunk(shapes, one)
        arrays = {n: rng.standard_normal(small[n]) for n in op.inputs}
        agree(lambda **x: op(**x, **parameters), arrays, rng)
