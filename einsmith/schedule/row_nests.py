"""Nest row-block fusions: run the kernels of a block of rows in sweeps over another axis that they share.

before: for each block of rows i:  t[i,j] for all j;  then o[i] = sum[j](f(t[i,j]))
after:  for each block of rows i:  for each block of j:  t[i,j];  o[i] += f(t[i,j])

The kernels of a block are plain kernels, so that the rows of a nest are found as those of the graph are (`row_fusion`),
and a nest may itself be nested. A block of one row has no row axis: the rows of a batch of matrices are whole matrices,
inside of which the nest runs row by row (attention: batch and heads, then queries, then keys).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from einsmith.ir.analysis.constant_unless import either
from einsmith.ir.nodes import Axis, Expr, Piece, Read, Tensor, axes_of, leaf, nbytes
from einsmith.ir.rebuild import rebuild, substitute
from einsmith.schedule.activity import TileValues, names_in
from einsmith.schedule.block_kernels import BlockKernel, drop_row, drop_unread
from einsmith.schedule.in_place import reads_own_elements
from einsmith.schedule.kernel import Activity, Follow, KernelBuffer, Rows, limits_of
from einsmith.schedule.limited_calls import add_place
from einsmith.schedule.nest_limits import RowSweep, limit_sweeps, with_limits
from einsmith.schedule.online import Scale, followers, with_follow
from einsmith.schedule.plan import KernelCall
from einsmith.schedule.row_blocks import (
    block_kernel,
    correction_kernel,
    inputs,
    mean_kernel,
    merge,
    partials,
    save_kernel,
    uses_number,
)
from einsmith.schedule.row_forms import RowForm, nested_forms
from einsmith.schedule.row_fusion import consistent_forms, cut_of, join_forms

MIN_SWEEP_ROWS = 512
"""Fewest rows of a sweep inside of a block; fewer are a block themselves. More than the rows of any block, so
that nests end."""


class FollowedPlaces(NamedTuple):
    """Numbers of the memory of a reducing member whose running result others follow: copies of its result so far and of
    what its last stage made of that, both from before the block, and the correction of what follows (`Follow`)."""

    total: int
    result: int
    correction: int


class BlockPlaces(NamedTuple):
    """Numbers of the memory that the kernels of a block use: the buffers of the Rows, its local buffers, from
    `accumulators[n]` on the results so far of reducing member n, one per result of its root, what members that follow
    member n need (`followed`), and at `number` the number of the block's first row."""

    accumulators: dict[int, int]
    followed: dict[int, FollowedPlaces]
    number: int


@lru_cache(maxsize=1024)
def block_places(rows: Rows) -> BlockPlaces:
    """Return the numbers of the memory that the kernels of a block use."""
    accumulators: dict[int, int] = {}
    count = len(rows.buffers) + len(rows.local)
    for n, member in enumerate(rows.members):
        if member.reduces:
            accumulators[n] = count
            count += len(partials(member))
    followed: dict[int, FollowedPlaces] = {}
    for n in sorted({m.follows.reducer for m in rows.members if m.follows is not None}):
        followed[n] = FollowedPlaces(count, count + 1, count + 2)
        count += 3
    return BlockPlaces(accumulators, followed, count)


def follow_of(rows: Rows, n: int) -> Follow:
    """Return how members follow reducing member n, the first one's index being any."""
    return next(m.follows for m in rows.members if m.follows is not None and m.follows.reducer == n)


