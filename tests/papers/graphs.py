"""Graphs, point sets, molecules; adjacency as a matrix or as lists of edges."""

from __future__ import annotations

from tests.papers.operator import operator

GRAPH = {"n": (5, 9, 3), "d": (4, 7, 3), "e": (7, 16, 5)}

operator(
    "graph convolution", "Kipf, Welling 2017, Semi-supervised classification with graph convolutional networks, eq. 2",
    """B[i,j] = A[i,j] + where(i == j, 1.0, 0.0)
       r[i] = rsqrt(sum[j](B[i,j]))
       y[i,k] = relu(sum[j](r[i]*B[i,j]*r[j]*sum[d](x[j,d]*W[d,k])))""",
    lambda T, A, x, W: (lambda B: (lambda D: (D @ B @ D @ x @ W).relu())(B.sum(1).pow(-0.5).diag()))(
        A + T.eye(len(A)).to(A)
    ),
    A="n n | unit", x="n d", W="d k", sizes=GRAPH, extents={"i": "A.shape[0]", "j": "A.shape[1]"},
)  # fmt: skip

operator(
    "graph attention", "Veličković et al. 2018, Graph attention networks, eqs. 3 and 4",
    """z[i,k] = sum[d](x[i,d]*W[d,k])
       s[i] = sum[k](a[k]*z[i,k])
       t[j] = sum[k](a[size(k)+k]*z[j,k])
       e[i,j] = where(A[i,j] or i == j, exp(max(s[i] + t[j], 0.2*(s[i] + t[j]))), 0)
       y[i,k] = sum[j](e[i,j]*z[j,k])/sum[j](e[i,j])""",
    lambda T, x, W, a, A: (lambda z: (lambda s: s.masked_fill(
        ~(A | T.eye(len(A), dtype=T.bool)), -T.inf).softmax(1) @ z
    )(T.nn.functional.leaky_relu(z @ a[: z.shape[1], None] + z @ a[z.shape[1] :], 0.2)))(x @ W),
    x="n d", W="d k", a="2*k", A="n n | bool", sizes=GRAPH, extents={"k": "W.shape[1]"},
)  # fmt: skip

operator(
    "graph attention, second version", "Brody, Alon, Yahav 2022, How attentive are graph attention networks?, eq. 7",
    """u[i,j,k] = sum[d](x[i,d]*W[d,k]) + sum[d](x[j,d]*V[d,k])
       e[i,j] = where(A[i,j], exp(sum[k](a[k]*where(u[i,j,k] > 0, u[i,j,k], 0.2*u[i,j,k]))), 0.001)
       y[i,k] = sum[j](e[i,j]*sum[d](x[j,d]*V[d,k]))/sum[j](e[i,j])""",
    lambda T, x, W, V, A, a: (lambda w: w @ (x @ V) / w.sum(1, keepdim=True))(T.where(A, (
        T.nn.functional.leaky_relu((x @ W)[:, None] + x @ V, 0.2) @ a
    ).exp(), 0.001)),
    x="n d", W="d k", V="d k", A="n n | bool", a="k", sizes=GRAPH,
)  # fmt: skip

operator(
    "GraphSAGE, mean of neighbours, by edges",
    "Hamilton, Ying, Leskovec 2017, Inductive representation learning, algorithm 1",
    """n[i] = 1 + sum[e](where(to[e] == i, 1.0, 0.0))
       m[i,d] = sum[e](where(to[e] == i, x[of[e],d], 0))/n[i]
       h[i,k] = relu(sum[d](x[i,d]*W[0,d,k]) + sum[d](m[i,d]*W[1,d,k]))
       y[i,k] = h[i,k]/sqrt(sum[l](h[i,l]**2) + 0.01)""",
    lambda T, to, x, of, W: (lambda m: (lambda h: h / (h.square().sum(1, keepdim=True) + 0.01).sqrt())(
        T.cat([x, m], 1).matmul(W.flatten(0, 1)).relu()
    ))(T.zeros_like(x).index_add(0, to, x[of]) / (1 + T.bincount(to, minlength=len(x)))[:, None]),
    to="e | int n", x="n d", of="e | int n", W="2 d k", sizes=GRAPH, extents={"i": "x.shape[0]"},
)  # fmt: skip

operator(
    "GraphSAGE, pooling by maximum", "Hamilton, Ying, Leskovec 2017, eq. 3",
    """u[j,k] = sigmoid(sum[d](x[j,d]*P[d,k]))
       m[i,k] = max[j](where(A[i,j], u[j,k], 0.0))
       y[i,k] = sum[l](m[i,l]*W[l,k])""",
    lambda T, x, P, A, W: T.stack([
        T.cat([T.zeros_like(x[:1]) @ P, (x @ P).sigmoid()[A[i]]]).amax(0) for i in range(len(x))
    ]) @ W,
    x="n d", P="d k", A="n n | bool", W="k o", sizes=GRAPH,
)  # fmt: skip

