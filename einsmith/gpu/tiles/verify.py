"""Verify the rules of the tile IR: types, shapes, scopes, and that results are equal in every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from einsmith.base.errors import VerifyError
from einsmith.codegen.ssa import BYTES, COMPARE, INTEGERS, Loop, Op, SSAValue, Type, operations
from einsmith.gpu.tiles.ir import (
    BINARY,
    COMBINERS,
    FLOATS,
    HALVES,
    PRECISIONS,
    SHIFTS,
    UNARY,
    TileFunction,
    common_shape,
    memory_elem,
)

MOST_LANES = 1 << 20
"""Most lanes of a tile."""
LEAST_K = 16
"""Fewest terms of a dot along K, which tensor cores take at once."""
MOST_PROGRAMS = 2**31 - 1
"""Most programs of a function: blocks of a CUDA grid along x, where all programs lie (along y and z there are at most
65535)."""


def verify(f: TileFunction) -> None:
    """Verify a function. Raises VerifyError that names the function and the instruction."""
    seen: set[SSAValue] = set()
    for op in f.constants:
        _expect(op.name == "const" and not op.args and len(op.results) == 1, f, op, "no literal stands here")
        seen.update(op.results)
    for p in f.parameters:
        if p.elem not in BYTES or p.elem != memory_elem(p.elem):
            raise VerifyError(f"{f.name}: memory holds no {p.elem}")
        if p.buffer is None and p.offset % BYTES[p.elem]:
            raise VerifyError(f"{f.name}: {p.elem} at byte {p.offset} of the workspace is not aligned")
    if f.programs < 1:
        raise VerifyError(f"{f.name} is run by no program")
    if f.programs > MOST_PROGRAMS:
        raise VerifyError(f"{f.name} is run by {f.programs} programs, and a grid has at most {MOST_PROGRAMS}")
    _verify_block(f, f.body, seen)
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
                _expect(f.cooperative, f, x, "the function is not cooperative")
                _expect(by_all, f, x, "it stands in a loop whose turns may differ among the programs")
                continue
            _expect(x.memory not in counters, f, x, "a parameter of a grid barrier is accessed")
            alike = all(v is None or v in uniform for v in x.args) and x.name != "program" and x.memory not in stored
            if x.name == "end_if":
                _expect(alike or not f.cooperative, f, x, "some programs may end, for which others would wait")
            uniform.update(x.results if alike else ())

    visit(f.body, True)


def _verify_block(f: TileFunction, body: Sequence[Op | Loop], outside: set[SSAValue]) -> None:
    seen = set(outside)
    for x in body:
        if isinstance(x, Loop):
            _expect(all(op.name != "end_if" for op in operations(x.body)), f, x, "a program ends within it")
            _verify_loop(f, x, seen)
        else:
            _expect_defined(f, x, x.args, seen)
            _check(f, x)
        seen.update(x.results)


def _verify_loop(f: TileFunction, x: Loop, seen: set[SSAValue]) -> None:
    _expect_defined(f, x, (x.lo, x.hi, *x.init), seen)
    _expect(x.step > 0, f, x, "its step is not positive")
    bounds = {x.var.type, x.lo.type, x.hi.type}
    _expect(
        len(bounds) == 1 and bounds <= {Type("i32"), Type("i64")},
        f,
        x,
        "its bounds are no integers of one type",
    )
    groups = [[v.type for v in vs] for vs in (x.init, x.carried, x.next, x.results)]
    _expect(all(g == groups[0] for g in groups), f, x, "what it carries changes its type")
    inner = {*seen, x.var, *x.carried}
    _verify_block(f, x.body, inner)
    inner_results = {v for y in x.body for v in y.results}
    _expect_defined(f, x, x.next, inner | inner_results)


def _expect_defined(f: TileFunction, x: Op | Loop, values: Sequence[SSAValue | None], seen: set[SSAValue]) -> None:
    for v in values:
        _expect(v is None or v in seen, f, x, f"{v} is not known there")


def _expect(holds: bool, f: TileFunction, x: Op | Loop, message: str) -> None:
    if not holds:
        what = "a loop" if isinstance(x, Loop) else f"{x.name}({', '.join(str(a and a.type) for a in x.args)})"
        raise VerifyError(f"{f.name}: {what}: {message}")


def _check(f: TileFunction, x: Op) -> None:
    for r in x.results:
        _expect(all(n & (n - 1) == 0 and n > 0 for n in r.shape), f, x, f"{r.type} has an extent that is no power of 2")
        _expect(prod(r.shape) <= MOST_LANES, f, x, f"{r.type} has more than {MOST_LANES} lanes")
        _expect(r.elem in BYTES, f, x, f"there is no type {r.elem}")
    rule = _RULES.get(x.name)
    _expect(rule is not None, f, x, "there is no such operation")
    assert rule is not None
    message = rule(f, x)
    _expect(not message, f, x, message)


def _types(x: Op) -> list[Type]:
    return [a.type for a in x.args if a is not None]


def _shape(x: Op) -> tuple[int, ...] | None:
    try:
        return common_shape([t.shape for t in _types(x)])
    except Exception:
        return None


def _elementwise(f: TileFunction, x: Op) -> str:
    types, out = _types(x), x.result.type
    if len(types) != (1 if x.name in UNARY else 2) or len({t.elem for t in types}) != 1:
        return "its operands are not of one type"
    elem = types[0].elem
    if out != Type("i1" if x.name in COMPARE else elem, _shape(x) or ()) or _shape(x) is None:
        return f"its result is no {out}"
    floats = x.name in ("div", "floor", "sqrt", "sin", "cos", "pow")
    integers, flags = x.name in ("quot", "xor"), x.name in ("and", "or", "xor", "not")
    known = elem in FLOATS or elem in INTEGERS or elem == "i1"
    if not known or (floats and elem not in FLOATS) or (elem in FLOATS and (integers or flags)):
        return f"there is none for {elem}"
    return f"there is none for {elem}" if elem == "i1" and not (flags or x.name in ("eq", "ne")) else ""


def _select(f: TileFunction, x: Op) -> str:
    c, a, b = _types(x)
    good = c.elem == "i1" and a.elem == b.elem and x.result.type == Type(a.elem, _shape(x) or ())
    return "" if good and _shape(x) is not None else "a condition and two tiles of one type are needed"


def _fma(f: TileFunction, x: Op) -> str:
    types = _types(x)
    good = len({t.elem for t in types}) == 1 and types[0].elem in FLOATS
    return "" if good and x.result.type == Type(types[0].elem, _shape(x) or ()) else "three floats are needed"


def _shift(f: TileFunction, x: Op) -> str:
    (t,), (n,) = _types(x), x.attrs
    return "" if t.elem in INTEGERS and 0 <= n < INTEGERS[t.elem] and x.result.type == t else "no such shift"


def _cast(f: TileFunction, x: Op) -> str:
    (t,), out = _types(x), x.result.type
    formats = {t.elem, out.elem} & {"f16", "bf16"}
    if formats and not {t.elem, out.elem} & {"f32"}:
        return f"{formats.pop()} is converted to and from f32 alone"
    return "" if out.shape == t.shape and out.elem != "i1" else "to a condition it is `ne`"


def _bitcast(f: TileFunction, x: Op) -> str:
    (t,), out = _types(x), x.result.type
    return "" if out.shape == t.shape and BYTES[t.elem] == BYTES[out.elem] else "the types have other sizes"


def _program(f: TileFunction, x: Op) -> str:
    return "" if x.result.type == Type("i32") else "it is an i32"


def _arange(f: TileFunction, x: Op) -> str:
    out = x.result.type
    return "" if out.elem == "i32" and len(out.shape) == 1 else "it is a tile of i32 of one dimension"


def _expand(f: TileFunction, x: Op) -> str:
    (t,), (axis,) = _types(x), x.attrs
    return "" if x.result.shape == (*t.shape[:axis], 1, *t.shape[axis:]) and t.shape else "no such dimension"


def _broadcast(f: TileFunction, x: Op) -> str:
    (t,), out = _types(x), x.result.type
    fits = not t.shape or (
        len(t.shape) == len(out.shape) and all(n in (1, m) for n, m in zip(t.shape, out.shape, strict=True))
    )
    return "" if fits and t.elem == out.elem else "only extents of 1 are repeated"


def _dot(f: TileFunction, x: Op) -> str:
    a, b, total = _types(x)
    of_halves = a.elem in HALVES and total.elem == "f32"
    if x.attrs[0] not in PRECISIONS or a.elem != b.elem or not (of_halves or a.elem == total.elem in FLOATS):
        return "it takes floats of one type, or of 16 bits and a sum of f32, and a precision"
    if a.elem != "f32" and x.attrs[0] != "ieee":
        return f"there are no products of {a.elem} by {x.attrs[0]}"
    ranks = [len(t.shape) for t in (a, b, total)]
    if ranks != [2, 2, 2]:
        return f"it takes matrices, not tiles of the ranks {', '.join(map(str, ranks))}"
    (m, k), (other, n) = a.shape, b.shape
    if k != other or total.shape != (m, n) or x.result.type != total:
        return "the shapes are no product"
    return "" if k >= LEAST_K else f"K is below {LEAST_K}"


def _reduce(f: TileFunction, x: Op) -> str:
    combiner, axis = x.attrs
    types = _types(x)
    if combiner not in COMBINERS or len(types) != (2 if combiner.startswith("arg") else 1):
        return "no such combiner of so many tiles"
    if len({t.shape for t in types}) > 1 or not 0 <= axis < len(types[0].shape):
        return "the tiles have no such dimension"
    if combiner.startswith("arg") and types[1].elem != "i32":
        return "places are i32"
    shape = types[0].shape[:axis] + types[0].shape[axis + 1 :]
    return "" if [r.type for r in x.results] == [Type(t.elem, shape) for t in types] else "its results have other types"


def _load(f: TileFunction, x: Op) -> str:
    offset, mask, other = x.args
    p = f.parameters[x.memory]  # type: ignore[index]
    if (mask is None) != (other is None):
        return "lanes that are masked off need a value, others none"
    if offset is None or offset.elem not in ("i32", "i64") or (mask is not None and mask.elem != "i1"):
        return "offsets are i32 or i64, and masks conditions"
    shapes = {offset.shape, x.result.shape, offset.shape if mask is None else mask.shape}
    if len(shapes) > 1:
        return "offset, mask and result have several shapes"
    if x.result.elem != p.elem or (other is not None and other.type != Type(p.elem)):
        return f"the memory holds {p.elem}"
    return _check_reach(offset, p.size)


def _store(f: TileFunction, x: Op) -> str:
    offset, value, mask = x.args
    p = f.parameters[x.memory]  # type: ignore[index]
    if offset is None or value is None or offset.elem not in ("i32", "i64") or (mask and mask.elem != "i1"):
        return "offsets are i32 or i64, and masks conditions"
    if len({offset.shape, value.shape, offset.shape if mask is None else mask.shape}) > 1:
        return "offset, value and mask have several shapes"
    if value.elem != p.elem:
        return f"the memory holds {p.elem}"
    return _check_reach(offset, p.size)


def _check_reach(offset: SSAValue, size: int) -> str:
    return "offsets of i32 do not reach its end" if offset.elem == "i32" and size > 2**31 else ""


def _end_if(f: TileFunction, x: Op) -> str:
    return "" if _types(x) == [Type("i1")] else "it takes a condition, which is a scalar"


def _grid_barrier(f: TileFunction, x: Op) -> str:
    p = f.parameters[x.memory]  # type: ignore[index]
    return "" if (p.elem, p.size) == ("i32", 1) else "it counts the programs in one i32"


def _accept(f: TileFunction, x: Op) -> str:
    return ""


_RULES: dict[str, Callable[[TileFunction, Op], str]] = {
    **dict.fromkeys((*UNARY, *BINARY, *COMPARE), _elementwise),
    **dict.fromkeys(SHIFTS, _shift),
    "select": _select,
    "fma": _fma,
    "cast": _cast,
    "bitcast": _bitcast,
    "program": _program,
    "arange": _arange,
    "expand": _expand,
    "broadcast": _broadcast,
    "dot": _dot,
    "reduce": _reduce,
    "load": _load,
    "store": _store,
    "barrier": _accept,
    "grid_barrier": _grid_barrier,
    "end_if": _end_if,
}
