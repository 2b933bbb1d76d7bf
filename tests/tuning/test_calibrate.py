"""Calibration: what is measured is plausible, stored once, and never changes a choice between two runs."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import BusyError
from einsmith.base.system import processors
from einsmith.codegen.cache import native
from einsmith.codegen.loopnest.nest import Builder
from einsmith.cost import facts
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Pattern
from einsmith.tuning.calibration import calibrate, load, probes, store
from tests import untrusted
from tests.caches import forget


@pytest.fixture
def static(tmp_path, monkeypatch) -> Target:
    """A store of the test's own, with calibration on and nothing measured yet."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EINSMITH_CALIBRATE", "1")
    calibrate.forget()
    forget("why a machine is not measured")
    yield native.host_target()
    calibrate.forget()


def found_as(static: Target, factor: float = 1.0) -> dict[str, float]:
    """Probes' findings that say `factor` times the static figures."""
    out = {fn: s * factor + 1e-11 for fn, s in static.special_seconds} | {"copy": 1e-11}
    out |= {n: factor * getattr(static, f"{n}_seconds") for n in ("load", "unaligned", "store", "broadcast", "gather")}
    out |= {n: factor / r for n, r in zip(("l1", "l2", "l3"), static.bytes_per_second, strict=True)}
    out |= {"memory": factor / static.core_bandwidth, "fma": factor / static.fma_per_second}
    out |= {"memory all": out["memory"] / 1.5, "l3 all": out["l3"] / 2}
    return out | {"task": 4e-6, "launch": 4e-6 + 1e-6}


def test_findings_become_coefficients():
    static = replace(Target(), cores=2)
    target = calibrate.assemble(static, found_as(static, 0.8))
    assert target.fma_per_second == pytest.approx(static.fma_per_second / 0.8, rel=0.06)
    assert target.core_bandwidth == pytest.approx(static.core_bandwidth / 0.8, rel=0.06)
    assert target.memory_bandwidth == pytest.approx(1.5 * target.core_bandwidth, rel=0.06)
    assert target.l3_bandwidth == pytest.approx(2 * target.bytes_per_second[2], rel=0.06)
    assert target.special("exp") == pytest.approx(0.8 * static.special("exp"), rel=0.06)
    assert target.launch_seconds == pytest.approx(1e-6, rel=0.06)
    assert store.facts_of(target) == store.facts_of(static)


def test_rates_of_words_are_counted_by_the_multiply_adds_beside_them():
    static = replace(Target(), cores=1, dots=(("bf16", 2.0), ("i16", 2.0)), tiles=(("bf16", 9.0),))
    seconds = 1 / static.fma_per_second
    found = found_as(static) | {"dot bf16": 2 * seconds, "tiles bf16": seconds / 5}
    target = calibrate.assemble(static, found)
    assert target.dots_per_cycle("bf16") == pytest.approx(static.multiplies / 2, rel=0.06)
    assert target.dots_per_cycle("i16") == 2.0
    assert target.tile_dots_per_cycle("bf16") == pytest.approx(5 * static.multiplies, rel=0.06)
    assert calibrate.defaults(static)["tiles bf16"] == pytest.approx(static.multiplies / 9 * seconds)


@pytest.mark.parametrize("vectors, multiplies", [(4, 1), (4.9, 1), (3, 1), (8, 2), (7, 2), (16, 4), (99, 4), (1, 0.5)])
def test_vectors_multiplied_in_a_cycle_are_a_power_of_two(vectors, multiplies):
    """vectors: so many are multiplied while a multiply-add, of four cycles, waits for the one before."""
    static = replace(Target(), cores=1)
    found = found_as(static) | {"chain": vectors * static.lanes() / static.fma_per_second}
    target = calibrate.assemble(static, found)
    assert target.multiplies == multiplies
    cycle = multiplies * static.lanes() / static.fma_per_second
    assert target.cycle_seconds == pytest.approx(cycle, rel=0.06)


@pytest.mark.parametrize("factor", [1000.0, 1e-6])
def test_implausible_findings_are_bounded(factor):
    static = replace(Target(), cores=2)
    target = calibrate.assemble(static, found_as(static, factor))
    low, high = 0.9 / calibrate.MAX_SLOWDOWN, 1.1 * calibrate.MAX_SPEEDUP
    assert low < target.fma_per_second / static.fma_per_second < high
    for fn, seconds in target.special_seconds:
        assert 1 / high < seconds / static.special(fn) < 1 / low
    own = [*target.bytes_per_second, target.core_bandwidth]
    assert own == sorted(own, reverse=True)


