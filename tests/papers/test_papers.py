"""Operators from papers: value, gradient and second order agree with PyTorch at three sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.papers.collection import OPERATORS
from tests.papers.operator import Comparison

every_operator = pytest.mark.parametrize("op", OPERATORS, ids=[o.name for o in OPERATORS])

# Every fifth one is compared in each run of the tests: all of them together take minutes.
sampled = pytest.mark.parametrize(
    "op", [pytest.param(o, id=o.name, marks=[] if n % 5 == 0 else pytest.mark.slow) for n, o in enumerate(OPERATORS)]
)


def test_no_operator_is_there_twice():
    assert len({o.name for o in OPERATORS}) == len(OPERATORS)
    assert len({"".join(o.text.split()) for o in OPERATORS}) == len(OPERATORS)


@pytest.mark.thinned(16)
@sampled
def test_operators_agree_with_pytorch(torch, op):
    Comparison(op, 0).check(torch)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
@every_operator
def test_operators_agree_with_pytorch_at_other_sizes(torch, op, size):
    Comparison(op, size).check(torch)


@pytest.mark.parametrize(
    "order,wrong",
    [
        ("gradient", "stop_gradient(s[b,i,d])"),
        # x + (x - x_0)**2 has the value and the first derivative of x.
        ("second order", "(s[b,i,d] + (s[b,i,d] - stop_gradient(s[b,i,d]))**2)"),
    ],
)
def test_faults_of_derivatives_alone_are_detected(torch, order, wrong):
    """The value stays; the first derivative, or the second one alone, does not."""
    squash = next(o for o in OPERATORS if o.name == "squash")
    text = squash.text.replace("= s[b,i,d]*", f"= {wrong}*")
    assert text != squash.text
    with pytest.raises(AssertionError, match=order):
        Comparison(replace(squash, text=text), 0).check(torch)
