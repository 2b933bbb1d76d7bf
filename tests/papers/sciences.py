"""Physics, graphics and numerical methods, as networks and solvers use them."""

from __future__ import annotations

from tests.papers.operator import operator

# ------------------------------------------------------------------------------------------------ particles, fields

operator(
    "Lennard-Jones energy", "Jones 1924, On the determination of molecular fields",
    """d[i,j] = sum[k]((x[i,k] - x[j,k])**2) + 1
       E[] = 0.5*sum[i,j](where(i != j, 4*(d[i,j]**-6.0 - d[i,j]**-3.0), 0))""",
    lambda torch, x: (lambda r: (4 * (r**-12 - r**-6)).sum())(
        ((x[:, None] - x).square().sum(-1) + 1)[torch.ones(len(x), len(x)).triu(1).bool()].sqrt()
    ),
    x="n 3", sizes={"n": (5, 9, 2)},
)  # fmt: skip

operator(
    "softened gravity", "Aarseth 1963, Dynamical evolution of clusters of galaxies, eq. 1",
    """r[i,j] = sum[k]((x[j,k] - x[i,k])**2) + 0.04
       a[i,k] = sum[j](m[j]*(x[j,k] - x[i,k])/(r[i,j]*sqrt(r[i,j])))""",
    lambda torch, x, m: (
        (m * ((x[None] - x[:, None]).square().sum(-1) + 0.04) ** -1.5)[..., None] * (x[None] - x[:, None])
    ).sum(1),
    x="n 3", m="n | positive", sizes={"n": (5, 17, 2)},
)  # fmt: skip

operator(
    "Coulomb matrix", "Rupp et al. 2012, Fast and accurate modeling of molecular atomization energies, eq. 1",
    "M[i,j] = where(i == j, 0.5*z[i]**2.4, z[i]*z[j]/sqrt(sum[k]((x[i,k] - x[j,k])**2)))",
    lambda torch, z, x: (
        lambda d, eye: torch.where(eye, 0.5 * z**2.4, z[:, None] * z / d.masked_fill(eye, 1).sqrt())
    )((x[:, None] - x).square().sum(-1), torch.eye(len(z), dtype=torch.bool)),
    z="n | positive", x="n 3", sizes={"n": (5, 9, 2)},
)  # fmt: skip

operator(
    "Behler-Parrinello symmetry function G2", "Behler, Parrinello 2007, Generalized neural networks, eq. 4",
    """d[i,j] = sqrt(sum[k]((x[i,k] - x[j,k])**2) + 0.0001)
       c[i,j] = where(i != j and d[i,j] < 3.0, 0.5*(cos(3.141592653589793*d[i,j]/3.0) + 1), 0)
       G[i,m] = sum[j](exp(-eta[m]*(d[i,j] - s[m])**2)*c[i,j])""",
    lambda torch, x, eta, s: (
        lambda d: (
            torch.exp(-eta * (d[..., None] - s) ** 2)
            * ((torch.pi * d / 3).cos() / 2 + 0.5).mul((d < 3) & ~torch.eye(len(x), dtype=torch.bool))[..., None]
        ).sum(1)
    )(((x[:, None] - x).square().sum(-1) + 0.0001).sqrt()),
    x="n 3", eta="m | positive", s="m", sizes={"n": (5, 9, 2)},
)  # fmt: skip

operator(
    "Ising energy on a torus", "Ising 1925, Beitrag zur Theorie des Ferromagnetismus",
    "E[b] = -sum[i,j](s[b,i,j]*(s[b,(i+1) % size(i),j] + s[b,i,(j+1) % size(j)]))",
    lambda torch, s: -(s * (s.roll(-1, 1) + s.roll(-1, 2))).sum((1, 2)),
    s="b h w",
)  # fmt: skip

operator(
    "energy of a Hopfield network", "Hopfield 1982, Neural networks and physical systems, eq. 7",
    "E[b] = -0.5*sum[i,j](where(i == j, 0, W[i,j]*s[b,i]*s[b,j])) + sum[i](t[i]*s[b,i])",
    lambda torch, W, s, t: -0.5 * torch.einsum("bi,ij,bj->b", s, W - W.diagonal().diag_embed(), s) + s @ t,
    W="n n", s="b n", t="n",
)  # fmt: skip

