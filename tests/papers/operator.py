"""What an operator from a paper is, and the comparison with its PyTorch program.

    operator(
        "squash",                                                  # name
        "Sabour, Frosst, Hinton 2017, Dynamic routing between capsules, eq. 1",
        '''n[b,i] = sum[d](s[b,i,d]**2)
           v[b,i,d] = s[b,i,d]*sqrt(n[b,i])/(1 + n[b,i])''',
        lambda torch, s: ...,                                      # independent of the formula: PyTorch's own operators
        s="b n d",                                                 # one entry per input, by name
    )

An input is written as its axes, with what it holds after a bar: `"b n d"` (normal floats), `"b n | positive"` (0.5 and
more), `"b n | unit"` (between 0.1 and 0.9), `"n n"` (square), `"b 3"` (an extent that is given), `"n+2"` (sums and
products of letters and numbers), `"b t | int n"` (integers in [0, n)), `"b | bool"`, `"n | order"` (a permutation),
`"n | spread"` (distinct floats at least 0.1 apart, for what sorts or takes a maximum). Letters have three extents each,
in `SIZES` (awkward ones: 1, primes, vector widths and their neighbours), or in `sizes={"n": (5, 16, 33)}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import einsmith as es

SIZES = {
    "b": (2, 1, 3), "c": (3, 8, 5), "d": (5, 17, 8), "e": (4, 3, 9), "f": (6, 16, 7), "g": (2, 3, 1), "h": (7, 9, 8),
    "i": (5, 1, 16), "j": (3, 15, 4), "k": (4, 7, 1), "l": (3, 8, 17), "m": (5, 17, 1), "n": (6, 17, 31),
    "o": (4, 1, 9), "p": (3, 16, 5), "q": (5, 2, 7), "r": (2, 5, 3), "s": (5, 9, 16), "t": (4, 7, 13), "u": (3, 1, 5),
    "v": (7, 16, 5), "w": (6, 15, 17), "x": (3, 7, 1), "y": (4, 1, 6), "z": (5, 3, 2),
}  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """`twin(torch, **inputs, **parameters)` gives a tensor or a tuple of them."""

    name: str
    source: str
    text: str
    twin: Callable
    inputs: Mapping[str, str]
    sizes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    extents: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, float] = field(default_factory=dict)

    def arrays(self, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Inputs at size 0, 1 or 2, in float64."""
        known = {a: n[size] for a, n in {**SIZES, **self.sizes}.items()}
        out: dict[str, np.ndarray] = {}
        for name, text in self.inputs.items():
            axes, _, kind = text.partition("|")
            shape = tuple(_extent(a, known) for a in axes.split())
            out[name] = _filled(shape, kind.split(), known, rng)
        return out


OPERATORS: list[Operator] = []


def operator(
    name: str,
    source: str,
    text: str,
    twin: Callable,
    *,
    sizes: Mapping | None = None,
    extents: Mapping | None = None,
    parameters: Mapping | None = None,
    **inputs: str,
) -> None:
    """Adds an operator to those that are compared."""
    OPERATORS.append(Operator(name, source, text, twin, inputs, sizes or {}, extents or {}, parameters or {}))


def _extent(text: str, known: Mapping[str, int]) -> int:
    assert re.fullmatch(r"[a-z0-9+*/()-]+", text), text
    return int(eval(text.replace("/", "//"), {}, dict(known)))


