"""What a trial takes for right: roundings and what they decide, halves at ties, integers among numbers."""

from __future__ import annotations

import os

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from tests.fuzz import session
from tests.fuzz import trial as trial_module
from tests.fuzz.case import Case, Input
from tests.fuzz.check import Unfit, agree
from tests.fuzz.choices import Choices
from tests.fuzz.tolerance import errors
from tests.fuzz.trial import Check, Trial, run_check


def test_tolerance_at_steps_covers_both_sides() -> None:
    """erf(3.9) is 1 in float32 and below 1 in float64, so that the integer is 1 or 0; then 1/17 is added."""
    x = np.full(17, 3.9, np.float32)
    traced = trace_call(es.op("y[i] = i32(erf(x[i])) + i / 17"), (x,), {})
    ((value, error),), _, _ = errors(traced.graph, [x])
    far = np.arange(17, dtype=np.float32) / np.float32(17) + np.float32(1)
    assert (value < 1).all() and (np.abs(far - value) <= error).all() and (error < 1.00001).all()


def test_sums_of_what_may_jump() -> None:
    """Roundings of a sum and of a scatter are those of what may be added."""
    x = np.full(4097, 3.9, np.float32)
    for text in ("y[] = sum[i](i32(erf(x[i])) / 3)", "y[i - i] += i32(erf(x[i])) / 3"):
        traced = trace_call(es.op(text, extents={"y.shape[0]": 1} if "+=" in text else {}), (x,), {})
        ((value, error),), _, _ = errors(traced.graph, [x])
        assert (4097 / 3 * (1 + 1e-7) - value <= error).all()


def test_a_position_within_roundings_may_be_any_of_the_rivals() -> None:
    """erf is 1 in float32 at both, whose order float64 tells."""
    x = np.array([3.95, 3.96, 0.0], np.float32)
    traced = trace_call(es.op("y[i] = where(i == argmax[k](erf(x[k])), 1, 0)", extents={"i": 3}), (x,), {})
    ((value, error),), _, _ = errors(traced.graph, [x])
    assert value.tolist() == [0, 1, 0] and (error[:2] >= 1).all()


def test_gradients_of_ties_are_compared_exactly_as_long_as_halves_are_held() -> None:
    """At every step of a maximum that ties the gradient is halved."""
    text = """
T0[a0, a1] = where(a1 >= 1, max(T1[a0, a1-1], X0[a0, a1]), X0[a0, a1])
T1[a0, a1] = min(3, max(-3, T0[a0, a1]))
return T1
"""
    for n in (5, 29):
        inputs = {"X0": Input((2, n), "float32")}
        run_check(Case(text.strip(), {"a1": n}, inputs, {}, True, 0, {"a0": 2, "a1": n}), Check("gradient"))


@pytest.mark.parametrize("digits, whole", [(3, True), (23, False)])
def test_digits_decide_whether_results_are_compared_exactly(digits: int, whole: bool) -> None:
    x = np.array([3, 2.0**-digits, 1], np.float32)
    traced = trace_call(es.op("y[i] = x[i] + x[i]"), (x,), {})
    assert errors(traced.graph, [x])[2] is whole
    wrong = (2 * x * np.float32(1 + 2.0**-23)).astype(np.float32)
    if whole:
        with pytest.raises(AssertionError):
            agree([wrong], traced.graph, [x], "y", exact=True)
    else:
        agree([wrong], traced.graph, [x], "y", exact=True)


def test_numbers_and_integers_make_float64_in_the_twin() -> None:
    """Also where PyTorch's usual type would be float32, which the twin does not take for a float of its own."""
    text = """
T0[a0, a1] = 0.5 + where(0.5 <= relu(X0[a0, a1]), 1, 0)
T1[a0] = sum[a2](where(a2 <= a0, T0[a0, a2], 0))
T2[a0, a1] = where(a1 <= a0, T0[a0, a1] * T1[a0], 0)
return T2
"""
    inputs = {"X0": Input((2, 17), "float32")}
    run_check(Case(text.strip(), {}, inputs, {}, False, 0, {"a0": 2, "a1": 17, "a2": 17}), Check("twin"))


