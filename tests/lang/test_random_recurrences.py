"""Random small recurrences: distances, guards, coupled members, directions, two axes, against loops over elements."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

STEPS, WIDTH = 7, 3


class Member:
    """`name[t,k] = f(x[t,k] + sum of terms)`; a term reads a member `back` steps before, under a guard."""

    def __init__(self, rng, name, earlier, names):
        self.name = name
        self.fn = rng.choice(["tanh", "sigmoid", ""])
        self.terms = []
        for source in rng.choice(names, rng.integers(1, 4)):
            back = int(rng.integers(0 if source in earlier else 1, 4))
            kind = rng.choice(["state", "zero", "product", "guarded"]) if back else rng.choice(["product", "plain"])
            self.terms.append((source, back, str(kind), round(float(rng.uniform(-0.5, 0.5)), 3)))

    def text(self, reverse, place):
        terms = []
        for source, back, kind, w in self.terms:
            at = f"t+{back}" if reverse else f"t-{back}"
            inside = f"t+{back} < size(t)" if reverse else f"t >= {back}"
            read = "{}[" + place.format(at, "k") + "]"
            summed = "{}[" + place.format(at, "j") + "]"
            step = f"t - size(t) + {back}" if reverse else "t"
            if kind == "plain":
                terms.append(f"{w}*" + read.format(source))
            elif kind == "state":
                terms.append(f"{w}*where({inside}, {read.format(source)}, s[{step},k])")
            elif kind == "zero":
                terms.append(f"{w}*where({inside}, {read.format(source)}, 0)")
            elif kind == "guarded":
                terms.append(f"where({inside}, {w}*{read.format(source)}, 0)")
            elif back:
                terms.append(f"{w}*sum[j](where({inside}, {summed.format(source)}, 0)*U[j,k])")
            else:
                terms.append(f"{w}*sum[j]({summed.format(source)}*U[j,k])")
        body = " + ".join([f"x[{place.format('t', 'k')}]", *terms])
        return f"{self.name}[{place.format('t', 'k')}] = {self.fn}({body})"

    def step(self, t, values, x, s, u, reverse):
        total = x[t].copy()
        n = len(x)
        for source, back, kind, w in self.terms:
            at = t + back if reverse else t - back
            if 0 <= at < n:
                old = values[source][at]
                total += w * (old @ u if kind == "product" else old)
            elif kind == "state":
                total += w * s[t - n + back if reverse else t]
        return {"tanh": np.tanh, "sigmoid": lambda v: 1 / (1 + np.exp(-v)), "": lambda v: v}[self.fn](total)


def random_case(seed):
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c"][: rng.integers(1, 4)]
    members = [Member(rng, n, names[:i], names) for i, n in enumerate(names)]
    reverse, batch_first = bool(rng.integers(2)), bool(rng.integers(2))
    place = "{1},{0}" if batch_first else "{0},{1}"
    shuffled = [members[i] for i in rng.permutation(len(members))]
    text = "\n".join([*(m.text(reverse, place) for m in shuffled), "return " + ", ".join(names)])
    x, s, u = rng.standard_normal((STEPS, WIDTH)), rng.standard_normal((3, WIDTH)), rng.standard_normal((WIDTH, WIDTH))
    op = es.op(text, extents={"t": STEPS})
    given = {"x": x.T.copy() if batch_first else x, "s": s, "U": u}

    def loop():
        values = {n: np.zeros_like(x) for n in names}
        for t in reversed(range(STEPS)) if reverse else range(STEPS):
            for m in members:
                values[m.name][t] = m.step(t, values, x, s, u, reverse)
        return [values[n].T if batch_first else values[n] for n in names]

    return op, {n: given[n] for n in op.inputs}, loop


def check(seed, compiled):
    op, given, loop = random_case(seed)
    runs = [es.interpret(op)(**given)] + ([op(**given)] if compiled else [])
    for got in runs:
        for g, w in zip(got if isinstance(got, tuple) else (got,), loop(), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-10, err_msg=op.program.text)
    es.check_gradients(lambda *xs: op(**dict(zip(given, xs, strict=True))), *given.values(), order=2)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("seed", range(12))
def test_values_and_gradients(seed):
    check(seed, seed < 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 200))
def test_many(seed):
    check(seed, seed % 4 == 0)


ROWS, COLUMNS = 4, 5


def random_grid(seed):
    """Tensors over (i, j) that read each other at rows above, to either side, or at columns before in the same row."""
    rng = np.random.default_rng(seed)
    names = ["a", "b"][: rng.integers(1, 3)]
    both_sides = bool(rng.integers(2))
    terms = {n: [] for n in names}
    for place, name in enumerate(names):
        for _ in range(rng.integers(1, 4)):
            source, up = str(rng.choice(names)), int(rng.integers(0, 3))
            left = int(rng.integers(-2, 3)) if up and both_sides else int(rng.integers(0, 3))
            if up == left == 0 and names.index(source) >= place:
                left = 1
            terms[name].append((source, up, left, round(float(rng.uniform(-0.6, 0.6)), 2)))
    lines = []
    for name in names:
        body = ["x[i,j]"]
        for source, up, left, w in terms[name]:
            guard = " and ".join(f"0 <= {a}-{d} < size({a})" for a, d in (("i", up), ("j", left)) if d)
            read = f"{source}[i-{up},j-{left}]".replace("--", "+")
            guard = guard.replace("--", "+")
            body.append(f"{w}*" + (f"where({guard}, {read}, 0)" if guard else read))
        lines.append(f"{name}[i,j] = tanh({' + '.join(body)})")
    text = "\n".join([*(lines[k] for k in rng.permutation(len(lines))), "return " + ", ".join(names)])
    x = rng.standard_normal((ROWS, COLUMNS))

    def loop():
        values = {n: np.zeros_like(x) for n in names}
        for i, j in np.ndindex(*x.shape):
            for n in names:
                total = x[i, j]
                for source, up, left, w in terms[n]:
                    if 0 <= i - up and 0 <= j - left < COLUMNS:
                        total += w * values[source][i - up, j - left]
                values[n][i, j] = np.tanh(total)
        return [values[n] for n in names]

    return es.op(text), x, loop


def check_grid(seed, compiled):
    op, x, loop = random_grid(seed)
    for got in [es.interpret(op)(x)] + ([op(x)] if compiled else []):
        for g, w in zip(got if isinstance(got, tuple) else (got,), loop(), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-12, err_msg=op.program.text)
    es.check_gradients(op, x, order=2)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(6))
def test_two_axes(seed):
    check_grid(seed, seed < 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 60))
def test_many_on_two_axes(seed):
    check_grid(seed, True)
