"""Elementwise tensors of which few elements are read, in formulas, recurrences and their derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import environment
from einsmith.ir.analysis.guarded import contexts
from einsmith.ir.nodes import Apply, Axis, Compute, Const, Expr, Leaf, Recurrence, apply, postorder
from einsmith.ir.rewrite.sampled import SAMPLES, sampled

torch = pytest.importorskip("torch", reason="its derivatives are the reference")

SCORES = """p[t,v] = x[t,v] - logsumexp[w](x[t,w])
a[t] = p[t,y[t]]*c[t] + where(t > 0, tanh(a[t-1] + p[t-1,0]), 0)
return a"""
PADDED = """p[t,v] = exp(x[t,v])
a[t] = where(t > 0, a[t-1]*c[t], 1) + where(y[t] >= 0, where(c[t] > 0, p[t,y[t]], 0), 2)
return a"""


def _arrays(steps: int, words: int, least: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(words)
    return rng.standard_normal((steps, words)), rng.integers(least, words, steps), rng.standard_normal(steps)


def _largest(tensors: Any) -> int:
    """Return the elements of the largest tensor that is computed."""
    return max(np.prod(n.shape) for n in postorder(tensors) if not isinstance(n, (Leaf, Recurrence)))


@pytest.mark.parametrize("text", [SCORES, PADDED])
def test_no_tensor_of_all_elements_is_computed(text: str) -> None:
    f = es.op(text, inputs="x, y, c")
    roots = list(trace_call(lambda x, y, c: f(x, y, c), _arrays(7, 11), {}).graph.outputs)
    assert _largest(roots) == 77
    new = sampled(roots)
    assert _largest([new[r] for r in roots]) <= 7
    kept = next(n for n in postorder(roots) if isinstance(n, Compute) and n.shape == (7, 11))
    assert sampled(roots, [kept])[kept] is kept


def test_it_is_left_out_by_name(monkeypatch) -> None:
    """Before gradients are derived, too."""
    f = es.op("p[t,v] = exp(x[t,v])\ns[] = sum[t](p[t,y[t]]*c[t])", inputs="x, y, c")
    x, y, c = _arrays(7, 11)

    def value() -> Any:
        return trace_call(es.value_and_grad(lambda x: f(x, y, c)), (x,), {}).graph.outputs[0]

    assert _largest([value()]) < 77
    monkeypatch.setenv(environment.WITHOUT.name, SAMPLES)
    root = value()
    assert _largest([root]) == 77 and sampled([root])[root] is root


@pytest.mark.parametrize(("steps", "words"), [(1, 2), (1, 7), (2, 3), (7, 11), (8, 17), (16, 5), (33, 16)])
@pytest.mark.parametrize("text", [SCORES, PADDED])
def test_programs(text: str, steps: int, words: int) -> None:
    """Labels that a condition excludes are not read."""
    x, y, c = _arrays(steps, words, -1 if text is PADDED else 0)
    f = es.op(text, inputs="x, y, c")
    first = es.grad(lambda x, y, c: f(x, y, c).sum(), (0, 2))
    second = es.grad(lambda x, y, c: sum((g**2).sum() for g in first(x, y, c)), (0, 2))
    every = lambda *args: (f(*args), *first(*args), *second(*args))  # noqa: E731
    wanted = es.interpret(every)(x, y, c)
    for got, want in zip(es.jit(every)(x, y, c), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
    single = [x.astype(np.float32), y, c.astype(np.float32)]
    for got, want in zip(es.jit(every)(*single), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max(initial=1))


def test_derivatives_of_scores() -> None:
    x, y, c = _arrays(5, 13)

    def reference(x: Any, c: Any) -> Any:
        p, a, out = torch.log_softmax(x, 1), torch.zeros((), dtype=torch.float64), []
        for t in range(5):
            a = p[t, y[t]] * c[t] + (torch.tanh(a + p[t - 1, 0]) if t else 0)
            out.append(a)
        return torch.stack(out)

    f = es.op(SCORES, inputs="x, y, c")
    tensors = [torch.tensor(v, requires_grad=True) for v in (x, c)]
    want = torch.autograd.grad(reference(*tensors).sum(), tensors, create_graph=True)
    wanted_second = torch.autograd.grad(sum((g**2).sum() for g in want), tensors)
    first = es.grad(lambda x, c: f(x, y, c).sum(), (0, 1))
    second = es.grad(lambda x, c: sum((g**2).sum() for g in first(x, c)), (0, 1))
    for got, w in zip([*first(x, c), *second(x, c)], [*want, *wanted_second], strict=True):
        np.testing.assert_allclose(got, w.detach().numpy(), rtol=1e-10, atol=1e-12)


def test_a_tensor_that_is_returned_or_differentiated_by_stays() -> None:
    """The gradient by a tensor is that of its elements, not zero as if nothing read it."""
    p = es.op("p[t,v] = exp(x[t,v])")
    f = es.op("s[] = sum[t](p[t,y[t]]*p[t,0])")
    x, y, _ = _arrays(6, 9)
    both = es.jit(lambda x: (p(x), es.grad(lambda q: f(q, y))(p(x)), es.grad(lambda x: f(p(x), y))(x)))
    e = np.exp(x)
    want = np.zeros_like(x)
    np.add.at(want, (range(6), y), e[:, 0])
    want[:, 0] += e[range(6), y]
    for got, w in zip(both(x), (e, want, want * e), strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-12)


def test_labels_out_of_range_are_reported() -> None:
    f = es.jit(es.op(SCORES, inputs="x, y, c"))
    x, y, c = _arrays(6, 9)
    y[3] = 9
    with pytest.raises(es.EinsmithError, match="y"):
        f(x, y, c)


def _where(c: Expr, a: Expr, b: Expr) -> Expr:
    return Apply("where", (c, a, b), a.dtype)


def test_contexts() -> None:
    """An expression has the conditions of the outermost of its places, and none if two places exclude each other."""
    one, two = (apply("lt", Axis(0), Const(n, Axis.dtype)) for n in (1, 2))
    inner, outer = Apply("neg", (Axis(0),), Axis.dtype), Axis(1)
    x = _where(one, _where(two, inner, outer), Const(0, Axis.dtype))
    assert contexts([x])[inner] == ((one, True), (two, True))
    assert contexts([x])[outer] == ((one, True), (two, False))
    twice = _where(one, _where(two, inner, outer), inner)
    assert contexts([twice])[inner] is None
    again = Apply("add", (twice, inner), Axis.dtype)
    assert contexts([again])[inner] == ()
    nested = _where(
        one, Apply("add", (_where(two, inner, outer), Apply("add", (inner, outer), Axis.dtype)), Axis.dtype), outer
    )
    assert contexts([nested])[inner] == ((one, True),)
