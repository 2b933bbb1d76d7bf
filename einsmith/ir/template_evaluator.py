"""Evaluate templates naively on NumPy, as their definition: floats in float64, integers in int64; casts to float16 and
bfloat16 round. Numbers that follow from sizes (`base.symbolic`) are kept as such, in arrays of objects.

Every point of a template's box is computed at once, by broadcasting. Both sides of a `where` are computed, but a read
is checked only at the points where its side is chosen; elsewhere its index is clipped and its value is never used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from einsmith.base import symbolic
from einsmith.base.dtypes import DType
from einsmith.base.errors import IndexOutOfRange, ShapeError, VerifyError
from einsmith.ir.functions import COMBINING, FUNCTIONS, SELECTIONS
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
    postorder,
)
from einsmith.ir.printer import show

MAX_CHUNK_POINTS = 4_000_000
"""Most points of a box that are evaluated at once, which limits the memory of intermediate arrays."""


Box = Sequence[tuple[int, int]]


WIDE = {"f": np.float64, "i": np.int64, "b": np.bool_}


def evaluate_template(t: Template, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the results of a template for its arguments, as float64, int64 or bool arrays.

    Raises ShapeError for arguments of a wrong shape and IndexOutOfRange for a read or write outside its tensor.
    """
    if len(arrays) != len(t.params):
        raise ShapeError(f"the template takes {len(t.params)} arguments, got {len(arrays)}")
    inputs = [to_wide(a, d, s, f"argument {n}") for n, (a, (d, s)) in enumerate(zip(arrays, t.params, strict=True))]
    start = t.parts[0].neutral if isinstance(t.parts[0], Scatter) else 0
    is_symbolic = any(a.dtype == object for a in inputs) or t.memo("symbolic", _has_symbolic_number)
    outputs: tuple[np.ndarray, ...] = tuple(
        np.full(t.shape, start, object if is_symbolic else WIDE[d.kind]) for d in t.dtypes
    )
    with np.errstate(all="ignore"):
        for part in t.parts:
            if isinstance(part, Scatter):
                _evaluate_scatter(part, inputs, outputs[0])
            else:
                evaluate_piece(part, part.domain, inputs, outputs)
    return outputs


def evaluate_piece(
    part: Piece, domain: Sequence[int], inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], first=0
):
    """Store a piece's values; if `domain` is smaller along the first axis, those from `first` on."""
    if prod(part.extents) == 0:
        return
    where: tuple[Any, ...] = tuple(
        slice(o, o + s * (n - 1) + 1, s) for o, s, n in zip(part.offset, part.step, part.extents, strict=True)
    )
    views = [out[(*where, ...)] for out in outputs]  # with `...` a 0-d output gives a view too
    for box in _split_box(tuple(domain), len(part.extents)):
        if first:
            box = ((box[0][0] + first, box[0][1] + first), *box[1:])
        at: tuple[Any, ...] = tuple(slice(lo, hi) for lo, hi in box[: len(part.extents)])
        for view, value in zip(views, _evaluate_body(part.body, box, inputs), strict=True):
            view[(*at, ...)] = value  # with `...` an array of one object is no element


