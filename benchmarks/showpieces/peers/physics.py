"""Simulation, kernel products, optimal transport and splines in PyTorch, KeOps and JAX."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

STEPS, EPSILON = 50, 0.1
"""Iterations and temperature of Sinkhorn."""
ORDER = 3
"""Of the splines."""


def wave(c: Tensor, w: Tensor, s: Tensor, at: Tensor) -> Tensor:
    """Padded slices; the loop is over lists of tensors."""
    now = before = torch.zeros_like(c)
    source = torch.zeros_like(c)
    source[s[0], s[1]] = 1.0
    squared, out = c * c, []
    for value in w.unbind(0):
        p = F.pad(now, (1, 1, 1, 1))
        around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
        before, now = now, 2 * now - before + squared * (around - 4 * now) + value * source
        out.append(now[at[:, 0], at[:, 1]])
    return torch.stack(out)


def wave_by_convolution(c: Tensor, w: Tensor, s: Tensor, at: Tensor) -> Tensor:
    """The five-point Laplacian as a convolution."""
    now = before = torch.zeros_like(c)
    source = torch.zeros_like(c)
    source[s[0], s[1]] = 1.0
    stencil = c.new_tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])[None, None]
    squared, out = c * c, []
    for value in w.unbind(0):
        laplacian = F.conv2d(now[None, None], stencil, padding=1)[0, 0]
        before, now = now, 2 * now - before + squared * laplacian + value * source
        out.append(now[at[:, 0], at[:, 1]])
    return torch.stack(out)


def _distances(x: Tensor, y: Tensor) -> Tensor:
    return (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.mT


def gaussian_product(x: Tensor, z: Tensor, b: Tensor) -> Tensor:
    """The whole matrix, distances by a product."""
    return (_distances(x, z) * -0.5).exp() @ b


def gaussian_product_by_differences(x: Tensor, z: Tensor, b: Tensor) -> Tensor:
    """The whole matrix, distances by differences, which torch.compile sums without storing them."""
    return (((x[:, None] - z) ** 2).sum(2) * -0.5).exp() @ b


def keops_gaussian_product(x: Tensor, z: Tensor, b: Tensor) -> Tensor:
    from pykeops.torch import LazyTensor

    return ((-((LazyTensor(x[:, None]) - LazyTensor(z[None])) ** 2).sum(2) / 2).exp()) @ b


def sinkhorn(x: Tensor, y: Tensor) -> Tensor:
    """Log-sum-exps of the whole matrix."""
    kernel = _distances(x, y) * (-0.5 / EPSILON)
    g, rows = x.new_zeros(len(y)), torch.tensor(float(len(y)), dtype=x.dtype).log()
    columns = torch.tensor(float(len(x)), dtype=x.dtype).log()
    for _ in range(STEPS):
        f = (rows - (g + kernel).logsumexp(1))[:, None]
        g = columns - (f + kernel).logsumexp(0)
    return EPSILON * (f.mean() + g.mean())


def keops_sinkhorn(x: Tensor, y: Tensor) -> Tensor:
    import math

    from pykeops.torch import LazyTensor

    kernel = ((LazyTensor(x[:, None]) - LazyTensor(y[None])) ** 2).sum(2) * (-0.5 / EPSILON)
    g = x.new_zeros(len(y), 1)
    for _ in range(STEPS):
        f = math.log(len(y)) - (kernel + LazyTensor(g[None])).logsumexp(1)
        g = math.log(len(x)) - (kernel + LazyTensor(f[:, None])).logsumexp(0)
    return EPSILON * (f.mean() + g.mean())


def _layer(x: Tensor, bases: Tensor, w: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Return the sum of the base function and the splines, as one product each."""
    return F.linear(F.silu(x), w) + F.linear(bases.flatten(1), (c * s[..., None]).flatten(1))


