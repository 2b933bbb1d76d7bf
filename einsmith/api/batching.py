"""Vectorize functions over a batch of arguments (`vmap`), and compute second derivatives with it (`hessian`)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from einsmith.api.transforms import Transformed, batched, grad, jvp
from einsmith.base import dtypes as dt
from einsmith.base.arguments import check_arguments, describe
from einsmith.base.dtypes import is_whole
from einsmith.base.errors import ArgumentError, GradientError, ShapeError
from einsmith.base.trees import flatten, unflatten
from einsmith.tracing import builder
from einsmith.tracing.builder import Value, as_value


@check_arguments
def vmap(f: Callable, in_axes: int | None | Sequence[int | None] = 0, out_axes: int = 0) -> Callable:
    """Vectorize f over a batch, as jax.vmap does: `vmap(f)(xs)[n]` is `f(xs[n])`.

    Arguments and results may be nested containers. It nests with itself, `grad`, `jvp` and `jit`.

    Args:
        f: function of tensors.
        in_axes: the batch dimension of the arguments' arrays: one number for all arguments or one for each; None for an
            argument that is the same for the whole batch.
        out_axes: position of the batch dimension in the results.
    Raises:
        ShapeError: batches have different extents.
        ArgumentError: an axis does not exist.
    """
    _check(out_axes, "out_axes")

    def traced(*args: Any) -> Any:
        axes: list[Any] = list(in_axes) if isinstance(in_axes, Sequence) else [in_axes] * len(args)
        if len(axes) != len(args):
            raise ArgumentError(f"vmap: in_axes={in_axes!r} has {len(axes)} entries for {len(args)} arguments")
        flat: list[Any] = []
        at: list[int] = []
        structures = []
        for n, (x, axis) in enumerate(zip(args, axes, strict=True)):
            leaves, structure = flatten(x)
            structures.append((structure, len(leaves)))
            for v in leaves:
                if axis is not None:
                    _check(axis, "in_axes")
                    at.append(len(flat))
                    v = _move_dim(as_value(v), axis, 0, f"argument {n}")
                flat.append(v)
        extents = {flat[i].shape[0] for i in at}
        if len(extents) != 1:
            shown = ", ".join(map(str, sorted(extents))) or "none"
            raise ShapeError(f"vmap: the mapped axes of the arguments must have one common extent, found {shown}")
        out_structures: list[Any] = []

        def inner(*values: Any) -> tuple[Value, ...]:
            rest = iter(values)
            nested = [unflatten(s, [next(rest) for _ in range(count)]) for s, count in structures]
            leaves, structure = flatten(f(*nested))
            out_structures.append(structure)
            return tuple(as_value(v) for v in leaves)

        results = batched(inner, at)(*flat)
        return unflatten(out_structures[0], [_move_dim(v, 0, out_axes, "a result") for v in results])

    functools.update_wrapper(traced, f, updated=())
    return Transformed(traced, vmap, (f, in_axes, out_axes))


@check_arguments
def hessian(f: Callable, argnums: int = 0) -> Callable:
    """Return a function that computes the second derivatives of a scalar function by its argument x at `argnums`.

    x is an array of floats. The result has shape [*x.shape, *x.shape]; element [*i, *j] is the derivative by x[i] and
    x[j]. It is computed from all tangents of the gradient, in one program. Raises GradientError where f gives no float
    scalar or x is no array of floats.
    """
    slope = grad(f, argnums)

    def traced(*args: Any, **kwargs: Any) -> Any:
        at = operator.index(argnums)
        if not -len(args) <= at < len(args):
            raise GradientError(f"argnums={argnums} but the function was called with {len(args)} arguments")
        at %= len(args)
        if isinstance(args[at], (tuple, list, dict)):
            raise GradientError(f"hessian: argument {at} is {describe(args[at])}; it must be one array")
        x = as_value(args[at])
        if not x.dtype.is_float:
            raise GradientError(f"argument {at} has type {x.dtype}; only float arguments have gradients")

        def along(direction: Value) -> Value:
            return jvp(lambda v: slope(*args[:at], v, *args[at + 1 :], **kwargs), (x,), (direction,))[1]

        n = x.size
        basis = builder.compute((n, n), lambda i, j: builder.cast(builder.where(i == j, 1, 0), dt.f32)).astype(x.dtype)
        rows = vmap(along)(basis.reshape((n, *x.shape)))
        return rows.reshape((*x.shape, *x.shape))

    functools.update_wrapper(traced, f, updated=())
    return Transformed(traced, hessian, (f, argnums))


def _check(axis: Any, name: str) -> None:
    if not is_whole(axis):
        raise ArgumentError(f"vmap: {name}={axis!r} must be an integer" + (" or None" if name == "in_axes" else ""))


def _move_dim(v: Value, source: int, target: int, what: str) -> Value:
    """Move the dimension `source` of a tensor to position `target`."""
    for axis in (source, target):
        if not -v.ndim <= axis < v.ndim:
            raise ArgumentError(f"vmap: {what} of shape {v.shape} has no dimension {axis}")
    order = [d for d in range(v.ndim) if d != source % v.ndim]
    order.insert(target % v.ndim, source % v.ndim)
    return v.transpose(tuple(order))
