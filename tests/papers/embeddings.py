"""Embeddings, factorisations, features that interact, structured matrices."""

from __future__ import annotations

from tests.papers.operator import operator

operator(
    "TransE", "Bordes et al. 2013, Translating embeddings, eq. 1, margin over corrupted tails",
    """p[n] = sqrt(sum[d]((E[h[n],d] + R[r[n],d] - E[t[n],d])**2) + 0.01)
       q[n] = sqrt(sum[d]((E[h[n],d] + R[r[n],d] - E[u[n],d])**2) + 0.01)
       loss[] = sum[n](max(1 + p[n] - q[n], 0.0))""",
    lambda T, E, R, h, r, t, u: (lambda f: T.relu(1 + f(t) - f(u)).sum())(
        lambda t: T.linalg.vector_norm(T.cat([E[h] + R[r] - E[t], T.full_like(E[h][:, :1], 0.1)], 1), dim=1)
    ),
    E="m d", h="n | int m", R="k d", r="n | int k", t="n | int m", u="n | int m",
)  # fmt: skip

operator(
    "DistMult", "Yang, Yih, He, Gao, Deng 2015, Embedding entities and relations, eq. 2, all tails",
    "s[n,e] = sum[d](E[h[n],d]*R[r[n],d]*E[e,d])",
    lambda T, E, h, R, r: T.stack([E @ R[j].diag() @ E[i] for i, j in zip(h.tolist(), r.tolist(), strict=True)]),
    E="m d", h="n | int m", R="k d", r="n | int k",
)  # fmt: skip

operator(
    "ComplEx", "Trouillon et al. 2016, Complex embeddings for simple link prediction, eq. 11",
    """s[n] = sum[d](R[r[n],0,d]*E[h[n],0,d]*E[t[n],0,d] + R[r[n],0,d]*E[h[n],1,d]*E[t[n],1,d]
                     + R[r[n],1,d]*E[h[n],0,d]*E[t[n],1,d] - R[r[n],1,d]*E[h[n],1,d]*E[t[n],0,d])""",
    lambda T, E, R, h, r, t: (lambda z, w: (z[h] * w[r] * z[t].conj()).sum(1).real)(
        T.complex(E[:, 0], E[:, 1]), T.complex(R[:, 0], R[:, 1])
    ),
    R="k 2 d", r="n | int k", E="m 2 d", h="n | int m", t="n | int m",
)  # fmt: skip

operator(
    "RotatE", "Sun, Deng, Nie, Tang 2019, RotatE, eq. 2",
    """a[n,d] = E[h[n],0,d]*cos(R[r[n],d]) - E[h[n],1,d]*sin(R[r[n],d]) - E[t[n],0,d]
       b[n,d] = E[h[n],0,d]*sin(R[r[n],d]) + E[h[n],1,d]*cos(R[r[n],d]) - E[t[n],1,d]
       s[n] = 6 - sum[d](sqrt(a[n,d]**2 + b[n,d]**2 + 0.01))""",
    lambda T, E, R, h, r, t: (lambda z: 6 - (T.view_as_real(
        z[h] * T.polar(T.ones_like(R), R)[r] - z[t]).square().sum(-1) + 0.01).sqrt().sum(1))(
        T.complex(E[:, 0], E[:, 1])
    ),
    E="m 2 d", h="n | int m", R="k d", r="n | int k", t="n | int m",
)  # fmt: skip

operator(
    "TuckER", "Balažević, Allen, Hospedales 2019, TuckER, eq. 2",
    "s[n,e] = sigmoid(sum[i,k,j](W[i,k,j]*E[h[n],i]*R[r[n],k]*E[e,j]))",
    lambda T, W, E, h, R, r: T.stack([
        (E @ (T.tensordot(R[b], W, ([0], [1])).T @ E[a])).sigmoid() for a, b in zip(h.tolist(), r.tolist(), strict=True)
    ]),
    W="d k d", E="m d", h="n | int m", R="o k", r="n | int o", sizes={"d": (4, 5, 3), "k": (3, 4, 2)},
)  # fmt: skip

