"""Attention without a softmax over all pairs: feature maps, states that are carried along, memories, pooling."""

from __future__ import annotations

from tests.papers.operator import operator


def _steps(T, step, state, *sequences):
    """All outputs of step(state, ...) -> (state, output)."""
    out = []
    for now in zip(*sequences, strict=True):
        state, y = step(state, *now)
        out.append(y)
    return T.stack(out)


operator(
    "linear attention", "Katharopoulos, Vyas, Pappas, Fleuret 2020, Transformers are RNNs, eqs. 4 and 7",
    """a[i,d] = where(q[i,d] > 0, q[i,d] + 1, exp(q[i,d]))
       b[j,d] = where(k[j,d] > 0, k[j,d] + 1, exp(k[j,d]))
       S[d,c] = sum[j](b[j,d]*v[j,c])
       z[d] = sum[j](b[j,d])
       out[i,c] = sum[d](a[i,d]*S[d,c])/sum[d](a[i,d]*z[d])""",
    lambda T, q, k, v: (lambda w: w @ v / w.sum(1, keepdim=True))(
        (T.nn.functional.elu(q) + 1) @ (T.nn.functional.elu(k) + 1).T
    ),
    q="i d", k="n d", v="n c",
)  # fmt: skip

operator(
    "causal linear attention as a recurrence", "Katharopoulos, Vyas, Pappas, Fleuret 2020, eqs. 16 to 20",
    """a[t,d] = exp(0.5*q[t,d])
       b[t,d] = exp(0.5*k[t,d])
       S[t,d,c] = where(t > 0, S[t-1,d,c], 0) + b[t,d]*v[t,c]
       z[t,d] = where(t > 0, z[t-1,d], 0) + b[t,d]
       out[t,c] = sum[d](a[t,d]*S[t,d,c])/sum[d](a[t,d]*z[t,d])""",
    lambda T, q, k, v: (lambda w: w @ v / w.sum(1, keepdim=True))(((q / 2).exp() @ (k / 2).exp().T).tril()),
    q="t d", k="t d", v="t c",
)  # fmt: skip

operator(
    "cosFormer", "Qin et al. 2022, cosFormer, eq. 10",
    """w[i,j] = where(j <= i, sum[d](relu(q[i,d])*relu(k[j,d]))*cos(1.5707963267948966*(i - j)/size(i)), 0)
       out[i,c] = sum[j](w[i,j]*v[j,c])/(0.1 + sum[j](w[i,j]))""",
    lambda T, q, k, v: (lambda t: (lambda w: w @ v / (w.sum(1, keepdim=True) + 0.1))((
        (q.relu() * t.cos()) @ (k.relu() * t.cos()).T + (q.relu() * t.sin()) @ (k.relu() * t.sin()).T
    ).tril()))(T.pi / 2 * T.arange(len(q)).double()[:, None] / len(q)),
    q="n d", k="n d", v="n c",
)  # fmt: skip

operator(
    "positive random features", "Choromanski et al. 2021, Rethinking attention with performers, lemma 1",
    """a[i,m] = exp(sum[d](W[m,d]*q[i,d] - 0.5*q[i,d]**2))
       b[j,m] = exp(sum[d](W[m,d]*k[j,d] - 0.5*k[j,d]**2))
       out[i,c] = sum[m](a[i,m]*sum[j](b[j,m]*v[j,c]))/sum[m](a[i,m]*sum[j](b[j,m]))""",
    lambda T, q, k, v, W: (lambda f: (lambda w: w / w.sum(1, keepdim=True))(f(q) @ f(k).T) @ v)(
        lambda x: (x @ W.T - x.norm(dim=1, keepdim=True) ** 2 / 2).exp()
    ),
    q="i d", k="n d", v="n c", W="m d", sizes={"d": (5, 4, 3)},
)  # fmt: skip

