"""Productions of formulas: contractions, convolutions, windows, rows, reductions, pointwise, gathers and scatters."""

from __future__ import annotations

from tests.fuzz import places
from tests.fuzz.writer import TYPES, Writer

FLOATS = ("f32",) * 5 + ("exact", "f64")
"""Kinds of products of many factors: those of narrow integers wrap."""
_FEW = (2, 3, 5, 1, 7, 8, 9, 17)


def contraction(w: Writer) -> None:
    """Matrix products in all transpositions, batched, of several axes, of three factors, masked, with chains; a factor
    may stand under a condition of its own."""
    batch = w.some_axes(w.pick((0, 0, 1)), most=9)
    m = w.some_axes(w.pick((1, 1, 2, 0)), batch)
    k = w.some_axes(w.pick((1, 1, 1, 2)), [*batch, *m])
    n = w.some_axes(w.pick((1, 1, 0, 2)), [*batch, *m, *k])
    scope = [*batch, *m, *n, *k]
    a = w.read([*batch, *m, *k])
    b = w.read([*(batch if w.choose(4) else []), *n, *k])
    if w.chance(4):
        a = w.chain(a, [*m, *k], 2)
    if w.chance(6):
        b = w.chain(b, [*n, *k], 2)
    factors = [a, b]
    if w.chance(5):
        factors.append(w.read(w.choose.some([*batch, *m, *n] if w.chance(2) else scope) or k))
    if w.chance(5):
        one = w.pick((-1, 0, 1))
        factors[one] = f"where({w.condition(k if w.chance(2) else w.choose.some(scope) or k)}, {factors[one]}, 0)"
    body = " * ".join(factors) if w.choose(10) else f"{a} + {b}"
    if w.chance(8):
        body = f"where({w.condition(scope)}, {body}, 0)"
    over = w.choose.shuffled(k)
    e = f"{w.combiner(12)}[{', '.join(over)}]({body})"
    w.finish(e, [*batch, *m, *n])


def bilinear(w: Writer) -> None:
    """Sums of products of three to five factors, each over some of the axes; factors that are functions of several
    reads, terms with factors in common, conditions around some factors or all. Their gradients are such sums too."""
    w.budget = 100_000
    axes = [w.axis_of(w.pick(_FEW)) for _ in range(w.pick((3, 4, 4, 5)))]
    sets = [w.choose.some(axes) or axes[-1:] for _ in range(w.pick((3, 3, 2, 4, 5)))]
    axes = [a for a in axes if any(a in own for own in sets)]
    factors = []
    for own in sets:
        e = w.read(own)
        if w.chance(3):
            parts = w.choose.some(own) or own
            e = w.chain(f"({e} {w.pick(('+', '-', '*'))} {w.read(parts)})", own, 2)
        if w.chance(6):
            e = f"where({w.condition(own)}, {e}, 0)"
        factors.append(e)
    summed = w.choose.some(axes) or axes[:1]
    left = [a for a in axes if a not in summed]
    body = " * ".join(factors)
    if w.chance(2):  # terms in which these factors stand in other orders
        own = w.choose.some(left if w.choose(3) else axes)
        x = w.read(own)
        y = w.chain(x, own, 2)
        terms = [" * ".join(w.choose.shuffled([*factors, f])) for f in (x, y)]
        # A difference of equal terms is a rounding error, whose sign a condition may ask for.
        body = w.pick((" + ", " - ") if y != x else (" + ",)).join(terms)
    if w.chance(4):
        body = f"where({w.condition(axes)}, {body}, 0)"
    if w.chance(5):
        body = f"-({body})"
    w.finish(f"sum[{', '.join(w.choose.shuffled(summed))}]({body})", left)


