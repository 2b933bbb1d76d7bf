"""Write reductions: sums of products as MatMul or Einsum, others as ReduceSum, ReduceMax and so on."""

from __future__ import annotations

import string
from collections.abc import Callable
from math import prod

from einsmith.base import dtypes as dt
from einsmith.frontends.onnx.writer.part import FileTensor, FormulaPart
from einsmith.ir.expression_walk import TRANSPARENT
from einsmith.ir.nodes import Apply, Const, Expr, Reduce, apply, axes_of
from einsmith.ir.rebuild import operands

_REDUCTIONS = {"max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}


class ReductionWriter:
    """The writer of a reduction of a part. write: writes an expression of the part; over: the reduction's axes."""

    def __init__(self, part: FormulaPart, write: Callable[[Expr], FileTensor], over: tuple[int, ...]):
        self.part, self.graph, self.domain, self.write_expr, self.over = part, part.graph, part.domain, write, over

    def write(self, r: Reduce) -> list[FileTensor]:
        """Write a reduction and return its results."""
        if r.combiner == "sum":
            return [self._sum(b) for b in r.bodies]
        if prod(r.extents) == 0 and r.combiner != "prod":
            raise self.part.error(f"{r.combiner} over nothing", "reduce over one element or more")
        if r.combiner.startswith("arg"):
            return self._extreme(r)
        return [self._fold(r.combiner, b) for b in r.bodies]

    def _fold(self, combiner: str, body: Expr) -> FileTensor:
        """Reduce an expression by max, min or prod."""
        o = self.write_expr(body)
        if combiner == "prod" and not set(self.over) <= set(o.axes):  # axes count on which it does not depend
            axes = tuple(sorted({*o.axes, *self.over}))
            o = FileTensor(self.part.full(o, axes), axes)
        if not body.dtype.is_bool or not set(self.over) & set(o.axes):
            return self._reduce(_REDUCTIONS[combiner], o)
        whole = self._reduce(_REDUCTIONS[combiner], FileTensor(self.graph.cast(o.name, dt.i32), o.axes))
        return FileTensor(self.graph.cast(whole.name, dt.bool_), whole.axes)

    def _reduce(self, operator: str, o: FileTensor) -> FileTensor:
        """Reduce a tensor along those of the reduction's axes that it has."""
        places = [n for n, a in enumerate(o.axes) if a in self.over]
        if not places:
            return o
        name = self.graph.node(operator, o.name, self.graph.ints(places, "axes"), keepdims=0)
        return FileTensor(name, tuple(a for a in o.axes if a not in self.over))

    def _extreme(self, r: Reduce) -> list[FileTensor]:
        """Return (the extremum, its first row-major position)."""
        graph, (body,) = self.graph, r.bodies
        o = self.write_expr(body)
        kept = tuple(sorted(a for a in o.axes if a not in self.over))
        name = self.part.full(o, (*kept, *self.over))
        if body.dtype.is_bool:
            name = graph.cast(name, dt.i32)
        if len(self.over) != 1:
            flat = [*(self.domain[a] for a in kept), prod(r.extents)]
            name = graph.node("Reshape", name, graph.ints(flat, "shape"))
        value, position = ("ReduceMax", "ArgMax") if r.combiner == "argmax" else ("ReduceMin", "ArgMin")
        best = graph.node(value, name, graph.ints([-1], "axes"), keepdims=0)
        place = graph.node(position, name, axis=-1, keepdims=0)
        if body.dtype.is_bool:
            best = graph.cast(best, dt.bool_)
        return [FileTensor(best, kept), FileTensor(graph.cast(place, dt.i32), kept)]

    def _sum(self, body: Expr) -> FileTensor:
        """Write a sum: of a product, as MatMul or Einsum; of another expression, as ReduceSum."""
        factors, over = _factors(body), set(self.over)
        outer = [self.write_expr(f) for f in factors if not axes_of(f) & over]
        inner = [self.write_expr(f) for f in factors if axes_of(f) & over]
        count = prod(self.domain[a] for a in over.difference(*(o.axes for o in inner)))
        if count != 1:
            outer.append(FileTensor(self.graph.number(count, body.dtype), ()))
        if len(inner) == 1:
            inner = [self._reduce("ReduceSum", inner[0])]
        elif inner:
            inner = [self._matmul(*inner) if len(inner) == 2 else self._einsum(*inner)]
        result, *rest = [*inner, *outer]
        for o in rest:
            axes = tuple(sorted({*result.axes, *o.axes}))
            names = self.part.align(result, axes), self.part.align(o, axes)
            result = FileTensor(self.graph.node("Mul", *names), axes)
        return result

    def _matmul(self, a: FileTensor, b: FileTensor) -> FileTensor:
        """Write the sum of a product of two tensors as MatMul, where it is one; else as Einsum."""
        summed = [x for x in self.over if x in a.axes and x in b.axes]
        if any((x in a.axes) != (x in b.axes) for x in self.over) or len(summed) != 1:
            return self._einsum(a, b)
        batch = [x for x in a.axes if x in b.axes and x not in self.over]
        m = [x for x in a.axes if x not in b.axes]
        n = [x for x in b.axes if x not in a.axes]
        if m and n and min(n) < min(m):
            a, b, m, n = b, a, n, m
        if not m or not n or len(n) != 1 or (len(m) != 1 and batch):
            return self._einsum(a, b)
        left = self.part.transpose(a, (*batch, *m, *summed))
        right = self.part.transpose(b, (*batch, *summed, *n))
        return FileTensor(self.graph.node("MatMul", left, right), (*batch, *m, *n))

    def _einsum(self, *factors: FileTensor) -> FileTensor:
        axes = sorted({a for o in factors for a in o.axes})
        letter = dict(zip(axes, string.ascii_letters, strict=False))
        if len(axes) > len(letter):
            raise self.part.error(f"a sum over {len(axes)} axes has too few letters", "split it into several sums")
        result = tuple(a for a in axes if a not in self.over)
        terms = ["".join(letter[a] for a in o.axes) for o in factors]
        equation = f"{','.join(terms)}->{''.join(letter[a] for a in result)}"
        return FileTensor(self.graph.node("Einsum", *(o.name for o in factors), equation=equation), result)


def _factors(body: Expr) -> list[Expr]:
    """Return expressions whose product is `body`. A condition on a product goes to one factor that has its axes."""
    if isinstance(body, Apply) and body.fn in TRANSPARENT:
        return _factors(body.args[0])
    if isinstance(body, Apply) and body.fn == "mul":
        return operands(body, "mul")
    if isinstance(body, Apply) and body.fn == "where" and isinstance(body.args[2], Const) and body.args[2].value == 0:
        condition, product, zero = body.args
        factors = operands(product, "mul")
        fitting = [n for n, f in enumerate(factors) if axes_of(condition) <= axes_of(f)]
        if len(factors) > 1 and fitting:
            n = min(fitting, key=lambda n: len(axes_of(factors[n])))
            factors[n] = apply("where", condition, factors[n], zero)
            return factors
    return [body]
