"""Attention in images: channels, positions, rows, neighbourhoods, generated kernels."""

from __future__ import annotations

from tests.papers.operator import operator

operator(
    "squeeze and excitation", "Hu, Shen, Sun 2018, Squeeze-and-excitation networks, eqs. 2 to 4",
    """z[b,c] = mean[i,j](x[b,c,i,j])
       u[b,r] = relu(sum[c](A[r,c]*z[b,c]))
       y[b,c,i,j] = x[b,c,i,j]*sigmoid(sum[r](B[c,r]*u[b,r]))""",
    lambda T, x, A, B: x * ((T.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1) @ A.T).relu() @ B.T)
    .sigmoid()[..., None, None],
    x="b c i j", A="r c", B="c r",
)  # fmt: skip

operator(
    "channel attention of CBAM", "Woo, Park, Lee, Kweon 2018, CBAM, eq. 2",
    """a[b,c] = mean[i,j](x[b,c,i,j])
       m[b,c] = max[i,j](x[b,c,i,j])
       p[b,r] = relu(sum[c](A[r,c]*a[b,c]))
       q[b,r] = relu(sum[c](A[r,c]*m[b,c]))
       y[b,c,i,j] = x[b,c,i,j]*sigmoid(sum[r](B[c,r]*(p[b,r] + q[b,r])))""",
    lambda T, x, A, B: (lambda f: x * (f(x.mean((2, 3))) + f(x.amax((2, 3)))).sigmoid()[..., None, None])(
        lambda z: (z @ A.T).relu() @ B.T
    ),
    x="b c i j | spread", A="r c", B="c r",
)  # fmt: skip

operator(
    "spatial attention of CBAM", "Woo, Park, Lee, Kweon 2018, CBAM, eq. 3",
    """s[b,i,j] = mean[c](x[b,c,i,j])
       m[b,i,j] = max[c](x[b,c,i,j])
       a[b,i,j] = sum[u,v](where(0 <= i + u - 3 < x.shape[2] and 0 <= j + v - 3 < x.shape[3],
                                 W[0,u,v]*s[b,i+u-3,j+v-3] + W[1,u,v]*m[b,i+u-3,j+v-3], 0))
       y[b,c,i,j] = x[b,c,i,j]*sigmoid(a[b,i,j])""",
    lambda T, x, W: x * T.nn.functional.conv2d(
        T.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1), W[None], padding=3
    ).sigmoid(),
    x="b c i j | spread", W="2 7 7", sizes={"i": (5, 1, 9)},
)  # fmt: skip

operator(
    "efficient channel attention", "Wang et al. 2020, ECA-Net, eq. 6",
    """z[b,c] = mean[i,j](x[b,c,i,j])
       y[b,c,i,j] = x[b,c,i,j]*sigmoid(sum[k](where(0 <= c + k - 1 < x.shape[1], w[k]*z[b,c+k-1], 0)))""",
    lambda T, x, w: x * T.nn.functional.conv1d(x.mean((2, 3))[:, None], w[None, None], padding=1)[:, 0]
    .sigmoid()[..., None, None],
    x="b c i j", w="3",
)  # fmt: skip

operator(
    "coordinate attention", "Hou, Zhou, Feng 2021, Coordinate attention, eqs. 4 to 9",
    """r[b,m,i] = relu(sum[c](F[m,c]*mean[j](x[b,c,i,j])))
       s[b,m,j] = relu(sum[c](F[m,c]*mean[i](x[b,c,i,j])))
       y[b,c,i,j] = x[b,c,i,j]*sigmoid(sum[m](G[c,m]*r[b,m,i]))*sigmoid(sum[m](H[c,m]*s[b,m,j]))""",
    lambda T, x, F, G, H: (lambda f: x * T.einsum("cm,bmi->bci", G, f[..., : x.shape[2]]).sigmoid()[..., None]
                           * T.einsum("cm,bmi->bci", H, f[..., x.shape[2] :]).sigmoid()[..., None, :])(
        T.einsum("mc,bci->bmi", F, T.cat([x.mean(3), x.mean(2)], 2)).relu()
    ),
    x="b c i j", F="m c", G="c m", H="c m",
)  # fmt: skip

