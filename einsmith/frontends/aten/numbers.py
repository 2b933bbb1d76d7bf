"""Numbers known during tracing: sizes, and Python arithmetic on them."""

from __future__ import annotations

import math
import operator
from typing import Any

from einsmith.base.errors import ShapeError, TraceError
from einsmith.frontends.aten.table import aten, enter
from einsmith.tracing.builder import Value

enter("sym_size.int", "x.shape[dim]", lambda x, dim: x.shape[dim])
enter("sym_numel.default", "number of elements of x", lambda x: x.size)

_NAMES = "add sub mul truediv floordiv mod pow neg eq ne lt le gt ge and_ or_ not_"
_ARITHMETIC = {name: getattr(operator, name) for name in _NAMES.split()}
_ARITHMETIC |= {f"sym_{f.__name__}": f for f in (max, min, float, int)} | {"floor": math.floor, "ceil": math.ceil}
_ARITHMETIC |= {"sym_not": operator.not_, "sym_ite": lambda c, a, b: a if c else b}
for _name, _function in _ARITHMETIC.items():
    enter(_name, "Python arithmetic on numbers", _function)


@aten("getitem")
def getitem(x: Any, n: int) -> Any:
    """an element of a tuple"""
    if isinstance(x, (tuple, list)) and n >= len(x):
        raise TraceError("a value that an operator saves for PyTorch's own backward pass is not available")
    return x[n]


@aten("_assert_scalar.default")
def assert_scalar(holds: Any, message: str) -> None:
    """nothing; a ShapeError if sizes violate a condition of the module"""
    if isinstance(holds, Value) or not holds:
        raise ShapeError(f"the module requires of its sizes: {message}")


@aten("with_effects")
def with_effects(token: Any, check: Any, *args: Any, is_matrix: bool = False) -> tuple[Any]:
    """nothing: checks of factorizations are omitted; results of one that fails (singular matrix) are not finite"""
    if check._schema.returns:
        raise TraceError(f"{check} has both side effects and results, which no formula can have")
    return (token,)
