"""The fuzzer: cases of a fixed seed are right; faults that are planted are found; crashes and hangs are survived."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from einsmith.base.environment import check_level
from einsmith.checking.shrink import shrink
from einsmith.codegen.cache import native
from tests.fuzz import productions, session
from tests.fuzz.case import LAYOUTS, Case, Input, as_test, lay
from tests.fuzz.choices import Choices
from tests.fuzz.run import Run, Settings, finds_of
from tests.fuzz.trial import Check, Trial, Wrong, run_check
from tests.fuzz.variants import nested_depth, streaming
from tests.fuzz.writer import Writer


@pytest.mark.parametrize(
    "seed, cases, reached", [(0, 25, 95), *(pytest.param(n, 250, 200, marks=pytest.mark.slow) for n in range(3))]
)
def test_the_first_cases_of_a_fixed_seed(seed: int, cases: int, reached: int) -> None:
    """As many on any machine, so that a find belongs to a change; what lies beyond is searched by hand."""
    run = Run(Settings(seed=str(seed), minutes=10, cases=cases, jobs=1, steer=False, limit=120, shrinking=30))
    run.run()
    assert not run.finds, "\n".join(f"case {f.number}: {f.message}\n{f.test}" for f in run.finds.values())
    assert run.compared > cases and len(run.coverage.reached) > reached, run.line()


def test_a_seed_and_a_number_give_a_case() -> None:
    for theme, make in session.THEMES.items():
        for n in range(5):
            first, again = Choices(f"1/{theme}/{n}"), Choices(f"1/{theme}/{n}")
            case = make(first)
            assert case == make(again) and first.taken == again.taken
            assert case == make(Choices(0, first.taken)) and Case.of(case.data()) == case


@pytest.mark.parametrize("make", [productions.window, productions.reduction, productions.typed, productions.pointwise])
def test_rows_end_about_a_vector(make) -> None:
    """Results whose rows have one element more than whole vectors, none more, and one less, are frequent."""
    tails: Counter[int] = Counter()
    for n in range(600):
        w = Writer(Choices(f"rows/{n}"))
        make(w)
        axes, lanes = next((w.shapes[t] for t in w.outputs), ()), w.vectors[0]
        length = w.axes[axes[-1]] if axes else 1
        if length >= lanes - 1:
            tails[(length + 1) % lanes - 1] += 1
    many = tails.total()
    assert many > 120 and tails[1] > 0.2 * many and min(tails[0], tails[-1]) > 0.1 * many, tails


@pytest.mark.parametrize("count", [9, pytest.param(24, marks=pytest.mark.slow)])
def test_most_chains_of_reductions_run_by_nested_row_blocks(count: int) -> None:
    """Of the drawn chains, whose sizes are small, most are planned as one kernel that uses up its local results."""
    depths: Counter[int] = Counter()
    for n in range(count):
        trial = Trial(session.THEMES["chain"](Choices(f"chains/{n}")))
        with streaming("3"):
            target = replace(native.host_target(), cores=1, l3=1)
            run = trial.program("value").compiled(1, target)
            depths[max(nested_depth(call.kernel, target) for call in run.plan.calls)] += 1
    assert depths.total() - depths[0] >= count / 2 and depths[2] + depths[3] >= count / 3, depths


def test_the_smallest_choices_are_legal() -> None:
    for make in session.THEMES.values():
        run_check(make(Choices(0, [])), Check())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    for shape in ((), (1,), (3, 4), (2, 1, 5)):
        a = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
        if layout == "broadcast" and a.ndim:
            a[:] = a[:1]
        np.testing.assert_array_equal(lay(a, layout), a)


def test_shrinking() -> None:
    """To the fewest and least choices that are the same find."""

    def fails(given: list[int]) -> list[int] | None:
        return given if len(given) >= 4 and given[1] >= 7 and given[3] >= 5 else None

    assert shrink([9, 30, 4, 6, 2, 8, 1, 50], fails, 20) == [0, 7, 0, 5]


_PLANTED = """
from einsmith.codegen.cache import build as worker

whole = worker.emit_module
worker.emit_module = lambda functions, target: whole(functions, target).replace(" = fsub ", " = fadd ")
"""


@pytest.mark.slow
def test_a_planted_fault_is_found_and_made_smaller(tmp_path) -> None:
    """An emitter that adds where it should subtract. The find is a test that fails with the fault alone."""
    setup = tmp_path / "planted.py"
    setup.write_text(_PLANTED)
    found = Run(
        Settings(seed="3", minutes=3, themes=("rows",), finds=1, shrinking=10, setup=str(setup), limit=120),
        say=lambda text: None,
    )
    found.run()
    (find, *_) = found.finds.values()
    assert find.kind == ("CheckError" if check_level() else "wrong")
    names: dict = {}
    exec(find.test, names)
    names["test_found"]()  # without the fault


_DYING = """
import os
import time

from tests.fuzz import productions, session

whole = session.session


def dying(seed, number, reached=()):
    if number == 2:
        session.announce(session.THEMES["window"](session.Choices("0")))
        os.kill(os.getpid(), 11)
    if number == 4:
        time.sleep(1000)
    return session.Outcome(compared=1)


session.session = dying
"""


def test_crashes_and_hangs_are_finds_and_the_next_case_is_run(tmp_path, monkeypatch) -> None:
    setup = tmp_path / "dying.py"
    setup.write_text(_DYING)
    monkeypatch.setattr("tests.fuzz.run.FIRST_LINE", 30.0)
    found = finds_of([0, 2, 3, 4, 5], setup=str(setup), limit=3.0)
    assert [(f.number, f.kind) for f in found] == [(2, "crash"), (4, "hang")]
    assert "T0[" in found[0].case and "def test_found" in found[0].test


def test_kinds_of_faults_are_distinguished() -> None:
    """Of outputs, of bytes beside them, of forward and reverse mode, of PyTorch's twin."""
    case = Case("y[i,j] = tanh(x[i,j] - max[k](x[i,k]))", {}, {"x": Input((5, 17), "float32")}, {}, False, 3,
                {"i": 5, "j": 17, "k": 17})  # fmt: skip
    for what, n in (("value", 1), ("gradient", 2), ("second", 1), ("jvp", 3), ("dot", 1), ("twin", 1), ("call", 2)):
        run_check(case, Check(what, n))
    other = Case.of({**case.data(), "axes": {"i": 5, "j": 17, "k": 16}})
    with pytest.raises(Wrong, match="twin"):
        run_check(other, Check("twin"))
    exec(textwrap.dedent(as_test(case, {"what": "value", "forced": (("reduction", "mode"),)})), names := {})
    names["test_found"]()
