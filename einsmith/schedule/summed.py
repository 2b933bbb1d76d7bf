"""Take sums of a kernel's results while it holds them, instead of reading the results again.

before: z[n,c,i] = sum[k](w[c,k]*x[n,k,i]);  m[c] = sum[n,i](z[n,c,i])/N;  v[c] = sum[n,i]((z[n,c,i] - m[c])**2)/N
after:  one kernel: its epilogue adds up what each task computes of z; further launches combine the tasks' sums

The sums are reductions over some of the main kernel's output axes, of expressions of its results at one element. Sums
of squared deviations from a mean are combined from those of parts, without cancellation (Chan, Golub and LeVeque 1983,
"Algorithms for computing the sample variance"). The kernels are a `Rows` of one row, of which the first member is the
main one; `summed_form` gives what is lowered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    apply,
    axes_of,
    reads,
    template,
)
from einsmith.ir.rebuild import substitute, whole_piece
from einsmith.schedule.kernel import EpilogueSum, Kernel, KernelBuffer, Member, Rows, Stage
from einsmith.schedule.means import is_mean

MAX_SUMS = 8
"""Most sums that an epilogue takes, all of the same kept axes; each has a vector for every row of a task."""
_FLOATS = (dt.f32, dt.f64)


class SumPart(NamedTuple):
    """What parts of the main kernel leave of its sum `number`: the "sum" itself; of a centred sum the "count" of terms,
    the "mean" and the sum of "squares" of deviations from it. All but the count have an axis of parts, then the kept
    axes."""

    number: int
    what: str


Source = int | SumPart
"""What a buffer holds: that of the `Rows` at this place, or sums of parts."""


class SumKernel(NamedTuple):
    """A kernel to be lowered, and what each of its buffers holds."""

    kernel: Kernel
    sources: tuple[Source, ...]


class SummedForm(NamedTuple):
    """How a `Rows` of one row is lowered: the main kernel with its sums, and the reductions that are finished."""

    main: SumKernel
    finishes: tuple[Finish, ...]


class _Buffers:
    """Numbers the buffers of a kernel under construction by what they hold."""

    def __init__(self) -> None:
        self.known: dict[tuple[Source, KernelBuffer], int] = {}

    def number(self, source: Source, buffer: KernelBuffer) -> int:
        return self.known.setdefault((source, buffer), len(self.known))

    def args(self, stage: Stage, places: Sequence[int], kernel: Kernel) -> tuple[tuple, ...]:
        """Return the arguments of a stage of a kernel whose buffers are at `places`."""
        return tuple(
            ("buffer", self.number(places[ref[1]], kernel.buffers[ref[1]])) if ref[0] == "buffer" else ref
            for ref in stage.args
        )

    def outputs(self, outputs: Sequence[int | None], places: Sequence[int], kernel: Kernel) -> tuple[int | None, ...]:
        """Return the numbers of outputs of a kernel whose buffers are at `places`."""
        return tuple(None if n is None else self.number(places[n], kernel.buffers[n]) for n in outputs)

    def build(self, stages: Sequence[Stage], sums: tuple[EpilogueSum, ...] = ()) -> SumKernel:
        kernel = Kernel(tuple(stages), tuple(b for _, b in self.known), None, sums)
        return SumKernel(kernel, tuple(s for s, _ in self.known))


class Finish(NamedTuple):
    """A reduction whose sums the main kernel takes, to be finished from the sums of parts.

    kernel: the reduction as it was. places: the place in the `Rows` of each of its buffers. sums: for each of its
    bodies, the number of the main kernel's sum. mean: the read of the mean from which squared deviations are summed;
    None: the bodies are summed as they are. strides: what each axis of the result adds to the number of an element.
    """

    kernel: Kernel
    places: tuple[int, ...]
    sums: tuple[int, ...]
    mean: Read | None
    strides: tuple[int, ...]

    def build(self, sums: Sequence[EpilogueSum], parts: int) -> SumKernel:
        """Return the kernel that finishes the reduction from the sums of `parts` parts."""
        table = _Buffers()
        stage, *later = self.kernel.stages
        shape, dtype = stage.template.shape, stage.template.dtypes[0]
        part, own = Axis(len(shape)), tuple(map(Axis, range(len(shape))))
        refs: list[tuple] = []

        def read(source: Source, buffer: KernelBuffer, index: tuple[Expr, ...]) -> Read:
            ref = ("buffer", table.number(source, buffer))
            if ref not in refs:
                refs.append(ref)
            return Read(refs.index(ref), index, buffer.dtype)

        def of_parts(number: int, what: str) -> Read:
            strides = (prod(shape), *self.strides)
            return read(SumPart(number, what), KernelBuffer(dtype, (parts, *shape), False, strides), (part, *own))

        def body(number: int) -> Expr:
            if not sums[number].centred:
                return of_parts(number, "sum")
            count = read(SumPart(number, "count"), KernelBuffer(dtype, (parts,)), (part,))
            mean = of_parts(number, "mean")
            if self.mean is None:
                return apply("mul", count, mean)
            n = stage.args[self.mean.slot][1]
            deviation = apply("sub", mean, read(self.places[n], self.kernel.buffers[n], self.mean.index))
            moved = apply("mul", count, apply("mul", deviation, deviation))
            return apply("add", of_parts(number, "squares"), moved)

        bodies = tuple(map(body, self.sums))
        params = [(b.dtype, b.shape) for b in (list(table.known)[n][1] for _, n in refs)]
        root = template(shape, params, Reduce("sum", (parts,), bodies))

        stages = [Stage(root, tuple(refs), table.outputs(stage.outputs, self.places, self.kernel))]
        for s in later:
            args = table.args(s, self.places, self.kernel)
            stages.append(Stage(s.template, args, table.outputs(s.outputs, self.places, self.kernel)))
        return table.build(stages)


class _Terms(NamedTuple):
    """The terms of a reduction, as stages of the main kernel.

    stages: one for each body. kept: the main kernel's axes that the result keeps. axes: each axis of the reduction in
    terms of the main kernel's axes. strides: see `Finish`. mean: see `Finish`.
    """

    stages: tuple[Stage, ...]
    kept: tuple[int, ...]
    axes: dict[int, Expr]
    strides: tuple[int, ...]
    mean: Read | None


@lru_cache(maxsize=4096)
def summed_form(rows: Rows) -> SummedForm | None:
    """Return how kernels that sum the first one's results are lowered together; None if one is no such sum."""
    main = rows.members[0].kernel
    if not rows.takes_sums or main.root.is_scatter or main.root.dtypes[0] not in _FLOATS or 0 in main.shape:
        return None
    matcher = _Matcher(rows)
    members = rows.members[1:]
    finishes = []
    for member in members:
        finish = matcher.match(member)
        if finish is None:
            return None
        finishes.append(finish)
    if len(matcher.sums) > MAX_SUMS or len({kept for _, kept in matcher.sums}) != 1:
        return None
    stages, sums = list(matcher.stages), []
    for (stage, kept), centred in matcher.sums.items():
        sums.append(EpilogueSum(len(stages), kept, centred))
        stages.append(stage)
    return SummedForm(matcher.table.build(stages, tuple(sums)), tuple(finishes))


