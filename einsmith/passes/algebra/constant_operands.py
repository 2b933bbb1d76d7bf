"""Leave out the terms of sums that a zero of a constant tensor multiplies.

before: m[e, k] = sum[i, j](C[i, j, k]*w[e, P[i, j, k]]*x[e, i]*Y[e, j])       C, P: constants
after:  m[e, 0] = 0.5*w[e, 3]*x[e, 0]*Y[e, 1] + ...;  m[e, 1] = ...            a piece for each k, a term for each i, j
                                                                               where C[i, j, k] is not 0
before: dw[e, P[i, j, k]] += C[i, j, k]*dm[e, k]*x[e, i]*Y[e, j]
after:  dw[e, 0] = ...;  dw[e, 1] = ...                                        a piece for each position

before: y[i, f] = sum[j](L[i, j]*x[j, f])              L: a constant of too many elements to unroll
after:  y[i, f] = sum[n](where(first[i] <= n and n < last[i], l[n]*x[at[n], f], 0))

A term that a constant's zero multiplies is absent, whatever its other factors are. The graph comes with its gradients,
so each of them is unrolled, or runs over segments, by itself. A sum changes where the predicted time of its kernels is
lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.symbolic import SYMBOLIC
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Leaf,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    Tensor,
    apply,
    axes_of,
    leaf,
    postorder,
    read_whole,
    reads,
    template,
)
from einsmith.ir.rebuild import guarded, prune_args, rebuild, replace, types_of, whole_sum, with_args
from einsmith.ir.rewrite.simplify import simplified, simplify
from einsmith.ir.template_evaluator import apply_function, read_elements, to_wide
from einsmith.passes.context import PassContext

MAX_VALUES = 1 << 24
"""Most elements of a constant whose values are used; a larger one is an input like any other. Finding the zeros of as
many takes 0.5 s."""
MAX_TERMS = 1024
"""Most terms of a tensor that is unrolled. Code generation takes about 2 ms for each (137 terms: 0.3 s)."""
MAX_PIECES = 64
"""Most pieces of a tensor that is unrolled: each is a loop nest of its own."""

Values = Mapping[Leaf, np.ndarray]


def constant_operands(graph: Graph, values: Values, context: PassContext) -> tuple[Graph, dict[Leaf, np.ndarray]]:
    """Return the graph in which sums over axes of constants have only the terms that no zero of a constant
    multiplies, where that is predicted to be faster, and the values of leaves that it has in addition.

    Args:
        graph: the graph, with its gradients.
        values: the values of leaves that are constants.
        context: the machine, and the predicted cost of kernels.
    """
    known = {x: to_wide(a, x.dtype, x.shape, "a constant") for x, a in values.items() if a.size <= MAX_VALUES}

    def rule(node: Tensor) -> Tensor | None:
        if not isinstance(node, Compute) or known.keys().isdisjoint(node.args):
            return None
        arrays = {s: known[a] for s, a in enumerate(node.args) if isinstance(a, Leaf) and a in known}
        unrolled, (segments, own) = _unroll(node, arrays), _sum_segments(node, arrays)
        forms = {form: seconds(form, node.args) for form in (unrolled, segments) if form is not None}
        best = min(forms, key=forms.__getitem__, default=None)
        if best is None or forms[best] >= context.price(node):
            return None
        if best is segments:
            more.update(own)
        return best

    def seconds(form: Compute, args: Sequence[Tensor]) -> float:
        return sum(context.price(n) for n in postorder([form], args) if isinstance(n, Compute))

    more: dict[Leaf, np.ndarray] = {}
    out = replace(graph, rule)
    inputs = (*out.inputs, *more)
    return Graph(inputs, out.outputs, out.updates, out.checks, out.gradients) if more else out, more


# ---------------------------------------------------------------------------------------------------------- zeros


class _NonzeroTerms(NamedTuple):
    """The axes of constants, and the points of their box at which the terms are not zero, [terms, axes], in row-major
    order."""

    axes: tuple[int, ...]
    points: np.ndarray

    def places(self) -> list[dict[int, int]]:
        """Return the positions of the axes at each point."""
        return [dict(zip(self.axes, map(int, p), strict=True)) for p in self.points]


def _find_terms(body: Expr, domain: tuple[int, ...], arrays: Mapping[int, np.ndarray]) -> _NonzeroTerms | None:
    """Return the terms of a body, over a box, that no zero of a constant multiplies; None where there is no zero."""
    zero = _find_zeros(body, domain, arrays)
    if zero is None or not zero.any():
        return None
    axes = tuple(a for a, n in enumerate(zero.shape) if n > 1)
    return _NonzeroTerms(axes, np.argwhere(~zero)[:, list(axes)])


def _find_zeros(body: Expr, domain: tuple[int, ...], arrays: Mapping[int, np.ndarray]) -> np.ndarray | None:
    """Return where a body is zero because an element of a constant is, as an array over the box that has extent 1
    along the axes that do not matter; None where it is nowhere."""
    zeros: dict[Expr, np.ndarray | None] = {}
    for e in postorder([body]):
        of = [zeros[a] for a in e.args]
        zeros[e] = None
        if isinstance(e, Const):
            zeros[e] = np.full((1,) * len(domain), True) if e.value == 0 else None
        elif isinstance(e, Read) and _is_known(e, arrays):
            zero = _read_zeros(e, domain, arrays)
            zeros[e] = zero if zero.any() else None
        elif isinstance(e, Apply) and e.fn == "mul":
            zeros[e] = of[0] if of[1] is None else of[1] if of[0] is None else of[0] | of[1]
        elif isinstance(e, Apply) and e.fn in ("neg", "cast", "div", "stop_gradient", "full_precision"):
            zeros[e] = of[0] if not e.dtype.is_bool else None
        elif isinstance(e, Apply) and e.fn in ("add", "sub", "where"):
            a, b = of[-2:]
            zeros[e] = None if a is None or b is None else a & b
    return zeros[body]


def _read_zeros(read: Read, domain: tuple[int, ...], arrays: Mapping[int, np.ndarray]) -> np.ndarray:
    """Return where a known read gives zero, or lies outside of its constant, as it may where a guard does not hold."""
    values: dict[Expr, np.ndarray] = {}
    outside: list[tuple[Read, int, np.ndarray]] = []
    for e in postorder([read]):
        if isinstance(e, Const):
            values[e] = np.full((1,) * len(domain), e.value)
        elif isinstance(e, Axis):
            values[e] = np.arange(domain[e.position]).reshape(
                *(-1 if a == e.position else 1 for a in range(len(domain)))
            )
        elif isinstance(e, Read):
            values[e] = read_elements(e, [values[i] for i in e.index], arrays[e.slot], outside, len(domain))
        else:
            values[e] = apply_function(e, [values[a] for a in e.args])
    return reduce(np.logical_or, [bad for *_, bad in outside], values[read] == 0)


def _is_known(read: Read, arrays: Mapping[int, np.ndarray]) -> bool:
    """Return whether a read is of a constant, at an index of axes and constants alone, none of them symbolic."""
    inside = list(postorder([read]))
    numbers = (e.value for e in inside if isinstance(e, Const))
    return all(e.slot in arrays for e in inside if isinstance(e, Read)) and not any(
        isinstance(n, SYMBOLIC) for n in numbers
    )


# ---------------------------------------------------------------------------------------------------------- terms


def _unroll(node: Compute, arrays: Mapping[int, np.ndarray]) -> Compute | None:
    """Return a node with its sums unrolled; None where no sum has a zero of a constant as factor."""
    t = node.template
    first = t.parts[0]
    if isinstance(first, Scatter):
        return _unroll_scatter(node, first, arrays)
    parts: list[Piece | Scatter] = []
    for part in t.parts:
        unrolled = _unroll_piece(part, arrays) if isinstance(part, Piece) else None
        parts += [part] if unrolled is None else unrolled
    if parts == list(t.parts) or len(parts) > MAX_PIECES:
        return None
    return simplified(Template(t.shape, t.params, tuple(parts)), node.args)


def _unroll_piece(part: Piece, arrays: Mapping[int, np.ndarray]) -> list[Piece] | None:
    """Return a sum as pieces, one for each position of the output axes along which constants are read."""
    r = part.body
    if not isinstance(r, Reduce) or r.combiner != "sum" or len(r.bodies) != 1:
        return None
    terms = _find_terms(r.bodies[0], part.domain, arrays)
    if terms is None or len(terms.points) > MAX_TERMS:
        return None
    rank = len(part.extents)
    split = [a for a in terms.axes if a < rank]
    if prod(part.extents[a] for a in split) > MAX_PIECES:
        return None
    at_position: dict[tuple[int, ...], list[dict[int, int]]] = {}
    for place in terms.places():
        at_position.setdefault(tuple(place[a] for a in split), []).append(place)
    left = [a for a in range(rank, len(part.domain)) if a not in terms.axes]
    axes = {a: Axis(a) for a in range(rank)} | {a: Axis(rank + n) for n, a in enumerate(left)}
    pieces = []
    for position in product(*(range(part.extents[a]) for a in split)):
        first = dict(zip(split, position, strict=True))
        body = _add([_fix(r.bodies[0], axes, place, arrays) for place in at_position.get(position, [])], r.dtypes[0])
        offset = tuple(o + s * first.get(a, 0) for a, (o, s) in enumerate(zip(part.offset, part.step, strict=True)))
        extents = tuple(1 if a in first else n for a, n in enumerate(part.extents))
        pieces.append(Piece(offset, part.step, extents, _sum(body, tuple(part.domain[a] for a in left))))
    return pieces


def _sum(body: Expr, extents: tuple[int, ...]) -> Expr | Reduce:
    """Return the sum of a body over axes; zero where the body is."""
    return body if not extents or isinstance(body, Const) and body.value == 0 else Reduce("sum", extents, (body,))


def _add(terms: Sequence[Expr], dtype: dt.DType) -> Expr:
    return reduce(lambda a, b: apply("add", a, b), terms) if terms else Const(0, dtype)


def _fix(e: Expr, axes: Mapping[int, Expr], place: Mapping[int, int], arrays: Mapping[int, np.ndarray]) -> Expr:
    """Return an expression with some axes at a position, and others renumbered. What constants hold there become
    literals."""
    memo: dict[Expr, Expr] = {}
    for x in postorder([e]):
        args = tuple(memo[a] for a in x.args)
        if isinstance(x, Axis):
            memo[x] = Const(place[x.position], dt.i32) if x.position in place else axes[x.position]
            continue
        is_literal = bool(args) and all(isinstance(a, Const) for a in args)
        new = with_args(x, args) if args else x
        if isinstance(x, Read) and is_literal and x.slot in arrays:
            at, array = tuple(int(a.value) for a in args), arrays[x.slot]  # type: ignore[union-attr]
            inside = all(0 <= i < n for i, n in zip(at, array.shape, strict=True))  # else no guard around it holds
            new = Const(array[at].item() if inside else 0, x.dtype)
        memo[x] = simplify(new, ()) if is_literal and isinstance(new, Apply) else new
    return memo[e]


# -------------------------------------------------------------------------------------------------------- scatters


def _unroll_scatter(node: Compute, s: Scatter, arrays: Mapping[int, np.ndarray]) -> Compute | None:
    """Return a scatter whose positions along some dimensions are literals, once it is unrolled, as pieces; a scatter
    of such pieces where other positions are not those of an axis."""
    terms = _find_terms(s.body, s.domain, arrays) if s.combiner == "sum" else None
    if terms is None or len(terms.points) > MAX_TERMS:
        return None
    left = [a for a in range(len(s.extents)) if a not in terms.axes]
    axes = {a: Axis(n) for n, a in enumerate(left)}
    bodies: dict[tuple[Expr, ...], list[Expr]] = {}
    for place in terms.places():
        index = tuple(_fix(i, axes, place, arrays) for i in s.index)
        bodies.setdefault(index, []).append(_fix(s.body, axes, place, arrays))
    literal = [d for d in range(len(s.index)) if all(isinstance(i[d], Const) for i in bodies)] if bodies else []
    others = {tuple(x for d, x in enumerate(i) if d not in literal) for i in bodies}
    shape = node.shape
    if len(others) != 1 or prod(shape[d] for d in literal) > MAX_PIECES:
        return None
    at = {tuple(int(i[d].value) for d in literal): b for i, b in bodies.items()}  # type: ignore[union-attr]
    extents = tuple(s.extents[a] for a in left)
    (index,) = others
    free = [d for d in range(len(shape)) if d not in literal]
    if all(isinstance(x, Axis) and extents[x.position] == shape[d] for d, x in zip(free, index, strict=True)):
        positions = [x.position for x in index if isinstance(x, Axis)]
        if len(set(positions)) == len(positions):
            return _gather(node, at, literal, dict(zip(free, positions, strict=True)), extents)
    place = {d: len(left) + n for n, d in enumerate(literal)}
    whole = (*extents, *(shape[d] for d in literal))
    pieces = []
    for position in product(*(range(shape[d]) for d in literal)):
        offset = (*(0,) * len(left), *position)
        body = _add(at.get(position, []), s.body.dtype)
        pieces.append(Piece(offset, (1,) * len(whole), (*extents, *(1,) * len(literal)), body))
    source = simplified(Template(whole, node.template.params, tuple(pieces)), node.args)
    indices = iter(index)
    to = tuple(Axis(place[d]) if d in place else next(indices) for d in range(len(shape)))
    args = (*node.args, source)
    scatter = Scatter("sum", whole, to, read_whole(len(node.args), whole, source.dtype))
    return prune_args(Template(shape, types_of(args), (scatter, *node.template.parts[1:])), args)


def _gather(
    node: Compute,
    at: Mapping[tuple[int, ...], Sequence[Expr]],
    literal: Sequence[int],
    axis_of: Mapping[int, int],
    extents: tuple[int, ...],
) -> Compute:
    """Return a scatter of terms as pieces.

    Args:
        node: the scatter
        at: the terms by their literal positions
        literal: the dimensions of these positions
        axis_of: the axis of the terms that is the position along each other dimension
        extents: those of the terms' axes
    """
    shape, rank = node.shape, len(node.shape)
    summed = [a for a in range(len(extents)) if a not in axis_of.values()]
    axes = {a: Axis(d) for d, a in axis_of.items()} | {a: Axis(rank + n) for n, a in enumerate(summed)}
    pieces = []
    for position in product(*(range(shape[d]) for d in literal)):
        first = dict(zip(literal, position, strict=True))
        body = _fix(_add(at.get(position, []), node.dtype), axes, {}, {})
        offset = tuple(first.get(d, 0) for d in range(rank))
        here = tuple(1 if d in first else shape[d] for d in range(rank))
        pieces.append(Piece(offset, (1,) * rank, here, _sum(body, tuple(extents[a] for a in summed))))
    return simplified(Template(shape, node.template.params, tuple(pieces)), node.args)


# -------------------------------------------------------------------------------------------------------- segments


def _sum_segments(node: Compute, arrays: Mapping[int, np.ndarray]) -> tuple[Compute | None, dict[Leaf, np.ndarray]]:
    """Return a sum with its terms in a list, of which each position of the output has a segment, and the values of its
    new arguments; None where the node is no sum, or no term is zero because of a constant."""
    t = node.template
    part = whole_sum(t)
    terms = None if part is None else _find_terms(part.bodies[0], part.domain, arrays)
    if part is None or terms is None or not len(terms.points):
        return None, {}
    rank, n = t.rank, Axis(t.rank)
    args, own = list(node.args), dict[Leaf, np.ndarray]()

    def read(array: np.ndarray, dtype: dt.DType, index: tuple[Expr, ...]) -> Read:
        x = leaf(array.shape, dtype)
        own[x] = np.ascontiguousarray(array, dtype.numpy)
        args.append(x)
        return Read(len(args) - 1, index, dtype)

    columns = dict(zip(terms.axes, terms.points.T, strict=True))
    left = [a for a in range(rank, len(part.domain)) if a not in columns]
    axes: dict[int, Expr] = {a: Axis(rank + 1 + k) for k, a in enumerate(left)}
    axes |= {a: read(at, dt.i32, (n,)) for a, at in columns.items() if a >= rank}
    known: dict[Expr, Expr] = {}
    for r in reads(part.bodies[0]):
        if _is_known(r, arrays) and axes_of(r) and axes_of(r) <= columns.keys():
            known[r] = read(_read_values(r, columns, arrays), r.dtype, (n,))
    body = rebuild([part.bodies[0]], lambda e: axes.get(e.position) if isinstance(e, Axis) else None, known)[0]
    split = [a for a in terms.axes if a < rank]
    if split:
        extents = tuple(part.domain[a] for a in split)
        segment = np.ravel_multi_index(tuple(columns[a] for a in split), extents)
        counts = np.bincount(segment, minlength=prod(extents)).reshape(extents)
        last = np.cumsum(counts).reshape(extents)
        at = tuple(Axis(a) for a in split)
        first_read, last_read = (read(x, dt.i32, at) for x in (last - counts, last))
        body = guarded([apply("and", apply("le", first_read, n), apply("lt", n, last_read))], body)
    domain = (len(terms.points), *(part.domain[a] for a in left))
    return simplified(template(t.shape, types_of(args), Reduce("sum", domain, (body,))), args), own


def _read_values(read: Read, columns: Mapping[int, np.ndarray], arrays: Mapping[int, np.ndarray]) -> np.ndarray:
    """Return what a known read gives at each term, whose positions along the axes are `columns`."""
    values: dict[Expr, np.ndarray] = {}
    count = len(next(iter(columns.values())))
    for e in postorder([read]):
        if isinstance(e, Const):
            values[e] = np.full(count, e.value)
        elif isinstance(e, Axis):
            values[e] = columns[e.position]
        elif isinstance(e, Read):
            values[e] = read_elements(e, [values[i] for i in e.index], arrays[e.slot], [], 1)
        else:
            values[e] = apply_function(e, [values[a] for a in e.args])
    return values[read]
