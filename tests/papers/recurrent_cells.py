"""Recurrent cells: gates, memories, constraints on the transition."""

from __future__ import annotations

from tests.papers.operator import operator


def _run(T, step, state, *sequences):
    """All states of state = step(state, ...); the first of each where a state is a tuple."""
    out = []
    for now in zip(*sequences, strict=True):
        state = step(state, *now)
        out.append(state[0] if isinstance(state, tuple) else state)
    return T.stack(out)


operator(
    "simple recurrent network", "Elman 1990, Finding structure in time",
    """h[t,b,k] = sigmoid(sum[i](x[t,b,i]*W[i,k]) + sum[j](where(t > 0, h[t-1,b,j], h0[b,j])*U[j,k]) + c[k])
       y[t,b,o] = sigmoid(sum[k](h[t,b,k]*V[k,o]))""",
    lambda T, x, W, h0, U, c, V: (_run(T, lambda h, x: (x @ W + h @ U + c).sigmoid(), h0, x) @ V).sigmoid(),
    x="t b i", W="i h", h0="b h", U="h h", c="h", V="h o",
)  # fmt: skip

operator(
    "network with output feedback", "Jordan 1986, Attractor dynamics and parallelism",
    """h[t,b,k] = tanh(sum[i](x[t,b,i]*W[i,k]) + sum[o](where(t > 0, y[t-1,b,o], 0)*U[o,k]))
       y[t,b,o] = sigmoid(sum[k](h[t,b,k]*V[k,o]))
       return y""",
    lambda T, x, W, U, V: _run(
        T, lambda y, x: ((x @ W + y @ U).tanh() @ V).sigmoid(), x.new_zeros(x.shape[1], V.shape[1]), x
    ),
    x="t b i", W="i h", U="o h", V="h o",
)  # fmt: skip

operator(
    "gated recurrent unit, reset before the product", "Cho et al. 2014, Learning phrase representations, eqs. 5 to 8",
    """p[t,b,k] = where(t > 0, h[t-1,b,k], 0)
       r[t,b,k] = sigmoid(x[t,b,k] + sum[j](p[t,b,j]*R[j,k]))
       z[t,b,k] = sigmoid(w[k]*x[t,b,k] + sum[j](p[t,b,j]*Z[j,k]))
       h[t,b,k] = z[t,b,k]*p[t,b,k] + (1 - z[t,b,k])*tanh(v[k]*x[t,b,k] + sum[j](r[t,b,j]*p[t,b,j]*U[j,k]))
       return h""",
    lambda T, x, R, w, Z, v, U: _run(T, lambda h, x: (lambda z, r: z * h + (1 - z) * (v * x + (r * h) @ U).tanh())(
        (w * x + h @ Z).sigmoid(), (x + h @ R).sigmoid()
    ), T.zeros_like(x[0]), x),
    x="t b h", R="h h", w="h", Z="h h", v="h", U="h h", sizes={"h": (4, 5, 3)},
)  # fmt: skip

operator(
    "minimal gated unit", "Zhou, Wu, Zhang, Zhou 2016, Minimal gated unit for recurrent neural networks, eq. 9",
    """p[t,b,k] = where(t > 0, h[t-1,b,k], 0)
       f[t,b,k] = sigmoid(x[t,b,k] + sum[j](p[t,b,j]*F[j,k]))
       h[t,b,k] = (1 - f[t,b,k])*p[t,b,k] + f[t,b,k]*tanh(x[t,b,k] + sum[j](f[t,b,j]*p[t,b,j]*U[j,k]))
       return h""",
    lambda T, x, F, U: _run(T, lambda h, x: (lambda f: T.lerp(h, (x + (f * h) @ U).tanh(), f))(
        (x + h @ F).sigmoid()
    ), T.zeros_like(x[0]), x),
    x="t b h", F="h h", U="h h",
)  # fmt: skip