def kan(x: Tensor, grid: Tensor, w: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """As efficient-kan: all bases of an order at once (Cox, de Boor)."""
    y = x[..., None]
    bases = ((y >= grid[:, :-1]) & (y < grid[:, 1:])).to(x.dtype)
    for k in range(1, ORDER + 1):
        left = (y - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
        right = (grid[:, k + 1 :] - y) / (grid[:, k + 1 :] - grid[:, 1:-k])
        bases = left * bases[..., :-1] + right * bases[..., 1:]
    return _layer(x, bases, w, c, s)


def kan_cubic(x: Tensor, grid: Tensor, w: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Uniform cubic splines by their polynomials."""
    at = (x - grid[:, 0]) / (grid[:, 1] - grid[:, 0])
    t = (at[..., None] - torch.arange(c.shape[2], dtype=x.dtype) - 2).abs()
    inner, outer = (4 - 6 * t**2 + 3 * t**3) / 6, (2 - t).clamp(min=0) ** 3 / 6
    return _layer(x, torch.where(t < 1, inner, outer), w, c, s)


def jax_wave(c: Any, w: Any, s: Any, at: Any) -> Any:
    import jax
    import jax.numpy as jnp

    squared, zero = c * c, jnp.zeros_like(c)

    def step(carry: tuple, value: Any) -> tuple:
        before, now = carry
        p = jnp.pad(now, 1)
        around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
        new = (2 * now - before + squared * (around - 4 * now)).at[s[0], s[1]].add(value)
        return (now, new), new[at[:, 0], at[:, 1]]

    return jax.lax.scan(step, (zero, zero), w)[1]


def _jax_distances(x: Any, y: Any) -> Any:
    return (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T


def jax_gaussian_product(x: Any, z: Any, b: Any) -> Any:
    import jax.numpy as jnp

    return jnp.exp(_jax_distances(x, z) * -0.5) @ b


def jax_sinkhorn(x: Any, y: Any) -> Any:
    import jax
    import jax.numpy as jnp

    kernel = _jax_distances(x, y) * (-0.5 / EPSILON)

    def step(carry: tuple, _: Any) -> tuple:
        f = jnp.log(len(y)) - jax.nn.logsumexp(carry[1] + kernel, axis=1)
        g = jnp.log(len(x)) - jax.nn.logsumexp(f[:, None] + kernel, axis=0)
        return (f, g), None

    (f, g), _ = jax.lax.scan(step, (jnp.zeros(len(x), x.dtype), jnp.zeros(len(y), x.dtype)), None, STEPS)
    return EPSILON * (f.mean() + g.mean())


def _jax_layer(x: Any, bases: Any, w: Any, c: Any, s: Any) -> Any:
    import jax

    return jax.nn.silu(x) @ w.T + bases.reshape(len(x), -1) @ (c * s[..., None]).reshape(len(w), -1).T


def jax_kan(x: Any, grid: Any, w: Any, c: Any, s: Any) -> Any:
    y = x[..., None]
    bases = ((y >= grid[:, :-1]) & (y < grid[:, 1:])).astype(x.dtype)
    for k in range(1, ORDER + 1):
        left = (y - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
        right = (grid[:, k + 1 :] - y) / (grid[:, k + 1 :] - grid[:, 1:-k])
        bases = left * bases[..., :-1] + right * bases[..., 1:]
    return _jax_layer(x, bases, w, c, s)


def jax_kan_cubic(x: Any, grid: Any, w: Any, c: Any, s: Any) -> Any:
    import jax.numpy as jnp

    at = (x - grid[:, 0]) / (grid[:, 1] - grid[:, 0])
    t = jnp.abs(at[..., None] - jnp.arange(c.shape[2], dtype=x.dtype) - 2)
    bases = jnp.where(t < 1, (4 - 6 * t**2 + 3 * t**3) / 6, jnp.maximum(2 - t, 0) ** 3 / 6)
    return _jax_layer(x, bases, w, c, s)
