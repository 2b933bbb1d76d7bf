"""24 random formulas: compiled for 1 and 2 threads against the evaluator, gradients against central differences.

The slow run draws 2,000 others, new ones at every run. A failure prints the formula with its inputs and seed, and
hypothesis the smallest one that it finds.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, reject, settings

from tests.fuzz import check
from tests.fuzz.check import Unfit, check_gradients, check_values
from tests.fuzz.generate import Case, Generator, cases

_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def _values(case: Case) -> None:
    note(f"\n{case}")
    try:
        check_values(case)
    except Unfit:
        reject()


def _gradients(case: Case) -> None:
    note(f"\n{case}")
    try:
        check_gradients(case)
    except Unfit:
        reject()


@settings(max_examples=12, suppress_health_check=_CHECKS)
@given(cases())
def test_values(case: Case) -> None:
    _values(case)


@settings(max_examples=12, suppress_health_check=_CHECKS)
@given(cases(("f64", "f32"), smooth=True))
def test_gradients(case: Case) -> None:
    _gradients(case)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=_CHECKS, derandomize=False, database=None, print_blob=True)
@given(cases())
def test_many_values(case: Case) -> None:
    _values(case)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=_CHECKS, derandomize=False, database=None, print_blob=True)
@given(cases(("f64", "f32"), smooth=True))
def test_many_gradients(case: Case) -> None:
    _gradients(case)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("count", [24, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["f32", "f64", "exact", "i64"])
def test_small_faults_are_noticed(kind, count, monkeypatch) -> None:
    """Results that are wrong by few units in the last place, or integers by one, fail the comparison."""
    whole = check.agree

    def agree(got, graph, inputs, what, exact=False):
        wrong = []
        for a in got:
            if a.dtype.kind == "f" and not exact:
                a = a * (1 + 64 * np.finfo(a.dtype).eps)
            elif a.dtype.kind != "b":
                a = a + a.dtype.type(1)
            wrong.append(a)
        if all(np.array_equal(a, b) for a, b in zip(wrong, got, strict=True)):
            raise Unfit("nothing to disturb")
        whole(wrong, graph, inputs, what, exact)

    monkeypatch.setattr(check, "agree", agree)
    noticed = missed = 0
    for seed in range(count):
        try:
            check_values(Generator(random.Random(seed).randrange, (kind,)).case())
            missed += 1
        except AssertionError:
            noticed += 1
        except Unfit:
            pass
    assert noticed > count / 3 and missed < noticed / 4, (noticed, missed)