operator(
    "graph isomorphism network by accumulation",
    "Xu, Hu, Leskovec, Jegelka 2019, How powerful are graph neural networks?, eq. 4.1",
    """s[to[e],d] += x[of[e],d]
       u[i,d] = (1.0 + eps)*x[i,d] + s[i,d]
       y[i,k] = sum[h](relu(sum[d](u[i,d]*W[d,h]))*V[h,k])""",
    lambda T, to, x, of, W, V, eps: (T.eye(len(x)).to(x) * (1 + eps) + T.zeros(len(x), len(x)).to(x).index_put(
        (to, of), T.ones(len(to)).to(x), accumulate=True
    )).matmul(x).matmul(W).relu() @ V,
    parameters={"eps": 0.3}, to="e | int n", x="n d", of="e | int n", W="d h", V="h k", sizes=GRAPH,
)  # fmt: skip

operator(
    "message passing by edge networks", "Gilmer et al. 2017, Neural message passing for quantum chemistry, section 5",
    """B[i,j,k,d] = tanh(sum[c](E[i,j,c]*W[c,k,d]))
       m[i,k] = sum[j](where(A[i,j], sum[d](B[i,j,k,d]*h[j,d]), 0))
       y[i,k] = tanh(h[i,k] + m[i,k])""",
    lambda T, E, W, A, h: (h + T.einsum("ijkd,ij,jd->ik", T.einsum("ijc,ckd->ijkd", E, W).tanh(), A.to(h), h)).tanh(),
    E="n n 2", W="2 d d", A="n n | bool", h="n d", sizes=GRAPH,
)  # fmt: skip

operator(
    "edge convolution", "Wang et al. 2019, Dynamic graph CNN, eq. 8, with given neighbours",
    "y[i,k] = max[r](relu(sum[d](x[i,d]*W[d,k]) + sum[d]((x[near[i,r],d] - x[i,d])*V[d,k])))",
    lambda T, x, W, near, V: T.cat([x[:, None].expand(-1, near.shape[1], -1), x[near] - x[:, None]], 2).matmul(
        T.cat([W, V])).relu().amax(1),
    x="n d", W="d k", near="n 3 | int n", V="d k", sizes={**GRAPH, "n": (11, 23, 17)},
)  # fmt: skip

operator(
    "PointNet", "Qi, Su, Mo, Guibas 2017, PointNet, eq. 1",
    """u[b,n,h] = relu(sum[c](x[b,n,c]*W[c,h]) + w[h])
       g[b,m] = max[n](sum[h](u[b,n,h]*V[h,m]))
       y[b,k] = sum[m](g[b,m]*U[m,k])""",
    lambda T, x, W, w, V, U: (T.nn.functional.linear(x, W.T, w).relu() @ V).max(1)[0] @ U,
    x="b n 3", W="3 h", w="h", V="h m", U="m k", sizes={"n": (5, 9, 3), "m": (4, 7, 3)},
)  # fmt: skip

operator(
    "Chamfer distance", "Fan, Su, Guibas 2017, A point set generation network, section 4.2",
    """d[b,i,j] = sum[c]((x[b,i,c] - y[b,j,c])**2)
       loss[] = mean[b](mean[i](min[j](d[b,i,j])) + mean[j](min[i](d[b,i,j])))""",
    lambda T, x, y: (lambda d: d.amin(2).mean() + d.amin(1).mean())((x[:, :, None] - y[:, None]).norm(dim=3).square()),
    x="b m 3", y="b n 3", sizes={"m": (5, 9, 3)},
)  # fmt: skip

operator(
    "continuous filters of SchNet", "Schütt et al. 2017, SchNet, eq. 3 and section 4.1",
    """d[i,j] = sqrt(sum[c]((p[i,c] - p[j,c])**2) + 0.01)
       g[i,j,m] = exp(-2.0*(d[i,j] - 0.5*m)**2)
       w[i,j,k] = log(0.5 + 0.5*exp(sum[m](g[i,j,m]*W[m,k])))
       y[i,k] = sum[j](x[j,k]*w[i,j,k])""",
    lambda T, p, W, x: (lambda d: T.einsum("jk,ijk->ik", x, T.nn.functional.softplus(
        (-2 * (d[..., None] - T.arange(len(W)) / T.tensor(2.0).to(d)).square()).exp() @ W
    ) - T.tensor(2.0).to(d).log()))(((p[:, None] - p).square().sum(2) + 0.01).sqrt()),
    p="n 3", W="m k", x="n k", sizes=GRAPH, extents={"m": "W.shape[0]"},
)  # fmt: skip

