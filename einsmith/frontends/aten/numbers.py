"""Numbers known during tracing: sizes, and Python's arithmetic on them."""

from __future__ import annotations

import math
import operator
from typing import Any

from einsmith.base.errors import ShapeError, TraceError
from einsmith.frontends.aten.table import aten, enter
from einsmith.lang.builder import Value

enter("sym_size.int", "x.shape[dim]", lambda x, dim: x.shape[dim])
enter("sym_numel.default", "how many elements x has", lambda x: x.size)

for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "eq", "ne", "lt", "le", "gt", "ge",
              "and_", "or_", "not_"):  # fmt: skip
    enter(_name, "Python's own, of numbers", getattr(operator, _name))
enter("sym_max", "Python's own, of numbers", max)
enter("sym_min", "Python's own, of numbers", min)
enter("sym_float", "Python's own, of numbers", float)
enter("sym_int", "Python's own, of numbers", int)
enter("sym_not", "Python's own, of numbers", operator.not_)
enter("sym_ite", "Python's own, of numbers", lambda c, a, b: a if c else b)
enter("floor", "Python's own, of numbers", math.floor)
enter("ceil", "Python's own, of numbers", math.ceil)


@aten("getitem")
def getitem(x: Any, n: int) -> Any:
    """an element of a tuple"""
    if isinstance(x, (tuple, list)) and n >= len(x):
        raise TraceError("what an operator keeps for PyTorch's own backward pass is not formed")
    return x[n]


@aten("_assert_scalar.default")
def assert_scalar(holds: Any, message: str) -> None:
    """nothing, or a ShapeError where sizes are not as the module expects"""
    if isinstance(holds, Value) or not holds:
        raise ShapeError(f"the module expects of its sizes: {message}")


@aten("with_effects")
def with_effects(token: Any, check: Any, *args: Any, is_matrix: bool = False) -> tuple[Any]:
    """nothing: a check of what factorizations found; where they fail, as of a singular matrix, their numbers are not
    finite"""
    if check._schema.returns:
        raise TraceError(f"{check} has effects and results, which no formula has")
    return (token,)