operator(
    "holographic embeddings", "Nickel, Rosasco, Poggio 2016, Holographic embeddings of knowledge graphs, eq. 3",
    "s[n] = sum[k](r[n,k]*sum[i](a[n,i]*b[n,(i + k) % b.shape[1]]))",
    lambda T, r, a, b: (r * T.fft.ifft(T.fft.fft(a).conj() * T.fft.fft(b)).real).sum(1),
    r="n d", a="n d", b="n d", extents={"i": "a.shape[1]"},
)  # fmt: skip

operator(
    "factorisation machine", "Rendle 2010, Factorization machines, eq. 1",
    "y[b] = w0 + sum[i](w[i]*x[b,i]) + sum[i,j](where(i < j, sum[k](V[i,k]*V[j,k])*x[b,i]*x[b,j], 0))",
    lambda T, w, x, V, w0: w0 + x @ w + ((x @ V).square() - x.square() @ V.square()).sum(1) / 2,
    parameters={"w0": 0.4}, w="n", x="b n", V="n k", extents={"j": "x.shape[1]"},
)  # fmt: skip

operator(
    "field-aware factorisation machine", "Juan, Zhuang, Chin, Lin 2016, eq. 4",
    "y[b] = sum[i,j](where(i < j, sum[k](V[i,f[j],k]*V[j,f[i],k])*x[b,i]*x[b,j], 0))",
    lambda T, V, f, x: sum(
        ((V[i, f[j]] @ V[j, f[i]]) * x[:, i] * x[:, j] for i in range(len(f)) for j in range(i + 1, len(f))), 0 * x[:,
            0]
    ),
    V="n m k", f="n | int m", x="b n", sizes={"n": (5, 7, 2)}, extents={"i": "f.shape[0]", "j": "f.shape[0]"},
)  # fmt: skip

operator(
    "cross layers", "Wang, Fu, Fu, Wang 2017, Deep and cross network, eq. 3, three layers",
    """p[l,b,i] = where(l > 0, x[l-1,b,i], x0[b,i])
       x[l,b,i] = x0[b,i]*sum[j](p[l,b,j]*W[l,j]) + w[l,i] + p[l,b,i]
       y[b,i] = x[2,b,i]
       return y""",
    lambda T, x0, W, w: [x := x0] and [x := T.einsum("bi,bj,j->bi", x0, x, W[l]) + w[l] + x for l in range(3)][-1],
    x0="b d", W="3 d", w="3 d",
)  # fmt: skip

operator(
    "cross layers with matrices", "Wang et al. 2021, DCN V2, eq. 1, two layers",
    """u[b,i] = x[b,i]*(sum[j](W[0,i,j]*x[b,j]) + w[0,i]) + x[b,i]
       y[b,i] = x[b,i]*(sum[j](W[1,i,j]*u[b,j]) + w[1,i]) + u[b,i]""",
    lambda T, W, w, x: (lambda F, u: x * F.linear(u, W[1], w[1]) + u)(
        T.nn.functional, x * T.nn.functional.linear(x, W[0], w[0]) + x
    ),
    x="b d", W="2 d d", w="2 d",
)  # fmt: skip

operator(
    "compressed interactions", "Lian et al. 2018, xDeepFM, eq. 6",
    """u[b,h,d] = sum[i,j](W[h,i,j]*z[b,i,d]*x[b,j,d])
       p[b,h] = sum[d](u[b,h,d])""",
    lambda T, W, z, x: T.nn.functional.conv1d(
        (z[:, :, None] * x[:, None]).flatten(1, 2), W.flatten(1)[..., None]
    ).sum(2),
    W="h m n", z="b m d", x="b n d", sizes={"n": (3, 7, 4), "h": (3, 4, 2)},
)  # fmt: skip

operator(
    "neural tensor network", "Socher, Chen, Manning, Ng 2013, Reasoning with neural tensor networks, eq. 1",
    """g[b,k] = tanh(sum[i,j](x[b,i]*W[k,i,j]*y[b,j]) + sum[i](V[k,i]*x[b,i]) + sum[j](V[k,x.shape[1]+j]*y[b,j]) + w[k])
       s[b] = sum[k](u[k]*g[b,k])""",
    lambda T, x, W, y, V, w, u: (T.nn.functional.bilinear(x, y, W, w) + T.cat([x, y], 1) @ V.T).tanh() @ u,
    x="b d", W="k d d", y="b d", V="k 2*d", w="k", u="k", extents={"i": "x.shape[1]", "j": "x.shape[1]"},
    sizes={"d": (4, 7, 3)},
)  # fmt: skip

