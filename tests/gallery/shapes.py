"""The gallery: indices of every kind, shuffles, pooling, resampling, padding."""

from __future__ import annotations

from tests.gallery.entry import Ints, entry

entry(
    "broadcast of a column",
    "Y[i,j] = A[i,0] * B[i,j]",
    [{"A": (5, 1), "B": (5, 7)}, {"A": (17, 1), "B": (17, 1)}],
    lambda T, A, B: A * B,
)
entry(
    "concatenation of 2",
    "Y[i,j] = where(i < A.shape[0], A[i,j], B[i-A.shape[0],j])",
    [{"A": (5, 3), "B": (4, 3)}, {"A": (1, 7), "B": (16, 7)}],
    lambda T, A, B: T.cat([A, B]),
    extents={"i": "A.shape[0]+B.shape[0]"},
)
entry(
    "concatenation of 3",
    """Y[i,j] = where(j < A.shape[1], A[i,j], where(j < A.shape[1]+B.shape[1], B[i,j-A.shape[1]],
                                                    C[i,j-A.shape[1]-B.shape[1]]))""",
    [{"A": (2, 3), "B": (2, 1), "C": (2, 5)}, {"A": (3, 1), "B": (3, 7), "C": (3, 2)}],
    lambda T, A, B, C: T.cat([A, B, C], 1),
    extents={"j": "A.shape[1]+B.shape[1]+C.shape[1]"},
)
entry(
    "reshape by two remainders",
    "Y[n] = X[n//(X.shape[1]*X.shape[2]), n//X.shape[2] % X.shape[1], n % X.shape[2]]",
    [{"X": (3, 5, 7)}, {"X": (2, 1, 17)}],
    lambda T, X: X.reshape(-1),
    extents={"n": "X.shape[0]*X.shape[1]*X.shape[2]"},
)
entry(
    "reshape that divides nothing",
    "Y[i,j] = X[(i*w+j)//X.shape[1], (i*w+j) % X.shape[1]]",
    [{"X": (7, 5), "w": 7}, {"X": (6, 10), "w": 15}, {"X": (4, 6), "w": 8}],
    lambda T, X, w: X.reshape(-1, w),
    extents={"i": "X.shape[0]*X.shape[1]//w", "j": "w"},
)
entry(
    "polynomial of a slice",
    "Y[h,w] = A[h,w,0]*4 - A[h,w,0]*A[h,w,0]",
    [{"A": (5, 7, 2)}, {"A": (1, 17, 1)}],
    lambda T, A: A[..., 0] * 4 - A[..., 0] ** 2,
)
entry(
    "embedding",
    "Y[i,j,k] = E[ids[i,j],k]",
    [{"E": (15, 3), "ids": Ints((2, 5), 15)}, {"E": (50, 7), "ids": Ints((3, 1), 50)}],
    lambda T, E, ids: E[ids],
)
entry(
    "every second",
    "Y[i] = X[2*i]",
    [{"X": (7,)}, {"X": (16,)}],
    lambda T, X: X[: X.shape[0] // 2 * 2 : 2] if X.shape[0] % 2 == 0 else X[::2],
)
entry(
    "windows X[i+j]",
    "Y[i,j] = X[i+j]",
    [{"X": (7,), "k": 3}, {"X": (17,), "k": 5}],
    lambda T, X, k: X.unfold(0, k, 1),
    extents={"j": "k"},
)
entry(
    "product of axes X[i*j]",
    "Y[i,j] = X[i*j]",
    [{"X": (13,), "n": 4, "m": 5}, {"X": (7,), "n": 3, "m": 4}],
    lambda T, X, n, m: X[T.arange(n)[:, None] * T.arange(m)],
    extents={"i": "n", "j": "m"},
)
entry(
    "i+j with i-j",
    "Y[i,j] = X[i+j, i-j+n-1]",
    [{"X": (9, 9), "n": 5}, {"X": (5, 5), "n": 3}],
    lambda T, X, n: X[T.arange(n)[:, None] + T.arange(n), T.arange(n)[:, None] - T.arange(n) + n - 1],
    extents={"i": "n", "j": "n"},
)
entry(
    "2i+3j",
    "Y[i,j] = X[2*i+3*j]",
    [{"X": (24,), "n": 5, "m": 6}, {"X": (9,), "n": 2, "m": 3}],
    lambda T, X, n, m: X[2 * T.arange(n)[:, None] + 3 * T.arange(m)],
    extents={"i": "n", "j": "m"},
)
entry("reversed", "Y[i] = X[X.shape[0]-1-i]", [{"X": (5,)}, {"X": (16,)}], lambda T, X: X.flip(0))
entry(
    "diagonal",
    "Y[i] = X[i,i]*X[0,i]",
    [{"X": (5, 5)}, {"X": (17, 17)}],
    lambda T, X: X.diagonal() * X[0],
    most=1.5,
)
entry(
    "distance in the index",
    "Y[i,j] = X[abs(i-j)]",
    [{"X": (5,)}, {"X": (7,)}],
    lambda T, X: X[(T.arange(len(X))[:, None] - T.arange(len(X))).abs()],
    extents={"i": "X.shape[0]", "j": "X.shape[0]"},
)
entry(
    "outer product of min and max",
    "Y[i,j] = X[min(i,j)] * Z[max(i,j)]",
    [{"X": (5,), "Z": (5,)}, {"X": (3,), "Z": (3,)}],
    lambda T, X, Z: (
        X[T.minimum(*T.meshgrid(*[T.arange(len(X))] * 2, indexing="ij"))]
        * Z[T.maximum(*T.meshgrid(*[T.arange(len(X))] * 2, indexing="ij"))]
    ),
    extents={"i": "X.shape[0]", "j": "X.shape[0]"},
)

# ------------------------------------------------------------------------------------- shuffles, pooling, resampling

entry(
    "pixel shuffle",
    "Y[b,c,h,w] = X[b, c*r*r + h%r*r + w%r, h//r, w//r]",
    [{"X": (2, 8, 3, 5), "r": 2}, {"X": (1, 9, 4, 1), "r": 3}],
    lambda T, X, r: T.pixel_shuffle(X, r),
    extents={"c": "X.shape[1]//(r*r)", "h": "X.shape[2]*r", "w": "X.shape[3]*r"},
)
entry(
    "pixel unshuffle",
    "Y[b,k,h,w] = X[b, k//(r*r), h*r + k//r%r, w*r + k%r]",
    [{"X": (2, 3, 4, 6), "r": 2}, {"X": (1, 1, 9, 3), "r": 3}],
    lambda T, X, r: T.pixel_unshuffle(X, r),
    extents={"k": "X.shape[1]*r*r", "h": "X.shape[2]//r", "w": "X.shape[3]//r"},
)
entry(
    "channel shuffle",
    "Y[b,k,h] = X[b, k%g*(X.shape[1]//g) + k//g, h]",
    [{"X": (2, 6, 5), "g": 2}, {"X": (1, 15, 3), "g": 5}],
    lambda T, X, g: X.reshape(X.shape[0], g, -1, X.shape[2]).transpose(1, 2).reshape(X.shape),
    extents={"k": "X.shape[1]"},
)
POOLS = {"r": "k", "s": "k", "p": "(X.shape[2]+2*padding-k)//stride+1", "q": "(X.shape[3]+2*padding-k)//stride+1"}
WINDOW = "X[b,c,stride*p+r-padding,stride*q+s-padding]"
INSIDE = (
    "0 <= stride*p+r-padding and stride*p+r-padding < X.shape[2] and "
    "0 <= stride*q+s-padding and stride*q+s-padding < X.shape[3]"
)
for name, k, stride, padding in (("", 2, 2, 0), ("overlapping ", 3, 2, 0), ("padded ", 3, 2, 1), ("sparse ", 2, 3, 0)):
    shapes = [{"X": s, "k": k, "stride": stride, "padding": padding} for s in ((2, 3, 7, 8), (1, 1, 9, 5))]
    entry(
        f"{name}max pooling",
        f"Y[b,c,p,q] = max[r,s](where({INSIDE}, {WINDOW}, -inf))",
        shapes,
        lambda T, X, k, stride, padding: T.nn.functional.max_pool2d(X, k, stride, padding),
        extents=POOLS,
    )
    entry(
        f"{name}average pooling",
        f"Y[b,c,p,q] = sum[r,s](where({INSIDE}, {WINDOW}, 0)) / (k*k)",
        shapes,
        lambda T, X, k, stride, padding: T.nn.functional.avg_pool2d(X, k, stride, padding),
        extents=POOLS,
    )
START, STOP = "X.shape[1]*i//n", "(X.shape[1]*(i+1)+n-1)//n"
ADAPTIVE = [{"X": (2, 7), "n": 3}, {"X": (3, 17), "n": 5}, {"X": (1, 5), "n": 7}]
entry(
    "adaptive average pooling",
    f"Y[b,i] = sum[r](where(r < {STOP} - {START}, X[b,{START}+r], 0)) / ({STOP} - {START})",
    ADAPTIVE,
    lambda T, X, n: T.nn.functional.adaptive_avg_pool1d(X, n),
    extents={"i": "n", "r": "(X.shape[1]+n-1)//n+1"},
)
entry(
    "adaptive max pooling",
    f"Y[b,i] = max[r](where(r < {STOP} - {START}, X[b,{START}+r], -inf))",
    ADAPTIVE,
    lambda T, X, n: T.nn.functional.adaptive_max_pool1d(X, n),
    extents={"i": "n", "r": "(X.shape[1]+n-1)//n+1"},
)
entry(
    "nearest upsampling",
    "Y[b,h,w] = X[b, h*X.shape[1]//n, w*X.shape[2]//m]",
    [{"X": (2, 3, 5), "n": 6, "m": 15}, {"X": (1, 4, 3), "n": 7, "m": 5}],
    lambda T, X, n, m: T.nn.functional.interpolate(X[:, None], (n, m))[:, 0],
    extents={"h": "n", "w": "m"},
)
LOW, HIGH = "max((2*{0}-1)//4, 0)", "min(max((2*{0}-1)//4, 0)+1, X.shape[{1}]-1)"
SHARE = "(max((2*{0}-1)/4, 0) - max((2*{0}-1)//4, 0))"


def blend(read: str, axis: str, dim: int) -> str:
    """A weighted mean of the two elements next to half the position along one axis."""
    low, high = (read.format(index.format(axis, dim)) for index in (LOW, HIGH))
    return f"{low}*(1-{SHARE.format(axis)}) + {high}*{SHARE.format(axis)}"


entry(
    "bilinear upsampling",
    "H[b,h,x] = " + blend("X[b,{},x]", "h", 1) + "\nY[b,h,w] = " + blend("H[b,h,{}]", "w", 2),
    [{"X": (2, 3, 5)}, {"X": (1, 4, 1)}],
    lambda T, X: T.nn.functional.interpolate(X[:, None], scale_factor=2, mode="bilinear")[:, 0],
    extents={"h": "2*X.shape[1]", "w": "2*X.shape[2]"},
)
for mode, at in (
    ("circular", "(i-l) % X.shape[1]"),
    ("reflect", "X.shape[1]-1 - abs(X.shape[1]-1 - abs(i-l))"),
    ("replicate", "min(max(i-l, 0), X.shape[1]-1)"),
):
    name = {"circular": "periodic", "reflect": "reflected", "replicate": "replicated"}[mode]
    entry(
        f"{name} padding",
        f"Y[b,i] = X[b,{at}]",
        [{"X": (2, 5), "l": 2, "r": 3}, {"X": (1, 7), "l": 1, "r": 0}],
        lambda T, X, l, r, mode=mode: T.nn.functional.pad(X[None], (l, r), mode=mode)[0],  # noqa: E741
        extents={"i": "X.shape[1]+l+r"},
    )
entry(
    "convolution with replicated edges",
    "Y[b,i] = sum[r](X[b,min(max(i+r-1, 0), X.shape[1]-1)] * W[r])",
    [{"X": (2, 7), "W": (3,)}, {"X": (1, 5), "W": (3,)}],
    lambda T, X, W: T.nn.functional.pad(X[:, None], (1, 1), mode="replicate")[:, 0].unfold(1, 3, 1) @ W,
    extents={"i": "X.shape[1]"},
)
entry(
    "a guard on a remainder",
    "Y[i] = where(i%2 + i < X.shape[0], X[i%2+i], 0)",
    [{"X": (2,), "n": 3}, {"X": (7,), "n": 8}],
    lambda T, X, n: T.stack([X[i % 2 + i] if i % 2 + i < len(X) else X[0] * 0 for i in range(n)]),
    extents={"i": "n"},
)
entry(
    "a guard on a distance",
    "Y[i,j] = where(abs(2*j-4) < 1 and abs(j-2*i+1) < X.shape[1], X[abs(4-2*j), abs(j-2*i+1)], 0)",
    [{"X": (1, 3)}, {"X": (2, 5)}],
    lambda T, X: T.stack(
        [
            X[0, abs(3 - 2 * i)] if j == 2 and abs(3 - 2 * i) < X.shape[1] else X[0, 0] * 0
            for i in range(4)
            for j in range(3)
        ]
    ).reshape(4, 3),
    extents={"i": 4, "j": 3},
)
entry(
    "a guard on a minimum",
    "Y[i] = where(min(i,1) + i < X.shape[0], X[min(i,1) + i], 0)",
    [{"X": (2,), "n": 3}, {"X": (7,), "n": 8}],
    lambda T, X, n: T.stack([X[min(i, 1) + i] if min(i, 1) + i < len(X) else X[0] * 0 for i in range(n)]),
    extents={"i": "n"},
)
