"""The tile IR: every operation means the same to the interpreter and, as printed text, to the stand-in for Triton; what
breaks a rule is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from einsmith.base.errors import CompileError, VerifyError
from einsmith.codegen.ssa import BYTES, Op, SSAValue, Type
from einsmith.gpu.tiles.ir import TileBuilder, TileFunction, TileParameter
from einsmith.gpu.tiles.triton_text import triton_text
from einsmith.gpu.tiles.verify import verify
from tests.tiles import card, interp, stand_in
from tests.tiles.memory import NUMPY, Memory, rounded_to_bf16

WATCHED = {
    "interpreter": interp.run,
    "text": lambda functions, find, order=range: stand_in.run(triton_text(functions), functions, find, order),
}
"""Ways to run functions that notice accesses which a card would leave to chance."""
RUNS = WATCHED if card.missing() else {**WATCHED, "card": lambda functions, find: card.run(functions, find)}
in_every_way = pytest.mark.parametrize("way", RUNS)


def memory(a: np.ndarray, elem: str) -> Memory:
    return Memory(a.reshape(-1).view(np.uint8), elem, "a buffer")


def run(way: str, f: TileFunction, *arrays: np.ndarray) -> None:
    """A function whose buffers are arrays, which are changed."""
    verify(f)
    held = [memory(a, f.parameters[n].elem) for n, a in enumerate(arrays)]
    RUNS[way]([f], lambda p: held[p.buffer])


def of_arrays(make: Callable[..., SSAValue], *arrays: np.ndarray, out: str) -> TileFunction:
    """make(builder, the arrays as tiles) stored as a tile of `out`."""
    b, n = TileBuilder("f"), arrays[0].size
    at = b.arange(n)
    names = {np.dtype(v): k for k, v in NUMPY.items() if k != "bf16"}
    tiles = [b.load(b.parameter(TileParameter(names[a.dtype], n, k)), at) for k, a in enumerate(arrays)]
    result = make(b, *tiles)
    to = b.parameter(TileParameter(out, n, len(arrays)))
    b.store(to, at, b.select(result, b.const(1, "i8"), b.const(0, "i8")) if result.elem == "i1" else result)
    return b.finish(1)


def applied(way: str, make: Callable[..., SSAValue], *arrays: np.ndarray, out: str) -> np.ndarray:
    result = np.zeros(arrays[0].size, NUMPY[out])
    run(way, of_arrays(make, *arrays, out=out), *arrays, result)
    return result


INTS = np.array([0, 1, -1, 7, -7, 3, -3, 2**31 - 1, -(2**31), 100, -100, 5, 6, 8, -8, 12], np.int32)
OTHER = np.array([3, -3, 7, 2, 2, -2, -2, -5, 3, 7, 7, 1, 5, 3, 3, -4], np.int32)
NUMBERS = np.array([0.0, -0.0, 1.5, -1.5, np.nan, np.inf, -np.inf, 7.25, -7.25, 1e-30, 1e30, 3, -3, 0.1, 2, 10])
MORE = np.array([1.0, 2.0, np.nan, 0.5, 2.0, 3.0, np.inf, 2.0, 2.0, -1e-30, np.nan, -2, 2, 0.3, -2, np.inf])


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide, by = a.astype(np.int64), b.astype(np.int64)
    return np.abs(wide) // np.abs(by) * np.sign(wide) * np.sign(by)


WHOLE = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "quot": truncated,
    "rem": lambda a, b: a - truncated(a, b).astype(a.dtype) * b, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


@in_every_way
@pytest.mark.parametrize("fn", WHOLE)
def test_integers_wrap_and_divide_towards_zero(way: str, fn: str) -> None:
    with np.errstate(all="ignore"):
        want = WHOLE[fn](INTS, OTHER).astype(np.int32)
    out = "i8" if fn in ("lt", "le", "eq", "ne") else "i32"
    got = applied(way, lambda b, x, y: b.op(fn, x, y), INTS, OTHER, out=out)
    np.testing.assert_array_equal(got, want)


FLOAT = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
    "rem": np.fmod, "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


@in_every_way
@pytest.mark.parametrize("elem", ["f32", "f64"])
@pytest.mark.parametrize("fn", FLOAT)
def test_floats_keep_nan(way: str, fn: str, elem: str) -> None:
    x, y = NUMBERS.astype(NUMPY[elem]), MORE.astype(NUMPY[elem])
    with np.errstate(all="ignore"):
        want = FLOAT[fn](x, y)
    out = "i8" if fn in ("lt", "le", "eq", "ne") else elem
    np.testing.assert_array_equal(applied(way, lambda b, x, y: b.op(fn, x, y), x, y, out=out), want)


@in_every_way
@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_remainders_of_floats_are_exact(way: str, elem: str) -> None:
    """However large the quotient is, which no rounded one gives."""
    x, y = np.array([1e30, -1e30, 1e22, -7.5], NUMPY[elem]), np.array([3, 3, 1e-5, -2], NUMPY[elem])
    want = [np.fmod(a, b) for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(applied(way, lambda b, x, y: b.op("rem", x, y), x, y, out=elem), want)


@in_every_way
@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_zeros_keep_their_sign(way: str, elem: str) -> None:
    """Those of literals and of what is negated."""
    x = np.array([0.0, -0.0], NUMPY[elem])
    got = applied(way, lambda b, x: b.op("neg", x), x, out=elem)
    np.testing.assert_array_equal(np.signbit(got), [True, False])
    got = applied(way, lambda b, x: b.full(x.shape, -0.0, elem), x, out=elem)
    np.testing.assert_array_equal(np.signbit(got), [True, True])


@in_every_way
@pytest.mark.parametrize("elem", ["f16", "bf16"])
def test_literals_of_memory_keep_their_sign(way: str, elem: str) -> None:
    b, out = TileBuilder("f"), np.zeros(4, np.uint16)
    b.store(b.parameter(TileParameter(elem, 4, 0)), b.arange(4), b.full((4,), -0.0, elem))
    run(way, b.finish(1), out)
    np.testing.assert_array_equal(out, np.full(4, 0x8000))


@in_every_way
def test_one_operand(way: str) -> None:
    x = NUMBERS.astype(np.float32)
    with np.errstate(all="ignore"):
        for fn, want in (("neg", -x), ("abs", np.abs(x)), ("floor", np.floor(x)), ("sqrt", np.sqrt(x))):
            np.testing.assert_array_equal(applied(way, lambda b, x, fn=fn: b.op(fn, x), x, out="f32"), want)
        wide = NUMBERS.copy()
        for fn in ("sin", "cos"):
            got = applied(way, lambda b, x, fn=fn: b.op(fn, x), wide, out="f64")
            np.testing.assert_allclose(got, getattr(np, fn)(wide), rtol=4e-16)  # libraries differ in the last place
    got = applied(way, lambda b, x: b.op("not", b.op("lt", x, 0)), INTS, out="i8")
    np.testing.assert_array_equal(got, ~(INTS < 0))


@in_every_way
def test_shifts_and_bits(way: str) -> None:
    unsigned = INTS.view(np.uint32)
    for fn, want in (("shl", INTS << 3), ("sar", INTS >> 3), ("shr", (unsigned >> np.uint32(3)).view(np.int32))):
        got = applied(way, lambda b, x, fn=fn: b.shift(fn, x, 3), INTS, out="i32")
        np.testing.assert_array_equal(got, want)
    got = applied(way, lambda b, x: b.bitcast(x, "f32"), INTS, out="f32")
    np.testing.assert_array_equal(got, INTS.view(np.float32))


@in_every_way
def test_casts(way: str) -> None:
    x = np.array([0, 0.5, -0.5, 1.75, -1.75, 1e9, -1e9, 3.1], np.float32)
    np.testing.assert_array_equal(applied(way, lambda b, x: b.cast(x, "i32"), x, out="i32"), x.astype(np.int32))
    np.testing.assert_array_equal(applied(way, lambda b, x: b.cast(x, "i8"), INTS, out="i8"), INTS.astype(np.int8))
    np.testing.assert_array_equal(applied(way, lambda b, x: b.cast(x, "f32"), INTS, out="f32"), INTS.astype(np.float32))
    half = applied(way, lambda b, x: b.cast(b.cast(x, "f16"), "f32"), x, out="f32")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(half, x.astype(np.float16).astype(np.float32))
    brief = applied(way, lambda b, x: b.cast(b.cast(x, "bf16"), "f32"), x, out="f32")
    np.testing.assert_array_equal(brief, rounded_to_bf16(x))


@in_every_way
@pytest.mark.parametrize(
    "value,elem", [(0.1, "f64"), (np.nan, "f32"), (-np.inf, "f64"), (2**40, "i64"), (-(2**31), "i32")]
)
def test_literals_keep_their_type(way: str, value: float, elem: str) -> None:
    x = np.ones(4, NUMPY[elem])
    got = applied(way, lambda b, x: b.op("mul", x, b.const(value, elem)), x, out=elem)
    np.testing.assert_array_equal(got, np.full(4, value, NUMPY[elem]))


@in_every_way
@pytest.mark.parametrize(
    "precision,error", [("ieee", 1e-6), ("tf32", 5e-3), ("tf32x3", 4e-6), ("bf16", 4e-2), ("bf16x3", 2e-4)]
)
def test_dot(way: str, precision: str, error: float, rng) -> None:
    a, c = rng.standard_normal((16, 32)).astype(np.float32), rng.standard_normal((32, 16)).astype(np.float32)
    b = TileBuilder("f")
    row, column = b.expand(b.arange(16), 1), b.expand(b.arange(16), 0)
    k, j = b.expand(b.arange(32), 0), b.expand(b.arange(32), 1)
    x = b.load(b.parameter(TileParameter("f32", 512, 0)), b.op("add", b.op("mul", row, 32), k))
    y = b.load(b.parameter(TileParameter("f32", 512, 1)), b.op("add", b.op("mul", j, 16), column))
    total = b.dot(x, y, b.full((16, 16), 1.0, "f32"), precision)
    b.store(b.parameter(TileParameter("f32", 256, 2)), b.op("add", b.op("mul", row, 16), column), total)
    out = np.zeros((16, 16), np.float32)
    run(way, b.finish(1), a, c, out)
    np.testing.assert_allclose(out, 1 + a.astype(np.float64) @ c, atol=30 * error, rtol=error)
    if precision in ("tf32", "bf16"):
        assert np.abs(out - (1 + a.astype(np.float64) @ c)).max() > error / 100


@in_every_way
@pytest.mark.parametrize("elem", ["f32", "i32"])
@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_reduce(way: str, combiner: str, elem: str, rng) -> None:
    x = rng.integers(-2, 3, (4, 8)).astype(NUMPY[elem])
    if elem == "f32":
        x[1, 3] = x[1, 5] = np.nan
    for axis in (0, 1):
        b = TileBuilder("f")
        row, column = b.expand(b.arange(4), 1), b.expand(b.arange(8), 0)
        tile = b.load(b.parameter(TileParameter(elem, 32, 0)), b.op("add", b.op("mul", row, 8), column))
        places = b.broadcast(row if axis == 0 else column, (4, 8))
        arg = combiner.startswith("arg")
        found = b.reduce(combiner, axis, *([tile, places] if arg else [tile]))
        at = b.arange(8 if axis == 0 else 4)
        outs = [np.zeros(at.shape, NUMPY[v.elem]) for v in found]
        for n, v in enumerate(found):
            b.store(b.parameter(TileParameter(v.elem, at.shape[0], 1 + n)), at, v)
        run(way, b.finish(1), x, *outs)
        want = getattr(np, combiner[3:] if arg else combiner)(x, axis=axis)
        np.testing.assert_array_equal(outs[0], want)
        if arg:
            np.testing.assert_array_equal(outs[1], getattr(np, combiner)(x, axis=axis))


@in_every_way
def test_loops_carry_and_may_make_no_turn(way: str) -> None:
    b = TileBuilder("f")
    out = b.parameter(TileParameter("i32", 8, 0))
    program = b.program()
    with b.loop(b.op("mul", program, 3), 10, 2, [b.const(0), b.const(1)]) as loop:
        total, count = loop.carried
        loop.next = [b.op("add", total, loop.var), b.op("add", count, 1)]
    b.store(out, b.op("mul", program, 2), loop.results[0])
    b.store(out, b.op("add", b.op("mul", program, 2), 1), loop.results[1])
    got = np.zeros(8, np.int32)
    run(way, b.finish(4), got)
    np.testing.assert_array_equal(got, [20, 6, 3 + 5 + 7 + 9, 5, 6 + 8, 3, 9, 2])
    b = TileBuilder("f")
    with b.loop(5, 5, 1, [b.const(7)]) as loop:
        loop.next = [b.op("add", loop.carried[0], 1)]
    b.store(b.parameter(TileParameter("i32", 1, 0)), b.const(0), loop.results[0])
    one = np.zeros(1, np.int32)
    run(way, b.finish(1), one)
    assert one[0] == 7


@in_every_way
def test_masked_lanes_are_not_touched_and_give_zero(way: str) -> None:
    b = TileBuilder("f")
    lane = b.arange(8)
    at = b.op("mul", lane, 1000)  # most of them far outside
    x = b.load(b.parameter(TileParameter("f32", 3, 0)), at, b.op("lt", lane, 1))
    b.store(b.parameter(TileParameter("f32", 8, 1)), lane, b.op("add", x, b.const(1.0, "f32")), b.op("ne", lane, 5))
    out = np.full(8, -1, np.float32)
    run(way, b.finish(1), np.array([4, 5, 6], np.float32), out)
    np.testing.assert_array_equal(out, [5, 1, 1, 1, 1, -1, 1, 1])


def test_equal_instructions_are_shared() -> None:
    b = TileBuilder("f")
    x = b.arange(8)
    assert b.op("add", x, 3) is b.op("add", x, 3) and b.op("mul", x, 1) is x and b.op("add", 0, x) is x
    assert b.known(b.op("mul", b.const(6), 7)) == 42 and b.known(b.op("quot", b.const(-7), 2)) == -3
    assert b.known(b.op("quot", b.const(7), -2)) == -3 and b.known(b.op("rem", b.const(-7), 2)) == -1
    assert b.known(b.shift("shr", b.const(-1), 28)) == 15 and b.known(b.shift("shl", b.const(3), 31)) == -(2**31)
    assert b.known(b.bitcast(b.const(0x3F800000), "f32")) == 1.0
    held = b.op("lt", x, 3)
    assert b.op("and", held, b.const(True, "i1")) is held and b.known(b.op("and", held, b.const(False, "i1"))) is False
    assert b.known(b.op("or", held, b.const(True, "i1"))) is True and b.conjoin([held, held]) is held
    with b.loop(0, 4, 1) as loop:
        inner = b.op("add", loop.var, 9)
    assert b.op("add", x, 3) in [v for y in b._blocks[0] for v in y.results] and inner is not b.op("add", x, 9)


# ------------------------------------------------------------------------------------------------------------- verify


def _changed(f: TileFunction, of: str, **fields) -> TileFunction:
    """The function with other fields of its first instruction of a name."""
    for n, x in enumerate(f.body):
        if isinstance(x, Op) and x.name == of:
            values = {k: getattr(x, k) for k in ("name", "args", "results", "attrs", "memory")} | fields
            return replace(f, body=[*f.body[:n], Op(**values), *f.body[n + 1 :]])
    raise AssertionError(of)


def _sound() -> TileFunction:
    b = TileBuilder("f")
    at = b.arange(8)
    x = b.load(b.parameter(TileParameter("f32", 8, 0)), at, b.op("lt", at, 5))
    y = b.op("add", b.op("mul", x, x), b.cast(at, "f32"))
    tile = b.broadcast(b.expand(y, 1), (8, 16))
    b.dot(b.broadcast(b.expand(b.full((16,), 0.0, "f32"), 0), (8, 16)), b.full((16, 8), 1.0, "f32"),
          b.full((8, 8), 0.0, "f32"), "ieee")  # fmt: skip
    b.reduce("max", 1, tile)
    b.store(b.parameter(TileParameter("f32", 8, 1)), at, b.select(b.op("lt", at, 3), y, x))
    return b.finish(1)


def _first(f: TileFunction, name: str) -> Op:
    return next(x for x in f.body if isinstance(x, Op) and x.name == name)


def breaches() -> Sequence[tuple[str, TileFunction]]:
    f = _sound()
    load, dot, store, select = (_first(f, n) for n in ("load", "dot", "store", "select"))
    alien = TileBuilder("g").arange(8)
    return [
        ("is not known there", _changed(f, "mul", args=(alien, alien))),
        ("no such operation", _changed(f, "mul", name="magic")),
        ("not of one type", _changed(f, "mul", args=(load.results[0], load.args[0]))),
        ("there is none for f32", _changed(f, "mul", name="quot")),
        ("masked off need a value", _changed(f, "load", args=(*load.args[:2], None))),
        ("several shapes", _changed(f, "store", args=(store.args[0], dot.results[0], None))),
        ("the memory holds", _changed(f, "store", args=(store.args[0], load.args[0], None))),
        ("other operands or attributes", _changed(f, "store", args=(store.args[0], None, None))),
        ("other operands or attributes", _changed(f, "select", args=select.args[:2])),
        ("three floats", _changed(f, "mul", name="fma")),
        ("no product", _changed(f, "dot", args=(dot.args[1], dot.args[0], dot.args[2]))),
        (r"matrices, not tiles of the ranks 1, 2, 2", _changed(f, "dot", args=(load.results[0], *dot.args[1:]))),
        ("a precision", _changed(f, "dot", attrs=("single",))),
        ("no such combiner", _changed(f, "reduce", attrs=("median", 1))),
        ("no such dimension", _changed(f, "reduce", attrs=("max", 2))),
        ("only extents of 1", _changed(f, "broadcast", attrs=(8, 16, 1))),
        ("its results are not f32x8x16", _changed(f, "broadcast", results=(SSAValue(99, Type("f32", (8, 1))),))),
        ("a condition and two tiles", _changed(f, "select", args=(load.results[0], *select.args[1:]))),
        ("no power of 2", _changed(f, "arange", results=(SSAValue(99, Type("i32", (7,))),))),
        ("is run by no program", replace(f, programs=0)),
        ("2147483648 programs, and a grid has at most", replace(f, programs=2**31)),
        ("memory holds no i1", replace(f, parameters=(TileParameter("i1", 8, 0), *f.parameters[1:]))),
        ("is not aligned", replace(f, parameters=(TileParameter("f32", 8, None, 6), *f.parameters[1:]))),
        ("do not reach its end", replace(f, parameters=(TileParameter("f32", 2**31 + 1, 0), *f.parameters[1:]))),
    ]


def test_a_sound_function_passes() -> None:
    verify(_sound())


@pytest.mark.parametrize("message,f", breaches(), ids=[m for m, _ in breaches()])
def test_breaches_are_refused(message: str, f: TileFunction) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(f)


def test_the_builder_refuses_types_that_do_not_meet() -> None:
    b = TileBuilder("f")
    with pytest.raises(CompileError, match="add of"):
        b.op("add", b.arange(8), b.const(1.0, "f32"))
    with pytest.raises(CompileError, match="do not meet"):
        b.op("add", b.arange(8), b.arange(4))
    with pytest.raises(CompileError, match="a loop yields"), b.loop(0, 3, 1, [b.const(1)]) as loop:
        loop.next = [b.const(1.0, "f32")]


def test_every_type_has_a_size() -> None:
    assert set(BYTES) == set(NUMPY)


def test_the_text_needs_no_triton() -> None:
    """Asked of a process of its own, as tests on a card import it."""
    program = (
        "import sys; from einsmith.gpu.tiles.ir import TileBuilder; "
        "from einsmith.gpu.tiles.triton_text import triton_text; "
        "triton_text([TileBuilder('f').finish(1)]); sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