def test_a_level_is_never_faster_than_the_one_before():
    static = replace(Target(), cores=1)
    found = found_as(static) | {"l2": 1e-12, "memory": 1e-12}
    target = calibrate.assemble(static, found)
    assert target.bytes_per_second[1] <= target.bytes_per_second[0]
    assert target.core_bandwidth <= target.bytes_per_second[2] and target.memory_bandwidth == target.core_bandwidth


@pytest.mark.parametrize(
    "held, share",
    [
        (1.0, 1.0),
        (facts.REUSED_L3_FRACTION, 1.0),
        (facts.REUSED_L3_FRACTION / 2, 0.5),
        (-0.2, 0.25),  # slower than memory within the noise
        (-0.5, 1.0),  # a disturbance
    ],
)
def test_the_time_of_arrays_as_large_as_l3_tells_how_much_of_it_others_take(held, share):
    static = replace(Target(), cores=2)
    found = found_as(static)
    assert found["memory"] < calibrate.MIN_MEMORY_RATIO * found["l3"]
    found["memory"] = 3 * found["l3"]
    assert calibrate.assemble(static, found).l3_share == 1.0, "nothing says how much is held"
    found[probes.WHOLE_L3] = found["memory"] - held * (found["memory"] - found["l3"])
    target = calibrate.assemble(static, found)
    assert target.l3_share == pytest.approx(share, rel=0.06)
    assert target.last_level == pytest.approx(share * static.l3, rel=0.06)
    assert store.facts_of(target) == store.facts_of(static)
    assert target.seconds_for_bytes(1e6, static.l3, 1) >= static.seconds_for_bytes(1e6, static.l3, 1)


def test_memory_as_fast_as_l3_tells_nothing_of_its_size():
    static = replace(Target(), cores=2)
    found = found_as(static) | {probes.WHOLE_L3: 1.0}
    assert calibrate.assemble(static, found).l3_share == 1.0


def test_threads_that_never_met_leave_static_proportions():
    static = replace(Target(), cores=2)
    found = found_as(static) | {"launch": 8.1e-6, "memory all": 1e-12}
    target = calibrate.assemble(static, found)
    assert not calibrate.has_simultaneous_runs(static, found) and target.launch_seconds == static.launch_seconds
    assert target.memory_bandwidth == pytest.approx(static.memory_bandwidth, rel=0.06)


def test_nothing_found_is_the_static_machine_up_to_rounding():
    static = replace(Target(), cores=2)
    target = calibrate.assemble(static, {})
    assert replace(target, l3_bandwidth=0, memory_bandwidth=0) == replace(static, l3_bandwidth=0, memory_bandwidth=0)


@pytest.mark.parametrize("value", [3.3e-13, 1.21e-10, 7.77e10, 1.0, 9.99])
def test_rounding_is_coarse_and_stays(value):
    out = calibrate.round_to_step(value)
    assert (
        calibrate.round_to_step(out) == out and abs(math.log10(out / value)) <= 0.5 / calibrate.STEPS_PER_DECADE + 0.002
    )
    assert calibrate.round_to_step(value * 1.005) in (out, calibrate.round_to_step(out * 1.1))


def test_measured_once_and_kept(static, monkeypatch):
    calls = []

    def measure(machine, budget):
        calls.append(budget)
        return calibrate.Figures(found_as(machine, 0.9), {})

    monkeypatch.setattr(calibrate, "measure", measure)
    first = calibrate.target()
    assert first != static and calibrate.target() is first
    calibrate.forget()
    assert calibrate.target() == first and len(calls) == 1
    assert calibrate.target(1).cores == 1 and calibrate.target(1024) == first
    code = "from einsmith.tuning.calibration import calibrate; print(repr(calibrate.target()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == repr(first)
    assert oct(store.path_of(static).parent.stat().st_mode)[-3:] == "700"


def test_figures_of_a_busy_machine_are_not_used(static, monkeypatch):
    """The static ones stand, so that processes choose alike, until one has measured a quiet machine; from then on all
    use what it has stored, busy or not."""
    calls = []

    def measure(machine, budget):
        calls.append(0.5 if "busy" in state else 0.9)
        return calibrate.Figures(found_as(machine, calls[-1]), {}, "others worked" if "busy" in state else "")

    state = ["busy"]
    monkeypatch.setattr(calibrate, "measure", measure)
    assert calibrate.target() == static == calibrate.target() and calls == [0.5]
    assert store.load(static) is None
    with pytest.raises(
        BusyError, match="the machine is busy: while it was measured others worked; no figures are stored"
    ):
        calibrate.calibrate()
    assert calls == [0.5] * (1 + calibrate.ATTEMPTS) and store.load(static) is None
    state.clear()
    calibrate.forget()
    quiet = calibrate.target()
    assert quiet == calibrate.assemble(static, found_as(static, 0.9)) == store.load(static)
    state.append("busy")
    with pytest.raises(BusyError, match="the earlier figures stay valid"):
        calibrate.calibrate()
    assert store.load(static) == quiet
    calibrate.forget()
    assert calibrate.target() == quiet, "what is stored is the machine's, also while it is busy"


