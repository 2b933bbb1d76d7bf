"""Pooling and windows that are no sums: maxima, orders, morphology; operators on sequences and volumes."""

from __future__ import annotations

from tests.papers.operator import operator

operator(
    "max-plus convolution", "Maragos, Schafer 1987, Morphological filters; Charisopoulos, Maragos 2017: dilation",
    "y[b,i,j] = max[r,s](x[b,i+r,j+s] + k[r,s])",
    lambda T, x, k: (x.unfold(1, 3, 1).unfold(2, 2, 1) + k).flatten(3).max(3)[0],
    x="b h+2 w+1", k="3 2", sizes={"h": (5, 7, 16)},
)  # fmt: skip

operator(
    "morphological erosion and opening", "Serra 1982, Image analysis and mathematical morphology",
    """e[b,i] = min[r](x[b,i+r] - k[r])
       y[b,i] = max[r](e[b,i+2-r] + k[r])""",
    lambda T, x, k: ((x.unfold(1, 3, 1) - k).min(2)[0].unfold(1, 3, 1) + k.flip(0)).max(2)[0],
    x="b w+4", k="3", sizes={"w": (6, 15, 17)},
)  # fmt: skip

operator(
    "min-plus product of a chain", "Simon 1988, Recognizable sets with multiplicities in the tropical semiring",
    """u[i,k] = min[j](A[i,j] + B[j,k])
       y[i,l] = min[k](u[i,k] + C[k,l])""",
    lambda T, A, B, C: (A[:, :, None, None] + B[None, :, :, None] + C).amin((1, 2)),
    A="m n", B="n p", C="p q", sizes={"m": (5, 7, 1), "n": (4, 9, 8), "p": (3, 8, 5)},
)  # fmt: skip

operator(
    "log-sum-exp pooling", "Pinheiro, Collobert 2015, From image-level to pixel-level labeling, eq. 6",
    """m[b,c] = max[i,j](x[b,c,i,j])
       y[b,c] = m[b,c] + log(mean[i,j](exp(r*(x[b,c,i,j] - m[b,c]))))/r""",
    lambda T, x, r: ((r * x).logsumexp((2, 3)) - T.tensor(x.shape[2] * x.shape[3]).to(x).log()) / r,
    parameters={"r": 3.0}, x="b c h w",
)  # fmt: skip

operator(
    "pooling by the 3-norm in windows",
    "Sermanet, Chintala, LeCun 2012, Convolutional neural networks applied to house numbers",
    "y[b,c,i,j] = sum[r,s](abs(x[b,c,2*i+r,2*j+s])**3.0)**0.3333333333333333",
    lambda T, x: T.nn.functional.lp_pool2d(x, 3, 2),
    x="b c 2*h 2*w | positive", extents={"r": 2, "s": 2}, sizes={"h": (3, 4, 1), "w": (2, 5, 9)},
)  # fmt: skip

operator(
    "generalised mean of features", "Radenović, Tolias, Chum 2019, Fine-tuning CNN image retrieval, eq. 3",
    "y[b,c] = mean[i,j](max(x[b,c,i,j], 0.000001)**p[c])**(1/p[c])",
    lambda T, x, p: (T.log(x.clamp(min=1e-6)) * p[:, None, None]).exp().mean((2, 3)).log().div(p).exp(),
    x="b c h w", p="c | positive",
)  # fmt: skip

operator(
    "spatial pyramid pooling, levels 1 and 2", "He, Zhang, Ren, Sun 2015, Spatial pyramid pooling, section 2.2",
    """a[b,c] = max[i,j](x[b,c,i,j])
       p[b,c,u,v] = max[r,s](x[b,c,u*(x.shape[2]//2) + r,v*(x.shape[3]//2) + s])
       y[b,c] = a[b,c] + sum[u,v](w[u,v]*p[b,c,u,v])""",
    lambda T, x, w: T.nn.functional.adaptive_max_pool2d(x, 1)[..., 0, 0] + T.einsum(
        "uv,bcuv->bc", w, T.nn.functional.adaptive_max_pool2d(x, 2)
    ),
    x="b c 2*h 2*w | spread", w="2 2", extents={"r": "x.shape[2]//2", "s": "x.shape[3]//2", "u": 2, "v": 2},
    sizes={"h": (3, 4, 1), "w": (2, 5, 9)},
)  # fmt: skip

