"""Build the tensors that a program defines from the shapes of its inputs, one for each name that its statements define.

Statements of one name are pieces of a tensor, or are added up; names that read each other are a recurrence. The types
of a recurrence are found by assuming narrow ones and widening them to a fixpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from einsmith.autodiff.totals import convert
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import (
    BoundsError,
    DtypeError,
    FormulaError,
    RecurrenceError,
    ShapeError,
    VerifyError,
    line_number,
)
from einsmith.ir import labels
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import DEFAULT_STEPS, Axis, Leaf, StepOptions, Tensor, leaf
from einsmith.ir.recurrence.define import recurrence
from einsmith.ir.verify import progressions_meet
from einsmith.lang.elaborate import Elaborator
from einsmith.lang.infer import Extents, infer
from einsmith.lang.resolve import FormulaProgram, Line, find_conditions, reads_of
from einsmith.lang.sweeps import in_one_sweep
from einsmith.lang.syntax import Name, ParsedRead, ShapeOf
from einsmith.tracing import formula
from einsmith.tracing.builder import Value, element
from einsmith.tracing.formula import AxisVar, Form, Index, Literal, Ty, WeakForm
from einsmith.tracing.lower import (
    TemplateScope,
    accumulation_type,
    index_type,
    lower,
    lower_pieces,
    lower_scatter,
    push_guards,
)
from einsmith.tracing.result_types import float_type, of_type, result_type

_MAX_LISTED_ELEMENTS = 1_000_000
"""Most elements of a tensor for which a message names an element that no piece defines."""

_APART = "define a tensor over all axes, and read it in a second statement, as in y[t] = z[t//4, t%4]"


def tensors(
    program: FormulaProgram,
    operands: Mapping[str, Value],
    inputs: Iterable[str],
    static: Mapping[str, Any],
    options: StepOptions = DEFAULT_STEPS,
) -> dict[str, Value]:
    """Return every tensor of a program by its name.

    `operands` are values of its `inputs` and run-time parameters; `options` are those of its recurrences. Raises
    FormulaError at the statement that is wrong.
    """
    shapes = {n: v.shape for n, v in operands.items() if n in inputs}
    extents = infer(program, shapes, static)
    values = {n: v for n, v in operands.items() if n in inputs}
    numbers = {n: Literal(v, passed=True) for n, v in static.items()} | {
        n: element(v, ()) for n, v in operands.items() if n not in inputs
    }
    for group in program.order:
        if len(group) > 1 or group[0] in reads_of(program, group[0]):
            values |= _define_cycle(program, group, extents, values, numbers, options)
        else:
            values[group[0]] = _define(program, group[0], extents, values, numbers)
        if labels.is_recorded():
            _label(program, group, values)
    merged = in_one_sweep([v.tensor for v in values.values()])
    labels.carry(dict(zip([v.tensor for v in values.values()], merged, strict=True)))
    return {
        n: v if t is v.tensor else Value(t, weak=v.weak, wide=v.wide)
        for (n, v), t in zip(values.items(), merged, strict=True)
    }


def _label(program: FormulaProgram, names: Sequence[str], values: Mapping[str, Value]) -> None:
    """Label the tensors of these names with the statements that define them."""
    known = [v.tensor for n, v in values.items() if n not in names]
    for name in names:
        at = program.lines[program.defined[name][0]].statement.at
        origin = labels.Label(formula=name, line=line_number(program.text, at))
        labels.note([values[name].tensor], origin, known)


def _define(
    program: FormulaProgram,
    name: str,
    extents: Extents,
    values: Mapping[str, Value],
    numbers: Mapping[str, Form],
    dtype: DType | None = None,
    pushed: bool = False,
) -> Value:
    """Return the tensor of a name. `dtype`: its element type, if that is not inferred; `pushed`: see `_Part`."""
    lines = [(k, program.lines[k]) for k in program.defined[name]]
    try:
        parts = [_Part(program, k, line, extents, values, numbers, dtype, pushed) for k, line in lines]
        return _build_tensor(program, name, extents, parts)
    except (FormulaError, VerifyError, ShapeError, DtypeError) as e:
        raise _locate(e, program, lines[0][1].statement.at) from None


def _define_cycle(
    program: FormulaProgram,
    group: Sequence[str],
    extents: Extents,
    values: Mapping[str, Value],
    numbers: Mapping[str, Form],
    options: StepOptions,
) -> dict[str, Value]:
    """Return tensors that read each other, as a recurrence.

    Types only ever widen. They start from the least types that all definitions agree with, by their text. A tensor that
    is then no more than a number becomes a float of the formula's type, as in a tensor that does not read itself; types
    that this widens follow.
    """
    logical = find_conditions(program, group, (n for n, v in values.items() if v.dtype.is_bool))
    types: dict[str, Ty] = {n: dt.bool_ if n in logical else WeakForm.INT for n in group}
    while True:
        leaves = {n: leaf(extents.shapes[n], _assume_type(ty)) for n, ty in types.items()}
        known = {**values, **{n: Value(x, weak=isinstance(types[n], WeakForm)) for n, x in leaves.items()}}
        bodies = {
            n: [_Part(program, k, program.lines[k], extents, known, numbers).body for k in program.defined[n]]
            for n in group
        }
        new_types = {n: formula.join((types[n], *(b.ty for b in own))) for n, own in bodies.items()}
        if new_types == types:  # a plain number takes the formula's float type
            every = [b for own in bodies.values() for b in own]
            number = float_type(every)
            whole = result_type(every) if all(ty is WeakForm.INT for ty in new_types.values()) else number
            new_types = {n: whole if isinstance(ty, WeakForm) else ty for n, ty in new_types.items()}
        if new_types == types:
            break
        types = new_types
    names = {leaves[n]: n for n in group}

    def solve(pushed: bool) -> dict[Leaf, Tensor]:
        definitions = {
            x: _define(program, n, extents, known, numbers, x.dtype, pushed).tensor for x, n in names.items()
        }
        # The operator asks for chunks when all that reads the recurrences is known.
        own = options._replace(chunk=0) if options.chunk > 1 else options
        return recurrence(definitions, names, own)

    try:
        try:
            solution = solve(False)
        except RecurrenceError as e:
            try:
                solution = solve(True)
            except RecurrenceError:
                raise e from None
    except RecurrenceError as e:
        reader, read = names.get(e.reader), names.get(e.read)
        sites = [
            (site.node.at, all(isinstance(i, Name) for i in site.node.index))
            for n in ([reader] if reader else group)
            for k in program.defined[n]
            for site in program.lines[k].reads
            if site.node.name == read or (read is None and site.node.name in group)
        ]
        at = min(sites, key=lambda s: s[1])[0] if sites else program.lines[program.defined[group[0]][0]].statement.at
        raise FormulaError(e.message, program.text, at, e.hint) from None
    return {n: Value(solution[x]) for x, n in names.items()}


def _assume_type(ty: Ty) -> DType:
    return ty if isinstance(ty, DType) else dt.i64 if ty is WeakForm.INT else dt.f64


def _locate(e: Exception, program: FormulaProgram, at: int) -> Exception:
    if isinstance(e, FormulaError) and e.source is None:
        kind = BoundsError if isinstance(e, BoundsError) else FormulaError
        return kind(e.message, program.text, at, e.hint)
    return e


def _build_tensor(
    program: FormulaProgram,
    name: str,
    extents: Extents,
    parts: Sequence[_Part],
) -> Value:
    shape = extents.shapes[name]
    plain = [p for p in parts if not p.line.statement.accumulate]
    added = parts[len(plain) :]
    if len(parts) == 1 and plain and parts[0].is_plain:
        return Value(lower(parts[0].output_axes, parts[0].body))
    if len(parts) == 1 and plain and parts[0].divided is not None:
        return Value(lower([a for axes in parts[0].divided for a in axes], parts[0].body)).reshape(shape)
    pieces = [p.build_piece() for p in plain]
    if pieces:
        _check_partition(program, name, shape, pieces, [p.line.statement.at for p in plain])
    if not added:
        return Value(lower_pieces(shape, pieces))
    bodies = [p.body for p in parts]
    summed = any(p.line.statement.combiner == "sum" for p in added)
    dtype, ty = accumulation_type(bodies, summed), formula.join(b.ty for b in bodies)
    total = lower_pieces(shape, pieces, dtype) if pieces else None
    for p in added:
        assert p.line.statement.combiner is not None
        total = lower_scatter(p.line.statement.combiner, shape, p.output_axes, p.index, p.body, dtype, total, name)
    assert total is not None
    return Value(convert(total, ty) if isinstance(ty, DType) and (ty.is_float or not summed) else total)


class _Part:
    """One statement lowered to forms: the axes and indices of its left side, and its body, of type
    `dtype` unless it is None.

    divided: where a left index of several axes divides a dimension, as y[4*n+i] does for i < 4, the axes of each
    dimension, slowest first; else None. In a recurrence (`dtype` is given) the dimension has one axis t, and the body
    has t//4 and t%4 in place of n and i, so that y[4*n+i-1] is the step before.
    `pushed`: repeat conditions around a reduction inside its body, so that the body reads nothing where its value is
    unused.
    """

    def __init__(
        self,
        program: FormulaProgram,
        k: int,
        line: Line,
        extents: Extents,
        values: Mapping[str, Value],
        numbers: Mapping[str, Form],
        dtype: DType | None = None,
        pushed: bool = False,
    ):
        self.program, self.line = program, line
        axes = {a: AxisVar(a, extents.axes[k, a]) for a in line.axes}
        self.output_axes = [axes[a] for a in line.output_axes]

        quotients: dict[str, Form] = {}

        def name(node: Name) -> Form:
            return quotients.get(node.id) or (Index(axes[node.id]) if node.id in axes else numbers[node.id])

        def read(node: ParsedRead, index: Sequence[Form]) -> Form:
            v = values[node.name]
            if v.literal is not None and not index:
                return element(v, ())
            return formula.load(v.tensor, index, v.weak, node.name, (program.text, node.at), v.wide)

        def shape(node: ShapeOf, d: int) -> int:
            rank = len(extents.shapes[node.name])
            if not -rank <= d < rank:
                raise FormulaError(f"{node.name} has {rank} dimensions: {node.name}.shape[{d}] does not exist")
            return extents.shapes[node.name][d]

        build = Elaborator(program.text, name, read, shape, lambda a: extents.axes[k, a], axes.__getitem__)
        self.index = [build.form(i) for i in line.statement.index]
        self.divided: list[list[AxisVar]] | None = None
        if not line.statement.accumulate and any(len(i.free) > 1 for i in self.index):
            if len(program.defined[line.statement.name]) > 1:
                raise self._fail(0, "left indices of several axes define a whole tensor, in one statement", _APART)
            self.divided = [self._divide(d) for d in range(len(self.index))]
        if self.divided is not None and dtype is not None:
            self.index = [_flatten(along, quotients) for along in self.divided]
            self.output_axes = [i.axis for i in self.index if isinstance(i, Index)]
        body = build.form(line.statement.value)
        input_type = formula.join(
            v.dtype for v in (values[n] for n in program.inputs) if v.dtype.is_float and not v.weak
        )
        if isinstance(input_type, DType) and input_type.is_float:
            body = of_type(body, input_type)
        if dtype is not None and body.ty is not dtype:
            body = of_type(body, dtype, always=True)
        self.body = push_guards(body) if pushed else body

    @property
    def is_plain(self) -> bool:
        return all(isinstance(i, Index) for i in self.index)

    def build_piece(self) -> tuple[list[int], list[int], list[AxisVar], Form]:
        """Return the offset, step and axis of each output dimension, and the body; a constant index gets an axis of
        extent 1."""
        offset, step, out = [], [], []
        for d in range(len(self.index)):
            start, steps = self._find_steps(d)
            if len(steps) > 1:
                raise self._fail(d, "a left index of a piece is an integer expression of one axis", _APART)
            offset.append(start)
            step.append(next(iter(steps.values()), 1))
            out.append(next(iter(steps), AxisVar(f"_{d}", 1)))
        return offset, step, out, self.body

    def _find_steps(self, d: int) -> tuple[int, dict[AxisVar, int]]:
        """Return the first position of a left index, and how far a step of each axis moves it."""
        i = self.index[d]
        if not formula.is_integer(i.ty) or i.loads:
            hint = "accumulate with += at positions that are read from tensors"
            raise self._fail(d, "a left index is an integer expression of axes", hint)
        scope = TemplateScope(self.output_axes, dt.f32)
        form = linear(scope.convert(i, index_type(i)))
        if any(not isinstance(a, Axis) or c < 1 for a, c in form.terms.items()):
            raise self._fail(d, "a left index has the form step*axis + offset, step positive")
        return form.const, {scope.axes[p]: c for p, c in form.coef.items()}

    def _divide(self, d: int) -> list[AxisVar]:
        """Return the axes of a left index, slowest first. Raises FormulaError where they do not number each position
        of the dimension once: the fastest in steps of 1, each other in steps of the positions of all faster ones."""
        start, steps = self._find_steps(d)
        along = sorted((a for a in self.output_axes if a in self.index[d].free), key=lambda a: -steps.get(a, 0))
        if start:
            raise self._fail(d, f"a left index of several axes starts at position 0, not {start}", _APART)
        filled, faster = 1, ""
        for a in reversed(along):
            if a.extent > 1 and steps.get(a) != filled and all(x.extent for x in along):
                fault = "left out" if steps[a] > filled else "defined more than once"
                message = f"a step of {a.name} is {steps[a]} positions" + (
                    f", and {faster} takes {filled} of them: elements are {fault}"
                    if faster
                    else ": elements are left out"
                )
                raise self._fail(
                    d, message, f"multiply {a.name} by {filled}" + (f", the extent of {faster}" if faster else "")
                )
            filled, faster = filled * a.extent, f"{a.name}*{faster}" if faster else a.name
        return along

    def _fail(self, d: int, message: str, hint: str | None = None) -> FormulaError:
        """Return the error of a left index."""
        return FormulaError(message, self.program.text, self.line.statement.index[d].at, hint)


def _flatten(along: Sequence[AxisVar], quotients: dict[str, Form]) -> Form:
    """Return the one axis of a dimension that several axes divide, and add to `quotients` the others' positions."""
    if len(along) == 1:
        return Index(along[0])
    flat = Index(AxisVar("_".join(a.name for a in along), math.prod(a.extent for a in along)))
    faster = 1
    for a in reversed(along):
        quotient = formula.op("floordiv", flat, Literal(faster)) if faster > 1 else flat
        quotients[a.name] = formula.op("mod", quotient, Literal(a.extent)) if a is not along[0] else quotient
        faster *= a.extent
    return flat if along else Literal(0)


