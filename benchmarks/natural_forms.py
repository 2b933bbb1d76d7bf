"""Formulas as their papers write them beside their best forms: python -m benchmarks.natural_forms [operator ...]

Values and all gradients, in turns in one process, after both forms gave the same values and gradients. The best form is
what somebody writes who knows the compiler: scaled operands as statements of their own, the batch innermost.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import einsmith as es
from benchmarks.driver import FRESH, KEPT, Parser, Results, in_turns, table

RUNS = 9
TOLERANCE = 2e-3
"""Most that a value or gradient of one form may differ from the other's, relative to the largest."""


@dataclass(frozen=True)
class Forms:
    """An operator in two forms.

    inputs: shape of each input in the order of the gradients, or a function from a generator to the array; those that
    are not floats have no gradient. changes: replacements (regular expressions) that make the best form of the natural
    one.
    """

    text: str
    changes: Sequence[tuple[str, str]]
    inputs: Mapping[str, Any]
    extents: dict[str, int] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The text of the best form."""
        text = self.text
        for old, new in self.changes:
            changed = re.sub(old, new, text)
            assert changed != text, old
            text = changed
        return text


def _named(what: str, left: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the changes that give an expression its own statement, before the line that reads it."""
    return (re.escape(what), left), (rf"(?m)^(.*= .*{re.escape(left)})", rf"{left} = {what}\n\1")


