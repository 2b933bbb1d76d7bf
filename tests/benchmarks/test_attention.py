"""The attention benchmark: every library computes what the float64 form does, and a wrong result shows."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import attention as module
from benchmarks.attention import MASKS, allowed_pairs, attention, draw, named
from benchmarks.peers import einsmith_attention
from benchmarks.verify import error


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mask", MASKS)
def test_libraries_agree_with_float64(mask: str, torch, monkeypatch) -> None:
    from benchmarks.peers import torch_attention

    monkeypatch.setattr(module, "SAMPLE_ELEMENTS", 2 * 150**2)
    problem = attention(mask, 150, 3, 8)
    arrays = problem.arrays()
    exact = {n: a.astype(np.float64) for n, a in arrays.items()}
    sessions = [torch_attention.Session(problem, exact, "reference", "math")]
    sessions += [
        torch_attention.Session(problem, arrays, "torch", v) for v in torch_attention.variants(problem, "torch")
    ]
    for session in sessions:
        session.step()
    expected = sessions[0].results()
    assert expected["dK"].shape == (2, 150, 8)
    ours = einsmith_attention.Session(problem, arrays, 1)
    ours.step()
    for got in (ours.results(), *(s.results() for s in sessions[1:])):
        assert not error(got, expected)
        assert "dK differs" in error({**got, "dK": -got["dK"]}, expected)
    for other in set(MASKS) - {mask}:
        wrong = torch_attention.Session(attention(other, 150, 3, 8), arrays, "torch", "math")
        wrong.step()
        assert "differs" in error(wrong.results(), expected)
    bias = torch_attention.bias(mask, 150, torch.float32)
    assert allowed_pairs(mask, 150) == (150**2 if bias is None else int(torch.isfinite(bias).sum()))


def test_names_and_draws_give_the_same_problem() -> None:
    for n in range(20):
        problem = draw(3, n)
        again = named(problem.name)
        assert again is not None and again.name == problem.name and again.flops == problem.flops
    assert named("local_attention") is None
