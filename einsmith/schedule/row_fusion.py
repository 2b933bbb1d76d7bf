"""Fuse kernels that share their rows into one that runs block of rows by block of rows (tile and fuse).

before: m[i] = max[k](x[i,k]);  s[i] = sum[k](exp(x[i,k] - m[i]));  y[i,k] = exp(x[i,k] - m[i])/s[i]: three kernels
after:  one `Rows` of three members; x is read from memory once, m and s are never stored

A row is a point of the leading axes, or of one axis at any position (the channels of a batch norm). A member reads only
its own row of another member's result; the row number may be used as a value (a causal mask, the counter of random
bits). A member may also reduce over the rows (a batch's loss, the gradient of a norm's weight): its result is complete
after all blocks, for other kernels. Fusion saves launches and repeated reads. It costs nothing while the rows in flight
on all cores fit a cache and there are rows for every core; for rows that exceed L1 the predicted times decide (`plan`).
Products whose operands are read many times stay separate, because they tile better alone, unless a result between
them exceeds the last-level cache: a chain of reductions (a kernel method, attention) then runs without storing it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeVar

from einsmith.base import dtypes as dt
from einsmith.cost.facts import Target
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
    nbytes,
    reads,
    size,
    template,
)
from einsmith.ir.rebuild import map_bodies, rebuild, substitute
from einsmith.ir.views import storage
from einsmith.schedule.kernel import Kernel, KernelBuffer, Member, Rows, Stage

_T = TypeVar("_T")
_MAX_BUFFERS = 32
"""Most tensors that the kernels of a row-block fusion read and write."""
MAX_MEMBERS = 16
"""Most kernels of a row-block fusion."""
_MAX_SHARED_RATIO = 0.125
"""Largest ratio of the bytes of operands that the matrices of a batch share to the bytes of those that they have for
themselves."""
_ONE_CORE_BYTES = 1 << 17
"""Bytes of work that one core finishes as fast as several cores."""
_MIN_RUN_BYTES = 128
"""Fewest contiguous bytes of a row that is preceded by other axes."""
_ROW_COMBINERS = ("sum", "prod", "max", "min")
"""Combiners of the reductions over rows that a member may have."""


# ------------------------------------------------------------------------------------------------------- row forms


def _extents(t: Template, reduces: bool) -> tuple[int, ...]:
    """Return the extents of the axes that may be rows: the output's, or the reduction's."""
    body = t.parts[0].body
    return body.extents if reduces and isinstance(body, Reduce) else () if reduces else t.shape


def _axes_and_reads(t: Template, row_dims: Callable[[Read], Collection[int]]) -> Iterator[tuple[Axis | Read, bool]]:
    """Yield (axis or read, whether it occurs in the index of a read) for the template's bodies, without the indices of
    the dimensions `row_dims(read)` of each read."""
    seen: set[tuple[Expr, bool]] = set()
    todo = [(b, False) for p in t.parts for b in p.bodies]
    while todo:
        e, inside = todo.pop()
        if (e, inside) in seen:
            continue
        seen.add((e, inside))
        if isinstance(e, (Axis, Read)):
            yield e, inside
        if isinstance(e, Read):
            skipped = row_dims(e)
            todo += [(i, True) for d, i in enumerate(e.index) if d not in skipped]
        else:
            todo += [(a, inside) for a in e.args]


def _check_row_axes(t: Template, reduces: bool, count: int) -> tuple[int, dict[int, bool]]:
    """Return (an upper bound of how many of the first `count` axes may be rows, slot -> whether it is read by row).

    If the bound is `count`, all these axes may be rows, and every slot is in the map."""
    extents, first = _extents(t, reduces), t.rank if reduces else 0
    slots: dict[int, bool] = {}

    def row_dims(e: Read) -> range:
        """Return the leading dimensions of a read whose indices are the row axes, in order."""
        shape, k = t.params[e.slot][1], 0
        while k < min(count, len(e.index)) and e.index[k] is Axis(first + k) and shape[k] == extents[k]:
            k += 1
        return range(k)

    for e, inside in _axes_and_reads(t, row_dims):
        if isinstance(e, Axis):
            if inside and first <= e.position < first + count:
                return e.position - first, slots
            continue
        k = len(row_dims(e))
        if 0 < k < count:
            return k, slots
        if slots.setdefault(e.slot, k == count) != (k == count):
            return 0, slots
    return count, slots


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
    while count:
        valid, _ = _check_row_axes(t, reduces, count)
        if valid == count:
            break
        count = valid
    return count


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
    slots = _check_row_axes(t, reduces, p)[1]
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


def _dimensions_along(t: Template, axis: int, extent: int) -> dict[int, int] | None:
    """Map each slot to 1 + the dimension indexed by axis `axis` of this extent, 0 if there is none. Return None if the
    axis occurs in another index, or if a slot is read in several ways."""
    slots: dict[int, int] = {}

    def row_dims(e: Read) -> list[int]:
        return [d for d, i in enumerate(e.index) if isinstance(i, Axis) and i.position == axis]

    for e, inside in _axes_and_reads(t, row_dims):
        if isinstance(e, Axis):
            if inside and e.position == axis:
                return None
            continue
        dims = row_dims(e)
        if len(dims) > 1 or (dims and t.params[e.slot][1][dims[0]] != extent):
            return None
        code = dims[0] + 1 if dims else 0
        if slots.setdefault(e.slot, code) != code:
            return None
    return slots


def _covers(t: Template, axis: int) -> bool:
    """Return whether every piece of a template's output covers output axis `axis`."""
    return all(
        isinstance(p, Piece) and (p.offset[axis], p.step[axis], p.extents[axis]) == (0, 1, t.shape[axis])
        for p in t.parts
    )


