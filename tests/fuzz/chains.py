"""Productions of chains of reductions: products and distances that pointwise functions and further reductions read."""

from __future__ import annotations

import re

from tests.fuzz.writer import Writer

KINDS = ("f32",) * 6 + ("exact", "exact", "f64", "i32")
_SIDES = (37, 43, 33, 40, 65, 50, 37, 41, 96, 64, 34, 36, 17, 9, 1)
_SMALL = (3, 1, 2, 4, 5, 7, 8, 16)
_SCORES = ("product",) * 4 + ("distance", "distance", "absolute", "max", "min")
_SKIPPING = ("softmax", "softmax", "weighted", "weighted", "columns", "sum", "log", "position")
"""Reductions to which a score that a mask excludes adds nothing."""
_READERS = ("sum", "weighted", "softmax", "extreme", "columns", "log", "position", "prod", "matrix")


def chain(w: Writer) -> None:
    """One matrix of scores, which one to three reductions read behind pointwise functions, batched or not; the result
    may be a side of another chain."""
    w.budget = 200_000
    w.special = False  # a tile that a mask skips hides what is no number
    batch = [w.axis_of(w.pick((3, 2, 5)))] if w.choose(2) else []
    i, j, d = (w.axis_of(w.pick(sizes)) for sizes in (_SIDES, _SIDES, _SMALL))
    x = w.read([*batch, i, d], ordered=w.choose(4) > 0)
    _nest(w, batch, i, j, d, x, 1 + w.choose(2))


def _nest(w: Writer, batch: list[str], i: str, j: str, d: str, x: str, times: int) -> None:
    """Chains inside each other: the result of the first, over i and a small axis, is a side of the next. Half of them
    are such that nothing reads the scores that a mask excludes, so that tiles of them may be skipped."""
    skips = w.choose(2) > 0
    matrix = _masked(w, _scores(w, batch, i, j, d, x), [*batch, i, j], skips)
    for _ in range(w.pick((1, 2, 1, 3))):
        _reader(w, matrix, batch, i, j, skips)
    if times > 1:
        e = w.axis_of(w.pick(_SMALL))
        body = _weighted(w, _pointwise(w, matrix, [*batch, i, j], skips), batch, j, e)
        side = w.define([*batch, i, e], _bounded(w, body), w.chance(4))
        _nest(w, batch, i, w.axis_of(w.pick(_SIDES)), e, side, times - 1)


def _shared(w: Writer, batch: list[str]) -> list[str]:
    """The axes of the batch that an operand has."""
    return batch if w.choose(4) else []


def _scores(w: Writer, batch: list[str], i: str, j: str, d: str, x: str) -> str:
    """A small reduction over d for every pair of i and j, as a statement of its own."""
    y = w.read([*_shared(w, batch), j, d], ordered=w.choose(4) > 0)
    form = w.pick(_SCORES)
    if form == "product":
        e = f"sum[{d}]({x} * {y})"
    elif form == "distance":
        e = f"sum[{d}](({x} - {y})**2)" if not w.integer else f"sum[{d}](({x} - {y}) * ({x} - {y}))"
    elif form == "absolute":
        e = f"sum[{d}](abs({x} - {y}))"
    else:
        e = f"{form}[{d}]({x} + {y})"
    if w.chance(4):
        e = f"{e} + {w.read([w.pick((i, j))])}"
    if not w.exact:
        e = f"{w.pick(('-0.3', '0.5', '0.25'))} * ({e})" if form != "distance" else f"-0.3 * ({e})"
    return w.define([*batch, i, j], e, False)


def _condition(w: Writer, i: str, j: str) -> str:
    """A mask of pairs: of their indices, of documents that arrays number, or an array."""
    form = w.pick(("causal", "band", "documents", "window", "prefix", "array", "later", "both", "phase", "reverse"))
    if form == "causal":
        return f"{j} <= {i}"
    if form == "band":
        return f"abs({i} - {j}) <= {w.pick((5, 1, 12))}"
    if form == "documents":
        a, b = (w.input([w.axes[x]], "int32", 0, 3, "D") for x in (i, j))
        return f"{a}[{i}] {w.pick(('==', '==', '>=', '!='))} {b}[{j}]"
    if form == "window":
        return f"{j} <= {i} and {i} - {j} < {w.pick((9, 3, 20))}"
    if form == "prefix":
        return f"({j} <= {i} or {j} < {w.pick((5, 11))})"
    if form == "array":
        return w.read([i, j], name="B", dtype="bool")
    if form == "later":
        return f"{j} > {i} + {w.pick((0, 7))}"
    if form == "both":
        return f"({_condition(w, i, j)}) and ({_condition(w, i, j)})"
    if form == "phase":
        return f"({i} + {j}) % {w.pick((2, 5))} == 0"
    return f"not ({_condition(w, i, j)})"