operator(
    "attention over projected keys", "Wang, Li, Khabsa, Fang, Ma 2020, Linformer, eq. 7",
    """a[i,m] = exp(sum[d](q[i,d]*sum[j](E[m,j]*k[j,d]))/sqrt(f64(size(d))))
       out[i,c] = sum[m](a[i,m]*sum[j](F[m,j]*v[j,c]))/sum[m](a[i,m])""",
    lambda T, q, k, v, E, F: (q @ (E @ k).T / q.shape[1] ** 0.5).softmax(1) @ (F @ v),
    q="i d", E="m n", k="n d", F="m n", v="n c", sizes={"n": (6, 7, 4), "m": (3, 5, 1)},
)  # fmt: skip

operator(
    "efficient attention",
    "Shen, Zhang, Zhao, Yi, Li 2021, Efficient attention: attention with linear complexities, eq. 7",
    """a[i,d] = exp(q[i,d])/sum[c](exp(q[i,c]))
       b[j,d] = exp(k[j,d])/sum[i](exp(k[i,d]))
       out[i,c] = sum[d](a[i,d]*sum[j](b[j,d]*v[j,c]))""",
    lambda T, q, k, v: T.einsum("id,jd,jc->ic", q.softmax(1), k.softmax(0), v),
    q="i d", k="n d", v="n c",
)  # fmt: skip

operator(
    "attention by Taylor's series", "Arora et al. 2024, Simple linear attention language models (Based), eq. 3",
    """s[i,j] = sum[d](q[i,d]*k[j,d])
       w[i,j] = where(j <= i, 1 + s[i,j] + s[i,j]**2/2, 0)
       out[i,c] = sum[j](w[i,j]*v[j,c])/sum[j](w[i,j])""",
    lambda T, q, k, v: (lambda f: (lambda w: w @ v / w.sum(1, keepdim=True))((f(q) @ f(k).T).tril()))(
        lambda x: T.cat([T.ones_like(x[:, :1]), x, (x[:, :, None] * x[:, None]).flatten(1) / 2**0.5], 1)
    ),
    q="n d", k="n d", v="n c", sizes={"d": (5, 3, 4)},
)  # fmt: skip

operator(
    "gated attention unit", "Hua, Dai, Liu, Le 2022, Transformer quality in linear time, section 3.1",
    """z[i,d] = sum[m](x[i,m]*Z[m,d])
       a[i,j] = relu(sum[d]((z[i,d]*g[0,d] + b[0,d])*(z[j,d]*g[1,d] + b[1,d]))/size(i))**2
       p[i,e] = sum[m](x[i,m]*U[m,e])
       r[j,e] = sum[m](x[j,m]*V[m,e])
       h[i,e] = p[i,e]*sigmoid(p[i,e])*sum[j](a[i,j]*r[j,e])
       out[i,m] = sum[e](h[i,e]*W[e,m])""",
    lambda T, x, Z, g, b, U, V, W: (lambda z: (T.nn.functional.silu(x @ U) * (
        (((z * g[0] + b[0]) @ (z * g[1] + b[1]).T) / len(x)).relu().square() @ (x @ V)
    )) @ W)(x @ Z),
    x="n m", Z="m d", g="2 d", b="2 d", U="m e", V="m e", W="e m", sizes={"n": (5, 9, 3), "m": (4, 7, 3), "d": (3, 5,
    2)},
)  # fmt: skip

operator(
    "attention-free transformer, full", "Zhai et al. 2021, An attention free transformer, eq. 2",
    """e[i,j,d] = exp(k[j,d] + w[i,j])
       y[i,d] = sigmoid(q[i,d])*sum[j](e[i,j,d]*v[j,d])/sum[j](e[i,j,d])""",
    lambda T, q, k, v, w: q.sigmoid() * (w.exp() @ (k.exp() * v)) / (w.exp() @ k.exp()),
    q="n d", k="n d", v="n d", w="n n",
)  # fmt: skip