operator(
    "light gated recurrent unit", "Ravanelli, Brakel, Omologo, Bengio 2018, Light gated recurrent units, eq. 4",
    """p[t,b,k] = where(t > 0, h[t-1,b,k], h0[b,k])
       z[t,b,k] = sigmoid(a[t,b,k] + sum[j](p[t,b,j]*Z[j,k]))
       h[t,b,k] = z[t,b,k]*p[t,b,k] + (1 - z[t,b,k])*relu(c[t,b,k] + sum[j](p[t,b,j]*U[j,k]))
       return h""",
    lambda T, h0, a, Z, c, U: _run(T, lambda h, a, c: (lambda z: z * h + (1 - z) * (c + h @ U).clamp(min=0))(
        (a + h @ Z).sigmoid()
    ), h0, a, c),
    h0="b h", a="t b h", Z="h h", c="t b h", U="h h",
)  # fmt: skip

operator(
    "simple recurrent unit", "Lei, Zhang, Wang, Dai, Artzi 2018, Simple recurrent units, eqs. 1 to 4",
    """p[t,b,k] = where(t > 0, c[t-1,b,k], 0)
       f[t,b,k] = sigmoid(sum[i](x[t,b,i]*F[i,k]) + v[k]*p[t,b,k])
       c[t,b,k] = f[t,b,k]*p[t,b,k] + (1 - f[t,b,k])*sum[i](x[t,b,i]*W[i,k])
       r[t,b,k] = sigmoid(sum[i](x[t,b,i]*R[i,k]) + u[k]*p[t,b,k])
       h[t,b,k] = r[t,b,k]*c[t,b,k] + (1 - r[t,b,k])*x[t,b,k]
       return h""",
    lambda T, x, F, v, W, R, u: (lambda c: (lambda r: T.lerp(x, c, r))(
        (x @ R + u * T.cat([0 * c[:1], c[:-1]])).sigmoid()
    ))(_run(T, lambda c, x: T.lerp(x @ W, c, (x @ F + v * c).sigmoid()), 0 * x[0], x)),
    x="t b d", F="d d", v="d", W="d d", R="d d", u="d", sizes={"d": (5, 7, 3)},
)  # fmt: skip

operator(
    "quasi-recurrent network", "Bradbury, Merity, Xiong, Socher 2017, Quasi-recurrent neural networks, eqs. 2 and 4",
    """z[t,b,k] = tanh(sum[i](where(t > 0, x[t-1,b,i], 0)*Z[0,i,k]) + sum[i](x[t,b,i]*Z[1,i,k]))
       f[t,b,k] = sigmoid(sum[i](where(t > 0, x[t-1,b,i], 0)*F[0,i,k]) + sum[i](x[t,b,i]*F[1,i,k]))
       o[t,b,k] = sigmoid(sum[i](x[t,b,i]*O[i,k]))
       c[t,b,k] = f[t,b,k]*where(t > 0, c[t-1,b,k], 0) + (1 - f[t,b,k])*z[t,b,k]
       h[t,b,k] = o[t,b,k]*c[t,b,k]""",
    lambda T, x, Z, F, O: (lambda before: _run(T, lambda c, x, y: T.lerp(
        (y @ Z[0] + x @ Z[1]).tanh(), c, (y @ F[0] + x @ F[1]).sigmoid()
    ), x.new_zeros(x.shape[1], O.shape[1]), x, before) * (x @ O).sigmoid())(T.nn.functional.pad(x, (0, 0, 0, 0, 1,
        -1))),
    x="t b i", Z="2 i h", F="2 i h", O="i h", sizes={"i": (3, 4, 5)},
)  # fmt: skip

operator(
    "independently recurrent network", "Li, Li, Cook, Zhu, Gao 2018, IndRNN, eq. 2",
    "h[t,b,k] = relu(x[t,b,k] + u[k]*where(t > 0, h[t-1,b,k], h0[b,k]) + c[k])",
    lambda T, x, u, h0, c: _run(T, lambda h, x: (x + u * h + c).relu(), h0, x),
    x="t b h", u="h", h0="b h", c="h",
)  # fmt: skip

