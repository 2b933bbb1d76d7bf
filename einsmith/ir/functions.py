"""Define the record of a scalar function of the IR, and the table of all of them.

One record has everything that the compiler knows of a function: its types, meaning, derivative, code and cost.
`ir.function_table` has the built-in functions; `tracing.composed` and `lang.scalar_function` add others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import DtypeError


@dataclass(frozen=True)
class ScalarFunction:
    """A scalar function, with everything that the compiler knows of it.

    Attributes:
        name: its name in the IR, which identifies its definition
        arity: the number of its arguments
        rule: maps argument types to the result type, or raises DtypeError
        numpy: its meaning: the function on arrays
        symbol: the operator in the formula language, where there is one
        precedence: that of the operator
        adjoint: a rule for each argument that gives the argument's adjoint (`ir.adjoint_rules`); None: it is zero
        uses_value: whether the rules use the function's own value
        call: the name by which formulas call it; "" for a function without one
        composition: builds its value from other functions where a formula is lowered; with adjoint rules the derivative
            is that of the rules, otherwise that of the composition
        lanes: code over lanes, given a `vecmath.polynomials.Arith` and the operands; None: one or few instructions, of
            which back ends know the form
        seconds: seconds per f32 element, with vectors of 64 bytes at about 4 GHz; 0: one instruction (measured by
            `einsmith calibrate`, AMD EPYC)
        instructions: instructions per element on a GPU
        keeps_zero: whether the value at 0 is 0
        is_identity: whether the value is the first argument, so that no instruction computes it
    """

    name: str
    arity: int
    rule: Callable[..., DType]
    numpy: Callable
    symbol: str | None = None
    precedence: int = 0
    adjoint: tuple[Any, ...] = ()
    uses_value: bool = False
    call: str = ""
    composition: Callable[..., Any] | None = None
    lanes: Callable[..., Any] | None = None
    seconds: float = 0.0
    instructions: int = 1
    keeps_zero: bool = False
    is_identity: bool = False


FUNCTIONS: dict[str, ScalarFunction] = {}
"""Every function, by its name. The IR has no node of one that is a composition without adjoint rules."""
CALLS: dict[str, ScalarFunction] = {}
"""Every function that formulas call, by its name there."""


def has_lanes(name: str) -> bool:
    """Return whether a name is that of a function with code over lanes, which takes many instructions."""
    return name in FUNCTIONS and FUNCTIONS[name].lanes is not None


def add_function(f: ScalarFunction) -> None:
    """Add a function to the tables."""
    FUNCTIONS[f.name] = f
    if f.call:
        CALLS[f.call] = f


def same(*args: DType) -> DType:
    """Return the type that all arguments have. Raises DtypeError for others."""
    out = args[0]
    for a in args[1:]:
        if a is not out:
            raise DtypeError(f"operands have types {', '.join(a.name for a in args)}; cast them to one type")
    return out


def numbers(*args: DType) -> DType:
    """Return the type of numbers of one type. Raises DtypeError for others."""
    out = same(*args)
    if out.is_bool:
        raise DtypeError("a bool is not a number here; use where(c, 1, 0)")
    return _check_computes(out)


def _check_computes(dtype: DType) -> DType:
    if dtype.in_memory_only:
        raise DtypeError(f"{dtype.name} is a storage type, without arithmetic; cast it to {dtype.arithmetic.name}")
    return dtype


def floats(*args: DType) -> DType:
    """Return the type of floats of one type. Raises DtypeError for others."""
    out = same(*args)
    if not out.is_float:
        raise DtypeError(f"needs a float, got {out.name}; cast with f32(...)")
    return _check_computes(out)


def comparison(*args: DType) -> DType:
    """Return the type of a comparison of arguments of one type. Raises DtypeError for others."""
    _check_computes(same(*args))
    return dt.bool_


def logic(*args: DType) -> DType:
    """Return the type of a function of conditions. Raises DtypeError for others."""
    if any(not a.is_bool for a in args):
        raise DtypeError("`and`, `or`, `not` need conditions")
    return dt.bool_


def words(*args: DType) -> DType:
    """Return the type of random bits of i32 words. Raises DtypeError for others."""
    if any(a is not dt.i32 for a in args):
        raise DtypeError("random bits are made of i32 words")
    return dt.i32


def choice(c: DType, a: DType, b: DType) -> DType:
    """Return the type of the choice between `a` and `b`. Raises DtypeError for others."""
    logic(c)
    return same(a, b)


SELECTIONS = ("argkmin", "argkmax")
"""Combiners that select by rank. They take a key and a rank k, an integer, and give the i32 position of the element of
rank k among the keys in increasing (argkmin) or decreasing (argkmax) order. Equal keys are in the order of their
positions, and NaN counts as the largest."""
COMBINERS = ("sum", "prod", "max", "min", "argmax", "argmin", *SELECTIONS)
"""Combiners of reductions. sum, prod, max, min give one result per body; argmax and argmin take one body and give
(value, i32 position of its first occurrence). Positions are row-major over the reduction axes."""

COMBINING = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""The function that combines two partial results, for the combiners that have one."""


def last_key(combiner: str, dtype: DType) -> float | int:
    """Return the key that a selection orders last. Elements with this key may be appended to a row as padding."""
    if dtype.is_float:
        return float("nan") if combiner == "argkmin" else float("-inf")
    return dtype.range[combiner == "argkmin"]


SCATTERED = {"sum": "+=", "prod": "*=", "max": "max=", "min": "min="}
"""The combiners of a Scatter, and the assignment operator of each in the formula language."""


def identity(combiner: str, dtype: DType) -> float | int | bool:
    """Return the identity element of a combiner: the value of an empty reduction, which loses against every other
    value. That of a selection is NaN, which equals no value: each element has a rank."""
    if combiner == "sum":
        return 0.0 if dtype.is_float else 0
    if combiner == "prod":
        return 1.0 if dtype.is_float else 1
    if combiner in SELECTIONS:
        return float("nan")
    low = combiner in ("max", "argmax")
    if dtype.is_float:
        return float("-inf") if low else float("inf")
    if dtype.is_bool:
        return not low
    return -(1 << (dtype.bits - 1)) if low else (1 << (dtype.bits - 1)) - 1
