"""Losses of speech and of sequences in PyTorch and JAX, over the diagonals or the steps of their grids, in which all
sequences and places are one operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FAR = -1e30
"""Logarithm of no probability, whose differences are numbers."""
BIG, GAMMA = 1e10, 1.0
"""Cost of no path, and the temperature, of the soft-DTW."""


def _transducer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of blanks [B, T, U+1] and of labels [B, T, U]."""
    norm = x.logsumexp(-1)
    labels = x[:, :, :-1].gather(3, y[:, None, :, None].expand(-1, x.shape[1], -1, 1))[..., 0]
    return x[..., 0] - norm, labels - norm[:, :, :-1]


def transducer_by_diagonals(x: Tensor, y: Tensor, n: Tensor, m: Tensor) -> Tensor:
    """n, m: lengths of inputs and labels. Cells of equal t + u at once (Bagby et al. 2018)."""
    blank, emit = _transducer(x, y)
    steps, labels = x.shape[1:3]
    u = torch.arange(labels)
    at = (torch.arange(steps + labels - 1)[:, None] - u).clamp(0, steps - 1)
    blanks, emits = blank[:, at, u].unbind(1), F.pad(emit, (0, 1))[:, at, u].unbind(1)
    a = torch.full_like(blanks[0], FAR)
    a = torch.cat([torch.zeros_like(a[:, :1]), a[:, 1:]], 1)
    rows = [a]
    for stay, step in zip(blanks[:-1], emits[:-1], strict=True):
        a = torch.logaddexp(a + stay, F.pad((a + step)[:, :-1], (1, 0), value=FAR))
        rows.append(a)
    b = torch.arange(len(x))
    return -(torch.stack(rows)[n - 1 + m, b, m] + blank[b, n - 1, m]).mean()


def transducer_by_rows(x: Tensor, y: Tensor, n: Tensor, m: Tensor) -> Tensor:
    """All labels of a time at once, by a cumulative log-sum-exp."""
    blank, emit = _transducer(x, y)
    sums = F.pad(emit.cumsum(2), (1, 0)).unbind(1)
    a, rows = sums[0], [sums[0]]
    for stay, s in zip(blank.unbind(1)[:-1], sums[1:], strict=True):
        a = s + (a + stay - s).logcumsumexp(1)
        rows.append(a)
    b = torch.arange(len(x))
    return -(torch.stack(rows)[n - 1, b, m] + blank[b, n - 1, m]).mean()


def ctc(x: Tensor, y: Tensor, n: Tensor, m: Tensor) -> Tensor:
    """The loss of the library."""
    losses = F.ctc_loss(x.log_softmax(2).transpose(0, 1), y, n, m, reduction="none")
    return losses.mean()


def ctc_by_steps(x: Tensor, y: Tensor, n: Tensor, m: Tensor) -> Tensor:
    """All places of the extended label sequences at once."""
    labels = F.pad(y[:, :, None], (1, 0)).flatten(1)
    labels = F.pad(labels, (0, 1))
    logs = x.log_softmax(2).gather(2, labels[:, None].expand(-1, x.shape[1], -1)).unbind(1)
    place = torch.arange(labels.shape[1])
    can_skip = (labels != 0) & (labels != F.pad(labels, (2, 0))[:, :-2]) & (place > 1)
    a = torch.where(place < 2, logs[0], FAR)
    rows = [a]
    for p in logs[1:]:
        skipped = torch.where(can_skip, F.pad(a, (2, 0), value=FAR)[:, :-2], FAR)
        a = p + torch.stack([a, F.pad(a, (1, 0), value=FAR)[:, :-1], skipped]).logsumexp(0)
        rows.append(a)
    b, states = torch.arange(len(x)), torch.stack(rows)
    return -torch.logaddexp(states[n - 1, b, 2 * m], states[n - 1, b, 2 * m - 1]).mean()


def _score(e: Tensor, M: Tensor, y: Tensor) -> Tensor:
    return e.gather(2, y[..., None])[..., 0].sum(1) + M[y[:, :-1], y[:, 1:]].sum(1)


def crf_by_products(e: Tensor, M: Tensor, y: Tensor) -> Tensor:
    """Probabilities scaled in each step instead of logarithms (Rabiner 1989, section V)."""
    top, matrix = e.detach().amax(2), M.exp()
    weights = (e - top[..., None]).exp().unbind(1)
    total = weights[0].sum(1, keepdim=True)
    a, totals = weights[0] / total, [total]
    for w in weights[1:]:
        a = (a @ matrix) * w
        total = a.sum(1, keepdim=True)
        a = a / total
        totals.append(total)
    return (torch.cat(totals, 1).log().sum(1) + top.sum(1) - _score(e, M, y)).mean()


def crf_by_logarithms(e: Tensor, M: Tensor, y: Tensor) -> Tensor:
    """As pytorch-crf: a log-sum-exp in each step."""
    steps = e.unbind(1)
    a = steps[0]
    for x in steps[1:]:
        a = x + (a[:, :, None] + M).logsumexp(1)
    return (a.logsumexp(1) - _score(e, M, y)).mean()


