"""`python -m tests.frontends.expansions --update` makes the series of einsmith/ops/expansions.py; without
`--update` it prints them. Each interpolates a smooth function at Chebyshev's points, in 50 digits, and ends where the
rest is below what float64 can tell. Sources: Clenshaw 1955; Abramowitz, Stegun 1964, 9, 10 and 26."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import mpmath as mp

from einsmith.ops.expansions import TAIL_START

PATH = Path(__file__).resolve().parents[2] / "einsmith" / "ops" / "expansions.py"
MARK = "# generated: python -m tests.frontends.expansions --update\n"
DIGITS = 50
POINTS = 80
REST = 1e-17
"""The sum of the coefficients left out is below this part of the function's greatest value."""
WIDTH = 112


class Definition(NamedTuple):
    """f of the variable in low .. high, and how a reader writes it."""

    name: str
    formula: str
    low: float
    high: float
    f: Callable[[mp.mpf], mp.mpf]


def coefficients(d: Definition) -> tuple[float, ...]:
    """c of sum[k](c[k]*T_k): the cosine transform of the values at Chebyshev's points (Clenshaw 1955)."""
    with mp.workdps(DIGITS):
        middle, half = (mp.mpf(d.high) + d.low) / 2, (mp.mpf(d.high) - d.low) / 2
        cosines = [mp.cos(mp.pi * k / (2 * POINTS)) for k in range(4 * POINTS)]
        values = [d.f(middle + half * cosines[2 * k + 1]) for k in range(POINTS)]
        found = []
        for j in range(POINTS):
            terms = (v * cosines[j * (2 * k + 1) % (4 * POINTS)] for k, v in enumerate(values))
            found.append(mp.fsum(terms) * (2 if j else 1) / POINTS)
        least = REST * max(map(abs, values))
        assert abs(found[-1]) < least * 1e-3, f"{d.name} needs more points"
        rest = mp.mpf(0)
        while (rest := rest + abs(found[-1])) < least:
            found.pop()
        return tuple(map(float, found))


# -------------------------------------------------------------------------------------------------------------- Bessel


def first(n: int, z: mp.mpf) -> mp.mpf:
    x = mp.sqrt(z)
    return mp.besselj(n, x) / x**n


def second(n: int, z: mp.mpf) -> mp.mpf:
    """What is left of Y without its logarithm and its pole (9.1.13, 9.1.11)."""
    x = mp.sqrt(z)
    return (mp.bessely(n, x) - 2 / mp.pi * (mp.log(x) * mp.besselj(n, x) - n / x)) / x**n


