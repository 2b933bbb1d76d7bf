"""The stored fit of the cost model: when it is used, and what discards it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from einsmith.codegen.cache import native
from einsmith.cost.facts import Target
from einsmith.cost.overheads import Overheads
from einsmith.tuning.calibration import calibrate, fitted, store
from einsmith.tuning.calibration.fitted import OverheadFit
from tests import untrusted

FIT = OverheadFit(Overheads(tile=60.0, mask=0.55), 24, 400, (0.2, 0.1), (0.08, 0.04), 1000.0)


@pytest.fixture(autouse=True)
def static(tmp_path, monkeypatch) -> Target:
    """A store of the test's own, with nothing measured."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EINSMITH_CALIBRATE", "0")
    calibrate.forget()
    yield native.host_target()
    calibrate.forget()


def test_a_fit_is_found_again(static: Target) -> None:
    assert fitted.load(static) is None and not fitted.forget(static)
    fitted.save(static, FIT)
    assert fitted.load(static) == fitted.find(static) == FIT
    fitted.save(static, FIT._replace(kernels=25))
    assert fitted.load(static).kernels == 25
    assert fitted.forget(static) and fitted.load(static) is None


def test_factors_are_told_by_their_size() -> None:
    assert list(FIT.factors.items()) == [("tile", 3.0), ("mask", pytest.approx(0.5))]
    assert FIT.describe_factors() == "tile x 3.00, mask x 0.50"
    many = {name: 2 * getattr(Overheads(), name) for name in fitted.FITTED[:8]}
    assert FIT._replace(overheads=Overheads(**many)).describe_factors().endswith(", and 2 more")


def test_later_programs_use_it(static: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    before = calibrate.target()
    fitted.save(static, FIT)
    assert calibrate.target() == before, "choices stay the same for the life of a process"
    calibrate.forget()
    assert calibrate.target() == replace(before, overheads=FIT.overheads)
    assert calibrate.target(1).overheads == FIT.overheads
    monkeypatch.setenv("EINSMITH_TUNED", "0")
    assert calibrate.target() == before


def test_it_is_part_of_every_key_but_not_of_the_machine(static: Target) -> None:
    changed = replace(static, overheads=FIT.overheads)
    assert changed != static and hash(changed) != hash(static)
    assert native.digest(b"kernel", b"", changed) != native.digest(b"kernel", b"", static)
    assert store.machine_of(changed) == store.machine_of(static)


def test_other_formulas_or_rates_discard_it(static: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted.save(static, FIT)
    assert fitted.load(replace(static, load_seconds=1.0)) is None
    assert fitted.load(replace(static, l2=static.l2 + 1)) is None
    assert fitted.load(replace(static, measured=(("halving", 1.0),))) == FIT
    monkeypatch.setattr(fitted, "version", lambda: "others")
    assert fitted.load(static) is None


def test_a_damaged_fit_is_discarded(static: Target) -> None:
    fitted.save(static, FIT)
    path = store.path_of(static, store.FIT)
    whole = path.read_bytes()
    for content in (b"", whole[:-20], b"\xff" * 100, whole.replace(b"60.0", b"61.0")):
        path.write_bytes(content)
        assert fitted.load(static) is None
    sound = json.loads(whole)
    for name, value in (
        ("overheads", {"tile": float("nan")}),
        ("overheads", {"tile": 1e9}),
        ("overheads", {"tile": "fast"}),
        ("overheads", {"latency": 4.5}),
        ("overheads", {"unknown": 1.0}),
        ("overheads", [1.0]),
        ("error", [1.0]),
        ("kernels", None),
    ):
        record = sound["record"] | {name: value}
        path.write_text(json.dumps({"record": record, "checksum": store._checksum(record)}))
        assert fitted.load(static) is None, (name, value)
    path.write_bytes(whole)
    assert fitted.load(static) == FIT


@pytest.mark.parametrize("harm", [*untrusted.HARMS])
def test_an_untrusted_folder_is_not_read(static: Target, harm: str) -> None:
    fitted.save(static, FIT)
    with untrusted.made(store.path_of(static).parent, harm):
        assert fitted.load(static) is None and not fitted.forget(static)
    assert fitted.load(static) == FIT
