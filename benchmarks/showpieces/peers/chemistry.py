"""Operators of chemistry in PyTorch and JAX: pairs of residues, potentials, tensor products of harmonics."""

from __future__ import annotations

from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.showpieces.clebsch_gordan import PATHS, harmonics

INTERACTIONS = 2
"""Interaction blocks of SchNet; its formula has as many."""


def triangle_product(
    z: Tensor, w1: Tensor, b1: Tensor, Ag: Tensor, A: Tensor, Bg: Tensor, B: Tensor, w2: Tensor, b2: Tensor, G: Tensor,
    C: Tensor,
) -> Tensor:  # fmt: skip
    """Triangle multiplication as a product of matrices per channel."""
    x = F.layer_norm(z, (z.shape[2],), w1, b1)
    a, b = ((x @ gate).sigmoid() * (x @ W) for gate, W in ((Ag, A), (Bg, B)))
    t = torch.einsum("ikc,jkc->ijc", a, b)
    return (x @ G).sigmoid() * (F.layer_norm(t, (t.shape[2],), w2, b2) @ C)


def triangle_product_jax(
    z: Any, w1: Any, b1: Any, Ag: Any, A: Any, Bg: Any, B: Any, w2: Any, b2: Any, G: Any, C: Any
) -> Any:
    import jax
    import jax.numpy as jnp

    x = _norm_jax(z, w1, b1)
    a, b = (jax.nn.sigmoid(x @ gate) * (x @ W) for gate, W in ((Ag, A), (Bg, B)))
    return jax.nn.sigmoid(x @ G) * (_norm_jax(jnp.einsum("ikc,jkc->ijc", a, b), w2, b2) @ C)


def _norm_jax(x: Any, w: Any, b: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + 1e-5) ** 0.5 * w + b


def _triangle_inputs(z: Tensor, w1: Tensor, b1: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    x = F.layer_norm(z, (z.shape[2],), w1, b1)
    return x, *((x @ V.flatten(1)).unflatten(2, V.shape[1:]).transpose(1, 2) for V in of)  # [i, h, j, c]


def triangle_attention_fused(
    z: Tensor, w1: Tensor, b1: Tensor, Q: Tensor, K: Tensor, V: Tensor, B: Tensor, G: Tensor, W: Tensor
) -> Tensor:
    """Triangle attention by scaled_dot_product_attention, to which the bias is a mask."""
    x, q, k, v = _triangle_inputs(z, w1, b1, Q, K, V)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=(x @ B).permute(2, 0, 1)[None])
    return ((x @ G.flatten(1)).sigmoid() * o.transpose(1, 2).flatten(2)) @ W.flatten(0, 1)


def triangle_attention_softmax(
    z: Tensor, w1: Tensor, b1: Tensor, Q: Tensor, K: Tensor, V: Tensor, B: Tensor, G: Tensor, W: Tensor
) -> Tensor:
    """Triangle attention by two products and a softmax."""
    x, q, k, v = _triangle_inputs(z, w1, b1, Q, K, V)
    s = (q * q.shape[3] ** -0.5) @ k.mT + (x @ B).permute(2, 0, 1)
    o = s.softmax(3) @ v
    return ((x @ G.flatten(1)).sigmoid() * o.transpose(1, 2).flatten(2)) @ W.flatten(0, 1)


def triangle_attention_jax(z: Any, w1: Any, b1: Any, Q: Any, K: Any, V: Any, B: Any, G: Any, W: Any) -> Any:
    import jax
    import jax.numpy as jnp

    x = _norm_jax(z, w1, b1)
    q, k, v = (jnp.einsum("ijd,dhc->ihjc", x, of) for of in (Q, K, V))
    s = jnp.einsum("ihjc,ihlc->ihjl", q * q.shape[3] ** -0.5, k) + jnp.einsum("jld,dh->hjl", x, B)
    o = jnp.einsum("ihjl,ihlc->ijhc", jax.nn.softmax(s, -1), v)
    return jnp.einsum("ijhc,hcd->ijd", jax.nn.sigmoid(jnp.einsum("ijd,dhc->ijhc", x, G)) * o, W)


def _pairs(n: int) -> tuple[Tensor, Tensor]:
    """All ordered pairs of n atoms, the first one in ascending order."""
    i, j = torch.arange(n).repeat_interleave(n - 1), torch.arange(n - 1).repeat(n)
    return i, j + (j >= i).long()


def _schnet(lib: Any, pairs: Any, ssp: Any, x: Any, z: Any, E: Any, weights: Any) -> Any:
    """Energies of molecules by PyTorch or JAX, over pairs (i, j) of atoms."""
    (A, W1, w1, W2, w2, W3, w3, W4, w4, U, u, v), (i, j) = weights, pairs
    molecules, atoms = z.shape
    d = ((x[:, i] - x[:, j]) ** 2).sum(2) ** 0.5
    cut = lib.where(d < 5, 0.5 * (lib.cos(torch.pi / 5 * d) + 1), 0)
    g = lib.exp(-10 * (d[:, :, None] - 0.3 * lib.arange(W1.shape[1], dtype=W1.dtype)) ** 2)
    h = E[z]
    for n in range(INTERACTIONS):
        w = ssp(ssp(g @ W1[n] + w1[n]) @ W2[n] + w2[n]) * cut[:, :, None]
        m = ((h @ A[n])[:, j] * w).reshape(molecules, atoms, atoms - 1, -1).sum(2)
        h = h + ssp(m @ W3[n] + w3[n]) @ W4[n] + w4[n]
    return (ssp(h @ U + u) @ v).sum(1)


