"""The forms of linear recurrences that the benchmark times give the same values and gradients."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import recurrences
from benchmarks.recurrences import RECURRENCES, Size, apart, of_torch, operator, with_gradients


@pytest.mark.parametrize("name", [n for n in RECURRENCES if "," not in n])
def test_forms_agree(name: str) -> None:
    pytest.importorskip("torch")
    recurrence = RECURRENCES[name]
    inputs = recurrence.arrays(np.random.default_rng(0), Size(128, 2, 8, 8))
    arrays, names = [*inputs.values()], [*inputs]
    seed = np.random.default_rng(1).standard_normal(operator(recurrence, names, 1)(*arrays).shape)
    steps = with_gradients(operator(recurrence, names, 1), seed, arrays)()
    assert apart(of_torch(name, seed, arrays)(), steps) < recurrences.TOLERANCE
    assert apart(with_gradients(operator(recurrence, names, 16), seed, arrays)(), steps) < recurrences.TOLERANCE


def test_sizes_are_drawn_alike() -> None:
    assert recurrences.drawn(["RWKV-7", "mLSTM"], 5, 3) == recurrences.drawn(["RWKV-7", "mLSTM"], 5, 3)
    assert all(s.keys == s.values for name, s in recurrences.drawn(["RWKV-7"], 20, 0))