operator(
    "equivariant graph layer", "Satorras, Hoogeboom, Welling 2021, E(n) equivariant graph neural networks, eqs. 3 to 6",
    """d[i,j] = sum[c]((x[i,c] - x[j,c])**2)
       m[i,j,k] = tanh(sum[f](h[i,f]*A[f,k]) + sum[f](h[j,f]*B[f,k]) + d[i,j]*w[k])
       u[i,c] = x[i,c] + sum[j](where(i != j, (x[i,c] - x[j,c])*sum[k](m[i,j,k]*v[k]), 0))/size(i)
       g[i,f] = h[i,f] + sum[k](sum[j](where(i != j, m[i,j,k], 0))*C[k,f])
       return u, g""",
    lambda T, x, h, A, B, w, v, C: (lambda r, off: (lambda m: (
        x + (r * (m @ v)[..., None]).mean(1), h + (m * off).sum(1) @ C
    ))(((h @ A)[:, None] + h @ B + r.square().sum(2, keepdim=True) * w).tanh()))(
        x[:, None] - x, (1 - T.eye(len(x)).to(x))[..., None]
    ),
    x="n 3", h="n f", A="f k", B="f k", w="k", v="k", C="k f", sizes={"n": (4, 7, 2), "f": (3, 5, 4), "k": (4, 3, 2)},
)  # fmt: skip

operator(
    "Chebyshev filters of a graph",
    "Defferrard, Bresson, Vandergheynst 2016, Convolutional neural networks on graphs, eq. 4",
    """T[m,i,d] = where(m == 0, x[i,d], where(m == 1, sum[j](L[i,j]*x[j,d]),
                        2*sum[j](L[i,j]*where(m > 1, T[m-1,j,d], 0)) - where(m > 1, T[m-2,i,d], 0)))
       y[i,k] = sum[m,d](T[m,i,d]*W[m,d,k])
       return y""",
    lambda T, x, L, W: sum(
        p @ x @ W[m] for m, p in enumerate(
            [T.eye(len(x)).to(x), L, 2 * L @ L - T.eye(len(x)).to(x), 4 * L @ L @ L - 3 * L]
        )
    ),
    x="n d", L="n n", W="4 d k", sizes=GRAPH,
)  # fmt: skip

operator(
    "personalised propagation", "Gasteiger, Bojchevski, Günnemann 2019, Predict then propagate, eq. 5, 4 steps",
    "Z[t,i,k] = 0.85*sum[j](A[i,j]*where(t > 0, Z[t-1,j,k], h[j,k])) + 0.15*h[i,k]",
    lambda T, A, h: T.stack([
        (0.85 * A).matrix_power(t) @ h + sum(0.15 * (0.85 * A).matrix_power(s) @ h for s in range(t)) for t in range(1,
            5)
    ]),
    A="n n", h="n k", sizes=GRAPH, extents={"t": 4},
)  # fmt: skip

operator(
    "simple graph convolution, three hops", "Wu et al. 2019, Simplifying graph convolutional networks, eq. 8, logits",
    """a[i,d] = sum[j](S[i,j]*x[j,d])
       b[i,d] = sum[j](S[i,j]*a[j,d])
       c[i,d] = sum[j](S[i,j]*b[j,d])
       y[i,k] = sum[d](c[i,d]*W[d,k])""",
    lambda T, S, x, W: S.matrix_power(3) @ (x @ W),
    S="n n", x="n d", W="d k", sizes=GRAPH,
)  # fmt: skip

operator(
    "relational graph convolution", "Schlichtkrull et al. 2018, Modeling relational data, eqs. 2 and 3, two bases",
    """W[r,d,k] = sum[q](a[r,q]*V[q,d,k])
       c[i,r] = 1 + sum[j](A[r,i,j])
       y[i,k] = relu(sum[d](x[i,d]*U[d,k]) + sum[r,j](A[r,i,j]/c[i,r]*sum[d](x[j,d]*W[r,d,k])))""",
    lambda T, a, V, A, x, U: (x @ U + ((A / (1 + A.sum(2, keepdim=True))) @ x @ T.tensordot(a, V, 1)).sum(0)).relu(),
    a="r 2", V="2 d k", A="r n n | unit", x="n d", U="d k", sizes=GRAPH,
)  # fmt: skip

