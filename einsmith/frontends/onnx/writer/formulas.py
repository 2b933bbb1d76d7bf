"""Write formulas as elementary operators of ONNX.

Every expression becomes a tensor over the axes on which it depends (`FileTensor`), so that operators broadcast:

    sum[k](x[b,k]*w[n,k])            MatMul
    where(i2 < 3, x[b,2*i2+r], 0)    Gather of a table of positions, Where
    x[b, i//5, i%5]                  Reshape
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.frontends.onnx.writer.arithmetic import divide_floats, divide_integers, truncate
from einsmith.frontends.onnx.writer.onnx_graph import GraphWriter
from einsmith.frontends.onnx.writer.part import FileTensor, FormulaPart
from einsmith.frontends.onnx.writer.pieces import assemble
from einsmith.frontends.onnx.writer.reductions import ReductionWriter
from einsmith.ir.analysis.guarded import unconditional
from einsmith.ir.analysis.linear import linear
from einsmith.ir.expression_walk import TRANSPARENT, ExpressionWalk
from einsmith.ir.functions import identity
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    apply,
    axes_of,
    cast,
    has_read,
    template,
)
from einsmith.ir.printer import show
from einsmith.ir.rebuild import substitute
from einsmith.ir.template_evaluator import evaluate_template

MAX_TABLE = 1 << 20
"""Most elements of an expression of axes alone that is stored as a table; beyond it, operators compute it."""

_OPERATORS = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "min": "Min", "max": "Max", "pow": "Pow",
    "exp": "Exp", "log": "Log", "tanh": "Tanh", "sigmoid": "Sigmoid", "erf": "Erf", "sin": "Sin", "cos": "Cos",
    "sqrt": "Sqrt", "abs": "Abs", "sign": "Sign", "floor": "Floor", "round": "Round", "lt": "Less",
    "le": "LessOrEqual", "eq": "Equal", "and": "And", "or": "Or", "not": "Not", "where": "Where",
}  # fmt: skip
"""Scalar functions -> ONNX's operators of the same meaning."""


class _Index(NamedTuple):
    """The index of dimensions of a tensor that are read together, as one position in their row-major order."""

    dims: tuple[int, ...]
    extent: int
    position: Expr


def write_template(graph: GraphWriter, t: Template, args: Sequence[str]) -> list[str]:
    """Write an operator's formula and return the names of its results. args: names of its arguments.

    Raises FormulaError, which shows the formula, for what ONNX's operators cannot express."""
    before, graph.formula = graph.formula, ""
    boxes: list[tuple[Piece, list[str]]] = []
    try:
        for part in t.parts:
            graph.formula = describe(part, args)
            writer = _PartWriter(graph, t, args, part)
            if isinstance(part, Scatter):
                return [writer.scatter(part, t.shape, assemble(graph, t, 0, boxes) if boxes else None)]
            boxes.append((part, writer.piece(part)))
        return [assemble(graph, t, n, boxes) for n in range(len(t.dtypes))]
    finally:
        graph.formula = before


def describe(part: Piece | Scatter, args: Sequence[str]) -> str:
    """Return a part's formula in a line, with the names of the file."""
    text = " ".join(show(part, None, [a if a.isidentifier() else f"{a!r}" for a in args]).split())
    return text if len(text) <= 400 else text[:400] + " ..."


# --------------------------------------------------------------------------------------------------------- one part


