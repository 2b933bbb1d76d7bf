"""Losses: classification, regression, ranking, embeddings, boxes, distributions."""

from __future__ import annotations

from tests.papers.operator import operator

# ------------------------------------------------------------------------------------------------ classification


def _hot(torch, y, x):
    return torch.nn.functional.one_hot(y, x.shape[1]).to(x.dtype)


operator(
    "focal loss", "Lin, Goyal, Girshick, He, Dollar 2017, Focal loss for dense object detection, eq. 4",
    """p[i] = sigmoid(x[i])
       q[i] = where(y[i] == 1, p[i], 1 - p[i])
       loss[] = mean[i](-0.25*(1 - q[i])**2*log(q[i]))""",
    lambda torch, x, y: (
        0.25 * (1 - torch.where(y == 1, x.sigmoid(), (-x).sigmoid())) ** 2
        * torch.nn.functional.binary_cross_entropy_with_logits(x, y.to(x.dtype), reduction="none")
    ).mean(),
    x="n", y="n | int 2",
)  # fmt: skip

operator(
    "generalized cross entropy", "Zhang, Sabuncu 2018, Generalized cross entropy loss, eq. 6",
    """top[b] = max[k](x[b,k])
       z[b] = sum[k](exp(x[b,k] - top[b]))
       p[b] = sum[k](where(y[b] == k, exp(x[b,k] - top[b])/z[b], 0))
       loss[] = mean[b]((1 - p[b]**0.7)/0.7)""",
    lambda torch, x, y: ((1 - x.softmax(1).gather(1, y[:, None]).pow(0.7)) / 0.7).mean(),
    x="b k", y="b | int k",
)  # fmt: skip

operator(
    "symmetric cross entropy", "Wang et al. 2019, Symmetric cross entropy for robust learning, eq. 6",
    """z[b] = sum[k](exp(x[b,k]))
       p[b,k] = exp(x[b,k])/z[b]
       loss[] = mean[b](sum[k](where(y[b] == k, -log(p[b,k]), 4*p[b,k])))""",
    lambda torch, x, y: (
        torch.nn.functional.cross_entropy(x, y) + (4 * (1 - x.softmax(1).gather(1, y[:, None]))).mean()
    ),
    x="b k", y="b | int k",
)  # fmt: skip

operator(
    "poly-1 cross entropy", "Leng et al. 2022, PolyLoss, eq. 5",
    """z[b] = sum[k](exp(x[b,k]))
       p[b] = exp(x[b,y[b]])/z[b]
       loss[] = mean[b](-log(p[b]) + eps*(1 - p[b]))""",
    lambda torch, x, y, eps: (
        torch.nn.functional.cross_entropy(x, y) + eps * (1 - x.softmax(1).gather(1, y[:, None])).mean()
    ),
    parameters={"eps": 1.5}, x="b k", y="b | int k",
)  # fmt: skip

operator(
    "asymmetric loss", "Ridnik et al. 2021, Asymmetric loss for multi-label classification, eq. 7",
    """p[b,k] = sigmoid(x[b,k])
       m[b,k] = max(p[b,k] - 0.05, 0.0)
       loss[] = -sum[b,k](where(y[b,k], (1 - p[b,k])*log(p[b,k]), m[b,k]**4*log(1 - m[b,k])))""",
    lambda torch, x, y: -torch.where(
        y, (1 - x.sigmoid()) * x.sigmoid().log(),
        (x.sigmoid() - 0.05).clamp(min=0) ** 4 * torch.log(1 - (x.sigmoid() - 0.05).clamp(min=0)),
    ).sum(),
    x="b k", y="b k | bool",
)  # fmt: skip

operator(
    "label smoothing by the uniform distribution", "Szegedy et al. 2016, Rethinking the inception architecture, eq. 3",
    """z[b] = log(sum[k](exp(x[b,k])))
       loss[] = mean[b](z[b] - 0.9*x[b,y[b]] - 0.1*mean[k](x[b,k]))""",
    lambda torch, x, y: torch.nn.functional.cross_entropy(x, y, label_smoothing=0.1),
    x="b k", y="b | int k",
)  # fmt: skip

