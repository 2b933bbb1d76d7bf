"""Chunk forms of linear recurrences in PyTorch, as published beside the papers: products in chunks, a loop over them.

Inputs have time first, [T, H, ..], as those of `benchmarks.recurrences`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _cut(x: Tensor, length: int) -> Tensor:
    """[T, H, ..] -> [H, T/length, length, ..]."""
    x = x.unflatten(0, (-1, length))
    return x.movedim(2, 0)


def _join(parts: list[Tensor]) -> Tensor:
    """Chunks [H, length, width] -> [T, H, width]."""
    return torch.cat(parts, 1).movedim(1, 0)


def _triangle(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve (1 + strictly lower triangle of a matrix) x = right."""
    one = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    return torch.linalg.solve_triangular(matrix.tril(-1) + one, right, upper=False, unitriangular=True)


def _by_step(c: Tensor) -> Tensor:
    """Decays between the steps of a chunk from cumulative sums [.., L]."""
    d = c[..., :, None] - c[..., None, :]
    return d.masked_fill(~_triangle(c.shape[-1]), -torch.inf).exp()


def gated_delta_rule(Q: Tensor, K: Tensor, V: Tensor, g: Tensor, beta: Tensor, length: int = 64) -> Tensor:
    q, k, v, c, b = (_cut(x, length) for x in (Q * Q.shape[-1] ** -0.5, K, V, g, beta))
    c = c.cumsum(-1)
    d, e, b = _by_step(c), c.exp()[..., None], b[..., None]
    right = torch.cat([b * v, b * e * k], -1)
    u, w = _solve(b * (k @ k.mT) * d, right).split([v.shape[-1], k.shape[-1]], -1)
    inside, end = (q @ k.mT) * d, (c[..., -1:] - c).exp()[..., None] * k
    state, out = torch.zeros(q.shape[0], k.shape[-1], v.shape[-1], dtype=q.dtype), []
    for n in range(q.shape[1]):
        new = u[:, n] - w[:, n] @ state
        out.append((q[:, n] * e[:, n]) @ state + inside[:, n] @ new)
        state = e[:, n, -1:] * state + end[:, n].mT @ new
    return _join(out)


def kimi_delta_attention(Q: Tensor, K: Tensor, V: Tensor, g: Tensor, beta: Tensor, length: int = 32) -> Tensor:
    q, k, v, c, b = (_cut(x, length) for x in (Q * Q.shape[-1] ** -0.5, K, V, g, beta))
    c, b = c.cumsum(-2), b[..., None]
    ahead, back = k * c.exp(), k * (-c).exp()
    right = torch.cat([b * v, b * ahead], -1)
    u, w = _solve(b * (ahead @ back.mT), right).split([v.shape[-1], k.shape[-1]], -1)
    read, end = q * c.exp(), k * (c[..., -1:, :] - c).exp()
    inside = (read @ back.mT).tril()
    state, out = torch.zeros(q.shape[0], k.shape[-1], v.shape[-1], dtype=q.dtype), []
    for n in range(q.shape[1]):
        new = u[:, n] - w[:, n] @ state
        out.append(read[:, n] @ state + inside[:, n] @ new)
        state = c[:, n, -1, :, None].exp() * state + end[:, n].mT @ new
    return _join(out)


def gated_linear_attention(Q: Tensor, K: Tensor, V: Tensor, g: Tensor, length: int = 32) -> Tensor:
    q, k, v, c = (_cut(x, length) for x in (Q * Q.shape[-1] ** -0.5, K, V, g))
    c = c.cumsum(-2)
    read, end = q * c.exp(), k * (c[..., -1:, :] - c).exp()
    inside = (read @ (k * (-c).exp()).mT).tril()
    state, out = torch.zeros(q.shape[0], k.shape[-1], v.shape[-1], dtype=q.dtype), []
    for n in range(q.shape[1]):
        out.append(read[:, n] @ state + inside[:, n] @ v[:, n])
        state = c[:, n, -1, :, None].exp() * state + end[:, n].mT @ v[:, n]
    return _join(out)