operator(
    "external attention", "Guo, Liu, Mu, Hu 2022, Beyond self-attention: external attention, eqs. 5 to 7",
    """a[n,s] = exp(sum[d](x[n,d]*K[s,d]))
       p[n,s] = a[n,s]/sum[m](a[m,s])
       y[n,d] = sum[s](p[n,s]/sum[r](p[n,r])*V[s,d])""",
    lambda T, x, K, V: T.nn.functional.normalize((x @ K.T).softmax(0), 1, 1) @ V,
    x="n d", K="s d", V="s d",
)  # fmt: skip

operator(
    "double attention", "Chen et al. 2018, A2-Nets, eq. 5",
    """e[b,k,n] = exp(sum[c](P[k,c]*x[b,c,n]))
       g[b,m,k] = sum[n](sum[c](A[m,c]*x[b,c,n])*e[b,k,n])/sum[n](e[b,k,n])
       f[b,k,n] = exp(sum[c](R[k,c]*x[b,c,n]))
       z[b,m,n] = sum[k](g[b,m,k]*f[b,k,n])/sum[k](f[b,k,n])""",
    lambda T, P, x, A, R: (A @ x) @ (P @ x).softmax(2).mT @ (R @ x).softmax(1),
    P="k c", x="b c n", A="m c", R="k c",
)  # fmt: skip

operator(
    "non-local block, embedded gaussian", "Wang, Girshick, Gupta, He 2018, Non-local neural networks, eq. 6",
    """q[b,d,p] = sum[c](A[d,c]*x[b,c,p])
       k[b,d,p] = sum[c](B[d,c]*x[b,c,p])
       e[b,p,r] = exp(sum[d](q[b,d,p]*k[b,d,r]))
       g[b,d,p] = sum[r](e[b,p,r]*sum[c](G[d,c]*x[b,c,r]))/sum[r](e[b,p,r])
       z[b,c,p] = x[b,c,p] + sum[d](W[c,d]*g[b,d,p])""",
    lambda T, A, x, B, G, W: x + W @ (G @ x) @ ((A @ x).mT @ (B @ x)).softmax(2).mT,
    A="d c", x="b c p", B="d c", G="d c", W="c d", sizes={"d": (3, 4, 2), "c": (4, 5, 3)},
)  # fmt: skip

operator(
    "non-local block, concatenation", "Wang, Girshick, Gupta, He 2018, eq. 8",
    """u[b,p] = sum[c](w[c]*x[b,c,p])
       v[b,p] = sum[c](w[size(c)+c]*x[b,c,p])
       y[b,c,p] = mean[r](relu(u[b,p] + v[b,r])*x[b,c,r])""",
    lambda T, w, x: T.stack([sum(
        (w @ T.cat([x[:, :, p], x[:, :, r]], 1).T).relu()[:, None] * x[:, :, r] for r in range(x.shape[2])
    ) / x.shape[2] for p in range(x.shape[2])], 2),
    w="2*c", x="b c p", extents={"c": "x.shape[1]"}, sizes={"p": (3, 8, 5)},
)  # fmt: skip

operator(
    "criss-cross attention", "Huang et al. 2019, CCNet, eqs. 1 and 2",
    """r[i,j,v] = exp(sum[d](q[d,i,j]*k[d,i,v]))
       s[i,j,u] = where(u != i, exp(sum[d](q[d,i,j]*k[d,u,j])), 0)
       z[i,j] = sum[v](r[i,j,v]) + sum[u](s[i,j,u])
       y[c,i,j] = (sum[v](r[i,j,v]*x[c,i,v]) + sum[u](s[i,j,u]*x[c,u,j]))/z[i,j]""",
    lambda T, q, k, x: (lambda row, col: (lambda w: T.einsum("ijv,civ->cij", w[..., : q.shape[2]], x)
                        + T.einsum("iju,cuj->cij", w[..., q.shape[2] :], x))(T.cat([row, col], 2).softmax(2)))(
        T.einsum("dij,div->ijv", q, k),
        T.einsum("dij,duj->iju", q, k).masked_fill(T.eye(q.shape[1], dtype=T.bool)[:, None], -T.inf),
    ),
    q="d i j", k="d i j", x="c i j", sizes={"d": (3, 5, 2)},
)  # fmt: skip

