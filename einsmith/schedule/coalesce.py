"""Coalesce copies: the tensor that a kernel only copies lies inside the other one, and nothing is copied.

before: {S = relu(conv)};  {P[c, 2*y + i, 2*x + j] = S[c, i, j, y, x]};  {Q = cat(P, T)};  {conv of Q}
after:  {relu(conv), stored to Q at the strides of c, 2*y + i, 2*x + j};  {T, stored to the rest of Q};  {conv of Q}

Pieces of a kernel that only copy (a concatenation, a transposition, a slice, channel shuffle, pixel shuffle) are taken
one by one. Either the source is stored in the result, or the result is read in the source. Every kernel that touches
the tensor that disappears gets the strides of its elements in the other one; axes that pass from one stride to the next
are split (`layout.apply.move_call`). Kernels joined by rows are separated where they cannot be moved together, and
joined again if that is faster. A kernel may read one part of a tensor and write another one; none reads what it writes,
as it would need its own result. The sum of the predicted times of all kernels concerned decides, and the peak of live
bytes must not rise. This is the coalescing of register allocation (Chaitin 1982), for tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

from einsmith.base.errors import CompileError, VerifyError
from einsmith.base.locks import cached_property
from einsmith.cost.facts import Target
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Axis, Expr, Leaf, Piece, Read, Template, Tensor, nbytes
from einsmith.ir.rebuild import renumber, slots_read
from einsmith.ir.views import storage
from einsmith.schedule.arena import lifetimes
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows, Stage, row_major
from einsmith.schedule.layout.apply import fixed_tensors, move_call
from einsmith.schedule.layout.dimension_orders import Placement, merge_runs
from einsmith.schedule.layout.price import sums_operand
from einsmith.schedule.plan import CopyPrices, KernelCall, LoopCall, Plan
from einsmith.schedule.row_fusion import common_rows, join

MIN_SHARE = 0.005
"""Smallest part of the predicted time of all kernels concerned that a copy takes for it to be weighed. Predictions of
the same kernel with other strides differ from measured times by 1 % and more, and pricing a chain of products takes
long (a step of BERT: 24 of 36 copies take less, and weighing them took 10 % of planning)."""
Seconds = Callable[[Kernel], float]
"""Predicts the seconds of a kernel; raises CompileError if no pattern accepts it."""


class _Way(NamedTuple):
    """A way to leave out a piece of a copying kernel: tensor `gone` lies in `owner`, at `place`."""

    gone: Tensor
    owner: Tensor
    place: Placement


class _Trial(NamedTuple):
    """The calls that take the place of each call concerned, and the predicted seconds of all before and after."""

    way: _Way
    calls: Mapping[int, Sequence[KernelCall]]
    before: float
    after: float


def coalesce_copies(
    plan: Plan, seconds: Seconds, target: Target, separate: Callable[[], Set[Tensor]] = frozenset
) -> Plan:
    """Return the plan, and the plans of its loops' steps, without copies where that is predicted to take less time.

    separate: returns the tensors that share memory with no other one."""
    return _Coalescing(plan, seconds, target, separate).run() if has_copies(plan) else plan


def has_copies(plan: Plan) -> bool:
    """Return whether a kernel of a plan, or of its loops' steps, copies elements in one of its pieces."""
    return any(any(map(has_copies, c.plans)) if isinstance(c, LoopCall) else _copies(c) for c in plan.calls)


def _copies(call: KernelCall) -> bool:
    """Return whether a call, or a part of it that can run separately, copies elements in one of its pieces."""
    if isinstance(call.kernel, Rows):
        return any(map(_copies, call.parts))
    return len(call.kernel.stages) == 1 and bool(copy_pieces(call.kernel.root))


def copy_pieces(t: Template) -> tuple[int, ...]:
    """Return the numbers of the pieces of a template that only copy elements."""
    return t.memo("copy pieces", _find_copy_pieces)


def _find_copy_pieces(t: Template) -> tuple[int, ...]:
    if t.is_scatter or len(t.dtypes) > 1:
        return ()
    bodies = [(n, p.body) for n, p in enumerate(t.parts) if isinstance(p, Piece)]
    return tuple(n for n, e in bodies if isinstance(e, Read) and all(_is_affine(linear(i)) for i in e.index))


def _is_affine(form: LinearForm) -> bool:
    return all(isinstance(atom, Axis) for atom in form.terms)