def rwkv7(r: Tensor, w: Tensor, K: Tensor, V: Tensor, a: Tensor, b: Tensor, length: int = 16) -> Tensor:
    r, decay, k, v, a, b = (_cut(x, length) for x in (r, w, K, V, a, b))
    c = decay.cumsum(-2)
    ahead, read, back, key = a * (c - decay).exp(), r * c.exp(), b * (-c).exp(), k * (-c).exp()
    right = torch.cat([(ahead @ key.mT).tril(-1) @ v, ahead], -1)
    u, x = _solve(-(ahead @ back.mT), right).split([v.shape[-1], k.shape[-1]], -1)
    by_read, by_key = (read @ back.mT).tril(), (read @ key.mT).tril()
    state, out = torch.zeros(r.shape[0], v.shape[-1], k.shape[-1], dtype=r.dtype), []
    for n in range(r.shape[1]):
        new = u[:, n] + x[:, n] @ state.mT
        out.append(read[:, n] @ state.mT + by_read[:, n] @ new + by_key[:, n] @ v[:, n])
        state = c[:, n, -1, None, :].exp() * (state + new.mT @ back[:, n] + v[:, n].mT @ key[:, n])
    return _join(out)


def mamba2(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, length: int = 64) -> Tensor:
    inputs, step = (_cut(y, length) for y in (x * dt[..., None], dt * A))
    left, right = (y.unflatten(0, (-1, length)) for y in (B, C))
    c = step.cumsum(-1)
    inside = ((right @ left.mT) * _by_step(c)) @ inputs
    sums = ((c[..., -1:] - c).exp()[..., None] * inputs).mT @ left
    state, before = torch.zeros_like(sums[:, 0]), []
    for n in range(sums.shape[1]):
        before.append(state)
        state = c[:, n, -1:, None].exp() * state + sums[:, n]
    out = inside + c.exp()[..., None] * (right @ torch.stack(before, 1).mT)
    return out.flatten(1, 2).movedim(0, 1) + D[:, None] * x


def mlstm(Q: Tensor, K: Tensor, V: Tensor, i: Tensor, f: Tensor, length: int = 64) -> Tensor:
    q, k, v, i, c = (_cut(x, length) for x in (Q * Q.shape[-1] ** -0.5, K, V, i, -(-f).exp().log1p()))
    c = c.cumsum(-1)
    total = c[..., -1]
    gain = total[..., None] - c + i
    pairs = (c[..., :, None] - c[..., None, :] + i[..., None, :]).masked_fill(~_triangle(length), -torch.inf)
    scores, top, most = q @ k.mT, gain.amax(-1), pairs.amax(-1)
    state = torch.zeros(q.shape[0], k.shape[-1], v.shape[-1], dtype=q.dtype)
    norm, m, out = torch.zeros(q.shape[0], k.shape[-1], dtype=q.dtype), torch.zeros(q.shape[0], dtype=q.dtype), []
    for n in range(q.shape[1]):
        here = torch.maximum(c[:, n] + m[:, None], most[:, n])
        weights = scores[:, n] * (pairs[:, n] - here[..., None]).exp()
        e = (c[:, n] + m[:, None] - here).exp()
        z = e * (q[:, n] @ norm[..., None])[..., 0] + weights.sum(-1)
        below = torch.maximum(z.abs(), (-here).exp()) + 1e-6
        out.append((e[..., None] * (q[:, n] @ state) + weights @ v[:, n]) / below[..., None])
        new = torch.maximum(total[:, n] + m, top[:, n])
        keys = (gain[:, n] - new[:, None]).exp()[..., None] * k[:, n]
        kept = (total[:, n] + m - new).exp()
        state = kept[:, None, None] * state + keys.mT @ v[:, n]
        norm, m = kept[:, None] * norm + keys.sum(1), new
    return _join(out)


FORMS: dict[str, Callable[..., Tensor]] = {
    "gated delta rule": gated_delta_rule,
    "Kimi delta attention": kimi_delta_attention,
    "gated linear attention": gated_linear_attention,
    "RWKV-7": rwkv7,
    "Mamba-2": mamba2,
    "mLSTM": mlstm,
}
