"""Cooperative functions: grid barriers in every way to run them, and loops made one such function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.random import Generator, default_rng

from einsmith.base.errors import CompileError, VerifyError
from einsmith.codegen.ssa import Loop, Op, SSAValue, operations
from einsmith.gpu.tiles.ir import TileBuilder, TileFunction, TileParameter
from einsmith.gpu.tiles.persistent import TurnAccess, TurnLaunch, barriers, combine
from einsmith.gpu.tiles.triton_text import triton_text
from einsmith.gpu.tiles.verify import verify
from tests.tiles import card, stand_in
from tests.tiles.memory import Fault, Memory
from tests.tiles.test_ir import WATCHED, memory

LANES = 4


def rotating(programs: int, turns: int) -> TileFunction:
    """In each turn each program adds 1 to what its neighbour had, of which there are two copies in turns."""
    b = TileBuilder("rotate")
    size = programs * LANES
    x = b.parameter(TileParameter("f32", 2 * size, 0))
    counter = b.parameter(TileParameter("i32", 1, 1))
    program, lane = b.program(), b.arange(LANES)
    with b.loop(0, turns, 1) as loop:
        here = b.op("mul", b.op("rem", loop.var, 2), size)
        there = b.op("sub", b.const(size), here)
        neighbour = b.op("rem", b.op("add", program, 1), programs)
        value = b.load(x, b.op("add", b.op("add", here, b.op("mul", neighbour, LANES)), lane))
        to = b.op("add", b.op("add", there, b.op("mul", program, LANES)), lane)
        b.store(x, to, b.op("add", value, b.const(1.0, "f32")))
        b.grid_barrier(counter)
    return b.finish(programs, cooperative=True)


def without_barrier(f: TileFunction, number: int = 0) -> TileFunction:
    """The function without its grid barrier of a number."""
    dropped = [x for x in operations(f.body) if x.name == "grid_barrier"][number]

    def kept(body: list[Op | Loop]) -> list[Op | Loop]:
        return [replace(x, body=kept(x.body)) if isinstance(x, Loop) else x for x in body if x is not dropped]

    return replace(f, body=kept(f.body))


def run(way: str, f: TileFunction, *arrays: np.ndarray, order: Callable = range) -> None:
    verify(f)
    held: list[Memory] = [memory(a, p.elem) for a, p in zip(arrays, f.parameters, strict=True)]
    WATCHED[way]([f], lambda p: held[p.buffer], order)


def shuffled(n: int) -> list[int]:
    return default_rng().permutation(n).tolist()


@pytest.mark.parametrize("way", WATCHED)
@pytest.mark.parametrize("programs", [1, 2, 5])
@pytest.mark.parametrize("turns", [0, 1, 7])
def test_programs_wait_for_each_other(way: str, programs: int, turns: int) -> None:
    x = np.arange(2 * programs * LANES, dtype=np.float32)
    want = x.reshape(2, programs, LANES).copy()
    for t in range(turns):
        want[1 - t % 2] = np.roll(want[t % 2], -1, 0) + 1
    counter = np.zeros(1, np.int32)
    for _ in range(2):  # the counter is left as it must be found
        run(way, rotating(programs, turns), y := x.copy(), counter, order=shuffled)
        np.testing.assert_array_equal(y, want.reshape(-1))
    assert counter[0] & 0x7FFFFFFF == 0


@pytest.mark.parametrize("way", WATCHED)
@pytest.mark.parametrize("programs", [1, 3])
def test_a_missing_grid_barrier_is_a_fault(way: str, programs: int) -> None:
    with pytest.raises(Fault):
        run(
            way,
            without_barrier(rotating(programs, 4)),
            np.zeros(2 * programs * LANES, np.float32),
            np.zeros(1, np.int32),
            order=shuffled,
        )


@pytest.mark.parametrize("way", WATCHED)
def test_a_program_that_does_not_come_is_a_fault(way: str) -> None:
    """Which `verify` refuses, too."""
    b = TileBuilder("f")
    counter = b.parameter(TileParameter("i32", 1, 0))
    b.end_if(b.op("eq", b.program(), 1))
    b.grid_barrier(counter)
    f, held = b.finish(3, cooperative=True), memory(np.zeros(1, np.int32), "i32")
    with pytest.raises(VerifyError, match="some programs may end"):
        verify(f)
    with pytest.raises(Fault, match="wait at a grid barrier"):
        WATCHED[way]([f], lambda p: held)


TEXTS = {
    "lanes that are at work": ("step):\n    tl.debug_barrier()", "step):"),
    "an early end of the wait": (">= 0:", "< 0:"),
    "a counter that is not full": (r"tl.program_id(0) == 0, 2147483646", r"tl.program_id(0) == 0, 2147483645"),
    "no release": ('step, sem="acq_rel"', 'step, sem="acquire"'),
    "no acquisition": ('0, sem="acquire"', '0, sem="release"'),
    "the level 1 cache": (', cache_modifier=".cg"', ""),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_faults_of_the_text_are_noticed(name: str) -> None:
    f, (before, after) = rotating(3, 4), TEXTS[name]
    text = triton_text([f])
    assert before in text
    for source, fails in ((text, False), (text.replace(before, after), True)):
        held = [memory(np.zeros(6 * LANES, np.float32), "f32"), memory(np.zeros(1, np.int32), "i32")]
        if fails:
            with pytest.raises(Fault):
                stand_in.run(source, [f], lambda p, held=held: held[p.buffer])
        else:
            stand_in.run(source, [f], lambda p, held=held: held[p.buffer])


def refused(make: Callable[[TileBuilder, int, int], None], cooperative: bool = True) -> str:
    b = TileBuilder("f")
    counter, x = b.parameter(TileParameter("i32", 1, 0)), b.parameter(TileParameter("i32", 2, 1))
    make(b, counter, x)
    try:
        verify(b.finish(4, cooperative))
    except VerifyError as e:
        return str(e)
    return ""


def test_rules_of_grid_barriers() -> None:
    def in_loop(end: Callable[[TileBuilder, int], SSAValue]) -> Callable[[TileBuilder, int, int], None]:
        def make(b: TileBuilder, counter: int, x: int) -> None:
            with b.loop(b.const(0), end(b, x), 1):
                b.grid_barrier(counter)

        return make

    def nested(b: TileBuilder, counter: int, x: int) -> None:
        with b.loop(0, 3, 1) as loop, b.loop(loop.var, b.load(x, loop.var), 1):
            b.grid_barrier(counter)

    def stored(b: TileBuilder, counter: int, x: int) -> None:
        in_loop(lambda b, x: b.load(x, b.const(0)))(b, counter, x)
        b.store(x, b.program(), b.const(1))

    def touched(b: TileBuilder, counter: int, x: int) -> None:
        b.load(counter, b.const(0))
        b.grid_barrier(counter)

    assert not refused(lambda b, counter, x: b.grid_barrier(counter))
    assert not refused(in_loop(lambda b, x: b.load(x, b.const(1)))) and not refused(nested)
    assert "not cooperative" in refused(lambda b, counter, x: b.grid_barrier(counter), False)
    assert "may differ" in refused(in_loop(lambda b, x: b.program()))
    assert "may differ" in refused(in_loop(lambda b, x: b.load(x, b.program())))
    assert "may differ" in refused(stored)
    assert "is accessed" in refused(touched)
    assert "one i32" in refused(lambda b, counter, x: b.grid_barrier(x))


def test_functions_that_end_become_no_part_of_another() -> None:
    b = TileBuilder("f")
    b.end_if(b.op("eq", b.program(), 0))
    other = TileBuilder("g")
    with pytest.raises(CompileError, match="end_if"):
        other.inline(b.finish(2), other.program(), [])


# -- barriers of loops


def random_accesses(rng: Generator) -> list[list[TurnAccess]]:
    return [
        [
            TurnAccess(*rng.integers([0, -6, 1], [60, 7, 9]).tolist(), bool(rng.integers(3) == 0))
            for _ in range(rng.integers(1, 4))
        ]
        for _ in range(rng.integers(1, 5))
    ]


def is_ordered(accesses: list[list[TurnAccess]], turns: int, reverse: bool, before: set[int]) -> bool:
    """Whether no byte is stored and accessed by two launches without a barrier in between, by sets of bytes."""
    loaded: set[int] = set()
    stored: set[int] = set()
    for t in reversed(range(turns)) if reverse else range(turns):
        for n, launch in enumerate(accesses):
            if n in before:
                loaded, stored = set(), set()
            sets: list[set[int]] = [set(), set()]
            for x in launch:
                sets[x.stores].update(range(x.start + t * x.delta, x.start + t * x.delta + x.nbytes))
            if stored & (sets[0] | sets[1]) or loaded & sets[1]:
                return False
            loaded, stored = loaded | sets[0], stored | sets[1]
    return True


def test_barriers_order_what_must_be_ordered(rng: Generator) -> None:
    some = none = 0
    for _ in range(300):
        accesses, turns, reverse = random_accesses(rng), int(rng.integers(1, 6)), bool(rng.integers(2))
        found = barriers(accesses, turns, reverse)
        assert is_ordered(accesses, turns, reverse, found)
        assert not found or not is_ordered(accesses, turns, reverse, set())
        some, none = some + bool(found), none + (not found)
    assert some > 50 and none > 20


# -- loops as one function


def copying(name: str, programs: int, size: int, reads: int) -> TileFunction:
    """A program stores LANES sums of elements of `reads` memories, the last of which is read in reverse."""
    b = TileBuilder(name)
    at = b.op("add", b.op("mul", b.program(), LANES), b.arange(LANES))
    mask = b.op("lt", at, size)
    total = b.full((LANES,), 0.5, "f32")
    with b.loop(0, 2, 1, [total]) as loop:
        carried = loop.carried[0]
        for n in range(reads):
            where = b.op("sub", b.const(size - 1), at) if n == reads - 1 else at
            carried = b.op("add", carried, b.load(b.parameter(TileParameter("f32", size, n)), where, mask))
        loop.next = [b.op("mul", carried, b.const(0.5, "f32"))]
    b.store(b.parameter(TileParameter("f32", size, reads)), at, loop.results[0], mask)
    return b.finish(programs)


BASE = 1 << 20


def loop_of(size: int, turns: int) -> tuple[list[TurnLaunch], int]:
    """u = f(x[t], h[t]); h[t+1] = g(u): memory x, h, u, of `size` floats each turn, and its bytes."""
    row, blocks = 4 * size, -(-size // LANES)
    x, h, u = BASE, BASE + turns * row, BASE + (2 * turns + 1) * row
    f = TurnLaunch(copying("f", blocks, size, 2), [x, h, u], [row, row, 0])
    g = TurnLaunch(copying("g", blocks, size, 1), [u, h + row], [0, row])
    return [f, g], u + row - BASE


def one_by_one(launches: list[TurnLaunch], turns: list[int], raw: np.ndarray) -> None:
    for t in turns:
        for x in launches:
            at = [a + d * t - BASE for a, d in zip(x.addresses, x.deltas, strict=True)]
            held = [memory(raw[a : a + p.nbytes], "f32") for a, p in zip(at, x.function.parameters, strict=True)]
            WATCHED["interpreter"]([x.function], lambda p, held=held: held[p.buffer])


def in_one(way: str, made, f: TileFunction, raw: np.ndarray, words: dict[int, np.ndarray]) -> None:
    held = {}
    for n, (at, p) in enumerate(zip(made.addresses, f.parameters, strict=True)):
        held[n] = memory(words[at] if at in words else raw[at - BASE : at - BASE + p.nbytes], p.elem)
    verify(f)
    WATCHED[way]([f], lambda p: held[p.buffer], shuffled)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("way", WATCHED)
@pytest.mark.parametrize("most", [1, 2, 3, 9])
@pytest.mark.parametrize("bounds", [None, (0, 4), (2, 9), (-3, 2), (3, 1), (1, -5)])
def test_a_loop_gives_what_its_launches_give(way: str, most: int, bounds: tuple[int, int] | None) -> None:
    turns, size = 5, 11
    launches, nbytes = loop_of(size, turns)
    reverse = most == 2
    if reverse:  # h[t] = g(f(x[t], h[t+1]))
        (f, g) = launches
        launches = [f._replace(addresses=[f.addresses[0], g.addresses[1], f.addresses[2]]),
                    g._replace(addresses=[g.addresses[0], f.addresses[1]])]  # fmt: skip
    words = {8: np.zeros(1, np.int32)} | {16 * (n + 1): np.array([v], np.int64) for n, v in enumerate(bounds or ())}
    at = (16, 32) if bounds else (0, 0)
    made = combine("loop", launches, turns, reverse, most, 8, *at)
    assert made is not None and made.function.programs == min(most, 3)
    assert len(made.addresses) == 4 + 2 * bool(bounds) and made.rounds == (-(-3 // min(most, 3)),) * 2
    run_turns = list(range(turns) if bounds is None else range(max(0, bounds[0]), min(turns, bounds[1])))
    raw = default_rng().standard_normal(nbytes // 4).astype(np.float32).view(np.uint8)
    want = raw.copy()
    one_by_one(launches, run_turns[::-1] if reverse else run_turns, want)
    in_one(way, made, made.function, got := raw.copy(), words)
    np.testing.assert_array_equal(got.view(np.float32), want.view(np.float32))
    for n in range(2):
        if len(run_turns) > 1:
            with pytest.raises(Fault):
                in_one(way, made, without_barrier(made.function, n), raw.copy(), words)


def test_loops_that_stay_launches() -> None:
    def made(launches: list[TurnLaunch]):
        return combine("loop", launches, 5, False, 4, 8)

    (f, g), _ = loop_of(8, 5)
    assert made([f, g])
    assert made([f._replace(deltas=[30, 32, 0]), g]) is None  # by no whole elements
    b = TileBuilder("e")
    b.end_if(b.op("eq", b.load(b.parameter(TileParameter("i32", 1, 0)), b.const(0)), 0))
    assert made([f, g, TurnLaunch(b.finish(1), [64], [0])]) is None
    c = TileBuilder("c")  # other elements in memory that is stored
    c.store(c.parameter(TileParameter("i32", 8, 0)), c.arange(8), c.arange(8))
    assert made([f, g, TurnLaunch(c.finish(1), [g.addresses[0]], [0])]) is None
    assert made([f._replace(addresses=[BASE, BASE, BASE + 4096], deltas=[32, 32, 32])]) is None  # independent turns


def test_offsets_of_large_memory_have_64_bits() -> None:
    b = TileBuilder("f")
    size = 1 << 20
    b.store(b.parameter(TileParameter("f32", size, 0)), b.arange(8), b.full((8,), 1.0, "f32"))
    launch = TurnLaunch(b.finish(1), [BASE], [4 * size - 4])
    made = combine("loop", [launch], 5000, False, 4, 8)
    assert made is not None and made.function.parameters[0].size > 2**31
    verify(made.function)
    (stored,) = [x for x in operations(made.function.body) if x.name == "store"]
    assert stored.args[0] is not None and stored.args[0].elem == "i64"


def test_the_text_compiles_for_a_card() -> None:
    pytest.importorskip("triton", reason="compiles by Triton")
    pytest.importorskip("torch", reason="tells which card there is")
    launches, _ = loop_of(11, 5)
    made = combine("loop", launches, 5, True, 2, 8, 16, 32)
    assert made is not None
    types = tuple({"f32": "*fp32:16", "i32": "*i32:16", "i64": "*i64:16"}[p.elem] for p in made.function.parameters)
    kernel = card.compiled(triton_text([made.function]), "loop", types, card.Shape())
    ptx = kernel.asm["ptx"]
    assert "atom.global.gpu.acq_rel.add" in ptx and "ld.global.gpu.acquire" in ptx and "ld.global.cg" in ptx
