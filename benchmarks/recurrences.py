"""Linear recurrences in steps and in chunks beside PyTorch: python -m benchmarks.recurrences [recurrence ...]

Values and all gradients of recurrences as their papers define them. "Steps" takes them one after the other (chunk=1),
"Einsmith" is what the compiler makes of the same formula, PyTorch has the published chunk form, eager and by
torch.compile. Results of all are verified in float64 before anything is timed, in turns. `--lengths` measures steps and
chunks of several lengths at random sizes instead, with what `chunks.choice` predicts.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import einsmith as es
from benchmarks.driver import FRESH, KEPT, Parser, Results, in_turns, table
from benchmarks.loops import LOOPS

RUNS = 9
TOLERANCE = 1e-9
"""Most that results in float64 may be apart, relative to the largest element."""
LENGTHS = (8, 16, 32, 64)
SIZES_DRAWN = (16, 24, 32, 48, 64, 96, 128)
"""Keys and values of a state with `--lengths`."""

_DELTA, _SPACE = LOOPS["gated delta rule"].text, LOOPS["Mamba-2"].text
_LINEAR = """S[t,h,k,v] = where(t > 0, S[t-1,h,k,v], 0)*exp(g[t,h,k]) + K[t,h,k]*V[t,h,v]
o[t,h,v] = sum[k](S[t,h,k,v]*Q[t,h,k])*rsqrt(size(k))
return o"""
_RWKV = """p[t,h,v,k] = where(t > 0, S[t-1,h,v,k], 0)
s[t,h,v] = sum[k](p[t,h,v,k]*a[t,h,k])
S[t,h,v,k] = p[t,h,v,k]*exp(w[t,h,k]) + s[t,h,v]*b[t,h,k] + V[t,h,v]*K[t,h,k]
y[t,h,v] = sum[k](S[t,h,v,k]*r[t,h,k])
return y"""
_MLSTM = """lf[t,h] = -log1p(exp(-f[t,h]))
m[t,h] = max(lf[t,h] + where(t > 0, m[t-1,h], 0), i[t,h])
a[t,h] = exp(lf[t,h] + where(t > 0, m[t-1,h], 0) - m[t,h])
b[t,h] = exp(i[t,h] - m[t,h])
C[t,h,k,v] = a[t,h]*where(t > 0, C[t-1,h,k,v], 0) + b[t,h]*K[t,h,k]*V[t,h,v]
n[t,h,k] = a[t,h]*where(t > 0, n[t-1,h,k], 0) + b[t,h]*K[t,h,k]
z[t,h] = sum[k](n[t,h,k]*Q[t,h,k])*rsqrt(size(k))
y[t,h,v] = sum[k](C[t,h,k,v]*Q[t,h,k])*rsqrt(size(k))/(max(abs(z[t,h]), exp(-m[t,h])) + 1e-6)
return y"""


class Size(NamedTuple):
    """Steps, heads, keys and values."""

    steps: int
    heads: int
    keys: int
    values: int


class Recurrence(NamedTuple):
    """A recurrence: its formula, its size, and the arrays of its inputs in their order, in float64."""

    text: str
    size: Size
    arrays: Callable[[np.random.Generator, Size], Mapping[str, np.ndarray]]


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _rows(rng: np.random.Generator, s: Size) -> dict[str, np.ndarray]:
    z, keys = rng.standard_normal, (s.steps, s.heads, s.keys)
    return {"Q": _unit(z(keys)), "K": _unit(z(keys)), "V": z((s.steps, s.heads, s.values))}


def _delta(rng: np.random.Generator, s: Size) -> dict[str, np.ndarray]:
    steps = (s.steps, s.heads)
    return _rows(rng, s) | {"g": -0.2 * np.abs(rng.standard_normal(steps)), "beta": rng.random(steps)}


def _linear(rng: np.random.Generator, s: Size) -> dict[str, np.ndarray]:
    return _rows(rng, s) | {"g": -0.1 * np.abs(rng.standard_normal((s.steps, s.heads, s.keys)))}


def _kimi(rng: np.random.Generator, s: Size) -> dict[str, np.ndarray]:
    return _linear(rng, s) | {"beta": rng.random((s.steps, s.heads))}


def _rwkv(rng: np.random.Generator, s: Size) -> dict[str, np.ndarray]:
    r, k, removed = rng.standard_normal((3, s.steps, s.heads, s.keys))
    removed = _unit(removed)
    w, b = rng.random((2, s.steps, s.heads, s.keys))
    v = rng.standard_normal((s.steps, s.heads, s.values))
    return {"r": r, "w": -0.6065 * w, "K": 0.3 * k, "V": v, "a": -removed, "b": removed * b}


def _space(rng: np.random.Generator, s: Size) -> dict[str, np.ndarray]:
    z, wide = rng.standard_normal, (s.steps, s.keys)
    steps = {"dt": 0.1 * rng.random((s.steps, s.heads)), "A": -rng.uniform(1, 4, s.heads)}
    return {"x": z((s.steps, s.heads, s.values)), **steps, "B": z(wide), "C": z(wide), "D": z(s.heads)}


def _gates(rng: np.random.Generator, s: Size) -> dict[str, np.ndarray]:
    z, steps = rng.standard_normal, (s.steps, s.heads)
    rows = {n: z((*steps, w)) for n, w in (("Q", s.keys), ("K", s.keys), ("V", s.values))}
    return rows | {"i": z(steps), "f": z(steps) + 3}


_SIZE = Size(512, 8, 64, 64)
RECURRENCES = {
    "gated delta rule": Recurrence(_DELTA, _SIZE, _delta),
    "gated delta rule, 128": Recurrence(_DELTA, Size(1024, 8, 128, 128), _delta),
    "Kimi delta attention": Recurrence(_DELTA.replace("g[t,h]", "g[t,h,k]"), _SIZE, _kimi),
    "gated linear attention": Recurrence(_LINEAR, _SIZE, _linear),
    "RWKV-7": Recurrence(_RWKV, _SIZE, _rwkv),
    "Mamba-2": Recurrence(_SPACE, Size(1024, 16, 64, 64), _space),
    "mLSTM": Recurrence(_MLSTM, _SIZE, _gates),
}


def operator(recurrence: Recurrence, names: Sequence[str], chunk: int = 0) -> Callable[..., Any]:
    """Return the operator of a recurrence. chunk: as in es.op."""
    return es.op(recurrence.text, inputs=", ".join(names), chunk=chunk)


def with_gradients(op: Callable[..., Any], seed: np.ndarray, arrays: Sequence[np.ndarray]) -> partial[Any]:
    """Return the call of a program of values and all gradients."""

    def both(c: Any, *x: Any) -> Any:
        y, pull_back = es.vjp(op, *x)
        return y, *pull_back(c)

    return partial(es.jit(both), seed, *arrays)


def of_torch(name: str, seed: np.ndarray, arrays: Sequence[np.ndarray], compiles: bool = False) -> Callable[[], Any]:
    """Return a call of PyTorch's chunk form: values and all gradients."""
    import torch

    from benchmarks.peers.chunks import FORMS

    form = FORMS[name.partition(",")[0]]
    f = torch.compile(form, dynamic=False) if compiles else form
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    cotangent = torch.tensor(seed)

    def run() -> list[np.ndarray]:
        y = f(*inputs)
        return [x.detach().numpy() for x in (y, *torch.autograd.grad(y, inputs, cotangent))]

    return run