def _check_partition(
    program: FormulaProgram, name: str, shape: tuple[int, ...], pieces: Sequence[tuple], ats: Sequence[int]
) -> None:
    """Raise FormulaError where pieces overlap, leave a gap, or exceed the tensor."""
    for n, ((offset, step, axes, _), at) in enumerate(zip(pieces, ats, strict=True)):
        for d, (o, s, a) in enumerate(zip(offset, step, axes, strict=True)):
            if a.extent and (o < 0 or o + s * (a.extent - 1) >= shape[d]):
                raise FormulaError(
                    f"this piece of {name} covers positions {o} to {o + s * (a.extent - 1)} of dimension {d}, whose "
                    f"extent is {shape[d]}",
                    program.text,
                    at,
                )
        for others, steps, along, _ in pieces[:n]:
            if all(
                a.extent and b.extent and progressions_meet(o, s, a.extent, p, q, b.extent)
                for o, s, a, p, q, b in zip(offset, step, axes, others, steps, along, strict=True)
            ):
                raise FormulaError(
                    f"this piece of {name} overlaps a piece above",
                    program.text,
                    at,
                    "define each element once, or accumulate with +=",
                )
    whole = math.prod(shape)
    written = sum(math.prod(a.extent for a in axes) for *_, axes, _ in pieces)
    if written == whole:
        return
    gap = f"some elements: the pieces define {written}, and the shape {shape} has {whole}"
    if whole <= _MAX_LISTED_ELEMENTS:
        cells = np.zeros(shape, np.int8)
        for offset, step, axes, _ in pieces:
            cells[tuple(slice(o, o + s * a.extent, s) for o, s, a in zip(offset, step, axes, strict=True))] = 1
        gap = f"the element {tuple(int(i[0]) for i in np.nonzero(cells == 0)) if cells.ndim else ()}"
    raise FormulaError(
        f"no piece of {name} defines {gap}", program.text, ats[0], "add a statement for the elements that are missing"
    )
