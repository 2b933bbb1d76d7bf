"""Each program of docs/patterns.md and docs/configurations.md runs, alone, and does what its page says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.driver.executable import Executable
from einsmith.kernels import autoconfig
from tests.caches import CHOICES, forget

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "".join((DOCS / page).read_text() for page in ("patterns.md", "configurations.md"))
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def names(request, monkeypatch) -> dict:
    """What one of the programs defines."""
    monkeypatch.setattr(autoconfig, "PATTERNS", [*autoconfig.PATTERNS])
    found: dict = {"__name__": "page"}
    exec(compile(BLOCKS[request.param], str(DOCS), "exec"), found)
    yield found
    monkeypatch.undo()
    forget(CHOICES)


def test_every_program_is_tested() -> None:
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("names", [0], indirect=True)
def test_a_pattern_of_ones_own(names, monkeypatch) -> None:
    np.testing.assert_allclose(names["y"], np.sqrt(np.arange(4096)), rtol=1e-6)
    (pattern,) = (p for p in autoconfig.PATTERNS if p.name == "roots")
    monkeypatch.setattr(autoconfig, "PATTERNS", [pattern])
    forget(CHOICES)
    for n in (4096, 16):
        x = np.random.default_rng(n).random(n, np.float32)
        traced = trace_call(es.op("y[i] = sqrt(x[i])"), (x,), {})
        run = Executable(traced.graph, traced.bind, 1)
        assert run.kernels[0].pattern == "roots"
        np.testing.assert_allclose(run([x])[1][0], np.sqrt(x), rtol=1e-6)
    (probe,) = pattern.probes(run.target)
    probe.run()
    assert probe.work == 2000 and probe.seconds == probe.runs[0] / 2000 > 0


@pytest.mark.parametrize("names", [1], indirect=True)
def test_a_decision_by_hand(names, capsys) -> None:
    run = names["run"]
    assert run.kernels[0].pattern == "contraction" and run.kernels[0].config.startswith(("3x", "swap 3x"))
    np.testing.assert_allclose(run([names["a"], names["b"]])[1][0], names["a"] @ names["b"])


@pytest.mark.parametrize("names", [2], indirect=True)
def test_measuring(names) -> None:
    assert len(names["times"]) == len(names["best"]) and all(0 < t < 1 for t in names["times"])
