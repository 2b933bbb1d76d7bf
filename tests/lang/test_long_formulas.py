"""The work of compilation grows in proportion to a formula's length: it is counted in calls of functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.base import caches
from einsmith.ir.analysis.pointwise import total_operations
from einsmith.schedule import pipeline
from einsmith.schedule.row_clusters import MAX_OPERATIONS

X = np.arange(1, 5, dtype=np.float32)


def joined(word: str, term: str) -> Callable[[int], str]:
    """Terms joined by a word; k is the number of each."""
    return lambda n: word.join(term.replace("k", str(k)) for k in range(n))


def condition(text: Callable[[int], str]) -> Callable[[int], str]:
    return lambda n: f"y[i] = where({text(n)}, 1, 0)"


def value(text: Callable[[int], str], function: str = "") -> Callable[[int], str]:
    return lambda n: f"y[i] = {function}({text(n)})"


FORMULAS = {
    "and": (40, condition(joined(" and ", "x[i] < k"))),
    "or": (40, condition(joined(" or ", "x[i] < k"))),
    "and of integers": (40, condition(joined(" and ", "(i*k < 3*k + 7 or x[i] > k)"))),
    "not or": (40, condition(lambda n: f"not ({joined(' or ', 'x[i] < k')(n)})")),
    "chained comparison": (60, condition(joined(" < ", "x[i]"))),
    "chained comparison of others": (60, condition(joined(" < ", "x[i] + k"))),
    "statements": (600, lambda n: "\n".join(f"t{k + 1}[i] = t{k}[i] + 1" for k in range(n)).replace("t0", "x")),
    "side by side": (40, lambda n: joined("\n", "tk[i] = x[i] + k.5")(n) + "\nreturn " + joined(",", "tk")(n)),
    "nested where": (20, lambda n: "y[i] = " + joined("", "where(x[i] < k, k, ")(n) + "0" + ")" * n),
    "sum": (60, value(joined(" + ", "x[i]"))),
    "sum of others": (60, value(joined(" + ", "x[i]*k.5"))),
    "product": (60, value(joined(" * ", "x[i]"))),
    "product of others": (60, value(joined(" * ", "(x[i] + k.5)"))),
    "functions": (30, value(joined(" + ", "exp(x[i]*k.5)"))),
    "powers": (30, value(joined(" + ", "x[i]**k"))),
    "reductions": (20, value(joined(" + ", "sum[j](x[j]*k.5 + x[i])"))),
    "min": (60, value(joined(", ", "x[i]*k.5"), "min")),
    "parentheses": (30, lambda n: "y[i] = " + "(" * n + "x[i]" + " + 1.5)" * n),
    "pieces": (20, lambda n: "\n".join(f"y[{k}] = x[{k % 4}]*{k}" for k in range(n))),
    "scatters": (15, lambda n: "y[i] = x[i]\n" + "\n".join(f"y[{k % 4}] += x[{k % 3}]*{k}" for k in range(n))),
    "recurrence": (20, lambda n: "h[t] = where(t > 0, h[t-1], 0) + " + joined(" + ", "tanh(x[t]*k.5)")(n)),
    "inputs": (30, value(joined(" + ", "xk[i]*k.5"))),
}  # fmt: skip


def calls(text: str) -> int:
    """How many functions are called, also built-in ones, to compile and run a formula."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    caches.cache_clear()
    sys.setprofile(note)
    try:
        f = es.op(text)
        f(*([X] * len(f.inputs)))
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", FORMULAS)
def test_work_is_in_proportion_to_length(name):
    n, make = FORMULAS[name]
    calls(make(2))
    once, twice = (calls(make(m)) for m in (2 * n, 4 * n))
    assert twice <= 2.5 * once, (once, twice)


def test_no_function_grows_with_the_number_of_statements(monkeypatch):
    """LLVM takes more than twice the time for twice the length of a function."""
    plans = []
    apply_layouts = pipeline.apply_layouts

    def observe(plan, decide):
        plans.append(plan)
        return apply_layouts(plan, decide)

    monkeypatch.setattr(pipeline, "apply_layouts", observe)
    es.op(FORMULAS["statements"][1](1500))(X)
    for _, call, _ in plans[0].kernel_calls():
        assert sum(total_operations(s.template) for s in call.kernel.stages) <= MAX_OPERATIONS
    assert len(plans[0].calls) > 1
