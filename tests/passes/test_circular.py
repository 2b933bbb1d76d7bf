"""Members of which only the next few steps read the values are stored in circular buffers."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.trees import flatten
from einsmith.driver.executable import Executable
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import postorder
from einsmith.passes.pipeline import run_passes

SIZES = [(2, 3), (4, 5), (7, 33), (11, 17)]


def formula(reach: int, reverse: bool) -> str:
    """u[t] reads u at every distance up to `reach`, at the same and at a neighbouring element."""
    terms = []
    for d in range(1, reach + 1):
        inside, at = (f"t + {d} < size(t)", f"t+{d}") if reverse else (f"t >= {d}", f"t-{d}")
        terms.append(f"where({inside}, 0.5*u[{at},i], a[i]*{d})")
        terms.append(f"where({inside} and i > 0, 0.25*tanh(u[{at},i-1]), 0)")
    return f"u[t,i] = x[t,i] + {' + '.join(terms)}\nreturn u"


def loops_of(f, *arrays) -> list[LoweredLoop]:
    graph = run_passes(trace_call(f, arrays, {}).graph)
    return [n for n in postorder(graph.roots) if isinstance(n, LoweredLoop)]


def check(f, *arrays) -> None:
    """Results equal the reference, in memory that holds NaN before."""
    traced = trace_call(f, arrays, {})
    want, _ = flatten(es.interpret(f)(*arrays))
    for threads in (1, 2):
        program = Executable(traced.graph, {}, threads)
        for _ in range(2):
            program.arena.fill(0xFF)
            got = program(list(arrays))[1]
            for x, y in zip(got, want, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reach", [1, 2, 3])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps, n", SIZES)
def test_a_state_has_as_many_slots_as_steps_reach(reach, reverse, steps, n, rng):
    op = es.op(formula(reach, reverse))
    x, a = rng.standard_normal((steps, n)), rng.standard_normal(n)

    def last(x, a):
        return op(x=x, a=a)[0 if reverse else steps - 1]

    check(last, x, a)
    for loop in loops_of(last, x, a):
        if steps > 2 * (reach + 1):
            assert [loop.results[j][1] for j in loop.circular] == [(reach + 1, n)]


@pytest.mark.parametrize("steps, n", SIZES)
def test_outside_readers(steps, n, rng):
    """The values of the last steps are read in the buffer; readers of others see every step."""
    op = es.op(formula(2, False))
    x, a = rng.standard_normal((steps, n)), rng.standard_normal(n)
    for k in range(min(steps, 5)):
        f = lambda x, a, k=k: op(x=x, a=a)[steps - 1 - k]  # noqa: E731
        check(f, x, a)
        if steps > 6:
            assert [loop.results[j][1][0] for loop in loops_of(f, x, a) for j in loop.circular] == [max(3, k + 1)]
    check(lambda x, a: op(x=x, a=a), x, a)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps, n", SIZES)
def test_readers_of_several_steps(reverse, steps, n, rng):
    """The slots are as many as it takes to read the last steps without a wrap."""
    op = es.op(formula(1, reverse))
    x, a = rng.standard_normal((steps, n)), rng.standard_normal(n)
    for k in range(2, min(steps, 4)):
        f = lambda x, a, k=k: op(x=x, a=a)[:k] if reverse else op(x=x, a=a)[steps - k :]  # noqa: E731
        check(lambda x, a, f=f: f(x, a) * 2, x, a)
        if steps > 6:
            (loop,) = loops_of(lambda x, a, f=f: f(x, a) * 2, x, a)
            assert all(k <= loop.results[j][1][0] < 4 * k for j in loop.circular) and loop.circular


@pytest.mark.parametrize("checkpoint", [0, 3])
@pytest.mark.parametrize("steps, n", SIZES)
def test_gradients(steps, n, checkpoint, rng):
    op = es.op(formula(2, False), checkpoint=checkpoint)
    x, a, c = rng.standard_normal((steps, n)), rng.standard_normal(n), rng.standard_normal(n)

    def gradients(c, x, a):
        y, pull = es.vjp(lambda x, a: op(x=x, a=a)[steps - 1], x, a)
        return y, pull(c)

    check(gradients, c, x, a)


def test_left_out_by_name(rng, monkeypatch):
    op = es.op(formula(1, False))
    x, a = rng.standard_normal((9, 4)), rng.standard_normal(4)
    f = lambda x, a: op(x=x, a=a)[8]  # noqa: E731
    assert [loop.circular for loop in loops_of(f, x, a)] == [(0,)]
    monkeypatch.setenv("EINSMITH_WITHOUT", "circular buffers")
    assert [loop.circular for loop in loops_of(f, x, a)] == [()]
    check(f, x, a)