operator(
    "margin of many classes", "Crammer, Singer 2001, On the algorithmic implementation of multiclass SVMs",
    "loss[] = mean[b](sum[k](where(k == y[b], 0, max(1 - x[b,y[b]] + x[b,k], 0.0))))",
    lambda torch, x, y: ((1 - x.gather(1, y[:, None]) + x).relu().sum(1) - 1).mean(),
    x="b k", y="b | int k",
)  # fmt: skip

operator(
    "confidence penalty", "Pereyra et al. 2017, Regularizing neural networks by penalizing confident outputs, eq. 4",
    """z[b] = log(sum[k](exp(x[b,k])))
       loss[] = mean[b](z[b] - x[b,y[b]] + beta*sum[k](exp(x[b,k] - z[b])*(x[b,k] - z[b])))""",
    lambda torch, x, y, beta: (
        torch.nn.functional.cross_entropy(x, y) - beta * torch.distributions.Categorical(logits=x).entropy().mean()
    ),
    parameters={"beta": 0.3}, x="b k", y="b | int k",
)  # fmt: skip

operator(
    "dice loss", "Milletari, Navab, Ahmadi 2016, V-Net, section 3",
    """p[b,i] = sigmoid(x[b,i])
       both[b] = sum[i](p[b,i]*y[b,i])
       all[b] = sum[i](p[b,i]**2 + y[b,i]**2)
       loss[] = mean[b](1 - 2*both[b]/all[b])""",
    lambda torch, x, y: (
        1 - 2 * (x.sigmoid() * y).sum(1) / (x.sigmoid().square().sum(1) + y.square().sum(1))
    ).mean(),
    x="b n", y="b n | unit",
)  # fmt: skip

