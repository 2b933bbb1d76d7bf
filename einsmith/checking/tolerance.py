"""Bound the distance of a computed result from the exact one by a running error analysis of a graph.

Every value is carried with a bound of its error. A scalar function is evaluated at the corners of its arguments'
intervals, which covers steps (floor, comparisons) too; it adds a rounding of the greatest number in its interval. A
sum of K terms adds K roundings of the sum of absolute values (N. Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 4.2); equal terms added in turn to one accumulator come near that bound.

Where a decision (a comparison, argmax) falls within the error its result is uncertain, and dependent values may be
those of either side. A factor that may be moved out of a sum (`distributes`) meets infinite terms in another order:
whether the result is infinite, and of which sign, or NaN is then uncertain, as are all values that depend on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.random import default_rng

from einsmith.base.dtypes import DType
from einsmith.ir import evaluator, template_evaluator
from einsmith.ir.functions import COMBINING, FUNCTIONS, SELECTIONS
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Item,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Template,
    axes_of,
    postorder,
)

ROUNDINGS = 4.0
"""Most roundings of one operation, each by half of the type's epsilon; those of the vector functions (2.7 ULP) are
included."""
LEAST_RESULT = 1e-37
"""Least magnitude of a result; smaller ones may be flushed to zero."""

Pair = tuple[np.ndarray, np.ndarray]  # value, bound of its error (for conditions: whether it is uncertain, as 0 or inf)


def _unit(dtype: DType) -> float:
    return dtype.eps / 2 if dtype.is_float else 0.0


def bound_error(most: np.ndarray, value: np.ndarray, error: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the error bound, infinite where a finite result may have overflowed on the way. `most`: greatest finite
    magnitude met; beyond the type's range it turns into infinities and NaN."""
    return np.where(np.isfinite(value) & ~(most <= dtype.max), np.inf, error)


