"""Operators of graphs and point sets: messages along edges, attention over neighbours, distances of point sets."""

from __future__ import annotations

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from benchmarks.showpieces.case import Peer, Showpiece
from benchmarks.showpieces.peers import graphs as peers

GRAPH_ATTENTION = """
z[n,h,k] = sum[d](x[n,d]*W[d,h,k])
s[n,h] = sum[k](a[h,k]*z[n,h,k])
t[n,h] = sum[k](b[h,k]*z[n,h,k])
l[e,h] = max(s[dst[e],h] + t[src[e],h], 0.2*(s[dst[e],h] + t[src[e],h]))
top[n,h] = max[e](where(row[n] <= e and e < row[n+1], stop_gradient(l[e,h]), -inf))
p[e,h] = exp(l[e,h] - top[dst[e],h])
q[n,h] = sum[e](where(row[n] <= e and e < row[n+1], p[e,h], 0))
y[n,h,k] = sum[e](where(row[n] <= e and e < row[n+1], p[e,h]*z[src[e],h,k], 0))/q[n,h]
return y
"""

EQUIVARIANT = """
d[g,i,j] = sum[s]((x[g,i,s] - x[g,j,s])**2)
u[g,i,j,k] = sum[f](h[g,i,f]*A[f,k]) + sum[f](h[g,j,f]*B[f,k]) + d[g,i,j]*w[k] + a[k]
r[g,i,j,k] = sum[l](u[g,i,j,l]*sigmoid(u[g,i,j,l])*E[l,k]) + e[k]
m[g,i,j,k] = r[g,i,j,k]*sigmoid(r[g,i,j,k])
p[g,i,j,k] = sum[l](m[g,i,j,l]*X[l,k]) + b[k]
t[g,i,j] = sum[k](p[g,i,j,k]*sigmoid(p[g,i,j,k])*v[k])
y[g,i,s] = x[g,i,s] + sum[j](where(i != j, (x[g,i,s] - x[g,j,s])*t[g,i,j], 0))/(size(i) - 1)
q[g,i,k] = sum[f](h[g,i,f]*H[f,k]) + sum[l](sum[j](where(i != j, m[g,i,j,l], 0))*M[l,k]) + c[k]
z[g,i,f] = h[g,i,f] + sum[k](q[g,i,k]*sigmoid(q[g,i,k])*N[k,f]) + o[f]
return y, z
"""

EDGE_NETWORK = """
u[e,k] = relu(sum[d](x[src[e],d]*A[d,k]) + sum[d](x[dst[e],d]*B[d,k]) + sum[f](g[e,f]*C[f,k]) + a[k])
m[e,k] = relu(sum[l](u[e,l]*D[l,k]) + b[k])
t[dst[e],k] += m[e,k]
y[n,k] = relu(sum[d](x[n,d]*E[d,k]) + sum[l](t[n,l]*M[l,k]) + c[k])
return y
"""


def _weights(rng: Generator, *shape: int) -> ndarray:
    return rng.standard_normal(shape) / np.sqrt(shape[0])


def _neighbours(rng: Generator, n: int, r: int, d: int, k: int) -> dict[str, ndarray]:
    near = rng.integers(0, n, (n, r))
    return {"x": rng.standard_normal((n, d)), "near": near, "W": _weights(rng, d, k), "V": _weights(rng, d, k)}


def _attention(rng: Generator, n: int, e: int, d: int, h: int, k: int) -> dict[str, ndarray]:
    """A graph of e edges and an edge of each node to itself, in the order of their ends, which begin at `row`."""
    dst = np.sort(np.concatenate([np.arange(n), rng.integers(0, n, e)]))
    lists = {"src": rng.integers(0, n, n + e), "dst": dst, "row": np.searchsorted(dst, np.arange(n + 1))}
    a, b = rng.standard_normal((2, h, k))
    return {"x": rng.standard_normal((n, d)), "W": _weights(rng, d, h, k), "a": a, "b": b, **lists}


def _equivariant(rng: Generator, g: int, n: int, f: int, k: int) -> dict[str, ndarray]:
    shapes = {"A": (f, k), "B": (f, k), "w": (k,), "a": (k,), "E": (k, k), "e": (k,), "X": (k, k), "b": (k,), "v": (k,)}
    last = {"H": (f, k), "M": (k, k), "c": (k,), "N": (k, f), "o": (f,)}
    given = {"x": rng.standard_normal((g, n, 3)), "h": rng.standard_normal((g, n, f))}
    return {**given, **{name: _weights(rng, *shape) for name, shape in {**shapes, **last}.items()}}


def _points(rng: Generator, b: int, m: int, n: int) -> dict[str, ndarray]:
    return {"x": rng.standard_normal((b, m, 3)), "y": rng.standard_normal((b, n, 3))}