@lru_cache(maxsize=1024)
def block_kernels(
    rows: Rows, count: int, block: int, nested: int, turned: bool = False, again: bool = False
) -> tuple[BlockKernel, ...]:
    """Return the kernels that run on `count` rows from a multiple of `block` on, in order: one for each member, or, if
    `nested` is not 0, joined into sweeps over another axis, `nested` rows of which are skipped together.

    turned: the row is the innermost dimension of local buffers in memory. again: sweeps recompute the results of
    earlier ones that they need, tile by tile."""
    places = block_places(rows)
    out: list[BlockKernel] = []
    limits: dict[int, dict[int, int]] = {}  # of a kernel in `out`: output axis -> place of its limit
    for n, member in enumerate(rows.members):
        kernel = block_kernel(member, count, block, len(rows.buffers), turned)
        used = [*inputs(member)] if member.reduces else [*range(len(member.places))]
        at = [member.places[i] for i in used]
        own = range(0)
        if n in places.accumulators:
            own = range(places.accumulators[n], places.accumulators[n] + len(partials(member)))
            at += [*own, *own]
        if member.follows is not None:
            at.append(places.followed[member.follows.reducer].correction)
        if uses_number(member):
            at.append(places.number)
        assert len(at) == len(kernel.buffers)  # in the order that `_accumulation` has
        if nested:
            limits[len(out)] = {a: at[b] for a, b in limits_of(kernel).items()}
        if nested and block == 1:
            if not member.reduces:
                limits[len(out)] = {a - (a > member.axis): p for a, p in limits[len(out)].items()}
            kernel = drop_row(kernel, [member.by_row[i] for i in used], member)
        if n in places.followed:
            follow, (total, result, correction) = follow_of(rows, n), places.followed[n]
            finish, used = mean_kernel(member, count) if follow.is_mean else merge(member, 1)
            number = (places.number,) if follow.is_mean else ()
            out += [
                BlockKernel(save_kernel(member, follow), (own[0], follow.place, total, result)),
                BlockKernel(kernel, tuple(at)),
                BlockKernel(finish, (*own, *number, *used)),
                BlockKernel(correction_kernel(member, follow), (total, result, follow.place, *number, correction)),
            ]
            continue
        out.append(drop_unread(kernel, at) if nested else BlockKernel(kernel, tuple(at)))
    return _sweeps(out, len(rows.buffers), places, block, nested, again, limits) if nested else tuple(out)


def shared_memory(rows: Rows, kernels: Sequence[BlockKernel]) -> dict[int, int]:
    """Return, for the place of each local buffer that the kernels of a block hand over, the place whose memory it uses:
    its own, or one that an earlier kernel wrote, that no later kernel reads, and that the kernel which writes it reads,
    if at all, only at the element that it computes."""
    local = range(len(rows.buffers), len(rows.buffers) + len(rows.local))
    lives: dict[int, tuple[int, int]] = {}
    for n, (_, places) in enumerate(kernels):
        lives |= {p: (lives.get(p, (n, n))[0], n) for p in places if p in local}
    out: dict[int, int] = {}
    free: dict[int, tuple[int, int]] = {}  # place with memory of its own -> (last user, the place that it holds then)
    for place, (first, last) in sorted(lives.items(), key=lambda x: x[1]):
        for owner, (end, held) in free.items():
            x, y = (rows.local[p - len(rows.buffers)] for p in (owner, place))
            # A result that nothing reads ends with the kernel that writes it, beside its other results.
            is_operand = end == first and lives[held][0] < first
            if x.nbytes == y.nbytes and (end < first or (is_operand and _replaces(kernels[first], held, place))):
                break
        else:
            owner = place
        out[place], free[owner] = owner, (last, place)
    return out


def _replaces(kernel: BlockKernel, operand: int, result: int) -> bool:
    """Return whether a kernel may write one place over another one."""
    k, places = kernel
    if isinstance(k, Rows):
        return False
    own = [n for n, p in enumerate(places) if p == operand]
    layouts = {(b.shape, b.strides, b.dtype) for b, p in zip(k.buffers, places, strict=True) if p in (operand, result)}
    return len(layouts) == 1 and reads_own_elements(k, own)


# ---------------------------------------------------------------------------------------------------------- sweeps


