"""Functions of tensors: jit, grad, value_and_grad, vjp, interpret, check_gradients (API "Functions of tensors").

A callable given arrays is traced with symbolic tensors, compiled for their shapes and types, run, and kept.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einsmith import dtypes as dt
from einsmith.autodiff.forward import tangents as push_tangents
from einsmith.autodiff.sweep import gradients
from einsmith.compile import Executable
from einsmith.dtypes import DType, dtype_of
from einsmith.errors import DtypeError, GradientError, ShapeError, TraceError
from einsmith.expr.interp import evaluate
from einsmith.expr.nodes import Graph, Leaf, Tensor, leaf
from einsmith.expr.rewrite import rebuild
from einsmith.lang import builder, trace
from einsmith.lang.builder import Value, as_value
from einsmith.runtime.pool import get_threads
from einsmith.tree import flatten, unflatten

_STATIC = (str, bool, type(None))


def to_array(x: Any, name: str = "array") -> np.ndarray:
    """A C-contiguous NumPy array with x's elements: no copy where it is one already."""
    if isinstance(x, np.ndarray):
        array = x
    elif hasattr(x, "__einsmith_array__"):
        array = x.__einsmith_array__()
    elif hasattr(x, "__array__"):
        array = np.asarray(x.detach() if hasattr(x, "detach") else x)
    elif hasattr(x, "__dlpack__"):
        array = np.from_dlpack(x)
    else:
        raise DtypeError(f"{name} is a {type(x).__name__}; pass an array or a number")
    dtype_of(array)
    if array.dtype.byteorder not in "=|":
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.c_contiguous and array.flags.aligned else np.array(array, order="C")


def is_traced(tree: Any) -> bool:
    """Whether some leaf is a traced tensor."""
    return any(isinstance(x, Value) for x in flatten(tree)[0])


@dataclass
class _Traced:
    """A traced call: the graph, what is bound to its leaves, and how to put the results together."""

    graph: Graph
    bind: dict[Leaf, np.ndarray]
    live: list[tuple[Any, Leaf]]
    structure: Any
    updates: list[tuple[Any, Leaf]]


class _Argument:
    """How one leaf of the arguments enters a trace: an array, a run-time number, or a static value."""

    __slots__ = ("static", "dtype", "shape", "weak", "value")

    def __init__(self, x: Any, static: bool):
        self.static = static or isinstance(x, _STATIC) or (callable(x) and not hasattr(x, "__array__"))
        self.weak = False
        self.value: Any = x
        if self.static:
            return
        if isinstance(x, (int, float)) and not isinstance(x, np.generic):
            self.weak = True
            self.dtype: DType = dt.f64 if isinstance(x, float) else dt.i64
            self.shape: tuple[int, ...] = ()
            self.value = np.asarray(x, self.dtype.numpy)
        else:
            self.value = to_array(x)
            self.dtype, self.shape = dtype_of(self.value), self.value.shape

    @property
    def key(self) -> Any:
        if not self.static:
            return (self.dtype, self.shape, self.weak)
        try:
            hash(self.value)
        except TypeError:
            return ("static", id(self.value))
        return ("static", type(self.value), self.value)

    def symbol(self) -> tuple[Any, Leaf | None]:
        if self.static:
            return self.value, None
        x = leaf(self.shape, self.dtype)
        return Value(x, weak=self.weak), x


def trace_call(f: Callable, args: tuple, kwargs: dict, static: frozenset = frozenset(), training: bool = False):
    """Traces f. `static` names keyword arguments and positions that are static."""
    arguments = _arguments(args, kwargs, static)
    return _trace(f, arguments, flatten((list(args), kwargs))[1], training)


class _Shaped:
    """An argument of which only shape and type are known."""

    __slots__ = ("leaf",)

    def __init__(self, shape: Sequence[int], dtype: DType):
        self.leaf = leaf(shape, dtype)

    def symbol(self) -> tuple[Value, Leaf]:
        return Value(self.leaf), self.leaf


def trace_shapes(f: Callable, arguments: Sequence[tuple[Sequence[int], DType]]) -> _Traced:
    """f traced for tensors of these shapes and types, passed by position; nothing is compiled."""
    symbols = [_Shaped(shape, dtype) for shape, dtype in arguments]
    return _trace(f, symbols, flatten((symbols, {}))[1], False)


def _arguments(args: tuple, kwargs: dict, static: frozenset) -> list[_Argument]:
    out: list[_Argument] = []
    for name, tree in [*enumerate(args), *kwargs.items()]:
        out += [_Argument(x, name in static) for x in flatten(tree)[0]]
    return out