def test_elements_that_are_no_numbers() -> None:
    """Values are compared, also whether they are numbers; derivatives say nothing."""
    given = Input((300,), "float32", special=True)
    case = Case("y[i] = max(x[i], -x[i]) + 0.5", {}, {"x": given}, {}, False, 1, {"i": 300})
    (x,) = case.arrays()
    assert np.isnan(x).any() and np.isinf(x).any() and np.signbit(x[x == 0]).any() and Case.of(case.data()) == case
    run_check(case, Check())
    for what in ("gradient", "twin", "dot"):
        with pytest.raises(Unfit):
            run_check(case, Check(what))
    traced = trace_call(case.function(), (x,), {})
    lost = np.nan_to_num(np.abs(x), nan=1.0, posinf=np.inf) + np.float32(0.5)
    with pytest.raises(AssertionError, match="elements differ"):
        agree([lost], traced.graph, [x], "y")


def test_factors_outside_a_sum_may_turn_infinity_into_nan() -> None:
    inputs = {"X": Input((9, 7, 3), "float32", special=True), "Y": Input((9,), "float32", special=True)}
    case = Case("z[i,j] = sum[k](X[i,j,k]*Y[i])", {}, inputs, {}, False, 1, {"i": 9, "j": 7, "k": 3})
    given = case.arrays()
    with np.errstate(all="ignore"):
        inside, before = (given[0] * given[1][:, None, None]).sum(2), given[0].sum(2) * given[1][:, None]
    assert (np.isnan(inside) != np.isnan(before)).any()
    graph = trace_call(case.function(), tuple(given), {}).graph
    agree([inside], graph, given, "z")
    agree([before], graph, given, "z")
    with pytest.raises(AssertionError, match="elements differ"):
        agree([np.where(np.isfinite(inside), inside + 1, inside)], graph, given, "z")
    run_check(case, Check())


def test_configurations_that_are_forced_are_announced(tmp_path, monkeypatch) -> None:
    """A process that dies of them leaves a test that has them."""
    case = Case("Y[i] = sum[k](X[i, k])", {}, {"X": Input((5, 33), "float32")}, {}, False, 3)
    told = tmp_path / "case.txt"
    file = os.open(told, os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(session, "ANNOUNCED", file)
    trial = Trial(case)
    trial.compare(Check("value", 1, "host"))  # from now on its kernels are on disk
    session.try_check(trial, Check("value", 1, "host", (session.VARIED,)), Choices("announced"), ())
    os.close(file)
    assert trial.seen.forced and repr(tuple(trial.seen.forced)) in told.read_text()


@pytest.fixture
def compiling_takes(monkeypatch):
    """Set the clock of trials, which goes on only where something is compiled, by so many seconds each time."""

    class Clock:
        now = 0.0

        def process_time(self) -> float:
            return self.now

    def takes(seconds: float) -> None:
        clock, whole = Clock(), trial_module.TrialProgram.compiled

        def compiled(self, n, target):
            clock.now += seconds
            return whole(self, n, target)

        monkeypatch.setattr(trial_module, "time", clock)
        monkeypatch.setattr(trial_module.TrialProgram, "compiled", compiled)

    return takes


@pytest.mark.parametrize("seconds, forced, slow", [(4.9, (), False), (5.1, (), True), (5.1, (session.VARIED,), False)])
def test_a_formula_that_is_compiled_slowly_is_a_find(
    seconds: float, forced: tuple, slow: bool, monkeypatch, compiling_takes
) -> None:
    compiling_takes(seconds)
    case = Case("Y[i] = sum[k](X[i, k])", {}, {"X": Input((5, 33), "float32")}, {}, False, 3)
    monkeypatch.setitem(session.THEMES, "rows", lambda choose: case)
    monkeypatch.setattr(session, "_checks", lambda choose, theme: iter((Check("value", 1, "host", forced),)))
    outcome = session.Outcome(theme="rows")
    session.try_legal_case(Choices("slow"), outcome, ())
    if slow:
        assert outcome.find is not None and outcome.find["kind"] == "Slow" and "def test_found" in outcome.find["test"]
    else:
        assert outcome.find is None and outcome.compared == 1


def test_a_graph_of_formulas_may_take_longer(compiling_takes) -> None:
    compiling_takes(100.0)
    run_check(Case("def f(F, x):\n    return F.relu(x)\n", {}, {"x": Input((5,), "float32")}, {}, False, 3), Check())