operator(
    "attention-free transformer, simple", "Zhai et al. 2021, section 3.2",
    "y[b,i,d] = sigmoid(q[b,i,d])*sum[j](exp(k[b,j,d])*v[b,j,d])/sum[j](exp(k[b,j,d]))",
    lambda T, q, k, v: q.sigmoid() * (k.softmax(1) * v).sum(1, keepdim=True),
    q="b n d", k="b n d", v="b n d",
)  # fmt: skip

operator(
    "attention-free transformer, local", "Zhai et al. 2021, eq. 4",
    """e[i,j,d] = exp(k[j,d] + where(-3 < i - j < 3, sum[r](u[i,r]*p[j,r]), 0))
       y[i,d] = sigmoid(q[i,d])*sum[j](e[i,j,d]*v[j,d])/sum[j](e[i,j,d])""",
    lambda T, q, k, v, u, p: (lambda w: q.sigmoid() * T.einsum(
        "ijd,jd->id", (w[..., None] + k).softmax(1), v
    ))((u @ p.T).triu(-2).tril(2)),
    q="n d", k="n d", u="n r", p="n r", v="n d",
)  # fmt: skip

operator(
    "retention in parallel", "Sun et al. 2023, Retentive network, eq. 5, without rotations",
    "out[h,i,c] = sum[j](where(j <= i, g[h]**f64(i - j)*sum[d](q[h,i,d]*k[h,j,d]), 0)*v[h,j,c])",
    lambda T, q, k, v, g: (q @ k.mT * (
        g.log()[:, None, None] * (T.arange(q.shape[1])[:, None] - T.arange(q.shape[1]))
    ).exp().tril()) @ v,
    q="g n d", k="g n d", v="g n c", g="g | unit", sizes={"n": (6, 9, 3)},
)  # fmt: skip

operator(
    "retention as a recurrence", "Sun et al. 2023, Retentive network, eq. 6",
    """S[t,h,d,c] = g[h]*where(t > 0, S[t-1,h,d,c], 0) + k[h,t,d]*v[h,t,c]
       out[h,t,c] = sum[d](q[h,t,d]*S[t,h,d,c])""",
    lambda T, q, k, v, g: (q @ k.mT * (
        g.log()[:, None, None] * (T.arange(q.shape[1])[:, None] - T.arange(q.shape[1]))
    ).exp().tril()) @ v,
    q="g t d", k="g t d", v="g t c", g="g | unit",
)  # fmt: skip


def _wkv(T, k, v, w, u):
    a = b = T.zeros_like(w)
    out = []
    for kt, vt in zip(k, v, strict=True):
        e = (u + kt).exp()
        out.append((a + e * vt) / (b + e))
        a, b = a * (-w).exp() + kt.exp() * vt, b * (-w).exp() + kt.exp()
    return T.stack(out)


operator(
    "weighted keys and values of RWKV", "Peng et al. 2023, RWKV, eq. 14",
    """e[t,i,d] = where(i < t, exp(-(t - 1 - i)*w[d] + k[i,d]), where(i == t, exp(u[d] + k[i,d]), 0))
       y[t,d] = sum[i](e[t,i,d]*v[i,d])/sum[i](e[t,i,d])""",
    _wkv, w="d | unit", k="t d", u="d", v="t d", extents={"t": "k.shape[0]"},
)  # fmt: skip

