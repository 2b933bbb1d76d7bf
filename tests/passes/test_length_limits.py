"""Lengths that are known when a program runs: what lies beyond one takes no time and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.passes.algebra import length_limits
from einsmith.schedule import pipeline
from einsmith.schedule.limited_positions import find_limits
from einsmith.schedule.limits import UnlimitedError, check_limited

SLOTS, NODES, WIDTH = 300, 7, 9
MESSAGES = """
    g[e,m] = where(e < n[], exp(-(r[e] - mu[m])**2), 0)
    w[e,k] = where(e < n[], sum[m](g[e,m]*F[m,k]), 0)
    y[rcv[e],k] += where(e < n[], w[e,k]*h[snd[e],k], 0)
    return y
"""
FORMULAS = {
    "guards everywhere": MESSAGES,
    "an end in other words": MESSAGES.replace("where(e < n[], exp", "where(not (n[] <= e), exp").replace(
        "e < n[], sum", "e + 1 <= n[], sum"),
    "a sum of zeros": """
        w[e,k] = where(e < n[], r[e]*F[0,k], 0)
        v[e,k] = where(e < n[], h[snd[e],k], 0)
        y[i,k] = sum[e](w[e,i]*v[e,k] - v[e,k]*w[e,i]*2)
        return y
    """,
    "terms of zeros": """
        w[e,k] = where(e < n[], r[e]*F[0,k], 0)
        v[e,k] = where(e < n[], h[snd[e],k], 0)
        y[e % 7,k] += 3*w[e,k] + v[e,k]/2
        return y
    """,
    "a mean": """
        w[e,k] = where(e < n[], r[e]*F[0,k] + h[snd[e],k], 0)
        q[k] = sum[e](w[e,k]) / max(f64(n[]), 1)
        y[rcv[e],k] += where(e < n[], (w[e,k] - q[k])**2, 0)
        return y
    """,
}  # fmt: skip
LENGTHS = (0, 1, 120, SLOTS - 1, SLOTS, SLOTS + 5, 2**40, -1, -(2**62))


def arrays(rng, n):
    """Inputs whose slots beyond the length hold no numbers, and indices of nothing."""
    r, mu, F, h = (rng.standard_normal(s) for s in ((SLOTS,), (5,), (5, WIDTH), (NODES, WIDTH)))
    rcv, snd = rng.integers(0, NODES, (2, SLOTS))
    count = min(max(n, 0), SLOTS)
    r[count:], rcv[count:], snd[count:] = np.nan, 2**31 - 1, -1
    return {"n": np.int64(n), "r": r, "mu": mu, "F": F, "rcv": rcv, "h": h, "snd": snd}


def outcome(text, given, wrap):
    """Value and gradients of a formula; wrap: makes a function of it run."""
    names = [x for x in given if f"{x}[" in text]
    f = es.op(text, extents={"y.shape[0]": NODES} if "+=" in text else {"i": WIDTH})
    wrt = [x for x in ("F", "h") if x in names]

    def loss(*changed):
        y = f(**({x: given[x] for x in names} | dict(zip(wrt, changed, strict=True))))
        return (y**2).sum()

    value, gradients = wrap(es.value_and_grad(loss, argnums=tuple(range(len(wrt)))))(*(given[x] for x in wrt))
    return [value, *gradients]


@pytest.fixture
def small(monkeypatch):
    """Let the limit pay for the few points of a test."""
    monkeypatch.setattr(length_limits, "MIN_POINTS", 1)


@pytest.fixture
def plans(monkeypatch):
    """The plans of programs that are compiled, with their limits."""
    found = []
    limit_rows = pipeline.limit_rows

    def observe(plan, limits):
        found.append((limit_rows(plan, limits), limits))
        return found[-1][0]

    monkeypatch.setattr(pipeline, "limit_rows", observe)
    return found


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FORMULAS)
def test_padded_slots_change_nothing(name, dtype, rng, small):
    for n in LENGTHS:
        given = arrays(rng, n)
        given = {x: a.astype(dtype) if a.dtype.kind == "f" else a for x, a in given.items()}
        count = min(max(n, 0), SLOTS)
        short = {x: a[:count] if a.shape[:1] == (SLOTS,) else a for x, a in given.items()}
        want = outcome(FORMULAS[name], short, es.interpret) if count else [np.zeros(())] * 3
        for got, w in zip(outcome(FORMULAS[name], given, es.jit), want, strict=True):
            np.testing.assert_allclose(got, w, rtol=1e-4 if dtype == "float32" else 1e-9, atol=1e-4, err_msg=str(n))


@pytest.mark.parametrize("name", FORMULAS)
def test_kernels_end_at_the_length(name, rng, small, plans):
    outcome(FORMULAS[name], arrays(rng, 120), es.jit)
    for plan, limits in plans:
        assert [x.extent for x in limits] == [SLOTS]
        try:
            check_limited(plan, limits, lambda kernel: True)
        except UnlimitedError as e:
            # Where the price of a gather chooses so, the terms are stored beside their sum, by a fusion without limits.
            assert name == "a mean" and str(e) == "the kernel of f64[300, 9], f64[9] computes all of the capacity"
    assert plans


def test_a_length_that_only_a_part_obeys(rng, small, plans):
    """What a reader needs beyond the length is computed."""
    text = """
        w[e,k] = where(e < n[], r[e]*F[0,k], 1)
        y[k] = sum[e](w[e,k])
        return w, y
    """
    f = es.op(text)
    given = arrays(rng, 120)
    w, y = f(n=given["n"], r=given["r"], F=given["F"])
    np.testing.assert_array_equal(w[120:], 1)
    np.testing.assert_allclose(y, given["r"][:120].sum() * given["F"][0] + SLOTS - 120)
    ((plan, limits),) = plans
    with pytest.raises(UnlimitedError):
        check_limited(plan, limits, lambda kernel: True)


def test_a_zero_times_what_may_not_be_finite_stays(rng, small):
    """A sum ends at a length only where all of its terms are zero beyond: 0*inf and 0*NaN are none."""
    f = es.op("w[e] = where(e < n[], r[e], 0)\ny[] = sum[e](w[e]*x[e])\nreturn y")
    x = np.ones(SLOTS)
    x[-1] = np.inf
    assert np.isnan(f(n=np.int64(5), r=x, x=x))
    assert f(n=np.int64(5), r=x, x=np.ones(SLOTS)) == 5


def test_small_tensors_are_left_alone(rng, plans):
    outcome(MESSAGES, arrays(rng, 120), es.jit)
    for plan, limits in plans:
        assert not limits
        assert not find_limits(plan.graph)


def test_a_destination_under_a_guard_is_neither_read_nor_checked():
    f = es.op("y[i[e]] += where(e < n[], x[e], 0)", extents={"y.shape[0]": 3})
    index = np.array([2, 0, -1, 2**31 - 1])
    for run in (f, es.interpret(f)):
        np.testing.assert_array_equal(run(i=index, n=np.int64(2), x=np.ones(4)), [1, 0, 1])
    with pytest.raises(es.IndexOutOfRange):
        f(i=index, n=np.int64(3), x=np.ones(4))
    largest = es.op("y[i[e]] max= where(e < n[], x[e], 0)", extents={"y.shape[0]": 3})
    with pytest.raises(es.IndexOutOfRange):  # zero is not neutral
        largest(i=index, n=np.int64(2), x=np.ones(4))
