"""Operators that are functions of `einsmith.functional` with the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Signature, signature
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.frontends.aten.losses import REDUCTIONS
from einsmith.frontends.aten.promotion import convert, default_float, promote
from einsmith.frontends.aten.table import enter
from einsmith.ops.operator import OperatorRow
from einsmith.ops.table import OPERATORS
from einsmith.tracing.builder import Value

FAMILIES = {
    "elementwise": "pointwise",
    "activation": "pointwise",
    "inverse": "pointwise",
    "special": "special",
    "losses": "losses",
    "tensor": "views",
    "arrangement": "views",
    "indexing": "indexing",
    "ordering": "reductions",
    "statistics": "reductions",
    "product": "contractions",
    "distance": "contractions",
    "conv": "contractions",
    "max_pool": "pooling",
    "avg_pool": "pooling",
    "adaptive_max_pool": "pooling",
    "resize": "pooling",
    "sampling": "sampling",
}
"""Families of the rows of the table -> families of ATen's operators."""


def _entry(row: OperatorRow, flag: str) -> Callable[..., Any]:
    """Return ATen's form of an operator, with `flag` set: lists are tuples, no list of numbers is an empty list,
    reductions are numbers, and operands and results have the types that `OperatorRow` says."""
    own = (p for p in signature(row.call).parameters.values() if p.name not in ("inplace", flag))
    places = Signature([p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in own])

    def run(*args: Any, **kwargs: Any) -> Any:
        arguments = places.bind(*args, **kwargs).arguments
        settings = {n: _setting(row, n, x) for n, x in arguments.items() if n not in row.operands}
        operands = {n: arguments[n] for n in row.operands}
        if flag:
            settings[flag] = True
        if not row.converts:
            return row.call(**operands, **settings)
        values, common = promote(*operands.values()) if len(operands) > 1 else ([*operands.values()], None)
        common = common or values[0].dtype
        if not common.is_float and default_float() is dt.f64:  # the result has this type; formulas give float32
            values, common = [convert(x, dt.f64) for x in values], dt.f64
        result = row.call(**dict(zip(operands, values, strict=True)), **settings)
        return _typed(result, common)

    run.__signature__ = places  # type: ignore[attr-defined]
    return run


def _setting(row: OperatorRow, name: str, x: Any) -> Any:
    if name == "reduction":
        return REDUCTIONS[x]
    if not isinstance(x, (list, tuple)):
        return x
    return tuple(x) if x or row.settings[name].default is not None else None


def _typed(result: Any, common: DType) -> Any:
    """Return results in the types that ATen gives them: the operands', and int64 for places."""
    if isinstance(result, Value):
        return result.astype(common) if result.dtype.kind == common.kind else result
    *values, places = result
    return (*(x.astype(common) for x in values), places.astype(dt.i64))


for _row in OPERATORS.values():
    for _name in _row.aten.split():
        _overload, _, _flag = _name.partition(":")
        enter(_overload, _row.formula, _entry(_row, _flag), FAMILIES[_row.family])