def apart(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """Return how far results are apart, relative to the largest element."""
    pairs = zip(one, other, strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30)) for a, b in pairs)


def _arena(call: partial[Any]) -> float:
    found = re.search(r"arena ([\d.]+) MiB", str(call.func.plan))  # type: ignore[attr-defined]
    return float(found.group(1)) if found else 0.0


def measure(name: str, threads: int, seed: int, torch_too: bool) -> dict[str, Any]:
    """Return the seconds of each form, arenas (MiB), and errors in float32 relative to steps in float64."""
    recurrence = RECURRENCES[name]
    es.set_threads(threads)
    inputs = recurrence.arrays(np.random.default_rng(seed), recurrence.size)
    wide, names = [*inputs.values()], [*inputs]
    shape = operator(recurrence, names)(*wide).shape
    wide_seed = np.random.default_rng(seed + 1).standard_normal(shape)
    expected = with_gradients(operator(recurrence, names, 1), wide_seed, wide)()
    forms: dict[str, Callable[[], Any]] = {"einsmith": with_gradients(operator(recurrence, names), wide_seed, wide)}
    if torch_too:
        import torch

        torch.set_num_threads(threads)
        forms["torch"] = of_torch(name, wide_seed, wide)
    for form, run in forms.items():
        if apart(run(), expected) > TOLERANCE:
            raise ValueError(f"{name}: the results of {form} are {apart(run(), expected):.0e} apart")
    arrays, cotangent = [a.astype(np.float32) for a in wide], wide_seed.astype(np.float32)
    calls: dict[str, Callable[[], Any]] = {
        "steps": with_gradients(operator(recurrence, names, 1), cotangent, arrays),
        "einsmith": with_gradients(operator(recurrence, names), cotangent, arrays),
    }
    if torch_too:
        calls["torch"] = of_torch(name, cotangent, arrays)
        calls["compile"] = of_torch(name, cotangent, arrays, compiles=True)
    errors = {n: apart(run(), expected) for n, run in calls.items()}
    arenas = {n: _arena(calls[n]) for n in ("steps", "einsmith")}  # type: ignore[arg-type]
    return {"seconds": {n: min(x) for n, x in in_turns(calls, RUNS).items()}, "arena": arenas, "errors": errors}


