"""Find the row forms of a kernel: the ways to run it row by row, a row being a point of some of its axes.

A row is a point of the leading axes, merged into one, or of one axis at any position (the channels of a batch norm), of
the output or of the reduction. The row number may be used as a value (a causal mask, the counter of random bits).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeVar

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import (
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    apply,
    axes_of,
    reads,
    size,
    template,
)
from einsmith.ir.rebuild import map_bodies, rebuild, substitute
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage

_T = TypeVar("_T")
_MIN_RUN_BYTES = 128
"""Fewest contiguous bytes of a row that is preceded by other axes."""
_ROW_COMBINERS = ("sum", "prod", "max", "min")
_POSITIONS = ("argmax", "argmin")
"""Combiners of the reductions over rows that a member may have."""


def _extents(t: Template, reduces: bool) -> tuple[int, ...]:
    """Return the extents of the axes that may be rows: the output's, or the reduction's."""
    body = t.parts[0].body
    return body.extents if reduces and isinstance(body, Reduce) else () if reduces else t.shape


def _row_slots(t: Template, reduces: bool, count: int) -> dict[int, bool] | None:
    """Return, for each slot that is read, whether its leading indices are the row axes, the first `count` ones; None
    where its reads differ in this, or where a row axis occurs in another index."""
    first, extents = t.rank if reduces else 0, _extents(t, reduces)[:count]
    lead = tuple(Axis(first + k) for k in range(count))
    slots: dict[int, bool] = {}
    differs = False

    def drop_rows(e):
        nonlocal differs
        if not isinstance(e, Read):
            return None
        own = e.index[:count] == lead and t.params[e.slot][1][:count] == extents
        differs |= slots.setdefault(e.slot, own) != own
        return Read(e.slot, e.index[count:], e.dtype) if own else None

    bodies = rebuild([b for p in t.parts for b in p.bodies], drop_rows)
    others = axes_of(*(i for b in bodies for e in reads(b) for i in e.index))
    return None if differs or not others.isdisjoint(range(first, first + count)) else slots


def row_axes(t: Template, reduces: bool) -> int:
    """Return how many leading axes of the output (of the reduction if `reduces`) can be rows. A row axis is a leading
    index of reads of arguments that have the same extents there, in order; it occurs in no other index, and may be used
    as a value."""
    return t.memo("sum_axes" if reduces else "row_axes", lambda t: _row_axes(t, reduces))


def _row_axes(t: Template, reduces: bool) -> int:
    if t.is_scatter:
        return 0
    count = len(_extents(t, reduces))
    for part in t.parts:
        assert isinstance(part, Piece)
        whole = [
            o == 0 and s == 1 and n == m
            for o, s, n, m in zip(part.offset, part.step, part.extents, t.shape, strict=True)
        ]
        if not reduces:
            count = min(count, [*whole, False].index(False))
        elif not all(whole) or len(t.parts) > 1 or not isinstance(part.body, Reduce):
            return 0
        elif part.body.combiner not in _ROW_COMBINERS:
            return 0
    # Fewer row axes are possible wherever more are.
    return next((p - 1 for p in range(1, count + 1) if _row_slots(t, reduces, p) is None), count)


def row_counts(kernel: Kernel, reduces: bool) -> dict[int, int]:
    """Return a map from a number of rows to the number of leading axes that form them, for all row forms of the
    kernel's output (or of its reduction)."""
    stages = kernel.stages[:1] if reduces else kernel.stages
    count = min(row_axes(s.template, reduces) for s in stages)
    extents = _extents(kernel.root, reduces)
    out: dict[int, int] = {}
    for p in range(1, count + 1):
        out.setdefault(prod(extents[:p]), p)
    return out