def _edges(rng: Generator, n: int, e: int, d: int, f: int, k: int) -> dict[str, ndarray]:
    given = {"x": rng.standard_normal((n, d)), "g": rng.standard_normal((e, f))}
    lists = {"src": rng.integers(0, n, e), "dst": rng.integers(0, n, e)}
    shapes = {
        "A": (d, k),
        "B": (d, k),
        "C": (f, k),
        "a": (k,),
        "D": (k, k),
        "b": (k,),
        "E": (d, k),
        "M": (k, k),
        "c": (k,),
    }
    return {**given, **lists, **{name: _weights(rng, *shape) for name, shape in shapes.items()}}


SHOWPIECES = (
    Showpiece(
        "edge convolution",
        "graphs",
        "Wang, Sun, Liu, Sarma, Bronstein, Solomon 2019, Dynamic graph CNN, eqs. 7 and 8, with given neighbours",
        "y[i,k] = max[r](relu(sum[d](x[i,d]*W[d,k]) + sum[d]((x[near[i,r],d] - x[i,d])*V[d,k])))",
        _neighbours,
        {"1,024 points, 20 neighbours": dict(n=1024, r=20, d=64, k=64)},
        dict(n=(7, 1, 17), r=(3, 1, 5), d=(5, 1, 8), k=(1, 7, 16)),
        {
            "cat": Peer(peers.edge_conv_cat, "gathered neighbours, one product, the authors' program"),
            "split": Peer(peers.edge_conv_split, "products per node"),
            "jax": Peer(peers.edge_conv_jax, "products per node in JAX", library="jax"),
        },
    ),
    Showpiece(
        "graph attention",
        "graphs",
        "Veličković, Cucurull, Casanova, Romero, Liò, Bengio 2018, Graph attention networks, eqs. 1 to 4",
        GRAPH_ATTENTION,
        _attention,
        {"4,000 nodes, 40,000 edges, 8 heads": dict(n=4000, e=40000, d=64, h=8, k=8)},
        dict(n=(2, 7, 17), e=(5, 13, 31), d=(5, 1, 8), h=(1, 3, 2), k=(7, 1, 8)),
        {
            "scatter": Peer(peers.graph_attention_scatter, "scatters, PyTorch Geometric's form"),
            "segments": Peer(peers.graph_attention_segments, "sums over segments, divided once per node"),
            "jax": Peer(peers.graph_attention_jax, "segment_sum and segment_max", library="jax"),
        },
        extents=lambda sizes: {"n": sizes["n"]},
    ),
    Showpiece(
        "equivariant graph layer",
        "graphs",
        "Satorras, Hoogeboom, Welling 2021, E(n) equivariant graph neural networks, eqs. 3 to 6",
        EQUIVARIANT,
        _equivariant,
        {"16 graphs of 29 nodes, 64 features": dict(g=16, n=29, f=64, k=64)},
        dict(g=(1, 3, 2), n=(2, 7, 5), f=(5, 1, 8), k=(7, 1, 16)),
        {
            "pairs": Peer(peers.equivariant_pairs, "matrices of all pairs"),
            "edges": Peer(peers.equivariant_edges, "lists of edges, the authors' program"),
            "jax": Peer(peers.equivariant_jax, "matrices of all pairs in JAX", library="jax"),
        },
    ),
    Showpiece(
        "Chamfer distance",
        "graphs",
        "Fan, Su, Guibas 2017, A point set generation network, section 4.2",
        "d[b,i,j] = sum[c]((x[b,i,c] - y[b,j,c])**2)\n"
        "loss[] = mean[b](mean[i](min[j](d[b,i,j])) + mean[j](min[i](d[b,i,j])))",
        _points,
        {"4 x 1,024 x 1,024 points": dict(b=4, m=1024, n=1024)},
        dict(b=(1, 3, 2), m=(7, 1, 17), n=(5, 16, 1)),
        {
            "matrix": Peer(peers.chamfer_matrix, "a matrix of differences"),
            "product": Peer(peers.chamfer_product, "nearest points by a product, then their distances"),
            "jax": Peer(peers.chamfer_jax, "a matrix of differences in JAX", library="jax"),
        },
    ),
    Showpiece(
        "interaction network",
        "graphs",
        "Battaglia, Pascanu, Lai, Rezende, Kavukcuoglu 2016, Interaction networks, eqs. 2 to 4",
        EDGE_NETWORK,
        _edges,
        {"2,000 nodes, 20,000 edges, 64 features": dict(n=2000, e=20000, d=64, f=16, k=64)},
        dict(n=(1, 7, 17), e=(5, 1, 31), d=(5, 1, 8), f=(1, 3, 2), k=(7, 3, 16)),
        {
            "split": Peer(peers.edge_network_split, "first product per node, index_add"),
            "cat": Peer(peers.edge_network_cat, "first product per edge, PyTorch Geometric's form"),
            "jax": Peer(peers.edge_network_jax, "first product per node, segment_sum", library="jax"),
        },
        extents=lambda sizes: {"t.shape[0]": sizes["n"]},
    ),
)