def soft_dtw(x: Tensor, y: Tensor) -> Tensor:
    """Cells of equal i + j at once."""
    d = (x * x).sum(2)[:, :, None] + (y * y).sum(2)[:, None] - 2 * x @ y.mT
    rows, columns = d.shape[1:]
    i = torch.arange(rows)
    j = torch.arange(rows + columns - 1)[:, None] - i
    costs = torch.where(j >= 0, d[:, i, j.clamp(0, columns - 1)], BIG).unbind(1)
    before = torch.full_like(costs[0], BIG)
    now = torch.cat([costs[0][:, :1], before[:, 1:]], 1)
    before = F.pad(before, (1, 0), value=BIG)[:, :-1]
    for cost in costs[1:]:
        above = F.pad(now, (1, 0), value=BIG)[:, :-1]
        least = -GAMMA * (torch.stack([above, now, before]) / -GAMMA).logsumexp(0)
        before, now = above, cost + least
    return now[:, -1]


def jax_transducer(x: Any, y: Any, n: Any, m: Any) -> Any:
    import jax
    import jax.numpy as jnp

    norm = jax.nn.logsumexp(x, axis=-1)
    emit = jnp.take_along_axis(x[:, :, :-1], y[:, None, :, None], 3)[..., 0] - norm[:, :, :-1]
    blank, (steps, labels) = x[..., 0] - norm, x.shape[1:3]
    u, b = jnp.arange(labels), jnp.arange(len(x))
    at = jnp.clip(jnp.arange(steps + labels - 1)[:, None] - u, 0, steps - 1)
    blanks, emits = (jnp.moveaxis(z[:, at, u], 1, 0) for z in (blank, jnp.pad(emit, ((0, 0), (0, 0), (0, 1)))))

    def step(a: Any, row: tuple) -> tuple:
        moved = jnp.pad((a + row[1])[:, :-1], ((0, 0), (1, 0)), constant_values=FAR)
        a = jnp.logaddexp(a + row[0], moved)
        return a, a

    start = jnp.where(u == 0, 0.0, jnp.full_like(blanks[0], FAR))
    states = jnp.concatenate([start[None], jax.lax.scan(step, start, (blanks[:-1], emits[:-1]))[1]])
    return -(states[n - 1 + m, b, m] + blank[b, n - 1, m]).mean()


def jax_ctc(x: Any, y: Any, n: Any, m: Any) -> Any:
    import jax
    import jax.numpy as jnp

    labels = jnp.zeros((y.shape[0], 2 * y.shape[1] + 1), y.dtype).at[:, 1::2].set(y)
    logs = jnp.moveaxis(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 2), 1, 0)
    place, b = jnp.arange(labels.shape[1]), jnp.arange(len(x))
    can_skip = (labels != 0) & (labels != jnp.roll(labels, 2, 1)) & (place > 1)

    def moved(a: Any, places: int) -> Any:
        return jnp.pad(a, ((0, 0), (places, 0)), constant_values=FAR)[:, : a.shape[1]]

    def step(a: Any, p: Any) -> tuple:
        a = p + jax.nn.logsumexp(jnp.stack([a, moved(a, 1), jnp.where(can_skip, moved(a, 2), FAR)]), axis=0)
        return a, a

    start = jnp.where(place < 2, logs[0], FAR)
    states = jnp.concatenate([start[None], jax.lax.scan(step, start, logs[1:])[1]])
    return -jnp.logaddexp(states[n - 1, b, 2 * m], states[n - 1, b, 2 * m - 1]).mean()


def jax_crf(e: Any, M: Any, y: Any) -> Any:
    import jax
    import jax.numpy as jnp

    top, matrix = jax.lax.stop_gradient(e.max(2)), jnp.exp(M)
    weights = jnp.moveaxis(jnp.exp(e - top[..., None]), 1, 0)

    def step(a: Any, w: Any) -> tuple:
        a = (a @ matrix) * w
        total = a.sum(1, keepdims=True)
        return a / total, total

    first = weights[0].sum(1, keepdims=True)
    totals = jax.lax.scan(step, weights[0] / first, weights[1:])[1]
    score = jnp.take_along_axis(e, y[..., None], 2)[..., 0].sum(1) + M[y[:, :-1], y[:, 1:]].sum(1)
    return (jnp.log(first[:, 0]) + jnp.log(totals).sum((0, 2)) + top.sum(1) - score).mean()


def jax_soft_dtw(x: Any, y: Any) -> Any:
    import jax
    import jax.numpy as jnp

    d = (x * x).sum(2)[:, :, None] + (y * y).sum(2)[:, None] - 2 * x @ jnp.swapaxes(y, 1, 2)
    rows, columns = d.shape[1:]
    i = jnp.arange(rows)
    j = jnp.arange(rows + columns - 1)[:, None] - i
    costs = jnp.moveaxis(jnp.where(j >= 0, d[:, i, jnp.clip(j, 0, columns - 1)], BIG), 1, 0)

    def moved(a: Any) -> Any:
        return jnp.pad(a, ((0, 0), (1, 0)), constant_values=BIG)[:, :-1]

    def step(carry: tuple, cost: Any) -> tuple:
        before, now = carry
        above = moved(now)
        least = -GAMMA * jax.nn.logsumexp(jnp.stack([above, now, before]) / -GAMMA, axis=0)
        return (above, cost + least), None

    far = jnp.full_like(costs[0], BIG)
    start = moved(far), jnp.where(i == 0, costs[0], far)
    return jax.lax.scan(step, start, costs[1:])[0][1][:, -1]