def _sweeps(
    kernels: Sequence[BlockKernel],
    local: int,
    places: BlockPlaces,
    block: int,
    tile: int,
    again: bool,
    limits: Mapping[int, Mapping[int, int]],
) -> tuple[BlockKernel, ...]:
    """Return the kernels joined into sweeps over the number of rows that leaves the fewest bytes of local buffers
    between them.

    local: the places from this number on that are no accumulators are local to a block. tile: the rows of a sweep that
    are skipped together. again: as for `block_kernels`. limits: of each kernel, output axis -> place of its limit."""
    tensors: dict[int, Tensor] = {}
    results: dict[int, Tensor] = {}
    end = min(places.accumulators.values(), default=places.number)
    parts = []
    for kernel, at in kernels:
        assert not isinstance(kernel, Rows)
        written = kernel.outputs
        own = []
        for n, (place, b) in enumerate(zip(at, kernel.buffers, strict=True)):
            # An accumulator is read and written by one kernel, as two buffers.
            known = results if n in written and place >= end else tensors
            own.append(known.setdefault(place, leaf(b.shape, b.dtype)))
        parts.append(KernelCall(kernel, tuple(own), tuple(n in written for n in range(len(at)))))
    place_of = {t: p for known in (tensors, results) for p, t in known.items()}
    locals_ = {t for p, t in tensors.items() if local <= p < end}
    candidates = {r for p in parts for r in nested_forms(p.kernel) if r >= MIN_SWEEP_ROWS}
    grouped = [(-r, _groups(parts, r, locals_, again)) for r in candidates]
    every = [(_crossing_bytes(groups, parts), r, groups) for r, groups in grouped]
    plain = {n: with_limits(k, limits.get(n, {})) for n, k in enumerate(kernels)}
    if not every:
        return tuple(plain.values())
    _, rows, groups = min(every, key=lambda x: x[:2])
    rows = -rows
    if again:
        parts, groups, sources, added = _repeat_tiles(parts, groups, rows, locals_)
        plain = {n: plain[source] for n, source in enumerate(sources)}
        limits = {n: limits.get(source, {}) for n, source in enumerate(sources)}
        locals_ |= added
    chosen = [_forms(parts, members, rows) for members in groups]
    forms = {
        n: f for members, some in zip(groups, chosen, strict=True) if some for n, f in zip(members, some, strict=True)
    }
    condition = _active_unless(parts, forms, place_of, locals_) if block > 1 else None
    out: list[BlockKernel | RowSweep] = []
    for members, some in zip(groups, chosen, strict=True):
        if some is None or (len(members) == 1 and condition is None):
            out += [plain[n] for n in members]
            continue
        own_parts = [parts[n] for n in members]
        elsewhere = {t for n, p in enumerate(parts) if n not in members for t in p.tensors}
        outside = {t for p in own_parts for t in p.results if t in elsewhere or t not in locals_}
        outside |= {t for p, f in zip(own_parts, some, strict=True) if f.reduces for t in p.results}
        fused = join_forms(own_parts, rows, some, outside)
        at = tuple(place_of[t] for t in fused.tensors)
        scales = _followers(parts, members, some, elsewhere)
        assert scales is not None  # as `_groups` has found
        sweep = _follow(fused, members, scales)
        if condition is not None:
            # Conditions read tensors by the dimensions of the first kernel that has one (`tensors`).
            buffer_of: dict[int, KernelBuffer] = {}
            for k, places_ in kernels:
                for p, b in zip(places_, k.buffers, strict=True):
                    buffer_of.setdefault(p, b)
            for place in sorted(names_in(condition.expr) - set(at)):
                sweep, at = add_place(sweep, buffer_of[place]), (*at, place)
            sweep = _with_activity(sweep, condition, tile, at, buffer_of)
        # A form that merges axes has others than the kernel.
        is_same = [f.kernel.shape == p.kernel.shape for f, p in zip(some, own_parts, strict=True)]
        own_limits = [limits.get(n, {}) if same else {} for n, same in zip(members, is_same, strict=True)]
        out.append(RowSweep(sweep, at, own_limits))
    sweeps = iter(limit_sweeps([x for x in out if isinstance(x, RowSweep)]))
    return tuple(next(sweeps) if isinstance(x, RowSweep) else x for x in out)


def _forms(parts: Sequence[KernelCall], members: Sequence[int], rows: int) -> list[RowForm] | None:
    """Return the row forms of the kernels of a sweep; None if they cannot be one. Sums may follow running results."""
    forms = _strict_forms(parts, members, rows)
    if forms is not None:
        return forms
    own = [parts[n] for n in members]
    forms = consistent_forms(own, rows, nested_forms, {t for p in own for t in p.results})
    return None if forms is None or _followers(parts, members, forms, ()) is None else forms


def _followers(
    parts: Sequence[KernelCall], members: Sequence[int], forms: Sequence[RowForm], elsewhere: Collection[Tensor]
) -> dict[int, Scale] | None:
    """Return how sums of the sweep of the parts `members`, in these row forms, follow running results (`followers`)."""
    return followers({n: f.swept(parts[n].tensors) for n, f in zip(members, forms, strict=True)}, elsewhere)


def _follow(fused: KernelCall, members: Sequence[int], scales: Mapping[int, Scale]) -> Rows:
    """Return a sweep whose sums follow running results as `scales` says. members: the numbers of the sweep's members
    in `scales`."""
    sweep = fused.kernel
    assert isinstance(sweep, Rows)
    out = []
    for n, m in zip(members, sweep.members, strict=True):
        if n in scales:
            m = with_follow(m, sweep.members, fused.tensors.index(scales[n].result), scales[n])
        out.append(m)
    return Rows(sweep.rows, tuple(out), sweep.buffers, sweep.local, sweep.active)


