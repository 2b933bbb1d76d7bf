"""Scatters over the same points, one starting from the other, become one."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, Read, postorder
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.merge_scatters import merge_scatters
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.context import PassContext

FEWER = PassContext(cost=lambda kernel, target: 1.0)
"""A machine where all kernels take the same time."""
NEVER = PassContext(cost=lambda kernel, target: float(sum(len(p.domain) ** 4 for p in kernel.root.parts)))
"""One where one axis more takes longer than two kernels."""


def graph_of(text: str, rng, **sizes) -> tuple[Graph, list[np.ndarray]]:
    places = {a: rng.integers(0, 5, n).astype(np.int32) for a, n in sizes.items() if a in "ij"}
    arrays = places | {a: rng.standard_normal(n) for a, n in sizes.items() if a not in places}
    return simplify(trace_call(es.op(text), (), arrays).graph), list(arrays.values())


def scatters(graph: Graph) -> list[Compute]:
    return [n for n in postorder(graph.roots) if isinstance(n, Compute) and n.template.is_scatter]


def joined(graph: Graph, values: list[np.ndarray]) -> Graph:
    """The graph after the pass, which computes what it has computed before."""
    verify_graph(graph)
    new = merge_scatters(graph, FEWER)
    verify_graph(new)
    for got, want in zip(evaluate(new, values)[0], evaluate(graph, values)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    return new


@pytest.mark.parametrize("sign", ["+=", "max=", "min="])
@pytest.mark.parametrize("k, n", [(1, 1), (3, 7)])
@pytest.mark.parametrize("terms", [1, 2, 5])
def test_terms_of_a_point_are_one_scatter(terms, k, n, sign, rng):
    places = ["i[n]", "j[n]", "4-i[n]", "(i[n]+j[n])//2", "max(i[n],j[n])"][:terms]
    added = "".join(f"\ny[{at},k] {sign} f[n]*g[n,k]*{m + 1}" for m, at in enumerate(places))
    graph, values = graph_of(
        f"y[r,k] = 2*x[r,k]{added}", rng,
        x=(5, k), i=n, f=n, g=(n, k), **({"j": n} if terms > 1 else {}),
    )  # fmt: skip
    new = joined(graph, values)
    assert len(scatters(graph)) == terms and len(scatters(new)) == 1
    assert terms == 1 or scatters(new)[0].template.parts[-1].domain == (n, k, terms)
    assert scatters(merge_scatters(graph, NEVER)) == scatters(graph)


def test_what_both_terms_share_is_selected_nowhere(rng):
    """An index of both scatters is read from one argument of either, and stands in the merged one without a choice."""
    text = "y[r,k] = 2*x[r,k]\ny[0,i[n]] += f[n]*g[n]\ny[2,i[n]] += f[n]*h[n]"
    graph, values = graph_of(text, rng, x=(3, 5), i=7, f=7, g=7, h=7)
    (merged,) = scatters(joined(graph, values))
    assert isinstance(merged.template.parts[-1].index[1], Read)


def test_scatters_that_cannot_be_merged_stay(rng):
    for text, sizes in [
        ("y[r] = x[r]\ny[i[n]] += f[n]\nz[r] = y[r]\nz[j[n]] += f[n]\nreturn y, z", {"x": 5, "i": 4, "f": 4, "j": 4}),
        ("y[r] = x[r]\ny[i[n]] += f[n]\ny[j[n]] max= f[n]", {"x": 5, "i": 4, "f": 4, "j": 4}),
        ("y[r] = x[r]\ny[i[n]] max= f[n]\ny[j[n]] min= f[n]", {"x": 5, "i": 4, "f": 4, "j": 4}),
        ("y[r] = x[r]\ny[i[n]] += f[n]\ny[j[m]] += g[m]", {"x": 5, "i": 4, "f": 4, "j": 3, "g": 3}),
        ("z[r] = x[r]\nz[i[n]] += f[n]\ny[r] = z[4-r]\ny[j[n]] += f[n]\nreturn y", {"x": 5, "i": 4, "f": 4, "j": 4}),
    ]:
        graph, values = graph_of(text, rng, **sizes)
        assert len(scatters(graph)) == 2 and len(scatters(joined(graph, values))) == 2


def test_gradients_of_neighbouring_reads_are_one_kernel(rng):
    """Compiled: the adjoints of four reads at places beside each other."""
    x, i = rng.standard_normal((9, 16)).astype(np.float32), rng.integers(0, 7, 40).astype(np.int32)
    g = rng.standard_normal((40, 16)).astype(np.float32)
    f = es.op("y[n,c] = x[i[n],c] + 2*x[i[n]+1,c] - 3*x[i[n]+2,c]")

    def run(x, i, g):
        return es.vjp(lambda x: f(x=x, i=i), x)[1](g)[0]

    want = np.zeros((9, 16))
    for n in range(40):
        want[i[n] : i[n] + 3] += np.outer([1, 2, -3], g[n])
    np.testing.assert_allclose(es.jit(run)(x, i, g), want, rtol=1e-5, atol=1e-4)
