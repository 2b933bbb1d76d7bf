"""Normalisation, modulation, regularisers of weights."""

from __future__ import annotations

from tests.papers.operator import operator

operator(
    "filter response normalisation with a thresholded unit",
    "Singh, Krishnan 2020, Filter response normalization, eqs. 1 and 2",
    """v[b,c] = mean[i,j](x[b,c,i,j]**2)
       y[b,c,i,j] = max(g[c]*x[b,c,i,j]*rsqrt(v[b,c] + 0.000001) + w[c], tau[c])""",
    lambda T, x, g, w, tau: T.maximum(T.einsum(
        "bcij,c->bcij", x / (x.square().mean((2, 3), keepdim=True) + 1e-6).sqrt(), g
    ) + w[:, None, None], tau[:, None, None]),
    x="b c h w", g="c", w="c", tau="c",
)  # fmt: skip

operator(
    "local response normalisation", "Krizhevsky, Sutskever, Hinton 2012, ImageNet classification, section 3.3",
    """s[b,c,i] = sum[r](where(0 <= c + r - 2 < x.shape[1], x[b,c+r-2,i]**2, 0))
       y[b,c,i] = x[b,c,i]*(2.0 + 0.3*s[b,c,i]/5)**-0.75""",
    lambda T, x: T.nn.functional.local_response_norm(x, 5, 0.3, 0.75, 2.0),
    x="b c w", extents={"r": 5},
)  # fmt: skip

operator(
    "weight normalisation", "Salimans, Kingma 2016, Weight normalization, eq. 2",
    """n[k] = sqrt(sum[c](v[k,c]**2))
       y[b,k] = g[k]*sum[c](v[k,c]*x[b,c])/n[k] + w[k]""",
    lambda T, v, g, x, w: T.nn.functional.linear(x, T.nn.functional.normalize(v) * g[:, None], w),
    v="k c", g="k", x="b c", w="k",
)  # fmt: skip

operator(
    "weight standardisation", "Qiao, Wang, Liu, Shen, Yuille 2019, Micro-batch training, eqs. 6 and 7",
    """m[k] = mean[c,r](W[k,c,r])
       v[k] = mean[c,r]((W[k,c,r] - m[k])**2)
       y[b,k,i] = sum[c,r]((W[k,c,r] - m[k])*rsqrt(v[k] + 0.00001)*x[b,c,i+r])""",
    lambda T, W, x: T.nn.functional.conv1d(x, T.nn.functional.layer_norm(W, W.shape[1:])),
    W="k c 3", x="b c w+2",
)  # fmt: skip

operator(
    "norm by one number", "Nguyen, Salazar 2019, Transformers without tears, eq. 4 (ScaleNorm)",
    "y[b,d] = g*x[b,d]/sqrt(max(sum[e](x[b,e]**2), 0.00001))",
    lambda T, x, g: g * T.nn.functional.normalize(x, dim=1),
    parameters={"g": 2.5}, x="b d",
)  # fmt: skip

operator(
    "global response normalisation", "Woo et al. 2023, ConvNeXt V2, algorithm 1",
    """g[b,c] = sqrt(sum[i,j](x[b,i,j,c]**2))
       y[b,i,j,c] = w[c]*x[b,i,j,c]*g[b,c]/(mean[d](g[b,d]) + 0.000001) + u[c] + x[b,i,j,c]""",
    lambda T, x, w, u: (lambda g: w * (x * g / (g.mean(-1, keepdim=True) + 1e-6)) + u + x)(
        T.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
    ),
    x="b i j c", w="c", u="c",
)  # fmt: skip

operator(
    "dynamic tanh", "Zhu, Chen, He, LeCun, Liu 2025, Transformers without normalization, eq. 4",
    "y[b,d] = g[d]*tanh(a*x[b,d]) + w[d]",
    lambda T, g, x, w, a: w + g * (2 * (2 * a * x).sigmoid() - 1),
    parameters={"a": 0.8}, g="d", x="b d", w="d",
)  # fmt: skip