operator(
    "peephole connections", "Gers, Schraudolph, Schmidhuber 2002, Learning precise timing with LSTM recurrent networks",
    """p[t,b,k] = where(t > 0, h[t-1,b,k], 0)
       e[t,b,k] = where(t > 0, c[t-1,b,k], 0)
       a[t,b,n] = x[t,b,n] + sum[j](p[t,b,j]*U[j,n])
       c[t,b,k] = (sigmoid(a[t,b,size(k)+k] + w[1,k]*e[t,b,k])*e[t,b,k]
                   + sigmoid(a[t,b,0*size(k)+k] + w[0,k]*e[t,b,k])*tanh(a[t,b,2*size(k)+k]))
       h[t,b,k] = sigmoid(a[t,b,3*size(k)+k] + w[2,k]*c[t,b,k])*tanh(c[t,b,k])
       return h""",
    lambda T, x, U, w: _run(T, lambda s, x: (lambda i, f, g, o: (
        lambda c: ((o + w[2] * c).sigmoid() * c.tanh(), c)
    )((f + w[1] * s[1]).sigmoid() * s[1] + (i + w[0] * s[1]).sigmoid() * g.tanh()))(
        *(x + s[0] @ U).chunk(4, 1)
    ), 2 * (x.new_zeros(x.shape[1], len(U)),), x),
    x="t b 4*h", U="h 4*h", w="3 h", extents={"k": "U.shape[0]"}, sizes={"h": (4, 5, 3)},
)  # fmt: skip

operator(
    "coupled input and forget gates", "Greff et al. 2017, LSTM: a search space odyssey, CIFG",
    """p[t,b,k] = where(t > 0, h[t-1,b,k], 0)
       f[t,b,k] = sigmoid(x[t,b,k] + sum[j](p[t,b,j]*F[j,k]))
       c[t,b,k] = f[t,b,k]*where(t > 0, c[t-1,b,k], 0) + (1 - f[t,b,k])*tanh(z[t,b,k] + sum[j](p[t,b,j]*Z[j,k]))
       h[t,b,k] = sigmoid(o[t,b,k] + sum[j](p[t,b,j]*O[j,k]))*tanh(c[t,b,k])
       return h, c""",
    lambda T, x, F, z, Z, o, O: (lambda s: (s[..., 0], s[..., 1]))(_run(T, lambda s, x, z, o: (
        lambda c: T.stack([(o + s[..., 0] @ O).sigmoid() * c.tanh(), c], -1)
    )(T.lerp((z + s[..., 0] @ Z).tanh(), s[..., 1], (x + s[..., 0] @ F).sigmoid())),
        x.new_zeros(*x.shape[1:], 2), x, z, o)),
    x="t b h", F="h h", z="t b h", Z="h h", o="t b h", O="h h", sizes={"h": (4, 5, 3)},
)  # fmt: skip

operator(
    "phased gates", "Neil, Pfeiffer, Liu 2016, Phased LSTM, eq. 6, on a leaky cell",
    """f[t,k] = (s[t] + o[k])/tau[k] - floor((s[t] + o[k])/tau[k])
       g[t,k] = where(f[t,k] < 0.2, 10*f[t,k], where(f[t,k] < 0.4, 4 - 10*f[t,k], 0.01*f[t,k]))
       p[t,k] = where(t > 0, h[t-1,k], 0)
       h[t,k] = g[t,k]*tanh(x[t,k] + sum[j](p[t,j]*U[j,k])) + (1 - g[t,k])*p[t,k]
       return h""",
    lambda T, s, o, tau, x, U: (lambda f: _run(
        T, lambda h, g, x: T.lerp(h, (x + h @ U).tanh(), g), 0 * x[0],
        T.where(f < 0.2, 2 * f / 0.2, T.where(f < 0.4, 2 - 2 * (f - 0.2) / 0.2, 0.01 * f)), x,
    ))(((s[:, None] + o) / tau) % 1.0),
    s="t", o="h", tau="h | positive", x="t h", U="h h",
)  # fmt: skip