@pytest.mark.parametrize("process, thread, worked, said", [
    (1.0, 1.0, 1.1, ""), (1.9, 0.92, 2.0, ""), (1.0, 1.0, 1.9, "other programs took 44% of 2 processors"),
    (0.5, 0.5, 2.0, "other programs took 74% of 2 processors"),
    (0.6, 0.6, 0.7, "had to wait for a processor for 40% of the time"),
    (0.6, 0.6, 0.0, "had to wait"), (1.0, 1.0, 0.0, ""),
])  # fmt: skip
def test_other_load_is_reported(monkeypatch, process, thread, worked, said):
    """Seconds of this process, of its thread and of two processors in one second; the last is 0 where nobody tells."""
    times = [(5.0, 1.0, 2.0, 70.0 if worked else 0.0), (6.0, 1.0 + thread, 2.0 + process, worked and 70.0 + worked)]
    monkeypatch.setattr(load, "_times", lambda: times.pop(0))
    monkeypatch.setattr(processors, "allowed", lambda: [0, 1])
    found = load.Watch().disturbance()
    assert said in found and bool(said) == bool(found)


def test_a_thread_that_sleeps_is_seen():
    watch = load.Watch()
    time.sleep(0.2)
    assert watch.disturbance()


def test_the_knob_says_no(static, monkeypatch):
    monkeypatch.setenv("EINSMITH_CALIBRATE", "0")
    monkeypatch.setattr(calibrate, "measure", None)
    assert calibrate.target() == static


