"""The verification of loop nests: sound functions pass, and each breach of a rule is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from einsmith.base.errors import VerifyError
from einsmith.codegen.loopnest.nest import Builder, Function
from einsmith.codegen.loopnest.nest_verify import verify
from einsmith.codegen.ssa import If, Loop, Op, SSAValue, Type, vector


def _sound() -> Function:
    """Return a function with an instruction of each kind."""
    b = Builder("f", 2)
    x = b.load(b.buffers[0], b.task, "f32", 8, b.op("lt", b.iota(8), 5), b.const(1.0, "f32", 8))
    y = b.shuffle(x, x, [0, 8, 1, 9, 2, 10, 3, -1])
    with b.loop(0, b.task, 2, [y]) as loop:
        loop.next = [b.fma(loop.carried[0], x, b.splat(b.extract(x, 3), 8))]
    (z,) = loop.results
    with b.if_(b.any(b.op("lt", z, x))):
        b.store(b.insert(z, b.const(2.0, "f32"), 0), b.buffers[1], 0, b.op("le", x, z))
    at = b.cast(b.iota(8), "i32")
    b.scatter(b.gather(b.buffers[0], at, "f32"), b.address(b.buffers[1], 8, "f32"), at)
    b.store(b.bitcast(z, "i32"), b.alloc("i32", 8), 0)
    b.stream(b.select(b.op("eq", x, z), x, z), b.buffers[1], b.const(16))
    b.prefetch(b.buffers[0], 64, "f32")
    b.tile_zero(0)
    b.tile_load(1, b.buffers[0], 0, 16)
    b.tile_dot("bf16", 0, 1, 2)
    b.tile_store(0, b.buffers[1], 0, 16)
    b.barrier()
    return b.finish()


SOUND = _sound()


def _changed(name: str, /, **fields: Any) -> Function:
    """Return the sound function with the first instruction of a name changed."""
    f = SOUND
    n = next(n for n, x in enumerate(f.body) if isinstance(x, Op) and x.name == name)
    body = [*f.body]
    body[n] = replace(body[n], **fields)
    return replace(f, body=body)


def _op(name: str) -> Op:
    return next(x for x in SOUND.body if isinstance(x, Op) and x.name == name)


def _misplaced() -> Function:
    """Return a function that uses what a branch defines behind it."""
    b = Builder("f", 1)
    with b.if_(b.op("lt", b.task, 3)):
        x = b.load(b.buffers[0], b.task, "f32")
    b.store(x, b.buffers[0], 0)
    return b.finish()


def _changed_loop() -> Function:
    f = _sound()
    loop = next(x for x in f.body if isinstance(x, Loop))
    loop.results = (SSAValue(loop.results[0].id, vector("f64", 8)),)
    return f


def _vector_branch() -> Function:
    f = _sound()
    branch = next(x for x in f.body if isinstance(x, If))
    branch.cond = next(x for x in f.body if isinstance(x, Op) and x.name == "lt").result
    return f


def _twice() -> Function:
    f = _sound()
    return replace(f, body=[*f.body, next(x for x in f.body if isinstance(x, Op) and x.name == "gather")])


def breaches() -> Sequence[tuple[str, Function]]:
    load, shuffle, gather = _op("load"), _op("shuffle"), _op("gather")
    stranger = SSAValue(9999, vector("f32", 8))
    return [
        ("is not known there", _changed("shuffle", args=(stranger, stranger))),
        ("is not known there", _misplaced()),
        ("defined twice", _twice()),
        ("no such operation", _changed("shuffle", name="magic")),
        ("results are not f32x8", _changed("shuffle", results=(SSAValue(shuffle.result.id, vector("f32", 4)),))),
        ("there are no lanes", _changed("shuffle", attrs=((0, 16, 1, 2, 3, 4, 5, 6),))),
        ("mask has other lanes", _changed("load", results=(SSAValue(load.result.id, vector("f32", 4)),))),
        ("accesses no pointer", _changed("load", args=(load.args[1], *load.args[1:]))),
        ("offset is no integer", _changed("gather", args=(gather.args[0], load.result, None))),
        ("its offset is a vector", _changed("load", args=(load.args[0], _op("literal").result, *load.args[2:]))),
        ("where of", _changed("select", args=(load.result, load.result, load.result))),
        ("results are not i64x4", _changed("bitcast", results=(SSAValue(99999, Type("i64", (3,))),))),
        ("tile registers 0, 0 and 2", _changed("tile_dot", attrs=("bf16", 0, 0, 2, False))),
        ("no such tile register", _changed("tile_load", attrs=(8,))),
        ("a pointer, an offset and a stride", _changed("tile_load", args=(load.args[1],) * 3)),
        ("other operands or attributes", _changed("shuffle", args=shuffle.args[:1])),
        ("other operands or attributes", _changed("shuffle", attrs=())),
        ("other operands or attributes", _changed("store", args=(*_op("store").args, load.result))),
        ("a pointer, an offset and a stride", _changed("tile_load", args=())),
        ("no instruction lt of 1 arguments", _changed("lt", args=_op("lt").args[:1])),
        ("what it carries changes its type", _changed_loop()),
        ("its condition is not a scalar i1", _vector_branch()),
    ]


def test_a_sound_function_passes() -> None:
    verify(_sound())


@pytest.mark.parametrize(("message", "f"), breaches())
def test_breaches_are_refused(message: str, f: Function) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(f)


def test_the_function_and_the_instruction_are_named() -> None:
    with pytest.raises(VerifyError, match=r"^f: store\(ptr, i64, f32, None\): %\d+ is not known there$"):
        verify(_misplaced())