class _Coalescing:
    """The calls of a plan while copies are left out, in lists by the number that they had at first."""

    def __init__(self, plan: Plan, seconds: Seconds, target: Target, separate: Callable[[], Set[Tensor]]):
        self.plan, self.target, self._seconds = plan, target, seconds
        self.calls: list[list[KernelCall | LoopCall]] = [[c] for c in plan.calls]
        self.fixed, self._separate = fixed_tensors(plan), separate
        self.updated = {p for p, _ in plan.graph.updates}
        self.touching: dict[Tensor, set[int]] = {}
        self.prices: dict[Tensor, CopyPrices] = {}
        for i, c in enumerate(plan.calls):
            for t in _tensors(c):
                self.touching.setdefault(storage(t), set()).add(i)
        self.peak = _peak_bytes(plan, self.fixed)

    @cached_property
    def separate(self) -> Set[Tensor]:
        """Return the tensors that share memory with no other one."""
        return self._separate()

    def run(self) -> Plan:
        """Return the plan without the copies whose absence pays."""
        for i, call in enumerate(self.plan.calls):
            if isinstance(call, LoopCall):
                # A step's results may lie where the states that it reads do.
                steps = [
                    coalesce_copies(p, self._seconds, self.target, partial(_storages, p.graph.roots))
                    for p in call.plans
                ]
                if any(p is not q for p, q in zip(steps, call.plans, strict=True)):
                    self.calls[i] = [replace(call, plans=steps)]
            elif _copies(call):
                self._leave_out_all(i)
        return self._finish(self.calls)

    def _leave_out_all(self, i: int) -> None:
        """Leave out all copies in call i whose absence pays, unless more bytes are live at once then."""
        calls, touching = [*self.calls], dict(self.touching)
        while self._leave_out(i):
            pass
        gone = [t for t in touching if t not in self.touching]
        if all(nbytes(t) == nbytes(self.prices[t].owner) for t in gone) and len(_all(self.calls)) <= len(_all(calls)):
            return  # one tensor lives as long as the two did
        peak = _peak_bytes(self._finish(self.calls), self.fixed)
        if peak > self.peak:
            self.prices |= {t: self.prices[t]._replace(is_inside=False) for t in gone}
            self.calls, self.touching = calls, touching
        self.peak = min(peak, self.peak)

    def _leave_out(self, i: int) -> bool:
        """Leave out a piece of a copy in call i, if that pays; return whether it does."""
        for at, call in enumerate(self.calls[i]):
            if not isinstance(call, KernelCall):
                continue
            parts = call.parts if isinstance(call.kernel, Rows) else (call,)
            for part in filter(_copies, parts):
                for piece in copy_pieces(part.kernel.root):
                    ways = [*self._ways(part, piece)]
                    trials = [x for x in (self._try(i, at, part, piece, w) for w in ways) if x is not None]
                    if trials and self._keep(min(trials, key=lambda x: x.after)):
                        return True
        return False

    def _ways(self, call: KernelCall, piece: int) -> Iterator[_Way]:
        """Yield the ways to leave out a piece of a copying kernel."""
        (stage,) = call.kernel.stages
        p = stage.template.parts[piece]
        assert isinstance(p, Piece) and isinstance(p.body, Read)
        a, b = stage.args[p.body.slot][1], stage.outputs[0]
        assert b is not None
        offsets = call.offsets or (0,) * len(call.tensors)
        source, result = storage(call.tensors[a]), storage(call.tensors[b])
        if source.dtype is not result.dtype or source is result or 0 in p.extents:
            return
        buffers = ((call.kernel.buffers[n], offsets[n] // source.dtype.itemsize) for n in (a, b))
        from_, to = (_Walk.over(p, *x, i) for x, i in zip(buffers, (p.body.index, None), strict=True))
        if source not in self.fixed and result not in self.plan.home:
            place = _inside(from_, to, p.extents, source)
            if place is not None:
                yield _Way(source, result, place)
        can_hold = (
            source not in self.updated and source.after is None
            if isinstance(source, Leaf)
            else source not in self.plan.home
        )
        if result not in self.fixed and can_hold and len(stage.template.parts) == 1:
            place = _inside(to, from_, p.extents, result)
            if place is not None:
                yield _Way(result, source, place)

    def _try(self, i: int, at: int, part: KernelCall, piece: int, way: _Way) -> _Trial | None:
        """Return what a way changes; None if it is not possible."""
        out: dict[int, Sequence[KernelCall]] = {}
        touching = sorted(self.touching[way.gone])
        calls = [c for j in touching for c in self.calls[j]]
        if not all(isinstance(c, KernelCall) for c in calls):
            return None
        before = sum(self._price(c) for c in calls if isinstance(c, KernelCall))
        if self._price(part) < MIN_SHARE * before:
            return None
        after = 0.0
        for j in touching:
            new: list[KernelCall] = []
            for n, call in enumerate(self.calls[j]):
                assert isinstance(call, KernelCall)
                moved = self._move(call, way, part if (j, n) == (i, at) else None, piece)
                if moved is None:
                    return None
                new += moved
                after += sum(self._price(c) * self._margin(c, way) for c in moved)
            out[j] = new
        return _Trial(way, out, before, after)

    def _move(self, call: KernelCall, way: _Way, copy: KernelCall | None, piece: int) -> list[KernelCall] | None:
        """Return the calls that take the place of one, without the piece of its part `copy`; None if there are none."""
        if call is copy:
            rest = _without_piece(call, piece)
            return [] if rest is None else self._move(rest, way, None, piece)
        if copy is None:
            if way.gone not in map(storage, call.tensors):
                return [call]
            moved = _moved(call, way)
            if moved is not None:
                return [moved]
        if not isinstance(call.kernel, Rows) or not call.parts or call.kernel.reuses:
            return None  # a chain of products is joined for results that it does not store
        separate = [self._move(p, way, copy if p is copy else None, piece) for p in call.parts]
        if None in separate:
            return None
        parts = [c for calls in separate if calls is not None for c in calls]
        if any(way.owner in c.results for c in parts) and any(way.owner in c.operands for c in parts):
            return parts  # rows would keep a tensor to themselves of which another kernel stores a part
        joined = _joined(parts, {way.owner if t is way.gone else t for t in call.results}, self.target)
        return parts if joined is None or self._price(joined) >= sum(map(self._price, parts)) else [joined]

    def _margin(self, call: KernelCall, way: _Way) -> float:
        """Return the factor for the prediction of a moved call: more than 1 for sums that gather, which the model knows
        less well (`cost.facts.LayoutRules`); stores at other strides, and pointwise kernels, take no longer than
        predicted (docs/architecture.md)."""
        is_strided = bool(way.place.runs) and way.place.runs[-1].new != 1
        return 1 + self.target.layouts.margin_of_sums * (is_strided and sums_operand(call, {way.owner}))

    def _price(self, call: KernelCall) -> float:
        try:
            return self._seconds(call.kernel)
        except CompileError:
            return float("inf")

    def _keep(self, trial: _Trial) -> bool:
        """Make the changes of a trial if they pay; return whether they do."""
        gone, owner, _ = trial.way
        pays = trial.after < trial.before and self.separate.isdisjoint((gone, owner))
        self.prices[gone] = CopyPrices(owner, trial.after, trial.before, pays)
        if not pays:
            return False
        for j, new in trial.calls.items():
            self.calls[j] = [*new]
        self.touching[owner] = self.touching[owner] | self.touching.pop(gone)
        return True

    def _finish(self, lists: Sequence[Sequence[KernelCall | LoopCall]]) -> Plan:
        """Return the plan of these calls."""
        plan, calls = self.plan, _all(lists)
        if all(c is d for c, d in zip(calls, plan.calls, strict=False)) and len(calls) == len(plan.calls):
            return replace(plan, copies=self.prices) if self.prices else plan
        return replace(plan.with_calls(lists), copies=self.prices)


def _storages(tensors: Collection[Tensor]) -> set[Tensor]:
    return set(map(storage, tensors))


def _all(lists: Sequence[Sequence[KernelCall | LoopCall]]) -> list[KernelCall | LoopCall]:
    return [c for some in lists for c in some]


def _tensors(call: KernelCall | LoopCall) -> Iterator[Tensor]:
    """Yield the tensors of a call and, if its kernels were joined, those that pass between them."""
    yield from call.tensors
    for part in call.parts if isinstance(call, KernelCall) else ():
        yield from _tensors(part)


def _joined(calls: Sequence[KernelCall], results: Collection[Tensor], target: Target) -> KernelCall | None:
    """Return the call of the kernels of several, joined by rows; None if they cannot be, or if they see a tensor at
    different strides. results: those that are needed outside of it."""
    if len(calls) < 2 or any(any(c.offsets) or isinstance(c.kernel, Rows) for c in calls):
        return None
    if not common_rows(calls, target)[0]:
        return None
    whole = join(calls, results, target)
    kernel = whole.kernel
    assert isinstance(kernel, Rows)
    buffers = list(kernel.buffers)
    for n, b in enumerate((*buffers, *kernel.local)):
        views = {m.kernel.buffers[k] for m in kernel.members for k, place in enumerate(m.places) if place == n}
        if any(v.strides != row_major(v.shape) or v.size != b.size for v in views):
            if len(views) > 1 or n >= len(buffers):  # a row of what stays local is dense
                return None
            buffers[n] = views.pop()
    rows = Rows(kernel.rows, kernel.members, tuple(buffers), kernel.local, None, kernel.takes_sums)
    return replace(whole, kernel=rows)


class _Walk(NamedTuple):
    """How a piece that copies walks over a tensor: the element at which it begins, and the stride of each axis."""

    begin: int
    strides: tuple[int, ...]

    @classmethod
    def over(cls, p: Piece, buffer: KernelBuffer, first: int, index: Sequence[Expr] | None) -> _Walk:
        """Return the walk over a buffer that begins at element `first` of a tensor. index: what the piece reads, made
        of its axes; None: what it writes."""
        if index is None:
            begin = sum(o * s for o, s in zip(p.offset, buffer.strides, strict=True))
            return cls(first + begin, tuple(k * s for k, s in zip(p.step, buffer.strides, strict=True)))
        form = LinearForm()
        for e, s in zip(index, buffer.strides, strict=True):
            form = form + linear(e) * s
        return cls(first + form.const, tuple(form.terms.get(Axis(d), 0) for d in range(len(p.extents))))


def _inside(inner: _Walk, outer: _Walk, extents: Sequence[int], t: Tensor) -> Placement | None:
    """Return where t, over which a copy walks as `inner`, lies in the other tensor; None if the copy does not touch all
    of it, each element once, or if two elements would share a place."""
    runs = [(n, s, o) for n, s, o in zip(extents, inner.strides, outer.strides, strict=True) if n > 1]
    runs.sort(key=lambda x: -x[1])
    expected = 1
    for n, s, _ in reversed(runs):
        if s != expected:
            return None
        expected *= n
    reach = 0
    for n, _, o in sorted(runs, key=lambda x: x[2]):
        if o <= reach:
            return None
        reach += o * (n - 1)
    return None if inner.begin or expected != prod(t.shape) else Placement(merge_runs(runs), outer.begin, True)


def _without_piece(call: KernelCall, piece: int) -> KernelCall | None:
    """Return a copying call without one of its pieces; None if nothing is left."""
    (stage,) = call.kernel.stages
    t = stage.template
    parts = (*t.parts[:piece], *t.parts[piece + 1 :])
    if not parts:
        return None
    rest = Template(t.shape, t.params, parts)
    read = slots_read(rest)
    used = [n for n in range(len(call.tensors)) if n in {*stage.outputs, *(stage.args[s][1] for s in read)}]
    place = {n: k for k, n in enumerate(used)}
    rest = renumber(rest, tuple((s, k) for k, s in enumerate(read)), tuple(t.params[s] for s in read))
    args = tuple(("buffer", place[stage.args[s][1]]) for s in read)
    outputs = tuple(None if n is None else place[n] for n in stage.outputs)
    fixed = call.kernel.loop_invariant
    same = None if fixed is None else tuple(place[n] for n in fixed if n in place)
    kernel = Kernel((Stage(rest, args, outputs),), tuple(call.kernel.buffers[n] for n in used), same)
    tensors, written = (tuple(x[n] for n in used) for x in (call.tensors, call.written))
    offsets = tuple(call.offsets[n] for n in used) if call.offsets else ()
    return replace(call, kernel=kernel, tensors=tensors, written=written, offsets=offsets)  # type: ignore[arg-type]


def _moved(call: KernelCall, way: _Way) -> KernelCall | None:
    """Return the call with a tensor inside another one; None if its kernel cannot be moved."""
    try:
        moved = move_call(call, {way.gone: way.place})
    except VerifyError:
        return None
    return None if moved is None else _renamed(moved, way)


def _renamed(call: KernelCall, way: _Way) -> KernelCall:
    tensors = tuple(way.owner if storage(t) is way.gone else t for t in call.tensors)
    return replace(call, tensors=tensors, parts=tuple(_renamed(p, way) for p in call.parts))


def _peak_bytes(plan: Plan, outside: Collection[Tensor]) -> int:
    """Return the most bytes of intermediate results that are live at once."""
    change = [0] * (len(plan.calls) + 1)
    for t, (first, last) in lifetimes(plan, outside).items():
        change[first] += nbytes(t)
        change[last + 1] -= nbytes(t)
    peak = live = 0
    for x in change:
        live += x
        peak = max(peak, live)
    return peak
