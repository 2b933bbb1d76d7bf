"""Whether a template is a view of its argument, against the enumeration of every element."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_shapes
from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Compute, Template, postorder, size
from einsmith.ir.template_evaluator import evaluate_template
from einsmith.ir.views import is_view
from einsmith.passes.pipeline import run_passes


def moves_nothing(t: Template) -> bool:
    """Whether element n of the result is element n of the one argument."""
    if len(t.params) != 1 or size(t.params[0][1]) != size(t.shape):
        return False
    ((dtype, shape),) = t.params
    numbers = np.arange(size(shape), dtype=dtype.numpy).reshape(shape)
    (out,) = evaluate_template(t, [numbers])
    return bool(np.array_equal(out.ravel(), numbers.ravel()))


def factors(n: int, rng: Random) -> tuple[int, ...]:
    """A shape of n elements, extents of 1 among it."""
    out = []
    for _ in range(rng.randrange(4)):
        out.append(rng.choice([d for d in range(1, n + 1) if n % d == 0]))
        n //= out[-1]
    out.append(n)
    rng.shuffle(out)
    return tuple(out)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", range(6))
def test_reshapes_and_transposes(seed: int) -> None:
    rng, views, others = Random(seed), 0, 0
    for _ in range(40):
        n = rng.choice([1, 2, 6, 7, 12, 36, 60, 64, 120, 210, 360, 1024, 1155])

        def moved(x, n=n):
            for _ in range(rng.randint(1, 3)):
                x = x.reshape(factors(n, rng))
                if rng.random() < 0.2:
                    x = x.transpose(tuple(rng.sample(range(x.ndim), x.ndim)))
            return x

        graph = run_passes(trace_shapes(moved, [(factors(n, rng), dt.f32)]).graph)
        for t in {x.template for x in postorder(graph.outputs) if isinstance(x, Compute)}:
            assert is_view(t) == moves_nothing(t), t
            views, others = views + is_view(t), others + (not is_view(t))
    assert views > 20 and others > 0, (views, others)


@pytest.mark.parametrize("formula", [
    "Y[i,j] = X[j,i]", "Y[i,j] = X[i,(j+1)%6]", "Y[i,j] = X[i,5-j]", "Y[i,j] = X[(i+1)//2,j]", "Y[i,j] = X[0,6*i+j]",
])  # fmt: skip
def test_templates_that_move_elements_are_no_views(formula: str) -> None:
    shape = (1, 36) if "6*i+j" in formula else (6, 6)
    graph = trace_shapes(es.op(formula, extents={"i": 6, "j": 6}), [(shape, dt.f32)]).graph
    (t,) = {x.template for x in postorder(graph.outputs) if isinstance(x, Compute)}
    assert is_view(t) == moves_nothing(t) == ("6*i+j" in formula)


def test_a_tensor_of_any_size_is_looked_at_at_once() -> None:
    """No array of a tensor's elements is made: here it would have 2^40."""

    def same(x):
        return x.reshape((1 << 10, 1 << 30)).reshape((1 << 19, 1 << 21))

    graph = run_passes(trace_shapes(same, [((1 << 20, 1 << 20), dt.f32)]).graph)
    assert all(is_view(x.template) for x in postorder(graph.outputs) if isinstance(x, Compute))

    def mixed(x):
        return x.reshape((1 << 10, 1 << 10, 1 << 20)).transpose((1, 0, 2)).reshape((1 << 20, 1 << 20))

    graph = run_passes(trace_shapes(mixed, [((1 << 20, 1 << 20), dt.f32)]).graph)
    assert not all(is_view(x.template) for x in postorder(graph.outputs) if isinstance(x, Compute))