class _Condition(NamedTuple):
    """A condition on the points of a sweep: its expression, whose axis 0 is the row of the sweep, and the extents of
    its further axes."""

    expr: Expr
    extents: tuple[int, ...]


def _active_unless(
    parts: Sequence[KernelCall],
    forms: Mapping[int, RowForm],
    place_of: Mapping[Tensor, int],
    local: Collection[Tensor],
) -> _Condition | None:
    """Return the condition on a point of the sweeps without which no kernel does anything there that another one or
    the program sees; None if there is none."""
    values = TileValues(lambda t: None if t in local else place_of[t])
    cuts: dict[Tensor, tuple[int, int]] = {}
    conditions: list[_Condition] = []
    for n, part in enumerate(parts):
        form = forms.get(n)
        if form is None:
            if any(cuts.get(t, _WHOLE) != _WHOLE for t in part.tensors):  # it reads tiles that may have been skipped
                return None
            continue
        swept = form.swept(part.tensors)
        for t, b, code in zip(swept.tensors, form.kernel.buffers, form.by_row, strict=True):
            if t in local and cuts.setdefault(t, cut_of(b, code)) != cut_of(b, code):
                return None
        if not form.reduces and all(r in local for r in part.results):
            values.add(swept)
            continue
        # It adds to what is seen elsewhere. Written whole, a result is needed in every tile.
        accumulates = form.reduces or all(place_of[r] in map(place_of.get, part.operands) for r in part.results)
        unless = values.gains_unless(swept) if accumulates else None
        if unless is None:
            return None
        root = form.kernel.root
        domain = root.parts[0].domain if isinstance(root.parts[0], Piece) else ()
        conditions.append(_along(unless, root.rank if form.reduces else form.axis, domain))
    if not conditions or len({c.extents for c in conditions}) > 1:
        return None
    return _Condition(functools.reduce(either, dict.fromkeys(c.expr for c in conditions)), conditions[0].extents)


_WHOLE = (0, 0)
"""The cut of a tensor that has no rows."""


def _along(condition: Expr, axis: int, extents: Sequence[int]) -> _Condition:
    """Return a condition with its axes renumbered: `axis`, the row of the sweep, becomes axis 0, and the other axes
    that it reads follow in their order. extents: the extents of all axes."""
    others = sorted(axes_of(condition) - {axis})
    to = {axis: Axis(0)} | {a: Axis(n + 1) for n, a in enumerate(others)}
    return _Condition(substitute(condition, to), tuple(extents[a] for a in others))


def _with_activity(
    sweep: Rows, condition: _Condition, tile: int, at: Sequence[int], buffer_of: Mapping[int, KernelBuffer]
) -> Rows:
    """Return a sweep that is active where a condition holds, whose names are places. `at`: the places of its
    buffers."""
    names = names_in(condition.expr)
    buffers = tuple(buffer_of[p] if p in names else b for p, b in zip(at, sweep.buffers, strict=True))

    def rule(e):
        return Read(at.index(-1 - e.slot), e.index, e.dtype) if isinstance(e, Read) else None

    active = Activity(rebuild([condition.expr], rule)[0], condition.extents, tile, True)
    return Rows(sweep.rows, sweep.members, buffers, sweep.local, active)


def _repeat_tiles(
    parts: Sequence[KernelCall], groups: Sequence[Sequence[int]], rows: int, local: Collection[Tensor]
) -> tuple[list[KernelCall], list[list[int]], list[int], set[Tensor]]:
    """Return sweeps that compute again what they read, row by row, of earlier ones: (the parts in order, the numbers of
    those in each sweep, the original of each part, the tensors that this adds)."""
    makers: dict[Tensor, tuple[int, int]] = {}  # result of a tile -> (sweep, part)
    is_sweep = []
    for g, members in enumerate(groups):
        forms = _forms(parts, members, rows)
        is_sweep.append(forms is not None)
        for n, form in zip(members, forms or (), strict=False):
            makers |= dict.fromkeys((t for t in parts[n].results if t in local and not form.reduces), (g, n))
    every: list[list[tuple[KernelCall, int]]] = []
    added: set[Tensor] = set()
    for g, members in enumerate(groups):
        own: list[tuple[KernelCall, int]] = []
        new: dict[Tensor, Tensor] = {}

        def read(t: Tensor, g=g, own=own, new=new) -> Tensor:
            """Return the tensor that a kernel of sweep g reads in the place of `t`."""
            if t in new or makers.get(t, (g, 0))[0] == g or not is_sweep[g]:
                return new.get(t, t)
            n = makers[t][1]
            new.update({x: leaf(x.shape, x.dtype) for x in parts[n].results})
            own.append((_exchange(parts[n], read, new), n))
            return new[t]

        for n in members:
            part = _exchange(parts[n], read, {})  # appends what it reads again
            own.append((part, n))
        added.update(new.values())
        every.append(own)
    # What only later sweeps read is not computed in an earlier one.
    needed = {t for own in every for part, _ in own for t in part.operands}
    inner = {*local, *added} - needed
    kept = [[x for x in own if not inner.issuperset(x[0].results)] for own in every]
    flat = [x for own in kept for x in own]
    numbers = iter(range(len(flat)))
    return [p for p, _ in flat], [[next(numbers) for _ in own] for own in kept], [n for _, n in flat], added


