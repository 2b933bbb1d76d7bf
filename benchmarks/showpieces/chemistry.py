"""Operators of chemistry: pairs of residues of proteins, potentials and their forces, equivariant products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.random import Generator

import einsmith as es
from benchmarks.showpieces.case import Peer, Showpiece, Sizes
from benchmarks.showpieces.clebsch_gordan import PATHS, coefficients
from benchmarks.showpieces.peers import chemistry as peers

ALPHAFOLD = "Abramson et al. 2024, AlphaFold 3, algorithm "
SCHNET = "Schütt et al. 2017, SchNet, eqs. 2 to 5"
LENNARD_JONES = "Jones 1924, On the determination of molecular fields"

TRIANGLE_PRODUCT = """
mu[i,j] = mean[d](z[i,j,d])
var[i,j] = mean[d]((z[i,j,d] - mu[i,j])**2)
x[i,j,d] = (z[i,j,d] - mu[i,j])*rsqrt(var[i,j] + 1e-5)*w1[d] + b1[d]
a[i,j,c] = sigmoid(sum[d](x[i,j,d]*Ag[d,c]))*sum[d](x[i,j,d]*A[d,c])
b[i,j,c] = sigmoid(sum[d](x[i,j,d]*Bg[d,c]))*sum[d](x[i,j,d]*B[d,c])
t[i,j,c] = sum[k](a[i,k,c]*b[j,k,c])
nu[i,j] = mean[c](t[i,j,c])
vat[i,j] = mean[c]((t[i,j,c] - nu[i,j])**2)
n[i,j,c] = (t[i,j,c] - nu[i,j])*rsqrt(vat[i,j] + 1e-5)*w2[c] + b2[c]
y[i,j,d] = sigmoid(sum[e](x[i,j,e]*G[e,d]))*sum[c](n[i,j,c]*C[c,d])
return y
"""

TRIANGLE_ATTENTION = """
mu[i,j] = mean[d](z[i,j,d])
var[i,j] = mean[d]((z[i,j,d] - mu[i,j])**2)
x[i,j,d] = (z[i,j,d] - mu[i,j])*rsqrt(var[i,j] + 1e-5)*w1[d] + b1[d]
q[i,h,j,c] = sum[d](x[i,j,d]*Q[d,h,c])*rsqrt(size(c))
k[i,h,j,c] = sum[d](x[i,j,d]*K[d,h,c])
v[i,h,j,c] = sum[d](x[i,j,d]*V[d,h,c])
bias[h,j,l] = sum[d](x[j,l,d]*B[d,h])
s[i,h,j,l] = sum[c](q[i,h,j,c]*k[i,h,l,c]) + bias[h,j,l]
m[i,h,j] = stop_gradient(max[l](s[i,h,j,l]))
e[i,h,j,l] = exp(s[i,h,j,l] - m[i,h,j])
o[i,h,j,c] = sum[l](e[i,h,j,l]*v[i,h,l,c])/sum[l](e[i,h,j,l])
g[i,j,h,c] = sigmoid(sum[d](x[i,j,d]*G[d,h,c]))
y[i,j,d] = sum[h,c](g[i,j,h,c]*o[i,h,j,c]*W[h,c,d])
return y
"""

INTERACTION = """
f{n}[b,i,j,k] = sum[m](g[b,i,j,m]*W1[{n},m,k]) + w1[{n},k]
r{n}[b,i,j,k] = sum[l](log(0.5*exp(f{n}[b,i,j,l]) + 0.5)*W2[{n},l,k]) + w2[{n},k]
p{n}[b,i,k] = sum[l](h{n}[b,i,l]*A[{n},l,k])
m{n}[b,i,k] = sum[j](where(i != j, p{n}[b,j,k]*log(0.5*exp(r{n}[b,i,j,k]) + 0.5)*cut[b,i,j], 0))
t{n}[b,i,k] = sum[l](m{n}[b,i,l]*W3[{n},l,k]) + w3[{n},k]
h{next}[b,i,k] = h{n}[b,i,k] + sum[l](log(0.5*exp(t{n}[b,i,l]) + 0.5)*W4[{n},l,k]) + w4[{n},k]
"""

ENERGY = (
    """
d[b,i,j] = where(i != j, sqrt(sum[a]((x[b,i,a] - x[b,j,a])**2)), 0)
cut[b,i,j] = where(d[b,i,j] < 5, 0.5*(cos(0.6283185307179586*d[b,i,j]) + 1), 0)
g[b,i,j,m] = exp(-10*(d[b,i,j] - 0.3*m)**2)
h0[b,i,k] = E[z[b,i],k]
"""
    + "".join(INTERACTION.format(n=n, next=n + 1) for n in range(peers.INTERACTIONS)).replace("\n\n", "\n")
    + f"""
