"""Rewrite a traced network so that integers of 8 bits pass between its products, and compute them.

    y[m, n] = sum[k](x[m, k]*w[n, k])    ->    q[m, k] = u8(clamp(round(x[m, k]/s) + z, 0, 255))
                                               y[m, n] = f32(sum[k]((i32(q[m, k]) - i32(z))*i32(v[n, k])))*(s*t[n])

with weights w = v*t, or, where the sums of weights over k are known,

    y[m, n] = f32(sum[k](i32(q[m, k])*i32(v[n, k])) - i32(z)*sum[k](v[n, k]))*(s*t[n])

whose product takes bytes as they are (`ZeroCorrection`). Wherever else x is read, (q - z)*s is read in its place, so
that x itself need not be stored: what follows a product (its scale, the bias, a residual, an activation) and the
rounding of its result are one epilogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType, dtype_of
from einsmith.codegen.loopnest.dots import WORD_BYTES
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Read,
    Reduce,
    Tensor,
    apply,
    axes_of,
    cast,
    has_read,
    postorder,
    read_whole,
    template,
)
from einsmith.ir.rebuild import guarded, substitute, types_of, with_args
from einsmith.quantization.scales import LEVELS
from einsmith.quantization.sites import MAX_TERM, Site, pooled_of
from einsmith.quantization.weights import QuantizedWeight
from einsmith.schedule.contraction_problem import Problem, apply_epilogue

FIRST, SECOND = "u8", "i8"
"""Integer types of a product's activation, and of the other factor where that is not a weight."""


EXACT_IN_FLOAT32 = 2**24
"""Integers below this magnitude are exact in float32."""
MIN_SUMMED = 16
"""Fewest points of K that sums of weights have taken together, where others are left to be summed at each call. A first
layer of 7 x 7 points and 3 colours took 5.8 ms for such sums, of 204 ms of ResNet-18 on 8 images (AMD EPYC of the Zen 3
generation, `python -m benchmarks.precision int8 --networks resnet18 --batch 8`)."""


@dataclass(frozen=True)
class Encoding:
    """How a tensor is stored: its key among the observed tensors, and its integer type."""

    key: str
    kind: str


@dataclass(frozen=True)
class Coefficients:
    """The scale of an encoding, its inverse and the zero point, as 0-d tensors (f32, f32, the integer type).

    zero: None where it is 0, as after an activation without negative results: nothing is then subtracted
    """

    scale: Tensor
    inverse: Tensor
    zero: Tensor | None


@dataclass
class QuantizationPlan:
    """The plan of a quantized network: encodings by tensor, the products that integers compute, and the reasons against
    others, by name."""

    encodings: dict[Tensor, Encoding]
    sites: list[Site]
    reasons: dict[str, str]


def assign(sites: Sequence[Site]) -> QuantizationPlan:
    """Choose the encodings of the tensors that products read."""
    out = QuantizationPlan({}, [], {})
    for site in sites:
        if reason := site.why_not:
            out.reasons[site.name] = reason
            continue
        wanted = []
        for i, f in enumerate(site.factors):
            if i != site.weight:
                kind = FIRST if site.weight is not None or i == 0 else SECOND
                key = f"{site.name}.{'input' if site.weight is not None else ('left', 'right')[i]}"
                wanted.append((f.tensor, Encoding(key, kind)))
        clash = [t for t, e in wanted if t in out.encodings and out.encodings[t].kind != e.kind]
        if clash:
            out.reasons[site.name] = "a factor is already stored as the other factor of another product"
            continue
        for t, e in wanted:
            _encode(out.encodings, t, e)
        out.sites.append(site)
    return out


def _encode(encodings: dict[Tensor, Encoding], t: Tensor, e: Encoding) -> None:
    """Encode a tensor as `e`. If it is the result of max pooling, encode the pooled tensor too: both have one range."""
    if t in encodings:
        return
    source = pooled_of(t)
    if source is not None and source.dtype is dt.f32:
        _encode(encodings, source, e)
        e = encodings[source] if encodings[source].kind == e.kind else e
    encodings[t] = e


def observed(encodings: Mapping[Tensor, Encoding]) -> dict[str, Tensor]:
    """Return the tensor that decides the range of each key: the first one, of which others hold the largest."""
    out: dict[str, Tensor] = {}
    for t, e in encodings.items():
        out.setdefault(e.key, t)
    return out


def _scalar(slot: int, dtype: DType) -> Read:
    return Read(slot, (), dtype)


