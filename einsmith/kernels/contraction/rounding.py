"""Round the operands of products to 16 bits (`passes.algebra.precision`)."""

from __future__ import annotations

from einsmith.base.dtypes import DType, f32
from einsmith.ir.nodes import Expr, Piece, Reduce, Template, apply, cast
from einsmith.ir.rebuild import guarded
from einsmith.kernels.contraction.words import narrow
from einsmith.schedule.contraction_problem import Operand, Problem, apply_epilogue, problems


def is_product(t: Template) -> bool:
    """Return whether every piece of a template is a sum of products with an axis that one operand alone has."""
    matched = problems(t)
    return matched is not None and any(p.count((*p.left, *p.right)) > 1 for p in matched)


def round_operands(t: Template, dtype: DType) -> Template:
    """Return the template with the operands of its products rounded to `dtype`.

    Products stay as they are where one operand has no axis of its own: their results take as many multiply-adds as they
    have bytes to read.
    """

    def compute(t: Template) -> Template:
        by_piece = {p.piece: p for p in problems(t) or () if _is_worth_rounding(p)}
        if not by_piece:
            return t
        parts = [_round_piece(by_piece[x], dtype) if x in by_piece else x for x in t.parts]
        return Template(t.shape, t.params, tuple(parts))

    return t.memo(("operands rounded", dtype), compute)


def _is_worth_rounding(p: Problem) -> bool:
    _, left, right, k = p.sizes
    return p.dtype is f32 and min(left, right, k) > 1


def _round_piece(p: Problem, dtype: DType) -> Piece:
    def factor(o: Operand) -> Expr:
        x = o.expr if narrow(o.expr, dtype) is not None else cast(cast(o.expr, dtype), o.expr.dtype)
        return guarded([g for g in o.guards if g not in p.exact], x)

    term = guarded(p.exact, apply("mul", *map(factor, p.operands)))
    body = Reduce("sum", p.piece.domain[len(p.piece.extents) :], (apply_epilogue(p.epilogue, term),))
    return Piece(p.piece.offset, p.piece.step, p.piece.extents, body)