operator(
    "gated graph recurrence",
    "Li, Tarlow, Brockschmidt, Zemel 2016, Gated graph sequence neural networks, eqs. 3 to 6, two steps",
    """p[t,i,k] = where(t > 0, h[t-1,i,k], x[i,k])
       a[t,i,k] = sum[j](A[i,j]*p[t,j,k])
       z[t,i,k] = sigmoid(sum[l](a[t,i,l]*W[l,k]) + sum[l](p[t,i,l]*U[l,k]))
       h[t,i,k] = (1 - z[t,i,k])*p[t,i,k] + z[t,i,k]*tanh(sum[l](a[t,i,l]*V[l,k]))
       y[i,k] = h[1,i,k]
       return y""",
    lambda T, x, A, W, U, V: [
        x := T.lerp(x, (A @ x @ V).tanh(), (A @ x @ W + x @ U).sigmoid()) for _ in range(2)
    ][-1],
    x="n d", A="n n", W="d d", U="d d", V="d d", sizes=GRAPH, extents={"t": 2},
)  # fmt: skip

operator(
    "principal neighbourhood aggregation",
    "Corso, Cavalleri, Beaini, Liò, Veličković 2020, eqs. 2 to 5, on given neighbours",
    """m[i,d] = mean[r](x[near[i,r],d])
       s[i,d] = sqrt(mean[r]((x[near[i,r],d] - m[i,d])**2) + 0.01)
       t[i,d] = max[r](x[near[i,r],d]) - min[r](x[near[i,r],d])
       y[i,k] = sum[d](m[i,d]*W[0,d,k] + s[i,d]*W[1,d,k] + t[i,d]*W[2,d,k])""",
    lambda T, x, near, W: (lambda u: T.cat(
        [u.mean(1), (u.var(1, correction=0) + 0.01).sqrt(), u.amax(1) - u.amin(1)], 1) @ W.flatten(0, 1))(x[near]),
    x="n d | spread", near="n 3 | int n", W="3 d k", sizes=GRAPH,
)  # fmt: skip

operator(
    "pooling by differentiable clusters", "Ying et al. 2018, Hierarchical graph representation learning, eqs. 3 and 4",
    """e[i,k] = exp(s[i,k])
       p[i,k] = e[i,k]/sum[l](e[i,l])
       X[k,d] = sum[i](p[i,k]*x[i,d])
       A[k,l] = sum[i,j](p[i,k]*G[i,j]*p[j,l])
       return X, A""",
    lambda T, s, x, G: (lambda p: (p.T @ x, p.T @ G @ p))(s.softmax(1)),
    s="n k", x="n d", G="n n", sizes=GRAPH,
)  # fmt: skip

operator(
    "triangle updates of pairs", "Jumper et al. 2021, AlphaFold, algorithm 11, outgoing edges",
    """a[i,j,c] = sigmoid(sum[d](z[i,j,d]*G[d,c]))*sum[d](z[i,j,d]*A[d,c])
       b[i,j,c] = sum[d](z[i,j,d]*B[d,c])
       y[i,j,d] = sum[c](sum[k](a[i,k,c]*b[j,k,c])*C[c,d])""",
    lambda T, z, G, A, B, C: T.einsum("ikc,jkc,cd->ijd", (z @ G).sigmoid() * (z @ A), z @ B, C),
    z="n n d", G="d c", A="d c", B="d c", C="c d", sizes={"n": (4, 7, 3), "d": (3, 5, 2), "c": (4, 3, 5)},
)  # fmt: skip

operator(
    "label propagation with clamping", "Zhu, Ghahramani 2002, Learning from labeled and unlabeled data, 3 iterations",
    """D[i] = sum[j](A[i,j])
       F[t,i,k] = where(known[i], y[i,k], sum[j](A[i,j]*where(t > 0, F[t-1,j,k], y[j,k]))/D[i])""",
    lambda T, A, known, y: (lambda P: [F := y] and T.stack([
        F := T.where(known[:, None], y, P @ F) for _ in range(3)
    ]))(A / A.sum(1, keepdim=True)),
    A="n n | unit", known="n | bool", y="n k", sizes=GRAPH, extents={"t": 3},
)  # fmt: skip

operator(
    "energy of a graph signal", "Belkin, Niyogi 2003, Laplacian eigenmaps, eq. 1",
    "E[] = 0.5*sum[i,j,d](A[i,j]*(x[i,d] - x[j,d])**2)",
    lambda T, A, x: (x.T @ ((A.sum(0) + A.sum(1)).diag() / 2 - (A + A.T) / 2) @ x).trace(),
    A="n n", x="n d", sizes=GRAPH,
)  # fmt: skip
