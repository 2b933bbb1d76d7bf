"""Formulas as operators of PyTorch beside the same mathematics in PyTorch, for the tests of operators."""

from __future__ import annotations

import torch

import einsmith as es
from einsmith.frontends.torch import operator


class Case:
    """An operator of a formula or function, its twin, what draws its inputs, and numbers that go by keyword."""

    def __init__(self, f, plain, *draws, extents=None, **numbers):
        self.text = f if isinstance(f, str) else None
        self.extents = extents
        self.op = operator(es.op(f, extents) if self.text else f)
        self.twin, self.draws, self.numbers = plain, draws, numbers

    def functions(self, inputs):
        """(ours, theirs): of the float inputs alone, giving the tuple of the float outputs."""
        at = [i for i, x in enumerate(inputs) if x.is_floating_point()]

        def bound(f):
            def call(*floats):
                given = list(inputs)
                for i, x in zip(at, floats, strict=True):
                    given[i] = x
                out = f(*given, **self.numbers)
                return tuple(o for o in (out if isinstance(out, tuple) else (out,)) if o.is_floating_point())

            return call

        return bound(self.op), bound(self.twin), tuple(inputs[i] for i in at)

    def inputs(self, rng, grad=False):
        drawn = [d(rng) if callable(d) else torch.tensor(rng.standard_normal(d)) for d in self.draws]
        return [x.requires_grad_(grad and x.is_floating_point()) for x in drawn]


def integers(low, high, *shape):
    return lambda rng: torch.tensor(rng.integers(low, high, shape))


def recurrent(x, u):
    h, out = torch.zeros_like(x[0]), []
    for row in x:
        h = torch.tanh(row + h @ u)
        out.append(h)
    return torch.stack(out)


def added(ids, x, n):
    return torch.zeros(n, x.shape[1], dtype=x.dtype).index_add(0, ids, x * x)


def running_products(x):
    out = [x[0]]
    for row in x[1:]:
        out.append(row + out[-1].cumprod(0))
    return torch.stack(out)


CASES = {
    "product": Case("C[i,j] = sum[k](A[i,k] * sin(B[k,j]))", lambda a, b: a @ b.sin(), (3, 5), (5, 2)),
    "convolution": Case(
        "y[b,o,i] = sum[c,r](x[b,c,2*i+r] * w[o,c,r] * w[o,c,r])",
        lambda x, w: torch.nn.functional.conv1d(x, w * w, stride=2), (2, 3, 7), (2, 3, 3),
    ),
    "max plus": Case(
        "C[i,j] = max[k](A[i,k] + B[k,j] * B[k,j])",
        lambda a, b: (a[:, :, None] + (b * b)[None]).amax(1), (3, 5), (5, 2),
    ),
    "embedding": Case(
        "Y[t,k] = E[ids[t],k] * E[ids[t],k] * E[0,k]",
        lambda e, ids: e[ids] ** 2 * e[0], (5, 3), integers(0, 5, 7),
    ),
    "several outputs": Case(
        "S[i] = sum[j](A[i,j]*w[j])\nM[i,j] = exp(A[i,j]) * w[j] + S[i]\nreturn S, M",
        lambda a, w: (a @ w, a.exp() * w + (a @ w)[:, None]), (3, 5), (5,),
    ),
    "positions": Case(
        lambda x: (x.argmax(1), (x * x * x).sum(1)),
        lambda x: (x.argmax(1).int(), (x**3).sum(1)), (4, 7),
    ),
    "number": Case(
        "y[i] = alpha * sin(x[i]) * x[i] / alpha / alpha",
        lambda x, alpha: x.sin() * x / alpha, (5,), alpha=0.7,
    ),
    "recurrence": Case(
        "h[t,k] = tanh(x[t,k] + where(t > 0, sum[j](h[t-1,j] * U[j,k]), 0))", recurrent, (4, 3), (3, 3)
    ),
    "cumulated": Case(
        "y[i,j] = where(i > 0, y[i-1,j] * x[i,j], x[i,j])", lambda x: x.cumprod(0), (4, 3)
    ),
    "scatter": Case(
        "y[ids[t],k] += x[t,k] * x[t,k]",
        lambda ids, x: added(ids, x, 6), integers(0, 6, 9), (9, 2), extents={"y.shape[0]": 6},
    ),
    "capsules": Case(
        "C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,2*p+r,2*q+s,i,m] * W[k,c,r,s,m,j])",
        lambda a, w: torch.einsum("bcpqimrs,kcrsmj->bkpqij", a.unfold(2, 2, 2).unfold(3, 3, 2), w),
        (1, 2, 5, 4, 1, 2), (2, 2, 2, 3, 2, 2),
    ),
    "distance": Case(
        "D[i,j] = sqrt(sum[k]((X[i,k]-Y[j,k]) * (X[i,k]-Y[j,k])))",
        lambda x, y: ((x[:, None] - y[None]) ** 2).sum(2).sqrt(), (4, 3), (3, 3),
    ),
    "guarded index": Case(
        "Y[i,k] = where(ids[i] >= 0, E[ids[i],k]*E[0,k], 1)",
        lambda ids, e: torch.where(ids[:, None] >= 0, e[ids.clamp(0)] * e[0], 1),
        lambda rng: torch.tensor([2, -7, 0]), (4, 3),
    ),
    "recurrence of products": Case(
        "y[t,i] = x[t,i] + where(t > 0, prod[k](where(k <= i, y[t-1,k], 1)), 0)", running_products, (3, 4),
    ),
    "guarded": Case(
        "y[i] = where(i > 1, x[i-2] * x[i], exp(x[i]))",
        lambda x: torch.cat([x[:2].exp(), x[:-2] * x[2:]]), (7,),
    ),
}  # fmt: skip