operator(
    "axial attention with positions", "Wang et al. 2020, Axial-DeepLab, eq. 4, along the width",
    """s[h,i,j] = sum[d](q[d,h,i]*k[d,h,j] + q[d,h,i]*r[d,j-i+x.shape[2]-1] + k[d,h,j]*p[d,j-i+x.shape[2]-1])
       e[h,i,j] = exp(s[h,i,j])
       y[c,h,i] = sum[j](e[h,i,j]*(x[c,h,j] + w[c,j-i+x.shape[2]-1]))/sum[j](e[h,i,j])""",
    lambda T, q, k, r, p, x, w: (lambda at: (lambda a: T.einsum("hij,chj->chi", a, x) + T.einsum(
        "hij,cij->chi", a, w[:, at]))((
        T.einsum("dhi,dhj->hij", q, k) + T.einsum("dhi,dij->hij", q, r[:, at]) + T.einsum("dhj,dij->hij", k, p[:, at])
    ).softmax(2)))(T.arange(q.shape[2]) - T.arange(q.shape[2])[:, None] + q.shape[2] - 1),
    q="d h j", k="d h j", r="d 2*j-1", p="d 2*j-1", x="c h j", w="c 2*j-1", sizes={"d": (3, 4, 2), "h": (2, 3, 4)},
)  # fmt: skip

operator(
    "stand-alone self-attention", "Ramachandran et al. 2019, Stand-alone self-attention in vision models, eq. 2",
    """s[i,j,u,v] = where(0 <= i+u-1 < q.shape[1] and 0 <= j+v-1 < q.shape[2],
                          exp(sum[d](q[d,i,j]*(k[d,i+u-1,j+v-1] + r[d,u] + w[d,v]))), 0)
       y[d,i,j] = (sum[u,v](where(0 <= i+u-1 < q.shape[1] and 0 <= j+v-1 < q.shape[2], s[i,j,u,v]*x[d,i+u-1,j+v-1], 0))
                   /sum[u,v](s[i,j,u,v]))""",
    lambda T, q, k, r, w, x: (lambda f: (lambda a: (a * f(x)).sum(1).reshape(x.shape))((
        (q.flatten(1)[:, None] * (f(k) + (r[:, :, None] + w[:, None]).reshape(len(q), 9, 1))).sum(0)
        .masked_fill(f(T.ones_like(q[:1]))[0] == 0, -T.inf)
    ).softmax(0)))(lambda x: T.nn.functional.unfold(x[None], 3, padding=1)[0].unflatten(0, (-1, 9))),
    extents={"u": 3, "v": 3}, q="d h w", k="d h w", r="d 3", w="d 3", x="d h w", sizes={"d": (4, 5, 3), "w": (5, 6, 4)},
)  # fmt: skip


def _neighbours(T, n):
    """Windows of 3 that are moved inwards at the borders."""
    return (T.arange(n) - 1).clamp(0, n - 3)[:, None] + T.arange(3)


operator(
    "neighbourhood attention", "Hassani, Walton, Li, Li, Shi 2023, Neighborhood attention transformer, eqs. 2 to 4",
    """e[i,r] = exp(sum[d](q[i,d]*k[min(max(i - 1, 0), k.shape[0] - 3) + r,d]) + b[r])
       y[i,d] = sum[r](e[i,r]*v[min(max(i - 1, 0), v.shape[0] - 3) + r,d])/sum[r](e[i,r])""",
    lambda T, q, k, b, v: (lambda at: T.einsum(
        "ir,ird->id", (T.einsum("id,ird->ir", q, k[at]) + b).softmax(1), v[at]
    ))(_neighbours(T, len(q))),
    extents={"r": 3}, q="n d", k="n d", b="3", v="n d",
)  # fmt: skip

operator(
    "patches that attend", "Zhao, Jia, Koltun 2020, Exploring self-attention for image recognition, eq. 4, subtraction",
    """e[c,i,r] = exp(sum[d](W[c,d]*(q[d,i+1] - k[d,i+r])))
       y[c,i] = sum[r](e[c,i,r]*x[c,i+r])/sum[r](e[c,i,r])""",
    lambda T, W, q, k, x: ((W @ q)[:, 1:-1, None] - (W @ k).unfold(1, 3, 1)).softmax(2).mul(x.unfold(1, 3, 1)).sum(2),
    extents={"r": 3, "i": "x.shape[1]-2"}, W="c d", q="d w", k="d w", x="c w",
)  # fmt: skip