def _masked(w: Writer, e: str, scope: list[str], skips: bool) -> str:
    """Scores under a mask, as a statement of their own or not."""
    if not skips and w.chance(2):
        return e
    if skips:
        fill = "0" if w.exact else "-inf"
    else:
        fill = w.pick(("-9", "0", "-100") if w.exact else ("-1e9", "-inf", "0", "-20"))
    i, j = scope[-2:]
    condition = _condition(w, i, j)
    sees_one = w.axes[i] <= w.axes[j] and not re.search(r"not \(|\) and \(", condition)
    if fill == "-inf" and " - " in condition and not (skips and sees_one):
        fill = "-1e9"  # of a row without keys, exp(-inf - -inf) outside of a window is not computed
    e = f"where({condition}, {e}, {fill})"
    return w.define(scope, e, False) if w.choose(3) else e


def _pointwise(w: Writer, e: str, scope: list[str], skips: bool) -> str:
    """A bounded function of a score; it hides infinity. skips: it is 0 where a mask excludes the score."""
    *_, i, j = scope
    if w.exact:
        e = w.pick(("max(-2, min(2, {}))", "where({} > 0, 1, 0)", "sign({})", "min(3, abs(max(-3, {})))")).format(e)
    else:
        forms = ("exp(min(2, {}))", "sigmoid({})", "tanh({})", "exp(tanh({}))", "(1 / (1 + exp(-({}))))")
        e = w.pick(forms[: 1 + (not skips) * 4]).format(e)
    form = w.pick(("plain", "plain", "row", "where", *(() if skips else ("bias", "factor", "pair", "distance"))))
    if form == "bias":
        return f"({e} + {w.read([j])})"
    if form == "row":
        return f"({e} * {w.read([i])})"
    if form == "factor":
        return f"(2 * {e} - 1)"
    if form == "where":
        return f"where({_condition(w, i, j)}, {e}, {'0' if skips else w.pick(('0', '0', '1'))})"
    if form == "pair":
        return f"({e} + {w.read([i, j] if w.choose(2) else scope)})"
    if form == "distance":
        return f"({e} * min({j}, 3))" if w.exact else f"({e} + ({j} - {i}) * 0.01)"
    return e


def _weighted(w: Writer, e: str, batch: list[str], over: str, v: str) -> str:
    """A sum over an axis with the weights e, of values along v."""
    return f"sum[{over}]({e} * {w.read([*_shared(w, batch), over, v], ordered=True)})"


def _bounded(w: Writer, e: str) -> str:
    return f"max(-2, min(2, {e}))" if w.exact else f"tanh({e})"


def _reader(w: Writer, matrix: str, batch: list[str], i: str, j: str, skips: bool) -> None:
    """A reduction of a pointwise function of the scores over one side, as results."""
    scope, left = [*batch, i, j], [*batch, i]
    form = w.pick(_SKIPPING if skips else _READERS)
    if w.exact and form in ("softmax", "log"):
        form = "weighted"
    if form in ("softmax", "log"):
        top = w.define(left, f"max[{j}]({matrix})", w.chance(6))
        e = f"exp({matrix} - {top})"
        if w.choose(2):
            e = w.define(scope, e, False)
        total = f"sum[{j}]({e})"
        if form == "log":
            w.finish(f"{top} + log({total})", left)
            return
        v = w.axis_of(w.pick(_SMALL))
        w.finish(f"{_weighted(w, e, batch, j, v)} / {w.define(left, total, False)}", [*left, v])
        return
    if form == "position" and (skips or w.choose(2)):
        w.define(left, f"{'argmax' if skips else w.pick(('argmax', 'argmin'))}[{j}]({matrix})")
        return
    e = _pointwise(w, matrix, scope, skips)
    if w.chance(3):
        e = w.define(scope, e, False)
    if form == "sum":
        w.finish(f"sum[{j}]({e})", left)
    elif form == "extreme":
        w.finish(f"{w.pick(('max', 'min'))}[{j}]({e})", left)
    elif form == "position":
        w.define(left, f"{w.pick(('argmax', 'argmin'))}[{j}]({e})")
    elif form == "prod":
        factor = f"where({e} > 1, 2, 1) * where({j} < 4, 1, 0)" if w.exact else f"1 + 0.05 * tanh({e})"
        w.define(left, f"prod[{j}]({factor})")
    elif form == "columns":
        v = w.axis_of(w.pick(_SMALL))
        w.finish(_weighted(w, e, batch, i, v), [*batch, j, v])
    elif form == "weighted":
        v = w.axis_of(w.pick(_SMALL))
        w.finish(_weighted(w, e, batch, j, v), [*left, v])
    else:
        k = w.axis_of(w.pick(_SIDES))
        product = w.define([*left, k], _weighted(w, e, batch, j, k), False)
        w.finish(f"{w.pick(('sum', 'max'))}[{k}]({_bounded(w, product)})", left)
