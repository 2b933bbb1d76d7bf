"""Recurrences that are linear in their states, filters, and dynamic programs."""

from __future__ import annotations

from itertools import pairwise, product

from tests.papers.operator import operator


def _scan(T, step, state, *sequences):
    """All states of state = step(state, ...)."""
    out = []
    for now in zip(*sequences, strict=True):
        state = step(state, *now)
        out.append(state)
    return T.stack(out)


operator(
    "diagonal state space, real",
    "Gu, Goel, Gupta, Ré 2022, On the parameterization of diagonal state space models, S4D-Real",
    """A[d,n] = exp(-(n + 1.0)*dt[d])
       s[t,d,n] = A[d,n]*where(t > 0, s[t-1,d,n], 0) + (A[d,n] - 1)/(-(n + 1.0))*B[d,n]*x[t,d]
       y[t,d] = sum[n](C[d,n]*s[t,d,n]) + D[d]*x[t,d]""",
    lambda T, dt, B, x, C, D: (lambda a: (lambda K: T.stack([
        sum(K[t - i] * x[i] for i in range(t + 1)) for t in range(len(x))
    ]) + D * x)(T.einsum("dn,dn,dn,tdn->td", C, B, (1 - (-a * dt[:, None]).exp()) / a, (
        -a * dt[:, None] * T.arange(len(x))[:, None, None]
    ).exp())))(T.arange(B.shape[1]) + 1.0),
    dt="d | unit", B="d n", x="t d", C="d n", D="d", sizes={"n": (3, 8, 4)},
)  # fmt: skip

operator(
    "convolution by a state space kernel", "Gu, Goel, Ré 2022, S4, eq. 5",
    """K[l] = sum[n](C[n]*exp(-a[n]*l)*B[n])
       y[t,d] = sum[i](where(i <= t, K[t-i]*x[i,d], 0))""",
    lambda T, C, a, B, x: _scan(T, lambda s, u: T.exp(-a)[:, None] * s + B[:, None] * u, T.zeros_like(a)[:,
        None] * x[:1], x)
    .mul(C[:, None]).sum(1),
    C="n", a="n | positive", B="n", x="t d", extents={"l": "x.shape[0]", "t": "x.shape[0]"},
)  # fmt: skip

operator(
    "linear recurrent unit", "Orvieto et al. 2023, Resurrecting recurrent neural networks, eq. 4, in real numbers",
    """r[n] = exp(-exp(nu[n]))
       p[t,n] = (r[n]*(cos(th[n])*where(t > 0, p[t-1,n], 0) - sin(th[n])*where(t > 0, q[t-1,n], 0))
                 + sqrt(1 - r[n]**2)*sum[i](B[n,i]*x[t,i]))
       q[t,n] = (r[n]*(sin(th[n])*where(t > 0, p[t-1,n], 0) + cos(th[n])*where(t > 0, q[t-1,n], 0))
                 + sqrt(1 - r[n]**2)*sum[i](D[n,i]*x[t,i]))
       y[t,o] = sum[n](C[o,n]*p[t,n] - E[o,n]*q[t,n])""",
    lambda T, nu, th, B, x, D, C, E: (lambda w: (_scan(
        T, lambda s, u: w * s + (1 - w.abs() ** 2).sqrt() * (T.complex(B, D) @ u), 0 * w, T.complex(x, 0 * x)
    ) @ T.complex(C, E).T).real)(T.exp(T.complex(-nu.exp(), th))),
    nu="n", th="n", B="n i", x="t i", D="n i", C="o n", E="o n",
)  # fmt: skip

operator(
    "selective scan", "Gu, Dao 2024, Mamba, algorithm 2",
    """dt[b,t,d] = log(1 + exp(w[b,t,d]))
       s[b,t,d,n] = exp(-dt[b,t,d]*A[d,n])*where(t > 0, s[b,t-1,d,n], 0) + dt[b,t,d]*B[b,t,n]*x[b,t,d]
       y[b,t,d] = sum[n](C[b,t,n]*s[b,t,d,n]) + D[d]*x[b,t,d]""",
    lambda T, w, A, B, x, C, D: (lambda dt: _scan(
        T, lambda s, dt, B, x: T.exp(-dt[..., None] * A) * s + (dt * x)[..., None] * B[:, None],
        x.new_zeros(len(x), *A.shape), *(z.unbind(1) for z in (dt, B, x))
    ).mul(C.transpose(0, 1)[:, :, None]).sum(-1).transpose(0, 1) + D * x)(T.nn.functional.softplus(w)),
    w="b t d", A="d n | positive", B="b t n", x="b t d", C="b t n", D="d", sizes={"n": (3, 8, 4), "t": (4, 5, 7)},
)  # fmt: skip

