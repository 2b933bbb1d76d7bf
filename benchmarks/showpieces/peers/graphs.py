"""Operators of graphs and point sets in PyTorch and JAX: gathers, index_add and scatter_reduce, matrices of pairs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def edge_conv_cat(x: Tensor, near: Tensor, W: Tensor, V: Tensor) -> Tensor:
    """Edge convolution: gathered neighbours, one product, the authors' program."""
    pairs = torch.cat([x[:, None].expand(-1, near.shape[1], -1), x[near] - x[:, None]], 2)
    return (pairs @ torch.cat([W, V])).relu().amax(1)


def edge_conv_split(x: Tensor, near: Tensor, W: Tensor, V: Tensor) -> Tensor:
    """Edge convolution: products per node, of which the maximum over the neighbours is taken."""
    return (x @ (W - V) + (x @ V)[near].amax(1)).relu()


def edge_conv_jax(x: Any, near: Any, W: Any, V: Any) -> Any:
    import jax.numpy as jnp

    return jnp.maximum(x @ (W - V) + (x @ V)[near].max(1), 0)


def graph_attention_scatter(
    x: Tensor, W: Tensor, a: Tensor, b: Tensor, src: Tensor, dst: Tensor, row: Tensor
) -> Tensor:
    """Graph attention by scatters, PyTorch Geometric's form."""
    z = (x @ W.flatten(1)).view(len(x), *W.shape[1:])
    s = F.leaky_relu((z * a).sum(2)[dst] + (z * b).sum(2)[src], 0.2)
    at = dst[:, None].expand_as(s)
    zero = torch.zeros(len(x), s.shape[1], dtype=x.dtype)
    top = zero.scatter_reduce(0, at, s.detach(), "amax", include_self=False)
    e = (s - top[dst]).exp()
    p = e / zero.index_add(0, dst, e)[dst]
    return torch.zeros_like(z).index_add(0, dst, p[:, :, None] * z[src])


def graph_attention_segments(
    x: Tensor, W: Tensor, a: Tensor, b: Tensor, src: Tensor, dst: Tensor, row: Tensor
) -> Tensor:
    """Graph attention by sums over segments, divided once per node."""
    z = (x @ W.flatten(1)).view(len(x), *W.shape[1:])
    s = F.leaky_relu((z * a).sum(2)[dst] + (z * b).sum(2)[src], 0.2)
    top = torch.segment_reduce(s.detach(), "max", offsets=row, axis=0)
    e = (s - top[dst]).exp()
    total = torch.zeros_like(top).index_add(0, dst, e)
    return torch.zeros_like(z).index_add(0, dst, e[:, :, None] * z[src]) / total[:, :, None]


