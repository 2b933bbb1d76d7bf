"""Candidates that crash, hang or are wrong do no harm, and are named; the statistics of races."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from math import comb
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.base.errors import EinsmithWarning
from einsmith.base.workers import Failed, Lost
from einsmith.driver.executable import Executable
from einsmith.kernels import autoconfig
from einsmith.tuning.kernels import bench as bench_module
from einsmith.tuning.kernels.bench import BenchProcess
from einsmith.tuning.kernels.candidate_worker import fault_of
from einsmith.tuning.kernels.genetic import Candidate
from einsmith.tuning.kernels.measure import HostRunner, compile_kernel, example_buffers
from einsmith.tuning.kernels.session import tune
from einsmith.tuning.kernels.tuner import Effort, Part
from einsmith.tuning.kernels.verdict import MIN_ROUNDS, bounds, judge
from tests.caches import CHOICES, forget
from tests.kernels.samples import product
from tests.kernels.test_contraction_words import narrowed
from tests.tuning.planted import FAULTS, SHAPE, Planted
from tests.tuning.test_measure import kernel_of

OK = ("prints",)


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr(autoconfig, "PATTERNS", [*autoconfig.PATTERNS])
    autoconfig.register(Planted())
    yield
    monkeypatch.undo()
    forget(CHOICES)


@pytest.fixture(scope="module")
def scaled():
    return kernel_of(es.op("y[i,j] = x[i,j] * 2.5"), np.ones(SHAPE, np.float32))


def _choice(kernel, target):
    found = autoconfig.choose(kernel, target)
    return Candidate(found.pattern.name, found.config)


def test_every_fault_is_named_and_the_next_candidate_is_measured_all_the_same(planted, scaled):
    kernel, target = scaled
    said = {}
    with BenchProcess(limit=2.0) as bench:
        bench.begin(kernel, target, 1)
        for n, fault in enumerate(FAULTS):
            try:
                assert bench.prepare(n, Candidate("planted", fault)) == ""
                said[fault] = bench.vet(n, n)
            except (Lost, Failed) as e:
                said[fault] = str(e)
        assert bench.prepare(99, _choice(kernel, target)) == "" and bench.vet(99, 0) == ""
        times, _ = bench.race([99, 99], 0.05)
        assert all(0 < t < 1 for row in times for t in row)
    assert "SIGSEGV" in said["crash"]
    assert said["hang"] == said["hang in lowering"] == "it did not end within 2 s"
    assert "bytes behind the end of its buffer" in said["beside"]
    assert "nan" in said["nan"] and "elements are not the evaluator's" in said["wrong"]
    assert "RuntimeError: out of ideas" in said["raises"]
    assert said["prints"] == ""
    assert bench.starts == 4, "only a crash and two hangs cost a process"


@pytest.mark.slow
def test_faults_are_never_kept(planted, scaled, monkeypatch):
    kernel, target = scaled
    monkeypatch.setattr("einsmith.tuning.kernels.bench.REQUEST_SECONDS", 2.0)
    told = {}
    monkeypatch.setattr("einsmith.tuning.kernels.session.THOROUGH", Effort(candidates=24))
    (found,) = tune([Part(kernel)], target, 1, 60.0, lambda f, c, s: told.__setitem__(c, s))
    named = {c.config for c, _ in found.faults}
    assert found.best is None or found.best.pattern != "planted" or found.best.config in OK
    assert {"crash", "hang", "hang in lowering", "raises"} <= named
    for fault in ("beside", "nan", "wrong"):  # these are compared with the evaluator only where they seem faster
        candidate = Candidate("planted", fault)
        assert fault in named or told[candidate] > 0.9 * found.prior or found.busy


def test_a_worker_that_is_killed_is_started_again(scaled):
    kernel, target = scaled
    with BenchProcess() as bench:
        bench.begin(kernel, target, 1)
        bench.prepare(0, _choice(kernel, target))
        os.kill(bench.process.pid, signal.SIGKILL)
        with pytest.raises(Lost, match="died of SIGKILL"):
            bench.race([0, 0], 0.05)
        assert not bench.ready(0)
        bench.prepare(0, _choice(kernel, target))
        assert bench.ready(0) and bench.starts == 2


def test_a_pattern_of_a_class_that_no_other_process_knows(scaled, monkeypatch):
    class Local(Planted):
        name = "local"

    monkeypatch.setattr(autoconfig, "PATTERNS", [*autoconfig.PATTERNS, Local()])
    with BenchProcess() as bench:
        bench.begin(*scaled, 1)
        assert "no other process can import the pattern 'local'" in bench.prepare(1, Candidate("local", "wrong"))
        assert bench.prepare(0, _choice(*scaled)) == ""
    forget(CHOICES)


def _fault(f, wrong, *arrays):
    """What is found when the machine code of `wrong` is taken for that of f."""
    (kernel, target), (other, _) = kernel_of(f, *arrays), kernel_of(wrong, *arrays)
    right, code = (_made(k, target) for k in (kernel, other))
    assert fault_of(HostRunner().subject(kernel, target, 1, right, "right", ""), right, 1) == ""
    return fault_of(HostRunner().subject(kernel, target, 1, code, "wrong", ""), right, 1)


def _made(kernel, target):
    chosen = autoconfig.choose(kernel, target)
    return compile_kernel(kernel, chosen.pattern, chosen.config, target)


def test_large_kernels_are_compared_with_the_choice():
    x = np.ones((4096, 512), np.float32)
    softmax = "m[i] = max[k](x[i,k])\ns[i] = sum[k](exp(x[i,k] - m[i]))\ny[i,j] = exp(x[i,j] - m[i]) / s[i]"
    said = _fault(es.op(softmax), es.op(softmax.replace("exp(x[i,j] - m[i])", "exp(x[i,j] - m[i]) * 1.5")), x)
    assert "differ from those of the model's choice" in said


def test_both_sides_of_a_condition_are_looked_at():
    a, m = np.ones((40, 30), np.float32), np.ones((40, 30), bool)
    right, wrong = (es.op(f"y[i,j] = where(m[i,j], a[i,j] * {n}, a[i,j])") for n in (2, 3))
    assert "elements are not the evaluator's" in _fault(right, wrong, m, a)


def test_example_indices_are_in_bounds_and_differ():
    t, ids = np.ones((5, 3), np.float32), np.zeros(64, np.int64)
    for index, most in (("I[b]", 4), ("2*I[b]+1", 0)):
        f = es.op(f"Y[b,k] = T[{index},k]")
        traced = trace_call(lambda t, i, f=f: f(t, i), (t, ids), {})
        kernels = [call.kernel for call in Executable(traced.graph, traced.bind, 1).plan.calls]
        (kernel,) = (k for k in kernels if any(b.dtype.is_float for b in k.buffers))
        (n,) = (n for n, b in enumerate(kernel.buffers) if not b.dtype.is_float)
        found = example_buffers(kernel)[n]
        assert found.min() == 0 and found.max() == most


def test_a_worker_ends_with_the_process_that_started_it(planted, scaled):
    """Also where it hangs in a candidate."""
    code = (
        "import sys, numpy as np, einsmith as es\n"
        "from einsmith.kernels import autoconfig\n"
        "from einsmith.tuning.kernels.bench import BenchProcess\n"
        "from einsmith.tuning.kernels.genetic import Candidate\n"
        "from tests.tuning.planted import SHAPE, Planted\n"
        "from tests.tuning.test_measure import kernel_of\n"
        "autoconfig.register(Planted())\n"
        "bench = BenchProcess()\n"
        "bench.begin(*kernel_of(es.op('y[i,j] = x[i,j] * 2.5'), np.ones(SHAPE, np.float32)), 1)\n"
        "bench.prepare(0, Candidate('planted', 'prints'))\n"
        "print(bench.process.pid, flush=True)\n"
        "bench.prepare(1, Candidate('planted', 'hang'))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    worker = int(process.stdout.readline())
    time.sleep(0.5)
    process.kill()
    process.wait()
    end = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


def test_the_bounds_of_a_median_are_those_of_the_sign_test():
    for n in range(MIN_ROUNDS, 61):
        ordered = [float(x) for x in range(n)]
        low, high = bounds(ordered)
        k = int(low)
        outside = 2 * sum(comb(n, j) for j in range(k + 1)) / 2**n
        further = 2 * sum(comb(n, j) for j in range(k + 2)) / 2**n
        assert high == n - 1 - k and (outside <= 0.0625 < further or k == (n - 1) // 2)


def test_the_bounds_hold_the_median_as_often_as_they_say(rng):
    draws = np.sort(rng.standard_normal((2000, 15)), axis=1)
    inside = [low <= 0 <= high for low, high in map(bounds, draws.tolist())]
    assert 0.92 < np.mean(inside) < 1.0


def test_a_race_ends_when_it_is_decided():
    assert judge([1.8, 2.0]) is False, "much slower, twice"
    assert judge([0.5] * 4) is None, "faster, but too few rounds"
    assert judge([0.5] * 5) is True and judge([1.0, 1.0, 1.1, 1.3, 1.3]) is False and judge([1.0] * 5) is False
    assert judge([0.9, 0.95, 1.0, 1.1, 1.2]) is None
    assert judge([0.985] * 9) is False, "too little to be kept"
    assert judge([0.9] * 7, 8) is None and judge([0.9] * 8, 8) is True
    assert judge([0.9] * 7 + [1.3], 8) is None and judge([0.9] * 8 + [1.3], 8) is True


def test_times_are_relative_to_the_measured_choice(scaled):
    kernel, target = scaled
    told = []
    (found,) = tune([Part(kernel, 3)], target, 1, 2.0, lambda f, c, s: told.append((f.prior, s)))
    assert told and found.turns == 3 and found.tried
    assert found.prior != autoconfig.choose(kernel, target).cost.seconds, "measured, not predicted"
    assert {prior for prior, _ in told} == {found.prior}


def test_patterns_that_no_other_process_can_have_are_named_once(monkeypatch):
    class Local(Planted):
        name = "local"

    class Script(Planted):
        name = "script"
        __module__ = "__main__"

    known = Planted()
    monkeypatch.setattr(autoconfig, "PATTERNS", [*autoconfig.PATTERNS, known, Local(), Script()])
    forget("patterns that tuning leaves out")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            assert bench_module.sendable_patterns() == [known]
    assert [w.category for w in said] == [EinsmithWarning] * 2
    local, script = (str(w.message) for w in said)
    assert "of the pattern 'local'," in local and "cannot be pickled" in local and "define the class" in local
    assert "of the pattern 'script'," in script and "is defined in a script" in script


@pytest.mark.parametrize("dtype", [dt.f32, dt.f16, dt.bf16, dt.f64])
def test_floats_of_every_type_are_normal_numbers(dtype):
    """Numbers that are not would be slow or fast in another way: a sum that is NaN may be computed again."""
    kernel = narrowed(product(40, 50, 60), dtype, dtype)
    for b, array in zip(kernel.buffers[:2], example_buffers(kernel)[:2], strict=True):
        values = b.dtype.wide(array)
        assert np.isfinite(values).all() and 0.8 < values.std() < 1.2 and np.abs(values).max() < 6