operator(
    "free energy of a restricted Boltzmann machine", "Hinton 2012, A practical guide to training RBMs, eq. 25",
    "F[b] = -sum[i](v[b,i]*a[i]) - sum[j](log(1 + exp(c[j] + sum[i](v[b,i]*W[i,j]))))",
    lambda torch, v, a, c, W: -v @ a - torch.nn.functional.softplus(v @ W + c).sum(1),
    v="b n", a="n", c="h", W="n h", sizes={"n": (3, 4, 2)},
)  # fmt: skip

operator(
    "retrieval of a modern Hopfield network", "Ramsauer et al. 2021, Hopfield networks is all you need, eq. 3",
    """s[b,n] = sum[d](x[n,d]*q[b,d])
       t[b] = max[n](s[b,n])
       z[b] = sum[n](exp(beta*(s[b,n] - t[b])))
       out[b,d] = sum[n](exp(beta*(s[b,n] - t[b]))*x[n,d])/z[b]""",
    lambda torch, x, q, beta: (beta * q @ x.T).softmax(1) @ x,
    parameters={"beta": 0.4}, x="n d", q="b d",
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ equations


def _laplacian(torch, u):
    return u.roll(1, -1) + u.roll(-1, -1) + u.roll(1, -2) + u.roll(-1, -2) - 4 * u


operator(
    "heat equation, explicit steps", "Courant, Friedrichs, Lewy 1928",
    """p[t,i,j] = where(t > 0, u[t-1,i,j], u0[i,j])
       u[t,i,j] = p[t,i,j] + 0.2*(p[t,(i+1) % size(i),j] + p[t,(i+size(i)-1) % size(i),j]
                                  + p[t,i,(j+1) % size(j)] + p[t,i,(j+size(j)-1) % size(j)] - 4*p[t,i,j])
       out[i,j] = u[4,i,j]
       return out""",
    lambda torch, u0: [u := u0] and [u := u + 0.2 * _laplacian(torch, u) for _ in range(5)][-1],
    extents={"t": 5}, u0="h w",
)  # fmt: skip


def _gray_scott(torch, u, v):
    for _ in range(3):
        r = u * v * v
        u, v = (
            u + 0.16 * _laplacian(torch, u) - r + 0.06 * (1 - u),
            v + 0.08 * _laplacian(torch, v) + r - 0.122 * v,
        )
    return u, v


operator(
    "Gray-Scott reaction and diffusion", "Pearson 1993, Complex patterns in a simple system, eq. 2",
    """a[t,i,j] = where(t > 0, u[t-1,i,j], u0[i,j])
       b[t,i,j] = where(t > 0, v[t-1,i,j], v0[i,j])
       u[t,i,j] = a[t,i,j] + 0.16*(a[t,(i+1) % size(i),j] + a[t,(i+size(i)-1) % size(i),j] + a[t,i,(j+1) % size(j)]
                  + a[t,i,(j+size(j)-1) % size(j)] - 4*a[t,i,j]) - a[t,i,j]*b[t,i,j]**2 + 0.06*(1 - a[t,i,j])
       v[t,i,j] = b[t,i,j] + 0.08*(b[t,(i+1) % size(i),j] + b[t,(i+size(i)-1) % size(i),j] + b[t,i,(j+1) % size(j)]
                  + b[t,i,(j+size(j)-1) % size(j)] - 4*b[t,i,j]) + a[t,i,j]*b[t,i,j]**2 - 0.122*b[t,i,j]
       x[i,j] = u[2,i,j]
       y[i,j] = v[2,i,j]
       return x, y""",
    lambda torch, u0, v0: _gray_scott(torch, u0, v0),
    extents={"t": 3}, u0="h w", v0="h w", sizes={"h": (4, 7, 1), "w": (3, 5, 6)},
)  # fmt: skip

operator(
    "residual of Burgers' equation", "Raissi, Perdikaris, Karniadakis 2019, section 3.1",
    """r[t,x] = u[t+1,x+1] - u[t,x+1] + 0.1*u[t,x+1]*(u[t,x+2] - u[t,x])/2 - 0.01*(u[t,x+2] - 2*u[t,x+1] + u[t,x])
       loss[] = mean[t,x](r[t,x]**2)""",
    lambda torch, u: (
        u[1:, 1:-1] - u[:-1, 1:-1] + 0.05 * u[:-1, 1:-1] * (u[:-1, 2:] - u[:-1, :-2]) - 0.01 * u[:-1].diff(n=2, dim=1)
    ).square().mean(),
    extents={"t": "u.shape[0]-1", "x": "u.shape[1]-2"}, u="h+1 w+2", sizes={"w": (6, 15, 1)},
)  # fmt: skip

operator(
    "lattice Boltzmann collision and streaming, D1Q3", "Bhatnagar, Gross, Krook 1954",
    """rho[i] = sum[q](f[q,i])
       m[i] = f[1,i] - f[2,i]
       e[q,i] = where(q == 0, 2.0/3*rho[i] - m[i]**2/rho[i],
                      rho[i]/6 + where(q == 1, 0.5, -0.5)*m[i] + m[i]**2/(2*rho[i]))
       out[q,i] = (f[q, (i + where(q == 1, size(i) - 1, where(q == 2, 1, 0))) % size(i)]*(1 - w)
                   + w*e[q, (i + where(q == 1, size(i) - 1, where(q == 2, 1, 0))) % size(i)])""",
    lambda torch, f, w: (
        lambda rho, u: torch.stack([
            ((1 - w) * f[q] + w * (c * rho * (1 + 3 * s * u + 4.5 * s * s * u * u - 1.5 * u * u))).roll(s)
            for q, (c, s) in enumerate([(2 / 3, 0), (1 / 6, 1), (1 / 6, -1)])
        ])
    )(f.sum(0), (f[1] - f[2]) / f.sum(0)),
    extents={"i": "f.shape[1]"}, parameters={"w": 0.8}, f="3 n | positive", sizes={"n": (6, 17, 2)},
)  # fmt: skip


def _rk4(torch, x, W):
    def f(x):
        return torch.tanh(x @ W)

    for _ in range(2):
        a = f(x)
        b = f(x + 0.05 * a)
        c = f(x + 0.05 * b)
        d = f(x + 0.1 * c)
        x = x + (a + 2 * b + 2 * c + d) / 60
    return x


operator(
    "neural differential equation by Runge and Kutta", "Chen, Rubanova, Bettencourt, Duvenaud 2018, Neural ODEs",
    """p[t,b,i] = where(t > 0, x[t-1,b,i], x0[b,i])
       k1[t,b,i] = tanh(sum[j](p[t,b,j]*W[j,i]))
       k2[t,b,i] = tanh(sum[j]((p[t,b,j] + 0.05*k1[t,b,j])*W[j,i]))
       k3[t,b,i] = tanh(sum[j]((p[t,b,j] + 0.05*k2[t,b,j])*W[j,i]))
       k4[t,b,i] = tanh(sum[j]((p[t,b,j] + 0.1*k3[t,b,j])*W[j,i]))
       x[t,b,i] = p[t,b,i] + (k1[t,b,i] + 2*k2[t,b,i] + 2*k3[t,b,i] + k4[t,b,i])/60
       out[b,i] = x[1,b,i]
       return out""",
    lambda torch, x0, W: _rk4(torch, x0, W),
    extents={"t": 2}, x0="b d", W="d d",
)  # fmt: skip


def _leapfrog(torch, q, p):
    for _ in range(4):
        p = p - 0.05 * torch.sin(q)
        q = q + 0.1 * p
        p = p - 0.05 * torch.sin(q)
    return q, p


operator(
    "leapfrog of a pendulum", "Greydanus, Dzamba, Yosinski 2019, Hamiltonian neural networks, section 3",
    """a[t,b] = where(t > 0, q[t-1,b], q0[b])
       h[t,b] = where(t > 0, p[t-1,b], p0[b]) - 0.05*sin(a[t,b])
       q[t,b] = a[t,b] + 0.1*h[t,b]
       p[t,b] = h[t,b] - 0.05*sin(q[t,b])
       Q[b] = q[3,b]
       P[b] = p[3,b]
       return Q, P""",
    lambda torch, q0, p0: _leapfrog(torch, q0, p0),
    extents={"t": 4}, q0="n", p0="n",
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ linear algebra


def _jacobi(torch, A, b):
    x = torch.zeros_like(b)
    d = A.diagonal()
    for _ in range(4):
        x = (b - (A - d.diag_embed()) @ x) / d
    return x


operator(
    "Jacobi iteration", "Jacobi 1845",
    """x[t,i] = (b[i] - sum[j](where(i == j or t == 0, 0, A[i,j]*x[max(t-1, 0),j])))/A[i,i]
       out[i] = x[3,i]
       return out""",
    lambda torch, A, b: _jacobi(torch, A, b),
    extents={"t": 4}, A="n n | positive", b="n", sizes={"n": (5, 9, 1)},
)  # fmt: skip

operator(
    "forward substitution", "Golub, Van Loan 2013, Matrix computations, algorithm 3.1.1",
    "x[i,k] = (b[i,k] - sum[j](where(j < i, L[i,j]*x[j,k], 0)))/L[i,i]",
    lambda torch, L, b: torch.linalg.solve_triangular(L.tril(), b, upper=False),
    extents={"j": "L.shape[0]"}, L="n n | positive", b="n k", sizes={"n": (5, 9, 2)},
)  # fmt: skip

operator(
    "tridiagonal system by Thomas", "Thomas 1949, Elliptic problems in linear difference equations",
    """w[i] = where(i > 0, a[i]/(8 + where(i > 0, v[max(i-1, 0)], 0)), 0)
       v[i] = where(i > 0, -w[i]*c[i-1], 0)
       y[i] = d[i] - where(i > 0, w[i]*y[max(i-1, 0)], 0)
       x[i] = (y[i] - where(i < size(i)-1, c[i]*x[min(i+1, size(i)-1)], 0))/(8 + v[i])
       return x""",
    lambda torch, a, c, d: torch.linalg.solve(
        8 * torch.eye(len(d)).to(d) + a[1:].diag_embed(-1) + c[:-1].diag_embed(1), d
    ),
    a="n", c="n", d="n", sizes={"n": (6, 17, 2)},
)  # fmt: skip


def _newton_inverse(torch, A):
    X = A.T / A.square().sum()
    for _ in range(3):
        X = X @ (2 * torch.eye(len(A)).to(A) - A @ X)
    return X


operator(
    "inverse by Newton and Schulz", "Schulz 1933, Iterative Berechnung der reziproken Matrix",
    """z[] = sum[i,j](A[i,j]**2)
       p[t,i,j] = where(t > 0, X[max(t-1, 0),i,j], A[j,i]/z[])
       R[t,i,j] = where(i == j, 2.0, 0.0) - sum[k](A[i,k]*p[t,k,j])
       X[t,i,j] = sum[k](p[t,i,k]*R[t,k,j])
       out[i,j] = X[2,i,j]
       return out""",
    lambda torch, A: _newton_inverse(torch, A),
    extents={"t": 3}, A="n n", sizes={"n": (4, 9, 1)},
)  # fmt: skip


def _sinkhorn(torch, C, a, b):
    K = torch.exp(-C)
    v = torch.ones_like(b)
    for _ in range(3):
        u = a / (K @ v)
        v = b / (K.T @ u)
    return (u[:, None] * K * v * C).sum()


operator(
    "Sinkhorn distance", "Cuturi 2013, Sinkhorn distances, algorithm 1",
    """K[i,j] = exp(-C[i,j])
       u[t,i] = a[i]/sum[j](K[i,j]*where(t > 0, v[max(t-1, 0),j], 1.0))
       v[t,j] = b[j]/sum[i](K[i,j]*u[t,i])
       d[] = sum[i,j](u[2,i]*K[i,j]*v[2,j]*C[i,j])
       return d""",
    lambda torch, C, a, b: _sinkhorn(torch, C, a, b),
    extents={"t": 3}, C="n m", a="n | positive", b="m | positive",
)  # fmt: skip


def _power(torch, A, v):
    for _ in range(3):
        v = A @ v
        v = v / v.norm()
    return v @ A @ v


operator(
    "largest eigenvalue by power iteration", "von Mises, Pollaczek-Geiringer 1929",
    """w[t,i] = sum[j](A[i,j]*where(t > 0, v[max(t-1, 0),j], v0[j]))
       v[t,i] = w[t,i]/sqrt(sum[k](w[t,k]**2))
       e[] = sum[i,j](v[2,i]*A[i,j]*v[2,j])
       return e""",
    lambda torch, A, v0: _power(torch, A, v0),
    extents={"t": 3}, A="n n", v0="n",
)  # fmt: skip

operator(
    "Householder reflections", "Householder 1958, Unitary triangularization of a nonsymmetric matrix",
    "y[b,i] = x[b,i] - 2*v[i]*sum[j](v[j]*x[b,j])/sum[j](v[j]**2)",
    lambda torch, x, v: x @ (torch.eye(len(v)).to(v) - 2 * torch.outer(v, v) / v.dot(v)),
    x="b n", v="n",
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ graphics, signals


def _volume(torch, s, c, d):
    alpha = 1 - torch.exp(-s * d)
    light = torch.cumprod(torch.cat([torch.ones(len(s), 1).to(s), 1 - alpha[:, :-1]], 1), 1)
    return ((light * alpha)[..., None] * c).sum(1)


operator(
    "volume rendering", "Mildenhall et al. 2020, NeRF, eq. 3",
    """o[b,n] = where(n > 0, o[b,n-1] + s[b,n-1]*d[b,n-1], 0.0)
       C[b,k] = sum[n](exp(-o[b,n])*(1 - exp(-s[b,n]*d[b,n]))*c[b,n,k])
       return C""",
    lambda torch, s, d, c: _volume(torch, s, c, d),
    s="b n | positive", d="b n | positive", c="b n 3",
)  # fmt: skip

operator(
    "positional encoding of coordinates", "Mildenhall et al. 2020, NeRF, eq. 4",
    """y[b,i,2*k] = sin(pow(2.0, k)*x[b,i])
       y[b,i,2*k+1] = cos(pow(2.0, k)*x[b,i])""",
    lambda torch, x: torch.stack([f(2**k * x) for k in range(4) for f in (torch.sin, torch.cos)], 2),
    extents={"k": 4}, x="b 3",
)  # fmt: skip

operator(
    "front-to-back compositing", "Porter, Duff 1984, Compositing digital images, section 4.1",
    """t[n,b] = where(n > 0, t[max(n-1, 0),b]*(1 - a[max(n-1, 0),b]), 1.0)
       out[b,k] = sum[n](t[n,b]*a[n,b]*c[n,b,k])
       return out""",
    lambda torch, a, c: sum(
        (torch.prod(1 - a[:n], 0) * a[n])[:, None] * c[n] for n in range(len(a))
    ),
    a="n b | unit", c="n b 3",
)  # fmt: skip

operator(
    "bilateral filter", "Tomasi, Manduchi 1998, Bilateral filtering for gray and color images, eq. 3",
    """g[h,w,r,s] = exp(-((r-1)**2 + (s-1)**2)/2.0 - (x[h+r,w+s] - x[h+1,w+1])**2)
       y[h,w] = sum[r,s](g[h,w,r,s]*x[h+r,w+s])/sum[r,s](g[h,w,r,s])""",
    lambda torch, x: (
        lambda u, g: (u * g).sum(0) / g.sum(0)
    )(*(lambda u: (u, torch.exp(
        -torch.tensor([2, 1, 2, 1, 0, 1, 2, 1, 2])[:, None, None].to(x) / 2 - (u - u[4]).square()
    )))(torch.stack([x[r:len(x) - 2 + r, s:x.shape[1] - 2 + s] for r in range(3) for s in range(3)]))),
    extents={"r": 3, "s": 3}, x="h+2 w+2",
)  # fmt: skip

operator(
    "structural similarity of windows", "Wang, Bovik, Sheikh, Simoncelli 2004, Image quality assessment, eq. 13",
    """a[b,h,w] = mean[r,s](x[b,h+r,w+s])
       c[b,h,w] = mean[r,s](y[b,h+r,w+s])
       va[b,h,w] = mean[r,s](x[b,h+r,w+s]**2) - a[b,h,w]**2
       vc[b,h,w] = mean[r,s](y[b,h+r,w+s]**2) - c[b,h,w]**2
       ac[b,h,w] = mean[r,s](x[b,h+r,w+s]*y[b,h+r,w+s]) - a[b,h,w]*c[b,h,w]
       m[] = mean[b,h,w]((2*a[b,h,w]*c[b,h,w] + 0.01)*(2*ac[b,h,w] + 0.03)
             /((a[b,h,w]**2 + c[b,h,w]**2 + 0.01)*(va[b,h,w] + vc[b,h,w] + 0.03)))""",
    lambda torch, x, y: (
        lambda f: (
            (2 * f(x) * f(y) + 0.01) * (2 * (f(x * y) - f(x) * f(y)) + 0.03)
            / ((f(x) ** 2 + f(y) ** 2 + 0.01) * (f(x * x) - f(x) ** 2 + f(y * y) - f(y) ** 2 + 0.03))
        ).mean()
    )(lambda z: torch.nn.functional.avg_pool2d(z[:, None], 3, 1)),
    extents={"r": 3, "s": 3}, x="b h+2 w+2", y="b h+2 w+2",
)  # fmt: skip

operator(
    "total variation", "Rudin, Osher, Fatemi 1992, Nonlinear total variation based noise removal, eq. 2.4",
    "v[b] = sum[h,w](sqrt((x[b,h+1,w] - x[b,h,w])**2 + (x[b,h,w+1] - x[b,h,w])**2 + 0.000001))",
    lambda torch, x: (
        x.diff(dim=1)[:, :, :-1].square() + x.diff(dim=2)[:, :-1].square() + 1e-6
    ).sqrt().sum((1, 2)),
    extents={"h": "x.shape[1]-1", "w": "x.shape[2]-1"}, x="b h+1 w+1",
)  # fmt: skip

operator(
    "Gram matrix of features", "Gatys, Ecker, Bethge 2016, Image style transfer, eq. 3",
    "G[b,i,j] = sum[h,w](x[b,i,h,w]*x[b,j,h,w])/(size(i)*x.shape[2]*x.shape[3])",
    lambda torch, x: torch.bmm(x.flatten(2), x.flatten(2).mT) / x[0].numel(),
    x="b c h w",
)  # fmt: skip

operator(
    "second-order recursive filter", "Oppenheim, Schafer 2009, Discrete-time signal processing, section 6.3",
    """y[b,t] = (c[0]*x[b,t] + where(t > 0, c[1]*x[b,t-1] - c[2]*y[b,t-1], 0)
                 + where(t > 1, c[3]*x[b,t-2] - c[4]*y[b,t-2], 0))""",
    lambda torch, c, x: (lambda y: [
        y.append(c[0] * x[:, t] + (c[1] * x[:, t - 1] - c[2] * y[t - 1] if t else 0)
                 + (c[3] * x[:, t - 2] - c[4] * y[t - 2] if t > 1 else 0)) for t in range(x.shape[1])
    ] and torch.stack(y, 1))([]),
    c="5 | unit", x="b t",
)  # fmt: skip

operator(
    "discrete cosine transform of blocks", "Ahmed, Natarajan, Rao 1974, Discrete cosine transform, eq. 1",
    "y[b,q,k] = sum[n](x[b,8*q+n]*cos(3.141592653589793*(2*n + 1)*k/16))",
    lambda torch, x: x.unflatten(1, (-1, 8)) @ torch.cos(
        torch.pi / 8 * torch.outer(torch.arange(8) + 0.5, torch.arange(8)).to(x)
    ),
    extents={"n": 8, "k": 8, "q": "x.shape[1]//8"}, x="b 8*n",
    sizes={"n": (2, 5, 1)},
)  # fmt: skip