def _inner_form(kernel: Kernel, axis: int, min_run: int = _MIN_RUN_BYTES) -> RowForm | None:
    """Return the kernel split into rows along output axis `axis`; None where it cannot run row by row.

    The axis may be any dimension of a buffer, unless a row's contiguous runs there would be shorter than `min_run`
    bytes.
    """
    codes: dict[int, int] = {}
    for stage in kernel.stages:
        t = stage.template
        slots = t.memo(
            f"along {axis}", lambda t: _dimensions_along(t, axis, t.shape[axis]) if _covers(t, axis) else None
        )
        if slots is None or not _merge_codes(codes, stage, slots):
            return None
        for place in stage.outputs:
            if place is not None and codes.setdefault(place, axis + 1) != axis + 1:
                return None
    by_row = tuple(codes.get(n, 0) for n in range(len(kernel.buffers)))
    for b, code in zip(kernel.buffers, by_row, strict=True):
        if code > 1 and size(b.shape[: code - 1]) > 1 and size(b.shape[code:]) * b.dtype.itemsize < min_run:
            return None
    return RowForm(kernel, by_row, False, axis)


def _merge_codes(codes: dict[int, int], stage: Stage, slots: Mapping[int, int]) -> bool:
    """Add the row dimensions of a stage's arguments to those of the kernel's buffers; return whether they agree."""
    return all(
        codes.setdefault(where[0], slots.get(slot, 0)) == slots.get(slot, 0)
        for slot, (kind, *where) in enumerate(stage.args)
        if kind == "buffer"
    )


def _code_of_read(e: Read, t: Template, axis: int, extent: int) -> int:
    """Return 1 + the dimension of a read that `axis`, of this extent, alone indexes; 0 if there is none."""
    dims = [d for d, i in enumerate(e.index) if axis in axes_of(i)]
    own = len(dims) == 1 and e.index[dims[0]] is Axis(axis) and t.params[e.slot][1][dims[0]] == extent
    return dims[0] + 1 if own else 0


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
        if body.combiner not in _ROW_COMBINERS:
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


# --------------------------------------------------------------------------------------------------------- joining


@dataclass
class RowPart:
    """A kernel that row fusion may join, as `plan` gives it.

    Attributes:
        kernel: the kernel; None for a call that is not fused.
        tensors: the tensor in each buffer.
        written: whether the kernel writes each buffer.
        is_forward: whether another kernel of the forward pass, or none of the backward pass, needs it.
    """

    kernel: Any
    tensors: tuple[Tensor, ...]
    written: tuple[bool, ...]
    is_forward: bool = True

    @property
    def results(self) -> list[Tensor]:
        """The tensors that the kernel writes."""
        return [t for t, w in zip(self.tensors, self.written, strict=True) if w]

    @property
    def operands(self) -> list[Tensor]:
        """The storages of the tensors that the kernel reads."""
        return [storage(t) for t, w in zip(self.tensors, self.written, strict=True) if not w]


class FusedCluster(NamedTuple):
    """The kernel of a cluster, the tensor in each of its buffers, and whether the kernel writes it."""

    kernel: Rows
    tensors: tuple[Tensor, ...]
    written: tuple[bool, ...]


