"""`python -m tests.fuzz.checked [--only NAME,NAME]`: a fixed list of programs, run under EINSMITH_CHECK.

Small programs that together go through every part of the package: kernels of every pattern, recurrences, training
steps, gradients of the gallery. What a checked run cannot see, as it compares a program with the formulas that it was
made of, is compared with NumPy and PyTorch: simplified formulas, derivatives, optimizers. Prints each program's name
before it runs, and ends with status 1 at the first fault.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

import einsmith as es
import einsmith.functional as F  # noqa: N812
from einsmith.codegen.cache import build, objects
from tests.fuzz.variants import Seen, cells, observed
from tests.gallery.entries import ENTRIES, Entry
from tests.gallery.entry import Ints

Program = Callable[[np.random.Generator], None]
TOLERANCE = 2e-4
"""Of float32 results, relative to the greatest element."""


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _same(ours: Any, theirs: Any, what: str, tolerance: float = TOLERANCE) -> None:
    a, b = np.asarray(ours, float), np.asarray(theirs, float)
    assert a.shape == b.shape, f"{what}: shape {a.shape}, not {b.shape}"
    far = float(np.abs(a - b).max(initial=0.0))
    assert far <= tolerance * (1 + float(np.abs(b).max(initial=0.0))), f"{what} differs by {far}"


# ------------------------------------------------------------------------------------------- formulas with gradients

Given = dict[str, "tuple[int, ...] | Ints | np.ndarray"]
"""Inputs by name: shapes of normal float32 elements, integers, or arrays."""
SPECIAL = np.array([np.nan, 1, -np.inf, 2, np.inf, -1, 0.0, np.nan, -0.0, 3, np.nan], np.float32)

FORMULAS: dict[str, tuple[str, Given, dict[str, Any]]] = {
    "product": ("C[i,j] = sum[k](A[i,k]*B[k,j])", {"A": (37, 67), "B": (67, 35)}, {}),
    "long product": ("C[i,j] = sum[k](A[i,k]*B[k,j])", {"A": (37, 1501), "B": (1501, 35)}, {}),
    "sums of products": ("C[i,j] = sum[b,k](A[b,i,k]*B[b,j,k])", {"A": (61, 6, 83), "B": (61, 5, 83)}, {}),
    "transposed square": ("Y[i,j] = exp(X[j,i])*2", {"X": (19, 19)}, {}),
    "softmax": ("M[i] = max[k](X[i,k]); E[i,k] = exp(X[i,k]-M[i]); S[i] = sum[k](E[i,k]); Y[i,k] = E[i,k]/S[i]",
                {"X": (67, 35)}, {}),
    "maxima below zero": ("M[i] = max[k](-exp(X[i,k]))", {"X": (9, 35)}, {}),
    "minima and where they are": ("M[i] = min[k](X[i,k]); K[i] = argmin[k](X[i,k])", {"X": (9, 35)}, {}),
    "ties": ("K[i] = argmax[k](N[i,k]); L[i] = argmin[k](f32(N[i,k]))", {"N": Ints((9, 61), 3)}, {}),
    "all of it": ("S[] = sum[i,j](X[i,j]*X[i,j]); M[] = max[i,j](X[i,j])", {"X": (317, 129)}, {}),
    "long rows": ("S[i] = sum[j](X[i,j]); Y[i,j] = exp(X[i,j])", {"X": (3, 100_003)}, {}),
    "many rows": ("Y[i,j] = exp(X[i,j])*2", {"X": (1001, 203)}, {}),
    "window of three": (
        "Y[b,o,i,j] = sum[c,r,s](where(0 <= i+r-1 and i+r-1 < X.shape[2] and 0 <= j+s-1 and j+s-1 < X.shape[3], "
        "X[b,c,i+r-1,j+s-1], 0)*W[o,c,r,s])",
        {"X": (2, 3, 17, 19), "W": (5, 3, 3, 3)}, {"i": "X.shape[2]", "j": "X.shape[3]"}),
    "window of 225 places": ("Y[i,j] = max[r,s](X[15*i+r,15*j+s])", {"X": (47, 61)}, {"r": 15, "s": 15}),
    "strided read": ("Y[i] = X[2*i+1]*X[2*i]", {"X": (75,)}, {}),
    "phases": ("Y[i] = sum[r](X[2*i+r]*W[r])", {"X": (76,), "W": (3,)}, {}),
    "what windows leave over": ("Y[i,j] = sum[r,s](X[2*i+r,3*j+s+1]*W[r,s])", {"X": (20, 31), "W": (3, 2)},
                                {"i": 5, "j": 4}),
    "part of a window": ("Y[i,j] = sum[r,s](where(s < 4, X[i+r,j+s], 1)*W[r])", {"X": (9, 20), "W": (3,)},
                         {"i": 5, "j": 7, "s": 9}),
    "pieces": ("Y[i] = where(i < 11, exp(X[i]), tanh(X[i])) + where(i < 23, 0, X[i])", {"X": (41,)}, {}),
    "interleaved": ("Y[2*i] = where(i < 190, exp(X[i]), tanh(X[i])) + where(i < 9, 0, X[i]); Y[2*i+1] = X[i]",
                    {"X": (401,)}, {}),
    "halves": ("C[k] = A[k]; C[17+k] = B[k]; Y[i] = exp(C[i+1])", {"A": (17,), "B": (17,)}, {"i": 17}),
    "shifted differences": ("Y[i] = where(i > 0, X[i]-X[i-1], X[i])", {"X": (37,)}, {}),
    "circular": ("Y[i] = X[(i+5) % X.shape[0]]*X[i]", {"X": (37,)}, {}),
    "functions": ("Y[i] = cos(X[i])*sin(X[i]) + X[i]**3 + rsqrt(1 + X[i]*X[i])", {"X": (53,)}, {}),
    "equal operands": ("Y[i] = max(X[i], 0.5)*(1 + i) + min(X[i], 0)", {"X": np.arange(12, dtype=np.float32) % 3 / 2},
                       {}),
    "products of four": ("Y[i] = prod[k](X[i,k])", {"X": (5, 4)}, {}),
    "powers": ("Y[i] = X[i]**f32(N[i])", {"X": (53,), "N": Ints((53,), 5, -4)}, {}),
    "integers": ("Q[i] = N[i]//7; R[i] = N[i] % 5; S[i] = N[i]//D[i]", {"N": Ints((37,), 99, -99), "D": Ints((37,), 9)},
                 {}),
    "remainders": ("Y[i] = X[i] % 0.7; Z[i] = X[i] % -0.3", {"X": (37,)}, {}),
    "conditions as numbers": ("Y[i] = f32(X[i] > 0)*X[i]", {"X": (37,)}, {}),
    "not a number": ("Y[i] = max(X[i], Z[i]); M[i] = min(X[i], Z[i]); A[] = max[i](X[i]); K[] = argmax[i](X[i])",
                     {"X": np.tile(SPECIAL, 4), "Z": np.repeat(SPECIAL, 4)}, {}),
    "scatter": ("Y[N[i],j] += X[i,j]", {"N": Ints((41,), 7), "X": (41, 19)}, {"Y.shape[0]": 7}),
}  # fmt: skip

WANTED: dict[str, tuple[str, Given, dict[str, Any], Callable[..., Any]]] = {
    "digits": ("Y[i] = X[(i % 7) % 5] + X[i % 12]", {"X": (12,)}, {"i": 13},
               lambda X: np.array([X[i % 7 % 5] + X[i % 12] for i in range(13)])),
    "some digits": ("Y[i] = where(i % 12 < 11, X[i], 0)", {"X": (30,)}, {},
                    lambda X: np.where(np.arange(30) % 12 < 11, X, 0)),
    "scatter to a start": ("Y[i,j] = 2*Z[i,j]; Y[N[i],j] += X[i,j]*W[i]",
                           {"Z": (7, 5), "N": np.arange(41) % 7, "X": (41, 5), "W": (41,)}, {},
                           lambda Z, N, X, W: 2*Z + np.stack([(X*W[:, None])[N == n].sum(0) for n in range(7)])),
    "greatest at a place": ("Y[N[i],j] max= -X[i,j]**2", {"N": np.arange(41) % 7, "X": (41, 5)}, {"Y.shape[0]": 7},
                            lambda N, X: np.stack([(-X**2)[N == n].max(0) for n in range(7)])),
    "greatest and where the least is": ("K[i] = argmin[k](X[i,k]); M[i] = max[k](X[i,k])", {"X": (9, 35)}, {},
                                        lambda X: X.max(1)),
    "parts of an axis": ("Y[i] = where(not (i >= 9) and i > 5, X[i], -X[i])", {"X": (17,)}, {},
                         lambda X: np.where((np.arange(17) > 5) & (np.arange(17) < 9), X, -X)),
    "rounded integers": ("Y[i] = f64(f32(N[i]))", {"N": Ints((17,), 1 << 40)}, {},
                         lambda N: N.astype(np.float32).astype(float)),
    "two types": ("Y[i] = X[i]*Z[i]", {"X": (17,), "Z": np.arange(17) / 7}, {}, lambda X, Z: X.astype(float) * Z),
    "rows of one": ("Y[i,j] = X[0,j]", {"X": (5, 5)}, {"i": 5}, lambda X: np.tile(X[:1], (5, 1))),
    "squares": ("Y[i,j] = X[j,i]; Z[i,j] = Y[i,j] - X[i,j]", {"X": (5, 5)}, {}, lambda X: X.T - X),
    "reach": ("Y[7+i] = X[i]; Y[k] = Z[k]", {"X": (11,), "Z": (7,)}, {}, lambda X, Z: np.concatenate([Z, X])),
}  # fmt: skip
"""With what the last result must be, by NumPy."""


def _arrays(given: Given, rng: np.random.Generator) -> dict[str, np.ndarray]:
    out = {}
    for name, s in given.items():
        if isinstance(s, Ints):
            out[name] = rng.integers(s.low, s.high, s.shape)
        else:
            out[name] = _normal(rng, *s) if isinstance(s, tuple) else s
    return out


def _wanted(name: str) -> Program:
    text, given, extents, want = WANTED[name]

    def run(rng: np.random.Generator) -> None:
        op, x = es.op("\n".join(text.split("; ")), extents=extents), _arrays(given, rng)
        got = es.jit(lambda *a: op(**dict(zip(x, a, strict=True))))(*x.values())
        wanted = want(**x)
        _same(got[-1] if isinstance(got, tuple) else got, wanted, name, 1e-12 if wanted.dtype == np.float64 else 1e-6)

    return run


def _formula(name: str) -> Program:
    """Values and gradients of a formula."""
    text, given, extents = FORMULAS[name]

    def run(rng: np.random.Generator) -> None:
        op, x = es.op("\n".join(text.split("; ")), extents=extents), _arrays(given, rng)

        def total(*a: Any) -> Any:
            out = op(**dict(zip(x, a, strict=True)))
            outs = out if isinstance(out, tuple) else (out,)
            return sum(((y * y).sum() for y in outs if y.dtype.kind == "f"), start=0.0)

        es.jit(lambda *a: op(**dict(zip(x, a, strict=True))))(*x.values())
        at = tuple(n for n, a in enumerate(x.values()) if a.dtype.kind == "f" and np.isfinite(a).all())
        if at:
            es.jit(es.grad(total, at))(*x.values())
            _slope(total, at, list(x.values()), rng)

    return run


def _slope(f: Callable, at: Sequence[int], x: Sequence[np.ndarray], rng: np.random.Generator) -> None:
    """The gradients of f by the arguments `at` are those of central differences, by the evaluator in float64."""
    wide = [a.astype(np.float64) if n in at else a for n, a in enumerate(x)]
    v = [rng.standard_normal(a.shape) if n in at else None for n, a in enumerate(wide)]

    def moved(far: float) -> float:
        return float(es.interpret(f)(*(a if w is None else a + far * w for a, w in zip(wide, v, strict=True))))

    g = es.interpret(es.grad(f, tuple(at)))(*wide)
    found = sum(float((a * v[n]).sum()) for n, a in zip(at, g, strict=True))
    want = (moved(1e-6) - moved(-1e-6)) / 2e-6
    _same(found, want, "the slope", 1e-5)
    _same(es.interpret(lambda *a: es.jvp(f, a, v)[1])(*wide), want, "the tangent", 1e-5)


VARIED = ("product", "long product", "sums of products", "softmax", "all of it", "ties", "transposed square", "phases",
          "window of three", "scatter", "long rows", "many rows")  # fmt: skip
TURNS = 5


@contextmanager
def _nothing_kept() -> Iterator[None]:
    """No code is read from disk or written there."""
    with (
        mock.patch.object(objects, "read", lambda key: None),
        mock.patch.object(objects, "write", lambda key, entry: None),
        mock.patch.object(build, "PARALLEL_FROM", 1 << 30),
    ):
        yield


def _varied(name: str) -> Program:
    """A formula with its gradients in other configurations than the cheapest: in every turn each kernel has the one
    that has most in it that no kernel has had."""

    def run(rng: np.random.Generator) -> None:
        had: set[tuple[str, str]] = set()
        for _ in range(TURNS):
            before = len(had)

            def pick(kernel: Any, target: Any, choice: Any, others: Sequence[Any]) -> int:
                genes = [{c[:2] for c in cells(kernel, target, pattern, config)} - had for pattern, config, _ in others]
                if not any(genes):
                    return -1
                most = max(range(len(genes)), key=lambda n: len(genes[n]))
                had.update(genes[most])
                return most

            with _nothing_kept(), observed(Seen(), pick):
                _formula(name)(rng)
            if len(had) == before:
                break

    return run


def _gallery(entry: Entry, n: int) -> Program:
    """Value and gradient of an entry; the gradient, in float64, is PyTorch's."""

    def run(rng: np.random.Generator) -> None:
        op = es.op(entry.formula, extents=entry.extents)
        given = entry.inputs(entry.cases[n], rng)
        given, numbers = {k: given[k] for k in op.inputs}, entry.parameters(entry.cases[n])
        names = [k for k, a in given.items() if a.dtype.kind == "f"]
        x = [given[k] for k in names]

        def f(*a: Any) -> Any:
            return op(**{**given, **dict(zip(names, a, strict=True))}, **numbers)

        y = es.jit(f)(*x)
        several = y if isinstance(y, tuple) else (y,)
        c = [rng.standard_normal(a.shape) if a.dtype.kind == "f" else None for a in several]

        def total(*a: Any) -> Any:
            out = f(*a)
            outs = out if isinstance(out, tuple) else (out,)
            return sum(((o * w).sum() for o, w in zip(outs, c, strict=True) if w is not None), start=0.0)

        if not names or all(w is None for w in c):
            return
        ours = es.jit(es.grad(total, tuple(range(len(x)))))(*x)
        if entry.twin is None:
            return
        import torch

        leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in x]
        rest = {k: torch.from_numpy(a) for k, a in given.items() if k not in names}
        out = entry.twin(torch, **{**rest, **dict(zip(names, leaves, strict=True))}, **numbers)
        outs = out if isinstance(out, tuple) else (out,)
        sum((o * torch.from_numpy(w)).sum() for o, w in zip(outs, c, strict=True) if w is not None).backward()
        for k, a, leaf in zip(names, ours if isinstance(ours, tuple) else (ours,), leaves, strict=True):
            if leaf.grad is not None:
                _same(a, leaf.grad.numpy(), f"the gradient by {k}", 1e-7)

    return run


