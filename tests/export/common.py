"""What the tests of exports share: small steps, batches, and a C compiler."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import einsmith as es

WARNINGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")


def compiler() -> str:
    """Skips the test where there is none."""
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        pytest.skip("no C compiler (Debian: apt install gcc)")
    return found


def call(command: Sequence[str | Path], **options) -> subprocess.CompletedProcess:
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, f"{command} ends with {done.returncode}: {done.stderr}"
    return done


class Small(es.nn.Module):
    """Two layers with normalization, which has buffers, and dropout."""

    def __init__(self, width: int = 6):
        self.first = es.nn.Linear(5, width)
        self.norm = es.nn.BatchNorm1d(width)
        self.drop = es.nn.Dropout(0.3)
        self.last = es.nn.Linear(width, 3)

    def forward(self, x):
        return self.last(self.drop(es.relu(self.norm(self.first(x)))))


def batch(n: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 5)).astype(np.float32), rng.integers(0, 3, n)


def small(optimizer=None, **options) -> es.TrainStep:
    es.manual_seed(0)
    rule = optimizer or es.optim.SGD(lr=0.1, momentum=0.9)
    return es.TrainStep(Small(), es.functional.cross_entropy, rule, **options)