def _filled(shape: tuple[int, ...], kind: list[str], known: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    match kind:
        case []:
            return rng.standard_normal(shape)
        case ["positive"]:
            return 0.5 + np.abs(rng.standard_normal(shape))
        case ["unit"]:
            return rng.uniform(0.1, 0.9, shape)
        case ["int", high]:
            return rng.integers(0, _extent(high, known), shape)
        case ["bool"]:
            return rng.random(shape) < 0.5
        case ["order"]:
            return rng.permutation(shape[0])
        case ["spread"]:
            n = int(np.prod(shape))
            return ((rng.permutation(n) - n / 2) * 0.2 + rng.uniform(0, 0.1, n)).reshape(shape)
    raise ValueError(f"no input is filled with {' '.join(kind)!r}")


class Comparison:
    """An operator at one size: its value, the gradient of a random sum of it, and the gradient of a random sum of that.

    Both sides compute <c, f(x)>, then <v, grad <c, f>>, then the gradient of this, in float64.
    """

    def __init__(self, op: Operator, size: int, seed: int = 0):
        rng = np.random.default_rng([seed, size, *op.name.encode()])
        self.op = op
        self.f = es.op(op.text, extents=dict(op.extents))
        self.arrays = op.arrays(size, rng)
        self.floats = [n for n, a in self.arrays.items() if a.dtype.kind == "f"]
        self.x = [self.arrays[n] for n in self.floats]
        self.v = [rng.standard_normal(a.shape) for a in self.x]
        self.rng = rng

    def einsmith(self, run: Callable = es.jit) -> list[np.ndarray]:
        """Values, gradients and gradients of second order, by one program."""
        fixed = {n: a for n, a in self.arrays.items() if n not in self.floats}

        def f(*x):
            y = self.f(**fixed, **dict(zip(self.floats, x, strict=True)), **self.op.parameters)
            return y if isinstance(y, tuple) else (y,)

        def first(c, x):
            return sum(((y * w).sum() for y, w in zip(f(*x), c, strict=True) if y.dtype.is_float), start=0.0)

        at = tuple(range(len(self.x)))

        def second(c, v, x):
            g = es.grad(lambda *x: first(c, x), at)(*x)
            return sum(((a * w).sum() for a, w in zip(g, v, strict=True)), start=0.0)

        def everything(c, v, x):
            g = es.grad(lambda *x: first(c, x), at)(*x)
            return f(*x), g, es.grad(lambda *x: second(c, v, x), at)(*x)

        return [a for part in run(everything)(self.c, self.v, self.x) for a in part]

    def torch(self, torch) -> list[np.ndarray]:
        """The same by PyTorch. Call it first: it decides on c."""
        given = {n: torch.from_numpy(np.array(a)) for n, a in self.arrays.items()}
        x = [given[n].requires_grad_() for n in self.floats]
        y = self.op.twin(torch, **given, **self.op.parameters)
        y = y if isinstance(y, tuple) else (y,)
        self.c = [self.rng.standard_normal(tuple(a.shape)) for a in y]

        def grad(s):
            if not s.requires_grad:
                return [torch.zeros_like(a) for a in x]
            found = torch.autograd.grad(s, x, create_graph=True, allow_unused=True)
            return [torch.zeros_like(a) if g is None else g for a, g in zip(x, found, strict=True)]

        s = sum((a * torch.from_numpy(w)).sum() for a, w in zip(y, self.c, strict=True) if a.is_floating_point())
        first = grad(s)
        second = grad(sum((g * torch.from_numpy(w)).sum() for g, w in zip(first, self.v, strict=True)))
        return [a.numpy(force=True) for a in (*y, *first, *second)]

    def check(self, torch, run: Callable = es.jit) -> None:
        """Raises AssertionError where the two sides differ by more than their roundings."""
        want = self.torch(torch)
        got = self.einsmith(run)
        outputs = len(want) - 2 * len(self.x)
        names = [f"output {n}" for n in range(outputs)]
        names += [f"gradient by {n}" for n in self.floats] + [f"second order by {n}" for n in self.floats]
        for name, g, w in zip(names, got, want, strict=True):
            assert g.shape == w.shape, f"{self.op.name}: {name} has shape {g.shape}, not {w.shape}"
            scale = float(np.abs(w).max(initial=1.0))
            np.testing.assert_allclose(g, w, rtol=1e-8, atol=1e-10 * scale, err_msg=f"{self.op.name}: {name}")
