"""Hardware facts: what is read from the machine is sane, and costs follow the level that holds the data."""

from __future__ import annotations

import math
import os
import pickle

import pytest

from einsmith.cost.facts import Target, host, with_core
from einsmith.cost.microarchitectures import CORES, core
from einsmith.cost.overheads import Overheads


def test_host_is_sane_and_can_be_a_key():
    target = host()
    assert target is host() and hash(target) == hash(pickle.loads(pickle.dumps(target)))
    assert target.vector_bytes in (16, 32, 64) and target.vector_registers >= 16
    assert 8 << 10 <= target.l1 <= target.l2 <= 1 << 30 and target.l3 >= 1 << 18
    assert 1 <= target.cores <= (os.cpu_count() or 1)


def test_a_few_cores_have_no_l3_of_a_whole_socket(monkeypatch):
    monkeypatch.setattr("einsmith.cost.facts.processors.caches", lambda: {1: 48 << 10, 2: 2 << 20, 3: 480 << 20})
    for cores, most in ((1, 32), (2, 64), (64, 480)):
        monkeypatch.setattr("einsmith.cost.facts.processors.physical_cores", lambda cores=cores: cores)
        assert host.__wrapped__().l3 == most << 20


def test_a_zen_4_is_as_probes_find_it():
    """On an EPYC of 3.5 GHz: one multiply-add of 64 bytes a cycle, 90 GB/s from the third level."""
    found = with_core(Target(vector_bytes=64, vector_registers=32, cores=2), CORES["znver4"])
    assert found.multiplies == 1.0 and found.fma_per_second == pytest.approx(5.6e10)
    assert found.bytes_per_second[2] == pytest.approx(9e10, rel=0.05)
    assert found.l3_bandwidth == 2 * found.bytes_per_second[2]
    assert found.load_seconds == pytest.approx(found.cycle_seconds) and found.store_seconds == 2 * found.load_seconds
    narrow = with_core(Target(vector_bytes=32), CORES["znver4"])  # the same multiply-adds, of half the size
    assert narrow.multiplies == 2.0 and narrow.fma_per_second == found.fma_per_second


@pytest.mark.parametrize("name", [*CORES, "unknown"])
@pytest.mark.parametrize("vector, registers", [(16, 16), (16, 32), (32, 16), (64, 32)])
def test_facts_derived_from_a_microarchitecture(name, vector, registers):
    c = core(name, vector, registers)
    found = with_core(Target(vector_bytes=vector, vector_registers=registers, cores=4), c)
    assert found.cycle_seconds == pytest.approx(1 / c.clock) and 1.5e9 <= c.clock <= 5e9
    rates = [*found.bytes_per_second, found.core_bandwidth]
    assert rates == sorted(rates, reverse=True)  # no level gives more than the one before it
    assert found.core_bandwidth <= found.memory_bandwidth
    assert all(math.log2(x) % 1 == 0 for x in (found.multiplies, c.fma_bytes))


def test_overheads_show_what_differs_from_the_table():
    assert repr(Overheads()) == "Overheads()" and repr(Overheads(tile=7.0)) == "Overheads(tile=7.0)"


def test_two_multiply_adds_of_64_bytes_are_some_servers_alone():
    wide = {name for name, c in CORES.items() if c.fma_bytes == 128}
    assert {"skylake-avx512", "icelake-server", "sapphirerapids", "znver5"} <= wide
    assert not wide & {"znver4", "tigerlake", "haswell", "neoverse-v2", "apple-m1"}


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