def _ssp(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=40) - log(2)  # by default it is x beyond 20, which float64 tells apart


def _schnet_loss(energy: Any, slope: Any, e: Any, f: Any) -> Any:
    return 0.01 * ((energy - e) ** 2).mean() + ((slope + f) ** 2).mean()


def schnet_autograd(x: Tensor, z: Tensor, e: Tensor, f: Tensor, E: Tensor, *weights: Tensor) -> Tensor:
    """Loss of energies and forces, the forces by torch.autograd.grad."""
    x = x.detach().requires_grad_()
    energy = _schnet(torch, _pairs(z.shape[1]), _ssp, x, z, E, weights)
    (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    return _schnet_loss(energy, slope, e, f)


def schnet_func(x: Tensor, z: Tensor, e: Tensor, f: Tensor, E: Tensor, *weights: Tensor) -> Tensor:
    """Loss of energies and forces, the forces by torch.func.grad, which torch.compile takes in."""

    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        energy = _schnet(torch, _pairs(z.shape[1]), _ssp, x, z, E, weights)
        return energy.sum(), energy

    slope, energy = torch.func.grad(total, has_aux=True)(x)
    return _schnet_loss(energy, slope, e, f)


def schnet_jax(x: Any, z: Any, e: Any, f: Any, E: Any, *weights: Any) -> Any:
    import jax
    import jax.numpy as jnp

    pairs = tuple(n.numpy() for n in _pairs(z.shape[1]))

    def total(x: Any) -> Any:
        energy = _schnet(jnp, pairs, lambda x: jnp.logaddexp(x, 0) - log(2), x, z, E, weights)
        return energy.sum(), energy

    slope, energy = jax.grad(total, has_aux=True)(x)
    return _schnet_loss(energy, slope, e, f)


def _messages(lib: Any, x: Any, Y: Any, w: Any, C: Any) -> Any:
    """Messages of edges by paths, [e, u, 9]: weighted products of x and a small matrix of each path and edge."""
    out: list[Any] = [0, 0, 0]
    for n, (a, b, c) in enumerate(PATHS):
        at = harmonics(a), harmonics(b), harmonics(c)
        matrix = lib.einsum("ej,ijk->eik", Y[:, at[1]], C[at])
        out[c] = out[c] + w[:, n, :, None] * (x[:, :, at[0]] @ matrix)
    return out


def tensor_product_matrices(x: Tensor, Y: Tensor, w: Tensor, src: Tensor, dst: Tensor, C: Tensor, P: Tensor) -> Tensor:
    """Tensor product by a matrix of each path and edge, made of the harmonics."""
    m = torch.cat(_messages(torch, x[src], Y, w, C), 2)
    return torch.zeros_like(x).index_add(0, dst, m)


def tensor_product_paths(x: Tensor, Y: Tensor, w: Tensor, src: Tensor, dst: Tensor, C: Tensor, P: Tensor) -> Tensor:
    """Tensor product by an einsum of each path, e3nn's form."""
    of, out = x[src], [torch.zeros(())] * 3
    for n, (a, b, c) in enumerate(PATHS):
        at = harmonics(a), harmonics(b), harmonics(c)
        outer = of[:, :, at[0], None] * Y[:, None, None, at[1]]
        out[c] = out[c] + torch.einsum("euij,ijk,eu->euk", outer, C[at], w[:, n])
    return torch.zeros_like(x).index_add(0, dst, torch.cat(out, 2))


def tensor_product_jax(x: Any, Y: Any, w: Any, src: Any, dst: Any, C: Any, P: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jax.ops.segment_sum(jnp.concatenate(_messages(jnp, x[src], Y, w, C), 2), dst, len(x))


def lennard_jones(x: Tensor) -> Tensor:
    """Lennard-Jones energy of all pairs, by a matrix of squared distances whose diagonal is 1."""
    r = (x[:, None] - x).square().sum(2)
    eye = torch.eye(len(x), dtype=torch.bool)
    s = torch.where(eye, 1, r) ** -3
    return torch.where(eye, 0, 2 * (s * s - s)).sum()


def lennard_jones_jax(x: Any) -> Any:
    import jax.numpy as jnp

    eye = jnp.eye(len(x), dtype=bool)
    s = jnp.where(eye, 1, ((x[:, None] - x) ** 2).sum(2)) ** -3
    return jnp.where(eye, 0, 2 * (s * s - s)).sum()


def lennard_jones_list(x: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """Lennard-Jones energy of the pairs of a list."""
    u = (x[s] - x[t]).square().sum(1) ** -3
    return (4 * (u * u - u)).sum()


def lennard_jones_list_jax(x: Any, s: Any, t: Any) -> Any:
    u = ((x[s] - x[t]) ** 2).sum(1) ** -3
    return (4 * (u * u - u)).sum()