operator(
    "involution in one dimension", "Li et al. 2021, Involution, eqs. 4 and 6",
    """h[b,r,i] = relu(sum[c](A[r,c]*x[b,c,i]))
       w[b,g,k,i] = sum[r](B[g,k,r]*h[b,r,i])
       y[b,c,i] = sum[k](where(0 <= i + k - 1 < x.shape[2], w[b,c//2,k,i]*x[b,c,i+k-1], 0))""",
    lambda T, A, x, B: (T.einsum("gkr,bri->bgki", B, (A @ x).relu()).repeat_interleave(2, 1)
                        * T.nn.functional.pad(x, (1, 1)).unfold(2, 3, 1).permute(0, 1, 3, 2)).sum(2),
    A="r 2*g", x="b 2*g n", B="g 3 r",
)  # fmt: skip

operator(
    "lambda layer", "Bello 2021, LambdaNetworks, eqs. 1 and 2",
    """z[k] = sum[m](exp(K[m,k]))
       s[m,k] = exp(K[m,k])/z[k]
       c[k,v] = sum[m](s[m,k]*V[m,v])
       p[n,k,v] = sum[m](E[n,m,k]*V[m,v])
       y[n,h,v] = sum[k](q[n,h,k]*(c[k,v] + p[n,k,v]))""",
    lambda T, K, V, E, q: T.stack([
        (K.softmax(0) + E[n]).T.matmul(V).T.matmul(q[n].T).T for n in range(len(q))
    ]),
    K="m k", V="m v", E="n m k", q="n h k",
)  # fmt: skip

operator(
    "cross-covariance attention", "El-Nouby et al. 2021, XCiT, eq. 3",
    """p[c] = sqrt(sum[n](q[n,c]**2))
       r[d] = sqrt(sum[n](k[n,d]**2))
       e[c,d] = exp(sum[n](k[n,d]*q[n,c])/(tau*p[c]*r[d]))
       y[n,c] = sum[d](v[n,d]*e[c,d])/sum[d](e[c,d])""",
    lambda T, q, k, v, tau: v @ (
        T.nn.functional.normalize(q, dim=0).T @ T.nn.functional.normalize(k, dim=0) / tau
    ).softmax(1).T,
    parameters={"tau": 0.7}, q="n d", k="n d", v="n d",
)  # fmt: skip

operator(
    "global context block", "Cao, Xu, Lin, Wei, Hu 2019, GCNet, eq. 4 without the layer norm",
    """a[b,p] = exp(sum[c](k[c]*x[b,c,p]))
       g[b,c] = sum[p](a[b,p]*x[b,c,p])/sum[p](a[b,p])
       u[b,r] = relu(sum[c](A[r,c]*g[b,c]))
       z[b,c,p] = x[b,c,p] + sum[r](B[c,r]*u[b,r])""",
    lambda T, k, x, A, B: x + ((A @ (x @ (k @ x).softmax(1)[..., None])).relu().mT @ B.T).mT,
    k="c", x="b c p", A="r c", B="c r",
)  # fmt: skip

operator(
    "attention of pixels and of channels", "Fu et al. 2019, Dual attention network, eqs. 3 and 4: channels",
    """E[c,d] = sum[p](x[c,p]*x[d,p])/10.0
       w[c,d] = exp(max[e](E[c,e]) - E[c,d])
       y[c,p] = x[c,p] + g*sum[d](w[c,d]*x[d,p])/sum[d](w[c,d])""",
    lambda T, x, g: x + g * (-(x @ x.T) / 10).softmax(1) @ x,
    parameters={"g": 0.6}, x="c p",
)  # fmt: skip

operator(
    "selective kernel", "Li, Wang, Hu, Yang 2019, Selective kernel networks, eqs. 1 to 6",
    """s[b,c] = mean[p](u[b,c,p] + v[b,c,p])
       z[b,r] = relu(sum[c](W[r,c]*s[b,c]))
       a[b,c] = sum[r](A[c,r]*z[b,r])
       h[b,c] = sum[r](B[c,r]*z[b,r])
       y[b,c,p] = (exp(a[b,c])*u[b,c,p] + exp(h[b,c])*v[b,c,p])/(exp(a[b,c]) + exp(h[b,c]))""",
    lambda T, u, v, W, A, B: (lambda z: T.einsum(
        "sbc,sbcp->bcp", T.stack([z @ A.T, z @ B.T]).softmax(0), T.stack([u, v])
    ))(((u + v).mean(2) @ W.T).relu()),
    u="b c p", v="b c p", W="r c", A="c r", B="c r",
)  # fmt: skip

