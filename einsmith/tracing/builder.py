"""Build formulas in Python: traced tensors (`Value`) with NumPy's operators, and index formulas (`Ex`).

    c, r, s, m = axes(C, R, S, M)
    compute((B, K, P, Q, I, J), lambda b, k, p, q, i, j:
        sum(A[b, c, stride*p+r, stride*q+s, i, m] * W[k, c, r, s, m, j], over=(c, r, s, m)))

A Value indexed with an Ex is an Ex, and so is a function of an Ex. Every other operation on Values adds a tensor to the
graph under construction.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.arguments import show, whole_numbers
from einsmith.base.caches import Bound, Cache
from einsmith.base.captured import capture
from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import DtypeError, FormulaError, KindError, ShapeError, TraceError
from einsmith.base.numerics import SEPARATES
from einsmith.base.symbolic import SIZES_VARY, is_symbolic
from einsmith.base.trees import flatten
from einsmith.ir import nodes
from einsmith.ir.analysis import ranges
from einsmith.ir.nodes import Compute as _Compute
from einsmith.ir.nodes import Const as _Const
from einsmith.ir.nodes import Tensor, leaf, template
from einsmith.ir.origins import Origin
from einsmith.ir.rebuild import rebuild
from einsmith.tracing import folds, formula, trace, views
from einsmith.tracing.array_methods import ArrayMethods
from einsmith.tracing.formula import AxisVar, Form, WeakForm
from einsmith.tracing.lower import lower
from einsmith.tracing.operators import Operators
from einsmith.tracing.protocol import RunTimeOnly, is_array_like
from einsmith.tracing.torch_methods import TorchMethods
from einsmith.tracing.torch_types import ElementCount
from einsmith.tracing.trace import current_trace

Number = (bool, int, float, np.bool_, np.integer, np.floating)
"""Types of the numbers that stand in formulas and in operations on Values."""


class Ex(Operators):
    """A scalar in a formula under construction: an axis, an element of a Value, or a function of such scalars."""

    __slots__ = ("form",)
    __array_ufunc__ = None

    def __init__(self, form: Form):
        self.form = form

    def _takes(self, other: Any) -> bool:
        return isinstance(other, (Value, Ex, *Number)) or is_array_like(other)

    def _apply(self, fn: str, *operands: Any) -> Any:
        return _apply(fn, *operands)

    def __bool__(self) -> bool:
        raise TraceError(
            "the value of a formula is not known while it is built; write (0 <= i) & (i < n) for chained comparisons, "
            "es.where(c, a, b) for a choice, es.maximum and es.minimum for max and min"
        )

    def __repr__(self) -> str:
        axes = ", ".join(sorted(a.name for a in self.form.free))
        return f"Ex({formula.type_name(self.form.ty)} over [{axes}])"


def _reduction_method(combiner: str) -> Callable[..., Value]:
    """Return the method of Value that reduces by a combiner."""

    def method(self: Value, axis: Any = None, keepdims: bool = False, **options: Any) -> Any:
        if options or isinstance(axis, Value):
            return _reduce_as_torch(combiner, self, axis, keepdims, options)
        return _reduce(combiner, self, axis, keepdims)

    method.__name__ = combiner
    method.__doc__ = (
        f"Return the {combiner} over `axis` (None: all axes); with `keepdims`, reduced axes keep the extent 1.\n\n"
        f"With `dim`, `keepdim` or `dtype` by name: `es.functional.{combiner}`, as in PyTorch."
    )
    return method


def _reduce_as_torch(combiner: str, x: Any, dim: Any, keepdim: Any, options: dict[str, Any]) -> Any:
    """Return PyTorch's reduction of a tensor, or of an array outside a trace: `max` and `min` along a dimension have
    positions, too."""
    named = options | ({} if keepdim is False else {"keepdim": keepdim})
    return trace.function(combiner)(x, *(() if dim is None else (dim,)), **named)


class Value(ArrayMethods, TorchMethods, RunTimeOnly):
    """A traced tensor, whose elements exist only when the program runs.

    Attributes:
        tensor: the tensor, a node of the IR.
        weak: whether it is a number (0-d), which takes the float type of the tensors that it is combined with.
        wide: whether it is a run-time integer that may exceed int32.
        literal: the number if it is known while tracing, else None.
        name: its name in messages; None if it has none.
    """

    __slots__ = ("_tensor", "weak", "wide", "literal", "name")

    def __init__(
        self,
        tensor: Tensor | None,
        weak: bool = False,
        literal: Any = None,
        name: str | None = None,
        wide: bool = False,
    ):
        self._tensor, self.weak, self.wide, self.literal, self.name = tensor, weak, wide, literal, name
        traced = current_trace()
        if traced is not None and traced.order is not None and tensor is not None:
            traced.order.setdefault(tensor, len(traced.order))

    def _takes(self, other: Any) -> bool:
        return isinstance(other, (Value, Ex, list, tuple, *Number)) or is_array_like(other)

    def _apply(self, fn: str, *operands: Any) -> Any:
        return _apply(fn, *operands)

    @property
    def tensor(self) -> Tensor:
        """The tensor, a node of the IR. A literal's is a constant, created at first use."""
        if self._tensor is None:
            dtype = dt.bool_ if isinstance(self.literal, bool) else dt.i64 if isinstance(self.literal, int) else dt.f64
            self._tensor = _Compute(template((), (), _Const(self.literal, dtype)), ())
        return self._tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the dimensions, a tuple of ints."""
        return () if self._tensor is None else self._tensor.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.tensor.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements; `size()` and `size(dim)` are extents, as in PyTorch."""
        count = nodes.size(self.shape)
        return count if is_symbolic(count) else ElementCount(count, self.shape)

    def __repr__(self) -> str:
        return f"Value(shape={self.shape}, dtype={self.dtype.name}{', weak' if self.weak else ''})"

    # Each method that changes the shape returns a new tensor, which reads elements of this one.

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        if builtins.any(isinstance(k, Ex) for k in keys):
            return _read(self, keys)
        keys = tuple(_as_key(k) for k in keys)
        if builtins.any(isinstance(k, Value) and (k.ndim or k.dtype.is_bool) for k in keys):
            return trace.function("__getitem__")(self, keys)
        plan, positions = views.plan_slicing(self.shape, keys), [k for k in keys if isinstance(k, Value)]
        return _view(("slice", plan), self, plan.shape, lambda axes, *at: views.slice_index(plan, axes, at), *positions)

    def reshape(self, *shape: Any) -> Value:
        """Return the elements in row-major order under another shape, in which one extent may be -1: it is inferred."""
        new = views.resolve_reshape(self.shape, views.as_sequence(shape))
        if new == self.shape:
            return self
        return _view(("reshape", new), self, new, lambda axes: views.reshape_index(self.shape, axes))

    def transpose(self, *order: Any) -> Value:
        """Permute the dimensions to the given order, reversed by default.

        Two numbers swap these two dimensions of a tensor with more than two, as in PyTorch; NumPy rejects them.
        """
        if len(order) == 2 < self.ndim:
            return TorchMethods.exchange(self, *order)
        order = views.as_sequence(order)
        places = views.permutation(self.ndim, () if order is None else order)
        if places == tuple(range(self.ndim)):
            return self
        shape = tuple(self.shape[p] for p in places)

        def index(axes: Sequence[Form]) -> list[Form]:
            return [axes[places.index(d)] for d in range(len(places))]

        return _view(("transpose", places), self, shape, index)

    def astype(self, dtype: Any) -> Value:
        """Return the tensor converted to an element type."""
        return cast(self, dtype)

    sum, mean, prod = _reduction_method("sum"), _reduction_method("mean"), _reduction_method("prod")
    max, min = _reduction_method("max"), _reduction_method("min")
    argmax, argmin = _reduction_method("argmax"), _reduction_method("argmin")

    def __matmul__(self, other: Any) -> Value:
        return matmul(self, other) if isinstance(other, Value) or is_array_like(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Value:
        return matmul(other, self) if is_array_like(other) else NotImplemented


# ------------------------------------------------------------------------------------------------------- conversions


def as_value(x: Any, name: str = "an array in a traced function") -> Value:
    """Return `x` as a Value. name: how messages call `x`.

    A Value is returned unchanged. A Parameter or buffer becomes its leaf, a number becomes a literal, which is weak
    unless it is a bool. An array becomes a leaf of the current trace (`captured.CapturedArray`).

    Raises:
        TraceError: `x` is an Ex, an array outside a trace, or of another type than these.
        DtypeError: `x` is an integer of more than 64 bits, or `to_array` raises it.
        ShapeError, GradientError: `to_array` raises it.
    """
    if isinstance(x, Value):
        return x
    if isinstance(x, Ex):
        raise TraceError("an element of a formula is not a tensor; use it inside es.compute(shape, lambda ...: ...)")
    convert = getattr(x, "__einsmith_value__", None)
    if convert is not None:
        return convert()
    if isinstance(x, Number):
        value = x.item() if isinstance(x, np.generic) else x
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise DtypeError(f"{name} is an integer of more than 64 bits; write a float, as in 1e20")
        return Value(None, weak=not isinstance(value, bool), literal=value)
    if isinstance(x, (list, tuple)) or is_array_like(x):
        array = capture(x, name)
        dtype = dtype_of(array)
        trace = current_trace()
        if trace is None:
            raise TraceError(
                "an array is combined with a traced tensor outside the traced function; pass the array to the function "
                "as an argument"
            )
        return Value(trace.capture(array, array.shape, dtype))
    raise TraceError(f"{type(x).__name__} is neither a tensor, an array nor a number")


def as_form(x: Any) -> Form:
    """Return the form of an Ex, a number or a 0-d tensor; raise FormulaError for a tensor with dimensions."""
    if isinstance(x, Ex):
        return x.form
    if isinstance(x, Number):
        return formula.literal(x)
    v = as_value(x)
    if v.ndim:
        raise FormulaError(
            f"a tensor of shape {v.shape} stands in a formula without indices", hint="index it, as in A[i, j]"
        )
    return element(v, ())


def element(v: Value, index: Sequence[Form]) -> Form:
    """Return the form of the element of `v` at `index`, one integer form for each dimension."""
    if v.literal is not None:
        return formula.Literal(v.literal, passed=True)
    return formula.load(v.tensor, index, v.weak, v.name or f"the tensor of shape {v.shape}", wide=v.wide)


def _as_key(k: Any) -> Any:
    """Return an index of `Value.__getitem__`, with lists, parameters and arrays with dimensions converted to Values."""
    is_tensor = hasattr(k, "__einsmith_value__") or is_array_like(k) and getattr(k, "ndim", None)
    return as_value(k, "an index") if is_tensor or isinstance(k, list) else k


def _read(v: Value, keys: Sequence[Any]) -> Ex:
    """Return the element `v[keys]`, where a key is an Ex; raise FormulaError for slices, None and `...`."""
    index = []
    for k in keys:
        if isinstance(k, slice) or k is None or k is Ellipsis:
            raise FormulaError(
                "an index with axes has no slices, None or ...", hint="give one index for each dimension"
            )
        index.append(as_form(k))
    return Ex(element(v, index))


# ----------------------------------------------------------------------------------------------------------- formulas


def axes(*extents: int) -> tuple[Ex, ...]:
    """Return new axes to reduce over, one for each extent."""
    return tuple(Ex(formula.Index(AxisVar(f"r{k}", n))) for k, n in enumerate(whole_numbers(extents, "axes: extents")))


def compute(shape: Sequence[int], fn: Callable[..., Any]) -> Value:
    """Return the tensor of `shape` whose element at (i, j, ...) is `fn(i, j, ...)`, an Ex or a number.

    Raises:
        FormulaError: `fn` takes another number of indices, or an axis is neither one of the tensor nor reduced over.
        BoundsError: a read is not proven to be in bounds.
    """
    shape = whole_numbers(shape, "compute: shape")
    out = [AxisVar(name, n) for name, n in zip(views.names_of_axes(fn, shape), shape, strict=True)]
    return Value(lower(out, as_form(fn(*(Ex(formula.Index(a)) for a in out)))))


def _reduction_function(combiner: str) -> Callable[..., Any]:
    """Return the function that reduces an Ex over axes, or a tensor over dimensions, by a combiner."""

    def reduce(x: Any, over: Any = None, axis: Any = None, keepdims: bool = False, **options: Any) -> Any:
        if not isinstance(x, Ex) and (options or _is_dim(over)):
            if isinstance(axis, (bool, np.bool_)):  # PyTorch's third argument
                axis, keepdims = None, axis
            return _reduce_as_torch(combiner, x, axis if over is None else over, keepdims, options)
        if not isinstance(x, Ex) and over is None:
            if current_trace() is None and not isinstance(x, (Value, *Number)):
                one_result = {"max": "amax", "min": "amin"}.get(combiner, combiner)
                return _reduce_as_torch(one_result, x, axis, keepdims, {})
            return _reduce(combiner, as_value(x), axis, keepdims)
        if over is None:
            raise FormulaError(f"{combiner} in a formula needs the axes to reduce", hint=f"{combiner}(x, over=(r, s))")
        reduced_axes = []
        for a in over if isinstance(over, (tuple, list)) else (over,):
            if not isinstance(a, Ex) or not isinstance(a.form, formula.Index):
                raise FormulaError(f"{combiner} reduces over axes, made by es.axes(extent)")
            reduced_axes.append(a.form.axis)
        return Ex(folds.reduce(combiner, reduced_axes, as_form(x)))

    reduce.__name__ = reduce.__qualname__ = combiner
    reduce.__doc__ = (
        f"`{combiner}` of an Ex over axes (`over=`), or of a tensor over dimensions (`axis=`, as NumPy).\n\n"
        "With integers in the second place, or `dim`, `keepdim` or `dtype` by name: "
        f"`es.functional.{combiner}`, as in PyTorch."
    )
    return reduce


def _is_dim(over: Any) -> bool:
    """Return whether the second argument of a reduction is dimensions, or another tensor, as in PyTorch."""
    one = over[0] if isinstance(over, (tuple, list)) and over else over
    return isinstance(one, (int, np.integer, Value)) or is_array_like(one)


sum, mean, prod = _reduction_function("sum"), _reduction_function("mean"), _reduction_function("prod")
max, min = _reduction_function("max"), _reduction_function("min")
argmax, argmin = _reduction_function("argmax"), _reduction_function("argmin")
logsumexp = _reduction_function("logsumexp")


# --------------------------------------------------------------------------------------------------------- elementwise

_Record = tuple[list[Tensor], list[Tensor], list[tuple[bool, bool]], list[Origin]]
"""A traced operator: leaves in place of its operands, results, (weak, wide) of each result, origins of its indices."""
_RECORDS: Cache[tuple, _Record] = Cache(Bound("traced operators", 1024))
"""Traced operators by the key that `trace_once` makes; at most 1024 operators."""


def _trace_one(key: tuple, operands: Sequence[Value], build: Callable[[list[Value]], Value]) -> Value:
    """Return the one result of `build(operands)`; see `trace_once`."""
    return trace_once(key, operands, lambda values: (build(values),))[0]


def traced_tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of the Values in nested tuples, lists and dicts."""
    return [x.tensor for x in flatten(tree)[0] if isinstance(x, Value)]


def trace_once(
    key: tuple, operands: Sequence[Value], build: Callable[[list[Value]], tuple[Value, ...]]
) -> tuple[Value, ...]:
    """Return the results of `build(operands)`, which is traced at the first such call and replayed at later ones.

    A replay copies the graph of the traced results with the operands in place of its leaves. Nothing is recorded if a
    result is a literal.

    Args:
        key: hashable values that determine what `build` does besides its operands.
        operands: calls are alike if their operands agree in shapes, types, names and literals, and in which of them are
            the same tensor.
        build: function that makes the results from Values in place of the operands.
    """
    places: dict[Tensor, int] = {}
    pattern: list[tuple] = []
    for v in operands:
        if v.literal is not None:
            pattern.append((type(v.literal), repr(v.literal)))
        else:
            place = places.setdefault(v.tensor, len(places))
            pattern.append((place, v.shape, v.dtype, v.weak, v.wide, v.name))
    record_key = (SIZES_VARY.get(), SEPARATES.get(), key, *pattern)
    record = _RECORDS.get(record_key)
    if record is None:
        leaves: list[Tensor] = [leaf(t.shape, t.dtype) for t in places]
        stand_ins = [
            v if v.literal is not None else Value(leaves[places[v.tensor]], v.weak, name=v.name, wide=v.wide)
            for v in operands
        ]
        current = current_trace()
        first = len(current.origins) if current is not None else 0
        results = build(stand_ins)
        if builtins.any(v.literal is not None for v in results):
            return results
        origins = current.origins[first:] if current is not None else []
        record = leaves, [v.tensor for v in results], [(v.weak, v.wide) for v in results], origins
        _RECORDS.put(record_key, record)
    elif record[3]:
        trace.record_origins(record[3])
    leaves, outs, flags, _ = record
    tensors = rebuild(outs, lambda node: None, dict(zip(leaves, places, strict=True)))
    return tuple(Value(t, weak, wide=wide) for t, (weak, wide) in zip(tensors, flags, strict=True))


def _elementwise(key: tuple, operands: Sequence[Value], make: Callable[..., Form]) -> Value:
    """Return the tensor whose elements are `make` of the broadcast operands' elements.

    It is a literal if all operands are and the form that `make` returns is one.

    Args:
        key: hashable values that determine `make` (see `trace_once`).
        operands: tensors and literals.
        make: function from the forms of one element of each operand to the form of the result's element.
    """

    def build(values: list[Value]) -> Value:
        if builtins.all(v.literal is not None for v in values):
            form = make(*(formula.Literal(v.literal) for v in values))
            if isinstance(form, formula.Literal):
                return as_value(form.value)
        shape = views.broadcast([v.shape for v in values])
        out = [AxisVar(f"i{d}", n) for d, n in enumerate(shape)]
        at = [formula.Index(a) for a in out]
        form = make(
            *(
                formula.Literal(v.literal) if v.literal is not None else element(v, views.broadcast_index(v.shape, at))
                for v in values
            )
        )
        weak = isinstance(form.ty, WeakForm) and builtins.all(v.weak for v in values)
        wide = form.ty is WeakForm.INT and ranges.leaves(form.reach, dt.i32)
        return Value(
            lower(out, form, (dt.i64 if form.ty is WeakForm.INT else dt.f64) if weak else None), weak, wide=wide
        )

    return _trace_one(key, operands, build)


def _apply(fn: str, *operands: Any) -> Any:
    """Apply a scalar function in a formula (giving an Ex) if an operand is an Ex, else to each element (a Value)."""
    if builtins.any(isinstance(x, Ex) for x in operands):
        return Ex(formula.op(fn, *(as_form(x) for x in operands)))
    return _elementwise((fn,), [as_value(x) for x in operands], lambda *a: formula.op(fn, *a))


def _accept_arrays(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does as `f` and also takes arrays outside a trace, for which it compiles and runs `f`."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        operands = (*args, *kwargs.values())
        if current_trace() is None:
            has_arrays = builtins.any(is_array_like(x) and not isinstance(x, Number) for x in operands)
            if has_arrays and not builtins.any(isinstance(x, (Value, Ex)) for x in operands):
                return trace.run_arrays(f, args, kwargs)
        return f(*args, **kwargs)

    return call


def _elementwise_function(fn: str, name: str | None = None, doc: str = "") -> Callable[..., Any]:
    """Return the function of one operand that applies the scalar function `fn`, with its name and docstring."""

    def call(x: Any) -> Any:
        return _apply(fn, x)

    call.__name__ = call.__qualname__ = name or fn
    call.__doc__ = doc or f"{fn} of each element, of an Ex, or of a number."
    return _accept_arrays(call)


exp, log, tanh, sigmoid = (_elementwise_function(f) for f in ("exp", "log", "tanh", "sigmoid"))
sqrt, rsqrt, erf = (_elementwise_function(f) for f in ("sqrt", "rsqrt", "erf"))
abs, sign, floor, sin, cos = (_elementwise_function(f) for f in ("abs", "sign", "floor", "sin", "cos"))
round = _elementwise_function("round", doc="The nearest whole number, halves to the even one.")
log1p = _elementwise_function("log1p", doc="log(1 + x), accurate for small x.")
expm1 = _elementwise_function("expm1", doc="exp(x) - 1, accurate for small x.")
softplus = _elementwise_function("softplus", doc="log(1 + exp(x)), without overflow for large x.")
relu = _elementwise_function("relu", doc="0 where x <= 0, else x; NaN gives NaN, and the derivative at 0 is 0.")
stop_gradient = _elementwise_function("stop_gradient", doc="`x`, with derivative zero.")


def differentiate_as(x: Any, twin: Any) -> Any:
    """Return `x` with the derivatives of `twin`, an expression equal to `x` that is never evaluated."""
    return _apply("differentiate_as", x, twin)


@_accept_arrays
def where(c: Any, a: Any, b: Any) -> Any:
    """Return `a` where `c` holds, else `b`. Only the chosen side is evaluated. Tensors are broadcast."""
    return _apply("where", c, a, b)


@_accept_arrays
def maximum(a: Any, b: Any) -> Any:
    """Return the larger of two values; NaN where one is NaN."""
    return _apply("max", a, b)


@_accept_arrays
def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of two values; NaN where one is NaN."""
    return _apply("min", a, b)


@_accept_arrays
def logaddexp(a: Any, b: Any) -> Any:
    """Return log(exp(a) + exp(b)), without overflow; -inf is the neutral element."""
    return _apply("logaddexp", a, b)


def random_bits(k0: Any, k1: Any, c0: Any, c1: Any) -> Any:
    """Return 32 random bits as an int32: a function of the key (k0, k1) and the counter (c0, c1) (`ir.random`)."""
    return _apply("random_bits", k0, k1, c0, c1)


def cast(x: Any, dtype: Any) -> Any:
    """Convert `x` to another element type.

    A float becomes an integer by rounding towards zero. A number becomes a bool by comparison with 0.
    """
    to = dtype_of(dtype)
    if isinstance(x, Ex):
        return Ex(formula.convert(x.form, to))
    v = as_value(x)
    if v.literal is None and not v.weak and v.dtype is to:
        return v
    return _elementwise(("cast", to), [v], lambda a: formula.convert(a, to))


def full(shape: Sequence[int], value: float | int | bool, dtype: Any) -> Value:
    """Return a tensor of `shape` and `dtype` filled with one number.

    Raises:
        DtypeError: `value` is an integer of more than 64 bits, or `dtype` names no element type.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise DtypeError(
            "the value to fill a tensor with is an integer of more than 64 bits; write a float, as in 1e20"
        )
    return Value(_Compute(template(shape, (), _Const(value, dtype_of(dtype))), ()))


# ------------------------------------------------------------------------------------------------- views, reductions


def _view(key: tuple, v: Value, shape: Sequence[int], index: Callable[..., Sequence[Form]], *others: Value) -> Value:
    """Return a tensor whose elements are elements of `v`. It is weak only if `v` is and it is 0-d.

    Args:
        key: hashable values that determine `index` (see `trace_once`).
        v: the source.
        shape: extents of the result.
        index: function from the axes of the result, and the forms of `others`, to the index in `v`.
        others: 0-d tensors that the index depends on.
    """

    def build(values: list[Value]) -> Value:
        out = [AxisVar(f"i{d}", n) for d, n in enumerate(shape)]
        at = index([formula.Index(a) for a in out], *(element(o, ()) for o in values[1:]))
        (x, *_) = values
        return Value(lower(out, element(x, at), x.dtype if x.weak else None), x.weak, wide=x.wide)

    if v.literal is not None:
        v = Value(v.tensor, v.weak, wide=isinstance(v.literal, int) and ranges.leaves((v.literal, v.literal), dt.i32))
    out = _trace_one(key, [v, *others], build)
    return Value(out.tensor, v.weak and not out.shape, wide=out.wide and not out.shape)


def broadcast_to(x: Any, shape: Sequence[int]) -> Value:
    """Broadcast `x` to `shape` by NumPy's rules; raise ShapeError where the shapes do not match."""
    v, shape = as_value(x), tuple(shape)
    if views.broadcast([v.shape, shape]) != shape:
        raise ShapeError(f"shape {v.shape} does not broadcast to {shape}")
    if shape == v.shape:
        return v
    return _view(("broadcast", shape), v, shape, lambda axes: views.broadcast_index(v.shape, axes))


def _reduce(combiner: str, v: Value, axis: Any, keepdims: bool) -> Value:
    """Return the reduction of a tensor over the dimensions `axis`, as in NumPy."""
    if not isinstance(keepdims, (bool, np.bool_)):
        raise KindError(f"{combiner}: keepdims={show(keepdims)} must be True or False")
    dims = views.dimensions(v.ndim, axis)
    if not dims:  # each element is the reduction of itself, at position 0
        return cast(v * 0, dt.i32) if combiner.startswith("arg") else v

    def build(values: list[Value]) -> Value:
        (x,) = values
        all_axes = [AxisVar(f"i{d}", n) for d, n in enumerate(x.shape)]
        body = element(x, [formula.Index(a) for a in all_axes])
        out = []
        for d, a in enumerate(all_axes):
            if d not in dims:
                out.append(a)
            elif keepdims:
                out.append(AxisVar(a.name, 1))
        return Value(lower(out, folds.reduce(combiner, [all_axes[d] for d in dims], body)))

    return _trace_one(("reduce", combiner, dims, keepdims), [v], build)


def matmul(x: Any, y: Any) -> Value:
    """Return the matrix product of vectors, matrices, or stacks of matrices, by NumPy's rules.

    Raises:
        ShapeError: an operand has no dimensions, the summed extents differ, or the stacks do not broadcast.
    """
    a, b = as_value(x), as_value(y)
    if not a.ndim or not b.ndim:
        raise ShapeError("@ needs at least one dimension on both sides; use * for a scalar")
    summed = a.shape[-1], b.shape[-2 if b.ndim > 1 else 0]
    if summed[0] != summed[1]:
        raise ShapeError(
            f"@: shapes {a.shape} and {b.shape} disagree in the summed extent, {summed[0]} and {summed[1]}"
        )

    def build(values: list[Value]) -> Value:
        p, q = values
        batch = [AxisVar(f"b{d}", n) for d, n in enumerate(views.broadcast([p.shape[:-2], q.shape[:-2]]))]
        m = [AxisVar("m", p.shape[-2])] if p.ndim > 1 else []
        n = [AxisVar("n", q.shape[-1])] if q.ndim > 1 else []
        k = AxisVar("k", p.shape[-1])

        def index_stack(v: Value) -> list[Form]:
            return views.broadcast_index(v.shape[:-2], [formula.Index(a) for a in batch])

        left = element(p, [*index_stack(p), *map(formula.Index, m), formula.Index(k)])
        right = element(q, [*index_stack(q), formula.Index(k), *map(formula.Index, n)])
        return Value(lower([*batch, *m, *n], formula.fold("sum", [k], formula.op("mul", left, right))))

    return _trace_one(("matmul",), [a, b], build)


__all__ = [
    "Ex", "Value", "abs", "argmax", "argmin", "as_value", "axes", "broadcast_to", "cast", "compute", "cos", "erf",
    "exp", "expm1", "floor", "log", "log1p", "logaddexp", "logsumexp", "matmul", "max", "maximum", "mean", "min",
    "minimum", "prod", "relu",
    "rsqrt", "sigmoid", "sign", "sin", "softplus", "sqrt", "stop_gradient", "sum", "tanh", "where",
]  # fmt: skip
