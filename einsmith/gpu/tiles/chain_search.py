"""Find the chain of reductions that a row-block fusion is, and the order and sides of its sweeps: `find_chain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from einsmith.gpu.tiles.chains import MOST_COLUMNS, Chain, SweepPhase, read_places, wide
from einsmith.ir.nodes import Axis, Read, Reduce, Template, axes_of
from einsmith.ir.rebuild import whole_piece
from einsmith.schedule.kernel import Member, Rows
from einsmith.schedule.online import followers, with_follow
from einsmith.schedule.row_blocks import combiner_of
from einsmith.schedule.row_forms import axes_at, reads_of
from einsmith.schedule.split_axes import split_kernels


class _NoChain(Exception):
    """Exception for members that do not form a chain that sweeps can compute."""


@lru_cache(maxsize=256)
def find_chain(rows: Rows) -> Chain | None:
    """Return the chain that the members of a fusion form; None where they form none."""
    if not rows.reuses:
        return None
    try:
        return _find(rows)
    except _NoChain:
        return None


def _find(rows: Rows) -> Chain:
    local = {place: prod(b.shape) for place, b in enumerate(rows.local, len(rows.buffers))}
    largest = max(local, key=lambda p: local[p], default=None)
    if largest is None:
        raise _NoChain
    chain = Chain(rows, list(rows.members))
    _classify(chain, largest)
    split = [_split(chain, n) for n in range(len(chain.members))]
    if split != chain.members:
        chain = Chain(rows, split)
        _classify(chain, largest)
    _find_sides(chain, largest)
    _find_sinks(chain)
    _divide(chain)
    return chain


def _split(chain: Chain, n: int) -> Member:
    """Return a member with its output axes split where it reads results of others at `i//V` and `i % V`."""
    m = chain.members[n]
    if not any(k == n for k, _ in chain.impure):
        return m
    for kernel in split_kernels(m.kernel):
        if len(kernel.buffers) == len(m.places) and len(kernel.root.parts) == 1:
            return Member(kernel, m.places, m.by_row, m.reduces, m.axis, m.follows)
    return m


class _Reading(NamedTuple):
    """A read of a result of a member. pairs: each dimension of the result and the reader's axis that indexes it; None
    where more than axes index it."""

    member: int
    place: int
    pairs: tuple[tuple[int, int], ...] | None


def _readings(chain: Chain) -> list[_Reading]:
    """Return all reads of members' results."""
    out = []
    for n, m in enumerate(chain.members):
        whole = whole_piece(m.kernel.root) is not None
        for stage in m.kernel.stages:
            for r in reads_of(stage.template):
                kind, *where = stage.args[r.slot]
                place = m.places[where[0]] if kind == "buffer" else -1
                if place in chain.writers:
                    pairs = _pure(r, stage.template, chain.shapes[place]) if whole else None
                    out.append(_Reading(n, place, pairs))
    return out


class _Joining:
    """Tile tensors, and the axes of members, (member, axis), that they join."""

    def __init__(self, chain: Chain, largest: int):
        self.chain, self.readings = chain, _readings(chain)
        self.parents: dict[tuple[int, int], tuple[int, int]] = {}
        self.tiles: dict[int, None] = {}
        self.largest = [(chain.writers[largest], d) for d in wide(chain.shapes[largest])]
        self.add(largest)
        extents = [chain.shapes[largest][d] for _, d in self.largest]
        for p, shape in chain.shapes.items():
            if p >= len(chain.rows.buffers) and [n for n in shape if n > 1] == extents:
                self.align(p)

    def root(self, x: tuple[int, int]) -> tuple[int, int]:
        """Return the representative of the class of axes that contains x."""
        while self.parents.setdefault(x, x) != x:
            x = self.parents[x]
        return x

    def roots(self, n: int, axes: Iterable[int]) -> set[tuple[int, int]]:
        """Return the representatives (`root`) of axes of a member."""
        return {self.root((n, a)) for a in axes}

    def add(self, place: int) -> None:
        """Add a tile tensor, and those with the same axes that its writer and its readers write or read."""
        chain, todo = self.chain, [place]
        while todo:
            place = todo.pop()
            if place in self.tiles:
                continue
            self.tiles[place] = None
            writer = chain.writers[place]
            readings = [x for x in self.readings if x.place == place]
            for n, _, pairs in readings:
                for d, a in pairs or ():
                    self.parents[self.root((writer, d))] = self.root((n, a))
            near = {writer, *(x.member for x in readings)}
            tile = {self.root(x) for x in self.largest}
            todo += [
                p
                for n, p, pairs in self.readings
                if n in near and pairs is not None and self.roots(n, [a for _, a in pairs]) == tile
            ]
            todo += [p for n in near for p in chain.members[n].results if self.roots(n, wide(chain.shapes[p])) == tile]

    def align(self, place: int) -> None:
        """Add a tensor of the extents of tile tensors that no member joins with one, dimension by dimension, unless
        this joins two axes of a member."""
        if place in self.tiles:
            return
        before, tiles = dict(self.parents), dict(self.tiles)
        writer = self.chain.writers[place]
        for d, x in zip(wide(self.chain.shapes[place]), self.largest, strict=True):
            self.parents[self.root((writer, d))] = self.root(x)
        self.add(place)
        for n, m in enumerate(self.chain.members):
            axes = wide(_domain(m))
            if len(self.roots(n, axes)) < len(axes):
                self.parents, self.tiles = before, tiles
                return


