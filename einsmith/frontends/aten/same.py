"""Operators that are functions of `einsmith.functional` with the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Signature, signature
from typing import Any

from einsmith import ops  # noqa: F401  # fills the table of operators
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.frontends.aten.losses import REDUCTIONS
from einsmith.frontends.aten.promotion import promote
from einsmith.frontends.aten.table import enter
from einsmith.lang.builder import Value
from einsmith.ops.operator import OPERATORS, OperatorRow

FAMILIES = {
    "elementwise": "pointwise",
    "activation": "pointwise",
    "inverse": "pointwise",
    "special": "pointwise",
    "losses": "losses",
    "conv": "contractions",
    "max_pool": "pooling",
    "avg_pool": "pooling",
    "resize": "pooling",
    "sampling": "sampling",
}
"""Families of the rows of the table -> families of ATen's operators."""


def _entry(row: OperatorRow) -> Callable[..., Any]:
    """Return ATen's form of an operator: several operands have their common type, which is also the result's, no list
    of numbers is an empty list, and reductions are numbers."""
    own = (p for p in signature(row.call).parameters.values() if p.name != "inplace")
    places = Signature([p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in own])
    names = row.operands

    def run(*args: Any, **kwargs: Any) -> Any:
        given = places.bind(*args, **kwargs).arguments
        if len(names) > 1:
            values, common = promote(*(given[n] for n in names))
            given |= dict(zip(names, values, strict=True))
        else:
            common = given[names[0]].dtype
        return _typed(row.call(**{n: _setting(row, n, x) for n, x in given.items()}), common)

    run.__signature__ = places  # type: ignore[attr-defined]
    return run


def _setting(row: OperatorRow, name: str, x: Any) -> Any:
    if name == "reduction":
        return REDUCTIONS[x]
    return None if isinstance(x, (list, tuple)) and not x and row.settings[name].default is None else x


def _typed(result: Any, common: DType) -> Any:
    """Return results in the types that ATen gives them: the operands', and int64 for places."""
    if not isinstance(result, Value):
        return tuple(_typed(x, common) for x in result)
    if result.dtype.kind == common.kind:
        return result.astype(common)
    return result.astype(dt.i64) if result.dtype.is_int else result


for _row in OPERATORS.values():
    if _row.aten:
        enter(_row.aten, _row.formula, _entry(_row), FAMILIES[_row.family])
