"""Productions of recurrences: forward and backward, several members, distances, states, products, integers."""

from __future__ import annotations

from tests.fuzz.writer import Writer


def recurrence(w: Writer) -> None:
    """Members that read each other at earlier (or later) steps, on one axis."""
    w.budget = min(w.budget, 40_000)
    lead = w.some_axes(w.pick((1, 0, 2)), most=20)
    t = w.axis(lead, most=40)
    first = w.chance(2)
    left = [t, *lead] if first else [*lead, t]
    reverse = w.chance(3)
    names = [f"T{n}" for n in range(w.pick((1, 2, 3)))]
    w.shapes.update({n: tuple(left) for n in names})
    if len(names) > 1:  # past an input's guard another member may be read, and then the text does not tell the extent
        w.extents[t] = w.axes[t]
    lines = []
    for n, name in enumerate(names):
        terms = []
        for m in range(w.pick((1, 2))):
            back = w.pick((1, 1, 1, 2, 3))
            source = w.pick(names)
            if m == 0 and n == 0:
                source = w.pick(names)  # the others may read this one at the same step
            elif source in names[:n] and w.chance(3):
                back = 0
            terms.append(_term(w, source, t, lead, left, back, reverse))
        e = terms[0]
        for x in terms[1:]:
            e = _bounded(w, w.pick(("{} + {}", "{} - {}", "max({}, {})", "min({}, {})")).format(e, x))
        plain = len(terms) == 1
        if w.chance(2):
            e, plain = f"{e} + {w.read(left, ordered=w.choose(3) > 0)}", False
        if not plain or w.choose(2):  # a copy of what was before stays in range
            e = _bounded(w, e)
        if w.chance(2 if w.integer else 3):
            c = " or ".join(_compared(w, names[:n], left) for _ in range(w.pick((1, 1, 2))))
            e = f"where({c}, {w.pick(('1', e))}, {w.pick(('0', e))})"
        lines.append(f"{name}[{', '.join(left)}] = {e}")
    w.lines += w.choose.shuffled(lines)
    w.outputs += w.choose.some(names[:-1]) + names[-1:]
    if w.chance(3):
        out = w.outputs[-1]
        e = w.chain(f"{out}[{', '.join(left)}]", left)
        if w.chance(2):
            e = f"{w.combiner()}[{t}]({e})"
            left = [a for a in left if a != t]
        w.define(left, e)


def _compared(w: Writer, names: list[str], left: list[str]) -> str:
    """A comparison of members at the same step, or of something else, with a small number."""
    at = [f"{n}[{', '.join(left)}]" for n in names]
    e = w.pick(at) if at and w.choose(4) else w.operand(left)
    if len(at) > 1 and w.choose(2):
        e = f"{at[0]} - {at[1]}"
    return f"{e} {w.pick(('==', '>', '<='))} {w.pick(('0', '1'))}"


def _bounded(w: Writer, e: str) -> str:
    """What keeps the values of a recurrence in range."""
    if w.exact:
        return w.pick(("min(3, max(-3, {}))", "({}) % 5")[: 1 + w.integer]).format(e)
    return w.pick(("tanh({})", "sigmoid({})", "0.5*({})", "min(1, max(-1, {}))")).format(e)


