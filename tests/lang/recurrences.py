"""Recurrent formulas with plain loops that say what they mean: (formula, inputs, loop) by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import einsmith as es

RNG = np.random.default_rng(11)


@dataclass(frozen=True)
class Case:
    """`loop(*inputs, **parameters)` gives what the formula does."""

    formula: Any
    inputs: tuple[np.ndarray, ...]
    loop: Callable[..., Any]
    parameters: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {}


def case(text: str, *inputs, extents=None, **parameters):
    """Registers the decorated loop."""
    given = tuple(np.asarray(RNG.standard_normal(x) * 0.7) if isinstance(x, tuple) else x for x in inputs)

    def register(loop):
        CASES[loop.__name__] = Case(es.op(text, extents=extents, **parameters), given, loop, parameters)
        return loop

    return register


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


T, B, E, K = 6, 3, 2, 4


@case(
    """
    u[t,b,k] = sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * U[j,k])
    h[t,b,k] = tanh(sum[i](x[t,b,i] * W[i,k]) + u[t,b,k])
    return h
    """, (B, K), (K, K), (T, B, E), (E, K),
)  # fmt: skip
def rnn(h, u, x, w):
    out = []
    for xt in x:
        h = np.tanh(xt @ w + h @ u)
        out.append(h)
    return np.array(out)


@case(
    """
    u[b,t,k] = sum[j](where(t > 0, h[b,t-1,j], h0[b,j]) * U[j,k])
    h[b,t,k] = tanh(sum[i](x[b,t,i] * W[i,k]) + u[b,t,k])
    last[b,k] = h[b,size(t)-1,k]
    return h, last
    """.replace("size(t)", "x.shape[1]"), (B, K), (K, K), (B, T, E), (E, K),
)  # fmt: skip
def batch_first(h, u, x, w):
    out = rnn(h, u, x.swapaxes(0, 1), w).swapaxes(0, 1)
    return out, out[:, -1]


@case(
    """
    i[t,b,k] = sigmoid(x[t,b,0*K+k] + sum[j](where(t>0, h[t-1,b,j], h0[b,j]) * U[j,0*K+k]))
    f[t,b,k] = sigmoid(x[t,b,1*K+k] + sum[j](where(t>0, h[t-1,b,j], h0[b,j]) * U[j,1*K+k]))
    g[t,b,k] = tanh(x[t,b,2*K+k] + sum[j](where(t>0, h[t-1,b,j], h0[b,j]) * U[j,2*K+k]))
    o[t,b,k] = sigmoid(x[t,b,3*K+k] + sum[j](where(t>0, h[t-1,b,j], h0[b,j]) * U[j,3*K+k]))
    c[t,b,k] = f[t,b,k] * where(t>0, c[t-1,b,k], c0[b,k]) + i[t,b,k]*g[t,b,k]
    h[t,b,k] = o[t,b,k] * tanh(c[t,b,k])
    return h, c
    """, (T, B, 4 * K), (B, K), (K, 4 * K), (B, K), K=K, extents={"k": "K"},
)  # fmt: skip
def lstm(x, h, u, c, K):  # noqa: N803
    hs, cs = [], []
    for xt in x:
        z = xt + h @ u
        i, f, g, o = (z[:, n * K : (n + 1) * K] for n in range(4))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        hs.append(h)
        cs.append(c)
    return np.array(hs), np.array(cs)


@case("y[t,k] = x[t,k] + a[k]*where(t > 0, y[t-1,k], 0)", (T, K), (K,))
def linear_recurrence(x, a):
    y = np.zeros_like(x)
    for t in range(len(x)):
        y[t] = x[t] + a * (y[t - 1] if t else 0)
    return y


@case("y[t] = x[t] + a[0]*where(t > 0, y[t-1], 0) + a[1]*where(t > 1, y[t-2], 0)", (9,), (2,))
def second_order_filter(x, a):
    y = np.zeros_like(x)
    for t in range(len(x)):
        y[t] = x[t] + (a[0] * y[t - 1] if t > 0 else 0) + (a[1] * y[t - 2] if t > 1 else 0)
    return y


@case("y[t] = x[t] + a[0]*where(t >= 1, y[t-1], s[t+1]) + a[1]*where(t >= 2, y[t-2], s[t])", (9,), (2,), (2,),
      extents={"t": "x.shape[0]"})  # fmt: skip
def filter_with_state(x, a, s):
    y = np.concatenate([s, x])
    for t in range(2, len(y)):
        y[t] += a[0] * y[t - 1] + a[1] * y[t - 2]
    return y[2:]


@case("y[t] = x[t] + sum[k](where(t-1-k >= 0, y[t-1-k], 0) * w[k])", (8,), (3,))
def reads_under_a_reduction(x, w):
    y = np.zeros_like(x)
    for t in range(len(x)):
        y[t] = x[t] + sum(y[t - 1 - k] * w[k] for k in range(len(w)) if t - 1 - k >= 0)
    return y


@case("y[i] = (b[i] - sum[j](where(j < i, L[i,j]*y[j], 0))) / (3 + L[i,i]*L[i,i])", (7,), (7, 7))
def triangular_solve(b, m):
    y = np.zeros_like(b)
    for i in range(len(b)):
        y[i] = (b[i] - m[i, :i] @ y[:i]) / (3 + m[i, i] ** 2)
    return y


@case("y[i,r] = (b[i,r] - sum[j](where(j > i, R[i,j]*y[j,r], 0))) / (3 + R[i,i]*R[i,i])", (5, 2), (5, 5))
def upper_triangular_solve(b, m):
    y = np.zeros_like(b)
    for i in reversed(range(len(b))):
        y[i] = (b[i] - m[i, i + 1 :] @ y[i + 1 :]) / (3 + m[i, i] ** 2)
    return y


@case("y[t,k] = a*x[t,k] + (1-a)*where(t > 0, y[t-1,k], x[0,k])", (T, K), a=0.3)
def moving_average(x, a):
    y = x.copy()
    for t in range(len(x)):
        y[t] = a * x[t] + (1 - a) * (y[t - 1] if t else x[0])
    return y


@case(
    """
    D[i,j] = C[i,j] - log(exp(-where(i > 0, D[i-1,j], 1.0*j+1)) + exp(-where(j > 0, D[i,j-1], 1.0*i+1))
             + exp(-where(i > 0 and j > 0, D[i-1,j-1], 1.0*max(i,j))))
    """, (4, 5),
)  # fmt: skip
def soft_edit_distance(cost):
    d = np.zeros_like(cost)
    for i in range(cost.shape[0]):
        for j in range(cost.shape[1]):
            up = d[i - 1, j] if i else j + 1
            left = d[i, j - 1] if j else i + 1
            both = d[i - 1, j - 1] if i and j else max(i, j)
            d[i, j] = cost[i, j] - np.log(np.exp(-up) + np.exp(-left) + np.exp(-both))
    return d


def soft_paths(cost):
    """Values of the cheapest paths, softly, through grids whose rows and columns are the first two dimensions."""
    d = np.zeros_like(cost)
    for i, j in np.ndindex(cost.shape[:2]):
        paths = [d[i - a, j - b] for a, b in ((1, 0), (0, 1), (1, 1)) if i >= a and j >= b] or [0 * cost[0, 0]]
        d[i, j] = cost[i, j] - np.log(sum(np.exp(-p) for p in paths))
    return d


@case(
    """
    p[b,i,j] = where(i > 0, r[b,i-1,j], 1e10)
    q[b,i,j] = where(j > 0, r[b,i,j-1], 1e10)
    s[b,i,j] = where(i > 0 and j > 0, r[b,i-1,j-1], where(i == 0 and j == 0, 0, 1e10))
    m[b,i,j] = stop_gradient(min(p[b,i,j], q[b,i,j], s[b,i,j]))
    r[b,i,j] = C[b,i,j] + m[b,i,j] - log(exp(m[b,i,j] - p[b,i,j]) + exp(m[b,i,j] - q[b,i,j]) + exp(m[b,i,j] - s[b,i,j]))
    return r
    """, (3, 4, 5),
)  # fmt: skip
def batch_first_grid(cost):
    return np.moveaxis(soft_paths(np.moveaxis(cost, 0, 2)), 2, 0)


@case(
    """
    p[i,c,b,j] = where(i > 0 and j > 0, exp(-r[i-1,c,b,j-1]), where(i == 0 and j == 0, 1, 0))
    r[i,c,b,j] = C[b,i,c,j] - log(p[i,c,b,j] + where(i > 0, exp(-r[i-1,c,b,j]), 0)
                                  + where(j > 0, exp(-r[i,c,b,j-1]), 0))
    return r
    """, (3, 4, 2, 5),
)  # fmt: skip
def grid_around_its_batch(cost):
    return soft_paths(cost.transpose(1, 3, 2, 0)).transpose(0, 2, 3, 1)


@case(
    """
    z[b,j,i,k] = (sum[l](where(i > 0, h[b,j,i-1,l], 0)*U[l,k])
                  + sum[l](where(j+1 < size(j), h[b,j+1,i,l], g[b,l])*V[l,k]))
    h[b,j,i,k] = tanh(x[b,i,j,k] + z[b,j,i,k])
    return h
    """, (3, 3), (2, 3), (3, 3), (2, 4, 5, 3),
)  # fmt: skip
def grid_of_cells(u, g, v, x):
    h = np.zeros_like(x).swapaxes(1, 2)
    for i in range(x.shape[1]):
        for j in reversed(range(x.shape[2])):
            left = h[:, j, i - 1] if i else 0 * g
            above = h[:, j + 1, i] if j + 1 < x.shape[2] else g
            h[:, j, i] = np.tanh(x[:, i, j] + left @ u + above @ v)
    return h


@case(
    """
    m[t,b,k] = where(t > 0, f[t-1,b,k], 0)
    zf[t,b,k] = sigmoid(X[0,0,t,b,k] + sum[j](m[t,b,j]*U[0,0,j,k]))
    f[t,b,k] = 0.5*m[t,b,k] + zf[t,b,k]*tanh(X[0,1,t,b,k] + sum[j](m[t,b,j]*U[0,1,j,k]))
    n[t,b,k] = where(t+1 < size(t), r[t+1,b,k], 0)
    zr[t,b,k] = sigmoid(X[1,0,t,b,k] + sum[j](n[t,b,j]*U[1,0,j,k]))
    r[t,b,k] = 0.5*n[t,b,k] + zr[t,b,k]*tanh(X[1,1,t,b,k] + sum[j](n[t,b,j]*U[1,1,j,k]))
    y[t,b,k] = f[t,b,k]*r[t,b,k]
    return y
    """, (2, 2, T, B, K), (2, 2, K, K),
)  # fmt: skip
def bidirectional_gates(x, u):
    out = []
    for d in range(2):
        h, hs = np.zeros(x.shape[3:]), []
        for t in range(x.shape[2]) if d == 0 else reversed(range(x.shape[2])):
            z = sigmoid(x[d, 0, t] + h @ u[d, 0])
            h = 0.5 * h + z * np.tanh(x[d, 1, t] + h @ u[d, 1])
            hs.append(h)
        out.append(np.array(hs if d == 0 else hs[::-1]))
    return out[0] * out[1]


@case(
    """
    p[t,b,k] = where(t > 0, h[t-1,b,k], h0[b,k])
    h[t,b,k] = where(t < lengths[b], tanh(x[t,b,k] + sum[j](p[t,b,j]*U[j,k])), p[t,b,k])
    return h
    """, (B, K), np.array([6, 1, 4]), (T, B, K), (K, K),
)  # fmt: skip
def ragged_batch(h, lengths, x, u):
    out = []
    for t in range(len(x)):
        h = np.where((t < lengths)[:, None], np.tanh(x[t] + h @ u), h)
        out.append(h)
    return np.array(out)


@case(
    """
    z[t,b,k,p,q] = sum[e,r,s](where(t > 0 and 0 <= p+r-1 and p+r-1 < size(p) and 0 <= q+s-1 and q+s-1 < size(q),
                              h[t-1,b,e,p+r-1,q+s-1], 0) * U[k,e,r,s])
    c[t,b,k,p,q] = 0.5*where(t > 0, c[t-1,b,k,p,q], 0) + tanh(x[t,b,k,p,q] + z[t,b,k,p,q])
    h[t,b,k,p,q] = c[t,b,k,p,q]*sigmoid(x[t,b,k,p,q])
    return h
    """, (2, 2, 3, 3), (3, 2, 2, 4, 3), extents={"r": 3, "s": 3},
)  # fmt: skip
def conv_lstm(u, x):
    h, c, out = np.zeros(x.shape[1:]), np.zeros(x.shape[1:]), []
    for xt in x:
        padded = np.pad(h, ((0, 0), (0, 0), (1, 1), (1, 1)))
        z = np.zeros_like(c)
        for r in range(3):
            for s in range(3):
                z += np.einsum("bcpq,kc->bkpq", padded[:, :, r : r + x.shape[3], s : s + x.shape[4]], u[:, :, r, s])
        c = 0.5 * c + np.tanh(xt + z)
        h = c * sigmoid(xt)
        out.append(h)
    return np.array(out)


@case(
    """
    a[t,k] = where(t+1 < size(t), b[t+1,k], b0[k])*w[k]
    b[t,k] = tanh(a[t,k] + x[t,k]) + 0.1*where(t+2 < size(t), a[t+2,k], 0)
    return a, b
    """, (K,), (K,), (T, K),
)  # fmt: skip
def coupled_in_reverse(last, w, x):
    a, b = np.zeros_like(x), np.zeros_like(x)
    for t in reversed(range(len(x))):
        a[t] = (b[t + 1] if t + 1 < len(x) else last) * w
        b[t] = np.tanh(a[t] + x[t]) + 0.1 * (a[t + 2] if t + 2 < len(x) else 0)
    return a, b


@case(
    """
    y[0,k] = s[k]
    y[t+1,k] = tanh(x[t,k] + sum[j](y[t,j]*U[j,k]))
    return y
    """, (K,), (T, K), (K, K),
)  # fmt: skip
def first_element_apart(s, x, u):
    y = [s]
    for xt in x:
        y.append(np.tanh(xt + y[-1] @ u))
    return np.array(y)


@case(
    """
    s[t] = x[t] + where(t > 0, m[t-1], 0)
    m[t] = max[k](s[t] * w[k])
    return m
    """, (T,), (K,),
)  # fmt: skip
def carried_maximum(x, w):
    m, out = 0.0, []
    for xt in x:
        m = ((xt + m) * w).max()
        out.append(m)
    return np.array(out)


@case(
    """
    p[t,k] = where(t > 0, y[t-1,k], 1)
    y[t,k] = x[t,k] + 0.5*prod[j](p[t,j] * w[j,k])
    return y
    """, (5, 3), (3, 3),
)  # fmt: skip
def carried_product(x, w):
    y, out = np.ones(x.shape[1]), []
    for xt in x:
        y = xt + 0.5 * (y[:, None] * w).prod(0)
        out.append(y)
    return np.array(out)


@case(
    """
    p[t,j] = where(t > 0, v[t-1,j], s[j])
    v[t,k] = x[t,k] + max[j](p[t,j] + A[j,k])
    best[t,k] = argmax[j](p[t,j] + A[j,k])
    return v, best
    """, (4,), (7, 4), (4, 4),
)  # fmt: skip
def viterbi(v, x, a):
    out, best = [], []
    for xt in x:
        best.append((v[:, None] + a).argmax(0))
        v = xt + (v[:, None] + a).max(0)
        out.append(v)
    return np.array(out), np.array(best)


@case(
    """
    i[t] = argmax[j](x[t,j] + 0.3*where(t > 0, s[t-1,j], 0))
    s[t,k] = 0.5*where(t > 0, s[t-1,k], 0) + where(k == i[t], x[t,k], 0)
    return s, i
    """, (6, 5),
)  # fmt: skip
def winner_takes_all(x):
    s, out, best = np.zeros(x.shape[1]), [], []
    for xt in x:
        i = (xt + 0.3 * s).argmax()
        s = 0.5 * s + np.where(np.arange(len(s)) == i, xt, 0)
        best.append(i)
        out.append(s)
    return np.array(out), np.array(best)


@case(
    """
    y[2*t] = x[2*t] + where(t > 0, 0.5*y[2*t-1], 0)
    y[2*t+1] = x[2*t+1] * y[2*t]
    """, (8,),
    extents={"t": "x.shape[0]//2"},
)  # fmt: skip
def two_phases(x):
    y = x[: len(x) // 2 * 2].copy()
    for t in range(len(y)):
        y[t] = x[t] * y[t - 1] if t % 2 else x[t] + (0.5 * y[t - 1] if t else 0)
    return y


@case("n[t] = where(t > 0, n[t-1], 0) + i64(x[t])", np.arange(5))
def running_count(x):
    return np.cumsum(x)


@case(
    """
    on[t] = where(s[t] > 1, x[t] > 0, where(t > 0, on[t-1], 1 < 0))
    s[t] = x[t] + where(t > 0, where(on[t-1], s[t-1], 0.25*s[t-1]), 0)
    return s
    """, np.array([-1.0, 2.1, -0.7, 1.4, -0.5, 1.3]),
)  # fmt: skip
def carried_condition(x):
    on, s, out = False, 0.0, []
    for xt in x:
        s = xt + (s if on else 0.25 * s)
        on = xt > 0 if s > 1 else on
        out.append(s)
    return np.array(out)


@case(
    """
    s[t,b,d,n] = exp(dt[t,b,d]*A[d,n])*where(t > 0, s[t-1,b,d,n], 0) + dt[t,b,d]*B[t,b,n]*x[t,b,d]
    y[t,b,d] = sum[n](C[t,b,n]*s[t,b,d,n]) + D[d]*x[t,b,d]
    return y
    """, (5, 2, 3), (3, 4), (5, 2, 4), (5, 2, 3), (5, 2, 4), (3,),
)  # fmt: skip
def selective_scan(dt, a, b, x, c, d):
    s, out = np.zeros((*dt.shape[1:], b.shape[2])), []
    for t in range(len(x)):
        s = np.exp(dt[t][:, :, None] * a) * s + (dt[t] * x[t])[:, :, None] * b[t][:, None]
        out.append((c[t][:, None] * s).sum(2) + d * x[t])
    return np.array(out)


@case(
    """
    p[t,k] = where(t > 0, h[t-1,k], 0)
    e[t,s] = where(s < t, exp(sum[k](p[t,k]*h[s,k])), 0)
    c[t,k] = sum[s](where(s < t, e[t,s]*h[s,k], 0)) / (1 + sum[s](e[t,s]))
    h[t,k] = tanh(x[t,k] + c[t,k])
    return h
    """, (6, 3), extents={"s": "x.shape[0]"},
)  # fmt: skip
def attention_over_what_was(x):
    h = np.zeros_like(x)
    for t in range(len(x)):
        e = np.exp(h[:t] @ h[t - 1]) if t else np.zeros(0)
        h[t] = np.tanh(x[t] + e @ h[:t] / (1 + e.sum()))
    return h


@case(
    """
    m[t] = mp[t] + g[t]*(y[t]-mp[t])
    mp[t] = a*where(t > 0, m[t-1], 0)
    pp[t] = a*a*where(t > 0, p[t-1], 1) + q
    g[t] = pp[t]/(pp[t]+r)
    p[t] = (1-g[t])*pp[t]
    return m
    """, (8,), a=0.9, q=0.1, r=0.5,
)  # fmt: skip
def kalman_filter(y, a, q, r):
    m, p, out = 0.0, 1.0, []
    for v in y:
        m, p = a * m, a * a * p + q
        g = p / (p + r)
        m, p = m + g * (v - m), (1 - g) * p
        out.append(m)
    return np.array(out)


@case(
    """
    u[t] = tanh(where(t >= 1, h[t-1], a[]) + b[t])
    w[t] = where(t >= 2, h[t-2], 0)
    h[t] = tanh(tanh(max(w[t], where(t >= 1, u[t-1], c[]))))
    return h
    """, (), (7,), (), extents={"t": "b.shape[0]"},
)  # fmt: skip
def greater_of_two_delays(a, b, c):
    u, h = [], []
    for t in range(len(b)):
        u.append(np.tanh((h[t - 1] if t else a) + b[t]))
        h.append(np.tanh(np.tanh(max(h[t - 2] if t > 1 else 0.0, u[t - 1] if t else c))))
    return np.array(h)