operator(
    "convolutional LSTM in one dimension", "Shi et al. 2015, Convolutional LSTM network, eq. 3 without peepholes",
    """p[t,k,i] = where(t > 0, h[t-1,k,i], 0)
       a[t,m,i] = x[t,m,i] + sum[d,r](where(0 <= i + r - 1 < x.shape[2], p[t,d,i+r-1]*W[m,d,r], 0))
       c[t,k,i] = (sigmoid(a[t,size(k)+k,i])*where(t > 0, c[t-1,k,i], 0)
                   + sigmoid(a[t,0*size(k)+k,i])*tanh(a[t,2*size(k)+k,i]))
       h[t,k,i] = sigmoid(a[t,3*size(k)+k,i])*tanh(c[t,k,i])
       return h""",
    lambda T, x, W: _run(T, lambda s, x: (lambda i, f, g, o: (
        lambda c: (o.sigmoid() * c.tanh(), c)
    )(f.sigmoid() * s[1] + i.sigmoid() * g.tanh()))(
        *(x + T.nn.functional.conv1d(s[0][None], W, padding=1)[0]).chunk(4)
    ), 2 * (x.new_zeros(W.shape[1], x.shape[2]),), x),
    x="t 4*c w", W="4*c c 3", extents={"k": "W.shape[1]"}, sizes={"c": (2, 3, 1), "t": (3, 4, 6), "w": (5, 9, 1)},
)  # fmt: skip

operator(
    "Legendre memory unit", "Voelker, Kajić, Eliasmith 2019, Legendre memory units, eqs. 1 and 7, order 4",
    """A[n,k] = (2.0*n + 1)/6.0*where(n < k, -1.0, where((n - k + 1) % 2 == 0, 1.0, -1.0))
       B[n] = (2.0*n + 1)/6.0*where(n % 2 == 0, 1.0, -1.0)
       u[t] = sum[i](e[i]*x[t,i]) + sum[j](where(t > 0, w[j]*h[t-1,j], 0))
       m[t,n] = where(t > 0, m[t-1,n], 0) + sum[k](where(t > 0, A[n,k]*m[t-1,k], 0)) + B[n]*u[t]
       h[t,j] = tanh(sum[i](x[t,i]*W[i,j]) + sum[n](m[t,n]*M[n,j]))
       return h""",
    lambda T, e, x, w, W, M: (lambda A, B: _run(T, lambda s, x: (
        lambda m: ((x @ W + m @ M).tanh(), m)
    )(s[1] + A @ s[1] + B * (e @ x + w @ s[0])), (T.zeros_like(w), x.new_zeros(4)), x))(
        x.new_tensor([[(2 * i + 1) / 6 * (-1 if i < j else (-1) ** (i - j + 1)) for j in range(4)] for i in range(4)]),
        x.new_tensor([(2 * i + 1) / 6 * (-1) ** i for i in range(4)]),
    ),
    e="i", x="t i", w="h", W="i h", M="4 h", extents={"n": 4, "k": 4}, sizes={"t": (4, 5, 6)},
)  # fmt: skip

operator(
    "antisymmetric network", "Chang, Chen, Haber, Chi 2019, AntisymmetricRNN, eq. 17",
    """p[t,b,k] = where(t > 0, h[t-1,b,k], h0[b,k])
       a[t,b,k] = sum[j](p[t,b,j]*(W[k,j] - W[j,k])) - 0.1*p[t,b,k]
       h[t,b,k] = p[t,b,k] + 0.3*sigmoid(a[t,b,k] + z[t,b,k])*tanh(a[t,b,k] + x[t,b,k])
       return h""",
    lambda T, h0, W, z, x: _run(T, lambda h, z, x: (
        lambda a: h + 0.3 * (a + z).sigmoid() * (a + x).tanh()
    )(h @ (W - W.T - 0.1 * T.eye(len(W)).to(W)).T), h0, z, x),
    h0="b h", W="h h", z="t b h", x="t b h", sizes={"h": (4, 5, 3)},
)  # fmt: skip

