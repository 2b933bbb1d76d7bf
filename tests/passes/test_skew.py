"""Recurrences over two axes by diagonals: against the reference evaluator, and where they are left as they are."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Recurrence, postorder
from einsmith.ir.recurrence.define import step_groups
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import run_passes
from einsmith.passes.recurrence.skew import skew
from einsmith.schedule.plan import LoopCall

PRICED = PassContext(cost=lambda kernel, target: 1.0)

PATHS = """
    p[{0}] = where({up}, r[{1}], 9.0)
    q[{0}] = where({left}, r[{2}], 9.0 + {i})
    s[{0}] = where({up} and {left}, r[{3}], where({i} == {j}, 0.5*{j}, 9.0))
    m[{0}] = stop_gradient(min(p[{0}], q[{0}], s[{0}]))
    r[{0}] = d[i,j,b]*w[j] + m[{0}] - log(exp(m[{0}] - p[{0}]) + exp(m[{0}] - q[{0}]) + exp(m[{0}] - s[{0}]))*v[b,i]
    return r
"""


def paths(down, right, order, distance=1):
    """Softly cheapest paths through grids, which run up or down, and left or right; `order` names the dimensions of the
    grids. Neighbours are `distance` rows apart."""
    back = {True: (f"i-{distance}", f"i >= {distance}"), False: (f"i+{distance}", f"i < size(i) - {distance}")}[down]
    aside = {True: ("j-1", "j > 0"), False: ("j+1", "j < size(j) - 1")}[right]
    at = [{}, {"i": back[0]}, {"j": aside[0]}, {"i": back[0], "j": aside[0]}]
    places = [",".join(moved.get(a, a) for a in order) for moved in at]
    return es.op(
        PATHS.format(*places, up=back[1], left=aside[1], i="i" if down else "(size(i)-1-i)", j="j"), inputs="d, w, v"
    )


def draw(i, j, b):
    rng = np.random.default_rng(i + 10 * j + 100 * b)
    return [rng.standard_normal(s) for s in ((i, j, b), (j,), (b, i))]


def nested(graph):
    """The recurrences whose cells depend on each other within a step."""
    nodes = [n for n in postorder(graph.roots) if isinstance(n, Recurrence)]
    return [n for n in nodes if any(is_cyclic for _, is_cyclic in step_groups(n))]


def depth(plan, cost=None, target=None):
    """The most loops inside each other."""
    return max((1 + max(map(depth, c.plans)) for c in plan.calls if isinstance(c, LoopCall)), default=0)


@pytest.fixture(autouse=True)
def loops(monkeypatch) -> None:
    """Keep short loops as loops, whose plans are looked at here."""
    monkeypatch.setenv("EINSMITH_WITHOUT", "joined steps")


@pytest.fixture
def force(monkeypatch):
    """Let programs with fewer loops inside each other be faster."""
    monkeypatch.setattr("einsmith.passes.recurrence.skew.plan_seconds", depth)


def skewed(f, inputs, context=PRICED):
    """The graph of a function, simplified, and that graph by diagonals, which is verified."""
    graph = simplify(trace_call(f, inputs, {}).graph)
    new = skew(graph, partial(run_passes, context=PassContext()), context)
    verify_graph(new)
    return graph, new


def gradients(f, x):
    """Values and gradients of a function, and inputs: those of the function, and a cotangent."""
    c = np.random.default_rng(5).standard_normal(es.interpret(f)(*x).shape)
    return lambda c, *x: (f(*x), *es.grad(lambda *x: (f(*x) * c).sum(), tuple(range(len(x))))(*x)), [c, *x]


def assert_equal(got, want):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("order", ["ijb", "bij", "jbi"])
@pytest.mark.parametrize("down,right", [(True, True), (True, False), (False, True), (False, False)])
def test_diagonals_in_every_direction(force, down, right, order):
    f, x = gradients(paths(down, right, order), draw(4, 6, 2))
    graph, new = skewed(f, x)
    assert len(nested(graph)) == 2 and not nested(new)
    assert_equal(evaluate(new, x)[0], evaluate(graph, x)[0])


@pytest.mark.parametrize("i,j,b", [(2, 2, 1), (7, 3, 1), (3, 7, 2), (1, 5, 3), (5, 1, 1), (9, 2, 1)])
@pytest.mark.parametrize("distance", [1, 2])
def test_sizes(force, i, j, b, distance):
    f, x = gradients(paths(True, True, "ijb", distance), draw(i, j, b))
    graph, new = skewed(f, x)
    assert not nested(new)
    assert_equal(evaluate(new, x)[0], evaluate(graph, x)[0])


OTHERS = {
    "knight": "r[i,j] = tanh(d[i,j,0] + where(i > 1 and j > 0, r[i-2,j-1], 0) + where(i > 0 and j > 1, r[i-1,j-2], 0)"
    " + where(j > 0, r[i,j-1], 1) + where(i > 0, r[i-1,j], x[i]))",
    "alignment": """
        e[i,j] = max(where(j > 0, h[i,j-1] - 1, -j-1), where(j > 0, e[i,j-1] - 0.25, -9.0))
        f[i,j] = max(where(i > 0, h[i-1,j] - 1, -i-1), where(i > 0, f[i-1,j] - 0.25, -9.0))
        h[i,j] = max(e[i,j], f[i,j], where(i > 0 and j > 0, h[i-1,j-1], -1.0*(i+j)) + d[j,i,0])
        return h, e
    """,
    "other corner": "r[i,j] = d[i,j,0] + where(i > 0 and j+1 < size(j), 0.5*r[i-1,j+1], 0) + where(j+1 < size(j),"
    " 0.25*r[i,j+1], x[i]) - where(i > 0, r[i-1,j], 1)",
    "integers": "r[i,j] = (i32(d[i,j,0] > 0) + where(i > 0, r[i-1,j], 1) + where(j > 0, r[i,j-1], 1)) % 97",
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("shape", [(5, 5, 1), (4, 4, 2)])
def test_other_recurrences(force, name, shape):
    f = es.op(OTHERS[name])
    x = [np.random.default_rng(2).standard_normal(s) for s in (shape, shape[:1])][: len(f.inputs)]
    graph, new = skewed(f, x)
    assert nested(graph) and not nested(new)
    assert_equal(evaluate(new, x)[0], evaluate(graph, x)[0])


@pytest.mark.parametrize(
    "text",
    [
        # The cells of no diagonal are independent of each other.
        "r[i,j] = d[i,j] + where(i > 0 and j+1 < size(j), 0.5*r[i-1,j+1], 0) + where(j > 0, 0.5*r[i,j-1], 0)",
        # A cell reads the whole row before it.
        "r[i,j] = d[i,j] + 0.1*sum[k](where(i > 0, r[i-1,k], 0)) + where(j > 0, 0.5*r[i,j-1], 0)",
    ],
)
def test_what_has_no_diagonals_stays(force, text):
    x = [np.random.default_rng(3).standard_normal((4, 4))]
    graph, new = skewed(es.op(text), x)
    assert new is graph


def test_what_has_no_price_stays(force):
    graph, new = skewed(paths(True, True, "ijb"), draw(4, 6, 2), PassContext())
    assert new is graph


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("i,j,b,is_skewed", [(37, 18, 1, True), (21, 50, 3, True), (3, 2, 400, False)])
def test_compiled(i, j, b, is_skewed, threads):
    """A few pairs of sequences are compared by diagonals, in memory that starts as NaN; many of them are the lanes of
    vectors already."""
    f, x = gradients(paths(True, True, "bij"), draw(i, j, b))
    graph = trace_call(f, x, {})
    program = Executable(graph.graph, graph.bind, threads)
    program.arena.fill(0xFF)
    assert (depth(program.plan) == 1) == is_skewed
    assert_equal(program(x)[1], evaluate(graph.graph, x)[0])
