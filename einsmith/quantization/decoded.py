"""Multiply integers where a network multiplies their dequantized values, as between the DequantizeLinear nodes of
ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Compute, Const, Expr, Tensor, axes_of, postorder, size
from einsmith.ir.rebuild import with_args
from einsmith.quantization.integers import IntegerFactor, has_plain_steps, product_of_integers
from einsmith.quantization.sites import ProductFactor, is_separable, match_product, may_leave_int32
from einsmith.schedule.contraction_problem import Problem

MAX_DIFFERENCE = 255
"""Greatest magnitude of an integer of 8 bits minus its zero point."""


@dataclass(frozen=True)
class Decoded:
    """A tensor (values - zero)*scale. axis: the dimension along which scale, [n], lies; None for one scale.

    zero: one zero point; None where it is 0
    """

    values: Tensor
    zero: Tensor | None
    scale: Tensor
    axis: int | None


def multiply_integers(roots: Sequence[Tensor], decoded: Mapping[Tensor, Decoded]) -> list[Tensor]:
    """Return the roots with products of decoded tensors computed by integers, with sums of int32.

    Others stay as they are: products of which a factor is not decoded, or whose scales differ along the sum; sums that
    may leave int32; products in which a factor has no axis of its own.
    """
    memo: dict[Tensor, Tensor] = {}
    for node in postorder(roots):
        memo[node] = with_args(node, tuple([memo[a] for a in node.args])) if node.args else node
        match = match_product(node) if isinstance(node, Compute) else None
        if match is None or not _fits(match[0]):
            continue
        p, factors = match
        operands = [_factor(f, decoded, memo, p) for f in factors]
        if None not in operands:
            memo[node] = product_of_integers(node, p, operands)  # type: ignore[arg-type]
    return [memo[t] for t in roots]


def _fits(p: Problem) -> bool:
    return is_separable(p) and has_plain_steps(p) and not may_leave_int32(p, MAX_DIFFERENCE**2)


def _factor(
    f: ProductFactor, decoded: Mapping[Tensor, Decoded], memo: Mapping[Tensor, Tensor], p: Problem
) -> IntegerFactor | None:
    d = decoded.get(f.tensor)
    if d is None or d.scale.dtype is not dt.f32:
        return None
    place: tuple[Expr, ...] = tuple(Const(0, dt.i32) for _ in d.scale.shape)
    if d.axis is not None:
        place = (f.place[d.axis],)
        if axes_of(*place) & {*p.k}:
            return None
    zero = None if d.zero is None else memo.get(d.zero, d.zero)
    if zero is not None and size(zero.shape) != 1:
        return None
    return IntegerFactor(memo.get(d.values, d.values), f.place, zero, memo.get(d.scale, d.scale), place)