operator(
    "coupled oscillators", "Rusch, Mishra 2021, Coupled oscillatory recurrent neural network, eq. 3",
    """y[t,k] = where(t > 0, y[t-1,k], 0) + 0.1*z[t,k]
       z[t,k] = (where(t > 0, z[t-1,k], 0) + 0.1*(tanh(sum[j](where(t > 0, y[t-1,j], 0)*W[j,k])
                 + sum[j](where(t > 0, z[t-1,j], 0)*Z[j,k]) + x[t,k])
                 - g[k]*where(t > 0, y[t-1,k], 0) - e[k]*where(t > 0, z[t-1,k], 0)))
       return y""",
    lambda T, W, Z, x, g, e: _run(T, lambda s, x: (lambda z: (s[0] + 0.1 * z, z))(
        s[1] + 0.1 * ((s[0] @ W + s[1] @ Z + x).tanh() - g * s[0] - e * s[1])
    ), (0 * x[0], 0 * x[0]), x),
    W="h h", Z="h h", x="t h", g="h | positive", e="h | positive",
)  # fmt: skip

operator(
    "long expressive memory", "Rusch, Mishra, Erichson, Mahoney 2022, Long expressive memory, eq. 4",
    """p[t,k] = where(t > 0, y[t-1,k], 0)
       q[t,k] = where(t > 0, z[t-1,k], 0)
       d[t,k] = sigmoid(sum[j](p[t,j]*A[j,k]) + x[t,k])
       e[t,k] = sigmoid(sum[j](p[t,j]*B[j,k]) + x[t,k])
       z[t,k] = (1 - d[t,k])*q[t,k] + d[t,k]*tanh(sum[j](p[t,j]*C[j,k]) + x[t,k])
       y[t,k] = (1 - e[t,k])*p[t,k] + e[t,k]*tanh(sum[j](z[t,j]*D[j,k]) + x[t,k])
       return y""",
    lambda T, A, x, B, C, D: _run(T, lambda s, x: (lambda z: (
        T.lerp(s[0], (z @ D + x).tanh(), (s[0] @ B + x).sigmoid()), z
    ))(T.lerp(s[1], (s[0] @ C + x).tanh(), (s[0] @ A + x).sigmoid())), (0 * x[0], 0 * x[0]), x),
    A="h h", x="t h", B="h h", C="h h", D="h h", sizes={"h": (4, 5, 3), "t": (4, 5, 7)},
)  # fmt: skip

operator(
    "FastGRNN", "Kusupati et al. 2018, FastGRNN, eq. 3",
    """p[t,b,k] = where(t > 0, h[t-1,b,k], 0)
       s[t,b,k] = sum[i](x[t,b,i]*W[i,k]) + sum[j](p[t,b,j]*U[j,k])
       z[t,b,k] = sigmoid(s[t,b,k] + a[k])
       h[t,b,k] = (sigmoid(zeta)*(1 - z[t,b,k]) + sigmoid(nu))*tanh(s[t,b,k] + c[k]) + z[t,b,k]*p[t,b,k]
       return h""",
    lambda T, x, W, U, a, c, zeta, nu: _run(T, lambda h, x: (lambda s: (lambda z: (
        (1 / (1 + T.exp(-T.tensor(zeta, dtype=T.float64)))) * (1 - z) + 1 / (1 + T.exp(-T.tensor(nu, dtype=T.float64)))
    ) * (s + c).tanh() + z * h)((s + a).sigmoid()))(x @ W + h @ U), x.new_zeros(x.shape[1], len(U)), x),
    parameters={"zeta": 1.0, "nu": -4.0}, x="t b i", W="i h", U="h h", a="h", c="h",
)  # fmt: skip

