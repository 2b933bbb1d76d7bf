"""Compute the expected content of a kernel's buffers after it has run, and bounds of a correct kernel's error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from einsmith.base.dtypes import DType
from einsmith.checking.tolerance import Pair, pair_of, template_errors
from einsmith.ir.nodes import Apply, Axis, Const, Piece, Reduce, Template, postorder
from einsmith.ir.rebuild import substitute
from einsmith.schedule.kernel import Kernel, MemberKernel, Rows
from einsmith.schedule.step_loops import StepLoop

MOST_VALUES = 4_000_000
"""Expression values that one comparison may evaluate; of a larger kernel only a part is computed."""
WINOGRAD_FACTOR = 64.0
"""Factor by which Winograd's form rounds more (F(4x4, 3x3): Lavin and Gray 2016, section 5)."""


class ExpectedBuffer(NamedTuple):
    """A buffer's expected values and bounds of their errors; the greatest magnitude met during evaluation; `known`:
    the part of the buffer that was computed (None: all)."""

    value: np.ndarray
    error: np.ndarray
    greatest: float
    known: tuple[slice, ...] | None


def read_buffers(kernel: Kernel) -> set[int]:
    """Return the numbers of the buffers whose elements a kernel reads before it writes them."""
    if isinstance(kernel, StepLoop):
        used = {m.places[n] for m in kernel.members for n in read_buffers(m.kernel)}
        return {n for n in used if n < len(kernel.buffers)}
    if not isinstance(kernel, Rows):
        return {where[0] for stage in kernel.stages for kind, *where in stage.args if kind == "buffer"}
    seen: set[int] = set()
    written: set[int] = set()
    for m in kernel.members:
        seen |= {m.places[n] for n in read_buffers(m.kernel)} - written
        written |= {*m.results}
    return {n for n in seen if n < len(kernel.buffers)}


@lru_cache(maxsize=1024)
def written_buffers(kernel: Kernel) -> Mapping[int, np.ndarray | None]:
    """Return the buffers that a kernel writes, by number, each with a mask of the elements written (None: all of
    them)."""
    out: dict[int, np.ndarray | None] = {}
    if isinstance(kernel, StepLoop):
        return _mark_steps(kernel)
    if isinstance(kernel, Rows):
        for m in kernel.members:
            for k, mask in written_buffers(m.kernel).items():
                place = m.places[k]
                if place < len(kernel.buffers):
                    out[place] = None if mask is None else mask.reshape(kernel.buffers[place].shape)
        return out
    for stage in kernel.stages:
        for n in stage.outputs:
            if n is not None:
                out[n] = _mark_covered(stage.template)
    return out


def _mark_steps(kernel: StepLoop) -> Mapping[int, np.ndarray | None]:
    """Return the buffers that a loop writes, each with a mask of the elements that some step writes."""
    masks: dict[int, np.ndarray] = {}
    for m in kernel.members:
        for n, mask in written_buffers(m.kernel).items():
            place, size = m.step_places[n], prod(m.kernel.buffers[n].shape)
            if place.buffer < len(kernel.buffers):
                whole = masks.setdefault(place.buffer, np.zeros(kernel.buffers[place.buffer].shape, bool)).reshape(-1)
                for t in range(kernel.steps):
                    whole[place.at(t) : place.at(t) + size] |= True if mask is None else mask.reshape(-1)
    return masks


def _mark_covered(t: Template) -> np.ndarray | None:
    if t.is_scatter or sum(prod(p.extents) for p in t.parts) == prod(t.shape):
        return None
    mask = np.zeros(t.shape, bool)
    for p in t.parts:
        assert isinstance(p, Piece)
        mask[_points(p)] = prod(p.extents) > 0
    return mask


def _points(p: Piece) -> tuple[slice, ...]:
    if prod(p.extents) == 0:
        return tuple(slice(0, 0) for _ in p.extents)
    return tuple(slice(o, o + s * (n - 1) + 1, s) for o, s, n in zip(p.offset, p.step, p.extents, strict=True))


@lru_cache(maxsize=4096)
def count_values(t: Template) -> int:
    """Return the number of expression values that a template's evaluation computes."""
    return sum(prod(p.domain) * sum(1 for _ in postorder(p.bodies)) for p in t.parts)


