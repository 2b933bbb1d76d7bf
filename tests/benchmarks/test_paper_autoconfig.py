"""AutoConfig's experiments: the paper's counts, prices of its two algorithms, what tables say of cells."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.convolutions import Conv
from benchmarks.kernel_cases import of_one_image
from benchmarks.paper import autoconfig, configured
from einsmith.codegen.loopnest.nest import Builder
from einsmith.cost.facts import of_instruction_set
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION

SMALL = Conv(3, 8, 3, 1, 1, 10)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Conv:
    """A convolution that takes no time, and that is found by its name."""
    case = of_one_image(SMALL)
    monkeypatch.setattr(configured, "find", lambda name: {case.name: case}[name])
    return SMALL


def test_the_paper_counts_instructions() -> None:
    scalar, broadcast = autoconfig.product_counts("product-64x1024x256-nn", 16)
    assert scalar[1:] == (64 * 1024 * 256, 2 * 64 * 1024 + 2 * 64 * 1024 * 256, 0)
    assert broadcast[1:] == (64 * 256 * 64, 3 * 64 * 256 * 64, 64 * 256)
    im2col, broadcast = autoconfig.convolution_counts(SMALL, 8)
    assert im2col[1:] == (8 * 27 * 13, 2 * 27 * 100 + 3 * 8 * 27 * 13, 8 * 27)
    assert broadcast[1:] == (8 * 27 * 10 * 2, 3 * 8 * 27 * 10 * 2, 8 * 27 * 10)


@pytest.mark.parametrize("name, length", [("neon", 16), ("avx2", 16), ("avx512", 32)])
def test_both_algorithms_have_vectors_of_a_length(name: str, length: int, small: Conv) -> None:
    target, kernel = of_instruction_set(name), configured.kernel_of(of_one_image(small).name)
    tiles = configured.tiles(kernel, target, length)
    assert set(tiles) == {"broadcast", "im2col"}
    for algorithm, (config, cost) in tiles.items():
        c = config.pieces[0]
        assert c.nv * target.lanes() == length and cost.seconds > 0
        assert ((c.b if c.swap else c.a) == "inline") == (algorithm == "broadcast")
        assert not CONTRACTION.legal(kernel, config, target)
    assert not configured.tiles(kernel, target, 2)  # less than a vector


def test_emulated_code_is_checked(small: Conv, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = configured.on_neon(small)
    every = [cell["choice"], *cell["lengths"]]
    if cell["choice"]["right"] is None:
        pytest.skip("no compiler or no emulator for AArch64")
    assert all(r["right"] is True for r in every) and {r["length"] for r in every} >= {0, 16, 64}
    fma = Builder.fma
    monkeypatch.setattr(Builder, "fma", lambda b, x, y, z: fma(b, x, y, y))
    assert configured.on_neon(small)["choice"]["right"] is False


def _cell(predicted: tuple[float, float], measured: tuple[float, float]) -> dict[str, Any]:
    names = ("broadcast", "im2col")
    lengths = [
        {"length": n, "algorithm": a, "predicted": p, "measured": m * n / 16}
        for n in (16, 32)
        for a, p, m in zip(names, predicted, measured, strict=True)
    ]
    ways = [{"algorithm": "a", "predicted": 1.0, "measured": 1.2}, {"algorithm": "b", "predicted": 2.0, "measured": 1}]
    return {"algorithms": ways, "lengths": lengths}


def test_choices_are_judged() -> None:
    cells = {"avx2 one": _cell((2.0, 1.0), (3.0, 1.0)), "avx2 two": _cell((1.0, 2.0), (2.0, 1.0))}
    shown = autoconfig._show_chosen(cells)
    assert [row[3:] for row in shown[0].rows] == [["20", "2.00", "3.00", "yes"], ["20", "0.50", "2.00", "no"]]
    assert any("for 1 of 2" in r for r in shown[0].remarks) and "vectors of 16" in (shown[0].title or "")
    assert [row[1] for row in shown[1].rows] == ["1.00", "2.00", "", "", ""]


def test_tuning_is_told_for_a_unit_of_speed_up() -> None:
    peers = {
        "einsmith": {"status": "ok", "median": 0.01, "first_spent": 0.3},
        "tvm-tuned": {"status": "ok", "median": 0.02, "tuning_seconds": 100.0, "trials": 64},
    }
    cells = {
        "case-t2": {"peers": peers, "threads": 2},
        "scalar case": {"scalar": 1.0, "chosen": 0.02, "choosing": 0.01, "compiling": 0.19},
    }
    (costs,) = autoconfig._show_costs(cells)
    assert costs.rows[0][-2:] == ["2", "2e+03"] and "1,000 times" in costs.remarks[0]
    (timed,) = autoconfig._show_timed(cells)
    assert timed.rows[0][-5:] == ["100.0", "", "50.0", "100.0", "64"]
