"""Add scalar functions to the language from outside: `einsmith.function`.

A function whose code is a formula is lowered to `differentiate_as(formula, function)`: its value is the formula's,
which every pass and back end takes as any other, and its derivatives are those of the function's adjoint rules.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError, EinsmithError, FormulaError
from einsmith.base.identity import identify
from einsmith.base.locks import cached_property
from einsmith.base.registration import Registration
from einsmith.ir.adjoint_rules import mul
from einsmith.ir.functions import CALLS, FUNCTIONS, ScalarFunction, add_function, floats
from einsmith.ir.nodes import Axis, Expr, Leaf, Read, leaf, template
from einsmith.ir.rebuild import rebuild
from einsmith.ir.template_evaluator import evaluate_template
from einsmith.ir.vecmath import polynomials
from einsmith.lang import parser
from einsmith.lang.elaborate import Elaborator
from einsmith.lang.parser import KEYWORDS, REDUCTIONS, near, parse_expression
from einsmith.lang.syntax import Ast, Name
from einsmith.tracing import builder, formula
from einsmith.tracing.builder import Ex
from einsmith.tracing.formula import Form
from einsmith.tracing.lower import TemplateScope
from einsmith.tracing.result_types import of_type

POINTS = (-2.9, -1.7, -0.8, -0.3, 0.2, 0.6, 1.1, 1.9, 3.3)
"""Default sample points of the checks, at which common functions have no kinks."""
STEP = 1e-3
"""Step of the finite differences, relative to points beyond 1: of fourth order, they then agree to about 1e-12."""
EXACT = {dt.f64: 1e-9, dt.f32: 1e-5}
"""Largest accepted difference of code from evaluation, relative to values beyond 1."""
SLOPE = 1e-6
"""Largest accepted difference of a derivative from a finite difference, relative to values beyond 1."""


class Composition:
    """An expression in named parameters, which it replaces by the arguments of a call.

    Args:
        body: the formula's text, or a function of elements of a formula, as in `einsmith.compute`.
        parameters: the names of the parameters.
    """

    def __init__(self, body: str | Callable[..., Any], parameters: Sequence[str]):
        self.body, self.parameters = body, tuple(parameters)

    def __call__(self, *args: Expr) -> Expr:
        """Return the expression of these arguments, all of one type."""
        body, slots = self._lowered(args[0].dtype)

        def replace_read(e: Any) -> Expr | None:
            return args[slots[e.slot]] if isinstance(e, Read) else None

        return rebuild([body], replace_read)[0]

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        """Return the values at float64 arrays of one dimension, by the reference evaluator."""
        shape = arrays[0].shape
        reads = [Read(n, (Axis(0),), dt.f64) for n in range(len(arrays))]
        return evaluate_template(template(shape, [(dt.f64, shape)] * len(arrays), self(*reads)), arrays)[0]

    @lru_cache(maxsize=8)  # noqa: B019  # compositions live as long as the process
    def _lowered(self, dtype: DType) -> tuple[Expr, list[int]]:
        """Return the expression of one type, and the number of the parameter that each slot of its reads is."""
        leaves = [leaf((), dtype) for _ in self.parameters]
        loads = {p: formula.load(x, (), name=p) for p, x in zip(self.parameters, leaves, strict=True)}
        scope = TemplateScope([], dtype)
        body = scope.convert(of_type(self._form(loads), dtype, always=True), dtype)
        return body, [leaves.index(x) for x in scope.args if isinstance(x, Leaf)]

    def _form(self, loads: dict[str, Any]) -> Form:
        if not isinstance(self.body, str):
            return builder.as_form(self.body(*map(Ex, loads.values())))
        text, parsed = self.body, self._parsed

        def find(node: Name) -> Form:
            if node.id not in loads:
                hint = near(node.id, loads) or f"its parameters are {', '.join(loads)}"
                raise FormulaError(f"the formula of a function has no parameter {node.id}", text, node.at, hint)
            return loads[node.id]

        return Elaborator(text, find).form(parsed)

    @cached_property
    def _parsed(self) -> Ast:
        """Parse the text, once: functions that it calls by name stay those of this time."""
        assert isinstance(self.body, str)
        return parse_expression(self.body)


class AddedFunction(Registration):
    """A scalar function that was added to the language: call it, use its name in formulas, or take the name away again
    by `unregister` or at the end of a `with` block."""

    def __init__(self, spec: ScalarFunction):
        super().__init__(spec.call, self._remove)
        self.spec = spec
        self.__einsmith_identity__ = spec.name
        self._call = builder._accept_arrays(partial(builder._apply, spec.name))

    def __call__(self, *operands: Any) -> Any:
        """Return the function of each element of arrays, traced tensors, elements of formulas, or numbers."""
        if len(operands) != self.spec.arity:
            raise ArgumentError(f"{self.__name__} takes {self.spec.arity} arguments, not {len(operands)}")
        return self._call(*operands)

    def __reduce__(self) -> tuple:
        return _find_added, (self.spec.name,)

    def _remove(self) -> None:
        if CALLS.get(self.spec.call) is self.spec:
            del CALLS[self.spec.call]


def _find_added(name: str) -> AddedFunction:
    """Return the added function of this definition, of which a copy or a pickle has the name."""
    if name not in FUNCTIONS:
        call = name.partition("@")[0]
        raise ArgumentError(f"the function {name} is not defined here; define {call} by es.function as it was")
    return AddedFunction(FUNCTIONS[name])


def function(
    name: str,
    derivative: Any = None,
    evaluate: Callable[..., Any] | None = None,
    emit: str | Callable[..., Any] | None = None,
    *,
    points: Sequence[float] = POINTS,
    version: str = "",
) -> AddedFunction:
    """Add a scalar function of floats to the formula language.

    Args:
        name: the name by which formulas call it.
        derivative: the derivative by each parameter, a tuple where there are several: a formula's text in the names of
            `evaluate`'s parameters, or a function of elements of a formula. It may use any function of the language,
            this one included, and is itself differentiated. None: that of the formula `emit`.
        evaluate: the function on NumPy's arrays in float64. It defines the function.
        emit: the code: a formula's text in the same names, or a function `(v, *operands)` that builds it from the
            operations of `einsmith.ir.vecmath.polynomials.Arith` on lanes. None: what `evaluate` computes, called with
            elements of a formula.
        points: sample points at which derivative and code are checked; those where `evaluate` is not finite only show
            that the code is not finite either.
        version: identifies the definition in the keys of caches on disk, instead of the functions' code.

    Raises:
        ArgumentError: the name is taken, a part is missing, the derivative is not that of `evaluate`, or the code does
            not compute it.
        FormulaError: a text is no formula.
    """
    if evaluate is None:
        raise ArgumentError(f"es.function({name!r}) needs evaluate=, the function on NumPy's arrays")
    parameters = _parameters_of(evaluate)
    parts = derivative if isinstance(derivative, (tuple, list)) or derivative is None else (derivative,)
    if parts is not None and len(parts) != len(parameters):
        raise ArgumentError(
            f"es.function({name!r}) has {len(parameters)} parameters, {', '.join(parameters)}, and {len(parts)} "
            "derivatives; pass a tuple of one for each"
        )
    _check_name(name)
    slopes = [Composition(p, parameters) for p in parts or ()]
    lanes = None if emit is None or isinstance(emit, str) else emit
    value = Composition(evaluate if emit is None else emit, parameters) if lanes is None else None
    if lanes is not None and not slopes:
        raise ArgumentError(f"es.function({name!r}) needs derivative=, as its code is no formula")
    texts = [x for x in (*(parts or ()), emit) if isinstance(x, str)]
    used = sorted(f.name for c, f in CALLS.items() if any(re.search(rf"\b{c}\(", x) for x in texts))
    definition = identify((parameters, tuple(parts or ()), evaluate, emit, tuple(used)), version)
    spec = ScalarFunction(
        f"{name}@{definition}",
        len(parameters),
        floats,
        evaluate,
        call=name,
        adjoint=tuple(partial(_scale, slope) for slope in slopes),
        composition=value,
        lanes=lanes,
    )
    if name in CALLS:
        if CALLS[name].name == spec.name:
            return AddedFunction(CALLS[name])
        raise ArgumentError(f"the function {name} is defined otherwise already; unregister it first, or choose a name")
    if lanes is not None:
        exp, count = FUNCTIONS["exp"], _count(spec, lanes)
        spec = replace(spec, seconds=count / _count(exp, exp.lanes) * exp.seconds, instructions=count)
    add_function(spec)
    added = AddedFunction(spec)
    try:
        _check(added, value, slopes, np.asarray(points, np.float64))
    except BaseException:
        added.unregister()
        FUNCTIONS.pop(spec.name, None)
        raise
    return added


def _scale(slope: Composition, g: Expr, args: tuple[Expr, ...], out: Expr) -> Expr:
    """Return the adjoint of an argument from that of the result."""
    return mul(g, slope(*args))


def _parameters_of(evaluate: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters; x, y, z of a function without a signature."""
    if isinstance(evaluate, np.ufunc):
        return ("x", "y", "z", "w")[: evaluate.nin]
    parameters = inspect.signature(getattr(evaluate, "pyfunc", evaluate)).parameters.values()  # of np.vectorize
    names = tuple(p.name for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD)
    if not names:
        raise ArgumentError("evaluate= takes the arguments of the scalar function as parameters, as in lambda x: ...")
    return names


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ArgumentError(f"{name!r} is no name of a function; use letters, digits and underscores")
    if name in parser.FUNCTIONS or name in REDUCTIONS or name in KEYWORDS:
        raise ArgumentError(f"{name} is a function or a word of the formula language; choose another name")


