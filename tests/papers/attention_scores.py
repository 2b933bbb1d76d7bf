"""Attention: how queries and keys are scored, masked and normalised."""

from __future__ import annotations

from tests.papers.operator import operator


def _attend(scores, v):
    return scores.softmax(-1) @ v


def _causal(T, n):
    return T.ones(n, n).tril().bool()


def _distance(T, n):
    return (T.arange(n)[:, None] - T.arange(n)).double()


operator(
    "additive attention", "Bahdanau, Cho, Bengio 2015, Neural machine translation by jointly learning to align, A.1.2",
    """p[b,i,h] = sum[d](q[b,i,d]*W[d,h])
       r[b,j,h] = sum[c](k[b,j,c]*U[c,h])
       e[b,i,j] = exp(sum[h](w[h]*tanh(p[b,i,h] + r[b,j,h])))
       out[b,i,c] = sum[j](e[b,i,j]*k[b,j,c])/sum[j](e[b,i,j])""",
    lambda T, q, W, k, U, w: _attend(((q @ W)[:, :, None] + (k @ U)[:, None]).tanh() @ w, k),
    q="b i d", W="d h", k="b j c", U="c h", w="h",
)  # fmt: skip

operator(
    "general score and attentional state", "Luong, Pham, Manning 2015, Effective approaches, eqs. 5 and 8",
    """a[b,s] = exp(sum[d](h[b,d]*sum[c](W[d,c]*m[b,s,c])))
       ctx[b,c] = sum[s](a[b,s]*m[b,s,c])/sum[s](a[b,s])
       out[b,d] = tanh(sum[c](ctx[b,c]*V[c,d]) + sum[c](h[b,c]*V[size(d)+c,d]))""",
    lambda T, h, W, m, V: (lambda a: T.cat([T.einsum("bs,bsc->bc", a, m), h], 1).matmul(V).tanh())(
        T.einsum("bd,dc,bsc->bs", h, W, m).softmax(1)
    ),
    h="b d", W="d d", m="b s d", V="2*d d", sizes={"d": (4, 7, 3)}, extents={"c": "h.shape[1]", "d": "h.shape[1]"},
)  # fmt: skip

operator(
    "local attention with predicted centres", "Luong, Pham, Manning 2015, eqs. 9 and 10",
    """p[b] = m.shape[1]*sigmoid(sum[d](v[d]*tanh(sum[c](W[d,c]*h[b,c]))))
       a[b,s] = exp(sum[d](h[b,d]*m[b,s,d]))
       out[b,d] = sum[s](a[b,s]*exp(-(s - p[b])**2/4.5)*m[b,s,d])/sum[s](a[b,s])""",
    lambda T, v, W, h, m: (
        lambda p, a: (m * (a * T.exp(-((T.arange(m.shape[1]) - p[:, None]) ** 2) / (2 * 1.5**2)))[..., None]).sum(1)
    )(m.shape[1] * ((h @ W.T).tanh() @ v).sigmoid(), (m @ h[..., None])[..., 0].softmax(1)),
    v="f", W="f d", h="b d", m="b s d",
)  # fmt: skip

operator(
    "multi-query attention", "Shazeer 2019, Fast transformer decoding: one write-head is all you need",
    """e[b,h,i,j] = exp(sum[d](q[b,h,i,d]*k[b,j,d])/sqrt(f64(size(d))))
       out[b,h,i,c] = sum[j](e[b,h,i,j]*v[b,j,c])/sum[j](e[b,h,i,j])""",
    lambda T, q, k, v: _attend(T.einsum("bhid,bjd->bhij", q, k) / q.shape[-1] ** 0.5, v[:, None]),
    q="b h i d", k="b j d", v="b j c", sizes={"h": (3, 2, 5)},
)  # fmt: skip

operator(
    "grouped-query attention", "Ainslie et al. 2023, GQA",
    """s[b,h,i,j] = sum[d](q[b,h,i,d]*k[b,h//3,j,d])
       top[b,h,i] = max[j](s[b,h,i,j])
       e[b,h,i,j] = exp(s[b,h,i,j] - top[b,h,i])
       out[b,h,i,d] = sum[j](e[b,h,i,j]*v[b,h//3,j,d])/sum[j](e[b,h,i,j])""",
    lambda T, q, k, v: _attend(q @ k.repeat_interleave(3, 1).mT, v.repeat_interleave(3, 1)),
    q="b 3*g i d", k="b g j d", v="b g j d",
)  # fmt: skip

