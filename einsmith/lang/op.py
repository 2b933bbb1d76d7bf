"""Define operators: formulas with named inputs and parameters. `op(text)` makes one; calling it applies it."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base import html, symbolic
from einsmith.base.arguments import check_arguments, describe, show
from einsmith.base.arrays import as_numpy
from einsmith.base.caches import Bound, Cache
from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import DtypeError, FormulaError, KindError, ShapeError, TraceError
from einsmith.ir import labels
from einsmith.ir.nodes import StepOptions
from einsmith.ir.recurrence.chunks.readers import force_chunks
from einsmith.lang.definitions import tensors
from einsmith.lang.diagram import index_tables
from einsmith.lang.gradient_text import FormulaText, gradient_text
from einsmith.lang.parser import WRITTEN_NUMBERS, near
from einsmith.lang.resolve import FormulaProgram, resolve, resolve_source
from einsmith.lang.syntax import Name, Source
from einsmith.tracing import trace
from einsmith.tracing.builder import Ex, Number, Value, as_value, trace_once

_COUNT = itertools.count()
BOUND = Bound("operators with values of static parameters", 1024)


class Operator:
    """A formula ready to be applied: `operator(*inputs, **parameters)`.

    Inputs come in the order of their first appearance in the text, or in that of `inputs`, or by name; parameters by
    keyword. Given arrays, it is compiled and run and gives arrays; given traced tensors, it extends the trace. Several
    outputs come as a tuple. `checkpoint=S`, here or in a call: the gradient of a tensor that reads itself saves every
    S-th state only, and recomputes the others, S at a time; 0 saves all. `chunk=C`, here or in a call: a linear
    recurrence takes C steps at once, as products; 1: one after the other; 0: the cost model decides. Raises
    FormulaError for a text that defines nothing, BoundsError for a read that is not proven in bounds, ShapeError and
    DtypeError for inputs that do not fit.
    """

    code_parts = ()

    def __init__(
        self,
        text: str | Source,
        extents: Mapping[str, int | str] | None = None,
        name: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        checkpoint: int = 0,
        inputs: Sequence[str] | None = None,
        chunk: int = 0,
    ):
        if not isinstance(text, (str, Source)):
            raise FormulaError(f"a formula is a text, not {describe(text)}")
        self.defaults = dict(defaults or {})
        resolved = resolve if isinstance(text, str) else resolve_source
        if extents is None and isinstance(text, FormulaText):
            extents = text.extents
        self.program: FormulaProgram = resolved(text, extents, self.defaults)  # type: ignore[arg-type]
        self.name = name or "_".join(self.program.outputs)
        self.inputs = _order_inputs(self.name, tuple(self.program.inputs), inputs)
        parameters = self.program.parameters
        for d in self.defaults:
            if d not in parameters:
                hint = near(d, parameters) or f"the parameters are {', '.join(parameters) or 'none'}"
                raise FormulaError(f"{d!r} is not a parameter of {self.name}", hint=hint)
        self.options = _step_options(self.name, checkpoint, chunk)
        self._constructor_args = (text, extents, self.name, self.defaults, checkpoint, self.inputs, chunk)
        self._id = next(_COUNT)
        self._bound: Cache[tuple, SpecializedOperator] = Cache(BOUND)
        self._forms: dict[tuple, _CallForm] = {}
        """By the number of positional arguments and the names of the others: calls that set no static parameter."""

    def __reduce__(self) -> tuple:
        return Operator, self._constructor_args  # created anew: an operator's number belongs to its process

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(self.program.parameters)

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The names of the inputs, as arguments of other functions have them."""
        return self.inputs

    @property
    def signature(self) -> str:
        """Describe the operator in one line: inputs with their indices at the first read, parameters with defaults,
        outputs."""

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
        listed = ", ".join(inputs) + ("; " + ", ".join(parameters) if parameters else "")
        return f"{self.name}({listed}) -> {', '.join(outputs)}"

    @property
    def plan(self) -> html.PlanText:
        """Describe the programs that calls on arrays have compiled so far: every kernel, with its pattern,
        configuration and predicted time, for each set of static parameters, shapes and types."""
        programs = []
        for bound in self._bound.values():
            static = ", ".join(f"{n}={v!r}" for n, v in bound.static.items())
            prefix = f"{self.name} with {static}\n" if static else ""
            for title, lines, bars in trace.plan_of(bound).programs:
                programs.append((prefix + title, lines, bars))
                prefix = ""
        return html.PlanText(programs, f"nothing is compiled yet; call {self.name} on arrays")

    def __repr__(self) -> str:
        return f"<operator {self.signature}>"

    def _repr_html_(self) -> str:
        text = textwrap.dedent(self.program.text).strip("\n")
        return html.text(self.signature, text) + index_tables(self.program)

    def gradient(self, wrt: str | Sequence[str], *args: Any, **kwargs: Any) -> FormulaText:
        """Return the derived gradient as a formula of its own: of the inputs and the cotangents `dC` of the outputs C.

        wrt: the inputs (or run-time parameters) to differentiate by; dA is the gradient by A. The inputs, in order or
        by name, are shapes (float32, or int64 where they are indices) or arrays; parameters as in a call, run-time ones
        may be left out. `es.op` parses the text again; for anything but es.op, `text.extents` has the extents of the
        axes that the text does not determine. With checkpoint=S, here or of the operator, the text recomputes states.
        Raises FormulaError for unknown names, GradientError for integers.
        """
        names = (wrt,) if isinstance(wrt, str) else tuple(wrt) if isinstance(wrt, (tuple, list)) else ()
        if not names or not all(isinstance(n, str) for n in names):
            raise KindError(f"{self.name}: wrt={show(wrt)} must be the name of an input, or a sequence of names")
        running = [n for n, static in self.program.parameters.items() if not static]
        known = (*self.inputs, *running)
        for n in names:
            if n not in known:
                hint = near(n, known) or f"the inputs are {', '.join(known)}"
                raise FormulaError(f"{self.name} cannot be differentiated with respect to {n!r}", hint=hint)
        options = self._pop_options(kwargs)
        absent = {n: 0.0 for n in running if n not in kwargs and n not in self.defaults}
        inputs, static, numbers = self._sort_arguments(args, {**absent, **kwargs})
        operands = {n: _abstract(n, x, n in self.program.integer_inputs) for n, x in inputs.items()}
        for name, (shape, dtype, _) in operands.items():
            rank = self.program.inputs[name]
            _check(name, shape, dtype.is_int, rank, name in self.program.integer_inputs, dtype.name)
        for n, x in numbers.items():
            operands[n] = ((), x.dtype, x.weak) if isinstance(x, Value) else ((), _number_type(x), True)
        return gradient_text(
            self, names, operands, static, lambda values: tensors(self.program, values, self.inputs, static, options)
        )

    # ------------------------------------------------------------------------------------------------------- calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = (len(args), *kwargs)
        form = self._forms.get(names)
        if form is not None and trace.current_trace() is None:
            values = (*args, *kwargs.values())
            bound = self._bound.get(form.key)
            if bound is not None and _PLAIN.issuperset(map(type, values)):
                return trace.run_arrays(bound, *form.sort(values))
        options = self._pop_options(kwargs)
        inputs, static, numbers = self._sort_arguments(args, kwargs)
        operands = [*inputs.values(), *numbers.values()]
        traced = trace.current_trace() is not None or any(isinstance(x, Value) for x in operands)
        if traced:
            return self._apply(inputs, static, numbers, options)
        arrays = [as_numpy(x, n) if isinstance(x, (list, tuple)) else x for n, x in inputs.items()]
        key = (options, *((n, type(v), v) for n, v in static.items()))
        bound = self._bound.get(key) or self._bound.setdefault(key, SpecializedOperator(self, static, options))
        result = trace.run_arrays(bound, tuple(arrays), numbers)
        if all(n in inputs or n in numbers for n in names[1:]):
            self._forms[names] = _CallForm(key, (*self.inputs[: len(args)], *kwargs), tuple(inputs), numbers)
        return result

    def _pop_options(self, kwargs: dict[str, Any]) -> StepOptions:
        """Remove `checkpoint` and `chunk` from `kwargs` and return how the call runs the steps of recurrences."""
        own = (*self.inputs, *self.program.parameters)
        options = {n: kwargs.pop(n) for n in StepOptions._fields if n in kwargs and n not in own}
        return _step_options(self.name, **{**self.options._asdict(), **options})

    def _sort_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict, dict, dict]:
        """Return inputs, static parameters and run-time parameters, each by name in order. Raises FormulaError."""
        if len(args) > len(self.inputs):
            raise FormulaError(
                f"{self.name} takes {len(self.inputs)} inputs ({', '.join(self.inputs)}), not {len(args)}",
                hint="parameters are passed by keyword" if self.program.parameters else None,
            )
        arrays = dict(zip(self.inputs, args, strict=False))
        parameters: dict[str, Any] = dict(self.defaults)
        for name, value in kwargs.items():
            if name in arrays:
                raise FormulaError(f"{self.name}: the input {name} is given twice")
            if name in self.inputs:
                arrays[name] = value
            elif name in self.program.parameters:
                parameters[name] = value
            else:
                raise self._unknown_name(name)
        missing = [n for n in self.inputs if n not in arrays]
        if missing:
            raise FormulaError(f"{self.name}: the input {missing[0]} is missing", hint=f"signature: {self.signature}")
        static: dict[str, Any] = {}
        numbers: dict[str, Any] = {}
        for name, is_static in self.program.parameters.items():
            if name not in parameters:
                raise self._make_missing_error(name, kwargs)
            value = parameters[name]
            if is_static or isinstance(value, (bool, np.bool_)):
                static[name] = self._check_static(name, value)
            else:
                numbers[name] = value
        for kind, values in (("input", arrays), ("parameter", numbers)):
            for name, x in values.items():
                if x is None or isinstance(x, (str, bytes, set, Mapping)):
                    what = "an array" if kind == "input" else "a number"
                    raise DtypeError(f"{self.name}: the {kind} {name} is {describe(x)}; pass {what}")
        return {n: arrays[n] for n in self.inputs}, static, numbers

    def _check_name(self, name: str) -> None:
        """Raise FormulaError for a keyword of a call that is neither an input nor a parameter, nor an option."""
        if name not in (*self.inputs, *self.program.parameters, *StepOptions._fields):
            raise self._unknown_name(name)

    def _unknown_name(self, name: str) -> FormulaError:
        """Return the error for a keyword that is neither an input nor a parameter."""
        known = (*self.inputs, *self.program.parameters)
        hint = near(name, known)
        takes = f"it takes {', '.join(known)}"
        return FormulaError(
            f"{self.name} has no input or parameter {name!r}", hint=f"{hint} {takes}" if hint else takes
        )

    def _check_static(self, name: str, value: Any) -> int | float | bool:
        if isinstance(value, (Value, Ex)):
            raise TraceError(
                f"{self.name}: the parameter {name} decides shapes or indices, so it must be known when the formula is "
                f"compiled; pass a Python number, or name it in es.jit(f, static_argnames=...)"
            )
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if not isinstance(value, Number):
            raise FormulaError(f"{self.name}: the parameter {name} is {describe(value)}, not a number")
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, (bool, float)) and name in self.program.in_index:
            raise FormulaError(
                f"{self.name}: the parameter {name} stands in an index, so it must be an integer, not {value!r}"
            )
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise FormulaError(f"{self.name}: the parameter {name} does not fit 64 bits")
        return value

    def _make_missing_error(self, name: str, passed: Iterable[str]) -> FormulaError:
        axes = {a for line in self.program.lines for a in line.axes}
        known = {*self.inputs, *self.program.defined, *axes, *self.defaults, *passed}
        hints = [h for h in (near(name, known),) if h]
        if name in self.program.in_index:
            hints.append(f"if {name} is an axis to reduce over, write sum[{name}](...) around its uses")
        if name in WRITTEN_NUMBERS:
            hints = [f"write {WRITTEN_NUMBERS[name]}"]
        hints.append(f"{'or ' if hints else ''}pass the parameter, {self.name}(..., {name}=...)")
        at = self.program.places.get(name)
        message = f"{name} is not an axis, tensor or function, and no parameter {name} is given"
        if at is None:
            message = f"the parameter {name}, used in extents=, is missing"
        return FormulaError(message, self.program.text if at is not None else None, at, "; ".join(hints))

    def _apply(
        self, inputs: Mapping[str, Any], static: Mapping[str, Any], numbers: Mapping[str, Any], options: StepOptions
    ) -> Any:
        operands = []
        for name, x in (*inputs.items(), *numbers.items()):
            v = as_value(np.asarray(x) if isinstance(x, np.generic) else x)  # as where no trace is under way
            if v.ndim and name in numbers:
                raise ShapeError(f"{self.name}: the parameter {name} must be a number, not a tensor of shape {v.shape}")
            if name in inputs:
                rank = self.program.inputs[name]
                _check(name, v.shape, v.dtype.is_int, rank, name in self.program.integer_inputs, v.dtype.name)
            operands.append(v)
        names = (*inputs, *numbers)
        key = ("op", self._id, tuple((n, type(v), repr(v)) for n, v in static.items()), names, options)

        def build(values: list[Value]) -> tuple[Value, ...]:
            operands = dict(zip(names, values, strict=True))
            by_name = tensors(self.program, operands, inputs, static, options)
            outputs = [by_name[n] for n in self.program.outputs]
            if options.chunk > 1:
                chunked = force_chunks([v.tensor for v in outputs], options.chunk)
                outputs = [Value(t, v.weak) for t, v in zip(chunked, outputs, strict=True)]
            return tuple(outputs)

        # Labels are those of nodes that are made: a graph that is kept for later calls has none.
        out = build(operands) if labels.is_recorded() else trace_once(key, operands, build)
        result = out[0] if len(out) == 1 else out
        trace.record_call(self, (), dict(zip(names, operands, strict=True)), result)
        return result


