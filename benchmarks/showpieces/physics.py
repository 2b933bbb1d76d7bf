"""Operators of scientific computing: a simulation that is inverted, kernel products, optimal transport, splines."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.showpieces.case import Peer, Showpiece
from benchmarks.showpieces.peers import physics as peers

_WAVE = """a[t,i,j] = where(t > 0, u[t-1,i,j], 0)
lap[t,i,j] = (where(i > 0, a[t,i-1,j], 0) + where(i < size(i)-1, a[t,i+1,j], 0)
            + where(j > 0, a[t,i,j-1], 0) + where(j < size(j)-1, a[t,i,j+1], 0) - 4*a[t,i,j])
u[t,i,j] = 2*a[t,i,j] - where(t > 1, u[t-2,i,j], 0) + c[i,j]**2*lap[t,i,j] + where(i == s[0] and j == s[1], w[t], 0)
r[t,m] = u[t,at[m,0],at[m,1]]
return r"""
_GAUSSIAN = "y[i,v] = sum[j](exp(-sum[k]((x[i,k] - z[j,k])**2)/2)*b[j,v])\nreturn y"
_SINKHORN = """C[i,j] = sum[k]((x[i,k] - y[j,k])**2)/2
f[t,i] = -eps*logsumexp[j]((where(t > 0, g[t-1,j], 0) - C[i,j])/eps - log(size(j)))
g[t,j] = -eps*logsumexp[i]((f[t,i] - C[i,j])/eps - log(size(i)))
cost[] = mean[i](f[f.shape[0]-1,i]) + mean[j](g[g.shape[0]-1,j])
return cost"""
_LAYER = "y[b,o] = sum[i](w[o,i]*x[b,i]*sigmoid(x[b,i])) + sum[i,g](c[o,i,g]*s[o,i]*B[b,i,g])\nreturn y"
_COX = f"""B0[b,i,u] = where(grid[i,u] <= x[b,i] and x[b,i] < grid[i,u+1], 1, 0)
B1[b,i,v] = ((x[b,i] - grid[i,v])/(grid[i,v+1] - grid[i,v])*B0[b,i,v]
           + (grid[i,v+2] - x[b,i])/(grid[i,v+2] - grid[i,v+1])*B0[b,i,v+1])
B2[b,i,r] = ((x[b,i] - grid[i,r])/(grid[i,r+2] - grid[i,r])*B1[b,i,r]
           + (grid[i,r+3] - x[b,i])/(grid[i,r+3] - grid[i,r+1])*B1[b,i,r+1])