def can_share_rows(parts: Sequence[RowPart], streamed: Collection[Tensor]) -> bool:
    """Return whether all kernels stream, or those that reuse their operands compute or read a result of these kernels
    that is in `streamed`, and all belong to the same pass: what is repeated for the backward pass is not computed in
    the forward pass."""
    reusing = [p for p in parts if p.kernel.reuses]
    if not reusing:
        return True
    results = {s for p in parts for s in map(storage, p.results) if s in streamed}
    return len({p.is_forward for p in parts}) == 1 and all(
        not results.isdisjoint(map(storage, p.tensors)) for p in reusing
    )


def _bytes_by_row(
    parts: Sequence[RowPart], forms: Sequence[RowForm], rows: int
) -> tuple[Collection[int], Collection[int]]:
    """Return (bytes of a row of each tensor that has rows, bytes of each tensor that has none)."""
    row: dict[Tensor, int] = {}
    whole: dict[Tensor, int] = {}
    for part, form in zip(parts, forms, strict=True):
        for t, by_row in zip(form.of(part.tensors), form.by_row, strict=True):
            s = storage(t)
            if by_row:
                row[s] = nbytes(s) // rows
            else:
                whole[s] = nbytes(s)
    return row.values(), whole.values()


def _is_worthwhile(parts: Sequence[RowPart], forms: Sequence[RowForm], rows: int, target: Target) -> bool:
    """Return whether the rows in flight on all cores stay in a cache, and there are enough rows for all cores."""
    by_row, whole = _bytes_by_row(parts, forms, rows)
    each, shared = sum(by_row), sum(whole)
    if each + shared > target.l2 // 2 and target.cores * each + shared > target.l3 // 2:
        return False
    inner = any(code > 1 for form in forms for code in form.by_row)
    return rows >= 4 * target.cores or (each * rows <= _ONE_CORE_BYTES and not inner)


def _cut_of(t: Tensor, buffer: KernelBuffer, code: int) -> tuple[int, int]:
    """Return how rows cut a tensor: (points before the row axis, points after it); (0, 0) if it has no row axis."""
    return (size(buffer.shape[: code - 1]), size(buffer.shape[code:])) if code else (0, 0)


def consistent_forms(
    parts: Sequence[RowPart], rows: int, forms: Callable[[Kernel], RowForms] = row_forms
) -> list[RowForm] | None:
    """Return a row form for each part such that all cut each tensor alike and each reads only its own row of the
    others' results; None if there is none. `forms` gives the forms of a kernel."""
    results = {t for p in parts for t in p.results}
    reuses = any(p.kernel.reuses for p in parts)
    known: dict[Tensor, tuple[int, int]] = {}
    out: list[RowForm] = []

    def extend(n: int) -> bool:
        if n == len(parts):
            return True
        part = parts[n]
        for form in forms(part.kernel).get(rows, ()):
            added: list[Tensor] = []
            fits = True
            for t, b, code, w in zip(
                form.of(part.tensors), form.kernel.buffers, form.by_row, form.of(part.written), strict=True
            ):
                s, cut = storage(t), _cut_of(t, b, code)
                if not w and s in results and not code:
                    fits = False
                if s not in results and reuses:
                    continue  # an operand may be read in several ways
                if s not in known:
                    known[s] = cut
                    added.append(s)
                elif known[s] != cut:
                    fits = False
                if not fits:
                    break
            if fits:
                out.append(form)
                if extend(n + 1):
                    return True
                out.pop()
            for s in added:
                del known[s]
        return False

    return out if extend(0) else None


def forms_of(kernel: Kernel) -> RowForms:
    """Return the row forms by which a kernel may be fused. Inside a fused kernel that reuses its operands, which run as
    long as their rows, rows may lie anywhere."""
    return nested_forms(kernel) if kernel.reuses else row_forms(kernel)


def rows_of(part: RowPart) -> frozenset[int]:
    """Return the numbers of rows, above 1, of the kernel's row forms."""
    return frozenset(r for r in forms_of(part.kernel) if r > 1)


