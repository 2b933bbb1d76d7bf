"""The gallery: products, attention, norms, sums, data-dependent reads, losses."""

from __future__ import annotations

from tests.gallery.entry import Ints, entry

entry(
    "matrix product",
    "C[i,j] = sum[k](A[i,k] * B[k,j])",
    [{"A": (15, 17), "B": (17, 3)}, {"A": (1, 7), "B": (7, 16)}],
    lambda T, A, B: A @ B,
)
entry(
    "three factors",
    "Y[b,o] = sum[i,j](W[o,i,j] * X[b,i] * Z[b,j])",
    [{"W": (4, 3, 5), "X": (7, 3), "Z": (7, 5)}, {"W": (1, 7, 2), "X": (3, 7), "Z": (3, 2)}],
    lambda T, W, X, Z: T.einsum("oij,bi,bj->bo", W, X, Z),
)
entry(
    "max-plus product",
    "C[i,j] = max[k](A[i,k] + B[k,j])",
    [{"A": (5, 7), "B": (7, 3)}, {"A": (16, 1), "B": (1, 15)}],
    lambda T, A, B: (A[:, :, None] + B).amax(1),
)
entry(
    "squared pairwise distances",
    "D[i,j] = sum[k]((X[i,k]-Z[j,k])*(X[i,k]-Z[j,k]))",
    [{"X": (5, 3), "Z": (7, 3)}, {"X": (1, 16), "Z": (15, 16)}],
    lambda T, X, Z: ((X[:, None] - Z) ** 2).sum(-1),
)
entry(
    "pairwise distances",
    "D[i,j] = sqrt(sum[k]((X[i,k]-Z[j,k])*(X[i,k]-Z[j,k])))",
    [{"X": (5, 3), "Z": (7, 3)}, {"X": (1, 16), "Z": (15, 16)}],
    lambda T, X, Z: ((X[:, None] - Z) ** 2).sum(-1).sqrt(),
)
SCORES = "S[b,i,j] = sum[k](Q[b,i,k]*K[b,j,k]) * rsqrt(size(k))"
SOFTMAX = """P[b,i,j] = exp(S[b,i,j] - max[k](S[b,i,k]))
             Y[b,i,d] = sum[j](P[b,i,j]*V[b,j,d]) / sum[j](P[b,i,j])"""


def attention(T, Q, K, V, bias=0.0, causal=False):
    s = Q @ K.transpose(1, 2) / Q.shape[2] ** 0.5 + bias
    if causal:
        s = s.masked_fill(T.ones_like(s).triu(1).bool(), -T.inf)
    return s.softmax(-1) @ V


QKV = [{"Q": (2, 5, 3), "K": (2, 7, 3), "V": (2, 7, 4)}, {"Q": (1, 3, 1), "K": (1, 1, 1), "V": (1, 1, 5)}]
SELF = [{"Q": (2, 5, 3), "K": (2, 5, 3), "V": (2, 5, 4)}, {"Q": (1, 7, 2), "K": (1, 7, 2), "V": (1, 7, 1)}]
entry("attention", f"R{SCORES[1:]}\n{SOFTMAX}".replace("S[", "R["), QKV, attention)
entry(
    "causal attention",
    f"{SCORES.replace('S[', 'R[')}\nS[b,i,j] = where(j <= i, R[b,i,j], -inf)\n{SOFTMAX}",
    SELF,
    lambda T, Q, K, V: attention(T, Q, K, V, causal=True),
)
entry(
    "relative-position attention",
    f"{SCORES.replace('S[', 'R[')}\nS[b,i,j] = R[b,i,j] + B[i-j+Q.shape[1]-1]\n{SOFTMAX}",
    [{**c, "B": (2 * c["Q"][1] - 1,)} for c in SELF],
    lambda T, Q, K, B, V: attention(
        T, Q, K, V, B[T.arange(Q.shape[1])[:, None] - T.arange(Q.shape[1]) + Q.shape[1] - 1]
    ),
)

# ----------------------------------------------------------------------------------------------------- reductions

