"""The benchmark of kernel methods: every library computes what the float64 reference does, and a wrong result shows."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import pairs, worker
from benchmarks.peers import einsmith_pairs
from benchmarks.verify import error

CASES = [pairs.pairs(k, 90, 3, o) for k in pairs.KINDS for o in pairs.orders(k, 90)]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("problem", CASES, ids=lambda p: p.name)
def test_libraries_agree_with_float64(problem: pairs.Pairs, torch) -> None:
    from benchmarks.peers import torch_pairs

    arrays = problem.arrays()
    reference = worker.build(problem, arrays, 1, "reference")
    reference.step()
    expected = reference.results()
    sessions = [torch_pairs.Session(problem, arrays, "torch", v) for v in ("blocks", "dense", "blocks of differences")]
    sessions[0].rows = 32
    for session in (*sessions, einsmith_pairs.Session(problem, arrays, 1)):
        session.step()
        got = session.results()
        assert got.keys() == expected.keys() and not error(got, expected)
        wrong = {n: np.roll(a, 1, 0) for n, a in got.items()}
        assert "differs" in error(wrong, expected)


def test_names_and_draws_give_the_same_problem() -> None:
    for problem in (*CASES, *(pairs.draw(5, n) for n in range(20))):
        again = pairs.named(problem.name)
        assert again is not None and (again.name, again.flops, again.results) == (
            problem.name, problem.flops, problem.results,
        )  # fmt: skip
    assert pairs.named("gaussian_kernel") is None
