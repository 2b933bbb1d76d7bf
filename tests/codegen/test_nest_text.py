"""Loop nests as text."""

from __future__ import annotations

from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.nest_text import show
from einsmith.codegen.loopnest.splice import splice
from einsmith.codegen.ssa import If, Loop


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


def test_omitted_arguments_are_printed() -> None:
    b = Builder("masked", 1)
    x = b.load(b.buffers[0], b.const(0), "f32", 8, other=b.const(1.0, "f32", 8))
    b.store(x, b.buffers[0], b.const(0))
    assert show(b.finish()).splitlines()[1] == "  %5: f32x8 = load(%0, 0, None, f32x8(1.0))"


def test_known_places_fold() -> None:
    """Numbers stand for places; what is made of known ones is known, and what changes nothing is no instruction."""
    b = Builder("places", 1)
    for fn, x, y, want in (
        ("add", 3, 4, 7), ("sub", 3, 4, -1), ("mul", 3, 4, 12), ("floordiv", -7, 2, -4), ("mod", -7, 2, 1),
        ("min", 3, 4, 3), ("max", 3, 4, 4), ("lt", 3, 4, 1), ("le", 4, 3, 0), ("eq", 3, 3, 1), ("ne", 3, 3, 0),
    ):  # fmt: skip
        for one in (x, b.const(x)):
            assert b.known(b.op(fn, one, y)) == b.known(b.op(fn, one, b.const(y))) == want, fn
    n = b.task
    for same in (b.add(n, 0), b.add(0, n), b.sub(n, 0), b.mul(n, 1), b.mul(1, n), b.op("floordiv", n, 1)):
        assert same is n
    assert b.known(b.mul(n, 0)) == b.known(b.mul(0, n)) == b.known(b.op("mod", n, 1)) == 0 and b.known(n) is None
    assert b.select(b.op("lt", 1, 2), n, 5) is n and b.known(b.select(b.op("lt", 2, 1), n, 5)) == 5
    assert not b.body


def test_unknown_values_are_not_folded() -> None:
    b = Builder("places", 1)
    x = b.load(b.buffers[0], 0, "f32")
    before = len(b.body)
    made = [b.op("floordiv", 1, 0), b.sub(0, b.task), b.op("min", b.task, 0), b.op("max", 1, b.task)]
    made += [b.add(x, b.const(0.0, "f32")), b.mul(b.iota(4, "i32"), b.const(1, "i32", 4))]
    assert [b.known(v) for v in made] == [None] * 6 and len(b.body) == before + 6


def test_spliced_loops_and_branches_keep_what_is_said_of_them() -> None:
    part, whole = Builder("part", 1), Builder("whole", 1)
    with part.loop(0, part.task, unroll=4, runs=True), part.loop(0, part.task, seldom=True) as turn:
        with part.if_(part.op("lt", turn.var, part.task), seldom=True):
            part.store(part.const(0.0, "f32"), part.buffers[0], turn.var)
    splice(whole, part.finish(), whole.buffers, whole.scratch_base, whole.task)
    (outer,) = (x for x in whole.body if isinstance(x, Loop))
    (inner,) = (x for x in outer.body if isinstance(x, Loop))
    (branch,) = (x for x in inner.body if isinstance(x, If))
    assert (outer.unroll, outer.runs, outer.seldom) == (4, True, False)
    assert inner.seldom and not inner.runs and branch.seldom
