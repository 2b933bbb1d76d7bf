"""Products that share an operand, as one and apart: python -m benchmarks.parallel_fusion [case ...] [--values]

Values and a step down all gradients of each case in three programs: its products apart (the pass "join products" left
out), joined wherever they can be, and as the predicted prices decide. Results are compared before anything is timed.
Times are CPU times of one thread, the least of many in turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import einsmith as es
from benchmarks.driver import FRESH, KEPT, Parser, Results, table
from benchmarks.natural_forms import compare, draw
from einsmith.base import environment

F = es.functional
ROUNDS, TURN = 25, 2e-3
"""Turns of each program, and their least seconds."""


class Siblings(NamedTuple):
    """A case: a function of arrays, and their shapes by name."""

    f: Callable[..., Any]
    inputs: Mapping[str, tuple[int, ...]]


def _attention(x: Any, *weights: Any) -> Any:
    """Queries, keys, values (and a gate) of the samples' tokens, and a pointwise function of them."""
    q, k, *rest = (x @ w for w in weights)
    out = F.tanh(q) * F.sigmoid(k)
    for v in rest:
        out = out + v * q
    return out


def _gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return (F.silu(x @ gate) * (x @ up)) @ down


def _lstm(x: Any, h: Any, c: Any, *weights: Any) -> Any:
    """One step of a cell whose gates are written one by one."""
    w, u, b = weights[:4], weights[4:8], weights[8:]
    i, f, g, o = (x @ w[n] + h @ u[n] + b[n] for n in range(4))
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    return F.sigmoid(o) * F.tanh(c)