operator(
    "Tversky loss", "Salehi, Erdogmus, Gholipour 2017, Tversky loss function, eq. 4",
    """tp[] = sum[i](x[i]*y[i])
       fp[] = sum[i](x[i]*(1 - y[i]))
       fn[] = sum[i]((1 - x[i])*y[i])
       loss[] = 1 - tp[]/(tp[] + 0.3*fp[] + 0.7*fn[])""",
    lambda torch, x, y: 1 - (x @ y) / (x @ y + 0.3 * (x @ (1 - y)) + 0.7 * ((1 - x) @ y)),
    x="n | unit", y="n | unit",
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ regression

operator(
    "quantile loss of several quantiles", "Koenker, Bassett 1978, Regression quantiles",
    "loss[] = mean[b,k](max(q[k]*(y[b] - x[b,k]), (q[k] - 1)*(y[b] - x[b,k])))",
    lambda torch, x, y, q: torch.where(y[:, None] > x, q * (y[:, None] - x), (1 - q) * (x - y[:, None])).mean(),
    x="b k", y="b", q="k | unit",
)  # fmt: skip

operator(
    "log-cosh", "Chen et al. 2019, Log hyperbolic cosine loss improves variational auto-encoder",
    "loss[] = mean[i](log((exp(x[i] - y[i]) + exp(y[i] - x[i]))/2))",
    lambda torch, x, y: torch.log(torch.cosh(x - y)).mean(),
    x="n", y="n",
)  # fmt: skip

operator(
    "Charbonnier loss", "Lai et al. 2017, Deep Laplacian pyramid networks, eq. 4",
    "loss[] = sum[b,c,h,w](sqrt((x[b,c,h,w] - y[b,c,h,w])**2 + 0.001**2))/size(b)",
    lambda torch, x, y: torch.hypot(x - y, torch.tensor(0.001, dtype=x.dtype)).sum() / len(x),
    x="b c h w", y="b c h w",
)  # fmt: skip

operator(
    "wing loss", "Feng et al. 2018, Wing loss for robust facial landmark localisation, eq. 5",
    """d[b,i] = abs(x[b,i] - y[b,i])
       loss[] = sum[b,i](where(d[b,i] < 1.0, log(1 + d[b,i]/0.5), d[b,i] - (1.0 - log(3.0))))""",
    lambda torch, x, y: torch.where(
        (x - y).abs() < 1, torch.log1p((x - y).abs() / 0.5), (x - y).abs() - 1 + torch.tensor(3.0).to(x).log()
    ).sum(),
    x="b n", y="b n",
)  # fmt: skip

operator(
    "general robust loss, alpha 1", "Barron 2019, A general and adaptive robust loss function, eq. 1",
    "loss[] = mean[i](sqrt((x[i]/c)**2 + 1) - 1)",
    lambda torch, x, c: (torch.linalg.vector_norm(torch.stack([x / c, torch.ones_like(x)]), dim=0) - 1).mean(),
    parameters={"c": 0.7}, x="n",
)  # fmt: skip

operator(
    "Welsch loss", "Dennis, Welsch 1978, Techniques for nonlinear least squares",
    "loss[] = mean[i](1 - exp(-0.5*(r[i]/c)**2))",
    lambda torch, r, c: -torch.expm1(-r.square() / (2 * c * c)).mean(),
    parameters={"c": 2.98}, r="n",
)  # fmt: skip

operator(
    "Tukey's biweight", "Belagiannis et al. 2015, Robust optimization for deep regression, eq. 2",
    "loss[] = sum[i](where(abs(r[i]) <= 1.2, 1.2**2/6*(1 - (1 - (r[i]/1.2)**2)**3), 1.2**2/6))",
    lambda torch, r: (1.44 / 6 * (1 - (1 - (r / 1.2).square()).clamp(min=0) ** 3)).sum(),
    r="n",
)  # fmt: skip

operator(
    "gaussian negative log likelihood", "Nix, Weigend 1994, Estimating the mean and variance, eq. 2",
    "loss[] = mean[i](0.5*(log(v[i]) + (x[i] - y[i])**2/v[i]))",
    lambda torch, x, y, v: torch.nn.functional.gaussian_nll_loss(x, y, v),
    x="n", y="n", v="n | positive",
)  # fmt: skip

operator(
    "mixture density network", "Bishop 1994, Mixture density networks, eq. 29",
    """d[b,k] = sum[j]((y[b,j] - m[b,k,j])**2)/exp(2*s[b,k])
       e[b,k] = a[b,k] - 0.5*d[b,k] - y.shape[1]*s[b,k]
       loss[] = mean[b](logsumexp[k](a[b,k]) - logsumexp[k](e[b,k]))""",
    lambda torch, y, m, s, a: -torch.logsumexp(
        a.log_softmax(1) - 0.5 * ((y[:, None] - m) / s.exp()[..., None]).square().sum(-1) - y.shape[1] * s, 1
    ).mean(),
    y="b j", m="b k j", s="b k", a="b k",
)  # fmt: skip

operator(
    "evidential regression", "Amini et al. 2020, Deep evidential regression, eq. 9 (regularizer)",
    "loss[] = mean[i](abs(y[i] - g[i])*(2*v[i] + a[i]))",
    lambda torch, y, g, v, a: torch.nn.functional.l1_loss(y * (2 * v + a), g * (2 * v + a)),
    y="n", g="n", v="n | positive", a="n | positive",
)  # fmt: skip

operator(
    "scale-invariant depth error", "Eigen, Puhrsch, Fergus 2014, Depth map prediction, eq. 4",
    """d[b,i] = log(x[b,i]) - log(y[b,i])
       loss[] = mean[b](mean[i](d[b,i]**2) - 0.5*mean[i](d[b,i])**2)""",
    lambda torch, x, y: (
        0.5 * (x / y).log().square().mean(1) + 0.5 * (x / y).log().var(1, unbiased=False)
    ).mean(),
    x="b n | positive", y="b n | positive",
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ embeddings

operator(
    "contrastive loss of pairs", "Hadsell, Chopra, LeCun 2006, Dimensionality reduction, eq. 4",
    """d[b] = sqrt(sum[i]((x[b,i] - z[b,i])**2))
       loss[] = mean[b](where(same[b], 0.5*d[b]**2, 0.5*max(4.0 - d[b], 0.0)**2))""",
    lambda torch, x, z, same: torch.where(
        same, (x - z).norm(dim=1) ** 2 / 2, (4 - (x - z).norm(dim=1)).clamp(min=0) ** 2 / 2
    ).mean(),
    x="b d", z="b d", same="b | bool",
)  # fmt: skip

operator(
    "n-pair loss", "Sohn 2016, Improved deep metric learning with multi-class n-pair loss, eq. 7",
    """s[i,j] = sum[d](x[i,d]*z[j,d])
       loss[] = mean[i](log(1 + sum[j](where(i == j, 0, exp(s[i,j] - s[i,i])))))""",
    lambda torch, x, z: torch.nn.functional.cross_entropy(x @ z.T, torch.arange(len(x))),
    x="n d", z="n d", sizes={"d": (3, 4, 2)},
)  # fmt: skip

operator(
    "NT-Xent", "Chen, Kornblith, Norouzi, Hinton 2020, SimCLR, eq. 1",
    """r[i] = sqrt(sum[d](x[i,d]**2))
       s[i,j] = sum[d](x[i,d]*x[j,d])/(r[i]*r[j])/0.5
       loss[] = mean[i](log(sum[j](where(i == j, 0, exp(s[i,j])))) - s[i, (i + size(i)//2) % size(i)])""",
    lambda torch, x: torch.nn.functional.cross_entropy(
        (lambda u: (u @ u.T / 0.5).masked_fill(torch.eye(len(x), dtype=torch.bool), -torch.inf))(
            torch.nn.functional.normalize(x, dim=1)
        ),
        torch.arange(len(x)).roll(len(x) // 2),
    ),
    x="2*n d",
)  # fmt: skip

operator(
    "supervised contrastive loss", "Khosla et al. 2020, Supervised contrastive learning, eq. 2",
    """s[i,j] = sum[d](x[i,d]*x[j,d])
       z[i] = log(sum[j](where(i == j, 0, exp(s[i,j]))))
       count[i] = sum[j](where(y[i] == y[j] and i != j, 1.0, 0.0))
       total[i] = sum[j](where(y[i] == y[j] and i != j, z[i] - s[i,j], 0.0))
       loss[] = sum[i](total[i]/max(count[i], 1.0))""",
    lambda torch, x, y: (
        lambda same, logp: (-(logp.where(same, 0.0)).sum(1) / same.sum(1).clamp(min=1)).sum()
    )(
        (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool),
        (x @ x.T).masked_fill(torch.eye(len(y), dtype=torch.bool), -torch.inf).log_softmax(1),
    ),
    x="n d", y="n | int 3", sizes={"d": (3, 4, 2)},
)  # fmt: skip

operator(
    "Barlow twins", "Zbontar et al. 2021, Barlow twins, eq. 1",
    """c[i,j] = sum[b](x[b,i]*z[b,j])/(sqrt(sum[b](x[b,i]**2))*sqrt(sum[b](z[b,j]**2)))
       loss[] = sum[i,j](where(i == j, (1 - c[i,j])**2, 0.005*c[i,j]**2))""",
    lambda torch, x, z: (
        lambda c: (1 - c.diagonal()).square().sum() + 0.005 * (c - c.diagonal().diag_embed()).square().sum()
    )(torch.nn.functional.normalize(x, dim=0).T @ torch.nn.functional.normalize(z, dim=0)),
    x="b d", z="b d", sizes={"b": (4, 3, 7)},
)  # fmt: skip

operator(
    "variance and covariance of VICReg", "Bardes, Ponce, LeCun 2022, VICReg, eqs. 1 and 3",
    """m[i] = mean[b](x[b,i])
       c[i,j] = sum[b]((x[b,i] - m[i])*(x[b,j] - m[j]))/(size(b) - 1)
       v[] = mean[i](max(1.5 - sqrt(c[i,i] + 0.0001), 0.0))
       o[] = sum[i,j](where(i == j, 0, c[i,j]**2))/size(i)
       loss[] = 25*v[] + o[]""",
    lambda torch, x: (
        25 * (1.5 - (x.var(0) + 0.0001).sqrt()).clamp(min=0).mean()
        + (torch.cov(x.T) - x.var(0).diag()).square().sum() / x.shape[1]
    ),
    x="b d", sizes={"b": (4, 3, 7)},
)  # fmt: skip

operator(
    "center loss", "Wen et al. 2016, A discriminative feature learning approach, eq. 2",
    "loss[] = 0.5*sum[b,d]((x[b,d] - c[y[b],d])**2)",
    lambda torch, x, c, y: 0.5 * (x - c[y]).square().sum(),
    x="b d", c="k d", y="b | int k",
)  # fmt: skip

operator(
    "large margin cosine loss", "Wang et al. 2018, CosFace, eq. 4",
    """n[b] = sqrt(sum[d](x[b,d]**2))
       r[k] = sqrt(sum[d](w[k,d]**2))
       s[b,k] = 8*(sum[d](x[b,d]*w[k,d])/(n[b]*r[k]) - where(k == y[b], 0.35, 0.0))
       loss[] = mean[b](log(sum[k](exp(s[b,k]))) - s[b,y[b]])""",
    lambda torch, x, w, y: torch.nn.functional.cross_entropy(
        8 * (torch.nn.functional.linear(*map(torch.nn.functional.normalize, (x, w))) - 0.35 * _hot(torch, y, x @ w.T)),
        y,
    ),
    x="b d", w="k d", y="b | int k",
)  # fmt: skip

operator(
    "additive angular margin", "Deng et al. 2019, ArcFace, eq. 3",
    """n[b] = sqrt(sum[d](x[b,d]**2))
       r[k] = sqrt(sum[d](w[k,d]**2))
       c[b,k] = sum[d](x[b,d]*w[k,d])/(n[b]*r[k])
       a[b,k] = where(k == y[b], c[b,k]*cos(0.5) - sqrt(1.0001 - c[b,k]**2)*sin(0.5), c[b,k])
       loss[] = mean[b](log(sum[k](exp(4*a[b,k]))) - 4*a[b,y[b]])""",
    lambda torch, x, w, y: (
        lambda c, hot: torch.nn.functional.cross_entropy(
            4 * torch.lerp(c, c * torch.cos(torch.tensor(0.5).to(c)) - (1.0001 - c * c).sqrt()
                           * torch.sin(torch.tensor(0.5).to(c)), hot), y
        )
    )(torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(w).T, _hot(torch, y, x @ w.T)),
    x="b d", w="k d", y="b | int k", sizes={"d": (5, 17, 8)},
)  # fmt: skip

operator(
    "circle loss", "Sun et al. 2020, Circle loss, eq. 6",
    """an[i] = max(sn[i] + 0.25, 0.0)
       ap[j] = max(1.25 - sp[j], 0.0)
       zn[] = sum[i](exp(4*stop_gradient(an[i])*(sn[i] - 0.25)))
       zp[] = sum[j](exp(-4*stop_gradient(ap[j])*(sp[j] - 0.75)))
       loss[] = log(1 + zn[]*zp[])""",
    lambda torch, sn, sp: torch.nn.functional.softplus(
        torch.logsumexp(4 * (sn + 0.25).clamp(min=0).detach() * (sn - 0.25), 0)
        + torch.logsumexp(-4 * (1.25 - sp).clamp(min=0).detach() * (sp - 0.75), 0)
    ),
    sn="n | unit", sp="m | unit",
)  # fmt: skip

operator(
    "proxy-NCA", "Movshovitz-Attias et al. 2017, No fuss distance metric learning using proxies, eq. 4",
    """d[b,k] = sum[i]((x[b,i] - p[k,i])**2)
       loss[] = sum[b](d[b,y[b]] + logsumexp[k](where(k == y[b], -inf, -d[b,k])))""",
    lambda torch, x, p, y: (
        (x - p[y]).square().sum()
        + torch.logsumexp(
            (-(x[:, None] - p).square().sum(-1)).masked_fill(_hot(torch, y, x @ p.T).bool(), -torch.inf), 1
        ).sum()
    ),
    sizes={"k": (4, 7, 3), "d": (3, 2, 4)}, x="b d", p="k d", y="b | int k",
)  # fmt: skip

operator(
    "lifted structured embedding", "Song et al. 2016, Deep metric learning via lifted structures, eq. 4",
    """d[i,j] = sqrt(sum[k]((x[i,k] - x[j,k])**2) + 0.0001)
       far[i] = sum[j](where(y[i] != y[j], exp(1 - d[i,j]), 0))
       J[i,j] = log(far[i] + far[j] + 0.001) + d[i,j]
       loss[] = sum[i,j](where(y[i] == y[j] and i < j, max(J[i,j], 0.0)**2, 0.0))""",
    lambda torch, x, y: (
        lambda d, same: (
            torch.log(((1 - d).exp() * ~same).sum(1) + ((1 - d).exp() * ~same).sum(1)[:, None] + 0.001) + d
        ).clamp(min=0).square()[same.triu(1)].sum()
    )(((x[:, None] - x).square().sum(-1) + 0.0001).sqrt(), y[:, None] == y),
    x="n d", y="n | int 3", sizes={"d": (3, 4, 2)},
)  # fmt: skip