_PLAIN = frozenset((np.ndarray, float, int))
"""Types of arguments that an operator passes on as they are."""


class _CallForm:
    """How an operator sorts the arguments of calls that name the same arguments, none of them a static parameter.

    Args:
        key: the operator's static parameters and options
        names: the names of a call's arguments, in the order of the call
        inputs: the names of the operator's inputs
        numbers: a value of each run-time parameter, which is the default where a call does not name it
    """

    __slots__ = ("key", "_inputs", "_numbers", "_defaults")

    def __init__(self, key: tuple, names: Sequence[str], inputs: Sequence[str], numbers: Mapping[str, Any]):
        self.key = key
        positions = [names.index(n) for n in inputs]
        self._inputs = None if positions == list(range(len(names))) else positions
        self._numbers = [(n, names.index(n)) for n in numbers if n in names]
        self._defaults = dict(numbers)

    def sort(self, values: tuple) -> tuple[tuple, dict[str, Any]]:
        """Return the inputs in order, and the run-time parameters by name, of a call with these arguments."""
        inputs = values if self._inputs is None else tuple([values[k] for k in self._inputs])
        numbers = self._defaults.copy()
        for name, position in self._numbers:
            numbers[name] = values[position]
        return inputs, numbers


class SpecializedOperator:
    """An operator with its static parameters set, which is traced and compiled for arrays."""

    code_parts = ("operator",)

    def __init__(self, operator: Operator, static: Mapping[str, Any], options: StepOptions):
        self.operator, self.static, self.options = operator, dict(static), options
        self.__name__ = operator.name
        self.argument_names = operator.inputs

    def __call__(self, *args: Any, **numbers: Any) -> Any:
        inputs = dict(zip(self.operator.inputs, args, strict=True))
        return self.operator._apply(inputs, self.static, numbers, self.options)