operator(
    "stable recurrence of RWKV", "Peng et al. 2023, RWKV, appendix D",
    """p[t,d] = max(where(t > 0, p[t-1,d], k[t,d]) - w[d], k[t,d])
       o[t,d] = where(t > 0, p[t-1,d], k[t,d] - w[d])
       s[t,d] = exp(where(t > 0, p[t-1,d] - w[d], -w[d] + k[t,d]) - p[t,d])
       a[t,d] = s[t,d]*where(t > 0, a[t-1,d], 0) + exp(k[t,d] - p[t,d])*v[t,d]
       b[t,d] = s[t,d]*where(t > 0, b[t-1,d], 0) + exp(k[t,d] - p[t,d])
       q[t,d] = max(o[t,d], u[d] + k[t,d])
       c[t,d] = exp(o[t,d] - q[t,d])
       f[t,d] = exp(u[d] + k[t,d] - q[t,d])
       y[t,d] = (c[t,d]*where(t > 0, a[t-1,d], 0) + f[t,d]*v[t,d])/(c[t,d]*where(t > 0, b[t-1,d], 0) + f[t,d])
       return y""",
    _wkv, w="d | unit", k="t d", u="d", v="t d",
)  # fmt: skip

operator(
    "RWKV-5 with matrix states", "Peng et al. 2024, Eagle and Finch, eq. 16",
    """S[t,d,c] = where(t > 0, w[d]*S[t-1,d,c] + k[t-1,d]*v[t-1,c], 0)
       y[t,c] = sum[d](r[t,d]*(S[t,d,c] + u[d]*k[t,d]*v[t,c]))""",
    lambda T, k, v, w, r, u: T.stack([
        (r[t] * u * k[t]).sum() * v[t] + sum(((r[t] * w ** (t - 1 - i) * k[i]).sum() * v[i] for i in range(t)),
            0 * v[0])
        for t in range(len(k))
    ]),
    w="d | unit", k="t d", v="t c", r="t d", u="d", sizes={"t": (4, 6, 9), "d": (5, 7, 3)},
)  # fmt: skip


def _gla(T, q, k, v, a):
    S, out = q.new_zeros(k.shape[1], v.shape[1]), []
    for t in range(len(q)):
        S = a[t].diag() @ S + T.outer(k[t], v[t])
        out.append(q[t] @ S)
    return T.stack(out)


operator(
    "gated linear attention", "Yang et al. 2024, Gated linear attention transformers, eq. 3",
    """S[t,d,c] = a[t,d]*where(t > 0, S[t-1,d,c], 0) + k[t,d]*v[t,c]
       o[t,c] = sum[d](q[t,d]*S[t,d,c])""",
    _gla, q="t d", k="t d", v="t c", a="t d | unit",
)  # fmt: skip


def _delta(T, q, k, v, b, a=None):
    S, out = q.new_zeros(v.shape[1], k.shape[1]), []
    for t in range(len(q)):
        S = S if a is None else a[t] * S
        S = S @ (T.eye(k.shape[1]).to(k) - b[t] * T.outer(k[t], k[t])) + b[t] * T.outer(v[t], k[t])
        out.append(S @ q[t])
    return T.stack(out)


operator(
    "delta rule", "Schlag, Irie, Schmidhuber 2021, Linear transformers are secretly fast weight programmers, eq. 24",
    """p[t,c,d] = where(t > 0, S[t-1,c,d], 0)
       u[t,c] = b[t]*(v[t,c] - sum[d](p[t,c,d]*k[t,d]))
       S[t,c,d] = p[t,c,d] + u[t,c]*k[t,d]
       o[t,c] = sum[d](S[t,c,d]*q[t,d])""",
    _delta, q="t d", k="t d", v="t c", b="t | unit", sizes={"d": (3, 4, 5)},
)  # fmt: skip

operator(
    "gated delta rule", "Yang, Kautz, Hatamizadeh 2025, Gated delta networks, eq. 10",
    """p[t,c,d] = where(t > 0, a[t]*S[t-1,c,d], 0)
       S[t,c,d] = p[t,c,d] + b[t]*(v[t,c] - sum[e](p[t,c,e]*k[t,e]))*k[t,d]
       o[t,c] = sum[d](S[t,c,d]*q[t,d])""",
    _delta, q="t d", k="t d", v="t c", b="t | unit", a="t | unit", sizes={"d": (3, 4, 5)}, extents={"e": "k.shape[1]"},
)  # fmt: skip

