"""Operators of vision: attention in windows, sampling at learned positions, rendering, convolutions of other kinds."""

from __future__ import annotations

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from benchmarks.showpieces.case import Peer, Showpiece
from benchmarks.showpieces.peers import vision as peers

WINDOW = "Hassani, Walton, Li, Li, Shi 2023, Neighborhood attention transformer, "
DETR = "Zhu, Su, Lu, Li, Wang, Dai 2021, Deformable DETR, "
DCN = "Zhu, Hu, Lin, Dai 2019, Deformable ConvNets v2, "
GAUSSIANS = "Kerbl, Kopanas, Leimkühler, Drettakis 2023, 3D Gaussian splatting, "

NEIGHBOURS_2D = """
s[h,i,j,a,b] = sum[d](q[h,i,j,d]*k[h,min(max(i-3, 0), k.shape[1]-7)+a,
    min(max(j-3, 0), k.shape[2]-7)+b,d])*rsqrt(size(d))
m[h,i,j] = stop_gradient(max[a,b](s[h,i,j,a,b]))
e[h,i,j,a,b] = exp(s[h,i,j,a,b] - m[h,i,j])
z[h,i,j] = sum[a,b](e[h,i,j,a,b])
y[h,i,j,d] = sum[a,b](e[h,i,j,a,b]*v[h,min(max(i-3, 0), k.shape[1]-7)+a,min(max(j-3, 0), k.shape[2]-7)+b,d])/z[h,i,j]
return y
"""

NEIGHBOURS_3D = """
s[h,t,i,j,c,a,b] = sum[d](q[h,t,i,j,d]*k[h,min(max(t-1, 0), k.shape[1]-3)+c,min(max(i-2, 0), k.shape[2]-5)+a,
    min(max(j-2, 0), k.shape[3]-5)+b,d])*rsqrt(size(d))
m[h,t,i,j] = stop_gradient(max[c,a,b](s[h,t,i,j,c,a,b]))
e[h,t,i,j,c,a,b] = exp(s[h,t,i,j,c,a,b] - m[h,t,i,j])
y[h,t,i,j,d] = sum[c,a,b](e[h,t,i,j,c,a,b]*v[h,min(max(t-1, 0), k.shape[1]-3)+c,min(max(i-2, 0), k.shape[2]-5)+a,
    min(max(j-2, 0), k.shape[3]-5)+b,d])/sum[c,a,b](e[h,t,i,j,c,a,b])
return y
"""

DEFORMABLE_ATTENTION = """
fx[q,h,l,p] = loc[q,h,l,p,0]*hw[l,1] - 0.5
fy[q,h,l,p] = loc[q,h,l,p,1]*hw[l,0] - 0.5
X[q,h,l,p,r] = i32(floor(fx[q,h,l,p])) + r
Y[q,h,l,p,s] = i32(floor(fy[q,h,l,p])) + s
w[q,h,l,p,r,s] = att[q,h,l,p]*(1 - abs(fx[q,h,l,p] - X[q,h,l,p,r]))*(1 - abs(fy[q,h,l,p] - Y[q,h,l,p,s]))
o[q,h,d] = sum[l,p,s,r](where(0 <= X[q,h,l,p,r] < hw[l,1] and 0 <= Y[q,h,l,p,s] < hw[l,0],
    w[q,h,l,p,r,s]*V[start[l] + Y[q,h,l,p,s]*hw[l,1] + X[q,h,l,p,r],h,d], 0))
return o
"""

DEFORMABLE_CONVOLUTION = """
p[n,k,h,w] = h + k//3 - 1 + o[n,k,0,h,w]
q[n,k,h,w] = w + k%3 - 1 + o[n,k,1,h,w]
t[n,k,h,w,r] = i32(floor(p[n,k,h,w])) + r
l[n,k,h,w,s] = i32(floor(q[n,k,h,w])) + s
a[n,k,h,w,r,s] = m[n,k,h,w]*(1 - abs(p[n,k,h,w] - t[n,k,h,w,r]))*(1 - abs(q[n,k,h,w] - l[n,k,h,w,s]))
v[n,c,k,h,w] = sum[r,s](where(0 <= t[n,k,h,w,r] < x.shape[2] and 0 <= l[n,k,h,w,s] < x.shape[3],
    a[n,k,h,w,r,s]*x[n,c,t[n,k,h,w,r],l[n,k,h,w,s]], 0))
y[n,f,h,w] = sum[c,k](W[f,c,k//3,k%3]*v[n,c,k,h,w])
return y
"""

