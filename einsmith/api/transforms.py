"""Transform functions: value_and_grad, grad, vjp, jvp, stop_gradient, interpret, check_gradients.

Transformations nest. They work on arrays (compiled, cached with the function) and inside a trace (which they extend).
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.random import default_rng

from einsmith.api.jit import Derived, Jitted, cached, run_arrays
from einsmith.api.tracing import Argument, arguments_of, names_of, trace_arguments
from einsmith.autodiff import forward
from einsmith.autodiff.batch import batch
from einsmith.autodiff.reverse import gradients, in_steps
from einsmith.base.arguments import Magnitude, Size, check_arguments, refuse_torch, signature_of
from einsmith.base.arrays import to_array
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import ArgumentError, DtypeError, GradientError, IndexOutOfRange, ShapeError, TraceError
from einsmith.base.trees import flatten, map_tree, unflatten
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Tensor, leaf
from einsmith.ir.rebuild import rebuild
from einsmith.ir.rewrite.simplify import values_only
from einsmith.passes.analysis.index_checks import violation
from einsmith.tracing import builder, trace
from einsmith.tracing.builder import Value, as_value
from einsmith.tracing.calls import in_trace, is_traced

# ------------------------------------------------------------------------------------------------------ gradients


@check_arguments
def value_and_grad(f: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable:
    """Return a function that computes (f's value, gradient with respect to the arguments at `argnums`).

    f returns a float scalar, or with `has_aux` a pair (scalar, anything). A tuple of argnums gives a tuple of
    gradients, an int the bare gradient; arguments may be nested. Raises GradientError for a non-scalar result or
    integer arguments.
    """

    try:
        positions, bare = (operator.index(argnums),), True  # type: ignore[arg-type]
    except TypeError:
        positions, bare = tuple(map(operator.index, argnums)), False  # type: ignore[arg-type, assignment]

    def traced(*args: Any, **kwargs: Any) -> Any:
        if any(not -len(args) <= p < len(args) for p in positions):
            raise GradientError(f"argnums={argnums} but the function was called with {len(args)} arguments")
        return _value_and_grad(f, [p % len(args) for p in positions], bare, has_aux, args, kwargs)

    functools.update_wrapper(traced, f, updated=())
    return Transformed(traced, value_and_grad, (f, argnums, has_aux))


class Transformed(Derived):
    """A transformed function: it extends a trace, or compiles and runs on arrays."""

    def __init__(self, traced: Callable, derive: Callable[..., Any], arguments: tuple):
        super().__init__(traced, derive, arguments)
        self.traced = traced
        self._jitted = Jitted(traced)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.traced(*args, **kwargs) if in_trace(args, kwargs) else self._jitted(*args, **kwargs)


def _stand_ins(values: Sequence[Value]) -> list[Value]:
    """Return new symbols that replace tensors in a function that is differentiated.

    A derivative thereby distinguishes two arguments that are one tensor, and arguments from what the function closes
    over.
    """
    return [Value(leaf(v.shape, v.dtype), weak=v.weak, wide=v.wide) for v in values]


def _exchange(stand_ins: Sequence[Value], values: Sequence[Value], tensors: Sequence[Tensor]) -> list[Value]:
    """Return the tensors with stand-ins replaced by `values`, also in the updates that the trace will store into
    buffers."""
    rule = {s.tensor: v.tensor for s, v in zip(stand_ins, values, strict=True)}.get
    memo: dict = {}
    under_way = trace.current_trace()
    if under_way is not None:
        for key, (obj, new) in under_way.updates.items():
            under_way.updates[key] = obj, rebuild([new], rule, memo)[0]
        under_way.checked = rebuild(under_way.checked, rule, memo)
    return [Value(t) for t in rebuild(tensors, rule, memo)]


def _check_indices(tensors: Sequence[Tensor]) -> None:
    """Have the indices of differentiated tensors checked at run time: a gradient may not read at them itself."""
    under_way = trace.current_trace()
    if under_way is not None:
        under_way.checked += [t for t in tensors if t not in under_way.checked]


def _value_and_grad(f, positions, bare, has_aux, args, kwargs):
    args = list(args)
    values: list[Value] = []
    wrt: list[Value] = []
    structures = []
    for p in positions:
        leaves, structure = flatten(args[p])
        leaves = [_float_value(x, p) for x in leaves]
        symbols = _stand_ins(leaves)
        values += leaves
        wrt += symbols
        structures.append((structure, len(leaves)))
        args[p] = unflatten(structure, symbols)
    result = f(*args, **kwargs)
    if has_aux and not (isinstance(result, (tuple, list)) and len(result) == 2):
        raise GradientError("with has_aux=True the function returns a pair: (scalar, anything)")
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
    under_way = trace.current_trace()
    stored = {} if under_way is None else under_way.updates  # rewritten with the value, to read one forward pass
    roots = [*outs, *(t for _, t in stored.values())]
    new, grads = gradients(roots, [one, *zeros, *[None] * len(stored)], [w.tensor for w in wrt])
    for (key, (obj, _)), t in zip(list(stored.items()), new[len(outs) :], strict=True):
        stored[key] = obj, t
    new = new[: len(outs)]
    _check_indices(outs)
    value, *rest = _exchange(wrt, values, [*new, *grads])
    aux = unflatten(aux_structure, rest[: len(aux_leaves)])
    out, at = [], len(aux_leaves)
    for structure, n in structures:
        out.append(unflatten(structure, rest[at : at + n]))
        at += n
    return ((value, aux) if has_aux else value), (out[0] if bare else tuple(out))


def _float_value(x: Any, position: int) -> Value:
    v = as_value(x)
    if not v.dtype.is_float:
        raise GradientError(f"argument {position} has type {v.dtype}; only float arguments have gradients")
    return v


@check_arguments
def grad(f: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable:
    """Return a function that computes the gradient of `value_and_grad`; with `has_aux` the pair (gradient, aux)."""
    both = value_and_grad(f, argnums, has_aux)

    def traced(*args: Any, **kwargs: Any) -> Any:
        value, g = both.traced(*args, **kwargs)  # type: ignore[attr-defined]
        return (g, value[1]) if has_aux else g

    functools.update_wrapper(traced, f, updated=())
    return Transformed(traced, grad, (f, argnums, has_aux))


@check_arguments
def vjp(f: Callable, *primals: Any) -> tuple[Any, Callable]:
    """Return (f(*primals), pullback). `pullback(cotangent)` gives a tuple: the cotangent of each primal, None for
    integers.

    The cotangent has the output's structure and shapes, and floats where the output has them: other float types and
    Python numbers are converted, integer arrays are a DtypeError. The cotangent of an integer output is ignored; any
    array of its shape will do. Given arrays, the output and the pullback are programs of their own; the pullback uses
    the primals' present values and the random numbers of the output. Given traced tensors both extend the trace.
    Buffers that f updates are updated by vjp itself, and by no pullback.
    """
    refuse_torch(f, "the function")
    if not in_trace(primals):
        key = trace.random_key()
        out = run_arrays(f, primals, {}) if not isinstance(f, Jitted) else f(*primals)
        return out, Pullback(f, map_tree(_copy, primals), out, key)
    result, pull_back = _linearize(f, primals)

    def traced_pullback(cotangent: Any) -> tuple:
        return pull_back([as_value(c) for c in _cotangents(result, cotangent)])

    traced_pullback.__qualname__ = f"pullback of {signature_of(f)}"
    return result, traced_pullback


class Pullback:
    """The function from a cotangent of f's output to those of its primals, at a point.

    key: of the random numbers with which the output was computed. A copy is derived from a copy of f.
    """

    def __init__(self, f: Callable, point: Any, out: Any, key: Any):
        self._arguments = f, point, out, key
        self._pull = cached(_PULLBACKS, f, _pullback)

    def __repr__(self) -> str:
        return f"<pullback of {signature_of(self._arguments[0])}>"

    def __call__(self, cotangent: Any) -> tuple:
        _, point, out, key = self._arguments
        return self._pull(point, tuple(_cotangents(out, cotangent)), key)

    def __getstate__(self) -> tuple:
        return self._arguments

    def __setstate__(self, state: tuple) -> None:
        self.__init__(*state)  # type: ignore[misc]  # programs are not copied


def _copy(x: Any) -> Any:
    """Return an argument's current value: arrays are copied; numbers and static values are returned unchanged."""
    argument = Argument(x, False)
    return x if argument.static or argument.weak else np.array(argument.value)


_PULLBACKS: weakref.WeakKeyDictionary[Any, Jitted] = weakref.WeakKeyDictionary()


def _pullback(f: Callable) -> Jitted:
    def run(primals: tuple, cotangent: Any, key: Any) -> tuple:
        under_way = trace.current_trace()
        assert under_way is not None
        if key is not None:  # the random numbers that f drew when its output was computed
            under_way.key = key[0], key[1]
        updates = dict(under_way.updates)
        _, pull = _linearize(f, primals)
        under_way.updates = updates
        return pull([as_value(c) for c in flatten(cotangent)[0]])

    return Jitted(run)


def _linearize(f: Callable, primals: tuple) -> tuple[Any, Callable[[list[Value]], tuple]]:
    """Return (f(*primals), the function from the cotangents of its results to those of the primals), in the trace."""
    flat, structure = flatten(primals)
    values = [as_value(x) for x in flat]
    at = [n for n, v in enumerate(values) if v.dtype.is_float]
    floats = [values[n] for n in at]
    symbols = _stand_ins(floats)
    args = dict(enumerate(values)) | dict(zip(at, symbols, strict=True))
    results, out_structure = flatten(f(*unflatten(structure, args.values())))
    results = [as_value(x) for x in results]
    outputs, _ = in_steps([o.tensor for o in results])

    def pull(cotangents: list[Value]) -> tuple:
        pairs = zip(cotangents, results, strict=True)
        cots = [c.tensor if c.dtype is o.dtype else c.astype(o.dtype).tensor for c, o in pairs]
        _, grads = gradients(outputs, cots, [s.tensor for s in symbols])
        by_place = dict(zip(at, _exchange(symbols, floats, grads), strict=True))
        return unflatten(structure, [by_place.get(n) for n in range(len(values))])

    _check_indices(outputs)
    replaced = zip(_exchange(symbols, floats, outputs), results, strict=True)
    return unflatten(out_structure, [Value(v.tensor, weak=o.weak, wide=o.wide) for v, o in replaced]), pull


@check_arguments
def jvp(f: Callable, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Return (f(*primals), its derivative along `tangents`), by forward mode, in one program.

    primals and tangents are tuples of equal structure and shapes; a float's tangent is of floats, which are converted
    to its type; that of an integer is None, and tangents of integer results are zeros. Costs about two evaluations of
    f. Given traced tensors it extends the trace. Raises GradientError for structures that differ, ShapeError for a
    tangent of a wrong shape, DtypeError for one of integers.
    """
    refuse_torch(f, "the function")
    primals, tangents = tuple(primals), tuple(tangents)
    _check_tangents(primals, tangents)
    if in_trace((primals, tangents)):
        return _push(f, primals, tangents)
    return cached(_JVPS, f, _push_of)(primals, tangents)


_JVPS: weakref.WeakKeyDictionary[Any, Jitted] = weakref.WeakKeyDictionary()


def _push_of(f: Callable) -> Jitted:
    return Jitted(lambda primals, tangents: _push(f, primals, tangents))


def _push(f: Callable, primals: tuple, tangents: tuple) -> tuple[Any, Any]:
    leaves, structure = flatten(primals)
    values = [as_value(x) for x in leaves]
    symbols = _stand_ins(values)
    outs, out_structure = flatten(f(*unflatten(structure, symbols)))
    outputs = [as_value(x).tensor for x in outs]
    moves = _flat_tangents(primals, tangents)
    at = [n for n, v in enumerate(values) if v.dtype.is_float and moves[n] is not None]
    float_tangents = [as_value(moves[n]) for n in at]
    moved = [
        g.tensor if g.dtype is values[n].dtype else g.astype(values[n].dtype).tensor
        for n, g in zip(at, float_tangents, strict=True)
    ]
    new, directions = forward.tangents(outputs, [symbols[n].tensor for n in at], moved)
    results = _exchange(symbols, values, [*new, *directions])
    return unflatten(out_structure, results[: len(new)]), unflatten(out_structure, results[len(new) :])


def batched(f: Callable, at: Sequence[int]) -> Callable:
    """Return f for a whole batch of traced tensors: each argument at `at`, and each tensor of the result tuple, has the
    batch axis first."""

    def run(*values: Any) -> tuple[Value, ...]:
        under_way = trace.current_trace()
        batches = {i: as_value(values[i]) for i in at}
        extent = next(iter(batches.values())).shape[0]
        stand_ins = {i: Value(leaf(v.shape[1:], v.dtype)) for i, v in batches.items()}
        known = len(under_way.checked) if under_way is not None else 0
        outputs = [as_value(x).tensor for x in f(*(stand_ins.get(i, x) for i, x in enumerate(values)))]
        flags = under_way.checked[known:] if under_way is not None else []
        wide = [leaf(v.shape, v.dtype) for v in batches.values()]
        leaves = {stand_ins[i].tensor: w for i, w in zip(batches, wide, strict=True)}
        batched_results = batch([*outputs, *flags], leaves, extent)  # type: ignore[arg-type]
        if under_way is not None:
            under_way.checked[known:] = batched_results[len(outputs) :]
        return tuple(_exchange([Value(w) for w in wide], list(batches.values()), batched_results[: len(outputs)]))

    return run


def _flat_tangents(primals: Any, tangents: Any) -> list[Any]:
    """Return the tangent of every leaf of the primals, None where there is none."""
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
    except (TypeError, KeyError, ValueError, IndexError):
        raise GradientError("the tangents must have the structure of the primals") from None
    for n, (x, t) in enumerate(zip(flatten(primals)[0], flat, strict=True)):
        shape = _shape(x, f"primal {n}")
        if t is None:
            if (x if hasattr(x, "dtype") else to_array(x)).dtype.kind == "f":
                raise GradientError(f"primal {n} is a float and has no tangent; pass zeros")
            continue
        tangent_shape = _shape(t, f"the tangent of primal {n}")
        if tangent_shape != shape:
            raise ShapeError(f"the tangent of primal {n} has shape {tangent_shape}, but the primal has {shape}")
        if not isinstance(x, (int, float)):
            _check_float(t, x, f"tangent of primal {n}")


def _shape(x: Any, name: str) -> tuple[int, ...]:
    return tuple(x.shape) if hasattr(x, "shape") else to_array(x, name).shape


def _in_order(tree: Any, like: Any) -> Any:
    """Return the tree with the keys of its dicts in the order of those of `like`, where the keys are equal."""
    if isinstance(tree, dict) and isinstance(like, dict) and tree.keys() == like.keys():
        return {k: _in_order(tree[k], like[k]) for k in like}
    if isinstance(tree, (tuple, list)) and isinstance(like, (tuple, list)) and len(tree) == len(like):
        return type(tree)(_in_order(x, y) for x, y in zip(tree, like, strict=True))
    return tree


def _cotangents(out: Any, cotangent: Any) -> list[Any]:
    """Return the leaves of a cotangent in the order of the output's. Raises where the structures do not match."""
    a, b = flatten(out), flatten(_in_order(cotangent, out))
    if a[1] != b[1]:
        raise GradientError("the cotangent must have the structure of the output")
    for x, c in zip(a[0], b[0], strict=True):
        shape = _shape(c, "the cotangent")
        if shape != tuple(x.shape):
            raise ShapeError(f"the cotangent has shape {shape}, but the output has {tuple(x.shape)}")
        _check_float(c, x, "cotangent")
    return b[0]


def _check_float(tangent: Any, like: Any, what: str) -> None:
    """Raise DtypeError where the tangent or cotangent of floats is no array of floats."""
    if isinstance(tangent, (int, float)) or (isinstance(tangent, Value) and tangent.weak):
        return
    a, b = (dtype_of(x.dtype if hasattr(x, "dtype") else to_array(x)) for x in (tangent, like))
    if b.is_float and not a.is_float:
        raise DtypeError(
            f"the {what} has type {a}, but its primal or output has {b}; convert it, .astype({str(b.numpy)!r})"
        )


def stop_gradient(x: Any) -> Any:
    """Return x as a constant for differentiation: no gradient flows through it."""
    return builder.stop_gradient(x)


# ---------------------------------------------------------------------------------------- evaluator and its checks


@check_arguments
def interpret(f: Callable) -> Callable:
    """Return f run by the reference evaluator, in float64, without compiling anything."""
    return Interpreted(f, interpret, (f,))


class Interpreted(Derived):
    """A function that the reference evaluator runs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        f = self.__wrapped__  # type: ignore[attr-defined]
        if is_traced((args, kwargs)):
            raise TraceError("interpret runs on arrays; inside a trace call the function itself")
        arguments = arguments_of(args, kwargs, frozenset(), names_of(f))
        traced = trace_arguments(f, arguments, flatten((list(args), kwargs))[1])
        inputs = [a.value for a in arguments if not a.static]
        bound = [traced.bind[x] for x in traced.graph.inputs[len(inputs) :]]
        try:
            outputs, _ = evaluate(values_only(traced.graph), [*inputs, *bound])
        except IndexOutOfRange as e:
            known = dict(zip(traced.graph.inputs, [*inputs, *bound], strict=True))
            raise IndexOutOfRange(violation(traced.graph.roots, known, traced.origins) or str(e)) from None
        return unflatten(traced.structure, outputs)


Order = Annotated[int, 0, 8]
"""Order of derivatives; the work grows exponentially in it."""


@check_arguments
def check_gradients(
    f: Callable, *primals: Any, order: Order = 2, seed: Size = 0, eps: float = 1e-5, tol: Magnitude = 1e-5
) -> None:
    """Compare f's gradients with central differences along random directions, in float64, up to `order`.

    Every float primal takes part. Raises GradientError with the two numbers where they differ by more than tol * (1 +
    |difference|).
    """
    refuse_torch(f, "the function")
    if not eps > 0:
        raise ArgumentError(f"check_gradients: eps={eps!r} must be a positive number")
    leaves, structure = flatten(primals)
    rng = default_rng(seed)
    arrays = [to_array(x, f"primal {n}") for n, x in enumerate(leaves)]
    at = [i for i, a in enumerate(arrays) if dtype_of(a).is_float]
    if not at:
        raise GradientError("no argument is a float array")
    values = [arrays[i].astype(np.float64) for i in at]

    def scalar(*xs: Any) -> Any:
        full: list[Any] = list(arrays)
        for i, x in zip(at, xs, strict=True):
            full[i] = x
        outs = [as_value(o) for o in flatten(f(*unflatten(structure, full)))[0]]
        r = default_rng(seed + 1)
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