def graph_attention_jax(x: Any, W: Any, a: Any, b: Any, src: Any, dst: Any, row: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def total(of: Any) -> Any:
        return jax.ops.segment_sum(of, dst, len(x), indices_are_sorted=True)

    z = jnp.einsum("nd,dhk->nhk", x, W)
    s = jax.nn.leaky_relu((z * a).sum(2)[dst] + (z * b).sum(2)[src], 0.2)
    top = jax.ops.segment_max(jax.lax.stop_gradient(s), dst, len(x), indices_are_sorted=True)
    e = jnp.exp(s - top[dst])
    return total(e[:, :, None] * z[src]) / total(e)[:, :, None]


def _equivariant(lib: Any, silu: Any, x: Any, h: Any, weights: Any) -> Any:
    """E(n) equivariant layer by matrices of all pairs, in PyTorch or JAX."""
    A, B, w, a, E, e, X, b, v, H, M, c, N, o = weights
    n = x.shape[1]
    r = x[:, :, None] - x[:, None]
    d = (r**2).sum(3)
    first = (h @ A + a)[:, :, None] + (h @ B)[:, None] + d[..., None] * w
    m = silu(silu(first) @ E + e)
    other = lib.arange(n)[:, None] != lib.arange(n)
    moved = lib.where(other, silu(m @ X + b) @ v, 0)
    y = x + (r * moved[..., None]).sum(2) / (n - 1)
    total = lib.where(other[..., None], m, 0).sum(2)
    return y, h + silu(h @ H + total @ M + c) @ N + o


def equivariant_pairs(x: Tensor, h: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """E(n) equivariant layer by matrices of all pairs."""
    return _equivariant(torch, F.silu, x, h, weights)


def equivariant_edges(x: Tensor, h: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """E(n) equivariant layer by lists of edges, the authors' program."""
    A, B, w, a, E, e, X, b, v, H, M, c, N, o = weights
    graphs, n, _ = x.shape
    i, j = torch.arange(n).repeat_interleave(n - 1), torch.arange(n - 1).repeat(n)
    j = j + (j >= i).long()
    r = x[:, i] - x[:, j]
    first = (h @ A + a)[:, i] + (h @ B)[:, j] + r.square().sum(2, keepdim=True) * w
    m = F.silu(F.silu(first) @ E + e)
    moved = r * (F.silu(m @ X + b) @ v)[..., None]
    y = x + moved.view(graphs, n, n - 1, -1).mean(2)
    total = m.view(graphs, n, n - 1, -1).sum(2)
    return y, h + F.silu(h @ H + total @ M + c) @ N + o


def equivariant_jax(x: Any, h: Any, *weights: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return _equivariant(jnp, jax.nn.silu, x, h, weights)


def chamfer_matrix(x: Tensor, y: Tensor) -> Tensor:
    """Chamfer distance by a matrix of differences."""
    d = (x[:, :, None] - y[:, None]).square().sum(3)
    return d.amin(2).mean() + d.amin(1).mean()


def chamfer_product(x: Tensor, y: Tensor) -> Tensor:
    """Chamfer distance by the nearest points of a matrix of products, whose distances are computed again."""
    with torch.no_grad():
        d = x.square().sum(2)[:, :, None] + y.square().sum(2)[:, None] - 2 * x @ y.mT
        of, to = d.argmin(2), d.argmin(1)
    batch = torch.arange(len(x))[:, None]
    return (x - y[batch, of]).square().sum(2).mean() + (x[batch, to] - y).square().sum(2).mean()


def chamfer_jax(x: Any, y: Any) -> Any:
    d = ((x[:, :, None] - y[:, None]) ** 2).sum(3)
    return d.min(2).mean() + d.min(1).mean()


def _edge_network(gather: Any, relu: Any, total: Any, x: Any, g: Any, weights: Any) -> Any:
    """Interaction network whose first product is taken per node, in PyTorch or JAX."""
    A, B, C, a, D, b, E, M, c = weights
    of, to = gather
    m = relu(relu((x @ A)[of] + (x @ B)[to] + g @ C + a) @ D + b)
    return relu(x @ E + total(m) @ M + c)


def edge_network_split(x: Tensor, g: Tensor, src: Tensor, dst: Tensor, *weights: Tensor) -> Tensor:
    """Interaction network: the first product per node."""

    def total(m: Tensor) -> Tensor:
        return torch.zeros(len(x), m.shape[1], dtype=m.dtype).index_add(0, dst, m)

    return _edge_network((src, dst), torch.relu, total, x, g, weights)


def edge_network_cat(x: Tensor, g: Tensor, src: Tensor, dst: Tensor, *weights: Tensor) -> Tensor:
    """Interaction network: the first product per edge, PyTorch Geometric's form."""
    A, B, C, a, D, b, E, M, c = weights
    first = torch.cat([x[src], x[dst], g], 1) @ torch.cat([A, B, C]) + a
    m = (first.relu() @ D + b).relu()
    total = torch.zeros(len(x), m.shape[1], dtype=m.dtype).index_add(0, dst, m)
    return (torch.cat([x, total], 1) @ torch.cat([E, M]) + c).relu()


def edge_network_jax(x: Any, g: Any, src: Any, dst: Any, *weights: Any) -> Any:
    import jax

    def total(m: Any) -> Any:
        return jax.ops.segment_sum(m, dst, len(x))

    return _edge_network((src, dst), jax.nn.relu, total, x, g, weights)
