"""Emit the combiners of a Reduce on accumulators (scalars or vectors): initial state, step, merge."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.base.dtypes import DType
from einsmith.codegen.loopnest.lanes import merge_lanes
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.ir.functions import COMBINING, identity
from einsmith.ir.nodes import Apply, Expr
from einsmith.kernels.emit.vector import VectorEmitter

Accumulators = list[SSAValue]
"""The accumulators of one reduction: one per body, or (value, i32 index) for argmax and argmin."""


class Combine:
    """An emitter of one combiner for bodies of given types."""

    def __init__(self, em: VectorEmitter, combiner: str, dtypes: Sequence[DType]):
        self.em, self.combiner, self.dtypes = em, combiner, tuple(dtypes)
        self.is_arg = combiner.startswith("arg")
        self.value_dtypes = self.dtypes[:1] if self.is_arg else self.dtypes

    def initial(self, lanes: int, index: Sequence[int] = ()) -> Accumulators:
        """Return the state before the first point. For arg-reductions `index` is the first position of each lane."""
        out = [self.em.const(identity(self.combiner, d), elem_of(d), lanes) for d in self.value_dtypes]
        if self.is_arg:
            out.append(self.em.literal(list(index), "i32") if lanes else self.em.const(index[0], "i32"))
        return out

    def step(self, state: Accumulators, bodies: Sequence[Expr], index: Expr | None = None) -> Accumulators:
        """Return the state after one more point or vector of points, in ascending order.

        index: row-major number of the point, for arg-reductions."""
        em = self.em
        if self.is_arg:
            assert index is not None
            x, at = em.emit(bodies[0]), em.emit(index)
            best, where = state
            if best.type.lanes:
                x, at = em.splat(x), em.splat(at)
            take = self._beats(x, best)
            return [em.op("where", take, x, best), em.op("where", take, at, where)]
        out = []
        for old, body in zip(state, bodies, strict=True):
            if self.combiner == "sum" and isinstance(body, Apply) and body.fn == "mul" and body.dtype.is_float:
                a, c = (em.emit(x) for x in body.args)
                out.append(em.op("fma", a, c, old))
            else:
                out.append(self._combine(old, em.emit(body)))
        return out

    def _combine(self, a: SSAValue, b: SSAValue) -> SSAValue:
        fn = COMBINING[self.combiner]
        if a.type.elem == "i1":
            fn = {"max": "or", "min": "and"}[fn]
        return self.em.op(fn, a, b)

    def _beats(self, x: SSAValue, best: SSAValue) -> SSAValue:
        """Return whether x replaces an earlier `best`: it is strictly better, or the first NaN."""
        em = self.em
        if not self.dtypes[0].is_float:
            return em.op("lt", best, x) if self.combiner == "argmax" else em.op("lt", x, best)
        worse = em.op("le", x, best) if self.combiner == "argmax" else em.op("le", best, x)
        return em.op("and", em.op("not", worse), em.op("eq", best, best))

    def merge(self, a: Accumulators, b: Accumulators) -> Accumulators:
        """Merge two states, in any order of their positions; of equal values the lower index wins."""
        em = self.em
        if not self.is_arg:
            return [self._combine(x, y) for x, y in zip(a, b, strict=True)]
        (x, i), (y, j) = a, b
        tie = em.op("eq", x, y)
        if self.dtypes[0].is_float:
            tie = em.op("or", tie, em.op("and", em.op("ne", x, x), em.op("ne", y, y)))
        take = em.op("or", self._beats(y, x), em.op("and", tie, em.op("lt", j, i)))
        return [em.op("where", take, y, x), em.op("where", take, j, i)]

    def keep(self, mask: SSAValue | None, new: Accumulators, old: Accumulators) -> Accumulators:
        """Return `new` in the lanes of the mask and `old` in the others."""
        if mask is None:
            return new
        return [self.em.op("where", mask, n, o) for n, o in zip(new, old, strict=True)]

    def across(self, state: Accumulators) -> Accumulators:
        """Merge the lanes of a state into scalars."""
        return merge_lanes(self.em, state, self.merge)