def _domain(m: Member) -> tuple[int, ...]:
    """Return the extents of a member's axes: those of the output alone where it has several pieces."""
    piece = whole_piece(m.kernel.root)
    return m.kernel.root.shape if piece is None else piece.domain


def _classify(chain: Chain, largest: int) -> None:
    """Find the tile tensors: the local results whose dimensions are those of the tensor `largest`; and the classes of
    axes, which they join. Raises _NoChain."""
    joining = _Joining(chain, largest)
    readings, root = joining.readings, joining.root
    chain.makers = {p: chain.writers[p] for p in joining.tiles}
    numbers: dict[tuple[int, int], int] = {}
    for n, m in enumerate(chain.members):
        domain = _domain(m)
        for a in wide(domain):
            c = numbers.setdefault(root((n, a)), len(numbers))
            if chain.extents.setdefault(c, domain[a]) != domain[a]:
                raise _NoChain
            chain.classes[n, a] = c
    for n, p, pairs in readings:
        # A result by the row is a program's own where it is read in that row.
        writer = chain.writers[p]
        own = {c: chain.classes[n, a] for d, a in pairs or () for c in [chain.classes[writer, d]]}
        of_tile = {chain.classes[chain.writers[largest], d] for d in wide(chain.shapes[largest])}
        if pairs is None or any(c in of_tile and c != other for c, other in own.items()):
            chain.impure.add((n, p))


