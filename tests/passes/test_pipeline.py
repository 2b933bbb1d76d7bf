"""The order of passes, what they are handed, and what is said where it is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call, trace_shapes
from einsmith.base import dtypes as dt
from einsmith.base.errors import KnobError
from einsmith.cost.facts import Target
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import Graph
from einsmith.kernels.autoconfig import choose, predicted
from einsmith.passes import pipeline
from einsmith.passes.context import PassContext
from einsmith.passes.occurrences import occurrences
from einsmith.passes.pipeline import PASSES, Pass, check_order, graph_pass, run_passes
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.pipeline import PLAN_PASSES
from einsmith.schedule.planner import fuse
from tests.passes.drawn_graphs import drawn


def graph_of(f, *arrays: np.ndarray) -> Graph:
    return trace_call(f, arrays, {}).graph


@pytest.mark.parametrize("passes", [PASSES, PLAN_PASSES], ids=["graphs", "plans"])
def test_a_pass_before_what_it_needs_is_refused(passes) -> None:
    assert check_order(passes) == passes
    for i, p in enumerate(passes):
        others = [*passes[:i], *passes[i + 1 :]]
        if p.needs:
            with pytest.raises(ValueError, match=f"the pass '{p.name}' needs .*, which no pass before it provides"):
                check_order([p, *others])


def test_a_pass_without_the_one_that_it_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="'strip mine' needs loops"):
        check_order([p for p in PASSES if p.name != "lower loops"])


def test_a_pass_is_handed_the_target_and_what_kernels_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pass that decides by cost would use it."""
    asked = []

    def ask(graph: Graph, context: PassContext) -> Graph:
        (call,) = fuse(graph, target=context.target).calls
        asked.append((call.kernel, context.target, context.cost(call.kernel, context.target)))
        return graph

    monkeypatch.setattr(pipeline, "PASSES", check_order((*PASSES, Pass("asks", ask, frozenset({"loops"})))))
    x = np.ones((33, 65), np.float32)
    run = Executable(graph_of(lambda x: (x * 2).sum(1), x), {}, 1)
    (kernel, target, seconds) = asked[0]
    assert len(asked) == 1 and target is run.target and kernel == run.calls[0].kernel
    assert seconds == predicted(kernel, target) == choose(kernel, target).cost.seconds > 0


def test_without_a_cost_it_is_missed() -> None:
    x = np.ones((3, 5), np.float32)
    (call,) = fuse(run_passes(graph_of(lambda x: x + 1, x))).calls
    with pytest.raises(NotImplementedError, match=r"PassContext\.cost is not set"):
        PassContext().cost(call.kernel, Target())


def test_observers_see_every_pass_and_those_of_steps() -> None:
    seen: list[str] = []

    def observe(name: str, before: Graph, after: Graph, seconds: float) -> None:
        assert isinstance(before, Graph) and isinstance(after, Graph) and seconds >= 0
        seen.append(name)

    names = [p.name for p in PASSES]
    x = np.ones((7, 3), np.float32)
    run_passes(graph_of(lambda x: x * 2, x), PassContext(observe=observe))
    assert seen == names
    seen.clear()
    recurrent = es.op("h[t,i] = where(t > 0, h[t-1,i] * x[t,i], x[t,i])")
    run_passes(graph_of(recurrent, x), PassContext(observe=observe))
    assert len(seen) > len(names) and seen[-1] == names[-1]


def cost_of_memory(kernel: Kernel, target: Target) -> float:
    return sum(b.nbytes for b in kernel.buffers) / target.memory_bandwidth + 1e-6


def find_idle(passes: Sequence[Pass], graph: Graph) -> tuple[set[str], set[str]]:
    """Run passes, also those that have nothing to rewrite. Return (these, of them those that changed something)."""
    idle, changing = set(), set()
    for p in passes:
        after = p.run(graph, PassContext(cost=cost_of_memory))
        if p.on and not p.on & occurrences(graph):
            idle.add(p.name)
            changing |= {p.name} if after is not graph else set()
        graph = after
    return idle, changing


def samples() -> Iterator[Graph]:
    """Graphs in which each kind occurs that passes are run for, and graphs in which it does not."""
    yield from map(drawn, range(40))
    programs: list[tuple[Callable, list[tuple]]] = [
        (lambda a, b, c: es.relu(a @ b + c), [(96, 64), (64, 48), (48,)]),
        (es.op("y[i] = sum[j](where(j <= i, x[j], 0.0))", extents={"i": "x.shape[0]"}), [(97,)]),
        (es.op("y[n] = 0.0\ny[i[p]] += x[p]\nreturn y", extents={"n": 7}), [(31,), (31,)]),
        (es.op("y[n,c,h] = x[n,c,i[n,h]]*f[n,h]"), [(3, 5, 7), (3, 4), (3, 4)]),
        (es.op("h[t,i] = where(t > 0, h[t-1,i] * x[t,i], x[t,i])"), [(7, 3)]),
        (lambda x: es.functional.max_pool2d(x, 2, return_indices=True), [(2, 3, 8, 8)]),
        (lambda x, y: es.functional.cat([es.tanh(x), es.exp(y)]), [(7, 3), (5, 3)]),
        (lambda n, x: es.compute((9,), lambda k: es.where(k < n, x[k], 0.0)), [(), (9,)]),
        (lambda x: es.functional.softmax(x, 1), [(7, 33)]),
    ]
    for f, shapes in programs:
        names = getattr(f, "inputs", [*"abc"])
        arguments = [(s, dt.i32 if n in "in" or s == () else dt.f32) for n, s in zip(names, shapes, strict=False)]
        yield trace_shapes(f, arguments).graph


def test_passes_change_nothing_where_none_of_their_kinds_occur() -> None:
    idle, kinds = set[str](), set[str]()
    for graph in samples():
        names, changing = find_idle(PASSES, graph)
        assert not changing
        idle |= names
        kinds |= occurrences(graph)
    assert idle == {p.name for p in PASSES if p.on}
    assert kinds >= {kind for p in PASSES for kind in p.on} - {"loop", "i64"}


def test_a_pass_that_is_wrongly_left_out_is_noticed() -> None:
    wrong = [replace(p, on=frozenset({"scatter"})) if p.name == "inline" else p for p in PASSES]
    assert any(find_idle(wrong, drawn(seed))[1] == {"inline"} for seed in range(20))


def test_a_pass_of_ones_own() -> None:
    x = np.ones((3, 5), np.float32)
    graph = graph_of(lambda x: (x + 1, x * 2), x)
    other = graph_pass("turned", lambda g: Graph(g.inputs, g.outputs[::-1], g.updates, g.checks), needs="loops")
    assert check_order((*PASSES, other))[-1].run(graph, PassContext()).outputs == graph.outputs[::-1]


def test_former_names_are_reported_with_the_present_ones(monkeypatch):
    assert set(pipeline.RENAMED.values()) <= set(pipeline.optional())
    for old, new in pipeline.RENAMED.items():
        monkeypatch.setenv("EINSMITH_WITHOUT", old)
        with pytest.raises(KnobError, match=f"{old!r}, which is no pass .*it is called {new!r} now"):
            run_passes(Graph((), (), (), ()))


def test_a_pass_has_one_name():
    """What is printed, the file and its function are the same words."""
    package = Path(pipeline.__file__).parent
    for p in PASSES:
        words = re.sub(r"[ -]", "_", p.name)
        (found,) = [*package.glob(f"a*/{words}.py"), *package.glob(f"recurrence/{words}.py")]
        assert re.search(rf"^def {words}\(", found.read_text(), re.M), p.name