def test_where_nothing_can_be_kept_the_static_figures_stand(static, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(calibrate, "measure", None)
    with pytest.warns(es.EinsmithWarning, match="cannot be measured.*static figures of the processor: .*file"):
        assert calibrate.target() == static
    with pytest.raises(OSError):
        calibrate.calibrate()


@pytest.mark.parametrize("harm", untrusted.HARMS)
def test_figures_that_others_may_have_written_are_not_used(static, monkeypatch, harm):
    store.save(calibrate.assemble(static, found_as(static, 0.9)), ["fma"], overwrite=False)
    assert store.load(static) is not None
    monkeypatch.setattr(calibrate, "measure", None)
    with untrusted.made(store.path_of(static).parent, harm) as reason, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            calibrate.forget()
            assert calibrate.target() == static and store.measured(static) == []
        with pytest.raises(OSError, match=reason):
            calibrate.calibrate()
    assert [re.search(reason, str(w.message)) is not None for w in said] == [True], "said once"
    calibrate.forget()
    assert calibrate.target() == store.load(static) != static


@pytest.mark.parametrize("harm", ["cut", "flip", "version", "machine", "list", "empty", "deep"])
def test_a_damaged_record_is_made_anew(static, monkeypatch, harm):
    measured = calibrate.assemble(static, found_as(static, 0.9))
    store.save(measured, ["fma"], overwrite=False)
    assert store.load(static) == measured and store.measured(static) == ["fma"]
    path = store.path_of(static)
    text = path.read_text()
    record = json.loads(text)
    if harm == "cut":
        path.write_text(text[: len(text) // 2])
    elif harm == "flip":
        record["record"]["coefficients"]["fma_per_second"] *= 3
        path.write_text(json.dumps(record))
    elif harm in ("version", "machine"):
        record["record"][harm] = "other"
        record["checksum"] = store.checksum(record["record"])
        path.write_text(json.dumps(record))
    else:
        path.write_text({"list": "[1]", "empty": "", "deep": "[" * 100_000}[harm])
    assert store.load(static) is None
    monkeypatch.setattr(calibrate, "measure", lambda machine, budget: calibrate.Figures(found_as(machine, 1.3), {}))
    again = calibrate.target()
    assert again == calibrate.assemble(static, found_as(static, 1.3)) == store.load(static)


def test_the_first_of_two_processes_wins(static):
    mine = calibrate.assemble(static, found_as(static, 0.9))
    other = calibrate.assemble(static, found_as(static, 1.2))
    assert store.save(other, [], overwrite=False) == other
    assert store.save(mine, [], overwrite=False) == other == store.load(static)
    assert store.save(mine, [], overwrite=True) == mine == store.load(static)
    assert [p.name for p in store.path_of(static).parent.iterdir()] == [store.path_of(static).name]


def test_machines_have_records_of_their_own(static):
    other = replace(static, cores=static.cores + 1)
    store.save(static, [], overwrite=False)
    assert store.load(other) is None and store.path_of(other) != store.path_of(static)


def test_a_process_that_may_not_use_tile_registers_has_a_record_of_its_own(static):
    with_tiles = replace(static, tiles=(("bf16", 9.0),))
    store.save(with_tiles, [], overwrite=False)
    assert store.load(with_tiles).tiles == (("bf16", 9.0),)
    without = replace(static, tiles=())
    assert store.load(without) is None and store.machine_of(without) != store.machine_of(with_tiles)


def test_every_probe_runs_and_scales(monkeypatch):
    monkeypatch.setattr(probes, "RUN_SECONDS", 1e-6)
    machine = replace(native.host_target(), tiles=(("bf16", 9.0), ("u8i8", 9.0)))
    made = {p.name: p for p in probes.probes(machine, 1 << 20)}
    wanted = {"fma", "chain", "l1", "l2", "l3", "memory", "task", "launch", "load", "unaligned", "store", "broadcast"}
    wanted |= {"gather", "copy", "tiles bf16", "tiles u8i8", *(f"dot {name}" for name, _ in machine.dots)}
    assert wanted | {fn for fn, _ in machine.special_seconds} <= set(made)
    for p in made.values():
        p.run()
        p.run()
        assert 0 < p.seconds == min(p.runs) / p.work < math.inf
    assert ("l3 all" in made) == (machine.cores > 1)


def test_the_probe_of_a_bandwidth_computes_its_sums():
    machine = native.host_target()
    one, *more = probes._bandwidth(machine, "l3", 1 << 20)
    for p in (one, *more):
        x, y, z, _ = p.keep
        x[:] = range(x.size)
        y[:] = 1
        p.run()
        assert z[0] == 1 and (z[: x.size // 2] == x[: x.size // 2] + 1).all() and z[-1] == x[-1] + 1
        assert p.work % (12 * x.size) == 0


def test_no_time_leaves_probes_out():
    found, unsteady, _ = calibrate.measure(native.host_target(), 0.0)
    assert not found and set(unsteady) == {"fma"}


@pytest.mark.parametrize("runs, steady", [
    ([1.0], False), ([1.0, 1.05], False), ([1.0, 1.05, 1.09], True), ([5.0, 1.0, 4.0, 1.02, 9.0, 1.1], True),
    ([1.0, 1.2, 1.3, 1.4], False),
])  # fmt: skip
def test_a_lone_quick_run_is_no_figure(runs, steady):
    assert probes.Probe("x", None, 2.0, runs=runs).steady is steady
    assert probes.Probe("x", None, 2.0, runs=runs).seconds == 0.5


def test_unsteady_figures_are_repeated_then_left_out(monkeypatch):
    clock, runs = [0.0], []

    class Noisy(SimpleNamespace):
        seconds, runs = 1.0, (1, 2)

        def run(self):
            clock[0] += 1e-3
            runs.append(self.name)

        @property
        def steady(self):
            return runs.count(self.name) >= self.needed

    some = {"soon": 3, "later": 1000, "never": 10**9}
    monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(calibrate, "probes", lambda static, nbytes: (
        Noisy(name=n, slow=False, needed=needed) for n, needed in some.items()
    ))  # fmt: skip
    found, unsteady, _ = calibrate.measure(Target(), calibrate.BUDGET)
    assert set(found) == {"soon", "later"} and set(unsteady) == {"never"} and "disagree" in unsteady["never"]
    assert clock[0] <= calibrate.BUDGET + 2e-3


def test_implausible_figures_are_reported_and_not_used(static, monkeypatch):
    """A bandwidth below static sense, a level slower than the one behind it: the static figures stand, and a note."""
    machine = replace(static, cores=2)
    found = found_as(machine) | {"memory": 100 / machine.core_bandwidth, "load": 1e-15}
    middle = (found["l1"] * found["l2"]) ** 0.5  # near enough to the static figures of both
    found["l1"], found["l2"] = 1.3 * middle, middle / 1.3
    del found["gather"]
    figures = calibrate.Figures(found, {"gather": "its 2 runs disagree"})
    monkeypatch.setattr(calibrate, "measure", lambda machine, budget: figures)
    monkeypatch.setattr(native, "host_target", lambda: machine)
    target = calibrate.calibrate()
    assert target.core_bandwidth == machine.core_bandwidth and target.load_seconds == machine.load_seconds
    assert target.bytes_per_second[0] >= target.bytes_per_second[1]
    told = store.rejected(machine)
    assert set(told) == {"memory", "load", "l1", "gather"} and told["l1"] == "slower than l2"
    assert not set(told) & set(store.measured(machine))


@pytest.mark.parametrize("each, count", [(1e-3, 30), (0.05, 30), (0.9, 3), (50.0, 1)])
def test_a_busy_machine_prolongs_measuring_by_one_run_at_most(monkeypatch, each, count):
    clock, runs = [0.0], []

    class Slow(SimpleNamespace):
        def run(self):
            clock[0] += each
            runs.append(self.name)

    monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(calibrate, "probes", lambda static, nbytes: (
        Slow(name=n, slow=n % 7 == 0, seconds=1.0, steady=True) for n in range(30)
    ))  # fmt: skip
    monkeypatch.setattr(calibrate, "Watch", lambda: SimpleNamespace(disturbance=lambda: ""))
    figures = calibrate.measure(Target(), calibrate.BUDGET)
    assert len(figures.seconds) == count and bool(figures.disturbance) == (count < 30), "nothing was measured"
    assert clock[0] <= calibrate.BUDGET + each and (each > 1e-3 or len(runs) > 30 * calibrate.MIN_ROUNDS)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="knows its processors by their affinity")
def test_memory_to_measure_on_is_beyond_the_caches():
    machine = replace(native.host_target(), l3=8 << 20)
    assert calibrate.memory_bytes(machine) in (0, 64 << 20)


class Measuring(Pattern):
    """A pattern that takes no kernel and measures one thing."""

    name = "measuring"
    version = 1
    built = 0

    def match(self, kernel) -> bool:
        return False

    configs = cost = lower = None  # it is asked for none

    def probes(self, target):
        Measuring.built += 1
        b = Builder("probe_of_a_test", 2)
        with b.loop(0, 500, init=[b.load(b.buffers[0], b.const(0), "f32")]) as loop:
            loop.next = [b.mul(loop.carried[0], b.const(0.5, "f32"))]
        b.store(loop.results[0], b.buffers[0], b.const(0))
        yield probes.probe("halving", b.finish(), target, [np.ones(16, np.float32)], 500.0)


@pytest.fixture
def measuring(static, monkeypatch):
    monkeypatch.setattr(calibrate, "measure", lambda machine, budget: calibrate.Figures(found_as(machine, 0.9), {}))
    monkeypatch.setattr(calibrate, "PATTERN_SECONDS", 0.0)
    monkeypatch.setattr(calibrate, "MIN_WATCH_SECONDS", 0.0)
    monkeypatch.setattr(calibrate, "Watch", lambda: SimpleNamespace(disturbance=lambda: ""))
    monkeypatch.setattr(autoconfig, "PATTERNS", [*autoconfig.PATTERNS])
    monkeypatch.setattr(Measuring, "built", 0)
    return static


def test_a_registered_pattern_measures_once(measuring):
    before = calibrate.target()
    assert before.measured == () and before.coefficient("halving", 7.0) == 7.0
    autoconfig.register(Measuring())
    after = calibrate.target()
    seconds = after.coefficient("halving", 7.0)
    assert 0 < seconds != 7.0 and replace(after, measured=()) == before
    assert store.facts_of(after) == store.facts_of(before)
    calibrate.forget()
    assert calibrate.target() == after and Measuring.built == 1
    (record,) = store.path_of(measuring).parent.glob(f"{store.path_of(measuring).stem}-*.json")
    record.write_text(record.read_text()[:50])
    calibrate.forget()
    assert calibrate.target().measured and Measuring.built == 2, "a damaged record is made anew"


def test_a_registered_pattern_has_its_defaults_while_the_machine_is_busy(measuring, monkeypatch):
    autoconfig.register(Measuring())
    monkeypatch.setattr(calibrate, "Watch", lambda: SimpleNamespace(disturbance=lambda: "others worked"))
    for count in (1, 2):
        assert calibrate.target().coefficient("halving", 7.0) == 7.0 and Measuring.built == count
        assert not list(store.path_of(measuring).parent.glob(f"{store.path_of(measuring).stem}-*.json"))
        calibrate.forget()


def test_a_pattern_without_file_or_calibration_has_its_defaults(measuring, monkeypatch):
    autoconfig.register(Measuring())
    monkeypatch.setattr(calibrate, "code_of", lambda pattern: None)
    assert calibrate.target().measured == ()
    monkeypatch.undo()
    monkeypatch.setenv("EINSMITH_CALIBRATE", "0")
    calibrate.forget()
    assert calibrate.target().measured == () and Measuring.built == 0