operator(
    "bilinear pooling with signed roots", "Lin, RoyChowdhury, Maji 2015, Bilinear CNN models, section 3.1",
    """B[b,c,d] = sum[p](x[b,c,p]*y[b,d,p])
       r[b,c,d] = sign(B[b,c,d])*sqrt(abs(B[b,c,d]) + 0.1)
       z[b,c,d] = r[b,c,d]/sqrt(sum[e,f](r[b,e,f]**2))""",
    lambda T, x, y: (lambda B: T.nn.functional.normalize(
        (B.sign() * (B.abs() + 0.1).sqrt()).flatten(1)).view_as(B))(x @ y.mT),
    x="b c p", y="b d p", sizes={"c": (3, 5, 2), "d": (4, 3, 2)},
)  # fmt: skip

operator(
    "compact bilinear pooling by sketches", "Gao, Beijbom, Zhang, Darrell 2016, Compact bilinear pooling, algorithm 2",
    """f[b,m] = sum[i](where(h[i] == m, s[i]*x[b,i], 0))
       g[b,m] = sum[i](where(k[i] == m, u[i]*x[b,i], 0))
       y[b,m] = sum[l](f[b,l]*g[b,(m + size(l) - l) % size(l)])""",
    lambda T, h, s, x, k, u: (lambda f, g: T.fft.irfft(T.fft.rfft(f) * T.fft.rfft(g), 8))(
        x.new_zeros(len(x), 8).index_add(1, h, s * x), x.new_zeros(len(x), 8).index_add(1, k, u * x)
    ),
    h="n | int 8", s="n", x="b n", k="n | int 8", u="n", extents={"m": 8, "l": 8},
)  # fmt: skip

operator(
    "tensor ring layer", "Zhao, Zhou, Xie, Zhang, Cichocki 2016, Tensor ring decomposition, eq. 2",
    "y[b,i,j] = sum[k,p,q,r](A[r,i,p]*B[p,j,q]*C[q,k,r]*x[b,k])",
    lambda T, A, B, C, x: T.stack([
        T.stack([(A[:, i] @ B[:, j] @ T.tensordot(x, C, ([1], [1]))).diagonal(dim1=1,
            dim2=2).sum(1) for j in range(B.shape[1])], 1)
        for i in range(A.shape[1])
    ], 1),
    A="r m p", B="p n q", C="q k r", x="b k", sizes={"m": (3, 4, 2), "n": (4, 3, 2), "p": (2, 3, 4), "q": (3, 2, 1)},
)  # fmt: skip

operator(
    "tensor train layer", "Novikov, Podoprikhin, Osokin, Vetrov 2015, Tensorizing neural networks, eq. 5",
    "y[b,i,k] = sum[j,l,p](A[i,j,p]*B[p,k,l]*x[b,j,l])",
    lambda T, A, B, x: T.tensordot(T.tensordot(x, A, ([1], [1])), B, ([1, 3], [2, 0])),
    A="m j p", B="p n l", x="b j l", sizes={"m": (3, 4, 2), "n": (4, 3, 2), "l": (3, 5, 2)},
)  # fmt: skip

operator(
    "canonical polyadic convolution", "Lebedev et al. 2015, Speeding-up convolutional networks, eq. 2",
    "y[b,k,i,j] = sum[p](D[k,p]*sum[r](A[r,p]*sum[s](B[s,p]*sum[c](C[c,p]*x[b,c,i+r,j+s]))))",
    lambda T, D, A, B, C, x: T.nn.functional.conv2d(x, T.einsum("kp,cp,rp,sp->kcrs", D, C, A, B)),
    D="k m", A="3 m", B="2 m", C="c m", x="b c h+2 w+1",
    sizes={"h": (3, 5, 1), "w": (4, 6, 3), "m": (3, 4, 1)}, extents={"i": "x.shape[2]-2", "j": "x.shape[3]-1"},
)  # fmt: skip

operator(
    "Tucker decomposition, error", "Tucker 1966, Some mathematical notes on three-mode factor analysis",
    "loss[] = sum[i,j,k]((X[i,j,k] - sum[p,q,r](G[p,q,r]*A[i,p]*B[j,q]*C[k,r]))**2)",
    lambda T, X, G, A, B, C: (X.flatten() - T.kron(T.kron(A, B), C) @ G.flatten()).square().sum(),
    X="i m k", G="2 3 2", A="i 2", B="m 3", C="k 2", sizes={"i": (3, 1, 5)},
)  # fmt: skip

