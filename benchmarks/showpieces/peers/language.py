"""Recurrences and attentions of language models in PyTorch and JAX; inputs of recurrences have time first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def divisor(steps: int, most: int) -> int:
    """Return the largest number of steps that divides all of them, at most `most`."""
    return max(n for n in range(1, most + 1) if steps % n == 0)


def in_chunks(form: Callable[..., Tensor], most: int) -> Callable[..., Tensor]:
    """Return a form of `benchmarks.peers.chunks` for any number of steps, in chunks of at most `most`."""

    def chunked(first: Tensor, *rest: Tensor) -> Tensor:
        return form(first, *rest, length=divisor(first.shape[0], most))

    return chunked


def selective_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Step after step, as in Mamba's reference."""
    state, out = torch.zeros(x.shape[0], *A.shape, dtype=x.dtype), []
    decays, inputs = (dt[..., None] * A).exp(), (dt * x)[..., None] * B[:, :, None]
    for a, u, c in zip(decays.unbind(1), inputs.unbind(1), C.unbind(1), strict=True):
        state = a * state + u
        out.append((state @ c[..., None])[..., 0])
    return torch.stack(out, 1) + D * x


def selective_scan_in_chunks(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Chunks of steps side by side, then the states between them."""
    length = divisor(x.shape[1], 32)
    a, u = ((dt[..., None] * A).exp(), (dt * x)[..., None] * B[:, :, None])
    decays, inputs = (y.unflatten(1, (-1, length)).unbind(2) for y in (a, u))
    products, states = [decays[0]], [inputs[0]]
    for a, u in zip(decays[1:], inputs[1:], strict=True):
        products.append(a * products[-1])
        states.append(a * states[-1] + u)
    state, before = torch.zeros_like(states[0][:, 0]), []
    for a, u in zip(products[-1].unbind(1), states[-1].unbind(1), strict=True):
        before.append(state)
        state = a * state + u
    start = torch.stack(before, 1)
    whole = torch.stack([s + p * start for s, p in zip(states, products, strict=True)], 2).flatten(1, 2)
    return (whole @ C[..., None])[..., 0] + D * x


def selective_scan_by_doubling(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """All prefixes at once, in log2(T) sweeps (Hillis and Steele 1986)."""
    a, u, width = (dt[..., None] * A).exp(), (dt * x)[..., None] * B[:, :, None], 1
    while width < x.shape[1]:
        u = u + a * F.pad(u, (0, 0, 0, 0, width, 0))[:, :-width]
        a = a * F.pad(a, (0, 0, 0, 0, width, 0), value=1.0)[:, :-width]
        width *= 2
    return (u @ C[..., None])[..., 0] + D * x


def slstm(x: Tensor, R: Tensor) -> Tensor:
    """x [T, B, gate, head, width], R [gate, head, width, width]: a product of all gates of a head in each step."""
    steps, batch, gates, heads, width = x.shape
    matrix = R.permute(1, 2, 0, 3).reshape(heads, width, gates * width)
    y = c = n = x.new_zeros(batch, heads, width)
    m, out = None, []
    for now in x.unbind(0):
        recurrent = torch.bmm(y.transpose(0, 1), matrix).view(heads, batch, gates, width)
        i, f, z, o = (now + recurrent.permute(1, 2, 0, 3)).unbind(1)
        if m is None:
            m, gate = i, torch.zeros_like(i)
        else:
            kept = F.logsigmoid(f) + m
            m = torch.maximum(i, kept)
            gate = (kept - m).exp()
        c, n = gate * c + (i - m).exp() * z.tanh(), gate * n + (i - m).exp()
        y = o.sigmoid() * c / n
        out.append(y)
    return torch.stack(out)


def aft(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Products of exponentials, whose maxima are taken out."""
    a = (w - w.detach().amax(1, keepdim=True)).exp()
    b = (k - k.detach().amax(0)).exp()
    above, below = (a @ torch.cat([b * v, b], 1)).split(v.shape[1], 1)
    return q.sigmoid() * above / below


def _windows(length: int, window: int) -> tuple[Tensor, Tensor]:
    """Return each window's first position, and the place of its biases."""
    i = torch.arange(length)
    first = (i - window // 2).clamp(0, length - window)
    return first, first[:, None] + torch.arange(window) - i[:, None] + window - 1


def neighbourhood_by_windows(q: Tensor, k: Tensor, v: Tensor, B: Tensor) -> Tensor:
    """Keys and values of each window gathered."""
    window = B.shape[1] // 2 + 1
    first, place = _windows(q.shape[2], window)
    keys, values = (x.unfold(2, window, 1)[:, :, first] for x in (k, v))
    scores = (q[..., None, :] @ keys)[..., 0, :] * q.shape[-1] ** -0.5 + B[:, place]
    return (scores.softmax(-1)[..., None, :] @ values.mT)[..., 0, :]


def neighbourhood_by_mask(q: Tensor, k: Tensor, v: Tensor, B: Tensor) -> Tensor:
    """Scaled dot product attention with biases of -inf outside of the windows."""
    first, place = _windows(q.shape[2], B.shape[1] // 2 + 1)
    at = first[:, None] + torch.arange(B.shape[1] // 2 + 1)
    bias = q.new_full((q.shape[1], q.shape[2], q.shape[2]), -torch.inf)
    bias = bias.scatter(2, at.expand(q.shape[1], -1, -1), B[:, place])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])


def jax_delta_rule(Q: Any, K: Any, V: Any, g: Any, beta: Any) -> Any:
    """Of decays by head, or by head and key."""
    import jax
    import jax.numpy as jnp

    def step(state: Any, x: tuple) -> tuple:
        q, k, v, d, b = x
        kept = state * jnp.exp(d)[..., None]
        new = b[:, None] * (v - jnp.einsum("hkv,hk->hv", kept, k))
        state = kept + k[..., None] * new[:, None]
        return state, jnp.einsum("hkv,hk->hv", state, q)

    decays = g if g.ndim == 3 else g[..., None]
    start = jnp.zeros((*K.shape[1:], V.shape[2]), V.dtype)
    return jax.lax.scan(step, start, (Q * Q.shape[-1] ** -0.5, K, V, decays, beta))[1]


def jax_linear_attention(Q: Any, K: Any, V: Any, g: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(state: Any, x: tuple) -> tuple:
        q, k, v, d = x
        state = state * jnp.exp(d)[..., None] + k[..., None] * v[:, None]
        return state, jnp.einsum("hkv,hk->hv", state, q)

    start = jnp.zeros((*K.shape[1:], V.shape[2]), V.dtype)
    return jax.lax.scan(step, start, (Q * Q.shape[-1] ** -0.5, K, V, g))[1]


def jax_rwkv7(r: Any, w: Any, K: Any, V: Any, a: Any, b: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(state: Any, x: tuple) -> tuple:
        r, d, k, v, a, b = x
        read = jnp.einsum("hvk,hk->hv", state, a)
        state = state * jnp.exp(d)[:, None] + read[..., None] * b[:, None] + v[..., None] * k[:, None]
        return state, jnp.einsum("hvk,hk->hv", state, r)

    start = jnp.zeros((K.shape[1], V.shape[2], K.shape[2]), V.dtype)
    return jax.lax.scan(step, start, (r, w, K, V, a, b))[1]


def jax_mamba2(x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(state: Any, row: tuple) -> tuple:
        u, d, b, c = row
        state = state * d[:, None, None] + u[..., None] * b
        return state, state @ c

    start = jnp.zeros((*x.shape[1:], B.shape[1]), x.dtype)
    return jax.lax.scan(step, start, (x * dt[..., None], jnp.exp(dt * A), B, C))[1] + D[:, None] * x


def jax_mlstm(Q: Any, K: Any, V: Any, i: Any, f: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(carry: tuple, x: tuple) -> tuple:
        state, norm, m = carry
        q, k, v, i, f = x
        kept = jax.nn.log_sigmoid(f) + m
        new = jnp.maximum(kept, i)
        a, b = jnp.exp(kept - new)[:, None], jnp.exp(i - new)[:, None]
        state, norm = a[..., None] * state + b[..., None] * k[..., None] * v[:, None], a * norm + b * k
        below = jnp.maximum(jnp.abs((norm * q).sum(-1)), jnp.exp(-new)) + 1e-6
        return (state, norm, new), jnp.einsum("hkv,hk->hv", state, q) / below[:, None]

    heads, keys = K.shape[1:]
    start = jnp.zeros((heads, keys, V.shape[2]), V.dtype), jnp.zeros((heads, keys), V.dtype), jnp.zeros(heads, V.dtype)
    return jax.lax.scan(step, start, (Q * Q.shape[-1] ** -0.5, K, V, i, f))[1]


def jax_selective_scan(x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(state: Any, row: tuple) -> tuple:
        x, dt, b, c = row
        state = state * jnp.exp(dt[..., None] * A) + (dt * x)[..., None] * b[:, None]
        return state, jnp.einsum("bdn,bn->bd", state, c)

    rows = tuple(jnp.moveaxis(y, 1, 0) for y in (x, dt, B, C))
    out = jax.lax.scan(step, jnp.zeros((x.shape[0], *A.shape), x.dtype), rows)[1]
    return jnp.moveaxis(out, 0, 1) + D * x


def jax_associative_scan(x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def join(one: tuple, other: tuple) -> tuple:
        return other[0] * one[0], other[0] * one[1] + other[1]

    decays, inputs = jnp.exp(dt[..., None] * A), (dt * x)[..., None] * B[:, :, None]
    states = jax.lax.associative_scan(join, (decays, inputs), axis=1)[1]
    return jnp.einsum("btdn,btn->btd", states, C) + D * x


def jax_slstm(x: Any, R: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(carry: tuple, x: Any) -> tuple:
        y, c, n, m = carry
        i, f, z, o = jnp.moveaxis(x + jnp.einsum("bhj,ghjk->bghk", y, R), 1, 0)
        kept = jax.nn.log_sigmoid(f) + m
        m = jnp.maximum(i, kept)
        c, n = (jnp.exp(kept - m) * s + jnp.exp(i - m) * u for s, u in ((c, jnp.tanh(z)), (n, 1.0)))
        y = jax.nn.sigmoid(o) * c / n
        return (y, c, n, m), y

    zero = jnp.zeros((x.shape[1], *x.shape[3:]), x.dtype)
    return jax.lax.scan(step, (zero, zero, zero, zero - 1e30), x)[1]


def jax_aft(q: Any, k: Any, v: Any, w: Any) -> Any:
    import jax
    import jax.numpy as jnp

    a = jnp.exp(w - jax.lax.stop_gradient(w.max(1, keepdims=True)))
    b = jnp.exp(k - jax.lax.stop_gradient(k.max(0)))
    return jax.nn.sigmoid(q) * (a @ (b * v)) / (a @ b)


def jax_neighbourhood(q: Any, k: Any, v: Any, B: Any) -> Any:
    import jax
    import jax.numpy as jnp

    window, i = B.shape[1] // 2 + 1, jnp.arange(q.shape[2])
    at = jnp.clip(i - window // 2, 0, q.shape[2] - window)[:, None] + jnp.arange(window)
    scores = jnp.einsum("bhid,bhird->bhir", q, k[:, :, at]) * q.shape[-1] ** -0.5 + B[:, at - i[:, None] + window - 1]
    return jnp.einsum("bhir,bhird->bhid", jax.nn.softmax(scores), v[:, :, at])
