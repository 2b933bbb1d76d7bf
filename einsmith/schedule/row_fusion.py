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

from collections.abc import Callable, Collection, Sequence

from einsmith.cost.facts import Target
from einsmith.ir.nodes import (
    Tensor,
    nbytes,
    size,
)
from einsmith.ir.views import storage
from einsmith.schedule.kernel import Kernel, KernelBuffer, Member, Rows, reuses_in_row
from einsmith.schedule.plan import AnyCall, KernelCall
from einsmith.schedule.row_forms import RowForm, RowForms, forms_of, nested_forms, row_forms

_MAX_BUFFERS = 32
"""Most tensors that the kernels of a row-block fusion read and write."""
MAX_MEMBERS = 16
"""Most kernels of a row-block fusion."""
_MAX_SHARED_RATIO = 0.125
"""Largest ratio of the bytes of operands that the matrices of a batch share to the bytes of those that they have for
themselves."""
ROWS_PER_CORE = 4
"""Fewest rows for each core with which cores share out whole rows."""
_ONE_CORE_BYTES = 1 << 17
"""Bytes of work that one core finishes as fast as several cores."""


def can_share_rows(parts: Sequence[AnyCall], streamed: Collection[Tensor]) -> bool:
    """Return whether all kernels stream, or those that reuse their operands compute or read a result of these kernels
    that is in `streamed`, and none may repeat another one."""
    reusing = [p for p in parts if p.kernel.reuses]
    if not reusing:
        return True
    own = {storage(t) for p in parts for t in p.results}.intersection(streamed)
    return len({p.is_late for p in parts}) == 1 and all(not own.isdisjoint(map(storage, p.tensors)) for p in reusing)