def _merge(t: Template, reduces: bool, p: int) -> tuple[Template, dict[int, bool]]:
    """Return (the template with its p row axes merged into one, slot -> whether it is read by row). Where a row axis is
    used as a value, it is computed from the row number by mixed-radix splitting."""
    slots = _row_slots(t, reduces, p) or {}
    if p == 1:
        return t, slots
    lead, first = _extents(t, reduces)[:p], t.rank if reduces else 0
    rows = prod(lead)

    def rule(e):
        if isinstance(e, Axis) and first <= e.position < first + p:
            return _digit(Axis(first), lead, e.position - first)
        if isinstance(e, Axis) and e.position >= first + p:
            return Axis(e.position - p + 1)
        if isinstance(e, Read) and slots[e.slot]:
            return Read(e.slot, (Axis(first), *e.index[p:]), e.dtype)
        return None

    params = tuple((d, (rows, *s[p:])) if slots.get(n) else (d, s) for n, (d, s) in enumerate(t.params))
    parts: list[Piece] = []
    for part in t.parts:
        assert isinstance(part, Piece)
        bodies = tuple(rebuild(part.bodies, rule))
        body: Expr | Reduce = bodies[0]
        if isinstance(part.body, Reduce):
            summed = (rows, *part.body.extents[p:]) if reduces else part.body.extents
            body = Reduce(part.body.combiner, summed, bodies)
        if reduces:
            parts.append(Piece(part.offset, part.step, part.extents, body))
        else:
            parts.append(Piece((0, *part.offset[p:]), (1, *part.step[p:]), (rows, *part.extents[p:]), body))
    return Template(t.shape if reduces else (rows, *t.shape[p:]), params, tuple(parts)), slots


def _digit(row: Axis, extents: Sequence[int], k: int) -> Expr:
    """Return the coordinate of axis k of `extents` at a row number, the last axis being the fastest."""
    out: Expr = row
    if (stride := prod(extents[k + 1 :])) > 1:
        out = apply("floordiv", out, Const(stride, dt.i32))
    return out if k == 0 else apply("mod", out, Const(extents[k], dt.i32))


class SweptKernel(NamedTuple):
    """A kernel that runs at the points of a sweep over an axis.

    Attributes:
        kernel: the kernel.
        tensors: the tensor in each of its buffers.
        reduces: whether it reduces over the axis; else it computes results at its points.
    """

    kernel: Kernel
    tensors: Sequence[Tensor]
    reduces: bool

    @property
    def results(self) -> list[Tensor]:
        """The tensors that it writes."""
        return [self.tensors[b] for b in self.kernel.outputs]


class RowForm(NamedTuple):
    """A kernel seen as a loop over rows.

    Attributes:
        kernel: the kernel, its row axes merged into one.
        by_row: for each buffer, 1 + the axis that is the row; 0 if it has none.
        reduces: whether the rows are the points of its reduction.
        axis: otherwise the output axis that is the row.
        sources: the buffer of the original kernel that each buffer is; empty if they are the same. A buffer that is
            read in several ways is one buffer for each.
    """

    kernel: Kernel
    by_row: tuple[int, ...]
    reduces: bool
    axis: int
    sources: tuple[int, ...] = ()

    def of(self, values: Sequence[_T]) -> Sequence[_T]:
        """Return values of the original kernel's buffers for those of this kernel."""
        return [values[n] for n in self.sources] if self.sources else values

    def swept(self, tensors: Sequence[Tensor]) -> SweptKernel:
        """Return the kernel as part of a sweep over its rows; tensors: those in the buffers of the original one."""
        return SweptKernel(self.kernel, self.of(tensors), self.reduces)


def _are_mergeable(b: KernelBuffer, p: int) -> bool:
    """Return whether the first p dimensions of a buffer are one in memory."""
    return all(b.strides[d] == b.strides[d + 1] * b.shape[d + 1] for d in range(p - 1))


def _leading_form(kernel: Kernel, rows: int, reduces: bool) -> RowForm | None:
    """Return the row form whose rows are the merged leading axes; None if a buffer is read both by row and as a
    whole."""
    p = row_counts(kernel, reduces).get(rows)
    if p is None:
        return None
    kinds: dict[int, bool] = {}
    stages = []
    for n, stage in enumerate(kernel.stages):
        t, slots = stage.template, dict[int, bool]()
        if n == 0 or not reduces:
            t, slots = _merge(t, reduces, p)
        for slot, (kind, *where) in enumerate(stage.args):
            if kind == "buffer" and kinds.setdefault(where[0], slots.get(slot, False)) != slots.get(slot, False):
                return None
        for place in stage.outputs:
            if place is not None:
                kinds[place] = not reduces
        stages.append(Stage(t, stage.args, stage.outputs))
    by_row = tuple(int(kinds.get(n, False)) for n in range(len(kernel.buffers)))
    if not all(_are_mergeable(b, p) for b, row in zip(kernel.buffers, by_row, strict=True) if row):
        return None
    buffers = tuple(
        KernelBuffer(b.dtype, (rows, *b.shape[p:]), b.non_temporal, b.strides[p - 1 :]) if row else b
        for b, row in zip(kernel.buffers, by_row, strict=True)
    )
    return RowForm(Kernel(tuple(stages), buffers), by_row, reduces, 0)