operator(
    "state space duality", "Dao, Gu 2024, Transformers are SSMs, eq. 6, as a masked product",
    """c[t] = log(a[t]) + where(t > 0, c[t-1], 0)
       y[t,p] = sum[s](where(s <= t, exp(c[t] - c[s])*sum[n](C[t,n]*B[s,n]), 0)*x[s,p])""",
    lambda T, a, C, B, x: (_scan(
        T, lambda h, a, B, x: a * h + T.outer(B, x), B.new_zeros(B.shape[1], x.shape[1]), a, B, x
    ) * C[:, :, None]).sum(1),
    a="t | unit", C="t n", B="t n", x="t p",
)  # fmt: skip

operator(
    "minimal LSTM", "Feng et al. 2024, Were RNNs all we needed?, section 3.2",
    """f[t,b,k] = sigmoid(sum[i](x[t,b,i]*F[i,k]))
       g[t,b,k] = sigmoid(sum[i](x[t,b,i]*I[i,k]))
       h[t,b,k] = (f[t,b,k]*where(t > 0, h[t-1,b,k], h0[b,k])
                   + g[t,b,k]*sum[i](x[t,b,i]*H[i,k]))/(f[t,b,k] + g[t,b,k])
       return h""",
    lambda T, x, F, I, h0, H: (lambda f, i: _scan(T, lambda h, f, i, v: T.lerp(h, v, i / (f + i)), h0, f, i, x @ H))(
        (x @ F).sigmoid(), (x @ I).sigmoid()
    ),
    x="t b i", F="i h", I="i h", h0="b h", H="i h",
)  # fmt: skip

operator(
    "minimal GRU in logarithms", "Feng et al. 2024, appendix B",
    """z[t,k] = -log(1 + exp(-a[t,k]))
       f[t,k] = -log(1 + exp(a[t,k]))
       v[t,k] = z[t,k] + where(x[t,k] >= 0, log(max(x[t,k], 0.0) + 0.5), -log(1 + exp(-x[t,k])))
       l[t,k] = logaddexp(f[t,k] + where(t > 0, l[t-1,k], 0), v[t,k])
       h[t,k] = exp(l[t,k])
       return h""",
    lambda T, a, x: _scan(T, lambda h, z, v: T.lerp(h, v, z), T.ones_like(x[0]), a.sigmoid(), T.where(
        x >= 0, x + 0.5, x.sigmoid()
    )),
    a="t h", x="t h",
)  # fmt: skip

operator(
    "hierarchically gated network", "Qin, Yang, Zhong 2023, Hierarchically gated recurrent neural network, eq. 2, real",
    """g[k] = sum[j](where(j < k, exp(w[j]), 0))/sum[j](exp(w[j]))
       f[t,k] = g[k] + (1 - g[k])*sigmoid(a[t,k])
       c[t,k] = f[t,k]*where(t > 0, c[t-1,k], 0) + (1 - f[t,k])*x[t,k]*sigmoid(x[t,k])
       h[t,k] = sigmoid(o[t,k])*c[t,k]""",
    lambda T, w, a, x, o: (lambda g: o.sigmoid() * _scan(
        T, lambda c, f, x: T.lerp(T.nn.functional.silu(x), c, f), 0 * x[0], g + (1 - g) * a.sigmoid(), x
    ))(w.softmax(0).cumsum(0) - w.softmax(0)),
    w="h", a="t h", x="t h", o="t h",
)  # fmt: skip


