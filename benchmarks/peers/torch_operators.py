"""The operators in PyTorch: by name, the formulations among which the fastest is chosen. Inputs as in `problems`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def capsule_conv_last(a: Tensor, w: Tensor, stride: int) -> Tensor:
    """One convolution: (b, i) are its batch, (c, m) its input channels, (k, j) its output channels; channels last."""
    b, c, h, wd, i, m = a.shape
    k, _, r, s, _, j = w.shape
    x = a.permute(0, 4, 2, 3, 1, 5).reshape(b * i, h, wd, c * m).permute(0, 3, 1, 2)
    f = w.permute(0, 5, 2, 3, 1, 4).reshape(k * j, r, s, c * m).permute(0, 3, 1, 2)
    y = F.conv2d(x, f, stride=stride).permute(0, 2, 3, 1)
    return y.reshape(b, i, y.shape[1], y.shape[2], k, j).permute(0, 4, 2, 3, 1, 5)


def capsule_conv_first(a: Tensor, w: Tensor, stride: int) -> Tensor:
    """The same with the channels first."""
    b, c, h, wd, i, m = a.shape
    k, _, r, s, _, j = w.shape
    x = a.permute(0, 4, 1, 5, 2, 3).reshape(b * i, c * m, h, wd)
    f = w.permute(0, 5, 1, 4, 2, 3).reshape(k * j, c * m, r, s)
    y = F.conv2d(x, f, stride=stride)
    return y.reshape(b, i, k, j, y.shape[2], y.shape[3]).permute(0, 2, 4, 5, 1, 3)


def capsule_composed(a: Tensor, w: Tensor, stride: int) -> Tensor:
    """Eight such convolutions, of an eighth of the output's channels each, concatenated."""
    parts = [capsule_conv_first(a, f, stride) for f in w.chunk(8)]
    return torch.cat(parts, 1)


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """The squared distances of rows, expanded: below zero by a rounding for equal rows."""
    squares = (x * x).sum(1)[:, None] + (y * y).sum(1)
    return torch.addmm(squares, x, y.T, alpha=-2)


def pairwise_product(x: Tensor, y: Tensor) -> Tensor:
    """The expanded square, by one matrix product."""
    return _squared_distances(x, y).clamp_min(0).add(1e-6).sqrt()


