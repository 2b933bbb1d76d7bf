"""Operators of vision in PyTorch and JAX: gathers, windows, grid_sample, cumulative products and sums."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DISPARITIES = 48
"""Shifts of the right image in the cost volume (pixels)."""


def _windows(n: int, size: int) -> Tensor:
    """Positions of the `size` neighbours of each of n positions; windows are moved inwards at the borders."""
    return (torch.arange(n) - size // 2).clamp(0, n - size)[:, None] + torch.arange(size)


def neighbours(q: Tensor, k: Tensor, v: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Neighbourhood attention over gathered windows; q, k, v [head, *space, channel], `sizes` of the window."""
    heads, *space, width = q.shape
    at = torch.zeros((), dtype=torch.int64)
    for n, size in zip(space, sizes, strict=True):  # [*space, *window], flattened
        at = (
            (at[:, None, :, None] * n + _windows(n, size)[:, None]).flatten(2).flatten(0, 1)
            if at.ndim
            else _windows(n, size)
        )
    keys, values = (x.reshape(heads, -1, width)[:, at] for x in (k, v))
    p = (torch.einsum("hnd,hnwd->hnw", q.reshape(heads, -1, width), keys) * width**-0.5).softmax(2)
    return torch.einsum("hnw,hnwd->hnd", p, values).reshape(q.shape)