RENDERING = """
a[b,n] = 1 - exp(-s[b,n]*d[b,n])
T[b,n] = where(n > 0, T[b,n-1]*(1 - a[b,n-1]), 1.0)
y[b,k] = sum[n](T[b,n]*a[b,n]*c[b,n,k])
return y
"""

SPLATTING = """
dx[n,j] = X[j] - m[n,0]
dy[n,i] = Y[i] - m[n,1]
a[n,i,j] = min(o[n]*exp(-0.5*(q[n,0]*dx[n,j]**2 + 2*q[n,1]*dx[n,j]*dy[n,i] + q[n,2]*dy[n,i]**2)), 0.99)
T[n,i,j] = where(n > 0, T[n-1,i,j]*(1 - a[n-1,i,j]), 1.0)
y[i,j,k] = sum[n](T[n,i,j]*a[n,i,j]*c[n,k])
return y
"""

TILES = """
dx[e,p] = X[tile[e],p] - m[id[e],0]
dy[e,p] = Y[tile[e],p] - m[id[e],1]
a[e,p] = min(o[id[e]]*exp(-0.5*(q[id[e],0]*dx[e,p]**2 + 2*q[id[e],1]*dx[e,p]*dy[e,p] + q[id[e],2]*dy[e,p]**2)), 0.99)
T[e,p] = where(e > 0 and tile[max(e-1, 0)] == tile[e], T[e-1,p]*(1 - a[e-1,p]), 1.0)
y[t,p,k] = sum[e](where(row[t] <= e and e < row[t+1], T[e,p]*a[e,p]*c[id[e],k], 0))
return y
"""


def _attention(rng: Generator, heads: int, width: int, *space: int) -> dict[str, ndarray]:
    return {name: rng.standard_normal((heads, *space, width)) for name in "qkv"}


def _plane(rng: Generator, heads: int, h: int, w: int, d: int) -> dict[str, ndarray]:
    return _attention(rng, heads, d, h, w)


def _video(rng: Generator, heads: int, t: int, h: int, w: int, d: int) -> dict[str, ndarray]:
    return _attention(rng, heads, d, t, h, w)