def _positive(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.uniform(0.1, 0.9, shape)


def decays(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Return a function that draws logarithms of decays."""
    return lambda rng: -0.1 * np.abs(rng.standard_normal(shape))


def unit(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Return a function that draws vectors of length 1."""

    def directions(rng: np.random.Generator) -> np.ndarray:
        x = rng.standard_normal(shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    return directions


_STATE = r"""c[h,n,i,k] = g[n,i,h,k] + where(i > 0, c[h,n,i-1,k], 0)
y[h,n,i,k] = K[n,i,h,k]*exp(-c[h,n,i,k])
z[h,n,i,k] = Q[n,i,h,k]*exp(c[h,n,i,k])
p[n,h,k,v] = where(n > 0, S[n-1,h,k,v], 0)
S[n,h,k,v] = exp(c[h,n,31,k])*p[n,h,k,v] + sum[i](exp(c[h,n,31,k] - c[h,n,i,k])*K[n,i,h,k]*V[n,i,h,v])
D[h,n,i,j] = where(j <= i, sum[k](z[h,n,i,k]*y[h,n,j,k]), 0)
o[n,i,h,v] = rsqrt(size(k))*(sum[k](z[h,n,i,k]*p[n,h,k,v]) + sum[j](D[h,n,i,j]*V[n,j,h,v]))
return o"""
_DELTA = r"""c[h,n,i] = g[n,i,h] + where(i > 0, c[h,n,i-1], 0)
e[h,n,i,j] = where(j <= i, exp(c[h,n,i] - c[h,n,j]), 0)
A[h,n,i,j] = where(j < i, beta[n,i,h]*e[h,n,i,j]*sum[k](K[n,i,h,k]*K[n,j,h,k]), 0)
U[h,n,i,v] = beta[n,i,h]*V[n,i,h,v] - sum[j](where(j < i, A[h,n,i,j]*U[h,n,j,v], 0))
W[h,n,i,k] = beta[n,i,h]*exp(c[h,n,i])*K[n,i,h,k] - sum[j](where(j < i, A[h,n,i,j]*W[h,n,j,k], 0))
p[n,h,k,v] = where(n > 0, S[n-1,h,k,v], 0)
N[n,h,i,v] = U[h,n,i,v] - sum[k](W[h,n,i,k]*p[n,h,k,v])
S[n,h,k,v] = exp(c[h,n,31])*p[n,h,k,v] + sum[i](exp(c[h,n,31] - c[h,n,i])*K[n,i,h,k]*N[n,h,i,v])
D[h,n,i,j] = e[h,n,i,j]*sum[k](Q[n,i,h,k]*K[n,j,h,k])
o[n,i,h,v] = rsqrt(size(k))*(exp(c[h,n,i])*sum[k](Q[n,i,h,k]*p[n,h,k,v]) + sum[j](D[h,n,i,j]*N[n,h,j,v]))
return o"""
_SPACE = r"""c[m,h,i] = A[h]*dt[m,i,h] + where(i > 0, c[m,h,i-1], 0)
F[m,h,p,n] = sum[i](exp(c[m,h,63] - c[m,h,i])*dt[m,i,h]*x[m,i,h,p]*B[m,i,n])
P[m,h,p,n] = where(m > 0, exp(c[m-1,h,63])*P[m-1,h,p,n] + F[m-1,h,p,n], 0)
G[m,i,j] = sum[n](C[m,i,n]*B[m,j,n])
M[m,h,i,j] = where(j <= i, exp(c[m,h,i] - c[m,h,j])*G[m,i,j], 0)
Z[m,i,h,p] = sum[n](C[m,i,n]*P[m,h,p,n])
y[m,i,h,p] = sum[j](M[m,h,i,j]*dt[m,j,h]*x[m,j,h,p]) + exp(c[m,h,i])*Z[m,i,h,p]
return y"""
_WARP = r"""d[b,i,j] = sum[k]((x[b,i,k] - y[b,j,k])**2)
p[b,i,j] = where(i > 0, r[b,i-1,j], 1e10)
q[b,i,j] = where(j > 0, r[b,i,j-1], 1e10)
s[b,i,j] = where(i > 0 and j > 0, r[b,i-1,j-1], where(i == 0 and j == 0, 0, 1e10))
m[b,i,j] = stop_gradient(min(p[b,i,j], q[b,i,j], s[b,i,j]))
r[b,i,j] = d[b,i,j] + m[b,i,j] - log(exp(m[b,i,j] - p[b,i,j]) + exp(m[b,i,j] - q[b,i,j]) + exp(m[b,i,j] - s[b,i,j]))
out[b] = r[b,x.shape[1]-1,y.shape[1]-1]
return out"""
_TRANSDUCER = r"""top[b,t,u] = max[v](stop_gradient(x[b,t,u,v]))
lse[b,t,u] = top[b,t,u] + log(sum[v](exp(x[b,t,u,v] - top[b,t,u])))
e[b,t,u] = where(u < y.shape[1], x[b,t,u,y[b,min(u, y.shape[1]-1)]] - lse[b,t,u], 0)
p[b,t,u] = where(t > 0, a[b,t-1,u] + x[b,t-1,u,0] - lse[b,t-1,u], -inf)
q[b,t,u] = where(u > 0, a[b,t,u-1] + e[b,t,u-1], -inf)
m[b,t,u] = stop_gradient(max(p[b,t,u], q[b,t,u]))
a[b,t,u] = where(t == 0 and u == 0, 0, m[b,t,u] + log(exp(p[b,t,u] - m[b,t,u]) + exp(q[b,t,u] - m[b,t,u])))
loss[b] = -(a[b,x.shape[1]-1,y.shape[1]] + x[b,x.shape[1]-1,y.shape[1],0] - lse[b,x.shape[1]-1,y.shape[1]])
return loss"""
_SPLINES = r"""t[b,i,g] = abs((x[b,i] - grid[i,0])/(grid[i,1] - grid[i,0]) - g - 2)
B[b,i,g] = where(t[b,i,g] < 1, (4 - 6*t[b,i,g]**2 + 3*t[b,i,g]**3)/6, where(t[b,i,g] < 2, (2 - t[b,i,g])**3/6, 0))
y[b,o] = sum[i](w[o,i]*x[b,i]*sigmoid(x[b,i])) + sum[i,g](c[o,i,g]*s[o,i]*B[b,i,g])
return y"""
_GRID = np.broadcast_to(np.linspace(-2.2, 2.2, 12), (784, 12))
_CHUNKS: dict[str, Any] = {"Q": unit(16, 32, 8, 64), "K": unit(16, 32, 8, 64), "V": (16, 32, 8, 64)}
_BATCH = r"\b([names])\[b,((?:[^][]|\[[^]]*\])*)\]"
"""An index of one of these tensors that begins with the batch, and what follows."""

OPERATORS = {
    "bilinear sum": Forms(
        "y[m,h,i] = sum[p,n](W[m,h,p,n]*B[m,i,n]*x[m,i,h,p])\nreturn y",
        [(r"sum\[p,n\].*", "sum[p](z[m,i,h,p]*x[m,i,h,p])"), _named("sum[n](W[m,h,p,n]*B[m,i,n])", "z[m,i,h,p]")[1]],
        {"W": (16, 16, 64, 64), "B": (16, 64, 64), "x": (16, 64, 16, 64)},
    ),
    "activation in a product": Forms(
        "y[b,o] = sum[i](w[o,i]*x[b,i]*sigmoid(x[b,i]))\nreturn y",
        _named("x[b,i]*sigmoid(x[b,i])", "z[b,i]"),
        {"w": (64, 784), "x": (256, 784)},
    ),
    "joint of a transducer": Forms(
        "y[b,t,u,v] = sum[k](tanh(e[b,t,k] + d[b,u,k])*W[v,k])\nreturn y",
        _named("tanh(e[b,t,k] + d[b,u,k])", "z[b,t,u,k]"),
        {"e": (4, 150, 128), "d": (4, 41, 128), "W": (400, 128)},
    ),
    "Kolmogorov-Arnold layer": Forms(
        _SPLINES,
        [*_named("x[b,i]*sigmoid(x[b,i])", "z[b,i]"), *_named("c[o,i,g]*s[o,i]", "W[o,i,g]")],
        {"x": lambda rng: rng.uniform(-0.99, 0.99, (256, 784)), "w": (64, 784), "c": (64, 784, 8), "s": (64, 784)}
        | {"grid": lambda rng: _GRID},
        {"g": 8},
    ),
    "gated linear attention": Forms(
        _STATE,
        _named("exp(c[h,n,31,k] - c[h,n,i,k])*K[n,i,h,k]", "d[h,n,i,k]"),
        _CHUNKS | {"g": decays(16, 32, 8, 64)},
    ),
    "gated delta rule": Forms(
        _DELTA,
        [
            *_named("exp(c[h,n,31] - c[h,n,i])*K[n,i,h,k]", "d[h,n,i,k]"),
            (r"exp\(c\[h,n,i\]\)\*sum\[k\]\(Q\[n,i,h,k\]\*p", "sum[k](exp(c[h,n,i])*Q[n,i,h,k]*p"),
            *_named("exp(c[h,n,i])*Q[n,i,h,k]", "q[h,n,i,k]"),
        ],
        _CHUNKS | {"g": decays(16, 32, 8), "beta": _positive(16, 32, 8)},
    ),
    "Mamba-2": Forms(
        _SPACE,
        [
            *_named("exp(c[m,h,63] - c[m,h,i])*dt[m,i,h]*x[m,i,h,p]", "w[m,h,i,p]"),
            *_named("dt[m,j,h]*x[m,j,h,p]", "X[m,h,j,p]"),
        ],
        {"x": (16, 64, 16, 64), "dt": _positive(16, 64, 16), "A": decays(16), "B": (16, 64, 64), "C": (16, 64, 64)},
    ),
    "soft-DTW": Forms(_WARP, [(_BATCH.replace("names", "pqsmr"), r"\1[\2,b]")], {"x": (16, 128, 8), "y": (16, 128, 8)}),
    "RNN transducer": Forms(
        _TRANSDUCER,
        [(_BATCH.replace("names", "pqma"), r"\1[\2,b]")],
        {"x": (8, 200, 51, 128), "y": lambda rng: rng.integers(1, 128, (8, 50))},
    ),
}


def draw(inputs: Mapping[str, Any], seed: int) -> list[np.ndarray]:
    """Return the arrays of inputs, each a shape or a function from a generator to the array; floats in float32."""
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(x) if isinstance(x, tuple) else np.asarray(x(rng)) for x in inputs.values()]
    return [x.astype(np.float32) if x.dtype.kind == "f" else x for x in arrays]


def with_gradients(op: Callable[..., Any], arrays: Sequence[np.ndarray], at: Sequence[int]) -> partial[Any]:
    """Return a call of the program of a function and its gradients by the arrays numbered `at`, which is compiled when
    it is first called."""

    def both(c: Any, *x: Any) -> Any:
        def of_floats(*floats: Any) -> Any:
            return op(*(dict(zip(at, floats, strict=True)).get(n, a) for n, a in enumerate(x)))

        y, pull_back = es.vjp(of_floats, *(x[n] for n in at))
        return y, *pull_back(c)

    result = es.jit(op)(*arrays)
    c = np.random.default_rng(1).standard_normal(result.shape).astype(result.dtype)
    return partial(es.jit(both), c, *arrays)


def compare(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """Return how far results are apart, relative to the largest element. Raises ValueError where that is too far."""
    pairs = zip(one, other, strict=True)
    apart = max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30)) for a, b in pairs)
    if not apart < TOLERANCE:
        raise ValueError(f"the results differ by {apart:.1e} of the largest element")
    return apart


