"""Derivatives of small formulas with quotients and remainders in indices and guards: right, and soon there."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.driver.executable import Executable
from tests.counting import python_calls

MOST_CALLS = 5_000_000
"""A quiet core makes some five million calls of Python functions in a second of compiling."""

FORMULAS = {
    "product": """y[i] = prod[k](where(0 <= ((-2*k-1)//2)%5 and 0 <= ((-3*i+k-2)//2)%5 and 0 <= ((k+2*i+3)//2)%5
                  and k <= i, 1 + 0.1*a[((-2*k-1)//2)%5]*b[((-3*i+k-2)//2)%5, ((k+2*i+3)//2)%5], 1))""",
    "sum": """y[i] = sum[k](where(((2*i+k)//3)%4 < 3 and k <= i, a[((2*i+k)//3)%4]*b[(i+3*k)//4%7, (k+i)//2], 0))""",
    "nested": """y[i] = sum[k](where(((i//2+3*k)//5)%3 != 1 and (i+2*k)%7 < 5, a[((i//2+3*k)//5)%3]
                 *b[(i+2*k)%7, (i//2+3*k)//5], 0))""",
}


def step(name: str):
    f = es.op(FORMULAS[name], extents={"i": 12, "k": 12})
    return lambda a, b: es.grad(lambda a, b: f(a=a, b=b).sum(), argnums=(0, 1))(a, b)


def arguments(rng) -> tuple[np.ndarray, np.ndarray]:
    return rng.uniform(0.5, 1.5, 8), rng.uniform(0.5, 1.5, (16, 13))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "nested")) for n in FORMULAS])
def test_gradients_of_a_small_formula_are_compiled_by_a_second_of_work(name: str, rng) -> None:
    def compiled() -> None:
        traced = trace_call(step(name), arguments(rng), {})
        Executable(traced.graph, traced.bind, 1)

    assert python_calls(compiled) < MOST_CALLS


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "product")) for n in FORMULAS])
def test_gradients_are_those_of_differences(name: str, rng) -> None:
    a, b = arguments(rng)
    f = es.interpret(es.op(FORMULAS[name], extents={"i": 12, "k": 12}))
    towards = rng.standard_normal(a.shape), rng.standard_normal(b.shape)
    h = 1e-6
    up, down = (np.asarray(f(a=a + s * towards[0], b=b + s * towards[1])).sum() for s in (h, -h))
    got = sum((np.asarray(g) * v).sum() for g, v in zip(step(name)(a, b), towards, strict=True))
    assert got == pytest.approx((up - down) / (2 * h), rel=1e-5)
