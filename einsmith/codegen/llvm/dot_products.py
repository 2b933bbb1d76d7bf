"""Emit dot products of words (`loopnest.dots`): by the instruction that a target has, else point by point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from einsmith.codegen.llvm.ops import LaneArithmetic
from einsmith.codegen.llvm.text import spell
from einsmith.codegen.loopnest.dots import DOTS
from einsmith.codegen.ssa import Type


class _Instruction(NamedTuple):
    """LLVM's intrinsic for a dot product.

    dot: the dot product; needs: features, all of which the target must have; names: the intrinsic's name by the lanes
    of the sum; operand: LLVM's element type of the words' lanes, and how many are in a word; adds: whether it adds to
    a sum, which is then its first argument
    """

    dot: str
    needs: frozenset[str]
    names: dict[int, str]
    operand: tuple[str, int]
    adds: bool = True


def _by_width(name: str) -> dict[int, str]:
    return {lanes: name.format(32 * lanes) for lanes in (4, 8, 16)}


_INSTRUCTIONS = (
    _Instruction(
        "bf16", frozenset({"avx512bf16", "avx512vl"}), _by_width("llvm.x86.avx512bf16.dpbf16ps.{}"), ("bfloat", 2)
    ),
    _Instruction("bf16", frozenset({"bf16", "neon"}), {4: "llvm.aarch64.neon.bfdot.v4f32.v8bf16"}, ("bfloat", 2)),
    _Instruction("u8i8", frozenset({"avx512vnni", "avx512vl"}), _by_width("llvm.x86.avx512.vpdpbusd.{}"), ("i8", 4)),
    _Instruction(
        "u8i8",
        frozenset({"avxvnni"}),
        {lanes: name for lanes, name in _by_width("llvm.x86.avx512.vpdpbusd.{}").items() if lanes < 16},
        ("i8", 4),
    ),
    _Instruction("u8i8", frozenset({"i8mm", "neon"}), {4: "llvm.aarch64.neon.usdot.v4i32.v16i8"}, ("i8", 4)),
    _Instruction("i16", frozenset({"avx512bw"}), {16: "llvm.x86.avx512.pmaddw.d.512"}, ("i16", 2), False),
    _Instruction("i16", frozenset({"avx2"}), {8: "llvm.x86.avx2.pmadd.wd"}, ("i16", 2), False),
    _Instruction("i16", frozenset({"sse2"}), {4: "llvm.x86.sse2.pmadd.wd"}, ("i16", 2), False),
)


def find_instruction(dot: str, lanes: int, features: frozenset[str]) -> _Instruction | None:
    """Return the instruction for a dot product on vectors of `lanes` sums; None where the target has none."""
    fitting = (x for x in _INSTRUCTIONS if x.dot == dot and lanes in x.names and x.needs <= features)
    return next(fitting, None)


def multiply_add(v: LaneArithmetic, dot: str, a: str, b: str, c: str) -> str:
    """Emit c + dot(a, b). v: the arithmetic of the sums; a, b: words; c: the sum."""
    text, lanes, sums = v.ops.text, v.t.lanes, DOTS[dot].sum
    instruction = find_instruction(dot, lanes, text.features)
    if instruction is None:
        return _multiply_points(v, dot, a, b, c)
    elem, count = instruction.operand
    operand, result = f"<{lanes * count} x {elem}>", f"<{lanes} x {'float' if sums == 'f32' else sums}>"
    args = [f"{operand} {text.emit(f'bitcast <{lanes} x i32> {x} to {operand}')}" for x in (a, b)]
    types = [operand, operand]
    if instruction.adds:
        args, types = [f"{result} {c}", *args], [result, *types]
    name = instruction.names[lanes]
    text.declarations.setdefault(name, f"declare {result} @{name}({', '.join(types)})")
    out = text.emit(f"call {result} @{name}({', '.join(args)})")
    return out if instruction.adds else v.ops.emit_binary("add", v.int, c, out)


def _multiply_points(v: LaneArithmetic, dot: str, a: str, b: str, c: str) -> str:
    """Emit c + dot(a, b) point by point."""
    kind = DOTS[dot]
    for n in range(kind.points):
        x, y = (_point(v, w, elem, n, kind.points) for w, elem in ((a, kind.left), (b, kind.right)))
        c = v.fma(x, y, c) if kind.sum == "f32" else v.iadd(v.imul(x, y), c)
    return c


def _point(v: LaneArithmetic, word: str, elem: str, n: int, points: int) -> str:
    """Emit point number `n` of words, in the type of the sums."""
    bits = 32 // points
    high = v.shl(word, 32 - bits * (n + 1)) if n + 1 < points else word  # the point in the highest bits
    if elem == "bf16":
        return v.unbits(high if n == 0 else v.iand(word, v.i(-1 << 16)))
    return v.lshr(high, 32 - bits) if elem == "u8" else v.ashr(high, 32 - bits)


def pack(v: LaneArithmetic, points: Sequence[tuple[str, Type]]) -> str:
    """Emit words of points, given as operands with their types. v: an arithmetic of the words' lanes."""
    bits, out = 32 // len(points), ""
    for n, (x, t) in enumerate(points):
        held = v.ops.text.emit(f"zext {spell(t)} {x} to {spell(v.t)}")
        placed = v.shl(held, bits * n) if n else held
        out = v.ior(out, placed) if out else placed
    return out
