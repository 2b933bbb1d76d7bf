"""Kernels, mixtures, rankings, policies, boxes: what objectives are made of."""

from __future__ import annotations

from tests.papers.operator import operator

operator(
    "Matérn kernel, 5/2", "Rasmussen, Williams 2006, Gaussian processes for machine learning, eq. 4.17",
    """d[i,j] = sum[k]((x[i,k] - y[j,k])**2/l[k]**2) + 0.01
       K[i,j] = (1 + sqrt(5*d[i,j]) + 5*d[i,j]/3)*exp(-sqrt(5*d[i,j]))""",
    lambda T, x, y, l: (lambda r: (1 + r + r * r / 3) * (-r).exp())(
        (5 * ((x / l)[:, None] - y / l).square().sum(2) + 0.05).sqrt()
    ),
    x="m d", y="n d", l="d | positive",
)  # fmt: skip

operator(
    "discrepancy of means with five kernels", "Gretton et al. 2012, A kernel two-sample test, eq. 3; Long et al. 2015",
    """a[i,j] = sum[d]((x[i,d] - x[j,d])**2)
       b[p,q] = sum[d]((y[p,d] - y[q,d])**2)
       c[i,p] = sum[d]((x[i,d] - y[p,d])**2)
       M[] = (mean[i,j](sum[k](exp(-a[i,j]/(2.0*(k + 1))))) + mean[p,q](sum[k](exp(-b[p,q]/(2.0*(k + 1)))))
              - 2*mean[i,p](sum[k](exp(-c[i,p]/(2.0*(k + 1))))))""",
    lambda T, x, y: (lambda z, w: sum(
        (w[:, None] * w * (-(z[:, None] - z).square().sum(2) / (2 * k)).exp()).sum() for k in range(1, 6)
    ))(T.cat([x, y]), T.cat([x.new_full((len(x),), 1 / len(x)), x.new_full((len(y),), -1 / len(y))])),
    x="m d", y="n d", extents={"k": 5},
)  # fmt: skip

operator(
    "alignment of correlations", "Sun, Saenko 2016, Deep CORAL, eqs. 1 to 3",
    """m[k] = mean[i](x[i,k])
       n[k] = mean[i](y[i,k])
       A[k,l] = sum[i]((x[i,k] - m[k])*(x[i,l] - m[l]))/(x.shape[0] - 1)
       B[k,l] = sum[i]((y[i,k] - n[k])*(y[i,l] - n[l]))/(y.shape[0] - 1)
       loss[] = sum[k,l]((A[k,l] - B[k,l])**2)/(4*x.shape[1]**2)""",
    lambda T, x, y: (T.cov(x.T) - T.cov(y.T)).reshape(-1).square().sum() / (4 * x.shape[1] ** 2),
    x="m d", y="n d", sizes={"m": (5, 17, 3)},
)  # fmt: skip

operator(
    "responsibilities and likelihood of a mixture", "Dempster, Laird, Rubin 1977; Bishop 2006, eq. 9.23, diagonal",
    """l[n,k] = a[k] - 0.5*sum[d]((x[n,d] - m[k,d])**2/s[k,d]**2 + 2*log(s[k,d]))
       t[n] = max[k](l[n,k])
       z[n] = t[n] + log(sum[k](exp(l[n,k] - t[n])))
       r[n,k] = exp(l[n,k] - z[n])
       L[] = sum[n](z[n])
       return r, L""",
    lambda T, a, x, m, s: (lambda l: (l.softmax(1), l.logsumexp(1).sum()))(
        a - (((x[:, None] - m) / s).square() / 2 + s.log()).sum(2)
    ),
    a="k", x="n d", m="k d", s="k d | positive",
)  # fmt: skip

operator(
    "soft assignment of residuals",
    "Arandjelović, Gronat, Torii, Pajdla, Sivic 2016, NetVLAD, eq. 4, with norms of clusters",
    """e[n,k] = exp(sum[d](x[n,d]*W[k,d]))
       q[n] = sum[k](e[n,k])
       V[k,d] = sum[n](e[n,k]/q[n]*(x[n,d] - c[k,d]))
       y[k,d] = V[k,d]/sqrt(sum[f](V[k,f]**2))""",
    lambda T, x, W, c: (lambda p: T.nn.functional.normalize(p.T @ x - p.sum(0)[:, None] * c))((x @ W.T).softmax(1)),
    x="n d", W="k d", c="k d",
)  # fmt: skip