def _slstm(T, z, i, f, o):
    """Without the stabiliser, which cancels."""
    c, n = 0 * z[0], 0 * z[0]
    out = []
    for t in range(len(z)):
        c = f[t].sigmoid() * c + i[t].exp() * z[t].tanh()
        n = f[t].sigmoid() * n + i[t].exp()
        out.append(o[t].sigmoid() * c / n)
    return T.stack(out)


operator(
    "sLSTM with its stabiliser", "Beck et al. 2024, xLSTM, eqs. 8 to 17",
    """l[t,k] = -log(1 + exp(-f[t,k]))
       m[t,k] = where(t > 0, max(l[t,k] + m[t-1,k], i[t,k]), i[t,k])
       p[t,k] = exp(i[t,k] - m[t,k])
       q[t,k] = where(t > 0, exp(l[t,k] + m[t-1,k] - m[t,k]), 0)
       c[t,k] = q[t,k]*where(t > 0, c[t-1,k], 0) + p[t,k]*tanh(z[t,k])
       n[t,k] = q[t,k]*where(t > 0, n[t-1,k], 0) + p[t,k]
       h[t,k] = sigmoid(o[t,k])*c[t,k]/n[t,k]""",
    _slstm, f="t h", i="t h", z="t h", o="t h",
)  # fmt: skip


def _mlstm(T, q, k, v, i, f):
    C, n, out = q.new_zeros(v.shape[1], k.shape[1]), 0 * k[0], []
    for t in range(len(q)):
        C = f[t].sigmoid() * C + i[t].exp() * T.outer(v[t], k[t])
        n = f[t].sigmoid() * n + i[t].exp() * k[t]
        out.append(C @ q[t] / (n @ q[t]).abs().clamp(min=1))
    return T.stack(out)


operator(
    "mLSTM in parallel", "Beck et al. 2024, xLSTM, eqs. 19 to 27",
    """a[t] = where(t > 0, a[t-1], 0) - log(1 + exp(-f[t]))
       w[t,s] = where(s <= t, exp(a[t] - a[s] + i[s])*sum[d](q[t,d]*k[s,d]), 0)
       y[t,c] = sum[s](w[t,s]*v[s,c])/max(abs(sum[s](w[t,s])), 1.0)""",
    _mlstm, f="t", i="t", q="t d", k="t d", v="t c", extents={"s": "q.shape[0]"},
)  # fmt: skip

operator(
    "real-gated linear recurrent unit", "De et al. 2024, Griffin, eqs. 1 to 4",
    """r[t,k] = sigmoid(sum[i](x[t,i]*R[i,k]))
       g[t,k] = sigmoid(sum[i](x[t,i]*G[i,k]))
       a[t,k] = exp(-8.0*r[t,k]*log(1 + exp(w[k])))
       h[t,k] = a[t,k]*where(t > 0, h[t-1,k], 0) + sqrt(1 - a[t,k]**2)*g[t,k]*x[t,k]""",
    lambda T, x, R, G, w: (lambda a: _scan(
        T, lambda h, a, u: a * h + u, 0 * x[0], a, (1 - a * a).sqrt() * (x @ G).sigmoid() * x
    ))((-8 * (x @ R).sigmoid() * T.nn.functional.softplus(w)).exp()),
    x="t d", R="d d", G="d d", w="d",
)  # fmt: skip

operator(
    "exponential smoothing with trend and season", "Holt 1957; Winters 1960, Forecasting sales, additive",
    """p[t] = where(t > 0, l[t-1], y[0])
       b0[t] = where(t > 0, b[t-1], 0)
       old[t] = where(t >= 3, s[t-3], 0)
       l[t] = 0.4*(y[t] - old[t]) + 0.6*(p[t] + b0[t])
       b[t] = 0.3*(l[t] - p[t]) + 0.7*b0[t]
       s[t] = 0.2*(y[t] - p[t] - b0[t]) + 0.8*old[t]
       out[t] = l[t] + b[t] + s[t]
       return out""",
    lambda T, y: (lambda l, b, s, out: [(
        l.append(0.4 * (v - s[-3]) + 0.6 * (l[-1] + b[-1])), s.append(0.2 * (v - l[-2] - b[-1]) + 0.8 * s[-3]),
        b.append(0.3 * (l[-1] - l[-2]) + 0.7 * b[-1]), out.append(l[-1] + b[-1] + s[-1]),
    ) for v in y] and T.stack(out))([y[0]], [0 * y[0]], 3 * [0 * y[0]], []),
    y="t",
)  # fmt: skip

