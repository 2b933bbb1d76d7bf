"""Decisions on single tensors: what they say, which tensors they name, and that programs compute the same by them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_call
from einsmith.driver.executable import Executable
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import Compute, postorder
from einsmith.passes.pipeline import is_graph_decision
from einsmith.schedule import sum_calls
from einsmith.schedule.decision_report import all_plans, report_decisions
from einsmith.schedule.fusion import makers, passes_on
from einsmith.schedule.graph_decisions import TensorNames, parse_order, show_order, toggle
from einsmith.schedule.layout.apply import free_tensors
from einsmith.schedule.layout.dimension_orders import candidates
from einsmith.schedule.plan import KernelCall
from einsmith.tuning.programs import graph_search
from tests.fuzz.check import agree

RECURRENCE = es.op("h[t,b,k] = tanh(x[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], 0)*U[j,k]))\nreturn h")
PROGRAMS: dict[str, tuple[Callable, list[tuple[int, ...]]]] = {
    "stages": (lambda a, b: F.relu(F.relu(a @ b) - 0.25), [(9, 12), (12, 7)]),
    "pointwise groups": (lambda a, b: ((c := F.tanh(a * b)), c * c - b), [(9, 12), (9, 12)]),
    "rows": (lambda a, b: F.softmax(a, 1) - b, [(40, 24), (40, 24)]),
    "images": (
        lambda a, b, c: F.conv2d(F.relu(F.conv2d(a, b)), c),
        [(2, 3, 8, 7), (4, 3, 3, 3), (2, 4, 3, 3)],
    ),
    "a loop": (lambda a, b: RECURRENCE(a, b).sum(0), [(6, 3, 4), (4, 4)]),
}


def program(name: str, rng: np.random.Generator) -> tuple[Executable, list[np.ndarray], Any]:
    """A program, its inputs and its graph."""
    f, shapes = PROGRAMS[name]
    arrays = [rng.standard_normal(s).astype("f") for s in shapes]
    traced = trace_call(f, tuple(arrays), {})
    return Executable(traced.graph, traced.bind, 1), arrays, traced.graph


def passed_on(run: Executable) -> list[str]:
    """The names of the nodes whose results kernels pass on, those of loops' steps included."""
    out = []
    for plan in all_plans(run.plan):
        names = TensorNames(plan.graph)
        for call in plan.calls:
            nodes = call.nodes if isinstance(call, KernelCall) else ()
            out += [names.of(n) for n in nodes if passes_on(nodes, nodes, [n])]
    return out


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_cut_tensors_pass_through_memory(name, rng):
    """A cut changes no result but by rounding: a kernel of its own may add up a row in another order."""

    def same(found: np.ndarray, wanted: np.ndarray) -> None:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-7 * np.abs(wanted).max() if name == "rows" else 0)

    run, arrays, graph = program(name, rng)
    wanted = run(arrays)[1]
    passed = passed_on(run)
    assert passed
    for tensor in dict.fromkeys(passed):
        cut = run.compile_deciding(frozenset({f"cut {tensor}"}))
        assert tensor not in passed_on(cut) and len(cut.calls) > len(run.calls)
        (reported,) = report_decisions(cut.plan, cut.decisions)
        assert reported.tensors and not reported.ignored
        assert f"cut {tensor} (t" in cut.describe() and "faster" in cut.describe()
        same(cut(arrays)[1], wanted)
        agree(cut(arrays)[1], graph, arrays, f"{name} cut at {tensor}")
    whole = run.compile_deciding(frozenset(f"cut {x}" for x in passed))
    assert not passed_on(whole)
    same(whole(arrays)[1], wanted)


@pytest.mark.parametrize("name", ["images", "a loop"])
def test_decided_orders_are_followed(name, rng):
    run, arrays, graph = program(name, rng)
    followed = 0
    for plan in all_plans(run.plan):
        names = TensorNames(plan.graph)
        for t in free_tensors(plan):
            for order in candidates(t.shape)[1:]:
                decision = f"order {names.of(t)} {show_order(order)}"
                other = run.compile_deciding(frozenset({decision}))
                (reported,) = report_decisions(other.plan, other.decisions)
                assert reported.ignored in ("", "it has another order")
                followed += not reported.ignored
                if not reported.ignored:
                    orders = {show_order(x.order) for p in all_plans(other.plan) for x in p.orders.values()}
                    assert show_order(order) in orders
                agree(other(arrays)[1], graph, arrays, f"{name}, {decision}")
    assert followed or name == "a loop", "what passes from step to step has a fixed order"


