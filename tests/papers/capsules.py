"""Capsules and their routing."""

from __future__ import annotations

from tests.papers.operator import operator

operator(
    "squash", "Sabour, Frosst, Hinton 2017, Dynamic routing between capsules, eq. 1",
    """n[b,i] = sum[d](s[b,i,d]**2)
       v[b,i,d] = s[b,i,d]*sqrt(n[b,i])/(1 + n[b,i])""",
    lambda torch, s: s * s.norm(dim=-1, keepdim=True) / (1 + s.square().sum(-1, keepdim=True)),
    s="b i d",
)  # fmt: skip


def _routing(torch, u):
    logits = torch.zeros(u.shape[:3], dtype=u.dtype)
    for turn in range(3):
        s = torch.einsum("bij,bijd->bjd", logits.softmax(2), u)
        squared = s.square().sum(-1, keepdim=True)
        v = s * squared.sqrt() / (1 + squared)
        if turn < 2:
            logits = logits + torch.einsum("bijd,bjd->bij", u, v)
    return v


operator(
    "dynamic routing, three iterations", "Sabour, Frosst, Hinton 2017, procedure 1",
    """a[t,b,i,j] = where(t > 0, a[t-1,b,i,j] + sum[d](u[b,i,j,d]*v[t-1,b,j,d]), 0)
       top[t,b,i] = max[j](a[t,b,i,j])
       z[t,b,i] = sum[j](exp(a[t,b,i,j] - top[t,b,i]))
       s[t,b,j,d] = sum[i](exp(a[t,b,i,j] - top[t,b,i])/z[t,b,i]*u[b,i,j,d])
       n[t,b,j] = sum[d](s[t,b,j,d]**2)
       v[t,b,j,d] = s[t,b,j,d]*sqrt(n[t,b,j])/(1 + n[t,b,j])
       out[b,j,d] = v[2,b,j,d]
       return out""",
    _routing, extents={"t": 3}, u="b i j d",
)  # fmt: skip

operator(
    "margin loss", "Sabour, Frosst, Hinton 2017, eq. 4",
    """n[b,k] = sqrt(sum[d](v[b,k,d]**2))
       loss[] = sum[b,k](where(y[b] == k, max(0.9 - n[b,k], 0.0)**2, 0.5*max(n[b,k] - 0.1, 0.0)**2))""",
    lambda torch, v, y: (lambda n, t: (
        t * (0.9 - n).clamp(min=0) ** 2 + 0.5 * (1 - t) * (n - 0.1).clamp(min=0) ** 2
    ).sum())(v.norm(dim=-1), torch.nn.functional.one_hot(y, v.shape[1]).to(v.dtype)),
    v="b k d", y="b | int k",
)  # fmt: skip

operator(
    "votes of matrix capsules", "Hinton, Sabour, Frosst 2018, Matrix capsules with EM routing, section 2",
    "V[b,i,j,p,q] = sum[r](M[b,i,p,r]*W[i,j,r,q])",
    lambda torch, M, W: M[:, :, None] @ W,
    M="b i 4 4", W="i j 4 4",
)  # fmt: skip
