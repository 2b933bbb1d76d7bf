"""Timing kernels in given configurations, and a user's own pattern."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import einsmith as es
from einsmith.api import tracing
from einsmith.driver import cpu_kernels
from einsmith.driver.executable import Executable
from einsmith.kernels import autoconfig
from einsmith.tuning.kernels.measure import seconds_of

ROOT = Path(__file__).resolve().parents[2]


def kernel_of(f, *arrays):
    traced = tracing.trace_call(f, arrays, {})
    run = Executable(traced.graph, traced.bind, 1)
    return run.plan.calls[0].kernel, run.target


def test_candidates_are_timed(rng):
    a, b = rng.standard_normal((17, 33), np.float32), rng.standard_normal((33, 48), np.float32)
    kernel, target = kernel_of(es.op("C[i,j] = sum[k](A[i,k] * B[k,j])"), a, b)
    found = autoconfig.choose(kernel, target).alternatives
    patterns = {p.name: p for p in autoconfig.PATTERNS}
    chosen = [(patterns[n], c) for n, c, _ in (found[0], found[-1])]
    times = seconds_of(kernel, chosen, target, threads=1)
    assert len(times) == 2 and all(0 < t < np.inf for t in times)


def test_the_example_of_an_own_pattern():
    out = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "own_pattern.py")], capture_output=True, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT), "EINSMITH_CALIBRATE": "1"},
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    assert "Y is X.T" in out.stdout
    lines = [line for line in out.stdout.splitlines() if "predicted" in line]
    assert any("transpose tiles" in line for line in lines), out.stdout


def test_patterns_are_part_of_the_key(monkeypatch):
    class Mine:
        name = "mine"
        version = 1

    before = cpu_kernels.identity()
    monkeypatch.setattr(autoconfig, "PATTERNS", [*autoconfig.PATTERNS, Mine()])
    assert cpu_kernels.identity().startswith(before + b" mine") and len(cpu_kernels.identity()) > len(before) + 5