# ------------------------------------------------------------------------------------------------------- recurrences

RAGGED = """
    p[t,b,k] = sum[j](U[k,j]*where(t > 0, h[t-1,b,j], h0[b,j])) + sum[i](W[k,i]*x[t,b,i])
    h[t,b,k] = where({}, 0, tanh(p[t,b,k]))
    return h
"""
SECOND_ORDER = """
    y[t,k] = where(t > 1, a[k]*y[t-1,k] - b[k]*y[t-2,k] + x[t,k], where(t > 0, a[k]*y[t-1,k] + x[t,k], x[t,k]))
"""


def _ragged(steps: int, batch: int, beyond: str) -> Program:
    def run(rng: np.random.Generator) -> None:
        op = es.op(RAGGED.format(beyond))
        n = rng.integers(1, steps // 2, batch)
        n[0] = steps // 2 - 1
        x, h0 = _normal(rng, steps, batch, 3), _normal(rng, batch, 5)
        u, w = 0.3 * _normal(rng, 5, 5), _normal(rng, 5, 3)

        def loss(u: Any, w: Any, x: Any, h0: Any) -> Any:
            return (op(n=n, x=x, h0=h0, U=u, W=w) ** 2).sum()

        ours = es.jit(es.grad(loss, (0, 1, 2, 3)))(u, w, x, h0)
        import torch

        leaves = [torch.from_numpy(a).double().requires_grad_() for a in (u, w, x, h0)]
        hidden, total, length = leaves[3], torch.zeros((), dtype=torch.float64), torch.from_numpy(n)
        for t in range(steps):
            on = (t < length)[:, None]
            hidden = torch.where(on, torch.tanh(hidden @ leaves[0].T + leaves[2][t] @ leaves[1].T), 0.0)
            total = total + (hidden**2).sum()
        total.backward()
        for name, a, leaf in zip("UWxh", ours, leaves, strict=True):
            _same(a, leaf.grad.numpy(), f"the gradient by {name}")

    return run


def _filter(rng: np.random.Generator) -> None:
    op = es.op(SECOND_ORDER)
    a, b, x = 0.5 * _normal(rng, 7), 0.3 * _normal(rng, 7), _normal(rng, 19, 7)
    ours = es.jit(es.grad(lambda *z: (op(a=z[0], b=z[1], x=z[2]) ** 2).sum(), (0, 1, 2)))(a, b, x)
    import torch

    leaves = [torch.from_numpy(z).double().requires_grad_() for z in (a, b, x)]
    ys: list[Any] = []
    for t in range(19):
        y = leaves[2][t]
        y = y + leaves[0] * ys[t - 1] if t > 0 else y
        ys.append(y - leaves[1] * ys[t - 2] if t > 1 else y)
    (torch.stack(ys) ** 2).sum().backward()
    for name, z, leaf in zip("abx", ours, leaves, strict=True):
        _same(z, leaf.grad.numpy(), f"the gradient by {name}")


def _backwards(rng: np.random.Generator) -> None:
    layer = es.nn.LSTM(5, 9, 1, bidirectional=True)
    step = es.TrainStep(layer, lambda y, t: F.mse_loss(y[0], t), es.optim.SGD(lr=0.1))
    for _ in range(2):
        step(_normal(rng, 7, 3, 5), _normal(rng, 7, 3, 18))


# ---------------------------------------------------------------------------------------------------------- training


def _lenet(rng: np.random.Generator) -> None:
    es.manual_seed(0)
    step = es.TrainStep(es.models.lenet5(), F.cross_entropy, es.optim.SGD(lr=0.01, momentum=0.9))
    for _ in range(2):
        step(_normal(rng, 3, 1, 28, 28), rng.integers(0, 10, 3))


def _winograd(rng: np.random.Generator) -> None:
    model = es.nn.Sequential(es.nn.Conv2d(32, 64, 3, padding=1), es.nn.ReLU(), es.nn.Conv2d(64, 32, 3, padding=1))
    step = es.TrainStep(model, F.mse_loss, es.optim.SGD(lr=0.01), winograd=True)
    step(_normal(rng, 2, 32, 29, 35), _normal(rng, 2, 32, 29, 35))


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": ("SGD", {"lr": 0.05, "momentum": 0.8, "nesterov": True}),
    "dampening": ("SGD", {"lr": 0.05, "momentum": 0.8, "dampening": 0.3, "maximize": True}),
    "adam": ("Adam", {"lr": 0.02, "weight_decay": 0.1, "amsgrad": True}),
    "adamw": ("AdamW", {"lr": 0.02, "weight_decay": 0.1, "betas": (0.8, 0.95)}),
    "rmsprop": ("RMSprop", {"lr": 0.02, "momentum": 0.7, "centered": True}),
    "adagrad": ("Adagrad", {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.01}),
}