def expected_content(
    kernel: Kernel,
    arrays: Sequence[np.ndarray],
    rng: np.random.Generator,
    pattern: str = "",
    rounding: float = 1.0,
) -> list[dict[int, ExpectedBuffer]] | None:
    """Return the expected content of the written buffers, by number, given the buffers' content before the kernel.

    A kernel that is too large to be evaluated whole is evaluated in some boxes of its output, including the first and
    the last; the list has a mapping for each box. Return None if even boxes cost too much. rounding: factor by which
    the kernel rounds more than arithmetic of its types, in addition to the factor of its pattern.
    """
    factor = rounding * (WINOGRAD_FACTOR if pattern == "winograd" else 1.0)
    pairs = [pair_of(a, b.dtype) for a, b in zip(arrays, kernel.buffers, strict=True)]
    if _count_kernel_values(kernel) <= MOST_VALUES:
        return [_expect_whole(kernel, pairs, factor)]
    if isinstance(kernel, MemberKernel) or kernel.root.is_scatter:
        return None
    per_point = max(sum(count_values(s.template) for s in kernel.stages) // max(1, prod(kernel.shape)), 1)
    points = MOST_VALUES // 3 // per_point
    if points < 1:
        return None
    return [_expect_kernel(kernel, pairs, factor, box) for box in _boxes(kernel.shape, points, rng)]


Box = tuple[tuple[int, int], ...]


def _boxes(shape: tuple[int, ...], points: int, rng: np.random.Generator) -> list[Box]:
    """Return the first, the last, and one random box of at most `points` points, longest along the last axis."""
    extents = [1] * len(shape)
    for d in reversed(range(len(shape))):
        extents[d] = max(1, min(shape[d], points // prod(extents)))
    first = [0] * len(shape)
    last = [n - e for n, e in zip(shape, extents, strict=True)]
    anywhere = [int(rng.integers(0, n + 1)) for n in last]
    return [tuple((a, a + e) for a, e in zip(at, extents, strict=True)) for at in (first, last, anywhere)]


def _expect_kernel(
    kernel: Kernel, buffers: Sequence[Pair], factor: float, box: Box | None = None
) -> dict[int, ExpectedBuffer]:
    results: list[list[Pair]] = []
    out: dict[int, ExpectedBuffer] = {}
    known = None if box is None else tuple(slice(lo, hi) for lo, hi in box)
    greatest = 0.0
    for stage in kernel.stages:
        args = [buffers[w[0]] if kind == "buffer" else results[w[0]][w[1]] for kind, *w in stage.args]
        template = stage.template if box is None else restrict(stage.template, box)
        pairs, most = template_errors(template, args)
        greatest = max(greatest, most)
        if factor != 1.0:
            pairs = [(v, e * factor) for v, e in pairs]
        results.append(pairs)
        for member, buffer in enumerate(stage.outputs):
            if buffer is not None:
                out[buffer] = ExpectedBuffer(*pairs[member], greatest, known)
    return out


def _count_kernel_values(kernel: Kernel) -> int:
    """Return the number of expression values that the evaluation of a kernel computes."""
    if isinstance(kernel, StepLoop):
        return kernel.steps * sum(_count_kernel_values(m.kernel) for m in kernel.members)
    return sum(count_values(s.template) for s in kernel.stages)


def _expect_whole(kernel: Kernel, buffers: Sequence[Pair], factor: float) -> dict[int, ExpectedBuffer]:
    if isinstance(kernel, StepLoop):
        return _expect_steps(kernel, buffers, factor)
    return (
        _expect_rows(kernel, buffers, factor) if isinstance(kernel, Rows) else _expect_kernel(kernel, buffers, factor)
    )


def _expect_rows(kernel: Rows, whole: Sequence[Pair], factor: float) -> dict[int, ExpectedBuffer]:
    buffers = [*whole]
    buffers += [pair_of(np.zeros(b.shape, b.dtype.numpy), b.dtype) for b in kernel.local]
    out: dict[int, ExpectedBuffer] = {}
    greatest = 0.0
    for m in kernel.members:
        args = [
            tuple(x.reshape(b.shape) for x in buffers[place])
            for place, b in zip(m.places, m.kernel.buffers, strict=True)
        ]
        for n, x in _expect_kernel(m.kernel, args, factor).items():  # type: ignore[arg-type]
            place = m.places[n]
            shape = buffers[place][0].shape
            greatest = max(greatest, x.greatest)
            buffers[place] = x.value.reshape(shape), x.error.reshape(shape)
            if place < len(whole):
                out[place] = ExpectedBuffer(*buffers[place], greatest, None)
    return out


def _expect_steps(kernel: StepLoop, whole: Sequence[Pair], factor: float) -> dict[int, ExpectedBuffer]:
    buffers = [*whole]
    buffers += [pair_of(np.zeros(b.shape, b.dtype.numpy), b.dtype) for b in kernel.local]
    flat = [tuple(np.array(x).reshape(-1) for x in pair) for pair in buffers]
    greatest: dict[int, float] = {}
    for t in kernel.order:
        for m in kernel.members:
            places = m.step_places
            parts = [
                tuple(x[p.at(t) : p.at(t) + prod(b.shape)].reshape(b.shape) for x in flat[p.buffer])
                for p, b in zip(places, m.kernel.buffers, strict=True)
            ]
            for n, x in _expect_whole(m.kernel, parts, factor).items():  # type: ignore[arg-type]
                mask = written_buffers(m.kernel)[n]
                for part, new in zip(parts[n], (x.value, x.error), strict=True):
                    part[...] = new if mask is None else np.where(mask, new, part)
                greatest[places[n].buffer] = max(greatest.get(places[n].buffer, 0.0), x.greatest)
    out: dict[int, ExpectedBuffer] = {}
    for n, most in greatest.items():
        if n < len(kernel.buffers):
            value, error = (x.reshape(kernel.buffers[n].shape) for x in flat[n])
            out[n] = ExpectedBuffer(value, error, most, None)
    return out


def restrict(t: Template, box: Box) -> Template:
    """Return the template restricted to the output's points in a box; the other points are given no value."""
    parts = []
    for p in t.parts:
        assert isinstance(p, Piece)
        first, extents = [], []
        for (lo, hi), o, s, n in zip(box, p.offset, p.step, p.extents, strict=True):
            a = max(0, -((o - lo) // s))
            b = min(n, -((o - hi) // s))
            first.append(a)
            extents.append(max(0, b - a))
        if prod(extents) == 0:
            continue
        axes = {d: _plus(d, a) for d, a in enumerate(first) if a}
        if isinstance(p.body, Reduce):
            body: object = Reduce(p.body.combiner, p.body.extents, tuple(substitute(b, axes) for b in p.body.bodies))
        else:
            body = substitute(p.body, axes)
        offset = tuple(o + s * a for o, s, a in zip(p.offset, p.step, first, strict=True))
        parts.append(Piece(offset, p.step, tuple(extents), body))
    return Template(t.shape, t.params, tuple(parts) or t.parts[:1])


def _plus(axis: int, n: int) -> Apply:
    return Apply("add", (Axis(axis), Const(n, Axis.dtype)), Axis.dtype)


class Difference(NamedTuple):
    """The difference of a result from the expected one: the number of wrong elements, and the worst one's index,
    values and error bound."""

    elements: int
    at: tuple[int, ...]
    got: object
    want: object
    error: float


def find_difference(got: np.ndarray, want: ExpectedBuffer, dtype: DType, mask: np.ndarray | None) -> Difference | None:
    """Compare a result with the expected one; return None where every element (of the mask) lies within its bound."""
    where = want.known or ()
    g, v, e = got[where], want.value[where], want.error[where]
    with np.errstate(all="ignore"):
        if dtype.is_float:
            largest = dtype.max
            wide, narrow = dtype.wide(g), dtype.rounded(v)
            wrong = ~(np.abs(wide - v) <= np.where(np.isnan(e), np.inf, e))
            same = (np.isnan(wide) & np.isnan(v)) | (wide == narrow)
            may_overflow = np.abs(v) + np.where(np.isnan(e), np.inf, e) > largest
            # An intermediate number beyond the type's range makes infinities and NaN that the evaluator does not see.
            overflowed = ~np.isfinite(wide) & (want.greatest > largest)
            wrong &= ~same & ~(may_overflow & ~np.isfinite(wide)) & ~overflowed & ~np.isinf(e)
        elif dtype.is_bool:
            wrong = (g.view(np.uint8) != v.view(np.uint8)) & ~(e > 0)
        else:
            wrong = (g != v.astype(dtype.numpy)) & ~(np.abs(g.astype(np.float64) - v) <= e)  # integers wrap
    if mask is not None:
        wrong &= mask[where]
    if not wrong.any():
        return None
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    first = [s.start for s in where] if where else [0] * len(at)
    index = tuple(int(i) + a for i, a in zip(at, first, strict=True))
    return Difference(int(wrong.sum()), index, g[at].item(), v[at].item(), float(e[at]))