operator(
    "attention with linear biases", "Press, Smith, Lewis 2022, Train short, test long",
    """e[h,i,j] = where(j <= i, exp(sum[d](q[h,i,d]*k[h,j,d]) - 2.0**(-8.0*(h+1)/size(h))*(i - j)), 0)
       out[h,i,d] = sum[j](e[h,i,j]*v[h,j,d])/sum[j](e[h,i,j])""",
    lambda T, q, k, v: _attend(
        (q @ k.mT - T.exp2(-8 * (T.arange(len(q)) + 1).double() / len(q))[:, None, None] * _distance(T, q.shape[1]))
        .masked_fill(~_causal(T, q.shape[1]), -T.inf), v
    ),
    q="g n d", k="g n d", v="g n d", sizes={"d": (5, 7, 3)},
)  # fmt: skip

operator(
    "clipped relative keys and values", "Shaw, Uszkoreit, Vaswani 2018, Self-attention with relative positions, eq. 5",
    """e[i,j] = exp(sum[d](q[i,d]*(k[j,d] + a[min(max(j - i, -2), 2) + 2,d])))
       out[i,d] = sum[j](e[i,j]*(v[j,d] + w[min(max(j - i, -2), 2) + 2,d]))/sum[j](e[i,j])""",
    lambda T, q, k, v, a, w: (lambda at: T.einsum(
        "ij,ijd->id", (q[:, None] * (k + a[at])).sum(-1).softmax(-1), v + w[at]
    ))(-_distance(T, len(q)).clamp(-2, 2).long() + 2),
    q="n d", k="n d", a="5 d", v="n d", w="5 d",
)  # fmt: skip

operator(
    "relative positions of Transformer-XL", "Dai et al. 2019, Transformer-XL, section 3.3",
    """s[h,i,j] = sum[d]((q[h,i,d] + u[h,d])*k[h,j,d]) + sum[d]((q[h,i,d] + w[h,d])*where(j <= i, r[i-j,d], 0))
       e[h,i,j] = where(j <= i, exp(s[h,i,j]), 0)
       out[h,i,d] = sum[j](e[h,i,j]*v[h,j,d])/sum[j](e[h,i,j])""",
    lambda T, q, u, k, w, r, v: _attend((
        (q + u[:, None]) @ k.mT + T.einsum("hid,ijd->hij", q + w[:, None], r[_distance(T, len(r)).clamp(0).long()])
    ).masked_fill(~_causal(T, len(r)), -T.inf), v),
    q="g n d", u="g d", k="g n d", w="g d", r="n d", v="g n d", sizes={"d": (5, 7, 3)},
)  # fmt: skip

operator(
    "bias by buckets", "Raffel et al. 2020, Exploring the limits of transfer learning (T5), section 2.1",
    """e[h,i,j] = exp(sum[d](q[h,i,d]*k[h,j,d]) + bias[bucket[i,j],h])
       out[h,i,d] = sum[j](e[h,i,j]*v[h,j,d])/sum[j](e[h,i,j])""",
    lambda T, q, k, v, bias, bucket: _attend(q @ k.mT + bias[bucket].permute(2, 0, 1), v),
    q="g n d", k="g n d", v="g n d", bias="m g", bucket="n n | int m", sizes={"d": (5, 7, 3)},
)  # fmt: skip

operator(
    "strided sparse attention", "Child, Gray, Radford, Sutskever 2019, Sparse transformers, section 4.2",
    """e[i,j] = where(j <= i and (i - j < 3 or (i - j) % 3 == 0), exp(sum[d](q[i,d]*k[j,d])), 0)
       out[i,d] = sum[j](e[i,j]*v[j,d])/sum[j](e[i,j])""",
    lambda T, q, k, v: (lambda r: _attend(
        (q @ k.T).masked_fill((r < 0) | ((r > 2) & (r.remainder(3) != 0)), -T.inf), v
    ))(_distance(T, len(q))),
    q="n d", k="n d", v="n d",
)  # fmt: skip

