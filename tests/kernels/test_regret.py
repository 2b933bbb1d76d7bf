"""Choices of the cost model against recorded times of contractions of random shapes.

The times are of one machine, which the file describes, so that the tests need no clock:
`python -m benchmarks.cost_model --seed 4711 --count 40 --candidates 16 --each 0.5 --json tests/kernels/measured.json`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks import cost_model, random_cases
from einsmith.cost.facts import Target

MEASURED = json.loads(Path(__file__).with_name("measured.json").read_text())
TARGET = cost_model.target_of(MEASURED)


@cache
def kernels() -> dict[str, tuple]:
    """The recorded kernels, with their contractions."""
    out = {}
    for key in MEASURED["cells"]:
        case = random_cases.named(key.rpartition("-")[0].rpartition("-")[0])
        assert case is not None
        out[key] = list(cost_model.contractions(case))[int(key.split("-")[-2])]
    return out


def regrets(target: Target) -> np.ndarray:
    """How much longer the candidate of the least price takes than the fastest, for each kernel, as a fraction."""
    judged = [cost_model.judge(*kernels()[key], target, times) for key, times in MEASURED["cells"].items()]
    return np.array([j.regret for j in judged if j is not None])


def within_bounds(found: np.ndarray) -> bool:
    """Whether the median is at most 2.3 %, and the geometric mean 6.8 %: 2.2 and 6.77 % were seen."""
    return bool(np.median(found) <= 0.023 and np.expm1(np.log1p(found).mean()) <= 0.068)


def test_choices_for_random_shapes_lose_little():
    found = regrets(TARGET)
    assert len(found) == len(MEASURED["cells"]) >= 30, "its candidates are none any more: record anew"
    assert within_bounds(found)


@pytest.mark.slow
@pytest.mark.parametrize("price", ["broadcast", "loop", "mask"])
def test_a_price_that_is_left_out_is_noticed(price):
    assert not within_bounds(regrets(replace(TARGET, overheads=replace(TARGET.overheads, **{price: 0.0}))))