def _mask_lost_infinities(value: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return a mask of elements where NaN may be any infinity as well, which no corner of an interval shows."""
    return np.isinf(error) & np.isnan(value)


def _select(combiner: str, pairs: Sequence[Pair], shape: tuple[int, ...]) -> Pair:
    """Return the positions of a selection among keys of this shape; those are uncertain whose key may equal another."""
    (v, e), (ranks, _) = ((x.reshape(shape), u.reshape(shape)) for x, u in pairs)
    at = np.take_along_axis(template_evaluator.sort_positions(v, combiner), ranks[..., :1], -1)
    chosen, own = np.take_along_axis(v, at, -1), np.take_along_axis(e, at, -1)
    reach = e + own
    near = ~(np.abs(v - chosen) > reach) & (reach > 0)
    np.put_along_axis(near, at, False, -1)
    return at[..., 0], np.where(near.any(-1), np.inf, 0.0)


def errors(graph: Graph, inputs: Sequence[np.ndarray], run: Analysis | None = None) -> tuple[list[Pair], float]:
    """Return (value, error bound) of every output and then of every update, as float64 or integers, and the greatest
    magnitude of any number met. `run`: a fresh analysis."""
    run = run or Analysis()
    pairs: dict = {}
    for x, a in zip(graph.inputs, inputs, strict=True):
        pairs[x] = [pair_of(np.asarray(a), x.dtype)]
    roots = [*graph.outputs, *(t for _, t in graph.updates)]
    with np.errstate(all="ignore"):
        for node in postorder(roots):
            if node in pairs:
                continue
            if isinstance(node, Item):
                pairs[node] = [pairs[node.node][node.member]]
            elif isinstance(node, Recurrence):
                pairs[node] = run.recurrence(node, [pairs[a][0] for a in node.args])
            else:
                assert isinstance(node, Compute)
                pairs[node] = run.template(node.template, [pairs[a][0] for a in node.args])
    return [pairs[t][0] for t in roots], run.greatest


def pair_of(a: np.ndarray, dtype: DType) -> Pair:
    """Return an argument's values and error bounds: exact, except that denormal numbers may count as zero."""
    value = template_evaluator.to_wide(a, dtype, a.shape, "an argument")
    error = np.zeros(a.shape)
    if dtype.is_float:
        small = np.abs(value) < dtype.arithmetic.tiny
        error[small] = np.abs(value[small])
    return value, error


def template_errors(t: Template, args: Sequence[Pair]) -> tuple[list[Pair], float]:
    """Return the results of a template for arguments with errors, and the greatest magnitude met."""
    run = Analysis()
    with np.errstate(all="ignore"):
        return run.template(t, args), run.greatest


def distributes(body: Reduce, rank: int) -> bool:
    """Return whether a sum's terms have a factor or divisor that does not depend on all axes summed over. Code
    generation may apply that factor to partial sums, which gives equal results except with infinities."""
    over = frozenset(range(rank, rank + len(body.extents)))
    products = (e for e in postorder(body.bodies) if isinstance(e, Apply) and e.fn in ("mul", "div"))
    factors = (a for e in products if e.dtype.is_float for a in e.args if not isinstance(a, Const))
    return body.combiner == "sum" and any(not over <= axes_of(a) for a in factors)


class Analysis:
    """An error analysis of a graph; `greatest` is the greatest magnitude met so far."""

    def __init__(self) -> None:
        self.greatest = 0.0

    def note(self, x: np.ndarray) -> np.ndarray:
        """Record the greatest finite magnitude of x in `greatest` and return x."""
        if x.size and x.dtype != bool:
            self.greatest = max(self.greatest, float(np.abs(np.where(np.isfinite(x), x, 0)).max()))
        return x

    def narrow(self, x: np.ndarray, dtype: DType) -> None:
        """Record integers outside the range of their type: the result of the conversion is undefined."""
        if dtype.is_int and dtype.bits < 64 and x.size and not dtype.range[0] <= x.min() <= x.max() <= dtype.range[1]:
            self.greatest = np.inf

    def recurrence(self, node: Recurrence, args: Sequence[Pair]) -> list[Pair]:
        """Bound the errors of a recurrence's results by perturbation: run it with rounded arguments, which makes
        neighbours equal, and with arguments disturbed by their errors and a few roundings. An error grows from step to
        step as the formula says."""
        values = evaluator.evaluate_recurrence(node, [v for v, _ in args])
        sums = [(p.body, t.rank) for t in node.members for p in t.parts if isinstance(p.body, Reduce)]
        unknown = any(_mask_lost_infinities(v, e).any() for v, e in args) or any(
            distributes(s, rank) for s, rank in sums
        )
        if unknown and not all(np.isfinite(v).all() for v in values):
            self.greatest = np.inf
        floats = [d for d, _ in node.results if d.is_float]
        unit = max(map(_unit, floats), default=0.0)
        moved = [np.zeros(v.shape) for v in values]
        rng = default_rng(0)
        if floats or any(e.any() for _, e in args):
            disturbed = [[a.dtype.rounded(v) for a, (v, _) in zip(node.args, args, strict=True)]]
            for _ in range(3):
                noisy = []
                for v, e in args:
                    more = np.where(np.isfinite(e), e, 1.0) * rng.choice([-1, 1], v.shape)
                    if v.dtype.kind == "f":
                        more = more + 2 * ROUNDINGS * unit * np.abs(v) * rng.standard_normal(v.shape)
                    noisy.append((v + more).astype(v.dtype) if v.dtype.kind == "f" else v)
                disturbed.append(noisy)
            for perturbed in disturbed:
                others = evaluator.evaluate_recurrence(node, perturbed)
                moved = [np.fmax(m, np.abs(o.astype(float) - v)) for m, o, v in zip(moved, others, values, strict=True)]
        out: list[Pair] = []
        for v, m, (d, _) in zip(values, moved, node.results, strict=True):
            self.note(v)
            self.narrow(v, d)
            if d.is_float:
                scale = np.abs(np.where(np.isfinite(v), v, 0)).max(initial=1.0)
                out.append((v, 8 * m + 16 * ROUNDINGS * unit * sqrt(node.steps + 1) * scale))
            else:
                out.append((v, np.where(m > 0, np.inf, 0.0)))
        return out

    def template(self, t: Template, inputs: Sequence[Pair]) -> list[Pair]:
        """Return each result of a template as (values, bounds of their errors), from pairs of the inputs."""
        start = t.parts[0].neutral if isinstance(t.parts[0], Scatter) else 0
        outputs: list[Pair] = [
            (np.full(t.shape, start, template_evaluator.WIDE[d.kind]), np.zeros(t.shape)) for d in t.dtypes
        ]
        for part in t.parts:
            full = part.domain
            if prod(full[: len(part.extents)]) == 0:
                continue
            if isinstance(part, Scatter):
                self.scatter(part, inputs, outputs[0])
                continue
            where: tuple[Any, ...] = tuple(
                slice(o, o + s * (n - 1) + 1, s) for o, s, n in zip(part.offset, part.step, part.extents, strict=True)
            )
            for out, pair in zip(outputs, self.body(part.body, full, inputs), strict=True):
                for whole, value in zip(out, pair, strict=True):
                    whole[(*where, ...)] = value
        return outputs

    def body(self, body: Expr | Reduce, full: tuple[int, ...], inputs: Sequence[Pair]) -> list[Pair]:
        """Return each result of a body over the box `full` as (values, bounds of their errors)."""
        if not isinstance(body, Reduce):
            return self.expressions([body], full, inputs)
        rank = len(full) - len(body.extents)
        axes = tuple(range(rank, len(full)))
        k = prod(body.extents)
        pairs = [
            (np.broadcast_to(v, full), np.broadcast_to(e, full)) for v, e in self.expressions(body.bodies, full, inputs)
        ]
        if body.combiner in SELECTIONS:
            return [_select(body.combiner, pairs, (*full[:rank], k))]
        out: list[Pair] = []
        for (v, e), expr in zip(pairs, body.bodies, strict=True):
            unit = _unit(expr.dtype)
            if body.combiner == "sum":
                magnitude = np.abs(v).sum(axis=axes)
                self.note(magnitude)
                error = e.sum(axis=axes)
                value = self.note(v.sum(axis=axes, dtype=v.dtype))
                if unit:
                    error = error + unit * max(k, ROUNDINGS * sqrt(k + 1)) * (magnitude + error)
                    error = bound_error(magnitude + error, value, error, expr.dtype)
                    uncertain = _mask_lost_infinities(v, e).any(axis=axes)
                    if not np.isfinite(value).all() and distributes(body, rank):
                        uncertain |= ~np.isfinite(value)
                    error = np.where(uncertain, np.inf, error)
                out.append((value, error))
            elif body.combiner == "prod":
                most = (np.abs(v) + e).prod(axis=axes)
                error = most - np.abs(v).prod(axis=axes) + ROUNDINGS * unit * (k + 1) * most
                error = np.where(_mask_lost_infinities(v, e).any(axis=axes), np.inf, error)
                out.append((self.note(v.prod(axis=axes, dtype=v.dtype)), error))
                self.narrow(out[-1][0], expr.dtype)
            else:
                sign = -1 if body.combiner.endswith("min") else 1
                signed = sign * v
                rivals = signed + e >= signed.max(axis=axes, keepdims=True) - e.max(axis=axes, keepdims=True)
                error = np.where(rivals, e, 0).max(axis=axes)
                value = getattr(v, "max" if sign > 0 else "min")(axis=axes)
                uncertain = (np.isinf(e) & ~np.isfinite(v)).any(axis=axes)
                error = np.where(uncertain, np.inf, error)
                out.append((value, error))
                if body.combiner.startswith("arg"):
                    flat = signed.reshape(*full[:rank], k)
                    is_tie = (rivals.sum(axis=axes) > 1) & (error > 0) | uncertain
                    out.append((flat.argmax(-1), np.where(is_tie, np.inf, 0.0)))
        return out

    def scatter(self, s: Scatter, inputs: Sequence[Pair], out: Pair) -> None:
        """Combine the terms of a scatter into `out` in place, values and error bounds."""
        full = tuple(s.extents)
        *index, (v, e) = self.expressions([*s.index, s.body], full, inputs)
        at = tuple(np.broadcast_to(i, full) for i, _ in index)
        v, e = np.broadcast_to(v, full), np.broadcast_to(e, full)
        if s.combiner == "sum":
            first = np.abs(out[0][at])
            np.add.at(out[0], at, v)
            self.note(out[0])
            unit = _unit(s.body.dtype)
            more = e + ROUNDINGS * unit * (sqrt(prod(full)) * (np.abs(v) + e) + first) if unit else e
            np.add.at(out[1], at, np.where(_mask_lost_infinities(v, e), np.inf, more))
        elif s.combiner == "prod":
            most = np.abs(out[0]) + out[1]
            np.multiply.at(most, at, (np.abs(v) + e) * (1 + ROUNDINGS * _unit(s.body.dtype)))
            np.multiply.at(out[0], at, v)
            out[1][...] = np.where(np.isfinite(most), most - np.abs(out[0]), np.inf)
        else:  # the error is at most the largest of the compared terms
            best: Any = FUNCTIONS[COMBINING[s.combiner]].numpy
            best.at(out[0], at, v)
            np.maximum.at(out[1], at, e)
        moved = [np.broadcast_to(u > 0, full) for _, u in index]  # terms whose index in a dimension is uncertain
        for point in np.argwhere(np.any(moved, axis=0)) if moved else ():
            p = tuple(point)
            out[1][tuple(slice(None) if m[p] else i[p] for i, m in zip(at, moved, strict=True))] = np.inf

    def expressions(self, roots: Sequence[Expr], full: tuple[int, ...], inputs: Sequence[Pair]) -> list[Pair]:
        """Evaluate expressions at all points of the box `full`; return (values, bounds of their errors) of each."""
        done: dict[Expr, Pair] = {}
        read: set[Expr] = set()  # depends on elements of tensors
        for e in postorder(roots):
            if isinstance(e, Const):
                v: np.ndarray = np.full((1,) * len(full), e.value, template_evaluator.WIDE[e.dtype.kind])
                exact = not e.dtype.is_float or float(np.float32(e.value)) == float(e.value)
                done[e] = v, np.zeros(v.shape) if exact else np.abs(v) * _unit(e.dtype)
            elif isinstance(e, Axis):
                shape = [1] * len(full)
                shape[e.position] = full[e.position]
                v = np.arange(full[e.position]).reshape(shape)
                done[e] = v, np.zeros(v.shape)
            elif isinstance(e, Read):
                read.add(e)
                done[e] = self.read(e, [done[i] for i in e.index], inputs[e.slot], len(full))
            else:
                done[e] = self.apply(e, [done[a] for a in e.args])
                if not read.isdisjoint(e.args):
                    read.add(e)
                    if e.fn != "cast" or e.args[0].dtype.is_float:
                        self.narrow(done[e][0], e.dtype)
        return [done[r] for r in roots]

    def read(self, e: Read, index: list[Pair], a: Pair, rank: int) -> Pair:
        """Return the elements of `a` at an index, which is clipped to the bounds, with bounds of their errors."""
        if not index:
            return np.full((1,) * rank, a[0], a[0].dtype), np.full((1,) * rank, a[1])
        at = tuple(np.clip(i, 0, max(n - 1, 0)) for (i, _), n in zip(index, a[0].shape, strict=True))
        if a[0].size == 0:
            shape = np.broadcast_shapes(*(i.shape for i in at))
            return np.zeros(shape, a[0].dtype), np.zeros(shape)
        error = a[1][at]
        for _, unsure in index:
            if unsure.any():
                error = np.where(unsure > 0, np.inf, error)
        return a[0][at], error

    def apply(self, e: Apply, args: list[Pair]) -> Pair:
        """Apply a scalar function to arguments; return the values and bounds of their errors."""
        if e.fn == "where":
            (c, unsure), (a, ea), (b, eb) = args
            value, error = np.where(c, a, b), np.where(c, ea, eb)
            if unsure.any():
                difference = (a != b).astype(float) if value.dtype == bool else np.abs(a.astype(float) - b)
                difference = np.where(np.isnan(difference), np.inf, difference)
                error = np.where(unsure > 0, np.maximum(ea, eb) + difference, error)
            return value, error
        if e.dtype.is_bool and e.args[0].dtype.is_bool:
            value = np.asarray(FUNCTIONS[e.fn].numpy(*(v for v, _ in args)))
            return value, np.broadcast_to(sum(u for _, u in args), value.shape)
        value = template_evaluator.apply_function(e, [v for v, _ in args])
        error = np.zeros(value.shape)
        uncertain = np.zeros(value.shape, bool)
        for v, u in args:
            uncertain = uncertain | (np.isinf(u) & ~np.isfinite(v) if e.dtype.is_bool else _mask_lost_infinities(v, u))
        if any(u.any() for _, u in args):
            for signs in itertools.product((-1, 1), repeat=len(args)):
                corner = template_evaluator.apply_function(
                    e, [v + s * u if u.any() else v for s, (v, u) in zip(signs, args, strict=True)]
                )
                if e.dtype.is_bool:
                    distance = np.where(corner != value, np.inf, 0.0)
                else:
                    distance = np.abs(corner.astype(float) - value)
                error = np.maximum(error, np.where(np.isnan(distance), np.inf, distance))
            error = np.maximum(error, self.bound_inside(e.fn, args))
            if e.fn in ("eq", "ne"):  # equal numbers may lie between the corners
                (v, u), (k, w) = args
                error = np.where((u + w > 0) & ~(np.abs(v.astype(float) - k) > u + w), np.inf, error)
            if e.fn == "mod":  # where a multiple of the divisor is within reach, the remainder may be any
                (v, u), (k, w) = args
                with np.errstate(all="ignore"):
                    is_near_multiple = (
                        np.minimum(np.abs(value), np.abs(k) - np.abs(value)) <= u + np.abs(v / k) * w + error
                    )
                error = np.where(is_near_multiple, np.maximum(error, np.abs(k) + w), error)
        if e.dtype.is_float and not self.is_exact(e, value):
            error = error + ROUNDINGS * _unit(e.dtype) * (np.abs(value) + error) + LEAST_RESULT
            error = bound_error(np.abs(value) + error, value, error, e.dtype)
        self.note(value)
        return value, np.where(uncertain, np.inf, error)

    @staticmethod
    def bound_inside(fn: str, args: Sequence[Pair]) -> np.ndarray | float:
        """Bound how far a function goes beyond its values at the corners of the interval: at a pole, and in waves."""
        if fn in ("div", "floordiv", "mod"):
            divisor, error = args[1]
            return np.where((np.abs(divisor) <= error) & (error > 0), np.inf, 0.0)
        if fn == "pow":
            (base, error), (exponent, other) = args
            pole = (np.abs(base) <= error) & (error > 0) & (exponent - other < 0)
            return np.where(pole | (base < error) & (other > 0), np.inf, 0.0)  # no real number but at integers
        return np.minimum(args[0][1], 2.0) if fn in ("sin", "cos") else 0.0

    @staticmethod
    def is_exact(e: Apply, value: np.ndarray) -> bool:
        """Return whether the operation is exact."""
        if e.fn in ("neg", "abs", "min", "max", "sign", "floor", "round", "stop_gradient", "full_precision"):
            return True
        if e.fn == "cast":
            return bool(e.args[0].dtype.is_bool or np.array_equal(value, e.dtype.rounded(value)))
        return False