operator(
    "spatially adaptive denormalisation", "Park, Liu, Wang, Zhu 2019, SPADE, eqs. 1 to 3",
    """m[c] = mean[b,i,j](x[b,c,i,j])
       v[c] = mean[b,i,j]((x[b,c,i,j] - m[c])**2)
       y[b,c,i,j] = sum[k](G[c,k]*s[b,k,i,j])*(x[b,c,i,j] - m[c])/sqrt(v[c] + 0.00001) + sum[k](H[c,k]*s[b,k,i,j])""",
    lambda T, x, G, s, H: T.einsum("ck,bkij->bcij", G, s) * T.nn.functional.batch_norm(
        x, None, None, training=True
    ) + T.einsum("ck,bkij->bcij", H, s),
    x="b c h w", G="c k", s="b k h w", H="c k",
)  # fmt: skip

operator(
    "adaptive instance normalisation", "Huang, Belongie 2017, Arbitrary style transfer in real time, eq. 8",
    """m[b,c] = mean[p](x[b,c,p])
       v[b,c] = mean[p]((x[b,c,p] - m[b,c])**2)
       n[b,c] = mean[q](s[b,c,q])
       u[b,c] = mean[q]((s[b,c,q] - n[b,c])**2)
       y[b,c,p] = sqrt(u[b,c] + 0.001)*(x[b,c,p] - m[b,c])/sqrt(v[b,c] + 0.001) + n[b,c]""",
    lambda T, x, s: T.nn.functional.instance_norm(x, eps=0.001) * (s.var(2, correction=0, keepdim=True) + 0.001).sqrt()
    + s.mean(2, keepdim=True),
    x="b c p", s="b c q",
)  # fmt: skip

operator(
    "feature-wise modulation", "Perez, Strub, de Vries, Dumoulin, Courville 2018, FiLM, eq. 2",
    "y[b,c,i,j] = relu((1 + sum[k](G[c,k]*z[b,k]))*x[b,c,i,j] + sum[k](H[c,k]*z[b,k]))",
    lambda T, G, z, x, H: (x + (z @ G.T)[..., None, None] * x + (z @ H.T)[..., None, None]).relu(),
    G="c k", z="b k", x="b c h w", H="c k",
)  # fmt: skip

operator(
    "positional normalisation with moment shortcut",
    "Li, Wu, Weinberger, Belongie 2019, Positional normalization, eq. 1",
    """m[b,i,j] = mean[c](x[b,c,i,j])
       s[b,i,j] = sqrt(mean[c]((x[b,c,i,j] - m[b,i,j])**2) + 0.001)
       y[b,k,i,j] = z[b,k,i,j]*s[b,i,j] + m[b,i,j] + sum[c](W[k,c]*(x[b,c,i,j] - m[b,i,j])/s[b,i,j])""",
    lambda T, x, z, W: (lambda v, m: z * (v + 0.001).sqrt() + m + T.einsum(
        "kc,bcij->bkij", W, (x - m) * (v + 0.001).rsqrt()
    ))(*T.var_mean(x, 1, correction=0, keepdim=True)),
    x="b c h w", z="b k h w", W="k c",
)  # fmt: skip

operator(
    "divisive normalisation", "Heeger 1992; Ren, Liao, Urtasun, Sinz, Zemel 2017, Normalizing the normalizers, eq. 3",
    """m[b,c,i] = x[b,c,i] - sum[k,r](where(0 <= i + r - 1 < x.shape[2], A[c,k,r]*x[b,k,i+r-1], 0))
       y[b,c,i] = m[b,c,i]/sqrt(1 + sum[k,r](where(0 <= i + r - 1 < x.shape[2], B[c,k,r]*m[b,k,i+r-1]**2, 0)))""",
    lambda T, x, A, B: (lambda F, m: m / (1 + F.conv1d(m.square(), B, padding=1)).sqrt())(
        T.nn.functional, x - T.nn.functional.conv1d(x, A, padding=1)
    ),
    x="b c w", A="c c 3", B="c c 3 | unit",
)  # fmt: skip

operator(
    "EvoNorm S0", "Liu, Brock, Simonyan, Le 2020, Evolving normalization-activation layers, table 2",
    """m[b,g] = mean[c,p](x[b,g,c,p])
       v[b,g] = mean[c,p]((x[b,g,c,p] - m[b,g])**2)
       y[b,g,c,p] = x[b,g,c,p]*sigmoid(u[g,c]*x[b,g,c,p])/sqrt(v[b,g] + 0.001)*a[g,c] + w[g,c]""",
    lambda T, x, u, a, w: x * (u[..., None] * x).sigmoid() * (x.var((2, 3), correction=0, keepdim=True) + 0.001)
    .pow(-0.5) * a[..., None] + w[..., None],
    x="b g c p", u="g c", a="g c", w="g c",
)  # fmt: skip

