"""Determine the element types of the tensors that formulas define, where weak values leave them open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.tracing.formula import (
    Convert,
    Form,
    FormulaFold,
    FormulaOp,
    Index,
    Literal,
    Load,
    WeakForm,
    is_bool,
    join,
    postorder,
)


def float_type(roots: Iterable[Form]) -> DType:
    """Return the float type of a formula: the widest among its tensors and casts.

    Without any it is float64 if the values are computed from numbers that a call passed and from literals, else
    float32.
    """
    roots = list(roots)
    return _widest_float(roots) or (dt.f64 if _is_of_numbers(roots) else dt.f32)


def result_type(roots: Iterable[Form]) -> DType:
    """Return the element type of a tensor that these formulas define.

    Numbers that a call passed keep NumPy's type where they are combined with no tensor: int64 or float64, with literals
    too.
    """
    roots = list(roots)
    ty = join(r.ty for r in roots)
    if isinstance(ty, DType):
        return ty
    widest = _widest_float(roots)
    if widest is None and _is_of_numbers(roots):
        return dt.i64 if ty is WeakForm.INT else dt.f64
    return widest or dt.f32


def _widest_float(roots: Sequence[Form]) -> DType | None:
    """Return the widest float type of the tensors and casts in formulas; None where there is none."""
    types = [n.ty for r in roots for n in postorder(r) if isinstance(n, (Load, Convert))]
    out = join(t for t in types if isinstance(t, DType) and t.is_float)
    return out if isinstance(out, DType) and out.is_float else None


def _is_of_numbers(roots: Sequence[Form]) -> bool:
    """Return whether values are computed only from numbers that a call passed, at least one, and literals: not from
    axes or elements of tensors.

    Conditions and indices are not counted as parts of a value.
    """
    stack, passed = list(roots), False
    while stack:
        node = stack.pop()
        if isinstance(node, (Index, Convert)):
            return False
        if isinstance(node, Load):
            if not node.weak:
                return False
            passed = passed or not node.args
        elif isinstance(node, Literal):
            passed = passed or node.passed
        elif isinstance(node, FormulaOp) and node.fn == "where":
            stack += node.args[1:]
        elif not is_bool(node.ty):
            stack += node.args
    return passed


def of_type(root: Form, dtype: DType, always: bool = False) -> Form:
    """Convert a formula whose result is a weak float to `dtype`; others are returned unchanged unless `always`."""
    if root.ty not in (WeakForm.FLOAT, WeakForm.SCALAR) and not always:
        return root
    if isinstance(root, FormulaFold) and isinstance(root.ty, WeakForm):
        return FormulaFold(root.combiner, root.axes, Convert(root.args[0], dtype.arithmetic), dtype, root.at)
    return Convert(root, dtype)