B[b,i,g] = ((x[b,i] - grid[i,g])/(grid[i,g+3] - grid[i,g])*B2[b,i,g]
          + (grid[i,g+4] - x[b,i])/(grid[i,g+4] - grid[i,g+1])*B2[b,i,g+1])
{_LAYER}"""
_CUBIC = f"""u[b,i] = (x[b,i] - grid[i,0])/(grid[i,1] - grid[i,0])
t[b,i,g] = abs(u[b,i] - g - 2)
B[b,i,g] = where(t[b,i,g] < 1, (4 - 6*t[b,i,g]**2 + 3*t[b,i,g]**3)/6, where(t[b,i,g] < 2, (2 - t[b,i,g])**3/6, 0))
{_LAYER}"""


def _wave_arrays(
    rng: np.random.Generator, rows: int, columns: int, steps: int, receivers: int
) -> dict[str, np.ndarray]:
    """A Ricker wavelet in the middle, receivers along the upper edge."""
    t = np.pi * (np.arange(steps) - steps / 8) / (steps / 10)
    at = np.stack([np.full(receivers, rows // 12), np.linspace(0, columns - 1, receivers).astype(int)], 1)
    inputs = {"c": rng.uniform(0.2, 0.5, (rows, columns)), "w": (1 - 2 * t**2) * np.exp(-(t**2))}
    return inputs | {"s": np.array([rows // 2, columns // 2]), "at": at}


def _points(rng: np.random.Generator, n: int, m: int, width: int, vectors: int) -> dict[str, np.ndarray]:
    x, z = (rng.standard_normal((k, width)) * width**-0.5 for k in (n, m))
    return {"x": x, "z": z, "b": rng.standard_normal((m, vectors))}


def _clouds(rng: np.random.Generator, n: int, m: int, width: int) -> dict[str, np.ndarray]:
    return {"x": rng.random((n, width)), "y": rng.random((m, width))}


def _spline_arrays(
    rng: np.random.Generator, batch: int, inputs: int, outputs: int, cells: int
) -> dict[str, np.ndarray]:
    """A uniform grid of cells over -1 to 1, prolonged by the order at both ends."""
    z, order = rng.standard_normal, peers.ORDER
    knots = np.arange(-order, cells + order + 1) * (2 / cells) - 1
    grid, weights = np.tile(knots, (inputs, 1)), inputs**-0.5
    coefficients = 0.1 * z((outputs, inputs, cells + order))
    more = {"w": weights * z((outputs, inputs)), "c": coefficients, "s": weights * z((outputs, inputs))}
    return {"x": rng.uniform(-0.95, 0.95, (batch, inputs)), "grid": grid, **more}


_loop = partial(Peer, compiles=False)
_COURANT = "Virieux, Operto 2009, Full-waveform inversion; five points in space, three in time"
_KERNEL = "Charlier et al. 2021, Kernel operations on the GPU, section 2"
_CUTURI = "Peyré, Cuturi 2019, Computational optimal transport, section 4.4"
_LIU = "Liu et al. 2024, KAN: Kolmogorov-Arnold networks, eq. 2.10"
_LAYERS = {
    "256 of 784 to 64": {"batch": 256, "inputs": 784, "outputs": 64, "cells": 5},
    "64 of 64 to 64, 20 cells": {"batch": 64, "inputs": 64, "outputs": 64, "cells": 20},
}
_SMALL_LAYER = {"batch": (1, 7, 17), "inputs": (1, 5, 16), "outputs": (1, 3, 8), "cells": (1, 5, 8)}
SHOWPIECES = [
    Showpiece(
        "wave equation", "physics", _COURANT, _WAVE, _wave_arrays,
        {
            "256 by 256, 200 steps": {"rows": 256, "columns": 256, "steps": 200, "receivers": 59},
            "96 by 128, 400 steps": {"rows": 96, "columns": 128, "steps": 400, "receivers": 32},
        },
        {"rows": (1, 13, 17), "columns": (1, 11, 16), "steps": (1, 7, 12), "receivers": (1, 3, 5)},
        {
            "slices": _loop(peers.wave, f"{_COURANT}, padded slices"),
            "convolution": _loop(peers.wave_by_convolution, f"{_COURANT}, a convolution"),
            "scan": Peer(peers.jax_wave, f"{_COURANT}, in a scan of steps", library="jax"),
        },
        constant=("w",),
    ),
    Showpiece(
        "Gaussian kernel product", "physics", _KERNEL, _GAUSSIAN, _points,
        {
            "4096 by 4096, 3 dimensions": {"n": 4096, "m": 4096, "width": 3, "vectors": 1},
            "4096 by 4096, 32 dimensions": {"n": 4096, "m": 4096, "width": 32, "vectors": 1},
        },
        {"n": (1, 37, 65), "m": (1, 41, 64), "width": (1, 3, 17), "vectors": (1, 3, 2)},
        {
            "product": Peer(peers.gaussian_product, f"{_KERNEL}, whole matrices"),
            "differences": Peer(peers.gaussian_product_by_differences, f"{_KERNEL}, whole matrices"),
            "LazyTensor": Peer(peers.keops_gaussian_product, _KERNEL, library="keops"),
            "matrix": Peer(peers.jax_gaussian_product, f"{_KERNEL}, whole matrices", library="jax"),
        },
    ),
    Showpiece(
        "Sinkhorn", "physics", _CUTURI, _SINKHORN, _clouds,
        {
            "1024 by 1024, 50 iterations": {"n": 1024, "m": 1024, "width": 3},
            "256 by 512, 50 iterations": {"n": 256, "m": 512, "width": 16},
        },
        {"n": (1, 17, 32), "m": (1, 13, 33), "width": (1, 3, 8)},
        {
            "logsumexp": Peer(peers.sinkhorn, f"{_CUTURI}, whole matrices"),
            "LazyTensor": Peer(peers.keops_sinkhorn, "Feydy et al. 2019, GeomLoss", library="keops"),
            "scan": Peer(peers.jax_sinkhorn, f"{_CUTURI}, in a scan of iterations", library="jax"),
        },
        extents=lambda sizes: {"t": peers.STEPS},
        options={"eps": peers.EPSILON},
    ),
    Showpiece(
        "KAN layer, Cox-de Boor", "physics", f"{_LIU}; de Boor 1972, On calculating with B-splines", _COX,
        _spline_arrays, _LAYERS, _SMALL_LAYER,
        {
            "efficient-kan": Peer(peers.kan, "efficient-kan, b_splines and forward"),
            "bases": Peer(peers.jax_kan, "efficient-kan, b_splines and forward", library="jax"),
        },
        constant=("grid",),
        extents=lambda sizes: {n: sizes["cells"] + 6 - k for k, n in enumerate("uvrg")},
    ),
    Showpiece(
        "KAN layer, cubic", "physics", f"{_LIU}; Unser 1999, Splines: a perfect fit", _CUBIC, _spline_arrays, _LAYERS,
        _SMALL_LAYER,
        {
            "polynomials": Peer(peers.kan_cubic, "Unser 1999; products of efficient-kan"),
            "bases": Peer(peers.jax_kan_cubic, "Unser 1999; products of efficient-kan", library="jax"),
        },
        constant=("grid",),
    ),
]  # fmt: skip
