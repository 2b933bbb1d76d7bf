"""Recurrences with the passes over loops and without them: python -m benchmarks.loops [recurrence ...]

Values and all gradients of recurrences as their papers define them, in turns in one process; both programs' results are
compared before. `--without` names the passes that the other program lacks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import einsmith as es
from benchmarks.driver import FRESH, KEPT, Parser, Results, in_turns, table
from benchmarks.natural_forms import compare, decays, draw, unit, with_gradients
from einsmith.base import environment

RUNS = 7
PASSES = "merge loops, circular buffers, split loops, skew"
"""Passes that decide what a loop's steps compute, where its states are, and what runs each step."""


class Loop(NamedTuple):
    """A recurrence.

    inputs: shape of each input, or a function from a generator to the array; those that are not floats have no
    gradient, nor those that `constant` names. checkpoint: steps between states that the gradient saves; 0: all.
    """

    text: str
    inputs: Mapping[str, Any]
    extents: Mapping[str, str] = {}
    constant: tuple[str, ...] = ()
    checkpoint: int = 0


_DELTA = """p[t,h,k,v] = where(t > 0, S[t-1,h,k,v], 0)*exp(g[t,h])
u[t,h,v] = beta[t,h]*(V[t,h,v] - sum[k](p[t,h,k,v]*K[t,h,k]))
S[t,h,k,v] = p[t,h,k,v] + K[t,h,k]*u[t,h,v]
o[t,h,v] = sum[k](S[t,h,k,v]*Q[t,h,k])*rsqrt(size(k))
return o"""
_RWKV = """p[t,h,v,k] = where(t > 0, S[t-1,h,v,k], 0)
s[t,h,v] = sum[k](p[t,h,v,k]*a[t,h,k])
S[t,h,v,k] = p[t,h,v,k]*exp(w[t,h,k]) - s[t,h,v]*a[t,h,k]*b[t,h,k] + V[t,h,v]*K[t,h,k]
y[t,h,v] = sum[k](S[t,h,v,k]*r[t,h,k])
return y"""
_SPACE = """S[t,h,p,n] = exp(A[h]*dt[t,h])*where(t > 0, S[t-1,h,p,n], 0) + dt[t,h]*x[t,h,p]*B[t,n]
y[t,h,p] = sum[n](C[t,n]*S[t,h,p,n]) + D[h]*x[t,h,p]
return y"""
_SCAN = """s[t,d,n] = exp(dt[t,d]*A[d,n])*where(t > 0, s[t-1,d,n], 0) + dt[t,d]*B[t,n]*x[t,d]
y[t,d] = sum[n](C[t,n]*s[t,d,n]) + D[d]*x[t,d]
return y"""
_SLSTM = """a[t,b,g,h,k] = x[t,b,g,h,k] + sum[j](where(t > 0, y[t-1,b,h,j], 0)*R[g,h,j,k])
lf[t,b,h,k] = -log1p(exp(-a[t,b,1,h,k]))
q[t,b,h,k] = lf[t,b,h,k] + where(t > 0, m[t-1,b,h,k], 0)
m[t,b,h,k] = where(t > 0, max(a[t,b,0,h,k], q[t,b,h,k]), a[t,b,0,h,k])
i[t,b,h,k] = exp(a[t,b,0,h,k] - m[t,b,h,k])
f[t,b,h,k] = where(t > 0, exp(q[t,b,h,k] - m[t,b,h,k]), 0)
c[t,b,h,k] = f[t,b,h,k]*where(t > 0, c[t-1,b,h,k], 0) + i[t,b,h,k]*tanh(a[t,b,2,h,k])
n[t,b,h,k] = f[t,b,h,k]*where(t > 0, n[t-1,b,h,k], 0) + i[t,b,h,k]
y[t,b,h,k] = sigmoid(a[t,b,3,h,k])*c[t,b,h,k]/n[t,b,h,k]
return y"""
_ALIGNMENT = """top[t,b] = max[v](stop_gradient(x[t,b,v]))
lse[t,b] = top[t,b] + log(sum[v](exp(x[t,b,v] - top[t,b])))
e[t,b,s] = x[t,b,where(s % 2 == 1, y[b,min(s//2, y.shape[1]-1)], 0)] - lse[t,b]
p[t,b,s] = where(t > 0, a[t-1,b,s], -1e30)
q[t,b,s] = where(t > 0 and s > 0, a[t-1,b,s-1], where(t == 0 and s <= 1, 0, -1e30))
r[t,b,s] = where(t > 0 and s > 2 and s % 2 == 1, a[t-1,b,s-2], -1e30)
m[t,b,s] = stop_gradient(max(p[t,b,s], q[t,b,s], r[t,b,s]))
a[t,b,s] = e[t,b,s] + m[t,b,s] + log(exp(p[t,b,s]-m[t,b,s]) + exp(q[t,b,s]-m[t,b,s]) + exp(r[t,b,s]-m[t,b,s]))
loss[b] = -a[x.shape[0]-1,b,2*y.shape[1]]
return loss"""
_WAVE = """a[t,i,j] = where(t > 0, u[t-1,i,j], 0)
lap[t,i,j] = (where(t > 0 and i > 0, u[t-1,i-1,j], 0) + where(t > 0 and i < c.shape[0]-1, u[t-1,i+1,j], 0)
            + where(t > 0 and j > 0, u[t-1,i,j-1], 0) + where(t > 0 and j < c.shape[1]-1, u[t-1,i,j+1], 0) - 4*a[t,i,j])
u[t,i,j] = 2*a[t,i,j] - where(t > 1, u[t-2,i,j], 0) + c[i,j]**2*lap[t,i,j] + where(i == 108 and j == 128, w[t], 0)
r[t,m] = u[t,20,at[m]]
return r"""