operator(
    "recurrent highway, depth 2", "Zilly, Srivastava, Koutník, Schmidhuber 2017, Recurrent highway networks, eq. 7",
    """s[t,l,k] = where(l > 0, u[t,l-1,k], where(t > 0, u[t-1,size(l)-1,k], 0))
       a[t,l,k] = sigmoid(sum[j](s[t,l,j]*A[l,j,k]) + where(l == 0, z[t,k], 0))
       u[t,l,k] = (tanh(sum[j](s[t,l,j]*H[l,j,k]) + where(l == 0, x[t,k], 0))*a[t,l,k] + s[t,l,k]*(1 - a[t,l,k]))
       y[t,k] = u[t,1,k]
       return y""",
    lambda T, A, z, H, x: _run(T, lambda s, z, x: [
        s := T.lerp(s, (s @ H[i] + (1 - i) * x).tanh(), (s @ A[i] + (1 - i) * z).sigmoid()) for i in range(2)
    ][-1], 0 * x[0], z, x),
    A="2 h h", z="t h", H="2 h h", x="t h", sizes={"h": (4, 5, 3)},
)  # fmt: skip

operator(
    "clockwork modules", "Koutník, Greff, Gomez, Schmidhuber 2014, A clockwork RNN, eq. 1, periods 1, 2, 4",
    """p[t,m,k] = where(t > 0, h[t-1,m,k], 0)
       n[t,m,k] = tanh(x[t,m,k] + sum[r,j](where(r >= m, p[t,r,j]*U[r,m,j,k], 0)))
       h[t,m,k] = where(m == 0 or (m == 1 and t % 2 == 0) or t % 4 == 0, n[t,m,k], p[t,m,k])
       return h""",
    lambda T, x, U: (lambda V: _run(
        T, lambda h, t, x: T.where((t % T.tensor([1, 2, 4]) == 0)[:, None], (x + T.einsum("rj,rmjk->mk", h, V)).tanh(),
            h),
        0 * x[0], range(len(x)), x,
    ))(U * T.ones(3, 3).tril()[..., None, None]),
    x="t 3 h", U="3 3 h h", sizes={"h": (3, 4, 2)},
)  # fmt: skip


operator(
    "dilated recurrent skips", "Chang et al. 2017, Dilated recurrent neural networks, eq. 3",
    "h[t,k] = tanh(x[t,k] + sum[j](where(t >= 3, h[t-3,j], 0)*U[j,k]))",
    lambda T, x, U: (lambda h: [
        h.append((x[t] + (h[t - 3] @ U if t > 2 else 0)).tanh()) for t in range(len(x))
    ] and T.stack(h))([]),
    x="t h", U="h h",
)  # fmt: skip

operator(
    "unitary network by rotations",
    "Jing et al. 2017, Tunable efficient unitary neural networks, one layer of rotations",
    """p[t,k] = where(t > 0, h[t-1,k], h0[k])
       h[t,k] = (x[t,k] + cos(a[k//2])*p[t,k]
                 + where(k % 2 == 0, -sin(a[k//2])*p[t,min(k+1, size(k)-1)], sin(a[k//2])*p[t,max(k-1, 0)]))
       return h""",
    lambda T, h0, x, a: _run(T, lambda h, x: x + T.view_as_real(
        T.view_as_complex(h.reshape(-1, 2)) * T.polar(T.ones_like(a), a)
    ).reshape(-1), h0, x),
    h0="2*n", x="t 2*n", a="n", sizes={"n": (3, 8, 1)},
)  # fmt: skip

operator(
    "delta of a gated network with missing data",
    "Che et al. 2018, Recurrent neural networks for multivariate time series",
    """g[t,k] = exp(-max(w[k]*d[t,k] + c[k], 0.0))
       last[t,k] = where(m[t,k], x[t,k], where(t > 0, last[t-1,k], 0))
       y[t,k] = where(m[t,k], x[t,k], g[t,k]*last[t,k] + (1 - g[t,k])*mean[s](x[s,k]))
       h[t,k] = tanh(y[t,k] + g[t,k]*sum[j](where(t > 0, h[t-1,j], 0)*U[j,k]))
       return h""",
    lambda T, w, d, c, m, x, U: (lambda g: _run(T, lambda s, g, m, x, mean: (lambda last: (
        (T.where(m, x, T.lerp(mean, last, g)) + g * (s[0] @ U)).tanh(), last
    ))(T.where(m, x, s[1])), (0 * x[0], 0 * x[0]), g, m, x, x.mean(0, keepdim=True).expand_as(x)))(
        (-(w * d + c).relu()).exp()
    ),
    w="h", d="t h | positive", c="h", m="t h | bool", x="t h", U="h h",
)  # fmt: skip