def _term(w: Writer, source: str, t: str, lead: list[str], left: list[str], back: int, reverse: bool) -> str:
    """A read of a member so many steps before, with what stands for it at the first steps."""
    sign = "+" if reverse else "-"
    inside = w.pick((f"{t} >= {back}", f"{t} > {back - 1}", f"{t}-{back} >= 0"))
    if reverse:
        inside = f"{t} < size({t}) - {back}"
    if back == 0:
        return f"{source}[{', '.join(left)}]"

    def at(names: list[str]) -> str:
        return ", ".join(f"{t}{sign}{back}" if a == t else a for a in names)

    form = w.pick(("start", "zero", "input", "product", "both", "turned"))
    read = f"{source}[{at(left)}]"
    if form in ("product", "turned") and lead:
        j, n = w.axis_of(w.axes[lead[-1]]), w.axes[lead[-1]]
        other = f"({lead[-1]} + {j}) % {n}" if form == "turned" else j
        inner = [other if a == lead[-1] else a for a in left]
        first = "0"
        if form == "turned":
            name = w.input([w.axes[a] for a in lead])
            first = f"{name}[{', '.join([*lead[:-1], other])}]"
        e = f"where({inside}, {source}[{at(inner)}], {first})"
        if form == "product" or w.choose(2):
            e = f"{e} * {w.read([j, lead[-1]], ordered=True)}"
        e = f"sum[{j}]({e})"
        return _bounded(w, e) if w.exact else f"0.3*{e}"
    if form in ("start", "turned", "product") and back == 1:
        name = w.input([w.axes[a] for a in lead])
        return f"where({inside}, {read}, {name}[{', '.join(lead)}])"
    if form in ("input", "both"):
        x = w.read(left, ordered=True)
        both = w.pick(("max({}, {})", "{} + {}", "min({}, {})")).format(read, x) if form == "both" else read
        return f"where({inside}, {both}, {x})"
    return f"where({inside}, {read}, {w.pick(('0', '1'))})"


def states(w: Writer) -> None:
    """A state that gains outer products, of which reductions over its axes and over time are read outside. Time may be
    any of its axes."""
    w.special = False  # in a chunk of steps, what is no number spreads to the steps before
    w.budget = min(w.budget, 20_000)
    lead = w.some_axes(2, most=20)
    t = w.axis(lead, most=30)
    left = [t, *lead] if w.chance(2) else w.choose.shuffled([t, *lead])
    w.shapes["T0"], w.extents[t] = tuple(left), w.axes[t]
    reverse, back = w.chance(3), w.pick((1, 1, 1, 2))
    inside = f"{t} < size({t}) - {back}" if reverse else f"{t} >= {back}"

    def read(axes: list[str], ordered: bool = False) -> str:
        return w.read(axes, ordered, dtype=None if w.kind == "bool" else w.dtype)  # products of narrow types round

    def at(d: int) -> str:
        return ", ".join(f"{t}{'+' if reverse else '-'}{d}" if a == t and d else a for a in left)

    start = w.pick(("0", "0", "1", read(lead, True)))
    old = f"where({inside}, T0[{at(back)}], {start})"
    decay = read(w.choose.some([t, *lead]) or [t])
    gain = f"{read([t, lead[0]])} * {read([t, lead[1]])}"
    w.lines.append(f"T0[{', '.join(left)}] = {_bounded(w, f'{old} * {decay} + {gain}')}")
    for _ in range(w.pick((1, 2, 3))):
        scope = [t, *lead]
        state = w.pick((f"T0[{at(0)}]", f"T0[{at(0)}]", f"where({inside}, T0[{at(back)}], 0)"))
        e = f"{state} * {read(w.choose.some(scope) or [t])}"
        if w.chance(3):
            e = f"{e} * T0[{at(0)}]"
        over = w.choose.some(scope)
        if over:
            e = f"{w.combiner()}[{', '.join(over)}]({e})"
        kept = w.choose.shuffled([a for a in scope if a not in over])
        result = w.define(kept, e, w.chance(2))
        if t in kept and w.chance(2):
            w.define(
                *(
                    ([a for a in kept if a != t], f"sum[{t}]({result})")
                    if w.chance(2)
                    else (kept, w.chain(result, kept))
                )
            )
    if not w.outputs:
        w.outputs.append(f"T{len(w.shapes) - 1}")


