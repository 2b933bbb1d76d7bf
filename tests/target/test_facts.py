"""Hardware facts: what is read from the machine is sane, and costs follow the level that holds the data."""

from __future__ import annotations

import os
import pickle

import pytest

from einsmith.target import facts
from einsmith.target.facts import Target, host, physical_cores


def test_host_is_sane_and_can_be_a_key():
    target = host()
    assert target is host() and hash(target) == hash(pickle.loads(pickle.dumps(target)))
    assert target.vector_bytes in (16, 32, 64) and target.vector_registers >= 16
    assert 8 << 10 <= target.l1 <= target.l2 <= 1 << 30 and target.l3 >= 1 << 18
    assert 1 <= target.cores <= (os.cpu_count() or 1)


def test_seconds_grow_with_the_level():
    target = Target(cores=2)
    sizes = (target.l1, target.l2, target.l3, 8 * target.l3)
    rates = [n / target.seconds_for_bytes(n, n, 1) for n in sizes]
    assert rates == sorted(rates, reverse=True) and len(set(rates)) == 4
    assert target.seconds_for_bytes(1e9, 1e9, 2) < target.seconds_for_bytes(1e9, 1e9, 1)
    assert target.seconds_for_bytes(1e9, 1e9, 8) == target.seconds_for_bytes(1e9, 1e9, 2)


def test_special_functions():
    target = Target()
    assert target.special("exp") > 0 and target.special("add") == 0
    assert target.lanes() == 8 and target.lanes(8) == 4


@pytest.mark.parametrize("text, cores", [("max 100000", 2), ("100000 100000", 1), ("150000 100000", 2), ("", 2)])
def test_quota_limits_the_cores(monkeypatch, text, cores):
    answers = {"/sys/fs/cgroup/cpu.max": text}
    monkeypatch.setattr(facts, "_allowed", lambda: [0, 1])
    monkeypatch.setattr(facts, "_read", lambda path: answers.get(path, ""))
    assert physical_cores() == cores


def test_hardware_threads_of_one_core_count_once(monkeypatch):
    siblings = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    answers = {f"/sys/devices/system/cpu/cpu{n}/topology/core_cpus_list": s for n, s in siblings.items()}
    monkeypatch.setattr(facts, "_allowed", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(facts, "_read", lambda path: answers.get(path, ""))
    assert physical_cores() == 2