def _exchange(part: KernelCall, read: Callable[[Tensor], Tensor], new: Mapping[Tensor, Tensor]) -> KernelCall:
    """Return a part that reads other tensors, and writes those that are keys of `new` to their values."""
    tensors = [new.get(t, t) if w else read(t) for t, w in zip(part.tensors, part.written, strict=True)]
    return KernelCall(part.kernel, tuple(tensors), part.written)


def _groups(parts: Sequence[KernelCall], rows: int, local: Collection[Tensor], again: bool) -> list[list[int]]:
    """Return the parts in sweeps over `rows` rows, each as early as its operands permit, in a valid order; without
    running results where something outside of a sweep needs what was made of them, and does not make it `again`, as
    other sweeps do."""
    groups = _levels(parts, rows, _forms)
    forms = [_forms(parts, members, rows) for members in groups]
    reading = [members for members, some in zip(groups, forms, strict=True) if some is None or not again]
    for members, some in zip(groups, forms, strict=True):
        others = {t for other in reading if other is not members for n in other for t in parts[n].tensors}
        others |= {t for n in members for t in parts[n].results if t not in local}
        if some is not None and _followers(parts, members, some, others) is None:
            return _levels(parts, rows, _strict_forms)
    return groups


def _strict_forms(parts: Sequence[KernelCall], members: Sequence[int], rows: int) -> list[RowForm] | None:
    return consistent_forms([parts[n] for n in members], rows, nested_forms)


def _levels(parts: Sequence[KernelCall], rows: int, forms_of: Callable) -> list[list[int]]:
    """Return the parts in sweeps over `rows` rows, in a valid order: each as early as its operands permit, then as late
    as its readers permit, where sweeps hand over less then, or are fewer. `forms_of` returns the row forms of the parts
    of a sweep, None if they cannot be one."""
    groups: list[list[int]] = []
    makers = {t: n for n, part in enumerate(parts) for t in part.results}
    group_of: dict[int, int] = {}
    for n, part in enumerate(parts):
        first = max([group_of[makers[t]] for t in part.operands if t in makers], default=0)
        for g in range(first, len(groups)):
            if forms_of(parts, [*groups[g], n], rows) is not None:
                break
        else:
            g = len(groups)
            groups.append([])
        groups[g].append(n)
        group_of[n] = g
    for n, part in reversed([*enumerate(parts)]):
        results, old = set(part.results), group_of[n]
        last = min(
            [group_of[m] for m, p in enumerate(parts) if not results.isdisjoint(p.operands)], default=len(groups) - 1
        )
        for g in range(last, old, -1):
            later = [[m for m in members if m != n] for members in groups]
            later[g] = sorted([*later[g], n])
            less = _crossing_bytes(later, parts), sum(map(bool, later))
            if less < (_crossing_bytes(groups, parts), sum(map(bool, groups))) and forms_of(parts, later[g], rows):
                groups, group_of[n] = later, g
                break
    return [members for members in groups if members]


def _crossing_bytes(groups: Sequence[Sequence[int]], parts: Sequence[KernelCall]) -> int:
    """Return the bytes of the results that one sweep hands to another."""
    home = {t: g for g, members in enumerate(groups) for n in members for t in parts[n].results}
    crossing = {
        t for g, members in enumerate(groups) for n in members for t in parts[n].tensors if t in home and (home[t] != g)
    }
    return sum(map(nbytes, crossing))