operator(
    "test-time training, a linear model", "Sun et al. 2024, Learning to learn at test time, eq. 1",
    """p[t,c,d] = where(t > 0, W[t-1,c,d], W0[c,d])
       g[t,c] = 2*(sum[d](p[t,c,d]*k[t,d]) - v[t,c])
       W[t,c,d] = p[t,c,d] - 0.05*g[t,c]*k[t,d]
       z[t,c] = sum[d](W[t,c,d]*q[t,d])""",
    lambda T, W0, q, k, v: _steps(
        T, lambda W, q, k, v: (lambda W: (W, W @ q))(W - 0.1 * T.outer(W @ k - v, k)), W0, q, k, v
    ),
    W0="c d", q="t d", k="t d", v="t c", sizes={"d": (3, 4, 5), "t": (3, 5, 7)},
)  # fmt: skip

operator(
    "fast weights with decay", "Ba, Hinton, Mnih, Leibo, Ionescu 2016, Using fast weights to attend to the recent past",
    """A[t,c,d] = where(t > 0, 0.9*A[t-1,c,d] + 0.5*h[t-1,c]*h[t-1,d], 0)
       h[t,c] = tanh(x[t,c] + sum[d](where(t > 0, W[c,d]*h[t-1,d], 0))
                     + sum[d](where(t > 0, A[t,c,d]*h[t-1,d], 0)))
       return h""",
    lambda T, x, W: (lambda h: [
        h.append((x[t] + (W @ h[-1] + sum(
            0.5 * 0.9 ** (t - 1 - i) * h[i] * (h[i] @ h[-1]) for i in range(t)
        ) if t else 0)).tanh()) for t in range(len(x))
    ] and T.stack(h))([]),
    x="t d", W="d d", sizes={"d": (3, 5, 4), "t": (3, 4, 5)},
)  # fmt: skip

operator(
    "reading by content and location", "Graves, Wayne, Danihelka 2014, Neural Turing machines, eqs. 5 to 9",
    """K[b,n] = sum[m](M[b,n,m]*k[b,m])/sqrt(sum[m](M[b,n,m]**2)*sum[m](k[b,m]**2))
       c[b,n] = exp(beta[b]*K[b,n])
       g[b,n] = gate[b]*c[b,n]/sum[m](c[b,m]) + (1 - gate[b])*last[b,n]
       s[b,n] = sum[r](g[b,(n + r + size(n) - 1) % size(n)]*shift[b,r])
       w[b,n] = s[b,n]**sharp[b]
       out[b,m] = sum[n](w[b,n]*M[b,n,m])/sum[n](w[b,n])""",
    lambda T, M, k, beta, gate, last, shift, sharp: (lambda g: (lambda w: T.einsum(
        "bn,bnm->bm", w / w.sum(1, keepdim=True), M
    ))(sum(g.roll(1 - r, 1) * shift[:, r : r + 1] for r in range(3)).pow(sharp[:, None])))(
        gate[:, None] * (beta[:, None] * T.nn.functional.cosine_similarity(M, k[:, None], 2)).softmax(1)
        + (1 - gate[:, None]) * last
    ),
    M="b n m", k="b m", beta="b | positive", gate="b | unit", last="b n | unit", shift="b 3 | unit",
    sharp="b | positive",
)  # fmt: skip

operator(
    "writing by erasing and adding", "Graves, Wayne, Danihelka 2014, eqs. 3 and 4",
    "out[b,n,m] = M[b,n,m]*prod[h](1 - w[b,h,n]*e[b,h,m]) + sum[h](w[b,h,n]*a[b,h,m])",
    lambda T, M, w, e, a: M * (1 - w[..., None] * e[:, :, None]).prod(1) + w.mT @ a,
    M="b n m", w="b 2 n | unit", e="b 2 m | unit", a="b 2 m",
)  # fmt: skip

