"""Operators: formulas with named inputs and parameters. `op(text)` makes one; calling it applies it."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from einsmith import dtypes as dt
from einsmith.dtypes import DType, dtype_of
from einsmith.errors import BoundsError, DtypeError, FormulaError, RecurrenceError, ShapeError, TraceError, VerifyError
from einsmith.expr.linear import linear
from einsmith.expr.nodes import Axis, Leaf, Tensor, leaf
from einsmith.expr.recurrence import recurrence
from einsmith.lang import formula as fm
from einsmith.lang import trace
from einsmith.lang.builder import Ex, Number, Value, as_value, element, shared
from einsmith.lang.elaborate import Elaborator
from einsmith.lang.formula import AxisVar, Form, Index, Literal, Ty, Weak
from einsmith.lang.gradient_text import FormulaText, gradient_text
from einsmith.lang.infer import Extents, infer
from einsmith.lang.lower import Scope, accumulated_type, lower, lower_pieces, lower_scatter, push_guards
from einsmith.lang.parser import Element, Name, ShapeOf, Source, near
from einsmith.lang.program import Line, Program, conditions, reads_of, resolve, resolve_source
from einsmith.lang.sweeps import in_one_sweep

_COUNT = itertools.count()
_COUNTABLE = 1_000_000  # elements up to which pieces are checked one by one, for messages that name the element


class Operator:
    """A formula ready to be applied: `operator(*inputs, **parameters)`.

    Inputs come in the order of their first appearance in the text, or by name; parameters by keyword. Given arrays, it
    is compiled and run and gives arrays; given traced tensors, it extends the trace. Several outputs come as a tuple.
    `checkpoint=S`, here or in a call: the gradient of a tensor that reads itself saves every S-th state only, and
    computes the others again, S at a time; 0 saves all. Raises FormulaError, BoundsError, ShapeError, DtypeError as
    API.md says.
    """

    def __init__(
        self,
        text: str | Source,
        extents: Mapping[str, int | str] | None = None,
        name: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        checkpoint: int = 0,
    ):
        if not isinstance(text, (str, Source)):
            raise FormulaError(f"a formula is a text, not {_described(text)}")
        self.defaults = dict(defaults or {})
        resolved = resolve if isinstance(text, str) else resolve_source
        if extents is None and isinstance(text, FormulaText):
            extents = text.extents
        self.program: Program = resolved(text, extents, self.defaults)  # type: ignore[arg-type]
        self.name = name or "_".join(self.program.outputs)
        self.inputs = tuple(self.program.inputs)
        parameters = self.program.parameters
        for d in self.defaults:
            if d not in parameters:
                hint = near(d, parameters) or f"the parameters are {', '.join(parameters) or 'none'}"
                raise FormulaError(f"{d!r} is no parameter of {self.name}", hint=hint)
        self.checkpoint = _saved(self.name, checkpoint)
        self._made_of = (text, extents, self.name, self.defaults, self.checkpoint)
        self._id = next(_COUNT)
        self._bound: dict[tuple, _Bound] = {}

    def __reduce__(self) -> tuple:
        return Operator, self._made_of  # made anew: the number of an operator belongs to its process

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.program.parameters)

    @property
    def signature(self) -> str:
        """Inputs with their indices at the first read, parameters with their defaults, outputs: one line."""

        def axes(name: str) -> str:
            rank = self.program.inputs[name]
            for line in self.program.lines:
                for site in line.reads:
                    if site.node.name == name:
                        return ",".join(i.id if isinstance(i, Name) else "_" for i in site.node.index)
            return ",".join("_" * (rank or 0))

        inputs = [f"{n}[{axes(n)}]" for n in self.inputs]
        parameters = [
            n + (f"={self.defaults[n]!r}" if n in self.defaults else "") + (" (static)" if static else "")
            for n, static in self.program.parameters.items()
        ]
        outputs = []
        for n in self.program.outputs:
            index = self.program.lines[self.program.defined[n][0]].statement.index
            outputs.append(f"{n}[{','.join(i.id if isinstance(i, Name) else '_' for i in index)}]")
        given = ", ".join(inputs) + ("; " + ", ".join(parameters) if parameters else "")
        return f"{self.name}({given}) -> {', '.join(outputs)}"

    def __repr__(self) -> str:
        return f"<operator {self.signature}>"

    def gradient(self, wrt: str | Sequence[str], *args: Any, **kwargs: Any) -> FormulaText:
        """The derived gradient as a formula of its own: of the inputs and the cotangents `dC` of the outputs C.

        wrt: the inputs (or run-time parameters) to differentiate by; dA is the gradient by A. The inputs, in order or
        by name, are shapes (float32, or int64 where they are indices) or arrays; parameters as in a call, run-time ones
        may be left out. `es.op` reads the text again; for anything but es.op, `text.extents` has the extents of the
        axes that the text leaves open. With checkpoint=S, here or of the operator, the text computes states again.
        Raises FormulaError for unknown names, GradientError for integers.
        """
        names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
        running = [n for n, static in self.program.parameters.items() if not static]
        known = (*self.inputs, *running)
        for n in names:
            if n not in known:
                hint = near(n, known) or f"it is a function of {', '.join(known)}"
                raise FormulaError(f"{self.name} cannot be differentiated by {n!r}", hint=hint)
        saved = self._saved_of(kwargs)
        absent = {n: 0.0 for n in running if n not in kwargs and n not in self.defaults}
        inputs, static, numbers = self._arguments(args, {**absent, **kwargs})
        operands = {n: _abstract(n, x, n in self.program.integer_inputs) for n, x in inputs.items()}
        for name, (shape, dtype, _) in operands.items():
            rank = self.program.inputs[name]
            _check(name, shape, dtype.is_float, rank, name in self.program.integer_inputs, dtype.name)
        for n, x in numbers.items():
            operands[n] = ((), x.dtype, x.weak) if isinstance(x, Value) else ((), _number_type(x), True)
        return gradient_text(
            self, names, operands, static, lambda values: _values(self.program, values, self.inputs, static, saved)
        )

    # ------------------------------------------------------------------------------------------------------- calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        saved = self._saved_of(kwargs)
        inputs, static, numbers = self._arguments(args, kwargs)
        operands = [*inputs.values(), *numbers.values()]
        traced = trace.current_trace() is not None or any(isinstance(x, Value) for x in operands)
        if traced:
            return self._apply(inputs, static, numbers, saved)
        if trace.run_arrays is None:
            raise TraceError(f"{self.name} on arrays needs einsmith.modes; `import einsmith` loads it")
        arrays = [np.asarray(x) if isinstance(x, (list, tuple)) else x for x in inputs.values()]
        key = (saved, *((n, type(v), v) for n, v in static.items()))
        if key not in self._bound:
            self._bound[key] = _Bound(self, static, saved)
        return trace.run_arrays(self._bound[key], tuple(arrays), numbers)

    def _saved_of(self, kwargs: dict[str, Any]) -> int:
        """The distance of saved states for a call, whose `checkpoint` is taken out of `kwargs`."""
        if "checkpoint" in kwargs and "checkpoint" not in (*self.inputs, *self.program.parameters):
            return _saved(self.name, kwargs.pop("checkpoint"))
        return self.checkpoint

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict, dict, dict]:
        """Inputs, static parameters and run-time parameters, each by name in order. Raises FormulaError."""
        if len(args) > len(self.inputs):
            raise FormulaError(
                f"{self.name} takes {len(self.inputs)} inputs ({', '.join(self.inputs)}), not {len(args)}",
                hint="parameters are passed by keyword" if self.program.parameters else None,
            )
        given = dict(zip(self.inputs, args, strict=False))
        parameters: dict[str, Any] = dict(self.defaults)
        for name, value in kwargs.items():
            if name in given:
                raise FormulaError(f"{self.name}: the input {name} is given twice")
            if name in self.inputs:
                given[name] = value
            elif name in self.program.parameters:
                parameters[name] = value
            else:
                known = (*self.inputs, *self.program.parameters)
                hint = near(name, known) or f"it takes {', '.join(known)}"
                raise FormulaError(f"{self.name} has no input or parameter {name!r}", hint=hint)
        missing = [n for n in self.inputs if n not in given]
        if missing:
            raise FormulaError(f"{self.name}: the input {missing[0]} is missing", hint=f"signature: {self.signature}")
        static: dict[str, Any] = {}
        numbers: dict[str, Any] = {}
        for name, is_static in self.program.parameters.items():
            if name not in parameters:
                raise self._missing(name, kwargs)
            value = parameters[name]
            if is_static or isinstance(value, (bool, np.bool_)):
                static[name] = self._static(name, value)
            else:
                numbers[name] = value
        for kind, values in (("input", given), ("parameter", numbers)):
            for name, x in values.items():
                if x is None or isinstance(x, (str, bytes, set, Mapping)):
                    what = "an array" if kind == "input" else "a number"
                    raise DtypeError(f"{self.name}: the {kind} {name} is {_described(x)}; pass {what}")
        return {n: given[n] for n in self.inputs}, static, numbers

    def _static(self, name: str, value: Any) -> int | float | bool:
        if isinstance(value, (Value, Ex)):
            raise TraceError(
                f"{self.name}: the parameter {name} decides shapes or indices, so it must be known when the formula is "
                f"compiled; pass a Python number, or name it in es.jit(f, static_argnames=...)"
            )
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if not isinstance(value, Number):
            raise FormulaError(f"{self.name}: the parameter {name} is a {type(value).__name__}, not a number")
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, float) and name in self.program.in_index:
            raise FormulaError(
                f"{self.name}: the parameter {name} stands in an index, so it is an integer, not {value!r}"
            )
        return value

    def _missing(self, name: str, given: Iterable[str]) -> FormulaError:
        axes = {a for line in self.program.lines for a in line.axes}
        known = {*self.inputs, *self.program.defined, *axes, *self.defaults, *given}
        hints = [h for h in (near(name, known),) if h]
        if name in self.program.in_index:
            hints.append(f"if {name} is an axis to reduce over, write sum[{name}](...) around its uses")
        hints.append(f"{'or ' if hints else ''}pass the parameter, {self.name}(..., {name}=...)")
        at = self.program.places.get(name)
        message = f"{name} is no axis, tensor or function, and no parameter {name} is given"
        if at is None:
            message = f"the parameter {name}, used in extents=, is missing"
        return FormulaError(message, self.program.text if at is not None else None, at, "; ".join(hints))

    def _apply(
        self, inputs: Mapping[str, Any], static: Mapping[str, Any], numbers: Mapping[str, Any], checkpoint: int
    ) -> Any:
        operands = []
        for name, x in (*inputs.items(), *numbers.items()):
            v = as_value(x)
            if v.ndim and name in numbers:
                raise ShapeError(f"{self.name}: the parameter {name} is a number, not a tensor of shape {v.shape}")
            if name in inputs:
                rank = self.program.inputs[name]
                _check(name, v.shape, v.dtype.is_float, rank, name in self.program.integer_inputs, v.dtype.name)
            operands.append(v)
        names = (*inputs, *numbers)
        key = ("op", self._id, tuple((n, type(v), repr(v)) for n, v in static.items()), names, checkpoint)

        def build(values: list[Value]) -> tuple[Value, ...]:
            operands = dict(zip(names, values, strict=True))
            return tuple(_lower(self.program, operands, inputs, static, checkpoint))

        out = shared(key, operands, build)
        return out[0] if len(out) == 1 else out


def _described(x: Any) -> str:
    return "None" if x is None else f"a {type(x).__name__}"


class _Bound:
    """An operator with its static parameters set: what is traced and compiled for arrays."""

    def __init__(self, operator: Operator, static: Mapping[str, Any], checkpoint: int):
        self.operator, self.static, self.checkpoint = operator, dict(static), checkpoint
        self.__name__ = operator.name

    def __call__(self, *args: Any, **numbers: Any) -> Any:
        inputs = dict(zip(self.operator.inputs, args, strict=True))
        return self.operator._apply(inputs, self.static, numbers, self.checkpoint)


def _check(name: str, shape: tuple[int, ...], is_float: bool, rank: int | None, integer: bool, dtype: str) -> None:
    if rank is not None and len(shape) != rank:
        raise ShapeError(f"{name} has shape {shape}, {len(shape)}-d, but the formula reads it as {rank}-d")
    if integer and is_float:
        raise DtypeError(f"{name} is {dtype}, but the formula uses it as an index; pass an integer array")


# ------------------------------------------------------------------------------------------------------------ lowering


def _abstract(name: str, x: Any, integer: bool) -> tuple[tuple[int, ...], DType, bool]:
    """The shape and type of an input that is given by its shape, or by an array."""
    if isinstance(x, Value):
        return x.shape, x.dtype, x.weak
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return tuple(x.shape), dtype_of(x if isinstance(x, np.ndarray) else np.asarray(x)), False
    try:
        return tuple(operator.index(n) for n in x), dt.i64 if integer else dt.f32, False
    except TypeError:
        raise ShapeError(f"{name} is given as {x!r}; pass its shape, a tuple of ints, or an array") from None


def _number_type(x: Any) -> DType:
    return dt.i64 if isinstance(x, (int, np.integer)) else dt.f64


def _lower(
    program: Program, operands: Mapping[str, Value], inputs: Iterable[str], static: Mapping[str, Any], checkpoint: int
) -> list[Value]:
    values = _values(program, operands, inputs, static, checkpoint)
    return [values[n] for n in program.outputs]


def _values(
    program: Program, operands: Mapping[str, Value], inputs: Iterable[str], static: Mapping[str, Any],
    checkpoint: int = 0,
) -> dict[str, Value]:
    """Every tensor of a program by its name."""
    shapes = {n: v.shape for n, v in operands.items() if n in inputs}
    extents = infer(program, shapes, static)
    values = {n: v for n, v in operands.items() if n in inputs}
    numbers = {n: Literal(v) for n, v in static.items()} | {
        n: element(v, ()) for n, v in operands.items() if n not in inputs
    }
    for group in program.order:
        if len(group) > 1 or group[0] in reads_of(program, group[0]):
            values |= _cycle(program, group, extents, values, numbers, checkpoint)
            continue
        values[group[0]] = _defined(program, group[0], extents, values, numbers)
    swept = in_one_sweep([v.tensor for v in values.values()])
    return {
        n: v if t is v.tensor else Value(t, weak=v.weak) for (n, v), t in zip(values.items(), swept, strict=True)
    }


def _defined(
    program: Program, name: str, extents: Extents, values: Mapping[str, Value], numbers: Mapping[str, Form],
    pushed: bool = False,
) -> Value:
    """The tensor of a name; `pushed`: see `_Part`."""
    lines = [(k, program.lines[k]) for k in program.defined[name]]
    parts = [_Part(program, k, line, extents, values, numbers, pushed) for k, line in lines]
    try:
        return _tensor(program, name, extents, parts)
    except (FormulaError, VerifyError, ShapeError, DtypeError) as e:
        raise _located(e, program, lines[0][1].statement.at) from None


_ROUNDS = 8
"""Assumptions about the types of tensors that read each other; each is a wider one, and there are not many types."""


def _cycle(
    program: Program, group: Sequence[str], extents: Extents, values: Mapping[str, Value], numbers: Mapping[str, Form],
    checkpoint: int,
) -> dict[str, Value]:
    """Tensors that read each other: a recurrence."""
    logical = conditions(program, group)
    types: dict[str, Ty] = {n: dt.bool_ if n in logical else Weak.INT for n in group}
    final = False
    for _ in range(_ROUNDS):
        leaves = {n: leaf(extents.shapes[n], _assumed(ty)) for n, ty in types.items()}
        known = {**values, **{n: Value(x, weak=isinstance(types[n], Weak)) for n, x in leaves.items()}}
        bodies = {
            n: [_Part(program, k, program.lines[k], extents, known, numbers).body for k in program.defined[n]]
            for n in group
        }
        found = {n: fm.join(b.ty for b in own) for n, own in bodies.items()}
        if found == types and not final:  # what is no more than a number is of the formula's float type
            every = [b for own in bodies.values() for b in own]
            found = {n: fm.float_type(every) if isinstance(ty, Weak) else ty for n, ty in found.items()}
            final = True
        if found == types:
            break
        types = found
    else:
        at = program.lines[program.defined[group[0]][0]].statement.at
        raise FormulaError(
            f"the type of {group[0]}, which reads itself, is not determined", program.text, at,
            "convert it, as in f32(...)",
        )  # fmt: skip
    names = {leaves[n]: n for n in group}

    def solved(pushed: bool) -> dict[Leaf, Tensor]:
        definitions = {x: _defined(program, n, extents, known, numbers, pushed).tensor for x, n in names.items()}
        return recurrence(definitions, names, checkpoint)

    try:
        try:
            made = solved(False)
        except RecurrenceError as e:
            try:
                made = solved(True)
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
    return {n: Value(made[x]) for x, n in names.items()}


def _assumed(ty: Ty) -> DType:
    return ty if isinstance(ty, DType) else dt.i64 if ty is Weak.INT else dt.f64


def _located(e: Exception, program: Program, at: int) -> Exception:
    if isinstance(e, FormulaError) and e.source is None:
        kind = BoundsError if isinstance(e, BoundsError) else FormulaError
        return kind(e.message, program.text, at, e.hint)
    return e


def _tensor(
    program: Program,
    name: str,
    extents: Extents,
    parts: Sequence[_Part],
) -> Value:
    shape = extents.shapes[name]
    plain = [p for p in parts if not p.line.statement.accumulate]
    added = parts[len(plain) :]
    if len(parts) == 1 and plain and parts[0].plain:
        return Value(lower(parts[0].left, parts[0].body))
    pieces = [p.piece() for p in plain]
    if pieces:
        _partition(program, name, shape, pieces, [p.line.statement.at for p in plain])
    if not added:
        return Value(lower_pieces(shape, pieces))
    dtype = accumulated_type([p.body for p in parts])
    total = lower_pieces(shape, pieces, dtype) if pieces else None
    for p in added:
        total = lower_scatter(shape, p.left, p.index, p.body, dtype, total)
    assert total is not None
    return Value(total)


class _Part:
    """One statement as forms: its left axes and indices, and its body. `pushed`: conditions around reductions stand in
    them too, so that these read nothing where they are not used."""

    def __init__(
        self,
        program: Program,
        k: int,
        line: Line,
        extents: Extents,
        values: Mapping[str, Value],
        numbers: Mapping[str, Form],
        pushed: bool = False,
    ):
        self.program, self.line = program, line
        axes = {a: AxisVar(a, extents.axes[k, a]) for a in line.axes}
        self.left = [axes[a] for a in line.left]

        def name(node: Name) -> Form:
            return Index(axes[node.id]) if node.id in axes else numbers[node.id]

        def read(node: Element, index: Sequence[Form]) -> Form:
            v = values[node.name]
            if v.literal is not None and not index:
                return element(v, ())
            return fm.load(v.tensor, index, v.weak, node.name, (program.text, node.at))

        def shape(node: ShapeOf, d: int) -> int:
            return extents.shapes[node.name][d]

        build = Elaborator(program.text, name, read, shape, lambda a: extents.axes[k, a], axes.__getitem__)
        self.index = [build.form(i) for i in line.statement.index]
        body = build.form(line.statement.value)
        found = fm.join(v.dtype for n, v in values.items() if n in program.inputs and v.dtype.is_float and not v.weak)
        if isinstance(found, DType) and found.is_float:
            body = fm.of_type(body, found)
        self.body = push_guards(body) if pushed else body

    @property
    def plain(self) -> bool:
        return all(isinstance(i, Index) for i in self.index)

    def piece(self) -> tuple[list[int], list[int], list[AxisVar], Form]:
        """Offset, step and axis of each output dimension; a constant index gets an axis of extent 1."""
        scope = Scope(self.left, fm.float_type([self.body]))
        offset, step, out = [], [], []
        for d, i in enumerate(self.index):
            at = self.line.statement.index[d].at
            if not fm.is_integer(i.ty) or i.loads:
                raise FormulaError("a left index is an integer expression of one axis", self.program.text, at,
                                   "accumulate with += at positions that are read from tensors")  # fmt: skip
            form = linear(scope.convert(i, fm.dt.i32))
            terms = list(form.terms.items())
            if len(terms) > 1 or any(not isinstance(a, Axis) or c < 1 for a, c in terms):
                raise FormulaError("a left index has the form step*axis + offset, step positive", self.program.text, at)
            offset.append(form.const)
            step.append(terms[0][1] if terms else 1)
            out.append(scope.axes[terms[0][0].position] if terms else AxisVar(f"_{d}", 1))  # type: ignore[union-attr]
        return offset, step, out, self.body


def _partition(
    program: Program, name: str, shape: tuple[int, ...], pieces: Sequence[tuple], ats: Sequence[int]
) -> None:
    """Raises FormulaError where pieces overlap, leave a gap, or leave the tensor (large ones: the verifier does)."""
    if math.prod(shape) > _COUNTABLE:
        return
    cells = np.zeros(shape, np.int8)
    for (offset, step, axes, _), at in zip(pieces, ats, strict=True):
        where = []
        for d, (o, s, a) in enumerate(zip(offset, step, axes, strict=True)):
            if a.extent and (o < 0 or o + s * (a.extent - 1) >= shape[d]):
                raise FormulaError(
                    f"this piece of {name} reaches {o} to {o + s * (a.extent - 1)} in dimension {d}, of extent "
                    f"{shape[d]}", program.text, at,
                )  # fmt: skip
            where.append(slice(o, o + s * a.extent, s))
        block = cells[tuple(where)]
        if block.any():
            raise FormulaError(f"this piece of {name} overlaps one above it", program.text, at,
                               "define each element once, or accumulate with +=")  # fmt: skip
        cells[tuple(where)] = 1
    if not cells.all():
        gap = tuple(int(i[0]) for i in np.nonzero(cells == 0)) if cells.ndim else ()
        raise FormulaError(f"no piece of {name} defines the element {gap}", program.text, ats[0],
                           "add a statement for the elements that are missing")  # fmt: skip


def _saved(name: str, checkpoint: Any) -> int:
    """The distance of saved states that `checkpoint` says."""
    if isinstance(checkpoint, bool) or not isinstance(checkpoint, (int, np.integer)) or checkpoint < 0:
        raise FormulaError(f"{name}: checkpoint={checkpoint!r} must be a positive integer, or 0 to save every state")
    return int(checkpoint)


def op(
    text: str, extents: Mapping[str, int | str] | None = None, name: str | None = None, *, checkpoint: int = 0,
    **defaults: Any,
) -> Operator:
    """The operator that a formula defines (API.md, "A new operator is a formula").

    text: statements `Name[axes] = expression`; extents: of axes, ints or strings over parameters and `A.shape[n]`;
    defaults: of parameters; checkpoint: see Operator. Raises FormulaError with line, caret and remedy.
    """
    return Operator(text, extents, name, defaults, checkpoint)