operator(
    "Kronecker product layer", "Zhou, Wu, Wu, Zhou 2015, Exploiting local structures with the Kronecker layer, eq. 3",
    "y[b,i] = sum[j](A[i//B.shape[0],j//B.shape[1]]*B[i % B.shape[0],j % B.shape[1]]*x[b,j])",
    lambda T, A, B, x: x @ T.kron(A, B).T,
    A="m n", B="p q", x="b n*q", extents={"i": "A.shape[0]*B.shape[0]", "j": "x.shape[1]"},
    sizes={"m": (3, 4, 1), "n": (2, 5, 3), "p": (3, 2, 5), "q": (4, 2, 3)},
)  # fmt: skip

operator(
    "circulant projection", "Cheng et al. 2015, An exploration of parameter redundancy in deep networks, eq. 2",
    "y[b,i] = relu(sum[j](r[(i + size(j) - j) % size(j)]*x[b,j]))",
    lambda T, r, x: T.fft.irfft(T.fft.rfft(r) * T.fft.rfft(x), len(r)).relu(),
    r="n", x="b n", extents={"i": "x.shape[1]", "j": "x.shape[1]"},
)  # fmt: skip

operator(
    "Toeplitz matrix of displacements", "Qin et al. 2023, Toeplitz neural network, eq. 7",
    "y[i,d] = sum[j](t[i-j+x.shape[0]-1,d]*x[j,d])",
    lambda T, t, x: T.stack([(t[i : i + len(x)].flip(0) * x).sum(0) for i in range(len(x))]),
    t="2*n-1 d", x="n d", extents={"i": "x.shape[0]"}, sizes={"d": (3, 5, 2)},
)  # fmt: skip

operator(
    "Monarch matrices", "Dao et al. 2022, Monarch, eq. 1, blocks of m by m",
    """u[b,k,j] = sum[i](R[k,j,i]*x[b,k,i])
       y[b,i,j] = sum[k](L[j,i,k]*u[b,k,j])""",
    lambda T, R, x, L: (lambda P: (T.block_diag(*L) @ P @ T.block_diag(*R) @ x.flatten(1).T).T.reshape(
        len(x), len(R), -1).mT)(T.eye(len(R) ** 2).to(x)[T.arange(len(R) ** 2).view(len(R), -1).T.flatten()]),
    R="m m m", x="b m m", L="m m m", sizes={"m": (3, 5, 2)},
)  # fmt: skip

operator(
    "low-rank adaptation with magnitudes", "Hu et al. 2022, LoRA, eq. 3; Liu et al. 2024, DoRA, eq. 5",
    """V[o,i] = W[o,i] + 2.0*sum[r](B[o,r]*A[r,i])
       n[i] = sqrt(sum[o](V[o,i]**2))
       y[b,o] = sum[i](m[i]*V[o,i]/n[i]*x[b,i])""",
    lambda T, W, B, A, m, x: x @ (m * T.nn.functional.normalize(W + 2 * B @ A, dim=0)).T,
    W="o d", B="o r", A="r d", m="d", x="b d",
)  # fmt: skip

operator(
    "soft mixture of experts", "Puigcerver, Riquelme, Mustafa, Houlsby 2024, From sparse to soft mixtures, eqs. 1 to 3",
    """e[n,s] = exp(sum[d](x[n,d]*P[s,d]))
       z[s,d] = sum[n](e[n,s]*x[n,d])/sum[n](e[n,s])
       o[s,k] = sum[d](z[s,d]*W[s//2,d,k])
       y[n,k] = sum[s](e[n,s]*o[s,k])/sum[s](e[n,s])""",
    lambda T, x, P, W: (lambda l: l.softmax(1) @ T.bmm((l.softmax(0).T @ x).unflatten(0, (-1, 2)), W).flatten(0, 1))(
        x @ P.T
    ),
    x="n d", P="2*g d", W="g d k", sizes={"n": (5, 9, 3), "d": (4, 7, 3)},
)  # fmt: skip

