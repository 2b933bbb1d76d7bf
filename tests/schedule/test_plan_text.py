"""Plans, arenas and programs as text."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_shapes
from einsmith.base.dtypes import f32
from einsmith.cost.facts import Target
from einsmith.ir.loop import InputPlace, LoopSegment, LoweredLoop
from einsmith.ir.nodes import Graph, Item, postorder
from einsmith.ir.printer import show
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.arena import arena
from einsmith.schedule.plan import Plan
from einsmith.schedule.planner import fuse
from einsmith.schedule.printer import show_arena, show_plan


def graph_of(text: str, *shapes: tuple[int, ...]) -> Graph:
    return run_passes(trace_shapes(es.op(text), [(s, f32) for s in shapes]).graph)


def plan_of(text: str, *shapes: tuple[int, ...]) -> Plan:
    return fuse(graph_of(text, *shapes), None, Target())


def test_stages_and_what_they_store() -> None:
    plan = plan_of("P[i] = sum[k](A[i,k])\nY[i] = exp(P[i])\nreturn P, Y", (8, 3))
    assert show_plan(plan).splitlines() == [
        "call 0: kernel over [8] of in0: f32[8, 3], t0: f32[8], t1: f32[8]",
        "    s0[i0] = sum[r0](in0[i0, r0])  # i0 < 8, r0 < 3",
        "    t0 <- s0",
        "    s1[i0] = exp(s0[i0])  # i0 < 8",
        "    t1 <- s1",
    ]


def test_one_of_several_results_of_a_stage() -> None:
    plan = plan_of("M[i] = max[k](A[i,k])\nP[i] = argmax[k](A[i,k])\nreturn M, P", (8, 3))
    assert show_plan(plan).splitlines()[1:] == [
        "    s0[i0] = argmax[r0](in0[i0, r0])  # i0 < 8, r0 < 3",
        "    t0.0 <- s0.0",
        "    t0.1 <- s0.1",
    ]


def test_kernels_that_share_rows() -> None:
    softmax = "m[i] = max[k](x[i,k])\ns[i] = sum[k](exp(x[i,k] - m[i]))\ny[i,k] = exp(x[i,k] - m[i])/s[i]\nreturn y"
    first, *rest = show_plan(plan_of(softmax, (40, 50))).splitlines()
    assert first == "call 0: 40 rows of in0: f32[40, 50], t2: f32[40, 50]; local l0: f32[40], l1: f32[40]"
    assert rest[:3] == [
        "    kernel over [40] of in0: f32[40, 50], l0: f32[40]",
        "      s0[i0] = max[r0](in0[i0, r0])  # i0 < 40, r0 < 50",
        "      l0 <- s0",
    ]


def test_a_loop_has_the_plan_of_its_steps() -> None:
    text = "h[t,b] = tanh(x[t,b] + where(t > 0, h[t-1,b], 0.0))\ny[b] = 2*h[9,b]\nreturn y"
    assert show_plan(plan_of(text, (10, 4))).splitlines() == [
        "call 0, before its loop: kernel over [1, 4] of t0.0: f32[1, 4]",
        "    s0[i0, i1] = 0.0  # i0 < 1, i1 < 4",
        "    t0.0 <- s0",
        "call 0: loop of 10 steps",
        "  call 0: kernel over [4] of in1: f32[4], in0: f32[4], t0 in in0: f32[4]",
        "      s0[i0] = tanh(in1[i0] + in0[i0])  # i0 < 4",
        "      t0 in in0 <- s0",
        "call 1: kernel over [4] of t0.0: f32[1, 4], t2: f32[4]",
        "    s0[i0] = t0.0[0, i0]*2.0  # i0 < 4",
        "    t2 <- s0",
    ]


def test_a_loop_in_a_graph() -> None:
    """Slices of time, whole tensors, state in its place; where several steps are one, they have rows."""
    text = "h[t,b] = tanh(x[t,b] + sum[k](W[b,k]*where(t > 0, h[t-1,k], 0.0)))\nreturn h"
    assert show(graph_of(text, (10, 4), (4, 4))).splitlines() == [
        "inputs in0: f32[10, 4], in1: f32[4, 4]",
        "t0 = loop:",
        "  f32[11, 4] t0.1[i0, i1] = 0.0  # i0 < 1, i1 < 4",
        "  10 steps:",
        "    in0 = outer t0.1[t]",
        "    in1 = outer in1",
        "    in2 = outer in0[t]",
        "    f32[4] t0[i0] = sum[r0](in1[i0, r0]*in0[r0])  # i0 < 4, r0 < 4",
        "    f32[4] t1[i0] = tanh(t0[i0] + in2[i0])  # i0 < 4",
        "    outer t0.1[t + 1] <- t1",
        "f32[10, 4] t2[i0, i1] = t0.1[i0 + 1, i1]  # i0 < 10, i1 < 4",
        "return t2",
    ]
    text = "h[t,b] = tanh(x[t,b] + where(t > 0, h[t-1,b], 0.0))\ny[b] = 2*h[9,b]\nreturn y"
    lines = show(graph_of(text, (10, 4))).splitlines()
    assert "    in0 = outer t0.0[0]" in lines and "    update in0 <- t0" in lines
    (node,) = [n for n in postorder(graph_of(text, (10, 4)).roots) if isinstance(n, LoweredLoop)]
    (s,) = node.segments
    places = (InputPlace("member", 0, 3, -2, 4), InputPlace("argument", 0, 0, 5))
    other = LoopSegment(s.steps, s.body, places, ((0, 1),) * len(s.body.outputs), 1, 2, (), 4)
    loop = LoweredLoop(True, node.results, (), (other,), (*node.args, *node.args, *node.args))
    shown = show(Graph(node.args, (Item(loop, 0),), (), ())).splitlines()
    assert shown[1:5] == [
        "t0 = loop, of each segment the last step first:",
        "  10 steps from in0 before in0:",
        "    in0 = outer t0.0[-2*t + 3 : -2*t + 7]",
        "    in1 = outer in0[5*t]",
    ]


def test_an_update_goes_to_its_leafs_memory() -> None:
    graph = graph_of("W1[i] = W[i] - G[i]", (8,), (8,))
    w, new = graph.inputs[0], graph.outputs[0]
    text = show_plan(fuse(Graph(graph.inputs, (), ((w, new),), ()), None, Target()))
    assert "t0 in in0 <- s0" in text


def test_the_arena_says_what_lies_where_and_when() -> None:
    plan = plan_of("P[i] = sum[k](A[i,k])\nS[] = sum[i](P[i])\nY[i] = P[i]/S[]\nreturn Y", (8, 3))
    outside = {*plan.graph.inputs, *plan.graph.outputs}
    at, nbytes = arena(plan, outside, {0: 100})
    text = show_arena(plan, outside, at, nbytes)
    assert text.splitlines()[0] == f"arena of {nbytes} bytes" and f"  workspace of call 0: from byte {at[0]} on" in text
    placed = {t: n for t, n in at.items() if not isinstance(t, int)}
    assert len(placed) == 2 and all(f": bytes {n} .. " in text for n in placed.values())


def test_a_program_that_is_compiled_is_printed_at_level_6(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EINSMITH_DEBUG", "6")
    es.op("Y[i] = sum[k](X[i,k])*0.25 + 3")(np.zeros((5, 7), np.float32))
    text = capsys.readouterr().err
    plan, program = text.split("--- plan\n")[1].split("--- program\n")
    assert "kernel over [5] of in0: f32[5, 7], t1: f32[5]" in plan and "arena of " in plan
    assert program.splitlines()[0] == "step 0: kernel 0, 1 tasks, of in0, t1, workspace"