def hankel(n: int, x: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """P and Q of J = sqrt(2/(pi*x))*(P*cos(chi) - Q*sin(chi)), Y = sqrt(2/(pi*x))*(P*sin(chi) + Q*cos(chi))."""
    chi = x - (2 * n + 1) * mp.pi / 4
    c, s, j, y = mp.cos(chi), mp.sin(chi), mp.besselj(n, x), mp.bessely(n, x)
    root = mp.sqrt(mp.pi * x / 2)
    return root * (j * c + y * s), root * (y * c - j * s)


def modified_second(n: int, z: mp.mpf) -> mp.mpf:
    """What is left of K without its logarithm, by x**n (9.6.13, 9.6.11)."""
    x = mp.sqrt(z)
    return x**n * (mp.besselk(n, x) + (-1) ** n * mp.log(x / 2) * mp.besseli(n, x))


def of_order(n: int) -> list[Definition]:
    def turned(which: int) -> Callable[[mp.mpf], mp.mpf]:
        return lambda u: hankel(n, 1 / mp.sqrt(u))[which] / mp.sqrt(u) ** which

    over = "/x" if n else ""
    left = "(Y1(x) - 2/pi*log(x)*J1(x) + 2/(pi*x))/x" if n else "Y0(x) - 2/pi*log(x)*J0(x)"
    third = "x*(K1(x) - log(x/2)*I1(x))" if n else "K0(x) + log(x/2)*I0(x)"
    return [
        Definition(f"J{n}", f"J{n}(x){over}, in x**2", 0, 64, lambda z: first(n, z)),
        Definition(f"Y{n}", f"{left}, in x**2", 0, 64, lambda z: second(n, z)),
        Definition(f"P{n}", "Hankel's P (9.2.5), in 1/x**2", 0, 1 / 64, turned(0)),
        Definition(f"Q{n}", "x by Hankel's Q (9.2.5), in 1/x**2", 0, 1 / 64, turned(1)),
        Definition(f"I{n}_FAR", f"exp(-x)*sqrt(x)*I{n}(x), in 1/x", 0, 1 / 8,
                   lambda u: mp.exp(-1 / u) * mp.besseli(n, 1 / u) / mp.sqrt(u)),
        Definition(f"K{n}_NEAR", f"{third}, in x**2", 0, 4,
                   lambda z: modified_second(n, z)),
        Definition(f"K{n}_FAR", f"exp(x)*sqrt(x)*K{n}(x), in 1/x", 0, 1 / 2,
                   lambda u: mp.exp(1 / u) * mp.besselk(n, 1 / u) / mp.sqrt(u)),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- Airy


def of_rise(rise: mp.mpf) -> mp.mpf:
    """x of rise = 2/3*x**(3/2)."""
    return mp.cbrt(rise * 3 / 2) ** 2


def swing(rise: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """F and G of Ai(-x) = (F*sin(rise + pi/4) - G*cos(rise + pi/4))/(sqrt(pi)*x**(1/4)), Bi(-x) with cos and -sin."""
    x, turn = of_rise(rise), rise + mp.pi / 4
    c, s, a, b = mp.cos(turn), mp.sin(turn), mp.airyai(-x), mp.airybi(-x)
    root = mp.sqrt(mp.pi) * mp.root(x, 4)
    return root * (a * s + b * c), root * (b * s - a * c)


def airy() -> list[Definition]:
    far, back = 3 / 2, 3 / 16  # 1/rise of x = 1 and of x = -4
    return [
        Definition("AIRY", "Ai(x)", -4, 1, mp.airyai),
        Definition("AIRY_FAR", "exp(rise)*x**(1/4)*Ai(x) of rise = 2/3*x**(3/2), in 1/rise", 0, far,
                   lambda u: mp.exp(1 / u) * mp.root(of_rise(1 / u), 4) * mp.airyai(of_rise(1 / u))),
        Definition("AIRY_F", "F of Ai(-x)*sqrt(pi)*x**(1/4) = F*sin(turn) - G*cos(turn), turn = rise + pi/4 (10.4.60), "
                   "in 1/rise**2", 0, back**2, lambda u: swing(1 / mp.sqrt(u))[0]),
        Definition("AIRY_G", "rise*G of it, in 1/rise**2", 0, back**2,
                   lambda u: swing(1 / mp.sqrt(u))[1] / mp.sqrt(u)),
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- normal


def quantile(r: mp.mpf) -> mp.mpf:
    """x above which a normal number is with probability exp(-r**2/2), by Newton's method."""
    x = r - mp.log(r * mp.sqrt(2 * mp.pi)) / r
    step = mp.mpf(1)
    while abs(step) > mp.mpf(10) ** (5 - mp.mp.dps):
        p = mp.erfc(x / mp.sqrt(2)) / 2
        step = (mp.log(p) + r * r / 2) * p * mp.sqrt(2 * mp.pi) * mp.exp(x * x / 2)
        x += step
    return x


def scaled_tail(x: mp.mpf) -> mp.mpf:
    """(1 + 2*x)*exp(x*x)*erfc(x), beyond 100 by its asymptotic series (7.1.23)."""
    if x < 100:
        return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)
    term = total = mp.mpf(1)
    for k in range(1, 40):
        term *= -(2 * k - 1) / (2 * x * x)
        total += term
    return (1 + 2 * x) / (x * mp.sqrt(mp.pi)) * total


def normal() -> list[Definition]:
    with mp.workdps(DIGITS):
        inner, start, end = (float(v) for v in ((0.5 - mp.exp(-2)) ** 2, mp.log(2), mp.log(39)))
    return [
        Definition("QUANTILE", "x/q, x being that of the probability 1/2 + q, in q**2", 0, inner,
                   lambda z: mp.sqrt(2) * mp.erfinv(2 * mp.sqrt(z)) / mp.sqrt(z)),
        Definition("QUANTILE_FAR", "r - x, x being that of the probability 1 - exp(-r**2/2), in log(r)", start, end,
                   lambda v: mp.exp(v) - quantile(mp.exp(v))),
        Definition("TAIL", "(1 + 2*x)*exp(x*x)*erfc(x), in 1/(x + TAIL_START)", 0, 1 / TAIL_START,
                   lambda u: scaled_tail(1 / u - TAIL_START)),
    ]  # fmt: skip


def gamma() -> list[Definition]:
    return [
        Definition("LOG_GAMMA", "log(gamma(2 + z))/z, in z", -0.5, 0.5, lambda z: mp.loggamma(2 + z) / z),
    ]  # fmt: skip


DEFINITIONS = [*of_order(0), *of_order(1), *airy(), *normal(), *gamma()]


def text(d: Definition) -> str:
    """The definition as a line of Python, with its formula above."""
    lines = [""]
    for c in coefficients(d):
        lines[-1] += f" {c!r}," if lines[-1] else f"{c!r},"
        if len(lines[-1]) > WIDTH - 26:
            lines.append("")
    body = "".join(f"    {line}\n" for line in lines if line)
    comment, rest = d.formula, ""
    if len(comment) > WIDTH:
        at = comment.rindex(" ", 0, WIDTH)
        comment, rest = comment[:at], f"# {comment[at + 1 :]}\n"
    return f"# {comment}\n{rest}{d.name} = Expansion({d.low!r}, {d.high!r}, (\n{body}))  # fmt: skip\n"


def page() -> str:
    return PATH.read_text().partition(MARK)[0] + MARK + "\n" + "\n".join(map(text, DEFINITIONS))


if __name__ == "__main__":
    if "--update" in sys.argv[1:]:
        PATH.write_text(page())
    else:
        print(page().partition(MARK)[2])
