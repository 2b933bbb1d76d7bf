"""Map elements of views (slices, reshapes, transposes, broadcasts) to elements of their source by index arithmetic."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from einsmith.base import symbolic
from einsmith.base.arguments import show, signature_of, whole_numbers
from einsmith.base.dtypes import is_whole
from einsmith.base.errors import EinsmithError, FormulaError, IndexOutOfRange, KindError, ShapeError, TraceError
from einsmith.base.symbolic import count_steps, slice_indices
from einsmith.tracing.formula import Form, Literal, op
from einsmith.tracing.protocol import RunTimeOnly


def as_sequence(operands: Sequence[Any]) -> Any:
    """Return a method's operands as one sequence, whether they were passed one by one or as a sequence (or None)."""
    return operands[0] if len(operands) == 1 and not isinstance(operands[0], (int, np.integer)) else operands


@dataclass(frozen=True)
class Slicing:
    """The plan of a slice.

    `shape` of the view; `dims`: for each dimension of the source its (view axis or -1, start, step), or (-2, n, 0)
    where the n-th of the keys that are tensors gives the index.
    """

    shape: tuple[int, ...]
    dims: tuple[tuple[int, int, int], ...]


def plan_slicing(shape: Sequence[int], keys: Sequence[Any]) -> Slicing:
    """Return the plan of `x[keys]` with ints (traced ones too), slices, None and one `...`. Raises IndexOutOfRange,
    TraceError."""
    used = sum(1 for k in keys if k is not None and k is not Ellipsis)
    if used > len(shape):
        raise IndexOutOfRange(f"{used} indices for a tensor with {len(shape)} dimensions, shape {tuple(shape)}")
    if sum(1 for k in keys if k is Ellipsis) > 1:
        raise IndexOutOfRange("an index has at most one ...")
    full: list[Any] = []
    for k in keys:
        full += [slice(None)] * (len(shape) - used) if k is Ellipsis else [k]
    if not any(k is Ellipsis for k in keys):
        full += [slice(None)] * (len(shape) - used)
    out: list[int] = []
    dims: list[tuple[int, int, int]] = []
    chosen = 0
    for k in full:
        if k is None:
            out.append(1)
            continue
        n = shape[len(dims)]
        if isinstance(k, slice):
            try:
                start, stop, step = slice_indices(k, n)
            except EinsmithError:  # a bound is a traced tensor
                raise
            except (TypeError, ValueError) as e:
                raise KindError(f"the slice {k.start!r}:{k.stop!r}:{k.step!r} of dimension {len(dims)}: {e}") from None
            extent = count_steps(start, stop, step)
            dims.append((len(out), start if extent else 0, step))
            out.append(extent)
            continue
        if isinstance(k, RunTimeOnly):
            if k.shape or not k.dtype.is_int:
                raise TraceError(
                    f"a tensor is indexed with a tensor of type {k.dtype.name} and shape {k.shape}; an index must be "
                    "one integer. To index with several, read elements inside es.compute(shape, lambda t, k: "
                    "E[ids[t], k])"
                )
            dims.append((-2, chosen, 0))
            chosen += 1
            continue
        if not is_whole(k) or not _is_index(k):
            raise TraceError(
                f"a tensor is indexed with {type(k).__name__}; use ints, slices, None and ..., or read elements inside "
                "es.compute(shape, lambda t, k: E[ids[t], k])"
            )
        i = symbolic.index(k)
        if not -n <= i < n:
            raise IndexOutOfRange(f"index {i} is out of bounds for dimension {len(dims)} of extent {n}")
        dims.append((-1, i % n, 0))
    return Slicing(tuple(out), tuple(dims))


def _is_index(k: Any) -> bool:
    try:
        symbolic.index(k)
    except TypeError:  # an array of one element that is not an integer
        return False
    return True


def _add(a: Form, b: int) -> Form:
    return a if b == 0 else op("add", a, Literal(b))


def _multiply(a: Form, b: int) -> Form:
    return a if b == 1 else op("mul", Literal(b), a)


def slice_index(plan: Slicing, axes: Sequence[Form], chosen: Sequence[Form] = ()) -> list[Form]:
    """Return the source index of each element of a slice."""

    def at(axis: int, start: int, step: int) -> Form:
        if axis < 0:
            return Literal(start) if axis == -1 else chosen[start]
        return _add(_multiply(axes[axis], step), start)

    return [at(*dim) for dim in plan.dims]