def linear(w: Writer) -> None:
    """A state of keys and values that gains outer products, whose factors read the state through sums over keys; it is
    read outside through such sums, and after its last step."""
    w.special = False  # in a chunk of steps, what is no number spreads to the steps before
    w.budget = min(w.budget, 20_000)
    k, v = w.axis(most=12), w.axis(most=12)
    shared = w.some_axes(w.pick((0, 1, 1, 2)), [k, v], most=30)
    lead = [k, v, *shared]
    t = w.axis(lead, most=40)
    lead = w.choose.shuffled(lead)
    left = [t, *lead] if w.chance(2) else w.choose.shuffled([t, *lead])
    rest = [a for a in left if a != k]
    w.shapes |= {"S": tuple(left), "P": tuple(left), "Z": tuple(rest)}
    w.extents[t] = w.axes[t]
    reverse = w.chance(3)
    inside = f"{t} < size({t}) - 1" if reverse else f"{t} > 0"

    def read(*axes: str) -> str:
        return w.read([t, *axes, *w.choose.some(shared)], dtype=w.dtype)

    def at(name: str, axes: list[str], by: str = "") -> str:
        return f"{name}[{', '.join(a + by if a == t else a for a in axes)}]"

    start = w.pick(("0", "0", w.read(lead, True, dtype=w.dtype)))
    state = at("S", left, "+1" if reverse else "-1")
    decay = w.pick(("", " * 0.5", f" * {read()}", f" * {read(k)}", f" * where({read()} > 0, 1, 0)"))
    before = w.pick((f"where({inside}, {state}, {start}){decay}", f"where({inside}, {state}{decay}, {start})"))
    reads = w.choose(3) > 0
    w.lines.append(f"{at('P', left)} = {before}")
    term = f"{read(k)} * {read(v)}"
    if reads:
        w.lines.append(f"{at('Z', rest)} = sum[{k}]({at('P', left)} * {read(k)})")
        weight = w.pick(("0.02", f"0.01 * {read()}"))  # more of it grows from step to step
        term = f"{read(k)} * ({read(v)} - {weight} * {at('Z', rest)})"
    w.lines.append(f"{at('S', left)} = {at('P', left)} + {term}")
    kept = w.choose.shuffled(rest)
    w.define(kept, f"sum[{k}]({at(w.pick(('S', 'S', 'P')), left)} * {read(k)})")
    if w.chance(3):
        last = "0" if reverse else str(w.axes[t] - 1)
        w.define(lead, f"S[{', '.join(last if a == t else a for a in left)}]")
    if reads and w.chance(3):
        w.outputs.append("Z")


def grid(w: Writer) -> None:
    """A tensor over two axes that reads itself above and to the left: dynamic programs."""
    w.budget = min(w.budget, 3_000)
    others = w.some_axes(w.pick((0, 1, 2)), most=5)
    i, j = w.axis(others, most=9), w.axis(others, most=9)
    left = w.choose.shuffled([*others, i, j])
    x = w.read(left, ordered=True)
    name = w.name()
    w.shapes[name] = tuple(left)
    terms = []
    for up, back in w.choose.some([(1, 0), (0, 1), (1, 1)]) or [(1, 0)]:
        guard = " and ".join(f"{a} > 0" for a, d in ((i, up), (j, back)) if d)
        read = f"{name}[{', '.join({i: f'{i}-{up}', j: f'{j}-{back}'}.get(a, a) for a in left)}]".replace("-0", "")
        terms.append(f"where({guard}, {read}, {w.pick(('0', '1', '-2'))})")
    e = terms[0]
    for y in terms[1:]:
        e = w.pick(("max({}, {})", "min({}, {})", "{} + {}")).format(e, y)
    e = f"{x} + {e}" if w.choose(3) else f"where({w.condition([i, j])}, {x} + {e}, {e})"
    w.lines.append(f"{name}[{', '.join(left)}] = {_bounded(w, e)}")
    w.outputs.append(name)
    if w.chance(2):
        w.finish(f"{name}[{', '.join(left)}]", left)