NORM = "Y[{0}] = (X[{0}] - M[{1}]) * rsqrt(V[{1}] + 1e-5) * W[{2}] + B[{2}]"
entry(
    "layer norm",
    "M[b] = mean[i](X[b,i])\nV[b] = mean[i]((X[b,i]-M[b])*(X[b,i]-M[b]))\n" + NORM.format("b,i", "b", "i"),
    [{"X": (5, 7), "W": (7,), "B": (7,)}, {"X": (1, 17), "W": (17,), "B": (17,)}],
    lambda T, X, W, B: T.nn.functional.layer_norm(X, (X.shape[1],), W, B),
)
entry(
    "batch norm",
    "M[c] = mean[b,h](X[b,c,h])\nV[c] = mean[b,h]((X[b,c,h]-M[c])*(X[b,c,h]-M[c]))\n" + NORM.format("b,c,h", "c", "c"),
    [{"X": (5, 3, 7), "W": (3,), "B": (3,)}, {"X": (16, 1, 2), "W": (1,), "B": (1,)}],
    lambda T, X, W, B: T.nn.functional.batch_norm(X, None, None, W, B, True),
)
GROUP = "c//(X.shape[1]//groups)"
entry(
    "group norm",
    f"""M[b,g] = mean[c,h](X[b,g*(X.shape[1]//groups)+c,h])
        V[b,g] = mean[c,h]((X[b,g*(X.shape[1]//groups)+c,h]-M[b,g])*(X[b,g*(X.shape[1]//groups)+c,h]-M[b,g]))
        Y[b,c,h] = (X[b,c,h] - M[b,{GROUP}]) * rsqrt(V[b,{GROUP}] + 1e-5) * W[c] + B[c]""",
    [{"X": (2, 6, 5), "W": (6,), "B": (6,), "groups": 2}, {"X": (1, 9, 3), "W": (9,), "B": (9,), "groups": 3}],
    lambda T, X, W, B, groups: T.nn.functional.group_norm(X, groups, W, B),
    extents={"g": "groups"},
)
entry(
    "cumulative product",
    "Y[b,i] = prod[k](where(k <= i, X[b,k], 1))",
    [{"X": (2, 5)}, {"X": (3, 7)}],
    lambda T, X: X.cumprod(1),
    extents={"i": "X.shape[1]", "k": "X.shape[1]"},
)
entry("product", "Y[b] = prod[k](X[b,k])", [{"X": (3, 5)}, {"X": (1, 7)}], lambda T, X: X.prod(1))
entry(
    "log of a sum of exponentials",
    "M[b] = max[i](stop_gradient(X[b,i]))\nY[b] = M[b] + log(sum[i](exp(X[b,i] - M[b])))",
    [{"X": (5, 7)}, {"X": (1, 16)}],
    lambda T, X: X.logsumexp(1),
)
entry(
    "log of a sum of exponentials, through its maximum",
    "M[b] = max[i](X[b,i])\nY[b] = M[b] + log(sum[i](exp(X[b,i] - M[b])))",
    [{"X": (5, 7)}, {"X": (1, 16)}],
    lambda T, X: X.logsumexp(1),
)
entry(
    "triangular sums",
    "Y[i] = sum[j](where(j <= i, X[j], 0))",
    [{"X": (9,)}, {"X": (16,)}],
    lambda T, X: X.cumsum(0),
    extents={"i": "X.shape[0]", "j": "X.shape[0]"},
)
entry(
    "triangular product",
    "Y[i,d] = sum[j](where(j <= i, A[i,j]*X[j,d], 0))",
    [{"A": (7, 7), "X": (7, 3)}, {"A": (5, 5), "X": (5, 1)}],
    lambda T, A, X: A.tril() @ X,
    extents={"i": "A.shape[0]", "j": "A.shape[1]"},
)
entry(
    "banded sums",
    "Y[i] = sum[j](where(i-1 <= j and j <= i+2, X[j]*X[i], 0))",
    [{"X": (9,)}, {"X": (3,)}],
    lambda T, X: (T.ones(len(X), len(X), dtype=X.dtype).triu(-1).tril(2) @ X) * X,
    extents={"i": "X.shape[0]", "j": "X.shape[0]"},
)

# ------------------------------------------------------------------------------------------- data-dependent, losses

entry(
    "gather of gather",
    "Y[i] = X[p[q[i]]]",
    [{"X": (9,), "p": Ints((5,), 9), "q": Ints((7,), 5)}, {"X": (3,), "p": Ints((3,), 3), "q": Ints((16,), 3)}],
    lambda T, X, p, q: X[p[q]],
    most=3.0,  # of 3 elements each looks at all 16 places, which is cheaper than sorting these
)
entry(
    "index_add",
    "S[ids[i],k] += 2*X[i,k]\nY[n,k] = B[n,k]*S[n,k]",
    [{"ids": Ints((7,), 5), "X": (7, 3), "B": (5, 3)}, {"ids": Ints((3,), 15), "X": (3, 1), "B": (15, 1)}],
    lambda T, ids, X, B: B * T.zeros_like(B).index_add(0, ids, 2 * X),
)
entry(
    "index_add onto a tensor",
    "S[n,k] = exp(B[n,k])\nS[ids[i],k] += X[i,k]*X[i,k]\nY[n,k] = S[n,k]*S[n,k]",
    [{"ids": Ints((7,), 5), "X": (7, 3), "B": (5, 3)}, {"ids": Ints((3,), 15), "X": (3, 1), "B": (15, 1)}],
    lambda T, ids, X, B: B.exp().index_add(0, ids, X * X) ** 2,
)


def sparse_product(T, row, v, X, col):
    n = T.arange(len(v))
    here = (row[:-1, None] <= n) & (n < row[1:, None])
    return (here * v) @ X[col]