def convolution(w: Writer) -> None:
    """Convolutions: strides, dilation, padding, groups, depthwise, channels first or last, pooling behind."""
    rank = w.pick((2, 1))
    form = w.pick(("full",) * 4 + ("depthwise", "grouped"))
    b = w.axis(most=4)
    taps = [w.axis_of(w.pick((3, 1, 2, 5, 7))) for _ in range(rank)]
    c = w.axis([b, *taps], most=70)
    k = w.axis([b, c, *taps], most=70) if form != "depthwise" else None
    g = w.axis([b, c, *taps, *([k] if k else [])], most=4) if form == "grouped" else None
    fixed = [a for a in (b, g, c, k) if a]
    outer: list[str] = []
    index, guards, shape = [], [], []
    for r in taps:
        p = w.axis([*fixed, *taps, *outer], most=200 if not outer else 70, row=len(outer) == rank - 1)
        outer.append(p)
        stride, dilation, pad = w.pick((1, 1, 1, 2, 3)), w.pick((1, 1, 1, 2)), w.pick((0, 1, 0, 2))
        slack = w.choose(stride + 1) if w.chance(2) else 0
        n = (w.axes[p] - 1) * stride + (w.axes[r] - 1) * dilation + 1 - 2 * pad + slack
        if n < 1:
            n += 2 * pad
            pad = 0
        at = places.window(w, p, r, stride, dilation, pad)
        index.append(at)
        shape.append(n)
        if pad:
            guards.append(f"0 <= {at}" if w.chance(6) and slack == 0 and pad == 0 else f"0 <= {at} < {n}")
        if not pad and slack < stride and w.chance(2):
            w.largest.add(p)  # the largest extent that keeps the read in bounds
    lead = [a for a in (b, g, c) if a]
    last = w.chance(3)
    order = [b, *index, *lead[1:]] if last else [*lead, *index]
    sizes = [w.axes[a] for a in lead]
    x = w.input([sizes[0], *shape, *sizes[1:]] if last else [*sizes, *shape])
    e = f"{x}[{', '.join(order)}]"
    if w.chance(5):
        e = w.chain(e, lead, 2)
    if guards:
        e = f"where({' and '.join(guards)}, {e}, 0)"
    weight = [a for a in (g, k, c) if a] + taps
    e = f"{e} * {w.read(weight, ordered=w.choose(3) > 0)}"
    over = [*taps] if form == "depthwise" else [c, *taps]
    left = [a for a in (b, g, k if k else c) if a]
    left = [b, *outer, *left[1:]] if last else [*left, *outer]
    e = f"sum[{', '.join(over)}]({e})"
    if w.chance(2) and not w.exact:
        e += f" + {w.read([k or c])}"
    if w.chance(4) and all(w.axes[p] >= 2 for p in outer):  # pooled
        t = w.define(left, w.chain(e, left, 2), w.chance(3))
        _pool(w, t, left, outer)
    else:
        w.finish(e, left)


def narrow(w: Writer) -> None:
    """Products of tensors of 8 and 16 bits with sums of 32: matrix products, batched, dilated and padded convolutions;
    factors less a number, under conditions. All numbers are whole, and so exact in every type."""
    types = w.pick((("i8", "u8", "i16"), ("bf16", "bf16", "f16")))
    batch = w.some_axes(w.pick((0, 0, 1)), most=9)
    n = w.axis(batch, most=70)
    k = w.axis([*batch, n], row=True)
    taps = [w.axis_of(w.pick((3, 2, 5)))] if w.chance(3) else []
    m = w.axis([*batch, n, k, *taps], most=200)
    padding = w.axes[taps[0]] - 1 if taps and w.chance(2) else 0
    reach = w.axis_of(w.axes[m] + 2 * (w.axes[taps[0]] - 1 - padding)) if taps else m
    at = places.window(w, m, taps[0], 1, 2, padding) if taps else m
    sides = []
    for axes, index in (([*batch, reach, k], {reach: at}), ([*(batch if w.chance(2) else []), n, k, *taps], {})):
        kind = w.pick(types)
        left = w.choose.shuffled(axes) if w.chance(3) else axes
        made = w.define(left, _narrowed(w, kind, axes), kind != "bf16" and w.chance(6)).partition("[")[0]
        e = f"{'i32' if kind in ('i8', 'u8', 'i16') else 'f32'}({made}[{', '.join(index.get(a, a) for a in left)}])"
        if w.chance(3):
            e = f"({e} - {w.pick(('1', '-2'))})"
        sides.append(e)
    if padding:
        sides[0] = f"where(0 <= {at} < {w.axes[reach]}, {sides[0]}, 0)"
    elif w.chance(6):
        sides[0] = f"where({w.condition([m, k])}, {sides[0]}, 0)"
    w.finish(f"sum[{', '.join(w.choose.shuffled([k, *taps]))}]({' * '.join(sides)})", [*batch, m, n])