def _optimizer(name: str) -> Program:
    """Three steps of a network of two layers, next to PyTorch's."""
    kind, options = OPTIMIZERS[name]

    def run(rng: np.random.Generator) -> None:
        import torch

        model = es.nn.Sequential(es.nn.Linear(9, 17), es.nn.Tanh(), es.nn.Linear(17, 5))
        twin = torch.nn.Sequential(torch.nn.Linear(9, 17), torch.nn.Tanh(), torch.nn.Linear(17, 5))
        weights = {k: 0.5 * _normal(rng, *v.shape) for k, v in model.state_dict().items()}
        model.load_state_dict(weights)
        twin.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
        step = es.TrainStep(model, F.mse_loss, getattr(es.optim, kind)(**options))
        theirs = getattr(torch.optim, kind)(twin.parameters(), **options)
        for _ in range(3):
            x, y = _normal(rng, 7, 9), _normal(rng, 7, 5)
            step(x, y)
            theirs.zero_grad()
            torch.nn.functional.mse_loss(twin(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            theirs.step()
        for k, v in twin.state_dict().items():
            _same(model.state_dict()[k], v.numpy(), f"{k} after three steps")

    return run


def _in_another_order(rng: np.random.Generator) -> None:
    """The layer that comes last holds the first parameters: its update is the first."""

    class Network(es.nn.Module):
        def __init__(self) -> None:
            self.last, self.first = es.nn.Linear(17, 5), es.nn.Linear(9, 17)

        def forward(self, x: Any) -> Any:
            return self.last(F.tanh(self.first(x)))

    step = es.TrainStep(Network(), F.mse_loss, es.optim.SGD(lr=0.1))
    for _ in range(2):
        step(_normal(rng, 7, 9), _normal(rng, 7, 5))


def _embedding(rng: np.random.Generator) -> None:
    model = es.nn.Sequential(es.nn.Embedding(11, 19), es.nn.Linear(19, 5))
    step = es.TrainStep(model, lambda y, t: F.cross_entropy(F.flatten(y, 0, 1), t), es.optim.Adam(lr=0.01))
    for _ in range(2):
        step(rng.integers(0, 11, (4, 7)), rng.integers(0, 5, 28))


def _results_stay(rng: np.random.Generator) -> None:
    """Large results of one function, two of them held while others are made."""
    f = es.jit(lambda x: x * 2 + 1)
    x = [np.full((600, 600), n, np.float32) for n in range(6)]
    kept = [f(a) for a in x]
    for n, y in enumerate(kept):
        assert (y == 2 * n + 1).all(), f"result {n} was overwritten by a later one"


# ------------------------------------------------------------------------------------------------------------- all


def programs() -> Iterator[tuple[str, Program]]:
    """Every program and its name, the quickest first."""
    yield from ((name, _formula(name)) for name in FORMULAS)
    yield from ((name, _wanted(name)) for name in WANTED)
    yield "results stay", _results_stay
    yield "embedding", _embedding
    yield "parameters in another order", _in_another_order
    yield from ((f"optimizer {name}", _optimizer(name)) for name in OPTIMIZERS)
    yield "second-order recurrence", _filter
    yield "sequences of several lengths", _ragged(11, 2, "n[b] <= t")
    yield "long sequences of several lengths", _ragged(24, 40, "not (t < n[b])")
    yield "both directions", _backwards
    yield "winograd", _winograd
    yield "lenet", _lenet
    yield from ((f"{name} in other configurations", _varied(name)) for name in VARIED)
    yield from ((f"gallery {e.name}", _gallery(e, 0)) for e in ENTRIES)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 where a program was wrong."""
    a = argparse.ArgumentParser(prog="python -m tests.fuzz.checked", description=__doc__)
    a.add_argument("--only", default="", help="comma-separated names of programs")
    a.add_argument("--threads", type=int, default=2)
    o = a.parse_args(arguments)
    os.environ.setdefault("EINSMITH_CHECK", "1")
    names = [x for x in o.only.split(",") if x]
    es.set_threads(o.threads)
    try:
        for n, (name, run) in enumerate(programs()):
            if not names or name in names:
                print(f"program {name}", flush=True)
                run(np.random.default_rng(n))
    except Exception as e:
        said = str(e).splitlines()
        print(f"fault: {type(e).__name__}: {said[0] if said else ''}", flush=True)
        return 1
    finally:
        es.set_threads(None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
