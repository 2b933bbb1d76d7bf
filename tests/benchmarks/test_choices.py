"""The loss of choices: what is measured, and the figures."""

from __future__ import annotations

import pytest

from benchmarks import choices, kernel_cases
from benchmarks.convolutions import Conv
from einsmith.kernels.autoconfig import PATTERNS

TINY = Conv(3, 4, 3, 1, 1, 6)


def cell(*candidates: tuple[str, float, float]) -> dict:
    rows = [
        {"pattern": p, "config": "c", "predicted": a, "measured": b, "chosen": n == 0}
        for n, (p, a, b) in enumerate(candidates)
    ]
    return {"threads": 1, "choose_seconds": 1e-3, "considered": 9, "candidates": rows, "seconds": 0.1}


def test_a_convolution_is_one_kernel_that_several_patterns_take() -> None:
    (kernel,) = choices.kernels_of(next(kernel_cases.convolution(TINY, 2)))
    assert kernel.shape == (2, 4, 6, 6)
    assert len({p.name for p in PATTERNS if p.match(kernel)}) >= 2


def test_the_spread_has_the_best_and_the_worst_of_every_pattern() -> None:
    alternatives = [("a" if n % 3 else "b", n, None) for n in range(30)]
    picked = choices.spread(alternatives, 4)
    assert picked[0] == 0 and len(picked) == len(set(picked)) == 8
    of = {name: [n for n in picked if alternatives[n][0] == name] for name in "ab"}
    assert {1, 2, 29} <= set(of["a"]) and {0, 3, 27} <= set(of["b"])
    assert [alternatives[n][0] for n in picked[:4]] == ["b", "a", "b", "a"], "in turn: a cap leaves some of each"
    assert choices.spread(alternatives[:1], 4) == [0]


def test_regret_and_rank_correlation() -> None:
    case = next(kernel_cases.convolution(TINY, 2))
    found = choices.regret(case, 1, 2, 600.0)
    (one,) = found["cells"]
    rows = choices.measured(one)
    assert [r["chosen"] for r in rows].count(True) == 1 and rows[0]["chosen"] and found["regret"] >= 0
    assert all(r["measured"] > 0 for r in rows) and len({r["pattern"] for r in rows}) >= 2
    assert one["choose_seconds"] > 0 and one["considered"] >= len(rows)
    good = cell(("a", 1, 1.0), ("a", 2, 2.0), ("b", 3, 3.0))
    bad = cell(("a", 1, 3.0), ("a", 2, 2.0), ("b", 3, 1.5))
    assert choices.rank_correlation(good) == pytest.approx(1) and choices.rank_correlation(bad) == pytest.approx(-1)
    assert choices.rank_correlation(cell(("a", 1, 3.0), ("a", 2, 2.0))) is None
    assert list(choices.ranks([3.0, 1.0, 3.0, 2.0])) == [3.5, 1, 3.5, 2]


def test_verdicts() -> None:
    def judged(*regrets: float) -> list[tuple[str, bool | None]]:
        one = cell(("a", 1, 3.0), ("a", 2, 2.0), ("b", 3, 1.5))
        cells = {str(n): {"choice": {"regret": r, "cells": [one]}} for n, r in enumerate(regrets)}
        return [(what, holds) for what, _, _, holds in choices.verdicts(cells | {"a network's step": {"choice": {}}})]

    assert [holds for _, holds in judged(0.0, 0.05)] == [True, True, True, None]
    assert judged(0.06, 0.3)[:2] == [("regret, median", False), ("regret, 95 of 100 cases", False)]
    assert [what for what, _ in judged(0.06, 0.3)[4:]] == ["1", "0"], "the cases that lose most come first"
    assert not choices.verdicts({"a": {}})
