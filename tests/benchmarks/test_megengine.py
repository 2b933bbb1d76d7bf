"""The experiments of MegEngine's article: programs that are the same, copies, and what layouts can gain."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from benchmarks import plans, precision
from benchmarks.paper import megengine


def _form(seconds: float, like: str, copies: int = 0) -> dict[str, object]:
    return {"seconds": seconds, "predicted": 1.0, "as": like, "calls": 5, "copies": copies, "packed": 2}


CELL = {
    "forms": {
        "chosen": _form(2.0, "chosen"), "without": _form(2.5, "without"), "NCHW": _form(2.5, "without"),
        "NHWC": _form(2.0, "chosen"), "NC/4HW4": _form(1.8, "NC/4HW4", 3), "unpacked": _form(1.5, "unpacked"),
    },
    "ordered": 4, "pass_seconds": 0.5, "compile_seconds": 2.0,
}  # fmt: skip


def test_formats_beside_the_choice() -> None:
    assert precision.best_format(CELL) == ("NC/4HW4", pytest.approx(0.9))
    assert precision.bound_of(CELL) == pytest.approx(0.25)
    (shown,) = megengine._show_formats({"net-b1-int8": CELL})
    assert shown.rows[0][-3:] == ["NC/4HW4", "0.90", "25.0"] and len(shown.rows[0]) == len(shown.columns)
    assert "same as by a format: NHWC 1." in shown.remarks[1] and "NCHW 1.25, NHWC 1.00" in shown.remarks[2]
    assert "25.0 % less in the median" in shown.remarks[3] and "saves 10.0 % in the median" in shown.remarks[3]


def test_conversions_and_time_of_the_choice() -> None:
    (shown,) = megengine._show_moves({"net-b1-int8": CELL})
    assert shown.rows == [["net-b1-int8", "4", "5", "5", "0", "0", "2", "2", "3", "2", "1.25"]]
    assert "1 add copies" in shown.remarks[0]
    (shown,) = megengine._show_choice({"net-b1-int8": CELL})
    assert shown.rows == [["net-b1-int8", "500", "2000", "25.0"]]


def test_copies_and_packed_operands_are_counted() -> None:
    a = np.ones((384, 384), np.float32)

    def moves(f, *arrays):
        run = es.jit(f)
        run(*arrays)
        return plans.moves(plans.function_program(run))

    with es.threads(1):
        assert moves(lambda x: es.functional.relu(x), a) == {"calls": 1, "copies": 0, "packed": 0}
        turned = moves(lambda x: (x.transpose(1, 0).reshape((-1,)), es.functional.relu(x)), a)
        assert turned["copies"] == 1
        assert moves(lambda x, y: x @ y.transpose(1, 0), a, a)["packed"] > 0
        with plans.without_packing():
            assert moves(lambda x, y: x @ y.transpose(1, 0), a, a)["packed"] == 0


def test_formats_of_a_network() -> None:
    cell = precision.formats_of("lenet5", 2, "fp32", 0.01)
    forms = cell["forms"]
    assert set(precision.FORMATS) < set(forms) and forms["chosen"]["as"] == "chosen"
    assert forms["without"]["as"] == forms["NCHW"]["as"] and forms["NHWC"]["as"] != forms["NCHW"]["as"]
    assert all(x["seconds"] == forms[x["as"]]["seconds"] > 0 for x in forms.values())
    assert 0 < cell["pass_seconds"] < cell["compile_seconds"]


def test_a_loaded_graph_gives_the_same_results() -> None:
    cell = megengine.dumped("lenet5", 2, "int8", 1)
    assert cell["off"] == 0 and cell["bytes"] > 1000 and min(cell["seconds"].values()) > 0