def _bytes_by_row(
    parts: Sequence[AnyCall], forms: Sequence[RowForm], rows: int
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


def _is_worthwhile(parts: Sequence[AnyCall], forms: Sequence[RowForm], rows: int, target: Target) -> bool:
    """Return whether the rows in flight on all cores stay in a cache, and there are enough rows for all cores."""
    by_row, whole = _bytes_by_row(parts, forms, rows)
    each, shared = sum(by_row), sum(whole)
    if each + shared > target.l2 // 2 and target.cores * each + shared > target.last_level // 2:
        return False
    inner = any(code > 1 for form in forms for code in form.by_row)
    return rows >= ROWS_PER_CORE * target.cores or (each * rows <= _ONE_CORE_BYTES and not inner)


def cut_of(buffer: KernelBuffer, code: int) -> tuple[int, int]:
    """Return how rows cut a tensor: (points before the row axis, points after it); (0, 0) if it has no row axis."""
    return (size(buffer.shape[: code - 1]), size(buffer.shape[code:])) if code else (0, 0)


def consistent_forms(
    parts: Sequence[AnyCall],
    rows: int,
    forms: Callable[[Kernel], RowForms] = row_forms,
    running: Collection[Tensor] = (),
) -> list[RowForm] | None:
    """Return a row form for each part such that all cut each tensor alike and each reads only its own row of the
    others' results, or the whole of those in `running`, which have no rows; None if there is none. `forms` gives the
    forms of a kernel."""
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
                s, cut = storage(t), cut_of(b, code)
                if not w and s in results and not code and s not in running:
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


def rows_of(part: AnyCall) -> frozenset[int]:
    """Return the numbers of rows, above 1, of the kernel's row forms."""
    return frozenset(r for r in forms_of(part.kernel) if r > 1)


def common_rows(parts: Sequence[AnyCall], target: Target) -> tuple[int, list[RowForm]]:
    """Return (the number of rows by which fusing the parts may pay, the row form of each part); (0, []) if there is
    none.

    Kernels that stream share as many rows as possible. Of kernels that reuse their operands, rows may nest inside of
    other rows (`row_nests`): the outer ones are those that share no operand (the matrices of a batch), else those that
    share the least and are enough for all cores, else few rows."""
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
        # The cores may share in the work on a matrix of a batch, and in that on few rows, if nothing else is left.
        few = rows < ROWS_PER_CORE * target.cores and not _is_batch(parts, rows, chosen)
        price = few, any(f.reduces for f in chosen), sum(_bytes_by_row(parts, chosen, rows)[1])
        if least is None or price < least:
            best, least = (rows, chosen), price
    return best


def is_batch(parts: Sequence[AnyCall], target: Target, streamed: Collection[Tensor]) -> bool:
    """Return whether the common rows of kernels are the matrices of a batch; operands in `streamed` do not count."""
    rows, forms = common_rows(parts, target)
    return rows > 0 and _is_batch(parts, rows, forms, streamed)


def _is_batch(parts: Sequence[AnyCall], rows: int, forms: Sequence[RowForm], streamed: Collection[Tensor] = ()) -> bool:
    """Return whether rows have operands of their own, but for a few bytes, among them matrices, and reuse them, and no
    kernel reduces over rows."""
    results = {*streamed, *(t for p in parts for t in p.results)}
    own: set[Tensor] = set()
    shared: set[Tensor] = set()
    has_matrices = False
    for part, form in zip(parts, forms, strict=True):
        kernel = form.kernel
        if form.reduces or (part.kernel.reuses and not reuses_in_row(kernel, form.by_row, rows)):
            return False
        written = form.of(part.written)
        for t, b, code, w in zip(form.of(part.tensors), kernel.buffers, form.by_row, written, strict=True):
            if not w and storage(t) not in results:
                (own if code else shared).add(storage(t))
                has_matrices |= code > 0 and sum(n > 1 for n in b.shape) > 2
    return has_matrices and sum(map(nbytes, shared)) <= _MAX_SHARED_RATIO * sum(map(nbytes, own))


def join(parts: Sequence[KernelCall], outside: Collection[Tensor], target: Target) -> KernelCall:
    """Return the call of the fused kernel of a cluster; results that are not in `outside` stay local to it."""
    return join_forms(parts, *common_rows(parts, target), outside)


def join_in_turn(parts: Sequence[KernelCall], outside: Collection[Tensor], takes_sums: bool = False) -> KernelCall:
    """Return the call of the `Rows` of one row without axes that kernels become. The arguments are those of `join` and
    of `Rows`."""
    forms = [RowForm(p.kernel, (0,) * len(p.tensors), False, 0) for p in parts]
    return join_forms(parts, 1, forms, outside, takes_sums)


def join_forms(
    parts: Sequence[KernelCall],
    rows: int,
    forms: Sequence[RowForm],
    outside: Collection[Tensor],
    takes_sums: bool = False,
) -> KernelCall:
    """Return the call of the fused kernel of parts in these row forms, all of which have `rows` rows; results that are
    not in `outside` stay local to it."""
    results = {t for p in parts for t in p.results}
    tensors: dict[tuple[Tensor, tuple[int, int]], bool] = {}
    local: dict[Tensor, KernelBuffer] = {}
    uses: list[list[tuple[Tensor, tuple[int, int]]]] = []  # the tensor and its cut by rows, for each part's buffers
    for p, form in zip(parts, forms, strict=True):
        uses.append([])
        for t, b, code, w in zip(form.of(p.tensors), form.kernel.buffers, form.by_row, form.of(p.written), strict=True):
            s = storage(t)
            use = (s, (-1, -1)) if s in results else (t, cut_of(b, code))
            uses[-1].append(use)
            if s in results and s not in outside:
                local.setdefault(s, KernelBuffer(s.dtype, s.shape))
            elif s in results or not w:
                tensors.setdefault(use, s in results)
    number = {use: n for n, use in enumerate([*tensors, *((s, (-1, -1)) for s in local)])}
    # Block by block, what other members read stays in the caches.
    used = {s for p in parts for s in p.operands} | set(local) if rows > 1 else ()
    members = []
    for p, form, own in zip(parts, forms, uses, strict=True):
        kernel = form.kernel
        buffers = tuple(
            KernelBuffer(b.dtype, b.shape, b.non_temporal and storage(t) not in used, b.strides)
            for t, b in zip(form.of(p.tensors), kernel.buffers, strict=True)
        )
        if buffers != kernel.buffers:
            kernel = Kernel(kernel.stages, buffers)
        members.append(Member(kernel, tuple(number[use] for use in own), form.by_row, form.reduces, form.axis))
    return KernelCall(
        Rows(
            rows,
            tuple(members),
            tuple(KernelBuffer(t.dtype, t.shape) for t, _ in tensors),
            tuple(local.values()),
            takes_sums=takes_sums,
        ),
        tuple(t for t, _ in tensors),
        tuple(tensors.values()),
        tuple(n for p in parts for n in p.nodes),
        parts=tuple(parts),
    )