def _trace(f: Callable, arguments: Sequence[_Argument | _Shaped], structure: Any, training: bool) -> _Traced:
    t = trace.Trace(training)
    with trace.tracing(t):
        symbols = [a.symbol() for a in arguments]
        args, kwargs = unflatten(structure, [s for s, _ in symbols])
        result = f(*args, **kwargs)
        leaves, out_structure = flatten(result)
        outputs = tuple(as_value(x).tensor for x in leaves)
    inputs = [x for _, x in symbols if x is not None]
    bind = {x: _memory(o) for o, x in t.captured.values()}
    live = [(o, x) for o, x in t.captured.values() if not isinstance(o, np.ndarray)]
    updates = tuple((t.capture(o, new.shape, new.dtype), new) for o, new in t.updates.values())
    bind |= {t.captured[id(o)][1]: _memory(o) for o, _ in t.updates.values()}
    graph = Graph((*inputs, *bind), outputs, updates, ())
    return _Traced(graph, bind, live, out_structure, [(o, t.captured[id(o)][1]) for o, _ in t.updates.values()])


def _memory(obj: Any) -> np.ndarray:
    """The array that holds a captured object's elements: a constant itself, or a live object's own memory."""
    return obj if isinstance(obj, np.ndarray) else obj.data


class Jitted:
    """A compiled function. `static_argnames` are arguments (by name) whose every value is compiled anew."""

    def __init__(self, f: Callable, static_argnames: Sequence[str] = ()):
        functools.update_wrapper(self, f, updated=())
        self.f = f
        self.static = frozenset((static_argnames,) if isinstance(static_argnames, str) else static_argnames)
        self._cache: dict[Any, tuple[Executable, _Traced]] = {}
        self._names = _positions(f) if self.static else {}

    def _current(self, key: Any) -> tuple[Executable, _Traced] | None:
        """What is compiled for `key`, unless a live object got other memory since."""
        entry = self._cache.get(key)
        if entry is not None and any(_memory(o) is not entry[1].bind[x] for o, x in entry[1].live):
            return None
        return entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_traced((args, kwargs)):
            return self.f(*args, **kwargs)
        static = frozenset(self.static | {self._names[n] for n in self.static if n in self._names})
        arguments = _arguments(args, kwargs, static)
        structure = flatten((list(args), kwargs))[1]
        owner = getattr(self.f, "__self__", self.f)
        training = bool(getattr(owner, "training", False))
        modules = owner.trace_key() if hasattr(owner, "trace_key") else None
        key = (structure, tuple(a.key for a in arguments), modules, get_threads())
        entry = self._current(key)
        if entry is None:
            with _COMPILING:
                entry = self._current(key)
                if entry is None:
                    traced = _trace(self.f, arguments, structure, training)
                    entry = Executable(traced.graph, traced.bind, get_threads()), traced
                    self._cache[key] = entry
        run, traced = entry
        _, outputs = run([a.value for a in arguments if not a.static])
        return unflatten(traced.structure, outputs)


_COMPILING = threading.RLock()
"""Held while tracing and compiling: memos of templates are shared by all threads."""


def _positions(f: Callable) -> dict[str, int]:
    import inspect

    return {name: i for i, name in enumerate(inspect.signature(f).parameters)}


def jit(f: Callable | None = None, static_argnames: Sequence[str] = ()) -> Any:
    """f compiled: traced once per structure, shapes, types and static values of its arguments, then one native call."""
    if f is None:
        return functools.partial(jit, static_argnames=static_argnames)
    return Jitted(f, static_argnames)


_JITTED: weakref.WeakKeyDictionary[Any, Jitted] = weakref.WeakKeyDictionary()


def run_arrays(f: Callable, args: tuple, kwargs: dict) -> Any:
    """Any of Einsmith's callables, given arrays: jitted, the compiled function being kept with the callable."""
    try:
        if f not in _JITTED:
            _JITTED[f] = Jitted(_weakly(f))
        return _JITTED[f](*args, **kwargs)
    except TypeError as e:
        if "weak reference" not in str(e):
            raise
        return Jitted(f)(*args, **kwargs)


def _weakly(f: Callable) -> Callable:
    """f without keeping it alive, so that the cache entry goes when f goes."""
    ref = weakref.ref(f)

    def call(*args: Any, **kwargs: Any) -> Any:
        target = ref()
        assert target is not None
        return target(*args, **kwargs)

    call.__self__ = f if hasattr(f, "training") else None  # type: ignore[attr-defined]
    return call


