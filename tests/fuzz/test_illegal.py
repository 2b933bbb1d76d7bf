"""Odd and illegal formulas with fixed seeds, in a process of their own; and that the check notices what it is for."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

import einsmith as es
from tests.fuzz import illegal

COUNT = 60


def test_many():
    outcomes: dict[str, int] = {}
    findings = list(illegal.watched(0, COUNT, outcomes))
    assert not findings, "\n\n".join(findings)
    assert sum(outcomes.values()) == COUNT
    assert outcomes["FormulaError"] > COUNT / 4 and outcomes["runs"] > COUNT / 12, outcomes


@pytest.mark.slow
def test_many_more():
    seed = int(time.time())
    findings = list(illegal.watched(seed, 2000, {}))
    assert not findings, "\n\n".join(findings)


def test_cases_follow_from_their_seed():
    for seed in range(30):
        one, two = illegal.make(seed), illegal.case(random.Random(seed))
        assert illegal.describe(one) == illegal.describe(two)


@pytest.mark.parametrize("error", [
    AssertionError("planted"), KeyError("planted"), RecursionError("planted"), es.VerifyError("planted"),
    es.CompileError("planted"), es.FormulaError("names no line, planted"), es.ShapeError("planted" * 1000),
], ids=lambda e: type(e).__name__)  # fmt: skip
def test_faults_are_noticed(error, monkeypatch):
    def fails(*args, **kwargs):
        raise error

    monkeypatch.setattr(es, "op", fails)
    with pytest.raises(AssertionError, match="planted"):
        illegal.check(("Y[i] = X[i]", None, (np.ones(3),), {}))


def test_a_hang_is_noticed(monkeypatch):
    def hangs(*args, **kwargs):
        while True:
            pass

    monkeypatch.setattr(es, "op", hangs)
    monkeypatch.setattr(illegal, "LIMIT", 0.2)
    with pytest.raises(AssertionError, match="more than 0.2 seconds"):
        illegal.check(("Y[i] = X[i]", None, (np.ones(3),), {}))


def test_a_crash_is_noticed(monkeypatch):
    """A process that ends is a finding, and the next one goes on behind it."""
    monkeypatch.setenv("ILLEGAL_CRASHES_AT", "3")
    outcomes: dict[str, int] = {}
    (finding,) = illegal.watched(2, 4, outcomes)
    assert finding.startswith("seed 3: hung or crashed") and sum(outcomes.values()) == 3
