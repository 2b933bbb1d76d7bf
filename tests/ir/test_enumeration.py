"""Proofs by looking at every point, and what the verifier makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsmith.base import dtypes as dt
from einsmith.base.errors import BoundsError
from einsmith.ir.analysis import enumeration
from einsmith.ir.analysis.bounds import Facts, bounds
from einsmith.ir.analysis.enumeration import holds_everywhere
from einsmith.ir.nodes import Axis, Read, apply, template
from einsmith.ir.template_evaluator import evaluate_template
from einsmith.ir.verify import verify_template

from .formulas import add, conditions, k, mul

U, J, K = Axis(0), Axis(1), Axis(2)


def div(e, n):
    return apply("floordiv", e, k(n))


def values(e, extents):
    return evaluate_template(template(extents, (), e), ())[0].ravel()


@pytest.mark.parametrize("examples", [80, pytest.param(200, marks=pytest.mark.slow)])
def test_yes_where_and_only_where_it_holds(examples):
    @settings(max_examples=examples)
    @given(conditions(), st.tuples(*(st.integers(1, 5) for _ in range(3))), st.lists(conditions(depth=1), max_size=3))
    def hold(c, extents, guards):
        facts = Facts.of(extents, guards)
        holds = np.ones(int(np.prod(extents)), bool)
        for g in guards:
            holds &= values(g, extents)
        wanted = values(c, extents)[holds].all()
        assert not holds_everywhere(c, facts) or wanted
        if len(guards) < 2 and facts.known:  # several may share no axis with the condition and contradict each other
            assert holds_everywhere(c, facts) == wanted or not holds.any()

    hold()


def test_boxes_beyond_the_limit_are_unknown(monkeypatch):
    c = apply("le", k(0), U)
    assert holds_everywhere(c, Facts.of((1 << 17,)))
    assert not holds_everywhere(c, Facts.of((1 << 19,)))
    small = apply("le", U, k(2))
    facts = Facts.of((100, 1 << 19), [apply("lt", U, k(3)), apply("lt", add(U, J), k(3))])
    assert holds_everywhere(small, facts)  # with the guard on U alone
    monkeypatch.setattr(enumeration, "MAX_POINTS", 99)
    assert not holds_everywhere(small, facts)


def test_the_verifier_accepts_reads_that_only_enumeration_proves(monkeypatch):
    """i % 4 is made of its two digits; the difference is 0 everywhere."""
    digits = add(apply("mod", U, k(2)), mul(2, apply("mod", div(U, 2), k(2))))
    index = apply("sub", digits, apply("mod", U, k(4)))

    def read(i, extent):
        return template((11,), [(dt.f32, (extent,))], Read(0, (i,), dt.f32))

    verify_template(read(index, 1))
    with pytest.raises(BoundsError, match="not proven in bounds"):
        verify_template(read(add(index, div(U, 10)), 1))
    monkeypatch.setattr(enumeration, "MAX_POINTS", 10)
    with pytest.raises(BoundsError, match="not proven in bounds"):
        verify_template(read(add(index, k(1)), 2))


def test_atoms_that_lead_to_each_other_are_looked_at_once(monkeypatch):
    """Each quotient's lines hold the one inside it, and those of the guards hold two of them."""
    conditions, last = [], add(U, J)
    for n in range(2, 8):
        last = add(div(add(last, mul(n, K)), n), U)
        conditions.append(apply("le", last, add(mul(2, J), k(9))))
        conditions.append(apply("le", k(-3), apply("sub", last, mul(3, K))))
    calls = []
    own = Facts.own_interval
    monkeypatch.setattr(Facts, "own_interval", lambda self, e: calls.append(e) or own(self, e))
    lo, hi = bounds(last, (5, 4, 3), conditions)
    assert len(calls) < 5_000
    found = values(last, (5, 4, 3))[np.all([values(c, (5, 4, 3)) for c in conditions], axis=0)]
    assert lo <= found.min() and found.max() <= hi
