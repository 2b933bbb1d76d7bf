"""Compiling takes time linear in a program's length, however its parts use each other.

Executed lines are counted, not seconds: twice the program may take little more than twice as many. Machine code is left
out; its makers are asked once for each kernel, and kernels do not grow in number with what is alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.driver.cpu import CPU
from einsmith.driver.runs import Runs
from einsmith.schedule.compiled_kernel import CompiledKernel
from tests.passes import families
from tests.passes.counting import executed_lines
from tests.passes.families import Program

N = 40
GROWTH = 2.3


class _Compiled(BaseException):
    """Says that a program has been compiled, and is not run."""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable], tuple[int, int]]:
    """Of a call that compiles a program: the lines that are executed, and the distinct kernels."""
    kernels: set[Any] = set()

    def native(found: Any, target: Any) -> list[CompiledKernel]:
        kernels.update(found)
        return [CompiledKernel(((1, 1, False),), 0, 0, "", "", 0.0, 0) for _ in found]

    def run(self: Any, *arguments: Any) -> None:
        raise _Compiled

    monkeypatch.setattr(CPU, "compile", native)
    monkeypatch.setattr(Runs, "call", run)

    def measured(call: Callable) -> tuple[int, int]:
        kernels.clear()

        def stopped() -> None:
            with pytest.raises(_Compiled):
                call()

        return executed_lines(stopped), len(kernels)

    return measured


def _all(f: Callable, arrays: list[np.ndarray]) -> tuple[int, ...]:
    return tuple(range(len(arrays)))


def value(f: Callable, arrays: list[np.ndarray]) -> Any:
    return es.jit(f)(*arrays)


def gradient(f: Callable, arrays: list[np.ndarray]) -> Any:
    return es.value_and_grad(f, _all(f, arrays))(*arrays)


def second(f: Callable, arrays: list[np.ndarray]) -> Any:
    g = es.grad(f, 0)
    return es.grad(lambda *x: (g.traced(*x) ** 2).sum(), _all(f, arrays))(*arrays)  # type: ignore[attr-defined]


def tangent(f: Callable, arrays: list[np.ndarray]) -> Any:
    return es.jvp(f, tuple(arrays), tuple(arrays))


CASES = [(f, m) for f in families.ALL for m in (value, gradient)]
CASES += [(families.shared_weight, second), (families.shared_weight, tangent), (families.shared_input, tangent)]


@pytest.mark.thinned(16)
@pytest.mark.parametrize("family,mode", CASES, ids=[f"{f.__name__}-{m.__name__}" for f, m in CASES])
def test_twice_the_program_takes_twice_the_work(family: Callable[..., Program], mode: Callable, compiled):
    n = 3 * N if family in families.POINTWISE else N

    def work(n: int, width: int) -> tuple[int, int]:  # of a width of its own, so that nothing is known beforehand
        f, arrays = family(n, width)
        return compiled(lambda: mode(f, arrays))

    work(2, 3)
    (once, kernels), (twice, more) = work(n, 5), work(2 * n, 7)
    assert once > 1000
    assert twice <= GROWTH * once
    assert more <= kernels + 8 or family in families.VARIED


def test_updates_of_many_parameters(compiled):
    def work(n: int, width: int) -> tuple[int, int]:
        model = es.nn.Sequential(*[es.nn.Linear(width, width) for _ in range(n)])
        step = es.TrainStep(model, es.functional.cross_entropy, es.optim.Adam(lr=1e-3), threads=1)
        return compiled(lambda: step(np.zeros((4, width), "float32"), np.zeros(4, "int64")))

    work(2, 3)
    (once, kernels), (twice, more) = work(N // 2, 5), work(N, 7)
    assert twice <= GROWTH * once
    assert more <= kernels + 2


@pytest.mark.thinned(2)
@pytest.mark.parametrize("family", [families.shared_weight, families.shared_input, families.many_terms])
def test_sums_in_parts_are_the_evaluator_s(family: Callable[[int], Program]):
    f, arrays = family(37)
    both = es.value_and_grad(f, _all(f, arrays))
    value, grads = both(*arrays)
    want, exact = es.interpret(both)(*arrays)
    assert abs(value - want) <= 1e-4 * (1 + abs(want))
    for g, w in zip(grads, exact, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4 * np.abs(w).max())


def by_first(f: Callable, arrays: list[np.ndarray]) -> Any:
    return es.value_and_grad(f, 0)(*arrays)


NESTED = [(f, value, GROWTH) for f in families.NESTED]
NESTED += [(families.nested_where, by_first, 3.0), (families.nested_where_of_axes, by_first, 3.0)]
LONGEST = families.nested_where, by_first


@pytest.mark.parametrize(
    "family,mode,growth",
    [
        pytest.param(f, m, g, id=f"{f.__name__}-{m.__name__}", marks=[pytest.mark.slow] * ((f, m) == LONGEST))
        for f, m, g in NESTED
    ],
)
def test_nested_choices_take_no_path_at_a_time(family: Callable[..., Program], mode: Callable, growth: float, compiled):
    def work(n: int, width: int) -> int:
        f, arrays = family(n, width)
        return compiled(lambda: mode(f, arrays))[0]

    work(2, 3)
    assert work(40, 7) <= growth * work(20, 5)


@pytest.mark.slow
def test_recurrence_over_two_axes_to_second_order(compiled):
    f, arrays = families.two_axis_recurrence()
    g = es.grad(f, 0)
    lines, _ = compiled(lambda: es.grad(lambda *x: (g.traced(*x) ** 2).sum(), 0)(*arrays))
    assert lines < 20_000_000


@pytest.mark.thinned(2)
@pytest.mark.parametrize("family", families.NESTED)
def test_nested_choices_are_the_evaluator_s(family: Callable[..., Program]):
    f, arrays = family(4)
    both = es.value_and_grad(f, 0)
    value, grad = both(*arrays)
    want, exact = es.interpret(both)(*arrays)
    assert abs(value - want) <= 1e-4 * (1 + abs(want))
    np.testing.assert_allclose(grad, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