def _covers(t: Template, axis: int) -> bool:
    """Return whether every piece of a template's output covers output axis `axis`."""
    return all(
        isinstance(p, Piece) and (p.offset[axis], p.step[axis], p.extents[axis]) == (0, 1, t.shape[axis])
        for p in t.parts
    )


def _inner_form(kernel: Kernel, axis: int) -> RowForm | None:
    """Return the kernel split into rows along output axis `axis`; None where a buffer is read in several ways, where
    the axis occurs in another index, or where the contiguous runs of a row would be shorter than `_MIN_RUN_BYTES`."""
    form = _nested_form(kernel, axis, False)
    if form is None or len(form.by_row) > len(kernel.buffers):
        return None
    if any(s.template.memo(f"otherwise {axis}", lambda t: _is_indexed_otherwise(t, axis)) for s in kernel.stages):
        return None
    for b, code in zip(kernel.buffers, form.by_row, strict=True):
        if code > 1 and size(b.shape[: code - 1]) > 1 and size(b.shape[code:]) * b.dtype.itemsize < _MIN_RUN_BYTES:
            return None
    return form


def _is_indexed_otherwise(t: Template, axis: int) -> bool:
    """Return whether an output axis occurs in the index of a read that is not a read of its own row."""
    return any(axis in axes_of(e) and not _code_of_read(e, t, axis, t.shape[axis]) for e in reads_of(t))


def _code_of_read(e: Read, t: Template, axis: int, extent: int) -> int:
    """Return 1 + the dimension of a read that `axis`, of this extent, alone indexes; 0 if there is none."""
    dims = [d for d, i in enumerate(e.index) if axis in axes_of(i)]
    own = len(dims) == 1 and e.index[dims[0]] is Axis(axis) and t.params[e.slot][1][dims[0]] == extent
    return dims[0] + 1 if own else 0


def axes_at(shape: Sequence[int], view: Sequence[int], index: Sequence[Expr]) -> dict[int, Expr] | None:
    """Return the coordinates, in a tensor of a shape, of an element of a view of it that has more or fewer dimensions
    of one point; None for other views."""
    if [n for n in shape if n > 1] != [n for n in view if n > 1]:
        return None
    coordinates = iter([i for n, i in zip(view, index, strict=True) if n > 1])
    return {d: next(coordinates) if n > 1 else Const(0, dt.i32) for d, n in enumerate(shape)}


def reads_of(t: Template) -> list[Read]:
    """Return every read of a template's bodies, each once."""
    return list(dict.fromkeys(e for p in t.parts for b in p.bodies for e in reads(b)))


def _renumber(t: Template, slots: Mapping[tuple[int, int], int], axis: int, extent: int, params: Sequence) -> Template:
    """Return a template whose reads have the slots `slots[old slot, code]`."""

    def rule(e):
        if not isinstance(e, Read):
            return None
        slot = slots.get((e.slot, _code_of_read(e, t, axis, extent)), e.slot)
        return None if slot == e.slot else Read(slot, e.index, e.dtype)

    def body(b: Expr) -> Expr:
        return rebuild([b], rule)[0]

    return map_bodies(t, body, params)


