"""The benchmark of random shapes: what is drawn, that every library can be handed it, and its verdicts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import choices, kernel_cases, random_kernels, report
from benchmarks.convolutions import Conv
from benchmarks.random_cases import ELEMENTS, MACS, draw, named
from benchmarks.run import _summarize
from benchmarks.verify import error
from tests.benchmarks.test_kernels import results


def test_draws_are_those_of_their_seed_and_number() -> None:
    cases = [draw(7, n) for n in range(200)]
    assert len({c.name for c in cases}) == 200
    for c in cases:
        again = named(c.name)
        assert again is not None and again.shapes == c.shapes and again.options == c.options and again.wrt == c.wrt
        assert MACS[0] <= c.flops / 2 <= MACS[1]
        assert c.shapes is not None and sum(math.prod(s) for s in c.shapes.values()) <= ELEMENTS
    assert draw(8, 0).shapes != cases[0].shapes and named("conv-3x3s1-64-64-56-dX") is None
    convolutions = [c for c in cases if c.network == "conv"]
    assert 120 < len(convolutions) < 180 and {c.wrt for c in cases} == {(), ("X",), ("W",)}
    found = {(o["stride"], o["dilation"] > 1, o["groups"] > 1) for o in (c.options for c in convolutions)}
    assert {(1, False, False), (2, False, False), (1, True, False), (1, False, True)} <= found
    assert {c.shapes["W"][2] for c in convolutions if c.shapes} == set(range(1, 12))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("conv", [Conv(3, 4, 2, 1, 1, 7, 0, 3), Conv(4, 4, 3, 2, 4, 9, None, 2),
                                  Conv(4, 6, 3, 1, 2, 8, 0), Conv(2, 3, 1, 2, 1, 5)], ids=str)  # fmt: skip
def test_dilation_and_padding_mean_the_same(conv: Conv, torch) -> None:
    for case in kernel_cases.convolution(conv, 2):
        (reference,) = results("torch", "reference", case).values()
        for library in ("einsmith", "torch"):
            for variant, got in results(library, library, case).items():
                assert not error(got, reference), variant


@pytest.mark.slow
@pytest.mark.parametrize("library", ["jax", "tensorflow"])
def test_other_libraries_mean_the_same(library: str, torch) -> None:
    pytest.importorskip(library)
    convs = [Conv(3, 4, 2, 1, 1, 7, 0, 3), Conv(4, 4, 3, 2, 4, 9, None, 2), Conv(4, 4, 3, 1, 4, 9)]
    convs.append(Conv(2, 3, 1, 2, 1, 5))
    for case in (c for conv in convs for c in kernel_cases.convolution(conv, 2)):
        (reference,) = results("torch", "reference", case).values()
        for variant, got in results(library, library, case).items():
            assert not error(got, reference), f"{case.name}: {variant}"


def _cell(ratio: float, regret: float, status: str = "ok") -> dict:
    choice = {"regret": regret, "cells": []}
    return {"peers": {"einsmith": {"status": status}}, "speedup": ratio, "choice": choice}


def test_verdicts() -> None:
    def held(*cells: dict) -> list[bool | None]:
        return [holds for *_, holds in random_kernels.verdicts({str(n): c for n, c in enumerate(cells)})]

    assert held(_cell(1.2, 0.0), _cell(1.2, 0.05))[:6] == [True] * 6
    assert held(_cell(1.1, 0.0))[:4] == [True, False, True, True]
    assert held(*[_cell(2.0, 0.0)] * 9, _cell(0.6, 0.0))[1:4] == [True, True, False]
    assert held(*[_cell(2.0, 0.0)] * 7, *[_cell(0.8, 0.0)] * 3)[1:4] == [True, False, True]
    assert held(_cell(2.0, 0.06), _cell(2.0, 0.3))[4:6] == [False, False]
    assert held(_cell(2.0, 0.0), _cell(2.0, 0.0, "wrong"))[0] is False


def test_an_interrupted_run_resumes(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def fake(case, peers, threads, pace, cap, say, crew, keeper):
        assert crew is not None
        calls.append(case.name)
        cell = {"peers": {p: {"status": "ok", "rounds": [1e-3 if p == "einsmith" else 2e-3]} for p in peers}}
        _summarize(cell | {"flops": case.flops, "nbytes": 0, "threads": threads, "verified": True}, None)
        cell |= {"threads": threads, "verified": True, "best_peer": "torch", "speedup": 2.0}
        return cell

    monkeypatch.setattr(report, "run_problem", fake)
    row = {"pattern": "a", "config": "c", "predicted": 1.0, "measured": 1.0, "chosen": True}
    monkeypatch.setattr(
        choices, "regret", lambda *_: {"regret": 0.01, "cells": [{"candidates": [row], "choose_seconds": 1e-3}]}
    )
    path = tmp_path / "out.json"
    arguments = ["--seed", "5", "--peers", "torch", "--json", str(path)]
    assert random_kernels.main([*arguments, "--count", "2"]) == 0 and calls == [draw(5, n).name for n in range(2)]
    assert random_kernels.main([*arguments, "--count", "3"]) == 0 and calls[2:] == [draw(5, 2).name]
    assert len(json.loads(path.read_text())["cells"]) == 3 and "holds" in capsys.readouterr().out
    for wrong in (["--only", "nothing"], ["--count", "0"], ["--candidates", "-1"]):
        with pytest.raises(SystemExit):
            random_kernels.main([*arguments, *wrong])
