"""tests.papers.speed: its operators exist, its results are compared before they are timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
from tests.papers import speed as papers


def test_every_operator_has_a_size_for_each_letter() -> None:
    for name, sizes in papers.SIZES.items():
        op = papers.problem(name)
        letters = {a for text in op.inputs.values() for a in text.partition("|")[0] if a.isalpha()}
        assert letters == set(sizes), name
    assert papers.LOOPS <= set(papers.SIZES)


@pytest.mark.parametrize("name", papers.CHUNKS)
def test_forms_in_chunks_are_what_the_programs_compute(name: str, torch: Any) -> None:
    op = papers.problem(name)
    op = replace(op, sizes={"t": (128,) * 3, "d": (3,) * 3, "c": (4,) * 3})
    arrays = {n: torch.from_numpy(a * papers.SCALES.get(name, 1.0)) for n, a in op.arrays(0, default_rng(0)).items()}
    np.testing.assert_allclose(papers.CHUNKS[name](torch, **arrays), op.twin(torch, **arrays), rtol=1e-7, atol=1e-9)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, torch: Any) -> Iterator[str]:
    """An operator at a size that takes no time, without torch.compile; numbers of threads are set back afterwards."""
    name = "max-plus convolution"
    monkeypatch.setitem(papers.SIZES, name, {"b": 2, "h": 5, "w": 4})
    monkeypatch.setattr(papers, "LOOPS", {name})
    monkeypatch.setattr(papers, "TURN_SECONDS", 1e-4)
    threads = torch.get_num_threads()
    yield name
    torch.set_num_threads(threads)
    es.set_threads(None)


def test_a_row_has_times_of_equal_results(tiny, tmp_path, capsys) -> None:
    path = tmp_path / "found.json"
    assert papers.main([tiny, "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["operators"].values()
    assert set(row["ms"]) == {"einsmith", "PyTorch"} and all(ms > 0 for ms in row["ms"].values())
    assert row["difference"] < 1e-5 and "max-plus" in capsys.readouterr().out


def test_results_that_differ_are_refused(tiny, monkeypatch) -> None:
    honest = papers.programs

    def wrong(op):
        runs = honest(op)
        return {**runs, "einsmith": lambda: [1.01 * a for a in runs["einsmith"]()]}

    monkeypatch.setattr(papers, "programs", wrong)
    with pytest.raises(SystemExit, match=r"max-plus convolution: results differ from PyTorch's by .*einsmith"):
        papers.row(tiny)


def test_differences_are_relative_to_the_largest_element() -> None:
    a = np.array([100.0, 0.0])
    assert papers.difference([a + 1], [a]) == pytest.approx(0.01)
    assert np.isnan(papers.difference([a, a * np.nan], [a, a * np.nan]))  # which is refused


def test_unknown_operators_are_refused(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        papers.main(["nothing", "--json", str(tmp_path / "a.json")])
    assert "there are no operators nothing" in capsys.readouterr().err