def to_wide(a: Any, dtype: DType, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Convert an input to the wide type in which its elements are evaluated; raise ShapeError for another shape."""
    a = np.asarray(a)
    if a.shape != shape:
        raise ShapeError(f"{name} has shape {a.shape} where {shape} is expected")
    return a if a.dtype == object else dtype.wide(a)


def _has_symbolic_number(t: Template) -> bool:
    bodies = (b for p in t.parts for b in p.bodies)
    return any(isinstance(e, Const) and symbolic.is_symbolic(e.value) for e in postorder(tuple(bodies)))


def _split_box(domain: tuple[int, ...], rank: int) -> Iterator[Box]:
    """Yield boxes that cover the domain, cut along the first output axes, of about MAX_CHUNK_POINTS points or fewer."""
    inner = prod(domain[rank:])
    cut = rank  # axes before `cut` are iterated one point at a time
    for cut in range(rank + 1):
        if prod(domain[cut:]) <= MAX_CHUNK_POINTS:
            break
    if cut == 0 or inner == 0:
        yield tuple((0, n) for n in domain)
        return
    block = max(1, MAX_CHUNK_POINTS // max(1, prod(domain[cut:])))
    last = cut - 1
    for outer in np.ndindex(*domain[:last]):
        for lo in range(0, domain[last], block):
            mid = (lo, min(lo + block, domain[last]))
            yield (*((i, i + 1) for i in outer), mid, *((0, n) for n in domain[cut:]))


def sort_positions(keys: np.ndarray, combiner: str) -> np.ndarray:
    """Return the positions along the last axis in the order of a selection: stable, NaN being the largest."""
    largest = np.isnan(keys)
    if combiner == "argkmax":  # from the end on, the stable order of the reversed elements is that of the positions
        keys, largest = keys[..., ::-1], largest[..., ::-1]
    order = np.lexsort((keys, largest), axis=-1)
    return order if combiner == "argkmin" else keys.shape[-1] - 1 - order[..., ::-1]


def _evaluate_body(body: Expr | Reduce, box: Box, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the results at the points of an output box (its reduction axes complete)."""
    if not isinstance(body, Reduce):
        return evaluate_expressions([body], box, inputs)
    full = tuple(hi - lo for lo, hi in box)
    rank = len(full) - len(body.extents)
    axes = tuple(range(rank, len(full)))
    values = [np.broadcast_to(v, full) for v in evaluate_expressions(body.bodies, box, inputs)]
    if body.combiner == "sum":
        return [v.sum(axis=axes, dtype=v.dtype) for v in values]
    if body.combiner == "prod":
        return [v.prod(axis=axes, dtype=v.dtype) for v in values]
    if prod(full[rank:]) == 0:
        raise VerifyError(f"{body.combiner} over nothing, in {show(body)}")
    if body.combiner in ("max", "min"):
        return [getattr(v, body.combiner)(axis=axes) for v in values]
    flat = values[0].reshape(*full[:rank], prod(full[rank:]))
    if body.combiner in SELECTIONS:
        rank_of = values[1].reshape(flat.shape)[..., :1]
        return [np.take_along_axis(sort_positions(flat, body.combiner), rank_of, -1)[..., 0]]
    at = getattr(flat, body.combiner)(axis=-1)
    return [np.take_along_axis(flat, at[..., None], -1)[..., 0], at]


def _evaluate_scatter(s: Scatter, inputs: Sequence[np.ndarray], out: np.ndarray) -> None:
    for box in _split_box(s.extents, len(s.extents)):
        full = tuple(hi - lo for lo, hi in box)
        *index, body = (np.broadcast_to(v, full) for v in evaluate_expressions([*s.index, s.body], box, inputs))
        for i, n, e in zip(index, out.shape, s.index, strict=True):
            if i.size and (i.min() < 0 or i.max() >= n):
                raise IndexOutOfRange(f"a scatter writes at {show(e)} = {i.min()} .. {i.max()}, of extent {n}")
        combine: Any = FUNCTIONS[COMBINING[s.combiner]].numpy
        combine.at(out, tuple(index), body)


def evaluate_expressions(roots: Sequence[Expr], box: Box, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return values at every point of the box; each array has extent 1 along the axes that it does not depend on."""
    order = list(postorder(roots))
    values: dict[Expr, np.ndarray] = {}
    outside: list[tuple[Read, int, np.ndarray]] = []
    for e in order:
        if isinstance(e, Const):
            kind = object if symbolic.is_symbolic(e.value) else WIDE[e.dtype.kind]
            values[e] = np.full((1,) * len(box), e.value, kind)
        elif isinstance(e, Axis):
            lo, hi = box[e.position]
            shape = [1] * len(box)
            shape[e.position] = hi - lo
            values[e] = np.arange(lo, hi).reshape(shape)
        elif isinstance(e, Read):
            values[e] = read_elements(e, [values[i] for i in e.index], inputs[e.slot], outside, len(box))
        else:
            values[e] = apply_function(e, [values[a] for a in e.args])
    if outside:
        needed = mask_needed(roots, order, values)
        for e, d, bad in outside:
            wrong = bad & needed[e]
            if wrong.any():
                at = np.broadcast_to(values[e.index[d]], wrong.shape)[wrong]
                raise IndexOutOfRange(
                    f"{show(e)} reads position {at[0]} of dimension {d}, whose extent is {inputs[e.slot].shape[d]}"
                )
    return [values[r] for r in roots]


def read_elements(
    e: Read, index: list[np.ndarray], a: np.ndarray, outside: list[tuple[Read, int, np.ndarray]], rank: int
) -> np.ndarray:
    """Return the elements of `a` at an index, which is clipped where it lies outside; such a read is added to `outside`
    with its axis and a mask."""
    clipped = []
    for d, (i, n) in enumerate(zip(index, a.shape, strict=True)):
        bad = (i < 0) | (i >= n)
        if bad.any():
            outside.append((e, d, bad))
            i = np.clip(i, 0, max(n - 1, 0))
        clipped.append(i)
    if not index:
        return np.full((1,) * rank, a, a.dtype)
    if a.size == 0:
        return np.zeros(np.broadcast_shapes(*(i.shape for i in index)), a.dtype)
    return a[tuple(clipped)]


def apply_function(e: Apply, args: list[np.ndarray]) -> np.ndarray:
    """Return the values of a scalar function, a cast included, of the values of its arguments."""
    if e.fn != "cast":
        return np.asarray(FUNCTIONS[e.fn].numpy(*args))
    x = args[0]
    if e.dtype.is_bool:
        return x != 0
    if x.dtype == object:
        return _cast_numbers(x, e.dtype)
    if e.dtype.is_float and e.dtype.in_memory_only:
        return e.dtype.rounded(x)
    if x.dtype.kind == "f" and e.dtype.is_int:
        return _to_integer(x, e.dtype)
    if e.dtype.is_int and e.dtype.bits < 64 and x.dtype.kind == "i":
        return x.astype(e.dtype.numpy).astype(np.int64)
    return x.astype(WIDE[e.dtype.kind])


def _cast_numbers(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Return numbers that follow from sizes as floats, or as integers of a type that has them."""
    if dtype.is_int and not all(dtype.range[0] <= n <= dtype.range[1] for n in x.reshape(-1)):
        raise VerifyError(f"a number that follows from a size leaves the range of {dtype.name}")
    out = np.empty(x.shape, object)
    out.reshape(-1)[:] = [symbolic.literal(n, dtype.is_float) for n in x.reshape(-1)]
    return out


def _to_integer(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Round floats towards zero; those out of range saturate and NaN gives 0."""
    ends = np.iinfo(dtype.numpy)
    low, high = float(ends.min), float(ends.max)  # for 64 bits the upper end, rounded up, is out of range itself
    inside = (low <= x) & (x < high)
    out = np.where(inside, x, 0.0).astype(np.int64)
    return np.where(inside | np.isnan(x), out, np.where(x < 0, ends.min, ends.max))


def mask_needed(roots: Sequence[Expr], order: list[Expr], values: dict[Expr, np.ndarray]) -> dict[Expr, np.ndarray]:
    """Return, for each expression, a mask of the points at which its value is used: those that its enclosing `where`s
    select."""
    needed: dict[Expr, Any] = dict.fromkeys(order, np.False_)
    for r in roots:
        needed[r] = np.True_
    for e in reversed(order):
        here = needed[e]
        if isinstance(e, Apply) and e.fn == "where":
            c, a, b = e.args
            needed[c] = needed[c] | here
            needed[a] = needed[a] | (here & values[c])
            needed[b] = needed[b] | (here & ~values[c])
        elif isinstance(e, Apply) and e.fn == "differentiate_as":
            needed[e.args[0]] = needed[e.args[0]] | here
        else:
            for a in e.args:
                needed[a] = needed[a] | here
    return needed