def test_sums_are_cut(rng, monkeypatch):
    """Sums of a kernel's results that it takes, by a model that says so."""
    a, b = rng.standard_normal((64, 48)).astype("f"), rng.standard_normal((48, 32)).astype("f")
    traced = trace_call(lambda a, b: ((c := a @ b), c.sum(0)), (a, b), {})
    monkeypatch.setattr(sum_calls.SumJoiner, "_find_loss", lambda *_: -1.0)
    run = Executable(traced.graph, traced.bind, 1)
    (gene,) = [x for x in graph_search.tensor_genes(run) if x.startswith("cut")]
    other = run.compile_deciding(frozenset({gene}))
    assert len(other.calls) == len(run.calls) + 1
    assert not report_decisions(other.plan, other.decisions)[0].ignored
    agree(other([a, b])[1], traced.graph, [a, b], gene)


def test_names_are_those_of_other_processes(rng):
    """Leaves have other numbers there, those of loops' steps too."""
    code = (
        "import numpy as np, einsmith as es\n"
        "from tests.schedule.test_graph_decisions import PROGRAMS, all_names, program\n"
        "es.jit(lambda x: x + 1)(np.ones(3, np.float32))\n"
        "print([all_names(program(name, np.random.default_rng(7))[0]) for name in PROGRAMS])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    here = [all_names(program(name, rng)[0]) for name in PROGRAMS]
    assert done.stdout.strip() == str(here), done.stderr
    assert all(len(set(x)) == len(x) for names in here for x in names)


def all_names(run: Executable) -> list[list[str]]:
    plans = all_plans(run.plan)
    return [[names.of(n) for n in names.nodes()] for names in (TensorNames(p.graph) for p in plans)]


def test_what_decisions_say():
    good = "without layouts", "cut 0123abcd", "order 0123abcd 0,2,3,1", "order 0123abcd 0,1,2,3,1:16"
    assert all(map(is_graph_decision, good))
    bad = (
        "", "layouts", "without", "without simplify", "without no such pass", "cut", "cut 123", "cut 0123ABCD",
        "join 0123abcd", "cut 0123abcd 1", "order 0123abcd", "order 0123abcd 0,,1", "order 0123abcd 0;1",
        "cut 0123abcd\n",
    )  # fmt: skip
    assert not any(map(is_graph_decision, bad))
    for order in ((0, 2, 3, 1), (0, 1, 2, 3, (1, 16)), (0,)):
        assert parse_order(show_order(order)) == order
    some = frozenset({"cut 0123abcd", "order 0123abcd 1,0", "without layouts"})
    assert toggle(toggle(some, "cut 0123abcd"), "cut 0123abcd") == some
    assert toggle(some, "order 0123abcd 0,1") == some - {"order 0123abcd 1,0"} | {"order 0123abcd 0,1"}
    assert toggle(some, "without together") == some | {"without together"}


def test_decisions_on_nothing_are_ignored_with_a_reason(rng):
    run, arrays, graph = program("images", rng)
    decisions = frozenset({"cut 00000000", "order 00000002 1,0", "order 00000003 7,9,9:9"})
    names = TensorNames(run.plan.graph)
    image = next(t for t in run.plan.stored if isinstance(t, Compute))
    decisions |= {f"order {names.of(image)} 9,9,9:9"}
    same = run.compile_deciding(decisions)
    assert [c.kernel for c in same.calls] == [c.kernel for c in run.calls]
    reported = report_decisions(same.plan, decisions)
    assert len(reported) == len(decisions) and all(x.ignored for x in reported)
    text = same.describe()
    assert "cut 00000000, which tuning has found to be faster, is ignored: it names no tensor" in text
    assert "is ignored: it has another order" in text
    np.testing.assert_array_equal(same(arrays)[1], run(arrays)[1])


def test_an_order_of_a_loop_is_ignored(rng):
    """As of an imported record: what computes several tensors has no dimensions."""
    run, _, _ = program("a loop", rng)
    names = TensorNames(run.plan.graph)
    loop = next(x for x in names.nodes() if isinstance(x, LoweredLoop))
    other = run.compile_deciding(frozenset({f"order {names.of(loop)} 0,1"}))
    assert "is ignored: it names no tensor" in other.describe()


def test_names_do_not_depend_on_other_decisions(rng):
    run, _, _ = program("rows", rng)
    other = run.compile_deciding(frozenset(f"cut {x}" for x in passed_on(run)))
    first, second = (
        {TensorNames(r.plan.graph).of(n) for n in postorder(r.plan.graph.roots) if any(makers(n))} for r in (run, other)
    )
    assert first == second
