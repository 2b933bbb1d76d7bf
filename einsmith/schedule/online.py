"""Carry sums that a running maximum or mean normalises through one sweep (online softmax, variance).

before: m[i] = max[j](s[i,j]);  then l[i] = sum[j](exp(s[i,j] - m[i]))      two sweeps over j
after:  for each block of j:  m' = max(m, max[j](s[i,j]));  l = l*exp(m - m') + sum[j](exp(s[i,j] - m'));  m = m'

A sum follows a maximum if each term is exp(s[i,j] - m[i]) times something without m, s being what the maximum is of.
The sum so far is then exact for the maximum so far, and a new maximum rescales it (Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax"). A sum of squared deviations (s[i,j] - m[i])**2 from a mean m follows the mean so
far; c*(m - m')**2 is added to a sum over c values when the mean changes (Chan, Golub and LeVeque 1983, "Algorithms for
computing the sample variance"). Results of a tile that read a running result are of no use after the tile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from einsmith.base.dtypes import DType
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, Reduce, Tensor, axes_of, reads
from einsmith.ir.rebuild import rebuild, substitute, whole_piece
from einsmith.schedule.kernel import Follow, Member, Stage
from einsmith.schedule.means import is_mean
from einsmith.schedule.row_blocks import combiner_of
from einsmith.schedule.row_forms import SweptKernel, axes_at

RUNNING = {"max": -1, "min": 1, "sum": 0}
"""Combiners whose running results m sums may follow, with the sign of m in the exponent: exp(s - m) or exp(m - s). Of
sums it is the mean, and there is no exponent."""


class Scale(NamedTuple):
    """The running result that a value depends on, read at the index `at`: it is proportional to exp of plus or minus a
    maximum or minimum, or the sum of squared deviations from a mean."""

    result: Tensor
    at: tuple[Expr, ...]


def with_follow(member: Member, members: Sequence[Member], place: int, scale: Scale) -> Member:
    """Return a member of a sweep whose sum follows a running result.

    Args:
        member: the member.
        members: the members that `Follow.reducer` counts.
        place: the buffer of the Rows that holds the result.
        scale: the result, and where a point of the sum reads it.
    """
    reducer, maker = next((n, m) for n, m in enumerate(members) if place in m.results)
    buffer = maker.kernel.buffers[maker.places.index(place)]
    axes = axes_at(buffer.shape, scale.result.shape, scale.at)
    assert axes is not None
    index = tuple(axes[d] for d in range(len(buffer.shape)))
    follows = Follow(reducer, place, index, buffer, combiner_of(maker) == "sum")
    return Member(member.kernel, member.places, member.by_row, member.reduces, member.axis, follows)


class _DependsOtherwise(Exception):
    """A value depends on a running result in a way that no factor corrects."""


def followers(kernels: Mapping[int, SweptKernel], elsewhere: Collection[Tensor]) -> dict[int, Scale] | None:
    """Return, for each sum of a sweep that follows a running result (`Follow`), that result and the index at which each
    of the sum's points reads it; None if some other value depends on one.

    Args:
        kernels: the kernels of the sweep, by number, in order.
        elsewhere: tensors that are needed outside of the sweep.
    """
    sweep = _Sweep(kernels)
    out: dict[int, Scale] = {}
    for n, (own, tensors, reduces) in kernels.items():
        kernel = _Kernel(sweep, n)
        try:
            for stage in own.stages[:1] if reduces else own.stages:
                spread = kernel.spread(stage) if reduces else None
                if spread is not None:
                    out[n] = spread
                    continue
                scales = kernel.add(stage)
                if reduces and any(scales):
                    scale, body = _only(scales), stage.template.parts[0].body
                    summed = {a for i in scale.at for a in axes_of(i) if a >= stage.template.rank}
                    if summed or not isinstance(body, Reduce) or body.combiner != "sum":
                        return None
                    out[n] = scale
                for place, x in zip(stage.outputs, scales, strict=True):
                    if place is not None and not reduces:
                        sweep.scales[tensors[place]] = x
                        sweep.shapes[tensors[place]] = stage.template.shape
                        if x is not None and tensors[place] in elsewhere:
                            return None
        except _DependsOtherwise:
            return None
    return out


def _only(scales: Sequence[Scale | None]) -> Scale:
    """Return the scale that all values have. Raises _DependsOtherwise where they differ."""
    first = scales[0] if scales else None
    if first is None or any(s != first for s in scales):
        raise _DependsOtherwise
    return first


class _Sweep:
    """What is known of the values of a sweep.

    makers: the number of the kernel that makes each result of a reduction over the axis of the sweep.
    scales: what each other tensor is proportional to. shapes: the shape whose axes the index of its scale has.
    names: what slot -1 - n of an expression in terms of tensors reads.
    """

    def __init__(self, kernels: Mapping[int, SweptKernel]):
        self.kernels = kernels
        self.makers = {t: n for n, x in kernels.items() if x.reduces for t in x.results}
        self.scales: dict[Tensor, Scale | None] = {}
        self.shapes: dict[Tensor, tuple[int, ...]] = {}
        self.names: list[Any] = []

    def read(self, name: Any, index: tuple[Expr, ...], dtype: DType) -> Read:
        """Return a read of a tensor, or of another value with a name."""
        if name not in self.names:
            self.names.append(name)
        return Read(-1 - self.names.index(name), index, dtype)

    def depends(self, e: Expr) -> bool:
        """Return whether an expression in terms of tensors depends on a running result."""
        names = [self.names[-1 - r.slot] for r in reads(e)]
        return any(t in self.makers or self.scales.get(t) is not None for t in names)

    def scale(self, e: Expr) -> Scale | None:
        """Return what an expression is proportional to; None where it depends on no running result."""
        if not self.depends(e):
            return None
        if isinstance(e, Read):
            t: Any = self.names[-1 - e.slot]
            known = self.scales.get(t)
            axes = None if known is None else axes_at(self.shapes[t], t.shape, e.index)
            if known is None or axes is None:
                raise _DependsOtherwise
            return Scale(known.result, tuple(substitute(i, axes) for i in known.at))
        assert isinstance(e, Apply)
        if e.fn == "exp":
            return self._exponential(e.args[0])
        scales = [self.scale(x) for x in e.args]
        some = [s for s in scales if s is not None]
        if e.fn in ("neg", "cast", "stop_gradient") or (e.fn == "mul" and len(some) == 1):
            return some[0]
        if e.fn == "div" and scales[1] is None:
            return some[0]
        if e.fn == "where" and scales[0] is None:
            is_zero = [isinstance(x, Const) and x.value == 0 for x in e.args[1:]]
            return _only([s for s, zero in zip(scales[1:], is_zero, strict=True) if not zero])
        raise _DependsOtherwise

    def _exponential(self, e: Expr) -> Scale:
        """Return the scale of exp(e), if e is the difference of a running result and what it is of."""
        if not isinstance(e, Apply) or e.fn != "sub":
            raise _DependsOtherwise
        for sign, (x, m) in ((-1, e.args), (1, e.args[::-1])):
            if not isinstance(m, Read):
                continue
            t: Any = self.names[-1 - m.slot]
            if t in self.makers and not self.depends(x) and self._is_of(t, sign, m, x):
                return Scale(t, m.index)
        raise _DependsOtherwise

    def _is_mean(self, t: Tensor) -> bool:
        """Return whether a result of a sum over the rows of the sweep is the sum divided by their number."""
        kernel, tensors, _ = self.kernels[self.makers[t]]
        root, *later = kernel.stages
        if len(later) != 1 or len(later[0].outputs) != 1 or later[0].outputs[0] is None:
            return False
        summed = root.template.parts[0].body
        assert isinstance(summed, Reduce)
        return tensors[later[0].outputs[0]] is t and is_mean(root, later[0], summed.extents[0])

    def is_deviation(self, e: Expr) -> Scale | None:
        """Return the running mean, if an expression is the difference of it and what it is of."""
        if not isinstance(e, Apply) or e.fn != "sub":
            return None
        for x, m in (e.args, e.args[::-1]):
            if isinstance(m, Read) and not self.depends(x):
                t: Any = self.names[-1 - m.slot]
                if t in self.makers and self._is_of(t, 0, m, x):
                    return Scale(t, m.index)
        return None

    def _is_of(self, t: Tensor, sign: int, m: Read, x: Expr) -> bool:
        """Return whether a running result `t`, read as `m`, is the largest (smallest) of x over the rows of the sweep,
        or, where `sign` is 0, the mean."""
        n = self.makers[t]
        root = self.kernels[n].kernel.root
        body = root.parts[0].body
        if not isinstance(body, Reduce) or len(body.extents) > 1 or RUNNING.get(body.combiner) != sign:
            return False
        if body.combiner == "sum" and not self._is_mean(t):
            return False
        value = _Kernel(self, n).named(body.bodies[0], self.kernels[n].kernel.stages[0].args)
        own = {a for i in m.index for a in axes_of(i)}
        at = axes_at(root.shape, t.shape, m.index)
        return at is not None and any(substitute(value, {**at, root.rank: Axis(row)}) is x for row in axes_of(x) - own)


class _Kernel:
    """Follows running results through the stages of kernel n."""

    def __init__(self, sweep: _Sweep, n: int):
        self.sweep, self.number = sweep, n
        kernel, self.tensors, _ = sweep.kernels[n]
        self.buffers = kernel.buffers
        self.results: list[list[tuple[Expr | None, Scale | None]]] = []
        """The results of each stage: the expression in terms of tensors (None: a reduction), and its scale."""

    def add(self, stage: Stage) -> list[Scale | None]:
        """Return what each result of the next stage is proportional to."""
        t = stage.template
        bodies = [self.named(b, stage.args) for p in t.parts for b in p.bodies]
        piece = whole_piece(t)
        if not any(map(self.sweep.depends, bodies)):
            scales: list[Scale | None] = [None] * len(t.dtypes)
        elif piece is None or len(t.dtypes) != len(bodies):
            raise _DependsOtherwise
        else:
            scales = [self.sweep.scale(b) for b in bodies]
        is_expression = piece is not None and not isinstance(piece.body, Reduce)
        exprs = bodies if is_expression else [None] * len(t.dtypes)
        self.results.append(list(zip(exprs, scales, strict=True)))
        return scales

    def spread(self, stage: Stage) -> Scale | None:
        """Return the running mean, if a stage sums squared deviations from it, over the rows of the sweep alone."""
        t = stage.template
        body = t.parts[0].body if len(t.parts) == 1 else None
        if not isinstance(body, Reduce) or body.combiner != "sum" or len(body.extents) > 1:
            return None
        exprs = [self.named(b, stage.args) for b in body.bodies]
        if not all(isinstance(e, Apply) and e.fn == "mul" and e.args[0] is e.args[1] for e in exprs):
            return None
        mean, *others = [self.sweep.is_deviation(e.args[0]) for e in exprs]
        if mean is None or any(m != mean for m in others) or any(a >= t.rank for i in mean.at for a in axes_of(i)):
            return None
        return mean

    def named(self, body: Expr, args: Sequence[tuple]) -> Expr:
        """Return an expression in terms of tensors, with the stages that it reads in place."""

        def rule(e):
            if not isinstance(e, Read) or e.slot < 0:
                return None
            kind, *where = args[e.slot]
            if kind == "buffer":
                t = self.tensors[where[0]]
                axes = axes_at(t.shape, self.buffers[where[0]].shape, e.index)
                if axes is None and (t in self.sweep.makers or self.sweep.scales.get(t) is not None):
                    raise _DependsOtherwise
                if axes is None:
                    return self.sweep.read((self.number, "view", t), e.index, e.dtype)
                return self.sweep.read(t, tuple(axes[d] for d in range(len(t.shape))), e.dtype)
            expr, scale = self.results[where[0]][where[1]]
            if expr is None and scale is not None:
                raise _DependsOtherwise
            return self.sweep.read((self.number, *where), e.index, e.dtype) if expr is None else expr

        return rebuild([body], rule)[0]