class _Matcher:
    """Matches the reductions of a `Rows` of one row, member by member.

    results: (stage, member) of the main kernel's results, by place. strides: theirs. sums: whether each sum is centred,
    by its terms and kept axes. means: the terms of which each mean is one, by place. finished: places of the results so
    far.
    """

    def __init__(self, rows: Rows):
        self.rows, (main, *_) = rows, rows.members
        self.main, self.table = main.kernel, _Buffers()
        self.results: dict[int, tuple[int, int]] = {}
        self.strides: dict[int, tuple[int, ...]] = {}
        self.sums: dict[tuple[Stage, tuple[int, ...]], bool] = {}
        self.means: dict[int, _Terms] = {}
        self.finished: set[int] = set()
        self.stages = [self._own_stage(i, stage, main) for i, stage in enumerate(main.kernel.stages)]

    def _own_stage(self, i: int, stage: Stage, main: Member) -> Stage:
        """Return a stage of the main kernel, which stores the results that are needed elsewhere."""

        needed: list[int | None] = []
        for m, n in enumerate(stage.outputs):
            if n is not None:
                self.results[main.places[n]] = i, m
                self.strides[main.places[n]] = main.kernel.buffers[n].strides
            needed.append(n if n is not None and main.places[n] < len(self.rows.buffers) else None)
        outputs = self.table.outputs(needed, main.places, main.kernel)
        return Stage(stage.template, self.table.args(stage, main.places, main.kernel), outputs)

    def match(self, member: Member) -> Finish | None:
        """Return how a reduction is finished; None if it is no sum of the main kernel's results."""
        kernel, (root, *later) = member.kernel, member.kernel.stages
        terms = self._terms(member)
        if terms is None:
            return None
        for stage in terms.stages:
            key = stage, terms.kept
            self.sums[key] = self.sums.get(key, False) or terms.mean is not None
        order = list(self.sums)
        body = root.template.parts[0].body
        assert isinstance(body, Reduce)
        for stage in later if len(terms.stages) == 1 and terms.mean is None else ():
            if stage.outputs[0] is not None and is_mean(root, stage, prod(body.extents)):
                self.means[member.places[stage.outputs[0]]] = terms
        self.finished |= {*member.results}
        numbers = tuple(order.index((stage, terms.kept)) for stage in terms.stages)
        return Finish(kernel, member.places, numbers, terms.mean, terms.strides)

    def _terms(self, member: Member) -> _Terms | None:
        """Return the terms of a reduction; None if it is no sum of the main kernel's results."""
        root = member.kernel.root
        piece = whole_piece(root)
        if piece is None:
            return None
        body, dtype = piece.body, self.main.root.dtypes[0]
        if not isinstance(body, Reduce) or body.combiner != "sum" or any(b.dtype != dtype for b in body.bodies):
            return None
        chains = self._chains(member, piece)
        if chains is None:
            return None
        axes = {
            a: LinearForm(0, {Axis(d): n for d, n in chain}).expr() if chain else Const(0, dt.i32)
            for a, chain in chains.items()
        }
        rank = len(piece.extents)
        kept = tuple(sorted(d for a in range(rank) for d, _ in chains[a]))
        strides = tuple(self._kept_stride(kept, chains[a]) for a in range(rank))
        if -1 in strides:
            return None
        mean, bodies = self._deviations(member, body.bodies, axes, rank)
        stages = [self._stage(member, b, axes) for b in bodies]
        if any(s is None for s in stages):
            return None
        terms = _Terms(tuple(s for s in stages if s is not None), kept, axes, strides, mean)
        if mean is not None:
            of = self.means[member.places[member.kernel.stages[0].args[mean.slot][1]]]
            if any(s is not of.stages[0] for s in terms.stages) or kept != of.kept:
                return None
        return terms

    def _chains(self, member: Member, piece: Piece) -> dict[int, list[tuple[int, int]]] | None:
        """Return the main kernel's axes, innermost first, that correspond to each axis of a reduction, each with its
        stride in that axis; None if the reduction does not read the main kernel's results at every element once."""
        kernel, axes = member.kernel, None
        for r in dict.fromkeys(e for b in piece.bodies for e in reads(b)):
            n = kernel.stages[0].args[r.slot][1]
            place = member.places[n]
            if place not in self.results:
                continue
            chains = _match_axes(r, kernel.buffers[n], piece.domain, self.main.shape, self.strides[place])
            if chains is None or axes not in (None, chains):
                return None
            axes = chains
        return axes

    def _kept_stride(self, kept: Sequence[int], chain: Sequence[tuple[int, int]]) -> int:
        """Return what an axis of the result adds to the number of an element of the sum; -1 if it is no one number."""
        shape = self.main.shape
        numbers = [prod(shape[k] for k in kept if k > d) for d, _ in chain]
        if any(x != numbers[0] * n for x, (_, n) in zip(numbers, chain, strict=True)):
            return -1
        return numbers[0] if numbers else 1

    def _deviations(
        self, member: Member, bodies: Sequence[Expr], axes: Mapping[int, Expr], rank: int
    ) -> tuple[Read | None, Sequence[Expr]]:
        """Return (the read of the mean from which all bodies are squared deviations, of what); (None, the bodies) if
        they are none."""
        squares = [e.args[0] for e in bodies if isinstance(e, Apply) and e.fn == "mul" and e.args[0] is e.args[1]]
        if len(squares) < len(bodies):
            return None, bodies
        means, others = set[Read](), []
        for e in squares:
            pairs = (e.args, e.args[::-1]) if isinstance(e, Apply) and e.fn == "sub" else ()
            pair = next(((x, m) for x, m in pairs if self._is_own_mean(member, m, axes, rank)), None)
            if pair is None or not isinstance(pair[1], Read):
                return None, bodies
            means.add(pair[1])
            others.append(pair[0])
        return (means.pop(), others) if len(means) == 1 else (None, bodies)

    def _is_own_mean(self, member: Member, e: Expr, axes: Mapping[int, Expr], rank: int) -> bool:
        """Return whether an expression of a reduction reads the mean of the element of the sum that it belongs to."""
        if not isinstance(e, Read):
            return False
        n = member.kernel.stages[0].args[e.slot][1]
        of = self.means.get(member.places[n])
        if of is None or any(a >= rank for i in e.index for a in axes_of(i)):
            return False
        pairs = zip(e.index, member.kernel.buffers[n].shape, strict=True)
        return len(e.index) == len(of.strides) and all(
            size == 1 or linear(substitute(i, axes)) == linear(of.axes[d]) for d, (i, size) in enumerate(pairs)
        )

    def _stage(self, member: Member, body: Expr, axes: Mapping[int, Expr]) -> Stage | None:
        """Return a stage of the main kernel that computes a term; None if the term reads another sum."""
        kernel, shape = member.kernel, self.main.shape
        own = tuple(map(Axis, range(len(shape))))
        args: dict[tuple, int] = {}
        slots: dict[int, int | Expr] = {}
        params = []
        for r in dict.fromkeys(reads(body)):
            n = kernel.stages[0].args[r.slot][1]
            place = member.places[n]
            if place in self.finished:
                return None
            ref = ("stage", *self.results[place]) if place in self.results else ("buffer", self._number(member, n))
            if ref not in args:
                args[ref] = len(args)
                params.append((r.dtype, shape if ref[0] == "stage" else kernel.buffers[n].shape))
            slots[r.slot] = Read(args[ref], own, r.dtype) if ref[0] == "stage" else args[ref]
        return Stage(template(shape, params, substitute(body, axes, slots)), tuple(args), (None,))

    def _number(self, member: Member, n: int) -> int:
        return self.table.number(member.places[n], member.kernel.buffers[n])


def _match_axes(
    r: Read, buffer: KernelBuffer, domain: Sequence[int], shape: Sequence[int], strides: Sequence[int]
) -> dict[int, list[tuple[int, int]]] | None:
    """Return the axes of a box, innermost first, that correspond to each axis of a read, each with its stride in that
    axis; None unless the read is at every element of the box once.

    Args:
        r: the read.
        buffer: the buffer that it reads.
        domain: the extents of the axes of the read.
        shape: the extents of the box.
        strides: the stride of each axis of the box in the same memory.
    """
    form = LinearForm(0)
    for i, stride in zip(r.index, buffer.strides, strict=True):
        form += linear(i) * stride
    if form.const or not all(isinstance(atom, Axis) for atom in form.terms):
        return None
    free = {stride: d for d, (n, stride) in enumerate(zip(shape, strides, strict=True)) if n > 1}
    out: dict[int, list[tuple[int, int]]] = {}
    for a, extent in enumerate(domain):
        out[a], covered, step = [], 1, form.coefficient(Axis(a))
        while covered < extent:
            d = free.pop(step * covered, None)
            if d is None or not step:
                return None
            out[a].append((d, covered))
            covered *= shape[d]
        if covered != extent:
            return None
    return None if free else out