entry(
    "sparse product",
    "Y[r,d] = sum[n](where(row[r] <= n and n < row[r+1], v[n]*X[col[n],d], 0))",
    [
        {"row": Ints((6,), 9, -1), "v": (7,), "X": (5, 3), "col": Ints((7,), 5)},
        {"row": Ints((2,), 17), "v": (16,), "X": (1, 1), "col": Ints((16,), 1)},
    ],
    sparse_product,
    extents={"r": "row.shape[0]-1"},
)
entry(
    "one_hot",
    "Y[i,k] = sum[c](where(ids[i] == c, W[c,k], 0))",
    [{"ids": Ints((7,), 5), "W": (5, 3)}, {"ids": Ints((1,), 16), "W": (16, 2)}],
    lambda T, ids, W: T.nn.functional.one_hot(ids, W.shape[0]).to(W.dtype) @ W,
)
entry(
    "cross-entropy with ignored labels",
    """M[b] = max[c](Z[b,c])
       G[b] = M[b] + log(sum[c](exp(Z[b,c] - M[b])))
       L[] = sum[b](where(y[b] != -100, G[b] - Z[b,y[b]], 0)) / sum[b](where(y[b] != -100, 1.0, 0.0))""",
    [{"Z": (7, 5), "y": Ints((7,), 5, 0, -100)}, {"Z": (16, 3), "y": Ints((16,), 3, 0, -100)}],
    lambda T, Z, y: T.nn.functional.cross_entropy(Z, y),
)
entry(
    "huber loss",
    "L[] = mean[i](where(abs(X[i]-Z[i]) <= delta, 0.5*(X[i]-Z[i])*(X[i]-Z[i]), delta*(abs(X[i]-Z[i]) - 0.5*delta)))",
    [{"X": (7,), "Z": (7,), "delta": 1.0}, {"X": (17,), "Z": (17,), "delta": 0.5}],
    lambda T, X, Z, delta: T.nn.functional.huber_loss(X, Z, delta=delta),
)
entry(
    "hinge loss",
    "L[] = mean[b](sum[c](where(c != y[b], max(0, margin - Z[b,y[b]] + Z[b,c]), 0)) / size(c))",
    [{"Z": (7, 5), "y": Ints((7,), 5), "margin": 1.0}, {"Z": (3, 16), "y": Ints((3,), 16), "margin": 0.3}],
    lambda T, Z, y, margin: (
        (margin - Z.gather(1, y[:, None]) + Z).clamp(min=0) * (1 - T.nn.functional.one_hot(y, Z.shape[1]))
    ).mean(),
)
entry(
    "margin ranking loss",
    "L[] = mean[i](max(0, margin - t[i]*(X[i]-Z[i])))",
    [{"t": (7,), "X": (7,), "Z": (7,), "margin": 0.5}, {"t": (16,), "X": (16,), "Z": (16,), "margin": 0.0}],
    lambda T, t, X, Z, margin: (margin - t * (X - Z)).clamp(min=0).mean(),
)
entry(
    "triplet loss",
    "L[] = mean[b](max(0, margin + sum[k]((A[b,k]-P[b,k])*(A[b,k]-P[b,k])) - sum[k]((A[b,k]-N[b,k])*(A[b,k]-N[b,k]))))",
    [{"A": (5, 3), "P": (5, 3), "N": (5, 3), "margin": 1.0}, {"A": (7, 1), "P": (7, 1), "N": (7, 1), "margin": 0.1}],
    lambda T, A, P, N, margin: (margin + ((A - P) ** 2).sum(1) - ((A - N) ** 2).sum(1)).clamp(min=0).mean(),
)
entry(
    "data-dependent conditions",
    "Y[i] = where(X[i] > Z[i], X[i]*Z[i], where(Z[i] > 0, Z[i]*Z[i], X[i]))",
    [{"X": (9,), "Z": (9,)}, {"X": (16,), "Z": (16,)}],
    lambda T, X, Z: T.where(X > Z, X * Z, T.where(Z > 0, Z * Z, X)),
)
entry(
    "run-time parameters",
    "Y[i] = tanh(a*X[i] + b) * a",
    [{"X": (9,), "a": 0.7, "b": -0.2}, {"X": (16,), "a": -1.5, "b": 2.0}],
    lambda T, X, a, b: T.tanh(a * X + b) * a,
)
entry(
    "pieces",
    "Y[2*i] = X[i]*Z[i]\nY[2*i+1] = max[k](X[k] - Z[i])",
    [{"X": (5,), "Z": (5,)}, {"X": (3,), "Z": (3,)}],
    lambda T, X, Z: T.stack([X * Z, (X[:, None] - Z).amax(0)], 1).reshape(-1),
)
entry(
    "pieces of different reductions",
    "Y[2*i] = max[k](X[i,k])\nY[2*i+1] = prod[k](X[i,k])",
    [{"X": (3, 5)}, {"X": (7, 2)}],
    lambda T, X: T.stack([X.amax(1), X.prod(1)], 1).reshape(-1),
)