u1[b,i,k] = sum[l](h{peers.INTERACTIONS}[b,i,l]*U[l,k]) + u[k]
energy[b] = sum[i,k](log(0.5*exp(u1[b,i,k]) + 0.5)*v[k])
return energy
"""
).replace("\n\n", "\n")

TENSOR_PRODUCT = """
m[e,u,k] = sum[i,j](C[i,j,k]*w[e,P[i,j,k],u]*x[src[e],u,i]*Y[e,j])
out[dst[e],u,k] += m[e,u,k]
return out
"""


def _triangle(rng: Generator, n: int, c: int) -> dict[str, ndarray]:
    def weights() -> ndarray:
        return rng.standard_normal((c, c)) / np.sqrt(c)

    def scale() -> ndarray:
        return rng.standard_normal(c)

    z = rng.standard_normal((n, n, c))
    first = {"z": z, "w1": scale(), "b1": scale(), **{name: weights() for name in ("Ag", "A", "Bg", "B")}}
    return {**first, "w2": scale(), "b2": scale(), "G": weights(), "C": weights()}


def _triangle_attention(rng: Generator, n: int, d: int, h: int, c: int) -> dict[str, ndarray]:
    first = {"z": rng.standard_normal((n, n, d)), "w1": rng.standard_normal(d), "b1": rng.standard_normal(d)}
    Q, K, V, G = (rng.standard_normal((d, h, c)) / np.sqrt(d) for _ in range(4))
    B, W = rng.standard_normal((d, h)) / np.sqrt(d), rng.standard_normal((h, c, d)) / np.sqrt(h * c)
    return {**first, "Q": Q, "K": K, "V": V, "B": B, "G": G, "W": W}


def _lattice(rng: Generator, n: int, apart: float) -> ndarray:
    """Positions of n atoms near the points of a cubic lattice."""
    side = next(s for s in range(1, n + 1) if s**3 >= n)
    points = np.stack(np.unravel_index(np.arange(n), (side, side, side)), 1)
    return points * apart + rng.uniform(-0.1, 0.1, (n, 3)) * apart


def _molecules(rng: Generator, b: int, n: int, k: int, g: int) -> dict[str, ndarray]:
    """Molecules of n atoms, about 1.2 Angstrom apart, with energies and forces; k features, g radial functions."""

    def weights(*shape: int) -> ndarray:
        return rng.standard_normal(shape) / (2 * np.sqrt(shape[-2]))

    L, half = peers.INTERACTIONS, -(-k // 2)
    x = np.stack([_lattice(rng, n, 1.2) for _ in range(b)])
    given = {"x": x, "z": rng.integers(0, 10, (b, n)), "e": rng.standard_normal(b), "f": rng.standard_normal((b, n, 3))}
    filters = {
        "W1": weights(L, g, k),
        "w1": weights(L, 1, k)[:, 0],
        "W2": weights(L, k, k),
        "w2": weights(L, 1, k)[:, 0],
    }
    update = {
        "W3": weights(L, k, k),
        "w3": weights(L, 1, k)[:, 0],
        "W4": weights(L, k, k),
        "w4": weights(L, 1, k)[:, 0],
    }
    head = {"U": weights(k, half), "u": weights(1, half)[0], "v": weights(half, 1)[:, 0]}
    return {**given, "E": rng.standard_normal((10, k)), "A": weights(L, k, k), **filters, **update, **head}


def _energy_and_forces(sizes: Sizes) -> Callable[..., Any]:
    """Return the loss of energies and forces of a batch of molecules."""
    energies = es.op(ENERGY, inputs="x, z, E, A, W1, w1, W2, w2, W3, w3, W4, w4, U, u, v")

    def loss(x: Any, z: Any, e: Any, f: Any, *weights: Any) -> Any:
        slope = es.grad(lambda x: energies(x, z, *weights).sum())(x)
        return 0.01 * ((energies(x, z, *weights) - e) ** 2).mean() + ((slope + f) ** 2).mean()

    return loss


def _edges(rng: Generator, n: int, e: int, u: int) -> dict[str, ndarray]:
    C, P = coefficients()
    floats = {"x": (n, u, 9), "Y": (e, 9), "w": (e, len(PATHS), u)}
    out = {name: rng.standard_normal(shape) for name, shape in floats.items()}
    return {**out, "src": rng.integers(0, n, e), "dst": np.sort(rng.integers(0, n, e)), "C": C, "P": P}


def _atoms(rng: Generator, n: int) -> dict[str, ndarray]:
    return {"x": _lattice(rng, n, 1.2)}


def _listed_atoms(rng: Generator, n: int) -> dict[str, ndarray]:
    """Atoms and their pairs that are closer than 2.5."""
    x = _lattice(rng, n, 1.2)
    s, t = (np.concatenate(a) for a in zip(*(_near(x, i) for i in range(n)), strict=True))
    return {"x": x, "s": s, "t": t}


def _near(x: ndarray, i: int) -> tuple[ndarray, ndarray]:
    j = i + 1 + np.flatnonzero(((x[i + 1 :] - x[i]) ** 2).sum(1) < 2.5**2)
    return np.full_like(j, i), j


SHOWPIECES = (
    Showpiece(
        "triangle multiplication",
        "chemistry",
        ALPHAFOLD + "12, outgoing edges",
        TRIANGLE_PRODUCT,
        _triangle,
        {"128 residues, 64 channels": dict(n=128, c=64), "256 residues, 64 channels": dict(n=256, c=64)},
        dict(n=(1, 7, 17), c=(5, 8, 3)),
        {
            "products": Peer(peers.triangle_product, "a product of matrices per channel, OpenFold's form"),
            "jax": Peer(peers.triangle_product_jax, "the same in JAX", library="jax"),
        },
    ),
    Showpiece(
        "triangle attention",
        "chemistry",
        ALPHAFOLD + "14, starting node",
        TRIANGLE_ATTENTION,
        _triangle_attention,
        {
            "128 residues, 4 heads": dict(n=128, d=64, h=4, c=32),
            "256 residues, 4 heads": dict(n=256, d=64, h=4, c=32),
        },
        dict(n=(2, 7, 17), d=(5, 8, 3), h=(1, 3, 2), c=(7, 1, 4)),
        {
            "softmax": Peer(peers.triangle_attention_softmax, "two products and a softmax, OpenFold's form"),
            "fused": Peer(peers.triangle_attention_fused, "scaled_dot_product_attention with the bias as mask"),
            "jax": Peer(peers.triangle_attention_jax, "two products and a softmax in JAX", library="jax"),
        },
    ),
    Showpiece(
        "SchNet, loss of energies and forces",
        "chemistry",
        SCHNET + ", with a cosine cutoff; the formula gives energies, forces are their negative gradients",
        ENERGY,
        _molecules,
        {"16 molecules of 27 atoms": dict(b=16, n=27, k=32, g=16)},
        dict(b=(1, 3, 2), n=(2, 5, 8), k=(3, 1, 8), g=(5, 16, 1)),
        {
            "autograd": Peer(peers.schnet_autograd, "lists of pairs, torch.autograd.grad", compiles=False),
            "func": Peer(peers.schnet_func, "lists of pairs, torch.func.grad"),
            "jax": Peer(peers.schnet_jax, "lists of pairs, jax.grad", library="jax"),
        },
        constant=("x", "e", "f"),
        build=_energy_and_forces,
    ),
    Showpiece(
        "equivariant tensor product",
        "chemistry",
        "Batzner et al. 2022, NequIP, eqs. 3 and 4; Thomas et al. 2018, Tensor field networks, section 3.1",
        TENSOR_PRODUCT,
        _edges,
        {"2,000 nodes, 20,000 edges, 32 channels": dict(n=2000, e=20000, u=32)},
        dict(n=(1, 7, 5), e=(3, 17, 1), u=(5, 1, 8)),
        {
            "matrices": Peer(peers.tensor_product_matrices, "a matrix of each path and edge"),
            "paths": Peer(peers.tensor_product_paths, "an einsum of each path, e3nn's form"),
            "jax": Peer(peers.tensor_product_jax, "a matrix of each path and edge in JAX", library="jax"),
        },
        known=("C", "P"),
        extents=lambda sizes: {"out.shape[0]": sizes["n"]},
    ),
    Showpiece(
        "Lennard-Jones energy, all pairs",
        "chemistry",
        LENNARD_JONES,
        "r2[i,j] = sum[c]((x[i,c] - x[j,c])**2)\nE[] = sum[i,j](where(i < j, 4*(r2[i,j]**-6.0 - r2[i,j]**-3.0), 0))",
        _atoms,
        {"1,000 atoms": dict(n=1000)},
        dict(n=(2, 7, 17)),
        {
            "matrix": Peer(peers.lennard_jones, "a matrix of distances"),
            "jax": Peer(peers.lennard_jones_jax, "a matrix of distances in JAX", library="jax"),
        },
    ),
    Showpiece(
        "Lennard-Jones energy, neighbour list",
        "chemistry",
        LENNARD_JONES + "; Verlet 1967, Computer experiments on classical fluids",
        "r2[e] = sum[c]((x[s[e],c] - x[t[e],c])**2)\nE[] = sum[e](4*(r2[e]**-6.0 - r2[e]**-3.0))",
        _listed_atoms,
        {"4,000 atoms": dict(n=4000)},
        dict(n=(2, 7, 17)),
        {
            "list": Peer(peers.lennard_jones_list, "a list of pairs"),
            "jax": Peer(peers.lennard_jones_list_jax, "a list of pairs in JAX", library="jax"),
        },
    ),
)