operator(
    "liquid time constants", "Hasani et al. 2021, Liquid time-constant networks, eq. 3, fused steps",
    """p[t,k] = where(t > 0, h[t-1,k], 0)
       f[t,k] = sigmoid(x[t,k] + sum[j](p[t,j]*U[j,k]))
       h[t,k] = (p[t,k] + 0.2*f[t,k]*A[k])/(1 + 0.2*(1/tau[k] + f[t,k]))
       return h""",
    lambda T, x, U, A, tau: _run(T, lambda h, x: (lambda f: (h + 0.2 * f * A) / (1.2 + 0.2 * (f - 1 + tau**-1)))(
        (x + h @ U).sigmoid()
    ), 0 * x[0], x),
    x="t h", U="h h", A="h", tau="h | positive",
)  # fmt: skip

operator(
    "closed form of liquid networks", "Hasani et al. 2022, Closed-form continuous-time neural networks, eq. 10",
    """p[t,k] = where(t > 0, h[t-1,k], 0)
       g[t,k] = sigmoid(-dt[t]*(x[t,k] + sum[j](p[t,j]*F[j,k])))
       h[t,k] = g[t,k]*tanh(sum[j](p[t,j]*G[j,k])) + (1 - g[t,k])*tanh(x[t,k] + sum[j](p[t,j]*H[j,k]))
       return h""",
    lambda T, dt, x, F, G, H: _run(T, lambda h, dt, x: T.lerp(
        (x + h @ H).tanh(), (h @ G).tanh(), (-dt * (x + h @ F)).sigmoid()
    ), 0 * x[0], dt, x),
    dt="t | positive", x="t h", F="h h", G="h h", H="h h", sizes={"h": (4, 5, 3)},
)  # fmt: skip

operator(
    "leaky echo state", "Jaeger, Lukoševičius, Popovici, Siewert 2007, Leaky-integrator echo state networks, eq. 3",
    "s[t,k] = (1 - a)*where(t > 0, s[t-1,k], 0) + a*tanh(x[t,k] + sum[j](where(t > 0, s[t-1,j], 0)*W[j,k]))",
    lambda T, x, W, a: _run(T, lambda s, x: T.lerp(s, (x + s @ W).tanh(), T.full_like(s, a)), 0 * x[0], x),
    parameters={"a": 0.3}, x="t h", W="h h",
)  # fmt: skip

operator(
    "Fourier recurrent unit, real states", "Zhang, Lin, Song, Dhillon 2018, Learning long term dependencies, eq. 4",
    """u[t,f,k] = where(t > 0, u[t-1,f,k], 0) + h[t,k]*cos(6.283185307179586*f*t/x.shape[0] + a[f])/x.shape[0]
       h[t,k] = tanh(x[t,k] + sum[f,j](where(t > 0, u[t-1,f,j], 0)*W[f,j,k]))
       return h""",
    lambda T, a, x, W: (lambda h: [h.append((x[t] + sum((T.einsum(
        "fj,fjk->k", (2 * T.pi * T.arange(len(a)).double() * i / len(x) + a).cos()[:, None] * h[i], W
    ) / len(x) for i in range(t)), 0 * x[0])).tanh()) for t in range(len(x))] and T.stack(h))([]),
    a="f", x="t h", W="f h h", sizes={"f": (3, 2, 4), "h": (3, 4, 2), "t": (3, 4, 6)},
)  # fmt: skip
