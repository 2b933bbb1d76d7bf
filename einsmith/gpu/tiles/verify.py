"""Verify the rules of the tile IR: types, shapes, scopes, and that results are equal in every run."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from einsmith.base.errors import CompileError, VerifyError
from einsmith.codegen.ssa import BYTES, Loop, Op, SSAValue, Type, operations
from einsmith.codegen.ssa_verify import Rule, expect, verify_body
from einsmith.gpu.tiles.ir import TileFunction, memory_elem
from einsmith.gpu.tiles.operations import OPERATIONS, result_types

MOST_LANES = 1 << 20
"""Most lanes of a tile."""
MOST_PROGRAMS = 2**31 - 1
"""Most programs of a function: blocks of a CUDA grid along x, where all programs lie (along y and z there are at most
65535)."""


def verify(f: TileFunction) -> None:
    """Verify a function. Raises VerifyError that names the function and the instruction."""
    for op in f.constants:
        expect(op.name == "const" and not op.args and len(op.results) == 1, f.name, op, "no literal stands here")
    for p in f.parameters:
        if p.elem not in BYTES or p.elem != memory_elem(p.elem):
            raise VerifyError(f"{f.name}: memory holds no {p.elem}")
        if p.buffer is None and p.offset % BYTES[p.elem]:
            raise VerifyError(f"{f.name}: {p.elem} at byte {p.offset} of the workspace is not aligned")
    if f.programs < 1:
        raise VerifyError(f"{f.name} is run by no program")
    if f.programs > MOST_PROGRAMS:
        raise VerifyError(f"{f.name} is run by {f.programs} programs, and a grid has at most {MOST_PROGRAMS}")
    for x in operations(f.body):
        for r in x.results:
            is_tile = all(n & (n - 1) == 0 and n > 0 for n in r.shape)
            expect(is_tile, f.name, x, f"{r.type} has an extent that is no power of 2")
            expect(prod(r.shape) <= MOST_LANES, f.name, x, f"{r.type} has more than {MOST_LANES} lanes")
            expect(r.elem in BYTES, f.name, x, f"there is no type {r.elem}")
    verify_body(f.name, f.body, {op.result for op in f.constants}, _rules(f))
    _verify_meetings(f)


def _verify_meetings(f: TileFunction) -> None:
    """Verify that all programs come to the same grid barriers."""
    stored = {x.memory for x in operations(f.body) if x.memory is not None and x.name != "load"}
    counters = {x.memory for x in operations(f.body) if x.name == "grid_barrier"}
    uniform = {v for x in f.constants for v in x.results}
    """Values that are equal in all programs."""

    def visit(body: Sequence[Op | Loop], by_all: bool) -> None:
        for x in body:
            if isinstance(x, Loop):
                is_uniform = x.lo in uniform and x.hi in uniform
                uniform.update([x.var] * is_uniform)
                visit(x.body, by_all and is_uniform)
                continue
            if x.name == "grid_barrier":
                expect(f.cooperative, f.name, x, "the function is not cooperative")
                expect(by_all, f.name, x, "it stands in a loop whose turns may differ among the programs")
                continue
            expect(x.memory not in counters, f.name, x, "a parameter of a grid barrier is accessed")
            alike = all(v is None or v in uniform for v in x.args) and x.name != "program" and x.memory not in stored
            if x.name == "end_if":
                expect(alike or not f.cooperative, f.name, x, "some programs may end, for which others would wait")
            uniform.update(x.results if alike else ())

    visit(f.body, True)


def _rules(f: TileFunction) -> dict[str, Rule]:
    """Return the rules of all operations: those without effects, and those that access the function's parameters."""

    def pure(x: Op) -> Sequence[Type]:
        return result_types(x.name, tuple(a.type for a in x.operands), x.attrs)

    def access(x: Op, mask: SSAValue | None, shapes: Sequence[tuple[int, ...]]) -> str:
        """Check an access of a parameter by tiles of these shapes; return the type of the parameter's elements."""
        p, offset = f.parameters[x.memory], x.args[0]  # type: ignore[index]
        if offset is None or offset.elem not in ("i32", "i64") or (mask is not None and mask.elem != "i1"):
            raise CompileError("offsets are i32 or i64, and masks conditions")
        if {offset.shape, *shapes, offset.shape if mask is None else mask.shape} != {offset.shape}:
            raise CompileError("its tiles have several shapes")
        if offset.elem == "i32" and p.size > 2**31:
            raise CompileError("offsets of i32 do not reach its end")
        return p.elem

    def load(x: Op) -> Sequence[Type]:
        _, mask, other = x.args
        elem = access(x, mask, [x.result.shape])
        if (mask is None) != (other is None):
            raise CompileError("lanes that are masked off need a value, others none")
        if other is not None and other.type != Type(elem):
            raise CompileError(f"the memory holds {elem}")
        return [Type(elem, x.result.shape)]

    def store(x: Op) -> Sequence[Type]:
        _, value, mask = x.args
        assert value is not None
        elem = access(x, mask, [value.shape])
        if value.elem != elem:
            raise CompileError(f"the memory holds {elem}")
        return []

    def end_if(x: Op) -> Sequence[Type]:
        if [v.type for v in x.operands] != [Type("i1")] or id(x) not in top:
            raise CompileError("it takes a condition, which is a scalar, and no program ends within a loop")
        return []

    def grid_barrier(x: Op) -> Sequence[Type]:
        p = f.parameters[x.memory]  # type: ignore[index]
        if (p.elem, p.size) != ("i32", 1):
            raise CompileError("it counts the programs in one i32")
        return []

    top = set(map(id, f.body))
    effects = {"load": load, "store": store, "end_if": end_if, "grid_barrier": grid_barrier, "barrier": lambda x: []}
    return {**dict.fromkeys(OPERATIONS, pure), **effects}