class _Counter:
    """An arithmetic that counts the operations which code over lanes asks for."""

    elem, fused = "f32", True

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> Callable[..., _Counter]:
        if not hasattr(polynomials.Arith, name):
            raise AttributeError(f"the arithmetic on lanes has no {name}")

        def emit(*args: Any) -> _Counter:
            self.count += name not in ("f", "i", "wide", "bits", "unbits")
            return self

        return emit


def _count(spec: ScalarFunction, lanes: Callable[..., Any] | None) -> int:
    """Return the operations of code over lanes."""
    assert lanes is not None
    counter = _Counter()
    try:
        lanes(counter, *[counter] * spec.arity)
    except Exception as e:
        raise ArgumentError(
            f"the code of {spec.call} cannot be built: {e}; emit= takes the arithmetic on lanes, then "
            f"{spec.arity} operands (docs/extending.md)"
        ) from e
    return max(counter.count, 1)


def _check(added: AddedFunction, value: Composition | None, slopes: Sequence[Composition], points: np.ndarray) -> None:
    """Compare derivative and code with the evaluation at sample points. Raises ArgumentError where they differ."""
    spec, name = added.spec, added.__name__
    columns = [np.roll(points, 2 * n) for n in range(spec.arity)]
    wanted = _evaluate(spec, columns)
    if not np.isfinite(wanted).any():
        raise ArgumentError(f"{name} is finite at none of the points {points.tolist()}; pass points= in its domain")
    if value is not None:
        _compare_values(name, columns, value.evaluate(*columns), wanted, dt.f64)
    else:
        for dtype in (dt.f64, dt.f32):
            rounded = [c.astype(dtype.numpy).astype(np.float64) for c in columns]
            got = np.asarray(added(*(c.astype(dtype.numpy) for c in columns)), np.float64)
            _compare_values(name, rounded, got, _evaluate(spec, rounded), dtype)
    for n, slope in enumerate(slopes):
        step = STEP * np.maximum(1.0, np.abs(columns[n]))
        moved = [
            _evaluate(spec, [c + k * step if m == n else c for m, c in enumerate(columns)]) for k in (-2, -1, 1, 2)
        ]
        difference = (moved[0] - 8 * moved[1] + 8 * moved[2] - moved[3]) / (12 * step)
        got = slope.evaluate(*columns)
        scale = np.maximum(1.0, np.maximum(np.abs(difference), np.abs(wanted)))
        wrong = np.isfinite(difference) & ~(np.abs(got - difference) <= SLOPE * scale)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ArgumentError(
                f"the derivative of {name} by its argument {n} is {got[at]:.9g} at {_show(columns, at)}, where finite "
                f"differences of evaluate= give {difference[at]:.9g}"
            )