def _branches(x: Any, *weights: Any) -> Any:
    """Convolutions of one input, each with a ReLU, concatenated."""
    return F.cat([F.relu(F.conv2d(x, w, padding=w.shape[-1] // 2)) for w in weights], 1)


def _separate_branches(x: Any, *weights: Any) -> Any:
    """Branches that are squared and added up over channels, each with its own weight."""
    return sum((n + 1.0) * F.sum(F.relu(F.conv2d(x, w)) ** 2, 1) for n, w in enumerate(weights))


def _capsules(x: Any, *weights: Any) -> Any:
    """A capsule convolution as NeoFlow's figure 13c has it: convolutions of one input, concatenated and squashed."""
    s = F.stack([F.conv2d(x, w, stride=2) for w in weights], 2)
    n = F.sum(s * s, 2, keepdim=True)
    return s * (n / ((1 + n) * F.sqrt(n + 1e-6)))


def _products(m: int, k: int, widths: tuple[int, ...], f: Callable[..., Any] = _attention) -> Siblings:
    return Siblings(f, {"x": (m, k)} | {f"w{n}": (k, width) for n, width in enumerate(widths)})


def _convolutions(f: Callable[..., Any], x: tuple[int, ...], widths: tuple[int, ...], kernel: int = 1) -> Siblings:
    return Siblings(f, {"x": x} | {f"w{n}": (width, x[1], kernel, kernel) for n, width in enumerate(widths)})


def _cell(batch: int, size: int) -> Siblings:
    weights = {f"{name}{n}": (size, size) for name in "wu" for n in range(4)}
    return Siblings(_lstm, {n: (batch, size) for n in "xhc"} | weights | {f"b{n}": (size,) for n in range(4)})


CASES = {
    "qkv-197x320": _products(197, 320, (320,) * 3),
    "qkvg-197x320": _products(197, 320, (320,) * 4),
    "qkv-16x128": _products(16, 128, (128,) * 3),
    "heads-512x64": _products(512, 64, (8,) * 8),
    "gate-up-128x256": Siblings(_gated, {"x": (128, 256), "gate": (256, 704), "up": (256, 704), "down": (704, 256)}),
    "gate-up-16x64": Siblings(_gated, {"x": (16, 64), "gate": (64, 172), "up": (64, 172), "down": (172, 64)}),
    "lstm-16x128": _cell(16, 128),
    "lstm-64x256": _cell(64, 256),
    "inception-28": _convolutions(_branches, (1, 192, 28, 28), (64, 96, 16)),
    "inception-14": _convolutions(_separate_branches, (4, 480, 14, 14), (192, 96, 16)),
    "narrow-14": _convolutions(_separate_branches, (16, 32, 14, 14), (4,) * 8),
    "capsules-13c": _convolutions(_capsules, (16, 32, 14, 14), (4,) * 8, 3),
    "capsules-256": _convolutions(_capsules, (4, 256, 20, 20), (32,) * 8, 9),
}


@contextmanager
def _way(name: str) -> Iterator[None]:
    """Compile programs with products apart, joined wherever they can be, or as prices decide."""
    from einsmith.passes.algebra import join_products

    gain = -1e9 if name == "joined" else join_products.MIN_GAIN
    left_out = "join products" if name == "apart" else ""
    with (
        environment.setting(environment.WITHOUT, left_out),
        environment.setting(environment.PLANS, "0"),
        patch.object(join_products, "MIN_GAIN", gain),
    ):
        yield


def _step(f: Callable[..., Any], cotangent: Any, *arrays: Any) -> Any:
    """Return a function's values, and its arguments after a step of gradient descent."""
    y, pull_back = es.vjp(f, *arrays)
    return y, *(a - 0.1 * d for a, d in zip(arrays, pull_back(cotangent), strict=True))


def program(case: Siblings, gradients: bool, seed: int = 0) -> partial[Any]:
    """Return a call of a case's program, which is compiled when it is first called."""
    arrays = [a * np.float32(a.shape[0] ** -0.5 if a.ndim == 2 else 0.1) for a in draw(case.inputs, seed)]
    if not gradients:
        return partial(es.jit(case.f), *arrays)
    shape = es.jit(case.f)(*arrays).shape
    cotangent = np.random.default_rng(seed + 1).standard_normal(shape, np.float32)
    return partial(es.jit(partial(_step, case.f)), cotangent, *arrays)


def cpu_seconds(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the least CPU seconds of a call of each function, which take turns."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start, count, spent = time.thread_time(), 0, 0.0
            while spent < TURN:
                call()
                count, spent = count + 1, time.thread_time() - start
            least[name] = min(least[name], spent / count)
    return least


def measure(case: Siblings, gradients: bool = True, seed: int = 0) -> dict[str, Any]:
    """Return CPU seconds and predicted seconds of the three programs, and whether the decided one joins."""
    es.set_threads(1)
    calls: dict[str, partial[Any]] = {}
    results, plans = {}, {}
    for name in ("apart", "joined", "decided"):
        call = program(case, gradients, seed)
        with _way(name):
            out = call()
        calls[name], results[name] = call, out if isinstance(out, tuple) else (out,)
        plans[name] = str(call.func.plan)  # type: ignore[attr-defined]
    apart = max(compare(results[n], results["apart"]) for n in ("joined", "decided"))
    joins = "join products" in plans["decided"]
    return {"seconds": cpu_seconds(calls), "apart": apart, "joins": joins, "joined": "join products" in plans["joined"]}


def main() -> int:
    """Print microseconds of the three programs; return the exit status."""
    options = {"values": (False, "without gradients"), "seed": (0, "of the arrays"), "json": KEPT, "fresh": FRESH}
    args = Parser(__doc__, CASES, **options).read()
    results = Results(args.json)
    cases = [
        (f"{name}/{'values' if args.values else 'gradients'}/{args.seed}",
         partial(measure, CASES[name], not args.values, args.seed))
        for name in args.names or CASES
    ]  # fmt: skip
    rows = []
    for key, cell in results.fill(cases, args.fresh).items():
        t = cell["seconds"]
        times = [f"{t[n] * 1e6:.1f}" for n in ("apart", "joined", "decided")]
        ratios = [f"{t[n] / t['apart']:.2f}" for n in ("joined", "decided")]
        rows.append((key.split("/")[0], *times, *ratios, "yes" if cell["joins"] else "no", f"{cell['apart']:.0e}"))
    names = ("", "apart, us", "joined, us", "decided, us", "joined/apart", "decided/apart", "joins", "differ")
    results.console.print(table("values" if args.values else "values and a step", names, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
