"""Activations, gates, learned functions of one variable."""

from __future__ import annotations

from tests.papers.operator import operator

operator(
    "swish with a learned slope", "Ramachandran, Zoph, Le 2017, Searching for activation functions, eq. 1",
    "y[b,d] = x[b,d]*sigmoid(beta[d]*x[b,d])",
    lambda T, x, beta: x / (1 + (-beta * x).exp()),
    x="b d", beta="d",
)  # fmt: skip

operator(
    "mish", "Misra 2019, Mish: a self regularized non-monotonic activation function",
    "y[b,d] = x[b,d]*tanh(log(1 + exp(x[b,d])))",
    lambda T, x: T.nn.functional.mish(x),
    x="b d",
)  # fmt: skip

operator(
    "scaled exponential units",
    "Klambauer, Unterthiner, Mayr, Hochreiter 2017, Self-normalizing neural networks, eq. 2",
    "y[b,d] = 1.0507009873554805*where(x[b,d] > 0, x[b,d], 1.6732632423543772*(exp(x[b,d]) - 1))",
    lambda T, x: T.nn.functional.selu(x),
    x="b d",
)  # fmt: skip

operator(
    "continuously differentiable exponential units",
    "Barron 2017, Continuously differentiable exponential linear units, eq. 2",
    "y[b,d] = max(x[b,d], 0.0) + min(a*(exp(x[b,d]/a) - 1), 0.0)",
    lambda T, x, a: T.where(x > 0, x, a * T.expm1(x / a)),
    parameters={"a": 1.7}, x="b d",
)  # fmt: skip

operator(
    "softsign", "Turian, Bergstra, Bengio 2009, Quadratic features and deep architectures for chunking",
    "y[b,d] = x[b,d]/(1 + abs(x[b,d]))",
    lambda T, x: T.nn.functional.softsign(x),
    x="b d",
)  # fmt: skip

operator(
    "hard swish", "Howard et al. 2019, Searching for MobileNetV3, section 5.2",
    "y[b,d] = x[b,d]*min(max(2*x[b,d] + 3, 0.0), 6.0)/6",
    lambda T, x: T.nn.functional.hardswish(2 * x) / 2,
    x="b d",
)  # fmt: skip

operator(
    "snake", "Ziyin, Hartwig, Ueda 2020, Neural networks fail to learn periodic functions, eq. 3",
    "y[b,d] = x[b,d] + sin(a[d]*x[b,d])**2/a[d]",
    lambda T, x, a: x + (1 - (2 * a * x).cos()) / (2 * a),
    x="b d", a="d | positive",
)  # fmt: skip

operator(
    "squareplus", "Barron 2021, Squareplus: a softplus-like algebraic rectifier, eq. 1",
    "y[b,d] = 0.5*(x[b,d] + sqrt(x[b,d]**2 + c))",
    lambda T, x, c: (x + T.hypot(x, T.full_like(x, c**0.5))) / 2,
    parameters={"c": 4.0}, x="b d",
)  # fmt: skip

operator(
    "serf", "Nag, Bhattacharyya 2021, SERF, eq. 1",
    "y[b,d] = x[b,d]*erf(log(1 + exp(x[b,d])))",
    lambda T, x: x * T.erf(T.logaddexp(x, 0 * x)),
    x="b d",
)  # fmt: skip

operator(
    "TanhExp", "Liu, Di 2020, TanhExp: a smooth activation function, eq. 1",
    "y[b,d] = x[b,d]*tanh(exp(x[b,d]))",
    lambda T, x: x * (1 - 2 / (1 + (2 * x.exp()).exp())),
    x="b d",
)  # fmt: skip

operator(
    "parametric rectifiers", "He, Zhang, Ren, Sun 2015, Delving deep into rectifiers, eq. 1",
    "y[b,c,i] = max(x[b,c,i], 0.0) + a[c]*min(x[b,c,i], 0.0)",
    lambda T, x, a: T.nn.functional.prelu(x, a),
    x="b c i", a="c",
)  # fmt: skip