operator(
    "hops of an end-to-end memory", "Sukhbaatar, Szlam, Weston, Fergus 2015, End-to-end memory networks, section 2.2",
    """u[h,b,d] = where(h > 0, u[h-1,b,d] + o[h-1,b,d], q[b,d])
       e[h,b,i] = exp(sum[d](u[h,b,d]*m[b,i,d]))
       o[h,b,d] = sum[i](e[h,b,i]*c[b,i,d])/sum[i](e[h,b,i])
       out[b,d] = u[2,b,d] + o[2,b,d]
       return out""",
    lambda T, q, m, c: [q := q + ((m @ q[..., None]).mT.softmax(-1) @ c)[:, 0] for _ in range(3)][-1],
    extents={"h": 3}, q="b d", m="b i d", c="b i d", sizes={"d": (4, 5, 3)},
)  # fmt: skip

operator(
    "pointer network", "Vinyals, Fortunato, Jaitly 2015, Pointer networks, eq. 3, as log probabilities",
    """u[b,i,j] = sum[h](v[h]*tanh(sum[d](e[b,j,d]*W[d,h]) + sum[d](g[b,i,d]*U[d,h])))
       top[b,i] = max[j](u[b,i,j])
       p[b,i,j] = u[b,i,j] - top[b,i] - log(sum[k](exp(u[b,i,k] - top[b,i])))""",
    lambda T, v, e, W, g, U: T.log_softmax(((e @ W)[:, None] + (g @ U)[:, :, None]).tanh() @ v, -1),
    v="h", e="b j d", W="d h", g="b i d", U="d h",
)  # fmt: skip

operator(
    "slot attention, one iteration", "Locatello et al. 2020, Object-centric learning with slot attention, algorithm 1",
    """e[b,n,s] = exp(sum[d](k[b,n,d]*q[b,s,d])/sqrt(f64(size(d))))
       a[b,n,s] = e[b,n,s]/sum[r](e[b,n,r]) + 0.01
       u[b,s,d] = sum[n](a[b,n,s]*v[b,n,d])/sum[n](a[b,n,s])""",
    lambda T, k, q, v: (lambda a: (a / a.sum(1, keepdim=True)).mT @ v)(
        (k @ q.mT / q.shape[-1] ** 0.5).softmax(2) + 0.01
    ),
    k="b n d", q="b s d", v="b n d", sizes={"s": (3, 5, 2)},
)  # fmt: skip

operator(
    "latents of Perceiver", "Jaegle et al. 2021, Perceiver, section 3.1",
    """s[b,m,n] = sum[h](sum[d](z[m,d]*Q[d,h])*sum[c](x[b,n,c]*K[c,h]))
       e[b,m,n] = exp(s[b,m,n] - max[k](s[b,m,k]))
       y[b,m,d] = z[m,d] + sum[n](e[b,m,n]*sum[c](x[b,n,c]*V[c,d]))/sum[n](e[b,m,n])""",
    lambda T, z, Q, x, K, V: z + (z @ Q @ (x @ K).mT).softmax(-1) @ (x @ V),
    z="m d", Q="d h", x="b n c", K="c h", V="c d", sizes={"m": (3, 4, 2), "d": (4, 5, 3), "n": (6, 7, 9)},
)  # fmt: skip

operator(
    "gated pooling of instances", "Ilse, Tomczak, Welling 2018, Attention-based deep multiple instance learning, eq. 9",
    """s[b,n] = exp(sum[h](w[h]*tanh(sum[d](x[b,n,d]*V[d,h]))*sigmoid(sum[d](x[b,n,d]*U[d,h]))))
       z[b,d] = sum[n](s[b,n]*x[b,n,d])/sum[n](s[b,n])""",
    lambda T, w, x, V, U: T.einsum("bn,bnd->bd", (((x @ V).tanh() * (x @ U).sigmoid()) @ w).softmax(1), x),
    w="h", x="b n d", V="d h", U="d h",
)  # fmt: skip