def neighbours_2d(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return neighbours(q, k, v, (7, 7))


def neighbours_3d(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return neighbours(q, k, v, (3, 5, 5))


def _mask(space: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    """Whether each position (row) attends to each other one."""
    out = torch.ones(1, 1, dtype=torch.bool)
    for n, size in zip(space, sizes, strict=True):
        start = (torch.arange(n) - size // 2).clamp(0, n - size)[:, None]
        near = (torch.arange(n) >= start) & (torch.arange(n) < start + size)
        out = (out[:, None, :, None] & near[:, None]).flatten(2).flatten(0, 1)
    return out


_kept_mask = cache(_mask)


def neighbours_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Neighbourhood attention in two dimensions, as attention under a mask."""
    mask = (_mask if torch.compiler.is_compiling() else _kept_mask)(tuple(q.shape[1:3]), (7, 7))
    Q, K, V = (x.flatten(1, 2)[None] for x in (q, k, v))
    y = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)
    return y.view(q.shape)


def deformable_grid(V: Tensor, loc: Tensor, att: Tensor, shape: Tensor, start: Tensor) -> Tensor:
    """Multi-scale deformable attention by grid_sample, as in the authors' program without CUDA."""
    shapes = shape.tolist()
    grid = (2 * loc - 1).permute(1, 2, 0, 3, 4)  # head, level, query, point, 2
    taken = []
    for n, level in enumerate(V.split([h * w for h, w in shapes])):
        image = level.permute(1, 2, 0).unflatten(2, shapes[n])
        taken.append(F.grid_sample(image, grid[:, n], padding_mode="zeros", align_corners=False))
    x = torch.stack(taken, 3).flatten(3)  # head, channel, query, level and point
    return torch.einsum("hdqn,qhn->qhd", x, att.flatten(2))


def deformable_gather(V: Tensor, loc: Tensor, att: Tensor, shape: Tensor, start: Tensor) -> Tensor:
    """Multi-scale deformable attention by one gather of the four corners."""
    high, wide = (shape[:, n, None] for n in (0, 1))
    x, y = loc[..., 0] * wide - 0.5, loc[..., 1] * high - 0.5
    heads = torch.arange(V.shape[1])[:, None, None]
    out = torch.zeros((), dtype=V.dtype)
    x0, y0 = x.floor().detach(), y.floor().detach()
    for s in (0, 1):
        for r in (0, 1):
            column, row = x0.long() + r, y0.long() + s
            w = att * (1 - (x - x0 - r).abs()) * (1 - (y - y0 - s).abs())
            inside = (column >= 0) & (column < wide) & (row >= 0) & (row < high)
            at = torch.where(inside, start[:, None] + row * wide + column, 0)
            out = out + torch.einsum("qhlp,qhlpd->qhd", torch.where(inside, w, 0), V[at, heads])
    return out


def _taps(o: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the nine taps of a deformable convolution, [n, 9, h, w]."""
    n, _, _, h, w = o.shape
    tap = torch.arange(9)[:, None, None]
    rows = torch.arange(h)[:, None] + tap // 3 - 1 + o[:, :, 0]
    return rows, torch.arange(w) + tap % 3 - 1 + o[:, :, 1]


def deform_conv_grid(x: Tensor, o: Tensor, m: Tensor, W: Tensor) -> Tensor:
    """Modulated deformable convolution: grid_sample, then a product."""
    rows, columns = _taps(o)
    n, c, h, w = x.shape
    grid = torch.stack([(2 * columns + 1) / w - 1, (2 * rows + 1) / h - 1], -1).flatten(1, 2)
    taken = (
        F.grid_sample(x, grid, padding_mode="zeros", align_corners=False).view(n, c, 9, h * w) * m.flatten(2)[:, None]
    )
    return (W.flatten(1) @ taken.flatten(1, 2)).view(n, -1, h, w)


def deform_conv_gather(x: Tensor, o: Tensor, m: Tensor, W: Tensor) -> Tensor:
    """Modulated deformable convolution: gathers of the four corners, then a product."""
    rows, columns = _taps(o)
    n, c, h, w = x.shape
    flat, taken = x.flatten(2), torch.zeros((), dtype=x.dtype)
    y0, x0 = rows.floor().detach(), columns.floor().detach()
    for r in (0, 1):
        for s in (0, 1):
            row, column = y0.long() + r, x0.long() + s
            weight = m * (1 - (rows - y0 - r).abs()) * (1 - (columns - x0 - s).abs())
            inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
            at = torch.where(inside, row * w + column, 0).flatten(1)[:, None].expand(-1, c, -1)
            taken = taken + flat.gather(2, at) * torch.where(inside, weight, 0).flatten(1)[:, None]
    return (W.flatten(1) @ taken.view(n, c * 9, h * w)).view(n, -1, h, w)


def render_product(s: Tensor, d: Tensor, c: Tensor) -> Tensor:
    """Volume rendering by a cumulative product of transparencies."""
    a = 1 - (-s * d).exp()
    clear = F.pad(1 - a, (1, 0), value=1.0)[:, :-1].cumprod(1)
    return ((clear * a)[:, :, None] * c).sum(1)


def render_sum(s: Tensor, d: Tensor, c: Tensor) -> Tensor:
    """Volume rendering by a cumulative sum of optical depths."""
    depth = s * d
    before = F.pad(depth, (1, 0))[:, :-1].cumsum(1)
    return torch.einsum("bn,bnk->bk", (-before).exp() * (1 - (-depth).exp()), c)


def render_jax(s: Any, d: Any, c: Any) -> Any:
    import jax.numpy as jnp

    depth = s * d
    before = jnp.cumsum(jnp.pad(depth, ((0, 0), (1, 0)))[:, :-1], 1)
    return jnp.einsum("bn,bnk->bk", jnp.exp(-before) * (1 - jnp.exp(-depth)), c)


def _opacities(m: Tensor, q: Tensor, o: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """Opacities of all Gaussians n at all pixels, [i, j, n]: cumulative operations run along memory."""
    dx, dy = X[:, None] - m[:, 0], (Y[:, None] - m[:, 1])[:, None]
    return (o * (-0.5 * (q[:, 0] * dx * dx + q[:, 2] * dy * dy) - q[:, 1] * dy * dx).exp()).clamp(max=0.99)


def splat_product(m: Tensor, q: Tensor, o: Tensor, c: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """Splatting of all Gaussians at all pixels, by a cumulative product."""
    a = _opacities(m, q, o, X, Y)
    clear = F.pad(1 - a[..., :-1], (1, 0), value=1.0).cumprod(2)
    return (clear * a) @ c


def splat_sum(m: Tensor, q: Tensor, o: Tensor, c: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """Splatting of all Gaussians at all pixels, by a cumulative sum of logarithms."""
    a = _opacities(m, q, o, X, Y)
    clear = F.pad(torch.log1p(-a[..., :-1]), (1, 0)).cumsum(2).exp()
    return (clear * a) @ c


def splat_scan(m: Any, q: Any, o: Any, c: Any, X: Any, Y: Any) -> Any:
    """Splatting of all Gaussians at all pixels, by a loop over the Gaussians."""
    import jax
    import jax.numpy as jnp

    def step(carried: Any, gaussian: Any) -> Any:
        (clear, image), (m, q, o, c) = carried, gaussian
        dx, dy = X - m[0], (Y - m[1])[:, None]
        a = jnp.minimum(o * jnp.exp(-0.5 * (q[0] * dx * dx + q[2] * dy * dy) - q[1] * dy * dx), 0.99)
        return (clear * (1 - a), image + (clear * a)[..., None] * c), None

    start = jnp.ones((len(Y), len(X)), c.dtype), jnp.zeros((len(Y), len(X), c.shape[1]), c.dtype)
    return jax.lax.scan(step, start, (m, q, o, c))[0][1]


def tiles_padded(
    m: Tensor, q: Tensor, o: Tensor, c: Tensor, X: Tensor, Y: Tensor, id: Tensor, tile: Tensor, row: Tensor
) -> Tensor:
    """Splatting by tiles whose lists are padded to the longest."""
    length = row.diff()
    place = torch.arange(int(length.max()))
    used = place < length[:, None]
    of = id[torch.where(used, row[:-1, None] + place, 0)]  # tile, place
    (mx, my), (qa, qb, qc) = m[of].unbind(2), q[of].unbind(2)
    dx, dy = X[:, None] - mx[..., None], Y[:, None] - my[..., None]
    power = -0.5 * (qa[..., None] * dx * dx + qc[..., None] * dy * dy) - qb[..., None] * dx * dy
    a = (torch.where(used, o[of], 0)[..., None] * power.exp()).clamp(max=0.99)
    clear = torch.cat([torch.ones_like(a[:, :1]), 1 - a[:, :-1]], 1).cumprod(1)
    return torch.einsum("tlp,tlk->tpk", clear * a, c[of])


def partial_conv(x: Tensor, m: Tensor, W: Tensor, w: Tensor) -> Tensor:
    """Partial convolution by two convolutions, as in the authors' program."""
    n = F.conv2d(m[:, None], torch.ones(1, 1, *W.shape[2:]).to(m))
    s = F.conv2d(x * m[:, None], W)
    return torch.where(n > 0, s * 9 / n.clamp(min=1) + w[:, None, None], 0)


def local_unfold(x: Tensor, W: Tensor, w: Tensor) -> Tensor:
    """Locally connected layer: a product per position of unfolded windows."""
    i, j, k, c, r, s = W.shape
    windows = F.unfold(x, (r, s)).permute(2, 1, 0)  # position, channel and tap, sample
    return torch.bmm(W.view(i * j, k, c * r * s), windows).permute(2, 1, 0).view(-1, k, i, j) + w


def local_windows(x: Tensor, W: Tensor, w: Tensor) -> Tensor:
    """Locally connected layer: a sum over views of windows."""
    r, s = W.shape[4:]
    return torch.einsum("ijkcrs,bcijrs->bkij", W, x.unfold(2, r, 1).unfold(3, s, 1)) + w


def adaptive_unfold(x: Tensor, f: Tensor, W: Tensor) -> Tensor:
    """Pixel-adaptive convolution: unfolded windows, as in the authors' program."""
    b, c, h, w = x.shape
    near = F.unfold(f, 3).view(b, f.shape[1], 9, -1)
    kernel = (-0.5 * (near - near[:, :, 4:5]).square().sum(1)).exp()
    taken = F.unfold(x, 3).view(b, c, 9, -1) * kernel[:, None]
    return (W.flatten(1) @ taken.flatten(1, 2)).view(b, -1, h - 2, w - 2)


def volume_windows(f: Tensor, g: Tensor) -> Tensor:
    """Cost volume by views of the padded right image."""
    moved = F.pad(g, (DISPARITIES - 1, 0)).unfold(3, DISPARITIES, 1).flip(4)  # sample, channel, row, column, disparity
    inside = torch.arange(f.shape[3])[:, None] >= torch.arange(DISPARITIES)
    return torch.where(inside, (f[..., None] - moved).abs().sum(1), 0).movedim(3, 1)


def volume_slices(f: Tensor, g: Tensor) -> Tensor:
    """Cost volume by a slice for each disparity, as published."""
    width = f.shape[3]
    shifts = [min(u, width) for u in range(DISPARITIES)]
    return torch.stack([F.pad((f[..., u:] - g[..., : width - u]).abs().sum(1), (u, 0)) for u in shifts], 1)