class _PartWriter(FormulaPart, ExpressionWalk[FileTensor, None]):
    """The writer of one part of a template."""

    def __init__(self, graph: GraphWriter, t: Template, args: Sequence[str], part: Piece | Scatter):
        super().__init__(graph, part.domain)
        self.args, self.params = args, t.params
        self.rank = len(part.extents)
        self.unguarded = unconditional(part.bodies)
        self.known: dict[tuple[Expr, None], FileTensor] = {}
        self.indices: dict[Read, list[_Index]] = {}

    # -- results

    def piece(self, part: Piece) -> list[str]:
        """Return the names of the results of a piece, each of its full extents."""
        body = part.body
        if isinstance(body, Reduce):
            over = tuple(range(self.rank, len(self.domain)))
            results = ReductionWriter(self, self.write, over).write(body)
        else:
            results = [self.write(body)]
        return [self.full(r, tuple(range(self.rank))) for r in results]

    def scatter(self, part: Scatter, shape: Sequence[int], start: str | None) -> str:
        """Return the name of a scatter's result. start: the values before it; None: the combiner's identity."""
        graph, axes = self.graph, tuple(range(self.rank))
        if start is None:
            value = graph.number(identity(part.combiner, part.body.dtype), part.body.dtype)
            start = graph.node("Expand", value, graph.ints(shape, "shape"))
        if not shape:
            raise self.error("a sum into a tensor without dimensions has no operator in ONNX", "reduce by sum[...]")
        columns = []
        for e in part.index:
            name = self.full(self.write(cast(e, dt.i64)), axes)
            columns.append(graph.node("Unsqueeze", name, graph.ints([-1], "axes")))
        index = graph.node("Concat", *columns, axis=-1) if len(columns) > 1 else columns[0]
        updates = self.full(self.write(part.body), axes)
        combine = {"sum": "add", "prod": "mul"}.get(part.combiner, part.combiner)
        return graph.node("ScatterND", start, index, updates, reduction=combine)

    # -- expressions

    def write(self, e: Expr) -> FileTensor:
        """Write an expression and return its operand."""
        return self.evaluate(e, None, self.known)

    def _is_table(self, e: Expr) -> bool:
        return not has_read(e) and prod(self.domain[a] for a in axes_of(e)) <= MAX_TABLE

    def leaf(self, x: Expr, guard: None) -> FileTensor | None:
        graph = self.graph
        if isinstance(x, Const):
            return FileTensor(graph.number(x.value, x.dtype), ())
        if isinstance(x, Apply) and x.fn == "random_bits":
            raise self.error("random numbers", "export a network whose evaluation draws none")
        if self._is_table(x):
            axes = tuple(sorted(axes_of(x)))
            table = x.dtype.narrow(self._table(x, axes))
            return FileTensor(graph.number(table.item(), x.dtype) if not axes else graph.constant(table, "table"), axes)
        if isinstance(x, Axis):
            return FileTensor(
                graph.constant(np.arange(self.domain[x.position], dtype=np.int32), "table"), (x.position,)
            )
        return None

    def operands(self, x: Expr) -> Sequence[Expr]:
        if isinstance(x, Read):
            return [i.position for i in self._indices(x) if has_read(i.position)]
        return super().operands(x)

    def combine(self, x: Expr, operands: Sequence[FileTensor], guard: None) -> FileTensor:
        if isinstance(x, Read):
            return self._read(x)
        assert isinstance(x, Apply)
        return self._apply(x, operands)

    def _table(self, e: Expr, axes: Sequence[int]) -> np.ndarray:
        """Return the values of an expression without reads over `axes`."""
        renamed = substitute(e, {a: Axis(n) for n, a in enumerate(axes)})
        return evaluate_template(template([self.domain[a] for a in axes], [], renamed), [])[0]

    def _apply(self, e: Apply, operands: Sequence[FileTensor]) -> FileTensor:
        graph, fn = self.graph, e.fn
        if fn in TRANSPARENT:
            return operands[0]
        axes = tuple(sorted({a for o in operands for a in o.axes}))
        names = [self.align(o, axes) for o in operands]
        if fn == "cast" and e.args[0].dtype.is_float and e.dtype.is_int:
            result = truncate(graph, names[0], e.args[0].dtype, e.dtype)
        elif fn == "cast":
            result = graph.cast(names[0], e.dtype)
        elif fn == "rsqrt":
            result = graph.node("Reciprocal", graph.node("Sqrt", *names))
        elif fn == "ne":
            result = graph.node("Not", graph.node("Equal", *names))
        elif fn in ("floordiv", "mod"):
            if e.dtype.is_float:
                result = divide_floats(graph, fn, names[0], names[1], e.dtype)
            else:
                divisor = e.args[1].value if isinstance(e.args[1], Const) else None
                result = divide_integers(graph, fn, names[0], names[1], e.dtype, divisor)
        elif fn == "sign" and e.dtype.is_float:  # onnxruntime's Sign of NaN is 0
            result = graph.node("Where", graph.node("Equal", *names, *names), graph.node("Sign", *names), *names)
        elif fn in _OPERATORS:
            result = graph.node(_OPERATORS[fn], *names)
        else:
            raise self.error(f"{fn} has no operator", "write it with other functions")
        return FileTensor(result, axes)

    # -- reads

    def _indices(self, e: Read) -> list[_Index]:
        """Return the indices of a read. Dimensions whose indices share axes are read together."""
        if e in self.indices:
            return self.indices[e]
        shape = self.params[e.slot][1]
        index = self._named_index(e)
        groups: list[tuple[list[int], set[int]]] = []
        for d, i in enumerate(index):
            axes = set(axes_of(i))
            joined = [g for g in groups if g[1] & axes]
            groups = [g for g in groups if g not in joined]
            groups.append((sorted([d, *(k for g in joined for k in g[0])]), axes.union(*(g[1] for g in joined))))
        indices = []
        for dims, _ in sorted(groups):
            position: Expr | None = None
            for d in dims:
                at = index[d]
                if e not in self.unguarded and not self._stays_inside(at, shape[d]):
                    at = cast(at, dt.i64)
                    at = apply("min", apply("max", at, Const(0, dt.i64)), Const(max(shape[d] - 1, 0), dt.i64))
                if position is None:
                    position = at if len(dims) == 1 else cast(at, dt.i64)
                else:
                    scaled = apply("mul", position, Const(shape[d], dt.i64))
                    position = apply("add", scaled, cast(at, dt.i64))
            assert position is not None
            indices.append(_Index(tuple(dims), prod(shape[d] for d in dims), position))
        self.indices[e] = indices
        return indices

    def _named_index(self, e: Read) -> list[Expr]:
        """Return the index of a read, with the output's axes of extent 1 at positions 0 between their neighbours, so
        that the operand need not be squeezed."""
        shape, index = self.params[e.slot][1], list(e.index)
        free = [a for a in range(self.rank) if self.domain[a] == 1 and a not in axes_of(e)]
        last = -1
        for d, i in enumerate(index):
            after = [i.position for i in index[d + 1 :] if isinstance(i, Axis)]
            if shape[d] == 1 and isinstance(i, Const):
                fitting = [a for a in free if last < a < min(after, default=self.rank)]
                if fitting:
                    index[d] = i = Axis(fitting[0])
                    free.remove(fitting[0])
            if isinstance(i, Axis):
                last = i.position
        return index

    def _stays_inside(self, index: Expr, extent: int) -> bool:
        """Return whether an index, a multiple of one axis plus a number, is in bounds at all points."""
        form = linear(index)
        if form.atoms or len(form.coef) > 1:
            return False
        ends = (form.const, form.const + sum(c * (self.domain[a] - 1) for a, c in form.coef.items()))
        return 0 <= min(ends) and max(ends) < extent

    def _read(self, e: Read) -> FileTensor:
        """Write a read: a Slice for indices of one axis, then for each other index a Reshape or a Gather."""
        graph, shape = self.graph, self.params[e.slot][1]
        name, indices = self.args[e.slot], self._indices(e)
        # What the dimensions of the tensor run over: ("axis", number), ("source", dimension) or ("none", 0).
        now: list[tuple[str, int]] = [("source", d) for d in range(len(shape))]
        extents = list(shape)
        slices = []
        for i in indices:
            form = linear(i.position) if len(i.dims) == 1 else None
            if form is None or form.atoms or len(form.coef) > 1 or not self._stays_inside(i.position, i.extent):
                continue
            (d,) = i.dims
            if not form.coef:
                now[d], count, step = ("none", 0), 1, 1
            else:
                (axis,), (step,) = form.coef, form.coef.values()
                now[d], count = ("axis", axis), self.domain[axis]
            if (form.const, step, count) != (0, 1, extents[d]):
                end = form.const + step * count
                slices.append((d, form.const, end if end >= 0 else np.iinfo(np.int64).min, step))
            extents[d] = count
        if slices:
            axes, *bounds = zip(*slices, strict=True)
            starts, ends, steps = (graph.ints(v, n) for v, n in zip(bounds, ("starts", "ends", "steps"), strict=True))
            name = graph.node("Slice", name, starts, ends, graph.ints(axes, "axes"), steps)
        gone = [d for d, (kind, _) in enumerate(now) if kind == "none"]
        if gone:
            name = graph.node("Squeeze", name, graph.ints(gone, "axes"))
            now = [n for n in now if n[0] != "none"]
            extents = [n for d, n in enumerate(extents) if d not in gone]
        for i in indices:
            if ("source", i.dims[0]) in now:
                name, now, extents = self._gather(name, now, extents, i)
        return FileTensor(name, tuple(axis for _, axis in now))

    def _gather(
        self, name: str, now: list[tuple[str, int]], extents: list[int], i: _Index
    ) -> tuple[str, list[tuple[str, int]], list[int]]:
        """Read dimensions `i.dims` of a tensor at an index; return (name, what the dimensions run over, extents)."""
        graph = self.graph
        places = [now.index(("source", d)) for d in i.dims]
        at = places[0]
        if places != list(range(at, at + len(places))):
            order = [p for p in range(len(now)) if p < at and p not in places]
            at = len(order)
            order += [*places, *(p for p in range(len(now)) if p not in order and p not in places)]
            name = graph.node("Transpose", name, perm=order)
            now, extents = [now[p] for p in order], [extents[p] for p in order]
        before, after = slice(None, at), slice(at + len(places), None)
        if has_read(i.position):
            operand, table = self.known[i.position, None], None
            if i.position.dtype not in (dt.i32, dt.i64):
                operand = FileTensor(graph.cast(operand.name, dt.i64), operand.axes)
            axes = operand.axes
        else:
            axes = tuple(sorted(axes_of(i.position)))
            table = self._table(i.position, axes)
        new = [("axis", a) for a in axes]
        counts = [self.domain[a] for a in axes]
        shape = [*extents[before], *counts, *extents[after]]
        if table is not None and table.size == i.extent and (table.reshape(-1) == np.arange(i.extent)).all():
            name = graph.node("Reshape", name, graph.ints(shape, "shape"))
        else:
            if len(places) > 1:
                flat = [*extents[before], i.extent, *extents[after]]
                name = graph.node("Reshape", name, graph.ints(flat, "shape"))
            index = operand.name if table is None else graph.constant(table.astype(np.int64), "positions")
            name = graph.node("Gather", name, index, axis=at)
        return name, [*now[before], *new, *now[after]], shape