operator(
    "squared rectifiers in a feed-forward layer", "So et al. 2021, Primer, section 4.1",
    "y[b,o] = sum[h](V[o,h]*relu(sum[d](W[h,d]*x[b,d]))**2)",
    lambda T, V, W, x: (x @ W.T).clamp(min=0).square() @ V.T,
    V="o h", W="h d", x="b d",
)  # fmt: skip

operator(
    "gated linear units",
    "Dauphin, Fan, Auli, Grangier 2017, Language modeling with gated convolutional networks, eq. 1",
    "y[b,t,k] = sum[c,r](W[k,c,r]*x[b,t+r,c])*sigmoid(sum[c,r](V[k,c,r]*x[b,t+r,c]))",
    lambda T, W, x, V: T.nn.functional.glu(T.nn.functional.conv1d(x.mT, T.cat([W, V])), 1).mT,
    W="k c 3", x="b t+2 c", V="k c 3",
)  # fmt: skip

operator(
    "SwiGLU", "Shazeer 2020, GLU variants improve transformer, eq. 6",
    """a[b,h] = sum[d](x[b,d]*W[d,h])
       y[b,o] = sum[h](a[b,h]*sigmoid(a[b,h])*sum[d](x[b,d]*V[d,h])*U[h,o])""",
    lambda T, x, W, V, U: (T.nn.functional.silu(x @ W) * (x @ V)) @ U,
    x="b d", W="d h", V="d h", U="h o",
)  # fmt: skip

operator(
    "GEGLU", "Shazeer 2020, GLU variants improve transformer, eq. 5",
    """a[b,h] = sum[d](x[b,d]*W[d,h])
       y[b,h] = 0.5*a[b,h]*(1 + erf(a[b,h]/sqrt(2.0)))*sum[d](x[b,d]*V[d,h])""",
    lambda T, x, W, V: T.nn.functional.gelu(x @ W) * (x @ V),
    x="b d", W="d h", V="d h",
)  # fmt: skip

operator(
    "GELU by tanh", "Hendrycks, Gimpel 2016, Gaussian error linear units, section 2",
    "y[b,d] = 0.5*x[b,d]*(1 + tanh(0.7978845608028654*(x[b,d] + 0.044715*x[b,d]**3)))",
    lambda T, x: T.nn.functional.gelu(x, approximate="tanh"),
    x="b d",
)  # fmt: skip

operator(
    "maxout", "Goodfellow, Warde-Farley, Mirza, Courville, Bengio 2013, Maxout networks, eq. 1",
    "h[b,i] = max[j](sum[d](x[b,d]*W[d,i,j]) + w[i,j])",
    lambda T, x, W, w: T.stack([(x @ W[:, :, j] + w[:, j]) for j in range(w.shape[1])]).max(0)[0],
    x="b d", W="d h k", w="h k",
)  # fmt: skip

operator(
    "concatenated rectifiers",
    "Shang, Sohn, Almeida, Lee 2016, Understanding and improving convolutional networks, def. 2.1",
    "y[b,k] = max(where(k < x.shape[1], 1.0, -1.0)*x[b,k % x.shape[1]], 0.0)",
    lambda T, x: T.cat([x, -x], 1).relu(),
    x="b d", extents={"k": "2*x.shape[1]"},
)  # fmt: skip

operator(
    "ACON-C", "Ma, Zhang, Liu, Sun 2021, Activate or not, eq. 5",
    """d[b,c] = (p[c] - q[c])*x[b,c]
       y[b,c] = d[b,c]*sigmoid(beta[c]*d[b,c]) + q[c]*x[b,c]""",
    lambda T, p, q, x, beta: T.lerp(q * x, p * x, (beta * (p - q) * x).sigmoid()),
    p="c", q="c", x="b c", beta="c",
)  # fmt: skip