def _pure(r: Read, t: Template, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    """Return (dimension, axis) for each dimension of a tensor of a shape that a read indexes by axes alone; None where
    it reads it otherwise."""
    at = axes_at(shape, t.params[r.slot][1], r.index)
    if at is None:
        return None
    out = []
    for d in wide(shape):
        index = at[d]
        if not isinstance(index, Axis) or t.parts[0].domain[index.position] != shape[d]:
            return None
        out.append((d, index.position))
    return tuple(out)


def _find_sides(chain: Chain, largest: int) -> None:
    """Divide the axes of the largest tile tensor into two sides and the batch.

    The second side has the axes that the tensor's first reader reduces, the batch those that every operand has, and the
    first side the remaining axes. Raises _NoChain where a side is empty.
    """
    writer = chain.writers[largest]
    tile = [chain.classes[writer, d] for d in wide(chain.shapes[largest])]
    reduced: list[int] = []
    for n, m in enumerate(chain.members):
        inner = chain.reduced_classes(n)
        if not reduced and read_places(m) & chain.makers.keys():
            reduced = [c for c in tile if c in inner]
    rest = [c for c in tile if c not in reduced]
    batch = _shared_classes(chain, {*reduced}, {*rest})
    if batch is None:
        batch = {*rest[:-1]}
    chain.batch = tuple(c for c in rest if c in batch)
    chain.sides = tuple(c for c in rest if c not in batch), tuple(reduced)
    if not all(chain.sides):
        raise _NoChain


def _shared_classes(chain: Chain, reduced: set[int], rest: set[int]) -> set[int] | None:
    """Return the classes in `rest` that operands which vary along `reduced` have, in sums that make tiles; None where
    no tile is a sum."""
    shared: set[int] | None = None
    for n, m in enumerate(chain.members):
        t = m.kernel.root
        body = t.parts[0].body
        if not isinstance(body, Reduce) or not {*chain.output_classes(n)} >= reduced | rest:
            continue
        for r in reads_of(t):
            axes = {a for i in r.index for a in axes_of(i)}
            own = chain.classes_of(n, axes)
            if any(a >= t.rank for a in axes) and own & reduced:
                shared = (shared or set()) | (own & rest)
    return shared


def _find_sinks(chain: Chain) -> None:
    """Find the members that reduce tile tensors over a side, and the tile tensors that others read. Raises _NoChain
    where the members that make tile tensors do not fit."""
    tile = {*chain.batch, *chain.sides[0], *chain.sides[1]}
    stored = {p for p in chain.makers if p < len(chain.rows.buffers)}
    for n, m in enumerate(chain.members):
        outputs = chain.output_classes(n)
        makes = [p in chain.makers for p in m.results]
        read = read_places(m) & chain.makers.keys()
        fits = (
            whole_piece(m.kernel.root) is not None
            and len({*outputs}) == len(outputs)
            and not any((n, p) in chain.impure for p in read)
        )
        if any(makes):
            if not fits or not all(makes) or {*outputs} != tile:
                raise _NoChain
            continue
        inner = chain.reduced_classes(n)
        held = next((k for k in (0, 1) if inner == {*chain.sides[1 - k]}), None)
        late = read_places(m, m.kernel.stages[1:]) & chain.makers.keys()
        if held is None or not fits or late or not {*outputs} >= {*chain.batch, *chain.sides[held]} or not read:
            stored |= read
        else:
            chain.sinks[n] = held
    if not chain.sinks:
        raise _NoChain
    chain.stored = stored


def _divide(chain: Chain) -> None:
    """Divide the sinks into phases and sweeps, in an order in which operands precede their readers."""
    at: dict[int, tuple[int, int]] = {}  # place -> (step, sweep) that makes it
    for n in _order(chain):
        m = chain.members[n]
        if not chain.is_swept(n):
            chain.steps.append(n)
            at |= dict.fromkeys(m.results, (len(chain.steps) - 1, 0))
            continue
        closure = chain.closure(n)
        terms = m.kernel.stages[:1] if n in chain.sinks else m.kernel.stages
        inside = {p for k in closure for p in read_places(chain.members[k], None if k != n else terms)}
        after = read_places(m, m.kernel.stages[len(terms) :])
        known = at.keys() - chain.makers.keys()
        step, sweep = _place_of_sink(chain, n, inside & known, after & known, at)
        at |= dict.fromkeys(m.results, (step, sweep))


def _order(chain: Chain) -> list[int]:
    """Return the members that are swept or lowered apart in a valid order, the latter as early as possible, so that
    they do not lie between phases."""
    left = [n for n in range(len(chain.members)) if chain.is_swept(n) or n not in chain.makers.values()]
    needs: dict[int, set[int]] = {}
    for n in left:
        members, own_places = (chain.closure(n), chain.makers.keys()) if chain.is_swept(n) else ([n], ())
        read = {p for k in members for p in read_places(chain.members[k])}
        needs[n] = {chain.writers[p] for p in read & chain.writers.keys() if p not in own_places}
    out: list[int] = []
    while left:
        ready = [n for n in left if not needs[n] & {*left} - {n}]
        out.append(min(ready, key=lambda n: (chain.is_swept(n), n)))
        left.remove(out[-1])
    return out


def _place_of_sink(
    chain: Chain, n: int, inside: set[int], after: set[int], at: Mapping[int, tuple[int, int]]
) -> tuple[int, int]:
    """Return the step and the sweep that compute a sink, or store a tile tensor, which is added there. inside, after:
    the results of other members that its terms and its later stages read."""
    held = chain.sinks.get(n)
    first = max([at[p][0] for p in inside | after], default=0)
    for step in range(first, len(chain.steps)):
        phase = chain.steps[step]
        if not isinstance(phase, SweepPhase) or held not in (None, phase.held):
            continue
        own = {p for p in inside | after if at[p][0] == step}
        if any((k, p) in chain.impure for p in own for k in chain.closure(n)):
            continue
        sweep = max([at[p][1] for p in own], default=0)
        if _joins(chain, phase.held, n, phase.sweeps[sweep], {p for p in own if at[p][1] == sweep}, inside):
            if sweep + 1 < len(phase.sweeps) and not _is_undivided(chain, [n, *phase.sweeps[sweep]]):
                continue
            phase.sweeps[sweep].append(n)
            return step, sweep
        for later in range(sweep + 1, len(phase.sweeps) + 1):
            if not all(_is_undivided(chain, members) for members in [*phase.sweeps, [n]]):
                break
            if later == len(phase.sweeps):
                phase.sweeps.append([n])
                return step, later
            if _joins(chain, phase.held, n, phase.sweeps[later], set(), inside):
                phase.sweeps[later].append(n)
                return step, later
    chain.steps.append(SweepPhase(held or 0, [[n]]))
    return len(chain.steps) - 1, 0


def _is_undivided(chain: Chain, members: Iterable[int]) -> bool:
    """Return whether a single program computes all columns of each sink, so that a later sweep of it can read them."""
    return all(chain.columns_of_programs(n)[1] == 1 for n in members)


def _joins(chain: Chain, held: int, n: int, sinks: Sequence[int], own: set[int], inside: set[int]) -> bool:
    """Return whether a sink may be computed in the sweep of `sinks`, whose results `own` it reads. inside: what its
    terms read."""
    if any(chain.columns(k) for k in sinks for p in chain.members[k].results if p in own):
        return False
    if sum(chain.columns_of_programs(k)[0] for k in [*sinks, n] if chain.columns(k)) > MOST_COLUMNS:
        return False
    if not own & inside:
        return True
    return _follow(chain, held, [*sinks, n])


def _follow(chain: Chain, held: int, sinks: Sequence[int]) -> bool:
    """Let sums of a sweep follow its running maxima and minima; return False where a value depends on one otherwise, or
    on a running mean, for which no tile is rescaled."""
    if len(chain.sides[1 - held]) > 1:
        return False
    members = sorted({k for n in sinks for k in chain.closure(n)})
    scales = followers({n: chain.swept(n) for n in members}, {chain.tensors[p] for p in chain.stored})
    if scales is None:
        return False
    following = {}
    for n, scale in scales.items():
        place = next(p for p, t in chain.tensors.items() if t is scale.result)
        if combiner_of(chain.members[chain.writers[place]]) == "sum":
            return False
        following[n] = with_follow(chain.members[n], chain.members, place, scale)
    for n, m in following.items():
        chain.members[n] = m
    return True
