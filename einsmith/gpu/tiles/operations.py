"""Define the operations of the tile IR by the types of their results, for the builder and for verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from einsmith.base.errors import CompileError
from einsmith.codegen.ssa import BYTES, COMPARE, INTEGERS, Type

FLOATS = ("f32", "f64")
"""Element types of arithmetic; f16 and bf16 are only moved, converted and multiplied by `dot`, and u8 is moved and
converted."""
HALVES = ("bf16", "f16")
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16", "bf16x3")
"""Precisions of a dot of float32. ieee: products of the operands as they are; tf32, bf16: products of the operands in
that format; x3: three such products, whose error is the square of the operands' rounding."""
ROUNDINGS = {"ieee": 1.0, "tf32": 2.0**15, "tf32x3": 64.0, "bf16": 2.0**17, "bf16x3": 1024.0}
"""Factor by which a product of each precision rounds more than one of float32, whose error is 2**-24 of it: tf32 cuts
operands to 11 bits, bf16 rounds them to 8. A power of two above the bound of both operands' errors."""

UNARY = ("neg", "abs", "not", "floor", "sqrt", "sin", "cos")
BINARY = ("add", "sub", "mul", "div", "quot", "rem", "min", "max", "pow", "and", "or", "xor")
SHIFTS = ("shl", "shr", "sar")
COMBINERS = ("sum", "prod", "max", "min", "argmax", "argmin")
"""Combiners of `reduce`. argmax and argmin take values and their places (i32), and return the first place of the
extreme or of a NaN."""
LEAST_K = 16
"""Fewest terms of a dot along K, which tensor cores take at once."""


def common_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common shape of tiles that are combined: of one rank, with extents that are equal or 1; scalars
    combine with any shape. Raises CompileError."""
    ranks = {len(s) for s in shapes if s}
    if len(ranks) > 1:
        raise CompileError(f"tiles of the shapes {shapes} do not meet")
    out = tuple(max(n) for n in zip(*(s for s in shapes if s), strict=True))
    if any(n not in (1, most) for s in shapes if s for n, most in zip(s, out, strict=True)):
        raise CompileError(f"tiles of the shapes {shapes} do not meet")
    return out


@lru_cache(maxsize=4096)
def result_types(name: str, types: tuple[Type, ...], attrs: tuple = ()) -> tuple[Type, ...]:
    """Return the types of an operation's results. types: those of its operands. Raises CompileError for operands or
    literals that it does not take, or where there is no such operation without effects."""
    rule = _RULES.get(name)
    if rule is None:
        raise CompileError(f"there is no such operation: {name}")
    return rule(name, types, attrs)


def _refuse(name: str, types: Sequence[Type], reason: str) -> CompileError:
    return CompileError(f"{name} of {', '.join(map(str, types))}: {reason}")


def _meet(types: Sequence[Type]) -> tuple[int, ...]:
    return common_shape([t.shape for t in types])


def _elementwise(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    if len(types) != (1 if fn in UNARY else 2) or len({t.elem for t in types}) != 1:
        raise _refuse(fn, types, "the operands are not of one type")
    elem = types[0].elem
    floats = fn in ("div", "floor", "sqrt", "sin", "cos", "pow")
    integers, flags = fn in ("quot", "xor"), fn in ("and", "or", "xor", "not")
    known = elem in FLOATS or elem in INTEGERS or elem == "i1"
    fits = known and not (floats and elem not in FLOATS) and not (elem in FLOATS and (integers or flags))
    if not fits or (elem == "i1" and not (flags or fn in ("eq", "ne"))):
        raise _refuse(fn, types, f"there is none for {elem}")
    return (Type("i1" if fn in COMPARE else elem, _meet(types)),)


def _select(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    c, a, b = types
    if c.elem != "i1" or a.elem != b.elem:
        raise _refuse(fn, types, "a condition and two tiles of one type are needed")
    return (Type(a.elem, _meet(types)),)


def _fma(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    if len(types) != 3 or len({t.elem for t in types}) != 1 or types[0].elem not in FLOATS:
        raise _refuse(fn, types, "three floats are needed")
    return (Type(types[0].elem, _meet(types)),)


def _shift(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    (t,), (n,) = types, attrs
    if t.elem not in INTEGERS or not 0 <= n < INTEGERS[t.elem]:
        raise _refuse(fn, types, f"no such shift, by {n}")
    return types


def _cast(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    (t,), (elem,) = types, attrs
    formats = {t.elem, elem} & {*HALVES}
    if formats and "f32" not in (t.elem, elem):
        raise _refuse(fn, types, f"{formats.pop()} is converted to and from f32 alone")
    if elem == "i1":
        raise _refuse(fn, types, "to a condition it is `ne`")
    return (Type(elem, t.shape),)


def _bitcast(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    (t,), (elem,) = types, attrs
    if BYTES[t.elem] != BYTES[elem]:
        raise _refuse(fn, types, f"{elem} has another size")
    return (Type(elem, t.shape),)


def _program(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    return (Type("i32"),)


def _arange(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    return (Type("i32", attrs),)


def _expand(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    (t,), (axis,) = types, attrs
    if not t.shape or not 0 <= axis <= len(t.shape):
        raise _refuse(fn, types, f"no such dimension as {axis}")
    return (Type(t.elem, (*t.shape[:axis], 1, *t.shape[axis:])),)


def _broadcast(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    (t,) = types
    if t.shape and (len(t.shape) != len(attrs) or any(n not in (1, m) for n, m in zip(t.shape, attrs, strict=True))):
        raise _refuse(fn, types, f"only extents of 1 are repeated, not to {attrs}")
    return (Type(t.elem, attrs),)


def _dot(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    (a, b, total), (precision,) = types, attrs
    of_halves = a.elem in HALVES and total.elem == "f32"
    if precision not in PRECISIONS or a.elem != b.elem or not (of_halves or a.elem == total.elem in FLOATS):
        raise _refuse(fn, types, "it takes floats of one type, or of 16 bits and a sum of f32, and a precision")
    if a.elem != "f32" and precision != "ieee":
        raise _refuse(fn, types, f"there are no products of {a.elem} by {precision}")
    ranks = [len(t.shape) for t in types]
    if ranks != [2, 2, 2]:
        raise _refuse(fn, types, f"it takes matrices, not tiles of the ranks {', '.join(map(str, ranks))}")
    (m, k), (other, n) = a.shape, b.shape
    if k != other or total.shape != (m, n):
        raise _refuse(fn, types, "the shapes are no product")
    if k < LEAST_K:
        raise _refuse(fn, types, f"K is below {LEAST_K}")
    return (total,)


def _reduce(fn: str, types: tuple[Type, ...], attrs: tuple) -> tuple[Type, ...]:
    combiner, axis = attrs
    if combiner not in COMBINERS or len(types) != (2 if combiner.startswith("arg") else 1):
        raise _refuse(fn, types, f"no such combiner of so many tiles as {combiner}")
    if len({t.shape for t in types}) > 1 or not 0 <= axis < len(types[0].shape):
        raise _refuse(fn, types, f"the tiles have no such dimension as {axis}")
    if combiner.startswith("arg") and types[1].elem != "i32":
        raise _refuse(fn, types, "places are i32")
    return tuple(Type(t.elem, (*t.shape[:axis], *t.shape[axis + 1 :])) for t in types)


_RULES: dict[str, Callable[[str, tuple[Type, ...], tuple], tuple[Type, ...]]] = {
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
}
OPERATIONS = tuple(_RULES)
"""Operations without effects, whose results are those of every equal instruction."""