operator(
    "structured sentence embedding with penalty",
    "Lin et al. 2017, A structured self-attentive embedding, eqs. 6 and 8",
    """s[r,n] = exp(sum[h](W[r,h]*tanh(sum[d](V[h,d]*x[n,d]))))
       A[r,n] = s[r,n]/sum[i](s[r,i])
       M[r,d] = sum[n](A[r,n]*x[n,d])
       P[] = sum[r,q]((sum[n](A[r,n]*A[q,n]) - where(r == q, 1.0, 0.0))**2)
       return M, P""",
    lambda T, W, V, x: (lambda A: (A @ x, T.linalg.matrix_norm(A @ A.T - T.eye(len(A)).to(A)) ** 2))(
        (W @ (V @ x.T).tanh()).softmax(1)
    ),
    extents={"q": "W.shape[0]"}, W="r h", V="h d", x="n d",
)  # fmt: skip

operator(
    "attention over attention", "Cui et al. 2017, Attention-over-attention neural networks, eqs. 3 to 6",
    """M[i,j] = exp(sum[d](x[i,d]*y[j,d]))
       a[i,j] = M[i,j]/sum[k](M[k,j])
       b[j] = mean[i](M[i,j]/sum[k](M[i,k]))
       s[i] = sum[j](a[i,j]*b[j])""",
    lambda T, x, y: (lambda M: M.softmax(0) @ M.softmax(1).mean(0))(x @ y.T),
    x="n d", y="j d",
)  # fmt: skip

operator(
    "attention flow in both directions", "Seo, Kembhavi, Farhadi, Hajishirzi 2017, BiDAF, eqs. 1 to 4",
    """S[i,j] = sum[d](w[d]*h[i,d]) + sum[d](w[size(d)+d]*u[j,d]) + sum[d](w[2*size(d)+d]*h[i,d]*u[j,d])
       a[i,d] = sum[j](exp(S[i,j])*u[j,d])/sum[j](exp(S[i,j]))
       m[i] = max[j](S[i,j])
       c[d] = sum[i](exp(m[i])*h[i,d])/sum[i](exp(m[i]))
       G[i,d] = h[i,d]*a[i,d] + h[i,d]*c[d]""",
    lambda T, w, h, u: (lambda S: h * (S.softmax(1) @ u) + h * (S.amax(1).softmax(0) @ h))(T.cat([
        h[:, None].expand(-1, len(u), -1), u.expand(len(h), -1, -1), h[:, None] * u
    ], 2) @ w),
    w="3*d", h="n d", u="j d", extents={"d": "h.shape[1]"},
)  # fmt: skip

operator(
    "induced points of a set", "Lee et al. 2019, Set transformer, eq. 10, one head without layers",
    """h[m,d] = sum[n](exp(sum[c](I[m,c]*x[n,c]))*x[n,d])/sum[n](exp(sum[c](I[m,c]*x[n,c])))
       e[n,m] = exp(sum[c](x[n,c]*h[m,c]))
       y[n,d] = sum[m](e[n,m]*h[m,d])/sum[m](e[n,m])""",
    lambda T, I, x: (lambda h: (x @ h.T).softmax(1) @ h)((I @ x.T).softmax(1) @ x),
    I="m d", x="n d", sizes={"m": (3, 4, 2), "d": (4, 3, 5)}, extents={"c": "x.shape[1]"},
)  # fmt: skip