operator(
    "EvoNorm B0", "Liu, Brock, Simonyan, Le 2020, table 2",
    """m[c] = mean[b,p](x[b,c,p])
       s[c] = sqrt(mean[b,p]((x[b,c,p] - m[c])**2) + 0.01)
       n[b,c] = mean[p](x[b,c,p])
       t[b,c] = sqrt(mean[p]((x[b,c,p] - n[b,c])**2) + 0.01)
       y[b,c,p] = x[b,c,p]/max(s[c], u[c]*x[b,c,p] + t[b,c])""",
    lambda T, x, u: x / T.maximum(
        (x.var((0, 2), correction=0, keepdim=True) + 0.01).sqrt(),
        u[:, None] * x + (x.var(2, correction=0, keepdim=True) + 0.01).sqrt(),
    ),
    x="b c p", u="c",
)  # fmt: skip

operator(
    "batch renormalisation", "Ioffe 2017, Batch renormalization, algorithm 1",
    """m[c] = mean[b](x[b,c])
       s[c] = sqrt(mean[b]((x[b,c] - m[c])**2) + 0.001)
       r[c] = stop_gradient(min(max(s[c]/S[c], 0.5), 2.0))
       d[c] = stop_gradient(min(max((m[c] - M[c])/S[c], -0.7), 0.7))
       y[b,c] = (x[b,c] - m[c])/s[c]*r[c] + d[c]""",
    lambda T, x, S, M: (lambda m, s: (x - m) / s * (s / S).clamp(0.5, 2).detach() + ((m - M) / S).clamp(-0.7,
        0.7).detach())(
        x.mean(0), (x.var(0, correction=0) + 0.001).sqrt()
    ),
    x="n c", S="c | positive", M="c", sizes={"n": (6, 17, 3)},
)  # fmt: skip

operator(
    "spectral normalisation, one step",
    "Miyato, Kataoka, Koyama, Yoshida 2018, Spectral normalization for GANs, algorithm 1",
    """a[j] = sum[i](W[i,j]*u[i])
       v[j] = stop_gradient(a[j]/sqrt(sum[k](a[k]**2)))
       e[i] = sum[j](W[i,j]*v[j])
       z[i] = stop_gradient(e[i]/sqrt(sum[k](e[k]**2)))
       s[] = sum[i](z[i]*e[i])
       y[b,i] = sum[j](W[i,j]*x[b,j])/s[]""",
    lambda T, W, u, x: (lambda F, v: (lambda z: x @ (W / (z @ W @ v)).T)(F.normalize(W @ v, dim=0).detach()))(
        T.nn.functional, T.nn.functional.normalize(W.T @ u, dim=0).detach()
    ),
    W="m n", u="m", x="b n",
)  # fmt: skip

operator(
    "cosine normalisation", "Luo, Zhan, Xue, Wang, Ren, Yang 2018, Cosine normalization, eq. 3",
    "y[b,k] = tanh(sum[c](W[k,c]*x[b,c])/sqrt(sum[c](W[k,c]**2)*sum[c](x[b,c]**2)))",
    lambda T, W, x: T.nn.functional.cosine_similarity(x[:, None], W[None], 2).tanh(),
    W="k c", x="b c",
)  # fmt: skip

operator(
    "pixelwise feature vectors", "Karras, Aila, Laine, Lehtinen 2018, Progressive growing of GANs, section 4.2",
    "y[b,c,p] = x[b,c,p]*rsqrt(mean[d](x[b,d,p]**2) + 0.00000001)",
    lambda T, x: T.nn.functional.rms_norm(x.mT, x.shape[1:2], eps=1e-8).mT,
    x="b c p",
)  # fmt: skip

operator(
    "modulated and demodulated convolution",
    "Karras et al. 2020, Analyzing and improving the image quality of StyleGAN, eq. 3",
    """W[b,k,c,r] = s[b,c]*K[k,c,r]
       d[b,k] = rsqrt(sum[c,r](W[b,k,c,r]**2) + 0.0001)
       y[b,k,i] = d[b,k]*sum[c,r](W[b,k,c,r]*x[b,c,i+r])""",
    lambda T, s, K, x: T.nn.functional.conv1d(x * s[..., None], K) * (s.square() @ K.square().sum(2).T + 0.0001)
    .rsqrt()[..., None],
    s="b c", K="k c 3", x="b c w+2", sizes={"w": (4, 9, 1)},
)  # fmt: skip