operator(
    "soft pooling", "Stergiou, Poppe, Kalliatakis 2021, Refining activation downsampling with SoftPool, eq. 3",
    """z[b,c,i] = sum[r](exp(x[b,c,3*i+r]))
       y[b,c,i] = sum[r](exp(x[b,c,3*i+r])*x[b,c,3*i+r])/z[b,c,i]""",
    lambda T, x: (lambda u: (u.softmax(3) * u).sum(3))(x.unflatten(2, (-1, 3))),
    x="b c 3*w", extents={"r": 3},
)  # fmt: skip

operator(
    "pooling by learned mixing", "Lee, Gallagher, Tu 2016, Generalizing pooling functions in CNNs, eq. 2, gated",
    """s[b,c,i,j] = sum[u,v](w[u,v]*x[b,c,2*i+u,2*j+v])
       m[b,c,i,j] = max[u,v](x[b,c,2*i+u,2*j+v])
       a[b,c,i,j] = mean[u,v](x[b,c,2*i+u,2*j+v])
       y[b,c,i,j] = sigmoid(s[b,c,i,j])*m[b,c,i,j] + (1 - sigmoid(s[b,c,i,j]))*a[b,c,i,j]""",
    lambda T, w, x: (lambda F: T.lerp(F.avg_pool2d(x, 2), F.max_pool2d(x, 2), F.conv2d(
        x.flatten(0, 1)[:, None], w[None, None], stride=2
    ).view(*x.shape[:2], x.shape[2] // 2, -1).sigmoid()))(T.nn.functional),
    w="2 2", x="b c 2*h 2*w | spread", sizes={"h": (3, 4, 1), "w": (2, 5, 9)},
)  # fmt: skip

operator(
    "pooling over maps", "Goodfellow et al. 2013, Maxout networks, section 3, in a convolutional layer",
    "y[b,k,i] = max[p](sum[c,r](W[k,p,c,r]*x[b,c,i+r]) + w[k,p])",
    lambda T, W, x, w: (T.nn.functional.conv1d(x, W.flatten(0, 1), w.flatten()).unflatten(1, w.shape)).amax(2),
    W="k p c 3", x="b c w+2", w="k p", sizes={"w": (6, 15, 1)},
)  # fmt: skip

operator(
    "regions of interest, averages of cells", "Ren et al. 2015; He et al. 2017, Mask R-CNN, boxes of whole pixels",
    "y[n,c,u,v] = mean[r,s](x[of[n],c,top[n] + 2*u + r,left[n] + 2*v + s])",
    lambda T, x, of, top, left: T.stack([
        T.nn.functional.avg_pool2d(x[a, :, t : t + 4, k : k + 4], 2)
        for a, t, k in zip(of.tolist(), top.tolist(), left.tolist(), strict=True)
    ]),
    x="b c h+4 w+4", of="n | int b", top="n | int h+1", left="n | int w+1", extents={"u": 2, "v": 2, "r": 2, "s": 2},
    sizes={"h": (3, 4, 1), "w": (4, 5, 3), "n": (4, 7, 3)},
)  # fmt: skip

operator(
    "position-sensitive scores", "Dai, Li, He, Sun 2016, R-FCN, eq. 1, a grid of 2 by 2",
    "y[b,k] = mean[u,v](mean[r,s](x[b,2*u+v,k,u*(x.shape[3]//2) + r,v*(x.shape[4]//2) + s]))",
    lambda T, x: T.nn.functional.adaptive_avg_pool2d(x.flatten(1, 2), 2).view(*x.shape[:3], 2, 2)[
        :, range(4), :, [0, 0, 1, 1], [0, 1, 0, 1]
    ].mean(0),
    x="b 4 k 2*h 2*w", extents={"r": "x.shape[3]//2", "s": "x.shape[4]//2", "u": 2, "v": 2},
    sizes={"h": (3, 4, 1), "w": (2, 5, 9)},
)  # fmt: skip

operator(
    "max-unpooling by positions", "Zeiler, Fergus 2014, Visualizing and understanding convolutional networks",
    """m[b,i] = max[r](x[b,2*i+r])
       at[b,i] = argmax[r](x[b,2*i+r])
       y[b,o] = where(o % 2 == at[b,o//2], 3*m[b,o//2], 0)
       return y""",
    lambda T, x: (lambda p: T.nn.functional.max_unpool1d(3 * p[0], p[1], 2))(
        T.nn.functional.max_pool1d(x, 2, return_indices=True)
    ),
    x="b 2*w | spread", extents={"o": "x.shape[1]", "r": 2},
)  # fmt: skip

operator(
    "median of three", "Tukey 1971, Exploratory data analysis",
    "y[b,i] = max(min(x[b,i], x[b,i+1]), min(max(x[b,i], x[b,i+1]), x[b,i+2]))",
    lambda T, x: x.unfold(1, 3, 1).median(2)[0],
    x="b w+2 | spread", extents={"i": "x.shape[1]-2"}, sizes={"w": (6, 15, 17)},
)  # fmt: skip

operator(
    "second largest of a window", "Lee, Gallagher, Tu 2016; order statistics by pairs",
    """c[b,i,r] = sum[s](where(x[b,i+s] > x[b,i+r], 1.0, 0.0))
       y[b,i] = sum[r](where(c[b,i,r] == 1, x[b,i+r], 0))""",
    lambda T, x: x.unfold(1, 4, 1).topk(2)[0][..., 1],
    x="b w+3 | spread", extents={"r": 4, "s": 4, "i": "x.shape[1]-3"}, sizes={"w": (6, 15, 17)},
)  # fmt: skip

operator(
    "distances to prototypes in windows", "Ghiasi-Shirazi 2019, Generalizing the convolution operator, L1 norm",
    "y[b,k,i,j] = -sum[c,r,s](abs(x[b,c,i+r,j+s] - W[k,c,r,s]))",
    lambda T, x, W: -(T.nn.functional.unfold(x, 2)[:, None] - W.flatten(1)[:, :, None]).abs().sum(2).view(
        len(x), len(W), x.shape[2] - 1, -1
    ),
    x="b c h+1 w+1", W="k c 2 2", extents={"r": 2, "s": 2}, sizes={"h": (3, 5, 1), "w": (4, 6, 15)},
)  # fmt: skip

operator(
    "convolution by cosines", "Luo et al. 2018, Cosine normalization, in windows",
    """n[b,i] = sum[c,r](x[b,c,i+r]**2)
       m[k] = sum[c,r](W[k,c,r]**2)
       y[b,k,i] = sum[c,r](W[k,c,r]*x[b,c,i+r])/sqrt(n[b,i]*m[k] + 0.0001)""",
    lambda T, x, W: (lambda u: T.einsum("bif,kf->bki", u, W.flatten(1)) / (
        u.square().sum(2)[:, None] * W.flatten(1).square().sum(1)[:, None] + 0.0001
    ).sqrt())(x.unfold(2, 3, 1).transpose(1, 2).flatten(2)),
    x="b c w+2", W="k c 3", extents={"r": 3, "i": "x.shape[2]-2"}, sizes={"w": (6, 15, 1)},
)  # fmt: skip

operator(
    "quadratic convolution", "Zoumpourlis et al. 2017, Non-linear convolution filters, eq. 2",
    "y[b,i] = sum[r](w[r]*x[b,i+r]) + sum[r,s](where(s >= r, V[r,s]*x[b,i+r]*x[b,i+s], 0))",
    lambda T, w, x, V: (lambda u: u @ w + ((u @ V.triu()) * u).sum(2))(x.unfold(1, 4, 1)),
    w="4", x="b w+3", V="4 4", sizes={"w": (6, 15, 1)},
)  # fmt: skip

operator(
    "central differences", "Yu et al. 2020, Searching central difference convolutional networks, eq. 4",
    "y[b,k,i,j] = sum[c,r,s](W[k,c,r,s]*(x[b,c,i+r,j+s] - 0.7*x[b,c,i+1,j+1]))",
    lambda T, W, x: T.nn.functional.conv2d(x, W) - 0.7 * T.nn.functional.conv2d(
        x[:, :, 1:-1, 1:-1], W.sum((2, 3), keepdim=True)
    ),
    W="k c 3 3", x="b c h+2 w+2", extents={"i": "x.shape[2]-2", "j": "x.shape[3]-2"},
    sizes={"h": (3, 5, 1), "w": (4, 6, 15)},
)  # fmt: skip

operator(
    "local binary differences, smooth", "Juefei-Xu, Boddeti, Savvides 2017, Local binary convolutional networks, eq. 3",
    """b[n,m,i,j] = sigmoid(sum[r,s](B[m,r,s]*x[n,i+r,j+s]))
       y[n,k,i,j] = sum[m](V[k,m]*b[n,m,i,j])""",
    lambda T, B, x, V: T.nn.functional.conv2d(T.nn.functional.conv2d(x[:, None], B[:, None]).sigmoid(), V[..., None,
        None]),
    B="m 3 3", x="b h+2 w+2", V="k m", sizes={"h": (3, 5, 1), "w": (4, 6, 15)},
)  # fmt: skip

operator(
    "temporal network, two causal layers", "Bai, Kolter, Koltun 2018, An empirical evaluation, dilations 1 and 2",
    """u[b,k,t] = relu(sum[c,r](where(t - r >= 0, A[k,c,r]*x[b,c,t-r], 0)))
       y[b,k,t] = x[b,k,t] + relu(sum[c,r](where(t - 2*r >= 0, B[k,c,r]*u[b,c,t-2*r], 0)))""",
    lambda T, A, x, B: (lambda F: x + F.conv1d(F.pad(
        F.conv1d(F.pad(x, (2, 0)), A.flip(2)).relu(), (4, 0)), B.flip(2), dilation=2).relu())(T.nn.functional),
    A="c c 3", x="b c w", B="c c 3", extents={"t": "x.shape[2]"}, sizes={"w": (6, 15, 5)},
)  # fmt: skip

operator(
    "gated activation of WaveNet", "van den Oord et al. 2016, WaveNet, eq. 5 with skip",
    """f[b,k,t] = sum[c,r](where(t - 4*r >= 0, F[k,c,r]*x[b,c,t-4*r], 0))
       g[b,k,t] = sum[c,r](where(t - 4*r >= 0, G[k,c,r]*x[b,c,t-4*r], 0)) + sum[m](V[k,m]*h[b,m])
       z[b,k,t] = tanh(f[b,k,t])*sigmoid(g[b,k,t])
       y[b,c,t] = x[b,c,t] + sum[k](R[c,k]*z[b,k,t])""",
    lambda T, F, x, G, V, h, R: (lambda run: x + R @ (run(F).tanh() * (run(G) + (h @ V.T)[..., None]).sigmoid()))(
        lambda K: T.nn.functional.conv1d(T.nn.functional.pad(x, (4, 0)), K.flip(2), dilation=4)
    ),
    F="k c 2", x="b c w", G="k c 2", V="k m", h="b m", R="c k", extents={"t": "x.shape[2]"}, sizes={"w": (6, 15, 9)},
)  # fmt: skip

operator(
    "depthwise kernels by a softmax",
    "Wu et al. 2019, Pay less attention with lightweight and dynamic convolutions, eq. 3",
    """e[g,r] = exp(w[g,r])
       y[b,t,d] = (sum[r](where(0 <= t + r - 1 < x.shape[1], e[d % w.shape[0],r]*x[b,t+r-1,d], 0))
                   /sum[r](e[d % w.shape[0],r]))""",
    lambda T, w, x: T.nn.functional.conv1d(
        x.mT, w.softmax(1).repeat(x.shape[2] // len(w), 1)[:, None], padding=1, groups=x.shape[2]
    ).mT,
    w="g 3", x="b t 3*g", extents={"t": "x.shape[1]"}, sizes={"t": (4, 7, 9)},
)  # fmt: skip

operator(
    "implicit long convolution", "Poli et al. 2023, Hyena hierarchy, eq. 5, order 2, filters of sines",
    """h[l,d] = exp(-a[d]*l)*sin(f[d]*l + 0.3)
       u[t,d] = k[t,d]*v[t,d]
       y[t,d] = q[t,d]*sum[i](where(i <= t, h[t-i,d]*u[i,d], 0))""",
    lambda T, a, f, k, v, q: (lambda n, l: q * T.fft.irfft(T.fft.rfft(
        (-a * l).exp() * (f * l + 0.3).sin(), 2 * n, dim=0
    ) * T.fft.rfft(k * v, 2 * n, dim=0), 2 * n, dim=0)[:n])(len(k), T.arange(len(k)).double()[:, None]),
    a="d | unit", f="d", k="t d", v="t d", q="t d", extents={"l": "k.shape[0]", "t": "k.shape[0]"},
)  # fmt: skip

operator(
    "convolution of three dimensions in two factors",
    "Tran et al. 2018, A closer look at spatiotemporal convolutions, R(2+1)D",
    """u[m,t,i,j] = relu(sum[c,r,s](A[m,c,r,s]*x[c,t,i+r,j+s]))
       y[k,t,i,j] = sum[m,q](B[k,m,q]*u[m,t+q,i,j])""",
    lambda T, A, x, B: (lambda F: F.conv3d(F.conv3d(x, A[:, :, None]).relu(), B[..., None, None]))(T.nn.functional),
    A="m c 3 3", x="c t h+2 w+2", B="k m 2", sizes={"h": (3, 5, 1), "w": (4, 5, 3), "m": (3, 4, 1)},
)  # fmt: skip

operator(
    "Winograd's F(2,3)", "Lavin, Gray 2016, Fast algorithms for convolutional neural networks, eq. 5",
    """m[b,i,n] = where(n == 0, (x[b,2*i] - x[b,2*i+2])*w[0],
           where(n == 1, (x[b,2*i+1] + x[b,2*i+2])*(w[0] + w[1] + w[2])/2,
           where(n == 2, (x[b,2*i+2] - x[b,2*i+1])*(w[0] - w[1] + w[2])/2, (x[b,2*i+1] - x[b,2*i+3])*w[2])))
       y[b,2*i] = m[b,i,0] + m[b,i,1] + m[b,i,2]
       y[b,2*i+1] = m[b,i,1] - m[b,i,2] - m[b,i,3]""",
    lambda T, x, w: T.nn.functional.conv1d(x[:, None], w[None, None])[:, 0],
    x="b 2*w+2", w="3", extents={"n": 4, "i": "x.shape[1]//2-1"},
)  # fmt: skip

operator(
    "discrete wavelet step of Haar", "Mallat 1989; Li, Shen, Guo, Lai 2020, WaveCNet, eq. 2",
    """a[b,i] = (x[b,2*i] + x[b,2*i+1])*0.7071067811865476
       d[b,i] = (x[b,2*i] - x[b,2*i+1])*0.7071067811865476
       s[b,i] = sign(d[b,i])*max(abs(d[b,i]) - 0.3, 0.0)
       y[b,2*i] = (a[b,i] + s[b,i])*0.7071067811865476
       y[b,2*i+1] = (a[b,i] - s[b,i])*0.7071067811865476""",
    lambda T, x: (lambda H, u: (T.cat([(u @ H)[..., :1], T.nn.functional.softshrink((u @ H)[..., 1:], 0.3)], 2) @ H)
                  .flatten(1))(x.new_tensor([[1.0, 1.0], [1.0, -1.0]]) / x.new_tensor(2.0).sqrt(), x.unflatten(1, (-1,
                      2))),
    x="b 2*w",
)  # fmt: skip

operator(
    "filters of gaussian derivatives", "Jacobsen et al. 2016, Structured receptive fields, eq. 3, order 2",
    """G[n,r] = exp(-(r - 3.0)**2/(2*s**2))*where(n == 0, 1.0, where(n == 1, -(r - 3.0)/s, ((r - 3.0)**2/s**2 - 1)))
       y[b,k,i] = sum[r](where(0 <= i + r - 3 < x.shape[1], sum[n](a[k,n]*G[n,r])*x[b,i+r-3], 0))""",
    lambda T, a, x, s: (lambda u: T.nn.functional.conv1d(
        x[:, None], (a @ (T.stack([T.ones_like(u), -u, u * u - 1]) * (-u * u / 2).exp()))[:, None], padding=3
    ))((T.arange(7).to(x) - 3) / s),
    parameters={"s": 1.3}, a="k 3", x="b w", extents={"r": 7, "n": 3, "i": "x.shape[1]"},
)  # fmt: skip