operator(
    "scalar Kalman filter", "Kalman 1960, A new approach to linear filtering and prediction problems",
    """p[t] = a*a*where(t > 0, v[t-1], 1.0) + q
       k[t] = p[t]/(p[t] + r)
       m[t] = a*where(t > 0, m[t-1], 0) + k[t]*(z[t] - a*where(t > 0, m[t-1], 0))
       v[t] = (1 - k[t])*p[t]
       L[] = -0.5*sum[t]((z[t] - a*where(t > 0, m[t-1], 0))**2/(p[t] + r) + log(p[t] + r))
       return m, v, L""",
    lambda T, z, a, q, r: (lambda n: (lambda F, I: (lambda S: (
        T.stack([S[t, : t + 1] @ T.linalg.solve((S + r * I)[: t + 1, : t + 1], z[: t + 1]) for t in range(n)]),
        T.stack([S[t, t] - S[t, : t + 1] @ T.linalg.solve((S + r * I)[: t + 1, : t + 1], S[: t + 1, t])
                 for t in range(n)]) + 0 * z,
        -0.5 * (z @ T.linalg.solve(S + r * I, z) + T.linalg.slogdet(S + r * I)[1]),
    ))(F @ T.diag(T.tensor([a * a + q] + [q] * (n - 1)).to(z)) @ F.T))(
        T.tensor([[a ** (i - j) if j <= i else 0.0 for j in range(n)] for i in range(n)]).to(z), T.eye(n).to(z)
    ))(len(z)),
    parameters={"a": 0.75, "q": 0.5, "r": 0.25}, z="t",
)  # fmt: skip

operator(
    "generalised advantages", "Schulman et al. 2016, High-dimensional continuous control, eq. 16",
    """d[t,b] = r[t,b] + 0.9*v[t+1,b] - v[t,b]
       a[t,b] = d[t,b] + 0.9*0.8*where(t < r.shape[0] - 1, a[t+1,b], 0)
       return a""",
    lambda T, r, v: (lambda d: T.stack([
        sum(0.72 ** (i - t) * d[i] for i in range(t, len(d))) for t in range(len(d))
    ]))(r + 0.9 * v[1:] - v[:-1]),
    r="t b", v="t+1 b", extents={"t": "r.shape[0]"},
)  # fmt: skip

operator(
    "V-trace targets", "Espeholt et al. 2018, IMPALA, eq. 1",
    """c[t] = min(rho[t], 1.0)
       d[t] = c[t]*(r[t] + 0.9*v[t+1] - v[t])
       e[t] = d[t] + 0.9*c[t]*where(t < r.shape[0] - 1, e[t+1], 0)
       y[t] = v[t] + e[t]
       return y""",
    lambda T, rho, r, v: (lambda c: (lambda d: v[:-1] + T.stack([
        sum(0.9 ** (i - t) * c[t:i].prod() * d[i] for i in range(t, len(r))) for t in range(len(r))
    ]))(c * (r + 0.9 * v[1:] - v[:-1])))(rho.clamp(max=1)),
    rho="t | positive", r="t", v="t+1", extents={"t": "r.shape[0]"},
)  # fmt: skip

operator(
    "lambda returns", "Sutton, Barto 2018, Reinforcement learning, eq. 12.18",
    "g[t] = r[t] + 0.95*((1 - l)*v[t+1] + l*where(t < r.shape[0] - 1, g[t+1], v[t+1]))",
    lambda T, r, v, l: _scan(
        T, lambda g, r, v: r + 0.95 * T.lerp(v, g, T.full_like(r, l)), v[-1], r.flip(0), v[1:].flip(0)
    ).flip(0),
    parameters={"l": 0.7}, r="t", v="t+1",
)  # fmt: skip