def resolve_reshape(old: Sequence[int], new: Sequence[Any]) -> tuple[int, ...]:
    """Return the new shape with -1 replaced. Raises ShapeError where the element counts differ."""
    shape = whole_numbers(new, "reshape: shape")
    unknown = [d for d, n in enumerate(shape) if n == -1]
    if len(unknown) > 1 or any(n < -1 for n in shape):
        raise ShapeError(
            f"reshape to {tuple(shape)}: at most one extent may be -1, and the others must not be negative"
        )
    total = prod(old)
    if unknown:
        rest = prod(n for n in shape if n != -1)
        if rest == 0 or total % rest:
            raise ShapeError(
                f"reshape: the {total} elements of shape {tuple(old)} do not fill the shape {tuple(shape)}"
            )
        shape = tuple(total // rest if n == -1 else n for n in shape)
    if prod(shape) != total:
        raise ShapeError(f"reshape: the {total} elements of shape {tuple(old)} do not fill the shape {tuple(shape)}")
    return shape


def reshape_index(old: Sequence[int], axes: Sequence[Form]) -> list[Form]:
    """Return the source index of each element of a reshape; `axes` are Index forms of the new shape.

    Dimensions are matched in the smallest groups of equal size, so that an untouched dimension stays a plain axis.
    """
    new = [a.axis.extent for a in axes]  # type: ignore[attr-defined]
    index: list[Form] = [Literal(0)] * len(old)
    if prod(old) == 0:
        return index
    i = j = 0
    while i < len(old) and j < len(new):
        i0, j0, p, q = i, j, old[i], new[j]
        i, j = i + 1, j + 1
        while p != q:
            if p < q:
                p, i = p * old[i], i + 1
            else:
                q, j = q * new[j], j + 1
        flat: Form = Literal(0)
        for d in range(j0, j):
            if new[d] != 1:
                flat = op("add", _multiply(flat, new[d]), axes[d]) if not isinstance(flat, Literal) else axes[d]
        stride = p
        first = True
        for d in range(i0, i):
            stride //= old[d]
            if old[d] == 1:
                continue
            part = flat if stride == 1 or isinstance(flat, Literal) else op("floordiv", flat, Literal(stride))
            index[d] = part if first else op("mod", part, Literal(old[d]))
            first = False
    return index


def permutation(rank: int, order: Sequence[Any]) -> tuple[int, ...]:
    """Return an order of dimensions with negative numbers resolved (no order: reversed).

    Raises:
        ShapeError: the order is not a permutation of `rank` dimensions.
    """
    places = whole_numbers(order, "transpose: order") or tuple(reversed(range(rank)))
    if any(not -rank <= d < rank for d in places) or sorted(d % rank for d in places) != list(range(rank)):
        raise ShapeError(f"transpose: {places} is not a permutation of {rank} dimensions")
    return tuple(d % rank for d in places)


def dimensions(rank: int, axis: Any) -> tuple[int, ...]:
    """Return the dimensions that `axis=` names, in increasing order; all of them for None."""
    if axis is None:
        return tuple(range(rank))
    named = whole_numbers(axis, "axis")
    for a in named:
        if not -rank <= a < rank:
            raise ShapeError(f"axis {a} does not exist: the tensor has {rank} dimensions")
    out = sorted({a % rank for a in named})
    if len(out) != len(named):
        raise ShapeError(f"axis {axis} names a dimension twice")
    return tuple(out)


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that all shapes broadcast to by NumPy's rules. Raises ShapeError where there is none."""
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for s in shapes:
        for d, n in enumerate(s, rank - len(s)):
            if n != 1 and out[d] not in (1, n):
                raise ShapeError(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
            out[d] = n if n != 1 else out[d]
    return tuple(out)


def broadcast_index(shape: Sequence[int], axes: Sequence[Form]) -> list[Form]:
    """Return the source index of each element of a broadcast; the source's dimensions align with the last of `axes`."""
    return [Literal(0) if n == 1 else a for n, a in zip(shape, axes[len(axes) - len(shape) :], strict=True)]


def names_of_axes(fn: Any, shape: tuple[int, ...]) -> list[str]:
    """Return the parameter names of a function of an element's position, one number for each dimension.

    Raises KindError for an object that is not a function, FormulaError for another number of parameters.
    """
    if not callable(fn):
        raise KindError(f"compute: fn={show(fn)} must be a function of an element's indices")
    try:
        parameters = inspect.signature(fn)
    except (TypeError, ValueError):  # for a function that is not written in Python
        return [f"i{d}" for d in range(len(shape))]
    try:
        parameters.bind(*shape)
    except TypeError as e:
        raise FormulaError(
            f"compute: {signature_of(fn)} must take {len(shape)} indices, one for each dimension of {shape}: {e}"
        ) from None
    names = [p.name for p in parameters.parameters.values() if p.kind is not p.VAR_POSITIONAL]
    return [*names[: len(shape)], *(f"i{d}" for d in range(len(names), len(shape)))]