def _deformable(rng: Generator, q: int, h: int, d: int, p: int, side: int) -> dict[str, ndarray]:
    """Four levels of an image of `side` x `side` pixels; some points lie outside."""
    shape = np.array([[-(-side // 2**n), -(-side // 2**n) + n % 2] for n in range(4)])
    at = rng.dirichlet(np.ones(4 * p), (q, h)).reshape(q, h, 4, p)
    return {
        "V": rng.standard_normal((int(shape.prod(1).sum()), h, d)),
        "loc": rng.uniform(-0.1, 1.1, (q, h, 4, p, 2)),
        "att": at,
        "hw": shape,
        "start": np.concatenate([[0], shape.prod(1).cumsum()[:-1]]),
    }


def _deform_conv(rng: Generator, n: int, c: int, f: int, h: int, w: int) -> dict[str, ndarray]:
    return {
        "x": rng.standard_normal((n, c, h, w)),
        "o": rng.standard_normal((n, 9, 2, h, w)),
        "m": rng.uniform(0, 1, (n, 9, h, w)),
        "W": rng.standard_normal((f, c, 3, 3)) / np.sqrt(9 * c),
    }


def _rays(rng: Generator, b: int, n: int) -> dict[str, ndarray]:
    return {
        "s": rng.exponential(4.0, (b, n)),
        "d": rng.uniform(0.5, 1.5, (b, n)) / n,
        "c": rng.uniform(0, 1, (b, n, 3)),
    }


def _gaussians(rng: Generator, n: int, h: int, w: int) -> dict[str, ndarray]:
    """Gaussians sorted by depth; q holds the inverse covariances' elements (0, 0), (0, 1) and (1, 1)."""
    angle, size = rng.uniform(0, np.pi, n), rng.uniform(1.0, 5.0, (n, 2)) ** -2
    cos, sin = np.cos(angle), np.sin(angle)
    q = np.stack(
        [
            size[:, 0] * cos**2 + size[:, 1] * sin**2,
            (size[:, 0] - size[:, 1]) * cos * sin,
            size[:, 0] * sin**2 + size[:, 1] * cos**2,
        ],
        1,
    )
    m = rng.uniform(0, 1, (n, 2)) * [w, h]
    return {"m": m, "q": q, "o": rng.uniform(0.2, 0.95, n), "c": rng.uniform(0, 1, (n, 3))}


def _all_pairs(rng: Generator, n: int, h: int, w: int) -> dict[str, ndarray]:
    return {**_gaussians(rng, n, h, w), "X": np.arange(w) + 0.5, "Y": np.arange(h) + 0.5}


def _tiles(rng: Generator, n: int, down: int, across: int) -> dict[str, ndarray]:
    """Gaussians in the lists of the tiles of 16 x 16 pixels that they reach with three standard deviations."""
    known = _gaussians(rng, n, 16 * down, 16 * across)
    a, b, c = known["q"].T
    reach = 3 * np.sqrt(np.stack([c, a], 1) / (a * c - b * b)[:, None])
    corner = 16 * np.stack(np.divmod(np.arange(down * across), across)[::-1], 1)  # x and y of each tile
    nearest = np.clip(known["m"], corner[:, None], corner[:, None] + 16)
    touched = (np.abs(nearest - known["m"]) <= reach).all(2)  # tile, Gaussian
    tile, id = np.nonzero(touched)
    p = np.arange(256)
    pixels = {"X": corner[:, :1] + p % 16 + 0.5, "Y": corner[:, 1:] + p // 16 + 0.5}
    return {**known, **pixels, "id": id, "tile": tile, "row": np.searchsorted(tile, np.arange(down * across + 1))}


def _partial(rng: Generator, b: int, c: int, k: int, h: int, w: int) -> dict[str, ndarray]:
    x = rng.standard_normal((b, c, h, w))
    mask = (rng.uniform(0, 1, (b, h, w)) < 0.4).astype(float)
    return {"x": x, "m": mask, "W": rng.standard_normal((k, c, 3, 3)), "w": rng.standard_normal(k)}


def _local(rng: Generator, b: int, c: int, k: int, h: int, w: int) -> dict[str, ndarray]:
    W = rng.standard_normal((h, w, k, c, 3, 3))
    return {"x": rng.standard_normal((b, c, h + 2, w + 2)), "W": W, "w": rng.standard_normal((k, h, w))}


def _adaptive(rng: Generator, b: int, c: int, d: int, k: int, h: int, w: int) -> dict[str, ndarray]:
    x, f = (rng.standard_normal((b, n, h, w)) for n in (c, d))
    return {"x": x, "f": f, "W": rng.standard_normal((k, c, 3, 3))}


def _stereo(rng: Generator, b: int, c: int, h: int, w: int) -> dict[str, ndarray]:
    f, g = (rng.standard_normal((b, c, h, w)) for _ in range(2))
    return {"f": f, "g": g}


SHOWPIECES = (
    Showpiece(
        "neighbourhood attention, 2-D",
        "vision",
        WINDOW + "eqs. 1 to 3, windows of 7 x 7, without biases",
        NEIGHBOURS_2D,
        _plane,
        {"4 heads, 32 x 32": dict(heads=4, h=32, w=32, d=32), "4 heads, 64 x 64": dict(heads=4, h=64, w=64, d=32)},
        dict(heads=(1, 3, 2), h=(7, 8, 13), w=(17, 7, 11), d=(7, 1, 16)),
        {
            "windows": Peer(peers.neighbours_2d, "gathered windows, as in the paper's appendix"),
            "mask": Peer(peers.neighbours_masked, "scaled_dot_product_attention with a mask"),
        },
    ),
    Showpiece(
        "neighbourhood attention, 3-D",
        "vision",
        WINDOW + "eqs. 1 to 3, windows of 3 x 5 x 5, without biases",
        NEIGHBOURS_3D,
        _video,
        {"4 heads, 8 x 16 x 16": dict(heads=4, t=8, h=16, w=16, d=32)},
        dict(heads=(1, 3, 2), t=(3, 5, 4), h=(5, 8, 7), w=(7, 5, 9), d=(7, 1, 16)),
        {"windows": Peer(peers.neighbours_3d, "gathered windows, as in the paper's appendix")},
    ),
    Showpiece(
        "multi-scale deformable attention",
        "vision",
        DETR + "eq. 3, sampling and weighted sum",
        DEFORMABLE_ATTENTION,
        _deformable,
        {"300 queries": dict(q=300, h=8, d=32, p=4, side=64), "2,000 queries": dict(q=2000, h=8, d=32, p=4, side=64)},
        dict(q=(1, 7, 17), h=(1, 3, 2), d=(5, 1, 16), p=(1, 4, 3), side=(5, 9, 16)),
        {
            "gather": Peer(peers.deformable_gather, "one gather of each corner"),
            "grid_sample": Peer(peers.deformable_grid, DETR + "the authors' program without CUDA"),
        },
        extents=lambda sizes: {"r": 2, "s": 2},
    ),
    Showpiece(
        "modulated deformable convolution",
        "vision",
        DCN + "eq. 2, windows of 3 x 3",
        DEFORMABLE_CONVOLUTION,
        _deform_conv,
        {"4 x 64 x 32 x 32": dict(n=4, c=64, f=64, h=32, w=32)},
        dict(n=(1, 3, 2), c=(5, 1, 8), f=(3, 17, 1), h=(3, 1, 8), w=(7, 9, 1)),
        {
            "gather": Peer(peers.deform_conv_gather, "one gather of each corner, then a product"),
            "grid_sample": Peer(peers.deform_conv_grid, "grid_sample, then a product"),
        },
        extents=lambda sizes: {"r": 2, "s": 2, "k": 9},
    ),
    Showpiece(
        "volume rendering",
        "vision",
        "Mildenhall, Srinivasan, Tancik, Barron, Ramamoorthi, Ng 2020, NeRF, eq. 3",
        RENDERING,
        _rays,
        {"4,096 rays of 64 samples": dict(b=4096, n=64)},
        dict(b=(1, 7, 17), n=(5, 1, 16)),
        {
            "sum": Peer(peers.render_sum, "cumulative sum of optical depths, eq. 3"),
            "product": Peer(peers.render_product, "cumulative product, the authors' program"),
            "jax": Peer(peers.render_jax, "cumulative sum of optical depths, eq. 3", library="jax"),
        },
        constant=("d",),
    ),
    Showpiece(
        "2-D Gaussian splatting",
        "vision",
        GAUSSIANS + "eq. 3, of all Gaussians at all pixels",
        SPLATTING,
        _all_pairs,
        {"1,000 Gaussians, 128 x 128": dict(n=1000, h=128, w=128)},
        dict(n=(1, 7, 17), h=(5, 1, 8), w=(7, 9, 1)),
        {
            "product": Peer(peers.splat_product, "cumulative product, eq. 3"),
            "sum": Peer(peers.splat_sum, "cumulative sum of logarithms"),
            "scan": Peer(peers.splat_scan, "a loop over the Gaussians", library="jax"),
        },
        constant=("X", "Y"),
    ),
    Showpiece(
        "2-D Gaussian splatting by tiles",
        "vision",
        GAUSSIANS + "eq. 3 and section 6, lists of tiles of 16 x 16 pixels",
        TILES,
        _tiles,
        {"1,000 Gaussians, 128 x 128": dict(n=1000, down=8, across=8)},
        dict(n=(1, 7, 17), down=(2, 1, 3), across=(3, 1, 1)),
        {"padded": Peer(peers.tiles_padded, "lists padded to the longest")},
        constant=("X", "Y"),
        extents=lambda sizes: {"t": sizes["down"] * sizes["across"]},
    ),
    Showpiece(
        "partial convolution",
        "vision",
        "Liu, Reda, Shih, Wang, Tao, Catanzaro 2018, Image inpainting for irregular holes, eqs. 1 and 2",
        "n[b,i,j] = sum[r,s](m[b,i+r,j+s])\n"
        "y[b,k,i,j] = where(n[b,i,j] > 0, sum[c,r,s](W[k,c,r,s]*x[b,c,i+r,j+s]*m[b,i+r,j+s])*9/n[b,i,j] + w[k], 0)",
        _partial,
        {"8 x 32 x 34 x 34": dict(b=8, c=32, k=32, h=34, w=34)},
        dict(b=(1, 3, 2), c=(5, 1, 8), k=(3, 17, 1), h=(3, 5, 10), w=(7, 3, 4)),
        {"convolutions": Peer(peers.partial_conv, "two convolutions, the authors' program")},
        constant=("m",),
        extents=lambda sizes: {"r": 3, "s": 3, "i": sizes["h"] - 2, "j": sizes["w"] - 2},
        limit="Both sides are bounded by three ordinary convolutions of the same sizes.",
    ),
    Showpiece(
        "locally connected layer",
        "vision",
        "LeCun 1989, Generalization and network design strategies; Gregor, LeCun 2010",
        "y[b,k,i,j] = sum[c,r,s](W[i,j,k,c,r,s]*x[b,c,i+r,j+s]) + w[k,i,j]",
        _local,
        {"16 x 16 x 18 x 18": dict(b=16, c=16, k=32, h=16, w=16)},
        dict(b=(1, 3, 17), c=(5, 1, 2), k=(3, 16, 1), h=(3, 5, 1), w=(1, 7, 9)),
        {
            "unfold": Peer(peers.local_unfold, "unfolded windows, a product per position"),
            "windows": Peer(peers.local_windows, "views of windows"),
        },
    ),
    Showpiece(
        "pixel-adaptive convolution",
        "vision",
        "Su, Jampani, Sun, Gallo, Learned-Miller, Kautz 2019, Pixel-adaptive convolutional neural networks, eq. 3",
        "K[b,i,j,r,s] = exp(-0.5*sum[d]((f[b,d,i+1,j+1] - f[b,d,i+r,j+s])**2))\n"
        "y[b,k,i,j] = sum[c,r,s](K[b,i,j,r,s]*W[k,c,r,s]*x[b,c,i+r,j+s])",
        _adaptive,
        {"2 x 32 x 34 x 34": dict(b=2, c=32, d=8, k=32, h=34, w=34)},
        dict(b=(1, 3, 2), c=(5, 1, 8), d=(1, 3, 2), k=(3, 17, 1), h=(3, 5, 10), w=(7, 3, 4)),
        {"unfold": Peer(peers.adaptive_unfold, "unfolded windows, the authors' program")},
        extents=lambda sizes: {"r": 3, "s": 3, "i": sizes["h"] - 2, "j": sizes["w"] - 2},
    ),
    Showpiece(
        "cost volume of a stereo pair",
        "vision",
        "Kendall et al. 2017, GC-Net, section 3.2, with absolute differences",
        "y[b,u,i,j] = sum[c](where(j >= u, abs(f[b,c,i,j] - g[b,c,i,j-u]), 0))",
        _stereo,
        {"2 x 32 x 64 x 128, 48 disparities": dict(b=2, c=32, h=64, w=128)},
        dict(b=(1, 3, 2), c=(5, 1, 8), h=(3, 1, 5), w=(1, 17, 49)),
        {
            "windows": Peer(peers.volume_windows, "views of the padded right image"),
            "slices": Peer(peers.volume_slices, "a slice for each disparity", compiles=False),
        },
        extents=lambda sizes: {"u": peers.DISPARITIES},
    ),
)