def _check(name: str, shape: tuple[int, ...], is_integer: bool, rank: int | None, integer: bool, dtype: str) -> None:
    if rank is not None and len(shape) != rank:
        raise ShapeError(f"{name} has shape {shape}, {len(shape)}-d, but the formula reads it as {rank}-d")
    if integer and not is_integer:
        raise DtypeError(f"{name} is {dtype}, but the formula uses it as an index; pass an integer array")


def _abstract(name: str, x: Any, integer: bool) -> tuple[tuple[int, ...], DType, bool]:
    """Return the shape and type of an input given by its shape or by an array, and whether it is a number."""
    if isinstance(x, Value):
        return x.shape, x.dtype, x.weak
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return tuple(x.shape), dtype_of(as_numpy(x, name)), False
    try:
        return tuple(symbolic.index(n) for n in x), dt.i64 if integer else dt.f32, False
    except (TypeError, ValueError):
        raise ShapeError(f"{name} is given as {show(x)}; pass its shape, a tuple of ints, or an array") from None


def _number_type(x: Any) -> DType:
    return dt.i64 if isinstance(x, (int, np.integer)) else dt.f64


def _step_options(name: str, checkpoint: Any, chunk: Any) -> StepOptions:
    """Return how the steps of an operator's recurrences are run. Raises FormulaError for what is no number of steps."""
    numbers = (("checkpoint", checkpoint, "to save every state"), ("chunk", chunk, "to leave it to the cost model"))
    for option, x, zero in numbers:
        if isinstance(x, bool) or not isinstance(x, (int, np.integer)) or x < 0:
            raise FormulaError(f"{name}: {option}={x!r} must be a positive integer, or 0 {zero}")
    return StepOptions(int(checkpoint), int(chunk))


def _order_inputs(name: str, known: tuple[str, ...], inputs: Sequence[str] | None) -> tuple[str, ...]:
    """Return the inputs in the order in which they are passed."""
    if inputs is None:
        return known
    ordered = inputs.replace(",", " ").split() if isinstance(inputs, str) else inputs
    if not isinstance(ordered, Sequence) or sorted(map(str, ordered)) != sorted(known):
        listed = ", ".join(known) or "none"
        raise FormulaError(f"{name}: inputs={inputs!r} must name each input once; they are {listed}")
    return tuple(ordered)


@check_arguments
def op(
    text: Any,
    extents: Mapping[str, int | str] | None = None,
    name: str | None = None,
    *,
    checkpoint: int = 0,
    chunk: int = 0,
    inputs: str | Sequence[str] | None = None,
    **defaults: Any,
) -> Operator:
    """Return the operator that a formula defines.

    text: a string of statements `Name[axes] = expression`; extents: of axes, ints or strings over parameters and
    `A.shape[n]`; defaults: of parameters; checkpoint, chunk: see Operator; inputs: the order in which they are passed,
    as ("A", "B") or "A, B". Raises FormulaError with line, caret and remedy.
    """
    return Operator(text, extents, name, defaults, checkpoint, inputs, chunk)