operator(
    "forward algorithm in logarithms", "Rabiner 1989, A tutorial on hidden Markov models, eqs. 19 to 21",
    """a[t,j] = o[t,j] + where(t > 0, logsumexp[i](a[t-1,i] + A[i,j]), pi[j])
       L[] = logsumexp[i](a[o.shape[0]-1,i])
       return L""",
    lambda T, A, o, pi: (lambda s: [s := (s[:, None] + A).logsumexp(0) + o[t] for t in range(1,
        len(o))][-1].logsumexp(0))(
        pi + o[0]
    ),
    A="n n", o="t n", pi="n", sizes={"n": (3, 5, 8)},
)  # fmt: skip

operator(
    "score of the best path", "Viterbi 1967, Error bounds for convolutional codes",
    """s[t,j] = o[t,j] + where(t > 0, max[i](where(t > 0, s[t-1,i], 0) + A[i,j]), pi[j])
       best[] = max[j](s[o.shape[0]-1,j])
       return best""",
    lambda T, A, o, pi: T.stack([
        pi[p[0]] + sum(A[a, b] for a, b in pairwise(p)) + sum(o[t, i] for t, i in enumerate(p))
        for p in product(range(len(A)), repeat=len(o))
    ]).amax(),
    o="t n", A="n n", pi="n", sizes={"n": (3, 2, 5), "t": (4, 7, 3)},
)  # fmt: skip

operator(
    "log-partition of a conditional random field", "Lafferty, McCallum, Pereira 2001; Lample et al. 2016, eq. 1",
    """a[t,b,j] = u[t,b,j] + where(t > 0, logsumexp[i](a[t-1,b,i] + A[i,j]), 0)
       z[b] = logsumexp[j](a[u.shape[0]-1,b,j])
       g[b] = sum[t](u[t,b,y[t,b]]) + sum[t](where(t > 0, A[y[t-1,b],y[t,b]], 0))
       loss[] = mean[b](z[b] - g[b])""",
    lambda T, u, A, y: ((lambda a: [a := T.logsumexp(a[:, :, None] + A, 1) + v for v in u[1:]][-1].logsumexp(1))(u[0])
                        - u.gather(2, y[..., None]).sum((0, 2)) - A[y[:-1], y[1:]].sum(0)).mean(),
    u="t b n", A="n n", y="t b | int n", sizes={"n": (3, 5, 4)}, extents={"t": "u.shape[0]"},
)  # fmt: skip


def _ctc(T, x, y):
    """Paths that do not come back to a label, summed over where each label and each blank ends."""
    q = x.softmax(1)
    wanted = [v for label in y.tolist() for v in (0, label)] + [0]
    rows = {0: q[0, wanted[0]], 1: q[0, wanted[1]]}
    for t in range(1, len(x)):
        rows = {
            u: q[t, wanted[u]]
            * sum(rows[v] for v in (u, u - 1, u - 2) if v in rows and (v > u - 2 or u % 2 and wanted[u] != wanted[v]))
            for u in range(len(wanted))
            if any(v in rows for v in (u, u - 1)) or u % 2 and u - 2 in rows and wanted[u] != wanted[u - 2]
        }
    return -(rows[len(wanted) - 1] + rows[len(wanted) - 2]).log()


operator(
    "alignments of connectionist temporal classification", "Graves, Fernández, Gomez, Schmidhuber 2006, eq. 5",
    """s[t,n] = exp(x[t,n])
       q[t,n] = s[t,n]/sum[m](s[t,m])
       l[u] = where(u % 2 == 0, 0, y[u//2])
       p[t,u] = where(t > 0, a[t-1,u], 0)
       skip[u] = where(u >= 3 and u % 2 == 1, where(y[max(u//2, 1)] != y[max(u//2, 1) - 1], 1.0, 0.0), 0)
       a[t,u] = q[t,l[u]]*where(t > 0, p[t,u] + where(u > 0, p[t,u-1], 0) + where(u > 1, skip[u]*p[t,u-2], 0),
                                where(u < 2, 1.0, 0))
       loss[] = -log(a[x.shape[0]-1,2*y.shape[0]] + a[x.shape[0]-1,2*y.shape[0]-1])
       return loss""",
    _ctc, x="2*t+1 n+1", y="t | int n", sizes={"n": (3, 5, 8), "t": (2, 4, 5)}, extents={"u": "2*y.shape[0]+1"},
)  # fmt: skip


