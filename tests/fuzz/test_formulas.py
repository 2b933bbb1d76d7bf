"""300 random formulas: compiled for 1 and 2 threads against the evaluator, gradients against central differences.

The slow run draws 2,000 others, new ones at every run. A failure prints the formula with its inputs and seed, and
hypothesis the smallest one that it finds.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, note, reject, settings

from tests.fuzz.check import Unfit, check_gradients, check_values
from tests.fuzz.generate import Case, cases

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


@settings(max_examples=300, suppress_health_check=_CHECKS)
@given(cases())
def test_values(case: Case) -> None:
    _values(case)


@settings(max_examples=300, suppress_health_check=_CHECKS)
@given(cases(("f64", "f32"), smooth=True))
def test_gradients(case: Case) -> None:
    _gradients(case)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=_CHECKS, derandomize=False, print_blob=True)
@given(cases())
def test_many_values(case: Case) -> None:
    _values(case)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=_CHECKS, derandomize=False, print_blob=True)
@given(cases(("f64", "f32"), smooth=True))
def test_many_gradients(case: Case) -> None:
    _gradients(case)