def _narrowed(w: Writer, kind: str, axes: list[str]) -> str:
    e = w.read(axes, dtype=w.dtype)
    if w.chance(2):
        e = f"min(2, max({'0' if kind == 'u8' else '-2'}, {w.chain(e, axes, 1)}))"
    return f"{kind}({'abs' if kind == 'u8' else ''}({e}))"


def _pool(w: Writer, t: str, left: list[str], outer: list[str]) -> None:
    """A window over the axes `outer` of the tensor t."""
    size, names = w.pick((2, 3)), {}
    over = []
    for p in outer:
        n = min(size, w.axes[p])
        r, q = w.axis_of(n), w.axis_of((w.axes[p] - n) // n + 1)
        over.append(r)
        names[p] = (q, f"{n}*{q} + {r}" if n > 1 else f"{q} + {r}")
    name = t.partition("[")[0]
    read = f"{name}[{', '.join(names[a][1] if a in names else a for a in left)}]"
    out = [names[a][0] if a in names else a for a in left]
    combiner = w.pick(("max", "max", "sum", "argmax", "min", "mean"))
    combiner = "sum" if combiner == "mean" and w.exact else combiner
    e = w.chain(read, [a for a in left if a not in names], 1)
    w.define(out, w.chain(f"{combiner}[{', '.join(over)}]({e})", out, 1))


def window(w: Writer) -> None:
    """Windows of any reduction: pooling, morphology, stencils; chains and statements before them."""
    rank = w.pick((2, 1))
    sizes = ((131, 257) if rank == 1 else (12, 13, 17)) if w.chance(6) else (2, 3, 1, 5, 4)
    taps = [w.axis_of(w.pick(sizes)) for _ in range(rank)]
    strides = [w.pick((1, 1, 2, 3)) for _ in taps]
    outer = w.some_axes(rank, taps)
    lead = w.some_axes(w.pick((0, 1, 2)), [*taps, *outer], most=12)
    shape = []
    for p, r, s in zip(outer, taps, strides, strict=True):
        rest = w.pick((0, 0, 0, 1, 4))  # that no window covers
        shape.append((w.axes[p] - 1) * s + w.axes[r] + rest)
        if w.chance(2) and rest < s:
            w.largest.add(p)
    inner = [*lead, *(w.axis_of(n) for n in shape)]
    if w.chance(2) and w.points(inner) <= w.budget:  # a tensor made before
        made = w.define(inner, w.chain(w.read(inner), inner), w.chance(4))
        name = made.partition("[")[0]
    else:
        name = w.input([w.axes[a] for a in inner])
    guarded = w.chance(4)
    pads = [w.pick((1, 0, 2)) if guarded else 0 for _ in taps]
    index = [places.window(w, p, r, s, 1, d) for p, r, s, d in zip(outer, taps, strides, pads, strict=True)]
    e = f"{name}[{', '.join([*lead, *index])}]"
    conditions = [f"0 <= {i}" for i, d in zip(index, pads, strict=True) if d]
    if conditions:
        for p in outer:
            w.largest.discard(p)
        e = f"where({' and '.join(conditions)}, {e}, {w.pick(('0', '-2', '1'))})"
    if w.chance(2):
        shape_of = w.pick(("{} + {}", "{} * {}", "{} - {}"))
        e = shape_of.format(e, w.read([*(lead[-1:] if w.chance(3) else []), *taps]))
    if w.chance(3):
        e = w.chain(e, [*lead, *taps], 2)
    combiner = w.pick(("max", "sum", "max", "min", "mean", "argmax", "argmin"))
    combiner = "sum" if combiner == "mean" and w.exact else combiner
    w.finish(f"{combiner}[{', '.join(taps)}]({e})", [*lead, *outer])


def rows(w: Writer) -> None:
    """Rows: softmax, normalisation, causal masks, attention, losses at labels."""
    j = w.axis(row=True)
    lead = w.some_axes(w.pick((1, 2, 0)), [j], most=70)
    k = w.axis_of(w.axes[j])
    form = w.pick(("softmax", "norm", "centred", "masked", "loss", "attention", "columns"))
    x = w.input([w.axes[a] for a in (*lead, j)])
    at = {a: f"{x}[{', '.join([*lead, a])}]" for a in (j, k)}
    if w.chance(2):
        inner = w.chain(at[j], [*lead, j])
        name = w.define([*lead, j], inner, w.chance(4)).partition("[")[0]
        at = {a: f"{name}[{', '.join([*lead, a])}]" for a in (j, k)}
    left = [*lead, j]
    if w.exact:
        total = w.define(lead, f"{w.pick(('sum', 'max', 'min', 'argmax'))}[{k}]({at[k]})", w.chance(3))
        other = f"{w.pick(('max', 'sum', 'argmin'))}[{k}]({at[k]} - {total})"
        shape = w.pick(("{0} - {1}", "where({0} == {1}, 1, 0)", "({0} - {1}) - {2}"))
        w.finish(shape.format(at[j], total, other), left)
    elif form in ("softmax", "loss"):
        m = w.define(lead, f"max[{k}]({at[k]})", False) if w.choose(2) else f"max[{k}]({at[k]})"
        if m.startswith("T"):
            s = w.define(lead, f"sum[{k}](exp({at[k]} - {m}))", w.chance(4))
            y = w.pick((f"exp({at[j]} - {m}) / {s}", f"{at[j]} - {m} - log({s})"))
        else:
            y = f"exp({at[j]} - {m}) / (0.5 + sum[{k}](exp(tanh({at[k]}))))"
        if form == "loss" and lead:
            t = w.define(left, y, w.chance(2))
            ids = w.input([w.axes[a] for a in lead], w.pick(("int64", "int32")), 0, w.axes[j], "N")
            name = t.partition("[")[0]
            kept = [a for a in lead if w.chance(3)]
            over = [a for a in lead if a not in kept]
            read = f"{name}[{', '.join(lead)}, {ids}[{', '.join(lead)}]]"
            w.define(kept, f"mean[{', '.join(over)}]({read})" if over else read)
        else:
            w.finish(y, left)
    elif form in ("norm", "centred", "columns"):
        over = lead if form == "columns" and lead else [k]
        rest = [j] if over == lead else lead
        e = at[j] if over == lead else at[k]
        mean = w.define(rest, f"mean[{', '.join(over)}]({e})", w.chance(4))
        y = f"{at[j]} - {mean}"
        if form != "centred":
            var = w.define(rest, f"mean[{', '.join(over)}](({e} - {mean})**2)", w.chance(4))
            y = f"({y}) * rsqrt({var} + 0.1)"
            if w.chance(2):
                y = f"{y} * {w.read([j])} + {w.read([j])}"
        w.finish(y, left)
    elif form == "masked" and lead:
        i = lead[-1]
        mask = w.pick((f"{k} <= {i}", f"abs({k} - {i}) <= 2", f"{i} < {k}"))
        s = w.define(lead, f"sum[{k}](where({mask}, {at[k]}, 0))", w.chance(2))
        w.finish(f"where({mask.replace(k, j)}, {at[j]} * {s}, {w.pick(('0', '1'))})", left)
    else:
        _attention(w, w.chance(2))


def _attention(w: Writer, causal: bool) -> None:
    b, d = w.axis(most=5), w.axis(most=70)
    i = w.axis([b, d], most=70)
    j = w.axis_of(w.axes[i] if causal else w.extent(70))
    q, key, v = (w.read(a, ordered=w.choose(2) == 0) for a in ([b, i, d], [b, j, d], [b, j, d]))
    s = f"sum[{d}]({q} * {key}) * 0.3"
    s = w.define([b, i, j], f"where({j} <= {i}, {s}, -100)" if causal else s, False)
    m = w.define([b, i], f"max[{j}]({s})", False)
    z = w.define([b, i], f"sum[{j}](exp({s} - {m}))", w.chance(4))
    w.finish(f"sum[{j}](exp({s} - {m}) / {z} * {v})", [b, i, d])


def reduction(w: Writer) -> None:
    """Reductions of any axes, nested and side by side, with positions; several outputs."""
    for _ in range(w.pick((1, 2, 3))):
        kept = w.some_axes(w.pick((1, 0, 2)))
        over = w.some_axes(w.pick((1, 2)), kept)
        scope = w.choose.shuffled([*kept, *over])
        e = w.chain(w.read(scope, ordered=True), scope, 2)
        combiner = w.combiner()
        if w.chance(8) and w.points(over) <= 40:
            combiner = "prod"
            e = f"max(-1, min(1, {e}))" if w.exact else f"(1 + 0.1*tanh({e}))"
        e = f"{combiner}[{', '.join(w.choose.shuffled(over))}]({e})"
        form = w.pick(("alone", "alone", "beside", "nested", "around"))
        if form == "beside":
            more = w.chain(w.read(w.choose.shuffled([*kept, *over])), [*kept, *over], 1)
            e = f"{e} {w.pick(('+', '*', '-'))} {w.combiner()}[{', '.join(over)}]({more})"
        elif form == "nested" and len(over) == 2:
            one = w.chain(w.read(scope), scope, 1)
            e = f"{w.combiner()}[{over[0]}]({w.combiner()}[{over[1]}]({one}) * {w.read([over[0]])})"
        elif form == "around" and kept:
            e = f"{w.combiner()}[{kept[-1]}]({e})"
            kept = kept[:-1]
        w.finish(e, kept)


def pointwise(w: Writer) -> None:
    """Elements: transposes, offsets, strides, reversed reads, quotients and remainders, mixed types, conditions."""
    left = w.some_axes(w.pick((2, 1, 3)))
    terms = []
    for _ in range(w.pick((1, 2, 3))):
        index, shape = [], []
        for a in w.choose.shuffled(left):
            n, c, rest = w.axes[a], w.pick((2, 3, 5, 16)), w.pick((0, 0, 1, 6))
            others = ("offset", "stride", "back", "div", "mod", "digits", "clip", "shift", "twice", "one")
            form = w.pick(("plain",) * 4 + others + ("place",) * 2)
            at, size = {
                "plain": (a, n), "offset": (f"{a} + {c}", n + c + rest),
                "stride": (f"{c}*{a} + 1", c * n + 2 - c + rest),
                "back": (f"{n - 1} - {a}", n), "div": (f"{a} // {c}", (n - 1) // c + 1),
                "mod": (f"{a} % {c}", min(c, n)), "digits": (f"({a} % {c})*{(n - 1) // c + 1} + {a} // {c}",
                                                             min(c, n) * ((n - 1) // c + 1)),
                "twice": (f"{a} % {c + 2} % {c}", min(c, n)), "clip": (f"min(max({a} - {c}, 0), {n - 1})", n),
                "shift": (a, n), "one": (str(n // 2), n), "place": (a, n),
            }[form]  # fmt: skip
            if form == "place":
                x = places.place(w, [a])
                at, size = x.moved(-x.low).text, x.span + rest * (x.text != a)
            index.append(at)
            shape.append(size)
            if len(index) > 1 and w.chance(8):
                break
        n = 1
        for s in shape:
            n *= s
        if n > 4 * w.budget + 1000:
            terms.append(w.operand(left))
            continue
        x = w.input(shape)
        read = f"{x}[{', '.join(index)}]"
        if w.chance(5) and index[0] in left:
            a, d = index[0], w.pick((1, 2, 7))
            up = f"{x}[{', '.join([f'{a} - {d}', *index[1:]])}]"
            w.extents[a] = w.axes[a]  # which reads of some of its places need not tell
            read = f"where({a} >= {d}, {up}, {w.pick((read, '0'))})"
        terms.append(w.chain(read, left, 1))
    e = terms[0]
    for t in terms[1:]:
        shape_of = w.pick(w.binary)
        e = shape_of.format(e, t)
    if w.chance(4):
        e = f"where({w.condition(left)}, {e}, {w.operand(left)})"
        w.extents.update({a: w.axes[a] for a in left})
    w.finish(e, left)


def divided(w: Writer) -> None:
    """Reductions of every kind of what is read, guarded or not, at quotients and remainders inside each other."""
    kept = w.some_axes(w.pick((1, 2, 0)), most=70)
    over = w.some_axes(w.pick((1, 1, 2)), kept, most=40)
    scope = [*kept, *over]
    w.extents.update({a: w.axes[a] for a in scope})
    index, shape, guards = [], [], []
    for _ in range(w.pick((1, 2))):
        at = places.place(w, scope)
        if at.span > 4 * w.budget or w.chance(3):
            n = min(at.span, w.pick((3, 1, 8, 17, 5)))
            at = at.moved(-w.pick((at.low, 0, at.low + at.span // 2)))
            guards.append(f"0 <= {at.text} < {n}")
        else:
            at, n = at.moved(-at.low), at.span + w.pick((0, 0, 1))
        if shape and n * shape[0] > 4 * w.budget:
            break
        index.append(at.text)
        shape.append(n)
    e = f"{w.input(shape)}[{', '.join(index)}]"
    if guards:
        e = f"where({' and '.join(guards)}, {e}, {w.pick(('0', '1', '-2'))})"
    if w.chance(3):
        e = f"where({w.condition(scope)}, {e}, {w.operand(scope)})"
    for _ in range(w.pick((1, 0, 2))):
        e = w.pick(("{} * {}", "{} * {}", "({} - {})")).format(e, w.read(w.choose.some(scope) or over))
    combiner = w.pick(("sum", "sum", "max", "min", "prod", "mean", "argmax", "argmin"))
    combiner = "sum" if (combiner == "mean" and w.exact) or (combiner == "prod" and w.points(over) > 40) else combiner
    if combiner == "prod":
        e = f"max(-1, min(1, {e}))" if w.exact else f"(1 + 0.1*tanh({e}))"
    w.finish(f"{combiner}[{', '.join(w.choose.shuffled(over))}]({e})", kept)


def gather(w: Writer) -> None:
    """Reads at indices that come from integer tensors."""
    left = w.some_axes(w.pick((1, 2)))
    width = w.some_axes(w.pick((1, 0)), left)
    count = w.pick((7, 1, 2, 16, 33, 100))
    ids = w.input([w.axes[a] for a in left], w.pick(("int64", "int32")), 0, count, "N")
    table = w.input([count, *(w.axes[a] for a in width)])
    e = f"{table}[{', '.join([f'{ids}[{chr(44).join(left)}]', *width])}]"
    if w.chance(3):
        others = w.input([w.axes[a] for a in left], "int64", 0, count, "N")
        e = f"({e} - {table}[{', '.join([f'{others}[{chr(44).join(left)}]', *width])}])"
    if width and w.chance(3):
        made = w.some_axes(w.pick((1, 0)), [*left, *width])
        e = f"where({w.condition([*left, *width])}, {e}, {w.pick(('0', w.operand(left)))})" if w.chance(3) else e
        w.finish(f"sum[{width[0]}]({e} * {w.read([*width, *made])})", [*left, *made])
        return
    if w.chance(2):
        e = f"{e} * {w.read(w.choose.some([*left, *width]) or left)}"
    if w.chance(3):
        e = f"{w.combiner()}[{left[-1]}]({w.chain(e, [*left, *width], 1)})"
        left = left[:-1]
    w.finish(e, [*left, *width])


def scatter(w: Writer) -> None:
    """Accumulated statements: histograms, gradients of embeddings, overlapping windows, the largest of what falls on a
    place; onto a value or onto what is neutral."""
    name = w.name()
    width = w.some_axes(w.pick((0, 1)))
    i = w.axis(width)
    form = w.pick(("ids", "window", "parameter", "sum"))
    if form == "ids":
        n = w.pick((5, 1, 2, 17, 40))
        ids = w.input([w.axes[i]], w.pick(("int64", "int32")), 0, n, "N")
        left, scope = f"{ids}[{i}]", [i, *width]
    else:
        r = w.axis([i, *width], most=7)
        step = w.pick((1, 2, 3)) if form != "sum" else 1
        n = step * (w.axes[i] - 1) + w.axes[r]
        left, scope = (f"{step}*{i} + {r}" if step > 1 else f"{i} + {r}"), [i, r, *width]
        if form == "parameter":
            w.parameters[f"s{len(w.parameters)}"] = step
            left = f"s{len(w.parameters) - 1}*{i} + {r}"
    e = w.chain(w.read(scope), scope, 2)
    if w.integer and not w.choose(2):
        e = f"min(3, max(-3, {e}))"
    axis = w.axis_of(n)
    signs = ("+=", "max=", "min=")
    if w.chance(2):
        start = [axis, *width]
        w.lines.append(f"{name}[{', '.join(start)}] = {w.chain(w.read(start), start, 1)}")
    else:  # where nothing falls there are infinities, and what others make of these PyTorch does not say
        signs = signs[:1]
    w.lines.append(f"{name}[{', '.join([left, *width])}] {w.pick(signs)} {e}")
    w.extents[f"{name}.shape[0]"] = n
    w.shapes[name] = (axis, *width)
    w.outputs.append(name)
    if w.chance(2):
        t = f"{name}[{', '.join([axis, *width])}]"
        w.define([axis, *width], w.chain(t, [axis, *width]))


def pieces(w: Writer) -> None:
    """Tensors defined piece by piece: interleaved, stacked."""
    name = w.name()
    rest = w.some_axes(w.pick((1, 0)))
    parts = w.pick((2, 2, 3))
    scope: list[str] = []
    if w.chance(2):
        i = w.axis(rest)
        n, lines = parts * w.axes[i], []
        for p in range(parts):
            at = f"{parts}*{i}" + (f" + {p}" if p else "")
            lines.append((at, [i, *rest]))
        w.extents[i] = w.axes[i]
    else:
        n, lines = 0, []
        for p in range(parts):
            i = w.axis(rest)
            w.extents[i] = w.axes[i]
            lines.append((f"{i} + {n}" if p else i, [i, *rest]))
            n += w.axes[i]
    for at, scope in w.choose.shuffled(lines):
        e = w.chain(w.read(scope), scope, 2)
        if w.chance(3):  # a piece of two forms
            e = f"where({scope[0]} < {w.choose(w.axes[scope[0]] + 1)}, {e}, {w.chain(w.read(scope), scope, 3)})"
        w.lines.append(f"{name}[{', '.join([at, *rest])}] = {e}")
    w.extents.update({a: w.axes[a] for a in rest})
    axis = w.axis_of(n)
    w.shapes[name] = (axis, *rest)
    w.outputs.append(name)
    t = f"{name}[{', '.join([axis, *rest])}]"
    if w.chance(2):
        w.finish(w.chain(t, [axis, *rest]), [axis, *rest])
    elif w.chance(2):
        w.define(rest, f"{w.combiner()}[{axis}]({t})")


def typed(w: Writer) -> None:
    """Chains of statements of several element types, with masks and positions between them."""
    left = w.some_axes(w.pick((1, 2)))
    known = []
    for _ in range(w.pick((2, 3, 4))):
        e = w.pick([*known, w.read(left)])
        form = w.pick(("chain", "position", "mask", "cast", "count"))
        if form == "chain":
            e = w.chain(e, left, 2)
        elif form == "position":
            k = w.axis(left, most=9)
            e = f"{w.pick(('argmax', 'argmin'))}[{k}]({w.read([*left, k])})"
        elif form == "mask":
            e = f"where({w.condition(left)}, {e}, {w.pick(('1', '0', '-1'))})"
        elif form == "cast":
            bounded = f"min(max({e}, -3), 3)"
            e = f"{w.pick(_casts())}({bounded})" if w.integer or w.exact else f"{w.pick(('f32', 'f64'))}({e})"
        else:
            e = f"where({e} > 0, 1, 0)"
        known.append(w.define(left, e))


def _casts() -> tuple[str, ...]:
    return tuple(d.name for d in TYPES if not d.is_bool)