operator(
    "landmarks and a pseudoinverse by iteration", "Xiong et al. 2021, Nyströmformer, eqs. 11 to 14, two iterations",
    """a[i,m] = exp(sum[d](q[i,d]*l[m,d]))
       A[i,m] = a[i,m]/sum[k](a[i,k])
       b[m,k] = exp(sum[d](l[m,d]*r[k,d]))
       B[m,k] = b[m,k]/sum[o](b[m,o])
       Z[t,k,m] = where(t > 0, 2*Z[t-1,k,m] - sum[o](Z[t-1,k,o]*sum[p](B[o,p]*Z[t-1,p,m])), 0.3*B[m,k])
       out[i,k] = sum[m](A[i,m]*Z[2,m,k])
       return out""",
    lambda T, q, l, r: (lambda A, B: A @ (
        lambda Z: [Z := 2 * Z - Z @ B @ Z for _ in range(2)][-1]
    )(0.3 * B.T))((q @ l.T).softmax(1), (l @ r.T).softmax(1)),
    extents={"t": 3, "o": "l.shape[0]", "p": "l.shape[0]", "k": "l.shape[0]"}, q="n d", l="m d", r="m d",
    sizes={"m": (3, 4, 1), "n": (5, 7, 3)},
)  # fmt: skip

operator(
    "dense synthesizer", "Tay et al. 2021, Synthesizer, section 3.1",
    """e[i,j] = exp(sum[h](relu(sum[d](x[i,d]*A[d,h]))*B[h,j]))
       y[i,d] = sum[j](e[i,j]*x[j,d])/sum[j](e[i,j])""",
    lambda T, x, A, B: ((x @ A).relu() @ B).softmax(1) @ x,
    x="n d", A="d h", B="h n",
)  # fmt: skip

operator(
    "Fourier mixing of tokens", "Lee-Thorp et al. 2022, FNet, eq. 3",
    """w[i,n] = 6.283185307179586*f64(i*n % size(n))/size(n)
       u[d,c] = 6.283185307179586*f64(d*c % size(c))/size(c)
       y[i,d] = sum[n,c](x[n,c]*cos(w[i,n] + u[d,c]))""",
    lambda T, x: T.fft.fft2(x).real,
    x="n d", extents={"n": "x.shape[0]", "i": "x.shape[0]", "d": "x.shape[1]", "c": "x.shape[1]"},
    sizes={"n": (6, 9, 16), "d": (5, 7, 8)},
)  # fmt: skip

operator(
    "mixing tokens by a perceptron", "Tolstikhin et al. 2021, MLP-Mixer, eq. 1, without the norm",
    """u[b,h,c] = sum[n](W[h,n]*x[b,n,c])
       y[b,n,c] = x[b,n,c] + sum[h](V[n,h]*u[b,h,c]*0.5*(1 + erf(u[b,h,c]*0.7071067811865476)))""",
    lambda T, W, x, V: x + V @ T.nn.functional.gelu(W @ x),
    W="h n", x="b n c", V="n h",
)  # fmt: skip

operator(
    "spatial gating unit", "Liu, Dai, So, Le 2021, Pay attention to MLPs, eq. 3",
    """m[n] = mean[d](x[n,size(d)+d])
       s[n] = mean[d]((x[n,size(d)+d] - m[n])**2)
       z[n,d] = (x[n,size(d)+d] - m[n])*rsqrt(s[n] + 0.00001)
       y[n,d] = x[n,0*size(d)+d]*(sum[k](W[n,k]*z[k,d]) + b[n])""",
    lambda T, x, W, b: (lambda u, v: u * (W @ T.nn.functional.layer_norm(v, v.shape[1:]) + b[:, None]))(*x.chunk(2, 1)),
    x="n 2*d", W="n n", b="n", extents={"d": "x.shape[1]//2"}, sizes={"d": (5, 7, 3)},
)  # fmt: skip

operator(
    "kernel attention by gaussian distances", "Tsai et al. 2019, Transformer dissection, eq. 3 with the RBF kernel",
    """w[i,j] = exp(-0.2*sum[d]((q[i,d] - k[j,d])**2))
       y[i,c] = sum[j](w[i,j]*v[j,c])/sum[j](w[i,j])""",
    lambda T, q, k, v: (0.4 * q @ k.T - 0.2 * k.square().sum(1)).softmax(1) @ v,
    q="i d", k="n d", v="n c",
)  # fmt: skip