operator(
    "fixed sparse attention", "Child, Gray, Radford, Sutskever 2019, section 4.3",
    """e[i,j] = where(j <= i and (i//4 == j//4 or j % 4 == 3), exp(sum[d](q[i,d]*k[j,d])), 0)
       out[i,d] = sum[j](e[i,j]*v[j,d])/sum[j](e[i,j])""",
    lambda T, q, k, v: (lambda i: _attend((q @ k.T).where(
        (i <= i[:, None]) & ((i[:, None] // 4 == i // 4) | (i % 4 == 3)), -T.inf), v
    ))(T.arange(len(q))),
    q="n d", k="n d", v="n d",
)  # fmt: skip


def _windows(T, x, reach, dilation):
    pad = T.nn.functional.pad(x, (0, 0, reach * dilation, reach * dilation))
    return T.stack([pad[r * dilation : r * dilation + len(x)] for r in range(2 * reach + 1)], 1)


operator(
    "dilated sliding windows", "Beltagy, Peters, Cohan 2020, Longformer, section 3.1",
    """e[i,r] = where(0 <= i + 2*r - 4 < k.shape[0], exp(sum[d](q[i,d]*k[i+2*r-4,d])), 0)
       out[i,d] = sum[r](where(0 <= i + 2*r - 4 < k.shape[0], e[i,r]*v[i+2*r-4,d], 0))/sum[r](e[i,r])""",
    lambda T, q, k, v: (lambda s, inside: T.einsum(
        "ir,ird->id", s.masked_fill(inside == 0, -T.inf).softmax(1), _windows(T, v, 2, 2)
    ))((_windows(T, k, 2, 2) * q[:, None]).sum(-1), _windows(T, T.ones(len(k), 1), 2, 2)[..., 0]),
    extents={"r": 5}, q="n d", k="n d", v="n d",
)  # fmt: skip

operator(
    "blocks that look one block back", "Roy, Saffar, Vaswani, Grangier 2021, local attention of Routing transformers",
    """e[c,i,j] = where(c > 0 or j >= 4, where(j <= i + 4, exp(sum[d](q[4*c+i,d]*k[4*c+j-4,d])), 0), 0)
       out[c,i,d] = sum[j](where(c > 0 or j >= 4, e[c,i,j]*v[4*c+j-4,d], 0))/sum[j](e[c,i,j])""",
    lambda T, q, k, v: (lambda i: _attend((q @ k.T).where(
        (i <= i[:, None]) & (i[:, None] // 4 - i // 4 < 2), -T.inf), v).unflatten(0, (-1, 4)
    ))(T.arange(len(q))),
    extents={"c": "q.shape[0]//4", "i": 4, "j": 8}, q="4*c d", k="4*c d", v="4*c d",
)  # fmt: skip

operator(
    "talking heads", "Shazeer, Lan, Cheng, Ding, Hou 2020, Talking-heads attention",
    """s[h,i,j] = sum[d](q[h,i,d]*k[h,j,d])
       e[g,i,j] = exp(sum[h](s[h,i,j]*P[h,g]))
       w[g,i,j] = e[g,i,j]/sum[l](e[g,i,l])
       u[h,i,j] = sum[g](w[g,i,j]*R[g,h])
       out[h,i,d] = sum[j](u[h,i,j]*v[h,j,d])""",
    lambda T, q, k, v, P, R: T.einsum(
        "gij,gh,hjd->hid", T.einsum("hid,hjd,hg->gij", q, k, P).softmax(-1), R, v
    ),
    q="h i d", k="h j d", P="h g", R="g h", v="h j d", sizes={"h": (3, 2, 4), "d": (5, 7, 3)},
)  # fmt: skip

operator(
    "sigmoid attention",
    "Ramapuram et al. 2024, Theory, analysis, and best practices for sigmoid self-attention, eq. 3",
    "out[i,d] = sum[j](sigmoid(sum[c](q[i,c]*k[j,c])/sqrt(f64(size(c))) - log(f64(size(j))))*v[j,d])",
    lambda T, q, k, v: (lambda s: s / (1 + s) )((q @ k.T / q.shape[1] ** 0.5).exp() / len(k)) @ v,
    q="i c", k="n c", v="n d",
)  # fmt: skip

operator(
    "softmax with one more in the denominator", "Miller 2023, Attention is off by one",
    """s[i,j] = sum[c](q[i,c]*k[j,c])
       m[i] = max(max[j](s[i,j]), 0.0)
       out[i,d] = sum[j](exp(s[i,j] - m[i])*v[j,d])/(exp(-m[i]) + sum[j](exp(s[i,j] - m[i])))""",
    lambda T, q, k, v: _attend(T.nn.functional.pad(q @ k.T, (0, 1)), T.nn.functional.pad(v, (0, 0, 0, 1))),
    q="i c", k="n c", v="n d",
)  # fmt: skip

operator(
    "attention with a sink logit for each head", "Xiao et al. 2024, Efficient streaming language models; OpenAI 2025",
    """e[h,i,j] = where(j <= i, exp(sum[d](q[h,i,d]*k[h,j,d])), 0)
       out[h,i,d] = sum[j](e[h,i,j]*v[h,j,d])/(exp(sink[h]) + sum[j](e[h,i,j]))""",
    lambda T, q, k, v, sink: (lambda s: T.cat(
        [s.masked_fill(~_causal(T, q.shape[1]), -T.inf), sink[:, None, None].expand(*s.shape[:2], 1)], 2
    ).softmax(-1)[..., :-1] @ v)(q @ k.mT),
    q="g n d", k="g n d", v="g n d", sink="g", sizes={"d": (5, 7, 3)},
)  # fmt: skip

operator(
    "scaled cosine attention", "Liu et al. 2022, Swin transformer V2, eq. 2",
    """s[h,i,j] = sum[d](q[h,i,d]*k[h,j,d])*rsqrt(sum[d](q[h,i,d]**2))*rsqrt(sum[d](k[h,j,d]**2))
       e[h,i,j] = exp(s[h,i,j]/max(tau[h], 0.01) + B[h,i,j])
       out[h,i,d] = sum[j](e[h,i,j]*v[h,j,d])/sum[j](e[h,i,j])""",
    lambda T, q, k, v, tau, B: _attend(
        T.nn.functional.cosine_similarity(q[:, :, None], k[:, None], -1) / tau[:, None, None] + B, v
    ),
    q="g n d", k="g n d", v="g n d", tau="g | positive", B="g n n", sizes={"d": (5, 7, 3)},
)  # fmt: skip

operator(
    "normalised queries and keys", "Henry, Dachapally, Pawar, Chen 2020, Query-key normalization for transformers",
    """a[i,d] = q[i,d]/sqrt(sum[c](q[i,c]**2))
       b[j,d] = k[j,d]/sqrt(sum[c](k[j,c]**2))
       e[i,j] = exp(g*sum[d](a[i,d]*b[j,d]))
       out[i,d] = sum[j](e[i,j]*v[j,d])/sum[j](e[i,j])""",
    lambda T, q, k, v, g: _attend(
        g * T.nn.functional.normalize(q) @ T.nn.functional.normalize(k).T, v
    ),
    parameters={"g": 1.7}, q="i d", k="n d", v="n d",
)  # fmt: skip

operator(
    "soft-capped logits", "Gemma team 2024, Gemma 2, section 2",
    """e[i,j] = where(j <= i, exp(3.0*tanh(sum[d](q[i,d]*k[j,d])/3.0)), 0)
       out[i,d] = sum[j](e[i,j]*v[j,d])/sum[j](e[i,j])""",
    lambda T, q, k, v: _attend((3 * (q @ k.T / 3).tanh()).masked_fill(~_causal(T, len(q)), -T.inf), v),
    q="n d", k="n d", v="n d",
)  # fmt: skip

operator(
    "disentangled attention", "He, Liu, Gao, Chen 2021, DeBERTa, eqs. 3 and 4",
    """s[i,j] = (sum[d](q[i,d]*k[j,d]) + sum[d](q[i,d]*kr[min(max(i - j, -3), 2) + 3,d])
                 + sum[d](k[j,d]*qr[min(max(j - i, -3), 2) + 3,d]))
       e[i,j] = exp(s[i,j]/sqrt(3.0*q.shape[1]))
       out[i,d] = sum[j](e[i,j]*v[j,d])/sum[j](e[i,j])""",
    lambda T, q, k, v, kr, qr: (lambda at: _attend((
        q @ k.T + (q @ kr.T).gather(1, at) + (k @ qr.T).gather(1, at).T
    ) / (3 * q.shape[1]) ** 0.5, v))(_distance(T, len(q)).long().clamp(-3, 2) + 3),
    q="n d", k="n d", kr="6 d", qr="6 d", v="n d",
)  # fmt: skip

operator(
    "differential attention", "Ye et al. 2025, Differential transformer, eq. 1",
    """e[i,j] = exp(sum[d](q[i,d]*k[j,d]))
       f[i,j] = exp(sum[d](p[i,d]*l[j,d]))
       w[i,j] = e[i,j]/sum[c](e[i,c]) - lam*f[i,j]/sum[c](f[i,c])
       out[i,d] = sum[j](w[i,j]*v[j,d])""",
    lambda T, q, k, p, l, v, lam: _attend(q @ k.T, v) - lam * _attend(p @ l.T, v),
    parameters={"lam": 0.3}, q="i d", k="n d", p="i d", l="n d", v="n d",
)  # fmt: skip

operator(
    "latent attention of low rank", "DeepSeek-AI 2024, DeepSeek-V2, eqs. 9 to 11",
    """c[j,r] = sum[m](x[j,m]*D[m,r])
       k[h,j,d] = sum[r](c[j,r]*K[h,r,d])
       e[h,i,j] = where(j <= i, exp(sum[d](sum[m](x[i,m]*Q[h,m,d])*k[h,j,d])), 0)
       out[h,i,d] = sum[j](e[h,i,j]*sum[r](c[j,r]*V[h,r,d]))/sum[j](e[h,i,j])""",
    lambda T, x, D, K, Q, V: _attend(
        (x @ Q @ (x @ D @ K).mT).masked_fill(~_causal(T, len(x)), -T.inf), x @ D @ V
    ),
    x="n m", D="m r", K="h r d", Q="h m d", V="h r d",
    sizes={"n": (5, 9, 2), "m": (4, 7, 3), "h": (2, 1, 3), "d": (3, 4, 2)},
)  # fmt: skip

operator(
    "stick-breaking attention", "Tan et al. 2024, Stick-breaking attention, eq. 2",
    """s[i,j] = sigmoid(sum[d](q[i,d]*k[j,d]))
       w[i,j] = where(j < i, s[i,j]*prod[l](where(j < l and l < i, 1 - s[i,l], 1.0)), 0)
       out[i,d] = sum[j](w[i,j]*v[j,d])""",
    lambda T, q, k, v: T.stack([
        sum((
            (q[i] @ k[j]).sigmoid() * T.stack([(-q[i] @ k[m]).sigmoid() for m in range(j + 1, i)] + [q.new_ones(())])
            .prod() * v[j] for j in range(i)
        ), start=0 * v[0]) for i in range(len(q))
    ]),
    q="n d", k="n d", v="n d", sizes={"n": (5, 8, 1), "d": (3, 4, 5)}, extents={"l": "q.shape[0]"},
)  # fmt: skip

operator(
    "forgetting attention", "Lin, Nikishin, He, Courville 2025, Forgetting transformer, eq. 3",
    """a[i] = where(i > 0, a[i-1] + log(f[i]), 0)
       e[i,j] = where(j <= i, exp(sum[d](q[i,d]*k[j,d]) + a[i] - a[j]), 0)
       out[i,d] = sum[j](e[i,j]*v[j,d])/sum[j](e[i,j])""",
    lambda T, q, k, v, f: (lambda c: _attend(
        (q @ k.T + c[:, None] - c).masked_fill(~_causal(T, len(q)), -T.inf), v
    ))(f.log().cumsum(0)),
    q="n d", k="n d", v="n d", f="n | unit",
)  # fmt: skip

operator(
    "contextual positions", "Golovneva et al. 2024, Contextual position encoding, eqs. 3 to 5, unclipped",
    """g[i,j] = where(j <= i, sigmoid(sum[d](q[i,d]*k[j,d])), 0)
       p[i,j] = sum[l](where(l >= j, g[i,l], 0))
       z[i,j] = sum[m](sum[d](q[i,d]*E[m,d])*max(1 - abs(p[i,j] - m), 0.0))
       e[i,j] = where(j <= i, exp(sum[d](q[i,d]*k[j,d]) + z[i,j]), 0)
       out[i,d] = sum[j](e[i,j]*v[j,d])/sum[j](e[i,j])""",
    lambda T, q, k, E, v: (lambda s, mask: (lambda p: _attend(
        (s + T.einsum("ijm,md,id->ij", (1 - (p[..., None] - T.arange(len(E))).abs()).relu(), E, q))
        .masked_fill(~mask, -T.inf), v
    ))((s.sigmoid() * mask).flip(1).cumsum(1).flip(1)))(q @ k.T, _causal(T, len(q))),
    q="n d", k="n d", E="n+1 d", v="n d", sizes={"n": (5, 9, 2)},
)  # fmt: skip

operator(
    "projection to the simplex by pairs", "Martins, Astudillo 2016, From softmax to sparsemax, algorithm 1",
    """c[b,i] = sum[j](where(z[b,j] >= z[b,i], 1.0, 0.0))
       s[b,i] = sum[j](where(z[b,j] >= z[b,i], z[b,j], 0))
       k[b] = sum[i](where(1 + c[b,i]*z[b,i] > s[b,i], 1.0, 0.0))
       tau[b] = (sum[i](where(1 + c[b,i]*z[b,i] > s[b,i], z[b,i], 0)) - 1)/k[b]
       p[b,i] = max(z[b,i] - tau[b], 0.0)""",
    lambda T, z: (lambda s: (lambda cum, r: (
        lambda k: (z - (cum.gather(1, k - 1) - 1) / k).relu()
    )((1 + r * s > cum).sum(1, keepdim=True)))(s.cumsum(1), T.arange(1, z.shape[1] + 1)))(z.sort(1, True)[0]),
    z="b n",
)  # fmt: skip

operator(
    "rotary embedding", "Su et al. 2021, RoFormer, eq. 34",
    """s[i,m] = f64(i)*10000.0**(-2.0*m/x.shape[1])
       y[i,2*m] = x[i,2*m]*cos(s[i,m]) - x[i,2*m+1]*sin(s[i,m])
       y[i,2*m+1] = x[i,2*m]*sin(s[i,m]) + x[i,2*m+1]*cos(s[i,m])""",
    lambda T, x: (lambda z, w: T.view_as_real(
        z * T.polar(T.ones_like(w), w)
    ).flatten(1))(
        T.view_as_complex(x.unflatten(1, (-1, 2)).contiguous()),
        T.arange(len(x)).double()[:, None] * 10000.0 ** (-T.arange(0, x.shape[1], 2).double() / x.shape[1]),
    ),
    extents={"m": "x.shape[1]//2"}, x="n 2*d",
)  # fmt: skip

operator(
    "rotary embedding in halves, as an attention", "Touvron et al. 2023, LLaMA, section 2.2",
    """a[i,m] = f64(i)*exp(-m*0.7)
       s[i,j] = sum[m](cos(a[i,m] - a[j,m])*(q[i,m]*k[j,m] + q[i,size(m)+m]*k[j,size(m)+m])
                       + sin(a[i,m] - a[j,m])*(q[i,m]*k[j,size(m)+m] - q[i,size(m)+m]*k[j,m]))
       e[i,j] = exp(s[i,j])
       out[i,d] = sum[j](e[i,j]*v[j,d])/sum[j](e[i,j])""",
    lambda T, q, k, v: (lambda w: (lambda turn: _attend(turn(q) @ turn(k).T, v))(
        lambda x: x * w.cos() + T.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1) * w.sin()
    ))((T.arange(len(q)).double()[:, None] * (-0.7 * T.arange(q.shape[1] // 2).double()).exp()).repeat(1, 2)),
    extents={"m": "q.shape[1]//2"}, q="n 2*c", k="n 2*c", v="n d",
)  # fmt: skip