def measure_lengths(name: str, size: Size, seed: int) -> dict[str, Any]:
    """Return the seconds of steps (1) and of chunks by their lengths."""
    recurrence = RECURRENCES[name]
    inputs = recurrence.arrays(np.random.default_rng(seed), size)
    arrays, names = [a.astype(np.float32) for a in inputs.values()], [*inputs]
    calls, expected = {}, None
    for length in (1, *(n for n in LENGTHS if 2 * n <= size.steps)):
        op = operator(recurrence, names, length)
        cotangent = np.random.default_rng(1).standard_normal(op(*arrays).shape).astype(np.float32)
        calls[str(length)] = with_gradients(op, cotangent, arrays)
        results = calls[str(length)]()
        expected = expected or results
        if apart(results, expected) > 1e-4:
            raise ValueError(f"{name} {size}: chunks of {length} steps are {apart(results, expected):.0e} apart")
    return {"seconds": {n: min(x) for n, x in in_turns(calls, RUNS).items()}}


def drawn(names: Sequence[str], count: int, seed: int) -> list[tuple[str, Size]]:
    """Return recurrences at random sizes."""
    draw, out = random.Random(seed), []
    for _ in range(count):
        keys = draw.choice(SIZES_DRAWN)
        name = draw.choice(names)
        values = keys if name.startswith("RWKV") else draw.choice(SIZES_DRAWN)
        out.append((name, Size(draw.choice((32, 64, 100, 256, 512)), draw.choice((1, 2, 4, 8)), keys, values)))
    return out


def _show_lengths(results: Results, cases: Sequence[tuple[str, Any]], fresh: bool) -> None:
    lengths = [str(n) for n in LENGTHS]
    rows = []
    for key, cell in results.fill(cases, fresh).items():
        seconds = cell["seconds"]
        ratios = [f"{seconds['1'] / seconds[n]:.2f}" if n in seconds else "" for n in lengths]
        rows.append((key, f"{seconds['1'] * 1e3:.2f}", *ratios))
    results.console.print(table("times steps, by length of chunks", ("", "steps, ms", *lengths), rows))


def main() -> int:
    """Print milliseconds and arenas; return the exit status."""
    options: dict[str, Any] = {
        "threads": (1, "that kernels run on"),
        "seed": (0, "of the arrays"),
        "json": KEPT,
        "fresh": FRESH,
    }
    options |= {"lengths": (0, "measure this number of random sizes at several lengths of chunks")}
    options |= {"without-torch": (False, "leave out PyTorch")}
    args = Parser(__doc__, RECURRENCES, **options).read(threads=1)
    results, names = Results(args.json), args.names or [*RECURRENCES]
    es.set_threads(args.threads)
    if args.lengths:
        cases = [
            (f"{name} {' '.join(map(str, size))}", partial(measure_lengths, name, size, args.seed))
            for name, size in drawn([n for n in names if "," not in n], args.lengths, args.seed)
        ]
        _show_lengths(results, cases, args.fresh)
        return 0
    cases = [
        (f"{n}/{args.threads}/{args.seed}", partial(measure, n, args.threads, args.seed, not args.without_torch))
        for n in names
    ]
    rows = []
    for key, cell in results.fill(cases, args.fresh).items():
        seconds, best = cell["seconds"], min(cell["seconds"].get(n, np.inf) for n in ("torch", "compile"))
        times = [f"{seconds[n] * 1e3:.2f}" if n in seconds else "" for n in ("steps", "einsmith", "torch", "compile")]
        arenas = [f"{cell['arena'][n]:.0f}" for n in ("steps", "einsmith")]
        error = f"{cell['errors']['einsmith']:.0e}"
        rows.append((key.split("/")[0], *times, f"{best / seconds['einsmith']:.2f}", *arenas, error))
    columns = ("", "steps, ms", "Einsmith, ms", "PyTorch, ms", "torch.compile, ms", "times the best")
    results.console.print(table("values and gradients", (*columns, "steps, MiB", "Einsmith, MiB", "error"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