trace.run_arrays = run_arrays


# ------------------------------------------------------------------------------------------------------ gradients


def value_and_grad(f: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable:
    """A function giving (f's value, gradient with respect to the arguments at `argnums`).

    f returns a float scalar, or with `has_aux` a pair (scalar, anything). A tuple of argnums gives a tuple of
    gradients, an int the bare gradient; arguments may be nested. Raises GradientError for a non-scalar result or
    integer arguments.
    """

    def traced(*args: Any, **kwargs: Any) -> Any:
        positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        if positions and max(positions) >= len(args):
            raise GradientError(f"argnums={argnums} but the function was called with {len(args)} arguments")
        return _value_and_grad(f, positions, isinstance(argnums, int), has_aux, args, kwargs)

    functools.update_wrapper(traced, f, updated=())
    return _Transformed(traced)


class _Transformed:
    """A transformation's result: extends a trace, or compiles and runs on arrays."""

    def __init__(self, traced: Callable):
        functools.update_wrapper(self, traced, updated=())
        self.traced = traced
        self._jitted = Jitted(traced)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.traced(*args, **kwargs) if is_traced((args, kwargs)) else self._jitted(*args, **kwargs)


def _value_and_grad(f, positions, bare, has_aux, args, kwargs):
    args = list(args)
    wrt: list[Value] = []
    structures = []
    for p in positions:
        leaves, structure = flatten(args[p])
        leaves = [_float_value(x, p) for x in leaves]
        wrt += leaves
        structures.append((structure, len(leaves)))
        args[p] = unflatten(structure, leaves)
    result = f(*args, **kwargs)
    value, aux = result if has_aux else (result, None)
    if isinstance(value, (tuple, list, dict)):
        raise GradientError("the function returns several values; return one scalar, and the rest with has_aux=True")
    value = as_value(value)
    if value.shape != () or not value.dtype.is_float:
        raise GradientError(f"gradients need a float scalar, not {value.dtype} of shape {value.shape}; sum or average")
    aux_leaves, aux_structure = flatten(aux)
    aux_leaves = [as_value(x) for x in aux_leaves]
    outs = [value.tensor, *(a.tensor for a in aux_leaves)]
    one = builder.full((), 1.0, value.dtype).tensor
    zeros = [builder.full(a.shape, 0, a.dtype).tensor for a in aux_leaves]
    new, grads = gradients(outs, [one, *zeros], [w.tensor for w in wrt])
    value = Value(new[0])
    aux = unflatten(aux_structure, [Value(t) for t in new[1:]])
    out, at = [], 0
    for structure, n in structures:
        out.append(unflatten(structure, [Value(g) for g in grads[at : at + n]]))
        at += n
    return ((value, aux) if has_aux else value), (out[0] if bare else tuple(out))


def _float_value(x: Any, position: int) -> Value:
    v = as_value(x)
    if not v.dtype.is_float:
        raise GradientError(f"argument {position} has type {v.dtype}; only float arguments have gradients")
    return v


def grad(f: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable:
    """The gradient part of `value_and_grad`; with `has_aux` the pair (gradient, aux)."""
    both = value_and_grad(f, argnums, has_aux)

    def traced(*args: Any, **kwargs: Any) -> Any:
        value, g = both.traced(*args, **kwargs)  # type: ignore[attr-defined]
        return (g, value[1]) if has_aux else g

    functools.update_wrapper(traced, f, updated=())
    return _Transformed(traced)


def vjp(f: Callable, *primals: Any) -> tuple[Any, Callable]:
    """(f(*primals), pullback). `pullback(cotangent)` gives a tuple: the cotangent of each primal, None for integers.

    The cotangent has the output's structure, shapes and types. Given arrays, the output and the pullback are programs
    of their own; given traced tensors both extend the trace.
    """
    if not is_traced(primals):
        out = run_arrays(f, primals, {}) if not isinstance(f, Jitted) else f(*primals)
        pull = _pullback_of(f)

        def pullback(cotangent: Any) -> tuple:
            _check_cotangent(out, cotangent)
            return pull(primals, cotangent)

        pullback.__wrapped__ = f  # type: ignore[attr-defined]  # the compiled pullback holds f weakly
        return out, pullback
    values = _as_values(primals)
    result = f(*values)
    leaves, structure = flatten(result)
    leaves = [as_value(x) for x in leaves]

    def traced_pullback(cotangent: Any) -> tuple:
        _check_cotangent(result, cotangent)
        cots = [as_value(c) for c in flatten(cotangent)[0]]
        return _pull(leaves, cots, values)

    return unflatten(structure, leaves), traced_pullback


_PULLBACKS: weakref.WeakKeyDictionary[Any, Jitted] = weakref.WeakKeyDictionary()


def _pullback_of(f: Callable) -> Jitted:
    if f not in _PULLBACKS:
        weak = _weakly(f)

        def run(primals: tuple, cotangent: Any) -> tuple:
            values = _as_values(primals)
            leaves = [as_value(x) for x in flatten(weak(*values))[0]]
            return _pull(leaves, [as_value(c) for c in flatten(cotangent)[0]], values)

        _PULLBACKS[f] = Jitted(run)
    return _PULLBACKS[f]


def _as_values(primals: tuple) -> tuple:
    leaves, structure = flatten(primals)
    return unflatten(structure, [as_value(x) for x in leaves])


def _pull(outputs: list[Value], cotangents: list[Value], primals: tuple) -> tuple:
    leaves, structure = flatten(primals)
    floats = [v for v in leaves if v.dtype.is_float]
    cots = [c if c.dtype is o.dtype else c.astype(o.dtype) for c, o in zip(cotangents, outputs, strict=True)]
    _, grads = gradients([o.tensor for o in outputs], [c.tensor for c in cots], [v.tensor for v in floats])
    it = iter(grads)
    return unflatten(structure, [Value(next(it)) if v.dtype.is_float else None for v in leaves])


def jvp(f: Callable, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """(f(*primals), its derivative along `tangents`), by forward mode, in one program.

    primals and tangents are tuples of equal structure and shapes; the tangent of an integer is None, and tangents of
    integer results are zeros. Costs about two evaluations of f. Given traced tensors it extends the trace. Raises
    GradientError for structures that differ, ShapeError for a tangent of a wrong shape.
    """
    primals, tangents = tuple(primals), tuple(tangents)
    _check_tangents(primals, tangents)
    if is_traced((primals, tangents)):
        return _push(f, primals, tangents)
    try:
        run = _JVPS.get(f)
        if run is None:
            _JVPS[f] = run = Jitted(_push_of(_weakly(f)))
    except TypeError:  # a callable without hash or weak references is compiled for this call alone
        run = Jitted(_push_of(f))
    return run(primals, tangents)


_JVPS: weakref.WeakKeyDictionary[Any, Jitted] = weakref.WeakKeyDictionary()


def _push_of(f: Callable) -> Callable:
    def run(primals: tuple, tangents: tuple) -> tuple:
        return _push(f, primals, tangents)

    return run


def _push(f: Callable, primals: tuple, tangents: tuple) -> tuple[Any, Any]:
    leaves, structure = flatten(primals)
    # A tensor that stands twice moves in two ways: each place has its own symbol, which is then replaced.
    values = [as_value(x) for x in leaves]
    symbols = [leaf(v.shape, v.dtype) for v in values]
    args = unflatten(structure, [Value(x, weak=v.weak) for x, v in zip(symbols, values, strict=True)])
    outs, out_structure = flatten(f(*args))
    outputs = [as_value(x).tensor for x in outs]
    moves = _flat_tangents(primals, tangents)
    at = [n for n, v in enumerate(values) if v.dtype.is_float and moves[n] is not None]
    given = [as_value(moves[n]) for n in at]
    moved = [g.tensor if g.dtype is values[n].dtype else g.astype(values[n].dtype).tensor
             for n, g in zip(at, given, strict=True)]  # fmt: skip
    new, directions = push_tangents(outputs, [symbols[n] for n in at], moved)
    exchanged = dict(zip(symbols, (v.tensor for v in values), strict=True))
    results = [Value(t) for t in rebuild([*new, *directions], exchanged.get)]
    return unflatten(out_structure, results[: len(new)]), unflatten(out_structure, results[len(new) :])


def _flat_tangents(primals: Any, tangents: Any) -> list[Any]:
    """The tangent of every leaf of the primals, None where there is none."""
    if primals is None:
        return []
    if isinstance(primals, dict):
        return [t for k in primals for t in _flat_tangents(primals[k], tangents[k])]
    if isinstance(primals, (tuple, list)):
        return [t for p, q in zip(primals, tangents, strict=True) for t in _flat_tangents(p, q)]
    return [tangents]


def _check_tangents(primals: Any, tangents: Any) -> None:
    try:
        flat = _flat_tangents(primals, tangents)
    except (TypeError, KeyError, ValueError):
        raise GradientError("the tangents' structure is not the primals'") from None
    for n, (x, t) in enumerate(zip(flatten(primals)[0], flat, strict=True)):
        shape = tuple(x.shape) if hasattr(x, "shape") else np.shape(x)
        if t is None:
            if (x if hasattr(x, "dtype") else np.asarray(x)).dtype.kind == "f":
                raise GradientError(f"primal {n} is a float and has no tangent; pass zeros")
            continue
        given = tuple(t.shape) if hasattr(t, "shape") else np.shape(t)
        if given != shape:
            raise ShapeError(f"the tangent of primal {n} has shape {given}, the primal {shape}")


def _check_cotangent(out: Any, cotangent: Any) -> None:
    a, b = flatten(out), flatten(cotangent)
    if a[1] != b[1]:
        raise GradientError("the cotangent's structure is not the output's")
    for x, c in zip(a[0], b[0], strict=True):
        shape = tuple(c.shape) if hasattr(c, "shape") else np.shape(c)
        if shape != tuple(x.shape):
            raise ShapeError(f"the cotangent has shape {shape}, the output {tuple(x.shape)}")


def stop_gradient(x: Any) -> Any:
    """x, through which no gradient flows."""
    return builder.stop_gradient(x)


# ---------------------------------------------------------------------------------------- evaluator and its checks


def interpret(f: Callable) -> Callable:
    """f run by the reference evaluator, in float64, without compiling anything."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_traced((args, kwargs)):
            raise TraceError("interpret runs on arrays; inside a trace call the function itself")
        arguments = _arguments(args, kwargs, frozenset())
        traced = _trace(f, arguments, flatten((list(args), kwargs))[1], bool(getattr(f, "training", False)))
        given = [a.value for a in arguments if not a.static]
        outputs, _ = evaluate(traced.graph, [*given, *(traced.bind[x] for x in traced.graph.inputs[len(given) :])])
        return unflatten(traced.structure, outputs)

    functools.update_wrapper(run, f, updated=())
    return run


def check_gradients(
    f: Callable, *primals: Any, order: int = 2, seed: int = 0, eps: float = 1e-5, tol: float = 1e-5
) -> None:
    """Compares f's gradients with central differences along random directions, in float64, up to `order`.

    Every float primal takes part. Raises GradientError with the two numbers where they differ by more than
    tol * (1 + |difference|).
    """
    leaves, structure = flatten(primals)
    rng = np.random.default_rng(seed)
    arrays = [to_array(x) if not isinstance(x, (int, float)) else np.asarray(x) for x in leaves]
    at = [i for i, a in enumerate(arrays) if dtype_of(a).is_float]
    if not at:
        raise GradientError("no argument is a float array")
    values = [arrays[i].astype(np.float64) for i in at]

    def scalar(*xs: Any) -> Any:
        full: list[Any] = list(arrays)
        for i, x in zip(at, xs, strict=True):
            full[i] = x
        outs = [as_value(o) for o in flatten(f(*unflatten(structure, full)))[0]]
        r = np.random.default_rng(seed + 1)
        total = None
        for o in outs:
            w = r.standard_normal(o.shape)
            if o.dtype.is_float:
                term = (o * as_value(w)).sum()
                total = term if total is None else total + term
        if total is None:
            raise GradientError("no result of the function is a float")
        return total

    def directional(g: Callable, directions: list[np.ndarray]) -> Callable:
        gradient = grad(g, tuple(range(len(at))))

        def along(*xs: Any) -> Any:
            total = None
            for d, v in zip(gradient.traced(*xs), directions, strict=True):  # type: ignore[attr-defined]
                term = (d * as_value(v)).sum()
                total = term if total is None else total + term
            return total

        return along

    g: Callable = scalar
    for n in range(1, order + 1):
        directions = [rng.standard_normal(v.shape) for v in values]
        along = directional(g, directions)
        got = float(interpret(along)(*values))
        plus = float(interpret(g)(*(v + eps * d for v, d in zip(values, directions, strict=True))))
        minus = float(interpret(g)(*(v - eps * d for v, d in zip(values, directions, strict=True))))
        want = (plus - minus) / (2 * eps)
        if not abs(got - want) <= tol * (1 + abs(want)):
            raise GradientError(f"gradient of order {n}: derived {got!r}, central difference {want!r}")
        g = along


def tensors_of(values: Sequence[Any]) -> list[Tensor]:
    return [as_value(v).tensor for v in values]
