"""What a user's pattern answers is looked at before it is used: an error names the pattern, the configuration and the
kernel, and nothing runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import CheckError, CompileError
from einsmith.codegen.loopnest.nest import Builder
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from tests.caches import CHOICES, forget

SHAPE = (7, 11)
_numbers = iter(range(10**6))


class Own(Pattern):
    """Takes functions of one tensor in this module's shape, at no cost; `answers` stand for its own."""

    version = 1  # of the answers, whose code cannot be seen: each kernel is a formula of its own

    def __init__(self, **answers: Any):
        self.name, self.answers = f"own {next(_numbers)}", answers

    def match(self, kernel: Any) -> bool:
        return kernel.shape == SHAPE and len(kernel.buffers) == 2

    def configs(self, kernel: Any, target: Any) -> list[str]:
        return ["the only way"]

    def cost(self, kernel: Any, config: str, target: Any) -> Any:
        return self.answers.get("cost", Cost(0.0, 0.0))

    def lower(self, kernel: Any, config: str, target: Any) -> Any:
        make = self.answers.get("lower")
        return make(kernel) if make else _stores(len(kernel.buffers) + 1, math.prod(SHAPE))


def _stores(buffers: int, count: int, tasks: int = 1) -> Lowered:
    """Twos, so many."""
    b = Builder("own", buffers)
    with b.loop(0, count) as loop:
        b.store(b.const(2.0, "f32"), b.buffers[-2], loop.var)
    return Lowered([Launch(b.finish(), tasks)])


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch):
    def register(pattern: Any) -> Any:
        monkeypatch.setattr(autoconfig, "PATTERNS", [*autoconfig.PATTERNS])
        autoconfig.register(pattern)
        return pattern

    yield register
    monkeypatch.undo()
    forget(CHOICES)


def _call() -> np.ndarray:
    n = next(_numbers)  # a formula of its own, so that no cache holds it
    return es.op(f"y[i,j] = x[i,j] * {n}.5")(np.ones(SHAPE, np.float32))


def test_it_is_chosen_and_run(registered):
    registered(Own())
    assert (_call() == 2).all(), "what the pattern makes, right or wrong"


@pytest.mark.parametrize(
    "answer", [Cost(math.nan, 0.0), Cost(0.0, math.inf), Cost(-1.0, 0.0), Cost(1.0, 1.0, -9.0), 1.0, None], ids=repr
)
def test_costs(registered, answer):
    name = registered(Own(cost=answer)).name
    said = rf"'{name}' answers .* for the cost of the only way .*\[7, 11\].*finite seconds"
    with pytest.raises(CompileError, match=said):
        _call()


@pytest.mark.parametrize(
    "make,what",
    [
        (lambda kernel: None, "None; a Lowered is needed"),
        (lambda kernel: _stores(len(kernel.buffers), 5), "own of 2 buffers; those of the kernel, 2, and the workspace"),
        (lambda kernel: _stores(len(kernel.buffers) + 1, 5, -1), "-1 tasks of a launch"),
        (lambda kernel: Lowered(_stores(len(kernel.buffers) + 1, 5).launches, -8), "a workspace of -8 bytes"),
    ],
)
def test_lowerings(registered, make, what):
    name = registered(Own(lower=make)).name
    with pytest.raises(CompileError, match=f"'{name}' lowers the only way on .* to {what}"):
        _call()


def test_a_configuration_that_is_not_legal(registered):
    class Picky(Own):
        def legal(self, kernel: Any, config: str, target: Any) -> str:
            return "there is no way at all"

    name = registered(Picky()).name
    with pytest.raises(CompileError, match=f"'{name}' chooses the only way on .*: there is no way at all"):
        _call()


def test_checked_runs_find_stores_outside_the_buffers(registered, monkeypatch, tmp_path):
    monkeypatch.setenv("EINSMITH_CHECK", "1")
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    name = registered(Own(lower=lambda kernel: _stores(len(kernel.buffers) + 1, math.prod(SHAPE) + 1))).name
    with pytest.raises(CheckError, match=name):
        _call()


def test_wrong_results_are_found_by_the_checked_mode(registered, monkeypatch, tmp_path):
    monkeypatch.setenv("EINSMITH_CHECK", "1")
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    name = registered(Own()).name
    with pytest.raises(CheckError, match=name):
        _call()


def test_registering(registered):
    class Apart:
        name = "apart"

    class Half(Pattern):
        def match(self, kernel: Any) -> bool:
            return False

    class Nameless(Own):
        def __init__(self) -> None:
            pass

    with pytest.raises(CompileError, match="Apart.* is not a pattern: its class must derive from .*Pattern"):
        autoconfig.register(Apart())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="configs.*cost.*lower"):
        Half()  # type: ignore[abstract]
    with pytest.raises(CompileError, match="and have a `name`"):
        autoconfig.register(Nameless())
    pattern = registered(Own())
    for taken in (pattern.name, "contraction", autoconfig.ROWS.name):
        other = Own()
        other.name = taken
        with pytest.raises(CompileError, match=f"there is a pattern '{taken}' already"):
            autoconfig.register(other)