operator(
    "contrastive predictive coding", "van den Oord, Li, Vinyals 2018, Representation learning, eqs. 3 and 4",
    """s[i,j] = sum[d,c](z[j,d]*W[d,c]*h[i,c])
       t[i] = max[j](s[i,j])
       loss[] = mean[i](t[i] + log(sum[j](exp(s[i,j] - t[i]))) - s[i,i])""",
    lambda T, z, W, h: T.nn.functional.cross_entropy(h @ W.T @ z.T, T.arange(len(z))),
    z="n d", W="d c", h="n c",
)  # fmt: skip

operator(
    "both directions of images and texts", "Radford et al. 2021, Learning transferable visual models (CLIP), figure 3",
    """x[i,d] = a[i,d]*rsqrt(sum[c](a[i,c]**2))
       y[j,d] = b[j,d]*rsqrt(sum[c](b[j,c]**2))
       s[i,j] = exp(tau)*sum[d](x[i,d]*y[j,d])
       loss[] = 0.5*mean[i](log(sum[j](exp(s[i,j]))) + log(sum[j](exp(s[j,i]))) - 2*s[i,i])""",
    lambda T, a, b, tau: (lambda F, s: (F.cross_entropy(s, T.arange(len(s))) + F.cross_entropy(s.T,
        T.arange(len(s)))) / 2)(
        T.nn.functional, T.tensor(tau,
            dtype=a.dtype).exp() * T.nn.functional.normalize(a) @ T.nn.functional.normalize(b).T
    ),
    parameters={"tau": 0.5}, a="n d", b="n d",
)  # fmt: skip

operator(
    "pairwise sigmoid loss",
    "Zhai, Mustafa, Kolesnikov, Beyer 2023, Sigmoid loss for language image pre-training, eq. 3",
    "loss[] = mean[i](sum[j](log(1 + exp(where(i == j, -1.0, 1.0)*(2.0*sum[d](x[i,d]*y[j,d]) - 1.5)))))",
    lambda T, x, y: -T.nn.functional.logsigmoid((2 * T.eye(len(x)).to(x) - 1) * (2 * x @ y.T - 1.5)).sum() / len(x),
    x="n d", y="n d", extents={"i": "x.shape[0]", "j": "x.shape[0]"},
)  # fmt: skip

operator(
    "ListNet", "Cao, Qin, Liu, Tsai, Li 2007, Learning to rank: from pairwise to listwise approach, eq. 6",
    """p[b,i] = exp(y[b,i])/sum[j](exp(y[b,j]))
       L[b] = -sum[i](p[b,i]*(s[b,i] - log(sum[j](exp(s[b,j])))))""",
    lambda T, y, s: T.nn.functional.cross_entropy(s, y.softmax(1), reduction="none"),
    y="b n", s="b n",
)  # fmt: skip

operator(
    "RankNet with gains of LambdaRank", "Burges et al. 2005, Learning to rank using gradient descent, eq. 3",
    """g[b,i] = 2.0**f64(y[b,i])
       loss[b] = sum[i,j](where(y[b,i] > y[b,j], (g[b,i] - g[b,j])*log(1 + exp(s[b,j] - s[b,i])), 0))""",
    lambda T, s, y: T.stack([sum((
        (2 ** int(v[i]) - 2 ** int(v[j])) * T.nn.functional.softplus(u[j] - u[i])
        for i in range(len(u)) for j in range(len(u)) if v[i] > v[j]
    ), 0 * u.sum()) for u, v in zip(s, y, strict=True)]),
    y="b n | int 3", s="b n", sizes={"n": (5, 9, 3)},
)  # fmt: skip

operator(
    "likelihood of a permutation", "Plackett 1975; Xia, Liu, Wang, Zhang, Li 2008, ListMLE, eq. 2",
    "L[b] = sum[i](log(sum[j](where(j >= i, exp(s[b,p[j]]), 0))) - s[b,p[i]])",
    lambda T, s, p: (s[:, p].flip(1).logcumsumexp(1).flip(1) - s[:, p]).sum(1),
    s="b n", p="n | order", extents={"i": "p.shape[0]", "j": "p.shape[0]"},
)  # fmt: skip

