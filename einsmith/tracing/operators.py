"""Map Python's and NumPy's operators to the scalar functions that implement them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "floor_divide": "floordiv", "remainder": "mod", "power": "pow", "less": "lt", "less_equal": "le",
    "greater": "lt", "greater_equal": "le", "equal": "eq", "not_equal": "ne", "bitwise_and": "and",
    "bitwise_or": "or", "maximum": "max", "minimum": "min",
}  # fmt: skip
"""NumPy's universal functions of two operands."""
SWAPPED = ("greater", "greater_equal")
"""Universal functions whose operands are swapped."""


def _binary(fn: str, swap: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not self._takes(other):
            return NotImplemented
        return self._apply(fn, other, self) if swap else self._apply(fn, self, other)

    return method


class Operators:
    """Python's operators for a class with `_apply(fn, *operands)`, and `_takes(other)`: whether `other` is an
    operand."""

    __slots__ = ()
    __add__, __radd__ = _binary("add"), _binary("add", True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", True)
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _binary("floordiv", True)
    __mod__, __rmod__ = _binary("mod"), _binary("mod", True)
    __pow__, __rpow__ = _binary("pow"), _binary("pow", True)
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("lt", True), _binary("le", True)
    __and__, __rand__ = _binary("and"), _binary("and", True)
    __or__, __ror__ = _binary("or"), _binary("or", True)
    __eq__, __ne__ = _binary("eq"), _binary("ne")
    __hash__ = object.__hash__

    def _takes(self, other: Any) -> bool:
        raise NotImplementedError

    def _apply(self, fn: str, *operands: Any) -> Any:
        raise NotImplementedError

    def __neg__(self) -> Any:
        return self._apply("neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self._apply("abs", self)

    def __invert__(self) -> Any:
        return self._apply("not", self)