def common_rows(parts: Sequence[RowPart], target: Target) -> tuple[int, list[RowForm]]:
    """Return (the number of rows by which fusing the parts may pay, the row form of each part); (0, []) if there is
    none.

    Kernels that stream share as many rows as possible. Of kernels that reuse their operands, rows may nest inside of
    other rows (`row_nests`): the outer ones are those that share no operand (the matrices of a batch), else those that
    share the least and are enough for all cores."""
    if len(parts) > MAX_MEMBERS or len({storage(t) for p in parts for t in p.tensors}) > _MAX_BUFFERS:
        return 0, []
    reuses = any(p.kernel.reuses for p in parts)
    forms = nested_forms if reuses else row_forms
    counts = sorted(frozenset.intersection(*(frozenset(r for r in forms(p.kernel) if r > 1) for p in parts)))
    best: tuple[int, list[RowForm]] = (0, [])
    least: tuple | None = None
    for rows in reversed(counts):
        chosen = consistent_forms(parts, rows, forms)
        if chosen is None:
            continue
        if not reuses:
            if _is_worthwhile(parts, chosen, rows, target):
                return rows, chosen
            continue
        price = any(f.reduces for f in chosen), sum(_bytes_by_row(parts, chosen, rows)[1])
        # The cores may share in the work on a matrix of a batch.
        if (_is_batch(parts, chosen) or rows >= 4 * target.cores) and (least is None or price < least):
            best, least = (rows, chosen), price
    return best


def is_batch(parts: Sequence[RowPart], target: Target) -> bool:
    """Return whether the common rows of kernels are the matrices of a batch."""
    rows, forms = common_rows(parts, target)
    return rows > 0 and _is_batch(parts, forms)


def _is_batch(parts: Sequence[RowPart], forms: Sequence[RowForm]) -> bool:
    """Return whether rows have operands of their own, but for a few bytes, and no kernel reduces over them."""
    results = {t for p in parts for t in p.results}
    own: set[Tensor] = set()
    shared: set[Tensor] = set()
    for part, form in zip(parts, forms, strict=True):
        for t, by_row, w in zip(form.of(part.tensors), form.by_row, form.of(part.written), strict=True):
            if not w and storage(t) not in results:
                (own if by_row else shared).add(storage(t))
    few = sum(map(nbytes, shared)) <= _MAX_SHARED_RATIO * sum(map(nbytes, own))
    return few and not any(f.reduces for f in forms)


def join(parts: Sequence[RowPart], outside: Collection[Tensor], target: Target) -> FusedCluster:
    """Return the fused kernel of a cluster; results that are not in `outside` stay local to it."""
    return join_forms(parts, *common_rows(parts, target), outside)


def join_forms(
    parts: Sequence[RowPart], rows: int, forms: Sequence[RowForm], outside: Collection[Tensor]
) -> FusedCluster:
    """Return the fused kernel of parts in these row forms, all of which have `rows` rows; results that are not in
    `outside` stay local to it."""
    results = {t for p in parts for t in p.results}
    tensors: dict[tuple[Tensor, tuple[int, int]], bool] = {}
    local: dict[Tensor, KernelBuffer] = {}
    uses: list[list[tuple[Tensor, tuple[int, int]]]] = []  # the tensor and its cut by rows, for each part's buffers
    for p, form in zip(parts, forms, strict=True):
        uses.append([])
        for t, b, code, w in zip(form.of(p.tensors), form.kernel.buffers, form.by_row, form.of(p.written), strict=True):
            s = storage(t)
            use = (s, (-1, -1)) if s in results else (t, _cut_of(t, b, code))
            uses[-1].append(use)
            if s in results and s not in outside:
                local.setdefault(s, KernelBuffer(s.dtype, s.shape))
            elif s in results or not w:
                tensors.setdefault(use, s in results)
    number = {use: n for n, use in enumerate([*tensors, *((s, (-1, -1)) for s in local)])}
    used = {s for p in parts for s in p.operands} | set(local)
    members = []
    for p, form, own in zip(parts, forms, uses, strict=True):
        member_buffers = tuple(
            KernelBuffer(b.dtype, b.shape, b.non_temporal and storage(t) not in used, b.strides)
            for t, b in zip(form.of(p.tensors), form.kernel.buffers, strict=True)
        )
        kernel = Kernel(form.kernel.stages, member_buffers)
        members.append(Member(kernel, tuple(number[use] for use in own), form.by_row, form.reduces, form.axis))
    buffers = tuple(KernelBuffer(t.dtype, t.shape) for t, _ in tensors)
    return FusedCluster(
        Rows(rows, tuple(members), buffers, tuple(local.values())),
        tuple(t for t, _ in tensors),
        tuple(tensors.values()),
    )