def _speeds(rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(0.2, 0.5, (256, 256))


_ROWS = (512, 8, 64)
_POINTS = {"c": _speeds, "w": (200,), "at": lambda rng: np.arange(10, 246, 4)}
LOOPS = {
    "gated delta rule": Loop(
        _DELTA,
        {"Q": unit(*_ROWS), "K": unit(*_ROWS), "V": _ROWS, "g": decays(512, 8)}
        | {"beta": lambda rng: rng.random((512, 8))},
    ),
    "RWKV-7": Loop(
        _RWKV,
        {"r": _ROWS, "w": decays(*_ROWS), "K": unit(*_ROWS), "V": _ROWS, "a": unit(*_ROWS)}
        | {"b": lambda rng: rng.random(_ROWS)},
    ),
    "Mamba-2": Loop(
        _SPACE,
        {"x": (1024, 16, 64), "dt": lambda rng: 0.1 * rng.random((1024, 16)), "A": decays(16), "B": (1024, 64)}
        | {"C": (1024, 64), "D": (16,)},
    ),
    "Mamba-1": Loop(
        _SCAN,
        {"x": (1024, 512), "dt": lambda rng: 0.1 * rng.random((1024, 512)), "A": decays(512, 16), "B": (1024, 16)}
        | {"C": (1024, 16), "D": (512,)},
    ),
    "sLSTM": Loop(_SLSTM, {"x": (256, 16, 4, 4, 64), "R": lambda rng: 0.1 * rng.standard_normal((4, 4, 64, 64))}),
    "connectionist temporal classification": Loop(
        _ALIGNMENT,
        {"x": (400, 16, 64), "y": lambda rng: rng.integers(1, 64, (16, 80))},
        {"s": "2*y.shape[1]+1"},
    ),
    "wave equation": Loop(_WAVE, _POINTS, constant=("w",)),
    "wave equation, checkpoint=10": Loop(_WAVE, _POINTS, constant=("w",), checkpoint=10),
}  # fmt: skip


def measure(loop: Loop, without: str, seed: int = 0, threads: int = 1) -> dict[str, Any]:
    """Return the seconds and the arena (MiB) of the programs with and without some passes, and how far they are
    apart."""
    arrays, names = draw(loop.inputs, seed), list(loop.inputs)
    at = [n for n, x in enumerate(arrays) if x.dtype.kind == "f" and names[n] not in loop.constant]
    es.set_threads(threads)
    op = es.op(loop.text, inputs=", ".join(names), extents=dict(loop.extents) or None, checkpoint=loop.checkpoint)
    calls: dict[str, partial[Any]] = {}
    results, arenas = {}, {}
    for name, left_out in (("with", ""), ("without", without)):
        calls[name] = with_gradients(op, arrays, at)
        with environment.setting(environment.WITHOUT, left_out):
            results[name] = calls[name]()
        found = re.search(r"arena ([\d.]+) MiB", str(calls[name].func.plan))  # type: ignore[attr-defined]
        assert found is not None
        arenas[name] = float(found.group(1))
    apart = compare(results["with"], results["without"])
    return {"seconds": {n: min(x) for n, x in in_turns(calls, RUNS).items()}, "arena": arenas, "apart": apart}


def main() -> int:
    """Print milliseconds and arenas of both programs; return the exit status."""
    options = {"without": (PASSES, "passes that the other program lacks"), "seed": (0, "of the arrays")}
    options |= {"threads": (1, "that kernels run on"), "json": KEPT, "fresh": FRESH}
    args = Parser(__doc__, LOOPS, **options).read(threads=1)
    results = Results(args.json)
    cases = [
        (
            f"{name}/{args.threads}/{args.seed}/{args.without}",
            partial(measure, LOOPS[name], args.without, args.seed, args.threads),
        )
        for name in args.names or LOOPS
    ]
    rows = []
    for key, cell in results.fill(cases, args.fresh).items():
        times = [f"{cell['seconds'][n] * 1e3:.2f}" for n in ("without", "with")]
        arenas = [f"{cell['arena'][n]:.0f}" for n in ("without", "with")]
        rows.append((key.split("/")[0], *times, *arenas, f"{cell['apart']:.0e}"))
    names = ("", "without, ms", "with, ms", "without, MiB", "with, MiB", "apart")
    results.console.print(table("values and gradients", names, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
