"""Verify loop nests: types, lanes, scopes, and numbers of lanes and of tile registers."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.base.errors import CompileError
from einsmith.codegen.loopnest.dots import TILE_REGISTERS
from einsmith.codegen.loopnest.nest import (
    I1,
    I64,
    PTR,
    Function,
    bits_type,
    check_tile_registers,
    dot_type,
    function_type,
    word_type,
)
from einsmith.codegen.ssa import COMPARE, Op, SSAValue, Type, vector
from einsmith.codegen.ssa_verify import Rule, verify_body
from einsmith.ir.functions import FUNCTIONS

_OFFSETS = ("i32", "i64")


def verify(f: Function) -> None:
    """Verify a function. Raises VerifyError that names the function and the instruction."""
    verify_body(f.name, f.body, {*f.buffers, f.scratch, f.task}, _RULES)


def _expect(holds: object, message: str) -> None:
    if not holds:
        raise CompileError(message)


def _expect_mask(mask: SSAValue | None, lanes: int) -> None:
    _expect(mask is None or mask.type in (vector("i1", lanes), I1), "its mask has other lanes")


def _literal(x: Op) -> Sequence[Type]:
    (value,), out = x.attrs, x.result.type
    _expect(not x.args and (x.name == "const" or len(value) == out.lanes), "it has other lanes")
    return [out]


def _splat(x: Op) -> Sequence[Type]:
    (value,), lanes = x.operands, x.result.type.lanes
    _expect(not value.type.lanes and lanes, "only scalars are repeated, and only to vectors")
    return [vector(value.elem, lanes)]


def _function(x: Op) -> Sequence[Type]:
    return [function_type(x.name, *[a.type for a in x.operands])]


def _dot(x: Op) -> Sequence[Type]:
    return [dot_type(*x.attrs, *[a.type for a in x.operands])]


def _pack(x: Op) -> Sequence[Type]:
    return [word_type(*[a.type for a in x.operands])]


def _bitcast(x: Op) -> Sequence[Type]:
    (value,) = x.operands
    return [bits_type(value.type, x.result.elem)]


def _cast(x: Op) -> Sequence[Type]:
    (value,) = x.operands
    return [vector(x.result.elem, value.type.lanes)]


def _shuffle(x: Op) -> Sequence[Type]:
    (a, b), (lanes,) = x.operands, x.attrs
    _expect(a.elem == b.elem and a.type.lanes and b.type.lanes, "it takes vectors of one element type")
    _expect(all(-1 <= n < a.type.lanes + b.type.lanes for n in lanes), f"there are no lanes {lanes}")
    return [vector(a.elem, len(lanes))]


def _extract(x: Op) -> Sequence[Type]:
    value, lane = x.operands if not x.attrs else (*x.operands, x.attrs[0])
    _expect(isinstance(lane, SSAValue) or 0 <= lane < value.type.lanes, "there is no such lane")
    return [Type(value.elem)]


def _insert(x: Op) -> Sequence[Type]:
    value, scalar = x.operands
    _expect(scalar.type is Type(value.elem) and 0 <= x.attrs[0] < value.type.lanes, "there is no such lane")
    return [value.type]


def _any(x: Op) -> Sequence[Type]:
    _expect(x.operands[0].elem == "i1" and x.operands[0].type.lanes, "it takes a vector of conditions")
    return [I1]


def _access(x: Op) -> SSAValue:
    """Check the pointer and the offset of an access; return the offset."""
    pointer, offset = x.args[:2]
    assert pointer is not None and offset is not None
    _expect(pointer.type is PTR, "it accesses no pointer")
    _expect(offset.elem in _OFFSETS, "its offset is no integer")
    return offset


def _load(x: Op) -> Sequence[Type]:
    _expect(not _access(x).type.lanes, "its offset is a vector")
    mask, other = x.args[2:]
    _expect_mask(mask, x.result.type.lanes)
    _expect(other is None or other.type is x.result.type, "its other value has another type")
    return [x.result.type]


def _gather(x: Op) -> Sequence[Type]:
    lanes = _access(x).type.lanes
    _expect_mask(x.args[2], lanes)
    return [vector(x.result.elem, lanes)]


def _store(x: Op) -> Sequence[Type]:
    _expect(not _access(x).type.lanes, "its offset is a vector")
    value, mask = x.args[2:] if x.name == "store" else (*x.args[2:], None)
    assert value is not None
    _expect_mask(mask, value.type.lanes)
    return []


def _scatter(x: Op) -> Sequence[Type]:
    lanes = _access(x).type.lanes
    value, mask = x.args[2:]
    _expect(value is not None and value.type.lanes == lanes, "offsets and values have different lanes")
    _expect_mask(mask, lanes)
    return []


def _tile(x: Op) -> Sequence[Type]:
    _expect(0 <= x.attrs[0] < TILE_REGISTERS, "there is no such tile register")
    types = [] if x.name == "tile_zero" else [PTR, I64, I64]
    _expect([a.type for a in x.operands] == types, "it takes a pointer, an offset and a stride")
    return []


def _tile_dot(x: Op) -> Sequence[Type]:
    check_tile_registers(*x.attrs[1:4])
    return []


def _prefetch(x: Op) -> Sequence[Type]:
    _access(x)
    return []


def _pointer(x: Op) -> Sequence[Type]:
    _expect(all(a.type is t for a, t in zip(x.operands, (PTR, I64), strict=False)), "it takes a pointer and an offset")
    return [PTR]


_RULES: dict[str, Rule] = {
    **dict.fromkeys((*FUNCTIONS, *COMPARE, "fma", "select"), _function),
    **dict.fromkeys(("const", "literal"), _literal),
    "splat": _splat,
    "dot": _dot,
    "pack": _pack,
    "bitcast": _bitcast,
    "cast": _cast,
    "shuffle": _shuffle,
    "extract": _extract,
    "insert": _insert,
    "any": _any,
    "load": _load,
    "gather": _gather,
    **dict.fromkeys(("store", "stream"), _store),
    "scatter": _scatter,
    "prefetch": _prefetch,
    **dict.fromkeys(("address", "advance"), _pointer),
    **dict.fromkeys(("tile_zero", "tile_load", "tile_store"), _tile),
    "tile_dot": _tile_dot,
    "barrier": lambda x: [],
}