operator(
    "Padé activation units", "Molina, Schramowski, Kersting 2020, Padé activation units, eq. 2, safe",
    """P[b,d] = sum[m](a[m]*pow(x[b,d], f64(m)))
       Q[b,d] = 1 + abs(sum[n](q[n]*pow(x[b,d], n + 1.0)))
       y[b,d] = P[b,d]/Q[b,d]""",
    lambda T, a, x, q: sum(a[m] * x**m for m in range(len(a))) / (
        1 + sum(q[n] * x ** (n + 1) for n in range(len(q))).abs()
    ),
    a="6", x="b d | positive", q="4",
)  # fmt: skip


def _spline(T, x, g, k):
    """The recursion of de Boor and Cox on the knots (n - 3)/4."""
    if k == 0:
        return ((x >= (g - 3) / 4) & (x < (g - 2) / 4)).to(x)
    return (4 * x - g + 3) / k * _spline(T, x, g, k - 1) + (g + k - 2 - 4 * x) / k * _spline(T, x, g + 1, k - 1)


operator(
    "splines of Kolmogorov-Arnold networks", "Liu et al. 2025, KAN, eq. 2.10, cubic on a uniform grid",
    """s[b,i,g] = x[b,i]*4 - g + 3
       B[b,i,g] = (max(s[b,i,g], 0.0)**3 - 4*max(s[b,i,g] - 1, 0.0)**3 + 6*max(s[b,i,g] - 2, 0.0)**3
                   - 4*max(s[b,i,g] - 3, 0.0)**3 + max(s[b,i,g] - 4, 0.0)**3)/6.0
       y[b,o] = sum[i,g](c[o,i,g]*B[b,i,g]) + sum[i](w[o,i]*x[b,i]*sigmoid(x[b,i]))""",
    lambda T, x, c, w: T.einsum("oig,big->bo", c, T.stack([
        _spline(T, x, g, 3) for g in range(7)
    ], 2)) + T.nn.functional.silu(x) @ w.T,
    x="b n | unit", c="o n 7", w="o n", sizes={"n": (3, 5, 8)}, extents={"g": 7},
)  # fmt: skip

operator(
    "sinusoidal layers", "Sitzmann, Martel, Bergman, Lindell, Wetzstein 2020, SIREN, eq. 3",
    """h[b,k] = sin(3.0*(sum[d](W[k,d]*x[b,d]) + w[k]))
       y[b,o] = sin(sum[k](V[o,k]*h[b,k]))""",
    lambda T, W, x, w, V: ((3 * T.nn.functional.linear(x, W, w)).sin() @ V.T).sin(),
    W="h d", x="b d", w="h", V="o h",
)  # fmt: skip

operator(
    "random Fourier features", "Rahimi, Recht 2007, Random features; Tancik et al. 2020, Fourier features, eq. 5",
    """p[b,m] = 6.283185307179586*sum[d](B[m,d]*x[b,d])
       y[b,2*m] = cos(p[b,m])
       y[b,2*m+1] = sin(p[b,m])""",
    lambda T, B, x: T.view_as_real(T.exp(T.complex(0 * (x @ B.T), 2 * T.pi * x @ B.T))).flatten(1),
    B="m d", x="b d", sizes={"d": (3, 2, 5)},
)  # fmt: skip

operator(
    "hat-shaped activations of the interval", "Clevert 2016; Bresler, Nagaraj 2020: sawtooth by triangle waves",
    "y[b,d] = abs(x[b,d] - 2*floor((x[b,d] + 1)/2))",
    lambda T, x: ((x + 1) % 2 - 1).abs(),
    x="b d",
)  # fmt: skip

operator(
    "soft exponential",
    "Godfrey, Gashler 2015, A continuum among logarithmic, linear, and exponential functions, eq. 1",
    "y[b,d] = where(d % 2 == 0, (exp(a*x[b,d]) - 1)/a + a, -log(1 + a*(0.1*x[b,d] + a))/(-a))",
    lambda T, x, a: T.where(T.arange(x.shape[1]) % 2 == 0, T.expm1(a * x) / a + a, T.log1p(a * (0.1 * x + a)) / a),
    parameters={"a": 0.5}, x="b d",
)  # fmt: skip