def _pointwise(body: Expr, *args: Tensor) -> Compute:
    """Return the tensor of the shape of the first argument with this body."""
    return Compute(template(args[0].shape, types_of(args), body), args)


def quantize(x: Tensor, c: Coefficients, kind: str) -> Tensor:
    """Return a tensor's integers: clamp(round(x*inverse) + zero), halves rounded to the even number."""
    low, high = (Const(float(n), dt.f32) for n in LEVELS[kind])
    to = dtype_of(kind)
    whole: Expr = apply("round", apply("mul", read_whole(0, x.shape, x.dtype), _scalar(1, dt.f32)))
    args = [x, c.inverse]
    if c.zero is not None:
        args.append(c.zero)
        whole = apply("add", whole, cast(cast(_scalar(2, to), dt.i32), dt.f32))
    inside = apply("min", apply("max", whole, low), high)
    return _pointwise(cast(cast(inside, dt.i32), to), *args)


def dequantize(q: Tensor, c: Coefficients) -> Tensor:
    """Return the dequantized numbers: (q - zero)*scale."""
    args: list[Tensor] = []
    whole = _less_zero(args, q, read_whole(0, q.shape, q.dtype).index, c.zero)
    return _pointwise(apply("mul", cast(whole, dt.f32), _scalar(len(args), dt.f32)), *args, c.scale)


def _less_zero(args: list[Tensor], values: Tensor, place: tuple[Expr, ...], zero: Tensor | None) -> Expr:
    """Return the integer at a place less the zero point of one element, in int32; append to `args` what it reads."""
    args.append(values)
    value = cast(Read(len(args) - 1, place, values.dtype), dt.i32)
    if zero is None:
        return value
    args.append(zero)
    return apply("sub", value, _only_element(len(args) - 1, zero))


def _only_element(slot: int, t: Tensor) -> Expr:
    """Return the element of an integer tensor with a single element, in int32."""
    return cast(Read(slot, tuple(Const(0, dt.i32) for _ in t.shape), t.dtype), dt.i32)


def rewrite(
    roots: Sequence[Tensor],
    assignment: QuantizationPlan,
    coefficients: Mapping[str, Coefficients],
    weights: Mapping[Tensor, QuantizedWeight],
) -> list[Tensor]:
    """Return the roots with tensors and products of 8 bits. weights: by their float32 tensors."""
    sites = {s.node: s for s in assignment.sites if s.is_separable}
    floats: dict[Tensor, Tensor] = {}
    read: dict[Tensor, Tensor] = {}  # what is read in the place of a tensor
    integers: dict[Tensor, Tensor] = {}
    for node in postorder(roots):
        site = sites.get(node)
        if site is not None:
            new: Tensor = _product(site, assignment.encodings, coefficients, integers, weights)
        else:
            new = with_args(node, tuple([read[a] for a in node.args])) if node.args else node
        floats[node] = read[node] = new
        encoding = assignment.encodings.get(node)
        if encoding is not None:
            c = coefficients[encoding.key]
            integers[node] = quantize(new, c, encoding.kind)
            read[node] = dequantize(integers[node], c)
    return [floats[t] for t in roots]


def _product(
    site: Site,
    encodings: Mapping[Tensor, Encoding],
    coefficients: Mapping[str, Coefficients],
    integers: Mapping[Tensor, Tensor],
    weights: Mapping[Tensor, QuantizedWeight],
) -> Tensor:
    """Return a product computed by integers."""
    factors = []
    for i, f in enumerate(site.factors):
        if i == site.weight:
            w = weights[f.tensor]
            sums = w.sums.__einsmith_value__().tensor
            place = w.value_index(f.place)
            factors.append(IntegerFactor(w.values, place, None, w.scales, w.scale_index(f.place), sums))
            continue
        c = coefficients[encodings[f.tensor].key]
        factors.append(IntegerFactor(integers[f.tensor], f.place, c.zero, c.scale, ()))
    return product_of_integers(site.node, site.problem, factors)


class IntegerFactor(NamedTuple):
    """An operand (values - zero)*scale of a product.

    values, place: the integers, and the index at which the product reads them
    zero: the zero point, of one element; None where it is 0
    scale, scale_place: the scale (f32), and its index, which depends on results alone
    sums: the integers summed over the last dimension (int32), where that is known
    """

    values: Tensor
    place: tuple[Expr, ...]
    zero: Tensor | None
    scale: Tensor
    scale_place: tuple[Expr, ...]
    sums: Tensor | None = None