def _evaluate(spec: ScalarFunction, columns: Sequence[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        try:
            out = np.asarray(spec.numpy(*columns), np.float64)
        except EinsmithError:
            raise
        except Exception as e:
            raise ArgumentError(
                f"evaluate= of {spec.call} fails on arrays of float64: {e}; np.vectorize takes a function of numbers"
            ) from e
    if out.shape != columns[0].shape:
        raise ArgumentError(f"evaluate= of {spec.call} returns shape {out.shape} for arrays of {columns[0].shape}")
    return out


def _compare_values(
    name: str, columns: Sequence[np.ndarray], got: np.ndarray, wanted: np.ndarray, dtype: DType
) -> None:
    limit = EXACT[dtype] * np.maximum(1.0, np.abs(wanted))
    with np.errstate(invalid="ignore"):
        near_enough = np.where(np.isfinite(wanted), np.abs(got - wanted) <= limit, ~np.isfinite(got))
    if not near_enough.all():
        at = int(np.argmin(near_enough))
        raise ArgumentError(
            f"the code of {name} gives {got[at]:.9g} in {dtype.name} at {_show(columns, at)}, where evaluate= gives "
            f"{wanted[at]:.9g}"
        )


def _show(columns: Sequence[np.ndarray], at: int) -> str:
    return ", ".join(f"{c[at]:.9g}" for c in columns)