def gaussian_kernel_product(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    """The expanded square, by one matrix product."""
    return _squared_distances(x, y).mul(-0.5).exp() @ b


def gaussian_kernel_differences(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    """The differences themselves, which a compiler may fuse."""
    return ((x[:, None] - y) ** 2).sum(2).mul(-0.5).exp() @ b


def pairwise_cdist(x: Tensor, y: Tensor) -> Tensor:
    """The library's distances; without the 1e-6, which changes them by 1e-8 relative here."""
    return torch.cdist(x, y)


def max_plus_chosen(a: Tensor, b: Tensor) -> Tensor:
    """The chosen k without gradients, eight rows at a time, the largest sum along the last axis; then two gathers,
    whose gradients are scatters of the chosen points alone."""
    with torch.no_grad():
        bt = b.T.contiguous()
        chosen = torch.cat([(rows[:, None, :] + bt).argmax(2) for rows in a.split(8)])
    return a.gather(1, chosen) + b.gather(0, chosen)


def max_plus_steps(a: Tensor, b: Tensor) -> Tensor:
    """The chosen k by one step for each k over the whole matrix, then two gathers."""
    with torch.no_grad():
        best, chosen = a[:, :1] + b[:1], torch.zeros(a.shape[0], b.shape[1], dtype=torch.int64)
        for k in range(1, a.shape[1]):
            c = a[:, k : k + 1] + b[k]
            chosen.masked_fill_(c > best, k)
            torch.maximum(best, c, out=best)
    return a.gather(1, chosen) + b.gather(0, chosen)


def max_plus_whole(a: Tensor, b: Tensor) -> Tensor:
    """The maximum of all sums; for the compiler, which need not store them."""
    return (a[:, :, None] + b).amax(1)


def max_plus_chosen_whole(a: Tensor, b: Tensor) -> Tensor:
    """The chosen k of all sums without gradients, then two gathers; for the compiler."""
    with torch.no_grad():
        chosen = (a[:, None, :] + b.T.contiguous()).argmax(2)
    return a.gather(1, chosen) + b.gather(0, chosen)


def _band(n: int) -> Tensor:
    """[n, 1, 64, 192]: 0 where a query of block n may look at a key of its three blocks, else -inf."""
    block, i, j = torch.arange(n)[:, None, None], torch.arange(64)[:, None], torch.arange(192)
    key = 64 * block + j - 64
    inside = (i <= j) & (j <= i + 128) & (0 <= key) & (key < 64 * n)
    return torch.where(inside, 0.0, float("-inf"))


_BAND = _band(2048 // 64)


def _three_blocks(k: Tensor) -> Tensor:
    h, t, d = k.shape
    k = F.pad(k, (0, 0, 64, 64)).view(h, t // 64 + 2, 64, d)
    return torch.cat([k[:, :-2], k[:, 1:-1], k[:, 2:]], 2)


def local_attention_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Blocks of 64 queries against three blocks of keys: two batched products and a masked softmax."""
    h, t, d = q.shape
    scores = q.view(h, t // 64, 64, d) @ _three_blocks(k).transpose(2, 3) * 0.125 + _BAND
    return (scores.softmax(-1) @ _three_blocks(v)).view(h, t, d)


def local_attention_fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same blocks through scaled_dot_product_attention, the blocks as its batch, the heads as its heads."""
    h, t, d = q.shape
    q, k, v = q.view(h, t // 64, 64, d), _three_blocks(k), _three_blocks(v)
    mask = _BAND[:, None].expand(t // 64, h, 64, 192)
    y = F.scaled_dot_product_attention(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=mask)
    return y.transpose(0, 1).reshape(h, t, d)


_DISTANCE = torch.arange(256) - torch.arange(256)[:, None] + 255


def relative_bias(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    """The bias gathered from its table, then plain attention."""
    bias = r[_DISTANCE].permute(2, 0, 1)
    return (q @ k.transpose(2, 3) * 0.125 + bias).softmax(-1) @ v


def relative_bias_windows(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    """The bias as sliding windows over its table, in the reversed order of i."""
    bias = r.T.unfold(1, q.shape[2], 1).flip(1)
    return (q @ k.transpose(2, 3) * 0.125 + bias).softmax(-1) @ v


def relative_bias_fused(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    """The gathered bias as the mask of scaled_dot_product_attention."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=r[_DISTANCE].permute(2, 0, 1))


def relative_keys_skewed(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    """The products with all 2T-1 relative keys, then row i moved by i: padding and two reshapes (Music Transformer)."""
    b, h, t, _ = q.shape
    relative = F.pad(q @ r.T, (0, 1)).view(b, h, -1)[:, :, t - 1 : t - 1 + t * (2 * t - 1)]
    relative = relative.view(b, h, t, 2 * t - 1)[..., :t]
    return ((q @ k.transpose(2, 3) + relative) * 0.125).softmax(-1) @ v


def relative_keys_table(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    """The relative keys gathered to [i, j, d], one product for each i (Shaw et al.)."""
    b, h, t, d = q.shape
    table = r[_DISTANCE]
    relative = q.permute(2, 0, 1, 3).reshape(t, b * h, d) @ table.transpose(1, 2)
    relative = relative.view(t, b, h, t).permute(1, 2, 0, 3)
    return ((q @ k.transpose(2, 3) + relative) * 0.125).softmax(-1) @ v


def depthwise_first(x: Tensor, k: Tensor) -> Tensor:
    """A grouped convolution, channels first."""
    return F.conv2d(x, k[:, None], padding=3, groups=k.shape[0])


def depthwise_last(x: Tensor, k: Tensor) -> Tensor:
    """A grouped convolution, channels last."""
    x = x.contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, k[:, None].contiguous(memory_format=torch.channels_last), padding=3, groups=k.shape[0])


def bilinear_matrix(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """x against W as a [i, (o, j)] matrix, then the product with y."""
    u = (x @ w.permute(1, 0, 2).reshape(x.shape[1], -1)).view(x.shape[0], w.shape[0], -1)
    return torch.bmm(u, y[:, :, None])[:, :, 0]


def bilinear_outer(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """The outer products of x and y against W as an [o, (i, j)] matrix."""
    return (x[:, :, None] * y[:, None, :]).view(x.shape[0], -1) @ w.view(w.shape[0], -1).T


def bilinear_library(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """The library's own."""
    return F.bilinear(x, y, w)


def involution_unfold(x: Tensor, k: Tensor) -> Tensor:
    """All windows by unfold, then a product and a sum."""
    b, g, c, h, w = x.shape
    windows = F.unfold(x.view(b, g * c, h, w), 7, padding=3).view(b, g, c, 49, h, w)
    return (windows * k.reshape(b, g, 1, 49, h, w)).sum(3)


def involution_taps(x: Tensor, k: Tensor) -> Tensor:
    """A sum over the 49 taps of shifted images."""
    h, w = x.shape[3:]
    x = F.pad(x, (3, 3, 3, 3))
    y = torch.zeros((), dtype=x.dtype)
    for r in range(7):
        for s in range(7):
            y = y + x[..., r : r + h, s : s + w] * k[:, :, None, r, s]
    return y


def tensor_train(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The library's contraction, in the order that it finds."""
    return torch.einsum("bijk,imp,pjnq,qko->bmno", x, a, b, c)


def tensor_train_products(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Three products of matrices, from the right."""
    n, i, j, k = x.shape
    p, q, (m, nn, o) = a.shape[2], c.shape[0], (a.shape[1], b.shape[2], c.shape[2])
    y = x.reshape(-1, k) @ c.transpose(0, 1).reshape(k, q * o)
    y = y.reshape(n * i, j, q, o).permute(0, 3, 1, 2).reshape(-1, j * q)
    y = y @ b.permute(1, 3, 0, 2).reshape(j * q, p * nn)
    y = y.reshape(n, i, o, p, nn).permute(0, 2, 4, 1, 3).reshape(-1, i * p)
    y = y @ a.transpose(1, 2).reshape(i * p, m)
    return y.reshape(n, o, nn, m).permute(0, 3, 2, 1)


def running_sum(x: Tensor) -> Tensor:
    return torch.cumsum(x, 1)


def grid_sample(x: Tensor, g: Tensor) -> Tensor:
    return F.grid_sample(x, g, align_corners=False)


def deformable(x: Tensor, o: Tensor, w: Tensor) -> Tensor:
    """The library's samples of all taps, then a product of matrices."""
    (n, c, h, wd), m = x.shape, w.shape[0]
    k, rows, columns = torch.arange(9), torch.arange(h), torch.arange(wd)
    p = o[:, :, 0] + rows[:, None] + (k // 3 - 1)[:, None, None]
    q = o[:, :, 1] + columns + (k % 3 - 1)[:, None, None]
    g = torch.stack([(2 * q + 1) / wd - 1, (2 * p + 1) / h - 1], -1)
    v = F.grid_sample(x, g.reshape(n, 9 * h, wd, 2), align_corners=False)
    return (w.reshape(m, c * 9) @ v.reshape(n, c * 9, h * wd)).reshape(n, m, h, wd)


EAGER: dict[str, dict[str, Callable[..., Tensor]]] = {
    "capsule_conv": {"channels last": capsule_conv_last, "channels first": capsule_conv_first},
    "capsule_composed": {"eight convolutions": capsule_composed},
    "pairwise": {"product": pairwise_product, "cdist": pairwise_cdist},
    "max_plus": {"argmax by rows": max_plus_chosen, "a step for each k": max_plus_steps},
    "local_attention": {"blocks": local_attention_blocks, "blocks, fused attention": local_attention_fused},
    "relative_bias": {
        "gather": relative_bias,
        "windows": relative_bias_windows,
        "fused attention": relative_bias_fused,
    },
    "relative_keys": {"skewed": relative_keys_skewed, "table": relative_keys_table},
    "depthwise": {"channels first": depthwise_first, "channels last": depthwise_last},
    "bilinear": {"matrix": bilinear_matrix, "outer": bilinear_outer, "library": bilinear_library},
    "gaussian_kernel": {"product": gaussian_kernel_product, "differences": gaussian_kernel_differences},
    "involution": {"taps": involution_taps, "unfold": involution_unfold},
    "tensor_train": {"einsum": tensor_train, "products": tensor_train_products},
    "running_sum": {"library": running_sum},
    "grid_sample": {"library": grid_sample},
    "deformable": {"library's samples": deformable},
}

COMPILED = EAGER | {
    "max_plus": {"argmax": max_plus_chosen_whole, "maximum": max_plus_whole},
}