class ZeroCorrection(NamedTuple):
    """The correction of a product of integers that takes an operand with its zero point: zero*sums.

    zero: the zero point, of one element. sums: the sums of the other operand over the points that the product sums.
    place: the index at which a result reads them
    """

    zero: Tensor
    sums: Tensor
    place: tuple[Expr, ...]


def _correction(p: Problem, operands: Sequence[IntegerFactor]) -> ZeroCorrection | None:
    """Return the correction of a product of two operands, one with a zero point and one with sums. Return None if the
    zero point is to be subtracted from each integer instead.

    The sums are over the last dimension of the second operand, which has to be an axis of K that no guard reads. The
    other axes of K are summed here, where the guards hold: at a border, a product has fewer terms. With few points in
    the last dimension, as in images of three colours, this takes longer than subtracting the zero point.
    """
    shifted = [o for o in operands if o.zero is not None]
    summed = [o for o in operands if o.zero is None and o.sums is not None]
    if len(shifted) != 1 or len(summed) != 1:
        return None
    (x,), (w,) = shifted, summed
    assert x.zero is not None and w.sums is not None
    guards = [*p.exact, *(g for o in p.operands for g in o.guards)]
    *place, inner = w.place
    if not isinstance(inner, Axis) or inner.position not in p.k or inner.position in axes_of(*place, *guards):
        return None
    results = range(len(p.piece.extents))
    outside = sorted(a for a in axes_of(*place, *guards) if a in results)
    inside = [a for a in p.k if a != inner.position]
    if p.extents[inner.position] < (MIN_SUMMED if inside else WORD_BYTES):
        return None
    numbers: dict[int, Expr] = {a: Axis(n) for n, a in enumerate((*outside, *inside))}
    value = guarded(guards, Read(0, tuple(place), dt.i32))
    shape, extents = (tuple(p.extents[a] for a in axes) for axes in (outside, inside))
    term = substitute(value, numbers)
    body = Reduce("sum", extents, (term,)) if inside else term
    sums = Compute(template(shape, [(dt.i32, w.sums.shape)], body), (w.sums,))
    return ZeroCorrection(x.zero, sums, tuple(map(Axis, outside)))


def _sum_type(p: Problem, operands: Sequence[IntegerFactor]) -> DType:
    """Return the type in which the integers of a product are multiplied and added: float32 where that is exact and a
    word of neighbouring integers could not be filled, as of three colours; else int32."""
    innermost = [o.place[-1] for o in operands if o.sums is not None]
    short = any(isinstance(i, Const) or isinstance(i, Axis) and p.extents[i.position] < WORD_BYTES for i in innermost)
    return dt.f32 if short and p.count(p.k) * MAX_TERM < EXACT_IN_FLOAT32 else dt.i32


def product_of_integers(node: Compute, p: Problem, operands: Sequence[IntegerFactor]) -> Tensor:
    """Return the product `node`, whose only piece is `p`, computed by integers."""
    args, factors = list[Tensor](), list[Expr]()
    correction, sum_type = _correction(p, operands), _sum_type(p, operands)
    for o, whole in zip(operands, p.operands, strict=True):
        value = cast(_less_zero(args, o.values, o.place, o.zero if correction is None else None), sum_type)
        factors.append(guarded([g for g in whole.guards if g not in p.exact], value))
    term = guarded(p.exact, apply("mul", *factors))
    shape, extents = node.shape, p.piece.domain[len(p.piece.extents) :]
    total = Compute(template(shape, types_of(args), Reduce("sum", extents, (term,))), tuple(args))
    factor = apply("mul", *(Read(n + 1, o.scale_place, dt.f32) for n, o in enumerate(operands)))
    added: Expr = read_whole(0, shape, sum_type)
    more: list[Tensor] = []
    if correction is not None:
        more += [correction.sums, correction.zero]
        excess = apply("mul", Read(3, correction.place, dt.i32), _only_element(4, correction.zero))
        added = apply("sub", added, excess)
    body = apply_epilogue(p.epilogue, apply("mul", cast(added, dt.f32), factor))
    return _pointwise(body, total, *(o.scale for o in operands), *more)


def scale_follows_results(site: Site, w: int) -> bool:
    """Return whether scales along the first dimension of a weight, factor `w` of a product, depend on results alone, so
    that they can be applied to sums."""
    index = site.factors[w].place[0]
    return not axes_of(index) & {*site.problem.k}


def has_plain_steps(p: Problem) -> bool:
    """Return whether the part of a product's formula after its sum reads no tensor."""
    return not any(e is not None and has_read(e) for _, e in p.epilogue)
