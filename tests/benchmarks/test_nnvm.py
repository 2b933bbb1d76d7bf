"""The experiments of NNVM-Fusion: kernels are counted and ratios taken as they are meant."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import elementwise, models, plans
from benchmarks.ablations import ALL
from benchmarks.paper import nnvm
from benchmarks.peers import einsmith_kernels


def test_forms_are_fused_and_not() -> None:
    cell = nnvm.forms(("multiply_add",), 64, 1, turns=1)
    assert [x["kernels"] for x in cell.values()] == [1, 2, 1, 4]
    cell = nnvm.forms(("sigmoid", "own_sigmoid"), 64, 1, turns=1)
    assert cell["own_sigmoid forward"]["kernels"] == 1 < cell["own_sigmoid forward, not fused"]["kernels"]
    assert all(x["off"] < 1e-5 for x in cell.values())


@pytest.mark.parametrize("form", ["", "-operators"])
def test_update_of_all_parameters(form: str) -> None:
    case = elementwise.named(f"adam-of-lenet5{form}")
    assert case is not None and case.name == f"adam-of-lenet5{form}" and case.stateful
    arrays = case.arrays()
    start = {n: a.astype(np.float64) for n, a in arrays.items()}
    assert sum(arrays[n].size for n in arrays if n[0] == "p") == case.nbytes // 28 == 61706
    session = einsmith_kernels.build(case, arrays, 1, "einsmith", "")
    p, m, v = (dict((n, start[n]) for n in start if n[0] == k) for k in "pmv")
    for t in (1, 2):
        session.step()
        for n in range(len(p)):
            g = start[f"g{n}"]
            m[f"m{n}"] = 0.9 * m[f"m{n}"] + 0.1 * g
            v[f"v{n}"] = 0.999 * v[f"v{n}"] + 0.001 * g * g
            root = np.sqrt(v[f"v{n}"] / (1 - 0.999**t)) + 1e-8
            p[f"p{n}"] = p[f"p{n}"] - 1e-3 * m[f"m{n}"] / (1 - 0.9**t) / root
    for name, got in session.results().items():
        np.testing.assert_allclose(got, {**p, **m, **v}[name], rtol=1e-4, atol=1e-5, err_msg=name)
    told = session.describe()
    assert {"passes", "code_bytes", "arena_bytes"} <= set(told)
    # The price of a launch decides whether the updates of several parameters share one.
    assert told["kernels"] <= told["calls"] < 2 * len(p)


def test_interpreted_step_is_the_step() -> None:
    step, batch = plans.begun(models.named("lenet5-b1"), 1)
    assert math.isclose(nnvm.interpreted("lenet5-b1")["loss"], step(*batch), rel_tol=1e-5)


def test_gain_of_fusion() -> None:
    cell = {
        "": {"calls": 3, "rounds": [1.0, 2.0, 1.0], "arena_bytes": 1 << 20},
        ALL: {"calls": 9, "rounds": [1.5, 3.0, 9.0], "arena_bytes": 2 << 20},
    }
    assert nnvm.gain_of(cell) == 1.5 and nnvm.gain_of({"": cell[""]}) is None
    (shown,) = nnvm._show_fusion({"lenet5-b64-t2-fusion": cell, "lenet5-b64-interpreted": {"seconds": 3.0}})
    assert shown.rows == [["lenet5-b64", "9", "3", "3000", "1000", "1.50", "2.0", "1.0", "3000"]]
    assert shown.remarks == ["Fusion on lenet5: 1.50 times as fast here, 1.4 to 1.5 times in the paper."]


def test_first_calls_are_repaid() -> None:
    peers = {
        "einsmith": {"status": "ok", "median": 0.1, "first_seconds": 3.0, "first_seconds_warm": 0.5},
        "torch": {"status": "ok", "median": 0.3, "first_seconds": 1.0},
        "compile": {"status": "ok", "median": 0.2, "first_seconds": 12.0},
    }
    assert nnvm.repaid({"peers": peers}) == pytest.approx(10)
    (shown,) = nnvm._show_first({"net-b1-t2": {"peers": peers}})
    assert shown.rows == [["net-b1", "3.00", "0.50", "12.00", "", "1.00", "10"]]
    assert "4.0 times as fast" in shown.remarks[0] and "6.0 times as fast" in shown.remarks[1]
    assert nnvm.repaid({"peers": peers | {"torch": peers["torch"] | {"median": 0.05}}}) is None