operator(
    "split attention", "Zhang et al. 2022, ResNeSt, eqs. 1 and 2",
    """g[b,c] = mean[p](sum[r](u[b,r,c,p]))
       a[b,r,c] = exp(sum[k](W[r,c,k]*tanh(sum[d](V[k,d]*g[b,d]))))
       y[b,c,p] = sum[r](a[b,r,c]*u[b,r,c,p])/sum[r](a[b,r,c])""",
    lambda T, u, W, V: T.einsum(
        "brc,brcp->bcp", T.einsum("rck,bk->brc", W, (u.sum(1).mean(2) @ V.T).tanh()).softmax(1), u
    ),
    u="b r c p", W="r c k", V="k c",
)  # fmt: skip

operator(
    "attention without parameters", "Yang, Zhang, Li, Xie 2021, SimAM, eq. 5",
    """m[b,c] = mean[i,j](x[b,c,i,j])
       v[b,c] = sum[i,j]((x[b,c,i,j] - m[b,c])**2)/(x.shape[2]*x.shape[3] - 1)
       y[b,c,i,j] = x[b,c,i,j]*sigmoid((x[b,c,i,j] - m[b,c])**2/(4*(v[b,c] + 0.0001)) + 0.5)""",
    lambda T, x: x * (
        (x - x.mean((2, 3), keepdim=True)) ** 2 / (4 * (x.var((2, 3), keepdim=True) + 1e-4)) + 0.5
    ).sigmoid(),
    x="b c i j", sizes={"i": (5, 2, 9)},
)  # fmt: skip

operator(
    "triplet attention, one branch", "Misra, Nalamada, Arasanipalai, Hou 2021, Rotate to attend, eq. 2",
    """s[c,i] = mean[j](x[c,i,j])
       m[c,i] = max[j](x[c,i,j])
       a[c,i] = sum[u,v](where(0 <= c + u - 1 < x.shape[0] and 0 <= i + v - 1 < x.shape[1],
                               W[0,u,v]*m[c+u-1,i+v-1] + W[1,u,v]*s[c+u-1,i+v-1], 0))
       y[c,i,j] = x[c,i,j]*sigmoid(a[c,i])""",
    lambda T, x, W: x * T.nn.functional.conv2d(
        T.stack([x.amax(2), x.mean(2)])[None], W[None], padding=1
    ).sigmoid()[0, 0, :, :, None],
    x="c i j | spread", W="2 3 3",
)  # fmt: skip

operator(
    "shifted windows with a mask", "Liu et al. 2021, Swin transformer, section 3.2, cyclic shift of 2 in windows of 4",
    """s[w,i,j] = sum[d](q[(4*w+i+2) % q.shape[0],d]*k[(4*w+j+2) % q.shape[0],d])
       e[w,i,j] = where(w < size(w) - 1 or i//2 == j//2, exp(s[w,i,j]), 0)
       y[w,i,d] = sum[j](e[w,i,j]*v[(4*w+j+2) % q.shape[0],d])/sum[j](e[w,i,j])""",
    lambda T, q, k, v: (lambda cut, region: (
        (cut(q) @ cut(k).mT).masked_fill(region[:, :, None] != region[:, None], -T.inf).softmax(2) @ cut(v)
    ))(lambda x: x.roll(-2, 0).unflatten(0, (-1, 4)), (T.arange(len(q)) >= len(q) - 2).long().unflatten(0, (-1, 4))),
    extents={"w": "q.shape[0]//4", "i": 4, "j": 4}, q="4*p d", k="4*p d", v="4*p d", sizes={"p": (3, 4, 1)},
)  # fmt: skip

operator(
    "deformable attention in one dimension", "Zhu et al. 2021, Deformable DETR, eq. 2, with hats for interpolation",
    """e[i,m] = exp(sum[d](q[i,d]*A[d,m]))
       p[i,m] = i + 2.0*tanh(sum[d](q[i,d]*W[d,m]))
       s[i,m,c] = sum[j](max(1 - abs(p[i,m] - j), 0.0)*x[j,c])
       y[i,c] = sum[m](e[i,m]*s[i,m,c])/sum[m](e[i,m])""",
    lambda T, q, A, W, x: (lambda p: (lambda low: T.einsum("im,imc->ic", (q @ A).softmax(1), (
        lambda pad: pad[low + 4] * (1 - (p - low))[..., None] + pad[low + 5] * (p - low)[..., None]
    )(T.nn.functional.pad(x, (0, 0, 4, 4)))))(p.detach().floor().long()))(
        T.arange(len(q))[:, None] + 2 * (q @ W).tanh()
    ),
    q="n d", A="d m", W="d m", x="n c",
)  # fmt: skip