operator(
    "hard concrete gates", "Louizos, Welling, Kingma 2018, Learning sparse neural networks through L0, eq. 10",
    """s[b,d] = sigmoid((log(u[b,d]) - log(1 - u[b,d]) + a[d])/0.66)
       z[b,d] = min(1.0, max(0.0, 1.2*s[b,d] - 0.1))
       y[b,d] = z[b,d]*x[b,d]
       c[] = sum[d](sigmoid(a[d] - 0.66*log(0.1/1.1)))
       return y, c""",
    lambda T, u, a, x: (x * (1.2 * ((u.logit() + a) / 0.66).sigmoid() - 0.1).clamp(0, 1), (
        a - 0.66 * T.tensor(0.1 / 1.1, dtype=a.dtype).log()).sigmoid().sum()),
    u="b d | unit", a="d", x="b d",
)  # fmt: skip

operator(
    "Gumbel softmax, straight through",
    "Jang, Gu, Poole 2017, Categorical reparameterization with Gumbel-softmax, eq. 2",
    """l[b,k] = (x[b,k] - log(-log(u[b,k])))/tau
       e[b,k] = exp(l[b,k])
       p[b,k] = e[b,k]/sum[j](e[b,j])
       best[b] = argmax[k](l[b,k])
       y[b,k] = p[b,k] + stop_gradient(where(k == best[b], 1.0, 0.0) - p[b,k])
       return y""",
    lambda T, x, u, tau: (lambda p: T.nn.functional.one_hot(p.argmax(1), p.shape[1]) - p.detach() + p)(
        ((x - (-u.log()).log()) / tau).softmax(1)
    ),
    parameters={"tau": 0.7}, x="b k", u="b k | unit",
)  # fmt: skip

operator(
    "winners of local blocks", "Srivastava, Masci, Kazerounian, Gomez, Schmidhuber 2013, Compete to compute, eq. 1",
    """m[b,g] = max[r](x[b,2*g+r])
       y[b,i] = where(x[b,i] == m[b,i//2], x[b,i], 0)""",
    lambda T, x: (lambda u: (u * (u >= u.flip(2))).flatten(1))(x.unflatten(1, (-1, 2))),
    x="b 2*d | spread", extents={"r": 2, "g": "x.shape[1]//2", "i": "x.shape[1]"},
)  # fmt: skip

operator(
    "soft decision tree of depth 2",
    "Frosst, Hinton 2017, Distilling a neural network into a soft decision tree, eq. 1",
    """p[b,n] = sigmoid(sum[d](x[b,d]*W[n,d]) + w[n])
       leaf[b,l] = (where(l < 2, 1 - p[b,0], p[b,0])*where(l % 2 == 0, 1 - p[b,1 + l//2], p[b,1 + l//2]))
       y[b,k] = sum[l](leaf[b,l]*q[l,k])""",
    lambda T, x, W, w, q: (lambda p: T.stack([
        (1 - p[0]) * (1 - p[1]), (1 - p[0]) * p[1], p[0] * (1 - p[2]), p[0] * p[2]
    ], 1) @ q)(T.nn.functional.linear(x, W, w).sigmoid().unbind(1)),
    x="b d", W="3 d", w="3", q="4 k",
)  # fmt: skip

operator(
    "lattice of two monotonic inputs", "Gupta et al. 2016, Monotonic calibrated interpolated look-up tables, eq. 3",
    """a[b] = sigmoid(x[b])
       c[b] = sigmoid(y[b])
       f[b] = sum[i,j](t[i,j]*max(1 - abs(2*a[b] - i), 0.0)*max(1 - abs(2*c[b] - j), 0.0))""",
    lambda T, x, y, t: (lambda a, c: (lambda i, j: (
        t[i, j] * (i + 1 - a) * (j + 1 - c) + t[i + 1, j] * (a - i) * (j + 1 - c)
        + t[i, j + 1] * (i + 1 - a) * (c - j) + t[i + 1, j + 1] * (a - i) * (c - j)
    ))(a.detach().long(), c.detach().long()))(2 * x.sigmoid(), 2 * y.sigmoid()),
    x="n", y="n", t="3 3",
)  # fmt: skip
