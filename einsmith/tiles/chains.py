"""Find chains of reductions in a row-block fusion, and divide them into sweeps that store no tile.

before: s[i,j] = sum[d](q[i,d]*k[j,d]);  m[i] = max[j](s[i,j]);  l[i] = sum[j](exp(s[i,j] - m[i]))
after:  tiles of s are computed where a sweep needs them:  for each block of i:  for each block of j:  m, l

A tile tensor has axes of two sides, i and j; every reader can make its tile from smaller tensors. A sum over one side
belongs to a phase in which each program holds a block of the other side and sweeps over this one. A sum that reads the
result of another one of the same phase waits for it in a later sweep, unless it follows its running result
(`schedule.online`). Members without tile tensors are lowered apart. Axes of members that index the same dimension of a
tensor are one class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import NamedTuple

from einsmith.ir.nodes import Axis, Piece, Read, Reduce, Template, axes_of, leaf, reads
from einsmith.kernels.contraction.problem import Operand, Problem, needs_exact_guards, problems
from einsmith.schedule.kernel import Member, Rows, Stage
from einsmith.schedule.online import followers
from einsmith.schedule.row_forms import RowForm, nested_forms, reads_of
from einsmith.schedule.row_fusion import RowPart
from einsmith.schedule.split_axes import split_kernels

LEAST_DOT_POINTS = 8
"""Fewest points of an inner extent of a dot; tiles are padded to 16, and below half of that terms cost less."""
MOST_COLUMNS = 128
"""Most columns of sums that a program accumulates in registers; more of one sum are divided among programs, each of
which makes the tiles, and other sums have a sweep of their own."""
MOST_UNROLLED = 8
"""Most columns of a sum that is not a product, each of which has a reduction of its own."""


class _NoChain(Exception):
    """Exception for members that do not form a chain that sweeps can compute."""


@dataclass
class SweepPhase:
    """A function whose programs hold a block of side `held` each, and sweep over the other one. sweeps: the members
    whose results each sweep computes."""

    held: int
    sweeps: list[list[int]]


class Following(NamedTuple):
    """A sum that follows the running result of an earlier member of its sweep: the number of that member, and the place
    of the result."""

    reducer: int
    place: int


@dataclass
class Chain:
    """The members of a fusion as a chain.

    Attributes:
        members: the members, whose axes are split where that makes indices axes.
        classes: the class of axis (member, axis); axes of one point have none.
        extents: the extent of each class.
        batch: the classes of tile tensors that all operands have.
        sides: the other classes of tile tensors, in two groups.
        makers: the member that makes each tile tensor.
        sinks: for each member that reduces tile tensors over a side, the other side.
        steps: phases, and numbers of members that are lowered apart, in order.
        following: how sums follow running results.
        stored: tile tensors that are stored, as other members or kernels read them.
        impure: (member, place) of results of other members that a member reads elsewhere than at its own points.
    """

    rows: Rows
    members: list[Member]
    classes: dict[tuple[int, int], int] = field(default_factory=dict)
    extents: dict[int, int] = field(default_factory=dict)
    batch: tuple[int, ...] = ()
    sides: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    makers: dict[int, int] = field(default_factory=dict)
    sinks: dict[int, int] = field(default_factory=dict)
    steps: list[SweepPhase | int] = field(default_factory=list)
    following: dict[int, Following] = field(default_factory=dict)
    impure: set[tuple[int, int]] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.writers: dict[int, int] = {}
        """The member that writes each result."""
        self.shapes: dict[int, tuple[int, ...]] = {}
        """The shapes of results, as their writers have them."""
        for n, m in enumerate(self.members):
            for b in (b for s in m.kernel.stages for b in s.outputs if b is not None):
                self.writers[m.places[b]], self.shapes[m.places[b]] = n, m.kernel.buffers[b].shape

    def count(self, classes: Iterable[int]) -> int:
        """Return the number of points of classes."""
        return prod([self.extents[c] for c in classes])

    def classes_of(self, n: int, axes: Iterable[int]) -> set[int]:
        """Return the classes of axes of a member."""
        return {self.classes[n, a] for a in axes if (n, a) in self.classes}

    def output_classes(self, n: int) -> list[int]:
        """Return the classes of a member's output axes, in order."""
        rank = self.members[n].kernel.root.rank
        return [self.classes[n, a] for a in range(rank) if (n, a) in self.classes]

    def reduced_classes(self, n: int) -> set[int]:
        """Return the classes of the axes over which a member's root reduces."""
        root = self.members[n].kernel.root
        return self.classes_of(n, range(root.rank, len(root.parts[0].domain)))

    def columns(self, n: int) -> list[int]:
        """Return the classes of a sink's results that its tile tensors do not have."""
        tile = {*self.batch, *self.sides[0], *self.sides[1]}
        return [c for c in self.output_classes(n) if c not in tile]

    def results(self, n: int) -> list[int]:
        """Return the places that a member writes."""
        m = self.members[n]
        return [m.places[b] for s in m.kernel.stages for b in s.outputs if b is not None]

    def class_of_view(self, place: int, shape: Sequence[int], d: int) -> int:
        """Return the class of a dimension of more than one point of a view of a result."""
        return self.classes[self.writers[place], _wide(self.shapes[place])[_wide(shape).index(d)]]

    def is_swept(self, n: int) -> bool:
        """Return whether a sweep leaves a member's results in memory: sums of a sink, or a stored tile tensor."""
        return n in self.sinks or any(p in self.stored for p in self.results(n))

    def closure(self, n: int) -> list[int]:
        """Return the members that make the tile tensors that a member reads, directly or not, in order, and itself."""
        out, todo = {n}, [n]
        while todo:
            for p in _reads_places(self.members[todo.pop()]):
                if p in self.makers and self.makers[p] not in out:
                    out.add(self.makers[p])
                    todo.append(self.makers[p])
        return sorted(out)

    def columns_of_programs(self, n: int) -> tuple[int, int]:
        """Return (the columns of a sink that a program computes, the number of programs that share them)."""
        count = self.count(self.columns(n))
        most = MOST_COLUMNS if self.product_of(n) is not None else MOST_UNROLLED
        return min(count, most), -(-count // most)

    def product_of(self, n: int) -> Problem | None:
        """Return a member's sum as a product of two operands that `dot` can multiply; None where it is none."""
        kernel = self.members[n].kernel
        products = problems(kernel.root) if isinstance(kernel.root.parts[0].body, Reduce) else None
        if products is None or len(products) != 1:
            return None
        (p,) = products
        if p.companion is not None or needs_exact_guards(p) or not p.dtype.is_float or p.count(p.k) < LEAST_DOT_POINTS:
            return None
        return p if self.operands(n, p) is not None else None

    def operands(self, n: int, p: Problem) -> tuple[int, int] | None:
        """Return the numbers of the left and right operand of a member's product; None where it is not a product of
        matrices. Of a tile, the left one has the axes of side 0, the right one those of side 1; of a sink, the left one
        is the tile."""
        own = [self.classes_of(n, o.axes) for o in p.operands]
        tiles = [{self.slot_place(n, 0, r.slot) for r in _reads_of_operand(o)} & self.makers.keys() for o in p.operands]
        for left, right in ((0, 1), (1, 0)):
            if n in self.sinks:
                held = self.sides[self.sinks[n]]
                fits = not tiles[right] and not own[right] & {*held} and not own[left] & {*self.columns(n)}
                if fits and self.count(self.columns(n)) >= LEAST_DOT_POINTS:
                    return left, right
            elif not any(tiles) and not own[left] & {*self.sides[1]} and not own[right] & {*self.sides[0]}:
                return left, right
        return None

    def slot_place(self, n: int, stage: int, slot: int) -> int | None:
        """Return the place that a slot of a member's stage reads; None for a result of a stage."""
        kind, *where = self.members[n].kernel.stages[stage].args[slot]
        return self.members[n].places[where[0]] if kind == "buffer" else None


def _reads_of_operand(o: Operand) -> Iterator[Read]:
    for e in (o.expr, *o.guards):
        yield from reads(e)


def _reads_places(m: Member, stages: Sequence[Stage] | None = None) -> set[int]:
    """Return the places that a member's stages read."""
    considered = m.kernel.stages if stages is None else stages
    return {m.places[where[0]] for s in considered for kind, *where in s.args if kind == "buffer"}


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


def _is_whole(m: Member) -> bool:
    """Return whether a member computes its results in one piece."""
    parts = m.kernel.root.parts
    return len(parts) == 1 and isinstance(parts[0], Piece) and parts[0].extents == m.kernel.root.shape


# --------------------------------------------------------------------------------------------------- classes of axes


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
        whole = _is_whole(m)
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
        self.largest = [(chain.writers[largest], d) for d in _wide(chain.shapes[largest])]
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
            todo += [p for n in near for p in chain.results(n) if self.roots(n, _wide(chain.shapes[p])) == tile]

    def align(self, place: int) -> None:
        """Add a tensor of the extents of tile tensors that no member joins with one, dimension by dimension, unless
        this joins two axes of a member."""
        if place in self.tiles:
            return
        before, tiles = dict(self.parents), dict(self.tiles)
        writer = self.chain.writers[place]
        for d, x in zip(_wide(self.chain.shapes[place]), self.largest, strict=True):
            self.parents[self.root((writer, d))] = self.root(x)
        self.add(place)
        for n, m in enumerate(self.chain.members):
            axes = _wide(_domain(m))
            if len(self.roots(n, axes)) < len(axes):
                self.parents, self.tiles = before, tiles
                return


def _domain(m: Member) -> tuple[int, ...]:
    """Return the extents of a member's axes: those of the output alone where it has several pieces."""
    root = m.kernel.root
    return root.parts[0].domain if _is_whole(m) else root.shape


def _classify(chain: Chain, largest: int) -> None:
    """Find the tile tensors: the local results whose dimensions are those of the tensor `largest`; and the classes of
    axes, which they join. Raises _NoChain."""
    joining = _Joining(chain, largest)
    readings, root = joining.readings, joining.root
    chain.makers = {p: chain.writers[p] for p in joining.tiles}
    numbers: dict[tuple[int, int], int] = {}
    for n, m in enumerate(chain.members):
        domain = _domain(m)
        for a in _wide(domain):
            c = numbers.setdefault(root((n, a)), len(numbers))
            if chain.extents.setdefault(c, domain[a]) != domain[a]:
                raise _NoChain
            chain.classes[n, a] = c
    for n, p, pairs in readings:
        # A result by the row is a program's own where it is read in that row.
        writer = chain.writers[p]
        own = {c: chain.classes[n, a] for d, a in pairs or () for c in [chain.classes[writer, d]]}
        of_tile = {chain.classes[chain.writers[largest], d] for d in _wide(chain.shapes[largest])}
        if pairs is None or any(c in of_tile and c != other for c, other in own.items()):
            chain.impure.add((n, p))


def _wide(shape: Sequence[int]) -> list[int]:
    """Return the dimensions of more than one point."""
    return [d for d, n in enumerate(shape) if n > 1]


def _pure(r: Read, t: Template, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    """Return (dimension, axis) for each dimension of a tensor of a shape that a read indexes by axes alone; None where
    it reads it otherwise."""
    view = t.params[r.slot][1]
    if [x for x in view if x > 1] != [x for x in shape if x > 1]:
        return None
    domain = t.parts[0].domain
    out = []
    for d, v in zip(_wide(shape), _wide(view), strict=True):
        index = r.index[v]
        if not isinstance(index, Axis) or domain[index.position] != view[v]:
            return None
        out.append((d, index.position))
    return tuple(out)


# -------------------------------------------------------------------------------------------------------- the sides


def _find_sides(chain: Chain, largest: int) -> None:
    """Find the two sides: that over which the first reader of a tile tensor reduces it, and the other axes, but for
    those that every operand has."""
    writer = chain.writers[largest]
    tile = [chain.classes[writer, d] for d in _wide(chain.shapes[largest])]
    reduced: list[int] = []
    for n, m in enumerate(chain.members):
        inner = chain.reduced_classes(n)
        if not reduced and _reads_places(m) & chain.makers.keys():
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


# --------------------------------------------------------------------------------------------------- tiles and sinks


def _find_sinks(chain: Chain) -> None:
    """Find the members that reduce tile tensors over a side, and the tile tensors that others read. Raises _NoChain
    where the members that make tile tensors do not fit."""
    tile = {*chain.batch, *chain.sides[0], *chain.sides[1]}
    stored = {p for p in chain.makers if p < len(chain.rows.buffers)}
    for n, m in enumerate(chain.members):
        outputs = chain.output_classes(n)
        makes = [p in chain.makers for p in chain.results(n)]
        read = _reads_places(m) & chain.makers.keys()
        fits = _is_whole(m) and len({*outputs}) == len(outputs) and not any((n, p) in chain.impure for p in read)
        if any(makes):
            if not fits or not all(makes) or {*outputs} != tile:
                raise _NoChain
            continue
        inner = chain.reduced_classes(n)
        held = next((k for k in (0, 1) if inner == {*chain.sides[1 - k]}), None)
        late = _reads_places(m, m.kernel.stages[1:]) & chain.makers.keys()
        if held is None or not fits or late or not {*outputs} >= {*chain.batch, *chain.sides[held]} or not read:
            stored |= read
        else:
            chain.sinks[n] = held
    if not chain.sinks:
        raise _NoChain
    chain.stored = stored


# -------------------------------------------------------------------------------------------------- phases and sweeps


def _divide(chain: Chain) -> None:
    """Divide the sinks into phases and sweeps, in an order in which operands precede their readers."""
    at: dict[int, tuple[int, int]] = {}  # place -> (step, sweep) that makes it
    for n in _order(chain):
        m = chain.members[n]
        if not chain.is_swept(n):
            chain.steps.append(n)
            at |= dict.fromkeys(chain.results(n), (len(chain.steps) - 1, 0))
            continue
        closure = chain.closure(n)
        terms = m.kernel.stages[:1] if n in chain.sinks else m.kernel.stages
        inside = {p for k in closure for p in _reads_places(chain.members[k], None if k != n else terms)}
        after = _reads_places(m, m.kernel.stages[len(terms) :])
        known = at.keys() - chain.makers.keys()
        step, sweep = _place_of_sink(chain, n, inside & known, after & known, at)
        at |= dict.fromkeys(chain.results(n), (step, sweep))


def _order(chain: Chain) -> list[int]:
    """Return the members that are swept or lowered apart in a valid order, the latter as early as possible, so that
    they do not lie between phases."""
    left = [n for n in range(len(chain.members)) if chain.is_swept(n) or n not in chain.makers.values()]
    needs: dict[int, set[int]] = {}
    for n in left:
        members, own_places = (chain.closure(n), chain.makers.keys()) if chain.is_swept(n) else ([n], ())
        read = {p for k in members for p in _reads_places(chain.members[k])}
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
    """Return whether one program computes all columns of sinks, so that a later sweep finds them."""
    return all(chain.columns_of_programs(n)[1] == 1 for n in members)


def _joins(chain: Chain, held: int, n: int, sinks: Sequence[int], own: set[int], inside: set[int]) -> bool:
    """Return whether a sink may be computed in the sweep of `sinks`, whose results `own` it reads. inside: what its
    terms read."""
    if any(chain.columns(k) for k in sinks for p in chain.results(k) if p in own):
        return False
    if sum(chain.columns_of_programs(k)[0] for k in [*sinks, n] if chain.columns(k)) > MOST_COLUMNS:
        return False
    if not own & inside:
        return True
    following = _find_following(chain, held, [*sinks, n])
    if following is None:
        return False
    chain.following |= following
    return True


def _find_following(chain: Chain, held: int, sinks: Sequence[int]) -> dict[int, Following] | None:
    """Return how sums of a sweep follow running results of it; None where a value depends on one otherwise."""
    swept = chain.sides[1 - held]
    if len(swept) > 1:
        return None
    members = sorted({k for n in sinks for k in chain.closure(n)})
    shapes: dict[int, tuple] = {}
    for m in chain.members:
        for p, b in zip(m.places, m.kernel.buffers, strict=True):
            shapes.setdefault(p, (b.shape, b.dtype))
    leaves = {p: leaf(shape, dtype) for p, (shape, dtype) in shapes.items()}
    parts = []
    for n, m in enumerate(chain.members):
        written = {*chain.results(n)}
        parts.append(RowPart(m.kernel, tuple(leaves[p] for p in m.places), tuple(p in written for p in m.places)))
    forms = {}
    for n in members:
        form = _form_along(chain, n, swept[0])
        if form is None:
            return None
        forms[n] = form
    scales = followers(parts, members, forms, {leaves[p] for p in chain.stored})
    if scales is None:
        return None
    out = {}
    for n, scale in scales.items():
        place = next(p for p, t in leaves.items() if t is scale.result)
        reducer = next(k for k in range(len(chain.members)) if place in chain.results(k))
        body = chain.members[reducer].kernel.root.parts[0].body
        if reducer not in sinks or not isinstance(body, Reduce) or body.combiner not in ("max", "min"):
            return None
        out[n] = Following(reducer, place)
    return out


def _form_along(chain: Chain, n: int, swept: int) -> RowForm | None:
    """Return the row form of a member whose rows are the points of class `swept`; None where there is none."""
    m = chain.members[n]
    for form in nested_forms(m.kernel).get(chain.extents[swept], ()):
        if form.reduces != (n in chain.sinks):
            continue
        shapes = [b.shape for b in form.of(m.kernel.buffers)]
        if [b.shape for b in form.kernel.buffers] != shapes:
            continue
        tiles = [
            (p, b.shape, code)
            for p, b, code in zip(form.of(m.places), form.kernel.buffers, form.by_row, strict=True)
            if p in chain.makers
        ]
        if all(code and chain.class_of_view(p, shape, code - 1) == swept for p, shape, code in tiles):
            return form
    return None
