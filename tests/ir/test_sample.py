"""Points that refute a condition: they never speak against what is proven, and spare the search for proofs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.sample import SAMPLE_POINTS, Sample
from einsmith.ir.nodes import Axis, Read, apply, template
from einsmith.ir.template_evaluator import evaluate_template

from .formulas import add, conditions, integers, k

U, J = Axis(0), Axis(1)


@settings(max_examples=150)
@given(integers(), st.tuples(*(st.integers(1, 5) for _ in range(3))))
def test_a_small_box_is_looked_at_whole(e, extents):
    values = Sample(extents).values(e)
    want = evaluate_template(template(extents, (), e), ())[0].ravel()
    np.testing.assert_array_equal(np.broadcast_to(values, want.shape), want)


@pytest.mark.parametrize("examples", [60, pytest.param(150, marks=pytest.mark.slow)])
def test_points_never_refute_what_is_proven(examples):
    @settings(max_examples=examples)
    @given(conditions(), st.lists(conditions(depth=1), max_size=3), st.tuples(*(st.integers(1, 40) for _ in range(3))))
    def hold(c, others, extents):
        facts = Facts(extents)
        if facts.sampled.is_undecided(c, others, True):
            under = facts.assume_all(others)
            assert under.feasible and not under._proves(c, True) and not under._proves(c, False)

    hold()


def test_conditions_that_samples_cannot_decide():
    facts = Facts((3, 4))
    read = apply("lt", Read(0, (U,), dt.i32), k(2))
    small, large = apply("lt", U, k(2)), apply("lt", add(U, J), k(4))
    assert facts.sampled.is_undecided(small, [large], True)
    assert not facts.sampled.is_undecided(read, [small], True) and not facts.sampled.is_undecided(small, [read], True)
    assert not facts.sampled.is_undecided(small, [apply("lt", U, k(1))], True), "implied by the other"
    assert not facts.assume(read).sampled.is_undecided(small, [], True)
    assert Sample((SAMPLE_POINTS, 0)).everywhere().size == 0


def test_simplifying_nested_remainders_searches_for_few_proofs(monkeypatch):
    """The gradient of nested remainders under guards has many conditions, nearly all of them needed."""
    made = []
    plain = Facts._with

    def counted(self, *args):
        made.append(args)
        return plain(self, *args)

    monkeypatch.setattr(Facts, "_with", counted)
    op = es.op(
        "Y[i] = sum[j,k](Z[(3*i - j + k) % 5, (i - j - k + 4) % 4] * X[0, min(max((j + k + 3)//6, 0), 2)] "
        "* where(0 <= 2*i - 2*j - 2*k + 2 and 2*i - 2*j - 2*k + 2 < 5, "
        "X[2*i - 2*j - 2*k + 2, ((k - 3)//5 + i) % 3], 0))",
        extents={"i": 2, "j": 3, "k": 2},
    )
    x, z = np.ones((5, 3)), np.ones((5, 4))
    es.interpret(es.grad(lambda x, z: op(X=x, Z=z).sum(), (0, 1)))(x, z)
    assert 0 < len(made) < 40