def _grid(T, d, step, border):
    rows = {(-1, -1): d.new_zeros(())}
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            near = [rows.get(at, border) for at in ((i - 1, j), (i, j - 1), (i - 1, j - 1))]
            rows[i, j] = step(d[i, j], *near)
    return rows[d.shape[0] - 1, d.shape[1] - 1]


operator(
    "soft dynamic time warping", "Cuturi, Blondel 2017, Soft-DTW, eq. 1",
    """d[i,j] = sum[k]((x[i,k] - y[j,k])**2)
       a[i,j] = where(i > 0, exp(-r[i-1,j]), 0) + where(j > 0, exp(-r[i,j-1]), 0)
       r[i,j] = d[i,j] - log(a[i,j] + where(i > 0 and j > 0, exp(-r[i-1,j-1]), where(i == 0 and j == 0, 1.0, 0)))
       out[] = r[x.shape[0]-1,y.shape[0]-1]
       return out""",
    lambda T, x, y: _grid(T, (x[:, None] - y).square().sum(2), lambda d, a, b, c: (
        d - T.stack([-a, -b, -c]).logsumexp(0)
    ), x.new_tensor(T.inf)),
    x="m d", y="n d", sizes={"m": (4, 7, 5), "n": (3, 6, 4), "d": (2, 3, 1)},
)  # fmt: skip

operator(
    "dynamic time warping", "Sakoe, Chiba 1978, Dynamic programming algorithm optimization",
    """d[i,j] = (x[i] - y[j])**2
       r[i,j] = d[i,j] + where(i > 0 and j > 0, min(r[i-1,j], min(r[i,j-1], r[i-1,j-1])),
                               where(i > 0, r[i-1,j], where(j > 0, r[i,j-1], 0)))
       out[] = r[x.shape[0]-1,y.shape[0]-1]
       return out""",
    lambda T, x, y: _grid(T, (x[:, None] - y) ** 2, lambda d, a, b, c: d + T.stack([a, b, c]).amin(),
        x.new_tensor(T.inf)),
    x="m", y="n", sizes={"m": (4, 7, 5), "n": (3, 6, 9)},
)  # fmt: skip

operator(
    "soft local alignment", "Petti et al. 2023, End-to-end learning of multiple sequence alignments, eq. 2",
    """m[i,j] = s[i,j] + where(i > 0 and j > 0, f[i-1,j-1], 0)
       f[i,j] = logaddexp(0.0, m[i,j], where(i > 0, f[i-1,j] - 0.7, -inf), where(j > 0, f[i,j-1] - 0.7, -inf))
       out[] = f[s.shape[0]-1,s.shape[1]-1]
       return out""",
    lambda T, s: [h := {}] and [h.update({(i, j): T.logsumexp(T.stack(
        [s.new_zeros(()), s[i, j] + h.get((i - 1, j - 1), 0 * s[0, 0])]
        + [h[at] - 0.7 for at in ((i - 1, j), (i, j - 1)) if at in h]
    ), 0)}) for i in range(len(s)) for j in range(s.shape[1])] and h[len(s) - 1, s.shape[1] - 1],
    s="m n", sizes={"m": (4, 7, 5), "n": (3, 6, 4)},
)  # fmt: skip

operator(
    "alignment with gaps of two kinds",
    "Gotoh 1982, An improved algorithm for matching biological sequences, global scores",
    """m[i,j] = s[i,j] + where(i > 0 and j > 0, max(m[i-1,j-1], max(x[i-1,j-1], y[i-1,j-1])), 0)
       x[i,j] = where(i > 0, max(m[i-1,j] - 1.1, x[i-1,j] - 0.3), -5.0)
       y[i,j] = where(j > 0, max(m[i,j-1] - 1.3, y[i,j-1] - 0.2), -4.0)
       out[] = max(m[s.shape[0]-1,s.shape[1]-1], max(x[s.shape[0]-1,s.shape[1]-1], y[s.shape[0]-1,s.shape[1]-1]))
       return out""",
    lambda T, s: [h := {}] and [h.update({(i, j): (
        s[i, j] + (T.stack(h[i - 1, j - 1]).amax() if i and j else 0),
        T.maximum(h[i - 1, j][0] - 1.1, h[i - 1, j][1] - 0.3) if i else s.new_tensor(-5.0),
        T.maximum(h[i, j - 1][0] - 1.3, h[i, j - 1][2] - 0.2) if j else s.new_tensor(-4.0),
    )}) for i in range(len(s)) for j in range(s.shape[1])] and T.stack(h[len(s) - 1, s.shape[1] - 1]).amax(),
    s="m n", extents={"i": "s.shape[0]", "j": "s.shape[1]"}, sizes={"m": (4, 7, 5), "n": (3, 6, 4)},
)  # fmt: skip

