"""Differentiate in forward mode: compute the tangents of results from the tangents of arguments.

    before   C[i,j] = sum[k](A[i,k] * B[k,j])                     and tA, tB
    after    tC[i,j] = sum[k](tA[i,k] * B[k,j] + A[i,k] * tB[k,j])

The rules are those of the reverse sweep: a scalar function's derivative times its argument's tangent instead of its
result's adjoint. No index is inverted, so a tangent costs about as much as the formula.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.autodiff.adjoint.node import Adjoint
from einsmith.autodiff.adjoint.scatter import position, select_attaining
from einsmith.autodiff.plan import AdjointPlan
from einsmith.autodiff.recurrence.derivatives import push_forward
from einsmith.autodiff.totals import convert, zeros
from einsmith.base.errors import GradientError
from einsmith.ir.adjoint_rules import Under, choose, constant, mul
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Expr,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Template,
    Tensor,
    apply,
    cast,
    postorder,
)
from einsmith.ir.rebuild import exchange


def tangents(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], directions: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Compute Jacobian-vector products: the derivative of each output along `directions`, the tangents of `inputs`.

    A tangent has its tensor's shape and type. Returns (outputs, tangents); the outputs have the same values, rewritten
    to share nodes with the tangents. Tangents of integers, and of tensors that do not depend on the inputs, are zeros.
    Accepts its own results and those of `gradients`. Raises GradientError if `directions` does not match `inputs` in
    number, shapes or types.
    """
    if len(inputs) != len(directions):
        raise GradientError(f"{len(inputs)} inputs need as many tangents, got {len(directions)}")
    known: dict[Tensor, Tensor] = {}
    for n, (x, t) in enumerate(zip(inputs, directions, strict=True)):
        if t.shape != x.shape or t.dtype is not x.dtype:
            raise GradientError(
                f"input {n} is {x.dtype.name}{list(x.shape)}, its tangent {t.dtype.name}{list(t.shape)}"
            )
        if x.dtype.is_float:
            known[x] = convert(t, x.dtype.arithmetic)
    replaced: dict[Tensor, Item] = {}
    for node in postorder(outputs):
        if node in known or isinstance(node, (Leaf, Item)):
            continue
        if isinstance(node, Recurrence):
            known |= {Item(node, j): t for j, t in push_forward(node, known, _plan).items()}
            continue
        assert isinstance(node, Compute)
        active = frozenset(s for s, a in enumerate(node.args) if a in known)
        if not active:
            continue
        plan, numbers = _plan(node.template, active)
        tensors = plan.tensors(node, [known.get(a) for a in node.args])
        several = len(node.template.dtypes) > 1
        for member, number in numbers.items():
            direction = tensors[number]
            assert direction is not None
            known[Item(node, member) if several else node] = direction
        for member, number in plan.replaced.items():
            new = tensors[number]
            assert isinstance(new, Item)
            replaced[Item(node, member) if several else node] = new
    results = [convert(known[o], o.dtype) if o in known else zeros(o.shape, o.dtype) for o in outputs]
    rewritten = exchange([*outputs, *results], replaced)
    return rewritten[: len(outputs)], rewritten[len(outputs) :]


def _plan(t: Template, active: frozenset[int]) -> tuple[AdjointPlan, dict[int, int]]:
    """Return (the plan for a template whose arguments `active` have tangents, the number of each float result's
    tangent)."""
    return t.memo(f"tangent {sorted(active)}", lambda _: _Forward(t, active).run())


class _Forward(Adjoint):
    """The plan of a template's tangents. Its tensors are the arguments, the results, the arguments' tangents, then its
    own."""

    def __init__(self, t: Template, active: frozenset[int]):
        super().__init__(t, active, ())
        moves = [(d.arithmetic, shape) for d, shape in t.params]
        self.out = AdjointPlan([*t.params, *((d, t.shape) for d in t.dtypes), *moves])
        self.first_tangent = self.first_result + len(t.dtypes)

    def run(self) -> tuple[AdjointPlan, dict[int, int]]:
        members = [m for m, d in enumerate(self.t.dtypes) if d.is_float]
        parts = {m: [self._tangent(p, m) for p in self.t.parts] for m in members}
        return self.out, {m: self.out.add(self.t.shape, parts[m]) for m in members}

    def _tangent(self, part: Piece | Scatter, member: int) -> Piece | Scatter:
        at = position(part)
        if self.t.is_scatter:
            tangent, best = (
                self._differentiate(part.bodies[-1], {}),
                select_attaining(self.t, self.out, self.first_result, part),
            )
            if best is not None:
                tangent = choose(best.here, apply("div", tangent, best.points), 0.0)
            if isinstance(part, Scatter):
                return Scatter("sum", part.extents, part.index, tangent)
            return Piece(part.offset, part.step, part.extents, tangent)
        assert isinstance(part, Piece)
        body: Expr | Reduce
        if isinstance(part.body, Reduce):
            root = part.bodies[member]
            move = self._differentiate(root, {})
            if part.body.combiner == "prod":
                move = mul(self._multiply_other_factors(part, member, at), move)
            elif part.body.combiner != "sum":
                move = choose(self._find_chosen_condition(part, member, at), move, 0.0)
            body = Reduce("sum", part.body.extents, (move,))
        else:
            values: dict[Expr, Expr] = {}
            if isinstance(part.body, Apply) and FUNCTIONS[part.body.fn].uses_value:
                values[part.body] = self.out.read(self.first_result, at)
            body = self._differentiate(part.body, values)
        return Piece(part.offset, part.step, part.extents, body)

    def _differentiate(self, root: Expr, values: dict[Expr, Expr]) -> Expr:
        """Return the tangent of an expression; `values` are reads that hold an expression's value."""
        tangent_of: dict[Expr, Expr] = {}
        for e in postorder([root]):
            if isinstance(e, Read):
                if e.slot in self.needed and e.dtype.is_float:
                    tangent_of[e] = self.out.read(self.first_tangent + e.slot, e.index)
            elif isinstance(e, Apply) and e.dtype.is_float:
                new = self._apply(e, tangent_of, values.get(e, e))
                if new is not None:
                    tangent_of[e] = new
        return tangent_of.get(root, constant(0.0, root))

    @staticmethod
    def _apply(e: Apply, tangent_of: dict[Expr, Expr], value: Expr) -> Expr | None:
        if e.fn == "where":
            c, a, b = e.args
            if a not in tangent_of and b not in tangent_of:
                return None
            return choose(c, tangent_of.get(a, constant(0.0, a)), tangent_of.get(b, constant(0.0, b)))
        out: Expr | None = None
        for a, rule in zip(e.args, FUNCTIONS[e.fn].adjoint, strict=True):
            if a not in tangent_of or rule is None:
                continue
            if e.fn == "cast":
                return cast(tangent_of[a], e.dtype.arithmetic)
            term = rule(tangent_of[a], e.args, value)
            if isinstance(term, Under):
                term = choose(term.condition, term.value, 0.0)
            if term is not None:
                out = term if out is None else apply("add", out, term)
        return out