def measure(forms: Forms, seed: int = 0, threads: int = 1) -> dict[str, Any]:
    """Return the seconds of both forms, and how far they are apart."""
    arrays = draw(forms.inputs, seed)
    at = [n for n, x in enumerate(arrays) if x.dtype.kind == "f"]
    es.set_threads(threads)
    calls = {
        name: with_gradients(es.op(text, inputs=", ".join(forms.inputs), extents=forms.extents or None), arrays, at)
        for name, text in (("natural", forms.text), ("best", forms.best))
    }
    apart = compare(*(call() for call in calls.values()))
    return {name: min(seconds) for name, seconds in in_turns(calls, RUNS).items()} | {"apart": apart}


def main() -> int:
    """Print milliseconds of both forms, and their ratio; return the exit status."""
    options = {"seed": (0, "of the arrays"), "threads": (1, "that kernels run on"), "json": KEPT, "fresh": FRESH}
    args = Parser(__doc__, OPERATORS, **options).read(threads=1)
    results = Results(args.json)
    cases = [
        (f"{name} {args.threads} {args.seed}", partial(measure, OPERATORS[name], args.seed, args.threads))
        for name in args.names or OPERATORS
    ]
    rows = []
    for key, cell in results.fill(cases, args.fresh).items():
        natural, best = cell["natural"] * 1e3, cell["best"] * 1e3
        name = key.rsplit(" ", 2)[0]
        rows.append((name, f"{natural:.2f}", f"{best:.2f}", f"{natural / best:.2f}", f"{cell['apart']:.0e}"))
    results.console.print(table("values and gradients", ("", "natural ms", "best ms", "ratio", "apart"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