operator(
    "mixture of experts with a gate", "Jacobs, Jordan, Nowlan, Hinton 1991, Adaptive mixtures of local experts, eq. 1",
    """g[b,m] = exp(sum[d](x[b,d]*G[d,m]))
       y[b,k] = sum[m](g[b,m]*tanh(sum[d](x[b,d]*W[m,d,k])))/sum[m](g[b,m])""",
    lambda T, x, G, W: T.einsum("bm,mbk->bk", (x @ G).softmax(1), (x @ W).tanh()),
    x="b d", G="d m", W="m d k", sizes={"m": (3, 4, 1)},
)  # fmt: skip

operator(
    "the two best experts", "Shazeer et al. 2017, Outrageously large neural networks, eqs. 3 to 5, without noise",
    """s[b,m] = sum[d](x[b,d]*G[d,m])
       c[b,m] = sum[l](where(s[b,l] > s[b,m], 1.0, 0.0))
       e[b,m] = where(c[b,m] < 2, exp(s[b,m]), 0)
       y[b,k] = sum[m](e[b,m]*sum[d](x[b,d]*W[m,d,k]))/sum[m](e[b,m])""",
    lambda T, x, G, W: (lambda top: T.einsum("br,brd,brdk->bk", top[0].softmax(1), x[:, None].expand(-1, 2, -1),
        W[top[1]]))(
        (x @ G).topk(2, 1)
    ),
    x="b d", G="d m", W="m d k", sizes={"m": (4, 7, 3)},
)  # fmt: skip

operator(
    "sets by sums", "Zaheer et al. 2017, Deep sets, eq. 4 and theorem 2",
    """u[b,n,k] = sum[d](x[b,n,d]*L[d,k]) + sum[d](max[m](x[b,m,d])*G[d,k])
       y[b,o] = sum[k](tanh(sum[n](relu(u[b,n,k])))*V[k,o])""",
    lambda T, x, L, G, V: (x @ L + x.amax(1, keepdim=True) @ G).relu().sum(1).tanh() @ V,
    x="b n d | spread", L="d k", G="d k", V="k o",
)  # fmt: skip

operator(
    "continuous bags of words with negative samples", "Mikolov et al. 2013, Distributed representations, eq. 4",
    """h[b,d] = mean[c](E[ctx[b,c],d])
       loss[] = mean[b](log(1 + exp(-sum[d](h[b,d]*U[w[b],d])))
                        + sum[k](log(1 + exp(sum[d](h[b,d]*U[neg[b,k],d])))))""",
    lambda T, E, ctx, U, w, neg: (lambda F, h: (F.softplus(-(h * U[w]).sum(1)) + F.softplus(
        T.bmm(U[neg], h[:, :, None])[..., 0]).sum(1)).mean())(T.nn.functional, T.nn.functional.embedding(ctx,
            E).mean(1)),
    E="v d", ctx="b c | int v", U="v d", w="b | int v", neg="b k | int v",
)  # fmt: skip

operator(
    "GloVe", "Pennington, Socher, Manning 2014, GloVe, eqs. 8 and 9",
    """f[i,j] = where(X[i,j] < 1.2, (X[i,j]/1.2)**0.75, 1.0)
       J[] = sum[i,j](f[i,j]*(sum[d](w[i,d]*c[j,d]) + a[i] + b[j] - log(X[i,j]))**2)""",
    lambda T, X, w, c, a, b: ((X / 1.2).clamp(max=1).pow(0.75) * (w @ c.T + a[:, None] + b - X.log()).square()).sum(),
    X="m n | positive", w="m d", c="n d", a="m", b="n",
)  # fmt: skip

operator(
    "hyperbolic distance", "Nickel, Kiela 2017, Poincaré embeddings, eq. 1",
    """a[i] = sum[d](x[i,d]**2)
       b[j] = sum[d](y[j,d]**2)
       s[i,j] = 2*sum[d]((x[i,d] - y[j,d])**2)/((1 + a[i])*(1 + b[j])) + 0.01
       D[i,j] = log(1 + s[i,j] + sqrt((1 + s[i,j])**2 - 1))""",
    lambda T, x, y: T.acosh(1.01 + 2 * (x[:, None] - y).square().sum(2) / (
        (1 + x.square().sum(1))[:, None] * (1 + y.square().sum(1))
    )),
    x="m d", y="n d",
)  # fmt: skip
