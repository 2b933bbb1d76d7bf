"""Create the tensors of an argument's adjoint that is a sum over fibres, with as few tensors as the fibres permit.

contributions   g0[i+1] for i+1 < n;  -g1[i];  at 0 alone: sum[j](g2[j])
after           t[0] = sum[j](g2[j]);  dA[0] = g0[1] - g1[0] + t[0];  dA[1+i] = ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import prod

from einsmith.autodiff.inversion.equations import MAX_PHASES
from einsmith.autodiff.inversion.preimage import Fibre
from einsmith.autodiff.plan import AdjointPlan
from einsmith.ir.adjoint_rules import add_terms, constant, mul
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import Axis, Expr, Piece, Reduce, axes_of, template
from einsmith.ir.rebuild import substitute
from einsmith.ir.views import own_index


def gather_adjoint(plan: AdjointPlan, shape: tuple[int, ...], sums: list[tuple[list[Fibre], list[Expr]]]) -> list[int]:
    """Add the tensors of one argument's adjoint to the plan; return their numbers. Contributions without loops over
    equal parts are added in one body. Contributions over boxes are added in one tensor of common smaller boxes; their
    loops become separate tensors of the boxes' sizes."""
    merged: dict[tuple, tuple[list[Fibre], list[Expr]]] = {}
    out = []
    joined = sum(_in_boxes(fibres) for fibres, _ in sums) > 1
    for fibres, bodies in sums:
        if any(f.free for f in fibres):
            if not joined or not _in_boxes(fibres):
                out.append(_sum(plan, shape, fibres, bodies))
                continue
            fibres, bodies = _by_box(plan, fibres, bodies)
        key = tuple((f.offset, f.step, f.extents) for f in fibres)
        if key in merged:
            bodies = [add_terms(a, b) for a, b in zip(merged[key][1], bodies, strict=True)]
        merged[key] = (fibres, bodies)
    keys = [key for key in merged if all(s == 1 for _, step, _ in key for s in step)]
    cells = common_boxes(shape, [[(at, extents) for at, _, extents in key] for key in keys])
    if len(keys) > 1 and len(cells) <= MAX_PHASES:
        groups = [merged.pop(key) for key in keys]
        parts = [Piece(at, (1,) * len(shape), extents, _in_box(at, groups)) for at, extents in cells]
        out.append(plan.add(shape, parts))
    return out + [_sum(plan, shape, fibres, bodies) for fibres, bodies in merged.values()]


def _by_box(plan: AdjointPlan, fibres: list[Fibre], bodies: list[Expr]) -> tuple[list[Fibre], list[Expr]]:
    """Return the parts and bodies without loops: each loop is moved into a separate tensor, as large as its part."""
    plain_bodies: list[Expr] = []
    plain = []
    for f, body in zip(fibres, bodies, strict=True):
        if f.free:
            zero = (0,) * len(f.extents)
            number = _sum(plan, f.extents, [replace(f, offset=zero)], [body])
            body = plan.read(number, own_index(f.extents))
        plain.append(replace(f, free=()))
        plain_bodies.append(body)
    return plain, plain_bodies


def _sum(plan: AdjointPlan, shape: tuple[int, ...], fibres: list[Fibre], bodies: list[Expr]) -> int:
    parts: list[Piece] = []
    n = len(shape)
    for f, body in zip(fibres, bodies, strict=True):
        used = axes_of(body)
        loops = [k for k in range(len(f.free)) if n + k in used]
        repeat = prod(e for k, e in enumerate(f.free) if k not in loops)
        if len(loops) < len(f.free):
            body = substitute(body, {n + k: Axis(n + new) for new, k in enumerate(loops)})
            body = mul(constant(repeat, body), body) if repeat > 1 else body
        whole: Expr | Reduce = Reduce("sum", tuple(f.free[k] for k in loops), (body,)) if loops else body
        idle = [d for d in range(n) if shape[d] > 1 and d not in used]
        if isinstance(whole, Reduce) and idle and len(fibres) == 1:
            return _broadcast(plan, shape, whole, idle)
        parts.append(Piece(f.offset, f.step, f.extents, whole))
    return plan.add(shape, parts)


def _broadcast(plan: AdjointPlan, shape: tuple[int, ...], r: Reduce, idle: list[int]) -> int:
    """Add a sum that is constant along some output axes as a tensor without these axes, and a copy along them; return
    the number of the copy."""
    kept = [d for d in range(len(shape)) if d not in idle]
    move: dict[int, Expr] = {d: Axis(k) for k, d in enumerate(kept)}
    move |= {len(shape) + k: Axis(len(kept) + k) for k in range(len(r.extents))}
    body = substitute(r.bodies[0], move)
    small = tuple(shape[d] for d in kept)
    number = plan.add(small, template(small, (), Reduce("sum", r.extents, (body,))).parts)
    at = [Axis(d) for d in kept]
    return plan.add(shape, template(shape, (), plan.read(number, at)).parts)


def _in_boxes(fibres: list[Fibre]) -> bool:
    """Return whether the parts have unit steps, and some of them are empty or none has loops."""
    return all(s == 1 for f in fibres for s in f.step) and (
        any(f.is_empty for f in fibres) or not any(f.free for f in fibres)
    )


Box = tuple[tuple[int, ...], tuple[int, ...]]


def common_boxes(shape: tuple[int, ...], partitions: Sequence[Sequence[Box]]) -> list[Box]:
    """Return boxes (offset, extents) that cover `shape`, each within one box of every partition."""
    cuts: list[list[int]] = []
    for d, n in enumerate(shape):
        ends = {end for boxes in partitions for at, e in boxes for end in (at[d], at[d] + e[d])}
        cuts.append(sorted(ends | {0, n}))
    spans = product(*([(a, b - a) for a, b in pairwise(c)] for c in cuts))
    return [(tuple(a for a, _ in cell), tuple(n for _, n in cell)) for cell in spans]


def _in_box(at: tuple[int, ...], groups: Sequence[tuple[list[Fibre], list[Expr]]]) -> Expr:
    """Return the sum of the contributions of the groups' parts in the box at `at`."""
    total: Expr | None = None
    zero = constant(0.0, groups[0][1][0])
    for fibres, bodies in groups:
        for f, body in zip(fibres, bodies, strict=True):
            start = [a - o for a, o in zip(at, f.offset, strict=True)]
            if f.is_empty or any(not 0 <= s < n for s, n in zip(start, f.extents, strict=True)):
                continue
            moved = {d: LinearForm(s, {Axis(d): 1}).expr() for d, s in enumerate(start) if s}
            body = substitute(body, moved)
            total = body if total is None else add_terms(total, body)
    return zero if total is None else total