operator(
    "standard deviation over a minibatch", "Karras, Aila, Laine, Lehtinen 2018, section 3",
    """m[c,p] = mean[b](x[b,c,p])
       s[] = mean[c,p](sqrt(mean[b]((x[b,c,p] - m[c,p])**2) + 0.01))
       y[b,k,p] = where(k < x.shape[1], x[b,min(k, x.shape[1]-1),p], s[])""",
    lambda T, x: T.cat([x, (x.var(0, correction=0) + 0.01).sqrt().mean().expand(len(x), 1, x.shape[2])], 1),
    x="n c p", extents={"k": "x.shape[1]+1", "b": "x.shape[0]", "p": "x.shape[2]"}, sizes={"n": (3, 5, 2)},
)  # fmt: skip

operator(
    "decorrelation of features by one Newton step", "Huang, Zhou, Zhu, Liu, Shao 2019, Iterative normalization, eq. 5",
    """m[c] = mean[b](x[b,c])
       S[c,d] = mean[b]((x[b,c] - m[c])*(x[b,d] - m[d])) + where(c == d, 0.1, 0.0)
       t[] = sum[c](S[c,c])
       P[c,d] = where(c == d, 1.5, 0.0) - 0.5*S[c,d]/t[]
       y[b,c] = sum[d](P[c,d]*(x[b,d] - m[d]))/sqrt(t[])""",
    lambda T, x: (lambda S, I: (x - x.mean(0)) @ (1.5 * I - 0.5 * S / S.trace()) / S.trace().sqrt())(
        T.cov(x.T, correction=0) + 0.1 * T.eye(x.shape[1]).to(x), T.eye(x.shape[1]).to(x)
    ),
    x="n c", extents={"c": "x.shape[1]", "d": "x.shape[1]"}, sizes={"n": (6, 17, 3)},
)  # fmt: skip

operator(
    "layer scale and stochastic depth",
    "Touvron et al. 2021, Going deeper with image transformers, eq. 3; Huang et al. 2016",
    "y[b,n,d] = x[b,n,d] + where(keep[b], l[d]*f[b,n,d]/0.8, 0)",
    lambda T, x, keep, l, f: x + (f @ l.diag()) * (keep.to(x) * 1.25)[:, None, None],
    x="b n d", keep="b | bool", l="d", f="b n d",
)  # fmt: skip

operator(
    "hypernetwork of low rank", "Ha, Dai, Le 2017, HyperNetworks, section 3.2: weight scaling vectors",
    "h[b,k] = tanh(sum[m](z[b,m]*D[m,k])*sum[c](W[k,c]*x[b,c]) + sum[m](z[b,m]*B[m,k]))",
    lambda T, z, D, W, x, B: T.stack([((z[i] @ D).diag() @ W @ x[i] + z[i] @ B).tanh() for i in range(len(x))]),
    z="b m", D="m k", W="k c", x="b c", B="m k",
)  # fmt: skip

operator(
    "orthogonality of weights", "Brock, Donahue, Simonyan 2019, Large scale GAN training, eq. 3",
    "loss[] = sum[i,j](where(i != j, sum[k](W[k,i]*W[k,j]), 0)**2)",
    lambda T, W: (W.T @ W).square().sum() - W.square().sum(0).square().sum(),
    W="k n", extents={"i": "W.shape[1]", "j": "W.shape[1]"},
)  # fmt: skip

operator(
    "penalty on the gradient of a critic",
    "Gulrajani et al. 2017, Improved training of Wasserstein GANs, eq. 3, two layers",
    """h[b,k] = tanh(sum[i](x[b,i]*W[i,k]))
       g[b,i] = sum[k]((1 - h[b,k]**2)*v[k]*W[i,k])
       loss[] = mean[b]((sqrt(sum[i](g[b,i]**2) + 0.0001) - 1)**2)""",
    lambda T, x, W, v: ((T.autograd.grad(((x @ W).tanh() @ v).sum(), x, create_graph=True)[0].square().sum(1)
                         + 0.0001).sqrt() - 1).square().mean(),
    x="b i", W="i k", v="k",
)  # fmt: skip
