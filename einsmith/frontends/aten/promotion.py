"""PyTorch's type promotion: tensors with dimensions weigh more than 0-d ones, and those more than Python's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.symbolic import hint, is_symbolic, literal, to_whole
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

_default: ContextVar[DType] = ContextVar("the type of floats that have none", default=dt.f32)


def default_float() -> DType:
    """Return the type of floats made of integers and numbers, which is that of torch.get_default_dtype()."""
    return _default.get()


@contextmanager
def expecting(dtype: str) -> Iterator[None]:
    """Within the context, floats have float64 by default if an operator's result has it, and otherwise float32.

    Graphs do not record PyTorch's default, but a result that it decides has its type. It cannot change a result that
    another operand decides.
    """
    token = _default.set(dt.f64 if dtype == dt.f64.name else dt.f32)
    try:
        yield
    finally:
        _default.reset(token)


def type_of(x: Any) -> DType:
    """Return the element type of a tensor, or the default type of a Python number."""
    if isinstance(x, Value):
        return x.dtype
    kind = type(hint(x))
    return dt.bool_ if kind is bool else dt.i64 if kind is int else default_float()


def _join(higher: DType | None, lower: DType | None) -> DType | None:
    """Return the type of two groups of operands: the lower counts only if its kind (bool < int < float) is higher."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if not higher.is_float and (higher.is_bool or lower.is_float):
        return dt.promote(higher, lower)
    return higher


def result_type(*operands: Any) -> DType:
    """Return the common type of tensors and numbers, as torch.result_type."""
    groups: list[list[DType]] = [[], [], []]
    for x in operands:
        groups[2 if not isinstance(x, Value) else 0 if x.ndim else 1].append(type_of(x))
    dims, zero, numbers = (reduce(dt.promote, g) if g else None for g in groups)
    common = _join(dims, _join(zero, numbers))
    assert common is not None
    return common


def convert(x: Any, dtype: DType) -> Any:
    """Convert a tensor or a Python number to a type, as PyTorch converts operands: numbers are wrapped into the range
    of an integer type by modular arithmetic, and rounded to a float type."""
    if isinstance(x, Value):
        return x.astype(dtype)
    if dtype.is_int:
        (low, high), n = dtype.range, to_whole(x)
        return n if low <= n <= high else (n - low) % (high - low + 1) + low
    if dtype.is_float:
        return literal(x, True) if is_symbolic(x) else float(dtype.rounded(x))
    return bool(x)


def promote(*operands: Any, floats: bool = False, wide: bool = False) -> tuple[list[Any], DType]:
    """Return (the operands in their common type, that type). floats: integers and bools become floats.

    wide: where the common type is a 16-bit float, and the second operand is a number or a 0-d tensor, all operands are
    in float32, that one without being rounded to 16 bits, as in PyTorch's products and quotients.
    """
    common = result_type(*operands)
    if floats and not common.is_float:
        common = default_float()
    types = [common] * len(operands)
    if wide and common.is_float and not getattr(operands[1], "ndim", 0):
        types = [common.arithmetic] * len(operands)
    return [convert(x, t) for x, t in zip(operands, types, strict=True)], common


def tensor(x: Any, dtype: DType | None = None) -> Value:
    """Return a number as a 0-d tensor, and a tensor unchanged; converted to `dtype` if given."""
    if not isinstance(x, Value):
        return builder.full((), x, dtype or type_of(x))
    return x if dtype is None else x.astype(dtype)
