"""What the process that tunes answers to the program that trains."""

from __future__ import annotations

from math import inf

import pytest

from einsmith.cost.facts import Target
from einsmith.driver import cpu
from einsmith.kernels import autoconfig
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels import bench, database, records, workshop
from einsmith.tuning.kernels.decisions import format_choice
from einsmith.tuning.kernels.model_error import ModelError
from tests.kernels.samples import conv, product

TARGET = cpu.CPU.target(1)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(database, "_unusable", {})


@pytest.fixture
def shop() -> workshop.Shop:
    server = workshop.Shop()
    server.begin(0.0, (), False)
    return server


def alternative(kernel: Kernel, number: int) -> str:
    name, config, _ = autoconfig.choose(kernel, TARGET).alternatives[number]
    return format_choice(autoconfig.pattern_of(name), config)


def propose(shop: workshop.Shop, kernel: Kernel, target: Target = TARGET, **measured: float) -> tuple:
    seconds = autoconfig.choose(kernel, target).cost.seconds
    return shop.propose(kernel, target, {"": seconds, **measured}, "", ModelError())


def test_nothing_is_proposed_twice(shop) -> None:
    kernel, measured, proposed = product(13, 37, 18), {}, []
    for _ in range(12):
        text, saving, predicted = propose(shop, kernel, **measured)
        assert saving >= 0 and predicted > 0
        proposed.append(text)
        measured[text] = inf
    assert len({*proposed}) == 12 and "" not in proposed


def test_what_won_for_like_kernels_comes_first(shop) -> None:
    kernel, like = product(130, 37, 180), product(131, 37, 180)
    text = alternative(kernel, 5)
    assert propose(workshop_of(), kernel)[0] != text
    records.record_choice(like, TARGET, records.create(like, text, 0.5e-3, 0.0, 1e-3, confirmed=1))
    proposed, saving, _ = propose(shop, kernel)
    assert proposed == text and saving > 0.2
    made = workshop.WorkshopProcess(cpu.CPU.make)
    win = made.find_win(kernel, TARGET)
    assert win is not None and win.text == text and win.ratio == 0.5 and 0 < win.distance < 0.1
    assert made.find_win(conv(2, 3, 9, 17, 5, 3, 3, 1), TARGET) is None


def workshop_of() -> workshop.Shop:
    server = workshop.Shop()
    server.begin(0.0, (), False)
    return server


def test_a_win_refers_to_the_choice_of_the_model() -> None:
    """Of several wins one after the other, the ratios are multiplied."""
    kernel, made = product(13, 37, 18), workshop.WorkshopProcess(cpu.CPU.make)
    for text, seconds, ratio in (("first", 0.8e-3, 0.8), ("second", 0.4e-3, 0.5)):
        made.keep(kernel, TARGET, text, seconds, 0.01, ratio)
        record = records.find(kernel, TARGET)
        assert record is not None and record.text == text and record.confirmed == 1
        assert record.prior == pytest.approx(1e-3) and record.seconds == seconds


def test_patterns_are_registered(monkeypatch) -> None:
    registered: list[object] = []
    monkeypatch.setattr(bench, "register", registered.append)
    workshop_of()
    assert registered == [()]