operator(
    "Bayesian personalised ranking", "Rendle, Freudenthaler, Gantner, Schmidt-Thieme 2009, BPR, section 4.1",
    """s[n] = sum[d](U[u[n],d]*(V[i[n],d] - V[j[n],d]))
       loss[] = -sum[n](log(sigmoid(s[n]))) + 0.01*sum[n,d](U[u[n],d]**2 + V[i[n],d]**2 + V[j[n],d]**2)""",
    lambda T, U, u, V, i, j: -T.nn.functional.logsigmoid((U[u] * V[i]).sum(1) - (U[u] * V[j]).sum(1)).sum() + 0.01 * (
        T.cat([U[u], V[i], V[j]]).square().sum()
    ),
    U="k d", u="n | int k", V="m d", i="n | int m", j="n | int m",
)  # fmt: skip

operator(
    "soft ranks by pairs", "Taylor, Guiver, Robertson, Minka 2008, SoftRank, eq. 8, with logistic comparisons",
    """r[b,i] = 1 + sum[j](where(i != j, sigmoid(2.0*(s[b,j] - s[b,i])), 0))
       G[b] = sum[i]((2.0**y[b,i] - 1)/log(1 + r[b,i]))""",
    lambda T, s, y: ((T.exp2(y) - 1) / T.log1p(
        (2 * (s[:, None] - s[:, :, None])).sigmoid().sum(2) + 0.5
    )).sum(1),
    s="b n", y="b n | positive",
)  # fmt: skip

operator(
    "generalised intersection over union", "Rezatofighi et al. 2019, Generalized intersection over union, algorithm 2",
    """w[n] = max(min(x[n] + p[n], u[n] + r[n]) - max(x[n], u[n]), 0.0)
       h[n] = max(min(y[n] + q[n], v[n] + s[n]) - max(y[n], v[n]), 0.0)
       a[n] = p[n]*q[n] + r[n]*s[n] - w[n]*h[n]
       c[n] = ((max(x[n] + p[n], u[n] + r[n]) - min(x[n], u[n]))*(max(y[n] + q[n], v[n] + s[n]) - min(y[n], v[n])))
       g[n] = w[n]*h[n]/a[n] - (c[n] - a[n])/c[n]""",
    lambda T, x, p, u, r, y, q, v, s: (lambda A, B: (lambda lo, hi, wide: (
        lambda i, c: (lambda a: i / a - 1 + a / c)(p * q + r * s - i)
    )((hi - lo).relu().prod(0), wide.prod(0)))(
        T.maximum(A[0], B[0]), T.minimum(A[1], B[1]), T.maximum(A[1], B[1]) - T.minimum(A[0], B[0])
    ))(*((T.stack([a, b]), T.stack([a + c, b + d])) for a, b, c, d in ((x, y, p, q), (u, v, r, s)))),
    x="n", p="n | positive", u="n", r="n | positive", y="n", q="n | positive", v="n", s="n | positive",
)  # fmt: skip

operator(
    "clipped policy objective with an entropy bonus",
    "Schulman et al. 2017, Proximal policy optimization algorithms, eq. 7",
    """z[b] = log(sum[a](exp(l[b,a])))
       r[b] = exp(l[b,act[b]] - z[b] - old[b])
       H[b] = -sum[a](exp(l[b,a] - z[b])*(l[b,a] - z[b]))
       J[] = mean[b](min(r[b]*A[b], min(max(r[b], 0.8), 1.2)*A[b]) + 0.01*H[b])""",
    lambda T, l, act, old, A: (lambda p: (lambda r: T.minimum(r * A, r.clamp(0.8, 1.2) * A).mean() + 0.01 * (
        T.distributions.Categorical(logits=l).entropy().mean()
    ))((p.gather(1, act[:, None])[:, 0] - old).exp()))(l.log_softmax(1)),
    l="n k", act="n | int k", old="n", A="n",
)  # fmt: skip

operator(
    "direct preference optimisation", "Rafailov et al. 2023, Direct preference optimization, eq. 7",
    """d[b] = beta*sum[t](where(t < n[b], p[b,t] - r[b,t], 0)) - beta*sum[t](where(t < m[b], q[b,t] - s[b,t], 0))
       loss[] = mean[b](log(1 + exp(-d[b])))""",
    lambda T, n, p, r, m, q, s, beta: -T.nn.functional.logsigmoid(beta * (
        T.stack([(p[b, : n[b]] - r[b, : n[b]]).sum() for b in range(len(p))])
        - T.stack([(q[b, : m[b]] - s[b, : m[b]]).sum() for b in range(len(p))])
    )).mean(),
    parameters={"beta": 0.3}, n="b | int t+1", p="b t", r="b t", m="b | int t+1", q="b t", s="b t",
    extents={"t": "p.shape[1]"},
)  # fmt: skip
