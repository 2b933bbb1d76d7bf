"""The experiment behind the prices of contractions: what is measured, and that old measurements judge new prices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import cost_model, kernel_cases, random_cases
from benchmarks.convolutions import Conv
from einsmith.cost.overheads import Overheads
from einsmith.tuning.calibration import calibrate


def small():
    ((kernel, p),) = cost_model.contractions(next(kernel_cases.convolution(Conv(6, 9, 3, 1, 1, 11), 2)))
    return kernel, p


def test_the_cheapest_and_every_way_are_measured() -> None:
    kernel, p = small()
    found = cost_model.priced(kernel, p, calibrate.target(1))
    prices = [price for _, price in found.values()]
    assert prices == sorted(prices)
    names = cost_model.chosen(found, 12)
    assert names[:3] == list(found)[:3] and len(names) == len(set(names)) <= 12
    assert len({cost_model.way(found[n][0]) for n in names}) > 3


def test_measurements_are_judged_by_todays_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, p = small()
    found = cost_model.priced(kernel, p, calibrate.target(1))
    first, second, third = list(found)[:3]
    exact = {n: 3 * found[n][1] for n in (first, second, third)}
    judged = cost_model.judge(kernel, p, calibrate.target(1), exact | {"a form of the past": 1e-9})
    assert judged is not None and judged.regret == 0 and all(abs(off) < 1e-9 for _, off in judged.off)
    judged = cost_model.judge(kernel, p, calibrate.target(1), exact | {first: 2 * exact[second]})
    assert judged is not None and judged.regret == pytest.approx(1)
    assert cost_model.judge(kernel, p, calibrate.target(1), {first: 1.0, "a form of the past": 1.0}) is None
    assert cost_model.verdicts([judged])[0][1] == "100.0 %" and cost_model.ways([judged] * 6).row_count


def test_kernels_are_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    case = next(kernel_cases.convolution(Conv(6, 9, 3, 1, 1, 11), 2))
    monkeypatch.setattr(random_cases, "draw", lambda seed, number: case)
    path = tmp_path / "found.json"
    arguments = ["--seed", "1", "--count", "1", "--threads", "1", "--candidates", "4", "--each", "0.01",
                 "--json", str(path)]  # fmt: skip
    assert cost_model.main(arguments) == 0
    results = json.loads(path.read_text())
    (times,) = results["cells"].values()
    assert cost_model.target_of(results) == replace(calibrate.target(1), overheads=Overheads())
    assert len(times) >= 2 and all(t > 0 for t in times.values())
    monkeypatch.setattr(cost_model, "measure", lambda *_: pytest.fail("measured again"))
    assert cost_model.main(arguments) == 0 and "regret, median" in capsys.readouterr().out
    for wrong in (["--candidates", "1"], ["--each", "0"], ["--seed", "-1"]):
        with pytest.raises(SystemExit):
            cost_model.main([*arguments, *wrong])
