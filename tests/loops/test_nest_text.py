"""Loop nests as text."""

from __future__ import annotations

from einsmith.loops.nest import Builder, show


def test_constants_stand_where_they_are_used() -> None:
    b = Builder("sums", 2)
    with b.loop(0, 24, 8, init=[b.const(0.0, "f32", 8)]) as i:
        i.next = [b.add(i.carried[0], b.load(b.buffers[0], i.var, "f32", 8))]
    with b.if_(b.op("lt", b.task, b.const(3))):
        b.store(b.mul(i.results[0], b.const(0.5, "f32", 8)), b.buffers[1], b.mul(b.task, b.const(8)))
    assert show(b.finish()).splitlines() == [
        "function sums(%0, %1, scratch %2, task %3)",
        "  for %7 in range(0, 24, 8), %8=f32x8(0.0):",
        "    %10: f32x8 = load(%0, %7)",
        "    %11: f32x8 = add(%8, %10)",
        "    yield %11 -> %9",
        "  %13: i1 = lt(%3, 3)",
        "  if %13:",
        "    %15: f32x8 = mul(%9, f32x8(0.5))",
        "    %17: i64 = mul(%3, 8)",
        "    store(%1, %17, %15)",
    ]


def test_what_is_left_out_before_other_arguments_is_shown() -> None:
    b = Builder("masked", 1)
    x = b.load(b.buffers[0], b.const(0), "f32", 8, other=b.const(1.0, "f32", 8))
    b.store(x, b.buffers[0], b.const(0))
    assert show(b.finish()).splitlines()[1] == "  %5: f32x8 = load(%0, 0, None, f32x8(1.0))"
