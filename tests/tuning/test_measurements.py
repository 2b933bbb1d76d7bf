"""Measurements of searches: what the store keeps of them, and that damage to it is harmless."""

from __future__ import annotations

import inspect
import math
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from einsmith.base.dtypes import DType
from einsmith.cost.facts import Target
from einsmith.ir import pickled
from einsmith.ir.nodes import Compute
from einsmith.kernels import autoconfig
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.tuning.calibration import store
from einsmith.tuning.kernels import database, measurements, records
from einsmith.tuning.kernels.genetic import Candidate
from einsmith.tuning.kernels.session import Part, tune
from tests.kernels.samples import product
from tests.tuning.planted import Planted

HERE = Target(cores=2)
MACHINES = {store.machine_of(HERE)}
KERNEL = product(13, 37, 19)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of the test's own, which does not exist yet."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    database._reported.clear()
    monkeypatch.setattr(database, "_unusable", {})
    yield tmp_path / "tuning"


def times(kernel=KERNEL, count: int = 4, first: float = 1e-6) -> dict[Candidate, float]:
    alternatives = autoconfig.choose(kernel, HERE).alternatives[:count]
    return {Candidate(name, config): first * (n + 1) for n, (name, config, _) in enumerate(alternatives)}


def test_what_was_measured_is_read_again(folder: Path) -> None:
    assert measurements.list_measurements(MACHINES) == [] and not folder.exists()
    seconds = times()
    measurements.record(KERNEL, HERE, seconds)
    (row,) = measurements.list_measurements(MACHINES)
    assert row.kernel.digest == KERNEL.digest and row.seconds == seconds and {row.machine} == MACHINES
    assert measurements.list_measurements({"another"}) == []
    assert records.list_records() == [] and oct(folder.stat().st_mode & 0o777) == "0o700"


def test_the_search_with_more_candidates_stays() -> None:
    for count, first in ((4, 1e-6), (3, 2e-6), (4, 3e-6)):
        measurements.record(KERNEL, HERE, times(count=count, first=first))
    (row,) = measurements.list_measurements(MACHINES)
    assert row.seconds == times(count=4, first=3e-6)


def test_what_cannot_run_or_is_alone_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoconfig, "PATTERNS", [*autoconfig.PATTERNS])
    autoconfig.register(Planted())
    (first, second), planted = times(count=2).items(), Candidate("planted", "nan")
    seconds = dict([first, second]) | {planted: 1e-6, times().popitem()[0]: math.inf}
    measurements.record(KERNEL, HERE, seconds)
    (row,) = measurements.list_measurements(MACHINES)
    assert row.seconds == dict([first, second])
    measurements.record(product(5, 6, 7), HERE, dict([first]) | {planted: 1e-6})
    assert len(measurements.list_measurements(MACHINES)) == 1


def test_a_store_without_the_table_gets_one() -> None:
    record = records.create(KERNEL, "contraction mr=3", 1e-3, 0.01, 2e-3, 1)
    records.record_choice(KERNEL, HERE, record)
    with sqlite3.connect(database.path_of()) as link:
        link.execute("DROP TABLE IF EXISTS measurements")
    assert measurements.list_measurements(MACHINES) == []
    measurements.record(KERNEL, HERE, times())
    assert len(measurements.list_measurements(MACHINES)) == 1 and records.text_of(KERNEL, HERE) == record.text


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "MAX_KERNELS", 3)
    kernels = [product(n, 5, 7) for n in range(3, 8)]
    for kernel in kernels:
        measurements.record(kernel, HERE, times())
    rows = measurements.list_measurements(MACHINES)
    assert [r.kernel.digest for r in rows] == [k.digest for k in reversed(kernels[2:])]


def test_other_sources_and_damaged_rows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    other = product(13, 37, 20)
    for kernel in (KERNEL, other):
        measurements.record(kernel, HERE, times())
    with sqlite3.connect(database.path_of()) as link:
        link.execute("UPDATE measurements SET content=substr(content, 9) WHERE kernel=?", (KERNEL.digest.hex(),))
    assert [r.kernel.digest for r in measurements.list_measurements(MACHINES)] == [other.digest]
    monkeypatch.setattr(measurements, "version", lambda: "others")
    assert measurements.list_measurements(MACHINES) == []


@pytest.mark.parametrize("content", [None, 3, (KERNEL,), (KERNEL, [1.0]), (1, {}), (KERNEL, {"a": 1.0}),
                                     (KERNEL, dict.fromkeys(times(), "fast"))])  # fmt: skip
def test_rows_of_another_shape_are_left_out(content: object) -> None:
    measurements.record(KERNEL, HERE, times())
    data = pickled.dumps(content)
    with sqlite3.connect(database.path_of()) as link:
        link.execute("UPDATE measurements SET content=?, checksum=?", (data, measurements._checksum(data)))
    assert measurements.list_measurements(MACHINES) == []


def test_sources_of_pickled_types_are_part_of_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(store, "sources", lambda *patterns: asked.extend(patterns) or "")
    measurements.version()
    root = Path(store.__file__).parents[2]
    files = {p for pattern in asked for p in root.glob(pattern)}
    assert {Path(inspect.getfile(kind)) for kind in (Candidate, Kernel, Rows, DType, Compute)} <= files


def test_a_damaged_store_is_begun_anew(capfd: pytest.CaptureFixture[str]) -> None:
    measurements.record(KERNEL, HERE, times())
    database.path_of().write_bytes(b"garbage" * 1000)
    assert measurements.list_measurements(MACHINES) == []
    measurements.record(KERNEL, HERE, times())
    assert len(measurements.list_measurements(MACHINES)) == 1 and "is damaged" in capfd.readouterr().err


def test_forgetting_a_kernel_forgets_its_measurements() -> None:
    other = product(13, 37, 20)
    for kernel in (KERNEL, other):
        measurements.record(kernel, HERE, times())
    assert records.count_measurements() == (2, 8)
    assert records.forget(KERNEL.digest.hex()[:8]) == (0, measurements.Count(1, 4))
    assert [r.kernel.digest for r in measurements.list_measurements(MACHINES)] == [other.digest]
    assert records.forget() == (0, (1, 4)) and records.forget() == (0, (0, 0)) == (0, records.count_measurements())
    assert measurements.list_measurements(MACHINES) == []


def test_a_search_tells_all_that_it_has_measured() -> None:
    told: list[dict[Candidate, float]] = []
    target = replace(HERE, cores=1)
    (result,) = tune([Part(KERNEL)], target, 1, 2.0, note=lambda kernel, seconds: told.append(dict(seconds)))
    assert result.choice in told[0] and len(told[0]) > 2
    assert len(told[-1]) >= len(told[0]) and all(s > 0 for s in told[-1].values())