operator(
    "running maximum", "Blelloch 1990, Prefix sums and their applications",
    "m[t,b] = where(t > 0, max(m[t-1,b], x[t,b]), x[t,b])",
    lambda T, x: T.stack([x[: t + 1].amax(0) for t in range(len(x))]),
    x="t b | spread",
)  # fmt: skip

operator(
    "segmented sums", "Blelloch 1990, section 1.5",
    "s[t,b] = x[t,b] + where(t > 0 and not new[t,b], s[t-1,b], 0)",
    lambda T, x, new: (lambda c: (x.T[:, None, :] * (
        (c[:, :, None] == c[:, None]).tril()
    )).sum(2).T)(new.T.cumsum(1)),
    x="t b", new="t b | bool",
)  # fmt: skip

operator(
    "log-domain scan of two signals", "Heinsen 2023, Efficient parallelization of a ubiquitous sequential computation",
    """c[t] = a[t] + where(t > 0, c[t-1], 0)
       l[t] = log(sum[s](where(s <= t, exp(b[s] - c[s]), 0)))
       y[t] = exp(c[t] + l[t])""",
    lambda T, a, b: _scan(T, lambda h, a, b: a.exp() * h + b.exp(), 0 * a[0], a, b),
    a="t", b="t", extents={"s": "a.shape[0]"},
)  # fmt: skip

operator(
    "leaky integrate-and-fire with a sigmoid", "Neftci, Mostafa, Zenke 2019, Surrogate gradient learning, eqs. 6 and 8",
    """I[t,k] = 0.7*where(t > 0, I[t-1,k], 0) + sum[i](x[t,i]*W[i,k]) + sum[j](where(t > 0, s[t-1,j], 0)*V[j,k])
       u[t,k] = where(t > 0, 0.8*u[t-1,k]*(1 - s[t-1,k]), 0) + I[t,k]
       s[t,k] = sigmoid(5.0*(u[t,k] - 1))
       return s, u""",
    lambda T, x, W, V: (lambda out: (out[:, 2], out[:, 1]))(_scan(T, lambda h, x: (lambda I: (
        lambda u: T.stack([I, u, (5 * (u - 1)).sigmoid()])
    )(0.8 * h[1] * (1 - h[2]) + I))(0.7 * h[0] + x @ W + h[2] @ V), x.new_zeros(3, len(V)), x)),
    x="t i", W="i h", V="h h",
)  # fmt: skip

operator(
    "Izhikevich neurons", "Izhikevich 2003, Simple model of spiking neurons, eqs. 1 and 2, without resets",
    """p[t,k] = where(t > 0, v[t-1,k], -0.65)
       q[t,k] = where(t > 0, u[t-1,k], -0.13)
       v[t,k] = p[t,k] + 0.1*(0.4*p[t,k]**2 + 0.5*p[t,k] + 0.14 - q[t,k] + x[t,k])
       u[t,k] = q[t,k] + 0.1*a[k]*(b[k]*p[t,k] - q[t,k])
       return v""",
    lambda T, x, a, b: _scan(T, lambda s, x: T.stack([
        s[0] + 0.1 * (0.4 * s[0] * s[0] + 0.5 * s[0] + 0.14 - s[1] + x), s[1] + 0.1 * a * (b * s[0] - s[1])
    ]), T.stack([T.full_like(a, -0.65), T.full_like(a, -0.13)]), x)[:, 0],
    x="t k", a="k", b="k",
)  # fmt: skip