def _nested_form(kernel: Kernel, k: int, reduces: bool) -> RowForm | None:
    """Return the kernel split into rows along axis k of its output, or of its reduction, which becomes the first one;
    None where it cannot run row by row. A buffer that is read both by row and in another way becomes two."""
    root = kernel.root
    if reduces:
        body = root.parts[0].body if not root.is_scatter and len(root.parts) == 1 else None
        if not all(_covers(root, d) for d in range(root.rank)) or not isinstance(body, Reduce):
            return None
        # A position counts the points of the reduction in row-major order, so only its first axis may be cut.
        if body.combiner not in (*_ROW_COMBINERS, *(_POSITIONS if k == 0 else ())):
            return None
        root = _reduce_first(root, k)
    axis = root.rank if reduces else k
    extent = _extents(kernel.root, reduces)[k]
    buffers, sources, codes = [*kernel.buffers], [*range(len(kernel.buffers))], dict[int, int]()
    copies: dict[tuple[int, int], int] = {}  # (buffer, code) -> the buffer that has this code
    stages = []
    for n, stage in enumerate(kernel.stages):
        t = stage.template if n else root
        if t.is_scatter or not (reduces or _covers(t, axis)):
            return None
        has_rows = not reduces or n == 0
        args, params = [*stage.args], [*t.params]
        slots: dict[tuple[int, int], int] = {}
        first: set[int] = set()
        for e in reads_of(t):
            code = _code_of_read(e, t, axis, extent) if has_rows else 0
            kind, *where = stage.args[e.slot]
            if (e.slot, code) in slots or kind != "buffer":
                continue
            if where[0] not in codes:
                codes[where[0]] = code
                copies[where[0], code] = where[0]
            elif (where[0], code) not in copies:
                copies[where[0], code] = len(buffers)
                codes[len(buffers)] = code
                buffers.append(kernel.buffers[where[0]])
                sources.append(where[0])
            arg = ("buffer", copies[where[0], code])
            if e.slot in first:
                slots[e.slot, code] = len(args)
                args.append(arg)
                params.append(t.params[e.slot])
            else:
                slots[e.slot, code] = e.slot
                args[e.slot] = arg
                first.add(e.slot)

        if len(args) > len(stage.args):
            t = _renumber(t, slots, axis, extent, params)
        out = 0 if reduces else axis + 1
        if any(place is not None and codes.setdefault(place, out) != out for place in stage.outputs):
            return None
        stages.append(Stage(t, tuple(args), stage.outputs))
    by_row = tuple(codes.get(n, 0) for n in range(len(buffers)))
    return RowForm(Kernel(tuple(stages), tuple(buffers)), by_row, reduces, 0 if reduces else axis, tuple(sources))


def _reduce_first(t: Template, k: int) -> Template:
    """Return a template of one reduction with axis k of the reduction in front of the others."""
    body = t.parts[0].body
    assert isinstance(body, Reduce)
    if k == 0:
        return t
    axes = {t.rank + k: Axis(t.rank)} | {t.rank + d: Axis(t.rank + d + 1) for d in range(k)}
    extents = (body.extents[k], *body.extents[:k], *body.extents[k + 1 :])
    return template(t.shape, t.params, Reduce(body.combiner, extents, tuple(substitute(b, axes) for b in body.bodies)))


def row_buffers(form: RowForm) -> list[int]:
    """Return the buffers of the original kernel of which each row has a part of its own."""
    return [form.sources[n] if form.sources else n for n, axis in enumerate(form.by_row) if axis]


RowForms = dict[int, tuple[RowForm, ...]]
"""Row forms of a kernel, by number of rows."""


@lru_cache(maxsize=4096)
def row_forms(kernel: Kernel) -> RowForms:
    """Return the row forms of a kernel whose rows lie far enough apart in memory for threads to share them out."""
    forms: dict[int, list[RowForm]] = {}
    for rows in row_counts(kernel, False):
        form = _leading_form(kernel, rows, False)
        if form is not None:
            forms.setdefault(rows, []).append(form)
    for axis in range(len(kernel.shape)):
        rows = kernel.shape[axis]
        form = _inner_form(kernel, axis) if rows > 1 else None
        if form is not None and any(code > 1 for code in form.by_row):
            forms.setdefault(rows, []).append(form)
    for rows in row_counts(kernel, True):
        form = _leading_form(kernel, rows, True)
        if form is not None:
            forms.setdefault(rows, []).append(form)
    return {rows: tuple(some) for rows, some in forms.items()}


@lru_cache(maxsize=4096)
def nested_forms(kernel: Kernel) -> RowForms:
    """Return the row forms of a kernel that reuses its operands, or that runs inside a block of other rows: along any
    axis of the output or of the reduction, which may index buffers in any way."""
    forms = {rows: list(some) for rows, some in row_forms(kernel).items()}
    for reduces in (False, True):
        for k, rows in enumerate(_extents(kernel.root, reduces)):
            form = _nested_form(kernel, k, reduces)
            if form is not None and form[:4] not in [f[:4] for f in forms.get(rows, ())]:
                forms.setdefault(rows, []).append(form)
    return {rows: tuple(some) for rows, some in forms.items() if rows > 1}


def forms_of(kernel: Kernel) -> RowForms:
    """Return the row forms by which a kernel may be fused. Inside a fused kernel that reuses its operands, which run as
    long as their rows, rows may lie anywhere."""
    return nested_forms(kernel) if kernel.reuses else row_forms(kernel)
