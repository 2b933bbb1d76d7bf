"""Compiled code of a user's pattern is found again by its class, version and attributes alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from einsmith.kernels import autoconfig, pattern_keys
from einsmith.kernels.pattern import Pattern
from einsmith.kernels.pattern_keys import code_of, key_of

ROOT = Path(__file__).parents[2]

# y[i] = sqrt(x[i]) times a factor: wrong on purpose, so that values tell which code has run.
PATTERN = """
from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Axis, Read, apply
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.codegen.loopnest.nest import (Builder)

class Scaled(Pattern):
    name = "scaled roots"
    {body}

    def match(self, kernel):
        root = kernel.root
        return len(kernel.stages) == 1 and root.parts[0].bodies == (apply("sqrt", Read(0, (Axis(0),), dt.f32)),)

    def configs(self, kernel, target):
        return [1]

    def cost(self, kernel, config, target):
        return Cost(1e-12, 0.0)

    def lower(self, kernel, config, target):
        b = Builder("scaled_roots", len(kernel.buffers) + 1)
        x, y = b.buffers[kernel.stages[0].args[0][1]], b.buffers[kernel.stages[0].outputs[0]]
        with b.loop(0, kernel.shape[0], 1) as i:
            b.store(b.op("mul", b.op("sqrt", b.load(x, i.var, "f32", 1)), b.const({factor}, "f32")), y, i.var)
        return Lowered([Launch(b.finish(), tasks=1)])
"""
PROGRAM = """
import sys
import numpy as np
import einsmith as es
from einsmith.kernels import autoconfig
from mine import Scaled
autoconfig.register(Scaled())
x = np.arange(1, 14, dtype=np.float32) ** 2
print(float((es.op("y[i] = sqrt(x[i])")(x) / np.sqrt(x)).mean()))
"""


def pattern(factor: str, body: str = "pass") -> str:
    return PATTERN.format(factor=factor, body=body)


def run(folder: Path) -> float:
    """What the program computes in a process of its own, with the cache of the folder."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM], capture_output=True, text=True, timeout=300,
        cwd=folder, env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "EINSMITH_CACHE_DIR": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_changed_code_is_compiled_anew_without_a_version(tmp_path: Path) -> None:
    for factor in (2.0, 3.0):
        (tmp_path / "mine.py").write_text(pattern(str(factor)))
        assert run(tmp_path) == pytest.approx(factor)


def test_code_of_a_version_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(pattern("2.0", "version = 1"))
    assert run(tmp_path) == pytest.approx(2.0)
    entries = sorted((tmp_path / "cache" / "objects").iterdir())
    assert run(tmp_path) == pytest.approx(2.0) and sorted((tmp_path / "cache" / "objects").iterdir()) == entries
    (tmp_path / "mine.py").write_text(pattern("3.0", "version = 2"))
    assert run(tmp_path) == pytest.approx(3.0)


def made(body: str, name: str = "mine", **attributes: float) -> Pattern:
    names: dict = {"__name__": name}
    exec(pattern("2.0", body), names)
    out = names["Scaled"]()
    vars(out).update(attributes)
    return out


def test_class_version_and_attributes_are_the_key() -> None:
    codes = [
        code_of(x)
        for x in (
            made("version = 1"), made("version = 2"), made("version = 1", "other"), made("version = 1", factor=2.0),
            made("version = 1", factor=3.0),
        )
    ]  # fmt: skip
    assert None not in codes and len({*codes}) == len(codes)
    assert codes[0] == code_of(made("version = 1")) == key_of(made("version = 1"))


def test_a_pattern_without_a_version_has_a_key_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = made("pass")
    own = key_of(mine)
    assert code_of(mine) is None and len(own) == 16
    monkeypatch.setattr(pattern_keys, "_PROCESS_SALT", b"of another process")
    assert key_of(mine) != own


def test_einsmiths_own_patterns_are_known_by_its_sources() -> None:
    assert {key_of(p) for p in autoconfig.PATTERNS if pattern_keys.is_builtin(p)} == {b""}
