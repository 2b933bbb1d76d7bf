"""Reductions over windows against the same reductions over all points, in float64: values and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.autodiff.reverse import gradients
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, leaf, postorder
from einsmith.ir.rewrite import windows
from einsmith.ir.rewrite.narrow import WINDOWS, narrow
from einsmith.ir.verify import verify_graph

F = es.functional


@pytest.fixture(autouse=True)
def any_size(monkeypatch) -> None:
    """Windows of few points are worth their while."""
    monkeypatch.setattr(windows, "POINT_COST", 0)


def coordinates(i: Any, shape: Sequence[int]) -> list[Any]:
    """Return the coordinates of a flattened position."""
    out = []
    for n, extent in enumerate(shape):
        x = i // prod(shape[n + 1 :]) if n < len(shape) - 1 else i
        out.append(x % extent if n else x)
    return out


def together(conditions: Sequence[Any]) -> Any:
    out = conditions[0]
    for c in conditions[1:]:
        out = out & c
    return out


def shifted(x: Any, y: Any, extent: int, width: int) -> Any:
    """NATTEN's window, which is moved inside at the border."""
    start = es.minimum(es.maximum(x - width // 2, 0), extent - width)
    return (start <= y) & (y < start + width)


def near(x: Any, y: Any, extent: int, width: int) -> Any:
    return abs(x - y) <= width // 2


def clipped(x: Any, y: Any, extent: int, width: int) -> Any:
    """A window that is cut at the border, by its ends."""
    return (es.maximum(x - 1, 0) <= y) & (y < es.minimum(x + width - 1, extent))


def same(x: Any, y: Any, extent: int, width: int) -> Any:
    return x == y


def before(x: Any, y: Any, extent: int, width: int) -> Any:
    """A window of positions up to the own one, and no bound from above."""
    return (y <= x) & (x < y + width)


def grid_mask(shape: Sequence[int], widths: Sequence[int], kinds: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        each = zip(kinds, coordinates(i, shape), coordinates(j, shape), shape, widths, strict=True)
        return together([kind(x, y, extent, width) for kind, x, y, extent, width in each])

    return mask


def derivatives(graph: Graph, inputs: Sequence[np.ndarray], seed: int = 0) -> tuple[list[np.ndarray], Graph]:
    """Return the values of a graph's float outputs, their gradients, and the gradients of these."""
    wrt = [x for x in graph.inputs if x.dtype.is_float]
    rng = np.random.default_rng(seed)
    cotangents = [leaf(x.shape, x.dtype) for x in (*graph.outputs, *wrt)]
    first, second = cotangents[: len(graph.outputs)], cotangents[len(graph.outputs) :]
    values, pulled = gradients(graph.outputs, first, wrt)
    again, twice = gradients(pulled, second, wrt)
    whole = Graph((*graph.inputs, *cotangents), (*values, *again, *twice), (), ())
    verify_graph(whole)
    return evaluate(whole, [*inputs, *(rng.standard_normal(x.shape) for x in cotangents)])[0], whole


def check(f: Callable[..., Any], inputs: Sequence[np.ndarray], monkeypatch, bounds: bool = True) -> Graph:
    """Compare a function with its form without windows; `bounds`: whether it must have some. Return the graph with
    derivatives."""
    graph = trace_call(f, tuple(inputs), {}).graph
    assert (narrow(graph.outputs) != [*graph.outputs]) == bounds
    results, whole = derivatives(graph, inputs)
    monkeypatch.setenv("EINSMITH_WITHOUT", WINDOWS)
    expected, _ = derivatives(graph, inputs)
    monkeypatch.delenv("EINSMITH_WITHOUT")
    for x, y in zip(results, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-10)
    return whole


def operands(steps: int, heads: int = 1, batch: int = 1, width: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(steps)
    return [rng.standard_normal((batch, heads, steps, width)) for _ in range(3)]


@pytest.mark.parametrize(
    "shape, widths, kinds",
    [
        ((7,), (3,), [near]),
        ((9,), (4,), [shifted]),
        ((4, 5), (3, 3), [shifted, shifted]),
        ((5, 7), (2, 4), [shifted, shifted]),
        ((5, 7), (3, 5), [near, near]),
        ((5, 3), (3, 5), [near, near]),  # wider than the rows
        ((3, 7), (9, 3), [near, near]),  # higher than the columns
        ((6, 4), (3, 3), [same, near]),
        ((6, 4), (3, 2), [before, shifted]),
        ((1, 5), (1, 3), [shifted, near]),
        ((5, 1), (3, 1), [near, near]),
        ((4, 6), (3, 4), [clipped, clipped]),
        ((3, 4, 5), (3, 2, 3), [shifted, shifted, near]),
        ((2, 5, 3), (1, 3, 3), [shifted, near, shifted]),
    ],
)
def test_windows_of_a_grid(shape, widths, kinds, monkeypatch) -> None:
    mask, steps = grid_mask(shape, widths, kinds), prod(shape)
    whole = check(lambda q, k, v: F.flex_attention(q, k, v, mask_mod=mask), operands(steps), monkeypatch)
    assert max(prod(n.shape) for n in postorder(whole.outputs) if isinstance(n, Compute)) < steps**2


@pytest.mark.parametrize("enable_gqa", [False, True])
def test_heads_and_batches(enable_gqa, monkeypatch) -> None:
    q, k, v = operands(20, heads=4, batch=2)
    k, v = (x[:, :2] if enable_gqa else x for x in (k, v))
    mask = grid_mask((4, 5), (3, 3), [near, shifted])
    check(lambda q, k, v: F.flex_attention(q, k, v, mask_mod=mask, enable_gqa=enable_gqa), [q, k, v], monkeypatch)


def test_other_conditions_stay(monkeypatch) -> None:
    grid = grid_mask((4, 5), (3, 3), [near, near])
    document = np.repeat([[0, 1], [1, 1]], 10, axis=1)

    def f(q, k, v, document, bias):
        def mask(b, h, i, j):
            return grid(b, h, i, j) & (document[b, i] == document[b, j]) & (j <= i) & (i % 3 != 1)

        return F.flex_attention(q, k, v, lambda s, b, h, i, j: s * 2 + bias[h, i - j + 19], mask)

    bias = np.random.default_rng(1).standard_normal((2, 39))
    check(f, [*operands(20, heads=2, batch=2), document, bias], monkeypatch)


def test_grids_of_queries_and_keys_that_differ(monkeypatch) -> None:
    q, (_, k, v) = operands(12)[0], operands(35)

    def mask(b, h, i, j):
        return (abs(2 * (i // 4) + 1 - j // 7) <= 1) & (abs(i % 4 * 2 - j % 7) <= 1)

    check(lambda q, k, v: F.flex_attention(q, k, v, mask_mod=mask), [q, k, v], monkeypatch)


@pytest.mark.parametrize(
    "mask",
    [
        lambda b, h, i, j: abs(i // 3 - j // 3) <= 1,  # 3 does not divide the extent
        lambda b, h, i, j: (abs(i // 4 - j // 4) <= 1) & (i % 10 >= j % 10),  # neither divides the other
        lambda b, h, i, j: j <= i,
        lambda b, h, i, j: j // 5 <= i // 5,
        lambda b, h, i, j: (abs(i // 5 - j // 5) <= 1) | (j == 0),
    ],
)
def test_masks_without_windows(mask, monkeypatch) -> None:
    check(lambda q, k, v: F.flex_attention(q, k, v, mask_mod=mask), operands(20), monkeypatch, bounds=False)


def test_weights_that_are_returned(monkeypatch) -> None:
    """Tensors of all pairs that are read elsewhere stay."""
    op = es.op(
        """s[i,j] = where(abs(i//4 - j//4) <= 1 and abs(i%4 - j%4) <= 1, sum[d](q[i,d]*k[j,d]), -inf)
           m[i] = stop_gradient(max[j](s[i,j]))
           e[i,j] = exp(s[i,j] - m[i])
           y[i,d] = sum[j](e[i,j]*v[j,d])/sum[j](e[i,j])
           z[j] = sum[i](e[i,j])
           return y, z, e""",
        inputs="q k v",
    )
    rng = np.random.default_rng(0)
    check(op, [rng.standard_normal((20, 2)) for _ in range(3)], monkeypatch)


def test_products_and_extrema(monkeypatch) -> None:
    op = es.op(
        """p[i,j] = where(abs(i - j) <= 2, a[i]*b[j], 1)
           s[i,j] = where(i <= j < i + 3, a[i]*b[j], inf)
           x[i] = prod[j](p[i,j])
           y[i] = min[j](s[i,j])
           z[i] = sum[j](exp(-s[i,j])*b[j])
           return x, y, z""",
        inputs="a b",
    )
    rng = np.random.default_rng(0)
    check(op, [rng.standard_normal(11), rng.standard_normal(11)], monkeypatch)


def test_gradients_by_tensors_between(monkeypatch) -> None:
    """Scores by which gradients are asked for are read where they are."""
    mask = grid_mask((4, 5), (3, 3), [near, near])

    def f(s, v):
        masked = es.tracing.builder.compute((20, 20), lambda i, j: es.where(mask(0, 0, i, j), s[i, j], -np.inf))
        return (F.softmax(masked, 1) @ v).sum()

    rng = np.random.default_rng(0)
    s, v = rng.standard_normal((20, 20)), rng.standard_normal((20, 3))
    graph = trace_call(es.grad(f, argnums=(0, 1)), (s, v), {}).graph
    results = evaluate(graph, [s, v])[0]
    monkeypatch.setenv("EINSMITH_WITHOUT", WINDOWS)
    expected = evaluate(trace_call(es.grad(f, argnums=(0, 1)), (s, v), {}).graph, [s, v])[0]
    for x, y in zip(results, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(24))
def test_random_conditions_of_quotients_and_remainders(seed, monkeypatch) -> None:
    """Whatever conditions say, results are the same."""
    rng = np.random.default_rng(seed)
    n, m = (int(x) for x in rng.choice([6, 8, 12, 16, 18], 2))

    def term(axis: str) -> str:
        a, b = (int(x) for x in rng.choice([2, 3, 4, 6], 2))
        return str(rng.choice([axis, f"{axis}//{a}", f"{axis}%{a}", f"{axis}//{a}%{b}", f"{axis}%{a * b}//{b}"]))

    def condition() -> str:
        x, y, c = term("i"), term("j"), int(rng.integers(0, 3))
        forms = [f"abs({x} - {y}) <= {c}", f"{x} - {c} <= {y} < {x} + {c}", f"{x} == {y}", f"{y} <= {x}"]
        forms += [f"min(max({x} - {c}, 0), 2) <= {y} <= min(max({x} - {c}, 0), 2) + 1", f"max({x}, {y}) < {c + 2}"]
        return str(rng.choice(forms))

    where = " and ".join(condition() for _ in range(int(rng.integers(1, 4))))
    op = es.op(
        f"""s[i,j] = where({where}, a[i]*b[j], -inf)
            m[i] = max[j](s[i,j])
            t[i] = where(m[i] == -inf, 0, stop_gradient(m[i]))
            y[i] = sum[j](exp(s[i,j] - t[i])*b[j])
            z[i] = y[i]/(1 + sum[j](exp(s[i,j] - t[i])))
            return t, y, z""",
        inputs="a b",
    )
    inputs = [rng.standard_normal(n), rng.standard_normal(m)]
    graph = trace_call(op, tuple(inputs), {}).graph
    check(op, inputs, monkeypatch, bounds=narrow(graph.outputs) != [*graph.outputs])


def test_explain_names_masks_without_windows() -> None:
    q, k, v = (x.astype(np.float32) for x in operands(20))
    for divisor, words in ((3, "without windows"), (5, "windows +")):
        f = es.jit(
            lambda q, k, v, n=divisor: F.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: abs(i // n - j // n) <= 1)
        )
        f(q, k, v)
        assert words in str(f.plan)
